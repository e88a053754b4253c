//! The wanted rows of some columns of a row group, batch by batch.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use arrow::buffer::BooleanBuffer;
use arrow::compute::concat_batches;
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use parquet::arrow::arrow_reader::ParquetRecordBatchReader;
use parquet::errors::{ParquetError, Result};

use super::lengths::Lengths;
use super::primitive::FlatColumn;
use super::steps::{Step, Steps};

/// The wanted rows of some columns of a row group.
pub(super) struct GroupRows {
    steps: Steps,
    /// How many batches of a column are decoded at a time.
    batches: usize,
    /// The steps of those that were not given yet.
    planned: VecDeque<Step>,
    parts: Vec<ColumnsReader>,
    /// The place of each column in the requested order, by its place among the columns of all
    /// parts.
    order: Vec<usize>,
    /// The columns of all parts.
    roots: Vec<usize>,
}

/// Columns that are read together.
enum ColumnsReader {
    /// Batches that were decoded already, and the column.
    Flat(VecDeque<ArrayRef>, Box<dyn FlatColumn>),
    /// Columns read by the `parquet` crate, and the rows beyond the last batch.
    Reader(Option<RecordBatch>, ParquetRecordBatchReader),
}

impl GroupRows {
    /// Without columns: of the rows that those will have, the ones that `wanted` has a bit for.
    pub(super) fn new(lengths: Lengths, wanted: Option<BooleanBuffer>) -> Self {
        let (parts, order, roots) = (Vec::new(), Vec::new(), Vec::new());
        let (steps, planned) = (Steps::new(lengths, wanted), VecDeque::new());
        Self { steps, batches: 1, planned, parts, order, roots }
    }

    /// Sets how many batches of a column are decoded at a time.
    pub(super) fn at_a_time(self, batches: usize) -> Self {
        Self { batches, ..self }
    }

    pub(super) fn add_flat(&mut self, root: usize, column: Box<dyn FlatColumn>) {
        self.add_part(&[root], ColumnsReader::Flat(VecDeque::new(), column));
    }

    pub(super) fn add(&mut self, roots: &[usize], reader: ParquetRecordBatchReader) {
        self.add_part(roots, ColumnsReader::Reader(None, reader));
    }

    fn add_part(&mut self, roots: &[usize], part: ColumnsReader) {
        self.parts.push(part);
        self.roots.extend_from_slice(roots);
        self.order = (0..self.roots.len()).collect();
        self.order.sort_unstable_by_key(|at| self.roots[*at]);
    }

    fn plan(&mut self) {
        if self.planned.is_empty() {
            self.planned.extend((0..self.batches).map(|_| self.steps.next()));
        }
    }

    /// The ranges to read from the file before the next batch is decoded, each with its column.
    pub(super) fn missing(&mut self) -> Vec<(usize, Range<u64>)> {
        self.plan();
        let rows = self.planned.iter().map(|step| step.rows).sum();
        let mut missing = Vec::new();
        for (number, part) in self.parts.iter().enumerate() {
            if let ColumnsReader::Flat(ready, column) = part
                && ready.is_empty()
            {
                missing.extend(column.missing(rows).into_iter().map(|range| (number, range)));
            }
        }
        missing
    }

    /// Takes the bytes read for these ranges, in their order.
    pub(super) fn put(&mut self, missing: &[(usize, Range<u64>)], read: Vec<Bytes>) {
        for ((number, range), bytes) in missing.iter().zip(read) {
            if let ColumnsReader::Flat(_, column) = &mut self.parts[*number] {
                column.put(range, bytes);
            }
        }
    }

    /// The next batch, which may be empty: its rows, and its columns in ascending order.
    ///
    /// # Errors
    /// Where the chunks are damaged.
    pub(super) fn next(&mut self) -> Result<Option<(usize, Vec<ArrayRef>)>> {
        self.plan();
        let Some(step) = self.planned.front() else { return Ok(None) };
        let mut columns: Vec<ArrayRef> = Vec::with_capacity(self.roots.len());
        for part in &mut self.parts {
            match part {
                ColumnsReader::Flat(ready, column) => {
                    if ready.is_empty() {
                        for step in &self.planned {
                            ready.push_back(match &step.kept {
                                None => column.next(step.rows)?,
                                Some(kept) => column.kept(step.rows, kept)?,
                            });
                        }
                    }
                    columns.extend(ready.pop_front());
                }
                ColumnsReader::Reader(rest, reader) => {
                    match (read(rest, reader, step.rows)?, &step.kept) {
                        (None, _) => return Ok(None),
                        (Some(batch), None) => columns.extend_from_slice(batch.columns()),
                        (Some(batch), Some(kept)) => {
                            for column in batch.columns() {
                                columns.push(kept.of(column)?);
                            }
                        }
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
        if rows > 0 && step.is_behind {
            return Err(ParquetError::General(
                "the pages of a row group have more rows than the footer says".to_string(),
            ));
        }
        if rows == 0 && step.kept.is_none() {
            return Ok(None);
        }
        self.planned.pop_front();
        Ok(Some((rows, self.order.iter().map(|at| Arc::clone(&columns[*at])).collect())))
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
