//! Strings and binaries held by views, copied out of the buffers they share.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeListArray, GenericListArray, MapArray, OffsetSizeTrait,
    StructArray,
};
use arrow::datatypes::DataType;

use crate::Result;

/// Returns true if string or binary views lie in the type where [`release`] reaches them.
pub(crate) fn has_views(data_type: &DataType) -> bool {
    match data_type {
        DataType::Utf8View | DataType::BinaryView => true,
        DataType::Struct(fields) => fields.iter().any(|field| has_views(field.data_type())),
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::FixedSizeList(field, _)
        | DataType::Map(field, _) => has_views(field.data_type()),
        _ => false,
    }
}

/// Copies the strings that views point to. `interleave` and `concat` copy only the views: a batch
/// of a few rows would keep the strings of all its sources in memory.
pub(crate) fn release(array: &ArrayRef) -> Result<ArrayRef> {
    if !has_views(array.data_type()) {
        return Ok(array.clone());
    }
    Ok(match array.data_type() {
        DataType::Utf8View => Arc::new(array.as_string_view().gc()),
        DataType::BinaryView => Arc::new(array.as_binary_view().gc()),
        DataType::List(_) => release_list::<i32>(array.as_list())?,
        DataType::LargeList(_) => release_list::<i64>(array.as_list())?,
        DataType::FixedSizeList(field, length) if *length > 0 => {
            let list = array.as_fixed_size_list();
            let (values, nulls) = (release(list.values())?, list.nulls().cloned());
            Arc::new(FixedSizeListArray::try_new(field.clone(), *length, values, nulls)?)
        }
        DataType::Struct(fields) => {
            let parent = array.as_struct();
            let columns = parent.columns().iter().map(release).collect::<Result<Vec<_>>>()?;
            Arc::new(StructArray::try_new(fields.clone(), columns, parent.nulls().cloned())?)
        }
        DataType::Map(_, _) => {
            let (field, offsets, entries, nulls, ordered) = array.as_map().clone().into_parts();
            let entries: ArrayRef = Arc::new(entries);
            let entries = release(&entries)?.as_struct().clone();
            Arc::new(MapArray::try_new(field, offsets, entries, nulls, ordered)?)
        }
        _ => array.clone(),
    })
}

fn release_list<O: OffsetSizeTrait>(list: &GenericListArray<O>) -> Result<ArrayRef> {
    let (field, offsets, values, nulls) = list.clone().into_parts();
    Ok(Arc::new(GenericListArray::<O>::try_new(field, offsets, release(&values)?, nulls)?))
}
