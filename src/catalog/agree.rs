//! Finds the common format of a table's files and a schema that fits all of them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, SchemaRef};

use super::file_schema::FileSchema;
use crate::formats::{Compression, CsvFormat, Format, JsonFormat, is_marked, marked};
use crate::storage::FilePin;
use crate::{Error, Result, list_names, suggestion};

/// The format of all files; by their names where none was given.
pub(super) fn common_format(
    pins: &[FilePin],
    given: Option<&Format>,
    display: &impl Fn(&FilePin) -> String,
) -> Result<Format> {
    let mut found: Option<(Format, &FilePin)> = None;
    for pin in pins {
        let by_name = Format::from_path(pin.location.as_ref());
        let format = match (given, by_name) {
            (Some(Format::Csv(given)), by_name) => {
                let compression = Some(compression_of(given.compression, by_name.as_ref().ok()));
                let delimiter = given.delimiter.or(match &by_name {
                    Ok(Format::Csv(named)) => named.delimiter,
                    _ => None,
                });
                Format::Csv(CsvFormat { compression, delimiter, ..given.clone() })
            }
            (Some(Format::Json(given)), by_name) => {
                let compression = Some(compression_of(given.compression, by_name.as_ref().ok()));
                Format::Json(JsonFormat { compression, ..given.clone() })
            }
            (Some(given), _) => given.clone(),
            (None, by_name) => by_name?,
        };
        match &found {
            None => found = Some((format, pin)),
            Some((first, _)) if *first == format => {}
            Some((first, first_pin)) => {
                return Err(two_formats(&display(first_pin), first, &display(pin), &format));
            }
        }
    }
    found.map(|(format, _)| format).ok_or_else(|| Error::config("no file was given"))
}

fn compression_of(given: Option<Compression>, by_name: Option<&Format>) -> Compression {
    given.or(by_name.map(Format::compression)).unwrap_or_default()
}

fn two_formats(first_file: &str, first: &Format, file: &str, format: &Format) -> Error {
    Error::config(format!(
        "one table has one format, but {first_file} is {} and {file} is {}; narrow the path with a \
         glob, or register two tables",
        first.describe(),
        format.describe(),
    ))
}

/// The one format that all files turned out to have; an empty text file has any.
pub(super) fn one_format(names: &[String], read: &[FileSchema], by_name: Format) -> Result<Format> {
    let mut found: Option<(&str, &Format)> = None;
    for (name, file) in names.iter().zip(read) {
        match found {
            _ if file.schema.fields().is_empty() => {}
            None => found = Some((name, &file.format)),
            Some((_, first)) if *first == file.format => {}
            Some((first_name, first)) => {
                return Err(two_formats(first_name, first, name, &file.format));
            }
        }
    }
    Ok(found.map_or(by_name, |(_, format)| format.clone()))
}

/// The schema, columns of types that no library takes marked. Damaged files have them, and names
/// and time zones with a NUL character, where C strings end.
///
/// # Errors
/// `Data` naming the column where it is the name.
pub(super) fn possible(schema: Schema) -> Result<Schema> {
    let (mut fields, mut is_same) = (Vec::with_capacity(schema.fields().len()), true);
    for column in schema.fields() {
        let within = Schema::new(vec![Arc::clone(column)]);
        let within = within.flattened_fields();
        if let Some(field) = within.iter().find(|field| field.name().contains('\0')) {
            return Err(Error::data(format!(
                "column {:?} has an impossible name ({})",
                column.name(),
                field.name()
            )));
        }
        let odd = within.iter().find(|field| !is_possible(field.data_type()));
        fields.push(match odd {
            Some(odd) if !is_marked(column) => {
                is_same = false;
                let reason = format!("{} is an impossible type", odd.data_type());
                // Its own type could not even be shown.
                let stand_in = Field::clone(column).with_data_type(DataType::Binary);
                Arc::new(marked(&stand_in, reason))
            }
            _ => Arc::clone(column),
        });
    }
    Ok(if is_same { schema } else { Schema::new_with_metadata(fields, schema.metadata().clone()) })
}

fn is_possible(data_type: &DataType) -> bool {
    match data_type {
        DataType::Timestamp(_, Some(zone)) => !zone.contains('\0'),
        DataType::Decimal32(precision, _) => (1..=9).contains(precision),
        DataType::Decimal64(precision, _) => (1..=18).contains(precision),
        DataType::Decimal128(precision, _) => (1..=38).contains(precision),
        DataType::Decimal256(precision, _) => (1..=76).contains(precision),
        DataType::FixedSizeBinary(size) | DataType::FixedSizeList(_, size) => *size >= 0,
        DataType::Dictionary(_, value) => is_possible(value),
        _ => true,
    }
}

/// Columns of text are read as if all files were one: as floats where one file's values are whole
/// and another's are not, as times where one has dates and another times, as the finer times of
/// two. Also inside of objects and lists.
pub(super) fn align_text(read: &mut [FileSchema]) {
    let mut widest = HashMap::new();
    for field in read.iter().flat_map(|file| file.schema.fields()) {
        note_widest(&mut Vec::new(), field, &mut widest);
    }
    for file in read {
        let fields = file.schema.fields().iter();
        let fields: Fields =
            fields.map(|field| with_widest(&mut Vec::new(), field, &widest)).collect();
        file.schema = Schema::new_with_metadata(fields, file.schema.metadata().clone());
    }
}

/// The type of all values of text that are of either type, where that is `wide`.
fn is_wider(wide: &DataType, narrow: &DataType) -> bool {
    use DataType::*;
    match (wide, narrow) {
        (Float64, Int64) | (Timestamp(_, None), Date32) => true,
        (Timestamp(unit, None), Timestamp(other, None)) => unit > other,
        _ => false,
    }
}

/// The names that lead to a value: of its column, and of those inside of it.
type Path = Vec<String>;

fn note_widest(path: &mut Path, field: &Field, widest: &mut HashMap<Path, DataType>) {
    path.push(field.name().clone());
    match field.data_type() {
        DataType::Struct(fields) => {
            fields.iter().for_each(|field| note_widest(path, field, widest));
        }
        DataType::List(item) => note_widest(path, item, widest),
        found => {
            let known = widest.entry(path.clone()).or_insert_with(|| found.clone());
            if is_wider(found, known) {
                *known = found.clone();
            }
        }
    }
    path.pop();
}

fn with_widest(path: &mut Path, field: &FieldRef, widest: &HashMap<Path, DataType>) -> FieldRef {
    path.push(field.name().clone());
    let data_type = match field.data_type() {
        DataType::Struct(fields) => {
            DataType::Struct(fields.iter().map(|field| with_widest(path, field, widest)).collect())
        }
        DataType::List(item) => DataType::List(with_widest(path, item, widest)),
        own => widest.get(path).filter(|wide| is_wider(wide, own)).unwrap_or(own).clone(),
    };
    path.pop();
    Arc::new(field.as_ref().clone().with_data_type(data_type))
}

pub(super) fn declared_types(schema: Option<&SchemaRef>) -> BTreeMap<String, DataType> {
    let fields = schema.map(|schema| schema.fields().clone()).unwrap_or_default();
    fields.iter().map(|field| (field.name().clone(), field.data_type().clone())).collect()
}

/// CSV columns are read by position, so every file must have the same in the same order.
pub(super) fn same_positions<'a>(
    files: impl IntoIterator<Item = (&'a str, &'a Schema)>,
) -> Result<()> {
    let names = |schema: &Schema| -> Vec<String> {
        schema.fields().iter().map(|field| field.name().clone()).collect()
    };
    let mut first: Option<(&str, Vec<String>)> = None;
    for (file, schema) in files {
        let found = names(schema);
        // A file without any record has no columns, and no rows to misread.
        if found.is_empty() {
            continue;
        }
        let Some((first_file, wanted)) = &first else {
            first = Some((file, found));
            continue;
        };
        if found != *wanted {
            let at = found.iter().zip(wanted).take_while(|(a, b)| a == b).count();
            let show = |names: &[String]| match names.get(at) {
                Some(name) => format!("{name:?}"),
                None => "none".to_owned(),
            };
            return Err(Error::data(format!(
                "the files disagree: CSV files of one table need the same columns in the same \
                 order, but column {} is {} in {first_file} and {} in {file}; register the files \
                 apart and join them with UNION ALL",
                at + 1,
                show(wanted),
                show(&found),
            )));
        }
    }
    Ok(())
}

/// The declared schema without the hive columns, checked against the files' content.
pub(super) fn declare(
    declared: &SchemaRef,
    inferred: &Schema,
    hive: &[Field],
    format: &Format,
) -> Result<Schema> {
    let fields: Fields = declared
        .fields()
        .iter()
        .filter(|field| !hive.iter().any(|hive| hive.name() == field.name()))
        .cloned()
        .collect();
    let known: Vec<&str> = inferred.fields().iter().map(|field| field.name().as_str()).collect();
    let headless = matches!(format, Format::Csv(csv) if !csv.header);
    if matches!(format, Format::Csv(_)) && !known.is_empty() {
        let names: Vec<&str> = fields.iter().map(|field| field.name().as_str()).collect();
        if fields.len() != known.len() || (!headless && names != known) {
            return Err(Error::data(format!(
                "the declared columns are {}, but the CSV files have {}; declare all of them, in the \
                 files' order",
                list_names(&names),
                list_names(&known),
            )));
        }
    } else if let Some(odd) = fields.iter().find(|field| !known.contains(&field.name().as_str())) {
        return Err(Error::data(format!(
            "the declared column {:?} is in no file{}; the files' columns are {}",
            odd.name(),
            suggestion(odd.name(), known.iter().copied()),
            list_names(&known),
        )));
    }
    Ok(Schema::new_with_metadata(fields, inferred.metadata().clone()))
}

/// A text column without any value is text.
pub(super) fn without_null_types(schema: &Schema) -> Schema {
    let fields: Vec<Arc<Field>> = schema
        .fields()
        .iter()
        .map(|field| match field.data_type() {
            DataType::Null => Arc::new(Field::new(field.name(), DataType::Utf8, true)),
            _ => Arc::clone(field),
        })
        .collect();
    Schema::new_with_metadata(fields, schema.metadata().clone())
}
