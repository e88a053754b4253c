//! The bytes stored by all processes together, and the eviction of entries above the limit.
//!
//! `used` is a list of signed 64-bit numbers, appended to by all: what a writer is about to store,
//! and what was evicted. Their sum is what is stored, or a little more: a writer makes its file in
//! its full length, then adds it to the sum, then writes. So nobody walks the folder to write an
//! entry; only who finds the sum over the limit does, under a lock that others never wait for.
//! Nobody else subtracts: what was given up or damaged would be taken off twice where it goes while
//! another counts. The next count finds it gone, and puts right what processes that were killed
//! left wrong.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::entry::is_entry;
use super::listing::is_name;
use crate::storage::own_files::{append_own, is_decimal, is_hexadecimal, open_lock, read_own};

/// The folder of files being written.
pub(super) const TEMPORARY: &str = "tmp";

const USED: &str = "used";
const LOCK: &str = "lock";

/// A file that was not finished after so long never will be.
const STALE: Duration = Duration::from_secs(600);

/// How often a new folder is asked for its count.
const BEGIN_TRIES: usize = 100;

/// Bytes of `used` from which on it is written anew.
const LONG: usize = 64 << 10;

/// Files of one process have names of their own.
static NEXT: AtomicU64 = AtomicU64::new(0);

#[derive(Debug)]
pub(super) struct Budget {
    folder: PathBuf,
    limit: u64,
}

/// A file being written, which counts as stored. Dropped before it is kept, it is removed.
#[derive(Debug)]
pub(super) struct Draft {
    path: PathBuf,
    kept: bool,
    pub(super) file: File,
}

impl Draft {
    /// Gives the file its name; readers see all of it or nothing.
    pub(super) fn keep(mut self, name: &Path) -> io::Result<()> {
        // Two that fetched the same range replace one file: it is counted twice until the next
        // look.
        fs::rename(&self.path, name)?;
        self.kept = true;
        Ok(())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.kept {
            // What stays here is found by a later run.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Budget {
    pub(super) fn new(folder: PathBuf, limit: u64) -> Self {
        Self { folder, limit }
    }

    /// A file of so many bytes to write to; None where there is no room and another process makes
    /// some, or it would never fit.
    ///
    /// # Errors
    /// Errors of the file system.
    pub(super) fn draft(&self, bytes: u64) -> io::Result<Option<Draft>> {
        if bytes > self.limit {
            return Ok(None);
        }
        let (path, file) = self.temporary()?;
        let draft = Draft { path, kept: false, file };
        // In full length from the beginning, so that whoever looks counts all of it.
        draft.file.set_len(bytes)?;
        self.add(signed(bytes))?;
        Ok((self.is_within()? || (self.evict()? && self.is_within()?)).then_some(draft))
    }

    /// Counts the stored bytes if nobody has yet, and removes remains of killed processes.
    ///
    /// # Errors
    /// Errors of the file system.
    pub(super) fn begin(&self) -> io::Result<()> {
        for _ in 0..BEGIN_TRIES {
            if self.folder.join(USED).exists() || self.evict()? {
                break;
            }
            // Another process counts, now. Without a count nothing is stored, which is no error.
            std::thread::sleep(Duration::from_millis(10));
        }
        self.remove_stale()
    }

    /// Removes files of processes that were killed while they wrote.
    fn remove_stale(&self) -> io::Result<()> {
        for found in files_in(&self.folder.join(TEMPORARY), is_draft)? {
            if found.is_stale() {
                let _ = fs::remove_file(&found.path);
            }
        }
        Ok(())
    }

    fn temporary(&self) -> io::Result<(PathBuf, File)> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        // Containers may share a folder and not their numbers of processes: the time tells them
        // apart.
        let name = format!("{}-{number}-{now}", std::process::id());
        let path = self.folder.join(TEMPORARY).join(name);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        Ok((path, file))
    }

    /// Adds to the stored bytes, unless nobody has counted yet: the counting process will see it.
    fn add(&self, bytes: i64) -> io::Result<()> {
        match append_own(&self.folder.join(USED)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            // Appended in one piece, so that processes do not mix theirs.
            file => file?.write_all(&bytes.to_le_bytes()),
        }
    }

    fn used(&self) -> io::Result<Option<Vec<u8>>> {
        match read_own(&self.folder.join(USED)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            content => content.map(Some),
        }
    }

    /// Returns true if the stored bytes are known and below the limit.
    fn is_within(&self) -> io::Result<bool> {
        let used = self.used()?;
        let sum = used.as_deref().filter(|used| used.len() < LONG).and_then(sum);
        Ok(sum.is_some_and(|sum| sum <= self.limit))
    }

    /// Counts the stored bytes, and removes the least recently used entries until a tenth of the
    /// limit is free. Returns false if another process is doing so.
    fn evict(&self) -> io::Result<bool> {
        let Some(lock) = Lock::try_acquire(&self.folder.join(LOCK))? else { return Ok(false) };
        let before = self.used()?;
        let counted = before.as_deref().and_then(sum);
        // First what is being written: renamed meanwhile, it is seen twice rather than never.
        let mut stored = 0;
        for draft in files_in(&self.folder.join(TEMPORARY), is_draft)? {
            if !(draft.is_stale() && fs::remove_file(&draft.path).is_ok()) {
                stored += draft.bytes;
            }
        }
        let mut entries = Vec::new();
        for outer in folders_in(&self.folder, 2)? {
            for inner in folders_in(&outer, 62)? {
                let found = files_in(&inner, is_name)?;
                // Of versions that nobody reads any more, the folders go, too, if nothing else is
                // in them.
                if found.is_empty() {
                    let _ = fs::remove_dir(&inner);
                }
                entries.extend(found);
            }
        }
        stored += entries.iter().map(|entry| entry.bytes).sum::<u64>();
        entries.sort_unstable_by(|a, b| (a.used, &a.path).cmp(&(b.used, &b.path)));
        let aim = self.limit - self.limit / 10;
        if stored > self.limit {
            for entry in &entries {
                if stored <= aim {
                    break;
                }
                // Somebody else's file under such a name stays, and does not count.
                match is_entry(&entry.path) {
                    Ok(true) => {}
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    _ => {
                        stored -= entry.bytes;
                        continue;
                    }
                }
                match fs::remove_file(&entry.path) {
                    Ok(()) => stored -= entry.bytes,
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {
                        stored -= entry.bytes;
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        match (counted, before) {
            (Some(counted), Some(before)) if before.len() < LONG => {
                self.add(signed(stored) - signed(counted))?;
            }
            (_, before) => {
                // What others have added since the count was begun is kept.
                let length = before.map_or(0, |before| before.len());
                let since = self.used()?.and_then(|used| sum(used.get(length..)?)).unwrap_or(0);
                let (path, mut file) = self.temporary()?;
                file.write_all(&signed(stored + since).to_le_bytes())?;
                fs::rename(path, self.folder.join(USED))?;
            }
        }
        drop(lock);
        Ok(true)
    }
}

/// The sum of numbers as they stand in the file; None where it is damaged.
fn sum(content: &[u8]) -> Option<u64> {
    let (numbers, rest) = content.as_chunks::<8>();
    let sum: i128 = numbers.iter().map(|number| i128::from(i64::from_le_bytes(*number))).sum();
    // Below zero, something was removed twice; what there is shows when it is counted.
    rest.is_empty().then_some(sum).and_then(|sum| u64::try_from(sum).ok())
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// A file in the cache.
#[derive(Debug)]
struct Found {
    path: PathBuf,
    bytes: u64,
    used: SystemTime,
}

impl Found {
    fn is_stale(&self) -> bool {
        SystemTime::now().duration_since(self.used).is_ok_and(|ago| ago >= STALE)
    }
}

/// Returns true for the name of a file that is being written: process, number and time.
fn is_draft(name: &str) -> bool {
    let parts: Vec<&str> = name.split('-').collect();
    parts.len() == 3 && parts.into_iter().all(is_decimal)
}

/// The regular files of our names in a folder that are there long enough to be looked at.
fn files_in(folder: &Path, is_ours: impl Fn(&str) -> bool) -> io::Result<Vec<Found>> {
    let mut found = Vec::new();
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if !entry.file_name().to_str().is_some_and(&is_ours) {
            continue;
        }
        // Of a link, what it is itself.
        let Ok(data) = entry.metadata() else { continue };
        if data.is_file() {
            found.push(Found { path: entry.path(), bytes: data.len(), used: data.modified()? });
        }
    }
    Ok(found)
}

/// The folders in a folder whose names are `digits` digits of a key.
fn folders_in(folder: &Path, digits: usize) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let is_ours = |name: &str| name.len() == digits && is_hexadecimal(name);
        if entry.file_type().is_ok_and(|kind| kind.is_dir())
            && entry.file_name().to_str().is_some_and(is_ours)
        {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// The lock of the one that evicts: an advisory `flock`, which the kernel releases when the process
/// ends, however it ends.
#[derive(Debug)]
struct Lock {
    file: File,
}

impl Lock {
    /// The lock, unless another has it.
    fn try_acquire(path: &Path) -> io::Result<Option<Self>> {
        let file = open_lock(path)?;
        // SAFETY: the descriptor is open as long as `file` lives.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
            return Ok(Some(Self { file }));
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
            _ => Err(error),
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing would not do: a child that was forked meanwhile has the file open, too.
        // SAFETY: the descriptor is open as long as `file` lives.
        unsafe { libc::flock(self.file.as_raw_fd(), libc::LOCK_UN) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(limit: u64) -> (tempfile::TempDir, Budget) {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join(TEMPORARY)).unwrap();
        let budget = Budget::new(folder.path().to_owned(), limit);
        (folder, budget)
    }

    /// Stores an entry of so many bytes that was used so many seconds ago.
    fn store(folder: &Path, budget: &Budget, name: &str, bytes: u64, seconds_ago: u64) -> bool {
        let Some(draft) = budget.draft(bytes).unwrap() else { return false };
        let used = SystemTime::now() - Duration::from_secs(seconds_ago);
        (&draft.file).write_all(b"TQRANGE1").unwrap();
        draft.file.set_modified(used).unwrap();
        fs::create_dir_all(inner(folder)).unwrap();
        draft.keep(&inner(folder).join(name)).unwrap();
        true
    }

    fn inner(folder: &Path) -> PathBuf {
        folder.join("aa").join("b".repeat(62))
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(inner(folder))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn what_was_used_longest_ago_goes_first() {
        let (folder, budget) = budget(1000);
        for (name, ago) in [("2-3", 1), ("3-4", 30), ("1-2", 20)] {
            assert!(store(folder.path(), &budget, name, 300, ago));
        }
        assert_eq!(names(folder.path()), ["1-2", "2-3", "3-4"]);
        // 1200 of 1000: a tenth of the limit is free afterwards.
        assert!(store(folder.path(), &budget, "4-5", 300, 0));
        assert_eq!(names(folder.path()), ["1-2", "2-3", "4-5"]);
        assert!(store(folder.path(), &budget, "5-6", 800, 0));
        assert_eq!(names(folder.path()), ["5-6"]);
        assert!(!store(folder.path(), &budget, "6-7", 1001, 0));
        assert_eq!(sum(&budget.used().unwrap().unwrap()), Some(800));
    }

    #[test]
    fn a_lost_or_damaged_count_is_made_anew() {
        let (folder, budget) = budget(1000);
        assert!(store(folder.path(), &budget, "a-b", 400, 30));
        let used = folder.path().join(USED);
        for damage in [
            None,
            Some(vec![1, 2, 3]),
            Some((-5000_i64).to_le_bytes().to_vec()),
            Some(vec![0; LONG]),
        ] {
            match damage {
                None => fs::remove_file(&used).unwrap(),
                Some(content) => fs::write(&used, content).unwrap(),
            }
            drop(budget.draft(500).unwrap().unwrap());
            assert_eq!(sum(&budget.used().unwrap().unwrap()), Some(900));
            assert_eq!(fs::metadata(&used).unwrap().len() % 8, 0);
        }
        assert!(store(folder.path(), &budget, "b-c", 500, 20));
        assert!(store(folder.path(), &budget, "c-d", 200, 10));
        assert_eq!(names(folder.path()), ["b-c", "c-d"]);
    }

    #[test]
    fn what_was_not_finished_is_removed_after_a_while() {
        let (folder, budget) = budget(1000);
        assert!(store(folder.path(), &budget, "a-b", 400, 30));
        let left = budget.draft(300).unwrap().unwrap();
        left.file.set_modified(SystemTime::now() - STALE).unwrap();
        let path = left.path.clone();
        std::mem::forget(left);
        assert_eq!(sum(&budget.used().unwrap().unwrap()), Some(700));
        budget.remove_stale().unwrap();
        assert!(!path.exists());
        // Nor does one stay that is given up. Both count until there seems to be no room.
        drop(budget.draft(300).unwrap().unwrap());
        assert!(files_in(&folder.path().join(TEMPORARY), |_| true).unwrap().is_empty());
        assert_eq!(sum(&budget.used().unwrap().unwrap()), Some(1000));
        assert!(store(folder.path(), &budget, "b-c", 600, 20));
        assert_eq!(names(folder.path()), ["a-b", "b-c"]);
        assert_eq!(sum(&budget.used().unwrap().unwrap()), Some(1000));
    }

    #[test]
    fn what_others_put_there_stays() {
        let (folder, budget) = budget(1000);
        assert!(store(folder.path(), &budget, "a-b", 600, 30));
        let own = inner(folder.path());
        let foreign = [
            own.join("c-d"),
            own.join("data.parquet"),
            own.join("A-B"),
            folder.path().join("aa/notes/1-2"),
            folder.path().join("data/1-2"),
            folder.path().join(TEMPORARY).join("model.bin"),
        ];
        let long_ago = SystemTime::now() - 10 * STALE;
        for path in &foreign {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, vec![1; 700]).unwrap();
            File::options().write(true).open(path).unwrap().set_modified(long_ago).unwrap();
        }
        let elsewhere = tempfile::tempdir().unwrap();
        let target = elsewhere.path().join("1-2");
        fs::write(&target, "TQRANGE1").unwrap();
        std::os::unix::fs::symlink(&target, own.join("1-2")).unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), folder.path().join("aa").join("c".repeat(62)))
            .unwrap();
        budget.remove_stale().unwrap();
        assert!(store(folder.path(), &budget, "b-c", 900, 20));
        assert!(!own.join("a-b").exists());
        for path in foreign.iter().chain([&target, &own.join("1-2")]) {
            assert!(path.symlink_metadata().is_ok(), "{}", path.display());
        }
        // Nor is a link taken for the count or the lock.
        fs::remove_file(folder.path().join(USED)).unwrap();
        std::os::unix::fs::symlink(&target, folder.path().join(USED)).unwrap();
        assert!(budget.draft(10).is_err());
        assert_eq!(fs::read(&target).unwrap(), b"TQRANGE1");
    }
}
