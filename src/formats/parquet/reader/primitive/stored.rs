//! Where the bytes of a column chunk are: in memory, or in a local file from which its pages are
//! read when they are decoded.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parquet::errors::Result;
use parquet::schema::types::ColumnPath;

use super::damaged;
use super::heads::Head;
use crate::formats::parquet::pages::{check_page, check_sum, wrong};
use crate::formats::parquet::reader::chunk::{Chunk, Indexed};
use crate::formats::parquet::thrift::{PageHeader, page_header};
use crate::storage::LocalFile;

/// Bytes read from a file to find the header of a page of numbers. No header is longer, unless its
/// writer added unusual fields.
const HEADER_BYTES: u64 = 256;

/// A column chunk.
pub(in crate::formats::parquet::reader) enum Stored {
    /// The whole chunk is in memory, or its wanted pages are.
    Read(Arc<Chunk>),
    /// It is this range of a local file.
    File(LocalFile, Range<u64>),
}

impl From<&Arc<Chunk>> for Stored {
    fn from(chunk: &Arc<Chunk>) -> Self {
        Self::Read(Arc::clone(chunk))
    }
}

#[cfg(test)]
impl From<&Bytes> for Stored {
    fn from(bytes: &Bytes) -> Self {
        Self::Read(Arc::new(Chunk::whole(4, bytes.clone())))
    }
}

impl Stored {
    /// Its bytes, in all.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Read(chunk) => chunk.bytes(),
            Self::File(_, range) => {
                usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX)
            }
        }
    }

    /// Returns true if they are in memory, as far as they are wanted.
    pub(super) fn is_read(&self) -> bool {
        matches!(self, Self::Read(_))
    }

    /// The page index's entry for the data page that begins at `at`, if only some pages are in
    /// memory.
    pub(super) fn indexed(&self, at: usize) -> Option<Indexed> {
        match self {
            Self::Read(chunk) => chunk.indexed(at),
            Self::File(..) => None,
        }
    }

    /// The header of a page that begins at `at`. None if there is none, if its sizes are
    /// implausible, or if the system does not have it in memory.
    pub(super) fn header(&self, at: usize) -> Option<PageHeader> {
        let (file, range) = match self {
            Self::Read(chunk) => return page_header(chunk.from(at)?),
            Self::File(file, range) => (file, range),
        };
        let start = range.start.checked_add(at as u64)?;
        let end = range.end.min(start.saturating_add(HEADER_BYTES));
        // Whatever is wrong with the file is found, and told, where all of the chunk is read.
        let read = file.read_cached(std::slice::from_ref(&(start..end))).ok()??;
        let header = page_header(read.first()?)?;
        check_page(&header).is_ok().then_some(header)
    }

    /// All pages of a column, before any is taken.
    pub(super) fn pages(self, column: &ColumnPath) -> Pages {
        match self {
            Self::Read(chunk) => Pages::Read(Some(chunk)),
            Self::File(_, range) => {
                Pages::File { start: range.start, here: Vec::new(), column: column.clone() }
            }
        }
    }
}

/// The pages of a chunk on their way to be decompressed.
pub(super) enum Pages {
    /// They are in memory; None where none is needed any more.
    Read(Option<Arc<Chunk>>),
    /// The pages lie in a file from `start` on; the ones read so far, by their place in the chunk.
    File { start: u64, here: Vec<(usize, Bytes)>, column: ColumnPath },
}

impl Pages {
    /// The bytes of a page; one that is read from a file is taken out.
    ///
    /// # Errors
    /// Where it was not read, or is another than its checksum says; pages of chunks were looked at
    /// when those were read.
    pub(super) fn take(&mut self, page: &Head) -> Result<Bytes> {
        match self {
            Self::Read(Some(chunk)) => chunk.slice(&page.stored),
            Self::Read(None) => Err(damaged("it was not read")),
            Self::File { here, column, .. } => {
                let place = here.iter().position(|(at, _)| *at == page.stored.start);
                let place = place.ok_or_else(|| damaged("it was not read"))?;
                let (_, stored) = here.swap_remove(place);
                check_sum(&stored, page.checksum).map_err(|what| wrong(column, &what))?;
                Ok(stored)
            }
        }
    }

    /// Where the page is to be read in the file; None where that was done.
    pub(super) fn missing(&self, stored: &Range<usize>) -> Option<Range<u64>> {
        match self {
            Self::File { start, here, .. } if here.iter().all(|(at, _)| *at != stored.start) => {
                Some(start + stored.start as u64..start + stored.end as u64)
            }
            _ => None,
        }
    }

    /// Takes the bytes read from the file at `range`.
    pub(super) fn put(&mut self, range: &Range<u64>, bytes: Bytes) {
        if let Self::File { start, here, .. } = self {
            here.push(((range.start - *start) as usize, bytes));
        }
    }

    /// No page is needed any more: the bytes read serve the next chunk.
    pub(super) fn clear(&mut self) {
        if let Self::Read(chunk) = self {
            *chunk = None;
        }
    }
}
