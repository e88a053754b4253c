//! Which stages there are, and which go.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures::TryStreamExt;
use object_store::{Error as StoreError, ObjectMeta, ObjectStoreExt};

use super::lock::Lock;
use super::manifest::Manifest;
use super::place::StagePlace;
use crate::{Error, Result};

/// Stages that nobody has opened for so long are removed whenever another one is built.
const UNUSED: Duration = Duration::from_secs(7 * 24 * 3600);

/// Files without a manifest, which killed processes left, are removed when they are this old.
const ORPHANED: Duration = Duration::from_secs(24 * 3600);

/// One stage of a place.
#[derive(Clone, Debug)]
pub struct StageInfo {
    /// Its key.
    pub key: String,
    /// Its rows; None where it is not complete.
    pub rows: Option<u64>,
    /// Bytes of everything under its key.
    pub bytes: u64,
    /// Why its rows were staged.
    pub why: String,
    /// When it was complete.
    pub created: Option<DateTime<Utc>>,
    /// When it was opened last.
    pub used: DateTime<Utc>,
}

/// What was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Stages.
    pub stages: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Stages that would have gone, but are in use by a process of this machine.
    pub in_use: usize,
}

/// The stages of a place, the one that was used last first.
///
/// # Errors
/// `Storage` where the place cannot be listed.
pub async fn list_stages(place: &StagePlace) -> Result<Vec<StageInfo>> {
    let mut stages = Vec::new();
    for (key, files) in files_by_key(place).await? {
        let manifest = Manifest::read(place, &key).await.ok().flatten();
        let used = files.iter().map(|file| file.last_modified).max().unwrap_or_default();
        stages.push(StageInfo {
            key,
            rows: manifest.as_ref().map(|found| found.rows),
            bytes: files.iter().map(|file| file.size).sum(),
            why: manifest.as_ref().map(|found| found.why.clone()).unwrap_or_default(),
            created: manifest.map(|found| found.created),
            used,
        });
    }
    stages.sort_by(|a, b| b.used.cmp(&a.used).then_with(|| a.key.cmp(&b.key)));
    Ok(stages)
}

/// Removes the stages of a place that nobody has used for `unused`, and of the others, beginning with the one used
/// longest ago, as many as it takes that no more than `keep` bytes are left.
///
/// # Errors
/// `Storage` where the place cannot be listed, or a file cannot be removed.
pub async fn clear_stages(
    place: &StagePlace,
    unused: Duration,
    keep: Option<u64>,
) -> Result<Swept> {
    let (mut swept, mut left) = (Swept::default(), 0);
    for stage in list_stages(place).await? {
        left += stage.bytes;
        let idle = (Utc::now() - stage.used).to_std().unwrap_or_default();
        if idle < unused && keep.is_none_or(|keep| left <= keep) {
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

/// Removes what nobody has used for long, and what killed processes left.
pub(super) async fn sweep(place: &StagePlace) -> Result<()> {
    clear_stages(place, UNUSED, None).await?;
    for stage in list_stages(place).await? {
        let idle = (Utc::now() - stage.used).to_std().unwrap_or_default();
        if stage.rows.is_none() && idle > ORPHANED {
            remove(place, &stage.key).await?;
        }
    }
    Ok(())
}

/// Removes a stage: its manifest first, so that nobody opens one of which half is gone. False where it is in use.
async fn remove(place: &StagePlace, key: &str) -> Result<bool> {
    let locks = match place.folder() {
        Some(folder) => {
            let building = Lock::try_acquire(&folder.join(format!("{key}.lock")))?;
            let using = Lock::try_acquire(&folder.join(format!("{key}.use")))?;
            let (Some(building), Some(using)) = (building, using) else { return Ok(false) };
            Some((building, using))
        }
        None => None,
    };
    let gone = |error: StoreError| match error {
        StoreError::NotFound { .. } => Ok(()),
        other => Err(Error::from(other)),
    };
    place.store().delete(&place.path([key, "manifest.json"])).await.or_else(gone)?;
    let files: Vec<ObjectMeta> = place.store().list(Some(&place.path([key]))).try_collect().await?;
    for file in files {
        place.store().delete(&file.location).await.or_else(gone)?;
    }
    if let (Some(folder), Some((building, using))) = (place.folder(), locks) {
        match std::fs::remove_dir_all(folder.join(key)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::storage(format!(
                    "cannot remove the stage in {}: {error}",
                    folder.join(key).display()
                )));
            }
            _ => {}
        }
        using.remove()?;
        building.remove()?;
    }
    Ok(true)
}

/// All files of a place, by the key of their stage.
async fn files_by_key(place: &StagePlace) -> Result<BTreeMap<String, Vec<ObjectMeta>>> {
    let root = place.path([]);
    let files: Vec<ObjectMeta> = place.store().list(Some(&root)).try_collect().await?;
    let mut keys: BTreeMap<String, Vec<ObjectMeta>> = BTreeMap::new();
    for file in files {
        let names: Vec<String> = match file.location.prefix_match(&root) {
            Some(names) => names.map(|name| name.as_ref().to_owned()).collect(),
            None => continue,
        };
        // Locks lie beside the folders of the stages.
        if let [key, _, ..] = names.as_slice()
            && is_key(key)
        {
            keys.entry(key.clone()).or_default().push(file);
        }
    }
    Ok(keys)
}

/// Whether a folder is one of ours: what else lies in the place is not touched.
fn is_key(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}
