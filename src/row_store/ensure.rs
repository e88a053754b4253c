//! One stage for many processes: the first writes it, the others wait and open it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::manifest::Unusable;
use super::read::Stage;
use super::write::{PARTIAL, Progress, partial_name};
use crate::materialize::Lock;
use crate::session::Plan;
use crate::{Error, Result};

impl Stage {
    /// The stage of all splits of a plan in `<root>/<fingerprint>`: opened where it is there and
    /// whole, else written.
    ///
    /// One of several processes writes, under a lock that ends with it; remains of a killed one are
    /// removed. Dropping the future cancels waiting and writing.
    ///
    /// # Errors
    /// Errors of [`Stage::write`] and [`Stage::open`]; `Config` for a plan that holds a part of the
    /// splits only, as a worker's does: there, open the stage.
    pub async fn ensure(
        plan: &Plan,
        root: &Path,
        threads: usize,
        progress: &Arc<Progress>,
    ) -> Result<Self> {
        let dir = root.join(plan.fingerprint());
        if let Some(stage) = find_whole(plan, &dir)? {
            return Ok(stage);
        }
        fs::create_dir_all(root).map_err(|error| {
            Error::storage(format!("cannot make the directory {}: {error}", root.display()))
        })?;
        let _lock = Lock::acquire(lock_path(&dir)).await?;
        if let Some(stage) = find_whole(plan, &dir)? {
            return Ok(stage);
        }
        set_aside(&dir)?;
        remove_partial(&dir)?;
        let ids: Vec<u32> = (0..plan.splits().len() as u32).collect();
        Self::write(plan, &ids, &dir, threads, progress).await
    }

    /// Deletes the stage's files. Whoever has it open keeps reading.
    ///
    /// # Errors
    /// `Storage` where the file system refuses; a stage that is gone already is no error.
    pub fn remove(&self) -> Result<()> {
        let dir = self.path();
        let failed = |error: io::Error| {
            Error::storage(format!("cannot remove the stage in {}: {error}", dir.display()))
        };
        // Renamed first: nobody opens a stage of which half is gone.
        if let Some(doomed) = set_aside(dir)? {
            fs::remove_dir_all(&doomed).map_err(failed)?;
        }
        match Lock::try_acquire(&lock_path(dir))? {
            Some(lock) => lock.remove(),
            // Somebody writes it anew.
            None => Ok(()),
        }
    }
}

fn lock_path(dir: &Path) -> PathBuf {
    let mut name = dir.as_os_str().to_owned();
    name.push(".lock");
    PathBuf::from(name)
}

/// The stage in a directory; None if there is none, or only its remains: its place may be cleaned
/// up file by file.
///
/// A stage by the same fingerprint may be of fewer splits, where somebody wrote it so.
fn find_whole(plan: &Plan, dir: &Path) -> Result<Option<Stage>> {
    let stage = match Stage::look(dir, plan.fingerprint()) {
        Ok(stage) => stage,
        Err(Unusable::Lost(_)) => return Ok(None),
        Err(Unusable::Unread(error)) => return Err(error),
    };
    if stage.num_splits() == plan.splits().len() {
        return Ok(Some(stage));
    }
    Err(Error::config(format!(
        "the stage in {} holds {} splits, and this plan has {}; a plan made from a recipe holds only a \
         part: open the stage with it, and make it with the whole plan",
        dir.display(),
        stage.num_splits(),
        plan.splits().len()
    )))
}

/// Moves a stage out of the way, and says where to; None where there is none. Whoever has it open
/// keeps reading.
fn set_aside(dir: &Path) -> Result<Option<PathBuf>> {
    let aside = partial_name(dir);
    match fs::rename(dir, &aside) {
        Ok(()) => Ok(Some(aside)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::storage(format!(
            "cannot remove the stage in {}: {error}; delete the directory",
            dir.display()
        ))),
    }
}

/// Removes remains of this stage from killed processes. The lock is held, so no living one is
/// writing it.
fn remove_partial(dir: &Path) -> Result<()> {
    let (Some(root), Some(name)) = (dir.parent(), dir.file_name()) else { return Ok(()) };
    let failed = |error: io::Error| {
        Error::storage(format!("cannot clean up the directory {}: {error}", root.display()))
    };
    let prefix = format!("{}.", name.to_string_lossy());
    for entry in fs::read_dir(root).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let found = entry.file_name();
        let found = found.to_string_lossy();
        if !found.starts_with(&prefix) || !found.ends_with(PARTIAL) {
            continue;
        }
        match fs::remove_dir_all(entry.path()) {
            // A stage that its owner is removing at the same time.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => other.map_err(failed)?,
        }
    }
    Ok(())
}
