//! Defaults of columns that the `iceberg` crate leaves out of a schema without a word: they would
//! be read as NULL. Those of nanosecond types are read here, and put back into the schema; others
//! are refused.

use std::collections::HashMap;
use std::sync::Arc;

use chrono::NaiveDateTime;
use iceberg::spec::{
    ListType, Literal, MapType, NestedField, NestedFieldRef, PrimitiveLiteral, PrimitiveType,
    Schema as IcebergSchema, SchemaRef, StructType, Type,
};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::{Error, ErrorKind, Result};

/// The defaults that the crate leaves out, by field id: the default of a field never changes, so it
/// is the same in all schemas of a table.
pub type Defaults = HashMap<i32, Literal>;

/// A type within another one, as JSON has them.
pub struct Child<'a> {
    /// Its place: names with dots between them.
    pub path: String,
    /// The type.
    pub kind: &'a Value,
    /// The struct's field that it is of.
    pub field: Option<&'a Value>,
}

/// The types directly within a type, or a schema.
pub fn children<'a>(kind: &'a Value, path: &str) -> Vec<Child<'a>> {
    let below = |name: &str| match path.is_empty() {
        true => name.to_owned(),
        false => format!("{path}.{name}"),
    };
    let fields = kind.get("fields").and_then(Value::as_array).into_iter().flatten();
    let fields = fields.filter_map(|field| {
        let path = below(field.get("name")?.as_str()?);
        Some(Child { path, kind: field.get("type")?, field: Some(field) })
    });
    let others = ["element", "key", "value"]
        .into_iter()
        .filter_map(|name| Some(Child { path: below(name), kind: kind.get(name)?, field: None }));
    fields.chain(others).collect()
}

/// Finds the defaults of a schema that the crate leaves out.
///
/// # Errors
/// `Data` for a default that is none of its column's type, by name; `UnsupportedType` for one that
/// the crate cannot write.
pub fn find_left_out(schema: &Value, found: &mut Defaults) -> Result<()> {
    find_below(schema, "", found)
}

fn find_below(kind: &Value, path: &str, found: &mut Defaults) -> Result<()> {
    for child in children(kind, path) {
        if let Some(field) = child.field
            && let Some(default) = field.get("initial-default")
            && let Ok(kind) = serde_json::from_value::<Type>(child.kind.clone())
        {
            let (column, name) = (&child.path, child.kind.as_str().unwrap_or("such value"));
            let parsed = Literal::try_from_json(default.clone(), &kind);
            let is_left_out = parsed.is_err();
            let own = || nanoseconds(default, &kind).map(Literal::long);
            let Some(value) = parsed.map_or_else(|_| own().map(Some), Some) else {
                return Err(Error::data(format!(
                    "the default of column {column:?} is {default}, which is no {name} as Iceberg's specification \
                     writes it"
                )));
            };
            if value.as_ref().is_some_and(|value| cannot_be_written(value, &kind)) {
                return Err(Error::new(
                    ErrorKind::UnsupportedType,
                    format!(
                        "the default of column {column:?} is {default}: a {name} with a fraction of a second before \
                         1970 is not supported there"
                    ),
                ));
            }
            let id = field.get("id").and_then(Value::as_i64).and_then(|id| i32::try_from(id).ok());
            if let (true, Some(value), Some(id)) = (is_left_out, value, id) {
                found.insert(id, value);
            }
        }
        find_below(child.kind, &child.path, found)?;
    }
    Ok(())
}

/// Returns true if the crate cannot write a default, and so a schema with it, as JSON again.
fn cannot_be_written(default: &Literal, kind: &Type) -> bool {
    let second = match kind {
        Type::Primitive(PrimitiveType::Timestamptz) => 1_000_000,
        Type::Primitive(PrimitiveType::TimestamptzNs) => 1_000_000_000,
        _ => return false,
    };
    let value = match default {
        Literal::Primitive(PrimitiveLiteral::Long(value)) => *value,
        _ => return false,
    };
    value < 0 && value % second != 0
}

/// A timestamp of a nanosecond type:
/// <https://iceberg.apache.org/spec/#json-single-value-serialization>.
fn nanoseconds(default: &Value, kind: &Type) -> Option<i64> {
    let text = default.as_str()?;
    let time = match kind {
        Type::Primitive(PrimitiveType::TimestampNs) => text,
        Type::Primitive(PrimitiveType::TimestamptzNs) => text.strip_suffix("+00:00")?,
        _ => return None,
    };
    NaiveDateTime::parse_from_str(time, "%Y-%m-%dT%H:%M:%S%.f")
        .ok()?
        .and_utc()
        .timestamp_nanos_opt()
}

/// A schema with these defaults put back.
///
/// # Errors
/// `Data` where the schema is malformed.
pub fn with_defaults(schema: &SchemaRef, defaults: &Defaults) -> Result<SchemaRef> {
    if defaults.is_empty() {
        return Ok(Arc::clone(schema));
    }
    let fields = schema.as_struct().fields().iter().map(|field| put_back(field, defaults));
    let built = IcebergSchema::builder()
        .with_schema_id(schema.schema_id())
        .with_identifier_field_ids(schema.identifier_field_ids())
        .with_fields(fields)
        .build();
    Ok(Arc::new(built.map_err(|error| Error::data(error.message().to_owned()))?))
}

fn put_back(field: &NestedFieldRef, defaults: &Defaults) -> NestedFieldRef {
    let kind = match field.field_type.as_ref() {
        Type::Struct(fields) => {
            let fields = fields.fields().iter().map(|field| put_back(field, defaults));
            Type::Struct(StructType::new(fields.collect()))
        }
        Type::List(list) => Type::List(ListType::new(put_back(&list.element_field, defaults))),
        Type::Map(map) => Type::Map(MapType::new(
            put_back(&map.key_field, defaults),
            put_back(&map.value_field, defaults),
        )),
        primitive => primitive.clone(),
    };
    let default = defaults.get(&field.id).cloned().or_else(|| field.initial_default.clone());
    let field = field.as_ref().clone();
    Arc::new(NestedField { field_type: Box::new(kind), initial_default: default, ..field })
}

/// A schema that was serialized with all its defaults, with all of them.
///
/// # Errors
/// Where it is malformed.
pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<SchemaRef, D::Error> {
    use serde::de::Error as _;
    let json = Value::deserialize(from)?;
    let mut defaults = Defaults::new();
    find_left_out(&json, &mut defaults).map_err(D::Error::custom)?;
    let schema: IcebergSchema = serde_json::from_value(json).map_err(D::Error::custom)?;
    with_defaults(&Arc::new(schema), &defaults).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema(kind: &Value, default: Value) -> Value {
        let field = json!({
            "id": 1, "name": "a", "required": false, "type": kind, "initial-default": default,
        });
        json!({"type": "struct", "fields": [field]})
    }

    fn found(schema: &Value) -> Result<Defaults> {
        let mut found = Defaults::new();
        find_left_out(schema, &mut found).map(|()| found)
    }

    #[test]
    fn a_default_that_would_be_null_is_refused_wherever_it_is() {
        assert!(found(&schema(&json!("int"), json!(5))).unwrap().is_empty());
        assert!(found(&schema(&json!("int"), Value::Null)).unwrap().is_empty());
        for (kind, default) in [
            ("int", json!("x")),
            ("int", json!(1_i64 << 40)),
            ("long", json!(3.0)),
            ("fixed[3]", json!("00")),
            ("timestamp", json!("2017-11-16T22:31")),
            ("timestamptz", json!("2017-11-16T22:31:08.123456Z")),
            ("timestamptz", json!("1969-12-31T23:59:59.999999+00:00")),
            ("timestamptz_ns", json!("2017-11-16T22:31:08.123456789")),
            ("timestamp_ns", json!("2317-11-16T22:31:08.123456789")),
        ] {
            let inner = schema(&json!(kind), default);
            let error = found(&inner).unwrap_err().to_string();
            assert!(error.contains("column \"a\"") && error.contains(kind), "{error}");
            let list = json!({"type": "list", "element-id": 2, "element": inner});
            let error = found(&schema(&list, Value::Null)).unwrap_err().to_string();
            assert!(error.contains("column \"a.element.a\""), "{error}");
        }
    }

    #[test]
    fn nanoseconds_survive_serializing() {
        for (kind, default, value) in [
            ("timestamp_ns", "2017-11-16T22:31:08.123456789", 1_510_871_468_123_456_789_i64),
            ("timestamp_ns", "1969-12-31T23:59:59.999999999", -1),
            ("timestamptz_ns", "1969-12-31T23:59:59+00:00", -1_000_000_000),
        ] {
            let inner = schema(&json!(kind), json!(default));
            let outer = json!({"id": 2, "name": "s", "required": false, "type": inner});
            let json = json!({"type": "struct", "schema-id": 0, "fields": [outer]});
            let read = deserialize(&json).unwrap();
            let again = deserialize(&serde_json::to_value(&read).unwrap()).unwrap();
            for schema in [read, again] {
                let field = schema.field_by_id(1).unwrap();
                assert_eq!(field.initial_default, Some(Literal::long(value)));
            }
        }
    }
}
