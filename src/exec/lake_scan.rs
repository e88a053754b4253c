//! The scan of an Iceberg or Delta table as DataFusion plans it: a file scan whose files are opened with
//! their deletes.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use datafusion::common::Statistics;
use datafusion::common::config::ConfigOptions;
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::source::DataSource;
use datafusion::error::Result as DfResult;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{EquivalenceProperties, Partitioning, PhysicalExpr};
use datafusion::physical_plan::DisplayFormatType;
use datafusion::physical_plan::filter_pushdown::FilterPushdownPropagation;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::{StreamExt, TryStreamExt};

use super::open::open_split;
use crate::catalog::{of_table, push_filters};
use crate::formats::{FileRef, Split, TableFiles};

/// Files opened ahead of the one that is read.
const FILES_AHEAD: usize = 2;

/// A file scan over the data files of one snapshot. It plans as DataFusion's own file scan, which
/// it holds, and runs otherwise: file by file, each without its deleted rows.
#[derive(Clone, Debug)]
pub struct LakeScan {
    table: Arc<TableFiles>,
    config: FileScanConfig,
    /// The number of files in the whole scan; this process may have only some of them.
    count: u64,
}

impl LakeScan {
    /// A scan of the files of `config`, which are some of `table`'s: `count`, or the part of them
    /// that this process has.
    pub fn new(table: Arc<TableFiles>, config: FileScanConfig, count: u64) -> Self {
        Self { table, config, count }
    }

    /// The file scan underneath: projection, predicate and files.
    pub fn config(&self) -> &FileScanConfig {
        &self.config
    }

    fn files(&self) -> impl Iterator<Item = usize> {
        let files = self.config.file_groups.iter().flat_map(|group| group.files());
        files.filter_map(|file| FileRef::of(file).map(|file| file.index))
    }

    /// Wraps the source that the file scan became; None if that is no file scan.
    fn over(&self, source: &Arc<dyn DataSource>) -> Option<Arc<dyn DataSource>> {
        let config = source.as_any().downcast_ref::<FileScanConfig>()?.clone();
        Some(Arc::new(Self { table: Arc::clone(&self.table), config, count: self.count }))
    }

    /// Returns true if a filter must stay above the scan. One that reads a nested column: whether
    /// it can run inside a file depends on how the file stores the column, and DataFusion asks the
    /// table's schema only; it would drop what it cannot run.
    fn stays_above(&self, filter: &Arc<dyn PhysicalExpr>) -> DfResult<bool> {
        let filter = of_table(&self.config, filter)?;
        let schema = self.config.file_source.table_schema().table_schema();
        let is_nested =
            |name: &str| schema.field_with_name(name).is_ok_and(|f| f.data_type().is_nested());
        Ok(collect_columns(&filter).iter().any(|column| is_nested(column.name())))
    }
}

impl DataSource for LakeScan {
    fn open(&self, _: usize, context: Arc<TaskContext>) -> DfResult<SendableRecordBatchStream> {
        let (table, config) = (Arc::clone(&self.table), Arc::new(self.config.clone()));
        let schema = config.projected_schema()?;
        let opened = Arc::clone(&schema);
        let files: Vec<usize> = self.files().collect();
        let rows = futures::stream::iter(files)
            .map(move |index| {
                let split = Split::whole(index, table.files[index].meta.size);
                let rows = open_split(&table, &config, &opened, &split, Arc::clone(&context));
                std::future::ready(rows)
            })
            .buffered(FILES_AHEAD)
            .try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(lake) = &self.table.metadata {
            write!(f, "{}={}, files={}", lake.pinned().format, lake.label(), self.count)?;
        }
        if let Some(projection) = self.config.file_source.projection() {
            write!(f, ", projection={projection}")?;
        }
        if let Some(predicate) = self.config.file_source.filter() {
            write!(f, ", predicate={predicate}")?;
        }
        Ok(())
    }

    fn output_partitioning(&self) -> Partitioning {
        Partitioning::UnknownPartitioning(1)
    }

    fn eq_properties(&self) -> EquivalenceProperties {
        self.config.eq_properties()
    }

    fn partition_statistics(&self, _: Option<usize>) -> DfResult<Statistics> {
        self.config.partition_statistics(None)
    }

    fn with_fetch(&self, _: Option<usize>) -> Option<Arc<dyn DataSource>> {
        None
    }

    fn fetch(&self) -> Option<usize> {
        None
    }

    fn try_swapping_with_projection(
        &self,
        projection: &ProjectionExprs,
    ) -> DfResult<Option<Arc<dyn DataSource>>> {
        let swapped = self.config.try_swapping_with_projection(projection)?;
        Ok(swapped.and_then(|source| self.over(&source)))
    }

    fn try_pushdown_filters(
        &self,
        filters: Vec<Arc<dyn PhysicalExpr>>,
        options: &ConfigOptions,
    ) -> DfResult<FilterPushdownPropagation<Arc<dyn DataSource>>> {
        let result =
            push_filters(&self.config, &filters, options, |filter| self.stays_above(filter))?;
        let updated = result.updated_node.and_then(|source| self.over(&source));
        Ok(FilterPushdownPropagation { filters: result.filters, updated_node: updated })
    }
}
