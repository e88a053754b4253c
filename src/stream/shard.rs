//! A shard's stream: read-ahead, shuffle, exact batches and conversion, in the background.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use tokio::sync::mpsc::{Receiver, Sender, channel, error::TryRecvError};
use tokio::task::JoinHandle;

use super::batches::ExactBatches;
use super::read_ahead::ReadAhead;
use super::shuffle::{ShuffleWindow, Window};
use crate::runtime::Runtimes;
use crate::session::EpochPlan;
use crate::tensor::{Converter, TensorBatch};
use crate::{Error, Result};

/// Rows of finished batches that wait for the consumer.
const PREFETCHED_ROWS: usize = 1 << 16;

/// How a shard is read.
#[derive(Clone, Debug)]
pub struct StreamOptions {
    /// Rows per batch; only the last is short.
    pub batch_size: usize,
    /// Rows mixed across splits; None keeps their order.
    pub shuffle_buffer: Option<usize>,
    /// Keys the shuffle: derived from seed, epoch and shard.
    pub shuffle_key: u64,
    /// Decoding threads; twice as many splits are in flight, so that none of them waits for the consumer.
    pub threads: usize,
}

/// What batches become.
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

/// What [`ShardStream::next`] found.
#[derive(Debug)]
pub enum Next {
    /// A batch.
    Batch(Finished),
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
    /// Splits read to their end.
    pub splits: AtomicU64,
    /// Time that the consumer waited for a batch.
    pub wait_nanos: AtomicU64,
    /// Time spent turning rows into tensors.
    pub convert_nanos: AtomicU64,
}

/// The batches of one shard and epoch. Dropping it stops the background work.
#[derive(Debug)]
pub struct ShardStream {
    live: Option<Live>,
    counters: Arc<StreamCounters>,
    ended: bool,
}

/// What belongs to the process that started the stream.
#[derive(Debug)]
struct Live {
    receiver: Receiver<Result<Finished>>,
    task: JoinHandle<()>,
    runtimes: Arc<Runtimes>,
    process: u32,
}

impl ShardStream {
    /// Starts reading the splits `order` in the background.
    ///
    /// # Errors
    /// `Config` for a batch size or buffer of zero rows.
    pub fn start(
        plan: EpochPlan,
        order: Vec<u32>,
        options: &StreamOptions,
        output: Arc<Output>,
    ) -> Result<Self> {
        let runtimes = Runtimes::current()?;
        let capacity = (PREFETCHED_ROWS / options.batch_size.max(1)).clamp(2, 64);
        let (sender, receiver) = channel(capacity);
        let counters = Arc::new(StreamCounters::default());
        let shuffle = options
            .shuffle_buffer
            .map(|rows| ShuffleWindow::try_new(rows, options.shuffle_key))
            .transpose()?;
        let assembler = Assembler {
            shuffle,
            batches: ExactBatches::try_new(options.batch_size)?,
            output,
            sender,
            counters: Arc::clone(&counters),
        };
        let source = ReadAhead::new(plan, order, options.threads * 2, runtimes.cpu().clone());
        let task = runtimes.cpu().spawn(assembler.run(source));
        let live = Live { receiver, task, runtimes, process: std::process::id() };
        Ok(Self { live: Some(live), counters, ended: false })
    }

    /// Waits up to `patience` for the next batch.
    ///
    /// # Errors
    /// The first error of the shard; after it the stream has ended.
    pub fn next(&mut self, patience: Duration) -> Result<Next> {
        let Some(live) = self.live.as_mut().filter(|_| !self.ended) else { return Ok(Next::End) };
        if live.process != std::process::id() {
            return Err(Error::config(
                "this iterator was made before a fork and belongs to the parent process; make a new one \
                 with iter()",
            ));
        }
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
            Some(Ok(batch)) => {
                let rows = match &batch {
                    Finished::Tensors(batch) => batch.rows(),
                    Finished::Arrow(batch) => batch.num_rows(),
                };
                self.counters.rows.fetch_add(rows as u64, Ordering::Relaxed);
                self.counters.batches.fetch_add(1, Ordering::Relaxed);
                Ok(Next::Batch(batch))
            }
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

    /// What was handed out and how long it was waited for.
    pub fn counters(&self) -> &Arc<StreamCounters> {
        &self.counters
    }
}

impl Live {
    /// A closed channel is the end only if the background task finished; a panic would look the same.
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
            Some(live) if live.process == std::process::id() => live.task.abort(),
            // Inherited by a fork: its runtime has no threads here, and its locks may be held forever.
            inherited => std::mem::forget(inherited),
        }
    }
}

fn add_elapsed(counter: &AtomicU64, start: Instant) {
    let nanos = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    counter.fetch_add(nanos, Ordering::Relaxed);
}

/// The background half.
struct Assembler {
    shuffle: Option<ShuffleWindow>,
    batches: ExactBatches,
    output: Arc<Output>,
    sender: Sender<Result<Finished>>,
    counters: Arc<StreamCounters>,
}

/// Why the background half stops before the shard's end.
enum Halt {
    /// The consumer is gone.
    Stopped,
    /// The shard failed.
    Failed(Error),
}

impl From<Error> for Halt {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Assembler {
    async fn run(mut self, source: ReadAhead) {
        if let Err(Halt::Failed(error)) = self.pump(source).await {
            // A consumer that left meanwhile does not want the error.
            let _ = self.sender.send(Err(error)).await;
        }
    }

    async fn pump(&mut self, mut source: ReadAhead) -> Result<(), Halt> {
        while let Some(batch) = source.next().await? {
            self.counters.splits.store(source.splits_read(), Ordering::Relaxed);
            match &mut self.shuffle {
                Some(shuffle) => {
                    shuffle.push(batch)?;
                    while let Some(window) = self.next_window()? {
                        self.drain(window).await?;
                    }
                }
                None => {
                    self.batches.push(batch)?;
                    self.send_full().await?;
                }
            }
        }
        self.counters.splits.store(source.splits_read(), Ordering::Relaxed);
        if let Some(shuffle) = &mut self.shuffle
            && let Some(window) = shuffle.finish()?
        {
            self.drain(window).await?;
        }
        match self.batches.finish()? {
            Some(rest) => self.send(rest).await,
            None => Ok(()),
        }
    }

    fn next_window(&mut self) -> Result<Option<Window>> {
        self.shuffle.as_mut().map_or(Ok(None), ShuffleWindow::next_full)
    }

    async fn drain(&mut self, mut window: Window) -> Result<(), Halt> {
        while let Some(batch) = window.next_batch()? {
            self.batches.push(batch)?;
            self.send_full().await?;
        }
        Ok(())
    }

    async fn send_full(&mut self) -> Result<(), Halt> {
        while let Some(pieces) = self.batches.next_full()? {
            self.send(pieces).await?;
        }
        Ok(())
    }

    async fn send(&self, pieces: Vec<RecordBatch>) -> Result<(), Halt> {
        let start = Instant::now();
        let finished = self.output.finish(&pieces)?;
        add_elapsed(&self.counters.convert_nanos, start);
        self.sender.send(Ok(finished)).await.map_err(|_closed| Halt::Stopped)
    }
}

impl Output {
    fn finish(&self, pieces: &[RecordBatch]) -> Result<Finished> {
        match (self, pieces) {
            (Self::Tensors(converter), pieces) => {
                Ok(Finished::Tensors(Box::new(converter.convert(pieces)?)))
            }
            (Self::Arrow(_), [one]) => Ok(Finished::Arrow(one.clone())),
            (Self::Arrow(schema), pieces) => Ok(Finished::Arrow(concat_batches(schema, pieces)?)),
        }
    }
}
