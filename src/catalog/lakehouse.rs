//! The data files of pinned snapshots and versions of lakehouse tables.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::datasource::table_schema::TableSchema;
use datafusion::execution::object_store::ObjectStoreUrl;
use object_store::ObjectStore;

use crate::Result;
use crate::delta::{DataFile, DeltaTable};
use crate::formats::{FooterCache, Format, Scans, TableFile, TableFiles, TableMetadata};
use crate::iceberg::LakeTable;
use crate::storage::{FilePin, IoCounters, PinnedStore, RangeCache, RoutedStore};

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
    let pins = spec.files.iter().map(|file| {
        let pin = FilePin::of_size(RoutedStore::path_of(&file.uri)?, file.size);
        Ok((pin, (!file.has_deletes()).then_some(file.records)))
    });
    let (files, pins) = pinned(pins.collect::<Result<Vec<_>>>()?);
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
pub fn open_delta(
    table: DeltaTable,
    store: Arc<dyn ObjectStore>,
    store_url: ObjectStoreUrl,
    counters: Arc<IoCounters>,
    cache: Option<Arc<RangeCache>>,
) -> TableFiles {
    let spec = table.spec();
    let pin = |file: &DataFile| (FilePin::of_size(file.key.clone(), file.size), Some(file.live()));
    let (files, pins) = pinned(spec.files.iter().map(pin));
    let store = PinnedStore::new(store, &spec.store, pins)
        .of_snapshot(&spec.to_string())
        .with_counters(counters)
        .with_cache(cache, Some(&spec.table_id));
    let columns = Arc::clone(table.file_names());
    let footers = FooterCache::by_field_id(columns).in_store(&spec.store);
    let schema = table.visible_schema();
    table_of(files, store, store_url, schema, footers, Arc::new(table))
}

/// Files and their pins, from each pin with the rows that are known.
fn pinned(
    found: impl IntoIterator<Item = (FilePin, Option<u64>)>,
) -> (Vec<TableFile>, Vec<FilePin>) {
    let file = |(pin, rows): (FilePin, Option<u64>)| {
        (TableFile { meta: pin.clone().into(), partition_values: Vec::new(), rows }, pin)
    };
    found.into_iter().map(file).unzip()
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
