//! Registered tables: names, providers, and what a recipe needs to register them again.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion::catalog::{MemorySchemaProvider, TableProvider};
use datafusion::common::TableReference;
use datafusion::datasource::ViewTable;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::logical_expr::LogicalPlan;
use datafusion::prelude::{SQLOptions, SessionConfig, SessionContext};
use serde::{Deserialize, Serialize};

use super::ipc;
use super::lake::Lake;
use super::query::Query;
use crate::catalog::iceberg::IcebergCatalog;
use crate::catalog::{FilesSpec, FilesTable, TableOptions, open_files};
use crate::exec::{LakeProvider, MemoryTable};
use crate::query::{LAKE_SCHEMA, PATH_SCHEMA, ParsedQuery, check_output_names, parse_query};
use crate::split::TableFiles;
use crate::storage::IoCounters;
use crate::{Error, ErrorKind, Result, list_names, suggestion};

/// The schema of the user's own tables.
pub(super) const TABLE_SCHEMA: &str = "public";

/// Rows per batch inside DataFusion.
const ENGINE_BATCH_ROWS: usize = 8192;

/// Settings of a session.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SessionOptions {
    /// Bytes that joins, aggregates and sorts may hold before they spill or fail.
    pub memory_limit: Option<u64>,
    /// Object-store options for tables registered without their own.
    pub storage_options: BTreeMap<String, String>,
}

/// What a name stands for.
#[derive(Clone, Debug)]
pub(super) enum Registered {
    /// Pinned files.
    Files { table: Arc<TableFiles>, spec: FilesSpec },
    /// Batches in memory, and digest and length of their content as Arrow IPC.
    Memory { schema: SchemaRef, batches: Arc<Vec<RecordBatch>>, digest: String, bytes: u64 },
    /// A pinned snapshot of an Iceberg table.
    Lake(Arc<Lake>),
    /// A query by name, with what it read when it was registered.
    View { sql: String, tables: Vec<(TableKey, Registered)> },
}

impl Registered {
    /// Batches in memory.
    ///
    /// # Errors
    /// Where they cannot be written as Arrow IPC.
    pub(super) fn of_batches(schema: SchemaRef, batches: Vec<RecordBatch>) -> Result<Self> {
        let (digest, bytes) = ipc::digest(&schema, &batches)?;
        Ok(Self::Memory { schema, batches: Arc::new(batches), digest, bytes })
    }

    /// Whether both stand for the same pinned files, the same rows in memory, or the same view.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Files { table: one, .. }, Self::Files { table: two, .. }) => {
                Arc::ptr_eq(one, two)
            }
            (Self::Lake(one), Self::Lake(two)) => Arc::ptr_eq(&one.table, &two.table),
            (Self::Memory { digest: one, .. }, Self::Memory { digest: two, .. }) => one == two,
            (Self::View { sql: one, tables: left }, Self::View { sql: two, tables: right }) => {
                one == two
                    && left.len() == right.len()
                    && left.iter().zip(right).all(|((a, one), (b, two))| a == b && one.is_same(two))
            }
            _ => false,
        }
    }
}

/// A table's schema and name: `("public", "flights")` or `("path", "data/*.parquet")`.
pub(super) type TableKey = (String, String);

/// A registered table as `Session.tables()` shows it.
#[derive(Clone, Debug)]
pub struct TableInfo {
    /// The name in SQL.
    pub name: String,
    /// `parquet`, `csv`, `json`, `arrow`, `iceberg`, `memory` or `view`.
    pub kind: &'static str,
    /// Files, for tables over files.
    pub files: Option<usize>,
    /// Bytes stored or held.
    pub bytes: Option<u64>,
    /// Rows, where known without reading.
    pub rows: Option<u64>,
}

/// The registered tables over a DataFusion context.
pub struct Session {
    context: SessionContext,
    options: SessionOptions,
    counters: Arc<IoCounters>,
    tables: RwLock<BTreeMap<TableKey, Registered>>,
    /// Iceberg catalogs by name; in a session of pinned tables only their names.
    pub(super) catalogs: RwLock<BTreeMap<String, Option<Arc<IcebergCatalog>>>>,
    next_store: AtomicU64,
    /// A session made from a recipe never lists: its paths are already bound.
    frozen: bool,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<String> = self.tables().into_iter().map(|table| table.name).collect();
        f.debug_struct("Session").field("tables", &names).finish_non_exhaustive()
    }
}

impl Session {
    /// An empty session.
    ///
    /// # Errors
    /// `Config` where the limits are not valid.
    pub fn try_new(options: SessionOptions) -> Result<Arc<Self>> {
        Self::build(options, false, Arc::default())
    }

    /// A session over tables that were pinned by another one: it lists nothing, and what happens to
    /// the other session's names does not reach it.
    pub(super) async fn of_tables(&self, tables: &[(TableKey, Registered)]) -> Result<Arc<Self>> {
        let session = Self::build(self.options.clone(), true, Arc::clone(&self.counters))?;
        // Nothing is looked up in them, but a refresh asks for its tables again.
        let catalogs = self.catalogs.read().unwrap_or_else(PoisonError::into_inner).clone();
        session.catalogs.write().unwrap_or_else(PoisonError::into_inner).extend(catalogs);
        for (key, registered) in tables {
            match registered {
                Registered::View { sql, .. } => session.register_view(&key.1, sql).await?,
                other => session.bind(key.clone(), other.clone())?,
            }
        }
        Ok(session)
    }

    pub(super) fn build(
        options: SessionOptions,
        frozen: bool,
        counters: Arc<IoCounters>,
    ) -> Result<Arc<Self>> {
        let mut environment = RuntimeEnvBuilder::new();
        if let Some(limit) = options.memory_limit {
            let pool = FairSpillPool::new(usize::try_from(limit).unwrap_or(usize::MAX));
            environment = environment.with_memory_pool(Arc::new(pool));
        }
        let state = SessionStateBuilder::new_with_default_features()
            .with_config(session_config())
            .with_runtime_env(environment.build_arc()?)
            .build();
        let context = SessionContext::new_with_state(state);
        if let Some(catalog) = context.catalog("datafusion") {
            catalog.register_schema(PATH_SCHEMA, Arc::new(MemorySchemaProvider::new()))?;
            catalog.register_schema(LAKE_SCHEMA, Arc::new(MemorySchemaProvider::new()))?;
        }
        Ok(Arc::new(Self {
            context,
            options,
            counters,
            tables: RwLock::default(),
            catalogs: RwLock::default(),
            next_store: AtomicU64::new(0),
            frozen,
        }))
    }

    /// The DataFusion context underneath.
    pub fn context(&self) -> &SessionContext {
        &self.context
    }

    /// Bytes and requests read by all tables of this session.
    pub fn counters(&self) -> &Arc<IoCounters> {
        &self.counters
    }

    pub(super) fn options(&self) -> &SessionOptions {
        &self.options
    }

    /// Registers files under a name, replacing an earlier table of that name.
    ///
    /// # Errors
    /// As [`open_files`]; `Config` for an empty name.
    pub async fn register_files(
        &self,
        name: &str,
        paths: &[String],
        options: TableOptions,
    ) -> Result<()> {
        self.check_name(name)?;
        self.open(TABLE_SCHEMA, name, paths, options).await
    }

    /// Registers batches in memory under a name.
    ///
    /// # Errors
    /// `Config` for an empty name.
    pub fn register_batches(
        &self,
        name: &str,
        schema: SchemaRef,
        batches: Vec<RecordBatch>,
    ) -> Result<()> {
        self.check_name(name)?;
        if let Some(odd) = batches.iter().find(|batch| !schema.contains(&batch.schema())) {
            return Err(Error::data(format!(
                "a batch of table {name:?} has the columns {}, but the table's are {schema}",
                odd.schema()
            )));
        }
        let key = (TABLE_SCHEMA.to_owned(), name.to_owned());
        self.bind(key, Registered::of_batches(schema, batches)?)
    }

    /// Registers a query under a name.
    ///
    /// # Errors
    /// `Query` where the SQL is not one valid SELECT statement.
    pub async fn register_view(&self, name: &str, sql: &str) -> Result<()> {
        self.check_name(name)?;
        let parsed = parse_query(sql, |name| self.is_catalog(name))?;
        let plan = self.logical_plan(&parsed).await?;
        check_output_names(&plan)?;
        let provider = Arc::new(ViewTable::new(plan, Some(sql.to_owned())));
        let key = (TABLE_SCHEMA.to_owned(), name.to_owned());
        let tables = self.referenced(&parsed)?;
        self.bind_provider(key, Registered::View { sql: sql.to_owned(), tables }, provider)
    }

    /// Removes a table.
    ///
    /// # Errors
    /// `TableNotFound` with the nearest name.
    pub fn deregister(&self, name: &str) -> Result<()> {
        let key = (TABLE_SCHEMA.to_owned(), name.to_owned());
        let mut tables = self.tables.write().unwrap_or_else(PoisonError::into_inner);
        if tables.remove(&key).is_none() {
            drop(tables);
            return Err(self.table_not_found(name));
        }
        self.context.deregister_table(reference(&key))?;
        Ok(())
    }

    /// The registered tables, by name; tables made by path literals are not among them.
    pub fn tables(&self) -> Vec<TableInfo> {
        let tables = self.tables.read().unwrap_or_else(PoisonError::into_inner);
        tables
            .iter()
            .filter(|((schema, _), _)| schema == TABLE_SCHEMA)
            .map(|((_, name), registered)| describe(name, registered))
            .collect()
    }

    /// A lazy query.
    ///
    /// # Errors
    /// `Query` for SQL that is not one valid SELECT statement; `TableNotFound` for unknown tables
    /// and paths.
    pub async fn query(self: &Arc<Self>, sql: &str) -> Result<Query> {
        let parsed = parse_query(sql, |name| self.is_catalog(name))?;
        let plan = self.logical_plan(&parsed).await?;
        check_output_names(&plan)?;
        let tables = self.referenced(&parsed)?;
        Ok(Query::new(Arc::clone(self), sql.to_owned(), plan, tables))
    }

    async fn logical_plan(&self, parsed: &ParsedQuery) -> Result<LogicalPlan> {
        for path in &parsed.paths {
            self.bind_path(path).await?;
        }
        for lake in parsed.lakes.iter().filter(|_| !self.frozen) {
            self.bind_lake(lake).await?;
        }
        let state = self.context.state();
        for table in state.resolve_table_references(&parsed.statement)? {
            // An unknown schema or catalog is an error there, and no more than an unknown table here.
            if !self.context.table_exist(table.clone()).unwrap_or(false) {
                return Err(self.table_not_found(&table.to_string()));
            }
        }
        let plan =
            state.statement_to_plan(parsed.statement.clone()).await.map_err(with_case_hint)?;
        SQLOptions::new()
            .with_allow_ddl(false)
            .with_allow_dml(false)
            .with_allow_statements(false)
            .verify_plan(&plan)?;
        Ok(plan)
    }

    /// Lists a path literal anew for every query that names it, and pins what it finds.
    async fn bind_path(&self, path: &str) -> Result<()> {
        if self.frozen {
            return Ok(());
        }
        let options = TableOptions {
            storage_options: match path.contains("://") && !path.starts_with("file:") {
                true => self.options.storage_options.clone(),
                false => BTreeMap::new(),
            },
            ..TableOptions::default()
        };
        self.open(PATH_SCHEMA, path, &[path.to_owned()], options).await
    }

    async fn open(
        &self,
        schema: &str,
        name: &str,
        paths: &[String],
        options: TableOptions,
    ) -> Result<()> {
        let state = self.context.state();
        let (table, spec) =
            open_files(&state, paths, &options, self.new_store_url()?, Arc::clone(&self.counters))
                .await?;
        self.bind(
            (schema.to_owned(), name.to_owned()),
            Registered::Files { table: Arc::new(table), spec },
        )
    }

    /// A URL of its own for each table's store, so that each has its own pins and credentials.
    pub(super) fn new_store_url(&self) -> Result<ObjectStoreUrl> {
        let number = self.next_store.fetch_add(1, Ordering::Relaxed);
        Ok(ObjectStoreUrl::parse(format!("tensorquery://table-{number}"))?)
    }

    /// Puts files or batches under a name.
    pub(super) fn bind(&self, key: TableKey, registered: Registered) -> Result<()> {
        let provider: Arc<dyn TableProvider> = match &registered {
            Registered::Files { table, .. } => {
                self.context
                    .register_object_store(table.store_url.as_ref(), Arc::clone(&table.store));
                Arc::new(FilesTable::new(Arc::clone(table)))
            }
            Registered::Lake(lake) => {
                let files = &lake.table;
                self.context
                    .register_object_store(files.store_url.as_ref(), Arc::clone(&files.store));
                Arc::new(LakeProvider::try_new(Arc::clone(files))?)
            }
            Registered::Memory { schema, batches, bytes, .. } => {
                Arc::new(MemoryTable::new(Arc::clone(schema), Arc::clone(batches), *bytes))
            }
            Registered::View { .. } => {
                return Err(Error::config("a view is registered with its plan"));
            }
        };
        self.bind_provider(key, registered, provider)
    }

    fn bind_provider(
        &self,
        key: TableKey,
        registered: Registered,
        provider: Arc<dyn TableProvider>,
    ) -> Result<()> {
        if key.0 == LAKE_SCHEMA
            && let Some((catalog, _)) = key.1.split_once('.')
        {
            // A session of pinned tables knows catalogs by the tables that came from them.
            let mut catalogs = self.catalogs.write().unwrap_or_else(PoisonError::into_inner);
            catalogs.entry(catalog.to_owned()).or_default();
        }
        let table = reference(&key);
        self.context.deregister_table(table.clone())?;
        self.context.register_table(table, provider)?;
        self.tables.write().unwrap_or_else(PoisonError::into_inner).insert(key, registered);
        Ok(())
    }

    /// Everything a statement reads, views' own tables included; a view comes after what it reads.
    fn referenced(&self, parsed: &ParsedQuery) -> Result<Vec<(TableKey, Registered)>> {
        let mut found: Vec<(TableKey, Registered)> = Vec::new();
        let mut add = |key: TableKey, registered: Registered| {
            match found.iter().find(|(known, _)| *known == key) {
                None => found.push((key, registered)),
                Some((_, known)) if same_content(known, &registered) => {}
                Some(_) => {
                    return Err(Error::query(format!(
                        "the name {:?} means two tables here: it was registered again after a view \
                         that reads it; register the view again, too",
                        key.1
                    )));
                }
            }
            Ok(())
        };
        for table in self.context.state().resolve_table_references(&parsed.statement)? {
            let schema = table.schema().unwrap_or(TABLE_SCHEMA).to_owned();
            let key = (schema, table.table().to_owned());
            let registered =
                self.tables.read().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
            // A name without an entry is a CTE of the statement itself.
            if let Some(registered) = registered {
                if let Registered::View { tables, .. } = &registered {
                    for (key, registered) in tables.iter().cloned() {
                        add(key, registered)?;
                    }
                }
                add(key, registered)?;
            }
        }
        Ok(found)
    }

    /// What a name stands for.
    pub(super) fn registered(&self, key: &TableKey) -> Option<Registered> {
        self.tables.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    pub(super) fn check_name(&self, name: &str) -> Result<()> {
        match name.trim().is_empty() {
            true => Err(Error::config("a table name must not be empty")),
            false => Ok(()),
        }
    }

    pub(super) fn table_not_found(&self, name: &str) -> Error {
        let tables = self.tables();
        let names: Vec<&str> = tables.iter().map(|table| table.name.as_str()).collect();
        let catalogs = self.catalogs();
        let first = name.split('.').next().unwrap_or_default();
        let catalogs = match catalogs.is_empty() {
            true => String::new(),
            false => format!(
                "; Iceberg catalogs are {}{}",
                list_names(&catalogs.iter().map(String::as_str).collect::<Vec<_>>()),
                suggestion(first, catalogs.iter().map(String::as_str)),
            ),
        };
        let known = match names.is_empty() {
            true => "no table is registered".to_owned(),
            false => format!("registered are {}", list_names(&names)),
        };
        let case =
            match names.iter().any(|known| *known != name && known.eq_ignore_ascii_case(name)) {
                true => " (SQL lower-cases names; quote the ones with capitals: FROM \"Name\")",
                false => "",
            };
        Error::new(
            ErrorKind::TableNotFound,
            format!(
                "unknown table {name:?}{}{case}; {known}{catalogs}; a path is written in single quotes: \
                 FROM 'data/*.parquet'",
                suggestion(name, names.iter().copied()),
            ),
        )
    }
}

/// Whether two registrations of one name read the same.
fn same_content(a: &Registered, b: &Registered) -> bool {
    match (a, b) {
        (Registered::Files { table: a, spec: x }, Registered::Files { table: b, spec: y }) => {
            Arc::ptr_eq(a, b)
                || (x.files == y.files
                    && x.format == y.format
                    && a.schema.table_schema() == b.schema.table_schema())
        }
        (Registered::Lake(a), Registered::Lake(b)) => {
            a.identity() == b.identity()
                && a.table.schema.table_schema() == b.table.schema.table_schema()
        }
        (Registered::Memory { digest: a, .. }, Registered::Memory { digest: b, .. }) => a == b,
        (Registered::View { sql: a, tables: x }, Registered::View { sql: b, tables: y }) => {
            let same = |((k, a), (l, b)): (&(TableKey, Registered), &(TableKey, Registered))| {
                k == l && same_content(a, b)
            };
            a == b && x.len() == y.len() && x.iter().zip(y).all(same)
        }
        _ => false,
    }
}

fn reference(key: &TableKey) -> TableReference {
    TableReference::partial(key.0.clone(), key.1.clone())
}

/// Columns that Iceberg defines beside the table's own: <https://iceberg.apache.org/spec/#reserved-field-ids>.
const METADATA_COLUMNS: &[&str] = &[
    "_row_id",
    "_last_updated_sequence_number",
    "_file",
    "_pos",
    "_deleted",
    "_spec_id",
    "_partition",
];

/// Unquoted names are lower-cased by SQL, and Iceberg's metadata columns are not there; say so where that is what went wrong.
fn with_case_hint(error: datafusion::error::DataFusionError) -> Error {
    let error = Error::from(error);
    let message = error.message();
    if let Some(column) =
        METADATA_COLUMNS.iter().find(|name| message.contains(&format!("\"{name}\"")))
    {
        return Error::new(
            error.kind(),
            format!(
                "{message}; Iceberg's metadata column {column} is not supported (nor any other of them)"
            ),
        );
    }
    let capital = message
        .split("did you mean \"")
        .nth(1)
        .and_then(|rest| rest.split('"').next())
        .is_some_and(|near| near.chars().any(char::is_uppercase));
    match capital {
        true => Error::new(
            error.kind(),
            format!("{message}; SQL lower-cases names, so quote the ones with capitals"),
        ),
        false => error,
    }
}

fn describe(name: &str, registered: &Registered) -> TableInfo {
    let name = name.to_owned();
    match registered {
        Registered::Files { table, .. } => TableInfo {
            name,
            kind: table.format.name(),
            files: Some(table.files.len()),
            bytes: Some(table.files.iter().map(|file| file.meta.size).sum()),
            rows: table.files.iter().map(|file| file.rows).sum(),
        },
        Registered::Lake(lake) => TableInfo {
            name,
            kind: "iceberg",
            files: Some(lake.table.files.len()),
            bytes: Some(lake.table.files.iter().map(|file| file.meta.size).sum()),
            rows: lake.table.files.iter().map(|file| file.rows).sum(),
        },
        Registered::Memory { batches, .. } => TableInfo {
            name,
            kind: "memory",
            files: None,
            bytes: Some(batches.iter().map(|batch| batch.get_array_memory_size() as u64).sum()),
            rows: Some(batches.iter().map(|batch| batch.num_rows() as u64).sum()),
        },
        Registered::View { .. } => {
            TableInfo { name, kind: "view", files: None, bytes: None, rows: None }
        }
    }
}

fn session_config() -> SessionConfig {
    let mut config = SessionConfig::new()
        .with_batch_size(ENGINE_BATCH_ROWS)
        // One partition: joins become CollectLeft, and no repartition appears above the driving scan.
        .with_target_partitions(1)
        .with_information_schema(false);
    let options = config.options_mut();
    // A join's dynamic filter waits for all probe partitions; executing only some would hang.
    options.optimizer.enable_join_dynamic_filter_pushdown = false;
    options.execution.parquet.pushdown_filters = true;
    options.execution.parquet.schema_force_view_types = false;
    options.sql_parser.map_string_types_to_utf8view = false;
    config
}
