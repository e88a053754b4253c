//! Exact numbers of output rows, split by split: from metadata, from statistics, or by executing
//! each split without its columns.

use std::sync::Arc;

use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use futures::TryStreamExt;
use tokio::task::JoinSet;

use super::epoch_plan::EpochPlan;
use super::plan::{Plan, executable};
use crate::exec::{RowFate, ScanSource, rewrite};
use crate::formats::{Format, Split, SplitUnit, UnitKind, matched_groups};
use crate::runtime::Runtimes;
use crate::{Error, ErrorKind, Result};

/// Splits executed on one copy of the plan. Operators keep some 20 KiB of metrics per executed
/// split until their copy is dropped.
const SPLITS_PER_COPY: usize = 1024;

/// Output rows of one split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitCount {
    /// Output rows, exact.
    pub rows: u64,
    /// Whether the split was executed; otherwise metadata or statistics said the number.
    pub read: bool,
}

impl Plan {
    /// Output rows by split id, where metadata says them all: nothing above the driving scans drops
    /// or repeats a row, no scan has a predicate, and every split knows its rows. Reads nothing.
    ///
    /// # Errors
    /// An internal error where the plan is inconsistent.
    pub fn known_counts(&self) -> Result<Option<Vec<u64>>> {
        let fates = self.rewritten.fates()?;
        let known = |split: &Split| {
            let fate = fates.get(split.scan as usize)?;
            if fate.keeps_all() { split.rows } else { None }
        };
        Ok(self.whole()?.iter().map(known).collect())
    }

    /// Plans the counting of splits. The counter keeps the build sides of joins that it collected,
    /// so one counter should count all.
    ///
    /// # Errors
    /// Errors of planning.
    pub async fn counter(self: &Arc<Self>) -> Result<SplitCounter> {
        self.whole()?;
        let fates = self.rewritten.fates()?;
        let (physical, partitions) = match self.without_columns().await? {
            Some(plan) => plan,
            None => executable(&self.rewritten, self.shared_splits())?,
        };
        let context = self.query().session().context().task_ctx();
        Ok(SplitCounter { plan: Arc::clone(self), fates, physical, partitions, context })
    }

    /// The plan of the same rows without columns over this plan's splits; None where its driving
    /// scans are not provably this plan's own.
    async fn without_columns(&self) -> Result<Option<(Arc<dyn ExecutionPlan>, Arc<[u32]>)>> {
        match rewrite(self.query().physical_plan_of_rows().await?) {
            Ok(rows) if self.rewritten.drives_like(&rows) => {
                executable(&rows, self.shared_splits()).map(Some)
            }
            Ok(_) => Ok(None),
            Err(error) if error.kind() == ErrorKind::NotShardable => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Counts output rows of a plan's splits.
#[derive(Debug)]
pub struct SplitCounter {
    plan: Arc<Plan>,
    /// By driving scan.
    fates: Vec<RowFate>,
    physical: Arc<dyn ExecutionPlan>,
    partitions: Arc<[u32]>,
    context: Arc<TaskContext>,
}

impl SplitCounter {
    /// The output rows of these splits, in the order of `ids`. A split is not read if the
    /// statistics of its row groups prove that the query keeps every row. From the others, only
    /// columns for joins, filters and unnesting are read. Dropping the future cancels all work.
    ///
    /// # Arguments
    /// `threads`: how many splits decode at the same time; twice as many are open. `progress`:
    /// called in this task with each split's position in `ids` and its count; an error from it ends
    /// the counting.
    ///
    /// # Errors
    /// `Config` for an id that does not exist; errors of reading.
    pub async fn count(
        &self,
        ids: &[u32],
        threads: usize,
        mut progress: impl FnMut(usize, SplitCount) -> Result<()>,
    ) -> Result<Vec<SplitCount>> {
        let mut counts = vec![SplitCount { rows: 0, read: true }; ids.len()];
        let mut to_read = Vec::new();
        let mut matched = Matched::default();
        for (place, id) in ids.iter().enumerate() {
            match self.without_reading(*id, &mut matched).await? {
                Some(rows) => {
                    counts[place] = SplitCount { rows, read: false };
                    progress(place, counts[place])?;
                }
                None => to_read.push((place, *id)),
            }
        }
        let runtimes = Runtimes::current()?;
        let mut to_read = to_read.into_iter().enumerate();
        let mut epoch = self.epoch()?;
        let mut tasks = JoinSet::new();
        loop {
            while tasks.len() < threads.max(1) * 2
                && let Some((number, (place, id))) = to_read.next()
            {
                if number > 0 && number % SPLITS_PER_COPY == 0 {
                    epoch = self.epoch()?;
                }
                let epoch = epoch.clone();
                let task = async move { execute(&epoch, id).await.map(|rows| (place, rows)) };
                tasks.spawn_on(task, runtimes.cpu());
            }
            match tasks.join_next().await {
                Some(Ok(found)) => {
                    let (place, rows) = found?;
                    counts[place].rows = rows;
                    progress(place, counts[place])?;
                }
                Some(Err(error)) => {
                    return Err(Error::data(format!(
                        "a counting task ended abnormally ({error}); please report it with the query \
                         and the files' writer"
                    )));
                }
                None => return Ok(counts),
            }
        }
    }

    fn epoch(&self) -> Result<EpochPlan> {
        EpochPlan::new(&self.physical, &self.partitions, Arc::clone(&self.context))
    }

    /// The rows of a split where metadata or statistics prove them.
    async fn without_reading(&self, id: u32, matched: &mut Matched) -> Result<Option<u64>> {
        let split = self.plan.split(id)?;
        let scan = split.scan as usize;
        let Some(RowFate::Filtered(predicates)) = self.fates.get(scan) else { return Ok(None) };
        if predicates.is_empty() {
            return Ok(split.rows);
        }
        let (
            ScanSource::Files { table, .. },
            SplitUnit::Units { kind: UnitKind::RowGroups, first, count, .. },
        ) = (&self.plan.rewritten.scans[scan].source, split.unit)
        else {
            return Ok(None);
        };
        if table.format != Format::Parquet {
            return Ok(None);
        }
        if matched.file != Some((split.scan, split.file)) {
            matched.groups = matched_groups(table, split.file as usize, predicates).await?;
            matched.file = Some((split.scan, split.file));
        }
        let (first, count) = (first as usize, count as usize);
        let groups = matched.groups.get(first..first + count);
        let all = groups.is_some_and(|groups| groups.iter().all(|matched| *matched));
        Ok(if all { split.rows } else { None })
    }
}

/// The proof for the file judged last: splits of one file mostly come one after the other.
#[derive(Default)]
struct Matched {
    file: Option<(u32, u32)>,
    groups: Vec<bool>,
}

async fn execute(epoch: &EpochPlan, id: u32) -> Result<u64> {
    let mut stream = epoch.execute(id)?;
    let mut rows = 0;
    while let Some(batch) = stream.try_next().await? {
        rows += batch.num_rows() as u64;
    }
    Ok(rows)
}
