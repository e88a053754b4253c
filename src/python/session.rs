//! Sessions and queries.

use std::collections::BTreeMap;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule};
use pyo3_arrow::PySchema;

use super::arrow::{ArrowStream, QueryReader, schema_capsule};
use super::error::to_py;
use super::filesystem::{PyCredentials, PyFiles};
use super::import::Arrays;
use super::plan::PyPlan;
use super::udf::PyFunction;
use super::wait::{at_once, compute, planned, wait};
use crate::Error;
use crate::catalog::TableOptions;
use crate::iceberg::TravelTo;
use crate::query::{Moment, check_predicate};
use crate::session::{
    FunctionInfo, LakeChange, LakeOrigin, LakeSource, PlanOptions, Query, Session, SessionOptions,
    TableInfo,
};
use crate::storage::{CacheOptions, ForeignCredentials, StoreAccess};

/// A table of a session: name, kind, files, bytes, rows, and files left out with the reason.
type TableRow =
    (String, &'static str, Option<usize>, Option<u64>, Option<u64>, Vec<(String, String)>);

/// A function of a session: name, types of the arguments, return type, volatility.
type FunctionRow = (String, Vec<String>, String, &'static str);

/// The changes that a refresh found in one table.
type ChangeRow = (String, Option<i64>, Option<i64>, (usize, usize), (usize, usize));

/// Depth, text, rows and nanoseconds of an operator that ran.
type OperatorRow = (usize, String, Option<usize>, Option<usize>);

/// A path literal, and the data that another process needs to read it without listing it.
type PathMemo<'py> = (String, Bound<'py, PyBytes>);

fn path_memos(py: Python<'_>, memos: Vec<(String, Vec<u8>)>) -> Vec<PathMemo<'_>> {
    memos.into_iter().map(|(path, memo)| (path, PyBytes::new(py, &memo))).collect()
}

/// The registered tables.
#[pyclass(name = "Session", module = "tensorquery._core", frozen)]
pub struct PySession {
    session: Arc<Session>,
}

#[pymethods]
impl PySession {
    #[new]
    #[pyo3(signature = (memory_limit=None, storage_options="{}", local_cache=None, credentials=None, plan_cache=None))]
    fn new(
        py: Python<'_>,
        memory_limit: Option<u64>,
        storage_options: &str,
        local_cache: Option<(String, u64)>,
        credentials: Option<Bound<'_, PyAny>>,
        plan_cache: Option<String>,
    ) -> PyResult<Self> {
        let storage_options = serde_json::from_str(storage_options)
            .map_err(|error| to_py(Error::config(format!("bad storage options: {error}"))))?;
        let credentials = credentials.as_ref().map(asked).transpose()?;
        let local_cache = local_cache.map(|(path, size)| CacheOptions { path, size });
        let options = SessionOptions { memory_limit, storage_options, credentials, local_cache };
        let session = match plan_cache {
            Some(place) => {
                wait(py, move || async move { Session::with_plan_cache(options, &place).await })?
            }
            None => at_once(|| Session::try_new(options))?,
        };
        Ok(Self { session })
    }

    /// Takes the plan cache's warnings since the last call.
    fn take_warnings(&self) -> Vec<String> {
        self.session.take_warnings()
    }

    /// A memo of a registered table over files: `register_files` takes it in another process,
    /// without listing.
    fn table_memo<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &at_once(|| self.session.table_memo(name))?))
    }

    /// Memos of the path literals of a view, by path.
    fn view_memos<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Vec<PathMemo<'py>>> {
        Ok(path_memos(py, at_once(|| self.session.view_memos(name))?))
    }

    /// The reason why the local cache was not used, told once.
    fn cache_trouble(&self) -> Option<String> {
        self.session.cache().and_then(|cache| cache.trouble())
    }

    /// Lists, pins and registers files. `options` is JSON; see `TableOptions`. `credentials` and
    /// `files` are a `Credentials` and a `Files` of the package. With `memo`, which `table_memo`
    /// gave in another process, nothing is listed.
    #[pyo3(signature = (name, paths, options, schema=None, credentials=None, files=None, memo=None))]
    #[expect(
        clippy::too_many_arguments,
        reason = "the last four are objects and bytes, which no JSON holds"
    )]
    fn register_files(
        &self,
        py: Python<'_>,
        name: String,
        paths: Vec<String>,
        options: &str,
        schema: Option<PySchema>,
        credentials: Option<Bound<'_, PyAny>>,
        files: Option<Bound<'_, PyAny>>,
        memo: Option<Vec<u8>>,
    ) -> PyResult<()> {
        let mut options: TableOptions = serde_json::from_str(options)
            .map_err(|error| to_py(Error::config(format!("bad table options: {error}"))))?;
        options.schema = schema.map(PySchema::into_inner);
        options.credentials = credentials.as_ref().map(asked).transpose()?;
        if let Some(files) = &files {
            options.files = Some(Arc::new(PyFiles::try_new(files)?));
        }
        let session = Arc::clone(&self.session);
        wait(py, move || async move {
            match memo {
                Some(memo) => session.adopt_files(&name, &paths, &options, &memo).await,
                None => session.register_files(&name, &paths, options).await,
            }
        })
    }

    /// Registers anything with `__arrow_c_stream__` or `__arrow_c_array__`, held in memory.
    fn register_arrow(&self, py: Python<'_>, name: &str, data: Arrays) -> PyResult<()> {
        compute(py, || self.session.register_batches(name, data.schema()?, data.batches()?))
    }

    /// Registers a view; `paths` are memos of path literals that another process has listed.
    #[pyo3(signature = (name, sql, paths=Vec::new()))]
    fn register_view(
        &self,
        py: Python<'_>,
        name: String,
        sql: String,
        paths: Vec<(String, Vec<u8>)>,
    ) -> PyResult<()> {
        let session = Arc::clone(&self.session);
        let register = move || async move { session.register_view_over(&name, &sql, &paths).await };
        wait(py, || planned(register))
    }

    fn deregister(&self, name: &str) -> PyResult<()> {
        self.session.deregister(name).map_err(to_py)
    }

    /// Registers a `tensorquery.sql.functions.Function` for SQL.
    fn register_function(&self, function: &Bound<'_, PyAny>) -> PyResult<()> {
        let function = Arc::new(PyFunction::try_new(function)?);
        self.session.register_function(function).map_err(to_py)
    }

    fn deregister_function(&self, name: &str) -> PyResult<()> {
        self.session.deregister_function(name).map_err(to_py)
    }

    /// Name, types of the arguments, return type and volatility of each registered function.
    fn functions(&self) -> Vec<FunctionRow> {
        let row = |function: FunctionInfo| {
            (function.name, function.input_types, function.return_type, function.volatility)
        };
        self.session.functions().into_iter().map(row).collect()
    }

    /// Name, kind, files, bytes and rows of each table, and its files that are left out.
    fn tables(&self) -> Vec<TableRow> {
        let row = |table: TableInfo| {
            (table.name, table.kind, table.files, table.bytes, table.rows, table.quarantined)
        };
        self.session.tables().into_iter().map(row).collect()
    }

    /// Registers an Iceberg catalog by pyiceberg's properties.
    fn register_catalog(&self, name: &str, properties: BTreeMap<String, String>) -> PyResult<()> {
        at_once(|| self.session.register_catalog(name, properties))
    }

    /// The names of the registered catalogs.
    fn catalogs(&self) -> Vec<String> {
        self.session.catalogs()
    }

    /// The namespaces below `parent`, and the tables in it; loads no table.
    fn list_catalog(
        &self,
        py: Python<'_>,
        catalog: String,
        parent: Vec<String>,
    ) -> PyResult<(Vec<Vec<String>>, Vec<String>)> {
        let session = Arc::clone(&self.session);
        wait(py, move || async move {
            let catalog = session.catalog(&catalog)?;
            let tables = match parent.is_empty() {
                true => Vec::new(),
                false => catalog.list_tables(&parent).await?,
            };
            Ok((catalog.list_namespaces(&parent).await?, tables))
        })
    }

    /// Registers one Iceberg table. `origin` and `at` are JSON; see `LakeOrigin` and `TravelTo`.
    #[pyo3(signature = (name, origin, at, scan_filter=None))]
    fn register_iceberg_table(
        &self,
        py: Python<'_>,
        name: String,
        origin: &str,
        at: &str,
        scan_filter: Option<String>,
    ) -> PyResult<()> {
        let malformed = |error| to_py(Error::config(format!("bad Iceberg table: {error}")));
        let origin: LakeOrigin = serde_json::from_str(origin).map_err(malformed)?;
        let at: TravelTo = serde_json::from_str(at).map_err(malformed)?;
        self.register_source(py, name, LakeSource { origin, at, scan_filter })
    }

    /// Registers one Delta table. `storage_options` and `at` are JSON; see `TravelTo`.
    #[pyo3(signature = (name, location, at, storage_options="{}", credentials=None, files=None, scan_filter=None))]
    #[expect(clippy::too_many_arguments, reason = "two are objects, which no JSON holds")]
    fn register_delta(
        &self,
        py: Python<'_>,
        name: String,
        location: String,
        at: &str,
        storage_options: &str,
        credentials: Option<Bound<'_, PyAny>>,
        files: Option<Bound<'_, PyAny>>,
        scan_filter: Option<String>,
    ) -> PyResult<()> {
        let malformed = |error| to_py(Error::config(format!("bad Delta table: {error}")));
        let at: TravelTo = serde_json::from_str(at).map_err(malformed)?;
        let mut access = StoreAccess {
            options: serde_json::from_str(storage_options).map_err(malformed)?,
            credentials: credentials.as_ref().map(asked).transpose()?,
            files: None,
        };
        if let Some(files) = &files {
            access.files = Some(Arc::new(PyFiles::try_new(files)?));
        }
        let source = LakeSource { origin: LakeOrigin::Delta { location, access }, at, scan_filter };
        self.register_source(py, name, source)
    }

    /// The paths that a statement names as tables.
    fn path_literals(&self, py: Python<'_>, sql: String) -> PyResult<Vec<String>> {
        let session = Arc::clone(&self.session);
        wait(py, || planned(move || async move { session.path_literals(&sql) }))
    }

    /// The columns of a registered table, as a stream without rows.
    fn table_schema(&self, py: Python<'_>, name: &str) -> PyResult<ArrowStream> {
        Ok(ArrowStream::of(wait(py, || self.session.table_schema(name))?, Vec::new()))
    }

    /// A lazy query. With `skip_bad`, files of path literals that cannot be read are left out;
    /// `paths` are memos of path literals that another process has listed.
    #[pyo3(signature = (sql, skip_bad=false, paths=Vec::new()))]
    fn query(
        &self,
        py: Python<'_>,
        sql: String,
        skip_bad: bool,
        paths: Vec<(String, Vec<u8>)>,
    ) -> PyResult<PyQuery> {
        let session = Arc::clone(&self.session);
        let find = move || async move { session.query_over(&sql, skip_bad, &paths).await };
        let query = wait(py, || planned(find))?;
        Ok(PyQuery { query })
    }
}

impl PySession {
    fn register_source(&self, py: Python<'_>, name: String, source: LakeSource) -> PyResult<()> {
        let session = Arc::clone(&self.session);
        wait(py, move || async move {
            if let Some(filter) = source.scan_filter.clone() {
                planned(move || async move { check_predicate(&filter) }).await?;
            }
            session.register_lake(&name, source).await
        })
    }
}

fn asked(credentials: &Bound<'_, PyAny>) -> PyResult<Arc<dyn ForeignCredentials>> {
    Ok(Arc::new(PyCredentials::try_new(credentials)?))
}

/// A lazy query.
#[pyclass(name = "Query", module = "tensorquery._core", frozen)]
pub struct PyQuery {
    query: Query,
}

impl PyQuery {
    /// A query for Python.
    pub fn of(query: Query) -> Self {
        Self { query }
    }

    /// The query.
    pub fn query(&self) -> &Query {
        &self.query
    }
}

#[pymethods]
impl PyQuery {
    #[getter]
    fn sql(&self) -> &str {
        self.query.sql()
    }

    /// The query over its Iceberg tables as they are now, or at the given snapshots by table; and
    /// the changes, as table, snapshot before and after, data files added and removed, delete files
    /// added and removed.
    #[pyo3(signature = (at=BTreeMap::new()))]
    fn refreshed(
        &self,
        py: Python<'_>,
        at: BTreeMap<String, (i64, i32)>,
    ) -> PyResult<(Self, Vec<ChangeRow>)> {
        let query = self.query.clone();
        let refresh = move || async move { query.refreshed(&at).await };
        let (query, changes) = wait(py, || planned(refresh))?;
        let row = |change: LakeChange| {
            let files = (change.files_added, change.files_removed);
            let deletes = (change.deletes_added, change.deletes_removed);
            (change.table, change.before, change.after, files, deletes)
        };
        Ok((Self { query }, changes.into_iter().map(row).collect()))
    }

    /// Files of its tables that were left out when they were registered, with the reason.
    fn quarantined(&self) -> Vec<(String, String)> {
        self.query.quarantined()
    }

    /// The time for which the query's time functions stand, in ISO 8601; None if it has none.
    fn moment(&self) -> Option<String> {
        self.query.moment().map(Moment::text)
    }

    /// The query at another moment.
    fn at_moment(&self, py: Python<'_>, moment: &str) -> PyResult<Self> {
        let (query, moment) = (self.query.clone(), at_once(|| Moment::parse(moment))?);
        let replan = move || async move { query.at_moment(moment).await };
        Ok(Self { query: wait(py, || planned(replan))? })
    }

    /// The pinned snapshots of Iceberg tables and the schemas they are read with, by table.
    fn snapshots(&self) -> BTreeMap<String, (i64, i32)> {
        self.query.snapshots()
    }

    /// Some columns (None: all) of the rows that a predicate keeps, which may name the session's
    /// tables and functions; `paths` are memos of path literals that another process has listed.
    #[pyo3(signature = (session, columns=None, predicate=None, paths=Vec::new()))]
    fn select(
        &self,
        py: Python<'_>,
        session: &PySession,
        columns: Option<Vec<String>>,
        predicate: Option<String>,
        paths: Vec<(String, Vec<u8>)>,
    ) -> PyResult<Self> {
        let (query, session) = (self.query.clone(), Arc::clone(&session.session));
        let select = move || async move {
            query.select(&session, columns.as_deref(), predicate.as_deref(), &paths).await
        };
        Ok(Self { query: wait(py, || planned(select))? })
    }

    /// The query whose SQL is this one's between two texts, over the tables of this one.
    fn nested(&self, py: Python<'_>, before: String, after: String) -> PyResult<Self> {
        let query = self.query.clone();
        let outer = move |inner: &str| format!("{before}{inner}{after}");
        Ok(Self { query: wait(py, || planned(move || async move { query.nested(outer).await }))? })
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        schema_capsule(py, &self.query.schema())
    }

    /// Column names and types as text.
    fn columns(&self) -> Vec<(String, String, bool)> {
        let schema = self.query.schema();
        let fields = schema.fields().iter();
        fields.map(|f| (f.name().clone(), f.data_type().to_string(), f.is_nullable())).collect()
    }

    /// The rows, as they are computed.
    fn stream(&self, py: Python<'_>) -> PyResult<ArrowStream> {
        let query = self.query.clone();
        let reader = compute(py, || QueryReader::start(query))?;
        Ok(ArrowStream::new(Box::new(reader)))
    }

    /// All rows, read now: errors are this package's own, which a stream's cannot be.
    fn collect(&self, py: Python<'_>) -> PyResult<ArrowStream> {
        let query = self.query.clone();
        let schema = query.schema();
        let batches = wait(py, move || async move { query.collect().await })?;
        Ok(ArrowStream::of(schema, batches))
    }

    fn head(&self, py: Python<'_>, rows: usize) -> PyResult<ArrowStream> {
        let query = self.query.clone();
        let schema = query.schema();
        let batches = wait(py, move || async move { query.head(rows).await })?;
        Ok(ArrowStream::of(schema, batches))
    }

    fn count(&self, py: Python<'_>) -> PyResult<u64> {
        let query = self.query.clone();
        wait(py, move || async move { query.count().await })
    }

    /// The rows of this query and of others, one query after the other; and the driving scans of
    /// each.
    fn union_all(
        &self,
        py: Python<'_>,
        others: Vec<Bound<'_, Self>>,
        stage: &str,
    ) -> PyResult<(Self, Vec<usize>)> {
        let mode = super::materialize::mode(stage).map_err(to_py)?;
        let mut queries = vec![self.query.clone()];
        queries.extend(others.iter().map(|other| other.get().query.clone()));
        let (query, scans) = wait(py, move || async move {
            let mut scans = Vec::with_capacity(queries.len());
            for query in &queries {
                scans.push(query.count_scans(mode).await?);
            }
            Ok((Query::union_all(&queries).await?, scans))
        })?;
        Ok((Self { query }, scans))
    }

    fn explain(&self, py: Python<'_>, stage: &str, place: String) -> PyResult<String> {
        let mode = super::materialize::mode(stage).map_err(to_py)?;
        let query = self.query.clone();
        wait(py, move || async move { query.explain(&PlanOptions::default(), mode, &place).await })
    }

    /// Runs the query; its operators in pre-order.
    fn analyze(&self, py: Python<'_>) -> PyResult<Vec<OperatorRow>> {
        let query = self.query.clone();
        let runs = wait(py, move || async move { query.analyze().await })?;
        Ok(runs.into_iter().map(|run| (run.depth, run.text, run.rows, run.nanoseconds)).collect())
    }

    /// Name and identity of every file or table in memory that the query can read.
    fn files(&self) -> PyResult<Vec<(String, String)>> {
        self.query.files().map_err(to_py)
    }

    /// Name and digest of every function of the user's that the query calls.
    fn functions(&self) -> Vec<(String, String)> {
        self.query.functions()
    }

    /// Takes the session's plan cache warnings since the last call.
    fn take_warnings(&self) -> Vec<String> {
        self.query.session().take_warnings()
    }

    /// Memos of the tables of its path literals, by path.
    fn path_memos<'py>(&self, py: Python<'py>) -> PyResult<Vec<PathMemo<'py>>> {
        Ok(path_memos(py, at_once(|| self.query.path_memos())?))
    }

    /// The plan whose splits another process found: `memo` is its `Plan.memo`.
    #[pyo3(signature = (memo, split_bytes, split_rows=None, explicit=false))]
    fn plan_of_memo(
        &self,
        py: Python<'_>,
        memo: Vec<u8>,
        split_bytes: u64,
        split_rows: Option<u64>,
        explicit: bool,
    ) -> PyResult<PyPlan> {
        let query = self.query.clone();
        let options = PlanOptions { split_bytes, split_rows, explicit, without: None };
        let plan = wait(py, move || async move { query.plan_of_memo(&memo, &options).await })?;
        Ok(PyPlan::new(plan))
    }

    /// Finds the splits. `explicit` says whether the user chose the sizes, `tolerant` whether a
    /// damaged file is a split that verification will find bad.
    #[pyo3(signature = (split_bytes, split_rows=None, explicit=false, tolerant=false))]
    fn plan(
        &self,
        py: Python<'_>,
        split_bytes: u64,
        split_rows: Option<u64>,
        explicit: bool,
        tolerant: bool,
    ) -> PyResult<PyPlan> {
        let query = self.query.clone();
        let options = PlanOptions { split_bytes, split_rows, explicit, without: None };
        let plan = move || async move {
            match tolerant {
                true => query.plan_splits_tolerantly(&options).await,
                false => query.plan_splits(&options).await,
            }
        };
        let plan = wait(py, || planned(plan))?;
        Ok(PyPlan::new(plan))
    }
}

/// The statement that takes some columns (None: all) of the rows of another one that a predicate
/// keeps.
#[pyfunction]
#[pyo3(signature = (sql, columns=None, predicate=None))]
pub fn narrow(
    py: Python<'_>,
    sql: String,
    columns: Option<Vec<String>>,
    predicate: Option<String>,
) -> PyResult<String> {
    let write =
        move || async move { crate::query::narrow(&sql, columns.as_deref(), predicate.as_deref()) };
    wait(py, || planned(write))
}

/// `name` as an SQL identifier in double quotes.
#[pyfunction]
pub fn quote_identifier(name: &str) -> String {
    crate::query::quote_identifier(name)
}
