//! Where stages are kept: a folder, or a prefix of an object store.

use std::fmt;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use object_store::ObjectStore;
use object_store::path::Path;

use super::names::ROOM;
use crate::storage::{Location, Scheme, StoreAccess, check_private, is_own_folder};
use crate::{Error, Result};

/// A folder, or a URL below which stages are kept, in a folder of ours.
#[derive(Clone)]
pub struct StagePlace {
    store: Arc<dyn ObjectStore>,
    location: Location,
    access: StoreAccess,
    /// The folder, where it is local.
    folder: Option<PathBuf>,
    /// Bytes that all stages may take together; None for no limit.
    max_bytes: Option<u64>,
    /// Whether the store has refused to write under conditions.
    has_no_conditions: Arc<AtomicBool>,
}

impl fmt::Debug for StagePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StagePlace({})", self.location)
    }
}

impl StagePlace {
    /// The place of this name; a folder is made where it is missing, and then for this user alone.
    ///
    /// # Errors
    /// `Config` for a place with wildcards, of a store that is only read, or options that are not
    /// valid; `Storage` where a folder cannot be made.
    pub async fn open(place: &str, access: StoreAccess) -> Result<Self> {
        let found = Self::find(place, access).await?;
        if let Some(folder) = &found.folder {
            let mut builder = fs::DirBuilder::new();
            builder.recursive(true).mode(0o700).create(folder).map_err(|error| {
                Error::storage(format!("cannot make the folder {}: {error}", folder.display()))
            })?;
            // Another user may have been faster since it was looked for.
            if let Some(above) = folder.parent() {
                check_private(above).map_err(|error| foreign(above, &error))?;
            }
        }
        Ok(found)
    }

    /// Opens a place without making its folder: a missing folder holds no stage.
    ///
    /// # Errors
    /// `Config`, as for [`open`](Self::open).
    pub async fn find(place: &str, access: StoreAccess) -> Result<Self> {
        let location = Location::parse(place)?;
        if location.pattern().is_some() {
            return Err(Error::config(format!(
                "stage_dir={place:?} must be a folder or a URL below which stages are kept, without wildcards"
            )));
        }
        if location.scheme() == Scheme::Http {
            return Err(Error::config(format!(
                "stage_dir={place:?}: nothing can be written to an HTTP server; use a folder, s3://, gs:// or az://"
            )));
        }
        if location.is_local() {
            let above = location.local_folder();
            check_private(&above).map_err(|error| foreign(&above, &error))?;
        }
        let location = location.child(ROOM);
        let folder = location.is_local().then(|| location.local_folder());
        if let Some(folder) = &folder {
            is_own_folder(folder).map_err(|error| foreign(folder, &error))?;
        }
        let access = if folder.is_some() { StoreAccess::default() } else { access };
        let store = access.open_root(location.store_root()).await?;
        Ok(Self {
            store,
            location,
            access,
            folder,
            max_bytes: None,
            has_no_conditions: Arc::default(),
        })
    }

    /// Returns the folder of a key in a local place.
    ///
    /// # Errors
    /// `Storage` where a link or a file is in its place.
    pub(super) fn key_folder(&self, key: &str) -> Result<Option<PathBuf>> {
        let Some(folder) = self.folder.as_ref().map(|folder| folder.join(key)) else {
            return Ok(None);
        };
        is_own_folder(&folder).map_err(|error| foreign(&folder, &error))?;
        Ok(Some(folder))
    }

    /// A place in a store of a test.
    #[cfg(test)]
    pub(super) fn in_store(store: Arc<dyn ObjectStore>) -> Self {
        let location = Location::of_store("s3://test").expect("a store's root");
        Self {
            store,
            location,
            access: StoreAccess::default(),
            folder: None,
            max_bytes: None,
            has_no_conditions: Arc::default(),
        }
    }

    /// Bounds the bytes of all stages. Above the bound, unused stages make way for new ones.
    #[must_use]
    pub fn bounded(self, max_bytes: Option<u64>) -> Self {
        Self { max_bytes, ..self }
    }

    /// Bytes that all stages may take together.
    pub(super) fn max_bytes(&self) -> Option<u64> {
        self.max_bytes
    }

    /// Returns true if the store may be asked to write under a condition.
    pub(super) fn knows_conditions(&self) -> bool {
        !self.has_no_conditions.load(Ordering::Relaxed)
    }

    /// The store refused to, and is not asked again.
    pub(super) fn forgo_conditions(&self) {
        self.has_no_conditions.store(true, Ordering::Relaxed);
    }

    /// The store.
    pub(crate) fn store(&self) -> &Arc<dyn ObjectStore> {
        &self.store
    }

    /// How another process reaches it.
    pub fn access(&self) -> &StoreAccess {
        &self.access
    }

    /// The folder, where it is local.
    pub(crate) fn folder(&self) -> Option<&PathBuf> {
        self.folder.as_ref()
    }

    /// The path of these names in the store.
    pub fn path<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Path {
        let own = self.location.prefix().parts();
        own.chain(names.into_iter().map(|name| name.to_owned().into())).collect()
    }

    /// A path of the store as a user would write it.
    pub fn describe(&self, path: &Path) -> String {
        self.location.describe(path)
    }
}

/// Something of somebody else's where a folder of stages should be.
fn foreign(path: &std::path::Path, error: &std::io::Error) -> Error {
    Error::storage(format!(
        "stages cannot be kept in {}: {error}; move it away, or name another folder with stage_dir= or \
         TENSORQUERY_STAGES",
        path.display()
    ))
}
