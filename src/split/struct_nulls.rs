//! What lies below a NULL struct. Arrow leaves it open: zeros, empty text, or any value. DataFusion reads a field without asking
//! whether the struct around it is NULL, so that its fields are made NULL before. Readers of other formats do that themselves.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, FixedSizeListArray, LargeListArray, ListArray,
    StructArray,
};
use arrow::buffer::NullBuffer;
use arrow::compute::nullif;
use arrow::datatypes::DataType;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};

use crate::Result;

/// The batch in which fields of NULL structs are NULL, also of structs inside of lists. Values are not copied.
///
/// # Errors
/// None that a valid batch has.
pub fn with_null_fields(batch: RecordBatch) -> Result<RecordBatch> {
    if !batch.schema_ref().fields().iter().any(|field| has_struct(field.data_type())) {
        return Ok(batch);
    }
    let columns = batch.columns().iter().map(masked).collect::<Result<Vec<_>>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    Ok(RecordBatch::try_new_with_options(batch.schema(), columns, &options)?)
}

/// The same of one array.
///
/// # Errors
/// None that a valid array has.
pub fn with_null_fields_in(array: &ArrayRef) -> Result<ArrayRef> {
    masked(array)
}

/// Whether a value of this type is a struct, or a list of structs.
pub fn has_struct(data_type: &DataType) -> bool {
    match data_type {
        DataType::Struct(_) => true,
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            has_struct(item.data_type())
        }
        _ => false,
    }
}

fn masked(array: &ArrayRef) -> Result<ArrayRef> {
    if !has_struct(array.data_type()) {
        return Ok(Arc::clone(array));
    }
    if let Some(parent) = array.as_struct_opt() {
        let nulls = parent.nulls().filter(|nulls| nulls.null_count() > 0);
        let fields = parent.columns().iter().map(|field| match nulls {
            Some(_) => below(field, nulls),
            None => masked(field),
        });
        let fields = fields.collect::<Result<Vec<_>>>()?;
        let (names, length) = (parent.fields().clone(), parent.len());
        let made =
            StructArray::try_new_with_length(names, fields, parent.nulls().cloned(), length)?;
        return Ok(Arc::new(made));
    }
    Ok(match array.data_type() {
        DataType::List(_) => {
            let (field, offsets, items, nulls) = array.as_list::<i32>().clone().into_parts();
            Arc::new(ListArray::try_new(field, offsets, masked(&items)?, nulls)?)
        }
        DataType::LargeList(_) => {
            let (field, offsets, items, nulls) = array.as_list::<i64>().clone().into_parts();
            Arc::new(LargeListArray::try_new(field, offsets, masked(&items)?, nulls)?)
        }
        DataType::FixedSizeList(_, _) => {
            let (field, size, items, nulls) = array.as_fixed_size_list().clone().into_parts();
            Arc::new(FixedSizeListArray::try_new(field, size, masked(&items)?, nulls)?)
        }
        _ => Arc::clone(array),
    })
}

/// An array that is NULL where its parent is, too.
fn below(array: &ArrayRef, parent: Option<&NullBuffer>) -> Result<ArrayRef> {
    use DataType::{Null, RunEndEncoded, Union};
    let has_nulls = !matches!(array.data_type(), Null | Union(_, _) | RunEndEncoded(_, _));
    let Some(parent) = parent.filter(|_| has_nulls) else { return Ok(Arc::clone(array)) };
    let is_null = BooleanArray::new(!parent.inner(), None);
    // A struct that becomes NULL has fields of its own.
    masked(&nullif(array, &is_null)?)
}

#[cfg(test)]
mod tests {
    use arrow::array::Int64Array;
    use arrow::buffer::OffsetBuffer;
    use arrow::datatypes::{Field, Fields, Int64Type, Schema};

    use super::*;

    #[test]
    fn fields_are_null_where_a_struct_around_them_is() {
        let number = Arc::new(Field::new("n", DataType::Int64, true));
        let inner_fields = Fields::from(vec![number]);
        let inner_type = DataType::Struct(inner_fields.clone());
        let inner = Field::new("inner", inner_type.clone(), true);
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3, 4]));
        let within = StructArray::new(
            inner_fields,
            vec![numbers],
            Some(NullBuffer::from(vec![true, false, true, true])),
        );
        let outer = StructArray::new(
            Fields::from(vec![inner.clone()]),
            vec![Arc::new(within.clone())],
            Some(NullBuffer::from(vec![true, true, false, true])),
        );
        let item = Arc::new(inner.with_name("item"));
        let list =
            ListArray::new(item, OffsetBuffer::from_lengths([1, 1, 2, 0]), Arc::new(within), None);
        let columns: Vec<ArrayRef> = vec![Arc::new(outer), Arc::new(list)];
        let fields = columns.iter().map(|column| Field::new("c", column.data_type().clone(), true));
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let batch = with_null_fields(RecordBatch::try_new(schema, columns).unwrap()).unwrap();
        let outer = batch.column(0).as_struct().column(0).as_struct().column(0);
        let found: Vec<_> = outer.as_primitive::<Int64Type>().iter().collect();
        assert_eq!(found, [Some(1), None, None, Some(4)]);
        let items = batch.column(1).as_list::<i32>().values().as_struct().column(0);
        let found: Vec<_> = items.as_primitive::<Int64Type>().iter().collect();
        assert_eq!(found, [Some(1), None, Some(3), Some(4)]);
    }
}
