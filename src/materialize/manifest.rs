//! The manifest of a stage. It appears in one step, and last: without it there is no stage.

use std::fmt::Display;

use chrono::{DateTime, Utc};
use object_store::{Error as StoreError, ObjectStoreExt, PutMode};
use serde::{Deserialize, Serialize};

use super::condition::put_if;
use super::place::StagePlace;
use super::seal::{UNSEALED, is_sealed, seal};
use super::verify::is_as_written;
use crate::{Error, Result};

const NAME: &str = "manifest.json";
const VERSION: u32 = 2;

/// A complete stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    version: u32,
    /// A checksum of this text: see `seal`.
    check: String,
    /// The key of the staged rows.
    pub key: String,
    /// The folder of its files, below the key's folder.
    pub build: String,
    /// In the order of the rows; at least one.
    pub files: Vec<StageFile>,
    /// Rows of all files.
    pub rows: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// SHA-256 over the content of all files: two builds with the same digest are the same rows in
    /// the same order.
    pub digest: String,
    /// Why these rows are staged.
    pub why: String,
    /// When it was complete.
    pub created: DateTime<Utc>,
    /// Seconds that building took.
    pub seconds: f64,
}

/// One file of a stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageFile {
    /// Its name in the folder of the build.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Its rows.
    pub rows: u64,
}

impl Manifest {
    pub(super) fn new(
        key: &str,
        build: &str,
        why: &str,
        files: Vec<StageFile>,
        digest: String,
    ) -> Self {
        Self {
            version: VERSION,
            check: UNSEALED.to_owned(),
            key: key.to_owned(),
            build: build.to_owned(),
            rows: files.iter().map(|file| file.rows).sum(),
            bytes: files.iter().map(|file| file.bytes).sum(),
            files,
            digest,
            why: why.to_owned(),
            created: Utc::now(),
            seconds: 0.0,
        }
    }

    /// The stage of this key, where there is one.
    ///
    /// # Errors
    /// `Storage` where the store does not answer, or the manifest is damaged.
    pub(super) async fn read(place: &StagePlace, key: &str) -> Result<Option<Self>> {
        match Self::look(place, key).await? {
            None => Ok(None),
            Some(Ok(manifest)) => Ok(Some(manifest)),
            Some(Err(why)) => Err(Self::damaged(place, key, why)),
        }
    }

    /// The manifest of a key, or the reason why what there is cannot be used; None where there is
    /// none.
    ///
    /// # Errors
    /// `Storage` where the store does not answer.
    async fn look(place: &StagePlace, key: &str) -> Result<Option<Result<Self, String>>> {
        let path = place.path([key, NAME]);
        let bytes = match place.store().get(&path).await {
            Ok(found) => found.bytes().await?,
            Err(StoreError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        Ok(Some(Self::parse(&bytes, key)))
    }

    /// The manifest of a key that a text is, or the reason why it is none.
    pub(super) fn parse(text: &[u8], key: &str) -> Result<Self, String> {
        let manifest: Self = serde_json::from_slice(text)
            .map_err(|error| format!("{NAME} cannot be parsed: {error}"))?;
        if manifest.version != VERSION || manifest.key != key || manifest.files.is_empty() {
            return Err(format!("{NAME} is of another stage, or of another version"));
        }
        match is_sealed(text) {
            true => Ok(manifest),
            false => Err(format!("{NAME} is not as it was written")),
        }
    }

    /// Reads the manifest of a stage whose files are all there. One that is damaged counts as none:
    /// the stage is built again.
    ///
    /// # Errors
    /// `Storage` where the store does not answer.
    pub(super) async fn read_whole(place: &StagePlace, key: &str) -> Result<Option<Self>> {
        let Some(Ok(manifest)) = Self::look(place, key).await? else { return Ok(None) };
        Ok(manifest.is_whole(place).await?.then_some(manifest))
    }

    async fn is_whole(&self, place: &StagePlace) -> Result<bool> {
        for file in &self.files {
            match place.store().head(&self.path_of(place, file)).await {
                Ok(found) if found.size == file.bytes => {}
                Ok(_) | Err(StoreError::NotFound { .. }) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        let Some(dir) = place.key_folder(&self.key)? else { return Ok(true) };
        let manifest = self.clone();
        let look = move || is_as_written(&dir, &manifest);
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => runtime
                .spawn_blocking(look)
                .await
                .map_err(|error| Error::storage("a stage cannot be looked at").with_source(error)),
            Err(_) => Ok(look()),
        }
    }

    /// Returns true if the stage is to be built. Where files of it are gone or damaged, its manifest
    /// goes.
    ///
    /// # Errors
    /// `Storage` where the store does not answer, or the manifest cannot be removed.
    pub(super) async fn make_way(place: &StagePlace, key: &str) -> Result<bool> {
        let Some(found) = Self::look(place, key).await? else { return Ok(true) };
        if let Ok(manifest) = found
            && manifest.is_whole(place).await?
        {
            return Ok(false);
        }
        Self::withdraw(place, key).await
    }

    /// Takes the manifest of a key away, so that the stage is built again.
    ///
    /// # Errors
    /// `Storage` where the store refuses.
    pub(super) async fn withdraw(place: &StagePlace, key: &str) -> Result<bool> {
        match place.store().delete(&place.path([key, NAME])).await {
            Ok(()) | Err(StoreError::NotFound { .. }) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes the stage visible, unless another process was first.
    pub(super) async fn publish(&self, place: &StagePlace) -> Result<bool> {
        let text = serde_json::to_vec(self)
            .map_err(|error| Error::storage("cannot write a manifest").with_source(error))?;
        let text = seal(text);
        let path = place.path([self.key.as_str(), NAME]);
        Ok(put_if(place, &path, text, PutMode::Create).await?.is_some())
    }

    /// A damaged stage, the reason, and a remedy.
    pub(crate) fn damaged(place: &StagePlace, key: &str, why: impl Display) -> Error {
        Error::storage(format!(
            "the stage {} is damaged: {why}; remove it, and it is built again",
            place.describe(&place.path([key]))
        ))
    }

    /// Returns true if its files are Parquet, as a cluster writes them; else they are Arrow IPC.
    pub fn is_parquet(&self) -> bool {
        self.files.iter().all(|file| file.name.ends_with(".parquet"))
    }

    /// The path of a file in the store.
    pub fn path_of(&self, place: &StagePlace, file: &StageFile) -> object_store::path::Path {
        place.path([self.key.as_str(), self.build.as_str(), file.name.as_str()])
    }
}
