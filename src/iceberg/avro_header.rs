//! The header of an Avro file, changed before the file is read: its schema, and the writer's
//! metadata. Its form: <https://avro.apache.org/docs/1.11.1/specification/#object-container-files>.

use serde_json::Value;

/// The bytes before the header's map.
const MAGIC: &[u8] = b"Obj\x01";

/// The key of the writer's schema.
pub const SCHEMA: &str = "avro.schema";

/// The map of an Avro file's header.
pub struct AvroHeader(Vec<(Vec<u8>, Vec<u8>)>);

impl AvroHeader {
    /// The value of `key`; None where there is none, or it is no JSON.
    pub fn json(&self, key: &str) -> Option<Value> {
        let (_, value) = self.0.iter().find(|(known, _)| known == key.as_bytes())?;
        serde_json::from_slice(value).ok()
    }

    /// Gives a key that is there another value.
    pub fn set(&mut self, key: &str, json: &Value) {
        if let Some((_, value)) = self.0.iter_mut().find(|(known, _)| known == key.as_bytes()) {
            *value = json.to_string().into_bytes();
        }
    }
}

/// The file with its header as `change` leaves it; None where that gives None, or where it is no
/// Avro file.
pub fn with_header(
    file: &[u8],
    change: impl FnOnce(&mut AvroHeader) -> Option<()>,
) -> Option<Vec<u8>> {
    let (mut header, rest) = read_header(file)?;
    change(&mut header)?;
    let mut out = MAGIC.to_vec();
    write_long(&mut out, header.0.len() as i64);
    for (key, value) in &header.0 {
        for bytes in [key, value] {
            write_long(&mut out, bytes.len() as i64);
            out.extend_from_slice(bytes);
        }
    }
    write_long(&mut out, 0);
    out.extend_from_slice(rest);
    Some(out)
}

/// Makes uuids of an Avro schema the 16 bytes as which Iceberg stores them; whether there were any.
/// The reader takes all that is labelled a uuid for bytes with their length before them.
pub fn unlabel_uuids(avro: &mut Value) -> bool {
    match avro {
        Value::Array(items) => items.iter_mut().fold(false, |any, item| unlabel_uuids(item) | any),
        Value::Object(object) => {
            let is = |key: &str, text: &str| object.get(key).is_some_and(|value| value == text);
            let is_uuid = is("type", "fixed") && is("logicalType", "uuid");
            if is_uuid {
                object.remove("logicalType");
            }
            object.values_mut().fold(is_uuid, |any, value| unlabel_uuids(value) | any)
        }
        _ => false,
    }
}

/// The header's map, and the bytes after it.
fn read_header(file: &[u8]) -> Option<(AvroHeader, &[u8])> {
    let mut rest = file.strip_prefix(MAGIC)?;
    let mut pairs = Vec::new();
    loop {
        let mut count = read_long(&mut rest)?;
        if count == 0 {
            return Some((AvroHeader(pairs), rest));
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
