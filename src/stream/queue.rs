//! A queue of rows that arrive in batches of one size and leave in another.

use std::collections::VecDeque;

use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};

use super::gather::release;
use crate::tensor::BatchSlice;
use crate::{Error, Result};

/// Rows in the order they were pushed, taken out in any number.
///
/// Large batches pass as slices, without a copy. A selective filter can yield thousands of batches
/// of a few rows, each of which costs more to handle than to copy, and may keep the memory of a
/// page alive for one string: runs of batches under `tiny` rows are copied into one.
pub struct RowQueue {
    tiny: usize,
    pieces: VecDeque<BatchSlice>,
    piece_rows: usize,
    /// The tiny batches at the end of the queue that are not merged yet; fewer than `tiny` rows.
    run: Vec<RecordBatch>,
    run_rows: usize,
    schema: Option<SchemaRef>,
}

impl RowQueue {
    /// An empty queue that merges batches of fewer than `tiny` rows.
    pub fn new(tiny: usize) -> Self {
        Self {
            tiny,
            pieces: VecDeque::new(),
            piece_rows: 0,
            run: Vec::new(),
            run_rows: 0,
            schema: None,
        }
    }

    /// Rows in the queue.
    pub fn rows(&self) -> usize {
        self.piece_rows + self.run_rows
    }

    /// Appends rows.
    pub fn push(&mut self, rows: impl Into<BatchSlice>) -> Result<()> {
        let portion = rows.into();
        if portion.num_rows() == 0 {
            return Ok(());
        }
        check_types(self.schema.get_or_insert_with(|| portion.schema().clone()), &portion)?;
        if portion.num_rows() >= self.tiny {
            self.close_run()?;
            self.push_piece(portion);
            return Ok(());
        }
        self.run_rows += portion.num_rows();
        self.run.push(portion.into_batch()?);
        if self.run_rows >= self.tiny { self.close_run() } else { Ok(()) }
    }

    /// Removes the first `rows` rows, or all where there are fewer.
    pub fn take(&mut self, rows: usize) -> Result<Vec<BatchSlice>> {
        if self.piece_rows < rows {
            self.close_run()?;
        }
        let mut missing = rows;
        let mut taken = Vec::new();
        while missing > 0 {
            let Some(mut piece) = self.pieces.pop_front() else { break };
            let here = piece.num_rows().min(missing);
            self.piece_rows -= here;
            missing -= here;
            if here < piece.num_rows() {
                let rest;
                (piece, rest) = piece.split_at(here);
                self.pieces.push_front(rest);
            }
            taken.push(piece);
        }
        Ok(taken)
    }

    fn push_piece(&mut self, piece: BatchSlice) {
        self.piece_rows += piece.num_rows();
        self.pieces.push_back(piece);
    }

    /// Ends the run of tiny batches, so that its rows can be taken or a large batch can follow.
    fn close_run(&mut self) -> Result<()> {
        let run = std::mem::take(&mut self.run);
        self.run_rows = 0;
        for piece in merge(run)? {
            self.push_piece(piece.into());
        }
        Ok(())
    }
}

/// The rows of `run` as one batch with memory of its own.
fn merge(run: Vec<RecordBatch>) -> Result<Vec<RecordBatch>> {
    let [first, _, ..] = run.as_slice() else { return Ok(run) };
    let Ok(merged) = concat_batches(&first.schema(), &run) else {
        // Together the dictionaries exceed their key type, or the strings their offsets: leave them
        // apart.
        return Ok(run);
    };
    let rows = RecordBatchOptions::new().with_row_count(Some(merged.num_rows()));
    let columns = merged.columns().iter().map(release).collect::<Result<Vec<_>>>()?;
    Ok(vec![RecordBatch::try_new_with_options(merged.schema(), columns, &rows)?])
}

/// The kernels behind the queue take equal types for granted, so a batch of other types ends here.
fn check_types(schema: &SchemaRef, portion: &BatchSlice) -> Result<()> {
    let (wanted, found) = (schema.fields(), portion.data_types());
    if found.len() != wanted.len() {
        return Err(Error::data(format!(
            "a batch of {} columns follows batches of {}: all batches of a query must have its schema",
            found.len(),
            wanted.len()
        )));
    }
    for (field, other) in wanted.iter().zip(found) {
        if other != field.data_type() {
            return Err(Error::data(format!(
                "column {:?} turns from {} into {} within one query; cast it to one type",
                field.name(),
                field.data_type(),
                other
            )));
        }
    }
    Ok(())
}
