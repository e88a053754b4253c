//! Metadata tables: `t$snapshots`, `t$history`, `t$refs`, `t$manifests`, `t$files` and the like,
//! for exploration. Columns are named as in Spark's metadata tables.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Int32Array, Int64Array, StringArray, TimestampMillisecondArray,
};
use arrow::datatypes::{Field, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use iceberg::spec::{DataContentType, ManifestContentType, SnapshotRef, TableMetadata};
use object_store::ObjectStore;

use crate::iceberg::catalog::LoadedTable;
use crate::iceberg::{
    Entry, TravelTo, ancestors, live_entries, manifest_list, partition_text, pin, references,
};
use crate::{Error, ErrorKind, Result, list_names, suggestion};

/// The metadata tables there are.
const KINDS: &[&str] = &[
    "snapshots",
    "history",
    "refs",
    "manifests",
    "files",
    "data_files",
    "delete_files",
    "partitions",
];

/// Returns true if there is a metadata table of this kind.
pub fn is_known(kind: &str) -> bool {
    KINDS.contains(&kind)
}

/// One metadata table's rows.
///
/// # Errors
/// `TableNotFound` for an unknown kind; errors of reading manifests.
pub async fn read(
    table: &LoadedTable,
    at: &TravelTo,
    kind: &str,
) -> Result<(SchemaRef, Vec<RecordBatch>)> {
    let metadata = &table.metadata;
    let columns = match kind {
        "snapshots" => snapshots(metadata),
        "history" => history(metadata),
        "refs" => refs(metadata),
        "manifests" | "files" | "data_files" | "delete_files" | "partitions" => {
            let store: Arc<dyn ObjectStore> = table.store.clone();
            match pin(metadata, "", at)?.snapshot {
                Some(snapshot) if kind == "manifests" => {
                    manifests(&store, metadata, &snapshot).await?
                }
                Some(snapshot) => files(&store, metadata, &snapshot, kind).await?,
                None => return Err(Error::config("the table has no snapshot, so it has no files")),
            }
        }
        other => {
            return Err(Error::new(
                ErrorKind::TableNotFound,
                format!(
                    "there is no metadata table ${other}{}; there are {}",
                    suggestion(other, KINDS.iter().copied()),
                    list_names(KINDS)
                ),
            ));
        }
    };
    let (schema, batch) = batch_of(columns)?;
    Ok((schema, vec![batch]))
}

/// The columns as one batch.
///
/// # Errors
/// An internal error where they differ in length.
pub fn batch_of(columns: Columns) -> Result<(SchemaRef, RecordBatch)> {
    let fields: Vec<Field> = columns
        .iter()
        .map(|(name, array)| Field::new(*name, array.data_type().clone(), true))
        .collect();
    let schema = Arc::new(Schema::new(fields));
    let arrays = columns.into_iter().map(|(_, array)| array).collect();
    Ok((Arc::clone(&schema), RecordBatch::try_new(schema, arrays)?))
}

/// The columns of a metadata table, by name.
pub type Columns = Vec<(&'static str, ArrayRef)>;

/// Times from milliseconds since 1970-01-01 UTC.
pub fn times(millis: impl Iterator<Item = i64>) -> ArrayRef {
    Arc::new(TimestampMillisecondArray::from_iter_values(millis).with_timezone("UTC"))
}

/// Texts.
pub fn texts<T: AsRef<str>>(values: impl Iterator<Item = T>) -> ArrayRef {
    Arc::new(StringArray::from_iter_values(values))
}

/// Texts, some of which are null.
pub fn texts_or_null(values: impl Iterator<Item = Option<String>>) -> ArrayRef {
    Arc::new(values.collect::<StringArray>())
}

/// Whole numbers.
pub fn longs(values: impl Iterator<Item = Option<i64>>) -> ArrayRef {
    Arc::new(Int64Array::from_iter(values))
}

fn snapshots(metadata: &TableMetadata) -> Columns {
    let mut all: Vec<&SnapshotRef> = metadata.snapshots().collect();
    all.sort_by_key(|s| (s.timestamp_ms(), s.sequence_number()));
    let summary = |s: &&SnapshotRef| {
        let sorted: std::collections::BTreeMap<_, _> =
            s.summary().additional_properties.iter().collect();
        serde_json::to_string(&sorted).unwrap_or_default()
    };
    vec![
        ("committed_at", times(all.iter().map(|s| s.timestamp_ms()))),
        ("snapshot_id", longs(all.iter().map(|s| Some(s.snapshot_id())))),
        ("parent_id", longs(all.iter().map(|s| s.parent_snapshot_id()))),
        ("operation", texts(all.iter().map(|s| s.summary().operation.as_str()))),
        ("manifest_list", texts(all.iter().map(|s| s.manifest_list()))),
        ("summary", texts(all.iter().map(summary))),
    ]
}

fn history(metadata: &TableMetadata) -> Columns {
    let log = metadata.history();
    let ancestors: HashSet<i64> = ancestors(metadata).map(|s| s.snapshot_id()).collect();
    let is_ancestor = log.iter().map(|entry| Some(ancestors.contains(&entry.snapshot_id)));
    vec![
        ("made_current_at", times(log.iter().map(|entry| entry.timestamp_ms()))),
        ("snapshot_id", longs(log.iter().map(|entry| Some(entry.snapshot_id)))),
        ("is_current_ancestor", Arc::new(BooleanArray::from_iter(is_ancestor))),
    ]
}

fn refs(metadata: &TableMetadata) -> Columns {
    let all = references(metadata);
    let kind = |is_branch: bool| if is_branch { "BRANCH" } else { "TAG" };
    vec![
        ("name", texts(all.iter().map(|r| &r.name))),
        ("type", texts(all.iter().map(|r| kind(r.is_branch)))),
        ("snapshot_id", longs(all.iter().map(|r| Some(r.snapshot)))),
    ]
}

async fn manifests(
    store: &Arc<dyn ObjectStore>,
    metadata: &TableMetadata,
    snapshot: &SnapshotRef,
) -> Result<Columns> {
    let all = manifest_list(store, metadata, snapshot).await?;
    let content = |content: ManifestContentType| match content {
        ManifestContentType::Data => 0,
        ManifestContentType::Deletes => 1,
    };
    let count = |value: Option<u32>| value.map(i64::from);
    Ok(vec![
        ("content", Arc::new(Int32Array::from_iter_values(all.iter().map(|m| content(m.content))))),
        ("path", texts(all.iter().map(|m| &m.manifest_path))),
        ("length", longs(all.iter().map(|m| Some(m.manifest_length)))),
        (
            "partition_spec_id",
            Arc::new(Int32Array::from_iter_values(all.iter().map(|m| m.partition_spec_id))),
        ),
        ("added_snapshot_id", longs(all.iter().map(|m| Some(m.added_snapshot_id)))),
        ("added_files_count", longs(all.iter().map(|m| count(m.added_files_count)))),
        ("existing_files_count", longs(all.iter().map(|m| count(m.existing_files_count)))),
        ("deleted_files_count", longs(all.iter().map(|m| count(m.deleted_files_count)))),
    ])
}

async fn files(
    store: &Arc<dyn ObjectStore>,
    metadata: &TableMetadata,
    snapshot: &SnapshotRef,
    kind: &str,
) -> Result<Columns> {
    let mut all = live_entries(store, metadata, snapshot).await?;
    match kind {
        "data_files" | "partitions" => all.retain(|entry| entry.is_data()),
        "delete_files" => all.retain(|entry| !entry.is_data()),
        _ => {}
    }
    all.sort_by(|a, b| a.entry.file_path().cmp(b.entry.file_path()));
    let partition = |entry: &Entry| partition_text(metadata, entry);
    if kind == "partitions" {
        let mut found: std::collections::BTreeMap<(i32, String), (i64, i64)> = Default::default();
        for entry in &all {
            let (records, files) = found.entry((entry.spec, partition(entry))).or_default();
            *records += entry.entry.record_count() as i64;
            *files += 1;
        }
        return Ok(vec![
            ("partition", texts(found.keys().map(|(_, partition)| partition))),
            (
                "spec_id",
                Arc::new(Int32Array::from_iter_values(found.keys().map(|(spec, _)| *spec))),
            ),
            ("record_count", longs(found.values().map(|(records, _)| Some(*records)))),
            ("file_count", longs(found.values().map(|(_, files)| Some(*files)))),
        ]);
    }
    let content = |content: DataContentType| content as i32;
    let file = |entry: &Entry| Arc::clone(&entry.entry);
    Ok(vec![
        (
            "content",
            Arc::new(Int32Array::from_iter_values(
                all.iter().map(|e| content(e.entry.content_type())),
            )),
        ),
        ("file_path", texts(all.iter().map(|e| e.entry.file_path().to_owned()))),
        (
            "file_format",
            texts(all.iter().map(|e| e.entry.file_format().to_string().to_uppercase())),
        ),
        ("spec_id", Arc::new(Int32Array::from_iter_values(all.iter().map(|e| e.spec)))),
        ("partition", texts(all.iter().map(partition))),
        ("record_count", longs(all.iter().map(|e| Some(e.entry.record_count() as i64)))),
        (
            "file_size_in_bytes",
            longs(all.iter().map(|e| Some(e.entry.file_size_in_bytes() as i64))),
        ),
        ("sequence_number", longs(all.iter().map(|e| Some(e.sequence)))),
        ("snapshot_id", longs(all.iter().map(|e| Some(e.added_by)))),
        (
            "referenced_data_file",
            Arc::new(StringArray::from_iter(
                all.iter().map(|e| file(e).data_file().referenced_data_file()),
            )),
        ),
    ])
}
