//! Decompressing a block, up to a limit.

use std::borrow::Cow;
use std::io::{Cursor as IoCursor, Read};

use bytes::Bytes;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use flate2::read::DeflateDecoder;

use super::wire::damaged;
use crate::bounds::AVRO_BLOCK;
use crate::{Error, Result, error::plain_text};

/// The highest ratio of snappy: three bytes stand for 64.
const SNAPPY_RATIO: usize = 22;

/// How blocks are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Codec {
    Null,
    Deflate,
    Snappy,
    Zstandard,
    Bzip2,
    Xz,
}

impl Codec {
    /// By the name in the file's header; None there means not compressed.
    ///
    /// # Errors
    /// `Data` for a name that is not known.
    pub fn of(name: Option<&[u8]>) -> Result<Self> {
        Ok(match name {
            None | Some(b"null") => Self::Null,
            Some(b"deflate") => Self::Deflate,
            Some(b"snappy") => Self::Snappy,
            Some(b"zstandard") => Self::Zstandard,
            Some(b"bzip2") => Self::Bzip2,
            Some(b"xz") => Self::Xz,
            Some(other) => {
                return Err(Error::data(format!(
                    "its blocks are compressed by {:?}; null, deflate, snappy, zstandard, bzip2 and xz are \
                     read",
                    String::from_utf8_lossy(other)
                )));
            }
        })
    }

    fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Deflate => "deflate",
            Self::Snappy => "snappy",
            Self::Zstandard => "zstandard",
            Self::Bzip2 => "bzip2",
            Self::Xz => "xz",
        }
    }

    /// The bytes of a block as they were before they were compressed.
    ///
    /// # Errors
    /// `Data` where they are damaged, or become larger than a block of this size may.
    pub fn decompress(self, block: &Bytes) -> Result<Cow<'_, [u8]>> {
        let read = IoCursor::new(block.clone());
        let with =
            |kind: FileCompressionType| self.read_all(kind.convert_read(read.clone())?, block);
        let bytes = match self {
            Self::Null => return Ok(Cow::Borrowed(block)),
            Self::Deflate => self.read_all(DeflateDecoder::new(read), block)?,
            Self::Snappy => snappy(block)?,
            Self::Zstandard => with(FileCompressionType::ZSTD)?,
            Self::Bzip2 => with(FileCompressionType::BZIP2)?,
            Self::Xz => with(FileCompressionType::XZ)?,
        };
        Ok(Cow::Owned(bytes))
    }

    fn read_all(self, reader: impl Read, block: &Bytes) -> Result<Vec<u8>> {
        let limit = limit(block.len());
        let mut bytes = Vec::new();
        reader.take(limit + 1).read_to_end(&mut bytes).map_err(|error| {
            let what = plain_text(&error.to_string());
            damaged(&format!("a block cannot be decompressed by {}: {what}", self.name()))
        })?;
        match bytes.len() as u64 > limit {
            true => Err(too_large(block.len(), limit)),
            false => Ok(bytes),
        }
    }
}

fn limit(stored: usize) -> u64 {
    AVRO_BLOCK.unpacked(stored as u64)
}

fn too_large(stored: usize, limit: u64) -> Error {
    AVRO_BLOCK.error(&format!("a block of {stored} bytes becomes"), limit)
}

/// Decompresses snappy's raw form, followed by four bytes of the result's checksum.
fn snappy(block: &[u8]) -> Result<Vec<u8>> {
    let short = || damaged("a block cannot be decompressed by snappy: it ends too early");
    let (compressed, checksum) = block.split_last_chunk::<4>().ok_or_else(short)?;
    let mut rest = compressed;
    let mut length: u64 = 0;
    for shift in (0..35).step_by(7) {
        let (byte, after) = rest.split_first().ok_or_else(short)?;
        rest = after;
        length |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    if length > limit(block.len()) {
        return Err(too_large(block.len(), limit(block.len())));
    }
    let length = length as usize;
    if length > rest.len().saturating_mul(SNAPPY_RATIO) + 64 {
        return Err(damaged("a block says that snappy made it smaller than snappy can"));
    }
    let mut bytes = Vec::with_capacity(length);
    while let Some((tag, after)) = rest.split_first() {
        rest = after;
        let size = usize::from(tag >> 2);
        let mut take = |count: usize| -> Result<&[u8]> {
            let (taken, after) = rest.split_at_checked(count).ok_or_else(short)?;
            rest = after;
            Ok(taken)
        };
        let number =
            |bytes: &[u8]| bytes.iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
        let (offset, count) = match tag & 3 {
            0 => {
                let count = if size < 60 { size } else { number(take(size - 59)?) } + 1;
                bytes.extend_from_slice(take(count)?);
                if bytes.len() > length {
                    return Err(damaged("a block becomes larger than snappy says"));
                }
                continue;
            }
            1 => (usize::from(tag >> 5) << 8 | number(take(1)?), 4 + (size & 7)),
            2 => (number(take(2)?), size + 1),
            _ => (number(take(4)?), size + 1),
        };
        if offset == 0 || offset > bytes.len() || bytes.len() + count > length {
            return Err(damaged("a block cannot be decompressed by snappy: a copy from nowhere"));
        }
        let start = bytes.len() - offset;
        match offset >= count {
            true => bytes.extend_from_within(start..start + count),
            // The copy reads what it writes.
            false => (start..start + count).for_each(|at| bytes.push(bytes[at])),
        }
    }
    if bytes.len() != length || crc32fast::hash(&bytes).to_be_bytes() != *checksum {
        return Err(damaged("a block is not what its checksum says"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snappy_repeats_what_it_writes() {
        // "ab" as it is, then ten bytes from two before.
        let mut block = vec![12, 1 << 2, b'a', b'b', 9 << 2 | 2, 2, 0];
        block.extend(crc32fast::hash(b"abababababab").to_be_bytes());
        assert_eq!(snappy(&block).unwrap(), b"abababababab");
        for at in 0..block.len() {
            let mut damaged = block.clone();
            damaged[at] ^= 0x41;
            assert!(snappy(&damaged).is_err() || damaged == block, "byte {at}");
            assert!(snappy(&block[..at]).is_err());
        }
    }

    #[test]
    fn a_block_does_not_become_huge() {
        let mut encoder =
            flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::best());
        let zeros = vec![0; 1 << 20];
        for _ in 0..80 {
            std::io::Write::write_all(&mut encoder, &zeros).unwrap();
        }
        let block = Bytes::from(encoder.finish().unwrap());
        let error = Codec::Deflate.decompress(&block).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("becomes more than"), "{error}");
    }
}
