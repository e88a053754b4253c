//! One schema for all files of a table: equal columns, safe widenings and missing nullable columns;
//! anything else is an error that names both files and the column.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Fields, IntervalUnit, Schema};

use crate::formats::is_marked;
use crate::{Error, Result};

/// Merges the files' schemas in order; columns keep the order of their first appearance. A schema's
/// metadata is dropped: it describes one file, such as its number of rows, and the engine treats
/// tables with different metadata as tables of other columns.
///
/// # Errors
/// `Data` naming both files and the column where two files disagree.
pub fn merge_schemas<'a>(files: impl IntoIterator<Item = (&'a str, &'a Schema)>) -> Result<Schema> {
    let mut merged: Vec<(FieldRef, &str)> = Vec::new();
    let mut index: HashMap<String, usize> = HashMap::new();
    let mut first_file = "";
    for (number, (file, schema)) in files.into_iter().enumerate() {
        if number == 0 {
            first_file = file;
        }
        let mut seen = vec![false; merged.len()];
        for field in schema.fields() {
            match index.get(field.name()) {
                // Columns that this file brought are behind the end of `seen`.
                Some(at) if seen.get(*at).copied().unwrap_or(true) => {
                    return Err(Error::data(format!(
                        "{file} has two columns named {:?}; rename one of them",
                        field.name()
                    )));
                }
                Some(at) => {
                    seen[*at] = true;
                    let (known, first) = &merged[*at];
                    if known != field {
                        merged[*at] = (widen_field(known, field, first, file)?, first);
                    }
                }
                None => {
                    if number > 0 && !field.is_nullable() {
                        return Err(missing(field.name(), file, first_file));
                    }
                    index.insert(field.name().clone(), merged.len());
                    merged.push((Arc::clone(field), file));
                }
            }
        }
        for ((field, first), seen) in merged.iter().zip(&seen) {
            if !seen && !field.is_nullable() {
                return Err(missing(field.name(), first, file));
            }
        }
    }
    let fields: Fields = merged.into_iter().map(|(field, _)| field).collect();
    Ok(Schema::new(fields))
}

/// The columns of all files by their first appearance, without a check of types: for files that are
/// read as a declared schema, so that their own types may disagree.
pub fn column_names<'a>(files: impl IntoIterator<Item = &'a Schema>) -> Schema {
    let mut known: Vec<FieldRef> = Vec::new();
    let mut names: HashSet<&str> = HashSet::new();
    for schema in files {
        known.extend(schema.fields().iter().filter(|field| names.insert(field.name())).cloned());
    }
    Schema::new(known)
}

fn missing(column: &str, with: &str, without: &str) -> Error {
    Error::data(format!(
        "the files disagree: column {column:?} is required (not nullable) in {with} and missing in \
         {without}; declare the table's schema, or register the files apart"
    ))
}

fn widen_field(a: &FieldRef, b: &FieldRef, file_a: &str, file_b: &str) -> Result<FieldRef> {
    // It is refused where it is read, whatever it is in other files.
    if let Some(marked) = [a, b].into_iter().find(|field| is_marked(field)) {
        return Ok(Arc::new(Field::clone(marked).with_nullable(true)));
    }
    let data_type = widen(a.data_type(), b.data_type()).ok_or_else(|| {
        Error::data(format!(
            "the files disagree: column {:?} is {} in {file_a} and {} in {file_b}, and neither widens \
             safely to the other; declare the table's schema, or register the files apart",
            a.name(),
            a.data_type(),
            b.data_type(),
        ))
    })?;
    let field = Field::new(a.name(), data_type, a.is_nullable() || b.is_nullable());
    Ok(Arc::new(field.with_metadata(a.metadata().clone())))
}

/// The type that holds every value of both, exactly; None where there is none.
fn widen(a: &DataType, b: &DataType) -> Option<DataType> {
    use DataType::*;
    if a == b {
        return Some(a.clone());
    }
    if let Some(wide) = widen_number(a, b) {
        return Some(wide);
    }
    match (a, b) {
        (Null, other) | (other, Null) => Some(other.clone()),
        (Utf8, LargeUtf8) | (LargeUtf8, Utf8) => Some(LargeUtf8),
        (Utf8, Utf8View) | (Utf8View, Utf8) => Some(Utf8View),
        (Binary, LargeBinary) | (LargeBinary, Binary) => Some(LargeBinary),
        (Binary, BinaryView) | (BinaryView, Binary) => Some(BinaryView),
        (Dictionary(_, value), other) | (other, Dictionary(_, value)) => match other {
            Dictionary(_, other) => widen(value, other),
            other => widen(value, other),
        },
        (Decimal128(p, s), Decimal128(q, t)) => {
            let scale = *s.max(t);
            let digits = (*p as i16 - *s as i16).max(*q as i16 - *t as i16);
            let precision = u8::try_from(digits + scale as i16).ok()?;
            (precision <= 38).then_some(Decimal128(precision, scale))
        }
        (List(x), List(y)) => Some(List(widen_child(x, y)?)),
        (LargeList(x), LargeList(y)) | (List(x), LargeList(y)) | (LargeList(x), List(y)) => {
            Some(LargeList(widen_child(x, y)?))
        }
        (FixedSizeList(x, n), FixedSizeList(y, m)) if n == m => {
            Some(FixedSizeList(widen_child(x, y)?, *n))
        }
        (Struct(x), Struct(y)) => widen_struct(x, y),
        (Map(x, sorted), Map(y, also)) => Some(Map(widen_entries(x, y)?, *sorted && *also)),
        (Interval(_), Interval(_)) => Some(Interval(IntervalUnit::MonthDayNano)),
        (Date32, Date64) | (Date64, Date32) => Some(Date64),
        _ => None,
    }
}

fn widen_child(a: &FieldRef, b: &FieldRef) -> Option<FieldRef> {
    let data_type = widen(a.data_type(), b.data_type())?;
    Some(Arc::new(Field::new(a.name(), data_type, a.is_nullable() || b.is_nullable())))
}

/// A struct with the fields of both, in the order of their first appearance. A field that one of
/// them lacks may be NULL.
fn widen_struct(a: &Fields, b: &Fields) -> Option<DataType> {
    let find = |fields: &Fields, name: &str| -> Option<FieldRef> {
        fields.iter().find(|field| field.name() == name).cloned()
    };
    let absent = |field: &FieldRef| Arc::new(Field::clone(field).with_nullable(true));
    let of_a = a.iter().map(|field| match find(b, field.name()) {
        Some(other) => widen_child(field, &other),
        None => Some(absent(field)),
    });
    let of_b = b.iter().filter(|field| find(a, field.name()).is_none());
    let fields: Option<Vec<FieldRef>> = of_a.chain(of_b.map(|field| Some(absent(field)))).collect();
    Some(DataType::Struct(fields?.into()))
}

/// The entries of a map: keys and values by their places; their names do not matter.
fn widen_entries(a: &FieldRef, b: &FieldRef) -> Option<FieldRef> {
    let (DataType::Struct(x), DataType::Struct(y)) = (a.data_type(), b.data_type()) else {
        return None;
    };
    let pair: Option<Vec<FieldRef>> = x.iter().zip(y).map(|(x, y)| widen_child(x, y)).collect();
    let entries = DataType::Struct(pair?.into());
    (x.len() == 2 && y.len() == 2)
        .then(|| Arc::new(Field::new(a.name(), entries, a.is_nullable() || b.is_nullable())))
}

/// Integers widen to integers that hold both, and to floats whose mantissa holds them.
fn widen_number(a: &DataType, b: &DataType) -> Option<DataType> {
    use DataType::*;
    let bits = |t: &DataType| match t {
        Int8 | UInt8 => Some(8u32),
        Int16 | UInt16 | Float16 => Some(16),
        Int32 | UInt32 | Float32 => Some(32),
        Int64 | UInt64 | Float64 => Some(64),
        _ => None,
    };
    let (wide_a, wide_b) = (bits(a)?, bits(b)?);
    let is_float = |t: &DataType| matches!(t, Float16 | Float32 | Float64);
    let signed = |t: &DataType| matches!(t, Int8 | Int16 | Int32 | Int64);
    match (is_float(a), is_float(b)) {
        (true, true) => Some(if wide_a > wide_b { a.clone() } else { b.clone() }),
        (false, false) if signed(a) == signed(b) => {
            Some(if wide_a > wide_b { a.clone() } else { b.clone() })
        }
        (false, false) => {
            let (unsigned, other) = if signed(a) { (wide_b, wide_a) } else { (wide_a, wide_b) };
            match (unsigned * 2).max(other) {
                16 => Some(Int16),
                32 => Some(Int32),
                64 => Some(Int64),
                _ => None,
            }
        }
        (float_first, _) => {
            let (float, int) = if float_first { (wide_a, wide_b) } else { (wide_b, wide_a) };
            match (int, float) {
                (8, 16) => Some(Float16),
                (8 | 16, 32) => Some(Float32),
                (16, 16) => Some(Float32),
                (8..=32, _) => Some(Float64),
                _ => None,
            }
        }
    }
}
