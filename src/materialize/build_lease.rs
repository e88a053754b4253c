//! Who builds a stage below a URL, where no lock dies with its holder: an object that the builder
//! keeps writing.
//!
//! A lease that nobody has written for [`PATIENCE`] is taken over. Time is measured by whoever
//! waits, between two looks at the object, so that clocks need not agree. Two builders at once do
//! no harm: the first manifest counts.

use std::time::{Duration, Instant};

use object_store::path::Path;
use object_store::{Error as StoreError, ObjectStoreExt, PutMode, UpdateVersion};
use serde::{Deserialize, Serialize};

use super::condition::put_if;
use super::place::StagePlace;
use crate::{Error, Result};

/// Under the key of the stage.
pub(super) const LEASE: &str = "lease.json";

/// Seconds without a sign of life after which a builder counts as dead.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// Time between two signs of life.
pub(super) const BEAT: Duration = Duration::from_secs(2);

/// Who builds, and how far it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Note {
    /// Host and process.
    pub builder: String,
    /// The folder that it writes.
    pub build: String,
    pub rows: u64,
    pub bytes: u64,
    /// So that no two notes are the same.
    pub beat: u64,
}

impl Note {
    /// The state of a builder that has written nothing readable.
    pub(super) fn unknown() -> Self {
        let builder = "unknown".to_owned();
        Self { builder, build: String::new(), rows: 0, bytes: 0, beat: 0 }
    }
}

/// The lease of one stage.
pub(super) struct BuildLease {
    place: StagePlace,
    path: Path,
    /// The version that this process wrote last.
    version: UpdateVersion,
    /// Whether another process has taken it over.
    is_lost: bool,
}

/// The result of trying to take the lease.
pub(super) enum Claim {
    Mine(Box<BuildLease>),
    /// Another process has it; with its last content.
    Theirs(Note),
}

/// Who has the lease after a try to write it.
enum Written {
    Ours,
    Theirs(Note, UpdateVersion),
    Nobodys,
}

/// A lease of another process, and since when it has not changed.
#[derive(Default)]
pub(super) struct Watch {
    last: Option<(Note, Instant)>,
}

impl BuildLease {
    /// Takes the lease where nobody has it, or where its holder has been silent for [`PATIENCE`].
    pub(super) async fn claim(
        place: &StagePlace,
        key: &str,
        note: &Note,
        watch: &mut Watch,
    ) -> Result<Claim> {
        let mut lease = Self {
            place: place.clone(),
            path: place.path([key, LEASE]),
            version: UpdateVersion { e_tag: None, version: None },
            is_lost: false,
        };
        let (theirs, version) = match lease.put(note, PutMode::Create).await? {
            Written::Ours => return Ok(Claim::Mine(Box::new(lease))),
            Written::Theirs(theirs, version) => (theirs, version),
            // Given back meanwhile: the next try decides.
            Written::Nobodys => return Ok(Claim::Theirs(note.clone())),
        };
        match &watch.last {
            Some((known, since)) if *known == theirs => {
                let is_silent = since.elapsed() >= PATIENCE;
                if is_silent
                    && let Written::Ours = lease.put(note, PutMode::Update(version)).await?
                {
                    return Ok(Claim::Mine(Box::new(lease)));
                }
            }
            _ => watch.last = Some((theirs.clone(), Instant::now())),
        }
        Ok(Claim::Theirs(theirs))
    }

    /// Writes a sign of life; false where another process took the lease over.
    pub(super) async fn beat(&mut self, note: &Note) -> Result<bool> {
        let mode = PutMode::Update(self.version.clone());
        let is_ours = matches!(self.put(note, mode).await?, Written::Ours);
        self.is_lost |= !is_ours;
        Ok(is_ours)
    }

    /// Gives the lease back, unless it is another's by now. Where that fails, it ends by itself.
    pub(super) async fn give_back(self) {
        if !self.is_lost {
            let _ = self.place.store().delete(&self.path).await;
        }
    }

    /// Writes the note under a condition, and says who has the lease then.
    async fn put(&mut self, note: &Note, mode: PutMode) -> Result<Written> {
        let text = serde_json::to_vec(note)
            .map_err(|error| Error::storage("cannot write a lease").with_source(error))?;
        if let Some(put) = put_if(&self.place, &self.path, text, mode).await? {
            self.version = UpdateVersion { e_tag: put.e_tag, version: put.version };
            return Ok(Written::Ours);
        }
        Ok(match self.read().await? {
            // A write whose answer was lost is tried again, and then refused for what it has
            // written itself.
            Some((found, version)) if found.build == note.build => {
                self.version = version;
                Written::Ours
            }
            Some((theirs, version)) => Written::Theirs(theirs, version),
            None => Written::Nobodys,
        })
    }

    async fn read(&self) -> Result<Option<(Note, UpdateVersion)>> {
        let found = match self.place.store().get(&self.path).await {
            Ok(found) => found,
            Err(StoreError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let version =
            UpdateVersion { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
        let bytes = found.bytes().await?;
        // Whoever wrote something else gives no sign of life, and is waited for no longer than
        // others.
        let note = serde_json::from_slice(&bytes).unwrap_or_else(|_| Note::unknown());
        Ok(Some((note, version)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use object_store::memory::InMemory;

    use super::*;

    fn note(builder: &str, beat: u64) -> Note {
        let build = format!("build-{builder}");
        Note { builder: builder.to_owned(), build, rows: 0, bytes: 0, beat }
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        futures::executor::block_on(future)
    }

    async fn mine(place: &StagePlace, name: &str, watch: &mut Watch) -> Option<BuildLease> {
        match BuildLease::claim(place, "key", &note(name, 0), watch).await.unwrap() {
            Claim::Mine(lease) => Some(*lease),
            Claim::Theirs(_) => None,
        }
    }

    #[test]
    fn one_has_the_lease_until_it_is_given_back() {
        run(async {
            let place = StagePlace::in_store(Arc::new(InMemory::new()));
            let first = mine(&place, "first", &mut Watch::default()).await.unwrap();
            assert!(mine(&place, "second", &mut Watch::default()).await.is_none());
            first.give_back().await;
            assert!(mine(&place, "second", &mut Watch::default()).await.is_some());
        });
    }

    #[test]
    fn a_silent_holder_loses_it_and_one_that_gives_signs_of_life_does_not() {
        run(async {
            let place = StagePlace::in_store(Arc::new(InMemory::new()));
            let mut first = mine(&place, "first", &mut Watch::default()).await.unwrap();
            let mut watch = Watch::default();
            let long_ago = Instant::now().checked_sub(PATIENCE).unwrap();
            assert!(mine(&place, "second", &mut watch).await.is_none());
            watch.last = watch.last.map(|(note, _)| (note, long_ago));
            assert!(first.beat(&note("first", 1)).await.unwrap());
            assert!(mine(&place, "second", &mut watch).await.is_none());
            watch.last = watch.last.map(|(note, _)| (note, long_ago));
            let second = mine(&place, "second", &mut watch).await;
            assert!(second.is_some());
            // It learns so when it writes.
            assert!(!first.beat(&note("first", 2)).await.unwrap());
            // And gives nothing back that is the other's.
            first.give_back().await;
            assert!(mine(&place, "third", &mut Watch::default()).await.is_none());
        });
    }
}
