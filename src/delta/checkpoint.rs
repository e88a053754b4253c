//! Checkpoints: the actions of a table's state, in Parquet files.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray, MapArray, StringArray, StructArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type};
use arrow::record_batch::RecordBatch;
use datafusion::datasource::physical_plan::parquet::ParquetFileReaderFactory;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::arrow::async_reader::{AsyncFileReader, ParquetRecordBatchStreamBuilder};

use super::actions::{Action, Add, Metadata, Protocol, Sidecar, VectorPlace, read_json};
use super::files::LogFiles;
use crate::formats::CachedFooters;
use crate::{Error, Result};

/// Rows per batch.
const BATCH_ROWS: usize = 8192;

/// The columns that are read, as the path of the first names: others may be large.
const COLUMNS: &[&[&str]] = &[
    &["add", "path"],
    &["add", "partitionValues"],
    &["add", "size"],
    &["add", "stats"],
    &["add", "stats_parsed", "numRecords"],
    &["add", "deletionVector"],
    &["metaData", "id"],
    &["metaData", "schemaString"],
    &["metaData", "partitionColumns"],
    &["metaData", "configuration"],
    &["protocol", "minReaderVersion"],
    &["protocol", "readerFeatures"],
    &["sidecar", "path"],
    &["sidecar", "sizeInBytes"],
];

/// The actions of one file of a checkpoint.
///
/// # Errors
/// `Data` where it is damaged; storage errors as they are.
pub async fn read_checkpoint(
    store: &Arc<dyn ObjectStore>,
    log: &LogFiles,
    path: &Path,
    size: u64,
) -> Result<Vec<Action>> {
    let located = |error: Error| error.with_context("checkpoint", log.describe(path));
    if path.as_ref().ends_with(".json") {
        return read_json(store, path).await.map_err(located);
    }
    read_parquet(store, path, size).await.map_err(located)
}

async fn read_parquet(store: &Arc<dyn ObjectStore>, path: &Path, size: u64) -> Result<Vec<Action>> {
    let (location, last_modified) = (path.clone(), Default::default());
    let meta = ObjectMeta { location, last_modified, size, e_tag: None, version: None };
    // Readers that look at footers and pages before they are decoded.
    let readers = CachedFooters::new(Arc::clone(store), Arc::default(), false);
    let metrics = ExecutionPlanMetricsSet::new();
    let mut reader: Box<dyn AsyncFileReader> =
        readers.create_reader(0, meta.into(), None, &metrics)?;
    let footer = reader.get_metadata(None).await?;
    let schema = footer.file_metadata().schema_descr();
    let is_read = |leaf: usize| {
        let column = schema.column(leaf);
        let parts = column.path().parts();
        COLUMNS.iter().any(|names| {
            names.len() <= parts.len() && names.iter().zip(parts).all(|(name, part)| name == part)
        })
    };
    let mask =
        ProjectionMask::leaves(schema, (0..schema.num_columns()).filter(|leaf| is_read(*leaf)));
    // Writers embed Arrow types of their own choice.
    let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
    let metadata = ArrowReaderMetadata::try_new(Arc::clone(&footer), options)?;
    let mut rows = ParquetRecordBatchStreamBuilder::new_with_metadata(reader, metadata)
        .with_batch_size(BATCH_ROWS)
        .with_projection(mask)
        .build()?;
    let mut actions = Vec::new();
    while let Some(batch) = rows.try_next().await? {
        of_batch(&batch, &mut actions)?;
    }
    Ok(actions)
}

/// The actions of a batch, in its order.
fn of_batch(batch: &RecordBatch, actions: &mut Vec<Action>) -> Result<()> {
    let adds = Group::of_batch(batch, "add")?.map(Adds::of).transpose()?;
    let metadata = Group::of_batch(batch, "metaData")?;
    let protocol = Group::of_batch(batch, "protocol")?;
    let sidecar = Group::of_batch(batch, "sidecar")?;
    for row in 0..batch.num_rows() {
        let mut action = Action::default();
        if let Some(adds) = &adds {
            action.add = adds.row(row)?;
        }
        if let Some(group) = metadata.as_ref().filter(|group| group.has(row)) {
            action.meta_data = Some(Metadata {
                id: group.needed_text("id", row)?,
                schema_string: group.needed_text("schemaString", row)?,
                partition_columns: group.texts("partitionColumns", row)?.unwrap_or_default(),
                configuration: group.map("configuration", row)?,
            });
        }
        if let Some(group) = protocol.as_ref().filter(|group| group.has(row)) {
            let version = group.numbers("minReaderVersion")?.and_then(|all| number(&all, row));
            action.protocol = Some(Protocol {
                min_reader_version: version
                    .and_then(|version| i32::try_from(version).ok())
                    .ok_or_else(|| group.lacks("minReaderVersion"))?,
                reader_features: group.texts("readerFeatures", row)?,
            });
        }
        if let Some(group) = sidecar.as_ref().filter(|group| group.has(row)) {
            let size = group.numbers("sizeInBytes")?.and_then(|all| number(&all, row));
            action.sidecar = Some(Sidecar {
                path: group.needed_text("path", row)?,
                size_in_bytes: size.ok_or_else(|| group.lacks("sizeInBytes"))? as u64,
            });
        }
        let is_known = action.add.is_some()
            || action.meta_data.is_some()
            || action.protocol.is_some()
            || action.sidecar.is_some();
        if is_known {
            actions.push(action);
        }
    }
    Ok(())
}

/// The columns of `add`, each taken out once per batch.
struct Adds {
    group: Group,
    path: StringArray,
    stats: Option<StringArray>,
    size: ArrayRef,
    records: Option<ArrayRef>,
    partition_values: Option<Texts>,
    vector: Option<Group>,
}

impl Adds {
    fn of(group: Group) -> Result<Self> {
        let size = group.numbers("size")?.ok_or_else(|| group.lacks("size"))?;
        let parsed = group.child("stats_parsed")?;
        let records = parsed.map(|parsed| parsed.numbers("numRecords")).transpose()?.flatten();
        Ok(Self {
            path: group.strings("path")?.ok_or_else(|| group.lacks("path"))?,
            stats: group.strings("stats")?,
            size,
            records,
            partition_values: group.text_maps("partitionValues")?,
            vector: group.child("deletionVector")?,
            group,
        })
    }

    fn row(&self, row: usize) -> Result<Option<Add>> {
        if !self.group.has(row) || self.path.is_null(row) {
            return Ok(None);
        }
        let counted = |all: &Option<ArrayRef>| all.as_ref().and_then(|all| number(all, row));
        let size = number(&self.size, row).and_then(|size| u64::try_from(size).ok());
        let vector = self.vector.as_ref().filter(|vector| vector.has(row));
        let vector = vector.map(|vector| vector_of(vector, row)).transpose()?.flatten();
        Ok(Some(Add {
            path: self.path.value(row).to_owned(),
            partition_values: match &self.partition_values {
                Some(maps) => maps.row(row),
                None => BTreeMap::new(),
            },
            size: size.ok_or_else(|| self.group.lacks("size"))?,
            data_change: true,
            stats: self
                .stats
                .as_ref()
                .filter(|all| all.is_valid(row))
                .map(|all| all.value(row).to_owned()),
            deletion_vector: vector,
            records: counted(&self.records).and_then(|records| u64::try_from(records).ok()),
        }))
    }
}

fn vector_of(group: &Group, row: usize) -> Result<Option<VectorPlace>> {
    let Some(kind) = group.text("storageType", row)? else { return Ok(None) };
    let counted = |name: &str| -> Result<Option<u64>> {
        let found = group.numbers(name)?.and_then(|all| number(&all, row));
        Ok(found.and_then(|found| u64::try_from(found).ok()))
    };
    Ok(Some(VectorPlace {
        storage_type: kind,
        path_or_inline_dv: group.needed_text("pathOrInlineDv", row)?,
        offset: counted("offset")?,
        size_in_bytes: counted("sizeInBytes")?.ok_or_else(|| group.lacks("sizeInBytes"))?,
        cardinality: counted("cardinality")?.ok_or_else(|| group.lacks("cardinality"))?,
    }))
}

fn number(all: &ArrayRef, row: usize) -> Option<i64> {
    let all = all.as_primitive_opt::<Int64Type>()?;
    all.is_valid(row).then(|| all.value(row))
}

/// A column of structs.
struct Group {
    name: String,
    values: StructArray,
}

impl Group {
    fn of_batch(batch: &RecordBatch, name: &str) -> Result<Option<Self>> {
        batch.column_by_name(name).map(|column| Self::new(name, column)).transpose()
    }

    fn new(name: &str, column: &ArrayRef) -> Result<Self> {
        let values = column.as_struct_opt().cloned();
        let values =
            values.ok_or_else(|| Error::data(format!("{name:?} is no group of columns")))?;
        Ok(Self { name: name.to_owned(), values })
    }

    fn has(&self, row: usize) -> bool {
        self.values.is_valid(row)
    }

    fn lacks(&self, column: &str) -> Error {
        Error::data(format!("an action {:?} lacks {column:?}", self.name))
    }

    fn child(&self, name: &str) -> Result<Option<Self>> {
        self.values.column_by_name(name).map(|column| Self::new(name, column)).transpose()
    }

    /// A column in a type, which it has or becomes.
    fn typed(&self, name: &str, data_type: &DataType) -> Result<Option<ArrayRef>> {
        let Some(column) = self.values.column_by_name(name) else { return Ok(None) };
        match column.data_type() == data_type {
            true => Ok(Some(Arc::clone(column))),
            false => Ok(Some(cast(column, data_type)?)),
        }
    }

    fn strings(&self, name: &str) -> Result<Option<StringArray>> {
        Ok(self.typed(name, &DataType::Utf8)?.map(|column| column.as_string::<i32>().clone()))
    }

    fn numbers(&self, name: &str) -> Result<Option<ArrayRef>> {
        self.typed(name, &DataType::Int64)
    }

    fn text(&self, name: &str, row: usize) -> Result<Option<String>> {
        let found = self.strings(name)?;
        Ok(found.filter(|all| all.is_valid(row)).map(|all| all.value(row).to_owned()))
    }

    fn needed_text(&self, name: &str, row: usize) -> Result<String> {
        self.text(name, row)?.ok_or_else(|| self.lacks(name))
    }

    fn texts(&self, name: &str, row: usize) -> Result<Option<Vec<String>>> {
        let Some(column) = self.values.column_by_name(name) else { return Ok(None) };
        let lists: &ListArray = column.as_list_opt().ok_or_else(|| self.lacks(name))?;
        if lists.is_null(row) {
            return Ok(None);
        }
        let items = cast(&lists.value(row), &DataType::Utf8)?;
        Ok(Some(items.as_string::<i32>().iter().flatten().map(str::to_owned).collect()))
    }

    fn text_maps(&self, name: &str) -> Result<Option<Texts>> {
        let Some(column) = self.values.column_by_name(name) else { return Ok(None) };
        let maps = column.as_map_opt().ok_or_else(|| self.lacks(name))?;
        let texts = |values: &ArrayRef| -> Result<StringArray> {
            Ok(cast(values, &DataType::Utf8)?.as_string::<i32>().clone())
        };
        let (keys, values) = (texts(maps.keys())?, texts(maps.values())?);
        Ok(Some(Texts { maps: maps.clone(), keys, values }))
    }

    fn map(&self, name: &str, row: usize) -> Result<BTreeMap<String, Option<String>>> {
        Ok(self.text_maps(name)?.map(|maps| maps.row(row)).unwrap_or_default())
    }
}

/// A column of maps of texts.
struct Texts {
    maps: MapArray,
    keys: StringArray,
    values: StringArray,
}

impl Texts {
    fn row(&self, row: usize) -> BTreeMap<String, Option<String>> {
        if self.maps.is_null(row) {
            return BTreeMap::new();
        }
        let offsets = self.maps.value_offsets();
        let pairs = offsets[row] as usize..offsets[row + 1] as usize;
        let value = |at: usize| self.values.is_valid(at).then(|| self.values.value(at).to_owned());
        pairs.map(|at| (self.keys.value(at).to_owned(), value(at))).collect()
    }
}
