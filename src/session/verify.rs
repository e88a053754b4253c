//! Verifying splits: each is executed once, and where a file's content is to blame for an error,
//! the row groups, stripes or bytes that cannot be read are told from those that can.

use std::collections::BTreeMap;
use std::sync::Arc;

use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use futures::TryStreamExt;
use tokio::task::JoinSet;

use super::epoch_plan::EpochPlan;
use super::plan::{Plan, executable};
use crate::exec::{ScanSource, SplitScanExec};
use crate::fingerprint::Form;
use crate::formats::{ScanRequest, Split, SplitTarget, SplitUnit, blame_content, caught, discover};
use crate::panics::{caught_later, of_engine};
use crate::runtime::Runtimes;
use crate::{Error, Result};

/// Splits executed on one copy of the plan; see [`SplitCounter`](super::SplitCounter).
const SPLITS_PER_COPY: usize = 1024;

/// The state of one part of a split: a row group, a stripe, or all of a split that has no smaller
/// parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartVerdict {
    /// The name of the part, for example "row group 3".
    pub unit: String,
    /// Its rows before any filter, where metadata says them.
    pub stored_rows: Option<u64>,
    /// Its output rows, or why it cannot be read.
    pub rows: std::result::Result<u64, String>,
}

/// The state of one split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SplitVerdict {
    /// It can be read; its output rows.
    Good(u64),
    /// Some of its parts cannot be read; all parts in file order.
    Bad(Vec<PartVerdict>),
}

impl Plan {
    /// The verification of this plan's splits.
    pub fn verifier(self: &Arc<Self>) -> SplitVerifier {
        SplitVerifier { plan: Arc::clone(self) }
    }

    /// The row groups or stripes of a split, each a split of its own, in file order; the split
    /// itself where it has no smaller parts.
    ///
    /// # Errors
    /// `Config` for an id that does not exist; storage errors.
    pub async fn parts(&self, id: u32) -> Result<Vec<Split>> {
        let split = *self.split(id)?;
        let scan = &self.rewritten.scans[split.scan as usize];
        let ScanSource::Files { table, .. } = &scan.source else { return Ok(vec![split]) };
        if self.damage(id).is_some() {
            return Ok(vec![split]);
        }
        let request = ScanRequest { tolerant: true, ..scan.request.clone() };
        let finest = SplitTarget { bytes: u64::MAX, rows: Some(1) };
        let found = discover(table, &[split.file as usize], &request, finest, true).await?;
        let inside = |part: &Split| match (split.unit.units(), part.unit.units()) {
            (Some(whole), Some(part)) => whole.start <= part.start && part.end <= whole.end,
            // A whole file, of which only reading it tells the row groups.
            (None, Some(_)) => split.unit == SplitUnit::File,
            _ => false,
        };
        let parts: Vec<Split> = found.splits.into_iter().filter(inside).collect();
        match found.damaged.is_empty() && parts.len() > 1 {
            true => Ok(parts.into_iter().map(|part| Split { scan: split.scan, ..part }).collect()),
            false => Ok(vec![split]),
        }
    }

    /// This plan without the parts (places in [`parts`](Self::parts)) of its splits that are named,
    /// under a fingerprint of its own; the good parts of a split stand in its place.
    ///
    /// # Errors
    /// `Config` for a split or a part that does not exist; errors of reading a footer.
    pub async fn without(&self, bad: &BTreeMap<u32, Vec<u32>>) -> Result<Self> {
        let mut splits = Vec::with_capacity(self.splits().len());
        // By their names: a number alone means another part where a file is planned in another way.
        let mut left_out = Vec::new();
        for (id, split) in self.whole()?.iter().enumerate() {
            let Some(named) = bad.get(&(id as u32)) else {
                splits.push(*split);
                continue;
            };
            let parts = self.parts(id as u32).await?;
            if let Some(odd) = named.iter().find(|part| **part as usize >= parts.len()) {
                return Err(Error::config(format!(
                    "part {odd} of split {id} does not exist; it has {}",
                    parts.len()
                )));
            }
            let path = self.describe(split).path;
            for (number, part) in parts.into_iter().enumerate() {
                match named.contains(&(number as u32)) {
                    true => left_out.push((id, path.clone(), part.unit)),
                    false => splits.push(part),
                }
            }
        }
        if let Some((id, _)) = bad.iter().find(|(id, _)| **id as usize >= self.splits().len()) {
            return Err(self.no_split(*id));
        }
        let mut form = Form::new("left out");
        form.list("parts", left_out, |form, (id, path, unit)| {
            form.number("split", id as u64).text("path", &path);
            unit.write(form);
            Ok(())
        })?;
        self.over(splits, form.name()).await
    }

    fn no_split(&self, id: u32) -> Error {
        Error::config(format!("split {id} does not exist; the plan has {}", self.splits().len()))
    }
}

/// Executes each split of a plan once and judges it.
#[derive(Clone, Debug)]
pub struct SplitVerifier {
    plan: Arc<Plan>,
}

impl SplitVerifier {
    /// The verdicts on these splits, in the order of `ids`. Dropping the future cancels all running
    /// work.
    ///
    /// A split is bad where executing it fails, its file is still the pinned one, and reading its
    /// columns without the query fails, too: an expression that fails on good data is the query's
    /// error.
    ///
    /// # Arguments
    /// `threads`: how many splits decode at the same time; twice as many are open. `progress`:
    /// called in this task with each split's verdict; an error from it ends the verification.
    ///
    /// # Errors
    /// Errors that are not about a file's content: storage errors, files that changed, errors of
    /// the query.
    pub async fn verify(
        &self,
        ids: &[u32],
        threads: usize,
        mut progress: impl FnMut(&SplitVerdict) -> Result<()>,
    ) -> Result<Vec<SplitVerdict>> {
        let runtimes = Runtimes::current()?;
        let mut verdicts = vec![SplitVerdict::Good(0); ids.len()];
        let mut waiting = ids.iter().copied().enumerate();
        let mut epoch = self.plan.epoch()?;
        let mut tasks = JoinSet::new();
        loop {
            while tasks.len() < threads.max(1) * 2
                && let Some((place, id)) = waiting.next()
            {
                if place > 0 && place % SPLITS_PER_COPY == 0 {
                    epoch = self.plan.epoch()?;
                }
                let (verifier, epoch) = (self.clone(), epoch.clone());
                let task =
                    async move { verifier.judge(&epoch, id).await.map(|verdict| (place, verdict)) };
                tasks.spawn_on(task, runtimes.cpu());
            }
            match tasks.join_next().await {
                Some(Ok(found)) => {
                    let (place, verdict) = found?;
                    progress(&verdict)?;
                    verdicts[place] = verdict;
                }
                Some(Err(error)) => {
                    return Err(Error::data(format!(
                        "a verifying task ended abnormally ({error}); please report it with the query and the \
                         files' writer"
                    )));
                }
                None => return Ok(verdicts),
            }
        }
    }

    async fn judge(&self, epoch: &EpochPlan, id: u32) -> Result<SplitVerdict> {
        let split = *self.plan.split(id)?;
        let whole = match self.plan.damage(id) {
            Some(why) => Err(why.to_owned()),
            None => self.judge_part(epoch, id, &split).await?,
        };
        let error = match whole {
            Ok(rows) => return Ok(SplitVerdict::Good(rows)),
            Err(error) => error,
        };
        let parts = self.plan.parts(id).await?;
        let whole = PartVerdict {
            unit: split.unit.to_string(),
            stored_rows: split.rows,
            rows: Err(error.clone()),
        };
        if parts.len() < 2 {
            return Ok(SplitVerdict::Bad(vec![whole]));
        }
        let parts: Arc<[Split]> = Arc::from(parts);
        let (physical, partitions) = executable(&self.plan.rewritten, &parts)?;
        let epoch = EpochPlan::new(&physical, &partitions, self.context())?;
        let mut verdicts = Vec::with_capacity(parts.len());
        for (number, part) in parts.iter().enumerate() {
            let rows = self.judge_part(&epoch, number as u32, part).await?;
            let (unit, stored_rows) = (part.unit.to_string(), part.rows);
            verdicts.push(PartVerdict { unit, stored_rows, rows });
        }
        if verdicts.iter().all(|part| part.rows.is_ok()) {
            return Err(Error::data(format!(
                "{error}; but each part of it can be read by itself, so that nothing can be left out for it"
            )));
        }
        Ok(SplitVerdict::Bad(verdicts))
    }

    /// Output rows of split `id` of `epoch`, or why its file's content cannot be read.
    async fn judge_part(
        &self,
        epoch: &EpochPlan,
        id: u32,
        split: &Split,
    ) -> Result<std::result::Result<u64, String>> {
        let scan = &self.plan.rewritten.scans[split.scan as usize];
        let ScanSource::Files { table, .. } = &scan.source else {
            return Ok(Ok(answered(rows_of(epoch.execute(id))).await?));
        };
        let index = split.file as usize;
        let location = &table.files[index].meta.location;
        let error = match answered(rows_of(epoch.execute(id))).await {
            Ok(rows) => match self.contradiction(split, rows)? {
                None => return Ok(Ok(rows)),
                Some(error) => error.with_context("file", table.display_path(index)),
            },
            Err(error) => error,
        };
        blame_content(&table.store, location, error).await?;
        // Once more and without the query: is it the file?
        let plain = SplitScanExec::plain(&scan.source, &scan.request.columns, Arc::new([*split]))?;
        let Some(plain) = plain else { return Err(Error::data("a file has no plain scan")) };
        let read = plain.execute(0, self.context()).map_err(Error::from);
        let error = match caught(rows_of(read)).await {
            Ok(rows) if split.rows.is_none_or(|stored| stored == rows) => {
                // It is not: either reading failed by chance, or the query fails on good data.
                let rows = answered(rows_of(epoch.execute(id))).await?;
                return match self.contradiction(split, rows)? {
                    None => Ok(Ok(rows)),
                    Some(error) => Err(error.with_context("file", table.display_path(index))),
                };
            }
            Ok(rows) => other_rows(split, rows).with_context("file", table.display_path(index)),
            Err(error) => error,
        };
        Ok(Err(blame_content(&table.store, location, error).await?.to_string()))
    }

    /// Where every row of the split is put out, metadata says how many there are.
    fn contradiction(&self, split: &Split, rows: u64) -> Result<Option<Error>> {
        let fates = self.plan.rewritten.fates()?;
        let keeps_all = fates.get(split.scan as usize).is_some_and(|fate| fate.keeps_all());
        Ok((keeps_all && split.rows.is_some_and(|stored| stored != rows))
            .then(|| other_rows(split, rows)))
    }

    fn context(&self) -> Arc<TaskContext> {
        self.plan.query().session().context().task_ctx()
    }
}

fn other_rows(split: &Split, rows: u64) -> Error {
    Error::data(format!(
        "{} has {rows} rows, where the file's metadata says {}",
        split.unit,
        split.rows.unwrap_or_default()
    ))
}

/// Runs work above the scans; a panic there is the engine's.
async fn answered<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    caught_later(work, of_engine).await
}

async fn rows_of<E: Into<Error>>(
    opened: std::result::Result<datafusion::execution::SendableRecordBatchStream, E>,
) -> Result<u64> {
    let mut stream = opened.map_err(Into::into)?;
    let mut rows = 0;
    while let Some(batch) = stream.try_next().await? {
        rows += batch.num_rows() as u64;
    }
    Ok(rows)
}
