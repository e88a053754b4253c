//! Numbers in few bytes, in which a plan over a million splits is sent and kept.
//!
//! A number takes seven bits per byte, the last byte's high bit is clear (LEB128). Numbers that
//! mostly follow the one before are written as the difference, with the sign in the lowest bit.

use crate::{Error, Result};

/// Writes numbers.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// One number.
    pub fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }

    /// A number that is near `before`, which becomes it.
    pub fn near(&mut self, number: u64, before: &mut u64) {
        let step = number.wrapping_sub(*before) as i64;
        self.number(((step << 1) ^ (step >> 63)) as u64);
        *before = number;
    }

    /// A number that may be missing.
    pub fn optional(&mut self, number: Option<u64>) {
        self.number(u64::from(number.is_some()));
        if let Some(number) = number {
            self.number(number);
        }
    }

    /// Bytes of any length.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
    }

    /// The written bytes.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

/// Reads the bytes of a [`Writer`].
#[derive(Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// From the first number on.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The next number.
    ///
    /// # Errors
    /// `Config` where the bytes end before it does.
    pub fn number(&mut self) -> Result<u64> {
        let (mut number, mut shift) = (0_u64, 0);
        loop {
            let (byte, rest) = self.rest.split_first().ok_or_else(cut_off)?;
            self.rest = rest;
            if shift > 63 {
                return Err(cut_off());
            }
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
            shift += 7;
        }
    }

    /// A length of things that take a byte or more each.
    ///
    /// # Errors
    /// As [`number`](Self::number), and where fewer bytes are left.
    pub fn length(&mut self) -> Result<usize> {
        let length = usize::try_from(self.number()?).map_err(|_| cut_off())?;
        if length > self.rest.len() { Err(cut_off()) } else { Ok(length) }
    }

    /// A number near `before`, which becomes it.
    ///
    /// # Errors
    /// As [`number`](Self::number).
    pub fn near(&mut self, before: &mut u64) -> Result<u64> {
        let written = self.number()?;
        let step = (written >> 1) as i64 ^ -((written & 1) as i64);
        *before = before.wrapping_add(step as u64);
        Ok(*before)
    }

    /// A number that may be missing.
    ///
    /// # Errors
    /// As [`number`](Self::number).
    pub fn optional(&mut self) -> Result<Option<u64>> {
        match self.number()? {
            0 => Ok(None),
            _ => Ok(Some(self.number()?)),
        }
    }

    /// Bytes of any length.
    ///
    /// # Errors
    /// As [`number`](Self::number).
    pub fn bytes(&mut self) -> Result<&'a [u8]> {
        let length = self.length()?;
        let (bytes, rest) = self.rest.split_at(length);
        self.rest = rest;
        Ok(bytes)
    }

    /// That nothing is left.
    ///
    /// # Errors
    /// `Config` where something is.
    pub fn end(&self) -> Result<()> {
        if self.rest.is_empty() { Ok(()) } else { Err(cut_off()) }
    }
}

fn cut_off() -> Error {
    Error::config(
        "packed numbers are damaged or cut off; all processes must run the same version of tensorquery",
    )
}

#[cfg(test)]
mod tests {
    use super::{Reader, Writer};

    #[test]
    fn numbers_come_back() {
        let numbers = [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX - 1, u64::MAX];
        let (mut writer, mut before) = (Writer::default(), 0);
        for number in numbers {
            writer.number(number);
            writer.near(number, &mut before);
            writer.optional(Some(number));
        }
        writer.optional(None);
        writer.bytes(b"ab");
        let bytes = writer.finish();
        let (mut reader, mut before) = (Reader::new(&bytes), 0);
        for number in numbers {
            assert_eq!(reader.number().ok(), Some(number));
            assert_eq!(reader.near(&mut before).ok(), Some(number));
            assert_eq!(reader.optional().ok(), Some(Some(number)));
        }
        assert_eq!(reader.optional().ok(), Some(None));
        assert_eq!(reader.bytes().ok(), Some(&b"ab"[..]));
        assert!(reader.end().is_ok());
        for end in 0..bytes.len() {
            let mut reader = Reader::new(&bytes[..end]);
            while reader.number().is_ok() {}
            assert!(Reader::new(&bytes[..end]).end().is_ok() == (end == 0));
        }
    }
}
