//! One stage for many processes: the first builds it, the others wait, and take over where it dies.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use datafusion::common::runtime::SpawnedTask;
use datafusion::execution::SendableRecordBatchStream;
use object_store::ObjectStoreExt;
use object_store::path::Path;

use super::build_lease::{BEAT, BuildLease, Claim, LEASE, Note, Watch};
use super::in_use::InUse;
use super::list::sweep;
use super::lock::Lock;
use super::manifest::{Manifest, StageFile};
use super::place::StagePlace;
use super::progress::StageProgress;
use super::room::no_room_for_stage;
use super::trim::Trim;
use super::write::write_rows;
use crate::runtime::Runtimes;
use crate::storage::{read_own, write_own};
use crate::{Error, ErrorKind, Result};

/// The file in which a folder's builder reports its progress to waiting processes.
const PROGRESS: &str = "progress.json";

/// How often a waiting process looks again.
const LOOK: Duration = Duration::from_millis(100);
const LOOK_REMOTE: Duration = Duration::from_secs(1);

/// How the rows of a stage are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// In the fastest way.
    First,
    /// In the way that takes the least memory, since the first took too much.
    Thrifty,
}

/// The result of an attempt.
pub enum Made {
    /// Rows, which are to be written.
    Rows(SendableRecordBatchStream),
    /// Files that are in the folder of the build, and a digest of their content.
    Files(Vec<StageFile>, String),
}

/// A stage that is there.
#[derive(Debug)]
pub struct OpenStage {
    /// The stage's manifest.
    pub manifest: Manifest,
    /// Whether this process built it now.
    pub built: bool,
    /// Keeps it from being swept; None where this user may not write the place.
    pub in_use: Option<Arc<InUse>>,
}

/// A stage that is wanted.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    /// Where it is kept.
    pub place: &'a StagePlace,
    /// The key of the staged rows.
    pub key: &'a str,
    /// Why they are staged.
    pub why: &'a str,
    /// How long to wait for another process that builds it.
    pub timeout: Duration,
    /// Whether its rows are computed under a memory limit.
    pub limited: bool,
    /// Who is told how far it is.
    pub progress: &'a Arc<StageProgress>,
}

/// The stage that is wanted: opened where it is there, else built from the rows that `make`
/// computes, or of the files that it has written into the folder of the build, which it is told.
///
/// One of several processes builds. In a folder, a lock that dies with its holder decides which;
/// below a URL, a lease that ends when its holder is silent. Dropping the future cancels waiting
/// and building; remains of a killed process are swept later, and never seen.
///
/// # Errors
/// Errors of computing the rows; `Storage` where the place cannot be written, or another process
/// builds for longer than the timeout.
pub async fn ensure<F>(wanted: Wanted<'_>, make: impl Fn(Attempt, Path) -> F) -> Result<OpenStage>
where
    F: Future<Output = Result<Made>>,
{
    let Wanted { place, key, timeout, progress, .. } = wanted;
    let runtimes = Runtimes::current()?;
    progress.begin();
    place.key_folder(key)?;
    let lock = match place.folder() {
        Some(folder) => Lock::shared(&folder.join(format!("{key}.use")), timeout).await?,
        None => None,
    };
    let in_use = |lock: Option<Lock>| match place.folder() {
        Some(_) => Ok(lock.map(InUse::Lock).map(Arc::new)),
        None => InUse::note(place, key).map(Arc::new).map(Some),
    };
    let begun = Instant::now();
    let build = unique_name();
    let mut watch = Watch::default();
    loop {
        if let Some(manifest) = Manifest::read_whole(place, key).await? {
            // Where only its owner may write, it is read all the same.
            let _ = note_use(place, key).await;
            progress.wrote(manifest.rows, manifest.bytes);
            return Ok(OpenStage { manifest, built: false, in_use: in_use(lock)? });
        }
        let note = Note { builder: own_name(), build: build.clone(), rows: 0, bytes: 0, beat: 0 };
        match Turn::take(place, key, &note, &mut watch).await? {
            Turn::Mine(holder) => {
                // Another process may have finished between the look and the turn.
                match Manifest::make_way(place, key).await {
                    Ok(true) => {}
                    other => {
                        holder.end().await;
                        other?;
                        continue;
                    }
                }
                let alive = Alive::start(&runtimes, place, key, note, holder, progress);
                if let Some(manifest) = build_now(wanted, &build, alive, &make).await? {
                    progress.wrote(manifest.rows, manifest.bytes);
                    // The manifest was just written: where there is no room for a note, its own
                    // time says as much.
                    let _ = note_use(place, key).await;
                    // What cannot be swept, as the stages of other users, stays; this one is there.
                    let _ = sweep(place, key).await;
                    return Ok(OpenStage { manifest, built: true, in_use: in_use(lock)? });
                }
            }
            Turn::Theirs(note) => {
                if begun.elapsed() >= timeout {
                    return Err(Error::storage(format!(
                        "another process ({}) has been building the stage {} for more than {} seconds, and has written {} \
                         rows; raise stage_timeout, or end that process: then this one takes over",
                        note.builder,
                        place.describe(&place.path([key])),
                        timeout.as_secs(),
                        note.rows
                    )));
                }
                progress.waits(note.builder, note.rows, note.bytes);
                runtimes.sleep(if place.folder().is_some() { LOOK } else { LOOK_REMOTE }).await;
            }
        }
    }
}

/// Takes a stage away that was found damaged when it was opened, so that it is built again.
///
/// # Errors
/// `Storage` where the store refuses.
pub async fn withdraw(place: &StagePlace, key: &str) -> Result<()> {
    Manifest::withdraw(place, key).await.map(drop)
}

/// Says that the stage is used now.
pub(super) async fn note_use(place: &StagePlace, key: &str) -> Result<()> {
    place.store().put(&place.path([key, "used"]), Vec::new().into()).await?;
    Ok(())
}

/// Computes and writes the rows, and makes them visible; None where another process was faster.
async fn build_now<F>(
    wanted: Wanted<'_>,
    build: &str,
    alive: Alive,
    make: &impl Fn(Attempt, Path) -> F,
) -> Result<Option<Manifest>>
where
    F: Future<Output = Result<Made>>,
{
    let Wanted { place, key, why, progress, .. } = wanted;
    let began = Instant::now();
    let write = async |attempt| {
        let _trim = wanted.limited.then(Trim::start).transpose()?;
        let stream = match make(attempt, place.path([key, build])).await? {
            Made::Rows(stream) => stream,
            Made::Files(files, digest) => return Ok((files, digest)),
        };
        let (place, key, build) = (place.clone(), key.to_owned(), build.to_owned());
        let progress = Arc::clone(progress);
        // By a task of its own: an operator may compute for half a minute before it looks up, and
        // whoever waits here must be able to give up meanwhile. Dropping it ends the task.
        let task =
            SpawnedTask::spawn(
                async move { write_rows(&place, &key, &build, stream, &progress).await },
            );
        let stopped = |error| Error::data("the process is ending").with_source(error);
        task.join_unwind().await.map_err(stopped)?
    };
    let written = match write(Attempt::First).await {
        Err(error) if error.kind() == ErrorKind::Memory => {
            remove_build(place, key, build).await;
            write(Attempt::Thrifty).await
        }
        other => other,
    };
    let published = match written {
        Ok((files, digest)) => {
            let mut manifest = Manifest::new(key, build, why, files, digest);
            manifest.seconds = began.elapsed().as_secs_f64();
            let bytes = manifest.bytes;
            let published = manifest.publish(place).await.map(|first| first.then_some(manifest));
            published.map_err(|error| no_room_for_stage(error, place, bytes))
        }
        Err(error) => Err(error),
    };
    // The answer to a request may be lost that was carried out: the manifest says whose files are
    // read.
    let published = match published {
        Ok(Some(manifest)) => Ok(Some(manifest)),
        other => match Manifest::read(place, key).await {
            Ok(Some(manifest)) if manifest.build == build => Ok(Some(manifest)),
            _ => other,
        },
    };
    if !matches!(published, Ok(Some(_))) {
        remove_build(place, key, build).await;
    }
    alive.end().await;
    published
}

/// Removes the files of a build that nobody will see. Files that cannot be removed are swept later.
async fn remove_build(place: &StagePlace, key: &str, build: &str) {
    use futures::TryStreamExt;
    let files = place.store().list(Some(&place.path([key, build])));
    let files: Vec<_> = files.try_collect().await.unwrap_or_default();
    for file in files {
        let _ = place.store().delete(&file.location).await;
    }
    if let Some(folder) = place.folder() {
        let _ = std::fs::remove_dir(folder.join(key).join(build));
    }
}

/// Whose turn it is to build.
enum Turn {
    Mine(Holder),
    Theirs(Note),
}

/// The lock or lease that gives a process its turn.
enum Holder {
    Lock(Lock),
    BuildLease(Box<BuildLease>),
}

impl Turn {
    async fn take(place: &StagePlace, key: &str, note: &Note, watch: &mut Watch) -> Result<Self> {
        let Some(folder) = place.folder() else {
            return Ok(match BuildLease::claim(place, key, note, watch).await? {
                Claim::Mine(lease) => Self::Mine(Holder::BuildLease(lease)),
                Claim::Theirs(note) => Self::Theirs(note),
            });
        };
        match Lock::try_acquire(&folder.join(format!("{key}.lock")))? {
            Some(lock) => Ok(Self::Mine(Holder::Lock(lock))),
            None => Ok(Self::Theirs(Note::of_lock(folder, key))),
        }
    }
}

impl Holder {
    async fn end(self) {
        match self {
            Self::Lock(lock) => drop(lock),
            Self::BuildLease(lease) => lease.give_back().await,
        }
    }
}

impl Note {
    /// Reads the progress that a builder writes to its folder or URL. Returns None if it has
    /// written none yet, or nobody builds.
    pub(super) async fn of_builder(place: &StagePlace, key: &str) -> Option<Self> {
        let name = if place.folder().is_some() { PROGRESS } else { LEASE };
        let found = place.store().get(&place.path([key, name])).await.ok()?;
        serde_json::from_slice(&found.bytes().await.ok()?).ok()
    }

    /// Reads the progress of the process that holds a lock; unknown if it has written none yet.
    fn of_lock(folder: &std::path::Path, key: &str) -> Self {
        let text = read_own(&folder.join(key).join(PROGRESS)).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_else(|_| Self::unknown())
    }
}

/// A task that gives signs of life while the rows are computed.
struct Alive {
    task: SpawnedTask<Holder>,
    stop: tokio::sync::oneshot::Sender<()>,
}

impl Alive {
    fn start(
        runtimes: &Runtimes,
        place: &StagePlace,
        key: &str,
        mut note: Note,
        mut holder: Holder,
        progress: &Arc<StageProgress>,
    ) -> Self {
        let (stop, mut stopped) = tokio::sync::oneshot::channel();
        let progress = Arc::clone(progress);
        let path = place.folder().map(|folder| folder.join(key).join(PROGRESS));
        let beats = async move {
            loop {
                note.beat += 1;
                let state = progress.state();
                (note.rows, note.bytes) = (state.rows, state.bytes);
                match &mut holder {
                    // For whoever waits to show; the lock says the rest.
                    Holder::Lock(_) => {
                        if let (Some(path), Ok(text)) = (&path, serde_json::to_vec(&note)) {
                            let folder = path.parent().map_or(Ok(()), std::fs::create_dir_all);
                            let _ = folder.and_then(|()| write_own(path, &text));
                        }
                    }
                    // Taken over: the first manifest counts, and that may still be this one's.
                    Holder::BuildLease(lease) => {
                        let _ = lease.beat(&note).await;
                    }
                }
                tokio::select! {
                    biased;
                    _ = &mut stopped => break,
                    () = tokio::time::sleep(BEAT) => {}
                }
            }
            if let Some(path) = &path {
                let _ = std::fs::remove_file(path);
            }
            holder
        };
        let _io = runtimes.io().enter();
        Self { task: SpawnedTask::spawn(beats), stop }
    }

    async fn end(self) {
        let _ = self.stop.send(());
        if let Ok(holder) = self.task.join().await {
            holder.end().await;
        }
    }
}

/// Host and process.
fn own_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("process {} on {}", std::process::id(), host.trim())
}

/// A name that no other build has: process, time and a counter.
fn unique_name() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let now = chrono::Utc::now().timestamp_nanos_opt().unwrap_or_default();
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("build-{now:x}-{:x}-{count:x}", std::process::id())
}
