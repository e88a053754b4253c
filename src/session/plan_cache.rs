//! The plan cache: memos in a folder or an object store, so that a later run of the same files
//! reads no footer.
//!
//! An entry's name is a digest of all its inputs: the pinned files of a listing and the options of
//! the table, or a plan's fingerprint. So an entry never goes out of date, and two processes that
//! write one write the same. An entry that is damaged or unreadable counts as missing, with a
//! warning.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use object_store::path::Path;
use object_store::{Error as StoreError, ObjectStore, ObjectStoreExt};
use sha2::{Digest, Sha256};

use crate::storage::{Location, Scheme, StoreAccess};
use crate::{Error, Result};

/// The first bytes of every entry; a new layout of memos gets a new number.
const MAGIC: &[u8] = b"tensorquery plan cache 1\n";
const DIGEST_BYTES: usize = 32;

/// Warnings that are kept for the user.
const MOST_WARNINGS: usize = 16;

/// Entries by kind and name, in one directory.
pub(super) struct PlanCache {
    store: Arc<dyn ObjectStore>,
    location: Location,
    warnings: Mutex<Vec<String>>,
}

impl fmt::Debug for PlanCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PlanCache({})", self.location)
    }
}

impl PlanCache {
    /// The cache in a folder, which is made where it is missing, or below a URL.
    ///
    /// # Errors
    /// `Config` for a place that is no directory, or for options that are not valid; `Storage`
    /// where a folder cannot be made.
    pub(super) async fn open(place: &str, access: StoreAccess) -> Result<Self> {
        let location = Location::parse(place)?;
        if location.pattern().is_some() {
            return Err(Error::config(format!(
                "plan_cache={place:?} must be a folder or a URL below which entries are kept, without wildcards"
            )));
        }
        let own = match location.scheme() {
            Scheme::Local => StoreAccess::default(),
            // Asked for nobody else's credentials.
            Scheme::Http => StoreAccess { credentials: None, ..access },
            _ => access,
        };
        let store = own.open_root(location.store_root()).await?;
        Ok(Self { store, location, warnings: Mutex::default() })
    }

    fn path(&self, kind: &str, name: &str) -> Path {
        let prefix = self.location.prefix();
        prefix.parts().chain([kind.to_owned().into(), format!("{name}.memo").into()]).collect()
    }

    /// The memo under a name.
    pub(super) async fn get(&self, kind: &str, name: &str) -> Option<Vec<u8>> {
        let path = self.path(kind, name);
        let read = async { self.store.get(&path).await?.bytes().await };
        match read.await {
            Ok(bytes) => match content(&bytes) {
                Some(memo) => Some(memo.to_vec()),
                None => {
                    self.warn(&path, "is damaged, and is made again");
                    None
                }
            },
            Err(StoreError::NotFound { .. }) => None,
            Err(error) => {
                self.warn(&path, &format!("cannot be read: {}", Error::from(error)));
                None
            }
        }
    }

    /// Keeps a memo under a name: in one piece, or not at all.
    pub(super) async fn put(&self, kind: &str, name: &str, memo: &[u8]) {
        let path = self.path(kind, name);
        let mut bytes = Vec::with_capacity(MAGIC.len() + DIGEST_BYTES + memo.len());
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&Sha256::digest(memo));
        bytes.extend_from_slice(memo);
        // On disk this is a file of another name that is renamed; an object appears when it is
        // complete.
        if let Err(error) = self.store.put(&path, bytes.into()).await {
            self.warn(&path, &format!("cannot be written: {}", Error::from(error)));
        }
    }

    /// A memo that could be read, and does not match its name.
    pub(super) fn is_odd(&self, kind: &str, name: &str, error: &Error) {
        self.warn(&self.path(kind, name), &format!("does not fit, and is made again: {error}"));
    }

    fn warn(&self, path: &Path, what: &str) {
        let place = self.location.describe(path);
        let mut warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        if warnings.len() < MOST_WARNINGS {
            warnings.push(format!("the entry {place} of the plan cache {what}"));
        }
    }

    /// Takes the warnings since the last call.
    pub(super) fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut *self.warnings.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The content after the digest, if the digest is right.
fn content(bytes: &[u8]) -> Option<&[u8]> {
    let rest = bytes.strip_prefix(MAGIC)?;
    let (digest, memo) = rest.split_at_checked(DIGEST_BYTES)?;
    (digest == Sha256::digest(memo).as_slice()).then_some(memo)
}
