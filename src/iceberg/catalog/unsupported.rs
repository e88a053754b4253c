//! Finds the column and type that cannot be read in metadata that does not parse. The parser names
//! neither for types of format version 3.

use serde::Deserialize;
use serde_json::Value;

use crate::iceberg::{Defaults, children, find_left_out};
use crate::{Error, ErrorKind, Result};

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

/// The schemas of a table's metadata, as they are written.
#[derive(Deserialize)]
pub struct Schemas {
    #[serde(default)]
    schemas: Vec<Value>,
    /// In format version 1, the current one.
    schema: Option<Value>,
}

impl Schemas {
    /// The error of the first column whose type is not read.
    pub fn unsupported_type(&self) -> Option<Error> {
        let (column, kind) = self.all().find_map(|schema| type_in(schema, ""))?;
        Some(Error::new(
            ErrorKind::UnsupportedType,
            format!("column {column:?} is of Iceberg's type {kind}, which is not supported"),
        ))
    }

    /// The defaults that the parser leaves out.
    ///
    /// # Errors
    /// `Data` for one that is none of its column's type.
    pub fn defaults(&self) -> Result<Defaults> {
        let mut found = Defaults::new();
        self.all().try_for_each(|schema| find_left_out(schema, &mut found))?;
        Ok(found)
    }

    fn all(&self) -> impl Iterator<Item = &Value> {
        self.schemas.iter().chain(&self.schema)
    }
}

/// The error of the first snapshot without a manifest list, as writers of format version 1 may
/// leave it out.
pub fn embedded_manifests(metadata: &Value) -> Option<Error> {
    let snapshots = metadata.get("snapshots").and_then(Value::as_array);
    let embedded = snapshots.into_iter().flatten().find(|snapshot| {
        snapshot.get("manifests").is_some() && snapshot.get("manifest-list").is_none()
    })?;
    Some(Error::data(format!(
        "snapshot {} names its manifests in the metadata itself (format version 1), which is not supported; expire it, \
         after a commit with write.manifest-lists.enabled",
        embedded["snapshot-id"]
    )))
}

fn type_in(kind: &Value, path: &str) -> Option<(String, String)> {
    let Value::String(name) = kind else {
        return children(kind, path).iter().find_map(|child| type_in(child.kind, &child.path));
    };
    let known = KNOWN.contains(&name.as_str())
        || name.starts_with("decimal(")
        || name.starts_with("fixed[");
    (!known).then(|| (path.to_owned(), name.clone()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_type_is_found_wherever_it_is() {
        let of = |kind: Value| {
            let field = json!({"id": 1, "name": "a", "required": false, "type": kind});
            type_in(&json!({"type": "struct", "fields": [field]}), "")
        };
        let found = |path: &str, kind: &str| Some((path.to_owned(), kind.to_owned()));
        assert_eq!(of(json!("decimal(9, 2)")), None);
        assert_eq!(of(json!("variant")), found("a", "variant"));
        let list = json!({"type": "list", "element-id": 2, "element": "unknown"});
        assert_eq!(of(list), found("a.element", "unknown"));
    }
}
