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

/// The wanted rows of some columns of a row group.
pub(super) struct GroupRows {
    lengths: Lengths,
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
    /// Batches that were decoded already, and the column; with the lengths of those after them.
    Flat(VecDeque<ArrayRef>, Box<dyn FlatColumn>, Lengths),
    /// Columns read by the `parquet` crate: the rows beyond the last batch, and the lengths of the
    /// batches to come.
    Reader(Option<RecordBatch>, ParquetRecordBatchReader, Lengths),
}

impl GroupRows {
    /// Without columns: of the rows that those will have, the ones that `filter` has a bit for.
    pub(super) fn new(lengths: Lengths, filter: Option<BooleanBuffer>) -> Self {
        let (parts, order, roots) = (Vec::new(), Vec::new(), Vec::new());
        Self { lengths, batches: 1, filter, at: 0, parts, order, roots }
    }

    /// Sets how many batches of a column are decoded at a time.
    pub(super) fn at_a_time(self, batches: usize) -> Self {
        Self { batches, ..self }
    }

    pub(super) fn add_flat(&mut self, root: usize, column: Box<dyn FlatColumn>) {
        self.add_part(&[root], ColumnsReader::Flat(VecDeque::new(), column, self.lengths));
    }

    pub(super) fn add(&mut self, roots: &[usize], reader: ParquetRecordBatchReader) {
        self.add_part(roots, ColumnsReader::Reader(None, reader, self.lengths));
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
            if let ColumnsReader::Flat(ready, column, lengths) = part
                && ready.is_empty()
            {
                let mut lengths = *lengths;
                let rows = (0..self.batches).map(|_| lengths.next()).sum();
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
        for part in &mut self.parts {
            match part {
                ColumnsReader::Flat(ready, column, lengths) => {
                    if ready.is_empty() {
                        for _ in 0..self.batches {
                            ready.push_back(column.next(lengths.next())?);
                        }
                    }
                    columns.extend(ready.pop_front());
                }
                ColumnsReader::Reader(rest, reader, lengths) => {
                    match read(rest, reader, lengths.next())? {
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
