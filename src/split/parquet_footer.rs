//! The footer of a Parquet file and its page index, as they come from a store. Both are looked at before they are decoded: see
//! `thrift.rs`.

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

use super::parquet_shapes::{COLUMN_INDEX, FOOTER, OFFSET_INDEX};
use super::thrift::{Fields, is_whole};
use crate::storage::LocalFile;

/// Bytes asked for at the end of a file in the first request: most footers fit, and another request costs more than they do.
const FIRST_BYTES: usize = 64 << 10;

/// The same of a local file, where it does not: every process of a job reads the footers.
const FIRST_LOCAL_BYTES: usize = 8 << 10;

/// A file whose footer is read.
pub(super) struct FooterOf<'a> {
    store: &'a Arc<dyn ObjectStore>,
    meta: &'a ObjectMeta,
    /// Bytes at the end of the file that are asked for first.
    first_bytes: usize,
    /// The file, once it was opened, if it is a local one: it is opened once.
    local: Option<LocalFile>,
    /// What was read, by its first byte.
    read: Vec<(u64, Bytes)>,
}

impl<'a> FooterOf<'a> {
    /// The footer of a file, which may be a local one.
    ///
    /// # Errors
    /// Where a local file changed since it was pinned, or cannot be opened.
    pub(super) async fn open(
        store: &'a Arc<dyn ObjectStore>,
        meta: &'a ObjectMeta,
        is_local: bool,
    ) -> object_store::Result<Self> {
        let (first_bytes, local) = match is_local {
            // Of an empty file nothing can be asked for; that it is one is told where its footer is looked for.
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
    pub(super) async fn footer(&mut self) -> ParquetResult<ParquetMetaData> {
        let size = self.meta.size;
        ParquetMetaDataReader::new()
            .with_page_index_policy(PageIndexPolicy::Skip)
            .with_prefetch_hint(Some(self.first_bytes))
            .load_and_finish(&mut *self, size)
            .await
    }

    /// The same footer with its page index; without one where the file has none, or it is damaged: what it says can be found
    /// without it.
    ///
    /// # Errors
    /// Where it cannot be read.
    pub(super) async fn with_page_index(
        &mut self,
        footer: ParquetMetaData,
    ) -> ParquetResult<ParquetMetaData> {
        if !self.holds_index(&footer).await? {
            return without_index(footer);
        }
        let mut reader = ParquetMetaDataReader::new_with_metadata(footer)
            .with_page_index_policy(PageIndexPolicy::Optional);
        reader.load_page_index(&mut *self).await?;
        reader.finish()
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

    /// A part of what was read, put together where it came in several reads, as a footer does that is longer than the first.
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
        let end = self.meta.size;
        let Some(tail) = self.kept(&(end.saturating_sub(FOOTER_SIZE as u64)..end)) else {
            return Ok(());
        };
        let Some(length) = tail.first_chunk().map(|bytes| u32::from_le_bytes(*bytes)) else {
            return Ok(());
        };
        let end = end - FOOTER_SIZE as u64;
        let footer = self.kept(&(end.saturating_sub(u64::from(length))..end));
        match footer {
            Some(footer) if !is_whole(&footer, FOOTER) => Err(ParquetError::General(
                "its footer is cut off, declares more than it holds, or has a field of another type than the format \
                 says"
                    .to_owned(),
            )),
            _ => Ok(()),
        }
    }
}

impl MetadataFetch for &mut FooterOf<'_> {
    fn fetch(&mut self, range: Range<u64>) -> BoxFuture<'_, ParquetResult<Bytes>> {
        FooterOf::fetch(self, range).boxed()
    }
}

/// The same footer, which says of no column that it has a page index: whoever reads the file would look for it again.
fn without_index(footer: ParquetMetaData) -> ParquetResult<ParquetMetaData> {
    let mut without = footer.into_builder();
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

/// Where the page indexes of all columns lie, and what they are; None for one at a place that is none.
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
