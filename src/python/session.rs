//! Sessions and queries.

use std::collections::BTreeMap;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use pyo3_arrow::PySchema;
use pyo3_arrow::input::AnyRecordBatch;

use super::arrow::{ArrowStream, QueryReader, schema_capsule};
use super::error::to_py;
use super::plan::PyPlan;
use super::wait::wait;
use crate::Error;
use crate::catalog::TableOptions;
use crate::lake::TravelTo;
use crate::session::{
    LakeChange, LakeOrigin, LakeSource, PlanOptions, Query, Session, SessionOptions,
};

/// A table of a session: name, kind, files, bytes, rows.
type TableRow = (String, &'static str, Option<usize>, Option<u64>, Option<u64>);

/// What a refresh changed in one table.
type ChangeRow = (String, Option<i64>, Option<i64>, (usize, usize), (usize, usize));

/// The registered tables.
#[pyclass(name = "Session", module = "tensorquery._core", frozen)]
pub struct PySession {
    session: Arc<Session>,
}

#[pymethods]
impl PySession {
    #[new]
    #[pyo3(signature = (memory_limit=None, storage_options=BTreeMap::new()))]
    fn new(memory_limit: Option<u64>, storage_options: BTreeMap<String, String>) -> PyResult<Self> {
        let options = SessionOptions { memory_limit, storage_options };
        Ok(Self { session: Session::try_new(options).map_err(to_py)? })
    }

    /// Lists, pins and registers files. `options` is JSON; see `TableOptions`.
    #[pyo3(signature = (name, paths, options, schema=None))]
    fn register_files(
        &self,
        py: Python<'_>,
        name: String,
        paths: Vec<String>,
        options: &str,
        schema: Option<PySchema>,
    ) -> PyResult<()> {
        let mut options: TableOptions = serde_json::from_str(options)
            .map_err(|error| to_py(Error::config(format!("bad table options: {error}"))))?;
        options.schema = schema.map(PySchema::into_inner);
        let session = Arc::clone(&self.session);
        wait(py, move || async move { session.register_files(&name, &paths, options).await })
    }

    /// Registers anything with `__arrow_c_stream__` or `__arrow_c_array__`, held in memory.
    fn register_arrow(&self, py: Python<'_>, name: &str, data: AnyRecordBatch) -> PyResult<()> {
        let reader = data.into_reader()?;
        let schema = reader.schema();
        py.detach(|| {
            let batches = reader.collect::<Result<Vec<_>, _>>().map_err(Error::from)?;
            self.session.register_batches(name, schema, batches)
        })
        .map_err(to_py)
    }

    fn register_view(&self, py: Python<'_>, name: String, sql: String) -> PyResult<()> {
        let session = Arc::clone(&self.session);
        wait(py, move || async move { session.register_view(&name, &sql).await })
    }

    fn deregister(&self, name: &str) -> PyResult<()> {
        self.session.deregister(name).map_err(to_py)
    }

    /// Name, kind, files, bytes and rows of each table.
    fn tables(&self) -> Vec<TableRow> {
        let tables = self.session.tables().into_iter();
        tables.map(|table| (table.name, table.kind, table.files, table.bytes, table.rows)).collect()
    }

    /// Registers an Iceberg catalog by pyiceberg's properties.
    fn register_catalog(&self, name: &str, properties: BTreeMap<String, String>) -> PyResult<()> {
        self.session.register_catalog(name, properties).map_err(to_py)
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
        if let Some(filter) = &scan_filter {
            crate::query::check_predicate(filter).map_err(to_py)?;
        }
        let source = LakeSource { origin, at, scan_filter };
        let session = Arc::clone(&self.session);
        wait(py, move || async move { session.register_lake(&name, source).await })
    }

    fn query(&self, py: Python<'_>, sql: String) -> PyResult<PyQuery> {
        let session = Arc::clone(&self.session);
        let query = wait(py, move || async move { session.query(&sql).await })?;
        Ok(PyQuery { query })
    }
}

/// A lazy query.
#[pyclass(name = "Query", module = "tensorquery._core", frozen)]
pub struct PyQuery {
    query: Query,
}

#[pymethods]
impl PyQuery {
    #[getter]
    fn sql(&self) -> &str {
        self.query.sql()
    }

    /// The query over its Iceberg tables as they are now, or at the given snapshots by table; and what changed, as table,
    /// snapshot before and after, data files added and removed, delete files added and removed.
    #[pyo3(signature = (at=BTreeMap::new()))]
    fn refreshed(
        &self,
        py: Python<'_>,
        at: BTreeMap<String, (i64, i32)>,
    ) -> PyResult<(Self, Vec<ChangeRow>)> {
        let query = self.query.clone();
        let (query, changes) = wait(py, move || async move { query.refreshed(&at).await })?;
        let row = |change: LakeChange| {
            let files = (change.files_added, change.files_removed);
            let deletes = (change.deletes_added, change.deletes_removed);
            (change.table, change.before, change.after, files, deletes)
        };
        Ok((Self { query }, changes.into_iter().map(row).collect()))
    }

    /// The pinned snapshots of Iceberg tables and the schemas they are read with, by table.
    fn snapshots(&self) -> BTreeMap<String, (i64, i32)> {
        self.query.snapshots()
    }

    /// Some columns (None: all) of the rows that a predicate keeps.
    #[pyo3(signature = (columns=None, predicate=None))]
    fn select(
        &self,
        py: Python<'_>,
        columns: Option<Vec<String>>,
        predicate: Option<String>,
    ) -> PyResult<Self> {
        if let Some(predicate) = &predicate {
            crate::query::check_predicate(predicate).map_err(to_py)?;
        }
        let chosen = match columns {
            Some(names) => {
                let quoted = names.iter().map(|name| crate::query::quote_identifier(name));
                quoted.collect::<Vec<_>>().join(", ")
            }
            None => "*".to_owned(),
        };
        // Newlines end a comment that the inner SQL or the predicate may end with.
        let filter = predicate.map(|text| format!("\nWHERE (\n{text}\n)")).unwrap_or_default();
        let outer =
            move |inner: &str| format!("SELECT {chosen} FROM (\n{inner}\n) AS query{filter}");
        let query = self.query.clone();
        let query = wait(py, move || async move { query.nested(outer).await })?;
        Ok(Self { query })
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
        let reader = py.detach(|| QueryReader::start(query)).map_err(to_py)?;
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

    /// The rows of this query and of others, one query after the other; and the driving scans of each.
    fn union_all(
        &self,
        py: Python<'_>,
        others: Vec<Bound<'_, Self>>,
    ) -> PyResult<(Self, Vec<usize>)> {
        let mut queries = vec![self.query.clone()];
        queries.extend(others.iter().map(|other| other.get().query.clone()));
        let (query, scans) = wait(py, move || async move {
            let mut scans = Vec::with_capacity(queries.len());
            for query in &queries {
                scans.push(query.count_scans().await?);
            }
            Ok((Query::union_all(&queries).await?, scans))
        })?;
        Ok((Self { query }, scans))
    }

    fn explain(&self, py: Python<'_>) -> PyResult<String> {
        let query = self.query.clone();
        wait(py, move || async move { query.explain(&PlanOptions::default()).await })
    }

    /// Finds the splits. `explicit` says whether the user chose the sizes.
    #[pyo3(signature = (split_bytes, split_rows=None, explicit=false))]
    fn plan(
        &self,
        py: Python<'_>,
        split_bytes: u64,
        split_rows: Option<u64>,
        explicit: bool,
    ) -> PyResult<PyPlan> {
        let query = self.query.clone();
        let options = PlanOptions { split_bytes, split_rows, explicit };
        let plan = wait(py, move || async move { query.plan_splits(&options).await })?;
        Ok(PyPlan::new(plan))
    }
}

/// Raises where `text` is not one boolean SQL expression.
#[pyfunction]
pub fn check_predicate(text: &str) -> PyResult<()> {
    crate::query::check_predicate(text).map_err(to_py)
}

/// `name` as an SQL identifier in double quotes.
#[pyfunction]
pub fn quote_identifier(name: &str) -> String {
    crate::query::quote_identifier(name)
}
