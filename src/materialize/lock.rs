//! One process at a time, by a lock that dies with its holder.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::runtime::Runtimes;
use crate::storage::open_lock;
use crate::{Error, Result};

/// How often a waiting process asks again. The lock's own wait could not be cancelled.
const RETRY: Duration = Duration::from_millis(50);

/// An advisory lock (`flock`) on a file. The kernel releases it when the holder ends, however it
/// ends.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    file: File,
    /// The process that took it: a forked one has the same file open, and must not release it.
    owner: u32,
}

impl Drop for Lock {
    /// Closing the file would release the lock only when a forked process has closed it, too.
    fn drop(&mut self) {
        if self.owner == std::process::id() {
            // SAFETY: the descriptor is open as long as `file` lives.
            unsafe { libc::flock(self.file.as_raw_fd(), libc::LOCK_UN) };
        }
    }
}

impl Lock {
    /// Waits until nobody else holds the lock. Dropping the future stops waiting.
    ///
    /// # Errors
    /// `Storage` where the file cannot be made, or the file system has no locks.
    pub async fn acquire(path: PathBuf) -> Result<Self> {
        let runtimes = Runtimes::current()?;
        loop {
            if let Some(lock) = Self::try_acquire(&path)? {
                return Ok(lock);
            }
            runtimes.sleep(RETRY).await;
        }
    }

    /// The lock, unless another holds it.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    pub fn try_acquire(path: &Path) -> Result<Option<Self>> {
        Self::try_lock(path, libc::LOCK_EX)
    }

    /// A lock that any number of processes share, and that keeps others from
    /// [`try_acquire`](Self::try_acquire). It waits for who holds that, as a process that removes
    /// the stage: in no time, where it is not stopped. None where this user may not write the file,
    /// and so not lock it on every file system. Dropping the future stops waiting.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire); `Storage` where another process holds it for longer than
    /// `timeout`.
    pub async fn shared(path: &Path, timeout: Duration) -> Result<Option<Self>> {
        let may_write = open_lock(path);
        if may_write.is_err_and(|error| {
            matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem)
        }) {
            return Ok(None);
        }
        let runtimes = Runtimes::current()?;
        let begun = Instant::now();
        loop {
            if let Some(lock) = Self::try_lock(path, libc::LOCK_SH)? {
                return Ok(Some(lock));
            }
            if begun.elapsed() >= timeout {
                return Err(Error::storage(format!(
                    "another process has held {} alone for more than {} seconds, as one does that removes the stage; end \
                     that process, or raise stage_timeout",
                    path.display(),
                    timeout.as_secs()
                )));
            }
            runtimes.sleep(RETRY).await;
        }
    }

    fn try_lock(path: &Path, kind: libc::c_int) -> Result<Option<Self>> {
        let failed =
            |error: io::Error| Error::storage(format!("cannot lock {}: {error}", path.display()));
        let file = open_lock(path).map_err(|error| match error.kind() {
            ErrorKind::Other => Error::storage(format!(
                "cannot lock {}: {error}; move it away, or name another folder with stage_dir= or TENSORQUERY_STAGES",
                path.display()
            )),
            _ => failed(error),
        })?;
        // SAFETY: the descriptor is open as long as `file` lives.
        if unsafe { libc::flock(file.as_raw_fd(), kind | libc::LOCK_NB) } != 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(failed(error)),
            };
        }
        // The last holder may have removed the file between opening and locking: then this lock is
        // on a file that nobody else will find.
        let ours = file.metadata().map_err(failed)?;
        match fs::symlink_metadata(path) {
            Ok(found) if (found.dev(), found.ino()) == (ours.dev(), ours.ino()) => {
                Ok(Some(Self { path: path.to_owned(), file, owner: std::process::id() }))
            }
            Ok(_) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    /// Releases the lock and removes its file.
    ///
    /// # Errors
    /// `Storage` where the file system refuses.
    pub fn remove(self) -> Result<()> {
        fs::remove_file(&self.path).map_err(|error| {
            Error::storage(format!("cannot remove {}: {error}", self.path.display()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_lock_waits_for_who_removes_and_no_longer_than_it_may() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key.use");
        let runtimes = Runtimes::current().unwrap();
        let alone = Lock::try_acquire(&path).unwrap().unwrap();
        let refused = runtimes.cpu().block_on(Lock::shared(&path, Duration::from_millis(200)));
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::Storage);
        assert!(error.to_string().contains("key.use"), "{error}");

        let found = runtimes.cpu().block_on(async {
            let wait =
                runtimes.within(Duration::from_millis(200), Lock::shared(&path, Duration::MAX));
            assert!(wait.await.is_err(), "it can be given up");
            let ends = async {
                runtimes.sleep(Duration::from_millis(200)).await;
                drop(alone);
            };
            futures::join!(Lock::shared(&path, Duration::MAX), ends).0
        });
        let first = found.unwrap().unwrap();
        let second = runtimes.cpu().block_on(Lock::shared(&path, Duration::ZERO)).unwrap();
        assert!(Lock::try_acquire(&path).unwrap().is_none());
        drop((first, second));
        assert!(Lock::try_acquire(&path).unwrap().is_some());
    }
}
