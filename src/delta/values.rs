//! What the log knows of the columns of each data file: partition values, bounds, and rows.

use std::collections::HashMap;
use std::panic::resume_unwind;

use datafusion::scalar::ScalarValue;
use object_store::path::Path;

use super::actions::Add;
use super::partition_values::partition_value;
use super::schema::{Column, Kind};
use super::stats::{Asked, Proven, Stats};
use crate::iceberg::{FileValues, KnownColumn};
use crate::{Error, Result};

/// Rows stored in a file, where the log says.
pub fn records_of(add: &Add, stats: Option<&Stats>) -> Option<u64> {
    stats.and_then(|stats| stats.num_records).or(add.records)
}

/// Files whose statistics one thread parses at least.
const FILES_OF_THREAD: usize = 1024;

/// The statistics of each file, of the columns that [`values_of`] looks at.
pub fn stats_of(files: &[(Path, Add)], columns: &[Column]) -> Vec<Option<Stats>> {
    let asked = Asked::of(columns);
    let parse = |part: &[(Path, Add)]| -> Vec<Option<Stats>> {
        let parsed = |text: &str| Stats::parse(text, &asked);
        part.iter().map(|(_, add)| add.stats.as_deref().map(parsed)).collect()
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = cores.min(files.len() / FILES_OF_THREAD);
    if threads <= 1 {
        return parse(files);
    }
    let parse = &parse;
    std::thread::scope(|scope| {
        let parts: Vec<_> = files
            .chunks(files.len().div_ceil(threads))
            .map(|part| scope.spawn(move || parse(part)))
            .collect();
        let ended = parts.into_iter().map(|part| part.join());
        ended.flat_map(|part| part.unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}

/// The values and bounds of these files, which have so many rows each; `more` are those of columns
/// that are not the table's.
///
/// # Errors
/// `Data` naming the file and the column whose partition value is of another type.
pub fn values_of(
    files: &[(Path, Add)],
    stats: &[Option<Stats>],
    records: Vec<u64>,
    columns: &[Column],
    partition_columns: &[String],
    more: Vec<KnownColumn>,
) -> Result<FileValues> {
    let mut known = more;
    for (place, column) in columns.iter().enumerate() {
        let Kind::Primitive(_) = &column.kind else { continue };
        known.push(match partition_columns.contains(&column.name) {
            true => constants(files, &records, column)?,
            false => bounds(stats, place, column),
        });
    }
    FileValues::of_columns(records, &known)
}

fn constants(files: &[(Path, Add)], records: &[u64], column: &Column) -> Result<KnownColumn> {
    let data_type = column.kind.data_type();
    // Few values, and many files.
    let mut parsed: HashMap<Option<&str>, ScalarValue> = HashMap::new();
    let mut known = empty(column, true);
    for ((path, add), rows) in files.iter().zip(records) {
        let text = match add.partition_values.get(&column.physical) {
            Some(text) => text.as_deref(),
            None => {
                return Err(Error::data(format!(
                    "the log has no value of the partition column {:?} for data file {path}",
                    column.name
                )));
            }
        };
        let value = match parsed.get(&text) {
            Some(value) => value.clone(),
            None => {
                let value = partition_value(text, &data_type).map_err(|error| {
                    error
                        .with_context("partition column", &column.name)
                        .with_context("data file", path)
                })?;
                parsed.insert(text, value.clone());
                value
            }
        };
        known.nulls.push(Some(if value.is_null() { *rows } else { 0 }));
        known.nans.push(Some(if is_nan(&value) { *rows } else { 0 }));
        known.lower.push(Some(value.clone()));
        known.upper.push(Some(value));
    }
    Ok(known)
}

fn bounds(stats: &[Option<Stats>], place: usize, column: &Column) -> KnownColumn {
    let mut known = empty(column, false);
    for stats in stats {
        let proven = stats.as_ref().map_or_else(Proven::default, |stats| stats.of(place, column));
        known.lower.push(proven.lower);
        known.upper.push(proven.upper);
        known.nulls.push(proven.nulls);
        known.nans.push(None);
    }
    known
}

fn empty(column: &Column, is_constant: bool) -> KnownColumn {
    KnownColumn {
        name: column.name.clone(),
        data_type: column.kind.data_type(),
        is_constant,
        lower: Vec::new(),
        upper: Vec::new(),
        nulls: Vec::new(),
        nans: Vec::new(),
    }
}

fn is_nan(value: &ScalarValue) -> bool {
    match value {
        ScalarValue::Float32(Some(value)) => value.is_nan(),
        ScalarValue::Float64(Some(value)) => value.is_nan(),
        _ => false,
    }
}
