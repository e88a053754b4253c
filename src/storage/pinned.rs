//! A store that reads pinned files only as they were when the query was planned.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    Error as StoreError, GetOptions, GetResult, ListResult, ObjectMeta, ObjectStore, Result,
};

use super::cache::{CachedStore, RangeCache};
use super::checked::CheckedStore;
use super::io_counters::IoCounters;
use super::pin::FilePin;
use super::read::OpenInstead;
use super::read_only::Reads;
use super::stepped::SteppedStore;
use crate::Error;

/// The name of this store in errors of `object_store`.
pub(super) const STORE: &str = "PinnedStore";

/// A read-only view of a store in which every read of a pinned file is conditional on its identity.
///
/// A read demands the pinned etag (`If-Match`) and compares size and etag, or the time of the last
/// write if there is no etag, with the answer's. On the local file system the open file is looked
/// at again after each piece is read, so that bytes of two versions never mix. Files without a pin
/// are read unchecked.
///
/// A read passes the cache, then the cutting into requests, then the check, each a store of its own.
///
/// A file that changed or vanished is a `Data` error of this crate inside
/// [`object_store::Error::Generic`]; `Error::from` takes it out again.
#[derive(Clone)]
pub struct PinnedStore(CachedStore);

impl PinnedStore {
    /// Wraps `inner`, whose root is `root`: [`Location::store_root`](super::Location::store_root),
    /// or [`RoutedStore::ROOT`](super::RoutedStore::ROOT).
    pub fn new(
        inner: Arc<dyn ObjectStore>,
        root: &str,
        pins: impl IntoIterator<Item = FilePin>,
    ) -> Self {
        let (root, pins) = (root.into(), Arc::new(pins.into_iter().collect()));
        let checked = CheckedStore { inner, root, pins, counters: Arc::default(), snapshot: None };
        Self(CachedStore { stepped: SteppedStore { checked }, cache: None, scope: None })
    }

    /// The files belong to a snapshot of an Iceberg table, which this names.
    #[must_use]
    pub fn of_snapshot(mut self, snapshot: &str) -> Self {
        self.0.stepped.checked.snapshot = Some(snapshot.into());
        self
    }

    /// Counts into `counters`, which other stores may share.
    #[must_use]
    pub fn with_counters(mut self, counters: Arc<IoCounters>) -> Self {
        self.0.stepped.checked.counters = counters;
        self
    }

    /// Keeps bytes read from remote pinned files in `cache`. `scope` names the owner of the files,
    /// if none of them is ever written twice: such a file needs no etag to be known.
    #[must_use]
    pub fn with_cache(mut self, cache: Option<Arc<RangeCache>>, scope: Option<&str>) -> Self {
        self.0.cache = cache;
        self.0.scope = scope.map(Into::into);
        self
    }

    /// The requests and bytes of this store so far; they keep counting.
    pub fn counters(&self) -> Arc<IoCounters> {
        Arc::clone(&self.checked().counters)
    }

    fn checked(&self) -> &CheckedStore {
        &self.0.stepped.checked
    }
}

#[async_trait]
impl Reads for PinnedStore {
    async fn get(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if options.extensions.get::<OpenInstead>().is_some() && !self.checked().is_local(location) {
            let error = Error::storage("only local files are opened");
            return Err(StoreError::NotSupported { source: Box::new(error) });
        }
        self.0.get(location, options).await
    }

    async fn ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        if ranges.is_empty() {
            return Ok(Vec::new());
        }
        match self.checked().local_ranges(location, ranges).await? {
            Some(read) => Ok(read),
            None => self.0.get_ranges(location, ranges).await,
        }
    }

    fn files(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.checked().counters.count_request();
        self.checked().inner.list(prefix)
    }

    async fn folder(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.checked().counters.count_request();
        self.checked().inner.list_with_delimiter(prefix).await
    }
}

impl fmt::Display for PinnedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{STORE}({})", self.checked().root)
    }
}

impl fmt::Debug for PinnedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{STORE}({}, {} pins)", self.checked().root, self.checked().pins.len())
    }
}
