//! The schema of a CSV file, from its first records. DataFusion 53.1 infers it too, but cuts the
//! text at newlines as if all fields were quoted by `"` and escaped by `\`; here it is cut between
//! records of the file's own dialect.

use std::sync::Arc;

use arrow::csv::reader::Format;
use arrow::datatypes::{DataType, Field, Schema};
use bytes::Bytes;
use futures::TryStreamExt;
use futures::stream::BoxStream;

use super::long_lines::check_length;
use crate::formats::{CsvFormat, csv_dialect};
use crate::storage::WholeRecords;
use crate::{Error, Result};

/// The columns, with the types that the first `rows` records show; with 0 their names alone. A
/// column without a value is of the type Null, a text without records has no columns. Of `text` no
/// more is read than that takes.
///
/// # Errors
/// `Data` where a record is malformed or too long; those of `text`.
pub(super) async fn infer(
    csv: &CsvFormat,
    mut text: BoxStream<'_, Result<Bytes>>,
    rows: usize,
) -> Result<Schema> {
    let mut records = WholeRecords::new(csv_dialect(csv));
    let mut found = Found { csv, schema: None, seen: 0, rows };
    while let Some(chunk) = text.try_next().await? {
        if let Some(piece) = records.feed(&chunk) {
            found.take(&piece)?;
            if found.seen == rows {
                return Ok(found.into_schema());
            }
        }
        check_length(records.open(), "record")?;
    }
    found.take(&records.rest())?;
    Ok(found.into_schema())
}

/// Separators that other programs write in place of a comma.
const OTHER_DELIMITERS: &[u8; 3] = b"\t;|";

/// Types and column count found in the records so far.
struct Found<'a> {
    csv: &'a CsvFormat,
    /// None before the first record.
    schema: Option<Schema>,
    /// Records.
    seen: usize,
    /// Records that are looked at, at most.
    rows: usize,
}

impl Found<'_> {
    /// Looks at more records, whole ones.
    fn take(&mut self, piece: &[u8]) -> Result<()> {
        let is_first = self.schema.is_none();
        let format = format_of(self.csv).with_header(is_first && self.csv.header);
        let (schema, seen) =
            format.infer_schema(piece, Some(self.rows - self.seen)).map_err(|error| {
                let error = Error::from(error);
                match is_first {
                    true => error,
                    false => error.with_context("lines count from record", self.seen + 1),
                }
            })?;
        let columns = schema.fields().len();
        if is_first && columns == 1 {
            self.check_delimiter(piece)?;
        }
        self.schema = match self.schema.take() {
            // Blank lines and comments alone are no record.
            known if columns == 0 => known,
            None => Some(schema),
            Some(known) if known.fields().len() == columns => Some(merged(&known, &schema)),
            Some(known) => {
                return Err(Error::data(format!(
                    "the CSV is malformed: record {} has {columns} fields, and those before it have {}; every line \
                     needs a field for each column",
                    self.seen + 1,
                    known.fields().len(),
                )));
            }
        };
        self.seen += seen;
        Ok(())
    }

    /// Refuses one column that is several with another delimiter, where nobody has asked for the
    /// comma.
    fn check_delimiter(&self, piece: &[u8]) -> Result<()> {
        if self.csv.delimiter.is_some() || self.rows == 0 {
            return Ok(());
        }
        for other in *OTHER_DELIMITERS {
            let format = format_of(self.csv).with_delimiter(other).with_header(self.csv.header);
            // Records of different lengths are texts in which the character stands here and there.
            let Ok((schema, seen)) = format.infer_schema(piece, Some(self.rows)) else { continue };
            let records = seen + usize::from(self.csv.header);
            if schema.fields().len() > 1 && records > 1 {
                let other = char::from(other);
                return Err(Error::data(format!(
                    "with the delimiter ',' the file has one column, and with {other:?} it has {}; register it by \
                     register_csv(…, delimiter={other:?}), or with delimiter=\",\" if it has one column",
                    schema.fields().len(),
                )));
            }
        }
        Ok(())
    }

    fn into_schema(self) -> Schema {
        self.schema.unwrap_or_else(Schema::empty)
    }
}

fn format_of(csv: &CsvFormat) -> Format {
    let mut format = Format::default().with_delimiter(csv.delimiter()).with_quote(csv.quote);
    if let Some(escape) = csv.escape {
        format = format.with_escape(escape);
    }
    if let Some(comment) = csv.comment {
        format = format.with_comment(comment);
    }
    format
}

/// The columns of `known`, extended by more records, as if all had been read together.
fn merged(known: &Schema, more: &Schema) -> Schema {
    let fields = known.fields().iter().zip(more.fields());
    let fields = fields.map(|(known, more)| {
        let both = common_type(known.data_type(), more.data_type());
        Arc::new(Field::new(known.name(), both, true))
    });
    Schema::new(fields.collect::<Vec<_>>())
}

fn common_type(a: &DataType, b: &DataType) -> DataType {
    use DataType::*;
    match (a, b) {
        (Null, other) | (other, Null) => other.clone(),
        (a, b) if a == b => a.clone(),
        (Int64, Float64) | (Float64, Int64) => Float64,
        (Date32, Timestamp(unit, None)) | (Timestamp(unit, None), Date32) => Timestamp(*unit, None),
        (Timestamp(a, None), Timestamp(b, None)) => Timestamp(*a.max(b), None),
        _ => Utf8,
    }
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;
    use futures::{StreamExt, stream};

    use super::*;

    /// The names and types that the first `rows` records of a text show that comes in chunks of
    /// `size` bytes.
    fn types(csv: &CsvFormat, text: &str, size: usize, rows: usize) -> Vec<(String, DataType)> {
        let chunks = text.as_bytes().chunks(size).map(|chunk| Ok(Bytes::copy_from_slice(chunk)));
        let schema = block_on(infer(csv, stream::iter(chunks).boxed(), rows)).unwrap();
        let fields = schema.fields().iter();
        fields.map(|field| (field.name().clone(), field.data_type().clone())).collect()
    }

    #[test]
    fn pieces_of_a_text_show_what_all_of_it_shows() {
        use arrow::datatypes::TimeUnit::{Microsecond, Second};
        let quoted = format!("\"{}\n\"", "x\n".repeat(30_000));
        let values = |rows: &[[&str; 6]]| {
            let rows = rows.iter().map(|row| format!("{},{quoted}\n", row.join(",")));
            rows.collect::<String>()
        };
        let text = values(&[
            ["a", "b", "c", "d", "e", "f"],
            ["1", "", "2026-01-01", "2026-01-01T00:00:00", "1", ""],
            ["2.5", "", "2026-01-01T00:00:00", "2026-01-01T00:00:00.000001", "x", ""],
            ["3", "true", "2026-01-01", "2026-01-01", "1", ""],
            ["x", "x", "x", "x", "x", "x"],
        ]);
        let csv = CsvFormat::default();
        let expected = [
            DataType::Float64,
            DataType::Boolean,
            DataType::Timestamp(Second, None),
            DataType::Timestamp(Microsecond, None),
            DataType::Utf8,
            DataType::Null,
            DataType::Utf8,
        ];
        for size in [999, 64 << 10, text.len()] {
            let found = types(&csv, &text, size, 3);
            assert!(found.iter().map(|(_, found)| found).eq(&expected), "{size}: {found:?}");
            assert_eq!(found[2].0, "c");
            let names = types(&csv, &text, size, 0);
            assert!(names.iter().all(|(_, none)| *none == DataType::Null), "{names:?}");
        }
    }

    #[test]
    fn a_comma_that_nobody_asked_for_is_doubted() {
        let texts = [
            ("a\tb\n1\t2\n", true),
            ("a;b\n1;2\n", true),
            ("\"a;b\"\n1\n", false),
            ("text\none; two\nthree\n", false),
            ("a|b\n", false),
            ("a,b;c\n1,2;3\n", false),
        ];
        for (text, is_refused) in texts {
            for (delimiter, header) in [(None, true), (Some(b','), true), (None, false)] {
                let csv = CsvFormat { delimiter, header, ..CsvFormat::default() };
                let chunks = stream::iter([Ok(Bytes::from(text))]).boxed();
                let found = block_on(infer(&csv, chunks, 10));
                assert_eq!(found.is_err(), is_refused && delimiter.is_none(), "{text:?} {csv:?}");
            }
        }
    }

    #[test]
    fn records_of_other_lengths_are_named_in_every_piece() {
        let row = format!("1,{}\n", "x".repeat(70_000));
        for (text, named) in [
            (format!("{row}{row}1\n"), "record 3 has 1 fields"),
            (format!("{row}{row}1,2\n1\n"), "(lines count from record: 3)"),
        ] {
            let csv = CsvFormat { header: false, ..CsvFormat::default() };
            let chunks = stream::iter(text.as_bytes().chunks(1 << 16));
            let text = chunks.map(|chunk| Ok(Bytes::copy_from_slice(chunk))).boxed();
            let error = block_on(infer(&csv, text, 10)).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
