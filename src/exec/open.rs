//! Opening one split of a file: the part of it, its deletes, and the scan's projection and
//! predicate over it.

use std::sync::Arc;

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
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};

use super::lake_filter::LakeFilter;
use super::lake_orc::open_orc;
use super::split_scan::ReadOnly;
use crate::Error;
use crate::formats::{
    ALL_ROWS, BatchEnds, ColumnRequest, Format, Split, SplitUnit, TableFiles, access_to_matches,
    access_to_rows, caught_rows,
};
use crate::iceberg::{LakeTable, Storage};

/// The rows of a split as `config` wants them, in file order; they have this `schema`.
pub(super) fn open_split(
    table: &Arc<TableFiles>,
    config: &Arc<FileScanConfig>,
    schema: &SchemaRef,
    split: &Split,
    context: Arc<TaskContext>,
) -> DfResult<SendableRecordBatchStream> {
    let index = split.file as usize;
    let place = format!("{}, {}", table.display_path(index), split.unit);
    let read = context.session_config().get_extension::<ReadOnly>().map(|read| read.0.clone());
    let rows = match LakeTable::of(table) {
        Some(lake) if lake.file(index).format == Storage::Orc => {
            let table = Arc::clone(table);
            let opened = open_orc(table, lake, Arc::clone(config), *split, context);
            futures::stream::once(opened).try_flatten().boxed()
        }
        Some(lake) if lake.file(index).has_deletes() => {
            let opened = open_with_deletes(
                Arc::clone(table),
                lake,
                Arc::clone(config),
                *split,
                read,
                context,
            );
            futures::stream::once(opened).try_flatten().boxed()
        }
        None if has_positions(table, index) => {
            let (table, config, split) = (Arc::clone(table), Arc::clone(config), *split);
            let opened = async move {
                let read = match read {
                    Some(read) => Some(read),
                    None => access_to_rows(&table, &split, ALL_ROWS).await?,
                };
                open(&table, &config, projection_of(&config), &split, read, context)
            };
            futures::stream::once(opened).try_flatten().boxed()
        }
        _ => open(table, config, projection_of(config), split, read, context)?,
    };
    let rows = caught_rows(rows).map(move |batch| batch.map_err(|error| located(error, &place)));
    Ok(Box::pin(RecordBatchStreamAdapter::new(Arc::clone(schema), rows)))
}

/// Returns true if a deletion vector takes rows out of a data file.
fn has_positions(table: &TableFiles, index: usize) -> bool {
    table.metadata.as_ref().is_some_and(|metadata| metadata.listed(index).has_deletes)
}

/// As DataFusion opens it, with projection `projection` in place of the scan's; or column by
/// column, where that can be done.
fn open(
    table: &Arc<TableFiles>,
    config: &Arc<FileScanConfig>,
    projection: Option<ProjectionExprs>,
    split: &Split,
    read: Option<ParquetAccessPlan>,
    context: Arc<TaskContext>,
) -> DfResult<BoxStream<'static, DfResult<RecordBatch>>> {
    if *table.format_of(split.file as usize) != Format::Parquet {
        return Ok(one_file(table, config, projection, split, read)?.open(0, context)?.boxed());
    }
    let asked = projection.clone().filter(|_| is_by_columns(table, config));
    let (table, config, split) = (Arc::clone(table), Arc::clone(config), *split);
    let opened = async move {
        let predicate = config.file_source.filter();
        if let Some(asked) = asked {
            let rows = context.session_config().batch_size();
            let cuts = context.session_config().get_extension::<BatchEnds>().map(|cuts| *cuts);
            let request = ColumnRequest {
                table: &table,
                split: &split,
                only: read.as_ref(),
                predicate: predicate.as_ref(),
                projection: &asked,
            };
            if let Some(eligible) = request.eligible().await? {
                return Ok::<_, DataFusionError>(eligible.build(rows, cuts)?.rows());
            }
        }
        let read = access_to_matches(&table, &split, predicate.as_ref(), read).await?;
        Ok(one_file(&table, &config, projection, &split, read)?.open(0, context)?.boxed())
    };
    Ok(futures::stream::once(opened).try_flatten().boxed())
}

/// Returns true if splits are read column by column, the predicate's columns first, unless a file
/// gives more reasons against it: see [`ColumnRequest::eligible`].
fn is_by_columns(table: &TableFiles, config: &FileScanConfig) -> bool {
    let is_first = || parquet_options(config).global.pushdown_filters;
    table.format == Format::Parquet
        && config.limit.is_none()
        && (config.file_source.filter().is_none() || is_first())
}

/// The predicate whose columns are read first.
pub(super) fn predicate_first(
    table: &TableFiles,
    config: &FileScanConfig,
) -> Option<Arc<dyn PhysicalExpr>> {
    config.file_source.filter().filter(|_| is_by_columns(table, config))
}

/// The scan of one split alone.
fn one_file(
    table: &Arc<TableFiles>,
    config: &FileScanConfig,
    projection: Option<ProjectionExprs>,
    split: &Split,
    read: Option<ParquetAccessPlan>,
) -> DfResult<FileScanConfig> {
    let index = split.file as usize;
    let mut file = table.partitioned_file(index);
    if matches!(split.unit, SplitUnit::Rows(_)) {
        return internal_err!("a file cannot be read by {}", split.unit);
    }
    if let Some(range) = split.unit.byte_range() {
        file = file.with_range(range.start as i64, range.end as i64);
    }
    let skips = read.is_some();
    if let Some(read) = read {
        file = file.with_extensions(Arc::new(read));
    }
    let mut one = FileScanConfigBuilder::from(config.clone())
        .with_file_groups(vec![FileGroup::new(vec![file])])
        .with_source(fresh_source(table, config, projection, skips)?);
    if let Some(metadata) = &table.metadata {
        one = one.with_expr_adapter(Some(metadata.expr_adapter(index)?));
    }
    Ok(one.build())
}

/// Without the rows that deletes of an Iceberg table take out. Positions become a selection of
/// rows, under which the predicate and the page index work as ever; keys are looked up in the rows
/// that the predicate leaves.
async fn open_with_deletes(
    table: Arc<TableFiles>,
    lake: Arc<LakeTable>,
    config: Arc<FileScanConfig>,
    split: Split,
    read: Option<ParquetAccessPlan>,
    context: Arc<TaskContext>,
) -> DfResult<BoxStream<'static, DfResult<RecordBatch>>> {
    let index = split.file as usize;
    let read = match read {
        Some(read) => Some(read),
        None if lake.file(index).positions.is_empty() => None,
        None => access_to_rows(&table, &split, ALL_ROWS).await?,
    };
    let keys = lake.equality(&table.store, index).await?;
    if keys.is_empty() {
        return open(&table, &config, projection_of(&config), &split, read, context);
    }
    let filter = LakeFilter::try_new(&table, &config, keys, lake.file(index).sequence, false)?;
    let reads = ProjectionExprs::from_indices(&filter.needed, table.schema.table_schema());
    let rows = open(&table, &config, Some(reads), &split, read, context)?;
    Ok(rows.map(move |batch| filter.apply(&batch?, None)).boxed())
}

fn projection_of(config: &FileScanConfig) -> Option<ProjectionExprs> {
    config.file_source.projection().cloned()
}

/// The scan's source with metrics of its own. Sharing one metrics set would keep some 20 KiB per
/// executed split until the plan is dropped.
///
/// With `skips` some rows are not read, and the page index says which pages need no request.
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
