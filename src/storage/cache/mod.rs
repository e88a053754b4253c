//! Ranges of remote files on local disk, shared by the processes of a node.
//!
//! **What is cached.** Ranges of pinned files of remote stores whose identity is known: data files,
//! their footers, and everything else read through a [`PinnedStore`](super::PinnedStore) by range
//! or in whole. Listings, Iceberg metadata, manifests and delete files are read anew: they are
//! small, or have no identity before they are read. Local files are never cached.
//!
//! **The unit is the requested range, not a block.** Parquet reads column chunks and pages whose
//! borders know nothing of blocks: with blocks of 1 MiB, a filter that needs 10 KiB of each row
//! group would read a hundred times as much, and with blocks small enough not to, a column chunk is
//! hundreds of files. So an entry is a range as it was fetched; touching ranges of one call become
//! one entry, cut at [`ENTRY_BYTES`]. A later read of other borders is put together from the
//! entries that overlap it, and only missing bytes are fetched. Entries may overlap; that wastes
//! space only.
//!
//! **The key** is a SHA-256 over the store's root, path, size and identity (see [`key`]): another
//! version of a file has another key, and so its ranges are never found; the old ones age until
//! they are evicted.
//!
//! **The folder**: `ranges-1/KK/KEY/START-END` are entries, `ranges-1/tmp` files being written,
//! `ranges-1/used` the stored bytes ([`budget`]), `ranges-1/lock` the lock of the process that
//! evicts. A file is renamed to its name when it is whole, and its checksums are looked at with
//! every read: a damaged entry is removed and counts as a miss. Nobody waits for anybody: not a
//! reader for a writer, and not one process for another that fetches the same range. Two that do so
//! at once both fetch it, and one file stays; ranks read different splits, so that happens to build
//! sides and footers at most, and costs no more than without a cache.
//!
//! **Failures** of the disk never fail a read: the store is asked instead, and
//! [`RangeCache::trouble`] says so once; so does a `ranges-1` that is a link, or that other users may
//! write. Links in it are not followed, and nothing is removed but regular files under the names of
//! entries that begin as entries do. Nothing is held between calls (no descriptors, no locks,
//! no threads), so a fork has nothing to mend.

mod budget;
mod entry;
mod file;
mod key;
mod listing;
mod store;
mod stream;

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::own_files::is_own_folder;
use super::pin::FilePin;
use crate::{Error, Result};
use budget::Budget;
use listing::Listings;

pub(super) use store::CachedStore;

use file::CachedFile;
use stream::Tee;

/// The longest entry: the unit of evictions, and the most that a writer holds in memory.
pub(super) const ENTRY_BYTES: u64 = 8 << 20;

/// The folder inside the user's, named by the format of the entries.
const ROOM: &str = "ranges-1";

/// After a failed write nothing is written for so long: a full disk stays full for a while.
const PAUSE_SECONDS: u64 = 30;

/// Where ranges are kept and how many bytes of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheOptions {
    /// The folder; made where it is not there.
    pub path: String,
    /// Bytes of all files in it, by all processes together.
    pub size: u64,
}

/// A folder of ranges, used by any number of processes at a time.
#[derive(Debug)]
pub struct RangeCache {
    folder: PathBuf,
    shown: PathBuf,
    budget: Budget,
    listings: Listings,
    trouble: OnceLock<String>,
    told: AtomicBool,
    /// Seconds since 1970 until which nothing is written.
    paused: AtomicU64,
    /// Whether the folder could not be made, or is not ours: then it is not used at all.
    is_foreign: bool,
}

impl RangeCache {
    /// Opens or makes the folder. One that cannot be made or written is [`trouble`](Self::trouble),
    /// not an error: the data can be had without it.
    ///
    /// # Errors
    /// `Config` for a path that is empty, a URL, or something else than a folder.
    pub fn open(options: &CacheOptions) -> Result<Self> {
        let path = options.path.as_str();
        if path.trim().is_empty() || path.contains("://") {
            return Err(Error::config(format!(
                "local_cache={path:?} must be a folder on a local disk, for example \"/tmp/ranges\""
            )));
        }
        let shown = std::path::absolute(path)
            .map_err(|error| Error::config(format!("local_cache={path:?}: {error}")))?;
        if fs::metadata(&shown).is_ok_and(|found| !found.is_dir()) {
            return Err(Error::config(format!(
                "local_cache={path:?} is a file, but must be a folder; name another path"
            )));
        }
        let folder = shown.join(ROOM);
        let judge = || match is_own_folder(&folder)? {
            true => check_owner(&folder),
            false => Ok(()),
        };
        let make = || make_folder(&folder.join(budget::TEMPORARY));
        let made = judge().and_then(|()| make()).and_then(|()| judge());
        // A folder that can only be read is read; one that may be another's is not.
        let is_foreign = judge().is_err();
        let cache = Self {
            budget: Budget::new(folder.clone(), options.size),
            folder,
            shown,
            listings: Listings::default(),
            trouble: OnceLock::new(),
            told: AtomicBool::new(false),
            paused: AtomicU64::new(0),
            is_foreign,
        };
        if let Err(error) = made.and_then(|()| cache.budget.begin()) {
            cache.failed("make", &error);
        }
        Ok(cache)
    }

    /// The reason why this cache was not used; None if there is none, or if it was told.
    pub fn trouble(&self) -> Option<String> {
        let trouble = self.trouble.get()?;
        (!self.told.swap(true, Ordering::Relaxed)).then(|| trouble.clone())
    }

    /// The entries of a file; None where its identity is not known well enough. `scope` names a set
    /// of files that are never written twice, such as an Iceberg table.
    pub(super) fn file(
        self: &std::sync::Arc<Self>,
        root: &str,
        scope: Option<&str>,
        pin: &FilePin,
    ) -> Option<CachedFile> {
        if self.is_foreign {
            return None;
        }
        let key = key::of(root, scope, pin, SystemTime::now())?;
        Some(CachedFile::new(std::sync::Arc::clone(self), key, pin.size))
    }

    fn folder_of(&self, key: &key::Key) -> PathBuf {
        let name = key::name(key);
        self.folder.join(&name[..2]).join(&name[2..])
    }

    /// Remembers a failure, and stops writing for a while.
    fn failed(&self, doing: &str, error: &io::Error) {
        self.paused.store(now_seconds() + PAUSE_SECONDS, Ordering::Relaxed);
        // Only the first is told; the others say no more.
        let _ = self.trouble.set(format!(
            "local_cache={:?} is not used fully, and data comes from the store instead: cannot {doing} it: {error}",
            self.shown
        ));
    }

    fn is_paused(&self) -> bool {
        now_seconds() < self.paused.load(Ordering::Relaxed)
    }
}

fn now_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Makes a folder and those above it, for this user alone.
fn make_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Refuses a folder into which another user may put ranges.
fn check_owner(path: &Path) -> io::Result<()> {
    let found = path.symlink_metadata()?;
    // SAFETY: the call has no conditions.
    let user = unsafe { libc::geteuid() };
    let why = match (found.uid() == user, found.mode() & 0o002 == 0) {
        (true, true) => return Ok(()),
        (false, _) => format!("{} belongs to user {}, not to {user}", path.display(), found.uid()),
        (true, false) => format!("every user may write to {}", path.display()),
    };
    Err(io::Error::other(why))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::sync::Arc;

    use object_store::path::Path as StorePath;

    use super::*;

    fn pin() -> FilePin {
        FilePin {
            location: StorePath::from("a"),
            size: 7,
            last_modified: None,
            e_tag: Some("\"x\"".to_owned()),
            version: None,
            changed: None,
        }
    }

    fn opened(folder: &Path) -> Arc<RangeCache> {
        let path = folder.to_str().unwrap().to_owned();
        Arc::new(RangeCache::open(&CacheOptions { path, size: 1 << 20 }).unwrap())
    }

    #[test]
    fn a_folder_that_is_not_ours_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        assert!(opened(folder.path()).file("s3://b", None, &pin()).is_some());
        fs::set_permissions(folder.path().join(ROOM), fs::Permissions::from_mode(0o777)).unwrap();
        let open = opened(folder.path());
        assert!(open.file("s3://b", None, &pin()).is_none());
        assert!(open.trouble().unwrap().contains("every user may write"));
        symlink(outside.path(), outside.path().join(ROOM)).unwrap();
        let link = opened(outside.path());
        assert!(link.file("s3://b", None, &pin()).is_none());
        assert!(link.trouble().unwrap().contains("a link"));
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
    }
}
