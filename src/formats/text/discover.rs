//! CSV and newline-delimited JSON: byte ranges that begin and end on records.

use crate::Result;
use crate::formats::discover::{FileSplits, SplitTarget};
use crate::formats::{CsvFormat, Split, SplitUnit, TableFiles};
use crate::storage::{FilePin, TextDialect, record_boundaries};

/// The dialect of a CSV file, as `record_boundaries` needs it.
pub fn csv_dialect(csv: &CsvFormat) -> TextDialect {
    TextDialect {
        quote: Some(csv.quote),
        escape: csv.escape,
        delimiter: csv.delimiter(),
        comment: csv.comment,
        header: csv.header,
        ..TextDialect::csv()
    }
}

/// JSON escapes newlines inside strings, so every newline is a border.
pub fn json_dialect() -> TextDialect {
    TextDialect::json_lines()
}

/// The byte-range splits of file `index`.
///
/// # Errors
/// Storage errors while the file is scanned for record borders.
pub async fn discover(
    table: &TableFiles,
    index: usize,
    target: SplitTarget,
    dialect: TextDialect,
) -> Result<FileSplits> {
    let file = &table.files[index];
    let ranges =
        record_boundaries(&table.store, &FilePin::from(file.meta.clone()), target.bytes, dialect)
            .await?;
    let splits: Vec<Split> = ranges
        .into_iter()
        .map(|range| Split {
            scan: 0,
            file: index as u32,
            bytes: range.end - range.start,
            unit: SplitUnit::Bytes { start: range.start, end: range.end },
            rows: None,
            deleted: 0,
            first_row: 0,
        })
        .collect();
    Ok(FileSplits { splits, units: 1, ..FileSplits::default() })
}
