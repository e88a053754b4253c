//! What keeps a stage that somebody reads from being removed.

use std::time::Duration;

use datafusion::common::runtime::SpawnedTask;

use super::ensure::{note_use, sleep};
use super::lock::Lock;
use super::manifest::Manifest;
use super::place::StagePlace;
use crate::Result;
use crate::runtime::Runtimes;

/// Time between two notes below a URL that a stage is in use.
const NOTE: Duration = Duration::from_secs(5 * 60);

/// How long after the last of them a stage below a URL counts as in use: two may be lost.
pub(super) const SPARED: Duration = Duration::from_secs(15 * 60);

/// A stage that this process reads: in a folder a lock, which dies with its holder; below a URL, where nothing does, a note
/// of the time, written anew as long as this lives.
#[derive(Debug)]
pub enum InUse {
    /// In a folder.
    Lock(Lock),
    /// Below a URL.
    Notes(Notes),
}

/// A task that writes notes; it ends when this is dropped.
#[derive(Debug)]
pub struct Notes {
    task: Option<SpawnedTask<()>>,
    /// The process that started it: in a forked one there is no such task.
    owner: u32,
}

impl InUse {
    /// Begins to write notes.
    ///
    /// # Errors
    /// `Config` where the operating system refuses threads.
    pub(super) fn note(place: &StagePlace, key: &str) -> Result<Self> {
        let (place, key) = (place.clone(), key.to_owned());
        let notes = async move {
            // A note that cannot be written is made up for by the next one.
            while sleep(NOTE).await.is_ok() {
                // Somebody removed the stage all the same: a note would be all that there is of it.
                if let Ok(Some(_)) = Manifest::read(&place, &key).await {
                    let _ = note_use(&place, &key).await;
                }
            }
        };
        let runtimes = Runtimes::current()?;
        let _io = runtimes.io().enter();
        let task = Some(SpawnedTask::spawn(notes));
        Ok(Self::Notes(Notes { task, owner: std::process::id() }))
    }
}

impl Drop for Notes {
    fn drop(&mut self) {
        if self.owner != std::process::id() {
            // The threads of its runtime did not come along: nobody could be told to stop.
            std::mem::forget(self.task.take());
        }
    }
}
