//! Pages decompressed into memory that is used again.

use std::cell::RefCell;

use bytes::Bytes;
use parquet::basic::Compression;
use parquet::errors::{ParquetError, Result};
use zstd::bulk::Decompressor;

use super::damaged;
use crate::pool::Pooled;

/// How pages are compressed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Codec {
    None,
    Snappy,
    Zstd,
    Lz4,
}

/// The bytes of a page.
pub(super) enum PageBytes {
    /// As they lie in the column chunk.
    Stored(Bytes),
    Unpacked(Pooled),
}

impl PageBytes {
    pub(super) fn as_slice(&self) -> &[u8] {
        match self {
            Self::Stored(bytes) => bytes,
            Self::Unpacked(memory) => memory.as_ref(),
        }
    }
}

thread_local! {
    /// Its tables are large, so that each decompression would begin with a page fault or two.
    static ZSTD: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

impl Codec {
    /// None for codecs that the `parquet` crate reads.
    pub(super) fn of(compression: Compression) -> Option<Self> {
        match compression {
            Compression::UNCOMPRESSED => Some(Self::None),
            Compression::SNAPPY => Some(Self::Snappy),
            Compression::ZSTD(_) => Some(Self::Zstd),
            Compression::LZ4_RAW => Some(Self::Lz4),
            _ => None,
        }
    }

    /// Decompresses `stored`, which must become `declared` bytes.
    ///
    /// # Errors
    /// Where it does not.
    pub(super) fn unpack(self, stored: Bytes, declared: usize) -> Result<PageBytes> {
        if let Self::None = self {
            return Ok(PageBytes::Stored(stored));
        }
        let mut memory = Pooled::new(declared);
        // A page without values has no bytes at all.
        if declared > 0 {
            let found = self.decompress(&stored, memory.as_mut_slice())?;
            if found != declared {
                return Err(damaged(format!("it becomes {found} bytes and not {declared}")));
            }
        }
        Ok(PageBytes::Unpacked(memory))
    }

    fn decompress(self, stored: &[u8], memory: &mut [u8]) -> Result<usize> {
        match self {
            Self::None => Ok(0),
            Self::Snappy => Ok(snap::raw::Decoder::new().decompress(stored, memory)?),
            Self::Lz4 => lz4_flex::block::decompress_into(stored, memory)
                .map_err(|error| ParquetError::External(Box::new(error))),
            Self::Zstd => ZSTD.with_borrow_mut(|known| {
                let decompressor = match known {
                    Some(decompressor) => decompressor,
                    None => known.insert(Decompressor::new()?),
                };
                Ok(decompressor.decompress_to_buffer(stored, memory)?)
            }),
        }
    }
}
