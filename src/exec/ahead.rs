//! Partitions computed ahead of their turn, whose rows come one partition after the other.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{DataFusionError, internal_datafusion_err};
use datafusion::error::Result as DfResult;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties,
};
use futures::{StreamExt, stream};
use tokio::sync::{mpsc, watch};

use super::in_order::in_one_partition;
use crate::basics::node_basics;
use crate::formats::caught_answer;

/// Bytes of rows that wait for their turn.
const WAITING_BYTES: usize = 64 << 20;
/// Partitions that are computed at a time, for each thread that computes. Each may hold the bytes of
/// a row group.
const PER_THREAD: usize = 2;
/// The least of them where some are read from a store, for which they wait most of the time.
const LEAST_FAR: usize = 16;

/// The rows of its input's partitions, one partition after the other. Partitions behind the one that
/// is read are computed meanwhile.
#[derive(Debug)]
pub struct AheadExec {
    input: Arc<dyn ExecutionPlan>,
    is_local: bool,
    properties: Arc<PlanProperties>,
}

impl AheadExec {
    /// The rows of `input`, which are in memory and in local files, or not.
    pub fn new(input: Arc<dyn ExecutionPlan>, is_local: bool) -> Self {
        let properties = in_one_partition(&input);
        Self { input, is_local, properties }
    }
}

impl DisplayAs for AheadExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AheadExec: in order")
    }
}

impl ExecutionPlan for AheadExec {
    node_basics!("AheadExec", input);

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> DfResult<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Self::new(children.swap_remove(0), self.is_local)))
    }

    fn execute(&self, _: usize, context: Arc<TaskContext>) -> DfResult<SendableRecordBatchStream> {
        let input = Arc::clone(&self.input);
        let ahead = Ahead {
            partitions: input.output_partitioning().partition_count(),
            least: if self.is_local { 1 } else { LEAST_FAR },
            next: 0,
            open: VecDeque::new(),
            turn: watch::Sender::new(Turn::default()),
        };
        let rows = stream::try_unfold(ahead, move |mut ahead| {
            let (input, context) = (Arc::clone(&input), Arc::clone(&context));
            async move {
                loop {
                    ahead.open_more(&input, &context)?;
                    let Some(first) = ahead.open.front_mut() else { return Ok(None) };
                    match first.batches.recv().await {
                        Some(Sent::Rows(batch, bytes)) => {
                            ahead.turn.send_modify(|turn| turn.waiting -= bytes);
                            return Ok(Some((batch, ahead)));
                        }
                        Some(Sent::End) => {
                            ahead.open.pop_front();
                            ahead.turn.send_modify(|turn| turn.partition += 1);
                        }
                        Some(Sent::Failed(error)) => return Err(error),
                        None => {
                            return Err(internal_datafusion_err!(
                                "the rows of a partition broke off"
                            ));
                        }
                    }
                }
            }
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }
}

/// Which partition is read, and how much of the others waits.
#[derive(Default)]
struct Turn {
    partition: usize,
    waiting: usize,
}

struct Ahead {
    partitions: usize,
    least: usize,
    next: usize,
    open: VecDeque<Open>,
    turn: watch::Sender<Turn>,
}

struct Open {
    batches: mpsc::UnboundedReceiver<Sent>,
    /// Ends when this is dropped.
    _task: SpawnedTask<()>,
}

enum Sent {
    Rows(RecordBatch, usize),
    Failed(DataFusionError),
    /// Without it, rows are missing.
    End,
}

impl Ahead {
    fn open_more(
        &mut self,
        input: &Arc<dyn ExecutionPlan>,
        context: &Arc<TaskContext>,
    ) -> DfResult<()> {
        let threads = tokio::runtime::Handle::current().metrics().num_workers();
        while self.next < self.partitions && self.open.len() < self.least.max(threads * PER_THREAD)
        {
            let rows = input.execute(self.next, Arc::clone(context))?;
            let (sender, batches) = mpsc::unbounded_channel();
            let task = send(rows, sender, self.next, self.turn.clone());
            self.open.push_back(Open { batches, _task: SpawnedTask::spawn(task) });
            self.next += 1;
        }
        Ok(())
    }
}

/// Sends the rows of a partition: those of the one that is read always, others while there is room.
async fn send(
    rows: SendableRecordBatchStream,
    sender: mpsc::UnboundedSender<Sent>,
    partition: usize,
    turn: watch::Sender<Turn>,
) {
    let mut rows = std::pin::pin!(caught_answer(rows));
    let mut changes = turn.subscribe();
    loop {
        let has_room = |turn: &Turn| turn.partition == partition || turn.waiting < WAITING_BYTES;
        // Fails only when all senders are gone, and one is here.
        let _ = changes.wait_for(has_room).await;
        let sent = match rows.next().await {
            Some(Ok(batch)) => {
                let bytes = batch.get_array_memory_size();
                turn.send_modify(|turn| turn.waiting += bytes);
                Sent::Rows(batch, bytes)
            }
            Some(Err(error)) => Sent::Failed(error),
            None => Sent::End,
        };
        let is_last = !matches!(sent, Sent::Rows(..));
        // Nobody wants more.
        if sender.send(sent).is_err() || is_last {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, AsArray, Int64Array};
    use arrow::datatypes::Int64Type;
    use datafusion::datasource::memory::MemorySourceConfig;
    use futures::TryStreamExt;
    use tokio::runtime::Builder;

    use super::*;

    fn batch(numbers: std::ops::Range<i64>) -> RecordBatch {
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(numbers));
        RecordBatch::try_from_iter([("n", numbers)]).unwrap()
    }

    #[test]
    fn partitions_come_in_their_order_however_many_there_are() {
        // Partitions without a batch among them, and one of which each batch takes all that may wait.
        let wide = batch(0..WAITING_BYTES as i64 / 8);
        let mut partitions: Vec<Vec<RecordBatch>> = (0..100)
            .map(|at| {
                (0..at % 4).map(|piece| batch(at * 10 + piece..at * 10 + piece + 1)).collect()
            })
            .collect();
        partitions.insert(3, (0..6).map(|piece| wide.slice(piece * 10, 10)).collect());
        let wanted: Vec<RecordBatch> = partitions.iter().flatten().cloned().collect();
        let input =
            MemorySourceConfig::try_new_exec(&partitions, wanted[0].schema(), None).unwrap();
        for threads in [1, 3] {
            let runtime = Builder::new_multi_thread().worker_threads(threads).build().unwrap();
            let found = runtime.block_on(async {
                let plan =
                    AheadExec::new(Arc::clone(&input) as Arc<dyn ExecutionPlan>, threads == 1);
                let rows = plan.execute(0, Arc::default()).unwrap();
                rows.try_collect::<Vec<_>>().await.unwrap()
            });
            let numbers = |batches: &[RecordBatch]| -> Vec<i64> {
                let columns =
                    batches.iter().map(|batch| batch.column(0).as_primitive::<Int64Type>());
                columns.flat_map(|column| column.values().to_vec()).collect()
            };
            assert!(numbers(&found) == numbers(&wanted));
        }
    }
}
