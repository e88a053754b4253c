//! The wanted rows of some columns of a row group, batch by batch.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray};
use arrow::buffer::BooleanBuffer;
use arrow::compute::filter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReader;
use parquet::errors::{ParquetError, Result};

use super::flat::FlatColumn;

/// The wanted rows of some columns of a row group.
pub(super) struct GroupRows {
    batch_rows: usize,
    /// Of the rows that are decoded, those that are wanted, where these are not all; and how many were decoded.
    filter: Option<BooleanBuffer>,
    at: usize,
    parts: Vec<Part>,
    /// The place of each column in the order asked for, by its place among those of all parts.
    order: Vec<usize>,
    /// The columns of all parts.
    roots: Vec<usize>,
}

/// Columns that are read together.
enum Part {
    Flat(Box<dyn FlatColumn>),
    /// By the `parquet` crate.
    Reader(ParquetRecordBatchReader),
}

impl GroupRows {
    /// Without columns: of the rows that those will have, the ones that `filter` has a bit for.
    pub(super) fn new(batch_rows: usize, filter: Option<BooleanBuffer>) -> Self {
        let (parts, order, roots) = (Vec::new(), Vec::new(), Vec::new());
        Self { batch_rows, filter, at: 0, parts, order, roots }
    }

    pub(super) fn add_flat(&mut self, root: usize, column: Box<dyn FlatColumn>) {
        self.add_part(&[root], Part::Flat(column));
    }

    pub(super) fn add(&mut self, roots: &[usize], reader: ParquetRecordBatchReader) {
        self.add_part(roots, Part::Reader(reader));
    }

    fn add_part(&mut self, roots: &[usize], part: Part) {
        self.parts.push(part);
        self.roots.extend_from_slice(roots);
        self.order = (0..self.roots.len()).collect();
        self.order.sort_unstable_by_key(|at| self.roots[*at]);
    }

    /// The next batch, which may be empty: its rows, and its columns in ascending order.
    ///
    /// # Errors
    /// Where the chunks are damaged.
    pub(super) fn next(&mut self) -> Result<Option<(usize, Vec<ArrayRef>)>> {
        let mut columns: Vec<ArrayRef> = Vec::with_capacity(self.roots.len());
        for part in &mut self.parts {
            match part {
                Part::Flat(column) => columns.push(column.next(self.batch_rows)?),
                Part::Reader(reader) => match reader.next().transpose()? {
                    Some(batch) => columns.extend_from_slice(batch.columns()),
                    None => return Ok(None),
                },
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
        let columns = columns.map(|column| Ok(filter(&column, &here)?));
        Ok(Some((here.true_count(), columns.collect::<Result<_>>()?)))
    }
}
