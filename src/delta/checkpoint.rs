//! Checkpoints: the actions of a table's state, in Parquet files.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, ListArray, StringArray, StructArray};
use arrow::compute::cast;
use arrow::datatypes::DataType;
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
use super::texts::{PartitionTexts, Text, TextMaps};
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
            action.meta_data = Some(Box::new(Metadata {
                id: group.needed_text("id", row)?,
                schema_string: group.needed_text("schemaString", row)?,
                partition_columns: group.texts("partitionColumns", row)?.unwrap_or_default(),
                configuration: group.map("configuration", row)?,
            }));
        }
        if let Some(group) = protocol.as_ref().filter(|group| group.has(row)) {
            let version = count(&group.needed_numbers("minReaderVersion")?, row);
            action.protocol = Some(Box::new(Protocol {
                min_reader_version: version
                    .and_then(|version| i32::try_from(version).ok())
                    .ok_or_else(|| group.lacks("minReaderVersion"))?,
                reader_features: group.texts("readerFeatures", row)?,
            }));
        }
        if let Some(group) = sidecar.as_ref().filter(|group| group.has(row)) {
            let size = count(&group.needed_numbers("sizeInBytes")?, row);
            action.sidecar = Some(Box::new(Sidecar {
                path: group.needed_text("path", row)?,
                size_in_bytes: size.ok_or_else(|| group.lacks("sizeInBytes"))?,
            }));
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
    path: Arc<StringArray>,
    stats: Option<Arc<StringArray>>,
    size: Int64Array,
    records: Option<Int64Array>,
    partition_values: Option<Arc<TextMaps>>,
    vectors: Option<Vectors>,
}

impl Adds {
    fn of(group: Group) -> Result<Self> {
        let parsed = group.child("stats_parsed")?;
        let records = parsed.map(|parsed| parsed.numbers("numRecords")).transpose()?.flatten();
        Ok(Self {
            path: Arc::new(group.strings("path")?.ok_or_else(|| group.lacks("path"))?),
            stats: group.strings("stats")?.map(Arc::new),
            size: group.needed_numbers("size")?,
            records,
            partition_values: group.text_maps("partitionValues")?.map(Arc::new),
            vectors: group.child("deletionVector")?.map(Vectors::of).transpose()?,
            group,
        })
    }

    fn row(&self, row: usize) -> Result<Option<Add>> {
        if !self.group.has(row) || self.path.is_null(row) {
            return Ok(None);
        }
        let maps = self.partition_values.as_ref();
        let stats = self.stats.as_ref().filter(|all| all.is_valid(row));
        let vector = self.vectors.as_ref().map(|vectors| vectors.row(row)).transpose()?.flatten();
        Ok(Some(Add {
            path: Text::Shared(Arc::clone(&self.path), row),
            partition_values: maps
                .map(|maps| PartitionTexts::Shared(Arc::clone(maps), row))
                .unwrap_or_default(),
            size: count(&self.size, row).ok_or_else(|| self.group.lacks("size"))?,
            data_change: true,
            stats: stats.map(|all| Text::Shared(Arc::clone(all), row)),
            deletion_vector: vector.map(Box::new),
            records: self.records.as_ref().and_then(|all| count(all, row)),
        }))
    }
}

/// The columns of `add.deletionVector`.
struct Vectors {
    group: Group,
    kinds: Option<StringArray>,
    places: Option<StringArray>,
    offsets: Option<Int64Array>,
    sizes: Option<Int64Array>,
    cardinalities: Option<Int64Array>,
}

impl Vectors {
    fn of(group: Group) -> Result<Self> {
        Ok(Self {
            kinds: group.strings("storageType")?,
            places: group.strings("pathOrInlineDv")?,
            offsets: group.numbers("offset")?,
            sizes: group.numbers("sizeInBytes")?,
            cardinalities: group.numbers("cardinality")?,
            group,
        })
    }

    fn row(&self, row: usize) -> Result<Option<VectorPlace>> {
        if !self.group.has(row) {
            return Ok(None);
        }
        let text = |all: &Option<StringArray>| {
            let all = all.as_ref().filter(|all| all.is_valid(row))?;
            Some(all.value(row).to_owned())
        };
        let counted =
            |all: &Option<Int64Array>| all.as_ref().and_then(|numbers| count(numbers, row));
        let Some(storage_type) = text(&self.kinds) else { return Ok(None) };
        let lacks = |name| self.group.lacks(name);
        Ok(Some(VectorPlace {
            storage_type,
            path_or_inline_dv: text(&self.places).ok_or_else(|| lacks("pathOrInlineDv"))?,
            offset: counted(&self.offsets),
            size_in_bytes: counted(&self.sizes).ok_or_else(|| lacks("sizeInBytes"))?,
            cardinality: counted(&self.cardinalities).ok_or_else(|| lacks("cardinality"))?,
        }))
    }
}

/// A number that is not negative; None where there is none.
fn count(all: &Int64Array, row: usize) -> Option<u64> {
    all.is_valid(row).then(|| all.value(row)).and_then(|value| u64::try_from(value).ok())
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

    fn numbers(&self, name: &str) -> Result<Option<Int64Array>> {
        Ok(self.typed(name, &DataType::Int64)?.map(|column| column.as_primitive().clone()))
    }

    fn needed_numbers(&self, name: &str) -> Result<Int64Array> {
        self.numbers(name)?.ok_or_else(|| self.lacks(name))
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

    fn text_maps(&self, name: &str) -> Result<Option<TextMaps>> {
        let Some(column) = self.values.column_by_name(name) else { return Ok(None) };
        let maps = column.as_map_opt().ok_or_else(|| self.lacks(name))?;
        let texts = |values: &ArrayRef| -> Result<StringArray> {
            Ok(cast(values, &DataType::Utf8)?.as_string::<i32>().clone())
        };
        let (keys, values) = (texts(maps.keys())?, texts(maps.values())?);
        Ok(Some(TextMaps { maps: maps.clone(), keys, values }))
    }

    fn map(&self, name: &str, row: usize) -> Result<BTreeMap<String, Option<String>>> {
        let Some(maps) = self.text_maps(name)? else { return Ok(BTreeMap::new()) };
        let owned = |(name, text): (&str, Option<&str>)| (name.to_owned(), text.map(str::to_owned));
        Ok(maps.row(row).map(owned).collect())
    }
}
