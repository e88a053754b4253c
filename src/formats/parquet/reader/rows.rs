//! The wanted rows of some columns of a row group, batch by batch.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray};
use arrow::buffer::BooleanBuffer;
use arrow::compute::{FilterBuilder, concat_batches};
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use parquet::arrow::arrow_reader::ParquetRecordBatchReader;
use parquet::errors::{ParquetError, Result};

use super::lengths::Lengths;
use super::primitive::FlatColumn;

/// For a batch of wanted rows, at most so many times as many are decoded: where all are wanted of one
/// part of a row group and none of the next, no array is as long as the gap.
const MOST_GAPS: usize = 2;

/// The wanted rows of some columns of a row group.
pub(super) struct GroupRows {
    steps: Steps,
    /// How many batches of a column are decoded at a time.
    batches: usize,
    /// The wanted rows among the decoded ones, if these are not all; and the number of decoded
    /// rows.
    filter: Option<BooleanBuffer>,
    at: usize,
    parts: Vec<ColumnsReader>,
    /// The place of each column in the requested order, by its place among the columns of all
    /// parts.
    order: Vec<usize>,
    /// The columns of all parts.
    roots: Vec<usize>,
}

/// Columns that are read together.
enum ColumnsReader {
    /// Batches that were decoded already, and the column; with the steps after them.
    Flat(VecDeque<ArrayRef>, Box<dyn FlatColumn>, Steps),
    /// Columns read by the `parquet` crate: the rows beyond the last batch, and the steps to come.
    Reader(Option<RecordBatch>, ParquetRecordBatchReader, Steps),
}

/// How many rows are decoded for each batch.
#[derive(Clone, Copy)]
struct Steps {
    lengths: Lengths,
    /// Rows that were decoded before.
    at: usize,
}

impl Steps {
    /// The rows to decode for the next batch. Of nearly all rows as many are decoded as leave the
    /// batch's length, or [`MOST_GAPS`] times as many where that is not enough.
    fn next(&mut self, filter: Option<&BooleanBuffer>) -> usize {
        let length = self.lengths.next();
        // Behind the last row is asked for more, so that rows that should not be there are found.
        let Some(filter) = filter.filter(|filter| self.at < filter.len()) else { return length };
        let most = length.saturating_mul(MOST_GAPS).min(filter.len() - self.at);
        let rows = filter.slice(self.at, most);
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
        decoded
    }
}

impl GroupRows {
    /// Without columns: of the rows that those will have, the ones that `filter` has a bit for.
    pub(super) fn new(lengths: Lengths, filter: Option<BooleanBuffer>) -> Self {
        let (parts, order, roots) = (Vec::new(), Vec::new(), Vec::new());
        let steps = Steps { lengths, at: 0 };
        Self { steps, batches: 1, filter, at: 0, parts, order, roots }
    }

    /// Sets how many batches of a column are decoded at a time.
    pub(super) fn at_a_time(self, batches: usize) -> Self {
        Self { batches, ..self }
    }

    pub(super) fn add_flat(&mut self, root: usize, column: Box<dyn FlatColumn>) {
        self.add_part(&[root], ColumnsReader::Flat(VecDeque::new(), column, self.steps));
    }

    pub(super) fn add(&mut self, roots: &[usize], reader: ParquetRecordBatchReader) {
        self.add_part(roots, ColumnsReader::Reader(None, reader, self.steps));
    }

    fn add_part(&mut self, roots: &[usize], part: ColumnsReader) {
        self.parts.push(part);
        self.roots.extend_from_slice(roots);
        self.order = (0..self.roots.len()).collect();
        self.order.sort_unstable_by_key(|at| self.roots[*at]);
    }

    /// The ranges to read from the file before the next batch is decoded, each with its column.
    pub(super) fn missing(&self) -> Vec<(usize, Range<u64>)> {
        let mut missing = Vec::new();
        for (number, part) in self.parts.iter().enumerate() {
            if let ColumnsReader::Flat(ready, column, steps) = part
                && ready.is_empty()
            {
                let mut steps = *steps;
                let rows = (0..self.batches).map(|_| steps.next(self.filter.as_ref())).sum();
                missing.extend(column.missing(rows).into_iter().map(|range| (number, range)));
            }
        }
        missing
    }

    /// Takes the bytes read for these ranges, in their order.
    pub(super) fn put(&mut self, missing: &[(usize, Range<u64>)], read: Vec<Bytes>) {
        for ((number, range), bytes) in missing.iter().zip(read) {
            if let ColumnsReader::Flat(_, column, _) = &mut self.parts[*number] {
                column.put(range, bytes);
            }
        }
    }

    /// The next batch, which may be empty: its rows, and its columns in ascending order.
    ///
    /// # Errors
    /// Where the chunks are damaged.
    pub(super) fn next(&mut self) -> Result<Option<(usize, Vec<ArrayRef>)>> {
        let mut columns: Vec<ArrayRef> = Vec::with_capacity(self.roots.len());
        let filter = self.filter.as_ref();
        for part in &mut self.parts {
            match part {
                ColumnsReader::Flat(ready, column, steps) => {
                    if ready.is_empty() {
                        for _ in 0..self.batches {
                            ready.push_back(column.next(steps.next(filter))?);
                        }
                    }
                    columns.extend(ready.pop_front());
                }
                ColumnsReader::Reader(rest, reader, steps) => {
                    match read(rest, reader, steps.next(filter))? {
                        Some(batch) => columns.extend_from_slice(batch.columns()),
                        None => return Ok(None),
                    }
                }
            }
        }
        let rows = columns.first().map_or(0, Array::len);
        if let Some(other) = columns.iter().find(|column| column.len() != rows) {
            return Err(ParquetError::General(format!(
                "the columns of a row group have {rows} rows and {} where they should have the same",
                other.len()
            )));
        }
        if rows == 0 {
            return Ok(None);
        }
        let columns = self.order.iter().map(|at| Arc::clone(&columns[*at]));
        let Some(wanted) = &self.filter else { return Ok(Some((rows, columns.collect()))) };
        if rows > wanted.len() - self.at {
            return Err(ParquetError::General(format!(
                "the pages of a row group have more than the {} rows that the footer says",
                wanted.len()
            )));
        }
        let here = BooleanArray::new(wanted.slice(self.at, rows), None);
        self.at += rows;
        let rows = here.true_count();
        // Where its runs are is found once for all columns.
        let filter = FilterBuilder::new(&here).optimize().build();
        let columns = columns.map(|column| Ok(filter.filter(&column)?));
        Ok(Some((rows, columns.collect::<Result<_>>()?)))
    }
}

/// The next `rows` rows, or the remaining ones; None if there are none. The reader has batches of
/// one length: its rows beyond `rows` are the `rest`.
fn read(
    rest: &mut Option<RecordBatch>,
    reader: &mut ParquetRecordBatchReader,
    rows: usize,
) -> Result<Option<RecordBatch>> {
    let (mut parts, mut missing) = (Vec::new(), rows);
    while missing > 0 {
        let Some(batch) = rest.take().map(Ok).or_else(|| reader.next()).transpose()? else { break };
        let here = batch.num_rows().min(missing);
        if here < batch.num_rows() {
            *rest = Some(batch.slice(here, batch.num_rows() - here));
        }
        missing -= here;
        parts.push(batch.slice(0, here));
    }
    match parts.as_slice() {
        [] => Ok(None),
        [one] => Ok(Some(one.clone())),
        [first, ..] => Ok(Some(concat_batches(&first.schema(), &parts)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::lengths::BatchEnds;
    use super::*;

    /// The rows that are kept of each step, and the rows that are decoded for it.
    fn steps(filter: &BooleanBuffer, cuts: Option<BatchEnds>) -> Vec<(usize, usize)> {
        let mut steps = Steps { lengths: Lengths::new(64, 8, cuts), at: 0 };
        let mut found = Vec::new();
        while steps.at < filter.len() {
            let at = steps.at;
            let rows = steps.next(Some(filter));
            assert_eq!(steps.at, at + rows);
            found.push((filter.slice(at, rows).count_set_bits(), rows));
        }
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
