//! JSON with damaged parts.

use serde_json::{Map, Value, json};

use crate::choices::Choices;

/// Values that stand in many documents, in places where they belong and where they do not.
const TEXTS: &[&str] = &[
    "",
    "0",
    "-1",
    "9223372036854775808",
    "true",
    "null",
    "NaN",
    "1970-01-01",
    "id",
    "name",
    "main",
    "long",
    "int",
    "string",
    "boolean",
    "double",
    "binary",
    "uuid",
    "date",
    "timestamp_ns",
    "timestamptz",
    "decimal(9,2)",
    "decimal(4294967296,-1)",
    "decimal",
    "fixed[16]",
    "fixed[18446744073709551615]",
    "variant",
    "unknown",
    "geometry",
    "struct",
    "list",
    "map",
    "array",
    "record",
    "enum",
    "identity",
    "bucket[0]",
    "bucket[4294967295]",
    "truncate[0]",
    "void",
    "hour",
    "append",
    "PARQUET",
    "AVRO",
    "ORC",
    "PUFFIN",
    "deletes",
    "data",
    "rows.parquet",
    "../rows.parquet",
    "vector.bin",
    "u",
    "p",
    "i",
    "9c12d441-03fe-4693-9a96-a0705ddf69c1",
    "%",
    "\u{1f}",
    "\u{0}",
    "\u{20ac}",
];

/// A document as it is written: each value and each name of it is a place where damage may strike. `more` are texts that belong to its
/// kind.
pub fn damaged(mut document: Value, choices: &mut Choices<'_>, more: &[&str]) -> Value {
    strike(&mut document, choices, more);
    document
}

fn strike(value: &mut Value, choices: &mut Choices<'_>, more: &[&str]) {
    if choices.strikes() {
        change(value, choices, more);
        return;
    }
    match value {
        Value::Array(items) => {
            for item in items {
                strike(item, choices, more);
            }
        }
        Value::Object(members) => {
            let mut written = Map::new();
            for (name, mut member) in std::mem::take(members) {
                let name = if choices.strikes() { text(choices, more) } else { name };
                strike(&mut member, choices, more);
                written.insert(name, member);
            }
            *members = written;
        }
        _ => {}
    }
}

fn change(value: &mut Value, choices: &mut Choices<'_>, more: &[&str]) {
    *value = match choices.below(12) {
        0 => Value::Null,
        1 | 2 => Value::String(text(choices, more)),
        3 => json!(choices.number(0)),
        4 => json!(choices.number(0) as i64),
        5 => json!(f64::from(choices.byte()) * 1e300),
        6 => Value::Bool(choices.byte() % 2 == 1),
        7 => Value::Array(Vec::new()),
        8 => Value::Object(Map::new()),
        9 => deep(choices.below(400), value.take(), choices),
        10 => repeated(value.take(), choices),
        _ => json!([value.take()]),
    };
}

/// A text that is in no place by right.
pub fn text(choices: &mut Choices<'_>, more: &[&str]) -> String {
    let at = choices.below(more.len() + TEXTS.len() + 1);
    let known = more.iter().chain(TEXTS).nth(at);
    known.map_or_else(|| "x".repeat(choices.below(5000)), ToString::to_string)
}

/// A value within so many others.
fn deep(levels: usize, inner: Value, choices: &mut Choices<'_>) -> Value {
    let kind = choices.below(3);
    (0..levels).fold(inner, |inner, level| match kind {
        0 => json!([inner]),
        1 => json!({"type": "list", "element-id": 1000 + level, "element-required": false, "element": inner}),
        _ => json!({"type": "array", "items": inner, "containsNull": true}),
    })
}

/// A list of many such items, or an object of many such members.
fn repeated(value: Value, choices: &mut Choices<'_>) -> Value {
    let times = *choices.one_of(&[2, 3, 100, 5000]);
    match value {
        Value::Array(items) => {
            let first = items.first().cloned().unwrap_or(Value::Null);
            Value::Array(vec![first; times])
        }
        Value::Object(members) => {
            let first = members.values().next().cloned().unwrap_or(Value::Null);
            Value::Object((0..times).map(|at| (at.to_string(), first.clone())).collect())
        }
        other => Value::Array(vec![other; times]),
    }
}
