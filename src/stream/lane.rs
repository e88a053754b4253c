//! One lane of a shard: its rows in order, through the shuffle window, and how far they were
//! consumed.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::runtime::Handle;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinSet;

use super::queue::RowQueue;
use super::rows::Rows;
use super::shard::StreamCounters;
use super::shuffle::{self, ShuffleWindow};
use super::source::RowSource;
use super::work_queue::WorkQueue;
use crate::sharding::{Interleave, Lane, LaneCursor, WindowCursor};
use crate::tensor::BatchSlice;
use crate::{Error, Result};

/// Reads a lane from a cursor on.
pub struct LaneReader {
    /// Rests of earlier runs' windows, which come first and are mixed already.
    rests: Option<Rows>,
    /// Pieces of the rests read to their end, once all of them are.
    rests_read: u64,
    input: Input,
    queue: RowQueue,
    delivered: u64,
    /// Rows of the lane in all, where they are counted.
    total: Option<u64>,
    /// Pieces that are read to their end: in all, from the cursor on; and so far.
    pieces: u64,
    pieces_read: u64,
    counters: Arc<StreamCounters>,
}

/// How a lane is read.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Batches of fewer rows are copied together.
    pub tiny: usize,
    /// Pieces that decode ahead.
    pub ahead: usize,
    /// Rows of the batches that all of its rows become, if no other lane has a part in these.
    pub batch_size: Option<u64>,
}

/// Where its rows come from.
enum Input {
    /// As they are read.
    Rows(Box<Rows>),
    /// Through shuffle windows.
    Windows(Box<Windows>),
}

impl LaneReader {
    /// Starts reading. With a `feed` it reads only the pieces that it takes from there.
    ///
    /// # Errors
    /// `Config` for a window of no rows, or of too many.
    pub fn try_new(
        source: RowSource,
        lane: &Lane,
        cursor: &LaneCursor,
        pace: Pace,
        feed: Option<Arc<WorkQueue>>,
        runtime: Handle,
        counters: Arc<StreamCounters>,
    ) -> Result<Self> {
        let pieces = Arc::from(lane.pieces.as_slice());
        let (state, total) = (cursor.state.clone(), lane.rows().filter(|_| feed.is_none()));
        let ended = u64::from(state.next()) - state.open().len() as u64;
        let mut left = (lane.pieces.len() as u64).saturating_sub(ended);
        let rests = lane.rests_at(cursor.rows).map(|at| {
            left += lane.rests.len() as u64 + at.open().len() as u64 - u64::from(at.next());
            let (source, pieces) = (source.clone(), Arc::from(lane.rests.as_slice()));
            // One at a time: each is a whole window in memory.
            Rows::new(source, pieces, at, 1, runtime.clone(), Arc::clone(&counters.reads))
        });
        let (at, reads) = (runtime.clone(), Arc::clone(&counters.reads));
        let rows = match feed {
            Some(feed) => Rows::fed(source, pieces, state, feed, at, reads),
            None => Rows::new(source, pieces, state, pace.ahead, at, reads),
        };
        let is_in_order = lane.mixing.width <= 1 && lane.mixing.window.is_none();
        let rows = match pace.batch_size.filter(|_| is_in_order) {
            Some(batch_size) => rows.cut_every(batch_size, lane.rest_rows()),
            None => rows,
        };
        let input = match lane.mixing.window {
            None => Input::Rows(Box::new(rows)),
            Some(capacity) => {
                let skip = cursor.window.as_ref().map_or(0, |window| window.offset);
                let mixed = cursor.rows.saturating_sub(lane.rest_rows() + skip);
                let number = mixed / capacity.max(1);
                let capacity = usize::try_from(capacity).unwrap_or(usize::MAX);
                let shuffle = ShuffleWindow::try_new(capacity, lane.key)?.starting_at(number);
                let filler = Filler { rows, shuffle, skip };
                let mut windows = Windows::new(filler, cursor.clone(), runtime);
                // Two windows that are filled at once would both come late.
                if rests.is_none() {
                    windows.begin();
                }
                Input::Windows(Box::new(windows))
            }
        };
        let (queue, delivered) = (RowQueue::new(pace.tiny), cursor.rows);
        Ok(Self {
            rests,
            rests_read: 0,
            input,
            queue,
            delivered,
            total,
            pieces: left,
            pieces_read: 0,
            counters,
        })
    }

    /// The next `rows` rows; fewer only at the lane's end.
    ///
    /// # Errors
    /// The first error of any of its pieces.
    pub async fn take(&mut self, rows: u64) -> Result<Vec<BatchSlice>> {
        while (self.queue.rows() as u64) < rows {
            let missing = rows - self.queue.rows() as u64;
            if let Some(portion) = self.next_of_rests(missing).await? {
                self.queue.push(portion)?;
                continue;
            }
            let (more, pieces_read) = match &mut self.input {
                Input::Windows(windows) => {
                    (windows.next(&self.counters).await?, windows.pieces_read())
                }
                Input::Rows(rows) => {
                    let more = rows.next(missing).await?.map(|(_, portion)| portion);
                    (more, rows.pieces_read())
                }
            };
            self.ended(self.rests_read + pieces_read);
            let Some(portion) = more else { break };
            // Rows of a window leave in larger portions than those asked for.
            self.queue.push(portion)?;
        }
        let pieces = self.queue.take(usize::try_from(rows).unwrap_or(usize::MAX))?;
        self.delivered += pieces.iter().map(|piece| piece.num_rows() as u64).sum::<u64>();
        if self.total == Some(self.delivered) {
            // Nobody asks for a row after the last one, so that the end of its piece is not seen.
            self.ended(self.pieces);
        }
        Ok(pieces)
    }

    /// The next rows of the rests; None after the last.
    async fn next_of_rests(&mut self, most: u64) -> Result<Option<BatchSlice>> {
        let Some(rests) = &mut self.rests else { return Ok(None) };
        let more = rests.next(most).await?.map(|(_, portion)| portion);
        let pieces_read = rests.pieces_read();
        self.ended(pieces_read);
        if more.is_none() {
            (self.rests, self.rests_read) = (None, pieces_read);
        }
        if let Input::Windows(windows) = &mut self.input {
            windows.begin();
        }
        Ok(more)
    }

    /// So many pieces are read to their end.
    fn ended(&mut self, pieces: u64) {
        let more = pieces.saturating_sub(self.pieces_read);
        self.counters.splits.fetch_add(more, Ordering::Relaxed);
        self.pieces_read += more;
    }

    /// Rows that are left, where they are counted.
    pub fn left(&self) -> u64 {
        self.total.map_or(u64::MAX, |total| total - self.delivered)
    }

    /// How far it was taken.
    pub fn cursor(&self) -> LaneCursor {
        let rows = self.delivered;
        let at = |state: &Interleave| LaneCursor { rows, state: state.clone(), window: None };
        let windows = match &self.input {
            Input::Rows(rows) => return at(rows.state()),
            Input::Windows(windows) => windows,
        };
        let Some(Draining { window, start, end, .. }) = windows.current.as_deref() else {
            // Nothing but rests was taken yet, so it stands where it was resumed: perhaps within a
            // window.
            return LaneCursor { rows, ..windows.start.clone() };
        };
        let (size, offset) = (window.num_rows(), window.offset() - self.queue.rows());
        if offset == size {
            return at(end);
        }
        if offset == 0 {
            return at(start);
        }
        let window = WindowCursor { size: size as u64, offset: offset as u64, end: end.clone() };
        LaneCursor { rows, state: start.clone(), window: Some(window) }
    }
}

/// A window, and where it was filled from.
struct Draining {
    window: shuffle::Window,
    start: Interleave,
    end: Interleave,
    /// Rows of the piece that has most in it.
    most: u64,
    pieces_read: u64,
}

/// A message of the filling task. A task that ends without `End` or an error has panicked.
enum Filled {
    Window(Box<Draining>),
    Failed(Error),
    End(u64),
}

/// Windows that are filled by a separate task while the one before is drained: at most two are in
/// memory, beside the parts that batches still hold.
struct Windows {
    receiver: Receiver<Filled>,
    current: Option<Box<Draining>>,
    /// Where the lane was resumed.
    start: LaneCursor,
    /// Pieces read to their end, once all windows were drained.
    all_read: Option<u64>,
    /// What has not begun to fill them.
    waiting: Option<(Filler, Sender<Filled>)>,
    runtime: Handle,
    /// Dropping it cancels the filling.
    task: JoinSet<()>,
}

impl Windows {
    fn new(filler: Filler, start: LaneCursor, runtime: Handle) -> Self {
        let (sender, receiver) = channel(1);
        let (waiting, task) = (Some((filler, sender)), JoinSet::new());
        Self { receiver, current: None, start, all_read: None, waiting, runtime, task }
    }

    /// Begins to fill windows, once.
    fn begin(&mut self) {
        if let Some((filler, sender)) = self.waiting.take() {
            self.task.spawn_on(filler.run(sender), &self.runtime);
        }
    }

    /// The next rows of the window in progress, or of the one after it; None after the last.
    async fn next(&mut self, counters: &StreamCounters) -> Result<Option<BatchSlice>> {
        loop {
            if self.all_read.is_some() {
                return Ok(None);
            }
            if let Some(draining) = &mut self.current
                && let Some(portion) = draining.window.next_portion(usize::MAX)?
            {
                return Ok(Some(portion));
            }
            match self.receiver.recv().await {
                Some(Filled::Window(next)) => {
                    counters.add_window(next.window.num_rows() as u64, next.most);
                    self.current = Some(next);
                }
                Some(Filled::Failed(error)) => return Err(error),
                Some(Filled::End(pieces_read)) => self.all_read = Some(pieces_read),
                None => {
                    return Err(Error::data(
                        "the task that fills shuffle windows ended abnormally (a panic inside the engine); please \
                         report it with the message above",
                    ));
                }
            }
        }
    }

    /// Pieces read to their end until the window in progress was full.
    fn pieces_read(&self) -> u64 {
        let current = || self.current.as_ref().map_or(0, |draining| draining.pieces_read);
        self.all_read.unwrap_or_else(current)
    }
}

/// Fills window after window.
struct Filler {
    rows: Rows,
    shuffle: ShuffleWindow,
    /// Rows of the first window that were delivered before.
    skip: u64,
}

impl Filler {
    async fn run(mut self, sender: Sender<Filled>) {
        // The place is reserved first, so that no third window is filled while one waits. The
        // receiver is gone when the consumer stopped early.
        while let Ok(place) = sender.reserve().await {
            match self.fill().await {
                Ok(Some(window)) => place.send(Filled::Window(Box::new(window))),
                Ok(None) => return place.send(Filled::End(self.rows.pieces_read())),
                Err(error) => return place.send(Filled::Failed(error)),
            }
        }
    }

    /// The next window; None at the lane's end.
    async fn fill(&mut self) -> Result<Option<Draining>> {
        let capacity = self.shuffle.capacity_rows() as u64;
        let start = self.rows.state().clone();
        let mut by_piece: HashMap<u32, u64> = HashMap::new();
        while (self.shuffle.rows() as u64) < capacity {
            let missing = capacity - self.shuffle.rows() as u64;
            let Some((piece, portion)) = self.rows.next(missing).await? else { break };
            *by_piece.entry(piece).or_default() += portion.num_rows() as u64;
            self.shuffle.push(portion)?;
        }
        let Some(mut window) = self.shuffle.next_window()? else { return Ok(None) };
        let skip = std::mem::take(&mut self.skip);
        window.skip_rows(usize::try_from(skip).unwrap_or(usize::MAX));
        let (end, pieces_read) = (self.rows.state().clone(), self.rows.pieces_read());
        let most = by_piece.values().max().copied().unwrap_or(0);
        Ok(Some(Draining { window, start, end, most, pieces_read }))
    }
}
