//! Reading an open local file, and knowing that it stayed the same meanwhile.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use object_store::{ObjectMeta, Result};

use super::pinned::Guard;

/// The first piece of a long stream: a reader that looks for a newline needs no more.
const FIRST_CHUNK: u64 = 64 * 1024;
/// The largest piece of a stream: few hand-overs, and still in the processor's cache.
const LAST_CHUNK: u64 = 1024 * 1024;

/// A local file as a store opened it.
pub(super) struct OpenFile {
    pub(super) file: File,
    /// What the file was when it was opened, its pin already checked.
    pub(super) opened: ObjectMeta,
    pub(super) guard: Guard,
}

impl OpenFile {
    /// Reads all ranges, in their order. The file is checked after the last byte is read, which
    /// proves all of them: any write before that moved the time of the last write.
    pub(super) fn read_ranges(&self, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let read: Result<Vec<Bytes>, _> =
            ranges.iter().map(|range| read_range(&self.file, range)).collect();
        // A file that was cut short fails to read; that it changed is the better message.
        self.check()?;
        read.map_err(|error| self.guard.read_error(&error))
    }

    /// The bytes of `range` in pieces that grow.
    pub(super) fn into_stream(self, range: Range<u64>) -> BoxStream<'static, Result<Bytes>> {
        let first = match range.end - range.start {
            short if short <= LAST_CHUNK => short,
            _ => FIRST_CHUNK,
        };
        stream::try_unfold((Arc::new(self), range, first), |(file, range, length)| async move {
            let end = range.end.min(range.start + length);
            if end <= range.start {
                return Ok(None);
            }
            let reader = Arc::clone(&file);
            let piece = range.start..end;
            let bytes = blocking(move || {
                let piece = std::slice::from_ref(&piece);
                reader.read_ranges(piece).map(|read| read.into_iter().next().unwrap_or_default())
            })
            .await?;
            file.guard.count_bytes(bytes.len());
            let next = (file, end..range.end, (length * 2).min(LAST_CHUNK));
            Ok(Some((bytes, next)))
        })
        .boxed()
    }

    pub(super) fn check(&self) -> Result<()> {
        let now = self.file.metadata().map_err(|error| self.guard.read_error(&error))?;
        let modified: Option<DateTime<Utc>> = now.modified().ok().map(Into::into);
        if now.len() == self.opened.size
            && modified.is_none_or(|modified| modified == self.opened.last_modified)
        {
            return Ok(());
        }
        self.guard.changed_while_read(now.len())
    }
}

/// Runs file system calls where they may block, or here where there is no runtime.
pub(super) async fn blocking<T, F>(work: F) -> Result<T>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T> + Send + 'static,
{
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => runtime.spawn_blocking(work).await?,
        Err(_) => work(),
    }
}

fn read_range(file: &File, range: &Range<u64>) -> io::Result<Bytes> {
    let length = range.end.checked_sub(range.start).and_then(|length| usize::try_from(length).ok());
    let Some(length) = length else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a range ends before it starts"));
    };
    let mut buffer = vec![0; length];
    read_exact_at(file, &mut buffer, range.start)?;
    Ok(buffer.into())
}

#[cfg(unix)]
fn read_exact_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, buffer, offset)
}

#[cfg(not(unix))]
fn read_exact_at(mut file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    use std::io::{Read, Seek, SeekFrom};
    file.seek(SeekFrom::Start(offset))?;
    file.read_exact(buffer)
}
