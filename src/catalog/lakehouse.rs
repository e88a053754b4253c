//! The data files of pinned snapshots and versions of lakehouse tables.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::datasource::table_schema::TableSchema;
use datafusion::execution::object_store::ObjectStoreUrl;
use object_store::ObjectStore;
use object_store::path::Path;

use crate::delta::DeltaTable;
use crate::formats::{FooterCache, Format, Scans, TableFile, TableFiles, TableMetadata};
use crate::iceberg::LakeTable;
use crate::storage::{FilePin, IoCounters, PinnedStore, RangeCache, RoutedStore};
use crate::{Error, Result};

/// The files of a pinned snapshot of an Iceberg table, ready to be read. Their sizes are pinned;
/// Iceberg never writes a file twice.
///
/// # Errors
/// `Config` for a file in a store of an unknown kind.
pub fn open_lake(
    lake: LakeTable,
    store: Arc<dyn ObjectStore>,
    store_url: ObjectStoreUrl,
    counters: Arc<IoCounters>,
    cache: Option<Arc<RangeCache>>,
) -> Result<TableFiles> {
    let spec = lake.spec();
    let (files, pins) = pinned(spec.files.iter().map(|file| {
        let pin = FilePin::of_size(RoutedStore::path_of(&file.uri)?, file.size);
        Ok((pin, (!file.has_deletes()).then_some(file.records)))
    }))?;
    let store = PinnedStore::new(store, RoutedStore::ROOT, pins)
        .of_snapshot(&spec.to_string())
        .with_counters(counters)
        .with_cache(cache, Some(&spec.uuid));
    let schema = Arc::new(lake.read_schema());
    let footers = FooterCache::by_field_id(lake.columns().clone()).in_store(RoutedStore::ROOT);
    Ok(table_of(files, store, store_url, schema, footers, Arc::new(lake)))
}

/// The files of a pinned version of a Delta table, ready to be read from the table's store. Their
/// sizes are pinned; Delta never writes a file twice.
///
/// # Errors
/// `Data` for a file whose name no store can hold.
pub fn open_delta(
    table: DeltaTable,
    store: Arc<dyn ObjectStore>,
    store_url: ObjectStoreUrl,
    counters: Arc<IoCounters>,
    cache: Option<Arc<RangeCache>>,
) -> Result<TableFiles> {
    let spec = table.spec();
    let (files, pins) = pinned(spec.files.iter().map(|file| {
        let location = Path::parse(&file.key).map_err(|error| {
            Error::data(format!("{:?} is no name of a file", file.key)).with_source(error)
        })?;
        Ok((FilePin::of_size(location, file.size), Some(file.live())))
    }))?;
    let store = PinnedStore::new(store, &spec.store, pins)
        .of_snapshot(&spec.to_string())
        .with_counters(counters)
        .with_cache(cache, Some(&spec.table_id));
    let columns = Arc::clone(table.file_names());
    let footers = FooterCache::by_field_id(columns).in_store(&spec.store);
    let schema = table.visible_schema();
    Ok(table_of(files, store, store_url, schema, footers, Arc::new(table)))
}

/// Files and their pins, from each pin with the rows that are known.
fn pinned(
    found: impl Iterator<Item = Result<(FilePin, Option<u64>)>>,
) -> Result<(Vec<TableFile>, Vec<FilePin>)> {
    let file = |found: Result<(FilePin, Option<u64>)>| {
        let (pin, rows) = found?;
        Ok((TableFile { meta: pin.clone().into(), partition_values: Vec::new(), rows }, pin))
    };
    found.map(file).collect()
}

fn table_of(
    files: Vec<TableFile>,
    store: PinnedStore,
    store_url: ObjectStoreUrl,
    schema: SchemaRef,
    footers: FooterCache,
    metadata: Arc<dyn TableMetadata>,
) -> TableFiles {
    TableFiles {
        format: Format::Parquet,
        schema: TableSchema::new(schema, Vec::new()),
        store: Arc::new(store),
        store_url,
        root: String::new(),
        files,
        footers: Arc::new(footers),
        metadata: Some(metadata),
        scans: Scans::default(),
    }
}
