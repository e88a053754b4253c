//! A store that reads pinned files only as they were when the query was planned.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error as StoreError, GetOptions, GetResult, GetResultPayload, ListResult,
    MultipartUpload, OBJECT_STORE_COALESCE_DEFAULT, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result, coalesce_ranges,
};

use super::location::describe;
use super::pin::FilePin;
use super::read::{OpenFile, blocking};
use super::uri::{ROUTED_ROOT, is_local};
use crate::Error;

/// The name of this store in errors of `object_store`.
const STORE: &str = "PinnedStore";

/// What was asked of a store and what came back, counted by all its users together.
#[derive(Debug, Default)]
pub struct IoCounters {
    requests: AtomicU64,
    bytes: AtomicU64,
}

impl IoCounters {
    /// Reads and listings. A listing is one, however many pages the store makes of it; so is each
    /// call of `get_ranges` on a local file.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Bytes of content that arrived, including gaps read to join two ranges.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn count_request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }
}

/// A read-only view of a store in which every read of a pinned file is conditional on its identity.
///
/// A read demands the pinned etag (`If-Match`) and compares size and etag, or the time of the last
/// write where there is no etag, with those of the answer. On the local file system the open file
/// is looked at again after each piece is read, so that bytes of two versions never mix.
/// Files without a pin are read as they are.
///
/// A file that changed or vanished is a `Data` error of this crate inside
/// [`object_store::Error::Generic`]; `Error::from` takes it out again.
pub struct PinnedStore {
    inner: Arc<dyn ObjectStore>,
    root: Arc<str>,
    pins: HashMap<Path, Arc<FilePin>>,
    counters: Arc<IoCounters>,
    remedy: Arc<str>,
}

impl PinnedStore {
    /// Wraps `inner`, whose root is `root`: [`Location::store_root`](super::Location::store_root), or
    /// [`RoutedStore::ROOT`](super::RoutedStore::ROOT).
    pub fn new(
        inner: Arc<dyn ObjectStore>,
        root: &str,
        pins: impl IntoIterator<Item = FilePin>,
    ) -> Self {
        let pins = pins.into_iter().map(|pin| (pin.location.clone(), Arc::new(pin))).collect();
        let remedy = "register the table again".into();
        Self { inner, root: root.into(), pins, counters: Arc::default(), remedy }
    }

    /// The files belong to a snapshot of an Iceberg table, which this names.
    #[must_use]
    pub fn of_snapshot(mut self, snapshot: &str) -> Self {
        self.remedy = format!(
            "it belongs to {snapshot}, which may have expired: choose another snapshot, or refresh the query"
        )
        .into();
        self
    }

    /// Counts into `counters`, which other stores may share.
    #[must_use]
    pub fn with_counters(mut self, counters: Arc<IoCounters>) -> Self {
        self.counters = counters;
        self
    }

    /// The requests and bytes of this store so far; they keep counting.
    pub fn counters(&self) -> Arc<IoCounters> {
        Arc::clone(&self.counters)
    }

    fn guard(&self, location: &Path) -> Guard {
        Guard {
            root: Arc::clone(&self.root),
            location: location.clone(),
            pin: self.pins.get(location).cloned(),
            counters: self.counters(),
            remedy: Arc::clone(&self.remedy),
        }
    }

    /// Asks the store, with the pin's etag as a condition, and checks the answer.
    async fn get_checked(&self, guard: &Guard, mut options: GetOptions) -> Result<GetResult> {
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
                Ok(result)
            }
            Err(StoreError::NotFound { .. }) => Err(guard.vanished()),
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

    /// Ranges of a local file: one open, all reads, one check.
    async fn get_local_ranges(&self, file: OpenFile, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let counters = self.counters();
        let ranges = ranges.to_vec();
        blocking(move || {
            let read = file.read_ranges(&ranges)?;
            let bytes: usize = read.iter().map(Bytes::len).sum();
            counters.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
            Ok(read)
        })
        .await
    }
}

/// What is known of one file, to check each answer with.
#[derive(Clone)]
pub(super) struct Guard {
    root: Arc<str>,
    location: Path,
    pin: Option<Arc<FilePin>>,
    counters: Arc<IoCounters>,
    remedy: Arc<str>,
}

impl Guard {
    pub(super) fn count_bytes(&self, bytes: usize) {
        self.counters.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// A local file differs from what it was when it was opened.
    pub(super) fn changed_while_read(&self, size: u64) -> Result<()> {
        match &self.pin {
            None => Ok(()),
            Some(pin) if pin.size != size => {
                Err(self.changed(&format!("size {} -> {size}", pin.size)))
            }
            Some(_) => Err(self.changed("it was written to while it was read")),
        }
    }

    pub(super) fn read_error(&self, error: &std::io::Error) -> StoreError {
        let path = describe(&self.root, &self.location);
        self.fail(Error::storage(format!("cannot read {path}: {error}")))
    }

    fn check(&self, now: &ObjectMeta) -> Result<()> {
        match self.pin.as_ref().and_then(|pin| pin.difference(now)) {
            Some(difference) => Err(self.changed(&difference)),
            None => Ok(()),
        }
    }

    fn changed(&self, difference: &str) -> StoreError {
        let path = describe(&self.root, &self.location);
        self.fail(Error::data(format!(
            "file {path} changed after the query was planned ({difference}); {}",
            self.remedy
        )))
    }

    fn vanished(&self) -> StoreError {
        let path = describe(&self.root, &self.location);
        self.fail(Error::data(format!(
            "file {path} vanished after the query was planned; {}",
            self.remedy
        )))
    }

    fn fail(&self, error: Error) -> StoreError {
        StoreError::Generic { store: STORE, source: Box::new(error) }
    }
}

/// Writing is refused: a query never changes what it reads.
fn read_only(operation: &str) -> StoreError {
    let error = Error::storage(format!("cannot {operation}: tables are read-only"));
    StoreError::NotSupported { source: Box::new(error) }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl ObjectStore for PinnedStore {
    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let guard = self.guard(location);
        let head = options.head;
        let GetResult { payload, meta, range, attributes } =
            self.get_checked(&guard, options).await?;
        let stream = match payload {
            _ if head => stream::empty().boxed(),
            // A bare file handle could neither be counted nor checked while it is read.
            GetResultPayload::File(file, _) => {
                OpenFile { file, opened: meta.clone(), guard }.into_stream(range.clone())
            }
            GetResultPayload::Stream(stream) => stream
                .inspect_ok(move |bytes| guard.count_bytes(bytes.len()))
                // Decoders take an empty piece for the end of the file.
                .try_filter(|bytes| std::future::ready(!bytes.is_empty()))
                .boxed(),
        };
        Ok(GetResult { payload: GetResultPayload::Stream(stream), meta, range, attributes })
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        if ranges.is_empty() {
            return Ok(Vec::new());
        }
        if self.root.starts_with("file:") || (&*self.root == ROUTED_ROOT && is_local(location)) {
            let guard = self.guard(location);
            let result = self.get_checked(&guard, GetOptions::new()).await?;
            if let GetResultPayload::File(file, _) = result.payload {
                let file = OpenFile { file, opened: result.meta, guard };
                return self.get_local_ranges(file, ranges).await;
            }
        }
        coalesce_ranges(
            ranges,
            |range| self.get_range(location, range),
            OBJECT_STORE_COALESCE_DEFAULT,
        )
        .await
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
