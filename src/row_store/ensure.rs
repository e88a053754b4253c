//! One stage for many processes: the first writes it, the others wait and open it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::forget::{is_stage_folder, lock_path, open_root, remove_partial, set_aside, use_path};
use super::manifest::{Manifest, Unusable};
use super::read::Stage;
use super::sums::{RECENT, is_verified, verify};
use super::write::{Progress, panicked};
use crate::materialize::Lock;
use crate::runtime::Runtimes;
use crate::session::Plan;
use crate::{Error, Result};

/// How long to wait for a process that removes the stage: no longer than removing takes.
const REMOVING: Duration = Duration::from_secs(600);

impl Stage {
    /// The stage of all splits of a plan in `<root>/<fingerprint>`: opened where it is there and
    /// whole, else written.
    ///
    /// One of several processes writes, under a lock that ends with it; remains of a killed one are
    /// removed. Dropping the future cancels waiting and writing. As long as it lives, nobody forgets
    /// it for its age.
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
        is_stage_folder(&dir)?;
        let in_use = match open_root(root) {
            Ok(()) => Lock::shared(&use_path(&dir), REMOVING).await?,
            // A stage that is there is read all the same; to write one, this is told below.
            Err(_) => None,
        };
        Ok(Self::ensure_unmarked(plan, root, &dir, threads, progress).await?.used_by(in_use))
    }

    async fn ensure_unmarked(
        plan: &Plan,
        root: &Path,
        dir: &Path,
        threads: usize,
        progress: &Arc<Progress>,
    ) -> Result<Self> {
        let known = known(dir)?;
        if known.as_ref().is_some_and(|manifest| is_verified(dir, manifest, Some(RECENT)))
            && let Some(stage) = find_whole(plan, dir)?
        {
            return Ok(stage);
        }
        let _lock = match take_lock(root, dir).await {
            Ok(lock) => lock,
            // Where only another user may write, the stage is read all the same.
            Err(error) if known.is_some() => {
                verify_once(dir).await?;
                return find_whole(plan, dir)?.ok_or(error);
            }
            Err(error) => return Err(error),
        };
        if verify_once(dir).await?
            && let Some(stage) = find_whole(plan, dir)?
        {
            return Ok(stage);
        }
        set_aside(dir)?;
        remove_partial(dir)?;
        let ids: Vec<u32> = (0..plan.splits().len() as u32).collect();
        Self::write(plan, &ids, dir, threads, progress).await
    }
}

async fn take_lock(root: &Path, dir: &Path) -> Result<Lock> {
    open_root(root)?;
    Lock::acquire(lock_path(dir)).await
}

/// The manifest in a directory; None where there is none that can be used.
fn known(dir: &Path) -> Result<Option<Manifest>> {
    match Manifest::read(dir) {
        Ok((manifest, _)) => Ok(Some(manifest)),
        Err(Unusable::Lost(_)) => Ok(None),
        Err(Unusable::Unread(error)) => Err(error),
    }
}

/// Reads the files of a stage, unless somebody did so lately. Returns false where there is no whole
/// stage.
async fn verify_once(dir: &Path) -> Result<bool> {
    let Some(manifest) = known(dir)? else { return Ok(false) };
    if is_verified(dir, &manifest, Some(RECENT)) {
        return Ok(true);
    }
    let dir = dir.to_owned();
    let look = move || verify(&dir, &manifest);
    match Runtimes::current()?.cpu().spawn_blocking(look).await.map_err(panicked)? {
        Ok(()) => Ok(true),
        Err(Unusable::Lost(_)) => Ok(false),
        Err(Unusable::Unread(error)) => Err(error),
    }
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
