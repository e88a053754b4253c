//! Columns of data files by field id: a file's own schema under the names that the table has for
//! the same ids.
//!
//! Renaming the schema while the footer is read is all the mapping there is. DataFusion resolves
//! columns, statistics, page indexes and bloom filters by name, in planning and in reading, so all
//! of them meet the column that the table means: a renamed column by its new name, and a dropped
//! one by none. Rules: <https://iceberg.apache.org/spec/#column-projection>.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, FieldRef, Fields, Schema, SchemaRef, TimeUnit};
use iceberg::spec::{
    MappedField, NameMapping, NestedField, Schema as IcebergSchema, StructType, Type,
};
use parquet::arrow::PARQUET_FIELD_ID_META_KEY;
use parquet::basic::{ConvertedType, LogicalType};
use parquet::schema::types::{SchemaDescriptor, Type as ParquetType};

use super::adapt::stored_id;
use super::types::arrow_field;
use crate::formats::orc::with_units;
use crate::formats::{FooterNames, malformed_schema};
use crate::{Error, Result};

/// The name under which a column is read whose field id the table's schema does not have: of a
/// dropped column, which an equality delete may still name.
pub fn hidden_name(field_id: i32) -> String {
    format!("\u{1}field {field_id}")
}

/// The id of a field that a mapping does not name: of no field of a table, whose ids count from 1.
const UNMAPPED: i32 = -1;

/// How a table's columns are found in its data files.
#[derive(Debug)]
pub struct ColumnMap {
    schema: Arc<IcebergSchema>,
    mapping: Option<NameMapping>,
}

impl ColumnMap {
    /// By the ids of `schema`; in files without ids by `mapping` (the table's property
    /// `schema.name-mapping.default`).
    pub fn new(schema: Arc<IcebergSchema>, mapping: Option<NameMapping>) -> Self {
        Self { schema, mapping }
    }

    /// The schema in which an ORC file is decoded, and the schema with the root columns under the
    /// table's names. Nested fields keep their names, and are found by their ids: the file's ids,
    /// or the mapping's if it has none.
    pub fn of_orc(&self, file: SchemaRef) -> (SchemaRef, SchemaRef) {
        let file = match &self.mapping {
            Some(mapping) if !says_ids(&file) => {
                let fields = fields_with_ids(file.fields(), &by_name(mapping.fields().iter()));
                Arc::new(Schema::new_with_metadata(fields, file.metadata().clone()))
            }
            _ => file,
        };
        let named = self.rename_roots(&file);
        let stored = with_units(&file, |place| {
            match self.schema.as_struct().field_by_name(named.field(place).name()) {
                Some(column) if has_nanoseconds(column) => TimeUnit::Nanosecond,
                _ => TimeUnit::Microsecond,
            }
        });
        let renamed = Arc::new(self.rename_roots(&stored));
        (stored, renamed)
    }

    fn rename_roots(&self, file: &Schema) -> Schema {
        let has_ids = says_ids(file);
        let renamed = file.fields().iter().enumerate().map(|(position, field)| {
            let id = match has_ids {
                true => stored_id(field),
                // Neither ids nor a mapping.
                false => i32::try_from(position + 1).ok(),
            };
            let name = match id.and_then(|id| self.schema.as_struct().field_by_id(id)) {
                Some(wanted) => wanted.name.clone(),
                None => format!("\u{1}column {position}"),
            };
            Arc::new(field.as_ref().clone().with_name(name))
        });
        Schema::new(renamed.collect::<Fields>())
    }
}

impl FooterNames for ColumnMap {
    fn rename(&self, file: &SchemaDescriptor) -> Result<SchemaDescriptor> {
        let root = file.root_schema();
        let fields = root.get_fields();
        let ids: Vec<Option<i32>> = match (&self.mapping, has_ids(root)) {
            (_, true) => fields.iter().map(|field| id_of(field)).collect(),
            (Some(mapping), false) => {
                let known = by_name(mapping.fields().iter());
                fields
                    .iter()
                    .map(|field| known.get(field.name()).and_then(|f| f.field_id()))
                    .collect()
            }
            // Neither ids nor a mapping: by position, as Iceberg's own readers do.
            (None, false) => (1..).map(Some).take(fields.len()).collect(),
        };
        let mapped = match (&self.mapping, has_ids(root)) {
            (Some(mapping), false) => by_name(mapping.fields().iter()),
            _ => HashMap::new(),
        };
        let renamed = fields
            .iter()
            .zip(ids)
            .enumerate()
            .map(|(position, (field, id))| {
                let children = mapped.get(field.name()).copied();
                struct_child(field, id, children, self.schema.as_struct(), position)
            })
            .collect::<Result<Vec<_>>>()?;
        let root = ParquetType::group_type_builder(root.name()).with_fields(renamed).build();
        Ok(SchemaDescriptor::new(Arc::new(root.map_err(malformed_schema)?)))
    }
}

fn by_name<'a>(fields: impl Iterator<Item = &'a MappedField>) -> HashMap<&'a str, &'a MappedField> {
    fields.flat_map(|field| field.names().iter().map(move |name| (name.as_str(), field))).collect()
}

/// Returns true if a column is, or has within it, a timestamp of nanoseconds.
fn has_nanoseconds(column: &NestedField) -> bool {
    let schema = Schema::new(vec![arrow_field(column)]);
    schema
        .flattened_fields()
        .iter()
        .any(|field| matches!(field.data_type(), DataType::Timestamp(TimeUnit::Nanosecond, _)))
}

/// Returns true if any column of an ORC file says its id.
fn says_ids(file: &Schema) -> bool {
    file.fields().iter().any(|field| stored_id(field).is_some())
}

fn fields_with_ids(fields: &Fields, known: &HashMap<&str, &MappedField>) -> Fields {
    let mapped = |field: &FieldRef| known.get(field.name().as_str()).copied();
    fields.iter().map(|field| field_with_ids(field, mapped(field))).collect()
}

/// An ORC field with its mapped id, and the fields below it with theirs.
fn field_with_ids(field: &FieldRef, mapped: Option<&MappedField>) -> FieldRef {
    let child = |child: &FieldRef, name| field_with_ids(child, child_mapping(mapped, name));
    let data_type = match field.data_type() {
        DataType::Struct(fields) => {
            let below = mapped.into_iter().flat_map(|m| m.fields()).map(Arc::as_ref);
            DataType::Struct(fields_with_ids(fields, &by_name(below)))
        }
        DataType::List(element) => DataType::List(child(element, "element")),
        DataType::Map(entries, sorted) => {
            let DataType::Struct(pair) = entries.data_type() else { return Arc::clone(field) };
            let pair = pair.iter().zip(["key", "value"]).map(|(field, name)| child(field, name));
            let entries = entries.as_ref().clone().with_data_type(DataType::Struct(pair.collect()));
            DataType::Map(Arc::new(entries), *sorted)
        }
        other => other.clone(),
    };
    let id = mapped.and_then(MappedField::field_id).unwrap_or(UNMAPPED);
    let mut metadata = field.metadata().clone();
    metadata.insert(PARQUET_FIELD_ID_META_KEY.to_owned(), id.to_string());
    Arc::new(field.as_ref().clone().with_data_type(data_type).with_metadata(metadata))
}

fn id_of(field: &ParquetType) -> Option<i32> {
    let info = field.get_basic_info();
    info.has_id().then(|| info.id())
}

/// Returns true if any field below `group` has an id.
fn has_ids(group: &ParquetType) -> bool {
    group.is_group()
        && group.get_fields().iter().any(|field| id_of(field).is_some() || has_ids(field))
}

/// A field of a struct: by its id it is one of `fields`, or one that nobody reads.
fn struct_child(
    file: &Arc<ParquetType>,
    id: Option<i32>,
    mapped: Option<&MappedField>,
    fields: &StructType,
    position: usize,
) -> Result<Arc<ParquetType>> {
    match id.and_then(|id| fields.field_by_id(id)) {
        Some(field) => typed(file, &field.name, Some(&field.field_type), mapped),
        None => {
            let name = match id {
                Some(id) => hidden_name(id),
                None => format!("\u{1}column {position}"),
            };
            typed(file, &name, None, mapped)
        }
    }
}

/// Renames `file` to `name`, and the fields below it as in `wanted`. It stays unchanged if nothing
/// is wanted, or if the file has another kind of type, which reading then refuses.
fn typed(
    file: &Arc<ParquetType>,
    name: &str,
    wanted: Option<&Type>,
    mapped: Option<&MappedField>,
) -> Result<Arc<ParquetType>> {
    if file.is_primitive() {
        return renamed_primitive(file, name);
    }
    let info = file.get_basic_info();
    let is_list = info.converted_type() == ConvertedType::LIST
        || info.logical_type_ref() == Some(&LogicalType::List);
    let is_map = matches!(info.converted_type(), ConvertedType::MAP | ConvertedType::MAP_KEY_VALUE)
        || info.logical_type_ref() == Some(&LogicalType::Map);
    let children = match wanted {
        Some(Type::Struct(fields)) if !is_list && !is_map => {
            let known = mapped.map(|m| by_name(m.fields().iter().map(Arc::as_ref)));
            let child = |(position, child): (usize, &Arc<ParquetType>)| {
                let mapped = known.as_ref().and_then(|known| known.get(child.name()).copied());
                let id = id_of(child).or_else(|| mapped.and_then(MappedField::field_id));
                struct_child(child, id, mapped, fields, position)
            };
            file.get_fields().iter().enumerate().map(child).collect::<Result<_>>()?
        }
        Some(Type::List(list)) if is_list => {
            vec![list_middle(file, &list.element_field, mapped)?]
        }
        Some(Type::Map(map)) if is_map => {
            vec![map_middle(file, &map.key_field, &map.value_field, mapped)?]
        }
        _ => file.get_fields().to_vec(),
    };
    rebuilt(file, name, children)
}

/// The repeated group between a list and its element (three levels), or the repeated element itself
/// (two levels, by the rules of the Parquet format for old writers).
fn list_middle(
    list: &ParquetType,
    element: &NestedField,
    mapped: Option<&MappedField>,
) -> Result<Arc<ParquetType>> {
    let [middle] = list.get_fields() else {
        return Err(Error::data(format!(
            "the list {:?} of the data file is malformed",
            list.name()
        )));
    };
    let mapped = child_mapping(mapped, "element");
    let is_element = middle.is_primitive()
        || middle.get_fields().len() != 1
        || middle.name() == "array"
        || middle.name() == format!("{}_tuple", list.name());
    if is_element {
        return typed(middle, middle.name(), Some(&element.field_type), mapped);
    }
    let child = typed(&middle.get_fields()[0], "element", Some(&element.field_type), mapped)?;
    rebuilt(middle, middle.name(), vec![child])
}

fn map_middle(
    map: &ParquetType,
    key: &NestedField,
    value: &NestedField,
    mapped: Option<&MappedField>,
) -> Result<Arc<ParquetType>> {
    let malformed =
        || Error::data(format!("the map {:?} of the data file is malformed", map.name()));
    let [middle] = map.get_fields() else { return Err(malformed()) };
    if middle.is_primitive() {
        return Err(malformed());
    }
    let [file_key, file_value] = middle.get_fields() else { return Err(malformed()) };
    let key = typed(file_key, "key", Some(&key.field_type), child_mapping(mapped, "key"))?;
    let value =
        typed(file_value, "value", Some(&value.field_type), child_mapping(mapped, "value"))?;
    rebuilt(middle, "key_value", vec![key, value])
}

fn child_mapping<'a>(mapped: Option<&'a MappedField>, name: &str) -> Option<&'a MappedField> {
    mapped?.fields().iter().map(Arc::as_ref).find(|field| field.names().iter().any(|n| n == name))
}

/// A group of another name, and with other fields.
///
/// # Errors
/// `Data` where the file's schema is malformed.
pub(crate) fn rebuilt(
    group: &ParquetType,
    name: &str,
    fields: Vec<Arc<ParquetType>>,
) -> Result<Arc<ParquetType>> {
    let info = group.get_basic_info();
    let mut builder = ParquetType::group_type_builder(name)
        .with_converted_type(info.converted_type())
        .with_logical_type(info.logical_type_ref().cloned())
        .with_fields(fields);
    if info.has_repetition() {
        builder = builder.with_repetition(info.repetition());
    }
    Ok(Arc::new(builder.build().map_err(malformed_schema)?))
}

/// A column of another name.
///
/// # Errors
/// `Data` where the file's schema is malformed.
pub(crate) fn renamed_primitive(file: &ParquetType, name: &str) -> Result<Arc<ParquetType>> {
    let info = file.get_basic_info();
    let ParquetType::PrimitiveType { physical_type, type_length, precision, scale, .. } = file
    else {
        return Err(Error::data(format!(
            "the column {:?} of the data file is malformed",
            file.name()
        )));
    };
    let mut builder = ParquetType::primitive_type_builder(name, *physical_type)
        .with_converted_type(info.converted_type())
        .with_logical_type(info.logical_type_ref().cloned())
        .with_length(*type_length)
        .with_precision(*precision)
        .with_scale(*scale);
    if info.has_repetition() {
        builder = builder.with_repetition(info.repetition());
    }
    Ok(Arc::new(builder.build().map_err(malformed_schema)?))
}
