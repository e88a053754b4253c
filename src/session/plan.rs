//! A query's plan by splits: what is read, in which pieces, under which fingerprint.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::{ExecutionPlan, displayable};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::ipc;
use super::query::Query;
use super::registry::Registered;
use crate::exec::{DrivingScan, ReadOnly, Rewritten, ScanSource, SplitScanExec, rewrite};
use crate::split::{
    ScanSplits, SortedColumn, Split, SplitTarget, TableFiles, access_after, discover, memory,
    sorted_columns,
};
use crate::{Error, Result};

/// Splits a table in memory should have at least, so that every shard gets its share.
const WANTED_MEMORY_SPLITS: u64 = 256;

/// How large splits become.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanOptions {
    /// Stored bytes of the projected columns that a split grows towards.
    pub split_bytes: u64,
    /// Rows that a split grows towards; takes precedence.
    pub split_rows: Option<u64>,
    /// Whether the user chose one of them. Otherwise splits may be smaller than `split_bytes`, so
    /// that there are enough of them to balance.
    pub explicit: bool,
}

impl Default for PlanOptions {
    fn default() -> Self {
        Self { split_bytes: 128 << 20, split_rows: None, explicit: false }
    }
}

/// What planning found in one driving scan.
#[derive(Clone, Debug, Default)]
pub struct ScanReport {
    /// Files that the scan lists after hive pruning.
    pub files: usize,
    /// Files of the table.
    pub files_total: usize,
    /// Files of which no split is left.
    pub files_pruned: usize,
    /// Row groups of the listed files.
    pub units: usize,
    /// Of those, pruned by statistics or page index.
    pub units_pruned: usize,
}

/// A split as the user sees it.
#[derive(Clone, Debug)]
pub struct SplitInfo {
    /// The file's path, or the table's kind.
    pub path: String,
    /// The file's size in bytes.
    pub file_size: u64,
    /// Hive values, or those of identity partitions, by column, as text; None is null.
    pub partition_values: Vec<(String, Option<String>)>,
    /// The Iceberg snapshot.
    pub snapshot: Option<i64>,
}

/// A row-local query by splits.
#[derive(Debug)]
pub struct Plan {
    query: Query,
    pub(super) rewritten: Rewritten,
    physical: Arc<dyn ExecutionPlan>,
    /// For each split its partition in `physical`, where the splits of one scan lie side by side.
    partitions: Arc<[u32]>,
    splits: Arc<[Split]>,
    reports: Vec<ScanReport>,
    options: PlanOptions,
    /// Of the plan before splits were put in: what a worker's own planning must reproduce.
    shape: String,
    fingerprint: String,
}

impl Plan {
    pub(super) async fn discover(query: Query, options: &PlanOptions) -> Result<Self> {
        let (rewritten, shape) = classify(&query).await?;
        let target = SplitTarget { bytes: options.split_bytes, rows: options.split_rows };
        let mut found = Vec::new();
        for scan in &rewritten.scans {
            found.push(discover_scan(scan, target, options.explicit).await?);
        }
        let reports = rewritten.scans.iter().zip(&found).map(report).collect();
        let splits = found
            .into_iter()
            .enumerate()
            .flat_map(|(scan, found)| {
                found.splits.into_iter().map(move |split| Split { scan: scan as u32, ..split })
            })
            .collect();
        let fingerprint = fingerprint(&query, options, &shape);
        Self::assemble(query, rewritten, splits, reports, options.clone(), shape, fingerprint)
    }

    /// The plan of a worker: its own planning with given splits.
    pub(super) async fn resume(
        query: Query,
        splits: Vec<Split>,
        options: PlanOptions,
        fingerprint_wanted: &str,
    ) -> Result<Self> {
        query.check()?;
        let (rewritten, shape) = classify(&query).await?;
        let fingerprint = fingerprint(&query, &options, &shape);
        if fingerprint != fingerprint_wanted {
            return Err(Error::data(format!(
                "this process planned the query differently (fingerprint {fingerprint}) from the one \
                 that made the shards ({fingerprint_wanted}); all processes must run the same version \
                 of tensorquery"
            )));
        }
        Self::assemble(query, rewritten, splits, Vec::new(), options, shape, fingerprint)
    }

    fn assemble(
        query: Query,
        rewritten: Rewritten,
        splits: Vec<Split>,
        reports: Vec<ScanReport>,
        options: PlanOptions,
        shape: String,
        fingerprint: String,
    ) -> Result<Self> {
        let (physical, partitions) = executable(&rewritten, &splits)?;
        Ok(Self {
            query,
            rewritten,
            physical,
            partitions,
            splits: Arc::from(splits),
            reports,
            options,
            shape,
            fingerprint,
        })
    }

    /// The query.
    pub fn query(&self) -> &Query {
        &self.query
    }

    /// The output columns.
    pub fn schema(&self) -> SchemaRef {
        self.physical.schema()
    }

    /// All splits; a split's position is its id.
    pub fn splits(&self) -> &[Split] {
        &self.splits
    }

    /// The driving scans, without those of which the planner proved that they have no row.
    pub(super) fn scans_with_rows(&self) -> usize {
        let scans = self.rewritten.scans.iter();
        scans.filter(|scan| !matches!(scan.source, ScanSource::Empty)).count()
    }

    /// What pruning left out, by driving scan.
    pub fn reports(&self) -> &[ScanReport] {
        &self.reports
    }

    /// How splits were cut.
    pub fn options(&self) -> &PlanOptions {
        &self.options
    }

    /// Identifies the query's rows and their order: SQL plan, pinned files and split options.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// DataFusion's plan before the rewrite, as text.
    pub fn shape(&self) -> &str {
        &self.shape
    }

    /// Name and identity (size, entity tag, time of the last write) of every pinned file that the query can
    /// read, and the digest of every table in memory.
    pub fn files(&self) -> Vec<(String, String)> {
        let mut files = Vec::new();
        for ((_, name), registered) in self.query.tables() {
            match registered {
                Registered::Files { table, spec } => {
                    files.extend(spec.files.iter().enumerate().map(|(index, (pin, _))| {
                        let identity =
                            format!("{} {:?} {:?}", pin.size, pin.e_tag, pin.last_modified);
                        (table.display_path(index), identity)
                    }));
                }
                Registered::Lake(lake) => files.push((name.clone(), lake.identity())),
                Registered::Memory { digest, .. } => files.push((name.clone(), digest.clone())),
                Registered::View { .. } => {}
            }
        }
        files
    }

    /// A guess of the bytes that a decoded row takes: the width of its fixed columns, and thrice the stored bytes
    /// where there are others. A function of the schema and the splits alone.
    pub fn row_bytes(&self) -> u64 {
        let schema = self.schema();
        let fixed: usize =
            schema.fields().iter().map(|f| f.data_type().primitive_width().unwrap_or(16)).sum();
        let variable = schema.fields().iter().any(|f| f.data_type().primitive_width().is_none());
        let (rows, bytes) = self.splits.iter().fold((0, 0), |(rows, bytes), split| {
            (rows + split.rows.unwrap_or(0), bytes + split.bytes)
        });
        let stored = if variable && rows > 0 { 3 * bytes / rows } else { 0 };
        (fixed as u64 + stored).max(1)
    }

    /// The output columns by which a driving scan's Parquet row groups are sorted, as far as statistics say;
    /// see [`sorted_columns`]. A column goes by its name: one that the query renames is not found.
    pub fn sorted_by(&self) -> Vec<SortedColumn> {
        let mut found: Vec<SortedColumn> = Vec::new();
        let schema = self.schema();
        for (number, scan) in self.rewritten.scans.iter().enumerate() {
            let ScanSource::Files { table, .. } = &scan.source else { continue };
            let splits: Vec<Split> =
                self.splits.iter().filter(|split| split.scan as usize == number).copied().collect();
            let is_table_column =
                |name: &String| table.schema.table_schema().column_with_name(name).is_some();
            let columns: Vec<String> = schema.fields().iter().map(|f| f.name().clone()).collect();
            let columns: Vec<String> = columns.into_iter().filter(is_table_column).collect();
            for column in sorted_columns(table, &splits, &columns) {
                if found.iter().all(|other| other.name != column.name) {
                    found.push(column);
                }
            }
        }
        found
    }

    /// The plan whose partitions are the splits.
    pub fn physical(&self) -> &Arc<dyn ExecutionPlan> {
        &self.physical
    }

    /// For each split its partition in [`physical`](Self::physical).
    pub(super) fn partitions(&self) -> &Arc<[u32]> {
        &self.partitions
    }

    /// A fresh copy for one epoch: operators' states and metrics start anew, build sides stay.
    ///
    /// # Errors
    /// Where an operator cannot be reset.
    pub fn epoch(&self) -> Result<EpochPlan> {
        let context = self.query.session().context().task_ctx();
        let epoch = EpochPlan::new(&self.physical, &self.partitions, context)?;
        let fates = self.rewritten.fates()?;
        let skippable = self.rewritten.scans.iter().zip(fates).map(|(scan, fate)| {
            fate.keeps_all().then(|| SplitScanExec::skippable(&scan.source)).flatten()
        });
        let skippable = Some((Arc::clone(&self.splits), skippable.collect()));
        Ok(EpochPlan { skippable, ..epoch })
    }

    /// Paths and hive values of a split.
    pub fn describe(&self, split: &Split) -> SplitInfo {
        match self.rewritten.scans.get(split.scan as usize).map(|scan| &scan.source) {
            Some(ScanSource::Files { table, .. }) => {
                let index = split.file as usize;
                let file = &table.files[index];
                let names = table.schema.table_partition_cols().iter().map(|f| f.name().clone());
                let values = file
                    .partition_values
                    .iter()
                    .map(|value| (!value.is_null()).then(|| value.to_string()));
                let mut partition_values: Vec<_> = names.zip(values).collect();
                if let Some(lake) = &table.lake {
                    let constants = lake.values().constants(index).unwrap_or_default();
                    partition_values
                        .extend(constants.into_iter().map(|(n, v)| (n, Some(v.to_string()))));
                }
                SplitInfo {
                    path: table.display_path(index),
                    file_size: file.meta.size,
                    partition_values,
                    snapshot: table.lake.as_ref().and_then(|lake| lake.spec().snapshot),
                }
            }
            _ => SplitInfo {
                path: "memory".into(),
                file_size: split.bytes,
                partition_values: vec![],
                snapshot: None,
            },
        }
    }
}

/// By driving scan, its files where rows can be passed over.
type Skippable = Arc<[Option<Arc<TableFiles>>]>;

/// A plan by splits, and for each split its partition there.
pub(super) type Executable = (Arc<dyn ExecutionPlan>, Arc<[u32]>);

/// One epoch's executable plan.
#[derive(Clone, Debug)]
pub struct EpochPlan {
    plan: Arc<dyn ExecutionPlan>,
    partitions: Arc<[u32]>,
    /// All splits, and by driving scan the files of which the first rows can be passed over: Parquet files whose
    /// rows are the output rows.
    skippable: Option<(Arc<[Split]>, Skippable)>,
    context: Arc<TaskContext>,
}

impl EpochPlan {
    /// A fresh copy of `physical`, where split `i` is partition `partitions[i]`.
    pub(super) fn new(
        physical: &Arc<dyn ExecutionPlan>,
        partitions: &Arc<[u32]>,
        context: Arc<TaskContext>,
    ) -> Result<Self> {
        let plan = reset_plan_states(Arc::clone(physical))?;
        Ok(Self { plan, partitions: Arc::clone(partitions), skippable: None, context })
    }

    /// The rows of split `id` after its first `skip` output rows, where the storage format can pass over them;
    /// else all of its rows. With the number of rows passed over: `skip` or 0.
    ///
    /// # Errors
    /// Where DataFusion cannot open it, or the file's footer cannot be read.
    pub async fn execute_after(
        &self,
        id: u32,
        skip: u64,
    ) -> Result<(SendableRecordBatchStream, u64)> {
        let access = match &self.skippable {
            Some((splits, tables)) if skip > 0 => match splits.get(id as usize) {
                Some(split) => match tables.get(split.scan as usize) {
                    Some(Some(table)) => access_after(table, split, skip).await?,
                    _ => None,
                },
                None => None,
            },
            _ => None,
        };
        let Some(access) = access else { return Ok((self.execute(id)?, 0)) };
        let context = &self.context;
        let config = context.session_config().clone().with_extension(Arc::new(ReadOnly(access)));
        let context = TaskContext::new(
            context.task_id(),
            context.session_id(),
            config,
            context.scalar_functions().clone(),
            context.aggregate_functions().clone(),
            context.window_functions().clone(),
            context.runtime_env(),
        );
        Ok((self.plan.execute(self.partition(id)?, Arc::new(context))?, skip))
    }

    /// The rows of split `id`, in file order.
    ///
    /// # Errors
    /// Where DataFusion cannot open it.
    pub fn execute(&self, id: u32) -> Result<SendableRecordBatchStream> {
        Ok(self.plan.execute(self.partition(id)?, Arc::clone(&self.context))?)
    }

    fn partition(&self, id: u32) -> Result<usize> {
        match self.partitions.get(id as usize) {
            Some(partition) => Ok(*partition as usize),
            None => Err(Error::config(format!(
                "split {id} does not exist; the plan has {}",
                self.partitions.len()
            ))),
        }
    }
}

/// The plan over these splits, and for each split its partition there: the splits of one scan lie side
/// by side, while a recipe's splits may come in any order.
pub(super) fn executable(rewritten: &Rewritten, splits: &[Split]) -> Result<Executable> {
    let per_scan: Vec<Arc<[Split]>> = (0..rewritten.scans.len())
        .map(|scan| splits.iter().filter(|split| split.scan as usize == scan).copied().collect())
        .collect();
    let physical = rewritten.with_splits(&per_scan)?;
    let mut by_scan: Vec<usize> = (0..splits.len()).collect();
    by_scan.sort_by_key(|id| splits[*id].scan);
    let mut partitions = vec![0; splits.len()];
    for (partition, id) in by_scan.into_iter().enumerate() {
        partitions[id] = partition as u32;
    }
    Ok((physical, Arc::from(partitions)))
}

async fn classify(query: &Query) -> Result<(Rewritten, String)> {
    let physical = query.physical_plan().await?;
    let shape = displayable(physical.as_ref()).indent(false).to_string();
    Ok((rewrite(physical)?, shape))
}

async fn discover_scan(
    scan: &DrivingScan,
    target: SplitTarget,
    explicit: bool,
) -> Result<ScanSplits> {
    match &scan.source {
        ScanSource::Files { table, .. } => {
            discover(table, &scan.files, &scan.request, target, explicit).await
        }
        ScanSource::Memory { batches, bytes, .. } => {
            let wanted = if explicit { 1 } else { WANTED_MEMORY_SPLITS };
            let found = memory::discover(batches, *bytes, target, wanted);
            Ok(ScanSplits { splits: found.splits, units: 1, ..ScanSplits::default() })
        }
        ScanSource::Empty => Ok(ScanSplits::default()),
    }
}

fn report((scan, found): (&DrivingScan, &ScanSplits)) -> ScanReport {
    let files_total = match &scan.source {
        ScanSource::Files { table, .. } => table.files.len(),
        _ => 0,
    };
    ScanReport {
        files: scan.files.len(),
        files_total,
        files_pruned: files_total - scan.files.len() + found.files_pruned,
        units: found.units,
        units_pruned: found.units_pruned,
    }
}

/// SHA-256 over the plan's text, the identities of all pinned files and the split options.
fn fingerprint(query: &Query, options: &PlanOptions, shape: &str) -> String {
    let mut hash = Sha256::new();
    let mut add = |text: &str| {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text.as_bytes());
    };
    add(env!("CARGO_PKG_VERSION"));
    add(query.sql());
    add(shape);
    add(&format!("{options:?}"));
    for ((schema, name), registered) in query.tables() {
        add(schema);
        add(name);
        match registered {
            Registered::Files { table, spec } => {
                add(&format!("{:?}", spec.format));
                for field in table.schema.table_schema().fields() {
                    add(&format!("{} {} {}", field.name(), field.data_type(), field.is_nullable()));
                }
                for (index, (pin, rows)) in spec.files.iter().enumerate() {
                    // With bucket or host: the same key in two stores is two files.
                    add(&table.display_path(index));
                    add(&format!("{} {:?} {:?} {rows:?}", pin.size, pin.e_tag, pin.last_modified));
                }
            }
            Registered::Lake(lake) => {
                // The snapshot says its files, and its metadata never changes.
                add(&lake.identity());
                for field in lake.table.schema.table_schema().fields() {
                    add(&format!("{} {} {}", field.name(), field.data_type(), field.is_nullable()));
                }
                if let Some(table) = &lake.table.lake {
                    add(table.spec().scan_filter.as_deref().unwrap_or_default());
                }
            }
            Registered::Memory { digest, .. } => add(digest),
            Registered::View { sql, .. } => add(sql),
        }
    }
    ipc::hex(&hash.finalize())
}
