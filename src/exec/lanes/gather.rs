//! The rows of all lanes in one stream.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use datafusion::error::Result as DfResult;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::{
    RecordBatchReceiverStreamBuilder, RecordBatchStreamAdapter,
};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties,
};
use futures::{StreamExt, stream};

use super::super::in_order::in_one_partition;
use crate::basics::node_basics;
use crate::formats::caught_answer;

/// Batches of a lane that wait for their turn.
const WAITING: usize = 2;

/// Takes a batch of each input partition in turns, and leaves out those that have ended, so that the
/// order of the rows does not depend on timing. All partitions are computed at the same time.
#[derive(Debug)]
pub(super) struct GatherExec {
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
}

impl GatherExec {
    pub(super) fn new(input: Arc<dyn ExecutionPlan>) -> Self {
        let properties = in_one_partition(&input);
        Self { input, properties }
    }
}

impl DisplayAs for GatherExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GatherExec: in turns")
    }
}

impl ExecutionPlan for GatherExec {
    node_basics!("GatherExec", input);

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> DfResult<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Self::new(children.swap_remove(0))))
    }

    fn execute(&self, _: usize, context: Arc<TaskContext>) -> DfResult<SendableRecordBatchStream> {
        let partitions = self.input.output_partitioning().partition_count();
        let lanes = (0..partitions)
            .map(|partition| {
                Ok(computed_apart(self.input.execute(partition, Arc::clone(&context))?))
            })
            .collect::<DfResult<VecDeque<_>>>()?;
        let rows = stream::try_unfold(lanes, |mut lanes| async move {
            while let Some(mut lane) = lanes.pop_front() {
                if let Some(batch) = lane.next().await {
                    lanes.push_back(lane);
                    return Ok(Some((batch?, lanes)));
                }
            }
            Ok(None)
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }
}

/// The rows of a stream that a task of its own computes ahead.
fn computed_apart(rows: SendableRecordBatchStream) -> SendableRecordBatchStream {
    let mut builder = RecordBatchReceiverStreamBuilder::new(rows.schema(), WAITING);
    let sender = builder.tx();
    builder.spawn(async move {
        let mut rows = std::pin::pin!(caught_answer(rows));
        while let Some(batch) = rows.next().await {
            // Nobody wants more.
            if sender.send(batch).await.is_err() {
                break;
            }
        }
        Ok(())
    });
    builder.build()
}
