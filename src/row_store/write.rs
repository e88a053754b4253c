//! Writing a stage: the splits of a plan, several at once, into files and a manifest.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use futures::TryStreamExt;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::forget::is_ours;
use super::manifest::{BatchEntry, Manifest};
use super::output::{Output, Pending, Ready, Written};
use super::read::Stage;
use crate::materialize::StoredSchema;
use crate::runtime::Runtimes;
use crate::session::{EpochPlan, Plan};
use crate::sharding::weight;
use crate::storage::remove_own;
use crate::{Error, Result};

/// Bytes that the record batches in the making may take together; joining and encoding one take as
/// much again each.
const PENDING_BYTES: usize = 64 << 20;
/// Bounds of a record batch in bytes.
const BATCH_BYTES: (usize, usize) = (1 << 20, 16 << 20);
/// Groups of splits per thread: the more, the more even; the fewer, the fewer short record batches.
const GROUPS_PER_THREAD: u64 = 4;
/// Groups of fewer stored bytes are not worth a record batch of their own.
const MIN_GROUP_BYTES: u64 = 4 << 20;

/// How far writing is; shared with whoever wants to show it.
#[derive(Debug, Default)]
pub struct Progress {
    pub(super) splits_done: AtomicUsize,
    pub(super) splits: AtomicUsize,
    pub(super) rows: AtomicU64,
    pub(super) bytes: AtomicU64,
}

/// The counts of [`Progress`] at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgressReport {
    /// Splits written to their end.
    pub splits_done: usize,
    /// Splits to write; 0 as long as this process does not write.
    pub splits: usize,
    /// Rows written.
    pub rows: u64,
    /// Bytes written.
    pub bytes: u64,
}

impl Progress {
    /// The counts now.
    pub fn report(&self) -> ProgressReport {
        ProgressReport {
            splits_done: self.splits_done.load(Ordering::Relaxed),
            splits: self.splits.load(Ordering::Relaxed),
            rows: self.rows.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }
}

/// State that all writing tasks share.
struct Job {
    plan: EpochPlan,
    ids: Vec<u32>,
    /// Runs of `ids` that one task writes, one after the other.
    groups: Vec<Range<usize>>,
    next_group: AtomicUsize,
    next_file: AtomicUsize,
    layout: StoredSchema,
    batch_bytes: usize,
    /// Where files are written.
    dir: PathBuf,
    /// The final name of that directory.
    target: PathBuf,
    progress: Arc<Progress>,
}

impl Stage {
    /// Executes the splits `ids` of a plan, `threads` of them at once, and writes their rows to
    /// `dir` in the order of `ids`. Dropping the future cancels it; nothing is left then.
    ///
    /// Besides the memory for executing `threads` splits, about 64 MiB of rows are held, and as
    /// much again for each of the two copies (joined, encoded) on their way to the disk.
    ///
    /// # Errors
    /// `Storage` where the disk is full or `dir` exists; those of the query; `UnsupportedType` for
    /// a dictionary that cannot be encoded again; `Config` for no threads.
    pub async fn write(
        plan: &Plan,
        ids: &[u32],
        dir: &Path,
        threads: usize,
        progress: &Arc<Progress>,
    ) -> Result<Self> {
        if threads == 0 {
            return Err(Error::config("threads 0 must be at least 1"));
        }
        let layout = StoredSchema::try_new(plan.schema())?;
        let partial = Partial::create(dir)?;
        progress.splits.store(ids.len(), Ordering::Relaxed);
        let job = Arc::new(Job {
            plan: plan.epoch()?,
            ids: ids.to_vec(),
            groups: groups(plan, ids, threads)?,
            next_group: AtomicUsize::new(0),
            next_file: AtomicUsize::new(0),
            layout,
            batch_bytes: (PENDING_BYTES / threads).clamp(BATCH_BYTES.0, BATCH_BYTES.1),
            dir: partial.dir.clone(),
            target: dir.to_owned(),
            progress: Arc::clone(progress),
        });
        let mut written = run(&job, threads).await?;
        written.sort_unstable_by_key(|file| file.index);
        // Groups were taken by whoever was free; their numbers say the order of the rows.
        let mut batches: Vec<(u32, BatchEntry)> = Vec::new();
        for file in &written {
            for (block, &(group, rows)) in file.batches.iter().enumerate() {
                let entry = BatchEntry { file: file.index as u32, block: block as u32, rows };
                batches.push((group, entry));
            }
        }
        batches.sort_by_key(|&(group, _)| group);
        let batches = batches.into_iter().map(|(_, entry)| entry).collect();
        let files = written.into_iter().map(|file| file.entry).collect();
        let fingerprint = plan.fingerprint();
        Manifest::write(&partial.dir, &plan.schema(), fingerprint, ids.len(), files, batches)?;
        partial.complete(dir)?;
        Self::open(dir, fingerprint)
    }
}

/// Consecutive splits of about the same weight, so that small splits share record batches.
fn groups(plan: &Plan, ids: &[u32], threads: usize) -> Result<Vec<Range<usize>>> {
    let weight_of = |&id: &u32| plan.split(id).map(weight);
    let weights: Vec<u64> = ids.iter().map(weight_of).collect::<Result<_>>()?;
    let total = weights.iter().fold(0_u64, |sum, &weight| sum.saturating_add(weight));
    let wanted = (total / (threads as u64 * GROUPS_PER_THREAD)).max(MIN_GROUP_BYTES);
    let (mut groups, mut start, mut sum) = (Vec::new(), 0, 0_u64);
    for (index, weight) in weights.into_iter().enumerate() {
        sum = sum.saturating_add(weight);
        if sum >= wanted {
            groups.push(start..index + 1);
            (start, sum) = (index + 1, 0);
        }
    }
    if start < ids.len() {
        groups.push(start..ids.len());
    }
    Ok(groups)
}

/// Writes all groups; the first error cancels the other tasks.
async fn run(job: &Arc<Job>, threads: usize) -> Result<Vec<Written>> {
    let runtimes = Runtimes::current()?;
    let mut tasks = JoinSet::new();
    for _ in 0..threads.min(job.groups.len()) {
        tasks.spawn_on(write_groups(Arc::clone(job), runtimes.cpu().clone()), runtimes.cpu());
    }
    let mut written = Vec::new();
    while let Some(joined) = tasks.join_next().await {
        written.extend(joined.map_err(panicked)??);
    }
    Ok(written)
}

/// One task: takes the next group until none is left.
async fn write_groups(job: Arc<Job>, runtime: Handle) -> Result<Option<Written>> {
    let mut output = None;
    loop {
        let group = job.next_group.fetch_add(1, Ordering::Relaxed);
        let Some(range) = job.groups.get(group) else { break };
        let mut pending = Pending::new(job.batch_bytes);
        for &id in &job.ids[range.clone()] {
            let mut rows = job.plan.execute(id)?;
            while let Some(batch) = rows.try_next().await? {
                for ready in pending.push(&job.layout, &batch)? {
                    output = Some(append(&job, &runtime, output, group, ready).await?);
                }
            }
            job.progress.splits_done.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(rest) = pending.finish() {
            output = Some(append(&job, &runtime, output, group, rest).await?);
        }
    }
    let Some((index, output)) = output else { return Ok(None) };
    let finished = runtime.spawn_blocking(move || output.finish(index));
    finished.await.map_err(panicked)?.map(Some)
}

/// Writes one record batch where it may wait for the disk; the file is made for the first one.
async fn append(
    job: &Arc<Job>,
    runtime: &Handle,
    output: Option<(usize, Output)>,
    group: usize,
    ready: Ready,
) -> Result<(usize, Output)> {
    let job = Arc::clone(job);
    let write = move || {
        let (index, mut output) = match output {
            Some(output) => output,
            None => {
                let index = job.next_file.fetch_add(1, Ordering::Relaxed);
                let (schema, progress) = (job.layout.stored(), Arc::clone(&job.progress));
                (index, Output::create(&job.dir, &job.target, index, schema, progress)?)
            }
        };
        output.write(group as u32, &ready)?;
        Ok((index, output))
    };
    runtime.spawn_blocking(write).await.map_err(panicked)?
}

/// A task that ended without a result.
pub(super) fn panicked(error: tokio::task::JoinError) -> Error {
    Error::data(format!(
        "a task of the stage ended abnormally ({error}); please report it with the message above"
    ))
}

/// A directory that is removed, unless it is completed.
struct Partial {
    dir: PathBuf,
    completed: bool,
}

/// The suffix of an incomplete stage's name.
pub(super) const PARTIAL: &str = ".partial";

/// A name beside `dir` that no other process or thread uses.
pub(super) fn partial_name(dir: &Path) -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mut name = dir.as_os_str().to_owned();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    name.push(format!(".{}-{number}{PARTIAL}", std::process::id()));
    PathBuf::from(name)
}

impl Partial {
    fn create(target: &Path) -> Result<Self> {
        let dir = partial_name(target);
        fs::create_dir_all(&dir).map_err(|error| {
            Error::storage(format!("cannot make the directory {}: {error}", dir.display()))
        })?;
        Ok(Self { dir, completed: false })
    }

    fn complete(mut self, target: &Path) -> Result<()> {
        fs::rename(&self.dir, target).map_err(|error| {
            Error::storage(format!(
                "cannot move the finished stage to {}: {error}; a stage that is there already must be \
                 removed first",
                target.display()
            ))
        })?;
        self.completed = true;
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.completed {
            // Best effort: what stays behind is removed before the next stage is written here.
            let _ = remove_own(&self.dir, is_ours);
        }
    }
}
