//! Avro files whose schemas, lengths, counts and values may lie.

use std::io::Write;

use flate2::Compression;
use flate2::write::DeflateEncoder;
use serde_json::{Value, json};

use crate::choices::Choices;
use crate::json::damaged;

const SYNC: [u8; 16] = *b"sixteen bytes...";

/// A field of a record, with its id.
pub fn field(name: &str, kind: Value, id: u32) -> Value {
    json!({"name": name, "type": kind, "field-id": id})
}

/// A field that may be null.
pub fn optional(name: &str, kind: Value, id: u32) -> Value {
    json!({"name": name, "type": ["null", kind], "default": null, "field-id": id})
}

/// A record.
pub fn record(name: &str, fields: Vec<Value>) -> Value {
    json!({"type": "record", "name": name, "fields": fields})
}

/// A file of one block.
///
/// # Arguments
/// `more`: what the header says beside schema and codec.
pub fn avro_file(
    schema: &Value,
    more: &[(&str, Value)],
    rows: &[Value],
    choices: &mut Choices<'_>,
) -> Vec<u8> {
    let codec = *choices.one_of(&["null", "deflate"]);
    let mut block = Vec::new();
    for row in rows {
        put(schema, row, &mut block, choices);
    }
    let rows = choices.length(rows.len());
    if choices.strikes() {
        // What repeats itself is small on disk.
        let byte = choices.byte();
        block.resize(block.len() + choices.below(64) * 65_536, byte);
    }
    let mut file = b"Obj\x01".to_vec();
    let told = damaged(schema.clone(), choices, &[]).to_string();
    let codec_told = if choices.strikes() {
        *choices.one_of(&["snappy", "zstandard", "bzip2", "xz", "deflate", "null", "none"])
    } else {
        codec
    };
    let mut pairs = vec![("avro.schema", told), ("avro.codec", codec_told.to_owned())];
    for (name, value) in more {
        let text = match damaged(value.clone(), choices, &[]) {
            Value::String(text) => text,
            other => other.to_string(),
        };
        pairs.push((name, text));
    }
    put_length(&mut file, pairs.len(), choices);
    for (name, value) in &pairs {
        put_bytes(&mut file, name.as_bytes(), choices);
        put_bytes(&mut file, value.as_bytes(), choices);
    }
    put_length(&mut file, 0, choices);
    file.extend_from_slice(&SYNC);
    put_long(&mut file, rows as i64);
    let block = if codec == "deflate" {
        let mut packer = DeflateEncoder::new(Vec::new(), Compression::fast());
        packer.write_all(&block).and_then(|()| packer.finish()).expect("memory takes it")
    } else {
        block
    };
    put_bytes(&mut file, &block, choices);
    file.extend_from_slice(&SYNC);
    choices.bytes(file)
}

/// A value as its schema has it; what it lacks is null, zero or empty.
fn put(schema: &Value, value: &Value, out: &mut Vec<u8>, choices: &mut Choices<'_>) {
    match schema {
        Value::Array(branches) => {
            let is_null = |branch: &Value| branch == "null";
            let at = branches.iter().position(|branch| is_null(branch) == value.is_null());
            let at = at.unwrap_or(0);
            put_length(out, at, choices);
            put(&branches[at], value, out, choices);
        }
        Value::Object(kind) => match kind.get("type").and_then(Value::as_str) {
            Some("record") => {
                for field in kind.get("fields").and_then(Value::as_array).into_iter().flatten() {
                    let name = field["name"].as_str().unwrap_or_default();
                    put(&field["type"], &value[name], out, choices);
                }
            }
            Some("array") => {
                let items = value.as_array().map_or(&[][..], Vec::as_slice);
                put_items(&kind["items"], items, out, choices);
            }
            Some(plain) => put_plain(plain, value, out, choices),
            None => {}
        },
        Value::String(plain) => put_plain(plain, value, out, choices),
        _ => {}
    }
}

fn put_items(schema: &Value, items: &[Value], out: &mut Vec<u8>, choices: &mut Choices<'_>) {
    if !items.is_empty() || choices.strikes() {
        let mut held = Vec::new();
        for item in items {
            put(schema, item, &mut held, choices);
        }
        let count = choices.length(items.len()) as i64;
        // A negative count has the bytes of the items behind it.
        if choices.strikes() {
            put_long(out, count.wrapping_neg());
            put_length(out, held.len(), choices);
        } else {
            put_long(out, count);
        }
        out.extend_from_slice(&held);
    }
    put_length(out, 0, choices);
}

fn put_plain(kind: &str, value: &Value, out: &mut Vec<u8>, choices: &mut Choices<'_>) {
    match kind {
        "boolean" => out.push(choices.number(value.as_bool().unwrap_or_default().into()) as u8),
        "int" | "long" => {
            put_long(out, choices.number(value.as_i64().unwrap_or_default() as u64) as i64);
        }
        "double" => out.extend_from_slice(&value.as_f64().unwrap_or_default().to_le_bytes()),
        "string" => put_bytes(out, value.as_str().unwrap_or_default().as_bytes(), choices),
        "bytes" => {
            let bytes = value.as_array().into_iter().flatten();
            let bytes: Vec<u8> =
                bytes.map(|byte| byte.as_u64().unwrap_or_default() as u8).collect();
            put_bytes(out, &bytes, choices);
        }
        _ => {}
    }
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8], choices: &mut Choices<'_>) {
    put_length(out, bytes.len(), choices);
    out.extend_from_slice(bytes);
}

fn put_length(out: &mut Vec<u8>, length: usize, choices: &mut Choices<'_>) {
    put_long(out, choices.length(length) as i64);
}

/// A number, small ones of either sign in few bytes.
fn put_long(out: &mut Vec<u8>, number: i64) {
    let mut rest = ((number << 1) ^ (number >> 63)) as u64;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}
