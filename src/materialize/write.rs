//! Rows into files, with checksums.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::BatchCoalescer;
use arrow::datatypes::SchemaRef;
use arrow::ipc::MetadataVersion;
use arrow::ipc::writer::{FileWriter, IpcWriteOptions};
use datafusion::execution::SendableRecordBatchStream;
use futures::StreamExt;
use object_store::{ObjectStoreExt, WriteMultipart};
use sha2::{Digest, Sha256};

use super::manifest::StageFile;
use super::place::StagePlace;
use super::progress::StageProgress;
use super::room::{no_room_for_stage, no_room_to_spill};
use super::stored_schema::StoredSchema;
use crate::Result;
use crate::formats::ipc::SumsWriter;

/// Rows of a record batch, fewer where they are wide. A batch is the smallest split of a stage.
const BATCH_ROWS: usize = 8192;
const BATCH_BYTES: usize = 8 << 20;
/// Where a file ends and the next begins.
const FILE_BYTES: u64 = 1 << 30;
/// A part of an upload: with ten thousand of them, which S3 allows, far more than a file.
const PART_BYTES: usize = 8 << 20;
/// Parts on their way at the same time.
const PARTS: usize = 4;
/// Every buffer begins at such a border: readers map local files.
const ALIGNMENT: usize = 64;

/// Writes all rows of a stream below `<key>/<build>`, and says the files and the digest of their
/// content. How the stream cuts its rows into batches does not matter to the digest.
pub(super) async fn write_rows(
    place: &StagePlace,
    key: &str,
    build: &str,
    mut rows: SendableRecordBatchStream,
    progress: &StageProgress,
) -> Result<(Vec<StageFile>, String)> {
    let layout = StoredSchema::try_new(rows.schema())?;
    let mut files = Files {
        place,
        key,
        build,
        schema: Arc::clone(layout.stored()),
        done: Vec::new(),
        open: None,
        hash: Sha256::new(),
    };
    let full = |error| no_room_for_stage(error, place, progress.state().bytes);
    let written = async {
        let mut coalescer: Option<BatchCoalescer> = None;
        let (mut count, mut bytes) = (0, 0);
        while let Some(batch) = rows.next().await {
            let batch = batch.map_err(|error| no_room_to_spill(error.into()))?;
            if batch.num_rows() == 0 {
                continue;
            }
            let batch = layout.store(&batch)?;
            let coalescer = coalescer.get_or_insert_with(|| {
                let wide = batch.get_array_memory_size() / batch.num_rows();
                let target = (BATCH_BYTES / wide.max(1)).clamp(1, BATCH_ROWS);
                BatchCoalescer::new(Arc::clone(layout.stored()), target)
            });
            coalescer.push_batch(batch)?;
            while let Some(whole) = coalescer.next_completed_batch() {
                count += whole.num_rows() as u64;
                bytes += files.write(&whole).await.map_err(full)?;
                progress.wrote(count, bytes);
            }
        }
        if let Some(coalescer) = &mut coalescer {
            coalescer.finish_buffered_batch()?;
            while let Some(last) = coalescer.next_completed_batch() {
                count += last.num_rows() as u64;
                bytes += files.write(&last).await.map_err(full)?;
                progress.wrote(count, bytes);
            }
        }
        // Also where there is no row: the schema is in the file.
        if files.done.is_empty() && files.open.is_none() {
            files.open().await.map_err(full)?;
        }
        files.close().await.map_err(full)
    }
    .await;
    if let Err(error) = written {
        files.abort().await;
        return Err(error);
    }
    let digest = files.hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok((files.done, digest))
}

/// The files of a build.
struct Files<'a> {
    place: &'a StagePlace,
    key: &'a str,
    build: &'a str,
    schema: SchemaRef,
    done: Vec<StageFile>,
    open: Option<File>,
    hash: Sha256,
}

struct File {
    name: String,
    encoder: FileWriter<Vec<u8>>,
    sums: SumsWriter,
    upload: WriteMultipart,
    rows: u64,
    bytes: u64,
}

impl Files<'_> {
    async fn open(&mut self) -> Result<&mut File> {
        let name = format!("part-{:05}.arrow", self.done.len());
        let path = self.place.path([self.key, self.build, name.as_str()]);
        let upload = self.place.store().put_multipart(&path).await?;
        let upload = WriteMultipart::new_with_chunk_size(upload, PART_BYTES);
        let options = IpcWriteOptions::try_new(ALIGNMENT, false, MetadataVersion::V5)?;
        let encoder = FileWriter::try_new_with_options(Vec::new(), &self.schema, options)?;
        let sums = SumsWriter::default();
        let mut file = File { name, encoder, sums, upload, rows: 0, bytes: 0 };
        // Behind the schema, each piece is one record batch.
        file.send(&mut self.hash).await?;
        Ok(self.open.insert(file))
    }

    /// Appends a batch, and says how many bytes it took.
    async fn write(&mut self, batch: &RecordBatch) -> Result<u64> {
        if self.open.is_none() {
            self.open().await?;
        }
        let Some(file) = &mut self.open else { return Ok(0) };
        file.encoder.write(batch)?;
        file.sums.add(file.encoder.get_ref(), &self.schema)?;
        file.rows += batch.num_rows() as u64;
        let sent = file.send(&mut self.hash).await?;
        if file.bytes >= FILE_BYTES {
            self.close().await?;
        }
        Ok(sent)
    }

    async fn close(&mut self) -> Result<()> {
        let Some(mut file) = self.open.take() else { return Ok(()) };
        let ended = async {
            file.encoder.finish()?;
            // The digest is of the rows, as before there were sums.
            let mut end = file.take(&mut self.hash);
            file.sums.insert(&mut end)?;
            file.upload(end).await
        }
        .await;
        if let Err(error) = ended {
            // The first error is the one to tell.
            let _ = file.upload.abort().await;
            return Err(error);
        }
        file.upload.finish().await?;
        self.done.push(StageFile { name: file.name, bytes: file.bytes, rows: file.rows });
        Ok(())
    }

    async fn abort(&mut self) {
        if let Some(file) = self.open.take() {
            // The error that led here is the one to tell.
            let _ = file.upload.abort().await;
        }
    }
}

impl File {
    /// Hands over the encoded bytes.
    async fn send(&mut self, hash: &mut Sha256) -> Result<u64> {
        let encoded = self.take(hash);
        self.upload(encoded).await
    }

    /// Takes the encoded bytes.
    fn take(&mut self, hash: &mut Sha256) -> Vec<u8> {
        let encoded = std::mem::take(self.encoder.get_mut());
        hash.update(&encoded);
        encoded
    }

    async fn upload(&mut self, encoded: Vec<u8>) -> Result<u64> {
        let bytes = encoded.len() as u64;
        self.bytes += bytes;
        self.upload.wait_for_capacity(PARTS).await?;
        self.upload.put(encoded.into());
        Ok(bytes)
    }
}
