//! Text that is searched and parsed here, while all of it is plain. From the first batch on that is not, a decoder of `arrow`
//! decodes, which has all cases and the errors.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};

use super::records::Decoder;

mod columns;
pub(super) mod csv;
mod fields;
pub(super) mod json;
#[cfg(test)]
mod random;

/// A value's first byte and the byte behind its last one. [`UNDECODED`] may be set in its end.
pub(super) type Span = (u32, u32);

/// Set in the end of a span whose text is not its value yet: quotes are doubled, or characters escaped.
const UNDECODED: u32 = 1 << 31;

/// The span of a NULL.
const NULL: Span = (1, 0);

/// Bytes that are copied and searched at a time; what was copied is still in a near cache then.
const PIECE: usize = 64 << 10;

/// A record of more bytes is not searched again with each piece that comes.
const LONGEST_RECORD: usize = 1 << 20;

/// A batch ends before it has so many bytes of text.
const BATCH_BYTES: usize = 64 << 20;

const _: () = assert!(BATCH_BYTES + LONGEST_RECORD + PIECE < UNDECODED as usize);

/// Why a search found no more records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// As many as asked for were found.
    Enough,
    /// The text ends, maybe within a record.
    End,
    /// The next record is not plain.
    Unclear,
}

/// What a search found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Records.
    rows: usize,
    /// The byte behind the last of them.
    end: usize,
    stop: Stop,
}

/// A format's plain records.
pub(super) trait Plain: Send + 'static {
    /// The decoder that has all cases.
    type Thorough: Decoder;

    /// Finds records from byte `from`, where one begins, until there are `most`. The spans of their values are appended to
    /// `spans`, record by record, as many as there are columns.
    fn find(&mut self, text: &[u8], from: usize, most: usize, spans: &mut Vec<Span>) -> Found;

    /// The columns from the spans in `text`. None where a value is not plain.
    fn columns(&self, text: &str, spans: &mut Vec<Span>) -> Option<Vec<ArrayRef>>;

    /// The other decoder, for the text after so many records.
    ///
    /// # Errors
    /// Those of `arrow`.
    fn thorough(&self, before: usize) -> Result<Self::Thorough, ArrowError>;
}

/// A decoder of text.
pub(super) struct PlainText<P: Plain> {
    plain: P,
    /// The columns that are read.
    schema: SchemaRef,
    /// Rows of a batch.
    batch_rows: usize,
    /// Records before those in `text`.
    before: usize,
    /// The text of the next batch, and of the record after it as far as it came.
    text: Vec<u8>,
    /// Records that were found in it, the byte behind them, and their values.
    rows: usize,
    end: usize,
    spans: Vec<Span>,
    /// The record after those that were found is not plain.
    is_unclear: bool,
    /// The decoder that has all cases, once it is needed; `text` is what it gets first.
    thorough: Option<P::Thorough>,
}

impl<P: Plain> PlainText<P> {
    pub(super) fn new(plain: P, schema: SchemaRef, batch_rows: usize) -> Self {
        Self {
            plain,
            schema,
            batch_rows,
            before: 0,
            text: Vec::new(),
            rows: 0,
            end: 0,
            spans: Vec::new(),
            is_unclear: false,
            thorough: None,
        }
    }

    fn is_full(&self) -> bool {
        self.rows == self.batch_rows
            || (self.rows > 0 && (self.is_unclear || self.text.len() >= BATCH_BYTES))
    }

    /// Finds the records of `text` that were not found yet.
    fn find(&mut self) -> Stop {
        let most = self.batch_rows - self.rows;
        let found = self.plain.find(&self.text, self.end, most, &mut self.spans);
        self.rows += found.rows;
        self.end = found.end;
        found.stop
    }

    /// Takes in bytes and returns how many.
    fn add(&mut self, bytes: &[u8]) -> usize {
        let bytes = &bytes[..bytes.len().min(PIECE)];
        self.text.extend_from_slice(bytes);
        match self.find() {
            Stop::Enough => {
                let more = self.text.len() - self.end;
                self.text.truncate(self.end);
                return bytes.len() - more;
            }
            Stop::Unclear => self.is_unclear = true,
            Stop::End => self.is_unclear |= self.text.len() - self.end > LONGEST_RECORD,
        }
        bytes.len()
    }

    /// Finds the last record, which may have no end of line.
    fn add_last(&mut self) {
        if self.text.len() == self.end || self.is_full() {
            return;
        }
        self.text.push(b'\n');
        self.find();
        if self.end < self.text.len() {
            self.text.pop();
            self.is_unclear = true;
        }
    }

    /// The records that were found; None where a value is not plain.
    fn batch(&mut self) -> Result<Option<RecordBatch>, ArrowError> {
        let Ok(text) = std::str::from_utf8(&self.text[..self.end]) else { return Ok(None) };
        let Some(columns) = self.plain.columns(text, &mut self.spans) else { return Ok(None) };
        let options = RecordBatchOptions::new().with_row_count(Some(self.rows));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options).map(Some)
    }
}

/// Gives a decoder the text that was taken in, until its batch is full. Returns whether it took all.
fn feed(decoder: &mut impl Decoder, text: &mut Vec<u8>) -> Result<bool, ArrowError> {
    let mut done = 0;
    while done < text.len() {
        match decoder.decode(&text[done..])? {
            0 => break,
            taken => done += taken,
        }
    }
    text.drain(..done);
    Ok(text.is_empty())
}

impl<P: Plain> Decoder for PlainText<P> {
    fn decode(&mut self, bytes: &[u8]) -> Result<usize, ArrowError> {
        let mut taken = 0;
        if self.thorough.is_none() && !self.is_full() {
            match bytes {
                [] => self.add_last(),
                _ => taken = self.add(bytes),
            }
            if self.is_unclear && self.rows == 0 {
                self.thorough = Some(self.plain.thorough(self.before)?);
            }
        }
        if taken == 0
            && let Some(decoder) = &mut self.thorough
            && feed(decoder, &mut self.text)?
        {
            // An empty piece says that all came, so that the text that was taken in comes first.
            return decoder.decode(bytes);
        }
        Ok(taken)
    }

    fn flush(&mut self) -> Result<Option<RecordBatch>, ArrowError> {
        if let Some(decoder) = &mut self.thorough {
            return decoder.flush();
        }
        if self.rows == 0 {
            return Ok(None);
        }
        let mut batch = self.batch()?;
        let after = self.text.split_off(self.end);
        if batch.is_none() {
            let mut decoder = self.plain.thorough(self.before)?;
            feed(&mut decoder, &mut self.text)?;
            batch = decoder.flush()?;
            self.thorough = Some(decoder);
        }
        self.text.clear();
        self.text.extend_from_slice(&after);
        self.before += self.rows;
        (self.rows, self.end) = (0, 0);
        self.spans.clear();
        if self.is_unclear && self.thorough.is_none() {
            self.thorough = Some(self.plain.thorough(self.before)?);
        }
        Ok(batch)
    }
}
