//! The build side of a broadcast join: collected once per process, in order, and replayed for every
//! epoch.

use std::fmt;
use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, Partitioning,
    PlanProperties,
};
use futures::{StreamExt, TryStreamExt};
use tokio::sync::OnceCell;

use crate::basics::node_basics;

/// Executes its input partition by partition, in order, the first time it is executed; later
/// executions, also after `reset_state`, replay the batches. DataFusion's own
/// `CoalescePartitionsExec` would interleave partitions by thread timing.
#[derive(Debug)]
pub struct BuildSideExec {
    input: Arc<dyn ExecutionPlan>,
    batches: Arc<OnceCell<Arc<Vec<RecordBatch>>>>,
    properties: Arc<PlanProperties>,
}

impl BuildSideExec {
    /// Wraps the build side `input`.
    pub fn new(input: Arc<dyn ExecutionPlan>) -> Self {
        let properties = Arc::new(PlanProperties::new(
            EquivalenceProperties::new(input.schema()),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Incremental,
            Boundedness::Bounded,
        ));
        Self { input, batches: Arc::default(), properties }
    }
}

async fn collect_in_order(
    input: Arc<dyn ExecutionPlan>,
    context: Arc<TaskContext>,
) -> DfResult<Arc<Vec<RecordBatch>>> {
    let mut batches = Vec::new();
    for partition in 0..input.output_partitioning().partition_count() {
        let stream = input.execute(partition, Arc::clone(&context))?;
        batches.extend(stream.try_collect::<Vec<_>>().await?);
    }
    Ok(Arc::new(batches))
}

impl DisplayAs for BuildSideExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BuildSideExec: collected once")
    }
}

impl ExecutionPlan for BuildSideExec {
    node_basics!("BuildSideExec", input);

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> DfResult<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Self {
            input: children.swap_remove(0),
            batches: Arc::clone(&self.batches),
            properties: Arc::clone(&self.properties),
        }))
    }

    fn execute(&self, _: usize, context: Arc<TaskContext>) -> DfResult<SendableRecordBatchStream> {
        let (input, cell) = (Arc::clone(&self.input), Arc::clone(&self.batches));
        let collected = async move {
            let batches = cell.get_or_try_init(|| collect_in_order(input, context)).await?;
            let batches = batches.as_ref().clone().into_iter().map(DfResult::Ok);
            Ok::<_, DataFusionError>(futures::stream::iter(batches))
        };
        let stream = futures::stream::once(collected).try_flatten().boxed();
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), stream)))
    }
}
