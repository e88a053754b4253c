//! Clears the values below NULL structs and lists. Arrow leaves them open: zeros, empty text, or
//! any value. DataFusion reads a field without asking whether its struct is NULL, and an element
//! without asking for its list. Readers of other formats clear them themselves.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, FixedSizeListArray, GenericListArray, LargeListArray,
    ListArray, OffsetSizeTrait, StructArray, UInt64Array,
};
use arrow::buffer::NullBuffer;
use arrow::compute::{nullif, take};
use arrow::datatypes::DataType;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};

use crate::Result;

/// The batch in which fields of NULL structs are NULL and NULL lists have no elements, also of
/// structs inside of lists. Values are copied only where a NULL list has elements.
///
/// # Errors
/// None that a valid batch has.
pub fn with_null_fields(batch: RecordBatch) -> Result<RecordBatch> {
    if !batch.schema_ref().fields().iter().any(|field| is_nested(field.data_type())) {
        return Ok(batch);
    }
    let columns = batch.columns().iter().map(masked).collect::<Result<Vec<_>>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    Ok(RecordBatch::try_new_with_options(batch.schema(), columns, &options)?)
}

/// The array with nothing below its NULLs: rows that are taken from nowhere have nothing.
///
/// # Errors
/// None that a valid array has.
pub fn emptied(array: &ArrayRef) -> Result<ArrayRef> {
    if array.null_count() == 0 {
        return Ok(Arc::clone(array));
    }
    let rows = (0..array.len()).map(|row| array.is_valid(row).then_some(row as u64));
    Ok(take(array, &rows.collect::<UInt64Array>(), None)?)
}

fn is_nested(data_type: &DataType) -> bool {
    use DataType::{FixedSizeList, LargeList, List, Struct};
    matches!(data_type, Struct(_) | List(_) | LargeList(_) | FixedSizeList(_, _))
}

/// Returns true if a NULL list has elements.
fn hides<O: OffsetSizeTrait>(list: &GenericListArray<O>) -> bool {
    list.null_count() > 0
        && list
            .offsets()
            .windows(2)
            .enumerate()
            .any(|(row, ends)| ends[0] < ends[1] && list.is_null(row))
}

fn masked(array: &ArrayRef) -> Result<ArrayRef> {
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
        DataType::List(_) if hides(array.as_list::<i32>()) => masked(&emptied(array)?)?,
        DataType::LargeList(_) if hides(array.as_list::<i64>()) => masked(&emptied(array)?)?,
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
            let hidden = nulls.as_ref().filter(|nulls| nulls.null_count() > 0);
            let items = match (hidden, usize::try_from(size)) {
                (Some(nulls), Ok(size)) if size > 0 => below(&items, Some(&nulls.expand(size)))?,
                _ => masked(&items)?,
            };
            Arc::new(FixedSizeListArray::try_new(field, size, items, nulls)?)
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

    #[test]
    fn lists_that_are_null_have_no_elements() {
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3, 4, 5]));
        let item = Arc::new(Field::new("item", DataType::Int64, true));
        let offsets = OffsetBuffer::from_lengths([2, 2, 1]);
        let nulls = Some(NullBuffer::from(vec![true, false, true]));
        let list = ListArray::new(Arc::clone(&item), offsets, numbers, nulls);
        let found = masked(&(Arc::new(list.clone()) as ArrayRef)).unwrap();
        assert_eq!(found.as_list::<i32>().value_offsets(), [0, 2, 2, 3]);
        assert_eq!(*found.as_list::<i32>(), list);
        let pairs: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3, 4]));
        let nulls = Some(NullBuffer::from(vec![true, false]));
        let fixed: ArrayRef = Arc::new(FixedSizeListArray::new(item, 2, pairs, nulls));
        let found = masked(&fixed).unwrap();
        assert_eq!(found.as_fixed_size_list().values().null_count(), 2);
    }
}
