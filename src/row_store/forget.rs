//! Removing stages, and nothing else of what may lie beside them.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::manifest::{MANIFEST, Manifest, SCHEMA};
use super::read::Stage;
use super::write::{PARTIAL, partial_name};
use crate::materialize::{Lock, VERIFIED};
use crate::storage::{check_private, is_decimal, is_digest, is_own_folder, remove_own};
use crate::{Error, Result};

impl Stage {
    /// Deletes the stage's files. Whoever has it open keeps reading.
    ///
    /// # Errors
    /// `Storage` where the file system refuses; a stage that is gone already is no error.
    pub fn remove(&self) -> Result<()> {
        let dir = self.path();
        let Some(lock) = remove_stage(dir)? else { return Ok(()) };
        // Whoever has the file open keeps its lock.
        match fs::remove_file(use_path(dir)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                let path = use_path(dir);
                Err(Error::storage(format!("cannot remove {}: {error}", path.display())))
            }
            _ => lock.remove(),
        }
    }

    /// Deletes the stages below `root`, and the remains of killed writers, whose folders nobody has
    /// touched for so long; returns how many.
    ///
    /// What a living process uses or writes stays, however old it is: a training runs for longer, and
    /// its workers open the stage in each epoch; and the clocks of two processes may differ.
    ///
    /// A stage is a folder, no link, under the name of the fingerprint that its manifest says.
    /// Everything else stays, and so do other files in such a folder.
    ///
    /// # Errors
    /// `Storage` where `root` cannot be made or listed, or is not ours. What cannot be removed stays.
    pub fn forget_old(root: &Path, keep: &str, unused: Duration) -> Result<usize> {
        let failed = |error: io::Error| {
            Error::storage(format!("cannot look for old stages in {}: {error}", root.display()))
        };
        open_root(root)?;
        let mut removed = 0;
        for entry in fs::read_dir(root).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
            // Of a link, what it is itself. Another process may remove it at the same time.
            let Ok(found) = entry.metadata() else { continue };
            let age =
                found.modified().ok().and_then(|at| SystemTime::now().duration_since(at).ok());
            if !found.is_dir() || name == keep || age.is_none_or(|age| age <= unused) {
                continue;
            }
            let is_gone = if let Some(stage) = stage_of_partial(&name) {
                forget_partial(&entry.path(), &root.join(stage))
            } else {
                let says_so = |(manifest, _): (Manifest, _)| manifest.fingerprint == name;
                let is_stage =
                    is_fingerprint(&name) && Manifest::read(&entry.path()).is_ok_and(says_so);
                is_stage && forget_unused(&entry.path())
            };
            removed += usize::from(is_gone);
        }
        Ok(removed)
    }
}

/// Removes the remains of a writer, unless a process writes that stage at this moment. Returns true
/// if they are gone.
fn forget_partial(partial: &Path, stage: &Path) -> bool {
    let Ok(Some(lock)) = Lock::try_acquire(&lock_path(stage)) else { return false };
    let is_gone = remove_own(partial, is_ours).unwrap_or(false);
    // Where the lock's file stays, it is taken by the next one.
    let _ = lock.remove();
    is_gone
}

/// Removes a stage, unless a process uses it. Returns true if it is gone.
fn forget_unused(dir: &Path) -> bool {
    let Ok(Some(in_use)) = Lock::try_acquire(&use_path(dir)) else { return false };
    let removed = remove_stage(dir).and_then(|lock| lock.map_or(Ok(()), Lock::remove));
    let _ = in_use.remove();
    removed.is_ok()
}

/// Makes the folder in which stages lie, for this user alone, where it is missing.
///
/// # Errors
/// `Storage` where it cannot be made, where it is a link, and where it lies in the folder of this
/// user in the temporary directory and that is another's.
pub(super) fn open_root(root: &Path) -> Result<()> {
    let failed = |error: io::Error| {
        Error::storage(format!(
            "rows cannot be staged in {}: {error}; set TENSORQUERY_STAGES to a folder of your own with room for them",
            root.display()
        ))
    };
    let is_private = || root.parent().map_or(Ok(()), check_private).map_err(failed);
    is_private()?;
    is_own_folder(root).map_err(failed)?;
    DirBuilder::new().recursive(true).mode(0o700).create(root).map_err(failed)?;
    // Another user may have been faster since it was looked for.
    is_private()
}

/// Removes a stage, and returns its lock; None where somebody writes it anew.
fn remove_stage(dir: &Path) -> Result<Option<Lock>> {
    // Renamed first: nobody opens a stage of which half is gone.
    if let Some(doomed) = set_aside(dir)? {
        remove_own(&doomed, is_ours).map_err(|error| {
            Error::storage(format!("cannot remove the stage in {}: {error}", dir.display()))
        })?;
    }
    Lock::try_acquire(&lock_path(dir))
}

/// The lock of the process that writes a stage.
pub(super) fn lock_path(dir: &Path) -> PathBuf {
    beside(dir, ".lock")
}

/// The lock that the processes that use a stage share.
pub(super) fn use_path(dir: &Path) -> PathBuf {
    beside(dir, ".use")
}

fn beside(dir: &Path, suffix: &str) -> PathBuf {
    let mut name = dir.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Returns true if there is a folder for a stage, and false if there is nothing.
///
/// # Errors
/// `Storage` where a link or a file is in its place.
pub(super) fn is_stage_folder(dir: &Path) -> Result<bool> {
    is_own_folder(dir).map_err(|error| {
        Error::storage(format!(
            "rows cannot be staged in {}: {error}; move it away, or set TENSORQUERY_STAGES to another folder",
            dir.display()
        ))
    })
}

/// Moves a stage out of the way, and says where to; None where there is none. Whoever has it open
/// keeps reading.
pub(super) fn set_aside(dir: &Path) -> Result<Option<PathBuf>> {
    if !is_stage_folder(dir)? {
        return Ok(None);
    }
    let failed = |error: io::Error| {
        Error::storage(format!("cannot remove the stage in {}: {error}", dir.display()))
    };
    let aside = partial_name(dir);
    match fs::rename(dir, &aside) {
        Ok(()) => Ok(Some(aside)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

/// Removes remains of this stage from killed processes. The lock is held, so no living one is
/// writing it.
pub(super) fn remove_partial(dir: &Path) -> Result<()> {
    let (Some(root), Some(name)) = (dir.parent(), dir.file_name().and_then(|name| name.to_str()))
    else {
        return Ok(());
    };
    let failed = |error: io::Error| {
        Error::storage(format!("cannot clean up the directory {}: {error}", root.display()))
    };
    for entry in fs::read_dir(root).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_folder && entry.file_name().to_str().and_then(partial_of_any) == Some(name) {
            remove_own(&entry.path(), is_ours).map_err(failed)?;
        }
    }
    Ok(())
}

/// Returns true for the name of a file of a stage.
pub(super) fn is_ours(name: &str) -> bool {
    let number = name.strip_prefix("rows-").and_then(|rest| rest.strip_suffix(".arrow"));
    matches!(name, MANIFEST | SCHEMA | VERIFIED) || number.is_some_and(is_decimal)
}

/// The stage of a folder that is written, or was set aside, by its name.
fn stage_of_partial(name: &str) -> Option<&str> {
    partial_of_any(name).filter(|stage| is_fingerprint(stage))
}

fn partial_of_any(name: &str) -> Option<&str> {
    let (stage, number) = name.strip_suffix(PARTIAL)?.rsplit_once('.')?;
    let (process, count) = number.split_once('-')?;
    (is_decimal(process) && is_decimal(count)).then_some(stage)
}

/// Returns true for the form of a plan's fingerprint: a version and a digest.
fn is_fingerprint(name: &str) -> bool {
    name.split_once('-').is_some_and(|(version, digest)| is_decimal(version) && is_digest(digest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_names_are_ours() {
        let stage = format!("1-{}", "0a".repeat(32));
        assert!(is_fingerprint(&stage) && !is_fingerprint("1-data") && !is_fingerprint("data"));
        assert_eq!(stage_of_partial(&format!("{stage}.12-0.partial")), Some(&*stage));
        assert_eq!(partial_of_any("x.12-0.partial"), Some("x"));
        assert_eq!(stage_of_partial("x.12-0.partial"), None);
        for name in ["x.partial", "x.12.partial", "x.a-0.partial", "x.12-0"] {
            assert_eq!(partial_of_any(name), None, "{name}");
        }
        assert!(is_ours("rows-0.arrow") && is_ours("manifest.json") && is_ours("schema.arrow"));
        assert!(!is_ours("rows-.arrow") && !is_ours("rows-x.arrow") && !is_ours("train.arrow"));
    }
}
