//! ORC delete files of Iceberg tables.

use std::sync::Arc;

use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use chrono::DateTime;
use futures::TryStreamExt;
use object_store::{ObjectMeta, ObjectStore};

use super::read::StoredColumns;
use super::rename::ColumnMap;
use crate::Result;
use crate::formats::FooterCache;
use crate::formats::orc::{OrcRead, open, read_orc_footer};
use crate::storage::RoutedStore;

/// Rows per batch.
const BATCH_ROWS: usize = 8192;

/// All rows and columns of an ORC delete file; columns of the table under its names.
///
/// # Errors
/// `Data` where the file is damaged; storage errors as they are.
pub async fn read(
    store: &Arc<dyn ObjectStore>,
    uri: &str,
    size: u64,
    columns: StoredColumns<'_>,
) -> Result<Vec<RecordBatch>> {
    let location = RoutedStore::path_of(uri)?;
    let last_modified = DateTime::UNIX_EPOCH;
    let meta = ObjectMeta { location, last_modified, size, e_tag: None, version: None };
    let footer = read_orc_footer(store, &meta, &FooterCache::default()).await?;
    let stored = footer.schema();
    let (schema, renamed) = match columns {
        StoredColumns::Named(_) => (Arc::clone(&stored), stored),
        StoredColumns::OfTable(spec, _) => {
            ColumnMap::new(Arc::clone(&spec.schema), spec.mapping.clone()).of_orc(stored)
        }
    };
    let all = (0..schema.fields().len()).collect();
    let stripes = 0..footer.stripes().len();
    let read = OrcRead { stripes, columns: all, schema, batch_rows: BATCH_ROWS };
    let batches: Vec<RecordBatch> =
        open(Arc::clone(store), &meta, footer, read)?.try_collect().await?;
    let relabel = |batch: RecordBatch| {
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let columns = batch.columns().to_vec();
        Ok(RecordBatch::try_new_with_options(Arc::clone(&renamed), columns, &options)?)
    };
    batches.into_iter().map(relabel).collect()
}
