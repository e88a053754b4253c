//! Text whose lines have no end, such as a small compressed file of zeros after decompression. It
//! is refused before all of it is in memory.

use std::sync::Arc;

use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::error::DataFusionError;
use futures::{StreamExt, TryStreamExt};
use memchr::{memchr_iter, memrchr};
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};

use crate::bounds::LINE;
use crate::formats::Compression;
use crate::{Error, Result};

/// Looks at the lines that types are inferred from, where one of them may be too long.
///
/// # Arguments
/// `store` unpacks compressed files that DataFusion does not ([`Compression::members`]).
///
/// # Errors
/// `Data` for such a line; storage errors of the first request. Damage is reported by the next
/// reader.
pub(super) async fn check_lines(
    store: &Arc<dyn ObjectStore>,
    meta: &ObjectMeta,
    compression: Compression,
    lines: usize,
) -> Result<()> {
    if compression == Compression::None && meta.size <= LINE.most() {
        return Ok(());
    }
    let stored = store.get(&meta.location).await?.into_stream().map_err(DataFusionError::from);
    let left: FileCompressionType = match compression.members() {
        Some(_) => FileCompressionType::UNCOMPRESSED,
        None => compression.variant().into(),
    };
    let mut text = left.convert_stream(stored.boxed())?;
    let mut seen = Lines::default();
    while let Some(Ok(chunk)) = text.next().await {
        seen.feed(&chunk);
        check_length(seen.longest, "line")?;
        if seen.ended >= lines {
            break;
        }
    }
    Ok(())
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

/// The lines of chunks that follow each other.
#[derive(Default)]
struct Lines {
    ended: usize,
    /// Bytes of the last line so far.
    open: usize,
    /// Bytes of the longest one that a chunk or two show.
    longest: usize,
}

impl Lines {
    fn feed(&mut self, chunk: &[u8]) {
        let mut ends = memchr_iter(b'\n', chunk);
        match (ends.next(), memrchr(b'\n', chunk)) {
            (Some(first), Some(last)) => {
                self.ended += 1 + ends.count();
                self.longest = self.longest.max(self.open + first);
                self.open = chunk.len() - last - 1;
            }
            _ => self.open += chunk.len(),
        }
        self.longest = self.longest.max(self.open);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_across_chunks() {
        let mut lines = Lines::default();
        for chunk in [&b"a\nbb"[..], b"bb", b"", b"b\n\nc"] {
            lines.feed(chunk);
        }
        assert_eq!((lines.ended, lines.open, lines.longest), (3, 1, 5));
    }
}
