//! Read-ahead: several pieces are decoded at once, their rows come in the order of an
//! [`Interleave`]. Over a network as many more are fetched as its latency asks for.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use futures::{Stream, TryStreamExt};
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use super::budget::Budget;
use super::reads::Reads;
use super::source::RowSource;
use super::work_queue::WorkQueue;
use crate::formats::{BatchEnds, TURN_BYTES};
use crate::request_limiter::RequestLimiter;
use crate::runtime::Runtimes;
use crate::sharding::{Interleave, Open, RowSlice};
use crate::tensor::BatchSlice;
use crate::{Error, Result};

/// Decoded bytes that all pieces in flight may hold before the consumer takes them.
const BUFFERED_BYTES: usize = 64 << 20;

/// The free part of the limit of a piece that takes turns ([`TURN_BYTES`]) before it decodes more.
/// It has its next turns when they come, and fresh memory for others costs more than to decode into
/// memory that another piece gave back.
const FREE_BYTES: usize = TURN_BYTES / 2;

/// Requests of a split that wait for each other: for the columns of the predicate, and then for the
/// others.
const ROUNDS: u64 = 2;

/// Pieces beyond the usual ones that are fetched at most because of latency.
const MOST_FETCHED: u64 = 64;

/// A message of a decoding task. A task that ends without `End` or an error has panicked: its rows
/// must not be lost silently.
enum Message {
    Rows(BatchSlice, OwnedSemaphorePermit),
    Failed(Error),
    End,
}

/// A piece that is being decoded.
struct Reading {
    receiver: UnboundedReceiver<Message>,
    /// The rest of the batch that was received last.
    rest: Option<BatchSlice>,
}

/// The rows of pieces, in the order of an interleave.
pub struct Rows {
    source: RowSource,
    pieces: Arc<[RowSlice]>,
    /// Which of the pieces are read, where other workers read the others.
    feed: Option<Arc<WorkQueue>>,
    state: Interleave,
    in_flight: usize,
    fetch: Option<Fetch>,
    borders: Option<Borders>,
    /// Pieces, and their rows, from which on they are read where reading was broken off.
    resumed: Vec<Open>,
    /// The first piece that no task decodes yet.
    ahead: u32,
    open: HashMap<u32, Reading>,
    tasks: JoinSet<()>,
    runtime: Handle,
    reads: Arc<Reads>,
    pieces_read: u64,
}

impl Rows {
    /// Reads `pieces` from the position `state` on, with `ahead` (at least one) pieces decoding
    /// beyond those that take turns. Dropping it cancels all running work.
    pub fn new(
        source: RowSource,
        pieces: Arc<[RowSlice]>,
        state: Interleave,
        ahead: usize,
        runtime: Handle,
        reads: Arc<Reads>,
    ) -> Self {
        let in_flight = state.width() as usize - 1 + ahead.max(1);
        let fetch = Fetch::of(&source);
        Self {
            source,
            pieces,
            feed: None,
            in_flight,
            fetch,
            borders: None,
            resumed: state.open().to_vec(),
            ahead: state.next(),
            state,
            open: HashMap::new(),
            tasks: JoinSet::new(),
            runtime,
            reads,
            pieces_read: 0,
        }
    }

    /// Aligns decoding with batches of `batch_size` rows that deliver all rows, `before` others
    /// first, then one piece after the other. Decoding then ends where such a batch does, if the
    /// row counts of all pieces are known.
    #[must_use]
    pub fn cut_every(mut self, batch_size: u64, before: u64) -> Self {
        self.borders = Borders::of(&self.pieces, batch_size, before);
        self
    }

    /// Reads the pieces that it takes from `feed`, when their turn comes: pieces taken ahead are
    /// not left for other workers.
    pub fn fed(
        source: RowSource,
        pieces: Arc<[RowSlice]>,
        state: Interleave,
        feed: Arc<WorkQueue>,
        runtime: Handle,
        reads: Arc<Reads>,
    ) -> Self {
        let rows = Self::new(source, pieces, state, 1, runtime, reads);
        Self { feed: Some(feed), fetch: None, ..rows }
    }

    /// The number of pieces in its list: `wanted` of them, or all.
    fn listed(&self, wanted: u32) -> u32 {
        match &self.feed {
            Some(feed) => feed.take_until(wanted),
            None => self.pieces.len() as u32,
        }
    }

    /// Where the next row is read.
    pub fn state(&self) -> &Interleave {
        &self.state
    }

    /// Pieces read to their end.
    pub fn pieces_read(&self) -> u64 {
        self.pieces_read
    }

    /// The next rows, at most `most`, and the piece they come from; None after the last piece.
    ///
    /// # Errors
    /// The first error of the piece whose turn it is.
    pub async fn next(&mut self, most: u64) -> Result<Option<(u32, BatchSlice)>> {
        for open in std::mem::take(&mut self.resumed) {
            self.spawn(open.piece, open.row);
        }
        loop {
            let unopened = self.state.width() - self.state.open().len() as u32;
            let pieces = self.listed(self.state.next() + unopened);
            let in_flight = self.in_flight();
            while self.open.len() < in_flight && self.ahead < pieces {
                self.spawn(self.ahead, 0);
                self.ahead += 1;
            }
            // Finished tasks are reaped here, so that the set does not grow with the pieces.
            while self.tasks.try_join_next().is_some() {}
            let Some(turn) = self.state.turn(pieces) else { return Ok(None) };
            let Some(reading) = self.open.get_mut(&turn.piece) else {
                return Err(Error::data(format!(
                    "piece {} has its turn and is not read; please report it",
                    turn.piece
                )));
            };
            let Some(found) = reading.front().await? else {
                self.open.remove(&turn.piece);
                self.pieces_read += 1;
                let pieces = self.listed(self.state.next() + 1);
                self.state.ended(pieces);
                continue;
            };
            let rows = turn.rows.min(most).min(found.num_rows() as u64);
            let taken = reading.take(found, rows as usize);
            self.state.took(rows);
            return Ok(Some((turn.piece, taken)));
        }
    }

    /// How many pieces are read at once now. Their order does not depend on it.
    fn in_flight(&self) -> usize {
        self.in_flight + self.fetch.as_ref().map_or(0, |fetch| fetch.more_than(self.in_flight))
    }

    fn spawn(&mut self, piece: u32, row: u64) {
        let (sender, receiver) = unbounded_channel();
        let share = BUFFERED_BYTES / self.in_flight();
        let takes_turns = self.state.width() > 1;
        let budget = match takes_turns {
            true => Budget::new(share.min(TURN_BYTES), FREE_BYTES),
            false => Budget::new(share, 0),
        };
        let (source, pieces) = (self.source.clone(), Arc::clone(&self.pieces));
        let reads = Arc::clone(&self.reads);
        let number = match &self.feed {
            Some(feed) => feed.piece(piece).unwrap_or(u32::MAX),
            None => piece,
        };
        let cuts = match self.state.turn_rows() {
            Some(every) => Some(BatchEnds { every, at: row % every, turns: true }),
            None => self.borders.as_ref().and_then(|borders| borders.cuts(piece, row)),
        };
        let task = async move {
            let rows = reads.timed(source.read(&pieces[number as usize], row, cuts, &reads));
            let matrices = source.matrices();
            let last = match decode(rows, matrices, &sender, &budget).await {
                Ok(()) => Message::End,
                Err(error) => Message::Failed(error),
            };
            // The receiver is gone when the consumer stopped early; nobody wants the message then.
            let _ = sender.send(last);
        };
        self.tasks.spawn_on(task, &self.runtime);
        self.open.insert(piece, Reading { receiver, rest: None });
    }
}

/// Where the pieces of a list lie among the batches that are made of their rows.
struct Borders {
    batch_size: u64,
    /// Rows before each piece.
    before: Vec<u64>,
}

impl Borders {
    fn of(pieces: &[RowSlice], batch_size: u64, before: u64) -> Option<Self> {
        let mut rows = before;
        let before = pieces.iter().map(|piece| {
            let before = rows;
            rows += piece.rows()?;
            Some(before)
        });
        Some(Self { batch_size, before: before.collect::<Option<_>>()? })
    }

    /// Where the rows of a piece from `row` on are cut.
    fn cuts(&self, piece: u32, row: u64) -> Option<BatchEnds> {
        let at = (self.before.get(piece as usize)? + row) % self.batch_size.max(1);
        Some(BatchEnds { every: self.batch_size, at, turns: false })
    }
}

/// How many pieces are fetched ahead because of the network.
struct Fetch {
    limiter: Arc<RequestLimiter>,
    split_bytes: u64,
    most_bytes: u64,
}

impl Fetch {
    fn of(source: &RowSource) -> Option<Self> {
        let (split_bytes, most_bytes) = source.fetched()?;
        let limiter = Arc::clone(Runtimes::current().ok()?.limiter());
        Some(Self { limiter, split_bytes, most_bytes })
    }

    /// As many that latency × bandwidth bytes are under way in every round of requests, as far as
    /// memory allows beside `usual` pieces.
    fn more_than(&self, usual: usize) -> usize {
        let wanted = (ROUNDS * self.limiter.bytes_in_flight()).div_ceil(self.split_bytes);
        let allowed = (self.most_bytes / self.split_bytes).saturating_sub(usual as u64);
        wanted.min(allowed).min(MOST_FETCHED) as usize
    }
}

impl Reading {
    /// The rows that come next; None at the end of the piece.
    async fn front(&mut self) -> Result<Option<BatchSlice>> {
        if let Some(rest) = self.rest.take() {
            return Ok(Some(rest));
        }
        match self.receiver.recv().await {
            Some(Message::Rows(rows, _permit)) => Ok(Some(rows)),
            Some(Message::Failed(error)) => Err(error),
            Some(Message::End) => Ok(None),
            None => Err(Error::data(
                "a decoding task ended abnormally (a panic inside the engine); please report it with the message \
                 above and the file's writer",
            )),
        }
    }

    /// The first `rows` rows of `found`; the others come next.
    fn take(&mut self, found: BatchSlice, rows: usize) -> BatchSlice {
        if rows == found.num_rows() {
            return found;
        }
        let (taken, rest) = found.split_at(rows);
        self.rest = Some(rest);
        taken
    }
}

async fn decode(
    mut rows: impl Stream<Item = Result<RecordBatch>> + Unpin,
    matrices: usize,
    sender: &UnboundedSender<Message>,
    budget: &Budget,
) -> Result<()> {
    loop {
        let begun = budget.begin().await?;
        let Some(batch) = rows.try_next().await? else { return Ok(()) };
        if batch.num_rows() == 0 {
            continue;
        }
        let permit = budget.grant(begun, batch.get_array_memory_size()).await?;
        if sender.send(Message::Rows(BatchSlice::decoded(batch, matrices), permit)).is_err() {
            return Ok(());
        }
        // Whoever waits for it is woken on this thread, where no other thread can take it over: it
        // would wait for the whole piece, and then find its rows no longer in the processor's
        // cache.
        tokio::task::yield_now().await;
    }
}
