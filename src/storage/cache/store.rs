//! A store whose remote pinned files are read through the cache.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{Attributes, GetOptions, GetResult, GetResultPayload, Result};

use super::{CachedFile, RangeCache, Tee};
use crate::storage::stepped::{SteppedStore, plain_range};

/// Answers with the bytes that a cache has, and keeps there those that the store sends.
#[derive(Clone)]
pub(in crate::storage) struct CachedStore {
    pub(in crate::storage) stepped: SteppedStore,
    pub(in crate::storage) cache: Option<Arc<RangeCache>>,
    /// The owner of the files, if no file is ever written twice; part of the cache's key.
    pub(in crate::storage) scope: Option<Arc<str>>,
}

impl CachedStore {
    /// The cache of a file; None for local files and files without an identity.
    fn file(&self, location: &Path) -> Option<CachedFile> {
        let cache = self.cache.as_ref()?;
        let checked = &self.stepped.checked;
        cache.file(&checked.root, self.scope.as_deref(), checked.remote_pin(location)?)
    }

    fn count_hits(&self) -> impl Fn(u64) + Send + Sync + 'static {
        let counters = Arc::clone(&self.stepped.checked.counters);
        move |bytes| counters.count_hit(bytes)
    }

    /// Gets a file or a range.
    pub(in crate::storage) async fn get(
        &self,
        location: &Path,
        options: GetOptions,
    ) -> Result<GetResult> {
        let Some((file, range)) = self
            .file(location)
            .and_then(|file| plain_range(&options, file.size()).map(|range| (file, range)))
        else {
            return self.stepped.get(location, options).await;
        };
        let (store, path) = (self.clone(), location.clone());
        let fetch = move |range: Range<u64>| {
            let (store, path) = (store.clone(), path.clone());
            async move { Ok(store.get_and_keep(&path, range).await?.into_stream()) }
        };
        let Some(stream) = file.stream(range.clone(), fetch, self.count_hits()).await? else {
            return self.get_and_keep(location, range).await;
        };
        let payload = GetResultPayload::Stream(stream);
        let meta = self.stepped.checked.pins[location].clone().into();
        Ok(GetResult { payload, meta, range, attributes: Attributes::new() })
    }

    /// Gets a range of the store, which the cache keeps as it passes.
    async fn get_and_keep(&self, location: &Path, range: Range<u64>) -> Result<GetResult> {
        let options = GetOptions::new().with_range(Some(range));
        let mut result = self.stepped.get(location, options).await?;
        if let Some(file) = self.file(location)
            && let GetResultPayload::Stream(stream) = result.payload
        {
            let stream = Tee::of(file, result.range.start, stream);
            result.payload = GetResultPayload::Stream(stream);
        }
        Ok(result)
    }

    /// Gets ranges of a remote file.
    pub(in crate::storage) async fn get_ranges(
        &self,
        location: &Path,
        ranges: &[Range<u64>],
    ) -> Result<Vec<Bytes>> {
        // A range beyond the file's end is the store's to refuse.
        if let Some(file) = self.file(location)
            && ranges.iter().all(|range| range.start < range.end && range.end <= file.size())
        {
            let fetch = |missing: Vec<Range<u64>>| async move {
                self.stepped.get_ranges(location, &missing).await
            };
            return file.get_ranges(ranges, fetch, self.count_hits()).await;
        }
        self.stepped.get_ranges(location, ranges).await
    }
}
