//! Plain JSON objects: the columns that are read are no objects and no lists, keys have no escapes, and commas stand where the
//! grammar has them.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Field, SchemaRef};
use arrow::error::ArrowError;
use arrow::json;
use memchr::{memchr2, memmem};
use serde::de::IgnoredAny;

use super::columns::{Empty, Records, is_read_here};
use super::{Found, NULL, Plain, Span, Stop, UNDECODED};
use crate::formats::text::values::{Notation, decoded};

/// Keys that are known at a time: objects whose keys are data have more.
const MOST_KEYS: usize = 4096;

/// What a JSON text is decoded to.
#[derive(Debug)]
pub(in crate::formats::text) struct JsonRead {
    /// The columns that are read.
    pub(in crate::formats::text) schema: SchemaRef,
    /// Rows of a batch.
    pub(in crate::formats::text) rows: usize,
}

impl JsonRead {
    /// Whether the types of all columns are known here.
    pub(in crate::formats::text) fn is_plain(&self) -> bool {
        let fields = self.schema.fields();
        let is_once =
            |field: &Field| fields.iter().filter(|other| other.name() == field.name()).count() == 1;
        !fields.is_empty()
            && fields
                .iter()
                .all(|field| is_read_here(field.data_type(), Notation::Json) && is_once(field))
    }

    /// The decoder of `arrow-json`.
    ///
    /// # Errors
    /// Those of `arrow-json`.
    pub(in crate::formats::text) fn thorough(&self) -> Result<json::reader::Decoder, ArrowError> {
        json::ReaderBuilder::new(Arc::new(decoded(&self.schema, Notation::Json)))
            .with_batch_size(self.rows)
            // Numbers that are decoded as text.
            .with_coerce_primitive(true)
            .build_decoder()
    }
}

/// The kinds of values in a text, a bit for each.
#[derive(Clone, Copy)]
enum Kind {
    Text = 1,
    Number = 2,
    Truth = 4,
    Null = 8,
    /// An object or a list.
    Nested = 16,
}

/// The kinds that a column takes, as `arrow-json` does.
fn kinds(column: &DataType) -> u8 {
    let of = match column {
        DataType::Boolean => Kind::Truth as u8,
        DataType::Utf8 | DataType::Utf8View => {
            Kind::Text as u8 | Kind::Number as u8 | Kind::Truth as u8
        }
        _ => Kind::Text as u8 | Kind::Number as u8,
    };
    of | Kind::Null as u8
}

/// For each byte, whether numbers have it.
static IN_NUMBERS: [bool; 256] = {
    let mut found = [false; 256];
    let mut bytes: &[u8] = b"0123456789-+.eE";
    while let [byte, rest @ ..] = bytes {
        found[*byte as usize] = true;
        bytes = rest;
    }
    found
};

/// A key that was seen.
struct Key {
    /// With its quotes.
    text: Vec<u8>,
    column: Option<usize>,
}

/// The plain objects of a JSON text.
pub(in crate::formats::text) struct PlainJson {
    read: JsonRead,
    /// The kinds that each column takes.
    kinds: Vec<u8>,
    /// Keys in the order in which objects mostly have them.
    keys: Vec<Key>,
}

impl PlainJson {
    pub(in crate::formats::text) fn new(read: JsonRead) -> Self {
        let fields = read.schema.fields().iter();
        let kinds = fields.map(|field| kinds(field.data_type())).collect();
        Self { read, kinds, keys: Vec::new() }
    }

    /// The end of the object that begins at byte `at`. Its values are appended to `spans`.
    fn object(&mut self, text: &[u8], mut at: usize, spans: &mut Vec<Span>) -> Result<usize, Stop> {
        let record = spans.len();
        spans.resize(record + self.kinds.len(), NULL);
        if byte(text, at)? != b'{' {
            return Err(Stop::Unclear);
        }
        at = after_space(text, at + 1);
        if byte(text, at)? == b'}' {
            return Ok(at + 1);
        }
        for place in 0.. {
            let (column, after) = self.key(text, at, place)?;
            at = after_space(text, after);
            if byte(text, at)? != b':' {
                return Err(Stop::Unclear);
            }
            at = after_space(text, at + 1);
            let (span, kind, after) = value(text, at, column.is_none())?;
            if let Some(column) = column {
                let kept = &mut spans[record + column];
                // Of a key that comes twice, arrow-json takes the later value.
                if *kept != NULL || self.kinds[column] & kind as u8 == 0 {
                    return Err(Stop::Unclear);
                }
                *kept = span;
            }
            at = after_space(text, after);
            match byte(text, at)? {
                b'}' => return Ok(at + 1),
                b',' => at = after_space(text, at + 1),
                _ => return Err(Stop::Unclear),
            }
        }
        Err(Stop::Unclear)
    }

    /// The column of the key that begins at byte `at`, and the key's end.
    fn key(
        &mut self,
        text: &[u8],
        at: usize,
        place: usize,
    ) -> Result<(Option<usize>, usize), Stop> {
        if let Some(key) = self.keys.get(place)
            && text[at..].starts_with(&key.text)
        {
            return Ok((key.column, at + key.text.len()));
        }
        if byte(text, at)? != b'"' {
            return Err(Stop::Unclear);
        }
        let end = at + 1 + memchr2(b'"', b'\\', &text[at + 1..]).ok_or(Stop::End)?;
        if text[end] != b'"' {
            return Err(Stop::Unclear);
        }
        let quoted = &text[at..=end];
        let known = match self.keys.iter().position(|key| key.text == quoted) {
            Some(known) => known,
            None if self.keys.len() == MOST_KEYS => return Err(Stop::Unclear),
            None => {
                let name = &text[at + 1..end];
                let fields = self.read.schema.fields();
                let column = fields.iter().position(|field| field.name().as_bytes() == name);
                self.keys.push(Key { text: quoted.to_vec(), column });
                self.keys.len() - 1
            }
        };
        let column = self.keys[known].column;
        if place < self.keys.len() {
            self.keys.swap(place, known);
        }
        Ok((column, end + 1))
    }
}

impl Plain for PlainJson {
    type Thorough = json::reader::Decoder;

    fn find(&mut self, text: &[u8], from: usize, most: usize, spans: &mut Vec<Span>) -> Found {
        let (mut rows, mut end) = (0, from);
        let stop = loop {
            if rows == most {
                break Stop::Enough;
            }
            let begin = after_space(text, end);
            if begin == text.len() {
                end = begin;
                break Stop::End;
            }
            let whole = spans.len();
            match self.object(text, begin, spans) {
                Ok(after) => (rows, end) = (rows + 1, after),
                Err(stop) => {
                    spans.truncate(whole);
                    break stop;
                }
            }
        };
        Found { rows, end, stop }
    }

    fn columns(&self, text: &str, spans: &mut Vec<Span>) -> Option<Vec<ArrayRef>> {
        let fields = self.read.schema.fields();
        let mut records = Records::new(text, std::mem::take(spans), fields.len(), Empty::IsText);
        let are_decoded = records.decode(|span, value| {
            let quoted = &text[span.start - 1..span.end + 1];
            let found = serde_json::from_str::<String>(quoted);
            found.is_ok_and(|found| {
                value.push_str(&found);
                true
            })
        });
        let columns = are_decoded.then(|| records.columns(fields, Notation::Json)).flatten();
        *spans = records.into_spans();
        columns
    }

    fn thorough(&self, _before: usize) -> Result<Self::Thorough, ArrowError> {
        self.read.thorough()
    }
}

fn byte(text: &[u8], at: usize) -> Result<u8, Stop> {
    text.get(at).copied().ok_or(Stop::End)
}

/// The first byte from `at` on that is no white space.
#[inline]
fn after_space(text: &[u8], mut at: usize) -> usize {
    while let Some(b' ' | b'\n' | b'\r' | b'\t') = text.get(at) {
        at += 1;
    }
    at
}

/// The span of the value that begins at byte `at`, its kind, and its end.
///
/// # Arguments
/// `is_passed`: nobody reads it, so that all that is wrong in it must be found here.
fn value(text: &[u8], at: usize, is_passed: bool) -> Result<(Span, Kind, usize), Stop> {
    let literal = |word: &[u8], kind: Kind| {
        let end = at + word.len();
        match text.get(at..end) {
            Some(found) if found == word => Ok((span(at, end), kind, end)),
            Some(_) => Err(Stop::Unclear),
            None => Err(Stop::End),
        }
    };
    match byte(text, at)? {
        b'"' => {
            let (end, is_escaped) = end_of_text(text, at + 1)?;
            if is_escaped && is_passed && serde_json::from_slice::<String>(&text[at..=end]).is_err()
            {
                return Err(Stop::Unclear);
            }
            let (begin, mut close) = span(at + 1, end);
            if is_escaped {
                close |= UNDECODED;
            }
            Ok(((begin, close), Kind::Text, end + 1))
        }
        b'-' | b'0'..=b'9' => {
            let length = text[at..].iter().position(|byte| !IN_NUMBERS[usize::from(*byte)]);
            // More digits may come.
            let end = at + length.ok_or(Stop::End)?;
            Ok((span(at, end), Kind::Number, end))
        }
        b't' => literal(b"true", Kind::Truth),
        b'f' => literal(b"false", Kind::Truth),
        b'n' => literal(b"null", Kind::Null).map(|(_, kind, end)| (NULL, kind, end)),
        b'{' | b'[' => {
            let mut nested =
                serde_json::Deserializer::from_slice(&text[at..]).into_iter::<IgnoredAny>();
            match nested.next() {
                Some(Ok(_)) => {}
                Some(Err(error)) if !error.is_eof() => return Err(Stop::Unclear),
                _ => return Err(Stop::End),
            }
            let end = at + nested.byte_offset();
            // Halves of surrogate pairs are passed over.
            match memmem::find(&text[at..end], b"\\u") {
                None => Ok((NULL, Kind::Nested, end)),
                Some(_) => Err(Stop::Unclear),
            }
        }
        _ => Err(Stop::Unclear),
    }
}

fn span(begin: usize, end: usize) -> Span {
    (begin as u32, end as u32)
}

/// The place of the quote that ends a text which begins at byte `from`, and whether there are escapes before it.
fn end_of_text(text: &[u8], mut from: usize) -> Result<(usize, bool), Stop> {
    let mut is_escaped = false;
    loop {
        let rest = text.get(from..).ok_or(Stop::End)?;
        let at = from + memchr2(b'"', b'\\', rest).ok_or(Stop::End)?;
        if text[at] == b'"' {
            return Ok((at, is_escaped));
        }
        is_escaped = true;
        from = at + 2;
    }
}

#[cfg(test)]
mod tests;
