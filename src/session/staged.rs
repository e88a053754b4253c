//! Queries with staged parts: the cuts, their keys, and the query over the rest.

use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::datasource::{TableProvider, provider_as_source};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{displayable, execute_stream};
use futures::StreamExt;
use object_store::path::Path;

use super::engine::{StageEngine, Target};
use super::plan_fingerprint::{classify, classify_planned};
use super::query::Query;
use super::registered::{Registered, TableKey};
use super::registry::Session;
use crate::catalog::{FilesTable, TableOptions};
use crate::exec::{LakeProvider, MemoryTable};
use crate::fingerprint::Form;
use crate::formats::ipc::read_ipc_head;
use crate::formats::{ArrowFormat, Format};
use crate::materialize::{
    Attempt, InUse, Manifest, StagePlace, StageProgress, Wanted, ensure, find_stage, rows_of,
    withdraw,
};
use crate::query::{
    Cut, Sizes, StageTable, evaluated_once, find_cuts, provider_of, replace, share_of_columns,
};
use crate::storage::Partitioning;
use crate::{Error, ErrorKind, Result};

/// The schema under which stages are registered, apart from the user's own names.
pub(super) const STAGE_SCHEMA: &str = "stage";

/// Stored bytes of one side of a join that each process may hold, where no memory limit says less.
const BROADCAST_BYTES: u64 = 256 << 20;

/// The share of the memory limit that one side of a join may take, stored: one part in so many.
const BROADCAST_SHARE: u64 = 8;

/// Whether parts of a query are staged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StageMode {
    /// The parts that cannot run split by split.
    #[default]
    Auto,
    /// None: where one is needed, that is an error.
    Never,
    /// The whole query.
    Always,
}

/// A part of a query that is staged.
#[derive(Clone, Debug)]
pub struct StagedPart {
    /// The number of its root in the optimised plan.
    pub(super) node: usize,
    /// The name of its table: key and digest of the content.
    pub(super) table: String,
    /// Why it is staged.
    pub why: String,
    /// Where it lies, as a user would write it; None in a worker.
    pub place: Option<String>,
    /// Its rows and bytes.
    pub rows: u64,
    /// Bytes of its files.
    pub bytes: u64,
    /// Seconds that this process took to build it; None where it was there.
    pub built: Option<f64>,
    /// Its folder in the store, which is no part of its identity.
    pub(super) folder: String,
    /// Keeps it from being removed.
    _in_use: Option<Arc<InUse>>,
}

impl StagedPart {
    /// SHA-256 over the content.
    pub fn digest(&self) -> &str {
        self.table.rsplit('.').next().unwrap_or_default()
    }

    /// A stage that another process has opened.
    pub(super) fn shipped(node: usize, table: String, why: String, folder: String) -> Self {
        Self {
            node,
            table,
            why,
            place: None,
            rows: 0,
            bytes: 0,
            built: None,
            folder,
            _in_use: None,
        }
    }
}

/// How stages are built.
#[derive(Clone, Copy)]
pub struct Building<'a> {
    /// Where they are kept.
    pub place: &'a StagePlace,
    /// The engine that computes the rows.
    pub engine: &'a StageEngine,
    /// How long to wait for another process that builds.
    pub timeout: Duration,
    /// Who is told how far it is.
    pub progress: &'a Arc<StageProgress>,
}

impl Query {
    /// The parts that are staged in this mode; none if the query runs split by split without
    /// stages.
    ///
    /// # Errors
    /// Errors of planning.
    pub async fn cuts(&self, mode: StageMode) -> Result<Vec<Cut>> {
        if mode == StageMode::Never {
            return Ok(Vec::new());
        }
        let state = self.session().context().state();
        let plan = state.optimize(self.logical())?;
        if mode == StageMode::Always {
            return Ok(Cut::whole(&plan, "stage=\"always\""));
        }
        if let Some(why) = evaluated_once(self.logical())? {
            return Ok(Cut::whole(&plan, &why));
        }
        let limit = self.session().options().memory_limit.map(|limit| limit / BROADCAST_SHARE);
        let broadcast = limit.unwrap_or(BROADCAST_BYTES).min(BROADCAST_BYTES);
        let cuts = find_cuts(&plan, Sizes { bytes_of: &stored_bytes, broadcast });
        // The physical plan has the last word: it may not be row-local where the logical one is.
        let classified = match cuts.is_empty() {
            true => self
                .physical_plan_of_optimized(&plan)
                .await
                .and_then(|physical| classify_planned(self, physical)),
            false => classify(&self.without_rows(&cuts, &[])?).await,
        };
        match classified {
            Ok(found) => {
                if cuts.is_empty() {
                    self.leave_classified(found);
                }
                Ok(cuts)
            }
            Err(error) if error.kind() == ErrorKind::NotShardable => {
                // What comes behind is the way out that this is.
                let why = error.message().split("; ").next().unwrap_or_default();
                Ok(Cut::whole(&plan, why))
            }
            Err(error) => Err(error),
        }
    }

    /// The query over tables without rows in place of its parts, to show its plan after staging.
    /// Their sizes, where known, are for the reader of the plan.
    pub(super) fn without_rows(&self, cuts: &[Cut], sizes: &[Option<(u64, u64)>]) -> Result<Self> {
        let tables = cuts.iter().enumerate().map(|(number, cut)| {
            let size = match sizes.get(number) {
                Some(Some((rows, bytes))) => format!("rows={rows}, bytes={bytes}"),
                _ => "not built yet".to_owned(),
            };
            let label = format!("stage={}, {size}", number + 1);
            let table = MemoryTable::new(cut.stage_schema(), Arc::default(), 0).standing_for(label);
            (cut.node, format!("stage {}", number + 1), Arc::new(table) as Arc<dyn TableProvider>)
        });
        self.over(tables.collect())
    }

    /// Rows and bytes of the stages of these parts that are in a place.
    pub(super) async fn known_sizes(
        &self,
        cuts: &[Cut],
        place: &str,
    ) -> Result<Vec<Option<(u64, u64)>>> {
        let place = StagePlace::find(place, self.session().store_access()).await?;
        let mut sizes = Vec::with_capacity(cuts.len());
        for cut in cuts {
            let found = find_stage(&place, &self.stage_key(cut, &StageEngine::default())?).await?;
            sizes.push(found.map(|manifest| (manifest.rows, manifest.bytes)));
        }
        Ok(sizes)
    }

    /// The query with its stages; builds stages that do not exist yet.
    ///
    /// # Errors
    /// Errors of computing the staged rows; `Storage` if they cannot be written, or if another
    /// process takes longer than the timeout to build them; refusals of the engine.
    pub async fn staged(&self, mode: StageMode, how: Building<'_>) -> Result<Self> {
        let cuts = self.cuts(mode).await?;
        if cuts.is_empty() {
            return Ok(self.clone());
        }
        let staged = self.stage_cuts(cuts, how).await?;
        match classify(&staged).await {
            // By their sizes, the planner may turn joins round that it had left as they were above
            // stages of unknown size.
            Err(error) if error.kind() == ErrorKind::NotShardable => {
                let plan = self.session().context().state().optimize(self.logical())?;
                let cuts =
                    Cut::whole(&plan, error.message().split("; ").next().unwrap_or_default());
                self.stage_cuts(cuts, how).await
            }
            Err(error) => Err(error),
            Ok(_) => Ok(staged),
        }
    }

    async fn stage_cuts(&self, cuts: Vec<Cut>, how: Building<'_>) -> Result<Self> {
        let Building { place, engine, timeout, progress } = how;
        progress.expect(cuts.len());
        // A session of its own, in which nothing but this query is bound.
        let session = self.session().of_tables(self.tables()).await?;
        let mut parts = Vec::with_capacity(cuts.len());
        for cut in &cuts {
            let (key, schema) = (self.stage_key(cut, engine)?, &cut.stage_schema());
            let make = |attempt, folder: Path| async move {
                let target = Target { place, folder: &folder, schema };
                self.make(cut, engine, attempt, target).await
            };
            let limited = self.session().options().memory_limit.is_some();
            let wanted = Wanted { place, key: &key, why: &cut.why, timeout, limited, progress };
            let mut was_withdrawn = false;
            let (stage, table) = loop {
                let stage = match ensure(wanted, make).await {
                    Ok(stage) => stage,
                    Err(error) => return Err(self.locate_below(&cut.plan, error).await),
                };
                let table = format!("{key}.{}", stage.manifest.digest);
                match session.bind_stage(&table, place, &stage.manifest).await {
                    Ok(()) => break (stage, table),
                    // Its files are there and have their sizes, and are damaged all the same.
                    Err(error) if error.kind() == ErrorKind::Data => {
                        if was_withdrawn || stage.built {
                            return Err(Manifest::damaged(place, &key, error));
                        }
                        was_withdrawn = true;
                        withdraw(place, &key).await?;
                    }
                    Err(error) => return Err(error),
                }
            };
            let manifest = &stage.manifest;
            let folder = place.path([key.as_str(), manifest.build.as_str()]);
            parts.push(StagedPart {
                node: cut.node,
                table,
                why: cut.why.clone(),
                place: Some(place.describe(&folder)),
                rows: manifest.rows,
                bytes: manifest.bytes,
                built: stage.built.then_some(manifest.seconds),
                folder: folder.to_string(),
                _in_use: stage.in_use,
            });
        }
        let query = session.query_over(Arc::clone(self.definition()), false, &[]).await?;
        query.over_stages(parts).await
    }

    /// The query over stages that are bound in its session.
    pub(super) async fn over_stages(self, parts: Vec<StagedPart>) -> Result<Self> {
        if parts.is_empty() {
            return Ok(self);
        }
        let context = self.session().context().clone();
        let (mut tables, mut bound) = (Vec::new(), Vec::new());
        for part in &parts {
            let key: TableKey = (STAGE_SCHEMA.to_owned(), part.table.clone());
            let registered = self.session().registered(&key).ok_or_else(|| {
                Error::data(format!(
                    "the stage {} is not among the tables of the query",
                    part.table
                ))
            })?;
            let reference = datafusion::common::TableReference::partial(STAGE_SCHEMA, &*part.table);
            tables.push((part.node, part.table.clone(), context.table_provider(reference).await?));
            bound.push((key, registered));
        }
        Ok(self.over(tables)?.with_parts(bound, parts))
    }

    /// The query with tables in the place of parts of its plan.
    fn over(&self, tables: Vec<(usize, String, Arc<dyn TableProvider>)>) -> Result<Self> {
        let plan = self.session().context().state().optimize(self.logical())?;
        let tables: Vec<StageTable> = tables
            .into_iter()
            .map(|(node, name, provider)| StageTable {
                node,
                name,
                source: provider_as_source(provider),
            })
            .collect();
        Ok(self.with_plan(replace(&plan, &tables)?))
    }

    /// A name for the rows of a part: it follows from the query, the pinned content of all that it
    /// reads, and the version of this program. An engine that orders them differently is named.
    fn stage_key(&self, cut: &Cut, engine: &StageEngine) -> Result<String> {
        let mut form = Form::new("stage");
        form.text("program", env!("CARGO_PKG_VERSION")).text("sql", self.sql());
        form.number("part", cut.node as u64).optional_text("engine", engine.name());
        self.write_tables(&mut form)?;
        Ok(form.name())
    }

    /// The rows of a part.
    pub(super) async fn rows_of(
        &self,
        cut: &Cut,
        attempt: Attempt,
    ) -> Result<SendableRecordBatchStream> {
        let physical = self.plan_of_part(cut).await?;
        let (physical, context) = self.prepared(physical, attempt)?;
        Ok(named(execute_stream(physical, context)?, cut))
    }

    /// How each part is computed, for the user to look at.
    pub(super) async fn describe_part(&self, cut: &Cut) -> Result<String> {
        Ok(displayable(self.plan_of_part(cut).await?.as_ref()).indent(false).to_string())
    }
}

/// The rows of a part with the names of its stage: a join may have two columns of one name, and a
/// file may not.
fn named(rows: SendableRecordBatchStream, cut: &Cut) -> SendableRecordBatchStream {
    let (before, names) = (rows.schema(), cut.column_names());
    let fields = before.fields().iter().zip(names);
    let fields: Vec<Field> =
        fields.map(|(field, name)| (**field).clone().with_name(name)).collect();
    let schema = Arc::new(Schema::new_with_metadata(fields, before.metadata().clone()));
    if schema == before {
        return rows;
    }
    let renamed = Arc::clone(&schema);
    let rows = rows.map(move |batch| {
        let batch = batch?;
        Ok(rows_of(&renamed, batch.columns().to_vec(), batch.num_rows())?)
    });
    Box::pin(RecordBatchStreamAdapter::new(schema, rows))
}

impl Cut {
    /// The columns of the stage.
    fn stage_schema(&self) -> SchemaRef {
        let fields = self.plan.schema().fields().iter().zip(self.column_names());
        let fields: Vec<Field> = fields
            .map(|(field, name)| {
                let stored = crate::formats::stored_type(field.data_type());
                Field::new(name, stored, field.is_nullable())
            })
            .collect();
        Arc::new(Schema::new(fields))
    }
}

impl Session {
    /// Puts a stage under its name.
    async fn bind_stage(&self, table: &str, place: &StagePlace, manifest: &Manifest) -> Result<()> {
        let paths: Vec<String> = manifest
            .files
            .iter()
            .map(|file| place.describe(&manifest.path_of(place, file)))
            .collect();
        let access = place.access();
        let format = match manifest.is_parquet() {
            true => Format::Parquet,
            false => Format::Arrow(ArrowFormat::default()),
        };
        let options = TableOptions {
            format: Some(format),
            partitioning: Partitioning::Off,
            storage_options: access.options.clone(),
            credentials: access.credentials.clone(),
            files: access.files.clone(),
            ..TableOptions::default()
        };
        let key = (STAGE_SCHEMA.to_owned(), table.to_owned());
        let listed = self.listed(&paths, options).await?;
        // Damage that shows now can be mended; below a URL, it would cost a request for each file.
        if let (Registered::Files { table, .. }, Some(_)) = (&listed, place.folder())
            && !manifest.is_parquet()
        {
            for file in &table.files {
                let head = read_ipc_head(&table.store, &file.meta, &table.footers).await?;
                head.batches(&table.store, &file.meta).await?;
            }
        }
        self.bind(key, listed)
    }
}

/// Stored bytes that a scan reads.
fn stored_bytes(scan: &datafusion::logical_expr::TableScan) -> u64 {
    let Some(provider) = provider_of(scan) else { return 0 };
    let provider = provider.as_any();
    let files = |files: &crate::formats::TableFiles| -> u64 {
        files.files.iter().map(|file| file.meta.size).sum()
    };
    let bytes = if let Some(table) = provider.downcast_ref::<FilesTable>() {
        files(table.files())
    } else if let Some(table) = provider.downcast_ref::<LakeProvider>() {
        files(table.files())
    } else if let Some(table) = provider.downcast_ref::<MemoryTable>() {
        table.bytes()
    } else {
        0
    };
    share_of_columns(scan, bytes)
}
