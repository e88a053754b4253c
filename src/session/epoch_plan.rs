//! A plan as one epoch executes it: each split a stream, from any of its rows on.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use arrow::datatypes::{DataType, SchemaRef};
use datafusion::datasource::physical_plan::parquet::ParquetAccessPlan;
use datafusion::execution::memory_pool::MemoryLimit;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::prelude::SessionConfig;

use super::plan::Plan;
use crate::exec::{ReadOnly, SplitScanExec};
use crate::formats::{ALL_ROWS, BatchEnds, Split, TableFiles, access_to_rows};
use crate::matrix::{MatrixColumns, MatrixSchema};
use crate::{Error, Result};

/// Long batches: rows at most, and decoded bytes; twice as many would no longer be in the
/// processor's cache when they are converted.
const LONG_BATCH_ROWS: usize = 32_768;
const LONG_BATCH_BYTES: usize = 2 << 20;

/// Bytes of one column in a batch, about. A larger column goes through memory, not through the
/// processor's cache, from page to array to tensor, and takes fresh pages for each: vectors of 1
/// KiB take a third longer in batches of 8 MiB.
const COLUMN_BYTES: u64 = 1 << 20;

/// Bytes of a matrix in a batch, about. It is written once, and the next one uses its memory again,
/// up to some such size.
const MATRIX_BYTES: u64 = 8 << 20;

/// Rows of a batch that are not worth a batch of fewer: each is handled by itself.
const FEWEST_ROWS: u64 = 64;

impl Plan {
    /// A fresh copy for one epoch: operators' states and metrics start anew, build sides stay.
    ///
    /// # Errors
    /// Where an operator cannot be reset.
    pub fn epoch(&self) -> Result<EpochPlan> {
        let context = self.query().session().context().task_ctx();
        let config = context.session_config().clone();
        let rows = self.batch_rows().min(config.batch_size());
        let context = Arc::new(with_config(&context, config.with_batch_size(rows)));
        let epoch = EpochPlan::new(self.physical(), self.partitions(), context)?;
        let epoch = EpochPlan { ids: self.ids.clone(), ..epoch };
        let fates = self.rewritten.fates()?;
        let skippable = self.rewritten.scans.iter().zip(fates).map(|(scan, fate)| {
            fate.keeps_all().then(|| SplitScanExec::skippable(&scan.source)).flatten()
        });
        let splits = self.shared_splits();
        let skippable = Some((Arc::clone(splits), skippable.collect()));
        let split_bytes = self.fetched_split_bytes();
        let long_rows = LONG_BATCH_BYTES / usize::try_from(self.row_bytes()).unwrap_or(usize::MAX);
        Ok(EpochPlan { skippable, split_bytes, long_rows, ..epoch })
    }

    /// Stored bytes of a split that a network brings, in the mean; 0 where there is none: this
    /// process's measurements of a network say nothing about a disk.
    fn fetched_split_bytes(&self) -> u64 {
        let is_local: Vec<bool> =
            self.rewritten.scans.iter().map(|scan| scan.source.is_local()).collect();
        let fetched = self.shared_splits().iter().filter(|split| !is_local[split.scan as usize]);
        let (splits, stored) = fetched
            .fold((0_u64, 0_u64), |(splits, stored), split| (splits + 1, stored + split.bytes));
        stored / splits.max(1)
    }

    /// Rows of a decoded batch at most: a power of two that divides batches evenly, chosen so that
    /// the widest column takes [`COLUMN_BYTES`].
    fn batch_rows(&self) -> usize {
        let schema = self.schema();
        let widths = schema.fields().iter().map(|field| fixed_width(field.data_type()));
        let widths: Vec<Option<u64>> = widths.collect();
        let fixed: u64 = widths.iter().flatten().sum();
        // Of the others, what is stored of them says how wide they are.
        let others = widths.iter().filter(|width| width.is_none()).count() as u64;
        let totals = self.totals();
        let rows = if totals.all_rows { totals.rows } else { 0 };
        let stored = totals.bytes.checked_div(rows).unwrap_or(0).saturating_sub(fixed);
        let widest = widths.iter().flatten().copied().max();
        let widest = widest.max(stored.checked_div(others)).unwrap_or(0).max(1);
        1 << (COLUMN_BYTES / widest).max(FEWEST_ROWS).ilog2()
    }
}

/// Returns true if the order of a plan's rows does not depend on how they are cut into batches.
/// Joins reorder rows within a batch.
fn orders_rows_alone(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let node = plan.as_any();
    node.is::<SplitScanExec>()
        || (node.is::<FilterExec>() || node.is::<ProjectionExec>())
            && plan.children().into_iter().all(orders_rows_alone)
}

/// Bytes of a value, where all take equally many.
fn fixed_width(data_type: &DataType) -> Option<u64> {
    match data_type {
        DataType::Boolean => Some(1),
        DataType::FixedSizeBinary(bytes) => u64::try_from(*bytes).ok(),
        DataType::FixedSizeList(item, length) => {
            fixed_width(item.data_type())?.checked_mul(u64::try_from(*length).ok()?)
        }
        DataType::Struct(fields) => fields.iter().map(|field| fixed_width(field.data_type())).sum(),
        other => other.primitive_width().map(|bytes| bytes as u64),
    }
}

/// By driving scan, its files where rows can be left out.
type Skippable = Arc<[Option<Arc<TableFiles>>]>;

/// One epoch's executable plan.
#[derive(Clone, Debug)]
pub struct EpochPlan {
    plan: Arc<dyn ExecutionPlan>,
    partitions: Arc<[u32]>,
    /// The ids of the splits, where they are only some of a plan's.
    ids: Option<Arc<[u32]>>,
    /// The splits, and by driving scan the files that can be read in part: Parquet files whose rows
    /// are the output rows.
    skippable: Option<(Arc<[Split]>, Skippable)>,
    /// Stored bytes of a split that a network brings, in the mean; 0 where none is, or nobody asks.
    split_bytes: u64,
    /// Rows of long batches; few where rows are wide.
    long_rows: usize,
    matrices: usize,
    context: Arc<TaskContext>,
}

impl EpochPlan {
    /// The columns of the query.
    pub fn schema(&self) -> SchemaRef {
        self.plan.schema()
    }

    /// A fresh copy of `physical`, where split `i` is partition `partitions[i]`.
    pub(super) fn new(
        physical: &Arc<dyn ExecutionPlan>,
        partitions: &Arc<[u32]>,
        context: Arc<TaskContext>,
    ) -> Result<Self> {
        let plan = reset_plan_states(Arc::clone(physical))?;
        let partitions = Arc::clone(partitions);
        Ok(Self {
            plan,
            partitions,
            ids: None,
            skippable: None,
            split_bytes: 0,
            long_rows: 0,
            matrices: 0,
            context,
        })
    }

    /// Puts rows that are not wide into longer batches, of at most [`LONG_BATCH_ROWS`]. Not where
    /// that would be another order of rows: positions in states and traces count them.
    #[must_use]
    pub fn in_long_batches(self) -> Self {
        if !orders_rows_alone(&self.plan) {
            return self;
        }
        let config = self.context.session_config().clone();
        let rows = self.long_rows.min(LONG_BATCH_ROWS).max(config.batch_size());
        let context = with_config(&self.context, config.with_batch_size(rows));
        Self { context: Arc::new(context), ..self }
    }

    /// Appends those of `matrices` that save something after all other columns; None if none does.
    /// The length of batches stays, unless the widest matrix would take more than [`MATRIX_BYTES`].
    ///
    /// # Errors
    /// Where DataFusion cannot project so.
    pub fn with_matrices(
        &self,
        matrices: Vec<MatrixColumns>,
    ) -> Result<Option<(Self, MatrixSchema)>> {
        let Some(scan) = self.plan.as_any().downcast_ref::<SplitScanExec>() else {
            return Ok(None);
        };
        let Some((scan, matrices)) = scan.with_matrices(matrices)? else { return Ok(None) };
        let schema = scan.schema();
        let made = &schema.fields()[schema.fields().len() - matrices.len()..];
        let widest = made.iter().filter_map(|field| fixed_width(field.data_type())).max();
        let config = self.context.session_config().clone();
        let rows = (MATRIX_BYTES / widest.unwrap_or(1).max(1)).max(FEWEST_ROWS).ilog2();
        let rows = config.batch_size().min(1 << rows);
        let context = Arc::new(with_config(&self.context, config.with_batch_size(rows)));
        let plan: Arc<dyn ExecutionPlan> = Arc::new(scan);
        let plan = Self { plan, context, matrices: matrices.len(), ..self.clone() };
        Ok(Some((plan, MatrixSchema { matrices, schema })))
    }

    /// How many of the columns are matrices that are made of others: the last ones.
    pub fn matrices(&self) -> usize {
        self.matrices
    }

    /// Stored bytes of a split that a network brings, in the mean; 0 where none is.
    pub fn split_bytes(&self) -> u64 {
        self.split_bytes
    }

    /// Bytes that the session may hold; None where it has no limit.
    pub fn memory_limit(&self) -> Option<usize> {
        match self.context.runtime_env().memory_pool.memory_limit() {
            MemoryLimit::Finite(bytes) => Some(bytes),
            MemoryLimit::Infinite | MemoryLimit::Unknown => None,
        }
    }

    /// The driving scan of split `id`, and the file of that scan which it reads; None where nobody
    /// asks.
    pub fn file_of(&self, id: u32) -> Option<(u32, u32)> {
        let (splits, _) = self.skippable.as_ref()?;
        let at = position(self.ids.as_deref(), self.partitions.len(), id)?;
        splits.get(at).map(|split| (split.scan, split.file))
    }

    /// The output rows of split `id` whose number is in `wanted`, where the storage format can
    /// leave out the others; else all of its rows. With the number of rows left out before the
    /// first: `wanted.start` or 0. Decoded batches end at `cuts`, counted from the first wanted
    /// row, where that can be done.
    ///
    /// # Errors
    /// Where DataFusion cannot open it, or the file's footer cannot be read.
    pub async fn execute_rows(
        &self,
        id: u32,
        wanted: Range<u64>,
        cuts: Option<BatchEnds>,
    ) -> Result<(SendableRecordBatchStream, u64)> {
        let config = self.context.session_config().clone();
        let Some(access) = self.access_to(id, &wanted).await? else {
            let Some(cuts) = cuts.filter(|_| self.table_of(id).is_some()) else {
                return Ok((self.execute(id)?, 0));
            };
            // The split's own first row lies so many rows before the first wanted one.
            let before = wanted.start % cuts.every.max(1);
            let at = (cuts.at + cuts.every - before) % cuts.every.max(1);
            let config = config.with_extension(Arc::new(BatchEnds { at, ..cuts }));
            let context = Arc::new(with_config(&self.context, config));
            return Ok((self.plan.execute(self.partition(id)?, context)?, 0));
        };
        let context = with_config(&self.context, config.with_extension(Arc::new(ReadOnly(access))));
        Ok((self.plan.execute(self.partition(id)?, Arc::new(context))?, wanted.start))
    }

    /// The rows to read from the file of split `id`; None for the whole split.
    async fn access_to(&self, id: u32, wanted: &Range<u64>) -> Result<Option<ParquetAccessPlan>> {
        match self.table_of(id) {
            Some((table, split)) if *wanted != ALL_ROWS => {
                access_to_rows(table, split, wanted.clone()).await
            }
            _ => Ok(None),
        }
    }

    /// Split `id` and its table, if the rows of the file are the query's rows.
    fn table_of(&self, id: u32) -> Option<(&Arc<TableFiles>, &Split)> {
        let (splits, tables) = self.skippable.as_ref()?;
        let split = splits.get(position(self.ids.as_deref(), self.partitions.len(), id)?)?;
        Some((tables.get(split.scan as usize)?.as_ref()?, split))
    }

    /// The rows of split `id`, in file order.
    ///
    /// # Errors
    /// Where DataFusion cannot open it.
    pub fn execute(&self, id: u32) -> Result<SendableRecordBatchStream> {
        Ok(self.plan.execute(self.partition(id)?, Arc::clone(&self.context))?)
    }

    fn partition(&self, id: u32) -> Result<usize> {
        match position(self.ids.as_deref(), self.partitions.len(), id) {
            Some(at) => Ok(self.partitions[at] as usize),
            None => Err(Error::config(format!(
                "split {id} does not exist in this process, which has {} splits",
                self.partitions.len()
            ))),
        }
    }
}

fn with_config(context: &TaskContext, config: SessionConfig) -> TaskContext {
    TaskContext::new(
        context.task_id(),
        context.session_id(),
        config,
        // What is executed has its functions; they are looked up by name where a plan is made.
        HashMap::new(),
        HashMap::new(),
        HashMap::new(),
        context.runtime_env(),
    )
}

/// Where the split with this id lies among `count` splits, which are all of a plan, or have the ids
/// `ids`.
pub(super) fn position(ids: Option<&[u32]>, count: usize, id: u32) -> Option<usize> {
    match ids {
        Some(ids) => ids.binary_search(&id).ok(),
        None => Some(id as usize).filter(|at| *at < count),
    }
}
