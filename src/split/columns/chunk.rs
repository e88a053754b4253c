//! Column chunks in memory, as the reader of the `parquet` crate takes them: all their pages, or shortened ones.

use std::sync::Arc;

use bytes::Bytes;
use bytes::buf::{Buf, Reader};
use parquet::column::page::{Page, PageIterator, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::serialized_reader::SerializedPageReader;

use super::compact::PageLayout;

/// A column chunk, at its place in the file.
pub(super) struct Chunk {
    pub(super) start: u64,
    pub(super) bytes: Bytes,
}

impl Chunk {
    fn range(&self, start: u64, length: usize) -> Result<Bytes> {
        let at = start.checked_sub(self.start).and_then(|at| usize::try_from(at).ok());
        let found = at
            .and_then(|at| Some(at..at.checked_add(length)?))
            .filter(|range| range.end <= self.bytes.len())
            .map(|range| self.bytes.slice(range));
        found.ok_or_else(|| {
            ParquetError::EOF(format!("{length} bytes at {start} are not in the column chunk"))
        })
    }
}

impl Length for Chunk {
    fn len(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

impl ChunkReader for Chunk {
    type T = Reader<Bytes>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        let length = usize::try_from(self.len().saturating_sub(start))?;
        Ok(self.range(start, length)?.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        self.range(start, length)
    }
}

/// The pages of `chunk`, which has `rows` rows: as they are, or of the rows `places` alone where they can be shortened.
///
/// # Errors
/// Where the chunk's metadata is damaged.
pub(super) fn pages(
    chunk: &Arc<Chunk>,
    metadata: &ColumnChunkMetaData,
    rows: usize,
    places: Option<&Arc<[u32]>>,
) -> Result<Box<dyn PageIterator>> {
    let reader = SerializedPageReader::new(Arc::clone(chunk), metadata, rows, None)?;
    let pages: Box<dyn PageReader> = match (places, PageLayout::of(metadata)) {
        (Some(places), Some(layout)) => Box::new(ShortPages {
            reader,
            layout,
            places: Arc::clone(places),
            at: 0,
            row: 0,
            peeked: None,
        }),
        _ => Box::new(reader),
    };
    Ok(Box::new(OneChunk(Some(pages))))
}

struct OneChunk(Option<Box<dyn PageReader>>);

impl Iterator for OneChunk {
    type Item = Result<Box<dyn PageReader>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.take().map(Ok)
    }
}

impl PageIterator for OneChunk {}

/// Pages of the rows `places` of a row group alone; pages of which no row is wanted are left out.
struct ShortPages {
    reader: SerializedPageReader<Chunk>,
    layout: PageLayout,
    places: Arc<[u32]>,
    /// How many of `places` were passed, and how many rows of the row group.
    at: usize,
    row: u32,
    /// The page after the last that was taken, if somebody looked at it.
    peeked: Option<Page>,
}

impl ShortPages {
    fn advance(&mut self) -> Result<Option<Page>> {
        while let Some(page) = self.reader.get_next_page()? {
            if matches!(page, Page::DictionaryPage { .. }) {
                return Ok(Some(page));
            }
            let first = self.row;
            self.row = first.saturating_add(page.num_values());
            let rest = &self.places[self.at..];
            let here = &rest[..rest.partition_point(|place| *place < self.row)];
            self.at += here.len();
            if !here.is_empty() {
                return self.layout.compact(&page, first, here).map(Some);
            }
        }
        Ok(None)
    }
}

impl Iterator for ShortPages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for ShortPages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        match self.peeked.take() {
            Some(page) => Ok(Some(page)),
            None => self.advance(),
        }
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        if self.peeked.is_none() {
            self.peeked = self.advance()?;
        }
        Ok(self.peeked.as_ref().map(|page| {
            let is_dict = matches!(page, Page::DictionaryPage { .. });
            let rows = (!is_dict).then(|| page.num_values() as usize);
            PageMetadata { num_rows: rows, num_levels: rows, is_dict }
        }))
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.get_next_page().map(drop)
    }
}
