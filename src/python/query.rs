//! Queries, and what they are made of.

use std::collections::BTreeMap;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule};

use super::arrow::{ArrowStream, QueryReader, schema_capsule};
use super::error::to_py;
use super::plan::PyPlan;
use super::session::PySession;
use super::wait::{at_once, compute, planned, wait};
use crate::query::{Definition, Moment};
use crate::session::{LakeChange, PlanOptions, Query};

/// The changes that a refresh found in one table.
type ChangeRow = (String, Option<i64>, Option<i64>, (usize, usize), (usize, usize));

/// Depth, text, rows and nanoseconds of an operator that ran.
type OperatorRow = (usize, String, Option<usize>, Option<usize>);

/// A path literal, and the data that another process needs to read it without listing it.
pub type PathMemo<'py> = (String, Bound<'py, PyBytes>);

/// Memos as Python has them.
pub fn path_memos(py: Python<'_>, memos: Vec<(String, Vec<u8>)>) -> Vec<PathMemo<'_>> {
    memos.into_iter().map(|(path, memo)| (path, PyBytes::new(py, &memo))).collect()
}

/// A query as it was asked for, parsed and not bound.
#[pyclass(name = "Definition", module = "tensorquery._core", frozen)]
pub struct PyDefinition(Arc<Definition>);

impl PyDefinition {
    /// A definition for Python.
    pub fn of(definition: Arc<Definition>) -> Self {
        Self(definition)
    }

    /// The definition.
    pub fn definition(&self) -> Arc<Definition> {
        Arc::clone(&self.0)
    }
}

#[pymethods]
impl PyDefinition {
    /// The paths that its last layer names as tables.
    #[getter]
    fn paths(&self) -> Vec<String> {
        self.0.parsed().paths.clone()
    }

    /// Its SQL, as people read it.
    #[getter]
    fn sql(&self) -> &str {
        self.0.text()
    }
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

    /// The definition of some columns (None: all) of the rows that a predicate keeps.
    #[pyo3(signature = (session, columns=None, predicate=None))]
    fn narrowed(
        &self,
        py: Python<'_>,
        session: &PySession,
        columns: Option<Vec<String>>,
        predicate: Option<String>,
    ) -> PyResult<PyDefinition> {
        let (query, session) = (self.query.clone(), session.session());
        let narrow = move || async move { query.narrowed(&session, columns, predicate) };
        Ok(PyDefinition(wait(py, || planned(narrow))?))
    }

    /// The query of a definition that `narrowed` made, which may name the session's tables and
    /// functions; `paths` are memos of path literals that another process has listed.
    #[pyo3(signature = (session, definition, skip_bad=false, paths=Vec::new()))]
    fn select(
        &self,
        py: Python<'_>,
        session: &PySession,
        definition: &PyDefinition,
        skip_bad: bool,
        paths: Vec<(String, Vec<u8>)>,
    ) -> PyResult<Self> {
        let (query, session) = (self.query.clone(), session.session());
        let definition = Arc::clone(&definition.0);
        let select =
            move || async move { query.select(&session, definition, skip_bad, &paths).await };
        Ok(Self { query: wait(py, || planned(select))? })
    }

    /// Expressions over the rows, as they stand behind SELECT.
    fn expressions(&self, py: Python<'_>, list: String) -> PyResult<Self> {
        let query = self.query.clone();
        let select = move || async move { query.expressions(&list).await };
        Ok(Self { query: wait(py, || planned(select))? })
    }

    /// Its rows in ascending order of columns.
    fn sorted(&self, py: Python<'_>, columns: Vec<String>) -> PyResult<Self> {
        let query = self.query.clone();
        let sort = move || async move { query.sorted(columns).await };
        Ok(Self { query: wait(py, || planned(sort))? })
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

    /// Path and identity of every file of its tables, as splits name them; see `Query::table_files`.
    fn table_files(&self) -> Vec<(String, String)> {
        self.query.table_files()
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
