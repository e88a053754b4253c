//! Answers of a store, compared with the pins of its files.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    Error as StoreError, GetOptions, GetResult, GetResultPayload, ObjectStore, ObjectStoreExt,
    Result,
};

use super::file_guard::Guard;
use super::io_counters::IoCounters;
use super::pin::{FilePin, Pins};
use super::read::{LocalFile, OpenFile, OpenInstead};
use super::uri::is_local_file;
use crate::Error;

/// Sends each read as one request under the condition of the file's pin, checks the answer, and
/// counts requests and bytes.
#[derive(Clone)]
pub(super) struct CheckedStore {
    pub(super) inner: Arc<dyn ObjectStore>,
    pub(super) root: Arc<str>,
    pub(super) pins: Arc<Pins>,
    pub(super) counters: Arc<IoCounters>,
    /// The snapshot of an Iceberg table that the files belong to.
    pub(super) snapshot: Option<Arc<str>>,
}

impl CheckedStore {
    /// Returns true if a file lies on the local file system.
    pub(super) fn is_local(&self, location: &Path) -> bool {
        is_local_file(&self.root, location)
    }

    /// The pin of a file of a remote store.
    pub(super) fn remote_pin(&self, location: &Path) -> Option<&FilePin> {
        self.pins.get(location).filter(|_| !self.is_local(location))
    }

    pub(super) fn guard(&self, location: &Path) -> Guard {
        Guard {
            root: Arc::clone(&self.root),
            location: location.clone(),
            pin: self.pins.get(location).cloned().map(Arc::new),
            counters: Arc::clone(&self.counters),
            snapshot: self.snapshot.clone(),
        }
    }

    /// Gets a file or a range with one request.
    pub(super) async fn get(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
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

    /// Reads ranges of a local file with one open and one check. Returns None if the file is not
    /// local.
    pub(super) async fn local_ranges(
        &self,
        location: &Path,
        ranges: &[Range<u64>],
    ) -> Result<Option<Vec<Bytes>>> {
        if !self.is_local(location) {
            return Ok(None);
        }
        let guard = self.guard(location);
        let GetResult { payload, meta: opened, .. } =
            self.get_checked(&guard, GetOptions::new()).await?;
        let GetResultPayload::File(file, _) = payload else { return Ok(None) };
        LocalFile::from(OpenFile { file, opened, guard }).read(ranges).await.map(Some)
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
}

/// Returns true if a store had another file than the pinned one, or none.
fn is_of_other_file(error: &StoreError) -> bool {
    matches!(error, StoreError::Generic { source, .. }
        if source.downcast_ref::<Error>().is_some_and(Error::is_of_other_file))
}
