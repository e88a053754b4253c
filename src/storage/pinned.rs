//! A store that reads pinned files only as they were when the query was planned.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    Attributes, CopyOptions, Error as StoreError, GetOptions, GetResult, GetResultPayload,
    ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, RenameOptions, Result,
};

use super::cache::{CachedFile, RangeCache, Tee};
use super::file_guard::Guard;
use super::io_counters::IoCounters;
use super::pin::FilePin;
use super::read::{LocalFile, OpenFile, OpenInstead};
use super::read_only::read_only;
use super::requests::{bytes_of, requests_of};
use super::steps::{first_step, in_steps};
use super::uri::is_local_file;
use crate::Error;

/// The name of this store in errors of `object_store`.
pub(super) const STORE: &str = "PinnedStore";

/// Requests for the ranges of one read that are sent at the same time.
const REQUESTS: usize = 16;

/// A read-only view of a store in which every read of a pinned file is conditional on its identity.
///
/// A read demands the pinned etag (`If-Match`) and compares size and etag, or the time of the last
/// write if there is no etag, with the answer's. On the local file system the open file is looked
/// at again after each piece is read, so that bytes of two versions never mix. Files without a pin
/// are read unchecked.
///
/// A file that changed or vanished is a `Data` error of this crate inside
/// [`object_store::Error::Generic`]; `Error::from` takes it out again.
#[derive(Clone)]
pub struct PinnedStore {
    inner: Arc<dyn ObjectStore>,
    root: Arc<str>,
    pins: Arc<HashMap<Path, Arc<FilePin>>>,
    counters: Arc<IoCounters>,
    snapshot: Option<Arc<str>>,
    cache: Option<Arc<RangeCache>>,
    /// The owner of the files, if no file is ever written twice; part of the cache's key.
    scope: Option<Arc<str>>,
}

impl PinnedStore {
    /// Wraps `inner`, whose root is `root`: [`Location::store_root`](super::Location::store_root),
    /// or [`RoutedStore::ROOT`](super::RoutedStore::ROOT).
    pub fn new(
        inner: Arc<dyn ObjectStore>,
        root: &str,
        pins: impl IntoIterator<Item = FilePin>,
    ) -> Self {
        let pins: HashMap<_, _> =
            pins.into_iter().map(|pin| (pin.location.clone(), Arc::new(pin))).collect();
        let (snapshot, cache, scope) = (None, None, None);
        let (root, pins, counters) = (root.into(), Arc::new(pins), Arc::default());
        Self { inner, root, pins, counters, snapshot, cache, scope }
    }

    /// The files belong to a snapshot of an Iceberg table, which this names.
    #[must_use]
    pub fn of_snapshot(mut self, snapshot: &str) -> Self {
        self.snapshot = Some(snapshot.into());
        self
    }

    /// Counts into `counters`, which other stores may share.
    #[must_use]
    pub fn with_counters(mut self, counters: Arc<IoCounters>) -> Self {
        self.counters = counters;
        self
    }

    /// Keeps bytes read from remote pinned files in `cache`. `scope` names the owner of the files,
    /// if none of them is ever written twice: such a file needs no etag to be known.
    #[must_use]
    pub fn with_cache(mut self, cache: Option<Arc<RangeCache>>, scope: Option<&str>) -> Self {
        self.cache = cache;
        self.scope = scope.map(Into::into);
        self
    }

    /// The cache of a file; None for local files and files without an identity.
    fn cached(&self, location: &Path) -> Option<CachedFile> {
        let cache = self.cache.as_ref().filter(|_| !self.is_local(location))?;
        cache.file(&self.root, self.scope.as_deref(), self.pins.get(location)?)
    }

    /// The requests and bytes of this store so far; they keep counting.
    pub fn counters(&self) -> Arc<IoCounters> {
        Arc::clone(&self.counters)
    }

    /// Returns true if a file lies on the local file system.
    fn is_local(&self, location: &Path) -> bool {
        is_local_file(&self.root, location)
    }

    fn guard(&self, location: &Path) -> Guard {
        Guard {
            root: Arc::clone(&self.root),
            location: location.clone(),
            pin: self.pins.get(location).cloned(),
            counters: self.counters(),
            snapshot: self.snapshot.clone(),
        }
    }

    /// A stored file, or the cache's part of it.
    async fn get_stored(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if options.extensions.get::<OpenInstead>().is_some() && !self.is_local(location) {
            let error = Error::storage("only local files are opened");
            return Err(StoreError::NotSupported { source: Box::new(error) });
        }
        let Some(file) = self.cached(location) else {
            return self.get_from_store(location, options).await;
        };
        if let Some(range) = plain_range(&options, file.size()) {
            let (store, path) = (self.clone(), location.clone());
            let fetch = move |range: Range<u64>| {
                let (store, path) = (store.clone(), path.clone());
                async move { Ok(store.get_and_keep(&path, range).await?.into_stream()) }
            };
            let counters = self.counters();
            let hit = move |bytes| counters.count_hit(bytes);
            if let Some(stream) = file.stream(range.clone(), fetch, hit).await? {
                let payload = GetResultPayload::Stream(stream);
                let meta = self.pins[location].as_ref().clone().into();
                return Ok(GetResult { payload, meta, range, attributes: Attributes::new() });
            }
            return self.get_and_keep(location, range).await;
        }
        self.get_from_store(location, options).await
    }

    /// Asks the store, and once more where it shows another file than the pinned one, or none: of
    /// several servers of a store one may be behind. A file that did change is shown as such twice.
    async fn get_checked(&self, guard: &Guard, options: GetOptions) -> Result<GetResult> {
        match self.get_compared(guard, options.clone()).await {
            Err(error) if is_of_other_file(&error) && !self.is_local(&guard.location) => {
                self.get_compared(guard, options).await
            }
            answer => answer,
        }
    }

    /// Asks the store, with the pin's etag as a condition, and checks the answer.
    async fn get_compared(&self, guard: &Guard, mut options: GetOptions) -> Result<GetResult> {
        let Some(pin) = &guard.pin else {
            self.counters.count_request();
            return self.inner.get_opts(&guard.location, options).await;
        };
        let demanded = if options.if_match.is_none() { pin.strong_e_tag() } else { None };
        let mut compared_only = demanded.is_none();
        if demanded.is_some() {
            options.if_match = demanded;
        }
        self.counters.count_request();
        let mut result = self.inner.get_opts(&guard.location, options.clone()).await;
        if !compared_only && matches!(result, Err(StoreError::Precondition { .. })) {
            // Asked again without the condition, the answer tells what differs; and a store may
            // spell an etag one way in a listing and another way here, where nothing differs.
            compared_only = true;
            options.if_match = None;
            self.counters.count_request();
            result = self.inner.get_opts(&guard.location, options).await;
        }
        match result {
            Ok(result) => {
                guard.check(&result.meta)?;
                if let GetResultPayload::File(file, _) = &result.payload {
                    guard.check_change_time(file)?;
                }
                Ok(result)
            }
            Err(StoreError::NotFound { .. }) => Err(guard.vanished()),
            Err(StoreError::NotSupported { source }) => Err(guard.no_ranges(source)),
            // Without a condition, a file that shrank fails by the range asked for.
            Err(error @ StoreError::Generic { .. }) if compared_only => {
                self.counters.count_request();
                match self.inner.head(&guard.location).await {
                    Ok(now) => guard.check(&now).and(Err(error)),
                    Err(StoreError::NotFound { .. }) => Err(guard.vanished()),
                    Err(_) => Err(error),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Asks the store, bypassing the cache.
    async fn get_from_store(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let pin = self.pins.get(location).filter(|_| !self.is_local(location));
        let Some(range) = pin.and_then(|pin| plain_range(&options, pin.size)) else {
            return self.get_at_once(location, options).await;
        };
        let step = first_step(&range);
        if step == range {
            return self.get_at_once(location, options).await;
        }
        let first = GetOptions { range: Some(step.into()), ..options.clone() };
        let mut result = match self.get_at_once(location, first).await {
            // The server knows no ranges.
            Err(StoreError::NotSupported { .. }) if options.range.is_none() => {
                return self.get_at_once(location, options).await;
            }
            answer => answer?,
        };
        if let GetResultPayload::Stream(first) = result.payload {
            let (store, path) = (self.clone(), location.clone());
            let fetch = move |step: Range<u64>| {
                let (store, path) = (store.clone(), path.clone());
                let options = GetOptions { range: Some(step.clone().into()), ..options.clone() };
                async move {
                    let answer = store.get_at_once(&path, options).await?.into_stream();
                    let pieces: Vec<Bytes> = answer.try_collect().await?;
                    let length = pieces.iter().map(Bytes::len).sum();
                    store.guard(&path).check_length(&step, length)?;
                    Ok(pieces)
                }
            };
            result.payload = GetResultPayload::Stream(in_steps(&range, first, fetch));
            result.range = range;
        }
        Ok(result)
    }

    /// Gets a file or a range with one request.
    async fn get_at_once(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let guard = self.guard(location);
        let head = options.head;
        let instead = options.extensions.get::<OpenInstead>().cloned();
        let GetResult { payload, meta, range, attributes } =
            self.get_checked(&guard, options).await?;
        let stream = match (payload, instead) {
            (GetResultPayload::File(file, _), Some(instead)) => {
                instead.put(OpenFile { file, opened: meta.clone(), guard });
                stream::empty().boxed()
            }
            _ if head => stream::empty().boxed(),
            // A bare file handle could neither be counted nor checked while it is read.
            (GetResultPayload::File(file, _), None) => {
                OpenFile { file, opened: meta.clone(), guard }.into_stream(range.clone())
            }
            (GetResultPayload::Stream(stream), _) => stream
                .inspect_ok(move |bytes| guard.count_bytes(bytes.len()))
                // Decoders take an empty piece for the end of the file.
                .try_filter(|bytes| std::future::ready(!bytes.is_empty()))
                .boxed(),
        };
        Ok(GetResult { payload: GetResultPayload::Stream(stream), meta, range, attributes })
    }

    /// A range from the store, which the cache keeps as it passes.
    async fn get_and_keep(&self, location: &Path, range: Range<u64>) -> Result<GetResult> {
        let options = GetOptions::new().with_range(Some(range));
        let mut result = self.get_from_store(location, options).await?;
        if let Some(file) = self.cached(location)
            && let GetResultPayload::Stream(stream) = result.payload
        {
            let stream = Tee::of(file, result.range.start, stream);
            result.payload = GetResultPayload::Stream(stream);
        }
        Ok(result)
    }

    /// Ranges of a remote file, by requests that are sent together.
    async fn get_remote_ranges(
        &self,
        location: &Path,
        ranges: &[Range<u64>],
    ) -> Result<Vec<Bytes>> {
        let guard = self.guard(location);
        ranges.iter().try_for_each(|range| guard.check_end(range.end))?;
        // The process limits how many are under way; here it is only that a wide table does not
        // queue them all.
        let answers: Vec<(Range<u64>, Bytes)> = stream::iter(requests_of(ranges))
            .map(|range| async {
                let options = GetOptions::new().with_range(Some(range.clone()));
                let bytes = self.get_at_once(location, options).await?.bytes().await?;
                guard.check_length(&range, bytes.len())?;
                Ok::<_, StoreError>((range, bytes))
            })
            .buffered(REQUESTS)
            .try_collect()
            .await?;
        Ok(ranges.iter().map(|range| bytes_of(range, &answers)).collect())
    }
}

/// Returns true if a store had another file than the pinned one, or none.
fn is_of_other_file(error: &StoreError) -> bool {
    matches!(error, StoreError::Generic { source, .. }
        if source.downcast_ref::<Error>().is_some_and(Error::is_of_other_file))
}

/// The bytes that a request asks for; None where it asks for something else or under a condition.
fn plain_range(options: &GetOptions, size: u64) -> Option<Range<u64>> {
    let GetOptions {
        if_match: None,
        if_none_match: None,
        if_modified_since: None,
        if_unmodified_since: None,
        version: None,
        head: false,
        range,
        ..
    } = options
    else {
        return None;
    };
    match range {
        None => (size > 0).then_some(0..size),
        Some(range) => range.as_range(size).ok(),
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl ObjectStore for PinnedStore {
    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.get_stored(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        if ranges.is_empty() {
            return Ok(Vec::new());
        }
        if self.is_local(location) {
            let guard = self.guard(location);
            let result = self.get_checked(&guard, GetOptions::new()).await?;
            if let GetResultPayload::File(file, _) = result.payload {
                // One open, all reads, one check.
                let file = OpenFile { file, opened: result.meta, guard };
                return LocalFile::from(file).read(ranges).await;
            }
        }
        // A range beyond the file's end is the store's to refuse.
        if let Some(file) = self.cached(location)
            && ranges.iter().all(|range| range.start < range.end && range.end <= file.size())
        {
            let fetch = |missing: Vec<Range<u64>>| async move {
                self.get_remote_ranges(location, &missing).await
            };
            return file.get_ranges(ranges, fetch, |bytes| self.counters.count_hit(bytes)).await;
        }
        self.get_remote_ranges(location, ranges).await
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.counters.count_request();
        self.inner.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.counters.count_request();
        self.inner.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.counters.count_request();
        self.inner.list_with_delimiter(prefix).await
    }

    async fn put_opts(&self, _: &Path, _: PutPayload, _: PutOptions) -> Result<PutResult> {
        Err(read_only("write a file"))
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Err(read_only("write a file"))
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        locations.map(|_| Err(read_only("delete a file"))).boxed()
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(read_only("copy a file"))
    }

    async fn rename_opts(&self, _: &Path, _: &Path, _: RenameOptions) -> Result<()> {
        Err(read_only("rename a file"))
    }
}

impl fmt::Display for PinnedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{STORE}({})", self.root)
    }
}

impl fmt::Debug for PinnedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{STORE}({}, {} pins)", self.root, self.pins.len())
    }
}
