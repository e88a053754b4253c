//! What the log knows of the columns of each data file: partition values, bounds, and rows.

use std::panic::resume_unwind;
use std::sync::Arc;

use arrow::array::{BooleanArray, UInt32Array, UInt64Array};
use arrow::compute::take;
use datafusion::common::HashMap;
use datafusion::scalar::ScalarValue;
use object_store::path::Path;

use super::actions::Add;
use super::partition_values::partition_value;
use super::schema::{Column, Kind};
use super::stats::{Asked, Stats};
use crate::iceberg::{FileValues, KnownColumn, values_array};
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
        part.iter().map(|(_, add)| add.stats.as_ref().map(|stats| parsed(stats.as_str()))).collect()
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
            false => bounds(stats, place, column)?,
        });
    }
    FileValues::of_columns(records, known)
}

fn constants(files: &[(Path, Add)], records: &[u64], column: &Column) -> Result<KnownColumn> {
    let data_type = column.kind.data_type();
    // Few values, and many files.
    let mut places: HashMap<Option<&str>, u32> = HashMap::new();
    let mut values: Vec<ScalarValue> = Vec::new();
    let mut chosen: Vec<u32> = Vec::with_capacity(files.len());
    for (path, add) in files {
        let text = add.partition_values.get(&column.physical).ok_or_else(|| {
            Error::data(format!(
                "the log has no value of the partition column {:?} for data file {path}",
                column.name
            ))
        })?;
        let place = match places.get(&text) {
            Some(place) => *place,
            None => {
                let value = partition_value(text, &data_type).map_err(|error| {
                    error
                        .with_context("partition column", &column.name)
                        .with_context("data file", path)
                })?;
                let place = values.len() as u32;
                values.push(value);
                places.insert(text, place);
                place
            }
        };
        chosen.push(place);
    }
    let count_of = |counts: fn(&ScalarValue) -> bool| -> UInt64Array {
        let counts: Vec<bool> = values.iter().map(counts).collect();
        let of_file = |(place, rows): (&u32, &u64)| if counts[*place as usize] { *rows } else { 0 };
        UInt64Array::from_iter_values(chosen.iter().zip(records).map(of_file))
    };
    let (nulls, nans) = (count_of(ScalarValue::is_null), count_of(is_nan));
    let distinct = values_array(values.into_iter().map(Some), &data_type)?;
    let array = take(&distinct, &UInt32Array::from(chosen), None)?;
    Ok(KnownColumn {
        name: column.name.clone(),
        fixed: Some(BooleanArray::from(vec![true; files.len()])),
        lower: Arc::clone(&array),
        upper: array,
        nulls,
        nans,
    })
}

fn bounds(stats: &[Option<Stats>], place: usize, column: &Column) -> Result<KnownColumn> {
    let data_type = column.kind.data_type();
    let known = || stats.iter().map(Option::as_ref);
    let lower = known().map(|stats| stats?.lower(place, column));
    let upper = known().map(|stats| stats?.upper(place, column));
    Ok(KnownColumn {
        name: column.name.clone(),
        fixed: None,
        lower: values_array(lower, &data_type)?,
        upper: values_array(upper, &data_type)?,
        nulls: known().map(|stats| stats?.nulls(place)).collect(),
        nans: UInt64Array::new_null(stats.len()),
    })
}

fn is_nan(value: &ScalarValue) -> bool {
    match value {
        ScalarValue::Float32(Some(value)) => value.is_nan(),
        ScalarValue::Float64(Some(value)) => value.is_nan(),
        _ => false,
    }
}
