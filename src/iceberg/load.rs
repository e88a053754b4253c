//! From a table's metadata and a point in its history to a pinned snapshot: files, deletes and
//! values.

use std::sync::Arc;

use iceberg::spec::{NameMapping, NestedField, Schema as IcebergSchema, SchemaRef, TableMetadata};
use object_store::ObjectStore;

use super::assign::{Deletes, storage_of};
use super::defaults::{Defaults, with_defaults};
use super::manifests::{Entry, added_entries, live_entries};
use super::rename::hidden_name;
use super::snapshot::{Appended, Pinned, TravelTo, pin};
use super::spec::{DataFile, LakeSpec};
use super::types::newest_field;
use super::values::FileValues;
use crate::{Error, ErrorKind, Result};

/// The property that maps the columns of files without field ids.
const NAME_MAPPING: &str = "schema.name-mapping.default";

/// Reads the manifests of a snapshot.
///
/// # Arguments
/// `defaults`: defaults that the metadata's schemas lack. `name`: the table's name as the user
/// wrote it, for messages. `location`: the metadata file, where known.
///
/// # Errors
/// `Config` for a point in history that does not exist; `Data` for damaged, missing or unsupported
/// manifests, by name; storage errors as they are.
pub async fn load(
    store: &Arc<dyn ObjectStore>,
    metadata: &TableMetadata,
    defaults: &Defaults,
    name: &str,
    location: Option<String>,
    at: &TravelTo,
    scan_filter: Option<String>,
) -> Result<(LakeSpec, FileValues)> {
    let pinned = pin(metadata, name, at)?;
    let entries = match (&pinned.appended, &pinned.snapshot) {
        (Some(appended), _) => appended_entries(store, metadata, appended).await?,
        (None, Some(snapshot)) => live_entries(store, metadata, snapshot).await?,
        (None, None) => Vec::new(),
    };
    let (mut spec, values) = assemble(metadata, name, location, &pinned, entries, scan_filter)?;
    spec.schema = with_defaults(&spec.schema, defaults)?;
    Ok((spec, values))
}

/// The data files that appends added, each from the manifests of its own snapshot: a compaction
/// since may have put others in their place.
async fn appended_entries(
    store: &Arc<dyn ObjectStore>,
    metadata: &TableMetadata,
    appended: &Appended,
) -> Result<Vec<Entry>> {
    let mut ids: Vec<i64> = appended.snapshots.iter().copied().collect();
    ids.sort_unstable();
    let mut found = Vec::new();
    for id in ids {
        if let Some(snapshot) = metadata.snapshot_by_id(id) {
            let added = added_entries(store, metadata, snapshot).await?;
            found.extend(added.into_iter().filter(Entry::is_data));
        }
    }
    Ok(found)
}

fn assemble(
    metadata: &TableMetadata,
    name: &str,
    location: Option<String>,
    pinned: &Pinned,
    entries: Vec<Entry>,
    scan_filter: Option<String>,
) -> Result<(LakeSpec, FileValues)> {
    let deletes = Deletes::of(metadata, &entries)?;
    let mut data: Vec<Entry> = entries.into_iter().filter(Entry::is_data).collect();
    // Manifests come in the order of commits, which compaction of metadata changes; paths never do.
    data.sort_by(|a, b| a.entry.file_path().cmp(b.entry.file_path()));
    if let Some(twice) = data.windows(2).find(|w| w[0].entry.file_path() == w[1].entry.file_path())
    {
        return Err(Error::data(format!(
            "table {name} lists data file {} twice",
            twice[0].entry.file_path()
        )));
    }
    let mut files = Vec::with_capacity(data.len());
    for entry in &data {
        let file = entry.entry.data_file();
        if file.key_metadata().is_some_and(|key| !key.is_empty()) {
            return Err(Error::data(format!(
                "data file {} of table {name} is encrypted; encrypted tables are not supported",
                file.file_path()
            )));
        }
        files.push(DataFile {
            uri: file.file_path().to_owned(),
            size: file.file_size_in_bytes(),
            records: file.record_count(),
            format: storage_of(file.file_format(), file.file_path(), "data file")
                .map_err(|error| error.with_context("table", name))?,
            spec: entry.spec,
            sequence: entry.sequence,
            positions: deletes.positions(entry),
            equality: deletes.equality(entry),
        });
    }
    let mapping = name_mapping(metadata, name)?;
    let values = FileValues::of(metadata, &pinned.schema, mapping.as_ref(), &data)?;
    let used: Vec<bool> = (0..deletes.groups.len())
        .map(|group| files.iter().any(|file| file.equality.contains(&(group as u32))))
        .collect();
    let (schema, hidden) = with_key_columns(metadata, name, &pinned.schema, &deletes, &used)?;
    let groups = deletes.groups.into_iter().zip(used).map(|((ids, mut group), used)| {
        if used {
            let column = |id: &i32| match pinned.schema.field_by_id(*id) {
                Some(field) => field.name.clone(),
                None => hidden_name(*id),
            };
            group.columns = ids.iter().map(column).collect();
        }
        group
    });
    let groups = groups.collect();
    let visible = schema.as_struct().fields().len() - hidden;
    let spec = LakeSpec {
        name: name.to_owned(),
        uuid: metadata.uuid().to_string(),
        metadata_location: location,
        snapshot: pinned.snapshot.as_ref().map(|snapshot| snapshot.snapshot_id()),
        after: pinned.appended.as_ref().map(|appended| appended.after),
        schema,
        visible,
        mapping,
        files,
        deletes: deletes.files,
        groups,
        scan_filter,
    };
    Ok((spec, values))
}

/// The schema and behind it the columns that only equality deletes name still: the table has
/// dropped them. With how many those are.
fn with_key_columns(
    metadata: &TableMetadata,
    name: &str,
    schema: &SchemaRef,
    deletes: &Deletes,
    used: &[bool],
) -> Result<(Arc<IcebergSchema>, usize)> {
    let mut hidden: Vec<NestedField> = Vec::new();
    for ((ids, _), used) in deletes.groups.iter().zip(used) {
        for id in ids.iter().filter(|_| *used) {
            let is_top = |schema: &IcebergSchema| schema.as_struct().field_by_id(*id).is_some();
            if is_top(schema) || hidden.iter().any(|field| field.id == *id) {
                continue;
            }
            let dropped = newest_field(metadata, |schema| schema.as_struct().field_by_id(*id));
            let Some(dropped) = dropped else {
                return Err(Error::new(
                    ErrorKind::UnsupportedType,
                    format!(
                        "table {name} has equality deletes by field {id}, which is no column of its own but part of \
                         one, or unknown; such deletes are not supported: compact the table (rewrite_data_files)"
                    ),
                ));
            };
            let mut field = dropped.as_ref().clone();
            field.name = hidden_name(*id);
            field.required = false;
            hidden.push(field);
        }
    }
    if let Some(odd) =
        deletes.groups.iter().zip(used).filter(|(_, used)| **used).find_map(|((ids, _), _)| {
            ids.iter().find(|id| {
                let field = schema.as_struct().field_by_id(**id);
                field.is_some_and(|field| !field.field_type.is_primitive())
            })
        })
    {
        return Err(Error::data(format!(
            "table {name} has equality deletes by field {odd}, which is of a nested type"
        )));
    }
    let count = hidden.len();
    if count == 0 {
        return Ok((Arc::clone(schema), 0));
    }
    let fields = schema.as_struct().fields().iter().cloned();
    let all = fields.chain(hidden.into_iter().map(Arc::new));
    let schema = IcebergSchema::builder()
        .with_schema_id(schema.schema_id())
        .with_fields(all)
        .build()
        .map_err(|error| Error::data(format!("the schema of table {name}: {}", error.message())))?;
    Ok((Arc::new(schema), count))
}

fn name_mapping(metadata: &TableMetadata, name: &str) -> Result<Option<NameMapping>> {
    let Some(text) = metadata.properties().get(NAME_MAPPING) else { return Ok(None) };
    serde_json::from_str(text).map(Some).map_err(|error| {
        Error::data(format!("the property {NAME_MAPPING} of table {name} is malformed: {error}"))
    })
}
