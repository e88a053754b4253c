//! A plan whose splits are made up: each row is its own number.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Float32Array, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use futures::stream::{self, BoxStream, StreamExt};

use crate::formats::BatchEnds;
use crate::matrix::{MatrixColumns, MatrixSchema};
use crate::{Error, Result};

/// Splits of so many rows, numbered on from split to split, which come in batches of `batch_rows`.
#[derive(Clone, Debug)]
pub struct EpochPlan {
    counts: Arc<[u64]>,
    batch_rows: u64,
}

impl EpochPlan {
    pub fn new(counts: &[u64], batch_rows: u64) -> Self {
        Self { counts: counts.into(), batch_rows }
    }

    /// The number of the row, and the same as a float.
    pub fn schema(&self) -> SchemaRef {
        Arc::new(Schema::new(vec![
            Field::new("id", DataType::Int64, false),
            Field::new("x", DataType::Float32, false),
        ]))
    }

    pub fn with_matrices(&self, _: Vec<MatrixColumns>) -> Result<Option<(Self, MatrixSchema)>> {
        Ok(None)
    }

    pub fn matrices(&self) -> usize {
        0
    }

    pub fn split_bytes(&self) -> u64 {
        0
    }

    pub fn memory_limit(&self) -> Option<usize> {
        None
    }

    #[must_use]
    pub fn in_long_batches(self) -> Self {
        Self { batch_rows: self.batch_rows * 4, ..self }
    }

    pub fn file_of(&self, id: u32) -> Option<(u32, u32)> {
        Some((0, id))
    }

    /// Like a decoder it makes memory of its own, and like storage it lets others run meanwhile.
    pub async fn execute_rows(
        &self,
        id: u32,
        wanted: Range<u64>,
        _cuts: Option<BatchEnds>,
    ) -> Result<(BoxStream<'static, Result<RecordBatch>>, u64)> {
        let Some(rows) = self.counts.get(id as usize).copied() else {
            return Err(Error::config(format!("split {id} does not exist")));
        };
        let first: u64 = self.counts[..id as usize].iter().sum();
        let (end, step) = (rows.min(wanted.end), self.batch_rows.max(1));
        let skipped = wanted.start.min(end);
        let (schema, starts) = (self.schema(), (skipped..end).step_by(step as usize));
        let batches = stream::iter(starts).then(move |start| {
            let schema = Arc::clone(&schema);
            async move {
                tokio::task::yield_now().await;
                let numbers = first + start..first + end.min(start + step);
                let ids = Int64Array::from_iter_values(numbers.clone().map(|id| id as i64));
                let floats = Float32Array::from_iter_values(numbers.map(|id| id as f32));
                Ok(RecordBatch::try_new(schema, vec![Arc::new(ids), Arc::new(floats)])?)
            }
        });
        Ok((batches.boxed(), skipped))
    }
}
