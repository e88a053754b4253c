//! One file of a stage while it is written.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow::array::Array;
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, SchemaRef};
use arrow::error::ArrowError;
use arrow::ipc::MetadataVersion;
use arrow::ipc::writer::{FileWriter, IpcWriteOptions};
use arrow::record_batch::RecordBatch;

use super::manifest::{FileEntry, file_name};
use super::sums::ChunkSums;
use super::write::Progress;
use crate::materialize::{StoredSchema, has_views, release, rows_of};
use crate::{Error, Result};

/// Alignment of every buffer in the file, in bytes: a cache line, and enough for every Arrow type.
const ALIGNMENT: usize = 64;
/// The most rows of a record batch. Large, since a reader keeps some hundred bytes per batch and
/// column.
const BATCH_ROWS: usize = 1 << 17;
/// Rows that are copied at a time.
const PIECE_ROWS: usize = 8192;

/// Rows on their way into a file: collected until they make a record batch.
#[derive(Debug)]
pub(super) struct Pending {
    target_bytes: usize,
    pieces: Vec<RecordBatch>,
    rows: usize,
    bytes: usize,
}

impl Pending {
    /// Collects about `target_bytes` bytes per record batch.
    pub(super) fn new(target_bytes: usize) -> Self {
        Self { target_bytes, pieces: Vec::new(), rows: 0, bytes: 0 }
    }

    /// Appends rows of a query. Yields the record batches that became full.
    pub(super) fn push(
        &mut self,
        layout: &StoredSchema,
        batch: &RecordBatch,
    ) -> Result<Vec<Ready>> {
        let mut full = Vec::new();
        let rows = batch.num_rows();
        let row_bytes = batch.get_array_memory_size() / rows.max(1);
        let step = (self.target_bytes / row_bytes.max(1)).clamp(1, PIECE_ROWS);
        for start in (0..rows).step_by(step) {
            // Stored piece by piece: a piece may be a few rows of large buffers, which it then lets
            // go.
            let piece = layout.store(&batch.slice(start, step.min(rows - start)))?;
            let bytes = size(&piece);
            if self.rows > 0
                && (self.bytes + bytes > self.target_bytes
                    || self.rows + piece.num_rows() > BATCH_ROWS)
            {
                full.extend(self.finish());
            }
            self.rows += piece.num_rows();
            self.bytes += bytes;
            self.pieces.push(piece);
        }
        Ok(full)
    }

    /// The rows that are left.
    pub(super) fn finish(&mut self) -> Option<Ready> {
        (self.rows, self.bytes) = (0, 0);
        let pieces = std::mem::take(&mut self.pieces);
        (!pieces.is_empty()).then_some(Ready { pieces })
    }
}

/// The rows of one record batch, at least one.
#[derive(Debug)]
pub(super) struct Ready {
    pieces: Vec<RecordBatch>,
}

/// A file of record batches.
pub(super) struct Output {
    dir: PathBuf,
    path: PathBuf,
    schema: SchemaRef,
    file: FileWriter<Counted>,
    progress: Arc<Progress>,
    /// (group, rows) of each record batch.
    batches: Vec<(u32, u32)>,
}

/// A file that is complete.
#[derive(Debug)]
pub(super) struct Written {
    /// Index of the file.
    pub(super) index: usize,
    pub(super) entry: FileEntry,
    /// (group, rows) of each record batch.
    pub(super) batches: Vec<(u32, u32)>,
}

impl Output {
    /// Starts file `index` in `dir`, which will become `target`.
    pub(super) fn create(
        dir: &Path,
        target: &Path,
        index: usize,
        schema: &SchemaRef,
        progress: Arc<Progress>,
    ) -> Result<Self> {
        let path = dir.join(file_name(index));
        let file = || {
            let file = File::create(&path)?;
            let options = IpcWriteOptions::try_new(ALIGNMENT, false, MetadataVersion::V5)?;
            let sums = ChunkSums::default();
            let counted = Counted { file, sums, progress: Arc::clone(&progress) };
            FileWriter::try_new_with_options(counted, schema, options)
        };
        let file = file().map_err(|error| failed(target, &progress, error))?;
        let (dir, schema) = (target.to_owned(), Arc::clone(schema));
        Ok(Self { dir, path, schema, file, progress, batches: Vec::new() })
    }

    /// Appends a record batch of `group`.
    pub(super) fn write(&mut self, group: u32, ready: &Ready) -> Result<()> {
        let batch = match ready.pieces.as_slice() {
            [one] => one.clone(),
            pieces => {
                let whole = concat_batches(&self.schema, pieces)?;
                if self.schema.fields().iter().any(|field| has_views(field.data_type())) {
                    // One buffer of strings instead of one per piece.
                    let columns = whole.columns().iter().map(release);
                    let columns = columns.collect::<Result<_>>()?;
                    rows_of(&self.schema, columns, whole.num_rows())?
                } else {
                    whole
                }
            }
        };
        self.file.write(&batch).map_err(|error| failed(&self.dir, &self.progress, error))?;
        self.progress.rows.fetch_add(batch.num_rows() as u64, Ordering::Relaxed);
        self.batches.push((group, batch.num_rows() as u32));
        Ok(())
    }

    /// Writes the footer and waits until the disk has all of it: after a power cut, a stage with a
    /// manifest is whole.
    pub(super) fn finish(self, index: usize) -> Result<Written> {
        let Self { dir, path, file, progress, batches, .. } = self;
        let close = || {
            let Counted { file, sums, .. } = file.into_inner()?;
            file.sync_all()?;
            let mut permissions = file.metadata()?.permissions();
            permissions.set_readonly(true);
            std::fs::set_permissions(&path, permissions)?;
            Ok(FileEntry::of(&file.metadata()?, sums.finish())?)
        };
        let entry = close().map_err(|error| failed(&dir, &progress, error))?;
        Ok(Written { index, entry, batches })
    }
}

/// A file that counts the bytes written to it, and takes their checksums. The IPC writer hands over whole batches, so it needs
/// no buffer.
struct Counted {
    file: File,
    sums: ChunkSums,
    progress: Arc<Progress>,
}

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.sums.update(&bytes[..written]);
        self.progress.bytes.fetch_add(written as u64, Ordering::Relaxed);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// An error while writing: of the disk, or of the rows.
fn failed(dir: &Path, progress: &Progress, error: ArrowError) -> Error {
    match error {
        ArrowError::IoError(_, error) => {
            let bytes = progress.bytes.load(Ordering::Relaxed);
            Error::storage(format!(
                "cannot write the stage {}: {error}; {bytes} bytes were written until then. Make room \
                 there, or set TENSORQUERY_STAGES to a folder with more of it",
                dir.display()
            ))
        }
        other => other.into(),
    }
}

/// Bytes of a piece's values.
fn size(piece: &RecordBatch) -> usize {
    let column = |array: &dyn Array| {
        // The size of a slice leaves out the strings of views; those were just copied, so all of
        // them count.
        if matches!(array.data_type(), DataType::Null) {
            return 0;
        }
        if has_views(array.data_type()) {
            return array.get_array_memory_size();
        }
        let sliced = array.to_data().get_slice_memory_size();
        sliced.unwrap_or_else(|_| array.get_array_memory_size())
    };
    piece.columns().iter().map(|array| column(array.as_ref())).sum()
}
