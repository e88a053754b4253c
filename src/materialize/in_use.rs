//! Keeps a stage from being removed while somebody reads it.

use std::time::Duration;

use datafusion::common::runtime::SpawnedTask;

use super::ensure::note_use;
use super::lock::Lock;
use super::manifest::Manifest;
use super::place::StagePlace;
use crate::Result;
use crate::runtime::Runtimes;

/// Time between two notes below a URL that a stage is in use.
const NOTE: Duration = Duration::from_secs(5 * 60);

/// How long after the last of them a stage below a URL counts as in use: two may be lost.
pub(super) const SPARED: Duration = Duration::from_secs(15 * 60);

/// A stage that this process reads: in a folder a lock, which dies with its holder; below a URL,
/// where nothing does, a note of the time, written anew as long as this lives.
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
        Self::note_every(NOTE, place, key)
    }

    fn note_every(pause: Duration, place: &StagePlace, key: &str) -> Result<Self> {
        let (place, key) = (place.clone(), key.to_owned());
        let notes = async move {
            loop {
                tokio::time::sleep(pause).await;
                // A note that cannot be written is made up for by the next one.
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use futures::executor::block_on;
    use object_store::memory::InMemory;
    use object_store::{Error as StoreError, ObjectStoreExt};

    use super::*;
    use crate::materialize::manifest::StageFile;

    const PAUSE: Duration = Duration::from_millis(5);

    fn has_note(place: &StagePlace) -> bool {
        match block_on(place.store().head(&place.path(["key", "used"]))) {
            Ok(_) => true,
            Err(StoreError::NotFound { .. }) => false,
            Err(error) => panic!("{error}"),
        }
    }

    fn take_note_away(place: &StagePlace) {
        block_on(place.store().delete(&place.path(["key", "used"]))).unwrap();
    }

    fn wait_for_note(place: &StagePlace) {
        let until = Instant::now() + Duration::from_secs(30);
        while !has_note(place) {
            assert!(Instant::now() < until, "no note was written");
            std::thread::sleep(PAUSE);
        }
    }

    #[test]
    fn notes_are_written_as_long_as_the_stage_is_there_and_read() {
        let place = StagePlace::in_store(Arc::new(InMemory::new()));
        let files = vec![StageFile { name: "part".to_owned(), bytes: 0, rows: 0 }];
        let manifest = Manifest::new("key", "build", "a test", files, String::new());
        let reader = InUse::note_every(PAUSE, &place, "key").unwrap();
        std::thread::sleep(10 * PAUSE);
        assert!(!has_note(&place), "of a stage that is not there");
        assert!(block_on(manifest.publish(&place)).unwrap());
        for _ in 0..3 {
            wait_for_note(&place);
            take_note_away(&place);
        }
        wait_for_note(&place);
        drop(reader);
        // One may be on its way.
        std::thread::sleep(10 * PAUSE);
        take_note_away(&place);
        std::thread::sleep(10 * PAUSE);
        assert!(!has_note(&place), "of a stage that nobody reads");
    }
}
