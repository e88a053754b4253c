//! Which stages there are, and which go.

use std::collections::BTreeMap;
use std::fs::{self, DirEntry};
use std::io;
use std::path::Path;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures::TryStreamExt;
use object_store::ObjectMeta;

use super::build_lease::Note;
use super::in_use::SPARED;
use super::manifest::Manifest;
use super::names::{is_build, is_key};
use super::place::StagePlace;
use super::remove::remove;
use crate::{Error, Result};

/// Stages that nobody has opened for so long are removed whenever another one is built.
const UNUSED: Duration = Duration::from_secs(7 * 24 * 3600);

/// Files without a manifest, which killed builders left beside their note, are removed when they are
/// this old.
const ORPHANED: Duration = Duration::from_secs(24 * 3600);

/// One stage of a place.
#[derive(Clone, Debug)]
pub struct StageInfo {
    /// Its key.
    pub key: String,
    /// Its rows; None where it is not complete.
    pub rows: Option<u64>,
    /// Bytes of everything under its key; for an unfinished build, the bytes written so far.
    pub bytes: u64,
    /// Why its rows were staged.
    pub why: String,
    /// When it was complete.
    pub created: Option<DateTime<Utc>>,
    /// When it was opened last.
    pub used: DateTime<Utc>,
}

/// The stages and bytes that were removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Stages.
    pub stages: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Stages that would have gone, but are in use by a process of this machine.
    pub in_use: usize,
}

/// The complete stage of a key, where there is one; looking does not count as using it.
///
/// # Errors
/// `Storage` where the store does not answer, or the stage is damaged.
pub async fn find_stage(place: &StagePlace, key: &str) -> Result<Option<Manifest>> {
    Manifest::read_whole(place, key).await
}

/// The stages of a place, the one that was used last first: keys that have our manifest, or the note
/// of a builder. Whatever else lies there is none.
///
/// # Errors
/// `Storage` where the place cannot be listed.
pub async fn list_stages(place: &StagePlace) -> Result<Vec<StageInfo>> {
    let mut stages = Vec::new();
    for (key, files) in files_by_key(place).await? {
        let manifest = Manifest::read(place, &key).await.ok().flatten();
        let used = files.iter().map(|(_, written)| *written).max().unwrap_or_default();
        let written = match &manifest {
            Some(_) => 0,
            // A file that is being written is not listed before it is complete.
            None => match Note::of_builder(place, &key).await {
                Some(note) => note.bytes,
                None => continue,
            },
        };
        stages.push(StageInfo {
            key,
            rows: manifest.as_ref().map(|found| found.rows),
            bytes: files.iter().map(|(bytes, _)| bytes).sum::<u64>().max(written),
            why: manifest.as_ref().map(|found| found.why.clone()).unwrap_or_default(),
            created: manifest.map(|found| found.created),
            used,
        });
    }
    stages.sort_by(|a, b| b.used.cmp(&a.used).then_with(|| a.key.cmp(&b.key)));
    Ok(stages)
}

/// Removes the stages of a place that nobody has used for `unused`, and of the others, beginning
/// with the one used longest ago, as many as it takes that no more than `keep` bytes are left.
///
/// # Errors
/// `Storage` where the place cannot be listed, or a file cannot be removed.
pub async fn clear_stages(
    place: &StagePlace,
    unused: Duration,
    keep: Option<u64>,
) -> Result<Swept> {
    Rules { unused, keep, spared: Duration::ZERO, own: None }.apply(place, Utc::now()).await
}

/// Removes stages that nobody has used for long, remains of killed processes, and stages above the
/// limit of the place. The stage that the caller has just built stays.
pub(super) async fn sweep(place: &StagePlace, own: &str) -> Result<()> {
    // The times of a store are by its own clock, and so must the present be: that of the last
    // write.
    let written = files_by_key(place).await?.remove(own).unwrap_or_default();
    let Some(now) = written.iter().map(|(_, written)| *written).max() else { return Ok(()) };
    // In a folder locks say what is in use.
    let spared = if place.folder().is_some() { Duration::ZERO } else { SPARED };
    let rules = Rules { unused: UNUSED, keep: place.max_bytes(), spared, own: Some(own) };
    rules.apply(place, now).await?;
    for stage in list_stages(place).await? {
        let idle = (now - stage.used).to_std().unwrap_or_default();
        if stage.rows.is_none() && idle > ORPHANED {
            remove(place, &stage.key).await?;
        }
    }
    Ok(())
}

/// Which stages go.
struct Rules<'a> {
    /// Stages that nobody has used for so long.
    unused: Duration,
    /// Bytes that may stay: of the other stages, the least recently used go until no more are left.
    keep: Option<u64>,
    /// But none that was used so recently.
    spared: Duration,
    /// Nor this one.
    own: Option<&'a str>,
}

impl Rules<'_> {
    async fn apply(&self, place: &StagePlace, now: DateTime<Utc>) -> Result<Swept> {
        let stages = list_stages(place).await?;
        let mut swept = Swept::default();
        let mut left: u64 = stages.iter().map(|stage| stage.bytes).sum();
        for stage in stages.iter().rev() {
            let idle = (now - stage.used).to_std().unwrap_or_default();
            let is_too_much = self.keep.is_some_and(|keep| left > keep);
            let is_own = self.own == Some(&*stage.key);
            if is_own || idle < self.spared || (idle < self.unused && !is_too_much) {
                continue;
            }
            match remove(place, &stage.key).await? {
                true => {
                    swept.stages += 1;
                    swept.bytes += stage.bytes;
                    left -= stage.bytes;
                }
                false => swept.in_use += 1,
            }
        }
        Ok(swept)
    }
}

/// A file of a stage: its bytes, and when it was last written.
type Kept = (u64, DateTime<Utc>);

/// The files of each key of a place.
async fn files_by_key(place: &StagePlace) -> Result<BTreeMap<String, Vec<Kept>>> {
    if let Some(folder) = place.folder() {
        let folder = folder.clone();
        return files_in_folders(&folder).map_err(|error| {
            Error::storage(format!("cannot list the stages in {}: {error}", folder.display()))
        });
    }
    let root = place.path([]);
    let files: Vec<ObjectMeta> = place.store().list(Some(&root)).try_collect().await?;
    let mut keys: BTreeMap<String, Vec<Kept>> = BTreeMap::new();
    for file in files {
        let names: Vec<String> = match file.location.prefix_match(&root) {
            Some(names) => names.map(|name| name.as_ref().to_owned()).collect(),
            None => continue,
        };
        if let [key, _, ..] = names.as_slice()
            && is_key(key)
        {
            keys.entry(key.clone()).or_default().push((file.size, file.last_modified));
        }
    }
    Ok(keys)
}

/// The files of each key of a folder. Links are not followed: what lies behind them is no stage.
fn files_in_folders(room: &Path) -> io::Result<BTreeMap<String, Vec<Kept>>> {
    let mut keys = BTreeMap::new();
    for entry in entries(room)? {
        let entry = entry?;
        let name = entry.file_name();
        // Locks lie beside the folders of the stages.
        if let Some(key) = name.to_str().filter(|name| is_key(name))
            && entry.file_type().is_ok_and(|kind| kind.is_dir())
        {
            let mut files = Vec::new();
            collect(&entry.path(), &mut files)?;
            if !files.is_empty() {
                keys.insert(key.to_owned(), files);
            }
        }
    }
    Ok(keys)
}

fn collect(folder: &Path, files: &mut Vec<Kept>) -> io::Result<()> {
    for entry in entries(folder)? {
        let entry = entry?;
        // Of a link, what it is itself. A file may go at any time.
        let Ok(found) = entry.metadata() else { continue };
        if found.is_dir() && entry.file_name().to_str().is_some_and(is_build) {
            collect(&entry.path(), files)?;
        } else if found.is_file() {
            files.push((found.len(), found.modified()?.into()));
        }
    }
    Ok(())
}

/// The entries of a folder; none where it is not there.
fn entries(folder: &Path) -> io::Result<impl Iterator<Item = io::Result<DirEntry>>> {
    match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None.into_iter().flatten()),
        entries => Ok(Some(entries?).into_iter().flatten()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use object_store::ObjectStoreExt;
    use object_store::memory::InMemory;

    use super::*;
    use crate::materialize::manifest::StageFile;

    const BYTES: u64 = 1000;

    /// Four stages, used one after the other.
    async fn filled() -> (StagePlace, Vec<String>) {
        let place = StagePlace::in_store(Arc::new(InMemory::new()));
        let keys: Vec<String> = (0..4).map(|number| format!("{number:064}")).collect();
        for key in &keys {
            let files =
                vec![StageFile { name: "part-00000.arrow".to_owned(), bytes: BYTES, rows: 1 }];
            let manifest = Manifest::new(key, "build-1-2-3", "a test", files, String::new());
            let content = vec![0; BYTES as usize];
            let path = manifest.path_of(&place, &manifest.files[0]);
            place.store().put(&path, content.into()).await.unwrap();
            assert!(manifest.publish(&place).await.unwrap());
        }
        (place, keys)
    }

    async fn left(place: &StagePlace, keys: &[String]) -> Vec<usize> {
        let found = list_stages(place).await.unwrap();
        let number = |stage: &StageInfo| keys.iter().position(|key| *key == stage.key).unwrap();
        let mut numbers: Vec<usize> = found.iter().map(number).collect();
        numbers.sort_unstable();
        numbers
    }

    fn rules(keep: u64) -> Rules<'static> {
        Rules { unused: UNUSED, keep: Some(keep), spared: SPARED, own: None }
    }

    #[test]
    fn below_a_url_size_removes_what_was_used_longest_ago_and_nothing_that_is_in_use() {
        futures::executor::block_on(async {
            let (place, keys) = filled().await;
            let soon = Utc::now() + SPARED - Duration::from_secs(60);
            // All of them may still be read.
            assert_eq!(rules(0).apply(&place, soon).await.unwrap(), Swept::default());
            assert_eq!(left(&place, &keys).await, [0, 1, 2, 3]);
            // The oldest is opened again; a stage is a little more than its rows.
            super::super::ensure::note_use(&place, &keys[0]).await.unwrap();
            let later = Utc::now() + SPARED + Duration::from_secs(60);
            let swept = rules(3 * BYTES).apply(&place, later).await.unwrap();
            assert_eq!(swept.stages, 2);
            assert_eq!(left(&place, &keys).await, [0, 3]);
            assert_eq!(rules(3 * BYTES).apply(&place, later).await.unwrap(), Swept::default());
        });
    }

    #[test]
    fn what_is_being_built_counts_by_what_is_written_and_stays() {
        futures::executor::block_on(async {
            let (place, _) = filled().await;
            let key = format!("{:064}", 9);
            let build = "build".to_owned();
            let note = Note { builder: "test".to_owned(), build, rows: 5, bytes: 77_777, beat: 1 };
            let text = serde_json::to_vec(&note).unwrap();
            place.store().put(&place.path([&*key, "lease.json"]), text.into()).await.unwrap();
            let stages = list_stages(&place).await.unwrap();
            let building = stages.iter().find(|stage| stage.key == key).unwrap();
            assert_eq!((building.rows, building.bytes), (None, 77_777));
            assert_eq!(rules(0).apply(&place, Utc::now()).await.unwrap(), Swept::default());
        });
    }
}
