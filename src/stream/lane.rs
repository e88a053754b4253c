//! One lane of a shard: its rows in order, through the shuffle window, and how far they were consumed.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow::record_batch::RecordBatch;
use tokio::runtime::Handle;

use super::feed::Feed;
use super::queue::RowQueue;
use super::rows::Rows;
use super::shard::StreamCounters;
use super::shuffle::{self, ShuffleWindow};
use super::source::RowSource;
use crate::Result;
use crate::partition::{Interleave, Lane, LaneCursor, WindowCursor};

/// Reads a lane from a cursor on.
pub struct LaneReader {
    rows: Rows,
    shuffle: Option<ShuffleWindow>,
    window: Option<Draining>,
    queue: RowQueue,
    delivered: u64,
    /// Rows of the lane in all, where they are counted.
    total: Option<u64>,
    /// Rows of the window in progress that were delivered before.
    skip: u64,
    counters: Arc<StreamCounters>,
}

/// The window that is being drained.
struct Draining {
    window: shuffle::Window,
    start: Interleave,
    end: Interleave,
}

impl LaneReader {
    /// Starts reading. Batches of fewer than `tiny` rows are copied together; `ahead` pieces decode ahead. With a
    /// `feed` it reads only the pieces that it takes from there.
    pub fn try_new(
        source: RowSource,
        lane: &Lane,
        cursor: &LaneCursor,
        (tiny, ahead): (usize, usize),
        feed: Option<Arc<Feed>>,
        runtime: Handle,
        counters: Arc<StreamCounters>,
    ) -> Result<Self> {
        let skip = cursor.window.as_ref().map_or(0, |window| window.offset);
        let shuffle = lane.mixing.window.map(|capacity| {
            let rows = usize::try_from(capacity).unwrap_or(usize::MAX);
            let number = (cursor.rows - skip) / capacity.max(1);
            Ok::<_, crate::Error>(ShuffleWindow::try_new(rows, lane.key)?.starting_at(number))
        });
        let pieces = Arc::from(lane.pieces.as_slice());
        let state = cursor.state.clone();
        let total = if feed.is_some() { None } else { lane.rows() };
        let rows = match feed {
            Some(feed) => Rows::fed(source, pieces, state, feed, runtime),
            None => Rows::new(source, pieces, state, ahead, runtime),
        };
        Ok(Self {
            rows,
            shuffle: shuffle.transpose()?,
            window: None,
            queue: RowQueue::new(tiny),
            delivered: cursor.rows,
            total,
            skip,
            counters,
        })
    }

    /// The next `rows` rows; fewer only at the lane's end.
    ///
    /// # Errors
    /// The first error of any of its pieces.
    pub async fn take(&mut self, rows: u64) -> Result<Vec<RecordBatch>> {
        while (self.queue.rows() as u64) < rows {
            let missing = rows - self.queue.rows() as u64;
            let more = match &mut self.shuffle {
                Some(_) => self.shuffled().await?,
                None => self.rows.next(missing).await?.map(|(_, batch)| batch),
            };
            let Some(batch) = more else { break };
            // Rows of a window leave in larger batches than those asked for.
            self.queue.push(batch)?;
        }
        self.counters.splits.fetch_max(self.rows.pieces_read(), Ordering::Relaxed);
        let pieces = self.queue.take(usize::try_from(rows).unwrap_or(usize::MAX))?;
        self.delivered += pieces.iter().map(|piece| piece.num_rows() as u64).sum::<u64>();
        Ok(pieces)
    }

    /// The next rows of the window in progress, or of the next one.
    async fn shuffled(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(draining) = &mut self.window
                && let Some(batch) = draining.window.next_batch(usize::MAX)?
            {
                return Ok(Some(batch));
            }
            if !self.fill().await? {
                return Ok(None);
            }
        }
    }

    /// Fills the next window; false at the lane's end.
    async fn fill(&mut self) -> Result<bool> {
        let Some(shuffle) = &mut self.shuffle else { return Ok(false) };
        self.window = None;
        let capacity = shuffle.capacity_rows() as u64;
        let start = self.rows.state().clone();
        let mut by_piece: HashMap<u32, u64> = HashMap::new();
        while (shuffle.rows() as u64) < capacity {
            let missing = capacity - shuffle.rows() as u64;
            let Some((piece, batch)) = self.rows.next(missing).await? else { break };
            *by_piece.entry(piece).or_default() += batch.num_rows() as u64;
            shuffle.push(batch)?;
        }
        let Some(mut window) = shuffle.finish()? else { return Ok(false) };
        let most = by_piece.values().max().copied().unwrap_or(0);
        self.counters.add_window(window.num_rows() as u64, most);
        window.skip_rows(usize::try_from(std::mem::take(&mut self.skip)).unwrap_or(usize::MAX));
        self.window = Some(Draining { window, start, end: self.rows.state().clone() });
        Ok(true)
    }

    /// Rows that are left, where they are counted.
    pub fn left(&self) -> u64 {
        self.total.map_or(u64::MAX, |total| total - self.delivered)
    }

    /// How far it was taken.
    pub fn cursor(&self) -> LaneCursor {
        let rows = self.delivered;
        let Some(Draining { window, start, end }) = &self.window else {
            return LaneCursor { rows, state: self.rows.state().clone(), window: None };
        };
        let (size, offset) = (window.num_rows(), window.offset() - self.queue.rows());
        if offset == size {
            return LaneCursor { rows, state: end.clone(), window: None };
        }
        if offset == 0 {
            return LaneCursor { rows, state: start.clone(), window: None };
        }
        let window = WindowCursor { size: size as u64, offset: offset as u64, end: end.clone() };
        LaneCursor { rows, state: start.clone(), window: Some(window) }
    }
}
