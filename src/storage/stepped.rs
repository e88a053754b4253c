//! Long reads in steps, and many ranges in few requests.

use std::ops::Range;

use bytes::Bytes;
use futures::stream;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{Error as StoreError, GetOptions, GetResult, GetResultPayload, Result};

use super::checked::CheckedStore;
use super::requests::{bytes_of, requests_of};
use super::steps::{first_step, in_steps};

/// Requests for the ranges of one read that are sent at the same time.
const REQUESTS: usize = 16;

/// Cuts and joins the reads of remote files to requests of a good size.
#[derive(Clone)]
pub(super) struct SteppedStore {
    pub(super) checked: CheckedStore,
}

impl SteppedStore {
    /// Gets a file or a range, in steps where a remote one is long.
    pub(super) async fn get(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let pin = self.checked.remote_pin(location);
        let Some(range) = pin.and_then(|pin| plain_range(&options, pin.size)) else {
            return self.checked.get(location, options).await;
        };
        let step = first_step(&range);
        if step == range {
            return self.checked.get(location, options).await;
        }
        let first = GetOptions { range: Some(step.into()), ..options.clone() };
        let mut result = match self.checked.get(location, first).await {
            // The server knows no ranges.
            Err(StoreError::NotSupported { .. }) if options.range.is_none() => {
                return self.checked.get(location, options).await;
            }
            answer => answer?,
        };
        if let GetResultPayload::Stream(first) = result.payload {
            let (store, path) = (self.checked.clone(), location.clone());
            let fetch = move |step: Range<u64>| {
                let (store, path) = (store.clone(), path.clone());
                let options = GetOptions { range: Some(step.clone().into()), ..options.clone() };
                async move {
                    let answer = store.get(&path, options).await?.into_stream();
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

    /// Ranges of a remote file, by requests that are sent together.
    pub(super) async fn get_ranges(
        &self,
        location: &Path,
        ranges: &[Range<u64>],
    ) -> Result<Vec<Bytes>> {
        let guard = self.checked.guard(location);
        ranges.iter().try_for_each(|range| guard.check_end(range.end))?;
        // The process limits how many are under way; here it is only that a wide table does not
        // queue them all.
        let answers: Vec<(Range<u64>, Bytes)> = stream::iter(requests_of(ranges))
            .map(|range| async {
                let options = GetOptions::new().with_range(Some(range.clone()));
                let bytes = self.checked.get(location, options).await?.bytes().await?;
                guard.check_length(&range, bytes.len())?;
                Ok::<_, StoreError>((range, bytes))
            })
            .buffered(REQUESTS)
            .try_collect()
            .await?;
        Ok(ranges.iter().map(|range| bytes_of(range, &answers)).collect())
    }
}

/// The bytes that a request asks for; None where it asks for something else or under a condition.
pub(super) fn plain_range(options: &GetOptions, size: u64) -> Option<Range<u64>> {
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
