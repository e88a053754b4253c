//! A shard's stream: lanes, exact batches and conversion, in the background.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use futures::poll;
use tokio::sync::mpsc::{Receiver, error::TryRecvError};
use tokio::task::JoinHandle;

use super::lane::{LaneReader, Pace};
use super::outbox::{Closed, Handed, Outbox};
use super::queue::RowQueue;
use super::reads::Reads;
use super::rows::Rows;
use super::source::RowSource;
use super::work_queue::{TakenCount, WorkQueue};
use crate::runtime::Runtimes;
use crate::sharding::{Holding, Interleave, Schedule, Shard, ShardCursor, blend};
use crate::tensor::{BatchSlice, Converter, TensorBatch};
use crate::{Error, Result};

/// The form of delivered batches.
#[derive(Debug)]
pub enum Output {
    /// One block of tensor memory per batch.
    Tensors(Converter),
    /// Arrow record batches.
    Arrow(SchemaRef),
}

/// A finished batch.
#[derive(Debug)]
pub enum Finished {
    /// Ready for torch or numpy.
    Tensors(Box<TensorBatch>),
    /// As Arrow.
    Arrow(RecordBatch),
}

impl Finished {
    /// Its rows.
    pub fn rows(&self) -> usize {
        match self {
            Self::Tensors(batch) => batch.rows(),
            Self::Arrow(batch) => batch.num_rows(),
        }
    }
}

/// A finished batch, and where the shard stands after it.
#[derive(Debug)]
pub struct Delivered {
    /// The batch.
    pub batch: Finished,
    /// How far the shard is consumed with it.
    pub cursor: ShardCursor,
    /// If the worker takes its pieces from a feed: the pieces that it holds, and the pieces
    /// consumed since the batch before.
    pub holding: Option<(Holding, Vec<u32>)>,
    /// Whether it is the shard's last.
    pub last: bool,
}

/// The result of [`ShardStream::next`].
#[derive(Debug)]
pub enum Next {
    /// The next batch, and the batches finished with it. Each counts as handed out when
    /// [`StreamCounters::hand_out`] hears of it.
    Batches(Vec<Delivered>),
    /// The shard is exhausted.
    End,
    /// Nothing within the time given; ask again.
    Pending,
}

/// Counts of one stream, shared with its background task.
#[derive(Debug, Default)]
pub struct StreamCounters {
    /// Rows handed to the consumer.
    pub rows: AtomicU64,
    /// Batches handed to the consumer.
    pub batches: AtomicU64,
    /// Pieces read to their end; a split is one piece, but where it is cut between shards.
    pub splits: AtomicU64,
    /// Lanes from which every batch takes equal rows; 0 and 1 say the same.
    pub equal_lanes: u64,
    /// Rows of all shuffle windows.
    pub window_rows: AtomicU64,
    /// The rows of each window's largest piece, summed up.
    pub window_most_rows: AtomicU64,
    /// Rows that were repeated to fill the last batch.
    pub padded_rows: AtomicU64,
    /// Rows of finished batches, handed to the consumer or not.
    pub finished_rows: AtomicU64,
    /// Costs of reading.
    pub reads: Arc<Reads>,
    /// Time that the consumer waited for a batch.
    pub wait_nanos: AtomicU64,
    /// Time spent turning rows into tensors.
    pub convert_nanos: AtomicU64,
}

impl StreamCounters {
    /// The mean part of a batch that comes from the split with most rows in its shuffle window; 1
    /// without windows.
    pub fn split_share(&self) -> f64 {
        let rows = self.window_rows.load(Ordering::Relaxed);
        let most = self.window_most_rows.load(Ordering::Relaxed);
        if rows == 0 { 1.0 } else { most as f64 / rows as f64 / self.equal_lanes.max(1) as f64 }
    }

    /// Rows of finished batches that the consumer has not asked for yet.
    pub fn buffered_rows(&self) -> u64 {
        let handed_out = self.rows.load(Ordering::Relaxed);
        self.finished_rows.load(Ordering::Relaxed).saturating_sub(handed_out)
    }

    /// A batch of so many rows is handed to the consumer.
    pub fn hand_out(&self, rows: u64) {
        self.rows.fetch_add(rows, Ordering::Relaxed);
        self.batches.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn add_window(&self, rows: u64, most: u64) {
        self.window_rows.fetch_add(rows, Ordering::Relaxed);
        self.window_most_rows.fetch_add(most, Ordering::Relaxed);
    }
}

/// The batches of one shard and epoch. Dropping it stops the background work.
#[derive(Debug)]
pub struct ShardStream {
    live: Option<Live>,
    counters: Arc<StreamCounters>,
    ended: bool,
}

/// State of the process that started the stream.
#[derive(Debug)]
struct Live {
    receiver: Receiver<Handed>,
    task: JoinHandle<()>,
    runtimes: Arc<Runtimes>,
    home: Home,
}

/// The process that something belongs to: a fork of it has none of its threads.
#[derive(Clone, Copy, Debug)]
pub struct Home(u32);

impl Home {
    /// This process.
    pub fn here() -> Self {
        Self(std::process::id())
    }

    /// Returns true if this is still that process.
    pub fn is_here(self) -> bool {
        self.0 == std::process::id()
    }

    /// Refuses to go on with a stream in a fork of the process that started it.
    ///
    /// # Errors
    /// `Config`.
    pub fn check(self) -> Result<()> {
        match self.is_here() {
            true => Ok(()),
            false => Err(Error::config(
                "this iterator was made before a fork and belongs to the parent process; make a new one \
                 with iter()",
            )),
        }
    }
}

impl ShardStream {
    /// Starts reading a shard in the background, from `cursor` on. `threads` decode; one piece more
    /// is in flight, so that none of them waits for the consumer.
    ///
    /// # Errors
    /// `Config` for a batch size or window of zero rows.
    pub fn start(
        source: RowSource,
        shard: &Shard,
        cursor: &ShardCursor,
        threads: usize,
        output: Arc<Output>,
    ) -> Result<Self> {
        Self::start_with(source, shard, cursor, threads, output, None)
    }

    /// Starts reading the pieces of a rank's shard that it takes from `feed`. It runs ahead as
    /// little as possible: pieces that it takes are not left for other workers.
    ///
    /// # Errors
    /// As for [`start`](Self::start).
    pub fn start_fed(
        source: RowSource,
        shard: &Shard,
        threads: usize,
        output: Arc<Output>,
        feed: Arc<WorkQueue>,
    ) -> Result<Self> {
        Self::start_with(source, shard, &shard.start(), threads, output, Some(feed))
    }

    fn start_with(
        source: RowSource,
        shard: &Shard,
        cursor: &ShardCursor,
        threads: usize,
        output: Arc<Output>,
        feed: Option<Arc<WorkQueue>>,
    ) -> Result<Self> {
        let batch_size = usize::try_from(shard.schedule.batch_size).unwrap_or(usize::MAX);
        if batch_size == 0 {
            return Err(Error::config("batch_size 0 must be at least 1"));
        }
        let runtimes = Runtimes::current()?;
        // What is taken from a feed ahead of its time is not left for other workers.
        let (outbox, receiver) = Outbox::new(batch_size, feed.is_none());
        let equal_lanes = if shard.lane_weights.is_empty() { shard.lanes.len() as u64 } else { 1 };
        let counters = Arc::new(StreamCounters { equal_lanes, ..StreamCounters::default() });
        let assembler = Assembler {
            lanes: Vec::new(),
            schedule: shard.schedule.clone(),
            batches: cursor.batches,
            output,
            outbox,
            feed,
            tally: TakenCount::default(),
            counters: Arc::clone(&counters),
        };
        let (shard, cursor) = (shard.clone(), cursor.clone());
        let task = assembler.run(source, shard, cursor, threads);
        let task = runtimes.cpu().spawn(task);
        let live = Live { receiver, task, runtimes, home: Home::here() };
        Ok(Self { live: Some(live), counters, ended: false })
    }

    /// Waits up to `patience` for the next batches.
    ///
    /// # Errors
    /// The first error of the shard; after it the stream has ended.
    pub fn next(&mut self, patience: Duration) -> Result<Next> {
        let Some(live) = self.live.as_mut().filter(|_| !self.ended) else { return Ok(Next::End) };
        live.home.check()?;
        let message = match live.receiver.try_recv() {
            Ok(message) => Some(message),
            Err(TryRecvError::Disconnected) => None,
            Err(TryRecvError::Empty) => {
                let start = Instant::now();
                // The clock of the CPU runtime stands still while all its threads decode.
                let waited = live
                    .runtimes
                    .io()
                    .block_on(async { tokio::time::timeout(patience, live.receiver.recv()).await });
                add_elapsed(&self.counters.wait_nanos, start);
                match waited {
                    Ok(message) => message,
                    Err(_elapsed) => return Ok(Next::Pending),
                }
            }
        };
        match message {
            Some(Ok((group, _room))) => Ok(Next::Batches(group)),
            Some(Err(error)) => {
                self.ended = true;
                Err(error)
            }
            None => {
                self.ended = true;
                live.ended_well()
            }
        }
    }

    /// Counts of delivered batches, and time waited for them.
    pub fn counters(&self) -> &Arc<StreamCounters> {
        &self.counters
    }
}

impl Live {
    /// A closed channel is the end only if the background task finished; a panic would look the
    /// same.
    fn ended_well(&mut self) -> Result<Next> {
        match self.runtimes.cpu().block_on(&mut self.task) {
            Ok(()) => Ok(Next::End),
            Err(error) => Err(Error::data(format!(
                "the loader's background task ended abnormally ({error}); please report it"
            ))),
        }
    }
}

impl Drop for ShardStream {
    fn drop(&mut self) {
        match self.live.take() {
            Some(live) if live.home.is_here() => live.task.abort(),
            // Inherited by a fork: its runtime has no threads here, and its locks may be held
            // forever.
            inherited => std::mem::forget(inherited),
        }
    }
}

fn add_elapsed(counter: &AtomicU64, start: Instant) {
    let nanos = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    counter.fetch_add(nanos, Ordering::Relaxed);
}

/// Batches of fewer rows are copied together: few enough to cost less than handling them one by
/// one, and a fixed share of the batch, so that the number of pieces does not grow with it.
pub fn tiny(batch_size: usize) -> usize {
    (batch_size / 64).max(64)
}

/// The background half.
struct Assembler {
    lanes: Vec<LaneReader>,
    schedule: Schedule,
    batches: u64,
    output: Arc<Output>,
    outbox: Outbox,
    feed: Option<Arc<WorkQueue>>,
    tally: TakenCount,
    counters: Arc<StreamCounters>,
}

/// Why the background half stops before the shard's end.
enum Halt {
    /// The consumer is gone.
    Stopped,
    /// The shard failed.
    Failed(Error),
}

impl From<Closed> for Halt {
    fn from(_: Closed) -> Self {
        Self::Stopped
    }
}

impl From<Error> for Halt {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Assembler {
    async fn run(mut self, source: RowSource, shard: Shard, cursor: ShardCursor, threads: usize) {
        if let Err(Halt::Failed(error)) = self.pump(source, shard, cursor, threads).await {
            self.outbox.fail(error).await;
        }
    }

    async fn pump(
        &mut self,
        source: RowSource,
        shard: Shard,
        cursor: ShardCursor,
        threads: usize,
    ) -> Result<(), Halt> {
        let tiny = tiny(usize::try_from(self.schedule.batch_size).unwrap_or(usize::MAX));
        // Several lanes share the threads; each of them decodes at least one piece ahead.
        let ahead = (threads + 1).div_ceil(shard.lanes.len().max(1));
        let batch_size = Some(self.schedule.batch_size).filter(|_| shard.lanes.len() == 1);
        let batch_size = batch_size.filter(|_| self.feed.is_none());
        let pace = Pace { tiny, ahead, batch_size };
        for (lane, at) in shard.lanes.iter().zip(&cursor.lanes) {
            let (runtime, counters) =
                (tokio::runtime::Handle::current(), Arc::clone(&self.counters));
            self.lanes.push(LaneReader::try_new(
                source.clone(),
                lane,
                at,
                pace,
                self.feed.clone(),
                runtime,
                counters,
            )?);
        }
        // A batch waits for the next one where only that shows whether it is the last.
        let mut waiting: Option<Delivered> = None;
        while let Some(size) = self.schedule.size(self.batches) {
            let mut pieces = {
                let weights = shard.weights_at(self.batches);
                let mut take = pin!(take(&mut self.lanes, &weights, size));
                match poll!(take.as_mut()) {
                    Poll::Ready(pieces) => pieces?,
                    Poll::Pending => {
                        self.outbox.flush().await?;
                        take.await?
                    }
                }
            };
            let mut rows: u64 = pieces.iter().map(|piece| piece.num_rows() as u64).sum();
            let fixed = self.schedule.batches();
            if rows < size {
                if fixed.is_some() && !self.schedule.pad {
                    return Err(Error::data(format!(
                        "a shard ended {} rows before its last batch was full; please report it with the query",
                        size - rows
                    ))
                    .into());
                }
                if fixed.is_none() && (rows == 0 || self.schedule.drop_short) {
                    break;
                }
                if self.schedule.pad {
                    let padding = self.padding(&source, &shard, size - rows).await?;
                    let padded: u64 = padding.iter().map(|piece| piece.num_rows() as u64).sum();
                    self.counters.padded_rows.fetch_add(padded, Ordering::Relaxed);
                    pieces.extend(padding);
                    rows += padded;
                }
                if rows == 0 {
                    break;
                }
            }
            self.batches += 1;
            let finished = self.finish(pieces)?;
            let lanes = self.lanes.iter().map(LaneReader::cursor).collect();
            let cursor = ShardCursor { batches: self.batches, lanes };
            let last = fixed == Some(self.batches);
            let holding = self.feed.as_ref().map(|feed| self.tally.at(feed, cursor.clone()));
            let delivered = Delivered { batch: finished, cursor, holding, last };
            if fixed.is_some() {
                self.outbox.put(delivered).await?;
            } else if let Some(before) = waiting.replace(delivered) {
                self.outbox.put(before).await?;
            }
        }
        if let Some(mut last) = waiting {
            last.last = true;
            self.outbox.put(last).await?;
        }
        Ok(self.outbox.flush().await?)
    }

    /// Rows to repeat; fewer than asked for only where the query has none at all.
    async fn padding(
        &self,
        source: &RowSource,
        shard: &Shard,
        rows: u64,
    ) -> Result<Vec<BatchSlice>> {
        let mut queue = RowQueue::new(tiny(shard.schedule.batch_size as usize));
        while (queue.rows() as u64) < rows {
            let before = queue.rows();
            let pieces = Arc::from(shard.padding.as_slice());
            let runtime = tokio::runtime::Handle::current();
            let (start, reads) = (Interleave::sequential(), Arc::clone(&self.counters.reads));
            let mut again = Rows::new(source.clone(), pieces, start, 1, runtime, reads);
            while (queue.rows() as u64) < rows {
                let Some((_, batch)) = again.next(rows - queue.rows() as u64).await? else { break };
                queue.push(batch)?;
            }
            if queue.rows() == before {
                break;
            }
        }
        queue.take(usize::try_from(rows).unwrap_or(usize::MAX))
    }

    fn finish(&self, pieces: Vec<BatchSlice>) -> Result<Finished> {
        let start = Instant::now();
        let finished = self.output.finish(pieces)?;
        add_elapsed(&self.counters.convert_nanos, start);
        self.counters.finished_rows.fetch_add(finished.rows() as u64, Ordering::Relaxed);
        Ok(finished)
    }
}

/// The next `size` rows, from every lane its part.
async fn take(lanes: &mut [LaneReader], weights: &[u64], size: u64) -> Result<Vec<BatchSlice>> {
    let left: Vec<u64> = lanes.iter().map(LaneReader::left).collect();
    let mut pieces = Vec::new();
    for (lane, rows) in lanes.iter_mut().zip(blend(size, &left, weights)) {
        if rows > 0 {
            pieces.extend(lane.take(rows).await?);
        }
    }
    Ok(pieces)
}

impl Output {
    /// Lets columns have memory of their own: see [`Converter::lending`].
    #[must_use]
    pub fn lending(self) -> Self {
        match self {
            Self::Tensors(converter) => Self::Tensors(converter.lending()),
            arrow => arrow,
        }
    }

    /// Uses rows of `source` whose stacked columns are a matrix already, if it can deliver such
    /// rows. Returns the output and the rows.
    ///
    /// # Errors
    /// Where DataFusion cannot project so.
    pub fn of_matrices(self, source: RowSource) -> Result<(Self, RowSource)> {
        let Self::Tensors(converter) = self else { return Ok((self, source)) };
        Ok(match source.with_matrices(converter.matrices())? {
            Some((source, schema)) => (Self::Tensors(converter.of_matrices(schema)), source),
            None => (Self::Tensors(converter), source),
        })
    }

    fn finish(&self, mut pieces: Vec<BatchSlice>) -> Result<Finished> {
        let schema = match self {
            Self::Tensors(converter) => {
                return Ok(Finished::Tensors(Box::new(converter.convert_portions(&pieces)?)));
            }
            Self::Arrow(schema) => schema,
        };
        if let [_] = pieces[..]
            && let Some(one) = pieces.pop()
        {
            return Ok(Finished::Arrow(one.into_kept_batch()?));
        }
        let batches: Vec<RecordBatch> =
            pieces.into_iter().map(BatchSlice::into_batch).collect::<Result<_>>()?;
        Ok(Finished::Arrow(concat_batches(schema, &batches)?))
    }
}
