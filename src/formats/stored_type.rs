//! Types of columns as rows are kept in files of our own.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef};

/// A type without dictionaries and runs.
pub fn stored_type(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Dictionary(_, values) => stored_type(values),
        DataType::RunEndEncoded(_, values) => stored_type(values.data_type()),
        DataType::List(field) => DataType::List(stored_field(field)),
        DataType::LargeList(field) => DataType::LargeList(stored_field(field)),
        DataType::FixedSizeList(field, length) => {
            DataType::FixedSizeList(stored_field(field), *length)
        }
        DataType::Map(field, ordered) => DataType::Map(stored_field(field), *ordered),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(stored_field).collect()),
        other => other.clone(),
    }
}

/// A field without dictionaries and runs.
pub fn stored_field(field: &FieldRef) -> FieldRef {
    let data_type = stored_type(field.data_type());
    if data_type == *field.data_type() {
        return Arc::clone(field);
    }
    let stored = Field::new(field.name(), data_type, field.is_nullable());
    Arc::new(stored.with_metadata(field.metadata().clone()))
}
