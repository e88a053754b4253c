//! Column chunks in memory, all of them or some of their pages, as the reader of the `parquet`
//! crate takes them: as they are, or shortened.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use bytes::buf::{Buf, Reader};
use parquet::basic::PageType;
use parquet::column::page::{Page, PageIterator, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::page_index::offset_index::PageLocation;
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::serialized_reader::SerializedPageReader;

use super::damaged;
use super::page_filter::PageLayout;
use super::unpacked::Unpacked;
use crate::formats::parquet::thrift::page_header;

/// As the format numbers it.
const DATA_V2: i64 = PageType::DATA_PAGE_V2 as i64;

/// A column chunk, or some of its pages, at their place in the file.
pub(super) struct Chunk {
    range: Range<u64>,
    /// Parts of the chunk in memory, each with its offset in the file, ascending.
    pieces: Vec<(u64, Bytes)>,
    /// Where its data pages lie, by the page index, and how many rows they have. Empty where all of
    /// the chunk is here.
    index: Vec<PageLocation>,
    rows: usize,
}

/// The page index's entry for a data page.
pub(super) struct Indexed {
    pub(super) rows: u32,
    /// Where it ends in the chunk.
    pub(super) end: usize,
    pub(super) is_here: bool,
}

impl Chunk {
    /// All of a chunk that begins at `start`.
    #[cfg(test)]
    pub(super) fn whole(start: u64, bytes: Bytes) -> Self {
        let range = start..start + bytes.len() as u64;
        Self { range, pieces: vec![(start, bytes)], index: Vec::new(), rows: 0 }
    }

    /// The given pages, ascending, among those of the chunk in `range`; they have so many `rows`.
    /// The `index` lists the data pages. Bytes before them, a dictionary, count as one page.
    ///
    /// # Errors
    /// `Data` if a page differs from its entry in the index, which decided the reads. The number of
    /// rows of a page is unknown if the column `repeats`.
    pub(super) fn part(
        range: Range<u64>,
        pieces: Vec<(u64, Bytes)>,
        index: Vec<PageLocation>,
        rows: usize,
        repeats: bool,
    ) -> Result<Self> {
        let chunk = Self { range, pieces, index, rows };
        for (start, piece) in &chunk.pieces {
            let at = usize::try_from(start.saturating_sub(chunk.range.start))?;
            let Some(page) = chunk.indexed(at) else { continue };
            let header = page_header(piece).ok_or_else(|| damaged("it has no header"))?;
            let rows = header.details[3].filter(|_| header.kind == Some(DATA_V2));
            // Values are rows where none has several.
            let values = header.details[1].filter(|_| !repeats);
            let other = [rows, values].into_iter().flatten().find(|n| *n != i64::from(page.rows));
            if let Some(rows) = other {
                let says = page.rows;
                return Err(damaged(format!("it has {rows} rows, and {says} by the page index")));
            }
            let end = usize::try_from(header.stored)?.saturating_add(header.length);
            if end != piece.len() {
                return Err(damaged("its bytes differ from the page index"));
            }
        }
        Ok(chunk)
    }

    /// Joins the parts of several chunks, for a reader that is told where their pages lie.
    pub(super) fn together<'a>(chunks: impl Iterator<Item = &'a Arc<Self>>) -> Self {
        let pieces = chunks.flat_map(|chunk| chunk.pieces.iter().cloned());
        let mut pieces: Vec<(u64, Bytes)> = pieces.collect();
        pieces.sort_by_key(|(start, _)| *start);
        let end = pieces.last().map_or(0, |(start, piece)| start + piece.len() as u64);
        Self { range: 0..end, pieces, index: Vec::new(), rows: 0 }
    }

    /// Returns true if a page is missing between two that are here.
    pub(super) fn has_gaps(&self) -> bool {
        let is_here = |page: &PageLocation| self.find(page.offset as u64).is_some();
        let mut pages = self.index.iter().map(is_here).skip_while(|is_here| !is_here);
        pages.any(|is_here| !is_here) && pages.any(|is_here| is_here)
    }

    /// Its bytes, in all.
    pub(super) fn bytes(&self) -> usize {
        usize::try_from(self.range.end.saturating_sub(self.range.start)).unwrap_or(usize::MAX)
    }

    /// The page that begins at `at` in the chunk, where only some pages are here.
    pub(super) fn indexed(&self, at: usize) -> Option<Indexed> {
        let start = self.range.start.checked_add(at as u64)?;
        let number = self
            .index
            .binary_search_by_key(&i64::try_from(start).ok()?, |page| page.offset)
            .ok()?;
        let page = &self.index[number];
        let next = self.index.get(number + 1).map(|next| next.first_row_index);
        let end = next.or_else(|| i64::try_from(self.rows).ok())?;
        Some(Indexed {
            rows: u32::try_from(end.checked_sub(page.first_row_index)?).ok()?,
            end: at.checked_add(usize::try_from(page.compressed_page_size).ok()?)?,
            is_here: self.from(at).is_some(),
        })
    }

    /// The bytes in memory from offset `at` of the chunk on.
    pub(super) fn from(&self, at: usize) -> Option<&[u8]> {
        let (piece, at) = self.find(self.range.start.checked_add(at as u64)?)?;
        piece.get(at..)
    }

    /// The bytes at `at` in the chunk.
    pub(super) fn slice(&self, at: &Range<usize>) -> Result<Bytes> {
        self.get(self.range.start.saturating_add(at.start as u64), at.len())
    }

    /// The piece that holds the byte at `start` of the file, and the place in it.
    fn find(&self, start: u64) -> Option<(&Bytes, usize)> {
        let number = self.pieces.partition_point(|(at, _)| *at <= start).checked_sub(1)?;
        let (first, piece) = &self.pieces[number];
        let at = usize::try_from(start - first).ok().filter(|at| *at < piece.len())?;
        Some((piece, at))
    }

    fn get(&self, start: u64, length: usize) -> Result<Bytes> {
        if length == 0 {
            return Ok(Bytes::new());
        }
        let found = self.find(start).and_then(|(piece, at)| {
            let end = at.checked_add(length).filter(|end| *end <= piece.len())?;
            Some(piece.slice(at..end))
        });
        found.ok_or_else(|| {
            ParquetError::EOF(format!("{length} bytes at {start} are not in the column chunk"))
        })
    }
}

impl Length for Chunk {
    fn len(&self) -> u64 {
        self.range.end
    }
}

impl ChunkReader for Chunk {
    type T = Reader<Bytes>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        let found = self.find(start).map(|(piece, at)| piece.slice(at..));
        Ok(found.unwrap_or_default().reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        self.get(start, length)
    }
}

/// The pages of `chunk`, which has `rows` rows: as they are, or of the rows `places` alone where
/// they can be shortened.
///
/// # Errors
/// Where the chunk's metadata is damaged.
pub(super) fn pages(
    chunk: &Arc<Chunk>,
    metadata: &ColumnChunkMetaData,
    rows: usize,
    places: Option<&Arc<[u32]>>,
) -> Result<Box<dyn PageIterator>> {
    let index = Some(&chunk.index).filter(|index| !index.is_empty()).cloned();
    let reader = SerializedPageReader::new(Arc::clone(chunk), metadata, rows, index)?;
    let reader = Unpacked::new(reader, metadata);
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

/// Pages that hold the rows `places` of a row group; pages without a wanted row are left out.
struct ShortPages {
    reader: Unpacked<SerializedPageReader<Chunk>>,
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
        while let Some(next) = self.reader.peek_next_page()? {
            if next.is_dict {
                return self.reader.get_next_page();
            }
            // The column is not nested, so that levels are rows.
            let rows = next.num_levels.or(next.num_rows).and_then(|rows| u32::try_from(rows).ok());
            let rows = rows.ok_or_else(|| damaged("it does not say how many rows it has"))?;
            let first = self.row;
            self.row = first.saturating_add(rows);
            let rest = &self.places[self.at..];
            let here = &rest[..rest.partition_point(|place| *place < self.row)];
            if here.is_empty() {
                self.reader.skip_next_page()?;
                continue;
            }
            self.at += here.len();
            let Some(page) = self.reader.get_next_page()? else { break };
            return self.layout.compact(&page, first, here).map(Some);
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
