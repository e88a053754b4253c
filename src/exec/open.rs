//! Opening one split of a file: the part of it, its deletes, and the scan's projection and predicate over it.

use std::sync::Arc;

use arrow::array::{Array, BooleanArray};
use arrow::compute::{and, filter_record_batch};
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion::common::config::TableParquetOptions;
use datafusion::common::{internal_datafusion_err, internal_err};
use datafusion::datasource::physical_plan::parquet::ParquetAccessPlan;
use datafusion::datasource::physical_plan::{
    FileGroup, FileScanConfig, FileScanConfigBuilder, FileSource, ParquetSource,
};
use datafusion::datasource::source::DataSource;
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::{StreamExt, TryStreamExt};

use super::split_scan::ReadOnly;
use crate::Error;
use crate::lake::{EqualityKeys, LakeTable};
use crate::split::{Split, SplitUnit, TableFiles, access_after};

/// The rows of a split as `config` wants them, in file order.
pub(super) fn open_split(
    table: &Arc<TableFiles>,
    config: &FileScanConfig,
    split: &Split,
    context: Arc<TaskContext>,
) -> DfResult<SendableRecordBatchStream> {
    let index = split.file as usize;
    let place = format!("{}, {}", table.display_path(index), split.unit);
    let read = context.session_config().get_extension::<ReadOnly>().map(|read| read.0.clone());
    let schema = projected_schema(config)?;
    let rows = match &table.lake {
        Some(lake) if lake.file(index).has_deletes() => {
            let opened = open_with_deletes(
                Arc::clone(table),
                Arc::clone(lake),
                config.clone(),
                *split,
                read,
                context,
            );
            futures::stream::once(opened).try_flatten().boxed()
        }
        _ => open(table, config, projection_of(config), split, read, context)?,
    };
    let rows = rows.map(move |batch| batch.map_err(|error| located(error, &place)));
    Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
}

/// As DataFusion opens it, with projection `projection` in place of the scan's.
fn open(
    table: &Arc<TableFiles>,
    config: &FileScanConfig,
    projection: Option<ProjectionExprs>,
    split: &Split,
    read: Option<ParquetAccessPlan>,
    context: Arc<TaskContext>,
) -> DfResult<SendableRecordBatchStream> {
    let index = split.file as usize;
    let mut file = table.partitioned_file(index);
    match split.unit {
        SplitUnit::RowGroups { byte_start, byte_end, .. } => {
            file = file.with_range(byte_start as i64, byte_end as i64);
        }
        SplitUnit::Bytes { start, end } => file = file.with_range(start as i64, end as i64),
        SplitUnit::File => {}
        SplitUnit::Rows(_) => return internal_err!("a file cannot be read by {}", split.unit),
    }
    let skips = read.is_some();
    if let Some(read) = read {
        file = file.with_extensions(Arc::new(read));
    }
    let mut one = FileScanConfigBuilder::from(config.clone())
        .with_file_groups(vec![FileGroup::new(vec![file])])
        .with_source(fresh_source(table, config, projection, skips)?);
    if let Some(lake) = &table.lake {
        one = one.with_expr_adapter(Some(Arc::new(lake.adapter(index)?)));
    }
    one.build().open(0, context)
}

/// Without the rows that deletes of an Iceberg table take out. Positions become a selection of rows, under which the
/// predicate and the page index work as ever; keys are looked up in the rows that the predicate leaves.
async fn open_with_deletes(
    table: Arc<TableFiles>,
    lake: Arc<LakeTable>,
    config: FileScanConfig,
    split: Split,
    read: Option<ParquetAccessPlan>,
    context: Arc<TaskContext>,
) -> DfResult<SendableRecordBatchStream> {
    let index = split.file as usize;
    let read = match read {
        Some(read) => Some(read),
        None if lake.file(index).positions.is_empty() => None,
        None => access_after(&table, &split, 0).await?,
    };
    let keys = lake.equality(&table.store, index).await?;
    if keys.is_empty() {
        return open(&table, &config, projection_of(&config), &split, read, context);
    }
    let filter = KeyFilter::try_new(&table, &config, keys, lake.file(index).sequence)?;
    let rows = open(&table, &config, Some(filter.reads.clone()), &split, read, context)?;
    let schema = Arc::clone(&filter.schema);
    let rows = rows.map(move |batch| filter.apply(&batch?));
    Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
}

/// Equality deletes of one file below the scan's projection.
struct KeyFilter {
    keys: Vec<(Arc<EqualityKeys>, Vec<usize>)>,
    sequence: i64,
    /// The columns that are read: those of the projection and those of the keys.
    reads: ProjectionExprs,
    /// The scan's projection over what is read.
    projection: ProjectionExprs,
    schema: SchemaRef,
}

impl KeyFilter {
    fn try_new(
        table: &TableFiles,
        config: &FileScanConfig,
        keys: Vec<Arc<EqualityKeys>>,
        sequence: i64,
    ) -> DfResult<Self> {
        let all = table.schema.table_schema();
        let every =
            || ProjectionExprs::from_indices(&(0..all.fields().len()).collect::<Vec<_>>(), all);
        let projection = projection_of(config).unwrap_or_else(every);
        let mut needed = projection.column_indices();
        for keys in &keys {
            for name in &keys.columns {
                needed.push(all.index_of(name)?);
            }
        }
        needed.sort_unstable();
        needed.dedup();
        let read = Arc::new(all.project(&needed)?);
        let positions = |keys: &EqualityKeys| {
            keys.columns.iter().map(|name| Ok(read.index_of(name)?)).collect::<DfResult<Vec<_>>>()
        };
        let keys = keys
            .into_iter()
            .map(|keys| Ok((Arc::clone(&keys), positions(&keys)?)))
            .collect::<DfResult<Vec<_>>>()?;
        let projection = projection.try_map_exprs(|expr| {
            datafusion::physical_expr::utils::reassign_expr_columns(expr, &read)
        })?;
        let schema = projected_schema(config)?;
        Ok(Self {
            keys,
            sequence,
            reads: ProjectionExprs::from_indices(&needed, all),
            projection,
            schema,
        })
    }

    fn apply(&self, batch: &RecordBatch) -> DfResult<RecordBatch> {
        let mut keep: Option<BooleanArray> = None;
        for (keys, positions) in &self.keys {
            let kept = keys.keep(batch, positions, self.sequence)?;
            keep = Some(match keep {
                Some(before) => and(&before, &kept)?,
                None => kept,
            });
        }
        let batch = match keep {
            Some(keep) if keep.true_count() < keep.len() => filter_record_batch(batch, &keep)?,
            _ => batch.clone(),
        };
        let columns = self
            .projection
            .expr_iter()
            .map(|expr| expr.evaluate(&batch)?.into_array(batch.num_rows()))
            .collect::<DfResult<Vec<_>>>()?;
        let options = arrow::record_batch::RecordBatchOptions::new();
        let options = options.with_row_count(Some(batch.num_rows()));
        Ok(RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)?)
    }
}

fn projection_of(config: &FileScanConfig) -> Option<ProjectionExprs> {
    config.file_source.projection().cloned()
}

fn projected_schema(config: &FileScanConfig) -> DfResult<SchemaRef> {
    Ok(Arc::clone(config.eq_properties().schema()))
}

/// The scan's source with metrics of its own. Sharing one metrics set would keep some 20 KiB per
/// executed split until the plan is dropped.
///
/// With `skips` rows are passed over, and the page index says which pages need no request.
fn fresh_source(
    table: &Arc<TableFiles>,
    config: &FileScanConfig,
    projection: Option<ProjectionExprs>,
    skips: bool,
) -> DfResult<Arc<dyn FileSource>> {
    let filter = config.file_source.filter();
    let mut source = table.source(&parquet_options(config), filter.is_some() || skips);
    if let (Some(filter), Some(parquet)) = (filter, source.as_any().downcast_ref::<ParquetSource>())
    {
        source = Arc::new(parquet.with_predicate(filter));
    }
    match projection {
        Some(projection) => projected(&source, &projection),
        None => Ok(source),
    }
}

pub(super) fn parquet_options(config: &FileScanConfig) -> TableParquetOptions {
    let parquet = config.file_source.as_any().downcast_ref::<ParquetSource>();
    parquet.map(|source| source.table_parquet_options().clone()).unwrap_or_default()
}

pub(super) fn projected(
    source: &Arc<dyn FileSource>,
    projection: &ProjectionExprs,
) -> DfResult<Arc<dyn FileSource>> {
    source.try_pushdown_projection(projection)?.ok_or_else(|| {
        internal_datafusion_err!("{} does not take a projection", source.file_type())
    })
}

/// The error with the file and the part of it that was being read.
fn located(error: DataFusionError, place: &str) -> DataFusionError {
    Error::from(error).with_context("while reading", place).into()
}
