//! DataFusion's file scan, except for rows that it would leave out of Parquet files and columns
//! that it would read wrongly.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use datafusion::common::Statistics;
use datafusion::common::config::ConfigOptions;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{
    FileGroup, FileScanConfig, FileScanConfigBuilder, ParquetSource,
};
use datafusion::datasource::source::DataSource;
use datafusion::error::Result as DfResult;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_expr::utils::reassign_expr_columns;
use datafusion::physical_expr::{EquivalenceProperties, Partitioning, PhysicalExpr};
use datafusion::physical_plan::DisplayFormatType;
use datafusion::physical_plan::execution_plan::SchedulingType;
use datafusion::physical_plan::filter_pushdown::{FilterPushdownPropagation, PushedDown};
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};

use crate::Error;
use crate::basics::forwarded;
use crate::formats::{ColumnRequest, FileRef, Split, access_to_matches, caught, caught_rows};

/// Files opened ahead of the one that is read.
const FILES_AHEAD: usize = 2;

/// A file scan with a list of rows to read in each Parquet file. These files are opened one by one.
/// Files with columns that DataFusion cannot read, or reads wrongly, are read by columns.
#[derive(Clone, Debug)]
pub struct SoundScan {
    config: FileScanConfig,
}

impl SoundScan {
    /// The scan of a configuration.
    pub fn new(config: FileScanConfig) -> Self {
        Self { config }
    }

    /// The file scan underneath: projection, predicate and files.
    pub fn config(&self) -> &FileScanConfig {
        &self.config
    }

    /// Wraps a file scan; returns any other source unchanged.
    fn over(source: Arc<dyn DataSource>) -> Arc<dyn DataSource> {
        match source.as_any().downcast_ref::<FileScanConfig>() {
            Some(config) => Arc::new(Self::new(config.clone())),
            None => source,
        }
    }
}

/// A filter over a scan's output as one over its table.
///
/// # Errors
/// An internal error where it names a column that is not there.
pub fn of_table(
    config: &FileScanConfig,
    filter: &Arc<dyn PhysicalExpr>,
) -> DfResult<Arc<dyn PhysicalExpr>> {
    let filter = match config.file_source.projection() {
        Some(projection) => projection.unproject_expr(filter)?,
        None => Arc::clone(filter),
    };
    reassign_expr_columns(filter, config.file_source.table_schema().table_schema())
}

/// Pushes filters into a file scan, except those that `stays_above` names.
///
/// # Errors
/// Errors of judging or pushing the filters.
pub fn push_filters(
    config: &FileScanConfig,
    filters: &[Arc<dyn PhysicalExpr>],
    options: &ConfigOptions,
    stays_above: impl Fn(&Arc<dyn PhysicalExpr>) -> DfResult<bool>,
) -> DfResult<FilterPushdownPropagation<Arc<dyn DataSource>>> {
    let above = filters.iter().map(stays_above).collect::<DfResult<Vec<_>>>()?;
    let pushed = filters.iter().zip(&above).filter(|(_, above)| !**above);
    let pushed = pushed.map(|(filter, _)| Arc::clone(filter)).collect();
    let result = config.try_pushdown_filters(pushed, options)?;
    let mut judged = result.filters.into_iter();
    let filters = above.into_iter().map(|above| match above {
        true => PushedDown::No,
        false => judged.next().unwrap_or(PushedDown::No),
    });
    let propagation = FilterPushdownPropagation::with_parent_pushdown_result(filters.collect());
    Ok(match result.updated_node {
        Some(scan) => propagation.with_updated_node(scan),
        None => propagation,
    })
}

type Rows = BoxStream<'static, DfResult<RecordBatch>>;

/// The rows of one Parquet file of a scan, whose configuration has no files.
async fn open_file(
    config: Arc<FileScanConfig>,
    file: PartitionedFile,
    context: Arc<TaskContext>,
) -> DfResult<Rows> {
    // A panic of a decoder is caught here, so that one above the scans is known to be none.
    let opened = async { open_known(config, file, context).await.map_err(Error::from) };
    Ok(caught_rows(caught(opened).await?).boxed())
}

/// Opens a file without catching panics.
async fn open_known(
    config: Arc<FileScanConfig>,
    file: PartitionedFile,
    context: Arc<TaskContext>,
) -> DfResult<Rows> {
    let mut file = file;
    if let Some(FileRef { table, index }) = FileRef::of(&file).cloned() {
        let predicate = config.file_source.filter();
        let all = Split::whole(index, table.files[index].meta.size);
        if let Some(projection) = config.file_source.projection() {
            let request = ColumnRequest {
                table: &table,
                split: &all,
                only: None,
                predicate: predicate.as_ref(),
                projection,
            };
            if let Some(eligible) = request.eligible_if_hard().await? {
                let rows = context.session_config().batch_size();
                return Ok(eligible.build(rows, None)?.rows());
            }
        }
        let read = access_to_matches(&table, &all, predicate.as_ref(), None).await?;
        if let Some(read) = read {
            file = file.with_extensions(Arc::new(read));
        }
    }
    let one = FileScanConfigBuilder::from(config.as_ref().clone());
    let one = one.with_file_groups(vec![FileGroup::new(vec![file])]);
    Ok(one.build().open(0, context)?.boxed())
}

/// No more than so many of the rows.
fn first(rows: Rows, limit: usize) -> Rows {
    let state = (rows, limit);
    futures::stream::try_unfold(state, |(mut rows, left)| async move {
        if left == 0 {
            return Ok(None);
        }
        let Some(batch) = rows.try_next().await? else { return Ok(None) };
        let batch = batch.slice(0, batch.num_rows().min(left));
        let left = left - batch.num_rows();
        Ok(Some((batch, (rows, left))))
    })
    .boxed()
}

impl DataSource for SoundScan {
    fn open(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> DfResult<SendableRecordBatchStream> {
        if !self.config.file_source.as_any().is::<ParquetSource>() {
            return self.config.open(partition, context);
        }
        let schema = self.config.projected_schema()?;
        let files = self.config.file_groups.get(partition).map(FileGroup::files);
        let files = files.unwrap_or_default().to_vec();
        let without = FileScanConfigBuilder::from(self.config.clone()).with_file_groups(Vec::new());
        let config = Arc::new(without.build());
        let rows = futures::stream::iter(files)
            .map(move |file| open_file(Arc::clone(&config), file, Arc::clone(&context)))
            .buffered(FILES_AHEAD)
            .try_flatten()
            .boxed();
        let rows = match DataSource::fetch(&self.config) {
            Some(limit) => first(rows, limit),
            None => rows,
        };
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    forwarded! {
        this => this.config;
        fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result;
        fn output_partitioning(&self) -> Partitioning;
        fn eq_properties(&self) -> EquivalenceProperties;
        fn scheduling_type(&self) -> SchedulingType;
        fn partition_statistics(&self, partition: Option<usize>) -> DfResult<Statistics>;
        fn metrics(&self) -> ExecutionPlanMetricsSet;
    }

    fn with_fetch(&self, limit: Option<usize>) -> Option<Arc<dyn DataSource>> {
        self.config.with_fetch(limit).map(Self::over)
    }

    fn fetch(&self) -> Option<usize> {
        DataSource::fetch(&self.config)
    }

    fn try_swapping_with_projection(
        &self,
        projection: &ProjectionExprs,
    ) -> DfResult<Option<Arc<dyn DataSource>>> {
        Ok(self.config.try_swapping_with_projection(projection)?.map(Self::over))
    }

    fn try_pushdown_filters(
        &self,
        filters: Vec<Arc<dyn PhysicalExpr>>,
        options: &ConfigOptions,
    ) -> DfResult<FilterPushdownPropagation<Arc<dyn DataSource>>> {
        let result = self.config.try_pushdown_filters(filters, options)?;
        let updated = result.updated_node.map(Self::over);
        Ok(FilterPushdownPropagation { filters: result.filters, updated_node: updated })
    }

    fn with_preserve_order(&self, preserve_order: bool) -> Option<Arc<dyn DataSource>> {
        self.config.with_preserve_order(preserve_order).map(Self::over)
    }
}
