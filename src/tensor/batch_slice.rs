//! Rows on their way into a batch, some of whose columns may still lie where they were mixed.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::{DataType, SchemaRef};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};

use super::buffer_ownership::{apart, sole_owner};
use crate::Result;
use crate::matrix::is_alone;

/// Some rows of one schema.
///
/// A column either holds their values, in their order, or is *picked*: it is an array of more rows,
/// such as a shuffle window, and the rows are those with certain numbers. So a value that ends in a
/// tensor is copied there from the window, and not first into an array in between.
#[derive(Debug)]
pub struct BatchSlice {
    schema: SchemaRef,
    columns: Vec<ArrayRef>,
    rows: usize,
    picked: Option<Picked>,
    /// Marks columns whose rows are in no other portion and whose memory only portions hold. So a
    /// portion cannot be cloned.
    alone: Option<Arc<[bool]>>,
}

/// Which columns are picked, and the numbers of their rows.
#[derive(Clone, Debug)]
struct Picked {
    columns: Arc<[bool]>,
    rows: UInt32Array,
}

impl BatchSlice {
    /// The rows with the numbers `rows`. Of each column that `picked` marks, `columns` holds an
    /// array in which they are found by these numbers; of the others, their values.
    pub fn picked(
        schema: SchemaRef,
        columns: Vec<ArrayRef>,
        picked: Arc<[bool]>,
        rows: UInt32Array,
    ) -> Self {
        let count = rows.len();
        let picked = picked.contains(&true).then_some(Picked { columns: picked, rows });
        Self { schema, columns, rows: count, picked, alone: None }
    }

    /// Marks columns whose memory only these slices hold, without rows of other slices.
    #[must_use]
    pub fn owning(self, columns: Arc<[bool]>) -> Self {
        Self { alone: columns.contains(&true).then_some(columns), ..self }
    }

    /// The rows of a batch that was just decoded, with a look at which columns nobody else holds.
    /// The last `matrices` columns are matrices that were made of others.
    pub fn decoded(batch: RecordBatch, matrices: usize) -> Self {
        let (schema, mut columns, rows) = batch.into_parts();
        let made = columns.split_off(columns.len().saturating_sub(matrices));
        let made = made.into_iter().map(|matrix| {
            let is_alone = is_alone(&matrix);
            (matrix, is_alone)
        });
        let (columns, alone): (Vec<_>, Vec<_>) =
            columns.into_iter().map(sole_owner).chain(made).unzip();
        let alone = alone.contains(&true).then(|| Arc::from(alone));
        Self { schema, columns, rows, picked: None, alone }
    }

    /// The schema of its columns.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Its rows.
    pub fn num_rows(&self) -> usize {
        self.rows
    }

    /// The types of its columns.
    pub fn data_types(&self) -> impl ExactSizeIterator<Item = &DataType> {
        self.columns.iter().map(|array| array.data_type())
    }

    /// Its first `rows` rows, and the others, without a copy.
    #[must_use]
    pub fn split_at(self, rows: usize) -> (Self, Self) {
        let rest = Self { alone: self.alone.clone(), ..self.slice(rows, self.rows - rows) };
        (Self { alone: self.alone.clone(), ..self.slice(0, rows) }, rest)
    }

    fn slice(&self, first: usize, rows: usize) -> Self {
        let columns = self.columns.iter().enumerate();
        let columns = columns.map(|(index, array)| match self.picks(index) {
            Some(_) => Arc::clone(array),
            None => array.slice(first, rows),
        });
        let picked = self.picked.as_ref().map(|picked| Picked {
            columns: Arc::clone(&picked.columns),
            rows: picked.rows.slice(first, rows),
        });
        let (schema, columns) = (Arc::clone(&self.schema), columns.collect());
        Self { schema, columns, rows, picked, alone: None }
    }

    /// As a record batch, for which picked values are copied.
    ///
    /// # Errors
    /// `Data` where the engine's arrays contradict the schema.
    pub fn into_batch(self) -> Result<RecordBatch> {
        let columns = match &self.picked {
            None => self.columns,
            Some(_) => {
                (0..self.columns.len()).map(|index| self.gathered(index)).collect::<Result<_>>()?
            }
        };
        // The number of rows is said, since a query may have no columns.
        let options = RecordBatchOptions::new().with_row_count(Some(self.rows));
        Ok(RecordBatch::try_new_with_options(self.schema, columns, &options)?)
    }

    /// The rows for an owner that may keep them for long. Small parts of memory that only slices
    /// hold, such as that of a shuffle window, are copied.
    ///
    /// # Errors
    /// `Data` where the engine's arrays contradict the schema.
    pub fn into_kept_batch(mut self) -> Result<RecordBatch> {
        if let Some(alone) = self.alone.take() {
            let columns = self.columns.iter().zip(alone.iter()).map(|(array, is_alone)| {
                if *is_alone { apart(array) } else { Ok(Arc::clone(array)) }
            });
            self.columns = columns.collect::<Result<_>>()?;
        }
        self.into_batch()
    }

    /// The values of column `index`, copied where it is picked.
    pub(super) fn gathered(&self, index: usize) -> Result<ArrayRef> {
        let array = &self.columns[index];
        match self.picks(index) {
            Some(rows) => Ok(take(array, rows, None)?),
            None => Ok(Arc::clone(array)),
        }
    }

    /// The array of column `index`, and the numbers of the rows in it where it is picked.
    pub(super) fn in_place(&self, index: usize) -> (&ArrayRef, Option<&UInt32Array>) {
        (&self.columns[index], self.picks(index))
    }

    /// Returns true if the memory of column `index` may be handed out with its rows.
    pub(super) fn is_alone(&self, index: usize) -> bool {
        self.alone.as_ref().is_some_and(|alone| alone[index])
    }

    fn picks(&self, index: usize) -> Option<&UInt32Array> {
        self.picked.as_ref().filter(|picked| picked.columns[index]).map(|picked| &picked.rows)
    }
}

impl From<RecordBatch> for BatchSlice {
    fn from(batch: RecordBatch) -> Self {
        let (schema, columns, rows) = batch.into_parts();
        Self { schema, columns, rows, picked: None, alone: None }
    }
}
