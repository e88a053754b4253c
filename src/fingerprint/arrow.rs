//! The forms of Arrow's types and values.

use std::collections::BTreeMap;

use arrow::array::{Array, ArrayRef, AsArray, StructArray};
use arrow::datatypes::{DataType, Schema};
use arrow::ffi::FFI_ArrowSchema;

use super::Form;
use crate::{Error, Result};

/// The columns of a schema: names, types, nullability and metadata, as the Arrow C data interface
/// spells them.
///
/// # Errors
/// `Config` where a type has no form there.
pub fn schema(form: &mut Form, tag: &str, schema: &Schema) -> Result<()> {
    form.list(tag, schema.fields(), |form, field| {
        columns(form, &FFI_ArrowSchema::try_from(field.as_ref())?)
    })?;
    Ok(())
}

/// A type.
///
/// # Errors
/// `Config` where it has no form in the Arrow C data interface.
pub fn data_type(form: &mut Form, tag: &str, data_type: &DataType) -> Result<()> {
    let spelled = FFI_ArrowSchema::try_from(data_type)?;
    form.nested(tag, "type", |form| columns(form, &spelled))?;
    Ok(())
}

fn columns(form: &mut Form, spelled: &FFI_ArrowSchema) -> Result<()> {
    form.text("format", spelled.format());
    form.optional_text("name", spelled.name());
    form.flag("nullable", spelled.nullable());
    form.flag("keys sorted", spelled.map_keys_sorted());
    form.flag("dictionary ordered", spelled.dictionary_ordered());
    let metadata: BTreeMap<String, String> = spelled.metadata()?.into_iter().collect();
    form.list("metadata", &metadata, |form, (key, value)| {
        form.text("key", key).text("value", value);
        Ok(())
    })?;
    form.list("children", spelled.children(), columns)?;
    match spelled.dictionary() {
        Some(values) => {
            form.nested("dictionary", "type", |form| columns(form, values))?;
        }
        None => {
            form.absent("dictionary");
        }
    }
    Ok(())
}

/// The type and the values of an array, bit by bit: -0.0 is not 0.0, and two NaN of other bits are
/// two values.
///
/// # Errors
/// `Config` for a union and for run-end encoded values: no SQL literal has these types.
pub fn values(form: &mut Form, tag: &str, array: &dyn Array) -> Result<()> {
    form.nested(tag, "values", |form| {
        data_type(form, "type", array.data_type())?;
        form.list("values", 0..array.len(), |form, row| value(form, array, row))?;
        Ok(())
    })?;
    Ok(())
}

fn value(form: &mut Form, array: &dyn Array, row: usize) -> Result<()> {
    if array.is_null(row) || array.data_type() == &DataType::Null {
        form.absent("value");
        return Ok(());
    }
    match array.data_type() {
        DataType::Boolean => form.flag("value", array.as_boolean().value(row)),
        DataType::Utf8 => form.text("value", array.as_string::<i32>().value(row)),
        DataType::LargeUtf8 => form.text("value", array.as_string::<i64>().value(row)),
        DataType::Utf8View => form.text("value", array.as_string_view().value(row)),
        DataType::Binary => form.bytes("value", array.as_binary::<i32>().value(row)),
        DataType::LargeBinary => form.bytes("value", array.as_binary::<i64>().value(row)),
        DataType::BinaryView => form.bytes("value", array.as_binary_view().value(row)),
        DataType::FixedSizeBinary(_) => {
            form.bytes("value", array.as_fixed_size_binary().value(row))
        }
        DataType::List(_) => return values(form, "value", &array.as_list::<i32>().value(row)),
        DataType::LargeList(_) => return values(form, "value", &array.as_list::<i64>().value(row)),
        DataType::FixedSizeList(..) => {
            return values(form, "value", &array.as_fixed_size_list().value(row));
        }
        DataType::ListView(_) => {
            return values(form, "value", &array.as_list_view::<i32>().value(row));
        }
        DataType::LargeListView(_) => {
            return values(form, "value", &array.as_list_view::<i64>().value(row));
        }
        DataType::Map(..) => return entries(form, &array.as_map().value(row)),
        DataType::Struct(_) => return entries(form, &array.as_struct().slice(row, 1)),
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            let key = dictionary.normalized_keys()[row];
            return value(form, dictionary.values(), key);
        }
        other => {
            let width = other.primitive_width().ok_or_else(|| {
                Error::config(format!("a value of type {other} has no place in a fingerprint"))
            })?;
            let data = array.to_data();
            let start = (data.offset() + row) * width;
            form.bytes("value", &data.buffers()[0].as_slice()[start..start + width])
        }
    };
    Ok(())
}

fn entries(form: &mut Form, rows: &StructArray) -> Result<()> {
    let columns: &[ArrayRef] = rows.columns();
    form.list("value", columns, |form, column| values(form, "column", column))?;
    Ok(())
}
