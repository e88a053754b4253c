//! The data files of a pinned version of a Delta table.

use std::sync::Arc;

use datafusion::datasource::table_schema::TableSchema;
use datafusion::execution::object_store::ObjectStoreUrl;
use object_store::ObjectStore;
use object_store::path::Path;

use crate::delta::DeltaTable;
use crate::formats::{FooterCache, Format, Scans, TableFile, TableFiles, TableMetadata};
use crate::storage::{FilePin, IoCounters, PinnedStore, RangeCache};
use crate::{Error, Result};

/// The files of a pinned version, ready to be read from the table's store. Their sizes are pinned;
/// Delta never writes a file twice.
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
    let mut files = Vec::with_capacity(spec.files.len());
    let mut pins = Vec::with_capacity(spec.files.len());
    for file in &spec.files {
        let location = Path::parse(&file.key).map_err(|error| {
            Error::data(format!("{:?} is no name of a file", file.key)).with_source(error)
        })?;
        let pin = FilePin::of_size(location, file.size);
        let rows = Some(file.live());
        files.push(TableFile { meta: pin.clone().into(), partition_values: Vec::new(), rows });
        pins.push(pin);
    }
    let store: Arc<dyn ObjectStore> = Arc::new(
        PinnedStore::new(store, &spec.store, pins)
            .of_snapshot(&spec.to_string())
            .with_counters(counters)
            .with_cache(cache, Some(&spec.table_id)),
    );
    let columns = Arc::clone(table.file_names());
    Ok(TableFiles {
        format: Format::Parquet,
        schema: TableSchema::new(table.visible_schema(), Vec::new()),
        store,
        store_url,
        root: String::new(),
        files,
        footers: Arc::new(FooterCache::by_field_id(columns).in_store(&spec.store)),
        metadata: Some(Arc::new(table)),
        scans: Scans::default(),
    })
}
