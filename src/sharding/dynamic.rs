//! Dynamic assignment: workers of a rank take its pieces one by one. Finds the remaining pieces
//! from the workers' states.

use super::cursor::{Lane, LaneCursor, Shard, ShardCursor};
use super::order::derive_key;
use super::row_slice::RowSlice;
use crate::{Error, Result};

/// Tells the windows of workers of one rank apart.
const TAKER: u64 = 0x7461_6b65;

/// The progress of one worker: the part of a state that grows with its window, not with the epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// Numbers of the pieces that it holds, within the rank: open ones, and pieces of the window in
    /// progress.
    pub held: Vec<u32>,
    /// How far it is consumed, in the list of the held pieces alone.
    pub cursor: ShardCursor,
}

impl Holding {
    /// The position `cursor` of a worker that took the pieces `taken(0)`, `taken(1)` and so on.
    pub fn of(cursor: ShardCursor, taken: impl Fn(u32) -> Option<u32>) -> Self {
        let ShardCursor { batches, lanes } = cursor;
        let mut held = Vec::new();
        let lanes = lanes.into_iter().map(|lane| {
            let (lane, positions) = lane.narrowed();
            held.extend(positions.into_iter().filter_map(&taken));
            lane
        });
        let lanes = lanes.collect();
        Self { held, cursor: ShardCursor { batches, lanes } }
    }

    /// As numbers: how many pieces are held, which, and the cursor.
    pub fn encode(&self) -> Vec<u64> {
        let mut numbers = vec![self.held.len() as u64];
        numbers.extend(self.held.iter().map(|piece| u64::from(*piece)));
        numbers.extend(self.cursor.encode());
        numbers
    }

    /// Decodes the pieces that `worker` holds of the rank's lane `lane`, as a lane of its own and
    /// the cursor in it.
    fn decode(
        numbers: &[u64],
        lane: &Lane,
        (worker, workers): (usize, usize),
    ) -> Result<(Vec<u32>, Lane, LaneCursor)> {
        let (count, rest) = numbers.split_first().ok_or_else(damaged)?;
        let count = usize::try_from(*count).map_err(|_| damaged())?;
        let (held, cursor) = rest.split_at_checked(count).ok_or_else(damaged)?;
        let held: Vec<u32> = held
            .iter()
            .map(|piece| u32::try_from(*piece).map_err(|_| damaged()))
            .collect::<Result<_>>()?;
        let pieces = held
            .iter()
            .map(|piece| lane.pieces.get(*piece as usize).cloned().ok_or_else(damaged))
            .collect::<Result<_>>()?;
        let own = Lane { pieces, ..lane.of_taker(worker, workers) };
        let mut cursor = ShardCursor::decode_narrowed(cursor, std::slice::from_ref(&own))?;
        let cursor = cursor.lanes.pop().ok_or_else(damaged)?;
        Ok((held, own, cursor))
    }
}

impl Lane {
    /// The lane without pieces, for one of `workers` workers that take them: its windows have keys
    /// of their own. Rests of windows are not taken but dealt, in turn.
    fn of_taker(&self, worker: usize, workers: usize) -> Self {
        let key = derive_key(&[TAKER, self.key, worker as u64]);
        let rests = self.rests.iter().skip(worker).step_by(workers.max(1)).cloned().collect();
        Self { rests, pieces: Vec::new(), key, mixing: self.mixing, number: self.number }
    }
}

impl Shard {
    /// The shard of a rank as one of its `workers` workers reads it, who takes pieces from all of
    /// them.
    #[must_use]
    pub fn of_taker(&self, worker: usize, workers: usize) -> Self {
        let mut own = self.clone();
        for lane in &mut own.lanes {
            let pieces = std::mem::take(&mut lane.pieces);
            *lane = Lane { pieces, ..lane.of_taker(worker, workers) };
        }
        own
    }

    /// The rest of a rank's shard. `said` has the consumed pieces, as pairs of first and one past
    /// the last, and then the pieces that each worker holds. For a worker that has not begun that
    /// is empty, and a single zero for one that has delivered all.
    ///
    /// # Errors
    /// `Checkpoint` where the numbers are not those of such a rank.
    pub fn left_by_takers(&self, said: &[Vec<u64>], workers: usize) -> Result<Vec<RowSlice>> {
        let [lane] = self.lanes.as_slice() else { return Err(damaged()) };
        let (consumed, holdings) = said.split_first().ok_or_else(damaged)?;
        if consumed.len() % 2 != 0 || holdings.len() != workers {
            return Err(damaged());
        }
        let mut accounted = vec![false; lane.pieces.len()];
        let mut at = 0;
        for pair in consumed.chunks(2) {
            let (start, end) = (pair[0], pair[1]);
            if start < at || end <= start || end > lane.pieces.len() as u64 {
                return Err(damaged());
            }
            accounted[start as usize..end as usize].fill(true);
            at = end;
        }
        let mut left = Vec::new();
        for (worker, numbers) in holdings.iter().enumerate() {
            match numbers.as_slice() {
                [] => {
                    left.extend(lane.of_taker(worker, workers).rests);
                    continue;
                }
                [0] => continue,
                _ => (),
            }
            let (held, own, cursor) = Holding::decode(numbers, lane, (worker, workers))?;
            for piece in held {
                // Nobody else has it, and none of it was consumed but what the cursor says.
                if std::mem::replace(&mut accounted[piece as usize], true) {
                    return Err(damaged());
                }
            }
            left.extend(own.remaining(&cursor));
        }
        let free = lane.pieces.iter().zip(&accounted).filter(|(_, accounted)| !**accounted);
        left.extend(free.map(|(piece, _)| piece.clone()));
        Ok(left)
    }
}

fn damaged() -> Error {
    Error::checkpoint(
        "the state is damaged: it does not say which splits its workers took; load an earlier state",
    )
}
