//! How columns lie in a stage's files: as in the query, but for dictionaries and runs.
//!
//! An Arrow IPC file has one dictionary per column, while a query's batches have one each. So their
//! values are stored, and encoded again when rows are read: then a dictionary holds the values of
//! its batch, and no more than the key type can number.

use std::sync::Arc;

use arrow::array::{ArrayRef, new_empty_array};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, FieldRef, Schema, SchemaRef};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};

use super::views::release;
use crate::formats::stored_field;
use crate::{Error, ErrorKind, Result};

/// The query's schema and the files' schema.
#[derive(Clone, Debug)]
pub(crate) struct StoredSchema {
    query: SchemaRef,
    stored: SchemaRef,
}

impl StoredSchema {
    /// The layout of a query's rows.
    ///
    /// # Errors
    /// `UnsupportedType` for a dictionary of values that cannot be encoded again.
    pub(crate) fn try_new(query: SchemaRef) -> Result<Self> {
        let fields: Vec<FieldRef> = query.fields().iter().map(stored_field).collect();
        for (field, stored) in query.fields().iter().zip(&fields) {
            let there = convert(&new_empty_array(field.data_type()), stored.data_type());
            if let Err(error) = there.and_then(|array| convert(&array, field.data_type())) {
                return Err(Error::new(
                    ErrorKind::UnsupportedType,
                    format!(
                        "column {:?} of type {} cannot be staged; cast it to its value type in the query",
                        field.name(),
                        field.data_type()
                    ),
                )
                .with_source(error));
            }
        }
        let stored = Arc::new(Schema::new_with_metadata(fields, query.metadata().clone()));
        Ok(Self { query, stored })
    }

    /// The query's schema.
    pub(crate) fn query(&self) -> &SchemaRef {
        &self.query
    }

    /// The files' schema.
    pub(crate) fn stored(&self) -> &SchemaRef {
        &self.stored
    }

    /// A query's rows as they are stored, with memory of their own where strings are held by views.
    pub(crate) fn store(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let columns = batch.columns().iter().zip(self.stored.fields());
        let columns: Vec<ArrayRef> = columns
            .map(|(column, field)| release(&convert(column, field.data_type())?))
            .collect::<Result<_>>()?;
        rows_of(&self.stored, columns, batch.num_rows())
    }

    /// Stored columns as the query's rows.
    pub(crate) fn restore(&self, columns: &[ArrayRef], rows: usize) -> Result<RecordBatch> {
        let columns: Vec<ArrayRef> = columns
            .iter()
            .zip(self.query.fields())
            .map(|(column, field)| convert(column, field.data_type()))
            .collect::<Result<_>>()?;
        rows_of(&self.query, columns, rows)
    }
}

/// A batch whose number of rows is said, since a query may have no columns.
pub(crate) fn rows_of(
    schema: &SchemaRef,
    columns: Vec<ArrayRef>,
    rows: usize,
) -> Result<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    Ok(RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)?)
}

fn convert(array: &ArrayRef, data_type: &DataType) -> Result<ArrayRef> {
    if array.data_type() == data_type {
        return Ok(Arc::clone(array));
    }
    // `safe` would turn what does not fit into nulls.
    let options = CastOptions { safe: false, ..CastOptions::default() };
    Ok(cast_with_options(array, data_type, &options)?)
}
