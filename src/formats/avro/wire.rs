//! The smallest parts of Avro's binary encoding.

use crate::{Error, Result};

/// The longest encoding of a 64-bit number, in bytes.
pub(super) const LONGEST: usize = 10;

/// Bytes that are taken from the front.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor<'a> {
    rest: &'a [u8],
    /// Items of lists that were passed over.
    pub items: u64,
}

impl<'a> Cursor<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, items: 0 }
    }

    /// Bytes that are left.
    pub fn left(&self) -> usize {
        self.rest.len()
    }

    /// The next `length` bytes; None where fewer are left.
    pub fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken)
    }

    /// A number in zigzag encoding; None where the bytes end within it.
    ///
    /// # Errors
    /// `Data` for one of more than 64 bits.
    pub fn long(&mut self) -> Result<Option<i64>> {
        let mut value: u64 = 0;
        for (index, byte) in self.rest.iter().take(LONGEST).enumerate() {
            let bits = u64::from(byte & 0x7f);
            if index == LONGEST - 1 && bits > 1 {
                break;
            }
            value |= bits << (7 * index);
            if byte & 0x80 == 0 {
                self.rest = &self.rest[index + 1..];
                return Ok(Some((value >> 1) as i64 ^ -((value & 1) as i64)));
            }
        }
        match self.rest.len() < LONGEST {
            true => Ok(None),
            false => Err(damaged("a number has more than 64 bits")),
        }
    }
}

/// Appends a number in zigzag encoding.
pub(super) fn put_long(bytes: &mut Vec<u8>, value: i64) {
    let mut rest = ((value << 1) ^ (value >> 63)) as u64;
    while rest >= 0x80 {
        bytes.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    bytes.push(rest as u8);
}

pub(super) fn damaged(what: &str) -> Error {
    Error::data(format!("the Avro data are damaged: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_there_and_back() {
        for value in [0, -1, 1, 63, -64, 64, 8191, -8193, i64::MAX, i64::MIN] {
            let mut bytes = Vec::new();
            put_long(&mut bytes, value);
            let mut cursor = Cursor::new(&bytes);
            assert_eq!((cursor.long().unwrap(), cursor.left()), (Some(value), 0));
            assert_eq!(Cursor::new(&bytes[..bytes.len() - 1]).long().unwrap(), None);
        }
        assert!(Cursor::new(&[0xff; 11]).long().is_err());
    }
}
