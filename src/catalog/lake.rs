//! The data files of a pinned snapshot of an Iceberg table.

use std::sync::Arc;

use datafusion::datasource::table_schema::TableSchema;
use datafusion::execution::object_store::ObjectStoreUrl;
use object_store::ObjectStore;

use crate::Result;
use crate::formats::{FooterCache, Format, Scans, TableFile, TableFiles};
use crate::iceberg::LakeTable;
use crate::storage::{FilePin, IoCounters, PinnedStore, RangeCache, RoutedStore};

/// The files of a pinned snapshot, ready to be read. Their sizes are pinned; Iceberg never writes a
/// file twice.
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
    let mut files = Vec::with_capacity(spec.files.len());
    let mut pins = Vec::with_capacity(spec.files.len());
    for file in &spec.files {
        let pin = FilePin::of_size(RoutedStore::path_of(&file.uri)?, file.size);
        let rows = (!file.has_deletes()).then_some(file.records);
        files.push(TableFile { meta: pin.clone().into(), partition_values: Vec::new(), rows });
        pins.push(pin);
    }
    let store: Arc<dyn ObjectStore> = Arc::new(
        PinnedStore::new(store, RoutedStore::ROOT, pins)
            .of_snapshot(&spec.to_string())
            .with_counters(counters)
            .with_cache(cache, Some(&spec.uuid)),
    );
    Ok(TableFiles {
        format: Format::Parquet,
        schema: TableSchema::new(Arc::new(lake.read_schema()), Vec::new()),
        store,
        store_url,
        root: String::new(),
        files,
        footers: Arc::new(
            FooterCache::by_field_id(lake.columns().clone()).in_store(RoutedStore::ROOT),
        ),
        metadata: Some(Arc::new(lake)),
        scans: Scans::default(),
    })
}
