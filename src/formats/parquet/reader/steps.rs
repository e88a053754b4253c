//! How many rows of a row group are decoded for each batch, and which of them are kept.

use std::cell::OnceCell;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray};
use arrow::buffer::{BooleanBuffer, NullBuffer};
use arrow::compute::{FilterBuilder, FilterPredicate};
use parquet::errors::Result;

use super::damaged;
use super::lengths::Lengths;

/// For a batch of wanted rows, at most so many times as many are decoded: where all are wanted of
/// one part of a row group and none of the next, no array is as long as the gap.
const MOST_GAPS: usize = 2;

/// Rows that are decoded for one batch.
pub(super) struct Step {
    pub(super) rows: usize,
    /// Those that are wanted; None where all are.
    pub(super) kept: Option<Kept>,
    /// Whether there should be none: it is behind the last one of which it is known whether it is
    /// wanted.
    pub(super) is_behind: bool,
}

/// The steps through a row group.
pub(super) struct Steps {
    lengths: Lengths,
    /// The wanted rows; None where all are.
    wanted: Option<BooleanBuffer>,
    /// Rows of the steps that were taken.
    at: usize,
}

impl Steps {
    /// Batches of these `lengths`, of the rows that `wanted` has a bit for.
    pub(super) fn new(lengths: Lengths, wanted: Option<BooleanBuffer>) -> Self {
        Self { lengths, wanted, at: 0 }
    }

    /// The next step. As many rows are decoded as leave the batch's length, or [`MOST_GAPS`] times
    /// as many where that is not enough. Behind the last row it asks for more, so that rows that
    /// should not be there are found.
    pub(super) fn next(&mut self) -> Step {
        let length = self.lengths.next();
        let Some(wanted) = self.wanted.as_ref().filter(|wanted| self.at < wanted.len()) else {
            return Step { rows: length, kept: None, is_behind: self.wanted.is_some() };
        };
        let most = length.saturating_mul(MOST_GAPS).min(wanted.len() - self.at);
        let rows = wanted.slice(self.at, most);
        let (mut decoded, mut kept) = (0, 0);
        // By words of 64 rows, and then the rows of the word in which the batch ends.
        for word in rows.bit_chunks().iter_padded() {
            let (all, here) = (64.min(most - decoded), word.count_ones() as usize);
            if kept + here < length {
                (decoded, kept) = (decoded + all, kept + here);
                continue;
            }
            let mut left = word;
            for _ in kept + 1..length {
                left &= left - 1;
            }
            decoded += left.trailing_zeros() as usize + 1;
            kept = length;
            break;
        }
        self.lengths.fall_short(length - kept);
        self.at += decoded;
        let kept = (kept < decoded).then(|| Kept::new(rows.slice(0, decoded), kept));
        Step { rows: decoded, kept, is_behind: false }
    }
}

/// Which rows of a step are wanted.
pub(super) struct Kept {
    mask: BooleanArray,
    /// A bit by row, the first row's the lowest; and behind the last of them a word of zeros.
    words: Vec<u64>,
    count: usize,
    /// For columns that are filtered as a whole.
    filter: OnceCell<FilterPredicate>,
}

impl Kept {
    pub(super) fn new(mask: BooleanBuffer, count: usize) -> Self {
        let words = mask.bit_chunks().iter_padded().chain([0]).collect();
        Self { mask: BooleanArray::new(mask, None), words, count, filter: OnceCell::new() }
    }

    /// How many.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// How many of these rows.
    pub(super) fn count_of(&self, rows: Range<usize>) -> usize {
        self.mask.values().slice(rows.start, rows.len()).count_set_bits()
    }

    /// A bit for each of 64 rows from the row `at` on, the first row's the lowest; zeros behind the
    /// last row.
    pub(super) fn bits(&self, at: usize) -> u64 {
        let (word, shift) = (at / 64, at % 64);
        let of = |word: usize| self.words.get(word).copied().unwrap_or_default();
        // Twice, since a shift by all 64 bits is none.
        of(word) >> shift | of(word + 1) << 1 << (63 - shift)
    }

    /// Those of a column with all rows of the step.
    ///
    /// # Errors
    /// Where it has another number of rows.
    pub(super) fn of(&self, column: &ArrayRef) -> Result<ArrayRef> {
        if column.len() != self.mask.len() {
            return Err(damaged(format!("{} of {} rows", column.len(), self.mask.len())));
        }
        let filter = || FilterBuilder::new(&self.mask).optimize().build();
        Ok(self.filter.get_or_init(filter).filter(column)?)
    }

    /// Which of them have a value, of the step's rows that have one.
    ///
    /// # Errors
    /// As [`of`](Self::of).
    pub(super) fn of_nulls(&self, nulls: NullBuffer) -> Result<NullBuffer> {
        let bits: ArrayRef = Arc::new(BooleanArray::new(nulls.into_inner(), None));
        let kept = self.of(&bits)?;
        let kept = kept.as_any().downcast_ref::<BooleanArray>();
        let kept = kept.ok_or_else(|| damaged("its levels are no bits"))?;
        Ok(NullBuffer::new(kept.values().clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::lengths::BatchEnds;
    use super::*;

    /// The rows that are kept of each step, and the rows that are decoded for it.
    fn steps(filter: &BooleanBuffer, cuts: Option<BatchEnds>) -> Vec<(usize, usize)> {
        let mut steps = Steps::new(Lengths::new(64, 8, cuts), Some(filter.clone()));
        let (mut found, mut at) = (Vec::new(), 0);
        while at < filter.len() {
            let step = steps.next();
            let here = filter.slice(at, step.rows);
            let kept = step.kept.map_or(step.rows, |kept| {
                for row in 0..step.rows {
                    let bits = kept.bits(row);
                    let is_kept = |other| row + other < step.rows && here.value(row + other);
                    assert!((0..64).all(|other| (bits >> other & 1 == 1) == is_kept(other)));
                }
                let middle = step.rows / 2;
                assert_eq!(
                    kept.count_of(0..middle) + kept.count_of(middle..step.rows),
                    kept.count()
                );
                kept.count()
            });
            assert_eq!(kept, here.count_set_bits());
            assert!(!step.is_behind);
            found.push((kept, step.rows));
            at += step.rows;
        }
        assert!(steps.next().is_behind);
        found
    }

    #[test]
    fn batches_of_the_rows_that_are_kept_end_where_they_are_cut() {
        for seed in 0..200_usize {
            let dropped = |row: usize| (row + seed).wrapping_mul(0x9e37_79b9) >> 7 & 15 == 0;
            let bits = (0..1000).map(|row| !dropped(row));
            // At an offset within a word, as slices are.
            let filter: BooleanBuffer = (0..seed % 70).map(|_| false).chain(bits).collect();
            let filter = filter.slice(seed % 70, 1000);
            let (every, at) = (1 + seed as u64 % 64, seed as u64);
            let found = steps(&filter, Some(BatchEnds { every, at, turns: false }));
            let mut end = at;
            for (number, (kept, rows)) in found.iter().enumerate() {
                end += *kept as u64;
                let is_last = number + 1 == found.len();
                assert!(is_last || end % every == 0 && *kept > 0, "{seed}: {found:?}");
                assert!(*rows <= 64 * MOST_GAPS);
            }
            assert_eq!(end - at, filter.count_set_bits() as u64);
        }
    }

    #[test]
    fn a_long_gap_is_decoded_piece_by_piece_and_cuts_stay_where_they_are() {
        let filter: BooleanBuffer = (0..1000).map(|row| !(70..900).contains(&row)).collect();
        let found = steps(&filter, Some(BatchEnds { every: 32, at: 0, turns: false }));
        let kept: Vec<usize> = found.iter().map(|(kept, _)| *kept).collect();
        assert_eq!(kept, [64, 6, 0, 0, 0, 0, 0, 0, 58, 42]);
        assert!(found.iter().all(|(_, rows)| *rows <= 128));
    }
}
