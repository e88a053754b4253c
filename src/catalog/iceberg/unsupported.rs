//! Types of format version 3 that nothing here reads, found in metadata that does not parse: the parser itself says
//! neither the column nor the type.

use serde_json::Value;

/// The primitive types that are read, without parameters.
const KNOWN: &[&str] = &[
    "boolean",
    "int",
    "long",
    "float",
    "double",
    "date",
    "time",
    "timestamp",
    "timestamptz",
    "timestamp_ns",
    "timestamptz_ns",
    "string",
    "uuid",
    "binary",
];

/// The first column of a table's schemas whose type is not read: its name and type.
pub fn unsupported_type(metadata: &Value) -> Option<(String, String)> {
    let schemas = metadata.get("schemas").and_then(Value::as_array);
    let schemas = schemas.map(Vec::as_slice).unwrap_or_default();
    schemas.iter().chain(metadata.get("schema")).find_map(|schema| in_type(schema, ""))
}

fn in_type(kind: &Value, path: &str) -> Option<(String, String)> {
    let below = |name: &str| match path.is_empty() {
        true => name.to_owned(),
        false => format!("{path}.{name}"),
    };
    match kind {
        Value::String(name) => {
            let known = KNOWN.contains(&name.as_str())
                || name.starts_with("decimal(")
                || name.starts_with("fixed[");
            (!known).then(|| (path.to_owned(), name.clone()))
        }
        Value::Object(object) => {
            let fields = object.get("fields").and_then(Value::as_array);
            let of_fields = fields.into_iter().flatten().find_map(|field| {
                in_type(field.get("type")?, &below(field.get("name")?.as_str()?))
            });
            let of_children = ["element", "key", "value"]
                .into_iter()
                .find_map(|child| in_type(object.get(child)?, &below(child)));
            of_fields.or(of_children)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_type_is_found_wherever_it_is() {
        let of = |kind: Value| {
            let field = json!({"id": 1, "name": "a", "required": false, "type": kind});
            unsupported_type(&json!({"schemas": [{"type": "struct", "fields": [field]}]}))
        };
        let found = |path: &str, kind: &str| Some((path.to_owned(), kind.to_owned()));
        assert_eq!(of(json!("decimal(9, 2)")), None);
        assert_eq!(of(json!("variant")), found("a", "variant"));
        let list = json!({"type": "list", "element-id": 2, "element": "unknown"});
        assert_eq!(of(list), found("a.element", "unknown"));
    }
}
