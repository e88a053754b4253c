//! The cached ranges of one version of one file.

use std::fs;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use object_store::{Error as StoreError, Result};

use super::entry::{self, Entry};
use super::key::Key;
use super::listing::{self, CoveredRange, cover};
use super::{ENTRY_BYTES, RangeCache, make_folder};
use crate::Error;
use crate::storage::read::blocking;

/// One version of a file in the cache.
#[derive(Clone, Debug)]
pub(in crate::storage) struct CachedFile {
    cache: Arc<RangeCache>,
    key: Key,
    size: u64,
}

/// The cached parts of a range, in order; None for missing ones.
#[derive(Debug)]
struct Found(Vec<(Range<u64>, Option<Bytes>)>);

impl CachedFile {
    pub(super) fn new(cache: Arc<RangeCache>, key: Key, size: u64) -> Self {
        Self { cache, key, size }
    }

    /// The file's size in bytes, as it was pinned.
    pub(in crate::storage) fn size(&self) -> u64 {
        self.size
    }

    /// The bytes of `ranges`. Missing bytes come from `fetch`, which is called at most once, for
    /// ranges in ascending order that do not overlap. `hit` is told the bytes of each range that
    /// was here in whole or in part.
    ///
    /// # Errors
    /// Errors of `fetch`, and where it brings less than it was asked for; the cache has none.
    pub(in crate::storage) async fn get_ranges<F>(
        &self,
        ranges: &[Range<u64>],
        fetch: impl FnOnce(Vec<Range<u64>>) -> F,
        hit: impl Fn(u64),
    ) -> Result<Vec<Bytes>>
    where
        F: Future<Output = Result<Vec<Bytes>>>,
    {
        let found = {
            let (file, ranges) = (self.clone(), ranges.to_vec());
            blocking(move || Ok(file.find(&ranges))).await?
        };
        let missing = apart(found.iter().flat_map(Found::missing).collect());
        for found in &found {
            let bytes = found.present();
            if bytes > 0 {
                hit(bytes);
            }
        }
        let fetched = match missing.is_empty() {
            true => Vec::new(),
            false => fetch(missing.clone()).await?,
        };
        let fetched: Vec<(Range<u64>, Bytes)> = missing.into_iter().zip(fetched).collect();
        if let Some((range, bytes)) =
            fetched.iter().find(|(range, bytes)| bytes.len() as u64 != length(range))
        {
            // Put together with what is here, it would be other bytes than were asked for.
            let error = Error::storage(format!(
                "the store sent {} bytes where {} were asked for",
                bytes.len(),
                length(range)
            ));
            return Err(StoreError::Generic { store: "RangeCache", source: Box::new(error) });
        }
        if !fetched.is_empty() {
            self.keep(fetched.clone()).await?;
        }
        Ok(found.into_iter().map(|found| found.fill(&fetched)).collect())
    }

    /// The first bytes of `range` that are here, of one entry at most; None where its first byte is
    /// not.
    pub(super) async fn first(&self, range: Range<u64>) -> Result<Option<Bytes>> {
        let file = self.clone();
        blocking(move || {
            let found = file.find(std::slice::from_ref(&range)).into_iter().next();
            Ok(found.and_then(|found| found.0.into_iter().next()).and_then(|(_, bytes)| bytes))
        })
        .await
    }

    /// Keeps fetched bytes: ranges in ascending order, each with all its bytes.
    pub(super) async fn keep(&self, fetched: Vec<(Range<u64>, Bytes)>) -> Result<()> {
        let file = self.clone();
        blocking(move || {
            file.keep_now(fetched);
            Ok(())
        })
        .await
    }

    /// As [`keep`](Self::keep), in this thread.
    pub(super) fn keep_now(&self, fetched: Vec<(Range<u64>, Bytes)>) {
        for (range, pieces) in entries_of(fetched) {
            if self.cache.is_paused() {
                return;
            }
            if let Err(error) = self.write(&range, &pieces) {
                self.cache.failed("write to", &error);
            }
        }
    }

    fn find(&self, ranges: &[Range<u64>]) -> Vec<Found> {
        let folder = self.cache.folder_of(&self.key);
        let entries = match self.cache.listings.of(&self.key, &folder) {
            Ok(entries) => entries,
            Err(error) => {
                self.cache.failed("list", &error);
                Arc::default()
            }
        };
        // Neighbouring columns lie in one entry.
        let mut open: Option<(Range<u64>, Option<Entry>)> = None;
        let mut read = |part: CoveredRange| {
            let Some(name) = part.entry else { return (part.range, None) };
            if open.as_ref().is_none_or(|(known, _)| *known != name) {
                open = Some((name.clone(), self.open(&folder, &name)));
            }
            let entry = open.as_ref().and_then(|(_, entry)| entry.as_ref());
            let bytes = entry.and_then(|entry| match entry.read(&part.range) {
                Ok(Some(bytes)) => Some(bytes),
                Ok(None) => {
                    self.remove(&folder, &name);
                    None
                }
                Err(error) => {
                    self.cache.failed("read", &error);
                    None
                }
            });
            (part.range, bytes)
        };
        ranges
            .iter()
            .map(|range| Found(cover(&entries, range).into_iter().map(&mut read).collect()))
            .collect()
    }

    fn open(&self, folder: &Path, name: &Range<u64>) -> Option<Entry> {
        match Entry::open(&folder.join(listing::name(name)), &self.key, name) {
            Ok(Some(entry)) => Some(entry),
            Ok(None) => {
                self.remove(folder, name);
                None
            }
            // Evicted since it was listed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.cache.listings.forget(&self.key);
                None
            }
            Err(error) => {
                self.cache.failed("read", &error);
                None
            }
        }
    }

    /// Removes a damaged entry.
    fn remove(&self, folder: &Path, name: &Range<u64>) {
        self.cache.listings.forget(&self.key);
        match fs::remove_file(folder.join(listing::name(name))) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                self.cache.failed("remove a damaged file from", &error);
            }
            _ => {}
        }
    }

    fn write(&self, range: &Range<u64>, pieces: &[Bytes]) -> io::Result<()> {
        let folder = self.cache.folder_of(&self.key);
        let path = folder.join(listing::name(range));
        // Another process has fetched it meanwhile.
        if path.exists() {
            return Ok(());
        }
        let Some(draft) = self.cache.budget.draft(entry::stored_bytes(length(range)))? else {
            return Ok(());
        };
        entry::write(&draft.file, &self.key, range, pieces)?;
        make_folder(&folder)?;
        match draft.keep(&path) {
            // Whoever evicts removes empty folders.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            kept => kept,
        }
    }
}

impl Found {
    fn missing(&self) -> impl Iterator<Item = Range<u64>> {
        self.0.iter().filter(|(_, bytes)| bytes.is_none()).map(|(range, _)| range.clone())
    }

    fn present(&self) -> u64 {
        self.0.iter().filter_map(|(_, bytes)| bytes.as_ref()).map(|bytes| bytes.len() as u64).sum()
    }

    /// The whole range, with missing parts from `fetched`.
    fn fill(self, fetched: &[(Range<u64>, Bytes)]) -> Bytes {
        let mut parts = self.0.into_iter().map(|(range, bytes)| match bytes {
            Some(bytes) => bytes,
            None => {
                let at = fetched.partition_point(|(piece, _)| piece.end <= range.start);
                fetched.get(at).map_or_else(Bytes::new, |(piece, bytes)| {
                    let from = (range.start - piece.start) as usize;
                    let to = (range.end - piece.start) as usize;
                    bytes.slice(from..to)
                })
            }
        });
        match (parts.next(), parts.next()) {
            (None, _) => Bytes::new(),
            (Some(only), None) => only,
            (Some(first), Some(second)) => {
                let mut whole = Vec::with_capacity(first.len() + second.len());
                for part in [first, second].into_iter().chain(parts) {
                    whole.extend_from_slice(&part);
                }
                whole.into()
            }
        }
    }
}

/// Ranges in ascending order, with overlapping ones joined. Ranges that touch stay apart: the store
/// decides where to join.
fn apart(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| (range.start, range.end));
    let mut found: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match found.last_mut() {
            Some(last) if range.start < last.end => last.end = last.end.max(range.end),
            _ => found.push(range),
        }
    }
    found
}

/// Touching ranges as one entry, and long ones as several.
fn entries_of(fetched: Vec<(Range<u64>, Bytes)>) -> Vec<(Range<u64>, Vec<Bytes>)> {
    let mut entries: Vec<(Range<u64>, Vec<Bytes>)> = Vec::new();
    for (range, mut bytes) in fetched {
        let mut at = range.start;
        while at < range.end {
            let room = match entries.last() {
                Some((last, _)) if last.end == at => ENTRY_BYTES - length(last),
                _ => 0,
            };
            let room = match room {
                0 => {
                    entries.push((at..at, Vec::new()));
                    ENTRY_BYTES
                }
                room => room,
            };
            let taken = room.min(range.end - at);
            if let Some((last, pieces)) = entries.last_mut() {
                last.end += taken;
                pieces.push(bytes.split_to(taken as usize));
            }
            at += taken;
        }
    }
    entries
}

fn length(range: &Range<u64>) -> u64 {
    range.end - range.start
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touching_ranges_are_one_entry_and_long_ones_several() {
        let piece = |start: u64, bytes: u64| {
            (start..start + bytes, Bytes::from(vec![start as u8; bytes as usize]))
        };
        let found = entries_of(vec![
            piece(0, 10),
            piece(10, 5),
            piece(20, ENTRY_BYTES + 3),
            piece(ENTRY_BYTES + 23, 2),
        ]);
        let ranges: Vec<Range<u64>> = found.iter().map(|(range, _)| range.clone()).collect();
        assert_eq!(ranges, [0..15, 20..20 + ENTRY_BYTES, 20 + ENTRY_BYTES..25 + ENTRY_BYTES]);
        for (range, pieces) in found {
            assert_eq!(pieces.iter().map(|piece| piece.len() as u64).sum::<u64>(), length(&range));
        }
        assert!(entries_of(Vec::new()).is_empty());
    }

    #[test]
    fn overlapping_ranges_are_asked_for_once() {
        assert_eq!(apart(vec![5..9, 0..3, 3..4, 8..12]), [0..3, 3..4, 5..12]);
    }
}
