//! Checksums of a stage's files: one CRC-32 for each 4 MiB, kept in the manifest.
//!
//! Rows are gathered from everywhere at once, so there is no order in which parts could be checked
//! as they are read. The files are read once, in order and by several threads, where they may have
//! changed since somebody did so: see [`is_verified`].

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::manifest::{FileEntry, MANIFEST, Manifest, Unusable, damaged, file_name, unreadable};
use crate::materialize::{VERIFIED, latest_write, note_verified, was_touched};
use crate::storage::open_own;

const CHUNK: usize = 4 << 20;

/// How long a stage counts as verified for a run that begins: the ranks of a machine and their
/// workers read it once together.
pub(super) const RECENT: Duration = Duration::from_secs(3600);

/// The checksums of bytes that come one after the other.
#[derive(Debug, Default)]
pub(super) struct ChunkSums {
    sums: Vec<u32>,
    hasher: crc32fast::Hasher,
    filled: usize,
}

impl ChunkSums {
    pub(super) fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(CHUNK - self.filled));
            self.hasher.update(now);
            self.filled += now.len();
            bytes = later;
            if self.filled == CHUNK {
                self.end_chunk();
            }
        }
    }

    fn end_chunk(&mut self) {
        self.sums.push(std::mem::take(&mut self.hasher).finalize());
        self.filled = 0;
    }

    pub(super) fn finish(mut self) -> Vec<u32> {
        if self.filled > 0 {
            self.end_chunk();
        }
        self.sums
    }
}

/// Returns true if nobody has touched the files since the stage was complete or was verified last,
/// and, with `within`, that is no longer ago.
pub(super) fn is_verified(dir: &Path, manifest: &Manifest, within: Option<Duration>) -> bool {
    let since = latest_write(dir, &[MANIFEST, VERIFIED]);
    let is_recent = within.is_none_or(|within| {
        let seconds = since.and_then(|(seconds, _)| u64::try_from(seconds).ok());
        let at = seconds.map(|seconds| UNIX_EPOCH + Duration::from_secs(seconds));
        at.and_then(|at| SystemTime::now().duration_since(at).ok()).is_some_and(|ago| ago <= within)
    });
    is_recent
        && (0..manifest.files.len()).all(|index| !was_touched(&dir.join(file_name(index)), since))
}

/// Reads all files of a stage and compares them with their checksums; notes that they are whole.
pub(super) fn verify(dir: &Path, manifest: &Manifest) -> Result<(), Unusable> {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    for (index, entry) in manifest.files.iter().enumerate() {
        let name = file_name(index);
        let file = open_own(&dir.join(&name)).map_err(|error| unreadable(dir, &name, &error))?;
        match first_damaged(&file, entry, threads) {
            Ok(None) => {}
            Ok(Some(chunk)) => {
                let start = chunk * CHUNK;
                return Err(damaged(
                    dir,
                    format!(
                        "{name} is not as it was written, within the {CHUNK} bytes from {start} on"
                    ),
                ));
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(damaged(dir, format!("{name} was cut short")));
            }
            Err(error) => return Err(unreadable(dir, &name, &error)),
        }
    }
    // Where it cannot be noted, the next one looks again.
    let _ = note_verified(dir);
    Ok(())
}

/// A chunk of a file that is not as it was written.
fn first_damaged(file: &File, entry: &FileEntry, threads: usize) -> io::Result<Option<usize>> {
    let chunks = usize::try_from(entry.bytes).map_err(io::Error::other)?.div_ceil(CHUNK);
    if entry.sums.len() != chunks {
        return Ok(Some(entry.sums.len().min(chunks)));
    }
    let (next, worst) = (AtomicUsize::new(0), AtomicUsize::new(usize::MAX));
    let look = || -> io::Result<()> {
        let mut bytes = vec![0; CHUNK.min(entry.bytes as usize)];
        loop {
            let chunk = next.fetch_add(1, Ordering::Relaxed);
            if chunk >= chunks || worst.load(Ordering::Relaxed) != usize::MAX {
                return Ok(());
            }
            let start = chunk as u64 * CHUNK as u64;
            let length = (entry.bytes - start).min(CHUNK as u64) as usize;
            file.read_exact_at(&mut bytes[..length], start)?;
            if crc32fast::hash(&bytes[..length]) != entry.sums[chunk] {
                worst.fetch_min(chunk, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        let helpers: Vec<_> = (1..threads.min(chunks)).map(|_| scope.spawn(look)).collect();
        let own = look();
        let ended = helpers.into_iter().map(|helper| {
            helper.join().unwrap_or_else(|_| Err(io::Error::other("a thread ended abnormally")))
        });
        ended.fold(own, |first, other| first.and(other))
    })?;
    let worst = worst.into_inner();
    Ok((worst != usize::MAX).then_some(worst))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chunk_is_compared() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows");
        let mut content: Vec<u8> = (0..3 * CHUNK + 5).map(|at| (at % 251) as u8).collect();
        let mut sums = ChunkSums::default();
        content.chunks(1_000_003).for_each(|piece| sums.update(piece));
        let entry = FileEntry { bytes: content.len() as u64, modified_ns: 0, sums: sums.finish() };
        let look = |content: &[u8]| {
            std::fs::write(&path, content).unwrap();
            first_damaged(&File::open(&path).unwrap(), &entry, 3)
        };
        assert_eq!(entry.sums.len(), 4);
        assert_eq!(look(&content).unwrap(), None);
        for at in [0, CHUNK, 3 * CHUNK + 4] {
            content[at] ^= 0x10;
            assert_eq!(look(&content).unwrap(), Some(at / CHUNK));
            content[at] ^= 0x10;
        }
        assert!(look(&content[..CHUNK]).is_err());
    }
}
