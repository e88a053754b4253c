//! Files that are read as streams: text, compressed files, Arrow streams.

use std::ops::Range;

use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::Result;

use super::{CachedFile, ENTRY_BYTES};

/// The longest piece that is read from disk at a time.
const PIECE: u64 = 1 << 20;

impl CachedFile {
    /// The bytes of `range`: cached ones first, and from the first missing byte on `fetch` reads
    /// the rest. Returns None if the first byte is not cached. `hit` is told the bytes of each
    /// piece.
    pub(in crate::storage) async fn stream<F, Fut>(
        &self,
        range: Range<u64>,
        fetch: F,
        hit: impl Fn(u64) + Send + Sync + 'static,
    ) -> Result<Option<BoxStream<'static, Result<Bytes>>>>
    where
        F: Fn(Range<u64>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<BoxStream<'static, Result<Bytes>>>> + Send,
    {
        let Some(first) = self.first(piece_of(&range)).await? else { return Ok(None) };
        hit(first.len() as u64);
        let rest = range.start + first.len() as u64..range.end;
        let state = (self.clone(), rest, None::<BoxStream<'static, Result<Bytes>>>, fetch, hit);
        let later = stream::try_unfold(state, |(file, mut rest, mut network, fetch, hit)| async {
            loop {
                if let Some(stream) = &mut network {
                    let next = stream.try_next().await?;
                    return Ok(next.map(|bytes| (bytes, (file, rest, network, fetch, hit))));
                }
                if rest.start >= rest.end {
                    return Ok(None);
                }
                if let Some(bytes) = file.first(piece_of(&rest)).await? {
                    hit(bytes.len() as u64);
                    rest.start += bytes.len() as u64;
                    return Ok(Some((bytes, (file, rest, network, fetch, hit))));
                }
                network = Some(fetch(rest.clone()).await?);
            }
        });
        Ok(Some(stream::once(async move { Ok(first) }).chain(later).boxed()))
    }
}

fn piece_of(range: &Range<u64>) -> Range<u64> {
    range.start..range.end.min(range.start + PIECE)
}

/// Keeps the bytes that pass through a stream.
pub(in crate::storage) struct Tee {
    file: CachedFile,
    /// The range of the pieces that are not kept yet.
    range: Range<u64>,
    pieces: Vec<Bytes>,
}

impl Tee {
    /// A stream whose first byte is the one at `start` of the file.
    pub(in crate::storage) fn of(
        file: CachedFile,
        start: u64,
        stream: BoxStream<'static, Result<Bytes>>,
    ) -> BoxStream<'static, Result<Bytes>> {
        let tee = Self { file, range: start..start, pieces: Vec::new() };
        stream::try_unfold((stream, tee), |(mut stream, mut tee)| async {
            let Some(bytes) = stream.try_next().await? else {
                tee.keep().await?;
                return Ok(None);
            };
            tee.range.end += bytes.len() as u64;
            tee.pieces.push(bytes.clone());
            if tee.range.end - tee.range.start >= ENTRY_BYTES {
                tee.keep().await?;
            }
            Ok(Some((bytes, (stream, tee))))
        })
        .boxed()
    }

    fn take(&mut self) -> Vec<(Range<u64>, Bytes)> {
        let mut at = self.range.start;
        self.range.start = self.range.end;
        let pieces = std::mem::take(&mut self.pieces).into_iter().map(|bytes| {
            let start = at;
            at += bytes.len() as u64;
            (start..at, bytes)
        });
        // More than was pinned is no part of the file, and an error of who reads it.
        pieces.filter(|(range, _)| range.end <= self.file.size()).collect()
    }

    async fn keep(&mut self) -> Result<()> {
        let pieces = self.take();
        self.file.keep(pieces).await
    }
}

impl Drop for Tee {
    /// Who looks for the end of a line stops early, and will look again.
    fn drop(&mut self) {
        let pieces = self.take();
        if pieces.is_empty() {
            return;
        }
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => {
                let file = self.file.clone();
                drop(runtime.spawn_blocking(move || file.keep_now(pieces)));
            }
            Err(_) => self.file.keep_now(pieces),
        }
    }
}
