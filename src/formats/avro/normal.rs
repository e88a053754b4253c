//! An Avro schema without named references: each is replaced by its definition.
//!
//! A column can then be read without the columns that define its types.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use crate::bounds::{LEVELS, TYPES, check_json};
use crate::{Error, ErrorKind, Result};

/// Names of types that are not references.
const PRIMITIVES: [&str; 8] =
    ["null", "boolean", "int", "long", "float", "double", "bytes", "string"];

/// The top-level record of a file's schema, with its columns in order, all references resolved, and
/// without documentation, defaults and aliases.
///
/// # Errors
/// `Data` where it is no valid schema, or no record; `UnsupportedType` for a type that refers to
/// itself, naming the column.
pub(super) fn normalized(text: &[u8]) -> Result<Value> {
    check_json(text)?;
    let schema: Value = serde_json::from_slice(text)
        .map_err(|error| Error::data(format!("the Avro schema is no JSON: {error}")))?;
    if schema.get("type").and_then(Value::as_str) != Some("record") {
        return Err(Error::data(
            "the rows of this Avro file are no records; tables are read from files whose schema is a \
             record",
        ));
    }
    let mut names = Names { known: HashMap::new(), open: Vec::new(), types: 0, levels: 0 };
    names.resolve(&schema, "", "")
}

/// Lets every union of one type be null, too: one of those is a column of that type for the
/// decoder, where a union of one is a column of several types. Rows have the same bytes.
pub(super) fn widen_single_unions(schema: &mut Value) {
    match schema {
        Value::Array(branches) => {
            branches.iter_mut().for_each(widen_single_unions);
            if let [one] = &branches[..]
                && kind_of(one) != Some("null")
            {
                branches.push(json!("null"));
            }
        }
        Value::Object(object) => {
            for (key, inner) in object {
                match key.as_str() {
                    "items" | "values" => widen_single_unions(inner),
                    "fields" => inner
                        .as_array_mut()
                        .into_iter()
                        .flatten()
                        .for_each(|field| widen_single_unions(&mut field["type"])),
                    _ => {}
                }
            }
        }
        _ => {}
    }
}

/// The name of a type's kind; None for unions.
pub(super) fn kind_of(schema: &Value) -> Option<&str> {
    schema.as_str().or_else(|| schema.get("type")?.as_str())
}

struct Names {
    /// Named types in normalised form, by full name.
    known: HashMap<String, Value>,
    /// Full names of the types that are being resolved.
    open: Vec<String>,
    /// Types so far: references to references multiply.
    types: u64,
    /// Types around the one that is being resolved, itself included.
    levels: u64,
}

impl Names {
    /// `schema` normalized. `column` names the top-level column it belongs to.
    fn resolve(&mut self, schema: &Value, namespace: &str, column: &str) -> Result<Value> {
        self.levels += 1;
        self.count(1, 0)?;
        let resolved = self.resolve_inner(schema, namespace, column);
        self.levels -= 1;
        resolved
    }

    fn resolve_inner(&mut self, schema: &Value, namespace: &str, column: &str) -> Result<Value> {
        match schema {
            Value::String(name) if PRIMITIVES.contains(&name.as_str()) => Ok(schema.clone()),
            Value::String(name) => self.reference(name, namespace, column),
            Value::Array(branches) => {
                let branches = branches.iter().map(|one| self.resolve(one, namespace, column));
                branches.collect::<Result<_>>().map(Value::Array)
            }
            Value::Object(object) => self.object(object, namespace, column),
            other => Err(invalid(column, &format!("{other} is no type"))),
        }
    }

    fn object(
        &mut self,
        object: &Map<String, Value>,
        namespace: &str,
        column: &str,
    ) -> Result<Value> {
        let text = |key: &str| object.get(key).and_then(Value::as_str);
        let kind = match object.get("type") {
            Some(Value::String(kind)) => kind.as_str(),
            // {"type": {"type": "array", ...}}: a type in brackets.
            Some(inner) => return self.resolve(inner, namespace, column),
            None => return Err(invalid(column, "a type has no \"type\"")),
        };
        match kind {
            "record" | "error" | "enum" | "fixed" => {
                let name = text("name").ok_or_else(|| invalid(column, "a type has no name"))?;
                let full = match text("namespace") {
                    Some(own) if !name.contains('.') && !own.is_empty() => format!("{own}.{name}"),
                    Some(_) if !name.contains('.') => name.to_owned(),
                    _ => full_name(name, namespace),
                };
                self.named(object, kind, full, column)
            }
            "array" | "map" => {
                let key = if kind == "array" { "items" } else { "values" };
                let inner = object.get(key).ok_or_else(|| {
                    invalid(column, &format!("a type {kind:?} does not say its {key:?}"))
                })?;
                let inner = self.resolve(inner, namespace, column)?;
                Ok(json!({"type": kind, key: inner}))
            }
            primitive if PRIMITIVES.contains(&primitive) => Ok(with_logical_type(object, kind)),
            reference => self.reference(reference, namespace, column),
        }
    }

    fn named(
        &mut self,
        object: &Map<String, Value>,
        kind: &str,
        full: String,
        column: &str,
    ) -> Result<Value> {
        let plain = full.replace('.', "_");
        let namespace = full.rsplit_once('.').map_or("", |(namespace, _)| namespace);
        let resolved = match kind {
            "enum" => {
                let symbols = object.get("symbols").filter(|symbols| {
                    symbols.as_array().is_some_and(|all| all.iter().all(Value::is_string))
                });
                let symbols = symbols.ok_or_else(|| {
                    invalid(column, &format!("the symbols of enum {full:?} are no list of names"))
                })?;
                json!({"type": "enum", "name": plain, "symbols": symbols})
            }
            "fixed" => {
                let size = object
                    .get("size")
                    .and_then(Value::as_u64)
                    .filter(|size| i32::try_from(*size).is_ok());
                let size = size.ok_or_else(|| {
                    invalid(column, &format!("the size of fixed {full:?} is no number of bytes"))
                })?;
                let Value::Object(mut fixed) = with_logical_type(object, "fixed") else {
                    return Err(invalid(column, "a fixed type is none"));
                };
                fixed.insert("name".to_owned(), json!(plain));
                fixed.insert("size".to_owned(), json!(size));
                Value::Object(fixed)
            }
            _ => {
                let fields = object.get("fields").and_then(Value::as_array).ok_or_else(|| {
                    invalid(column, &format!("the fields of record {full:?} are no list"))
                })?;
                self.open.push(full.clone());
                let mut resolved = Vec::with_capacity(fields.len());
                for field in fields {
                    let name = field.get("name").and_then(Value::as_str);
                    let name = name.ok_or_else(|| {
                        invalid(column, &format!("a field of record {full:?} has no name"))
                    })?;
                    let of = if self.open.len() == 1 { name } else { column };
                    let inner = field
                        .get("type")
                        .ok_or_else(|| invalid(of, &format!("field {name:?} has no type")))?;
                    let inner = self.resolve(inner, namespace, of)?;
                    resolved.push(json!({"name": name, "type": inner}));
                }
                self.open.pop();
                json!({"type": "record", "name": plain, "fields": resolved})
            }
        };
        self.known.insert(full, resolved.clone());
        Ok(resolved)
    }

    fn reference(&mut self, name: &str, namespace: &str, column: &str) -> Result<Value> {
        let full = full_name(name, namespace);
        // A name without dots that is unknown in its namespace is taken for one without a
        // namespace, as others do.
        for full in [full.as_str(), name] {
            if self.open.iter().any(|open| open == full) {
                return Err(Error::new(
                    ErrorKind::UnsupportedType,
                    format!(
                        "column {column:?} has a type that refers to itself ({full}), which no Arrow type \
                         does; write it without, for example as JSON text"
                    ),
                ));
            }
            if let Some(known) = self.known.get(full).cloned() {
                let (types, levels) = size_of(&known);
                self.count(types, levels)?;
                return Ok(known);
            }
        }
        Err(invalid(column, &format!("the type {full:?} is not defined before it is used")))
    }

    fn count(&mut self, types: u64, levels: u64) -> Result<()> {
        self.types += types;
        TYPES.check(self.types, "the Avro schema has")?;
        LEVELS.check(self.levels + levels, "a type of the Avro schema has")
    }
}

fn full_name(name: &str, namespace: &str) -> String {
    match name.contains('.') || namespace.is_empty() {
        true => name.to_owned(),
        false => format!("{namespace}.{name}"),
    }
}

/// The type with what it means, where that changes how it is read. UUIDs stay text or bytes, and so
/// do invalid decimals, as the specification says.
fn with_logical_type(object: &Map<String, Value>, kind: &str) -> Value {
    let mut kept = Map::from_iter([("type".to_owned(), json!(kind))]);
    let is_decimal = object.get("logicalType").and_then(Value::as_str) == Some("decimal");
    if is_decimal && !can_be_decimal(object, kind) {
        return Value::Object(kept);
    }
    for key in ["logicalType", "precision", "scale"] {
        if let Some(value) = object.get(key)
            && value.as_str() != Some("uuid")
        {
            kept.insert(key.to_owned(), value.clone());
        }
    }
    Value::Object(kept)
}

/// Returns true if a type can be a decimal of the digits that it says.
fn can_be_decimal(object: &Map<String, Value>, kind: &str) -> bool {
    let precision = object.get("precision").and_then(Value::as_u64).unwrap_or(0);
    let scale = object.get("scale").map_or(Some(0), Value::as_u64);
    let fits = match kind {
        "bytes" => true,
        "fixed" => {
            // Digits that are the same for all numbers of as many bits, but for the sign.
            let bits = 8.0 * object.get("size").and_then(Value::as_u64).unwrap_or(0) as f64 - 1.0;
            precision as f64 <= (bits * std::f64::consts::LOG10_2).floor()
        }
        _ => false,
    };
    precision > 0 && fits && scale.is_some_and(|scale| scale <= precision)
}

/// The types in a normalized schema, and its levels.
fn size_of(schema: &Value) -> (u64, u64) {
    let sum = |parts: &mut dyn Iterator<Item = &Value>| {
        parts.map(size_of).fold((0, 0), |all, one| (all.0 + one.0, all.1.max(one.1)))
    };
    match schema {
        Value::Array(all) => sum(&mut all.iter()),
        Value::Object(object) => {
            let (types, levels) = sum(&mut object.values());
            (types + 1, levels + 1)
        }
        _ => (0, 0),
    }
}

pub(super) fn invalid(column: &str, what: &str) -> Error {
    match column {
        "" => Error::data(format!("the Avro schema is invalid: {what}")),
        column => Error::data(format!("the Avro schema of column {column:?} is invalid: {what}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(fields: Value) -> Result<Value> {
        let schema = json!({"type": "record", "name": "n.Row", "fields": fields});
        normalized(schema.to_string().as_bytes())
    }

    #[test]
    fn references_are_replaced_by_what_they_mean() {
        let defined = json!({"type": "enum", "name": "E", "symbols": ["a"], "doc": "d"});
        let schema = of(json!([
            {"name": "x", "type": ["null", defined], "default": null},
            {"name": "y", "type": {"type": "array", "items": "n.E"}},
            {"name": "z", "type": "E"},
        ]));
        let plain = json!({"type": "enum", "name": "n_E", "symbols": ["a"]});
        assert_eq!(
            schema.unwrap()["fields"],
            json!([
                {"name": "x", "type": ["null", plain]},
                {"name": "y", "type": {"type": "array", "items": plain}},
                {"name": "z", "type": plain},
            ])
        );
    }

    #[test]
    fn a_decimal_that_cannot_be_is_what_it_is_stored_as() {
        let decimal = |kind: Value, precision: i64, scale: i64| {
            let mut stored =
                json!({"logicalType": "decimal", "precision": precision, "scale": scale});
            let kind = kind.as_object().cloned().unwrap_or_default();
            stored.as_object_mut().unwrap().extend(kind);
            let schema = of(json!([{"name": "x", "type": stored}])).unwrap();
            schema["fields"][0]["type"]["logicalType"].is_string()
        };
        let fixed = |size: i64| json!({"type": "fixed", "name": "F", "size": size});
        for (precision, scale) in [(0, 0), (-1, 0), (4, 9), (4, -1)] {
            assert!(!decimal(json!({"type": "bytes"}), precision, scale), "{precision}, {scale}");
        }
        assert!(decimal(json!({"type": "bytes"}), 4, 4));
        assert!(!decimal(json!({"type": "long"}), 4, 0));
        for (size, most) in [(1, 2), (4, 9), (8, 18), (9, 21), (16, 38)] {
            assert!(decimal(fixed(size), most, 0) && !decimal(fixed(size), most + 1, 0));
        }
    }

    #[test]
    fn what_refers_to_itself_or_multiplies_is_refused() {
        let tree = json!({"type": "record", "name": "T", "fields": [{"name": "next", "type": ["null", "T"]}]});
        let error = of(json!([{"name": "tree", "type": tree}])).unwrap_err();
        assert!(error.kind() == ErrorKind::UnsupportedType, "{error}");
        assert!(error.to_string().contains("column \"tree\""), "{error}");
        let mut fields =
            vec![json!({"name": "c0", "type": {"type": "fixed", "name": "T0", "size": 1}})];
        for level in 1..40 {
            let below = format!("T{}", level - 1);
            let two = json!([{"name": "a", "type": below}, {"name": "b", "type": below}]);
            let record = json!({"type": "record", "name": format!("T{level}"), "fields": two});
            fields.push(json!({"name": format!("c{level}"), "type": record}));
        }
        let error = of(Value::Array(fields)).unwrap_err().to_string();
        assert!(error.contains("more than"), "{error}");
    }
}
