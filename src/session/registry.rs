//! Registered tables: names, providers, and the data from which a recipe registers them again.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use arrow::datatypes::{Schema, SchemaRef};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion::catalog::{MemorySchemaProvider, TableProvider};
use datafusion::common::TableReference;
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{FunctionRegistry, SessionStateBuilder};
use datafusion::prelude::SessionContext;
use serde::{Deserialize, Serialize};

use super::plan_cache::PlanCache;
use super::registered::{Registered, TableInfo, TableKey, describe};
use super::samples::SampleSchema;
use super::staged::STAGE_SCHEMA;
use crate::catalog::FilesTable;
use crate::engine::{Planner, logical_rules, physical_rules, session_config};
use crate::exec::{LakeProvider, MemoryTable};
use crate::formats::with_null_fields;
use crate::iceberg::catalog::IcebergCatalog;
use crate::query::{
    LAKE_SCHEMA, NarrowDecimals, PATH_SCHEMA, SAMPLE_SCHEMA, SoundRelations, TimesOfDay,
    exact_shifts, exact_totals, feature_functions, first_groups_larger, own_functions,
};
use crate::storage::{
    CacheOptions, ForeignCredentials, IoCounters, RangeCache, StorageOptions, StoreAccess,
};
use crate::{Error, ErrorKind, Result, list_names, suggestion};

/// The schema of the user's own tables.
pub(super) const TABLE_SCHEMA: &str = "public";

/// The schema under which functions are kept, apart from tables.
pub(super) const FUNCTION_SCHEMA: &str = "function";

/// The number of the next store's URL, in any session.
static NEXT_STORE: AtomicU64 = AtomicU64::new(0);

/// All registered names.
pub(super) type Names = BTreeMap<TableKey, Registered>;

/// Settings of a session.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SessionOptions {
    /// Bytes that joins, aggregates and sorts may hold before they spill or fail.
    pub memory_limit: Option<u64>,
    /// Object-store options for tables registered without their own.
    pub storage_options: StorageOptions,
    /// Who is asked for credentials of those tables.
    #[serde(skip)]
    pub credentials: Option<Arc<dyn ForeignCredentials>>,
    /// Where ranges of remote files are kept on local disk; None keeps none.
    pub local_cache: Option<CacheOptions>,
}

impl std::fmt::Debug for SessionOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionOptions")
            .field("memory_limit", &self.memory_limit)
            .field("storage_options", &self.storage_options)
            .field("local_cache", &self.local_cache)
            .finish_non_exhaustive()
    }
}

/// The registered tables over a DataFusion context.
pub struct Session {
    context: SessionContext,
    options: SessionOptions,
    counters: Arc<IoCounters>,
    cache: Option<Arc<RangeCache>>,
    /// In step with the context's providers: both change while this is locked.
    names: RwLock<Names>,
    /// Iceberg catalogs by name; in a session of pinned tables only their names.
    pub(super) catalogs: RwLock<BTreeMap<String, Option<Arc<IcebergCatalog>>>>,
    /// A session made from a recipe never lists: its paths are already bound.
    pub(super) frozen: bool,
    /// The place that keeps facts about files for later runs.
    plan_cache: Option<Arc<PlanCache>>,
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
        let cache = open_cache(&options)?;
        Self::build(options, false, Arc::default(), cache, None)
    }

    /// An empty session that keeps facts about files in a folder, or below a URL, and looks there
    /// first.
    ///
    /// # Errors
    /// `Config` where the limits, the place or the options of its store are not valid.
    pub async fn with_plan_cache(options: SessionOptions, place: &str) -> Result<Arc<Self>> {
        let access = StoreAccess {
            options: options.storage_options.clone(),
            credentials: options.credentials.clone(),
            files: None,
        };
        let plans = PlanCache::open(place, access).await?;
        let cache = open_cache(&options)?;
        Self::build(options, false, Arc::default(), cache, Some(Arc::new(plans)))
    }

    /// The place that keeps facts about files.
    pub(super) fn plan_cache(&self) -> Option<&Arc<PlanCache>> {
        self.plan_cache.as_ref()
    }

    /// Takes the plan cache's warnings since the last call.
    pub fn take_warnings(&self) -> Vec<String> {
        self.plan_cache.as_ref().map(|cache| cache.take_warnings()).unwrap_or_default()
    }

    /// A session over tables that another one pinned: it lists nothing, and changes to the other
    /// session's names do not reach it.
    pub(super) async fn of_tables(&self, tables: &[(TableKey, Registered)]) -> Result<Arc<Self>> {
        let (counters, cache) = (Arc::clone(&self.counters), self.cache());
        let plans = self.plan_cache.clone();
        let session = Self::build(self.options.clone(), true, counters, cache, plans)?;
        // Nothing is looked up in them, but a refresh asks for its tables again.
        let catalogs = self.catalogs.read().unwrap_or_else(PoisonError::into_inner).clone();
        session.catalogs.write().unwrap_or_else(PoisonError::into_inner).extend(catalogs);
        for (key, registered) in tables {
            match registered {
                Registered::View { definition, .. } => {
                    session.register_view_over(&key.1, Arc::clone(definition), &[]).await?;
                }
                other => session.bind(key.clone(), other.clone())?,
            }
        }
        Ok(session)
    }

    pub(super) fn build(
        options: SessionOptions,
        frozen: bool,
        counters: Arc<IoCounters>,
        cache: Option<Arc<RangeCache>>,
        plan_cache: Option<Arc<PlanCache>>,
    ) -> Result<Arc<Self>> {
        let mut environment = RuntimeEnvBuilder::new();
        if let Some(limit) = options.memory_limit {
            let pool = FairSpillPool::new(usize::try_from(limit).unwrap_or(usize::MAX));
            environment = environment.with_memory_pool(Arc::new(pool));
        }
        let mut state = SessionStateBuilder::new_with_default_features()
            .with_config(session_config()?)
            .with_runtime_env(environment.build_arc()?)
            .with_query_planner(Arc::new(Planner))
            .with_optimizer_rules(logical_rules())
            .with_physical_optimizer_rules(physical_rules())
            .build();
        // What is TIMESTAMPTZ has a zone. The functions of the time were made before, and go on
        // without.
        state.config_mut().options_mut().execution.time_zone = Some("UTC".to_owned());
        let context = SessionContext::new_with_state(state);
        context.register_udwf(first_groups_larger());
        exact_shifts().into_iter().for_each(|function| context.register_udwf(function));
        exact_totals().into_iter().for_each(|function| context.register_udaf(function));
        context.register_relation_planner(Arc::new(SoundRelations::default()))?;
        for function in own_functions().chain(feature_functions()) {
            context.state_ref().write().register_udf(function)?;
        }
        context.state_ref().write().register_expr_planner(Arc::new(TimesOfDay))?;
        context.state_ref().write().register_expr_planner(Arc::new(NarrowDecimals))?;
        if let Some(catalog) = context.catalog("datafusion") {
            catalog.register_schema(PATH_SCHEMA, Arc::new(MemorySchemaProvider::new()))?;
            catalog.register_schema(LAKE_SCHEMA, Arc::new(MemorySchemaProvider::new()))?;
            catalog.register_schema(STAGE_SCHEMA, Arc::new(MemorySchemaProvider::new()))?;
            catalog.register_schema(SAMPLE_SCHEMA, SampleSchema::of(&catalog))?;
        }
        Ok(Arc::new(Self {
            context,
            options,
            counters,
            cache,
            names: RwLock::default(),
            catalogs: RwLock::default(),
            frozen,
            plan_cache,
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

    /// Where ranges of this session's remote files are kept.
    pub fn cache(&self) -> Option<Arc<RangeCache>> {
        self.cache.clone()
    }

    /// How stores are reached that are no table's: by the session's own options.
    pub fn store_access(&self) -> StoreAccess {
        StoreAccess {
            options: self.options.storage_options.clone(),
            credentials: self.options.credentials.clone(),
            files: None,
        }
    }

    pub(super) fn options(&self) -> &SessionOptions {
        &self.options
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
        // As of files: notes beside a schema would tell tables of the same columns apart.
        let schema = Arc::new(Schema::new(schema.fields().clone()));
        let plain = |batch: RecordBatch| -> Result<RecordBatch> {
            let rows = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
            let columns = batch.columns().to_vec();
            Ok(RecordBatch::try_new_with_options(Arc::clone(&schema), columns, &rows)?)
        };
        let batches = batches.into_iter().map(plain).collect::<Result<Vec<_>>>()?;
        let batches = batches.into_iter().map(with_null_fields).collect::<Result<Vec<_>>>()?;
        let key = (TABLE_SCHEMA.to_owned(), name.to_owned());
        self.bind(key, Registered::of_batches(schema, batches)?)
    }

    /// Removes a table.
    ///
    /// # Errors
    /// `TableNotFound` with the nearest name.
    pub fn deregister(&self, name: &str) -> Result<()> {
        let key = (TABLE_SCHEMA.to_owned(), name.to_owned());
        let mut names = self.names_mut();
        if names.remove(&key).is_none() {
            return Err(self.not_found_among(&names, name));
        }
        self.context.deregister_table(reference(&key))?;
        Ok(())
    }

    /// The registered tables, by name; tables made by path literals are not among them.
    pub fn tables(&self) -> Vec<TableInfo> {
        tables_of(&self.names())
    }

    /// A URL of its own for each table's store, so that each has its own pins and credentials: also
    /// beside tables that another session opened and handed on.
    pub(super) fn new_store_url(&self) -> Result<ObjectStoreUrl> {
        let number = NEXT_STORE.fetch_add(1, Ordering::Relaxed);
        Ok(ObjectStoreUrl::parse(format!("tensorquery://table-{number}"))?)
    }

    /// Puts files or batches under a name.
    pub(super) fn bind(&self, key: TableKey, registered: Registered) -> Result<()> {
        self.bind_in(&mut self.names_mut(), key, registered)
    }

    /// Binds a name in names that are locked already.
    pub(super) fn bind_in(
        &self,
        names: &mut Names,
        key: TableKey,
        registered: Registered,
    ) -> Result<()> {
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
            Registered::Memory { schema, batches, bytes, digest } => {
                let table = MemoryTable::new(Arc::clone(schema), Arc::clone(batches), *bytes);
                Arc::new(table.with_digest(digest))
            }
            Registered::View { .. } => {
                return Err(Error::config("a view is registered with its plan"));
            }
            Registered::Function(_) | Registered::Moment(_) => {
                if let Registered::Function(function) = &registered {
                    self.bind_function(function)?;
                }
                names.insert(key, registered);
                return Ok(());
            }
        };
        self.bind_provider(names, key, registered, provider)
    }

    pub(super) fn bind_provider(
        &self,
        names: &mut Names,
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
        names.insert(key, registered);
        Ok(())
    }

    /// All names, to read.
    pub(super) fn names(&self) -> RwLockReadGuard<'_, Names> {
        self.names.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// All names, to change.
    pub(super) fn names_mut(&self) -> RwLockWriteGuard<'_, Names> {
        self.names.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets a name; whether there was one.
    pub(super) fn unbind(&self, key: &TableKey) -> bool {
        self.names_mut().remove(key).is_some()
    }

    /// The object that a name stands for.
    pub(super) fn registered(&self, key: &TableKey) -> Option<Registered> {
        self.names().get(key).cloned()
    }

    pub(super) fn check_name(&self, name: &str) -> Result<()> {
        match name.trim().is_empty() {
            true => Err(Error::config("a table name must not be empty")),
            false => Ok(()),
        }
    }

    pub(super) fn table_not_found(&self, name: &str) -> Error {
        self.not_found_among(&self.names(), name)
    }

    /// The error for an unknown name, in names that are locked already.
    pub(super) fn not_found_among(&self, names: &Names, name: &str) -> Error {
        let tables = tables_of(names);
        let names: Vec<&str> = tables.iter().map(|table| table.name.as_str()).collect();
        let catalogs = self.catalogs();
        let first = name.split('.').next().unwrap_or_default();
        let catalogs = match catalogs.is_empty() {
            true => String::new(),
            false => format!(
                "; catalogs are {}{}",
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
        let hint = match names.contains(&name) {
            // As SQL reads it, a part before the point is a schema.
            true => format!("; a name with a point is quoted: FROM \"{name}\""),
            false => suggestion(name, names.iter().copied()),
        };
        Error::new(
            ErrorKind::TableNotFound,
            format!(
                "unknown table {name:?}{hint}{case}; {known}{catalogs}; a path is written in single quotes: \
                 FROM 'data/*.parquet'",
            ),
        )
    }
}

/// The cache that the options name.
///
/// # Errors
/// `Config` where its path is no folder.
pub(super) fn open_cache(options: &SessionOptions) -> Result<Option<Arc<RangeCache>>> {
    options.local_cache.as_ref().map(|options| RangeCache::open(options).map(Arc::new)).transpose()
}

/// The user's own tables, by name.
fn tables_of(names: &Names) -> Vec<TableInfo> {
    let own = names.iter().filter(|((schema, _), _)| schema == TABLE_SCHEMA);
    own.map(|((_, name), registered)| describe(name, registered)).collect()
}

fn reference(key: &TableKey) -> TableReference {
    TableReference::partial(key.0.clone(), key.1.clone())
}
