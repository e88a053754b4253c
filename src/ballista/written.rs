//! Checks the files that a cluster has written before they become a stage.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use object_store::path::Path;
use object_store::{Error as StoreError, ObjectStoreExt};
use parquet::arrow::async_reader::{AsyncFileReader, ParquetObjectReader};
use parquet::arrow::parquet_to_arrow_schema;
use sha2::{Digest, Sha256};

use crate::materialize::{StageFile, StagePlace};
use crate::{Error, Result};

/// Bytes at the end of a file that hold the length of its footer.
const TAIL_BYTES: u64 = 8;

/// The file of a stage, and a digest of its content: of its identity in the store and its footer,
/// so that not all of it is read. Two builds have the same digest only where the store says that
/// they are the same bytes.
///
/// # Errors
/// `Storage` where the file is not there; `Data` where it does not have the stage's columns.
pub(super) async fn look(
    place: &StagePlace,
    path: &Path,
    name: &str,
    stage: &SchemaRef,
) -> Result<(Vec<StageFile>, String)> {
    let meta = match place.store().head(path).await {
        Ok(meta) => meta,
        Err(StoreError::NotFound { .. }) => {
            return Err(Error::storage(format!(
                "the cluster says that it wrote {}, but that is not there: its executors must write to the store that this \
                 session reads; they take endpoint, region and credentials from their environment (AWS_ENDPOINT, …), and a \
                 local folder must be shared by all machines",
                place.describe(path)
            )));
        }
        Err(error) => return Err(error.into()),
    };
    let mut reader =
        ParquetObjectReader::new(Arc::clone(place.store()), path.clone()).with_file_size(meta.size);
    let damaged = |error: &dyn std::fmt::Display| {
        Error::data(format!(
            "what the cluster wrote to {} cannot be read: {error}",
            place.describe(path)
        ))
    };
    let footer = reader.get_metadata(None).await.map_err(|error| damaged(&error))?;
    let file = footer.file_metadata();
    let found = parquet_to_arrow_schema(file.schema_descr(), file.key_value_metadata())
        .map_err(|error| damaged(&error))?;
    let sketch = |schema: &arrow::datatypes::Schema| -> Vec<String> {
        let fields = schema.fields().iter();
        fields.map(|field| format!("{} {}", field.name(), field.data_type())).collect()
    };
    if sketch(&found) != sketch(stage) {
        return Err(Error::data(format!(
            "the cluster wrote the columns ({}) where the query has ({}); cast what differs in the query",
            sketch(&found).join(", "),
            sketch(stage).join(", ")
        )));
    }
    let mut hash = Sha256::new();
    match (&meta.e_tag, place.folder()) {
        (Some(tag), None) => hash.update(tag),
        // A folder's tags are made of what a file is, not of what is in it.
        _ => hash.update(meta.last_modified.to_rfc3339()),
    }
    let tail = reader.get_bytes(meta.size.saturating_sub(TAIL_BYTES)..meta.size).await;
    let tail = tail.map_err(|error| damaged(&error))?;
    let length = tail.get(..4).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok());
    let length = u64::from(u32::from_le_bytes(length.unwrap_or_default())) + TAIL_BYTES;
    let bytes = reader.get_bytes(meta.size.saturating_sub(length)..meta.size).await;
    hash.update(bytes.map_err(|error| damaged(&error))?);
    let rows = u64::try_from(file.num_rows()).map_err(|error| damaged(&error))?;
    let digest = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok((vec![StageFile { name: name.to_owned(), bytes: meta.size, rows }], digest))
}
