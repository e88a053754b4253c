//! The footer of a Parquet file and its page index, as they come from a store. Both are looked at
//! before they are decoded: see `thrift.rs` and `check.rs`.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use parquet::arrow::async_reader::MetadataFetch;
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::FOOTER_SIZE;
use parquet::file::metadata::{
    ColumnChunkMetaData, PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader,
};
use parquet::file::page_index::offset_index::PageLocation;

use super::check::{check_groups, check_stored};
use super::group_numbers::renumbered;
use super::shapes::{COLUMN_INDEX, OFFSET_INDEX};
use super::thrift::{Fields, is_whole};
use crate::storage::LocalFile;

/// Bytes asked for at the end of a file in the first request: most footers fit, and another request
/// costs more than they do.
const FIRST_BYTES: usize = 64 << 10;

/// Bytes asked for at the end of a local file. Another request costs little there, and every
/// process of a job reads the footers.
const FIRST_LOCAL_BYTES: usize = 8 << 10;

/// A file whose footer is read.
pub(in crate::formats) struct FooterOf<'a> {
    store: &'a Arc<dyn ObjectStore>,
    meta: &'a ObjectMeta,
    /// Bytes at the end of the file that are asked for first.
    first_bytes: usize,
    /// The file, once it was opened, if it is a local one: it is opened once.
    local: Option<LocalFile>,
    /// The ranges read so far, each with the offset of its first byte.
    read: Vec<(u64, Bytes)>,
}

impl<'a> FooterOf<'a> {
    /// The footer of a file, which may be a local one.
    ///
    /// # Errors
    /// Where a local file changed since it was pinned, or cannot be opened.
    pub(in crate::formats) async fn open(
        store: &'a Arc<dyn ObjectStore>,
        meta: &'a ObjectMeta,
        is_local: bool,
    ) -> object_store::Result<Self> {
        let (first_bytes, local) = match is_local {
            // Of an empty file nothing can be asked for; that it is one is told where its footer is
            // looked for.
            true if meta.size == 0 => (FIRST_LOCAL_BYTES, None),
            true => (FIRST_LOCAL_BYTES, LocalFile::open(store, &meta.location).await?),
            false => (FIRST_BYTES, None),
        };
        Ok(Self { store, meta, first_bytes, local, read: Vec::new() })
    }

    /// The footer without the page index.
    ///
    /// # Errors
    /// Where it cannot be read, or is damaged.
    pub(in crate::formats) async fn footer(&mut self) -> ParquetResult<ParquetMetaData> {
        let size = self.meta.size;
        let footer = ParquetMetaDataReader::new()
            .with_page_index_policy(PageIndexPolicy::Skip)
            .with_prefetch_hint(Some(self.first_bytes))
            .load_and_finish(&mut *self, size)
            .await;
        let footer = match footer {
            Ok(footer) => footer,
            Err(error) => match self.stored().and_then(|footer| renumbered(&footer)) {
                Some(footer) => footer?,
                None => return Err(error),
            },
        };
        check_groups(&footer)?;
        Ok(footer)
    }

    /// Loads the page index into a footer. Leaves it out if the file has none, or if it is damaged
    /// or impossible: rows can be found without it. Returns None if its parts do not fit each
    /// other, as parquet-go writes them for columns without bounds; the footer is lost with it.
    ///
    /// # Errors
    /// Where it cannot be read.
    pub(in crate::formats) async fn with_page_index(
        &mut self,
        footer: ParquetMetaData,
    ) -> ParquetResult<Option<ParquetMetaData>> {
        if !self.holds_index(&footer).await? {
            return without_index(footer).map(Some);
        }
        let mut reader = ParquetMetaDataReader::new_with_metadata(footer)
            .with_page_index_policy(PageIndexPolicy::Optional);
        // Its bytes are here: what fails now is what they say.
        if reader.load_page_index(&mut *self).await.is_err() {
            return Ok(None);
        }
        let footer = reader.finish()?;
        if index_can_be(&footer) { Ok(Some(footer)) } else { without_index(footer).map(Some) }
    }

    /// Reads the page index, unless it came with the footer. Whether all of it is there, and whole.
    async fn holds_index(&mut self, footer: &ParquetMetaData) -> ParquetResult<bool> {
        let Some(ranges) = index_ranges(footer).collect::<Option<Vec<_>>>() else {
            return Ok(false);
        };
        let places = ranges.iter().map(|(range, _)| range.clone());
        let all = places.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end));
        let Some(all) = all else { return Ok(true) };
        if all.end > self.meta.size {
            return Ok(false);
        }
        self.fetch(all).await?;
        let mut ranges = ranges.iter().map(|(range, fields)| (self.kept(range), *fields));
        Ok(ranges.all(|(bytes, fields)| bytes.is_some_and(|bytes| is_whole(&bytes, fields))))
    }

    /// A part of the bytes read so far, joined if it came in several reads, as for a footer that is
    /// longer than the first read.
    fn kept(&self, range: &Range<u64>) -> Option<Bytes> {
        let length = usize::try_from(range.end.checked_sub(range.start)?).ok()?;
        let from = |start: u64| {
            let found = self.read.iter().filter_map(|(first, bytes)| {
                let skipped = usize::try_from(start.checked_sub(*first)?).ok()?;
                (skipped <= bytes.len()).then(|| bytes.slice(skipped..))
            });
            found.max_by_key(Bytes::len)
        };
        let first = from(range.start)?;
        if first.len() >= length {
            return Some(first.slice(..length));
        }
        let mut parts =
            Vec::with_capacity(length.min(self.read.iter().map(|(_, read)| read.len()).sum()));
        parts.extend_from_slice(&first);
        while parts.len() < length {
            let next = from(range.start + parts.len() as u64).filter(|next| !next.is_empty())?;
            parts.extend_from_slice(&next[..next.len().min(length - parts.len())]);
        }
        Some(parts.into())
    }

    async fn fetch(&mut self, range: Range<u64>) -> ParquetResult<Bytes> {
        let bytes = match self.kept(&range) {
            Some(bytes) => bytes,
            None => {
                let bytes = match &self.local {
                    Some(file) => {
                        let read = file.read(std::slice::from_ref(&range)).await;
                        read.map(|read| read.into_iter().next().unwrap_or_default())
                    }
                    None => self.store.get_range(&self.meta.location, range.clone()).await,
                };
                let bytes = bytes.map_err(|error| ParquetError::External(Box::new(error)))?;
                self.read.push((range.start, bytes.clone()));
                bytes
            }
        };
        self.check()?;
        Ok(bytes)
    }

    /// Looks at the footer as soon as all of it was read.
    fn check(&self) -> ParquetResult<()> {
        self.stored().map_or(Ok(()), |footer| check_stored(&footer))
    }

    /// The stored footer, if all of it was read.
    fn stored(&self) -> Option<Bytes> {
        let end = self.meta.size;
        let tail = self.kept(&(end.saturating_sub(FOOTER_SIZE as u64)..end))?;
        let length = tail.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))?;
        let end = end.checked_sub(FOOTER_SIZE as u64)?;
        self.kept(&(end.saturating_sub(u64::from(length))..end))
    }
}

impl MetadataFetch for &mut FooterOf<'_> {
    fn fetch(&mut self, range: Range<u64>) -> BoxFuture<'_, ParquetResult<Bytes>> {
        FooterOf::fetch(self, range).boxed()
    }
}

/// Removes all references to page indexes from a footer. Otherwise every reader of the file would
/// look for them again.
pub(in crate::formats) fn without_index(footer: ParquetMetaData) -> ParquetResult<ParquetMetaData> {
    let mut without = footer.into_builder().set_column_index(None).set_offset_index(None);
    for group in without.take_row_groups() {
        let columns = group.columns().iter().map(|column| {
            let column = column.clone().into_builder();
            let column = column.set_column_index_offset(None).set_column_index_length(None);
            column.set_offset_index_offset(None).set_offset_index_length(None).build()
        });
        let columns = columns.collect::<ParquetResult<_>>()?;
        without = without.add_row_group(group.into_builder().set_column_metadata(columns).build()?);
    }
    Ok(without.build())
}

/// Returns true if pages can lie where the page index says, and have the rows that it says. Whoever
/// prunes and reads by it trusts it.
fn index_can_be(footer: &ParquetMetaData) -> bool {
    let Some(index) = footer.offset_index() else { return true };
    footer.row_groups().iter().zip(index).all(|(group, index)| {
        let rows = u64::try_from(group.num_rows()).unwrap_or(0);
        // Of a row group without rows nothing is read.
        rows == 0
            || group.columns().iter().zip(index).all(|(column, index)| {
                let (start, length) = column.byte_range();
                pages_can_be(index.page_locations(), start..start.saturating_add(length), rows)
            })
    })
}

/// Checks the page locations of one chunk that has `rows` rows, at least one.
fn pages_can_be(pages: &[PageLocation], chunk: Range<u64>, rows: u64) -> bool {
    let (mut at, mut firsts) = (chunk.start, 0..1);
    !pages.is_empty()
        && pages.iter().all(|page| {
            let numbers = [page.offset, page.compressed_page_size.into(), page.first_row_index];
            let [Ok(start), Ok(size), Ok(first)] = numbers.map(u64::try_from) else { return false };
            let fits = start >= at && size > 0 && firsts.contains(&first);
            at = start.saturating_add(size);
            // The first page begins with the first row, and no other does.
            firsts = first.saturating_add(1)..rows;
            fits && at <= chunk.end
        })
}

/// The places and kinds of all columns' page indexes; None for an impossible place.
fn index_ranges(
    footer: &ParquetMetaData,
) -> impl Iterator<Item = Option<(Range<u64>, Fields)>> + '_ {
    let columns = footer.row_groups().iter().flat_map(|group| group.columns());
    columns.flat_map(|column: &ColumnChunkMetaData| {
        let range =
            |offset: Option<i64>, length: Option<i32>, fields: Fields| {
                let (offset, length) = (offset?, length?);
                let place = u64::try_from(offset).ok().zip(u64::try_from(length).ok());
                Some(place.and_then(|(offset, length)| {
                    Some((offset..offset.checked_add(length)?, fields))
                }))
            };
        [
            range(column.column_index_offset(), column.column_index_length(), COLUMN_INDEX),
            range(column.offset_index_offset(), column.offset_index_length(), OFFSET_INDEX),
        ]
        .into_iter()
        .flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By where a page lies, its bytes, and its first row.
    fn can_be(pages: &[(i64, i32, i64)], rows: u64) -> bool {
        let page =
            |(offset, compressed_page_size, first_row_index): &(i64, i32, i64)| PageLocation {
                offset: *offset,
                compressed_page_size: *compressed_page_size,
                first_row_index: *first_row_index,
            };
        pages_can_be(&pages.iter().map(page).collect::<Vec<_>>(), 100..200, rows)
    }

    #[test]
    fn pages_lie_one_after_the_other_and_each_has_rows() {
        // With a dictionary before the first, and something between two.
        assert!(can_be(&[(110, 20, 0), (130, 30, 7), (170, 30, 8)], 9));
        assert!(can_be(&[(100, 100, 0)], 1));
        for (name, pages) in [
            ("no page", &[][..]),
            ("before the chunk", &[(99, 10, 0)]),
            ("behind it", &[(100, 101, 0)]),
            ("without bytes", &[(100, 50, 0), (150, 0, 5)]),
            ("with fewer", &[(100, 50, 0), (150, -1, 5)]),
            ("within the one before", &[(100, 50, 0), (149, 10, 5)]),
            ("one before the other", &[(150, 10, 0), (100, 10, 5)]),
            ("at no place", &[(-5, 10, 0)]),
            ("the first begins later", &[(100, 10, 1)]),
            ("the first begins earlier", &[(100, 10, -1)]),
            ("two begin with one row", &[(100, 10, 0), (110, 10, 0)]),
            ("a later one begins earlier", &[(100, 10, 0), (110, 10, 6), (120, 10, 5)]),
            ("one begins behind all rows", &[(100, 10, 0), (110, 10, 9)]),
            ("far behind them", &[(100, 10, 0), (110, 10, i64::MAX)]),
        ] {
            assert!(!can_be(pages, 9), "{name}");
        }
    }
}
