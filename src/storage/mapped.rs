//! Local files in memory: mapped, so that decoded data lies in the page cache and is copied by
//! nobody.
//!
//! A mapping shows the current file. A file that is written to in place while a slice of its
//! mapping lives changes under the reader, and one that is cut short kills the process that touches
//! the missing pages (`SIGBUS`): no check can come between the two. All that can be checked is
//! checked: the file's identity is compared when it is mapped and after each piece is decoded, and
//! files on network and FUSE file systems, where other machines write and failed reads are signals,
//! are not mapped. Replacing a file by another (write, then rename) is safe: the mapping keeps the
//! old one.
//!
//! A mapping is private, and may be written to: its arrays are lent to other libraries, whose users
//! work on them in place. The system copies a page at the first write to it, so that only the batch
//! changes, and neither the file nor what others read of it.

use std::fmt;
use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use arrow::buffer::Buffer;
use memmap2::{MmapMut, MmapOptions};
use object_store::ObjectStore;
use object_store::path::Path;

use super::read::{OpenFile, blocking};
use crate::Result;

/// A local file, mapped as a whole.
pub struct MappedFile {
    file: OpenFile,
    data: Buffer,
}

impl MappedFile {
    /// Maps a file of `store`, its pin checked; None where the file is not local, is empty, or lies
    /// on a file system whose files are not mapped, and where the system has no room for a mapping.
    ///
    /// # Errors
    /// `Data` where the file changed since it was pinned; `Storage` where it cannot be opened.
    pub async fn open(store: &Arc<dyn ObjectStore>, location: &Path) -> Result<Option<Self>> {
        let Some(file) = OpenFile::open(store, location).await? else { return Ok(None) };
        let mapped = blocking(move || {
            if file.opened.size == 0 || !is_of_this_machine(&file.file) {
                return Ok(None);
            }
            // SAFETY: the bytes must not change while slices of the map live, which no program can
            // promise of a file that others may write. The identity is checked around every use,
            // and the documentation says what a write in place does, and how to have files read
            // instead.
            let Ok(map) = (unsafe { map_private(&file.file) }) else { return Ok(None) };
            file.check()?;
            Ok(Some(Self { file, data: buffer_of(map) }))
        })
        .await?;
        Ok(mapped)
    }

    /// The whole file. Slices of it keep the mapping alive.
    pub fn data(&self) -> &Buffer {
        &self.data
    }

    /// Counts bytes as read.
    pub fn count_bytes(&self, bytes: usize) {
        self.file.guard.count_bytes(bytes);
    }

    /// # Errors
    /// `Data` if the file has changed since it was mapped.
    pub fn check(&self) -> Result<()> {
        Ok(self.file.check()?)
    }
}

impl fmt::Debug for MappedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MappedFile").field("bytes", &self.data.len()).finish_non_exhaustive()
    }
}

/// Maps a file so that writes to the map stay in this process.
///
/// # Safety
/// The file must not be written to or cut short while the map or a slice of it lives: Rust takes
/// mapped bytes for constant, and reading past the new end kills the process.
pub(crate) unsafe fn map_private(file: &File) -> io::Result<MmapMut> {
    // Without a reserve: by default the system refuses what would not fit into memory if all of it
    // was written to.
    // SAFETY: the caller's promise.
    unsafe { MmapOptions::new().no_reserve_swap().map_copy(file) }
}

/// A map as a buffer, which keeps it.
pub(crate) fn buffer_of(map: MmapMut) -> Buffer {
    let start = NonNull::from(&map[..]).cast::<u8>();
    let length = map.len();
    // SAFETY: `start` is valid for reads of `length` bytes as long as the map lives, and the buffer
    // owns the map.
    unsafe { Buffer::from_custom_allocation(start, length, Arc::new(map)) }
}

/// Returns true if a failed or late read of the file cannot come from another machine, nor its
/// times from a program.
#[cfg(target_os = "linux")]
pub(super) fn is_of_this_machine(file: &File) -> bool {
    use std::os::fd::AsRawFd;
    /// NFS, SMB, CIFS, SMB2, FUSE, 9p, AFS, Ceph, Lustre, GPFS.
    const REMOTE: [u32; 10] = [
        0x6969,
        0x517b,
        0xff53_4d42,
        0xfe53_4d42,
        0x6573_5546,
        0x0102_1997,
        0x5346_414f,
        0x00c3_6400,
        0x0bd0_0bd0,
        0x4750_4653,
    ];
    let mut found = std::mem::MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the descriptor is open, and `found` is a place for the answer.
    let status = unsafe { libc::fstatfs(file.as_raw_fd(), found.as_mut_ptr()) };
    // SAFETY: all zeros is a valid `statfs`.
    let found = unsafe { found.assume_init() };
    status == 0 && !REMOTE.contains(&(found.f_type as u32))
}

#[cfg(not(target_os = "linux"))]
pub(super) fn is_of_this_machine(_: &File) -> bool {
    true
}
