//! The schema of a table: columns with their types, and the names that files have for them.
//! Format: <https://github.com/delta-io/delta/blob/master/PROTOCOL.md#schema-serialization-format>.

use std::sync::Arc;

use arrow::datatypes::{
    DECIMAL128_MAX_PRECISION, DataType, Field, FieldRef, Fields, Schema, TimeUnit,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Error, ErrorKind, Result};

/// The time zone of `timestamp`, as Parquet's readers name it.
pub const UTC: &str = "UTC";

/// How the columns of a table are found in its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mapping {
    /// By their names.
    None,
    /// By names of their own.
    Name,
    /// By field ids.
    Id,
}

/// A column, or a field of a struct.
#[derive(Clone, Debug)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// The name that files, statistics and partition values have for it.
    pub physical: String,
    /// The field id that files have for it.
    pub id: Option<i32>,
    /// Whether it may be null.
    pub is_nullable: bool,
    /// Its type.
    pub kind: Kind,
    /// The types that it had before it was widened.
    pub former: Vec<String>,
}

/// A type.
#[derive(Clone, Debug)]
pub enum Kind {
    /// One without fields.
    Primitive(DataType),
    /// A struct.
    Struct(Vec<Column>),
    /// A list, and whether an element may be null.
    List(Box<Kind>, bool),
    /// A map, and whether a value may be null.
    Map(Box<Kind>, Box<Kind>, bool),
}

impl Column {
    /// As Arrow has it.
    pub fn field(&self) -> FieldRef {
        Arc::new(Field::new(&self.name, self.kind.data_type(), self.is_nullable))
    }
}

impl Kind {
    /// The Arrow type that a Parquet reader gives.
    pub fn data_type(&self) -> DataType {
        match self {
            Self::Primitive(data_type) => data_type.clone(),
            Self::Struct(columns) => DataType::Struct(columns.iter().map(Column::field).collect()),
            Self::List(element, may_be_null) => {
                DataType::List(Arc::new(Field::new("element", element.data_type(), *may_be_null)))
            }
            Self::Map(key, value, may_be_null) => {
                let pair: Fields = vec![
                    Field::new("key", key.data_type(), false),
                    Field::new("value", value.data_type(), *may_be_null),
                ]
                .into();
                let entries = Field::new("key_value", DataType::Struct(pair), false);
                DataType::Map(Arc::new(entries), false)
            }
        }
    }
}

/// The columns as Arrow has them.
pub fn arrow_schema(columns: &[Column]) -> Schema {
    Schema::new(columns.iter().map(Column::field).collect::<Fields>())
}

/// Parses a schema.
///
/// # Errors
/// `Data` where it is malformed; `UnsupportedType` naming the column and its type.
pub fn parse_schema(text: &str, mapping: Mapping) -> Result<Vec<Column>> {
    let json: Value = serde_json::from_str(text)
        .map_err(|error| Error::data(format!("the table's schema is malformed: {error}")))?;
    fields_of(&json, mapping, "")
}

fn fields_of(json: &Value, mapping: Mapping, within: &str) -> Result<Vec<Column>> {
    let fields = json.get("fields").and_then(Value::as_array);
    let fields = fields.ok_or_else(|| malformed(within, "it has no fields"))?;
    fields.iter().map(|field| column_of(field, mapping, within)).collect()
}

fn column_of(json: &Value, mapping: Mapping, within: &str) -> Result<Column> {
    let name = json.get("name").and_then(Value::as_str);
    let name = name.ok_or_else(|| malformed(within, "a field has no name"))?;
    let place = if within.is_empty() { name.to_owned() } else { format!("{within}.{name}") };
    let metadata = json.get("metadata");
    let note = |key: &str| metadata.and_then(|metadata| metadata.get(key));
    let physical = note("delta.columnMapping.physicalName").and_then(Value::as_str);
    let id = note("delta.columnMapping.id").and_then(Value::as_i64);
    let physical = match (mapping, physical) {
        (Mapping::None, _) => name,
        (_, Some(physical)) => physical,
        (_, None) => {
            return Err(malformed(&place, "its columns are mapped, and it has no physical name"));
        }
    };
    let id = match (mapping, id) {
        (Mapping::Id, None) => {
            return Err(malformed(&place, "its columns are mapped by id, and it has none"));
        }
        (_, id) => id.and_then(|id| i32::try_from(id).ok()),
    };
    let kind = json.get("type").ok_or_else(|| malformed(&place, "it has no type"))?;
    let changes = note("delta.typeChanges").and_then(Value::as_array);
    let former = changes
        .into_iter()
        .flatten()
        .filter_map(|change| Some(change.get("fromType")?.as_str()?.to_owned()));
    Ok(Column {
        name: name.to_owned(),
        physical: physical.to_owned(),
        id,
        is_nullable: json.get("nullable").and_then(Value::as_bool).unwrap_or(true),
        kind: kind_of(kind, mapping, &place)?,
        former: former.collect(),
    })
}

fn kind_of(json: &Value, mapping: Mapping, place: &str) -> Result<Kind> {
    if let Some(name) = json.as_str() {
        return primitive(name, place).map(Kind::Primitive);
    }
    let flag = |key: &str| json.get(key).and_then(Value::as_bool).unwrap_or(true);
    let part = |key: &str, name: &str| {
        let part = json.get(key).ok_or_else(|| malformed(place, &format!("it has no {key}")))?;
        Ok::<_, Error>(Box::new(kind_of(part, mapping, &format!("{place}.{name}"))?))
    };
    match json.get("type").and_then(Value::as_str) {
        Some("struct") => Ok(Kind::Struct(fields_of(json, mapping, place)?)),
        Some("array") => Ok(Kind::List(part("elementType", "element")?, flag("containsNull"))),
        Some("map") => {
            let (key, value) = (part("keyType", "key")?, part("valueType", "value")?);
            Ok(Kind::Map(key, value, flag("valueContainsNull")))
        }
        Some(other) => Err(unsupported(other, place)),
        None => Err(malformed(place, "its type is none")),
    }
}

fn primitive(name: &str, place: &str) -> Result<DataType> {
    Ok(match name {
        "string" => DataType::Utf8,
        "long" => DataType::Int64,
        "integer" => DataType::Int32,
        "short" => DataType::Int16,
        "byte" => DataType::Int8,
        "float" => DataType::Float32,
        "double" => DataType::Float64,
        "boolean" => DataType::Boolean,
        "binary" => DataType::Binary,
        "date" => DataType::Date32,
        "timestamp" => DataType::Timestamp(TimeUnit::Microsecond, Some(UTC.into())),
        "timestamp_ntz" => DataType::Timestamp(TimeUnit::Microsecond, None),
        "decimal" => DataType::Decimal128(10, 0),
        other => return decimal(other).ok_or_else(|| unsupported(other, place)),
    })
}

fn decimal(name: &str) -> Option<DataType> {
    let digits = name.strip_prefix("decimal(")?.strip_suffix(')')?;
    let (precision, scale) = digits.split_once(',')?;
    let precision: u8 = precision.trim().parse().ok()?;
    let scale: i8 = scale.trim().parse().ok()?;
    let is_valid = (1..=DECIMAL128_MAX_PRECISION).contains(&precision)
        && (0..=precision as i8).contains(&scale);
    is_valid.then_some(DataType::Decimal128(precision, scale))
}

fn malformed(place: &str, what: &str) -> Error {
    let place = if place.is_empty() { "the table".to_owned() } else { format!("column {place:?}") };
    Error::data(format!("the schema of {place} is malformed: {what}"))
}

fn unsupported(name: &str, place: &str) -> Error {
    Error::new(
        ErrorKind::UnsupportedType,
        format!("column {place:?} has Delta's type {name:?}, which is not supported"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_has_arrow_types_and_physical_names() {
        let text = r#"{"type":"struct","fields":[
            {"name":"a","type":"byte","nullable":false,"metadata":{"delta.columnMapping.id":1,
             "delta.columnMapping.physicalName":"col-a"}},
            {"name":"m","nullable":true,"metadata":{"delta.columnMapping.id":2,
             "delta.columnMapping.physicalName":"col-m"},
             "type":{"type":"map","keyType":"string","valueType":{"type":"array",
              "elementType":"decimal(12,2)","containsNull":false},"valueContainsNull":true}}]}"#;
        let columns = parse_schema(text, Mapping::Name).unwrap();
        assert_eq!(columns[0].physical, "col-a");
        assert_eq!(columns[0].field().as_ref(), &Field::new("a", DataType::Int8, false));
        let element = Field::new("element", DataType::Decimal128(12, 2), false);
        assert!(
            format!("{}", columns[1].kind.data_type()).contains(&element.data_type().to_string())
        );
        let plain = parse_schema(text, Mapping::None).unwrap();
        assert_eq!(plain[0].physical, "a");
        for odd in ["variant", "void", "interval day", "decimal(39,0)"] {
            let text = format!(r#"{{"type":"struct","fields":[{{"name":"x","type":"{odd}"}}]}}"#);
            let told = parse_schema(&text, Mapping::None).unwrap_err().to_string();
            assert!(told.contains(odd) && told.contains("\"x\""), "{told}");
        }
    }
}
