//! The lines of a text from which types are inferred, and lines without an end, such as a small compressed file of zeros after
//! decompression: they are refused before all of them is in memory.

use std::sync::Arc;

use bytes::Bytes;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::error::DataFusionError;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use memchr::memchr_iter;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};

use super::json_array::undecompressable;
use crate::bounds::LINE;
use crate::formats::Compression;
use crate::{Error, Result};

/// The text of a file, as it comes.
///
/// # Arguments
/// `store` unpacks compressed files that DataFusion does not ([`Compression::members`]).
///
/// # Errors
/// `Data` where the file cannot be decompressed, from the stream as well; storage errors.
pub(super) async fn text_of(
    store: &Arc<dyn ObjectStore>,
    meta: &ObjectMeta,
    compression: Compression,
) -> Result<BoxStream<'static, Result<Bytes>>> {
    let stored = store.get(&meta.location).await?.into_stream().map_err(DataFusionError::from);
    let left: FileCompressionType = compression.left().into();
    let text = left.convert_stream(stored.boxed())?;
    Ok(text.map_err(move |error| unpacking(compression, error)).boxed())
}

/// The first `lines` lines of a file that are not blank. No more is read than that takes: DataFusion 53.1 and 55.0 read all of
/// an object into memory before they look at its first line.
///
/// # Errors
/// `Data` for a line that is too long; those of [`text_of`].
pub(super) async fn first_lines(
    store: &Arc<dyn ObjectStore>,
    meta: &ObjectMeta,
    compression: Compression,
    lines: usize,
) -> Result<Vec<u8>> {
    let mut text = text_of(store, meta, compression).await?;
    let mut found = Lines::default();
    while found.seen < lines
        && let Some(chunk) = text.try_next().await?
    {
        found.feed(&chunk, lines)?;
    }
    Ok(found.text)
}

/// Converts an error from below a decoder: keeps the store's error if there is one.
fn unpacking(compression: Compression, error: DataFusionError) -> Error {
    let DataFusionError::IoError(error) = error else { return error.into() };
    match error.downcast::<DataFusionError>() {
        Ok(of_store) => of_store.into(),
        Err(error) => undecompressable(compression, error),
    }
}

/// Refuses a line or record (`what`) that is too long for a decoder.
///
/// # Errors
/// `Data` where it is too long.
pub(super) fn check_length(bytes: usize, what: &str) -> Result<()> {
    let most = LINE.most();
    match bytes as u64 > most {
        true => Err(Error::data(format!(
            "a {what} is longer than {} MiB (bound {:?} of SECURITY.md); write one record per line, or say what the file is: \
             format=, compression=",
            most >> 20,
            LINE.name()
        ))),
        false => Ok(()),
    }
}

/// Lines of chunks that follow each other.
#[derive(Default)]
struct Lines {
    text: Vec<u8>,
    /// Lines that ended and are not blank.
    seen: usize,
    /// Where the last line begins.
    open: usize,
}

impl Lines {
    /// Takes in a chunk, up to the end of line number `most`.
    fn feed(&mut self, chunk: &[u8], most: usize) -> Result<()> {
        let before = self.text.len();
        self.text.extend_from_slice(chunk);
        for end in memchr_iter(b'\n', chunk) {
            let end = before + end;
            check_length(end - self.open, "line")?;
            let is_blank = self.text[self.open..end].trim_ascii().is_empty();
            self.seen += usize::from(!is_blank);
            self.open = end + 1;
            if self.seen == most {
                self.text.truncate(self.open);
                return Ok(());
            }
        }
        check_length(self.text.len() - self.open, "line")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_across_chunks() {
        let ends = [(1, "a\n"), (2, "a\nbbb\n"), (3, "a\nbbb\n \nc\n"), (9, "a\nbbb\n \nc\nd")];
        for (most, expected) in ends {
            let mut lines = Lines::default();
            for chunk in ["a\nb", "b", "", "b\n \nc", "\nd"] {
                if lines.seen < most {
                    lines.feed(chunk.as_bytes(), most).unwrap();
                }
            }
            assert_eq!(String::from_utf8(lines.text).unwrap(), expected, "{most}");
        }
    }
}
