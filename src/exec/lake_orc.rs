//! ORC data files of Iceberg tables: columns by field id, deletes by row number and by key, and the
//! scan's predicate, which the ORC reader does not take.

use std::sync::Arc;

use arrow::array::BooleanArray;
use arrow::datatypes::{Schema, SchemaRef};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::error::Result as DfResult;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::utils::{collect_columns, reassign_expr_columns};
use datafusion::physical_expr_adapter::PhysicalExprAdapterFactory;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::StreamExt;

use super::lake_filter::LakeFilter;
use crate::formats::orc::{OrcRead, open, read_orc_footer};
use crate::formats::{Split, SplitUnit, TableFiles, UnitKind};
use crate::iceberg::LakeTable;
use crate::{Error, Result};

/// The rows of a split of an ORC data file, as the scan wants them.
pub(super) async fn open_orc(
    table: Arc<TableFiles>,
    lake: Arc<LakeTable>,
    config: Arc<FileScanConfig>,
    split: Split,
    context: Arc<TaskContext>,
) -> DfResult<SendableRecordBatchStream> {
    let index = split.file as usize;
    let keys = lake.equality(&table.store, index).await?;
    let deleted = lake.positions(&table.store, index).await?;
    let filter = LakeFilter::try_new(&table, &config, keys, lake.file(index).sequence, true)?;
    let meta = &table.files[index].meta;
    let footer = read_orc_footer(&table.store, meta, &table.footers).await?;
    let (stored, physical) = lake.columns().of_orc(footer.schema());
    let columns = Columns::try_new(&table, &lake, index, &filter.needed, &physical)?;
    let stripes = match split.unit {
        SplitUnit::Units { kind: UnitKind::Stripes, first, count, .. } => {
            first as usize..(first + count) as usize
        }
        _ => 0..footer.stripes().len(),
    };
    let mut row = footer.stripes().get(stripes.start).map_or(0, |stripe| stripe.first_row);
    let batch_rows = context.session_config().batch_size();
    let read = OrcRead { stripes, columns: columns.stored.clone(), schema: stored, batch_rows };
    let batches = open(Arc::clone(&table.store), meta, footer, read)?;
    let schema = Arc::clone(&filter.schema);
    let rows = batches.map(move |batch| {
        let batch = batch?;
        let first = row;
        row += batch.num_rows() as u64;
        let live = deleted.as_ref().map(|deleted| {
            (first..row).map(|row| Some(!deleted.contains(row))).collect::<BooleanArray>()
        });
        filter.apply(&columns.adapt(&batch)?, live)
    });
    Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
}

/// From the stored columns of one file to the needed ones of the table.
struct Columns {
    /// The stored columns that are read, by place in the file.
    stored: Vec<usize>,
    /// Those, under the table's names.
    read: SchemaRef,
    /// The needed ones over them.
    exprs: Vec<Arc<dyn PhysicalExpr>>,
    schema: SchemaRef,
}

impl Columns {
    fn try_new(
        table: &TableFiles,
        lake: &LakeTable,
        index: usize,
        needed: &[usize],
        physical: &Arc<Schema>,
    ) -> Result<Self> {
        let all = table.schema.table_schema();
        let adapter = lake.adapter(index)?.create(Arc::clone(all), Arc::clone(physical))?;
        let exprs = needed
            .iter()
            .map(|at| Ok(adapter.rewrite(Arc::new(Column::new(all.field(*at).name(), *at)))?))
            .collect::<Result<Vec<_>>>()?;
        let mut stored: Vec<usize> =
            exprs.iter().flat_map(collect_columns).map(|column| column.index()).collect();
        stored.sort_unstable();
        stored.dedup();
        let read = Arc::new(physical.project(&stored)?);
        let exprs = exprs
            .into_iter()
            .map(|expr| Ok(reassign_expr_columns(expr, &read)?))
            .collect::<Result<_>>()?;
        // What a file lacks is null, and a reader of ORC does not know what is required.
        let fields = needed.iter().map(|at| all.field(*at).clone().with_nullable(true));
        Ok(Self { stored, read, exprs, schema: Arc::new(Schema::new(fields.collect::<Vec<_>>())) })
    }

    fn adapt(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let columns = batch.columns().to_vec();
        if columns.len() != self.read.fields().len() {
            return Err(Error::data("the file has other columns than its footer says"));
        }
        let batch = RecordBatch::try_new_with_options(Arc::clone(&self.read), columns, &options)?;
        let columns = self
            .exprs
            .iter()
            .map(|expr| Ok(expr.evaluate(&batch)?.into_array(batch.num_rows())?))
            .collect::<Result<Vec<_>>>()?;
        Ok(RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)?)
    }
}
