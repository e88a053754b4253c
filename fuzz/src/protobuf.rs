//! Messages of protocol buffers whose numbers and lengths may lie.

use crate::choices::Choices;

/// A message that is being written.
#[derive(Default)]
pub struct Message {
    bytes: Vec<u8>,
}

impl Message {
    /// Adds a number.
    pub fn number(mut self, field: u32, truth: u64, choices: &mut Choices<'_>) -> Self {
        self.key(field, 0, choices);
        put_varint(&mut self.bytes, choices.number(truth));
        self
    }

    /// Adds a number that may be negative.
    pub fn signed(self, field: u32, truth: i64, choices: &mut Choices<'_>) -> Self {
        self.number(field, ((truth << 1) ^ (truth >> 63)) as u64, choices)
    }

    /// Adds bytes, a text or another message.
    pub fn bytes(mut self, field: u32, bytes: &[u8], choices: &mut Choices<'_>) -> Self {
        self.key(field, 2, choices);
        put_varint(&mut self.bytes, choices.length(bytes.len()));
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// Adds another message.
    pub fn message(self, field: u32, inner: Self, choices: &mut Choices<'_>) -> Self {
        self.bytes(field, &inner.done(), choices)
    }

    /// The bytes.
    pub fn done(self) -> Vec<u8> {
        self.bytes
    }

    fn key(&mut self, field: u32, wire: u64, choices: &mut Choices<'_>) {
        put_varint(&mut self.bytes, choices.number(u64::from(field) << 3 | wire));
    }
}

/// A number, small ones in few bytes.
pub fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}
