//! The files of a log: which of them say the state of a table at a version.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{Error as StoreError, ObjectMeta, ObjectStore, ObjectStoreExt};
use serde::Deserialize;

use super::place::TablePlace;
use crate::bounds::{DELTA_COMMIT, check_json};
use crate::{Error, ErrorKind, Result};

/// The directory of a table's log.
pub const LOG: &str = "_delta_log";

/// The directory below it that holds parts of checkpoints.
const SIDECARS: &str = "_sidecars";

/// The file of a log that names its newest checkpoint; it may be out of date.
const LAST_CHECKPOINT: &str = "_last_checkpoint";

#[derive(Deserialize)]
struct LastCheckpoint {
    version: i64,
}

/// The names in a log that belong to versions.
#[derive(Debug, Default)]
pub struct LogFiles {
    /// The table's place.
    place: TablePlace,
    /// The directory.
    directory: Path,
    /// Commits by version.
    commits: BTreeMap<i64, ObjectMeta>,
    /// Complete checkpoints by version: the files of one of them.
    checkpoints: BTreeMap<i64, Vec<ObjectMeta>>,
}

/// The files that say a table's state.
#[derive(Debug)]
pub struct Segment {
    /// The files of the checkpoint that it starts from; none if it starts from the first commit.
    pub checkpoint: Vec<ObjectMeta>,
    /// The commits after it, oldest first.
    pub commits: Vec<(i64, ObjectMeta)>,
}

/// What a name in a log says.
#[derive(Debug, PartialEq, Eq)]
enum Name {
    Commit(i64),
    /// A version, and which part it is of how many.
    Checkpoint(i64, u32, u32),
    /// A version; its name holds a UUID.
    Named(i64),
}

impl Name {
    fn parse(name: &str) -> Option<Self> {
        let (digits, rest) = name.split_once('.')?;
        if digits.len() != 20 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let version = digits.parse().ok()?;
        let parts: Vec<&str> = rest.split('.').collect();
        match parts.as_slice() {
            ["json"] => Some(Self::Commit(version)),
            ["checkpoint", "parquet"] => Some(Self::Checkpoint(version, 1, 1)),
            ["checkpoint", part, of, "parquet"] if part.len() == 10 && of.len() == 10 => {
                Some(Self::Checkpoint(version, part.parse().ok()?, of.parse().ok()?))
            }
            ["checkpoint", id, "parquet" | "json"] if id.len() == 36 => Some(Self::Named(version)),
            _ => None,
        }
    }
}

impl LogFiles {
    /// Lists the log of a table.
    ///
    /// # Errors
    /// `TableNotFound` where there is none; storage errors as they are.
    pub async fn list(store: &Arc<dyn ObjectStore>, place: &TablePlace) -> Result<Self> {
        let directory = place.directory.clone().join(LOG);
        let text = place.text();
        let listed = match store.list_with_delimiter(Some(&directory)).await {
            Ok(listed) => listed.objects,
            Err(StoreError::NotFound { .. }) => Vec::new(),
            Err(error) => return Err(Error::from(error).with_context("log of", text)),
        };
        let files = Self { place: place.clone(), ..Self::of(directory, listed) };
        if files.commits.is_empty() && files.checkpoints.is_empty() {
            return Err(Error::new(
                ErrorKind::TableNotFound,
                format!(
                    "there is no Delta table at {text}: {text}/{LOG} has neither a commit nor a checkpoint; name \
                     the table's directory"
                ),
            ));
        }
        Ok(files)
    }

    /// Lists what says the state at a version, or at the newest one: from the checkpoint on that
    /// the log names as its last, and the whole log where that is not enough. A long log has
    /// thousands of names before it.
    ///
    /// # Errors
    /// As [`list`](Self::list).
    pub async fn list_for(
        store: &Arc<dyn ObjectStore>,
        place: &TablePlace,
        version: Option<i64>,
    ) -> Result<Self> {
        match Self::since_last_checkpoint(store, place).await? {
            Some(files) if files.holds(version) => Ok(files),
            _ => Self::list(store, place).await,
        }
    }

    async fn since_last_checkpoint(
        store: &Arc<dyn ObjectStore>,
        place: &TablePlace,
    ) -> Result<Option<Self>> {
        let directory = place.directory.clone().join(LOG);
        let located = |error| Error::from(error).with_context("log of", place.text());
        // It is a hint: what keeps it from being read, the whole list tells, if it matters.
        let Ok(found) = store.get(&directory.clone().join(LAST_CHECKPOINT)).await else {
            return Ok(None);
        };
        if DELTA_COMMIT.check(found.meta.size, "this file of a Delta log has").is_err() {
            return Ok(None);
        }
        let Ok(bytes) = found.bytes().await else { return Ok(None) };
        if check_json(&bytes).is_err() {
            return Ok(None);
        }
        let Ok(last) = serde_json::from_slice::<LastCheckpoint>(&bytes) else { return Ok(None) };
        // Before the names of this version, and behind those of the version before.
        let offset = directory.clone().join(format!("{:020}", last.version));
        let listed: Vec<ObjectMeta> = store
            .list_with_offset(Some(&directory), &offset)
            .try_collect()
            .await
            .map_err(located)?;
        // Parts of checkpoints lie in a directory below.
        let of_log = listed.into_iter().filter(|meta| {
            meta.location.prefix_matches(&directory)
                && meta.location.parts().count() == directory.parts().count() + 1
        });
        let files = Self::of(directory.clone(), of_log.collect());
        Ok(Some(Self { place: place.clone(), ..files }))
    }

    /// Returns true if a part of a log is enough for the state at a version, or at the newest one.
    fn holds(&self, version: Option<i64>) -> bool {
        let Some(first) = self.checkpoints.keys().next() else { return false };
        version.is_none_or(|version| (*first..=self.latest()).contains(&version))
    }

    fn of(directory: Path, listed: Vec<ObjectMeta>) -> Self {
        let mut files = Self { directory, ..Self::default() };
        let mut parts: HashMap<(i64, u32), BTreeMap<u32, ObjectMeta>> = HashMap::new();
        let mut named: BTreeMap<i64, ObjectMeta> = BTreeMap::new();
        for meta in listed {
            match meta.location.filename().and_then(Name::parse) {
                Some(Name::Commit(version)) => {
                    files.commits.insert(version, meta);
                }
                Some(Name::Checkpoint(version, part, of)) => {
                    parts.entry((version, of)).or_default().insert(part, meta);
                }
                // Of several, each says all.
                Some(Name::Named(version)) => {
                    named.insert(version, meta);
                }
                None => {}
            }
        }
        for ((version, of), parts) in parts {
            let is_complete = parts.len() == of as usize && parts.keys().copied().eq(1..=of);
            let is_simpler =
                files.checkpoints.get(&version).is_none_or(|known| known.len() > parts.len());
            if is_complete && is_simpler {
                files.checkpoints.insert(version, parts.into_values().collect());
            }
        }
        for (version, meta) in named {
            files.checkpoints.entry(version).or_insert_with(|| vec![meta]);
        }
        files
    }

    /// Returns the newest version.
    pub fn latest(&self) -> i64 {
        let newest = |last: Option<&i64>| last.copied().unwrap_or(-1);
        newest(self.commits.keys().next_back()).max(newest(self.checkpoints.keys().next_back()))
    }

    /// Returns the oldest version that can still be read: of the first checkpoint, or the first
    /// one.
    pub fn earliest(&self) -> i64 {
        match self.commits.contains_key(&0) {
            true => 0,
            false => self.checkpoints.keys().next().copied().unwrap_or(0),
        }
    }

    /// The commits, by version.
    pub fn commits(&self) -> &BTreeMap<i64, ObjectMeta> {
        &self.commits
    }

    /// A file of the log as a user would write it.
    pub fn describe(&self, key: &Path) -> String {
        self.place.describe(key)
    }

    /// The place of a part of a checkpoint.
    pub fn sidecar(&self, name: &str) -> Path {
        self.directory.clone().join(SIDECARS).join(name)
    }

    /// The files that say the state at a version.
    ///
    /// # Errors
    /// `Config` for a version that there is not, or not any more; `Data` where a commit is missing.
    pub fn segment(&self, version: i64, table: &str) -> Result<Segment> {
        let (earliest, latest) = (self.earliest(), self.latest());
        if version > latest || version < earliest {
            let gone = match version >= 0 && version < earliest {
                true => "; the log of older ones was cleaned up",
                false => "",
            };
            return Err(Error::config(format!(
                "table {table} has no version {version}; it has versions {earliest} to {latest}{gone}"
            )));
        }
        let checkpoint = self.checkpoints.range(..=version).next_back();
        let first = checkpoint.map_or(0, |(at, _)| at + 1);
        let mut commits = Vec::new();
        for number in first..=version {
            let Some(meta) = self.commits.get(&number) else {
                return Err(Error::data(format!(
                    "the log of table {table} is not complete: commit {number} is missing, and without it version \
                     {version} cannot be read"
                )));
            };
            commits.push((number, meta.clone()));
        }
        let checkpoint = checkpoint.map(|(_, files)| files.clone()).unwrap_or_default();
        Ok(Segment { checkpoint, commits })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(name: &str) -> ObjectMeta {
        ObjectMeta {
            location: Path::from(format!("t/_delta_log/{name}")),
            last_modified: Default::default(),
            size: 1,
            e_tag: None,
            version: None,
        }
    }

    fn log(names: &[&str]) -> LogFiles {
        LogFiles::of(Path::from("t/_delta_log"), names.iter().map(|name| meta(name)).collect())
    }

    #[test]
    fn a_segment_starts_at_the_newest_complete_checkpoint() {
        let two = |version: i64, part: u32| {
            format!("{version:020}.checkpoint.{part:010}.{:010}.parquet", 2)
        };
        let commit = |version: i64| format!("{version:020}.json");
        let id = "00000000-0000-0000-0000-000000000000";
        let mut names: Vec<String> = (0..9).map(commit).collect();
        names.extend([two(3, 1), two(3, 2), two(6, 1)]);
        names.push(format!("{:020}.checkpoint.{id}.json", 4));
        names.extend(["_last_checkpoint".to_owned(), format!("{:020}.crc", 8)]);
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let files = log(&names);
        let shape = |version| {
            let segment = files.segment(version, "t").unwrap();
            (segment.checkpoint.len(), segment.commits.iter().map(|c| c.0).collect::<Vec<_>>())
        };
        assert_eq!(shape(2), (0, vec![0, 1, 2]));
        assert_eq!(shape(3), (2, vec![]));
        assert_eq!(shape(8), (1, vec![5, 6, 7, 8]));
        assert!(files.segment(9, "t").unwrap_err().to_string().contains("versions 0 to 8"));
    }

    #[test]
    fn a_gap_and_a_cleaned_log_are_told() {
        let commit = |version: i64| format!("{version:020}.json");
        let (checkpoint, five, seven) =
            (format!("{:020}.checkpoint.parquet", 4), commit(5), commit(7));
        let files = log(&[&checkpoint, &five, &seven]);
        assert!(files.segment(7, "t").unwrap_err().to_string().contains("commit 6 is missing"));
        assert!(files.segment(3, "t").unwrap_err().to_string().contains("cleaned up"));
        assert_eq!(files.segment(4, "t").unwrap().commits.len(), 0);
    }

    /// A log of nine commits and a checkpoint, with these words in its file that names the last one.
    async fn stored(checkpoint: i64, hint: Option<&str>) -> (Arc<dyn ObjectStore>, TablePlace) {
        let store: Arc<dyn ObjectStore> = Arc::new(object_store::memory::InMemory::new());
        let place = TablePlace { directory: Path::from("t"), ..TablePlace::default() };
        let mut names: Vec<String> = (0..9).map(|version| format!("{version:020}.json")).collect();
        names.push(format!("{checkpoint:020}.checkpoint.parquet"));
        // A part of another checkpoint, as its file is called in the directory below.
        names.push(format!("_sidecars/{:020}.json", 99));
        for name in names {
            store.put(&Path::from(format!("t/{LOG}/{name}")), "x".into()).await.unwrap();
        }
        if let Some(hint) = hint {
            let path = Path::from(format!("t/{LOG}/{LAST_CHECKPOINT}"));
            store.put(&path, hint.to_owned().into()).await.unwrap();
        }
        (store, place)
    }

    async fn versions(checkpoint: i64, hint: Option<&str>, asked: Option<i64>) -> Vec<i64> {
        let (store, place) = stored(checkpoint, hint).await;
        let files = LogFiles::list_for(&store, &place, asked).await.unwrap();
        assert_eq!(files.latest(), 8);
        let segment = files.segment(asked.unwrap_or(8), "t").unwrap();
        let whole = LogFiles::list(&store, &place).await.unwrap();
        let other = whole.segment(asked.unwrap_or(8), "t").unwrap();
        assert_eq!(segment.checkpoint, other.checkpoint);
        assert_eq!(segment.commits, other.commits);
        files.commits().keys().copied().collect()
    }

    #[tokio::test]
    async fn a_log_is_listed_from_the_checkpoint_on_that_it_names() {
        let (part, whole): (Vec<i64>, Vec<i64>) = ((5..9).collect(), (0..9).collect());
        let five = Some(r#"{"version":5,"size":7}"#);
        assert_eq!(versions(5, five, None).await, part);
        assert_eq!(versions(5, five, Some(5)).await, part);
        // An older version, and hints that say less than the log, nothing, or something wrong.
        assert_eq!(versions(5, five, Some(4)).await, whole);
        assert_eq!(versions(6, five, None).await, part);
        assert_eq!(versions(4, five, None).await, whole);
        let hints =
            [None, Some("{"), Some("[]"), Some(r#"{"version":99}"#), Some(r#"{"version":-9}"#)];
        for hint in hints {
            assert_eq!(versions(5, hint, None).await, whole, "{hint:?}");
        }
    }
}
