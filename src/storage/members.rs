//! Compressed text whose file is several compressed streams behind each other, as pbzip2, pixz and
//! pzstd write it, and `cat`.
//!
//! DataFusion 53.1 reads the first of them and takes its end for the file's, but for gzip: the rows
//! behind it would be lost without a word. So these files are unpacked here, and DataFusion sees
//! text.

use std::io;

use async_compression::tokio::bufread::{BzDecoder, XzDecoder, ZstdDecoder};
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::Error as StoreError;
use tokio_util::io::{ReaderStream, StreamReader};

use crate::Error;

/// A compression whose files are unpacked here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Members {
    /// bzip2
    Bz2,
    /// xz
    Xz,
    /// Zstandard
    Zstd,
}

impl Members {
    /// The text of a file, all streams of it.
    pub fn unpack(
        self,
        stored: BoxStream<'static, Result<Bytes, StoreError>>,
    ) -> BoxStream<'static, Result<Bytes, StoreError>> {
        let reader = StreamReader::new(stored.map_err(io::Error::other));
        match self {
            Self::Bz2 => {
                let mut decoder = BzDecoder::new(reader);
                decoder.multiple_members(true);
                ReaderStream::new(decoder).map_err(told).boxed()
            }
            Self::Xz => {
                let mut decoder = XzDecoder::new(reader);
                decoder.multiple_members(true);
                ReaderStream::new(decoder).map_err(told).boxed()
            }
            Self::Zstd => {
                let mut decoder = ZstdDecoder::new(reader);
                decoder.multiple_members(true);
                ReaderStream::new(decoder).map_err(told).boxed()
            }
        }
    }
}

/// The store's error if there is one; otherwise an error of a damaged or missing file.
fn told(error: io::Error) -> StoreError {
    match error.downcast::<StoreError>() {
        Ok(of_store) => of_store,
        Err(error) => {
            let source = Error::data(format!(
                "the file cannot be decompressed, or is cut short: {error}; its name or compression= says how it is compressed"
            ));
            StoreError::Generic { store: "Members", source: Box::new(source) }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;

    use super::*;

    /// "a\n" and "b\n", compressed one by one.
    const ZSTD: [&[u8]; 2] = [
        &[0x28, 0xb5, 0x2f, 0xfd, 0x20, 0x02, 0x11, 0x00, 0x00, b'a', b'\n'],
        &[0x28, 0xb5, 0x2f, 0xfd, 0x20, 0x02, 0x11, 0x00, 0x00, b'b', b'\n'],
    ];

    fn unpacked(chunks: Vec<Result<Bytes, StoreError>>) -> Result<Vec<u8>, StoreError> {
        let text = Members::Zstd.unpack(stream::iter(chunks).boxed());
        let chunks = futures::executor::block_on(text.try_collect::<Vec<_>>())?;
        Ok(chunks.concat())
    }

    #[test]
    fn all_members_are_read_and_errors_of_the_store_stay_what_they_are() {
        let stored = || ZSTD.iter().map(|part| Ok(Bytes::from_static(part)));
        assert_eq!(unpacked(stored().collect()).unwrap(), b"a\nb\n");
        let missing = || StoreError::NotFound { path: "x".into(), source: "gone".into() };
        let error = unpacked(stored().chain([Err(missing())]).collect()).unwrap_err();
        assert!(matches!(error, StoreError::NotFound { .. }), "{error}");
        let cut = unpacked(vec![Ok(Bytes::from_static(&ZSTD[0][..8]))]).unwrap_err();
        assert!(Error::from(cut).to_string().contains("cut short"));
    }
}
