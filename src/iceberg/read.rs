//! Reading whole delete files: some columns of every row.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::{Schema, SchemaRef};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use chrono::DateTime;
use datafusion::datasource::physical_plan::parquet::ParquetFileReaderFactory;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{PhysicalExpr, projection::ProjectionExpr};
use datafusion::physical_expr_adapter::PhysicalExprAdapterFactory;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use futures::TryStreamExt;
use object_store::{ObjectMeta, ObjectStore};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::arrow::async_reader::{AsyncFileReader, ParquetRecordBatchStreamBuilder};

use super::adapt::FieldAdapter;
use super::rename::ColumnMap;
use super::spec::{LakeSpec, Storage};
use super::types::arrow_schema;
use crate::formats::{CachedFooters, FooterCache};
use crate::storage::RoutedStore;
use crate::{Error, Result};

/// Rows per batch.
const BATCH_ROWS: usize = 8192;

/// Which columns of a delete file are read, and in which order they come back.
#[derive(Clone, Copy, Debug)]
pub enum StoredColumns<'a> {
    /// By the names that the specification gives them, as they are stored.
    Named(&'a [&'a str]),
    /// Columns of the table, found by field id, as the table's types.
    OfTable(&'a LakeSpec, &'a [String]),
}

/// All rows of a delete file.
///
/// # Errors
/// `Data` where the file is damaged or lacks a column; storage errors as they are.
pub async fn read_columns(
    store: &Arc<dyn ObjectStore>,
    uri: &str,
    size: u64,
    format: Storage,
    columns: StoredColumns<'_>,
) -> Result<Vec<RecordBatch>> {
    let batches = match format {
        Storage::Parquet => read_parquet(store, uri, size, columns).await?,
        Storage::Orc => super::orc::read(store, uri, size, columns).await?,
        Storage::Avro => super::avro::read(store, uri, columns).await?,
    };
    batches.iter().map(|batch| pick(batch, columns)).collect()
}

async fn read_parquet(
    store: &Arc<dyn ObjectStore>,
    uri: &str,
    size: u64,
    columns: StoredColumns<'_>,
) -> Result<Vec<RecordBatch>> {
    let location = RoutedStore::path_of(uri)?;
    let last_modified = DateTime::UNIX_EPOCH;
    let meta = ObjectMeta { location, last_modified, size, e_tag: None, version: None };
    let cache = match columns {
        StoredColumns::Named(_) => FooterCache::default(),
        StoredColumns::OfTable(spec, _) => FooterCache::by_field_id(Arc::new(ColumnMap::new(
            Arc::clone(&spec.schema),
            spec.mapping.clone(),
        ))),
    };
    // Readers that look at footers and pages before they are decoded.
    let readers = CachedFooters::new(Arc::clone(store), Arc::new(cache), false);
    let metrics = ExecutionPlanMetricsSet::new();
    let mut reader: Box<dyn AsyncFileReader> =
        readers.create_reader(0, meta.into(), None, &metrics)?;
    let footer = reader.get_metadata(None).await?;
    let wanted = |name: &str| match columns {
        StoredColumns::Named(names) => names.contains(&name),
        StoredColumns::OfTable(_, names) => names.iter().any(|wanted| wanted == name),
    };
    let schema = footer.file_metadata().schema_descr();
    let fields = schema.root_schema().get_fields();
    let roots = (0..fields.len()).filter(|root| wanted(fields[*root].name()));
    let mask = ProjectionMask::roots(schema, roots);
    let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
    let metadata = ArrowReaderMetadata::try_new(Arc::clone(&footer), options)?;
    let rows = ParquetRecordBatchStreamBuilder::new_with_metadata(reader, metadata)
        .with_batch_size(BATCH_ROWS)
        .with_projection(mask)
        .build()?;
    Ok(rows.try_collect().await?)
}

/// The wanted columns of a batch, in the wanted order and types.
fn pick(batch: &RecordBatch, columns: StoredColumns<'_>) -> Result<RecordBatch> {
    let schema = batch.schema();
    let missing = |name: &str| Error::data(format!("the delete file has no column {name:?}"));
    match columns {
        StoredColumns::Named(names) => {
            let positions = names
                .iter()
                .map(|name| schema.index_of(name).map_err(|_| missing(name)))
                .collect::<Result<Vec<_>>>()?;
            Ok(batch.project(&positions)?)
        }
        StoredColumns::OfTable(spec, names) => {
            let logical: SchemaRef = Arc::new(arrow_schema(&spec.schema));
            let adapter = FieldAdapter::try_new(&spec.schema, [])?
                .create(Arc::clone(&logical), Arc::clone(&schema))?;
            let mut fields = Vec::with_capacity(names.len());
            let mut arrays: Vec<ArrayRef> = Vec::with_capacity(names.len());
            for name in names {
                if schema.index_of(name).is_err() {
                    return Err(missing(name));
                }
                let column: Arc<dyn PhysicalExpr> =
                    Arc::new(Column::new(name, logical.index_of(name)?));
                let adapted = ProjectionExpr::new(adapter.rewrite(column)?, name.clone());
                arrays.push(adapted.expr.evaluate(batch)?.into_array(batch.num_rows())?);
                fields.push(logical.field_with_name(name)?.clone().with_nullable(true));
            }
            let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
            Ok(RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), arrays, &options)?)
        }
    }
}
