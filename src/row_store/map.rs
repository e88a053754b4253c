//! A stage's file in memory: mapped, so that its pages are the page cache's and not the process's.
//! The map is private: who writes to an array in it changes no file.

use std::path::Path;
use std::sync::Arc;

use arrow::buffer::Buffer;
use arrow::datatypes::SchemaRef;
use arrow::ipc::reader::{FileDecoder, read_footer_length};
use arrow::ipc::{Block, MetadataVersion, root_as_footer};
use arrow::record_batch::RecordBatch;
use memmap2::Advice;

use super::manifest::{FileEntry, Unusable, damaged, file_name, unreadable};
use crate::Result;
use crate::storage::{buffer_of, map_private, open_own};

/// Length of the footer's length and the closing magic, in bytes.
const TRAILER: usize = 10;

/// A mapped IPC file.
#[derive(Debug)]
pub(super) struct MappedFile {
    data: Buffer,
    blocks: Vec<Block>,
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
        let file = open_own(&dir.join(&name)).map_err(failed)?;
        let found = file.metadata().and_then(|found| FileEntry::of(&found, Vec::new()));
        let found = found.map_err(failed)?;
        if found.bytes != wanted.bytes {
            return Err(damaged(
                dir,
                format!("{name} has {} bytes, but {} were written", found.bytes, wanted.bytes),
            ));
        }
        if found.modified_ns != wanted.modified_ns {
            return Err(damaged(dir, format!("{name} was changed after it was written")));
        }
        if found.bytes == 0 {
            return Err(damaged(dir, format!("{name} is empty")));
        }
        // SAFETY: a stage's files are written before its manifest, made read-only, and from then on
        // only ever unlinked, which leaves the map whole.
        let mapped = unsafe { map_private(&file) }.map_err(failed)?;
        if random {
            mapped.advise(Advice::Random).map_err(failed)?;
        }
        let data = buffer_of(mapped);
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
        // synced before the manifest that records the file's size, time of change and checksums,
        // and were compared with those. Validating would read all strings of the batch; structure and bounds are
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
