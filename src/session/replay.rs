//! From output rows of a split back to the physical rows of its file.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{Array, AsArray};
use arrow::datatypes::UInt64Type;
use arrow::record_batch::RecordBatch;
use datafusion::execution::TaskContext;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::ExecutionPlan;
use futures::TryStreamExt;

use super::epoch_plan::EpochPlan;
use super::plan::Plan;
use crate::exec::{ScanSource, SplitScanExec, numbered};
use crate::formats::{Format, Split, SplitUnit, read_footer, units};
use crate::{Error, ErrorKind, Result};

/// From where the physical rows of a split are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbering {
    /// From the start of its file.
    File,
    /// From the start of its table in memory.
    Table,
    /// From its own start: how many rows of its file lie before it is not known.
    Split,
}

impl Plan {
    /// Plans the tracing of output rows.
    ///
    /// # Errors
    /// An internal error where the plan has an operator that rows cannot be followed through.
    pub fn replay(&self) -> Result<Replay<'_>> {
        let scanned = Arc::new(AtomicU64::new(0));
        let plan = numbered(self.physical(), &scanned)?;
        let context = self.query().session().context().task_ctx();
        let epoch = EpochPlan::new(&plan, self.partitions(), Arc::clone(&context))?;
        Ok(Replay { plan: self, epoch, scanned, context })
    }

    /// From where the physical rows of split `id` are counted.
    ///
    /// # Errors
    /// `Config` where there is no such split.
    pub fn numbering(&self, id: u32) -> Result<Numbering> {
        let split = self.split(id)?;
        Ok(match split.unit {
            SplitUnit::Rows(_) => Numbering::Table,
            SplitUnit::Units { .. } | SplitUnit::File => Numbering::File,
            SplitUnit::Bytes { start, .. } => {
                let before = |other: &Split| {
                    (other.scan, other.file) == (split.scan, split.file)
                        && matches!(other.unit, SplitUnit::Bytes { start: at, .. } if at < start)
                };
                if self.splits().iter().any(before) { Numbering::Split } else { Numbering::File }
            }
        })
    }

    /// The physical rows of each row group (or stripe, record batch or block) of the file of split
    /// `id`; none where it has neither. From the footer, which was read when the file was planned.
    ///
    /// # Errors
    /// `Config` where there is no such split; `Data` where the footer is damaged.
    pub async fn row_groups(&self, id: u32) -> Result<Vec<Range<u64>>> {
        let split = self.split(id)?;
        let Some(ScanSource::Files { table, .. }) =
            self.rewritten.scans.get(split.scan as usize).map(|scan| &scan.source)
        else {
            return Ok(Vec::new());
        };
        let index = split.file as usize;
        let meta = &table.files[index].meta;
        let located = |error: Error| error.with_context("file", table.display_path(index));
        if table.format != Format::Parquet {
            let found = units(table, index).await.map_err(located)?;
            return Ok(found.iter().map(|at| at.first_row..at.first_row + at.rows).collect());
        }
        let footer =
            read_footer(&table.store, meta, &table.footers, false).await.map_err(located)?;
        let mut groups = Vec::with_capacity(footer.num_row_groups());
        let mut start = 0;
        for group in footer.row_groups() {
            let end = start + u64::try_from(group.num_rows()).unwrap_or(0);
            groups.push(start..end);
            start = end;
        }
        Ok(groups)
    }
}

/// Executes splits again to find where their rows come from.
#[derive(Debug)]
pub struct Replay<'a> {
    plan: &'a Plan,
    epoch: EpochPlan,
    /// Rows that scans put out since it was last asked.
    scanned: Arc<AtomicU64>,
    context: Arc<TaskContext>,
}

impl Replay<'_> {
    /// The physical row behind each output row of split `id`, by the number of the output row;
    /// counted as [`Plan::numbering`] says. Reads the split, and where a predicate was pushed into
    /// its scan, the predicate's columns once more without it.
    ///
    /// # Errors
    /// `Config` if there is no such split; errors of reading.
    pub async fn rows(&mut self, id: u32) -> Result<Vec<u64>> {
        let first = self.plan.split(id)?.first_row;
        self.scanned.store(0, Ordering::Relaxed);
        let mut stream = self.epoch.execute(id)?;
        let mut rows = Vec::new();
        while let Some(batch) = stream.try_next().await? {
            let numbers = batch.column(batch.num_columns() - 1);
            let Some(numbers) = numbers.as_primitive_opt::<UInt64Type>() else {
                return Err(Error::data("a replayed plan lost its numbers; please report it"));
            };
            rows.extend_from_slice(numbers.values());
        }
        if let Some(kept) = self.kept(id).await? {
            let found = self.scanned.load(Ordering::Relaxed);
            // The scan never drops a row of which the predicate is true, so as many rows are the
            // same rows.
            if found != kept.len() as u64 {
                return Err(Error::data(format!(
                    "split {id} has {found} rows after the filter in its scan, and {} when it is filtered after \
                     reading; the data changed under the job, or please report it with the query",
                    kept.len()
                )));
            }
            for row in &mut rows {
                *row = kept[*row as usize];
            }
        }
        match self.live(id).await? {
            Some(live) => rows.iter_mut().for_each(|row| *row = live[*row as usize]),
            None => rows.iter_mut().for_each(|row| *row += first),
        }
        Ok(rows)
    }

    /// The physical rows of a split of an Iceberg or Delta table that are not deleted; None where none
    /// is.
    async fn live(&self, id: u32) -> Result<Option<Vec<u64>>> {
        let split = self.plan.split(id)?;
        let Some(ScanSource::Files { table, .. }) =
            self.plan.rewritten.scans.get(split.scan as usize).map(|scan| &scan.source)
        else {
            return Ok(None);
        };
        let Some(lake) = &table.metadata else { return Ok(None) };
        let index = split.file as usize;
        if lake.listed(index).has_equality_deletes {
            return Err(Error::new(
                ErrorKind::NotShardable,
                format!(
                    "the rows of {} cannot be traced to their numbers in the file: equality deletes apply to it; \
                     compact the table (rewrite_data_files)",
                    table.display_path(index)
                ),
            ));
        }
        let deleted = lake.deleted_positions(&table.store, index).await?;
        Ok(deleted.zip(split.row_range()).map(|(deleted, rows)| {
            (rows.start..rows.end).filter(|row| !deleted.contains(*row)).collect()
        }))
    }

    /// The rows of a split that the predicate in its scan keeps; None where there is none.
    async fn kept(&self, id: u32) -> Result<Option<Vec<u64>>> {
        let split = self.plan.split(id)?;
        let Some(scan) = self.plan.rewritten.scans.get(split.scan as usize) else {
            return Ok(None);
        };
        // One split is one partition; its schema follows from what the predicate needs.
        let schema = Arc::new(arrow::datatypes::Schema::empty());
        let leaf = SplitScanExec::new(scan.source.clone(), Arc::from([*split]), schema);
        let Some((leaf, predicate)) = leaf.before_predicate()? else { return Ok(None) };
        let mut stream = leaf.execute(0, Arc::clone(&self.context))?;
        let (mut kept, mut first) = (Vec::new(), 0);
        while let Some(batch) = stream.try_next().await? {
            keep(&predicate, &batch, first, &mut kept)?;
            first += batch.num_rows() as u64;
        }
        Ok(Some(kept))
    }
}

/// The rows of `batch`, numbered from `first`, for which `predicate` is true.
fn keep(
    predicate: &Arc<dyn PhysicalExpr>,
    batch: &RecordBatch,
    first: u64,
    kept: &mut Vec<u64>,
) -> Result<()> {
    let judged = predicate.evaluate(batch)?.into_array(batch.num_rows())?;
    let Some(judged) = judged.as_boolean_opt() else {
        return Err(Error::data("a predicate is not boolean; please report it with the query"));
    };
    let is_kept = |at: &usize| judged.is_valid(*at) && judged.value(*at);
    kept.extend((0..judged.len()).filter(is_kept).map(|at| first + at as u64));
    Ok(())
}
