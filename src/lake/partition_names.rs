//! Names of partition fields in manifests, made plain before a manifest is read.
//!
//! The manifest reader finds partition values by name. But Avro's names are narrower than Iceberg's, so writers put others
//! in their place (`Mixed_x20Case`), whose values it would take for null; and it refuses manifests of format version 1 in
//! which a dropped field, `void` by then, still has the name of the column it was an identity of. So each field is named
//! after its id in the manifest's header, where writer's schema and partition spec are.
//! Avro's file header: <https://avro.apache.org/docs/1.11.1/specification/#object-container-files>.

use serde_json::Value;

/// The bytes before the header's map.
const MAGIC: &[u8] = b"Obj\x01";

/// The field id of a data file's partition.
const PARTITION: i64 = 102;

/// The first id of a partition field, where a spec does not say ids.
const FIRST_ID: i64 = 1000;

/// The manifest with its partition fields named after their ids; None where it has none, or is no Avro file.
pub fn with_plain_names(manifest: &[u8]) -> Option<Vec<u8>> {
    let (mut pairs, rest) = read_header(manifest)?;
    let spec = pairs.iter().position(|(key, _)| key == b"partition-spec")?;
    let schema = pairs.iter().position(|(key, _)| key == b"avro.schema")?;
    let mut fields: Value = serde_json::from_slice(&pairs[spec].1).ok()?;
    let list = fields.as_array_mut().filter(|fields| !fields.is_empty())?;
    for (field, position) in list.iter_mut().zip(0..) {
        let id = field.get("field-id").and_then(Value::as_i64).unwrap_or(FIRST_ID + position);
        *field.get_mut("name")? = plain(id);
    }
    let mut avro: Value = serde_json::from_slice(&pairs[schema].1).ok()?;
    rename(&mut avro, false);
    pairs[spec].1 = serde_json::to_vec(&fields).ok()?;
    pairs[schema].1 = serde_json::to_vec(&avro).ok()?;
    let mut out = MAGIC.to_vec();
    write_long(&mut out, pairs.len() as i64);
    for (key, value) in &pairs {
        for bytes in [key, value] {
            write_long(&mut out, bytes.len() as i64);
            out.extend_from_slice(bytes);
        }
    }
    write_long(&mut out, 0);
    out.extend_from_slice(rest);
    Some(out)
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

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// The header's map, and what follows it.
fn read_header(file: &[u8]) -> Option<(Pairs, &[u8])> {
    let mut rest = file.strip_prefix(MAGIC)?;
    let mut pairs = Vec::new();
    loop {
        let mut count = read_long(&mut rest)?;
        if count == 0 {
            return Some((pairs, rest));
        }
        if count < 0 {
            // A block with its length in bytes.
            read_long(&mut rest)?;
            count = -count;
        }
        for _ in 0..count {
            let key = read_bytes(&mut rest)?;
            pairs.push((key, read_bytes(&mut rest)?));
        }
    }
}

fn read_bytes(rest: &mut &[u8]) -> Option<Vec<u8>> {
    let length = usize::try_from(read_long(rest)?).ok()?;
    let (bytes, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some(bytes.to_vec())
}

/// A zigzag number of variable length.
fn read_long(rest: &mut &[u8]) -> Option<i64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some((number >> 1) as i64 ^ -((number & 1) as i64));
        }
    }
    None
}

fn write_long(out: &mut Vec<u8>, number: i64) {
    let mut number = ((number << 1) ^ (number >> 63)) as u64;
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_they_are_read() {
        for number in [0, 1, -1, 63, 64, -65, 1 << 40, i64::MAX, i64::MIN] {
            let mut bytes = Vec::new();
            write_long(&mut bytes, number);
            assert_eq!(read_long(&mut bytes.as_slice()), Some(number));
        }
    }
}
