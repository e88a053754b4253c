//! Dynamic assignment: workers of one rank take its pieces from a counter that they share.

use std::any::Any;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::sharding::{Holding, LaneCursor, ShardCursor};
use crate::{Error, Result};

/// The number of the next piece is in the low bits of the counter, the number of the iteration in
/// the high ones.
const PIECE_BITS: u32 = 32;

/// A number in memory that several processes share: the iteration, and the first piece that nobody
/// took.
#[derive(Clone)]
pub struct Counter {
    address: usize,
    _memory: Arc<dyn Any + Send + Sync>,
}

impl Counter {
    /// The counter at `address`, which `memory` keeps valid.
    ///
    /// # Safety
    /// `address` points to an `i64`, aligned to 8 bytes, that stays valid as long as `memory`
    /// lives, and that every thread and process reads and writes through a `Counter` or as a whole.
    ///
    /// # Errors
    /// `Config` where the address is null or not aligned.
    pub unsafe fn at(address: usize, memory: Arc<dyn Any + Send + Sync>) -> Result<Self> {
        if address == 0 || !address.is_multiple_of(align_of::<AtomicI64>()) {
            return Err(Error::config(
                "the counter of dynamic assignment is not aligned; please report it",
            ));
        }
        Ok(Self { address, _memory: memory })
    }

    fn number(&self) -> &AtomicI64 {
        // SAFETY: by the contract of `at`; `_memory` lives as long as `self`.
        unsafe { AtomicI64::from_ptr(self.address as *mut i64) }
    }

    /// Starts an iteration: its number, after which no worker of an earlier one takes a piece.
    pub fn begin(&self) -> u32 {
        let following = |number: i64| (iteration_of(number).wrapping_add(1) & 0x7fff_ffff) as i64;
        let begin = |number| Some(following(number) << PIECE_BITS);
        match self.number().fetch_update(Ordering::AcqRel, Ordering::Acquire, begin) {
            Ok(before) | Err(before) => following(before) as u32,
        }
    }

    /// The iteration under way.
    pub fn iteration(&self) -> u32 {
        iteration_of(self.number().load(Ordering::Acquire))
    }

    /// The next of `pieces` pieces; None where all were taken, or another iteration has begun.
    fn take(&self, iteration: u32, pieces: u32) -> Option<u32> {
        let next = |number: i64| {
            let free = iteration_of(number) == iteration && piece_of(number) < pieces;
            free.then_some(number + 1)
        };
        let taken = self.number().fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
        taken.ok().map(piece_of)
    }
}

fn iteration_of(number: i64) -> u32 {
    (number >> PIECE_BITS) as u32
}

fn piece_of(number: i64) -> u32 {
    number as u32
}

/// The queue from which one worker takes pieces in one iteration.
pub struct WorkQueue {
    counter: Counter,
    iteration: u32,
    pieces: u32,
    taken: Mutex<Vec<u32>>,
}

impl WorkQueue {
    /// Takes from `pieces` pieces, as long as `iteration` is under way.
    pub fn new(counter: Counter, iteration: u32, pieces: u32) -> Self {
        Self { counter, iteration, pieces, taken: Mutex::default() }
    }

    /// Takes pieces until there are `wanted` of them, or no more; returns how many there are.
    pub fn take_until(&self, wanted: u32) -> u32 {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        while (taken.len() as u32) < wanted {
            let Some(piece) = self.counter.take(self.iteration, self.pieces) else { break };
            taken.push(piece);
        }
        taken.len() as u32
    }

    /// The pieces that `cursor` holds, and how many pieces it has opened.
    pub(super) fn holding(&self, cursor: ShardCursor) -> (Holding, u32) {
        let opened = cursor.lanes.iter().map(LaneCursor::opened).max().unwrap_or(0);
        (Holding::of(cursor, |position| self.piece(position)), opened)
    }

    /// The number of the piece that was taken `position`-th.
    pub fn piece(&self, position: u32) -> Option<u32> {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.get(position as usize).copied()
    }

    /// All pieces taken so far, in order.
    pub fn taken(&self) -> Vec<u32> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Which of the pieces that a worker took were consumed since it said so last.
#[derive(Default)]
pub(super) struct TakenCount {
    /// Pieces that were taken and not reported as consumed, with their positions.
    open: Vec<(u32, u32)>,
    seen: u32,
}

impl TakenCount {
    /// Pieces consumed up to `cursor` and not named before, with the pieces held there.
    pub(super) fn at(&mut self, feed: &WorkQueue, cursor: ShardCursor) -> (Holding, Vec<u32>) {
        while let Some(piece) = feed.piece(self.seen) {
            self.open.push((self.seen, piece));
            self.seen += 1;
        }
        let (holding, opened) = feed.holding(cursor);
        let is_open =
            |(position, piece): &(u32, u32)| *position >= opened || holding.held.contains(piece);
        let (open, consumed) = std::mem::take(&mut self.open).into_iter().partition(is_open);
        self.open = open;
        let consumed: Vec<(u32, u32)> = consumed;
        (holding, consumed.into_iter().map(|(_, piece)| piece).collect())
    }
}
