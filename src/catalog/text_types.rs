//! Declared types that the readers of text do not make: refused when the table is registered,
//! before a row is read.

use arrow::datatypes::{DataType, Schema};

use crate::formats::Format;
use crate::{Error, ErrorKind, Result};

/// Checks that a declared schema can be read from files of this format.
///
/// # Errors
/// `UnsupportedType` naming the first column that cannot, and a type to declare instead.
pub(super) fn readable(schema: &Schema, format: &Format) -> Result<()> {
    let (text, is_made): (_, fn(&DataType) -> bool) = match format {
        Format::Csv(_) => ("CSV", made_of_csv),
        Format::Json(_) => ("JSON", made_of_json),
        Format::Parquet | Format::Arrow(_) | Format::Orc | Format::Avro => return Ok(()),
    };
    let Some(odd) = schema.fields().iter().find(|field| !is_made(field.data_type())) else {
        return Ok(());
    };
    let (name, declared) = (odd.name(), odd.data_type());
    let remedy = match instead(declared, is_made) {
        Some(other) => format!(
            "declare {other}, and write arrow_cast({name:?}, '{declared}') in the query where it matters"
        ),
        None => "leave its type to be inferred, or write it as Parquet".to_owned(),
    };
    Err(Error::new(
        ErrorKind::UnsupportedType,
        format!("column {name:?} is declared {declared}, which is not read from {text}; {remedy}"),
    ))
}

fn made_of_csv(data_type: &DataType) -> bool {
    use DataType::*;
    match data_type {
        // With 8 bits a batch of more values would end in a panic.
        Dictionary(key, value) => **value == Utf8 && !matches!(**key, Int8 | UInt8),
        Null | Boolean | Utf8 | Utf8View | Date32 | Date64 | Time32(_) | Time64(_) => true,
        Timestamp(..) | Float16 | Float32 | Float64 => true,
        other => other.is_integer() || other.is_decimal(),
    }
}

fn made_of_json(data_type: &DataType) -> bool {
    use DataType::*;
    match data_type {
        Dictionary(..) | Interval(_) | Union(..) => false,
        List(item) | LargeList(item) | ListView(item) | LargeListView(item) => {
            made_of_json(item.data_type())
        }
        FixedSizeList(item, _) | Map(item, _) | RunEndEncoded(_, item) => {
            made_of_json(item.data_type())
        }
        Struct(fields) => fields.iter().all(|field| made_of_json(field.data_type())),
        _ => true,
    }
}

/// A type that is made of the text, from which the query can cast.
fn instead(data_type: &DataType, is_made: fn(&DataType) -> bool) -> Option<DataType> {
    use DataType::*;
    Some(match data_type {
        LargeUtf8 | Binary | LargeBinary | BinaryView | Interval(_) => Utf8,
        Duration(_) => Int64,
        Dictionary(_, value) => {
            let wide = Dictionary(Box::new(Int32), value.clone());
            match is_made(&wide) {
                true => wide,
                false if is_made(value) => value.as_ref().clone(),
                false => instead(value, is_made)?,
            }
        }
        _ => return None,
    })
}
