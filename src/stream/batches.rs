//! Exact batches, whatever the sizes in which rows arrive.

use arrow::record_batch::RecordBatch;

use super::queue::RowQueue;
use crate::{Error, Result};

/// Cuts a stream of rows into batches of exactly `batch_size` rows; only the last is short.
///
/// A batch is a list of pieces: slices that share the memory of what was pushed. Whoever makes tensors
/// of them copies once anyway, so nothing is copied here but tiny pieces, which bounds their number
/// (see [`max_pieces`](Self::max_pieces)).
///
/// Push until [`next_full`](Self::next_full) has something, and take it before pushing more: then less
/// than one batch plus one pushed batch is held.
pub struct ExactBatches {
    batch_size: usize,
    queue: RowQueue,
}

impl ExactBatches {
    /// Batches of `batch_size` rows, at least 1.
    pub fn try_new(batch_size: usize) -> Result<Self> {
        if batch_size == 0 {
            return Err(Error::config("batch_size 0 must be at least 1"));
        }
        Ok(Self { batch_size, queue: RowQueue::new(tiny(batch_size)) })
    }

    /// Rows of a full batch.
    pub fn batch_size(&self) -> usize {
        self.batch_size
    }

    /// Rows pushed and not yet taken.
    pub fn rows(&self) -> usize {
        self.queue.rows()
    }

    /// The most pieces that a batch can have: runs of tiny pieces between pieces that are not, and a
    /// piece cut at either end.
    pub fn max_pieces(&self) -> usize {
        2 * (self.batch_size / tiny(self.batch_size)) + 3
    }

    /// Appends rows; a batch without rows changes nothing. An error says that its column types are not
    /// those of the batches before.
    pub fn push(&mut self, batch: RecordBatch) -> Result<()> {
        self.queue.push(batch)
    }

    /// The next batch, if all its rows are there.
    pub fn next_full(&mut self) -> Result<Option<Vec<RecordBatch>>> {
        if self.queue.rows() < self.batch_size {
            return Ok(None);
        }
        self.queue.take(self.batch_size).map(Some)
    }

    /// The rest after the last full batch, if any: call [`next_full`](Self::next_full) until it has
    /// nothing, then this.
    pub fn finish(&mut self) -> Result<Option<Vec<RecordBatch>>> {
        let rest = self.queue.take(self.batch_size)?;
        Ok(Some(rest).filter(|pieces| !pieces.is_empty()))
    }
}

/// Pieces of fewer rows are copied together: few enough to cost less than handling them one by one,
/// and a fixed share of the batch, so that the number of pieces does not grow with it.
fn tiny(batch_size: usize) -> usize {
    (batch_size / 64).max(64)
}
