//! A table over pinned files.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use arrow::compute::prep_null_mask_filter;
use arrow::datatypes::Schema;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::cast::as_boolean_array;
use datafusion::common::stats::Precision;
use datafusion::common::{DFSchema, Statistics};
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfigBuilder};
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::scalar::ScalarValue;

use super::sound_scan::SoundScan;
use crate::Error;
use crate::basics::table_basics;
use crate::formats::{ByName, Outline, TableFiles, refused};

/// Pinned files as a DataFusion table: hive values prune files, the rest is DataFusion's scan.
#[derive(Debug)]
pub struct FilesTable {
    files: Arc<TableFiles>,
}

impl FilesTable {
    /// A table over these files.
    pub fn new(files: Arc<TableFiles>) -> Self {
        Self { files }
    }

    /// The pinned files.
    pub fn files(&self) -> &Arc<TableFiles> {
        &self.files
    }

    /// Returns true if an expression reads hive partition columns only.
    fn is_partition_filter(&self, filter: &Expr) -> bool {
        let partitions = self.files.schema.table_partition_cols();
        !partitions.is_empty()
            && !filter.is_volatile()
            && !filter.column_refs().is_empty()
            && filter
                .column_refs()
                .iter()
                .all(|column| partitions.iter().any(|field| *field.name() == column.name))
    }

    /// Which files the partition filters keep.
    fn keep(&self, state: &dyn Session, filters: &[Expr]) -> DfResult<Vec<bool>> {
        let files = &self.files.files;
        let mut keep = vec![true; files.len()];
        let partition_filters: Vec<&Expr> =
            filters.iter().filter(|filter| self.is_partition_filter(filter)).collect();
        if partition_filters.is_empty() || files.is_empty() {
            return Ok(keep);
        }
        let fields = self.files.schema.table_partition_cols();
        let schema = Arc::new(Schema::new(fields.clone()));
        let columns: Vec<ArrayRef> = (0..fields.len())
            .map(|column| {
                ScalarValue::iter_to_array(
                    files.iter().map(|file| file.partition_values[column].clone()),
                )
            })
            .collect::<DfResult<_>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(files.len()));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&schema), columns, &options)?;
        let df_schema = DFSchema::try_from(schema)?;
        for filter in partition_filters {
            let predicate = state.create_physical_expr(unqualified(filter)?, &df_schema)?;
            let values = predicate.evaluate(&batch)?.into_array(files.len())?;
            // The plan holds no other filter on these columns, so none may be passed over.
            let mask = as_boolean_array(&values)?;
            let mask =
                if mask.null_count() > 0 { prep_null_mask_filter(mask) } else { mask.clone() };
            for (keep, wanted) in keep.iter_mut().zip(mask.values()) {
                *keep &= wanted;
            }
        }
        Ok(keep)
    }

    /// Rows and bytes of the kept files.
    fn outline(&self, kept: &[usize]) -> Outline {
        let files = kept.iter().map(|index| &self.files.files[*index]);
        Outline {
            files: kept.len() as u64,
            bytes: files.clone().map(|file| file.meta.size).sum(),
            rows: files.map(|file| file.rows).sum(),
            exact: true,
        }
    }
}

/// Rows and bytes of a scan, by which DataFusion chooses the build side of a join.
pub fn statistics(table: &TableFiles, outline: &Outline) -> Statistics {
    let mut statistics = Statistics::new_unknown(table.schema.table_schema());
    statistics.total_byte_size = Precision::Inexact(outline.bytes as usize);
    if let Some(rows) = outline.rows {
        let rows = rows as usize;
        statistics.num_rows =
            if outline.exact { Precision::Exact(rows) } else { Precision::Inexact(rows) };
    }
    statistics
}

/// Records the outline of a scan over all files of a table of which this process has only a part.
///
/// # Errors
/// `Data` where no such scan was planned by the process that has all of them.
pub fn outlined(table: &TableFiles, filters: &[Expr], found: Outline) -> DfResult<Outline> {
    table.scans.outline(filters, found).ok_or_else(|| {
        Error::data(
            "this process plans another scan than the one that made the shards; all processes must run the same \
             version of tensorquery",
        )
        .into()
    })
}

/// Returns true if NULL is written in the filter, as in `day NOT IN (1, NULL)`, which the optimiser
/// turns into `day != 1 AND NULL`: constants of that kind are left to the engine to judge, row by
/// row.
fn has_null_literal(filter: &Expr) -> bool {
    use datafusion::common::tree_node::TreeNode;
    let is_null = |expr: &Expr| Ok(matches!(expr, Expr::Literal(value, _) if value.is_null()));
    filter.exists(is_null).unwrap_or(true)
}

/// The filter with bare column names, as the batch of partition values has them.
pub fn unqualified(filter: &Expr) -> DfResult<Expr> {
    use datafusion::common::Column;
    use datafusion::common::tree_node::{Transformed, TreeNode};
    filter
        .clone()
        .transform(|expr| {
            Ok(match expr {
                Expr::Column(column) => {
                    Transformed::yes(Expr::Column(Column::new_unqualified(column.name)))
                }
                other => Transformed::no(other),
            })
        })
        .map(|transformed| transformed.data)
}

#[async_trait]
impl TableProvider for FilesTable {
    table_basics!(this => Arc::clone(this.files.schema.table_schema()));

    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> DfResult<Vec<TableProviderFilterPushDown>> {
        Ok(filters
            .iter()
            .map(|filter| match self.is_partition_filter(filter) && !has_null_literal(filter) {
                true => TableProviderFilterPushDown::Exact,
                false => TableProviderFilterPushDown::Inexact,
            })
            .collect())
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> DfResult<Arc<dyn ExecutionPlan>> {
        let schema = self.schema();
        let all = (0..schema.fields().len()).collect();
        let mut read = projection.unwrap_or(&all).iter().map(|column| schema.field(*column));
        if let Some(error) = read.find_map(refused) {
            return Err(error.into());
        }
        let kept: Vec<usize> = self
            .keep(state, filters)?
            .iter()
            .enumerate()
            .filter_map(|(index, keep)| keep.then_some(index))
            .collect();
        let outline = outlined(&self.files, filters, self.outline(&kept))?;
        if outline.files == 0 {
            let schema = match projection {
                Some(indices) => Arc::new(self.schema().project(indices)?),
                None => self.schema(),
            };
            return Ok(Arc::new(EmptyExec::new(schema)));
        }
        let parquet = state.default_table_options().parquet;
        let source = self.files.source(&parquet, !filters.is_empty());
        let group = kept.iter().map(|index| self.files.partitioned_file(*index)).collect();
        let config = FileScanConfigBuilder::new(self.files.store_url.clone(), source)
            .with_file_group(FileGroup::new(group))
            .with_statistics(statistics(&self.files, &outline))
            .with_projection_indices(projection.cloned())?
            .with_limit(limit)
            .with_expr_adapter(Some(Arc::new(ByName)))
            .with_file_compression_type(self.files.format.file_compression_type())
            .build();
        Ok(DataSourceExec::from_data_source(SoundScan::new(config)))
    }
}
