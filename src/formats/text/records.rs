//! From the bytes of a text file to batches of its records.

use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use arrow::{csv, json};
use bytes::{Buf, Bytes};
use datafusion::error::Result as DfResult;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};

use crate::{Error, Result};

/// A decoder that is fed bytes as they come.
pub(super) trait Decoder: Send + 'static {
    /// Takes in bytes and returns how many; none where a batch is full, and an empty piece for the
    /// end of the file.
    fn decode(&mut self, bytes: &[u8]) -> Result<usize, ArrowError>;

    /// The records since the last batch.
    fn flush(&mut self) -> Result<Option<RecordBatch>, ArrowError>;
}

impl Decoder for csv::reader::Decoder {
    fn decode(&mut self, bytes: &[u8]) -> Result<usize, ArrowError> {
        self.decode(bytes)
    }

    fn flush(&mut self) -> Result<Option<RecordBatch>, ArrowError> {
        self.flush()
    }
}

impl Decoder for json::reader::Decoder {
    fn decode(&mut self, bytes: &[u8]) -> Result<usize, ArrowError> {
        self.decode(bytes)
    }

    fn flush(&mut self) -> Result<Option<RecordBatch>, ArrowError> {
        self.flush()
    }
}

/// The batches of a text.
pub(super) fn batches(
    text: BoxStream<'static, DfResult<Bytes>>,
    decoder: impl Decoder,
) -> BoxStream<'static, DfResult<RecordBatch>> {
    let start = (text, decoder, Bytes::new(), false);
    stream::try_unfold(start, |(mut text, mut decoder, mut piece, mut ended)| async move {
        loop {
            while piece.is_empty() && !ended {
                match text.try_next().await? {
                    Some(next) => piece = next,
                    None => ended = true,
                }
            }
            let taken = decoder.decode(&piece)?;
            piece.advance(taken);
            if taken > 0 {
                continue;
            }
            match decoder.flush()? {
                Some(batch) => return Ok(Some((batch, (text, decoder, piece, ended)))),
                None if ended => return Ok(None),
                None => {}
            }
        }
    })
    .boxed()
}

/// The objects of a text that is one JSON array, with white space in place of everything between
/// them.
pub(super) fn objects(
    text: BoxStream<'static, DfResult<Bytes>>,
) -> BoxStream<'static, DfResult<Bytes>> {
    stream::try_unfold((text, Array::default()), |(mut text, mut array)| async move {
        match text.try_next().await? {
            Some(piece) => {
                let mut piece = Vec::from(piece);
                array.blank(&mut piece)?;
                Ok(Some((Bytes::from(piece), (text, array))))
            }
            None => array.end().map(|()| None).map_err(Into::into),
        }
    })
    .boxed()
}

/// How far a JSON array was read.
#[derive(Default)]
struct Array {
    /// Brackets and braces that are open, the array's own first.
    depth: usize,
    in_string: bool,
    escaped: bool,
    is_over: bool,
}

impl Array {
    /// Writes spaces over the array's own brackets and commas in the next bytes.
    fn blank(&mut self, bytes: &mut [u8]) -> Result<()> {
        for byte in bytes {
            if self.in_string {
                match *byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
                continue;
            }
            if self.depth == 0 && !byte.is_ascii_whitespace() && (self.is_over || *byte != b'[') {
                return Err(malformed("there is text before or after the array"));
            }
            match *byte {
                b'"' => self.in_string = true,
                b'[' | b'{' => {
                    self.depth += 1;
                    if self.depth == 1 {
                        *byte = b' ';
                    }
                }
                b']' | b'}' => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        self.is_over = true;
                        *byte = b' ';
                    }
                }
                b',' if self.depth == 1 => *byte = b' ',
                _ => {}
            }
        }
        Ok(())
    }

    fn end(&self) -> Result<()> {
        match self.is_over {
            true => Ok(()),
            false => Err(malformed("the array has no end")),
        }
    }
}

fn malformed(reason: &str) -> Error {
    Error::data(format!("the JSON is malformed: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blanked(text: &str, size: usize) -> Result<String> {
        let mut array = Array::default();
        let mut bytes = text.as_bytes().to_vec();
        bytes.chunks_mut(size).try_for_each(|piece| array.blank(piece))?;
        array.end()?;
        Ok(String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn only_what_is_between_objects_becomes_white_space() {
        let text = "\n[{\"a\": [1, {\"b\": \"],\\\"[\"}]} , {\"a\": []},{}]\n";
        let expected = "\n {\"a\": [1, {\"b\": \"],\\\"[\"}]}   {\"a\": []} {} \n";
        for size in 1..=text.len() {
            assert_eq!(blanked(text, size).unwrap(), expected, "by {size}");
        }
        assert_eq!(blanked("[]", 1).unwrap(), "  ");
    }

    #[test]
    fn text_around_an_array_and_a_missing_end_are_errors() {
        for text in ["[{}", "", "{}", "[]]", "[] 1", "x[]", "[\"]", "]"] {
            assert!(blanked(text, 1).is_err(), "{text}");
        }
    }
}
