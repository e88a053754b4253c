//! Ordered read-ahead: several splits are decoded at once, their rows come in split order.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use futures::TryStreamExt;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use crate::session::EpochPlan;
use crate::{Error, Result};

/// Decoded bytes that all splits in flight may hold before the consumer takes them.
const BUFFERED_BYTES: usize = 128 << 20;

/// Semaphores count in KiB, since their permits are 32-bit.
const KIB: usize = 1 << 10;

/// What a decoding task sends. A task that ends without `End` or an error has panicked: its rows must
/// not be lost silently.
enum Message {
    Batch(RecordBatch, OwnedSemaphorePermit),
    Failed(Error),
    End,
}

/// The rows of splits, in the order given.
pub struct ReadAhead {
    plan: EpochPlan,
    order: std::vec::IntoIter<u32>,
    in_flight: usize,
    budget_kib: usize,
    open: VecDeque<UnboundedReceiver<Message>>,
    tasks: JoinSet<()>,
    runtime: Handle,
    splits_read: u64,
}

impl ReadAhead {
    /// Reads the splits `order` of a plan, at most `in_flight` (at least one) at the same time.
    /// Dropping it cancels what is under way.
    pub fn new(plan: EpochPlan, order: Vec<u32>, in_flight: usize, runtime: Handle) -> Self {
        let in_flight = in_flight.max(1);
        Self {
            plan,
            order: order.into_iter(),
            in_flight,
            budget_kib: (BUFFERED_BYTES / KIB / in_flight).max(1),
            open: VecDeque::new(),
            tasks: JoinSet::new(),
            runtime,
            splits_read: 0,
        }
    }

    /// Splits read to their end.
    pub fn splits_read(&self) -> u64 {
        self.splits_read
    }

    /// The next rows; None after the last split.
    ///
    /// # Errors
    /// The first error of the split whose turn it is.
    pub async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            while self.open.len() < self.in_flight
                && let Some(split) = self.order.next()
            {
                self.spawn(split);
            }
            // Finished tasks are reaped here, so that the set does not grow with the splits.
            while self.tasks.try_join_next().is_some() {}
            let Some(front) = self.open.front_mut() else { return Ok(None) };
            match front.recv().await {
                Some(Message::Batch(batch, _permit)) => return Ok(Some(batch)),
                Some(Message::Failed(error)) => return Err(error),
                Some(Message::End) => {
                    self.open.pop_front();
                    self.splits_read += 1;
                }
                None => {
                    return Err(Error::data(
                        "a decoding task ended abnormally (a panic inside the engine); please report \
                         it with the message above and the file's writer",
                    ));
                }
            }
        }
    }

    fn spawn(&mut self, split: u32) {
        let (sender, receiver) = unbounded_channel();
        let budget = Arc::new(Semaphore::new(self.budget_kib));
        let plan = self.plan.clone();
        let limit = self.budget_kib;
        let task = async move {
            let last = match decode(&plan, split, &sender, &budget, limit).await {
                Ok(()) => Message::End,
                Err(error) => Message::Failed(error),
            };
            // The receiver is gone when the consumer stopped early; nobody wants the message then.
            let _ = sender.send(last);
        };
        self.tasks.spawn_on(task, &self.runtime);
        self.open.push_back(receiver);
    }
}

async fn decode(
    plan: &EpochPlan,
    split: u32,
    sender: &UnboundedSender<Message>,
    budget: &Arc<Semaphore>,
    limit_kib: usize,
) -> Result<()> {
    let mut stream = plan.execute(split)?;
    while let Some(batch) = stream.try_next().await? {
        if batch.num_rows() == 0 {
            continue;
        }
        let kib = (batch.get_array_memory_size() / KIB).clamp(1, limit_kib) as u32;
        let permit = Arc::clone(budget).acquire_many_owned(kib).await;
        let Ok(permit) = permit else { return Ok(()) };
        if sender.send(Message::Batch(batch, permit)).is_err() {
            return Ok(());
        }
    }
    Ok(())
}
