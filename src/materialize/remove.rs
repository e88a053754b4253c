//! Removing a stage, and nothing else.

use std::fs;
use std::io;
use std::path::Path as LocalPath;

use futures::TryStreamExt;
use object_store::{Error as StoreError, ObjectMeta, ObjectStoreExt};

use super::lock::Lock;
use super::names::{is_build, is_note, is_part};
use super::place::StagePlace;
use crate::storage::remove_own;
use crate::{Error, Result};

/// Removes a stage that is known to be ours: its manifest first, so that nobody opens a stage that
/// is half gone. Files of other names stay. Returns false if it is in use.
pub(super) async fn remove(place: &StagePlace, key: &str) -> Result<bool> {
    let Some(folder) = place.folder() else { return remove_objects(place, key).await };
    let building = Lock::try_acquire(&folder.join(format!("{key}.lock")))?;
    let using = Lock::try_acquire(&folder.join(format!("{key}.use")))?;
    let (Some(building), Some(using)) = (building, using) else { return Ok(false) };
    let dir = folder.join(key);
    remove_files(&dir).map_err(|error| {
        Error::storage(format!("cannot remove the stage in {}: {error}", dir.display()))
    })?;
    using.remove()?;
    building.remove()?;
    Ok(true)
}

/// Removes the files of a stage in a folder.
fn remove_files(dir: &LocalPath) -> io::Result<()> {
    remove_own(dir, |name| name == "manifest.json")?;
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        // Of a link, what it is itself.
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_folder && entry.file_name().to_str().is_some_and(is_build) {
            remove_own(&entry.path(), is_part)?;
        }
    }
    remove_own(dir, is_note)?;
    Ok(())
}

async fn remove_objects(place: &StagePlace, key: &str) -> Result<bool> {
    let gone = |error: StoreError| match error {
        StoreError::NotFound { .. } => Ok(()),
        other => Err(Error::from(other)),
    };
    place.store().delete(&place.path([key, "manifest.json"])).await.or_else(gone)?;
    let root = place.path([key]);
    let files: Vec<ObjectMeta> = place.store().list(Some(&root)).try_collect().await?;
    for file in files {
        let names = file.location.prefix_match(&root).into_iter().flatten();
        let names: Vec<String> = names.map(|name| name.as_ref().to_owned()).collect();
        let is_ours = match names.as_slice() {
            [note] => is_note(note),
            [build, part] => is_build(build) && is_part(part),
            _ => false,
        };
        if is_ours {
            place.store().delete(&file.location).await.or_else(gone)?;
        }
    }
    Ok(true)
}
