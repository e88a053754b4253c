//! Filters the rows of an Iceberg data file where the file format does not: equality deletes, and
//! for ORC files positions and the predicate as well. It stands below the scan's projection.

use std::sync::Arc;

use arrow::array::{Array, BooleanArray};
use arrow::compute::{and, filter_record_batch, prep_null_mask_filter};
use arrow::datatypes::SchemaRef;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion::common::cast::as_boolean_array;
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::source::DataSource;
use datafusion::error::Result as DfResult;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_expr::utils::{collect_columns, reassign_expr_columns};

use crate::formats::TableFiles;
use crate::iceberg::EqualityKeys;

/// The filter of one file.
pub(super) struct LakeFilter {
    /// The columns that are read, for the projection, the keys and the predicate, by place in the
    /// table.
    pub needed: Vec<usize>,
    /// The schema of the output.
    pub schema: SchemaRef,
    keys: Vec<(Arc<EqualityKeys>, Vec<usize>)>,
    sequence: i64,
    predicate: Option<Arc<dyn PhysicalExpr>>,
    projection: ProjectionExprs,
}

impl LakeFilter {
    /// For the rows of a file with this data sequence number; with the scan's predicate where
    /// `judges` says so.
    pub fn try_new(
        table: &TableFiles,
        config: &FileScanConfig,
        keys: Vec<Arc<EqualityKeys>>,
        sequence: i64,
        judges: bool,
    ) -> DfResult<Self> {
        let all = table.schema.table_schema();
        let every =
            || ProjectionExprs::from_indices(&(0..all.fields().len()).collect::<Vec<_>>(), all);
        let projection = config.file_source.projection().cloned().unwrap_or_else(every);
        let predicate = config.file_source.filter().filter(|_| judges);
        let mut needed = projection.column_indices();
        for name in keys.iter().flat_map(|keys| &keys.columns) {
            needed.push(all.index_of(name)?);
        }
        if let Some(predicate) = &predicate {
            needed.extend(collect_columns(predicate).iter().map(|column| column.index()));
        }
        needed.sort_unstable();
        needed.dedup();
        let read = Arc::new(all.project(&needed)?);
        let positions = |keys: &EqualityKeys| {
            keys.columns.iter().map(|name| Ok(read.index_of(name)?)).collect::<DfResult<Vec<_>>>()
        };
        let keys = keys
            .into_iter()
            .map(|keys| {
                let positions = positions(&keys)?;
                Ok((keys, positions))
            })
            .collect::<DfResult<Vec<_>>>()?;
        Ok(Self {
            needed,
            schema: Arc::clone(config.eq_properties().schema()),
            keys,
            sequence,
            predicate: predicate.map(|expr| reassign_expr_columns(expr, &read)).transpose()?,
            projection: projection.try_map_exprs(|expr| reassign_expr_columns(expr, &read))?,
        })
    }

    /// The rows that stay in a batch of the needed columns, projected. `live` marks the rows that
    /// no position delete removes.
    pub fn apply(&self, batch: &RecordBatch, live: Option<BooleanArray>) -> DfResult<RecordBatch> {
        let mut keep = live;
        let mut also = |kept: BooleanArray| -> DfResult<()> {
            keep = Some(match keep.take() {
                Some(before) => and(&before, &kept)?,
                None => kept,
            });
            Ok(())
        };
        for (keys, positions) in &self.keys {
            also(keys.keep(batch, positions, self.sequence)?)?;
        }
        if let Some(predicate) = &self.predicate {
            let judged = predicate.evaluate(batch)?.into_array(batch.num_rows())?;
            let judged = as_boolean_array(&judged)?;
            also(match judged.null_count() {
                0 => judged.clone(),
                _ => prep_null_mask_filter(judged),
            })?;
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
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        Ok(RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)?)
    }
}
