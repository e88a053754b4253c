//! In which order the rows of several pieces arrive: a state machine that needs no data.

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// A piece that is being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    /// Its position in the list of pieces.
    pub piece: u32,
    /// Rows taken of it.
    pub row: u64,
}

/// Whose rows come next, and how many of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The piece.
    pub piece: u32,
    /// The row of that piece.
    pub row: u64,
    /// Rows to take before another piece has its turn; the piece may end before.
    pub rows: u64,
}

/// Merges a list of pieces, `width` of them at a time, each in turn for `chunk` rows.
///
/// The reader asks for the next [`Turn`], takes rows and says so ([`took`](Self::took)), or says
/// that the piece has no more ([`ended`](Self::ended)); then the next piece of the list takes its
/// place. The sequence depends on the pieces' rows alone, so the same machine drives a reader and,
/// where rows are counted, a simulation ([`advance`](Self::advance)). A copy of it is a position to
/// which a reader can return.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interleave {
    width: u32,
    chunk: u64,
    /// The first piece that was not opened yet.
    next: u32,
    open: Vec<Open>,
    /// The position in `open` whose turn it is.
    turn: u32,
    /// Rows left of this turn; 0 where it has not begun, or has no bound.
    left: u64,
}

impl Interleave {
    /// One piece after the other.
    pub fn sequential() -> Self {
        Self::new(1, u64::MAX)
    }

    /// `width` pieces at a time, `chunk` rows in turn; both at least 1.
    pub fn new(width: u32, chunk: u64) -> Self {
        let (width, chunk) = (width.max(1), chunk.max(1));
        Self { width, chunk, next: 0, open: Vec::new(), turn: 0, left: 0 }
    }

    /// The turn that comes next of a list of `pieces`; None when all have ended.
    pub fn turn(&mut self, pieces: u32) -> Option<Turn> {
        while self.open.len() < self.width as usize && self.next < pieces {
            self.open.push(Open { piece: self.next, row: 0 });
            self.next += 1;
        }
        let open = self.open.get(self.turn as usize)?;
        if self.is_bounded() && self.left == 0 {
            self.left = self.chunk;
        }
        let rows = if self.is_bounded() { self.left } else { self.chunk };
        Some(Turn { piece: open.piece, row: open.row, rows })
    }

    /// `rows` rows were taken, at most the rows of the turn.
    pub fn took(&mut self, rows: u64) {
        self.open[self.turn as usize].row += rows;
        if !self.is_bounded() {
            return;
        }
        self.left -= rows;
        if self.left == 0 {
            self.turn = (self.turn + 1) % self.open.len() as u32;
        }
    }

    /// Returns true if a turn ends before its piece. Where it does not, rows left of it are not
    /// counted.
    fn is_bounded(&self) -> bool {
        self.chunk != u64::MAX
    }

    /// The piece whose turn it is has no more rows, in a list of `pieces`.
    pub fn ended(&mut self, pieces: u32) {
        self.left = 0;
        if self.next < pieces {
            self.open[self.turn as usize] = Open { piece: self.next, row: 0 };
            self.next += 1;
            self.turn += 1;
        } else {
            self.open.remove(self.turn as usize);
        }
        if self.turn as usize >= self.open.len() {
            self.turn = 0;
        }
    }

    /// Goes on by up to `rows` rows over pieces of the lengths `rows_of`, as a reader would. Calls
    /// `each` with every turn's part; returns the rows passed, fewer only at the end of all pieces.
    pub fn advance(
        &mut self,
        pieces: u32,
        rows: u64,
        rows_of: impl Fn(u32) -> u64,
        mut each: impl FnMut(Turn),
    ) -> u64 {
        let mut passed = 0;
        while passed < rows {
            let Some(turn) = self.turn(pieces) else { break };
            let here = (rows_of(turn.piece) - turn.row).min(turn.rows).min(rows - passed);
            if here == 0 {
                self.ended(pieces);
                continue;
            }
            each(Turn { rows: here, ..turn });
            self.took(here);
            passed += here;
        }
        passed
    }

    /// Goes on as [`advance`](Self::advance) does, many rounds of turns at once: the time that it
    /// takes grows with the pieces, and not with their rows.
    pub fn pass(&mut self, pieces: u32, rows: u64, rows_of: impl Fn(u32) -> u64) -> u64 {
        let mut passed = 0;
        while passed < rows {
            // Opens what can be opened.
            if self.turn(pieces).is_none() {
                break;
            }
            let round = self.chunk.saturating_mul(self.open.len() as u64);
            let begins = self.turn == 0 && self.left == self.chunk;
            let rounds = match self.is_bounded() && begins {
                true => self.whole_rounds((rows - passed) / round, &rows_of),
                false => 0,
            };
            if rounds > 0 {
                self.open.iter_mut().for_each(|open| open.row += rounds * self.chunk);
                // As after the last turn of a round.
                self.left = 0;
                passed += rounds * round;
                continue;
            }
            // To the end of this round, turn by turn.
            let after = self.open.len() as u64 - 1 - u64::from(self.turn);
            let turns = match self.is_bounded() {
                true => self.left.saturating_add(self.chunk.saturating_mul(after)),
                false => u64::MAX,
            };
            let turns = turns.min(rows - passed);
            match self.advance(pieces, turns, &rows_of, |_| ()) {
                0 => break,
                more => passed += more,
            }
        }
        passed
    }

    /// Rounds, at most `most`, in which every open piece has a whole turn.
    fn whole_rounds(&self, most: u64, rows_of: impl Fn(u32) -> u64) -> u64 {
        let of_piece = |open: &Open| (rows_of(open.piece) - open.row) / self.chunk;
        self.open.iter().map(of_piece).fold(most, u64::min)
    }

    /// The rows of a turn; None where a piece is read to its end before another has its turn.
    pub fn turn_rows(&self) -> Option<u64> {
        (self.width > 1 && self.is_bounded()).then_some(self.chunk)
    }

    /// Pieces that are read at a time.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Rows of a turn; all of a piece where it is the largest number.
    pub fn chunk(&self) -> u64 {
        self.chunk
    }

    /// The pieces being read, in the order of turns from the first slot.
    pub fn open(&self) -> &[Open] {
        &self.open
    }

    /// The first piece that was not opened yet.
    pub fn next(&self) -> u32 {
        self.next
    }

    /// The position in a list of only those pieces that are read from here until `next`, the first
    /// one that is not opened. Also returns that list's positions in the old one.
    pub fn narrowed(&self, next: u32) -> (Self, Vec<u32>) {
        let open = (0_u32..).zip(&self.open).map(|(piece, open)| Open { piece, row: open.row });
        let touched = self.open.iter().map(|open| open.piece).chain(self.next..next);
        let narrowed = Self { next: self.open.len() as u32, open: open.collect(), ..self.clone() };
        (narrowed, touched.collect())
    }

    /// The position where the open pieces begin with the row that is read next, and the rows before
    /// it.
    pub fn from_here(mut self) -> (Self, Vec<u64>) {
        let rows = self.open.iter_mut().map(|open| std::mem::take(&mut open.row)).collect();
        (self, rows)
    }

    /// The position in a list of only the pieces `touched`, all of them opened. It is behind the
    /// position that [`narrowed`](Self::narrowed) gave them.
    pub fn within(&self, touched: &[u32]) -> Self {
        let place = |piece: u32| touched.iter().position(|old| *old == piece);
        let open = self.open.iter().filter_map(|open| {
            place(open.piece).map(|piece| Open { piece: piece as u32, row: open.row })
        });
        Self { next: touched.len() as u32, open: open.collect(), ..self.clone() }
    }

    /// The position as numbers: next piece, turn, rows left, then piece and row of each open piece.
    pub fn encode(&self) -> Vec<u64> {
        let mut numbers = vec![u64::from(self.next), u64::from(self.turn), self.left];
        numbers.extend(self.open.iter().flat_map(|open| [u64::from(open.piece), open.row]));
        numbers
    }

    /// The position that [`encode`](Self::encode) wrote, for the same `width` and `chunk`.
    ///
    /// # Errors
    /// `Checkpoint` where the numbers are no such position.
    pub fn decode(width: u32, chunk: u64, numbers: &[u64]) -> Result<Self> {
        let broken = || Error::checkpoint("the state's cursor is damaged; load an earlier state");
        let [next, turn, left, open @ ..] = numbers else { return Err(broken()) };
        let small = |number: u64| u32::try_from(number).map_err(|_| broken());
        if open.len() % 2 != 0 {
            return Err(broken());
        }
        let open: Vec<Open> = open
            .chunks(2)
            .map(|pair| Ok(Open { piece: small(pair[0])?, row: pair[1] }))
            .collect::<Result<_>>()?;
        let fresh = Self::new(width, chunk);
        let found = Self { next: small(*next)?, turn: small(*turn)?, left: *left, open, ..fresh };
        let valid = found.open.len() <= found.width as usize
            && (found.turn as usize) < found.open.len().max(1)
            && (found.left == 0 || found.is_bounded() && found.left <= found.chunk)
            && found.open.iter().all(|open| open.piece < found.next);
        if valid { Ok(found) } else { Err(broken()) }
    }
}
