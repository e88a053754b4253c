//! Serialised forms: the bytes that fingerprints, names of stages and keys of caches are digests
//! of.
//!
//! A form begins with the version of this layout and the form's kind. Fields follow:
//!
//! ```text
//! form  = version (1 byte) | length (4 bytes) | kind | field …
//! field = length (4 bytes) | tag | type (1 byte) | length (8 bytes) | value      numbers are little-endian
//! ```
//!
//! Each length stands in front of the counted values, so that two forms have the same bytes only
//! where kinds, tags, types and values are the same. Nothing in a form follows from `Debug` or from
//! the name of a Rust type: each kind names its fields and variants itself, so that a change of
//! names changes no fingerprint.

mod arrow;
mod json;

use sha2::{Digest, Sha256};

pub use arrow::{data_type, schema, values};
pub use json::json;

use crate::Result;

/// The layout of forms and the fields of all kinds. Who adds, drops or changes a field raises it.
pub const VERSION: u8 = 1;

// Types of values.
const BYTES: u8 = 0;
const TEXT: u8 = 1;
const NUMBER: u8 = 2;
const SIGNED: u8 = 3;
const FLAG: u8 = 4;
const ABSENT: u8 = 5;
const FORM: u8 = 6;
const LIST: u8 = 7;

/// Writes one form.
#[derive(Debug)]
pub struct Form {
    bytes: Vec<u8>,
}

impl Form {
    /// A form of a kind, without fields.
    pub fn new(kind: &str) -> Self {
        let mut form = Self { bytes: vec![VERSION] };
        form.word(kind);
        form
    }

    /// A text.
    pub fn text(&mut self, tag: &str, text: &str) -> &mut Self {
        self.field(tag, TEXT, text.as_bytes())
    }

    /// A text that may be missing.
    pub fn optional_text(&mut self, tag: &str, text: Option<&str>) -> &mut Self {
        match text {
            Some(text) => self.text(tag, text),
            None => self.absent(tag),
        }
    }

    /// Bytes.
    pub fn bytes(&mut self, tag: &str, bytes: &[u8]) -> &mut Self {
        self.field(tag, BYTES, bytes)
    }

    /// A number of at least 0.
    pub fn number(&mut self, tag: &str, number: u64) -> &mut Self {
        self.field(tag, NUMBER, &number.to_le_bytes())
    }

    /// A number that may be missing.
    pub fn optional_number(&mut self, tag: &str, number: Option<u64>) -> &mut Self {
        match number {
            Some(number) => self.number(tag, number),
            None => self.absent(tag),
        }
    }

    /// A number of either sign.
    pub fn signed(&mut self, tag: &str, number: i64) -> &mut Self {
        self.field(tag, SIGNED, &number.to_le_bytes())
    }

    /// True or false.
    pub fn flag(&mut self, tag: &str, flag: bool) -> &mut Self {
        self.field(tag, FLAG, &[u8::from(flag)])
    }

    /// A value that is missing, other than any that is there.
    pub fn absent(&mut self, tag: &str) -> &mut Self {
        self.field(tag, ABSENT, &[])
    }

    /// A form as a value: its kind, and the fields that `write` adds.
    ///
    /// # Errors
    /// Errors of `write`.
    pub fn nested(
        &mut self,
        tag: &str,
        kind: &str,
        write: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<&mut Self> {
        let at = self.open(tag, FORM);
        self.word(kind);
        write(self)?;
        self.close(at);
        Ok(self)
    }

    /// A list: for each item the fields that `write` adds.
    ///
    /// The value is the number of items and, where there are any, a SHA-256 over them: a list of a
    /// million files takes no memory.
    ///
    /// # Errors
    /// Errors of `write`.
    pub fn list<T>(
        &mut self,
        tag: &str,
        items: impl IntoIterator<Item = T>,
        mut write: impl FnMut(&mut Self, T) -> Result<()>,
    ) -> Result<&mut Self> {
        let (mut hash, mut count) = (Sha256::new(), 0_u64);
        let mut form = Self { bytes: Vec::new() };
        for item in items {
            form.bytes.clear();
            write(&mut form, item)?;
            hash.update((form.bytes.len() as u64).to_le_bytes());
            hash.update(&form.bytes);
            count += 1;
        }
        let mut value = count.to_le_bytes().to_vec();
        if count > 0 {
            value.extend_from_slice(&hash.finalize());
        }
        Ok(self.field(tag, LIST, &value))
    }

    /// The SHA-256 of the form.
    pub fn digest(&self) -> [u8; 32] {
        Sha256::digest(&self.bytes).into()
    }

    /// The SHA-256 in 64 hexadecimal digits: a name of a file or a folder.
    pub fn name(&self) -> String {
        self.digest().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The version of forms, a hyphen and the digest: kept in states, so that a later program can
    /// tell whether it writes the same forms.
    pub fn fingerprint(&self) -> String {
        format!("{VERSION}-{}", self.name())
    }

    fn field(&mut self, tag: &str, kind: u8, value: &[u8]) -> &mut Self {
        let at = self.open(tag, kind);
        self.bytes.extend_from_slice(value);
        self.close(at);
        self
    }

    /// Begins a field whose length is not known yet; returns where it goes.
    fn open(&mut self, tag: &str, kind: u8) -> usize {
        self.word(tag);
        self.bytes.push(kind);
        self.bytes.extend_from_slice(&[0; 8]);
        self.bytes.len()
    }

    fn close(&mut self, at: usize) {
        let length = (self.bytes.len() - at) as u64;
        self.bytes[at - 8..at].copy_from_slice(&length.to_le_bytes());
    }

    /// A tag or a kind: a word of the program's, far shorter than 4 GiB.
    fn word(&mut self, word: &str) {
        self.bytes.extend_from_slice(&(word.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(word.as_bytes());
    }
}

#[cfg(test)]
mod tests;
