//! Manifests of format version 1 whose partition spec has dropped a field: its transform is `void` by then, and it keeps
//! its name, often that of the column it was an identity of. The manifest reader takes such a name for a clash, so
//! the field gets another one in the manifest's header before it is read.
//! Avro's file header: <https://avro.apache.org/docs/1.11.1/specification/#object-container-files>.

use serde_json::Value;

/// The bytes before the header's map.
const MAGIC: &[u8] = b"Obj\x01";

/// The manifest with other names for void fields; None where it has none, or is no Avro file.
pub fn rename_void_fields(manifest: &[u8]) -> Option<Vec<u8>> {
    let (mut pairs, rest) = read_header(manifest)?;
    let spec = pairs.iter().position(|(key, _)| key == b"partition-spec")?;
    let schema = pairs.iter().position(|(key, _)| key == b"avro.schema")?;
    let mut fields: Value = serde_json::from_slice(&pairs[spec].1).ok()?;
    let mut renamed = Vec::new();
    for field in fields.as_array_mut()? {
        if field.get("transform")?.as_str()? == "void" {
            let (id, name) = (field.get("field-id")?.as_i64()?, field.get("name")?.as_str()?);
            let other = format!("{name}_void_{id}");
            renamed.push((id, other.clone()));
            *field.get_mut("name")? = Value::String(other);
        }
    }
    if renamed.is_empty() {
        return None;
    }
    let mut avro: Value = serde_json::from_slice(&pairs[schema].1).ok()?;
    rename_by_id(&mut avro, &renamed);
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

fn rename_by_id(avro: &mut Value, renamed: &[(i64, String)]) {
    match avro {
        Value::Array(items) => items.iter_mut().for_each(|item| rename_by_id(item, renamed)),
        Value::Object(object) => {
            let id = object.get("field-id").and_then(Value::as_i64);
            if let Some((_, name)) = renamed.iter().find(|(known, _)| Some(*known) == id) {
                object.insert("name".into(), Value::String(name.clone()));
            }
            object.values_mut().for_each(|value| rename_by_id(value, renamed));
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
