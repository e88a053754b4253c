//! The streams of a stripe: which there are, by its footer, and their bytes once they were read.

use std::collections::HashMap;
use std::io;
use std::ops::Range;

use arrow::array::timezone::Tz;
use bytes::{Buf, Bytes};
use orc_rust::reader::ChunkReader;
use orc_rust::schema::RootDataType;

use super::footer::OrcFooter;
use super::wire::fields;
use crate::bounds::{ORC_PARTS, ORC_SECTION};
use crate::{Error, Result};

/// Row indexes and Bloom filters.
const INDEX_STREAMS: [u64; 3] = [6, 7, 8];

/// Encodings of the specification; those of version 2 have their integers so.
const DICTIONARY: u64 = 1;
const DIRECT_V2: u64 = 2;
const DICTIONARY_V2: u64 = 3;

/// Streams and encodings of the columns, from a stripe's footer.
#[derive(Debug, Default)]
pub struct StripeFooter {
    pub(super) streams: Vec<StreamInfo>,
    encodings: Vec<Encoding>,
    pub(super) time_zone: Option<String>,
}

/// How the values of a type are encoded.
#[derive(Clone, Copy, Debug, Default)]
struct Encoding {
    kind: u64,
    /// Entries of its dictionary.
    dictionary: u64,
}

/// One stream of a stripe; they lie one after the other.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StreamInfo {
    pub kind: u64,
    /// The number of its type.
    pub column: u64,
    /// Bytes.
    pub length: u64,
}

impl StreamInfo {
    /// Returns true for row indexes and Bloom filters, which are not read.
    pub fn is_index(&self) -> bool {
        INDEX_STREAMS.contains(&self.kind)
    }
}

impl StripeFooter {
    /// Reads a stripe's footer from its bytes in the file.
    ///
    /// # Errors
    /// `Data` where it is damaged.
    pub fn read(footer: &OrcFooter, bytes: Bytes) -> Result<Self> {
        let message = footer.decompress(bytes, &ORC_SECTION)?;
        let mut found = Self::default();
        for (field, part) in fields(&message).zip(1..) {
            ORC_PARTS.check(part, "the footer of a stripe has")?;
            match field? {
                (1, stream) => {
                    let mut info = StreamInfo::default();
                    for field in fields(stream.bytes()?) {
                        match field? {
                            (1, kind) => info.kind = kind.number()?,
                            (2, column) => info.column = column.number()?,
                            (3, length) => info.length = length.number()?,
                            _ => {}
                        }
                    }
                    found.streams.push(info);
                }
                (2, encoding) => {
                    let mut read = Encoding::default();
                    for field in fields(encoding.bytes()?) {
                        match field? {
                            (1, number) => read.kind = number.number()?,
                            (2, number) => read.dictionary = number.number()?,
                            _ => {}
                        }
                    }
                    found.encodings.push(read);
                }
                (3, zone) => found.time_zone = Some(zone.text()?.to_owned()),
                _ => {}
            }
        }
        Ok(found)
    }

    /// Bytes of all streams except indexes, and bytes of the given root columns.
    pub fn bytes_of(&self, root: &RootDataType) -> (u64, u64) {
        let mut bytes = (0_u64, 0_u64);
        for stream in self.streams.iter().filter(|stream| !stream.is_index()) {
            bytes.0 = bytes.0.saturating_add(stream.length);
            // The root's own streams belong to no column.
            if stream.column > 0 && root.contains_column_index(stream.column as usize) {
                bytes.1 = bytes.1.saturating_add(stream.length);
            }
        }
        bytes
    }

    /// Where a stream of a type lies, in a stripe that begins at `offset`.
    pub(super) fn range_of(&self, offset: u64, column: usize, kind: u64) -> Option<Range<u64>> {
        let mut start = offset;
        for stream in &self.streams {
            let end = start + stream.length;
            if stream.column == column as u64 && stream.kind == kind {
                return Some(start..end);
            }
            start = end;
        }
        None
    }

    /// Returns true if integers of a type are encoded by version 2.
    pub(super) fn is_second(&self, column: usize) -> bool {
        self.encodings
            .get(column)
            .is_some_and(|encoding| matches!(encoding.kind, DIRECT_V2 | DICTIONARY_V2))
    }

    /// Entries of the dictionary of a type; None where its values are stored one by one.
    pub(super) fn dictionary(&self, column: usize) -> Option<u64> {
        let encoding = self.encodings.get(column)?;
        matches!(encoding.kind, DICTIONARY | DICTIONARY_V2).then_some(encoding.dictionary)
    }

    /// Refuses stripes that would crash the decoder.
    pub(super) fn check(&self, footer: &OrcFooter) -> Result<()> {
        if self.encodings.len() < footer.types() {
            return Err(Error::data(format!(
                "the ORC file is damaged: the stripe has {} columns, and the file has {}",
                self.encodings.len(),
                footer.types()
            )));
        }
        match &self.time_zone {
            // Arrow's time zones are those of the decoder, and offsets.
            Some(zone) if zone.starts_with(['+', '-']) || zone.parse::<Tz>().is_err() => {
                Err(Error::data(format!(
                    "the ORC file was written in the time zone {zone:?}, which is not in the time zone database; \
                     write it in UTC or in a zone like Europe/Berlin"
                )))
            }
            _ => Ok(()),
        }
    }
}

/// Ranges of a file that were read, each as it will be asked for.
#[derive(Debug, Default)]
pub(super) struct Chunks(HashMap<Range<u64>, Bytes>);

impl Chunks {
    pub fn insert(&mut self, range: Range<u64>, bytes: Bytes) {
        self.0.insert(range, bytes);
    }

    /// Nothing for a range that was not read.
    pub fn get(&self, range: &Range<u64>) -> Bytes {
        self.0.get(range).cloned().unwrap_or_default()
    }
}

impl ChunkReader for Chunks {
    type T = bytes::buf::Reader<Bytes>;

    fn len(&self) -> u64 {
        self.0.keys().map(|range| range.end).max().unwrap_or(0)
    }

    fn get_read(&self, offset: u64) -> io::Result<Self::T> {
        let chunk = self.0.iter().find(|(range, _)| range.start == offset);
        Ok(chunk.map(|(_, bytes)| bytes.clone()).unwrap_or_default().reader())
    }

    fn get_bytes(&self, offset: u64, length: u64) -> io::Result<Bytes> {
        self.0.get(&(offset..offset + length)).cloned().ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the decoder asks for bytes that were not read",
            )
        })
    }
}
