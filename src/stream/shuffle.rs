//! The row buffer: mixes rows across batches and splits, window by window.

use std::sync::Arc;

use arrow::array::{ArrayRef, UInt32Array};
use arrow::datatypes::{Schema, SchemaRef};
use arrow::record_batch::RecordBatch;

use super::gather::{BLOCK_ROWS, Column};
use super::queue::RowQueue;
use crate::sharding::{Rng, derive_key};
use crate::tensor::{BatchSlice, sole_owner};
use crate::{Error, Result};

/// Batches of fewer rows are copied together as they are pushed: cheap beside the random gather,
/// and the window then holds few arrays per column, without the pages their strings came from.
pub(super) const TINY_ROWS: usize = 256;
/// The most rows of a drained portion, where some of its columns are not in their order yet.
const MAX_BATCH_ROWS: usize = 8192;
/// Rows of a window's first portion, where rows can be of any width; the size doubles while a
/// portion stays under half of [`MAX_BATCH_BYTES`].
const FIRST_BATCH_ROWS: usize = 64;
/// Where a drained portion exceeds it, the next has half as many rows: wide rows must not copy the
/// window at once, nor overflow 32-bit offsets.
const MAX_BATCH_BYTES: usize = 16 << 20;
/// Rows of the largest window, so that a row's number fits 32 bits.
const MAX_WINDOW_ROWS: usize = u32::MAX as usize;

/// Mixes rows: fill a window of `capacity_rows` rows, permute it, drain it, start the next.
///
/// The order depends on the key and the sequence of rows alone, never on how they were cut into
/// batches. Every row leaves once, and every permutation of a window is equally likely. Window n is
/// permuted by a generator of its own, keyed by (key, n), so a cursor is (window, offset): to
/// resume, push the rows from the first row of window n on and skip `offset` of them
/// ([`starting_at`](Self::starting_at), [`Window::skip_rows`]).
pub struct ShuffleWindow {
    capacity_rows: usize,
    key: u64,
    number: u64,
    queue: RowQueue,
}

impl ShuffleWindow {
    /// Windows of `capacity_rows` rows, 1 to 4,294,967,295, in the order of `key`.
    ///
    /// # Errors
    /// `Config` for a capacity outside these bounds.
    pub fn try_new(capacity_rows: usize, key: u64) -> Result<Self> {
        if capacity_rows == 0 {
            return Err(Error::config(
                "shuffle_buffer_size 0 must be at least 1 row; None leaves the rows in order",
            ));
        }
        if capacity_rows > MAX_WINDOW_ROWS {
            return Err(Error::config(format!(
                "shuffle_buffer_size {capacity_rows} must be at most {MAX_WINDOW_ROWS} rows; \
                 shuffle=\"global\" mixes any number"
            )));
        }
        Ok(Self { capacity_rows, key, number: 0, queue: RowQueue::new(TINY_ROWS) })
    }

    /// Gives the next window the number `window`: where a resumed shard goes on.
    #[must_use]
    pub fn starting_at(mut self, window: u64) -> Self {
        self.number = window;
        self
    }

    /// Rows of a full window.
    pub fn capacity_rows(&self) -> usize {
        self.capacity_rows
    }

    /// Rows pushed and not yet in a window.
    pub fn rows(&self) -> usize {
        self.queue.rows()
    }

    /// Appends rows; a batch without rows changes nothing. An error says that its column types are
    /// not those of the batches before.
    pub fn push(&mut self, rows: impl Into<BatchSlice>) -> Result<()> {
        self.queue.push(rows)
    }

    /// The next window: a full one where its rows are there, else the short last one; None where no
    /// rows are left.
    pub fn next_window(&mut self) -> Result<Option<Window>> {
        let pieces = self.queue.take(self.capacity_rows)?;
        if pieces.is_empty() {
            return Ok(None);
        }
        let number = self.number;
        self.number += 1;
        Window::permuted(number, derive_key(&[self.key, number]), pieces).map(Some)
    }
}

/// One permuted window, drained in portions of bounded size.
///
/// Numbers without NULLs lie in the order of delivery, in memory that no other window has: a
/// portion owns its slice of them. The rows of other columns are held until the window is dropped,
/// and some of them gathered when asked, so that these are never in memory twice; of a portion,
/// narrow ones are picked: they hold the window until they are written elsewhere. Wide values of a
/// drained batch share no memory with it.
pub struct Window {
    number: u64,
    schema: SchemaRef,
    columns: Vec<Column>,
    /// Which of them are picked.
    picked: Arc<[bool]>,
    /// Marks the columns whose memory each portion owns: those that are mixed already.
    owned: Arc<[bool]>,
    /// Where each piece begins, for columns that are gathered by piece.
    starts: Vec<u32>,
    /// The numbers of its rows, counted through the pieces, in the order of delivery.
    order: UInt32Array,
    offset: usize,
    /// Rows of the next portion.
    batch_rows: usize,
    /// The bound of `batch_rows`.
    most_rows: usize,
}

impl Window {
    /// The rows of `pieces` in an order of their own. No pieces have an empty schema.
    pub(super) fn permuted(number: u64, key: u64, pieces: Vec<BatchSlice>) -> Result<Self> {
        let pieces: Vec<RecordBatch> =
            pieces.into_iter().map(BatchSlice::into_batch).collect::<Result<_>>()?;
        let schema = pieces.first().map_or_else(|| Arc::new(Schema::empty()), RecordBatch::schema);
        // Rows are numbered through the pieces before they are permuted: the cut into pieces is
        // invisible in the order. The numbers are what the kernels take: made once, and sliced for
        // a batch.
        let mut rows = 0;
        let starts = pieces.iter().map(|piece| {
            let start = rows;
            rows += piece.num_rows() as u32;
            start
        });
        let starts: Vec<u32> = starts.collect();
        let mut order: Vec<u32> = (0..rows).collect();
        Rng::new(key).shuffle(&mut order);
        // By column, so that joining the arrays of one frees them before the next is joined.
        let mut columns: Vec<Vec<ArrayRef>> = vec![Vec::new(); schema.fields().len()];
        for piece in pieces {
            for (column, array) in columns.iter_mut().zip(piece.columns()) {
                column.push(array.clone());
            }
        }
        let mut owned = Vec::with_capacity(columns.len());
        let column = |pieces| match Column::new(pieces, &order) {
            Column::Mixed(blocks) => {
                let (blocks, are_alone): (Vec<_>, Vec<_>) =
                    blocks.into_iter().map(sole_owner).unzip();
                owned.push(!are_alone.contains(&false));
                Column::Mixed(blocks)
            }
            other => {
                owned.push(false);
                other
            }
        };
        let columns: Vec<Column> = columns.into_iter().map(column).collect();
        let picked = columns.iter().map(Column::is_whole).collect();
        let row_bytes: Option<usize> = columns.iter().map(Column::row_bytes).sum();
        let fitting = |bytes: usize| MAX_BATCH_BYTES / bytes.max(1);
        let first_rows = row_bytes.map_or(FIRST_BATCH_ROWS, fitting);
        // Where nothing is left to be gathered, a portion is a slice of what is mixed.
        let (first_rows, most_rows) = match columns.iter().all(Column::is_mixed) {
            true => (usize::MAX, usize::MAX),
            false => (first_rows.clamp(1, MAX_BATCH_ROWS), MAX_BATCH_ROWS),
        };
        Ok(Self {
            number,
            schema,
            columns,
            picked,
            owned: owned.into(),
            starts,
            order: UInt32Array::from(order),
            offset: 0,
            batch_rows: first_rows,
            most_rows,
        })
    }

    /// Its number among the windows of the shard, from 0.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Its rows, drained or not.
    pub fn num_rows(&self) -> usize {
        self.order.len()
    }

    /// Rows drained or skipped so far.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Passes over the next `rows` rows without gathering them; at most to the end.
    pub fn skip_rows(&mut self, rows: usize) {
        self.offset = self.offset.saturating_add(rows).min(self.order.len());
    }

    /// The next rows, at most `most`, and 8192 where some are still to be gathered; None at the
    /// end.
    pub fn next_batch(&mut self, most: usize) -> Result<Option<RecordBatch>> {
        self.next_portion(most)?.map(BatchSlice::into_batch).transpose()
    }

    /// As [`next_batch`](Self::next_batch), but that narrow values stay in the window.
    pub fn next_portion(&mut self, most: usize) -> Result<Option<BatchSlice>> {
        loop {
            let rows = self.batch_rows.min(self.left_in_block()).min(most);
            if rows == 0 {
                return Ok(None);
            }
            match self.gather(rows) {
                Ok((portion, bytes)) => {
                    self.offset += rows;
                    if bytes > MAX_BATCH_BYTES {
                        self.batch_rows = (rows / 2).max(1);
                    } else if bytes <= MAX_BATCH_BYTES / 2 {
                        self.batch_rows = self.batch_rows.saturating_mul(2).min(self.most_rows);
                    }
                    return Ok(Some(portion));
                }
                // Rows of many sources can exceed a dictionary's key type or a 32-bit offset; fewer
                // of them fit, as they did in their source.
                Err(_) if rows > 1 => {
                    self.most_rows = rows / 2;
                    self.batch_rows = self.most_rows;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Rows that can be one portion: the remaining rows of the window, or of the arrays in which
    /// numbers are mixed.
    fn left_in_block(&self) -> usize {
        let left = self.order.len() - self.offset;
        match self.columns.iter().any(Column::is_mixed) {
            true => left.min(BLOCK_ROWS - self.offset % BLOCK_ROWS),
            false => left,
        }
    }

    /// The next `rows` rows, and the memory that is theirs alone, or will be once they are written.
    fn gather(&self, rows: usize) -> Result<(BatchSlice, usize)> {
        let numbers = self.order.slice(self.offset, rows);
        let places: Vec<(usize, usize)> = match self.columns.iter().any(Column::is_in_pieces) {
            true => numbers.values().iter().map(|row| self.place(*row)).collect(),
            false => Vec::new(),
        };
        let mut arrays = Vec::with_capacity(self.columns.len());
        let mut bytes = 0;
        for column in &self.columns {
            let (array, own) = column.gather(&places, self.offset, rows)?;
            bytes += own;
            arrays.push(array);
        }
        let (schema, picked) = (Arc::clone(&self.schema), Arc::clone(&self.picked));
        let portion = BatchSlice::picked(schema, arrays, picked, numbers);
        Ok((portion.owning(Arc::clone(&self.owned)), bytes))
    }

    /// Piece, and row of the piece, of the row with this number.
    fn place(&self, row: u32) -> (usize, usize) {
        let piece = self.starts.partition_point(|start| *start <= row) - 1;
        (piece, (row - self.starts[piece]) as usize)
    }
}

impl Iterator for Window {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_batch(usize::MAX).transpose()
    }
}
