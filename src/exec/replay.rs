//! A plan whose rows say which row of their driving scan they come from.
//!
//! Output rows do not always lie in the order of the rows they were made of: an outer join puts the
//! rows without a match at the end of each batch. So the plan runs unchanged, batch for batch, and
//! a number goes along with every row, as a last column that no expression looks at:
//! ```text
//! ProjectionExec: expr=[a, b + 1, row]
//!   HashJoinExec: mode=CollectLeft, join_type=Right
//!     BuildSideExec: collected once
//!     NumberedScanExec
//!       SplitScanExec: splits=96
//! ```
//! The numbers count the rows that the scan puts out, after the predicate that was pushed into it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{ArrayRef, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use datafusion::common::JoinType;
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::projection::ProjectionExpr;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{CrossJoinExec, HashJoinExec, NestedLoopJoinExec};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::unnest::UnnestExec;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, Partitioning,
    PlanProperties,
};
use futures::StreamExt;

use super::sample::SampleExec;
use super::split_scan::SplitScanExec;
use crate::basics::node_basics;
use crate::{Error, Result};

/// The name of the last column. Nothing looks it up by name, but two columns of one name would
/// confuse a reader.
const ROW: &str = "row of the driving scan";

/// Adds a last column, UInt64, to a plan: the number of the scanned row from which an output row
/// comes, counted from 0 in each partition. `scanned` grows by the rows that scans put out.
///
/// # Errors
/// An internal error where the plan has an operator that the rewrite does not let pass.
pub fn numbered(
    plan: &Arc<dyn ExecutionPlan>,
    scanned: &Arc<AtomicU64>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let node = plan.as_any();
    let below = |child: &Arc<dyn ExecutionPlan>| numbered(child, scanned);
    if node.is::<SplitScanExec>() {
        return Ok(Arc::new(NumberedScanExec::new(Arc::clone(plan), Arc::clone(scanned))));
    }
    if let Some(projection) = node.downcast_ref::<ProjectionExec>() {
        return project(projection.expr().to_vec(), below(projection.input())?);
    }
    if let Some(filter) = node.downcast_ref::<FilterExec>() {
        let input = below(filter.input())?;
        let whole = FilterExec::try_new(Arc::clone(filter.predicate()), input)?
            .with_batch_size(filter.batch_size())?;
        let columns = filter.projection().as_deref().map(<[usize]>::to_vec);
        return pick(Arc::new(whole), columns, None);
    }
    if let Some(unnest) = node.downcast_ref::<UnnestExec>() {
        let whole = UnnestExec::new(
            below(unnest.input())?,
            unnest.list_column_indices().to_vec(),
            unnest.struct_column_indices().to_vec(),
            with_row(&unnest.schema()),
            unnest.options().clone(),
        )?;
        return Ok(Arc::new(whole));
    }
    if let Some(sample) = node.downcast_ref::<SampleExec>() {
        // Below it, so that the numbers are those of the rows that were sampled.
        return Ok(Arc::new(sample.over(below(sample.input())?)));
    }
    if node.is::<CooperativeExec>() || node.is::<UnionExec>() {
        let children = plan.children().into_iter().map(below).collect::<Result<_>>()?;
        return Ok(Arc::clone(plan).with_new_children(children)?);
    }
    if let Some(join) = node.downcast_ref::<HashJoinExec>() {
        let children = vec![Arc::clone(join.left()), below(join.right())?];
        let whole = join
            .builder()
            .with_new_children(children)?
            .with_projection(None)
            .recompute_properties()
            .reset_state()
            .build_exec()?;
        let columns = join.projection.as_deref().map(<[usize]>::to_vec);
        return after_join(whole, *join.join_type(), join.right(), columns);
    }
    if let Some(join) = node.downcast_ref::<NestedLoopJoinExec>() {
        let (left, right) = (Arc::clone(join.left()), below(join.right())?);
        let whole = NestedLoopJoinExec::try_new(
            left,
            right,
            join.filter().cloned(),
            join.join_type(),
            None,
        )?;
        let columns = join.projection().as_deref().map(<[usize]>::to_vec);
        return after_join(Arc::new(whole), *join.join_type(), join.right(), columns);
    }
    if let Some(join) = node.downcast_ref::<CrossJoinExec>() {
        let right = below(join.right())?;
        return Ok(Arc::new(CrossJoinExec::new(Arc::clone(join.left()), right)));
    }
    Err(Error::data(format!(
        "rows cannot be followed through {}; please report it with the query",
        plan.name()
    )))
}

/// The columns of a join in their order, then the number, which the mark of a mark join comes
/// after.
fn after_join(
    join: Arc<dyn ExecutionPlan>,
    join_type: JoinType,
    right: &Arc<dyn ExecutionPlan>,
    columns: Option<Vec<usize>>,
) -> Result<Arc<dyn ExecutionPlan>> {
    if join_type != JoinType::RightMark {
        return pick(join, columns, None);
    }
    let mark = right.schema().fields().len();
    let columns = columns.unwrap_or_else(|| (0..=mark).collect());
    let moved = columns.into_iter().map(|column| if column == mark { mark + 1 } else { column });
    pick(join, Some(moved.collect()), Some(mark))
}

/// Some columns of `plan` (None: all) and its number, which is its last column where `number` does
/// not say.
fn pick(
    plan: Arc<dyn ExecutionPlan>,
    columns: Option<Vec<usize>>,
    number: Option<usize>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let Some(mut columns) = columns else { return Ok(plan) };
    let schema = plan.schema();
    columns.push(number.unwrap_or(schema.fields().len() - 1));
    Ok(Arc::new(ProjectionExec::try_new(columns.into_iter().map(|at| column(&schema, at)), plan)?))
}

/// Expressions over `plan`, and its number.
fn project(
    mut expressions: Vec<ProjectionExpr>,
    plan: Arc<dyn ExecutionPlan>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let schema = plan.schema();
    expressions.push(column(&schema, schema.fields().len() - 1));
    Ok(Arc::new(ProjectionExec::try_new(expressions, plan)?))
}

fn column(schema: &SchemaRef, at: usize) -> ProjectionExpr {
    let name = schema.field(at).name();
    ProjectionExpr::new(Arc::new(Column::new(name, at)), name)
}

fn with_row(schema: &SchemaRef) -> SchemaRef {
    let mut fields = schema.fields().to_vec();
    fields.push(Arc::new(Field::new(ROW, DataType::UInt64, false)));
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

/// Numbers the rows of a scan.
#[derive(Debug)]
pub(super) struct NumberedScanExec {
    scan: Arc<dyn ExecutionPlan>,
    scanned: Arc<AtomicU64>,
    schema: SchemaRef,
    properties: Arc<PlanProperties>,
}

impl NumberedScanExec {
    fn new(scan: Arc<dyn ExecutionPlan>, scanned: Arc<AtomicU64>) -> Self {
        let schema = with_row(&scan.schema());
        let properties = Arc::new(PlanProperties::new(
            EquivalenceProperties::new(Arc::clone(&schema)),
            Partitioning::UnknownPartitioning(scan.output_partitioning().partition_count()),
            EmissionType::Incremental,
            Boundedness::Bounded,
        ));
        Self { scan, scanned, schema, properties }
    }

    /// The scan whose rows are numbered.
    pub(super) fn scan(&self) -> &Arc<dyn ExecutionPlan> {
        &self.scan
    }
}

impl DisplayAs for NumberedScanExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NumberedScanExec")
    }
}

impl ExecutionPlan for NumberedScanExec {
    node_basics!("NumberedScanExec", leaf);

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> DfResult<SendableRecordBatchStream> {
        let rows = self.scan.execute(partition, context)?;
        let (schema, scanned) = (Arc::clone(&self.schema), Arc::clone(&self.scanned));
        let mut next = 0_u64;
        let rows = rows.map(move |batch| {
            let batch = batch?;
            let end = next + batch.num_rows() as u64;
            let numbers: ArrayRef = Arc::new(UInt64Array::from_iter_values(next..end));
            scanned.fetch_add(end - next, Ordering::Relaxed);
            next = end;
            let mut columns = batch.columns().to_vec();
            columns.push(numbers);
            RecordBatch::try_new(Arc::clone(&schema), columns).map_err(DataFusionError::from)
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), rows)))
    }
}
