//! Partitions one after the other: DataFusion's own `CoalescePartitionsExec` mixes them by thread
//! timing.

use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::error::Result as DfResult;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::limit::GlobalLimitExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, Partitioning,
    PlanProperties,
};
use futures::TryStreamExt;

use crate::Result;
use crate::basics::node_basics;

/// The rows of its input's partitions, one partition after the other.
#[derive(Debug)]
pub struct InOrderExec {
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
}

/// The plan with one partition, whose rows come in an order that does not depend on timing.
///
/// # Errors
/// An internal error where the plan cannot be rebuilt.
pub fn in_order(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let plan = plan
        .transform_up(|node| match node.as_any().downcast_ref::<CoalescePartitionsExec>() {
            Some(coalesce) => {
                let rows = InOrderExec::over(Arc::clone(coalesce.input()));
                Ok(Transformed::yes(match coalesce.fetch() {
                    Some(fetch) => Arc::new(GlobalLimitExec::new(rows, 0, Some(fetch))),
                    None => rows,
                }))
            }
            None => Ok(Transformed::no(node)),
        })
        .data()?;
    Ok(match plan.output_partitioning().partition_count() {
        1 => plan,
        _ => InOrderExec::over(plan),
    })
}

/// The properties of all rows of a plan in one partition. As with `CoalescePartitionsExec`, on which
/// windows and aggregates above rely: constants stay, orders do not.
pub(super) fn in_one_partition(input: &Arc<dyn ExecutionPlan>) -> Arc<PlanProperties> {
    let mut equivalences = input.equivalence_properties().clone();
    equivalences.clear_orderings();
    equivalences.clear_per_partition_constants();
    Arc::new(PlanProperties::new(
        equivalences,
        Partitioning::UnknownPartitioning(1),
        EmissionType::Incremental,
        Boundedness::Bounded,
    ))
}

impl InOrderExec {
    fn over(input: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
        let properties = in_one_partition(&input);
        Arc::new(Self { input, properties })
    }
}

impl DisplayAs for InOrderExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InOrderExec")
    }
}

impl ExecutionPlan for InOrderExec {
    node_basics!("InOrderExec", input);

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> DfResult<Arc<dyn ExecutionPlan>> {
        Ok(Self::over(children.swap_remove(0)))
    }

    fn execute(&self, _: usize, context: Arc<TaskContext>) -> DfResult<SendableRecordBatchStream> {
        let input = Arc::clone(&self.input);
        let partitions = input.output_partitioning().partition_count();
        // One is opened when the one before has ended.
        let rows = futures::stream::iter((0..partitions).map(DfResult::Ok))
            .and_then(move |partition| {
                std::future::ready(input.execute(partition, Arc::clone(&context)))
            })
            .try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }
}
