//! Sessions.

use std::collections::BTreeMap;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use pyo3_arrow::PySchema;

use super::error::to_py;
use super::filesystem::{PyCredentials, PyFiles};
use super::import::Arrays;
use super::query::{PathMemo, PyDefinition, PyQuery, path_memos};
use super::udf::PyFunction;
use super::wait::{at_once, compute, planned, wait};
use crate::Error;
use crate::catalog::TableOptions;
use crate::iceberg::TravelTo;
use crate::query::parse_predicate;
use crate::session::{FunctionInfo, LakeOrigin, LakeSource, Session, SessionOptions, TableInfo};
use crate::storage::{CacheOptions, ForeignCredentials, StorageOptions, StoreAccess};

/// A table of a session: name, kind, files, bytes, rows, and files left out with the reason.
type TableRow =
    (String, &'static str, Option<usize>, Option<u64>, Option<u64>, Vec<(String, String)>);

/// A function of a session: name, types of the arguments, return type, volatility.
type FunctionRow = (String, Vec<String>, String, &'static str);

/// The registered tables.
#[pyclass(name = "Session", module = "tensorquery._core", frozen)]
pub struct PySession {
    session: Arc<Session>,
}

impl PySession {
    /// The session.
    pub fn session(&self) -> Arc<Session> {
        Arc::clone(&self.session)
    }
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
    #[pyo3(signature = (name, definition, paths=Vec::new()))]
    fn register_view(
        &self,
        py: Python<'_>,
        name: String,
        definition: &PyDefinition,
        paths: Vec<(String, Vec<u8>)>,
    ) -> PyResult<()> {
        let (session, definition) = (Arc::clone(&self.session), definition.definition());
        let register =
            move || async move { session.register_view_over(&name, definition, &paths).await };
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

    /// Registers a catalog by pyiceberg's properties. `storage_options` is JSON, for the stores of Delta
    /// tables.
    #[pyo3(signature = (name, properties, storage_options="{}"))]
    fn register_catalog(
        &self,
        name: &str,
        properties: BTreeMap<String, String>,
        storage_options: &str,
    ) -> PyResult<()> {
        let malformed = |error| to_py(Error::config(format!("bad storage options: {error}")));
        let options: StorageOptions = serde_json::from_str(storage_options).map_err(malformed)?;
        at_once(|| self.session.register_catalog(name, properties, options))
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

    /// Parses one read-only statement.
    fn parse(&self, py: Python<'_>, sql: String) -> PyResult<PyDefinition> {
        let session = Arc::clone(&self.session);
        let parse = move || async move { session.parse(&sql) };
        Ok(PyDefinition::of(wait(py, || planned(parse))?))
    }

    /// A lazy query. With `skip_bad`, files of path literals that cannot be read are left out;
    /// `paths` are memos of path literals that another process has listed.
    #[pyo3(signature = (definition, skip_bad=false, paths=Vec::new()))]
    fn query(
        &self,
        py: Python<'_>,
        definition: &PyDefinition,
        skip_bad: bool,
        paths: Vec<(String, Vec<u8>)>,
    ) -> PyResult<PyQuery> {
        let (session, definition) = (Arc::clone(&self.session), definition.definition());
        let find = move || async move { session.query_over(definition, skip_bad, &paths).await };
        let query = wait(py, || planned(find))?;
        Ok(PyQuery::of(query))
    }
}

impl PySession {
    fn register_source(&self, py: Python<'_>, name: String, source: LakeSource) -> PyResult<()> {
        let session = Arc::clone(&self.session);
        wait(py, move || async move {
            if let Some(filter) = source.scan_filter.clone() {
                planned(move || async move { parse_predicate(&filter).map(drop) }).await?;
            }
            session.register_lake(&name, source).await
        })
    }
}

fn asked(credentials: &Bound<'_, PyAny>) -> PyResult<Arc<dyn ForeignCredentials>> {
    Ok(Arc::new(PyCredentials::try_new(credentials)?))
}

/// `name` as an SQL identifier in double quotes.
#[pyfunction]
pub fn quote_identifier(name: &str) -> String {
    crate::query::quote_identifier(name)
}
