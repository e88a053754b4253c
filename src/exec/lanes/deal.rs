//! Rows dealt to lanes, each of which an operator works through on its own.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{Array, AsArray};
use arrow::compute::interleave_record_batch;
use arrow::datatypes::Int64Type;
use arrow::record_batch::RecordBatch;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{DataFusionError, internal_datafusion_err};
use datafusion::error::Result as DfResult;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, Partitioning,
    PlanProperties,
};
use futures::{Stream, StreamExt, TryStreamExt, stream};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::LANES;
use crate::basics::node_basics;
use crate::formats::caught_answer;
use crate::query::hash_of_rows;

/// Rows that are dealt together, so that each lane gets about one batch of them.
const BLOCK_ROWS: usize = LANES * 8192;
/// Their bytes, where rows are wide.
const BLOCK_BYTES: usize = 32 << 20;
/// The most rows of a batch that a lane gets.
const BATCH_ROWS: usize = 8192;
/// Batches that wait in a lane.
const WAITING: usize = 2;

/// By what rows are dealt.
#[derive(Clone, Debug)]
pub(super) enum Dealing {
    /// Rows with equal keys come into the same lane.
    Keys(Vec<Arc<dyn PhysicalExpr>>),
    /// Batch by batch in turns.
    Turns,
}

/// Deals the rows of its one input partition to [`LANES`] partitions. In each lane they keep their
/// order. Which lane a row comes into follows from the rows alone, on every platform, and never from
/// the timing of threads.
///
/// All lanes must be read at the same time, each to its end, since the slowest one holds up the
/// others: only operators that take all of their input before they give rows may be above.
#[derive(Debug)]
pub(super) struct DealExec {
    input: Arc<dyn ExecutionPlan>,
    by: Dealing,
    dealt: Arc<Mutex<Option<Lanes>>>,
    properties: Arc<PlanProperties>,
}

/// What lanes share.
#[derive(Debug)]
pub(super) struct Lanes {
    receivers: Vec<Option<Receiver<DfResult<Dealt>>>>,
    /// Ends when the plan and its lanes are dropped.
    pub(super) dealer: Arc<SpawnedTask<()>>,
}

#[derive(Debug)]
enum Dealt {
    Rows(RecordBatch),
    /// Without it, rows are missing.
    End,
}

impl DealExec {
    pub(super) fn new(input: Arc<dyn ExecutionPlan>, by: Dealing) -> Self {
        let mut equivalences = input.equivalence_properties().clone();
        equivalences.clear_orderings();
        let partitioning = match &by {
            Dealing::Keys(keys) => Partitioning::Hash(keys.clone(), LANES),
            Dealing::Turns => Partitioning::UnknownPartitioning(LANES),
        };
        let properties = Arc::new(PlanProperties::new(
            equivalences,
            partitioning,
            EmissionType::Incremental,
            Boundedness::Bounded,
        ));
        Self { input, by, dealt: Arc::default(), properties }
    }
}

impl DisplayAs for DealExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DealExec: lanes={LANES}")?;
        match &self.by {
            Dealing::Keys(keys) => {
                let keys: Vec<String> = keys.iter().map(ToString::to_string).collect();
                write!(f, ", keys=[{}]", keys.join(", "))
            }
            Dealing::Turns => f.write_str(", in turns"),
        }
    }
}

impl ExecutionPlan for DealExec {
    node_basics!("DealExec", input);

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> DfResult<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Self::new(children.swap_remove(0), self.by.clone())))
    }

    fn execute(
        &self,
        lane: usize,
        context: Arc<TaskContext>,
    ) -> DfResult<SendableRecordBatchStream> {
        let (dealt, input, by) =
            (Arc::clone(&self.dealt), Arc::clone(&self.input), self.by.clone());
        let open = move || -> DfResult<_> {
            let mut dealt = dealt.lock().unwrap_or_else(PoisonError::into_inner);
            let lanes = match &mut *dealt {
                Some(lanes) => lanes,
                none => none.insert(Lanes::start(input.execute(0, context)?, by)),
            };
            lanes.open(lane)
        };
        // When the first rows are asked for, within the runtime.
        let rows = stream::once(async move { open() });
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows.try_flatten())))
    }
}

impl Lanes {
    pub(super) fn start(rows: SendableRecordBatchStream, by: Dealing) -> Self {
        let (senders, receivers): (Vec<_>, Vec<_>) =
            (0..LANES).map(|_| channel(WAITING)).map(|(to, from)| (to, Some(from))).unzip();
        let dealer = Arc::new(SpawnedTask::spawn(deal(rows, by, senders)));
        Self { receivers, dealer }
    }

    /// The rows of one lane, to the end that the dealer announces.
    pub(super) fn open(
        &mut self,
        lane: usize,
    ) -> DfResult<impl Stream<Item = DfResult<RecordBatch>> + use<>> {
        let receiver = self.receivers.get_mut(lane).and_then(Option::take);
        let receiver =
            receiver.ok_or_else(|| internal_datafusion_err!("lane {lane} is read already"))?;
        let state = (receiver, Arc::clone(&self.dealer));
        Ok(stream::try_unfold(state, |(mut receiver, dealer)| async move {
            match receiver.recv().await {
                Some(Ok(Dealt::Rows(batch))) => Ok(Some((batch, (receiver, dealer)))),
                Some(Ok(Dealt::End)) => Ok(None),
                Some(Err(error)) => Err(error),
                None => Err(internal_datafusion_err!("the rows of a lane broke off")),
            }
        }))
    }
}

/// Deals all rows. A lane that nobody reads any more gets none.
async fn deal(rows: SendableRecordBatchStream, by: Dealing, lanes: Vec<Sender<DfResult<Dealt>>>) {
    let dealt = std::pin::pin!(caught_answer(blocks(rows, by)));
    let ended = dealt
        .try_for_each(|pieces| async {
            for (lane, batch) in pieces {
                let _ = lanes[lane].send(Ok(Dealt::Rows(batch))).await;
            }
            Ok(())
        })
        .await;
    let error = ended.err().map(Arc::new);
    for lane in &lanes {
        let end = match &error {
            None => Ok(Dealt::End),
            Some(error) => Err(DataFusionError::Shared(Arc::clone(error))),
        };
        let _ = lane.send(end).await;
    }
}

type Pieces = Vec<(usize, RecordBatch)>;

/// The rows in pieces, each with its lane.
fn blocks(rows: SendableRecordBatchStream, by: Dealing) -> impl Stream<Item = DfResult<Pieces>> {
    stream::try_unfold((rows, by, 0), |(mut rows, by, turn)| async move {
        let keys = match &by {
            Dealing::Turns => {
                return Ok(rows
                    .try_next()
                    .await?
                    .map(|batch| (vec![(turn % LANES, batch)], (rows, by, turn + 1))));
            }
            Dealing::Keys(keys) => keys,
        };
        let mut block = Block::default();
        while !block.is_full()
            && let Some(batch) = rows.next().await
        {
            block.push(batch?, keys)?;
        }
        match block.batches.is_empty() {
            true => Ok(None),
            false => Ok(Some((block.pieces()?, (rows, by, turn)))),
        }
    })
}

/// Some batches, and where in them the rows of each lane are.
struct Block {
    batches: Vec<RecordBatch>,
    places: Vec<Vec<(usize, usize)>>,
    rows: usize,
    bytes: usize,
}

impl Default for Block {
    fn default() -> Self {
        Self { batches: Vec::new(), places: vec![Vec::new(); LANES], rows: 0, bytes: 0 }
    }
}

impl Block {
    fn is_full(&self) -> bool {
        self.rows >= BLOCK_ROWS || self.bytes >= BLOCK_BYTES
    }

    fn push(&mut self, batch: RecordBatch, keys: &[Arc<dyn PhysicalExpr>]) -> DfResult<()> {
        let rows = batch.num_rows();
        if rows == 0 {
            return Ok(());
        }
        let mut hashes = vec![0_u64; rows];
        for key in keys {
            let column = key.evaluate(&batch)?.into_array(rows)?;
            let found = hash_of_rows(&column)?;
            let found = found.as_primitive::<Int64Type>();
            // Rows without a value have some value there, which is not theirs.
            let nulls = found.nulls().filter(|nulls| nulls.null_count() > 0);
            for (row, (hash, value)) in hashes.iter_mut().zip(found.values()).enumerate() {
                let value = match nulls.is_some_and(|nulls| nulls.is_null(row)) {
                    true => 0,
                    false => *value as u64,
                };
                *hash = (hash.rotate_left(26) ^ value).wrapping_mul(0x9E37_79B1_85EB_CA87);
            }
        }
        let number = self.batches.len();
        for (row, hash) in hashes.into_iter().enumerate() {
            // The upper bits of a product depend on all bits.
            self.places[(hash >> 32) as usize % LANES].push((number, row));
        }
        self.rows += rows;
        self.bytes += batch.get_array_memory_size();
        self.batches.push(batch);
        Ok(())
    }

    fn pieces(self) -> DfResult<Pieces> {
        let batches: Vec<&RecordBatch> = self.batches.iter().collect();
        let mut pieces = Vec::with_capacity(LANES);
        for (lane, places) in self.places.iter().enumerate() {
            for places in places.chunks(BATCH_ROWS) {
                pieces.push((lane, interleave_record_batch(&batches, places)?));
            }
        }
        Ok(pieces)
    }
}
