//! Finished batches on their way to the consumer: handed over in groups, and only so many ahead of
//! it.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::DataType;
use arrow::record_batch::RecordBatch;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::shard::{Delivered, Finished};
use crate::{Error, Result};

/// Rows of finished batches that wait for the consumer.
const AHEAD_ROWS: usize = 1 << 16;

/// Bytes of finished batches that wait for the consumer, but two batches at least: rows of images
/// are large. Waiting batches take memory that is fresh the first time, which costs more than
/// converting.
const AHEAD_BYTES: usize = 16 << 20;

/// Rows of finished batches that are handed over together, if they are there without waiting,
/// unless they are as large a part of [`AHEAD_BYTES`]: a consumer that is faster than the decoders
/// would else be woken for each batch.
const GROUP_ROWS: usize = 1 << 13;

/// Rows of a batch below which a group has twice as many rows: waking the consumer costs as much as
/// handing over two batches of 1024 rows.
const SMALL_ROWS: usize = GROUP_ROWS / 4;

/// Semaphores count in KiB, since their permits are 32-bit.
const KIB: usize = 1 << 10;

/// A message of the outbox: batches in their order, which count as waiting until they are received;
/// or the reason why there are no more.
pub(super) type Handed = Result<(Vec<Delivered>, OwnedSemaphorePermit)>;

/// The consumer is gone.
#[derive(Debug)]
pub(super) struct Closed;

/// The sending end.
pub(super) struct Outbox {
    sender: Sender<Handed>,
    ahead: Arc<Semaphore>,
    held: Vec<Delivered>,
    held_rows: usize,
    held_bytes: usize,
    group_rows: usize,
    group_bytes: usize,
}

impl Outbox {
    /// For batches of `batch_size` rows; one that runs ahead, or one that hands over every batch
    /// and has one ahead.
    pub(super) fn new(batch_size: usize, runs_ahead: bool) -> (Self, Receiver<Handed>) {
        let (group_rows, groups) = match runs_ahead {
            true => {
                let group_rows = if batch_size < SMALL_ROWS { 2 * GROUP_ROWS } else { GROUP_ROWS };
                (group_rows, (AHEAD_ROWS / batch_size.max(group_rows)).max(2))
            }
            false => (1, 1),
        };
        let group_bytes = AHEAD_BYTES / AHEAD_ROWS * group_rows;
        let (sender, receiver) = channel(groups);
        let ahead = Arc::new(Semaphore::new(AHEAD_BYTES / KIB));
        let outbox = Self {
            sender,
            ahead,
            held: Vec::new(),
            held_rows: 0,
            held_bytes: 0,
            group_rows,
            group_bytes,
        };
        (outbox, receiver)
    }

    /// Takes a batch, and sends it with those before it where they are enough.
    pub(super) async fn put(&mut self, delivered: Delivered) -> Result<(), Closed> {
        self.held_rows += delivered.batch.rows();
        self.held_bytes += delivered.batch.bytes();
        self.held.push(delivered);
        let is_group = self.held_rows >= self.group_rows || self.held_bytes >= self.group_bytes;
        if is_group { self.flush().await } else { Ok(()) }
    }

    /// Sends the held batches, as soon as there is room.
    pub(super) async fn flush(&mut self) -> Result<(), Closed> {
        if self.held.is_empty() {
            return Ok(());
        }
        let kib = (self.held_bytes / KIB).clamp(1, AHEAD_BYTES / KIB / 2) as u32;
        (self.held_rows, self.held_bytes) = (0, 0);
        let group = std::mem::take(&mut self.held);
        let room = Arc::clone(&self.ahead).acquire_many_owned(kib);
        let room = tokio::select! {
            room = room => room.map_err(|_closed| Closed)?,
            () = self.sender.closed() => return Err(Closed),
        };
        self.sender.send(Ok((group, room))).await.map_err(|_closed| Closed)
    }

    /// The batches before the error come first. A consumer that left meanwhile does not want it.
    pub(super) async fn fail(&mut self, error: Error) {
        if self.flush().await.is_ok() {
            let _ = self.sender.send(Err(error)).await;
        }
    }
}

impl Finished {
    /// Memory that the batch keeps, about.
    fn bytes(&self) -> usize {
        match self {
            Self::Tensors(batch) => {
                let texts = batch.texts().iter().flat_map(|text| text.arrays());
                let lent = batch.lent().iter().flatten().map(|memory| memory.as_slice().len());
                let numbers = batch.block().as_slice().len() + lent.sum::<usize>();
                numbers + texts.map(array_bytes).sum::<usize>()
            }
            Self::Arrow(batch) => batch_bytes(batch),
        }
    }
}

fn batch_bytes(batch: &RecordBatch) -> usize {
    batch.columns().iter().map(array_bytes).sum()
}

/// Bytes of the rows of `array` and not of the memory that it shares, but for lists, whose items
/// are counted whole.
fn array_bytes(array: &ArrayRef) -> usize {
    let longer = match array.data_type() {
        DataType::Utf8View => array.as_string_view().total_buffer_bytes_used(),
        DataType::BinaryView => array.as_binary_view().total_buffer_bytes_used(),
        _ => 0,
    };
    let data = array.to_data();
    longer + data.get_slice_memory_size().unwrap_or_else(|_unknown| data.get_array_memory_size())
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use std::sync::Arc;

    use arrow::array::FixedSizeBinaryArray;
    use arrow::record_batch::RecordBatch;

    use super::{AHEAD_BYTES, Handed, Outbox};
    use crate::sharding::ShardCursor;
    use crate::stream::{Delivered, Finished};

    /// A delivered batch of one row.
    fn batch(bytes: usize) -> Delivered {
        let column = FixedSizeBinaryArray::try_from_iter([vec![0; bytes]].into_iter()).unwrap();
        let rows = RecordBatch::try_from_iter([("x", Arc::new(column) as _)]).unwrap();
        let cursor = ShardCursor { batches: 0, lanes: Vec::new() };
        Delivered { batch: Finished::Arrow(rows), cursor, holding: None, last: false }
    }

    fn received(handed: Option<Handed>) -> usize {
        handed.unwrap().unwrap().0.len()
    }

    /// How many batches of `bytes` are taken while nobody receives.
    fn taken_ahead(bytes: usize) -> usize {
        let (mut outbox, mut receiver) = Outbox::new(1, true);
        let taken = (0..1000).take_while(|_| outbox.put(batch(bytes)).now_or_never().is_some());
        let taken = taken.count();
        // What is received makes room for as much.
        let group = received(receiver.try_recv().ok());
        assert_eq!(group, (AHEAD_BYTES / 4).div_ceil(bytes));
        taken
    }

    #[test]
    fn large_batches_wait_by_their_bytes() {
        // One more is held: it makes no group.
        assert_eq!(taken_ahead(AHEAD_BYTES / 8), 9);
        assert_eq!(taken_ahead(AHEAD_BYTES / 4), 4);
        // However large they are, one waits while the next is made.
        assert_eq!(taken_ahead(3 * AHEAD_BYTES), 2);
    }

    #[tokio::test]
    async fn a_consumer_that_left_ends_the_wait_for_room() {
        let (mut outbox, receiver) = Outbox::new(1, true);
        while outbox.put(batch(AHEAD_BYTES)).now_or_never().is_some() {}
        drop(receiver);
        assert!(outbox.put(batch(AHEAD_BYTES)).await.is_err());
    }

    #[tokio::test]
    async fn small_batches_go_together_and_what_is_held_goes_with_a_flush() {
        let (mut outbox, mut receiver) = Outbox::new(1, true);
        for _ in 0..3 {
            outbox.put(batch(8)).await.unwrap();
        }
        assert!(receiver.try_recv().is_err());
        outbox.flush().await.unwrap();
        assert_eq!(received(receiver.recv().await), 3);
        let (mut outbox, mut receiver) = Outbox::new(1, false);
        outbox.put(batch(8)).await.unwrap();
        assert_eq!(received(receiver.recv().await), 1);
    }
}
