//! Reading an open local file, and knowing that it stayed the same meanwhile.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use object_store::path::Path;
use object_store::{Error as StoreError, GetOptions, GetRange, ObjectMeta, ObjectStore, Result};

use super::file_guard::Guard;
use crate::pool::Pooled;

/// The first piece of a long stream: a reader that looks for a newline needs no more.
const FIRST_CHUNK: u64 = 64 * 1024;
/// The largest piece of a stream: few hand-overs, and still in the processor's cache.
const LAST_CHUNK: u64 = 1024 * 1024;

/// Adjacent ranges are read together up to this size: a remainder of one of them keeps all in
/// memory.
const JOINED_BYTES: u64 = 8 * 1024 * 1024;

/// Goes with a request to a [`PinnedStore`](super::PinnedStore): puts the open file here instead of
/// reading it.
#[derive(Clone, Default)]
pub(super) struct OpenInstead(Arc<Mutex<Option<OpenFile>>>);

impl OpenInstead {
    pub(super) fn put(&self, file: OpenFile) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(file);
    }

    fn take(&self) -> Option<OpenFile> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// A local file as a store opened it.
pub(super) struct OpenFile {
    pub(super) file: File,
    /// The file's metadata when it was opened; its pin is already checked.
    pub(super) opened: ObjectMeta,
    pub(super) guard: Guard,
}

impl OpenFile {
    /// A file of `store`, its pin checked; None where it is not local.
    pub(super) async fn open(
        store: &Arc<dyn ObjectStore>,
        location: &Path,
    ) -> Result<Option<Self>> {
        let slot = OpenInstead::default();
        // A store that does not know the request reads a byte, and not the file.
        let range = Some(GetRange::Bounded(0..1));
        let mut options = GetOptions { range, ..GetOptions::default() };
        options.extensions.insert(slot.clone());
        match store.get_opts(location, options).await {
            Ok(_) | Err(StoreError::NotSupported { .. }) => Ok(slot.take()),
            Err(error) => Err(error),
        }
    }

    /// Reads all ranges, in their order: here and now where the system has them in memory, so that
    /// they are decoded where they were copied to, by the same processor; else where reading may
    /// block.
    pub(super) async fn read(self: &Arc<Self>, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        if let Some(read) = self.read_cached(ranges)? {
            return Ok(read);
        }
        let (file, ranges) = (Arc::clone(self), ranges.to_vec());
        blocking(move || file.read_ranges(&ranges)).await
    }

    /// Reads ranges that the system has in memory. Returns None if they are not all there, or if
    /// the file system cannot tell. Allocates nothing for a range outside the file.
    fn read_cached(&self, ranges: &[Range<u64>]) -> Result<Option<Vec<Bytes>>> {
        let size = self.opened.size;
        if let Some(range) = ranges.iter().find(|range| range.end > size) {
            // A file that was cut short meanwhile changed, which is the better message.
            self.check()?;
            self.guard.check_end_of(range.end, size)?;
        }
        match read_all(&self.file, ranges, read_cached_at) {
            Ok(read) => self.check().and(Ok(Some(read))),
            // Reading it the other way finds out what else is wrong.
            Err(_) => Ok(None),
        }
    }

    /// The file is checked after the last byte is read, which proves all of them: any write before
    /// that moved the time of the last write.
    fn read_ranges(&self, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let read = read_all(&self.file, ranges, read_exact_at);
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
            let piece = range.start..end;
            let read = file.read(std::slice::from_ref(&piece)).await?;
            let bytes = read.into_iter().next().unwrap_or_default();
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
            return self.guard.check_changed(&now);
        }
        self.guard.changed_while_read(now.len())
    }
}

/// A local file that stays open from one read to the next.
#[derive(Clone)]
pub struct LocalFile(Arc<OpenFile>);

impl From<OpenFile> for LocalFile {
    fn from(file: OpenFile) -> Self {
        Self(Arc::new(file))
    }
}

impl LocalFile {
    /// Opens a file of `store`, its pin checked; None where it is not local.
    ///
    /// # Errors
    /// Where the file changed since it was pinned, or cannot be opened.
    pub async fn open(store: &Arc<dyn ObjectStore>, location: &Path) -> Result<Option<Self>> {
        let file = OpenFile::open(store, location).await?;
        Ok(file.map(Self::from))
    }

    /// Reads all ranges, in their order, and counts their bytes.
    ///
    /// # Errors
    /// Where the file changed since it was opened, or cannot be read.
    pub async fn read(&self, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        Ok(self.counted(self.0.read(ranges).await?))
    }

    /// Reads ranges that the system has in memory. Returns None if they are not all there, or if
    /// the file system cannot tell.
    ///
    /// # Errors
    /// Where the file changed since it was opened.
    pub fn read_cached(&self, ranges: &[Range<u64>]) -> Result<Option<Vec<Bytes>>> {
        Ok(self.0.read_cached(ranges)?.map(|read| self.counted(read)))
    }

    fn counted(&self, read: Vec<Bytes>) -> Vec<Bytes> {
        self.0.guard.count_bytes(read.iter().map(Bytes::len).sum());
        read
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

/// Fills a buffer with a file's bytes from an offset on.
type ReadAt = fn(&File, &mut [u8], u64) -> io::Result<()>;

fn read_all(file: &File, ranges: &[Range<u64>], read_at: ReadAt) -> io::Result<Vec<Bytes>> {
    let runs = ranges.chunk_by(|one, next| one.end == next.start);
    let read: io::Result<Vec<_>> = runs.map(|run| read_neighbours(file, run, read_at)).collect();
    read.map(|read| read.concat())
}

/// Reads ranges that each begin where the one before ends: the column chunks of a row group, if all
/// are wanted. They need few calls.
fn read_neighbours(
    file: &File,
    mut ranges: &[Range<u64>],
    read_at: ReadAt,
) -> io::Result<Vec<Bytes>> {
    if ranges.iter().any(|range| range.end < range.start) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a range ends before it starts"));
    }
    let mut read = Vec::with_capacity(ranges.len());
    while let Some(first) = ranges.first() {
        let most = first.start.saturating_add(JOINED_BYTES);
        let (together, rest) =
            ranges.split_at(ranges.partition_point(|range| range.end <= most).max(1));
        let end = together.last().map_or(first.end, |range| range.end);
        let bytes = read_range(file, &(first.start..end), read_at)?;
        let slice = |range: &Range<u64>| {
            bytes.slice((range.start - first.start) as usize..(range.end - first.start) as usize)
        };
        read.extend(together.iter().map(slice));
        ranges = rest;
    }
    Ok(read)
}

fn read_range(file: &File, range: &Range<u64>, read_at: ReadAt) -> io::Result<Bytes> {
    let length = usize::try_from(range.end - range.start).map_err(io::Error::other)?;
    let mut buffer = Pooled::new(length);
    read_at(file, buffer.as_mut_slice(), range.start)?;
    Ok(Bytes::from_owner(buffer))
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

/// Fills a buffer from memory only. Fails if some bytes are not there, or if the file system cannot
/// tell (network file systems, for example). Never waits for a device.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn read_cached_at(file: &File, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    while !buffer.is_empty() {
        let part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        let at = libc::off64_t::try_from(offset).map_err(io::Error::other)?;
        // SAFETY: the descriptor is open, and the kernel writes at most `iov_len` bytes to the
        // buffer.
        let read = unsafe { libc::preadv64v2(file.as_raw_fd(), &part, 1, at, libc::RWF_NOWAIT) };
        match usize::try_from(read) {
            Err(_negative) => return Err(io::Error::last_os_error()),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                buffer = &mut buffer[read..];
                offset += read as u64;
            }
        }
    }
    Ok(())
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn read_cached_at(_: &File, _: &mut [u8], _: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn numbered(bytes: usize) -> File {
        let mut file = tempfile::tempfile().unwrap();
        let content: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
        file.write_all(&content).unwrap();
        file
    }

    #[test]
    fn neighbours_are_read_together_and_handed_out_apart() {
        let file = numbered(20 << 20);
        // The last two are too long to be read with those before them.
        let ends = [0, 5, 5, 70_000, 3 << 20, 12 << 20, 20 << 20];
        let ranges: Vec<_> = ends.windows(2).map(|pair| pair[0]..pair[1]).collect();
        for _ in 0..2 {
            let read = read_neighbours(&file, &ranges, read_exact_at).unwrap();
            assert_eq!(read.len(), ranges.len());
            for (bytes, range) in read.iter().zip(&ranges) {
                assert_eq!(bytes.len() as u64, range.end - range.start);
                let all =
                    bytes.iter().zip(range.clone()).all(|(byte, at)| u64::from(*byte) == at % 251);
                assert!(all, "{range:?}");
            }
            // The second time memory is used again.
        }
    }

    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn what_is_in_memory_is_read_as_it_is_and_nothing_else_is() {
        use std::os::fd::AsRawFd;
        let file = numbered(3 << 20);
        let ranges = [7..11, 11..2 << 20, 100..200];
        let usual = read_all(&file, &ranges, read_exact_at).unwrap();
        // Where the file system can tell, as those of local disks can; else it is an error.
        let cached = || read_all(&file, &ranges, read_cached_at);
        assert!(cached().is_ok_and(|read| read == usual) || cached().is_err());
        // Beyond its end there is nothing in memory either.
        assert!(
            read_all(&file, std::slice::from_ref(&(0..(3 << 20) + 1)), read_cached_at).is_err()
        );
        file.sync_all().unwrap();
        // SAFETY: the descriptor is open; the call only drops clean pages from memory.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        assert!(cached().is_ok_and(|read| read == usual) || cached().is_err());
        assert_eq!(read_all(&file, &ranges, read_exact_at).unwrap(), usual);
        assert!(cached().is_ok_and(|read| read == usual) || cached().is_err());
    }

    #[test]
    #[expect(clippy::reversed_empty_ranges)]
    fn a_range_that_ends_before_it_starts_is_an_error() {
        assert!(read_neighbours(&numbered(10), &[0..5, 5..2], read_exact_at).is_err());
        assert!(read_neighbours(&numbered(10), &[0..3, 3..12], read_exact_at).is_err());
    }
}
