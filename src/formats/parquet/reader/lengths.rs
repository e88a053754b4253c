//! Where decoded batches end.

/// Turns are decoded several at a time while they have no more rows, or bytes: a batch costs some
/// microseconds per column, and waking the decoding and the waiting thread as much again, for any
/// number of rows.
const TURN_ROWS: usize = 2048;
/// As much as that waits of a split, too, until its turn comes.
pub const TURN_BYTES: usize = 256 << 10;

/// Where those who read the rows of a split cut them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchEnds {
    /// Rows from one cut to the next.
    pub every: u64,
    /// Rows between the last cut before the split's first row and that row.
    pub at: u64,
    /// Whether other splits have their turn after each cut. Then a batch has the rows of a few
    /// turns, so that little is held of the split: many are open.
    pub turns: bool,
}

/// The row counts of successive decoded batches. Each holds as many whole delivered batches as fit,
/// so that none of these has rows of two decoded batches, which would have to be copied.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lengths {
    most: usize,
    /// Rows of the first batch: other pieces wait for the first turn of each split.
    first: usize,
    every: usize,
    at: usize,
}

impl Lengths {
    /// Batches of `most` rows of `row_bytes` bytes, or fewer where there are `cuts`.
    pub(super) fn new(most: usize, row_bytes: usize, cuts: Option<BatchEnds>) -> Self {
        let most = most.max(1);
        let cuts = cuts.filter(|cuts| (1..=most as u64).contains(&cuts.every));
        let Some(cuts) = cuts else { return Self { most, first: most, every: most, at: 0 } };
        let (every, at) = (cuts.every as usize, (cuts.at % cuts.every) as usize);
        if !cuts.turns {
            return Self { most, first: most, every, at };
        }
        let first = most.min(every.max(TURN_ROWS));
        let most = most.min(first.max(TURN_BYTES / row_bytes.max(1)));
        Self { most, first, every, at }
    }

    /// The most rows of a batch.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// The lengths after so many rows.
    pub(super) fn after(self, rows: usize) -> Self {
        Self { at: (self.at + rows % self.every) % self.every, ..self }
    }

    /// The rows of the next batch.
    pub(super) fn next(&mut self) -> usize {
        let most = std::mem::replace(&mut self.first, self.most);
        let begun = self.every - std::mem::take(&mut self.at);
        begun + (most - begun) / self.every * self.every
    }

    /// The last batch has so many rows fewer than it was to have: the next one goes on from there.
    pub(super) fn fall_short(&mut self, rows: usize) {
        self.at = (self.every - rows % self.every) % self.every;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(most: usize, every: u64, at: u64) -> Vec<usize> {
        let mut lengths = Lengths::new(most, 8, Some(BatchEnds { every, at, turns: false }));
        (0..3).map(|_| lengths.next()).collect()
    }

    #[test]
    fn every_cut_is_the_end_of_a_batch_if_batches_are_as_long() {
        assert_eq!(lengths(8192, 8192, 0), [8192, 8192, 8192]);
        assert_eq!(lengths(8192, 8192, 1000), [7192, 8192, 8192]);
        assert_eq!(lengths(8192, 1024, 1023), [7169, 8192, 8192]);
        assert_eq!(lengths(8192, 1000, 3010), [7990, 8000, 8000]);
        assert_eq!(lengths(1, 1, 5), [1, 1, 1]);
        assert_eq!(lengths(100, 101, 7), [100, 100, 100]);
        assert_eq!(lengths(100, 0, 7), [100, 100, 100]);
        let mut later =
            Lengths::new(8192, 8, Some(BatchEnds { every: 1000, at: 990, turns: false }))
                .after(2015);
        assert_eq!([later.next(), later.next()], [7995, 8000]);
        for most in 1..40 {
            for (every, at) in
                (1..=most as u64).flat_map(|every| (0..every).map(move |at| (every, at)))
            {
                let mut end = at;
                for length in lengths(most, every, at) {
                    end += length as u64;
                    assert!(
                        (1..=most).contains(&length) && end % every == 0,
                        "{most} {every} {at}"
                    );
                }
            }
        }
    }

    #[test]
    fn of_turns_the_first_are_decoded_by_themselves_and_the_others_as_many_at_a_time_as_are_few_bytes()
     {
        let turns = |every, row_bytes| {
            let mut turns =
                Lengths::new(8192, row_bytes, Some(BatchEnds { every, at: 10, turns: true }));
            [turns.next(), turns.next(), turns.next(), turns.most()]
        };
        assert_eq!(turns(1800, 60), [1790, 3600, 3600, 4369]);
        assert_eq!(turns(64, 60), [2038, 4352, 4352, 4369]);
        assert_eq!(turns(4000, 60), [3990, 4000, 4000, 4369]);
        assert_eq!(turns(1800, 264), [1790, 1800, 1800, 2048]);
        assert_eq!(turns(64, 264), [2038, 2048, 2048, 2048]);
        assert_eq!(turns(1000, 0), [1990, 8000, 8000, 8192]);
        assert_eq!(turns(9000, 60), [8192, 8192, 8192, 8192]);
    }
}
