//! Iceberg catalogs: all kinds describe a table alike, a wrong name is answered with the right ones, no
//! secret is shown, and credentials are renewed before they end.

mod bare;
mod database;
mod names;
mod rest;
mod routed;
mod server;
mod vended;

use std::collections::BTreeMap;
use std::path::Path;

/// Properties from pairs.
fn properties(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// Names from text: `a.b` is a namespace in a namespace.
fn names(text: &str) -> Vec<String> {
    text.split('.').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Table metadata of format version 2 without a snapshot.
fn metadata(location: &str) -> String {
    format!(
        r#"{{
            "format-version": 2,
            "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1",
            "location": "{location}",
            "last-sequence-number": 0,
            "last-updated-ms": 1602638573590,
            "last-column-id": 1,
            "current-schema-id": 0,
            "schemas": [{{"type": "struct", "schema-id": 0, "fields": [
                {{"id": 1, "name": "x", "required": true, "type": "long"}}
            ]}}],
            "default-spec-id": 0,
            "partition-specs": [{{"spec-id": 0, "fields": []}}],
            "last-partition-id": 999,
            "default-sort-order-id": 0,
            "sort-orders": [{{"order-id": 0, "fields": []}}],
            "properties": {{}},
            "current-snapshot-id": -1,
            "snapshots": [],
            "snapshot-log": [],
            "metadata-log": []
        }}"#
    )
}

/// Writes metadata to `name` in the directory, and returns the file's path.
fn write_metadata(directory: &Path, name: &str) -> String {
    let path = directory.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, metadata(&directory.display().to_string())).unwrap();
    path.display().to_string()
}
