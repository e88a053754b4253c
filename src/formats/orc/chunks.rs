//! Compressed chunks of ORC: how large they become, before they are decompressed.
//! <https://orc.apache.org/specification/ORCv1/#compression>.
//!
//! `orc-rust` decompresses a chunk without an end, whatever the file says of its size. Most codecs
//! say how large a chunk becomes, or cannot gain much; a chunk of deflate must be counted where the
//! highest ratio would be too much.

use std::io::{Read, copy, sink};

use bytes::Bytes;
use flate2::read::DeflateDecoder;

use crate::{Error, Result};

/// Bytes of a chunk's header: its length, and whether it is compressed.
const HEADER: usize = 3;

/// The highest ratio of deflate.
const ZLIB_TIMES: u64 = 1032;

/// The highest ratio of LZO and LZ4: a byte of a match length stands for 255 bytes.
const LZ_TIMES: u64 = 255;

/// The most that a block of a zstd frame becomes.
const ZSTD_BLOCK: u64 = 128 << 10;

/// How the chunks of a file are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Codec {
    Zlib,
    Snappy,
    Lzo,
    Lz4,
    Zstd,
}

impl Codec {
    /// By its number in the postscript; None for files that are not compressed.
    pub fn of(number: u64) -> Option<Self> {
        match number {
            1 => Some(Self::Zlib),
            2 => Some(Self::Snappy),
            3 => Some(Self::Lzo),
            4 => Some(Self::Lz4),
            5 => Some(Self::Zstd),
            _ => None,
        }
    }

    /// Bytes that a compressed chunk becomes, at most. Looks at its first bytes, or at the headers
    /// of its blocks.
    fn most(self, chunk: &[u8]) -> Result<u64> {
        let stored = chunk.len() as u64;
        Ok(match self {
            Self::Zlib => stored.saturating_mul(ZLIB_TIMES),
            Self::Lzo | Self::Lz4 => stored.saturating_mul(LZ_TIMES),
            Self::Snappy => snappy_length(chunk),
            Self::Zstd => zstd_most(chunk).ok_or_else(|| damaged("is no frame of zstd"))?,
        })
    }
}

/// Bytes that the chunks of a stream become.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Unpacked {
    pub largest: u64,
    pub all: u64,
}

impl Unpacked {
    /// An upper bound, from the headers of the chunks.
    ///
    /// # Errors
    /// `Data` where a chunk is cut off, or none of the codec.
    pub fn most(stream: &Bytes, codec: Option<Codec>) -> Result<Self> {
        Self::by(stream, codec, |codec, chunk| codec.most(chunk))
    }

    /// An upper bound as [`most`](Self::most), for which chunks of deflate are decompressed and
    /// counted up to `enough` bytes each.
    ///
    /// # Errors
    /// As [`most`](Self::most).
    pub fn counted(stream: &Bytes, codec: Option<Codec>, enough: u64) -> Result<Self> {
        Self::by(stream, codec, |codec, chunk| match codec {
            // Damage is the decoder's to tell.
            Codec::Zlib if codec.most(chunk)? > enough => {
                let mut counted = DeflateDecoder::new(chunk).take(enough.saturating_add(1));
                Ok(copy(&mut counted, &mut sink()).unwrap_or(0))
            }
            _ => codec.most(chunk),
        })
    }

    fn by(
        stream: &Bytes,
        codec: Option<Codec>,
        becomes: impl Fn(Codec, &[u8]) -> Result<u64>,
    ) -> Result<Self> {
        let Some(codec) = codec else { return Ok(Self { largest: 0, all: stream.len() as u64 }) };
        let (mut rest, mut found) = (stream.as_ref(), Self::default());
        while !rest.is_empty() {
            let cut = || damaged("is cut off");
            let (header, after) = rest.split_first_chunk::<HEADER>().ok_or_else(cut)?;
            let header = u32::from_le_bytes([header[0], header[1], header[2], 0]);
            let (chunk, after) = after.split_at_checked((header >> 1) as usize).ok_or_else(cut)?;
            rest = after;
            let bytes = match header & 1 {
                1 => chunk.len() as u64,
                _ => becomes(codec, chunk)?,
            };
            found.largest = found.largest.max(bytes);
            found.all = found.all.saturating_add(bytes);
        }
        Ok(found)
    }
}

fn damaged(what: &str) -> Error {
    Error::data(format!("the ORC file is damaged: a compressed chunk {what}"))
}

/// The length that a block of snappy begins with; the decoder keeps to it.
fn snappy_length(chunk: &[u8]) -> u64 {
    let mut length = 0;
    for (byte, place) in chunk.iter().take(5).zip(0..) {
        length |= u64::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            break;
        }
    }
    length
}

/// The sum of what the blocks of zstd frames become at most; None where they are none.
/// <https://datatracker.ietf.org/doc/html/rfc8878#name-frames>.
fn zstd_most(mut rest: &[u8]) -> Option<u64> {
    const MAGIC: u32 = 0xfd2f_b528;
    const SKIPPED: u32 = 0x0184_d2a5;
    let mut most = 0_u64;
    while !rest.is_empty() {
        let (magic, after) = rest.split_first_chunk::<4>()?;
        let magic = u32::from_le_bytes(*magic);
        if magic >> 4 == SKIPPED {
            let (length, after) = after.split_first_chunk::<4>()?;
            rest = after.get(u32::from_le_bytes(*length) as usize..)?;
            continue;
        }
        let (descriptor, after) = after.split_first()?;
        let is_single = descriptor & 0x20 != 0;
        let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
        let size = [usize::from(is_single), 2, 4, 8][usize::from(descriptor >> 6)];
        rest = after.get(usize::from(!is_single) + dictionary + size..)?;
        if magic != MAGIC {
            return None;
        }
        loop {
            let (header, after) = rest.split_first_chunk::<3>()?;
            let header = u32::from_le_bytes([header[0], header[1], header[2], 0]);
            let size = u64::from(header >> 3);
            let (stored, becomes) = match header >> 1 & 3 {
                0 => (size, size),
                1 => (1, size),
                2 => (size, ZSTD_BLOCK),
                _ => return None,
            };
            most = most.saturating_add(becomes);
            rest = after.get(stored as usize..)?;
            if header & 1 == 1 {
                break;
            }
        }
        let checksum = if descriptor & 4 != 0 { 4 } else { 0 };
        rest = rest.get(checksum..)?;
    }
    Some(most)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::DeflateEncoder;

    use super::*;

    fn chunk(bytes: &[u8], is_original: bool) -> Vec<u8> {
        let header = (bytes.len() as u32) << 1 | u32::from(is_original);
        [&header.to_le_bytes()[..HEADER], bytes].concat()
    }

    #[test]
    fn deflate_is_counted_where_its_ratio_could_be_too_much() {
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(&[0; 100_000]).unwrap();
        let packed = encoder.finish().unwrap();
        let stream = Bytes::from([chunk(b"abc", true), chunk(&packed, false)].concat());
        let zlib = Some(Codec::Zlib);
        let highest = packed.len() as u64 * ZLIB_TIMES;
        let most = Unpacked::most(&stream, zlib).unwrap();
        assert_eq!(most, Unpacked { largest: highest, all: highest + 3 });
        let counted = |enough| Unpacked::counted(&stream, zlib, enough).unwrap().largest;
        assert_eq!(counted(highest), highest);
        assert_eq!(counted(100_000), 100_000);
        assert_eq!(counted(99_999), 100_000);
        assert_eq!(counted(5_000), 5_001);
        assert!(Unpacked::most(&stream.slice(..stream.len() - 1), zlib).is_err());
        assert_eq!(Unpacked::most(&stream, None).unwrap().largest, 0);
    }

    #[test]
    fn snappy_and_zstd_say_what_they_become() {
        let snappy = Bytes::from(chunk(&[0xa0, 0x8d, 0x06, 0], false));
        assert_eq!(Unpacked::most(&snappy, Some(Codec::Snappy)).unwrap().largest, 100_000);
        for level in [1, 19] {
            for bytes in [0, 1, 100, 1000, 1 << 20] {
                let text = vec![7; bytes];
                let packed = zstd::bulk::compress(&text, level).unwrap();
                let twice = Bytes::from(chunk(&[packed.clone(), packed].concat(), false));
                let most = Unpacked::most(&twice, Some(Codec::Zstd)).unwrap().largest;
                let bytes = 2 * bytes as u64;
                assert!((bytes..=bytes + 4 * ZSTD_BLOCK).contains(&most), "{most} for {bytes}");
            }
        }
        let none = Bytes::from(chunk(b"no frame", false));
        assert!(Unpacked::most(&none, Some(Codec::Zstd)).is_err());
    }
}
