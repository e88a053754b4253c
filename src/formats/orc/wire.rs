//! The protocol-buffer wire format, as far as ORC's metadata use it: `orc-rust` keeps type
//! attributes and some of the statistics to itself. Field numbers come from `orc_proto.proto`
//! (<https://orc.apache.org/specification/ORCv1/>).

use crate::{Error, Result};

/// The value of one field of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// Integers, booleans and enumerations.
    Number(u64),
    /// Strings, bytes, messages and packed lists.
    Bytes(&'a [u8]),
    /// Floating-point numbers of 4 or 8 bytes, which nobody here reads.
    Fixed,
}

impl<'a> Value<'a> {
    /// An integer, boolean or enumeration.
    pub fn number(self) -> Result<u64> {
        match self {
            Self::Number(number) => Ok(number),
            _ => Err(malformed("a number is missing")),
        }
    }

    /// A signed integer (`sint32`, `sint64`), which is stored with its sign in the last bit.
    pub fn signed(self) -> Result<i64> {
        let number = self.number()?;
        Ok((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    /// The bytes of a string or of a message.
    pub fn bytes(self) -> Result<&'a [u8]> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            _ => Err(malformed("a message is missing")),
        }
    }

    /// A string.
    pub fn text(self) -> Result<&'a str> {
        std::str::from_utf8(self.bytes()?).map_err(|_| malformed("a string is not UTF-8"))
    }

    /// One element of a repeated integer, or all of them where they are packed.
    pub fn numbers(self) -> Result<Vec<u64>> {
        match self {
            Self::Number(number) => Ok(vec![number]),
            Self::Bytes(mut bytes) => {
                let mut numbers = Vec::new();
                while !bytes.is_empty() {
                    numbers.push(varint(&mut bytes)?);
                }
                Ok(numbers)
            }
            Self::Fixed => Err(malformed("a list of numbers is missing")),
        }
    }
}

/// The fields of a message in the order in which they are stored: number and value.
pub fn fields(message: &[u8]) -> impl Iterator<Item = Result<(u64, Value<'_>)>> {
    let mut rest = message;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let field = field(&mut rest);
        if field.is_err() {
            rest = &[];
        }
        Some(field)
    })
}

/// Appends a field.
pub fn put(message: &mut Vec<u8>, number: u64, value: Value<'_>) {
    match value {
        Value::Number(value) => {
            put_number(message, number << 3);
            put_number(message, value);
        }
        Value::Bytes(bytes) => {
            put_number(message, number << 3 | 2);
            put_number(message, bytes.len() as u64);
            message.extend_from_slice(bytes);
        }
        // Nobody writes those.
        Value::Fixed => {}
    }
}

fn put_number(message: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        message.push(number as u8 | 0x80);
        number >>= 7;
    }
    message.push(number as u8);
}

fn field<'a>(rest: &mut &'a [u8]) -> Result<(u64, Value<'a>)> {
    let key = varint(rest)?;
    let value = match key & 7 {
        0 => Value::Number(varint(rest)?),
        1 => take(rest, 8).map(|_| Value::Fixed)?,
        2 => {
            let length = varint(rest)?;
            Value::Bytes(take(rest, length)?)
        }
        5 => take(rest, 4).map(|_| Value::Fixed)?,
        _ => return Err(malformed("a field has an unknown wire type")),
    };
    Ok((key >> 3, value))
}

fn varint(rest: &mut &[u8]) -> Result<u64> {
    let mut number = 0;
    for place in 0..10 {
        let (byte, after) = rest.split_first().ok_or_else(|| malformed("a number is cut off"))?;
        *rest = after;
        number |= u64::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(malformed("a number is longer than 10 bytes"))
}

fn take<'a>(rest: &mut &'a [u8], length: u64) -> Result<&'a [u8]> {
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let (taken, after) =
        rest.split_at_checked(length).ok_or_else(|| malformed("a field is cut off"))?;
    *rest = after;
    Ok(taken)
}

fn malformed(what: &str) -> Error {
    Error::data(format!("this is not a readable ORC file: its metadata are damaged ({what})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_walked_field_by_field() {
        // 1: 150, 2: "hi", 3: packed [1, 300], 4: sint -3
        let message =
            [0x08, 0x96, 0x01, 0x12, 2, b'h', b'i', 0x1a, 3, 0x01, 0xac, 0x02, 0x20, 0x05];
        let found: Vec<_> = fields(&message).collect::<Result<_>>().unwrap();
        assert_eq!(found.len(), 4);
        assert_eq!(found[0], (1, Value::Number(150)));
        assert_eq!(found[1].1.text().unwrap(), "hi");
        assert_eq!(found[2].1.numbers().unwrap(), [1, 300]);
        assert_eq!(found[3].1.signed().unwrap(), -3);
    }

    #[test]
    fn what_is_put_is_read() {
        let mut message = Vec::new();
        let values = [(1, Value::Number(u64::MAX)), (8000, Value::Bytes(b"ORC"))];
        values.iter().for_each(|(number, value)| put(&mut message, *number, *value));
        assert_eq!(fields(&message).collect::<Result<Vec<_>>>().unwrap(), values);
    }

    #[test]
    fn a_cut_message_is_an_error_and_ends() {
        let found: Vec<_> = fields(&[0x12, 5, b'h']).collect();
        assert_eq!(found.len(), 1);
        assert!(found[0].is_err());
    }
}
