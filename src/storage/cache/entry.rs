//! One entry: a range of a file's bytes with checksums, so that a part of it can be read and
//! trusted.
//!
//! A header of 64 bytes: magic, key, first byte, length (little endian), the checksum of all of the
//! header and of the checksums that follow; one CRC-32 for each 64 KiB of content; the content.

use std::fs::{File, FileTimes};
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use super::key::Key;
use crate::storage::own_files::open_own;

const MAGIC: &[u8; 8] = b"TQRANGE1";
const HEADER: usize = 64;
/// Bytes of the header under the header's checksum.
const COVERED: usize = 56;
/// Content per checksum: the least that a read of a few bytes checks.
const CHUNK: u64 = 64 << 10;

/// An entry is used now where its time says that it was not within so long.
const TOUCH_AFTER: Duration = Duration::from_secs(1);

/// The size of an entry's file.
pub(super) fn stored_bytes(length: u64) -> u64 {
    HEADER as u64 + 4 * length.div_ceil(CHUNK) + length
}

/// Writes the entry of `range`, whose content `pieces` are.
pub(super) fn write(
    file: &File,
    key: &Key,
    range: &Range<u64>,
    pieces: &[Bytes],
) -> io::Result<()> {
    let length = range.end - range.start;
    let mut sums = Vec::with_capacity(length.div_ceil(CHUNK) as usize);
    let (mut hasher, mut room) = (crc32fast::Hasher::new(), CHUNK as usize);
    for piece in pieces {
        let mut rest: &[u8] = piece;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(room));
            hasher.update(now);
            room -= now.len();
            rest = later;
            if room == 0 {
                sums.push(std::mem::take(&mut hasher).finalize());
                room = CHUNK as usize;
            }
        }
    }
    if room < CHUNK as usize {
        sums.push(hasher.finalize());
    }
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(MAGIC);
    header[8..40].copy_from_slice(key);
    header[40..48].copy_from_slice(&range.start.to_le_bytes());
    header[48..56].copy_from_slice(&length.to_le_bytes());
    let sums: Vec<u8> = sums.into_iter().flat_map(u32::to_le_bytes).collect();
    let sum = header_sum(&header, &sums);
    header[56..60].copy_from_slice(&sum.to_le_bytes());
    let mut writer = BufWriter::with_capacity(256 << 10, file);
    writer.write_all(&header)?;
    writer.write_all(&sums)?;
    for piece in pieces {
        writer.write_all(piece)?;
    }
    writer.flush()
}

/// An entry that is open, its header looked at.
#[derive(Debug)]
pub(super) struct Entry {
    file: File,
    start: u64,
    length: u64,
    sums: Vec<u8>,
}

impl Entry {
    /// Opens an entry; None where the file is not the entry that its name says.
    ///
    /// # Errors
    /// Errors of the file system, `NotFound` among them: entries go at any time.
    pub(super) fn open(path: &Path, key: &Key, range: &Range<u64>) -> io::Result<Option<Self>> {
        let file = open_own(path)?;
        let found = file.metadata()?;
        let (start, length) = (range.start, range.end - range.start);
        if !found.is_file() || found.len() != stored_bytes(length) {
            return Ok(None);
        }
        let mut header = [0; HEADER];
        file.read_exact_at(&mut header, 0)?;
        let mut sums = vec![0; 4 * length.div_ceil(CHUNK) as usize];
        file.read_exact_at(&mut sums, HEADER as u64)?;
        let is_right = header[..8] == *MAGIC
            && header[8..40] == *key
            && header[40..48] == start.to_le_bytes()
            && header[48..56] == length.to_le_bytes()
            && header[56..60] == header_sum(&header, &sums).to_le_bytes();
        if !is_right {
            return Ok(None);
        }
        let now = SystemTime::now();
        let used = found.modified().ok().and_then(|at| now.duration_since(at).ok());
        if used.is_some_and(|ago| ago >= TOUCH_AFTER) {
            // The order of eviction, no more: a folder that may only be read is read all the same.
            let _ = file.set_times(FileTimes::new().set_modified(now));
        }
        Ok(Some(Self { file, start, length, sums }))
    }

    /// The bytes of `range`, which lies inside; None if they are damaged.
    ///
    /// # Errors
    /// Errors of the file system.
    pub(super) fn read(&self, range: &Range<u64>) -> io::Result<Option<Bytes>> {
        let (from, to) = (range.start - self.start, range.end - self.start);
        let (first, last) = (from / CHUNK, to.div_ceil(CHUNK));
        let (begin, end) = (first * CHUNK, (last * CHUNK).min(self.length));
        let mut content = vec![0; (end - begin) as usize];
        let offset = HEADER as u64 + self.sums.len() as u64 + begin;
        match self.file.read_exact_at(&mut content, offset) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        let sums = self.sums.chunks_exact(4).skip(first as usize);
        let is_right = content
            .chunks(CHUNK as usize)
            .zip(sums)
            .all(|(chunk, sum)| crc32fast::hash(chunk).to_le_bytes() == *sum);
        let wanted = (from - begin) as usize..(to - begin) as usize;
        Ok(is_right.then(|| Bytes::from(content).slice(wanted)))
    }
}

/// Returns true if a file begins as entries do.
///
/// # Errors
/// Errors of the file system.
pub(super) fn is_entry(path: &Path) -> io::Result<bool> {
    let mut magic = [0; MAGIC.len()];
    match open_own(path)?.read_exact_at(&mut magic, 0) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        read => read.map(|()| magic == *MAGIC),
    }
}

fn header_sum(header: &[u8; HEADER], sums: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&header[..COVERED]);
    hasher.update(sums);
    hasher.finalize()
}
