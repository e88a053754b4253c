//! Names of partition fields in manifests, made plain before a manifest is read, and types.
//!
//! The manifest reader finds partition values by name. But Avro's names are narrower than
//! Iceberg's, so writers put others in their place (`Mixed_x20Case`), whose values it would take
//! for null; and it refuses manifests of format version 1 in which a dropped field, `void` by then,
//! still has the name of the column it was an identity of. So each field is named after its id in
//! the manifest's header, where writer's schema and partition spec are. Uuids become sixteen bytes
//! there: they are stored so, and the reader does not know uuids. And the reader needs the columns
//! that the partition fields are of: one that the table had dropped when the manifest was written
//! is put back.

use std::collections::BTreeMap;

use iceberg::spec::TableMetadata;
use serde_json::{Value, json};

use super::avro_header::{SCHEMA, unlabel_uuids, with_header};
use super::rename::hidden_name;
use super::types::newest_field;

/// The header's key of the partition spec.
const SPEC: &str = "partition-spec";

/// The header's key of the table's schema.
const TABLE_SCHEMA: &str = "schema";

/// The field id of a data file's partition.
const PARTITION: i64 = 102;

/// The first id of a partition field, where a spec does not say ids.
const FIRST_ID: i64 = 1000;

/// The columns that a table's partition fields are of, by their ids, as a schema has them.
pub type Sources = BTreeMap<i64, Value>;

/// The [`Sources`] of a table, under names that no column has.
pub fn sources(metadata: &TableMetadata) -> Sources {
    let parts = metadata.partition_specs_iter().flat_map(|spec| spec.fields());
    let ids = parts.map(|part| part.source_id);
    ids.filter_map(|id| {
        let field = newest_field(metadata, |schema| schema.field_by_id(id))?;
        let (name, kind) = (hidden_name(id), serde_json::to_value(&field.field_type).ok()?);
        Some((i64::from(id), json!({"id": id, "name": name, "required": false, "type": kind})))
    })
    .collect()
}

/// The manifest with its partition fields named after their ids; None where it has none, or is no
/// Avro file.
pub fn with_plain_names(manifest: &[u8], sources: &Sources) -> Option<Vec<u8>> {
    with_header(manifest, |header| {
        let mut fields = header.json(SPEC)?;
        let list = fields.as_array_mut().filter(|fields| !fields.is_empty())?;
        let mut schema = header.json(TABLE_SCHEMA)?;
        for (field, position) in list.iter_mut().zip(0..) {
            let source = field.get("source-id").and_then(Value::as_i64);
            if let Some(column) = source.and_then(|id| sources.get(&id))
                && !has_field(&schema, &column["id"])
            {
                schema.get_mut("fields")?.as_array_mut()?.push(column.clone());
            }
            let id = field.get("field-id").and_then(Value::as_i64).unwrap_or(FIRST_ID + position);
            *field.get_mut("name")? = plain(id);
        }
        header.set(SPEC, &fields);
        let mut avro = header.json(SCHEMA)?;
        rename(&mut avro, false);
        if unlabel_uuids(&mut avro) {
            uuids_as_bytes(&mut schema);
        }
        header.set(SCHEMA, &avro);
        header.set(TABLE_SCHEMA, &schema);
        Some(())
    })
}

fn plain(id: i64) -> Value {
    Value::String(format!("_partition_field_{id}"))
}

/// Renames the fields of the partition in an Avro schema.
fn rename(avro: &mut Value, inside: bool) {
    match avro {
        Value::Array(items) => items.iter_mut().for_each(|item| rename(item, inside)),
        Value::Object(object) => {
            let id = object.get("field-id").and_then(Value::as_i64);
            if let Some(id) = id.filter(|_| inside) {
                object.insert("name".into(), plain(id));
            }
            let inside = inside || id == Some(PARTITION);
            object.values_mut().for_each(|value| rename(value, inside));
        }
        _ => {}
    }
}

/// Returns true if a schema has a field of this id, at any depth.
fn has_field(schema: &Value, id: &Value) -> bool {
    match schema {
        Value::Array(items) => items.iter().any(|item| has_field(item, id)),
        Value::Object(object) => {
            object.get("id") == Some(id) || object.values().any(|value| has_field(value, id))
        }
        _ => false,
    }
}

/// Makes every uuid in an Iceberg schema a fixed of as many bytes.
fn uuids_as_bytes(kind: &mut Value) {
    match kind {
        Value::String(name) if name == "uuid" => *kind = Value::from("fixed[16]"),
        Value::Object(object) => {
            for key in ["type", "element", "key", "value"] {
                object.get_mut(key).into_iter().for_each(uuids_as_bytes);
            }
            let fields = object.get_mut("fields").and_then(Value::as_array_mut);
            fields.into_iter().flatten().for_each(uuids_as_bytes);
        }
        _ => {}
    }
}
