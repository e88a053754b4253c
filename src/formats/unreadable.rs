//! Marks columns that are known to be unreadable before they are read, or that would be shown as
//! another type.
//!
//! Such a column spoils no other one: it keeps its place in the schema, with the reason in its
//! field's metadata, and is refused where a query reads it. In a Parquet footer it gets its storage
//! type, with the reason as a note, so that the `parquet` crate, which takes a schema as a whole or
//! not at all, takes the rest.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema};
use parquet::arrow::{ARROW_SCHEMA_META_KEY, encode_arrow_schema, parquet_to_arrow_schema};
use parquet::basic::LogicalType;
use parquet::errors::Result as ParquetResult;
use parquet::file::metadata::{
    FileMetaData, KeyValue, ParquetMetaData, ParquetMetaDataBuilder, RowGroupMetaData,
};
use parquet::schema::types::{SchemaDescriptor, Type, TypePtr};

use super::parquet::types::{has_element, is_legacy_list, with_modern_lists, without_annotations};
use crate::error::plain_text;
use crate::{Error, ErrorKind};

/// Where a field has the reason why it is not read.
const REASON: &str = "tensorquery:unreadable";

/// Levels of a schema with columns that are not read: some fifty lists in lists.
const MOST_LEVELS: usize = 128;

/// The prefix of a note's key in a footer; the column's name follows.
const NOTE: &str = "tensorquery:unreadable:";

/// The field, marked as one that is not read for this reason.
pub fn marked(field: &Field, reason: impl Into<String>) -> Field {
    let mut metadata = field.metadata().clone();
    metadata.insert(REASON.to_owned(), reason.into());
    field.clone().with_metadata(metadata)
}

/// Returns true if a field is marked.
pub fn is_marked(field: &Field) -> bool {
    field.metadata().contains_key(REASON)
}

/// The error for reading a column that is marked; None for others.
pub fn refused(field: &Field) -> Option<Error> {
    let reason = field.metadata().get(REASON)?;
    let message = format!(
        "column {:?} cannot be read: {reason}; select the other columns by name",
        field.name()
    );
    Some(Error::new(ErrorKind::UnsupportedType, message))
}

/// Returns true if a file has columns that the crate would show as something else: as their
/// storage, or as other lists.
pub(super) fn is_misread(footer: &ParquetMetaData) -> bool {
    let root = footer.file_metadata().schema_descr().root_schema();
    has_element(root, &|of| hidden(of).is_some() || is_legacy_list(of))
}

/// A footer whose columns the `parquet` crate all understands.
///
/// # Errors
/// Errors of the format's own checks.
pub(super) fn readable(footer: ParquetMetaData) -> ParquetResult<ParquetMetaData> {
    let file = footer.file_metadata();
    let (schema, notes) = (file.schema_descr(), file.key_value_metadata());
    let root = schema.root_schema();
    if depth(root) > MOST_LEVELS {
        // Whoever looks at such a type calls himself for each level.
        return parquet_to_arrow_schema(schema, notes).map(|_| footer);
    }
    let mut found: Vec<KeyValue> = notes.cloned().unwrap_or_default();
    found.retain(|note| !note.key.starts_with(NOTE));
    let mut fields = Vec::with_capacity(root.get_fields().len());
    for of in root.get_fields() {
        let of = &without_annotations(&with_modern_lists(of)?, &is_unknown)?;
        let reason = reason_of(of);
        if let Some(reason) = &reason {
            found.push(KeyValue::new(format!("{NOTE}{}", of.name()), reason.clone()));
        }
        fields.push(match reason {
            Some(_) => without_annotations(of, &|_| true)?,
            None => Arc::clone(of),
        });
    }
    let root = Type::group_type_builder(root.name()).with_fields(fields).build()?;
    let schema = Arc::new(SchemaDescriptor::new(Arc::new(root)));
    // The Arrow schema beside it is a hint: where it contradicts, the file's own counts.
    if parquet_to_arrow_schema(&schema, Some(&found)).is_err() {
        found.retain(|note| note.key != ARROW_SCHEMA_META_KEY);
    }
    with_schema(footer, &schema, Some(found))
}

/// Replaces dictionaries of values that the crate cannot read in a footer whose columns have this
/// `schema`. They become plain columns with a note of their former type. Returns None if there are
/// none.
///
/// # Errors
/// Errors of the format's own checks.
pub(super) fn without_odd_dictionaries(
    footer: &ParquetMetaData,
    schema: &Schema,
) -> ParquetResult<Option<ParquetMetaData>> {
    if !schema.flattened_fields().iter().any(|field| is_odd_dictionary(field.data_type())) {
        return Ok(None);
    }
    let fields: Fields = schema.fields().iter().map(with_plain_values).collect();
    let hint = encode_arrow_schema(&Schema::new(fields));
    let file = footer.file_metadata();
    let mut notes = file.key_value_metadata().cloned().unwrap_or_default();
    notes.retain(|note| note.key != ARROW_SCHEMA_META_KEY);
    notes.push(KeyValue::new(ARROW_SCHEMA_META_KEY.to_owned(), hint));
    with_schema(footer.clone(), &file.schema_descr_ptr(), Some(notes)).map(Some)
}

fn is_odd_dictionary(data_type: &DataType) -> bool {
    use DataType::{Boolean, Dictionary, FixedSizeBinary, Float16};
    let is_odd = |value: &DataType| {
        matches!(value, Boolean | Float16 | FixedSizeBinary(_)) || value.is_decimal()
    };
    matches!(data_type, Dictionary(_, value) if is_odd(value))
}

fn with_plain_values(field: &FieldRef) -> FieldRef {
    use DataType::*;
    let data_type = match field.data_type() {
        odd @ Dictionary(_, value) if is_odd_dictionary(odd) => value.as_ref().clone(),
        Struct(fields) => Struct(fields.iter().map(with_plain_values).collect()),
        List(item) => List(with_plain_values(item)),
        LargeList(item) => LargeList(with_plain_values(item)),
        FixedSizeList(item, length) => FixedSizeList(with_plain_values(item), *length),
        Map(entries, sorted) => Map(with_plain_values(entries), *sorted),
        _ => return Arc::clone(field),
    };
    Arc::new(Field::clone(field).with_data_type(data_type))
}

fn depth(of: &Type) -> usize {
    let below = || of.get_fields().iter().map(|field| depth(field)).max().unwrap_or(0);
    1 + if of.is_group() { below() } else { 0 }
}

/// Why a column is not read.
fn reason_of(of: &TypePtr) -> Option<String> {
    if let Some(what) = first_hidden(of) {
        return Some(what);
    }
    let alone = Type::group_type_builder("schema").with_fields(vec![Arc::clone(of)]).build();
    let schema = alone.map(|alone| SchemaDescriptor::new(Arc::new(alone)));
    let found = schema.and_then(|schema| parquet_to_arrow_schema(&schema, None));
    found.err().map(|error| plain_text(&error.to_string()))
}

/// Returns true for numbers or bytes of an unknown logical type: they are read as their storage
/// type, as the format says.
fn is_unknown(of: &Type) -> bool {
    let known = of.get_basic_info().logical_type_ref();
    of.is_primitive() && matches!(known, Some(LogicalType::_Unknown { .. }))
}

fn first_hidden(of: &Type) -> Option<String> {
    let below = || of.is_group().then(|| of.get_fields().iter().find_map(|of| first_hidden(of)));
    hidden(of).or_else(|| below().flatten())
}

/// The name of a type that would otherwise be shown as its storage.
fn hidden(of: &Type) -> Option<String> {
    match of.get_basic_info().logical_type_ref()? {
        LogicalType::Variant { .. } => {
            Some("it is a VARIANT, which the file stores as encoded bytes".to_owned())
        }
        LogicalType::_Unknown { field_id } if of.is_group() => {
            Some(format!("it is of a logical type that is not known (number {field_id})"))
        }
        _ => None,
    }
}

/// Replaces a footer's schema, keeping the columns, and its notes.
///
/// # Errors
/// Where the schema has other columns than the row groups.
pub fn with_schema(
    footer: ParquetMetaData,
    schema: &Arc<SchemaDescriptor>,
    notes: Option<Vec<KeyValue>>,
) -> ParquetResult<ParquetMetaData> {
    let file = footer.file_metadata();
    let file = FileMetaData::new(
        file.version(),
        file.num_rows(),
        file.created_by().map(str::to_owned),
        notes,
        Arc::clone(schema),
        file.column_orders().cloned(),
    );
    let mut footer = footer.into_builder();
    let groups = footer.take_row_groups().into_iter().map(|group| {
        let mut builder = RowGroupMetaData::builder(Arc::clone(schema))
            .set_num_rows(group.num_rows())
            .set_total_byte_size(group.total_byte_size())
            .set_sorting_columns(group.sorting_columns().cloned());
        if let Some(ordinal) = group.ordinal() {
            builder = builder.set_ordinal(ordinal);
        }
        if let Some(offset) = group.file_offset() {
            builder = builder.set_file_offset(offset);
        }
        builder.set_column_metadata(group.into_builder().take_columns()).build()
    });
    let groups = groups.collect::<ParquetResult<Vec<_>>>()?;
    let indexes = (footer.take_column_index(), footer.take_offset_index());
    Ok(ParquetMetaDataBuilder::new(file)
        .set_row_groups(groups)
        .set_column_index(indexes.0)
        .set_offset_index(indexes.1)
        .build())
}

/// The schema with the reasons that a footer's notes have in the fields, and without these notes.
pub(super) fn with_reasons(schema: Schema) -> Schema {
    if !schema.metadata().keys().any(|key| key.starts_with(NOTE)) {
        return schema;
    }
    let reason = |field: &Field| schema.metadata().get(&format!("{NOTE}{}", field.name()));
    let fields = schema.fields().iter().map(|field| match reason(field) {
        Some(reason) => {
            let stored = field.data_type();
            Arc::new(marked(
                field,
                format!("{reason} (to read that, declare it in schema= as {stored})"),
            ))
        }
        None => Arc::clone(field),
    });
    let fields: Fields = fields.collect();
    let mut metadata = schema.metadata().clone();
    metadata.retain(|key, _| !key.starts_with(NOTE));
    Schema::new_with_metadata(fields, metadata)
}
