//! A stage's file in memory: mapped, so that its pages are the page cache's and not the process's.

use std::fs::File;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

use arrow::buffer::Buffer;
use arrow::datatypes::SchemaRef;
use arrow::ipc::reader::{FileDecoder, read_footer_length};
use arrow::ipc::{Block, MetadataVersion, root_as_footer};
use arrow::record_batch::RecordBatch;
use memmap2::{Advice, Mmap};

use super::manifest::{FileEntry, Unusable, damaged, file_name, unreadable};
use crate::Result;

/// Length of the footer's length and the closing magic, in bytes.
const TRAILER: usize = 10;

/// A mapped IPC file.
#[derive(Debug)]
pub(super) struct MappedFile {
    data: Buffer,
    blocks: Vec<Block>,
}

/// Maps a file that is only read.
///
/// # Safety
/// The file must not be written to or cut short while the map or a slice of it lives: Rust takes
/// mapped bytes for constant, and reading past the new end kills the process. A stage's files are
/// written before its manifest, made read-only, and from then on only ever unlinked, which leaves
/// the map whole.
unsafe fn map(file: &File) -> std::io::Result<Mmap> {
    // SAFETY: the caller's promise.
    unsafe { Mmap::map(file) }
}

impl MappedFile {
    /// Maps file `index` of the stage in `dir`, if its writer's file is unchanged. `random` asks
    /// the kernel not to read ahead: for a stage that does not fit into memory.
    pub(super) fn open(
        dir: &Path,
        index: usize,
        wanted: &FileEntry,
        random: bool,
    ) -> Result<Self, Unusable> {
        let name = file_name(index);
        let failed = |error: std::io::Error| unreadable(dir, &name, &error);
        let file = File::open(dir.join(&name)).map_err(failed)?;
        let found = file.metadata().and_then(|found| FileEntry::of(&found)).map_err(failed)?;
        if found.bytes != wanted.bytes {
            return Err(damaged(
                dir,
                format!("{name} has {} bytes, but {} were written", found.bytes, wanted.bytes),
            ));
        }
        if found.modified_ns != wanted.modified_ns {
            return Err(damaged(dir, format!("{name} was changed after it was written")));
        }
        // SAFETY: a finished stage's files are never written again; see `map`.
        let mapped = unsafe { map(&file) }.map_err(failed)?;
        if random {
            mapped.advise(Advice::Random).map_err(failed)?;
        }
        let length = mapped.len();
        let Some(start) = NonNull::new(mapped.as_ptr().cast_mut()) else {
            return Err(damaged(dir, format!("{name} is empty")));
        };
        // SAFETY: `start` is valid for reads of `length` bytes as long as the map lives, and the
        // buffer owns the map. Nothing writes through the pointer: a buffer of a foreign allocation
        // is never mutable.
        let data = unsafe { Buffer::from_custom_allocation(start, length, Arc::new(mapped)) };
        let blocks = blocks(&data).map_err(|why| damaged(dir, format!("{name}: {why}")))?;
        Ok(Self { data, blocks })
    }

    /// Number of record batches.
    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Record batch `index`, its arrays lying in the map; None where the message is of another
    /// kind.
    pub(super) fn batch(&self, index: usize, schema: &SchemaRef) -> Result<Option<RecordBatch>> {
        let block = &self.blocks[index];
        let length = block.metaDataLength() as usize + block.bodyLength() as usize;
        let message = self.data.slice_with_length(block.offset() as usize, length);
        let decoder =
            FileDecoder::new(Arc::clone(schema), MetadataVersion::V5).with_require_alignment(true);
        // SAFETY: these bytes were written by `output.rs` of this version from valid arrays, were
        // synced before the manifest that records the file's size and time of change, and `open`
        // compared both. Validating would read all strings of the batch; structure and bounds are
        // checked all the same.
        let decoder = unsafe { decoder.with_skip_validation(true) };
        Ok(decoder.read_record_batch(block, &message)?)
    }
}

/// The record batches that the footer lists, each inside the file.
fn blocks(data: &Buffer) -> Result<Vec<Block>, String> {
    let bytes = data.as_slice();
    let Some((body, trailer)) = bytes.split_last_chunk::<TRAILER>() else {
        return Err("it is too short for an Arrow file".into());
    };
    let length = read_footer_length(*trailer).map_err(|error| error.to_string())?;
    let Some(start) = body.len().checked_sub(length) else {
        return Err(format!("its footer of {length} bytes does not fit"));
    };
    let footer = root_as_footer(&body[start..]).map_err(|error| error.to_string())?;
    let blocks: Vec<Block> = footer.recordBatches().iter().flatten().copied().collect();
    for block in &blocks {
        let end = u64::try_from(block.offset()).ok().zip(u64::try_from(block.bodyLength()).ok());
        let end = end
            .zip(u64::try_from(block.metaDataLength()).ok())
            .and_then(|((offset, body), metadata)| offset.checked_add(body)?.checked_add(metadata));
        if end.is_none_or(|end| end > start as u64) {
            return Err("a record batch does not lie inside it".into());
        }
    }
    Ok(blocks)
}
