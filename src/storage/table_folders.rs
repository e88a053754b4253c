//! Folders of Delta, Hudi and Iceberg tables. They hold files and rows that were deleted or
//! replaced, and only the table's log or metadata says which. Read as plain files they would
//! deliver those rows too, so they are refused by name.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::error::Error as StdError;
use std::fmt;
use std::path::{Path as LocalPath, PathBuf};
use std::sync::Arc;

use futures::TryStreamExt;
use futures::future::try_join_all;
use object_store::path::Path;
use object_store::{Error as StoreError, ObjectStore};

use super::list::names_below;
use super::location::{Location, Scheme};
use super::pin::FilePin;
use crate::{Error, Result};

/// Whose folder it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Kind {
    Delta,
    Hudi,
    Iceberg,
}

/// How the name of Hudi's file in each folder of a partition begins.
const HUDI_PARTITION: &str = ".hoodie_partition_metadata";

/// The folder below which an Iceberg table has its data files, by default.
const ICEBERG_DATA: &str = "data";

impl Kind {
    const ALL: [Self; 3] = [Self::Delta, Self::Hudi, Self::Iceberg];

    /// The directory in the table's folder that tells the table's history.
    fn history(self) -> &'static str {
        match self {
            Self::Delta => "_delta_log",
            Self::Hudi => ".hoodie",
            Self::Iceberg => "metadata",
        }
    }

    /// Returns true if a file of this name makes a directory called [`history`](Self::history) one.
    /// `metadata` is a common name.
    fn is_record(self, name: &str) -> bool {
        self != Self::Iceberg || is_iceberg_metadata(name)
    }

    /// Returns true if a data file that the user names may be read. Named one by one, files of
    /// Iceberg and Hudi are the user's own choice. The names of Delta's files are what its readers
    /// list, and say nothing of the rows that deletion vectors take out of them.
    fn may_be_named(self) -> bool {
        self != Self::Delta
    }

    fn refusal(self, root: &str) -> Error {
        let (table, instead) = match self {
            Self::Delta => (
                "a Delta table",
                format!(
                    "register the table: session.register_delta(name, {root:?})"
                ),
            ),
            Self::Hudi => (
                "a Hudi table",
                "read its current rows with Spark or another reader of Hudi, and write them to a folder of their own; files \
                 that you name one by one are read as they are"
                    .to_owned(),
            ),
            Self::Iceberg => (
                "an Iceberg table",
                format!(
                    "register the table: session.register_iceberg_table(name, {root:?}); files that you name one by one are \
                     read as they are"
                ),
            ),
        };
        let refused = Error::data(format!(
            "{root} is the folder of {table}, whose files also hold rows that were deleted or replaced; {instead}"
        ));
        match self {
            Self::Delta => refused.with_source(DeltaFolder(root.to_owned())),
            Self::Hudi | Self::Iceberg => refused,
        }
    }
}

/// The folder of a Delta table, whose files were refused.
#[derive(Debug)]
struct DeltaFolder(String);

impl fmt::Display for DeltaFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("its log is in _delta_log")
    }
}

impl StdError for DeltaFolder {}

/// Returns true if files were refused because `path` is the folder of a Delta table.
pub fn is_delta_folder(error: &Error, path: &str) -> bool {
    let folder = StdError::source(error).and_then(|source| source.downcast_ref::<DeltaFolder>());
    folder.is_some_and(|folder| folder.0.trim_end_matches('/') == path.trim_end_matches('/'))
}

/// Returns true for `v12.metadata.json` and `00012-<uuid>.gz.metadata.json`.
fn is_iceberg_metadata(name: &str) -> bool {
    let is_numbered =
        name.strip_prefix('v').unwrap_or(name).starts_with(|c: char| c.is_ascii_digit());
    is_numbered && (name.ends_with(".metadata.json") || name.ends_with(".metadata.json.gz"))
}

/// The folders found while the locations of one table are listed.
#[derive(Default)]
pub(super) struct TableFolders {
    /// The folders that listings and questions to the store have shown.
    found: BTreeSet<(Path, Kind)>,
    /// Questions that are still to be asked, or were.
    open: BTreeSet<(Path, Kind)>,
    asked: HashSet<(Path, Kind)>,
    /// The histories in local directories.
    local: HashMap<PathBuf, Vec<Kind>>,
    /// Directories with keys of their own.
    own: Vec<Path>,
}

impl TableFolders {
    /// The folders of a store in which these directories have keys of their own.
    pub fn within(own: Vec<Path>) -> Self {
        Self { own, ..Self::default() }
    }

    /// Notes a file in a store's listing, also one that is skipped.
    pub fn see_file(&mut self, path: &Path) {
        let text = path.as_ref();
        let is_odd = text.contains(HUDI_PARTITION)
            || Kind::ALL.iter().any(|kind| text.contains(kind.history()));
        if !is_odd {
            return;
        }
        let names: Vec<&str> = text.split('/').collect();
        let Some((file, directories)) = names.split_last() else { return };
        if file.starts_with(HUDI_PARTITION) {
            self.found.insert((path.parent().unwrap_or_default(), Kind::Hudi));
        }
        for (depth, directory) in directories.iter().enumerate() {
            let is_direct = depth + 1 == directories.len();
            let kind = Kind::ALL.into_iter().find(|kind| kind.history() == *directory);
            if let Some(kind) = kind
                && (kind != Kind::Iceberg || is_direct)
                && kind.is_record(file)
            {
                self.found.insert((path.parts().take(depth).collect(), kind));
            }
        }
    }

    /// Notes a directory in a store's listing. Whether `metadata` is Iceberg's is to be asked.
    pub fn see_directory(&mut self, path: &Path) {
        let kind = Kind::ALL.into_iter().find(|kind| path.filename() == Some(kind.history()));
        match (kind, path.parent()) {
            (Some(Kind::Iceberg), Some(root)) => self.ask_for(root, Kind::Iceberg),
            (Some(kind), Some(root)) => {
                self.found.insert((root, kind));
            }
            _ => {}
        }
    }

    /// Refuses the files of a location that lie in the folder of a table, beside its history.
    /// `is_named` says that the location names one file.
    ///
    /// Local directories are looked into up to the root of the file system. A store is only asked
    /// for facts that the listing of the location left open: the content of the folders above it.
    ///
    /// # Errors
    /// `Data` naming the folder; `Storage` where the store cannot be asked.
    pub async fn refuse(
        &mut self,
        store: &Arc<dyn ObjectStore>,
        location: &Location,
        pins: &[FilePin],
        is_named: bool,
    ) -> Result<()> {
        let refused = match location.scheme() {
            Scheme::Http => None,
            Scheme::Local => self.above_local(pins, is_named),
            Scheme::S3 | Scheme::Gcs | Scheme::Azure | Scheme::Foreign => {
                self.ask(store, location, is_named).await?;
                self.above(location, pins, is_named)
            }
        };
        match refused {
            Some((root, kind)) => Err(kind.refusal(&root).with_context("path", location)),
            None => Ok(()),
        }
    }

    /// A folder that holds one of the files.
    fn above(
        &self,
        location: &Location,
        pins: &[FilePin],
        is_named: bool,
    ) -> Option<(String, Kind)> {
        let mut found = self.found.iter().filter(|(_, kind)| !is_named || !kind.may_be_named());
        let (root, kind) = found.find(|(root, kind)| {
            pins.iter().any(|pin| {
                let below = names_below(&pin.location, root);
                below.first().is_some_and(|first| *first != kind.history())
            })
        })?;
        Some((location.describe(root), *kind))
    }

    fn ask_for(&mut self, root: Path, kind: Kind) {
        if !self.asked.contains(&(root.clone(), kind)) {
            self.open.insert((root, kind));
        }
    }

    /// Asks for histories beside a location and above it, side by side.
    async fn ask(
        &mut self,
        store: &Arc<dyn ObjectStore>,
        location: &Location,
        is_named: bool,
    ) -> Result<()> {
        // Below the prefix the listing has shown them, and Hudi's partitions tell themselves what
        // they are.
        let hive_root = location.hive_root();
        let mut below = location.prefix().clone();
        while let Some(above) = below.parent() {
            // With the keys of another directory, or with none, nothing is asked.
            let leaves =
                |own: &Path| location.prefix().prefix_matches(own) && !above.prefix_matches(own);
            if self.own.iter().any(leaves) {
                break;
            }
            let is_partition = above.filename().is_some_and(|name| name.contains('='));
            if !is_partition {
                self.ask_for(above.clone(), Kind::Delta);
            }
            if above == hive_root || below.filename() == Some(ICEBERG_DATA) {
                self.ask_for(above.clone(), Kind::Iceberg);
            }
            below = above;
        }
        let mut open = std::mem::take(&mut self.open);
        open.retain(|(_, kind)| !is_named || !kind.may_be_named());
        let answers = open.iter().map(|(root, kind)| async move {
            match has_history(store, root, *kind).await {
                // Who may read a file may not be allowed, or able, to list what lies beside it.
                Err(_) if is_named => Ok(false),
                Err(StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. }) => {
                    Ok(false)
                }
                other => other,
            }
        });
        let answers = try_join_all(answers).await.map_err(|error| {
            Error::storage(format!("cannot list what lies beside {location}")).with_source(error)
        })?;
        for (question, has) in open.into_iter().zip(answers) {
            self.asked.insert(question.clone());
            if has {
                self.found.insert(question);
            }
        }
        Ok(())
    }

    /// The nearest folder above one of the local files, links followed.
    fn above_local(&mut self, pins: &[FilePin], is_named: bool) -> Option<(String, Kind)> {
        let mut done = HashSet::new();
        for pin in pins {
            let file = LocalPath::new("/").join(pin.location.as_ref());
            let Some(directory) = file.parent() else { continue };
            if !done.insert(directory.to_owned()) {
                continue;
            }
            let linked = std::fs::canonicalize(directory).ok();
            let linked = linked.filter(|linked| linked != directory);
            for start in std::iter::once(directory).chain(linked.as_deref()) {
                // Files of a history are read by those who study it.
                let mut below = None;
                for directory in start.ancestors() {
                    let kinds = self.histories_in(directory).iter();
                    let mut kinds = kinds.filter(|kind| below != Some(kind.history().as_ref()));
                    if let Some(kind) = kinds.find(|kind| !is_named || !kind.may_be_named()) {
                        return Some((directory.display().to_string(), *kind));
                    }
                    below = directory.file_name();
                }
            }
        }
        None
    }

    fn histories_in(&mut self, directory: &LocalPath) -> &[Kind] {
        if !self.local.contains_key(directory) {
            let is_there = |kind: &Kind| {
                let history = directory.join(kind.history());
                let records = std::fs::read_dir(history).into_iter().flatten().flatten();
                let mut names = records.filter_map(|record| record.file_name().into_string().ok());
                names.any(|name| kind.is_record(&name))
            };
            let kinds = Kind::ALL.into_iter().filter(is_there).collect();
            self.local.insert(directory.to_owned(), kinds);
        }
        &self.local[directory]
    }
}

/// Returns true if a table has its history below `root`.
async fn has_history(
    store: &Arc<dyn ObjectStore>,
    root: &Path,
    kind: Kind,
) -> Result<bool, StoreError> {
    let history = root.clone().join(kind.history());
    let mut records = store.list(Some(&history));
    loop {
        match records.try_next().await {
            Ok(Some(meta)) if meta.location.filename().is_some_and(|name| kind.is_record(name)) => {
                return Ok(true);
            }
            Ok(Some(_)) => {}
            Ok(None) | Err(StoreError::NotFound { .. }) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
}
