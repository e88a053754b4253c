//! Plain CSV: no escapes and no comments; a record has as many fields as there are columns, and nothing stands behind a
//! closing quote.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::csv;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;

use super::columns::{Empty, Records, is_read_here};
use super::fields::FieldSearch;
use super::{Found, Plain, Span, Stop};
use crate::formats::CsvFormat;
use crate::formats::text::values::{Notation, decoded};

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// What a CSV text is decoded to.
#[derive(Debug)]
pub(in crate::formats::text) struct CsvRead {
    pub(in crate::formats::text) format: CsvFormat,
    /// Every column of a record.
    pub(in crate::formats::text) table: SchemaRef,
    /// The columns that are read, by their places.
    pub(in crate::formats::text) columns: Vec<usize>,
    /// Rows of a batch.
    pub(in crate::formats::text) rows: usize,
    /// Whether the first record names the columns.
    pub(in crate::formats::text) has_names: bool,
}

impl CsvRead {
    /// Whether all that the format allows is known here.
    pub(in crate::formats::text) fn is_plain(&self) -> bool {
        let CsvFormat { quote, escape, comment, .. } = self.format;
        let delimiter = self.format.delimiter();
        let marks = [delimiter, quote];
        // csv-core takes what is a delimiter and a quote in an order of its own.
        let are_apart = delimiter != quote && !marks.iter().any(|mark| b"\r\n".contains(mark));
        // Without columns, the number of rows is all that is read.
        let is_read = |place: &usize| {
            let of = self.table.field(*place).data_type();
            is_read_here(of, Notation::Csv)
        };
        are_apart
            && marks.iter().all(u8::is_ascii)
            && escape.is_none()
            && comment.is_none()
            && self.columns.is_sorted_by(|one, next| one < next)
            && !self.columns.is_empty()
            && self.columns.iter().all(is_read)
    }

    /// The decoder of `arrow-csv`, for the text after so many records, which its errors count.
    ///
    /// # Errors
    /// Those of `arrow-csv`.
    pub(in crate::formats::text) fn thorough(
        &self,
        first: usize,
    ) -> Result<csv::reader::Decoder, ArrowError> {
        let delimiter = self.format.delimiter();
        let quote = self.format.quote;
        let names = usize::from(self.has_names);
        let mut builder = csv::ReaderBuilder::new(Arc::new(decoded(&self.table, Notation::Csv)))
            .with_batch_size(self.rows)
            .with_header(self.has_names)
            .with_delimiter(delimiter)
            .with_quote(quote)
            .with_bounds(first.saturating_sub(names), usize::MAX - 1)
            .with_projection(self.columns.clone());
        if let Some(escape) = self.format.escape {
            builder = builder.with_escape(escape);
        }
        if let Some(comment) = self.format.comment {
            builder = builder.with_comment(comment);
        }
        let mut decoder = builder.build_decoder();
        // Its errors name a record by its number, which it knows by those that it skips.
        let mut empty = vec![quote, quote];
        empty.resize(1 + self.table.fields().len(), delimiter);
        empty.push(b'\n');
        for _ in 0..first {
            let mut rest = &empty[..];
            while !rest.is_empty() {
                rest = &rest[decoder.decode(rest)?..];
            }
        }
        Ok(decoder)
    }
}

/// The plain records of a CSV text.
pub(in crate::formats::text) struct PlainCsv {
    read: CsvRead,
    search: FieldSearch,
    /// The columns that are read.
    schema: SchemaRef,
    /// Whether the record of names was passed, if there is one.
    is_begun: bool,
}

impl PlainCsv {
    pub(in crate::formats::text) fn new(read: CsvRead, schema: SchemaRef) -> Self {
        let mut wanted = vec![false; read.table.fields().len()];
        for place in &read.columns {
            wanted[*place] = true;
        }
        let (delimiter, quote) = (read.format.delimiter(), read.format.quote);
        let search = FieldSearch { delimiter, quote, wanted };
        Self { read, search, schema, is_begun: false }
    }
}

impl Plain for PlainCsv {
    type Thorough = csv::reader::Decoder;

    fn find(&mut self, text: &[u8], mut from: usize, most: usize, spans: &mut Vec<Span>) -> Found {
        if !self.is_begun {
            if text.len() < BYTE_ORDER_MARK.len() {
                return Found { rows: 0, end: from, stop: Stop::End };
            }
            let begin = if text.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 };
            let names = usize::from(self.read.has_names);
            let found = self.search.records(text, begin, names, &mut Vec::new());
            if found.stop != Stop::Enough {
                return Found { rows: 0, end: from, stop: found.stop };
            }
            self.is_begun = true;
            from = found.end;
        }
        self.search.records(text, from, most, spans)
    }

    fn columns(&self, text: &str, spans: &mut Vec<Span>) -> Option<Vec<ArrayRef>> {
        let fields = self.schema.fields();
        let quote = char::from(self.read.format.quote);
        let mut records = Records::new(text, std::mem::take(spans), fields.len(), Empty::IsNull);
        let are_decoded = records.decode(|span, value| {
            // Every second quote is the one that is meant.
            let mut is_second = true;
            value.extend(text[span].chars().filter(|letter| {
                is_second = *letter != quote || !is_second;
                is_second
            }));
            true
        });
        let columns = are_decoded.then(|| records.columns(fields, Notation::Csv)).flatten();
        *spans = records.into_spans();
        columns
    }

    fn thorough(&self, before: usize) -> Result<Self::Thorough, ArrowError> {
        // The record of names is in the text of the first batch.
        let names = usize::from(self.read.has_names && before > 0);
        self.read.thorough(before + names)
    }
}

#[cfg(test)]
mod tests;
