//! Cursors: how far a shard was consumed, and the rest behind it.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::blend::blend;
use super::even::{Remainder, Schedule};
use super::interleave::{Interleave, Open};
use super::order::derive_key;
use super::ramp::LaneRamp;
use super::row_slice::{RowSlice, Source, Window};
use crate::{Error, Result};

/// No lane or piece has more rows than this: sums of larger numbers of a damaged state would
/// overflow.
pub(super) const MOST_ROWS: u64 = 1 << 48;

/// How the pieces of a lane are mixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mixing {
    /// Pieces that are open at a time.
    pub width: u32,
    /// Rows of one piece before the next has its turn.
    pub chunk: u64,
    /// Rows of a shuffle window; None keeps the order in which they arrive.
    pub window: Option<u64>,
}

impl Mixing {
    /// In the order of the pieces.
    pub const NONE: Self = Self { width: 1, chunk: u64::MAX, window: None };

    /// Where a reader begins.
    pub fn start(&self) -> Interleave {
        Interleave::new(self.width, self.chunk)
    }
}

/// A list of pieces that is read in order and mixed by itself. Most shards have one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lane {
    /// Rests of shuffle windows that earlier runs left. They are read first, one after the other:
    /// their rows are mixed already, and so no window is ever filled from a window.
    pub rests: Vec<RowSlice>,
    /// Rows of splits, in reading order.
    pub pieces: Vec<RowSlice>,
    /// Keys its windows: window n is permuted by (key, n).
    pub key: u64,
    /// How its rows are mixed.
    pub mixing: Mixing,
    /// Its number in a mixture, or of its partition.
    pub number: u32,
}

impl Lane {
    /// Its rows, where all of them are counted.
    pub fn rows(&self) -> Option<u64> {
        let pieces: u64 = self.pieces.iter().map(RowSlice::rows).sum::<Option<u64>>()?;
        Some(self.rest_rows() + pieces)
    }

    /// The rows of the rests of windows, which are always counted.
    pub fn rest_rows(&self) -> u64 {
        self.rests.iter().filter_map(RowSlice::rows).sum()
    }

    /// Where reading the rests begins after the lane's first `rows` rows; None where it is past
    /// them.
    pub fn rests_at(&self, rows: u64) -> Option<Interleave> {
        (rows < self.rest_rows()).then(|| {
            let mut state = Interleave::sequential();
            let rows_of = |rest: u32| self.rests[rest as usize].rows().unwrap_or(0);
            state.pass(self.rests.len() as u32, rows, rows_of);
            state
        })
    }

    /// The key of the permutation of window `number`.
    pub fn window_key(&self, number: u64) -> u64 {
        derive_key(&[self.key, number])
    }

    /// The cursor after `rows` rows of counted pieces, without reading any.
    pub fn cursor_at(&self, rows: u64) -> LaneCursor {
        let mut state = self.mixing.start();
        let mixed = rows.saturating_sub(self.rest_rows());
        let Some(capacity) = self.mixing.window else {
            self.pass(&mut state, mixed);
            return LaneCursor { rows, state, window: None };
        };
        let offset = mixed % capacity;
        self.pass(&mut state, mixed - offset);
        if offset == 0 {
            return LaneCursor { rows, state, window: None };
        }
        let mut end = state.clone();
        let size = self.pass(&mut end, capacity);
        if offset == size {
            return LaneCursor { rows, state: end, window: None };
        }
        LaneCursor { rows, state, window: Some(WindowCursor { size, offset, end }) }
    }

    /// Moves `state` over counted pieces. Returns the rows passed.
    fn pass(&self, state: &mut Interleave, rows: u64) -> u64 {
        let rows_of = |piece: u32| self.pieces[piece as usize].rows().unwrap_or(0);
        state.pass(self.pieces.len() as u32, rows, rows_of)
    }

    /// The pieces that are left behind `cursor`, in their order.
    pub fn remaining(&self, cursor: &LaneCursor) -> Vec<RowSlice> {
        let mut left = Vec::new();
        let mut consumed = cursor.rows;
        for rest in &self.rests {
            let gone = rest.rows().unwrap_or(0).min(consumed);
            consumed -= gone;
            left.push(rest.clone().skip(gone));
        }
        left.retain(|rest| !rest.is_empty());
        let mut state = &cursor.state;
        if let Some(window) = &cursor.window {
            left.extend(self.rest_of(cursor, window));
            state = &window.end;
        }
        let opened =
            state.open().iter().map(|open| self.pieces[open.piece as usize].clone().skip(open.row));
        left.extend(opened);
        left.extend_from_slice(&self.pieces[(state.next() as usize).min(self.pieces.len())..]);
        left
    }

    /// The rest of the window in progress, with only those pieces that it was filled from.
    fn rest_of(&self, cursor: &LaneCursor, window: &WindowCursor) -> Option<RowSlice> {
        let mixed = cursor.rows.checked_sub(self.rest_rows() + window.offset)?;
        let number = mixed / self.mixing.window?;
        let (from, touched) = cursor.state.narrowed(window.end.next());
        let (from, consumed) = from.from_here();
        let consumed = consumed.into_iter().chain(std::iter::repeat(0));
        let piece = |(piece, rows): (u32, u64)| self.pieces[piece as usize].clone().skip(rows);
        let pieces = touched.into_iter().zip(consumed).map(piece).collect();
        let source = Source::Window(Arc::new(Window {
            pieces,
            from,
            rows: window.size,
            key: self.window_key(number),
            lane: self.number,
        }));
        Some(RowSlice { source, start: window.offset, end: Some(window.size), to_end: true })
    }
}

/// How far one lane was consumed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneCursor {
    /// Rows consumed, those of rests first.
    pub rows: u64,
    /// Where the next row is read after the rests; with a window in progress, where its first row
    /// was.
    pub state: Interleave,
    /// The window that is half drained.
    pub window: Option<WindowCursor>,
}

impl LaneCursor {
    fn encode(&self, numbers: &mut Vec<u64>) {
        let state = self.state.encode();
        let (size, offset, end) = match &self.window {
            Some(window) => (window.size, window.offset, window.end.encode()),
            None => (0, 0, Vec::new()),
        };
        numbers.extend([self.rows, size, offset, state.len() as u64, end.len() as u64]);
        numbers.extend(state);
        numbers.extend(end);
    }

    /// The first piece of the list that was not opened yet.
    pub fn opened(&self) -> u32 {
        self.window.as_ref().map_or(&self.state, |window| &window.end).next()
    }

    /// The position in a list of only those pieces that it needs, with their positions in the old
    /// list.
    pub fn narrowed(&self) -> (Self, Vec<u32>) {
        let (state, touched) = self.state.narrowed(self.opened());
        let window = self
            .window
            .as_ref()
            .map(|window| WindowCursor { end: window.end.within(&touched), ..window.clone() });
        (Self { rows: self.rows, state, window }, touched)
    }

    /// Returns true if it is where `rows` rows of counted pieces lead.
    fn follows(&self, lane: &Lane, all: u64) -> bool {
        let numbers = |cursor: &Self| {
            let mut numbers = Vec::new();
            cursor.encode(&mut numbers);
            numbers
        };
        let mut wanted = lane.cursor_at(self.rows.min(all));
        if numbers(self) == numbers(&wanted) {
            return true;
        }
        // Who did not know the counts asked for more rows, and closed the last pieces.
        lane.pass(&mut wanted.state, u64::MAX);
        self.rows == all && numbers(self) == numbers(&wanted)
    }

    /// Returns true if no piece is read twice, as far as that shows without counts.
    fn is_plausible(&self, lane: &Lane) -> bool {
        let distinct = |state: &Interleave| {
            let open = state.open();
            let is_possible = |(at, one): (usize, &Open)| {
                one.row <= MOST_ROWS && open[..at].iter().all(|other| other.piece != one.piece)
            };
            open.iter().enumerate().all(is_possible)
        };
        let rests = lane.rest_rows();
        let follows = |window: &WindowCursor, capacity: u64| {
            let before = self.rows.checked_sub(rests.saturating_add(window.offset));
            window.size <= capacity.min(MOST_ROWS)
                && before.is_some_and(|rows| rows.is_multiple_of(capacity))
                && distinct(&window.end)
                && self.state.next() <= window.end.next()
        };
        self.rows <= MOST_ROWS
            && distinct(&self.state)
            && (self.rows >= rests || self.state == lane.mixing.start())
            && self.window.as_ref().is_none_or(|window| {
                lane.mixing.window.is_some_and(|capacity| follows(window, capacity))
            })
    }
}

/// A window that is half drained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowCursor {
    /// Its rows.
    pub size: u64,
    /// Rows drained of it.
    pub offset: u64,
    /// Where the row after its last is read.
    pub end: Interleave,
}

/// How far one shard was consumed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardCursor {
    /// Batches consumed.
    pub batches: u64,
    /// By lane.
    pub lanes: Vec<LaneCursor>,
}

impl ShardCursor {
    /// As numbers: batches, then each lane with its length before it.
    pub fn encode(&self) -> Vec<u64> {
        let mut numbers = vec![self.batches];
        self.lanes.iter().for_each(|lane| lane.encode(&mut numbers));
        numbers
    }

    /// Decodes a cursor that [`encode`](Self::encode) wrote for a shard of these lanes.
    ///
    /// # Errors
    /// `Checkpoint` where the numbers are no cursor of such a shard.
    pub fn decode(numbers: &[u64], lanes: &[Lane]) -> Result<Self> {
        Self::decode_checked(numbers, lanes, true)
    }

    /// Decodes a cursor for lanes of only those pieces that it needs. Earlier consumption does not
    /// show.
    ///
    /// # Errors
    /// As for [`decode`](Self::decode).
    pub fn decode_narrowed(numbers: &[u64], lanes: &[Lane]) -> Result<Self> {
        Self::decode_checked(numbers, lanes, false)
    }

    fn decode_checked(numbers: &[u64], lanes: &[Lane], whole: bool) -> Result<Self> {
        let broken = || Error::checkpoint("the state's cursor is damaged; load an earlier state");
        let (batches, mut rest) = numbers.split_first().ok_or_else(broken)?;
        if *batches > MOST_ROWS {
            return Err(broken());
        }
        let mut found = Vec::with_capacity(lanes.len());
        for lane in lanes {
            let [rows, size, offset, state, end, tail @ ..] = rest else { return Err(broken()) };
            let (state, end) = (*state as usize, *end as usize);
            if tail.len() < state.checked_add(end).ok_or_else(broken)? {
                return Err(broken());
            }
            let decode = |numbers: &[u64]| {
                let position = Interleave::decode(lane.mixing.width, lane.mixing.chunk, numbers)?;
                let inside = position.next() as usize <= lane.pieces.len()
                    && position.open().iter().all(|open| {
                        lane.pieces[open.piece as usize].rows().is_none_or(|rows| open.row <= rows)
                    });
                if inside { Ok(position) } else { Err(broken()) }
            };
            let window = match end {
                0 if *size == 0 && *offset == 0 => None,
                0 => return Err(broken()),
                _ => {
                    let end = decode(&tail[state..state + end])?;
                    if *offset == 0
                        || offset >= size
                        || offset > rows
                        || lane.mixing.window.is_none()
                    {
                        return Err(broken());
                    }
                    Some(WindowCursor { size: *size, offset: *offset, end })
                }
            };
            let cursor = LaneCursor { rows: *rows, state: decode(&tail[..state])?, window };
            // Where rows are counted, the rows say all the rest.
            let consistent = match lane.rows() {
                Some(all) if whole => cursor.follows(lane, all),
                _ => cursor.is_plausible(lane),
            };
            if !consistent {
                return Err(broken());
            }
            found.push(cursor);
            rest = &tail[state + end..];
        }
        if rest.is_empty() { Ok(Self { batches: *batches, lanes: found }) } else { Err(broken()) }
    }

    /// Rows consumed.
    pub fn rows(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.rows).sum()
    }
}

/// The rows that one (rank, worker) reads and delivers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// Most shards have one; partitions and mixtures have several, which share each batch.
    pub lanes: Vec<Lane>,
    /// How lanes share a batch, by lane; empty shares evenly.
    pub lane_weights: Vec<u64>,
    /// How these change from batch to batch, where they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ramp: Option<LaneRamp>,
    /// The sizes of its batches.
    pub schedule: Schedule,
    /// Rows repeated to fill the last batch, as far as they are needed.
    pub padding: Vec<RowSlice>,
}

impl Shard {
    /// Where it begins.
    pub fn start(&self) -> ShardCursor {
        let lanes = self.lanes.iter().map(|lane| lane.cursor_at(0)).collect();
        ShardCursor { batches: 0, lanes }
    }

    /// Its rows without repeated ones, where they are counted.
    pub fn rows(&self) -> Option<u64> {
        self.lanes.iter().map(Lane::rows).sum()
    }

    /// The rows of its batches, with repeated rows and without left-out ones, if they are counted.
    pub fn delivered_rows(&self) -> Option<u64> {
        let by_rows = || {
            let (rows, size) = (self.rows()?, self.schedule.batch_size);
            Some(match (self.schedule.drop_short, self.schedule.pad) {
                (true, _) => rows / size * size,
                (_, true) => rows.div_ceil(size).saturating_mul(size),
                _ => rows,
            })
        };
        self.schedule.rows().or_else(by_rows)
    }

    /// The number of its batches, where rows are counted.
    pub fn batches(&self) -> Option<u64> {
        let by_rows = || {
            let (rows, size) = (self.rows()?, self.schedule.batch_size);
            Some(if self.schedule.drop_short { rows / size } else { rows.div_ceil(size) })
        };
        self.schedule.batches().or_else(by_rows)
    }

    /// The cursor after `batches` batches of counted pieces, without reading any.
    pub fn cursor_at(&self, batches: u64) -> ShardCursor {
        let mut left: Vec<u64> =
            self.lanes.iter().map(|lane| lane.rows().unwrap_or(u64::MAX)).collect();
        let mut taken = vec![0; left.len()];
        if let ([taken], [left]) = (taken.as_mut_slice(), left.as_slice()) {
            *taken = self.schedule.rows_before(batches).min(*left);
        } else {
            let sizes = (0..batches).map_while(|batch| Some((batch, self.schedule.size(batch)?)));
            for (batch, size) in sizes {
                let shares = blend(size, &left, &self.weights_at(batch));
                for ((taken, left), rows) in taken.iter_mut().zip(&mut left).zip(shares) {
                    *taken += rows;
                    *left -= rows;
                }
            }
        }
        let lanes = self.lanes.iter().zip(taken).map(|(lane, rows)| lane.cursor_at(rows)).collect();
        ShardCursor { batches, lanes }
    }

    /// The weights by which the lanes share the batch of this number.
    pub fn weights_at(&self, batch: u64) -> Cow<'_, [u64]> {
        match &self.ramp {
            Some(ramp) => ramp.at(batch),
            None => Cow::Borrowed(&self.lane_weights),
        }
    }

    /// Returns true if as many rows lie before `cursor` as its batches have, as far as that is
    /// known without reading.
    pub fn accepts(&self, cursor: &ShardCursor) -> bool {
        match self.batches() {
            Some(all) if cursor.batches > all => false,
            Some(_) => {
                let wanted = self.cursor_at(cursor.batches).lanes;
                wanted.iter().zip(&cursor.lanes).all(|(wanted, lane)| wanted.rows == lane.rows)
            }
            // Of lanes that are not counted, any may end before the others.
            None if self.lanes.len() > 1 => true,
            None => cursor.rows().div_ceil(self.schedule.batch_size) == cursor.batches,
        }
    }

    /// Returns true if a run that leaves rows out and fills batches up with the rows that follow can
    /// have come to `cursor`: it consumes a row at least for each batch, and all rows with the last.
    /// One rank may end earlier.
    pub fn accepts_refilled(&self, cursor: &ShardCursor) -> bool {
        let (Some(batches), Some(rows)) = (self.batches(), self.rows()) else { return false };
        let consumed = cursor.rows();
        (cursor.batches..=rows).contains(&consumed)
            && cursor.batches <= batches
            && (cursor.batches < batches || consumed == rows)
    }

    /// The cursor after `batches` batches that consumed `rows` rows of the one lane.
    ///
    /// # Errors
    /// `Config` where several lanes share the batches.
    pub fn cursor_after(&self, batches: u64, rows: u64) -> Result<ShardCursor> {
        match self.lanes.as_slice() {
            lanes @ ([] | [_]) => {
                let lanes = lanes.iter().map(|lane| lane.cursor_at(rows)).collect();
                Ok(ShardCursor { batches, lanes })
            }
            lanes => Err(Error::config(format!(
                "the batches of this shard are shared by {} lanes, of which rows do not follow each other",
                lanes.len()
            ))),
        }
    }

    /// The shard as rows that follow each other: batches are full while there are rows.
    #[must_use]
    pub fn open_ended(&self) -> Self {
        let schedule = Schedule::open_ended(self.schedule.batch_size, Remainder::Even);
        Self { schedule, ..self.clone() }
    }

    /// The pieces left behind `cursor`.
    pub fn remaining(&self, cursor: &ShardCursor) -> Vec<RowSlice> {
        self.lanes.iter().zip(&cursor.lanes).flat_map(|(lane, at)| lane.remaining(at)).collect()
    }
}
