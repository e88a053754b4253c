//! Hive partitions: columns whose values stand in directory names, as in `day=2026-01-31/`.

use std::collections::BTreeMap;

use arrow::datatypes::{DataType, Field};
use chrono::NaiveDate;
use datafusion::common::ScalarValue;
use object_store::path::Path;
use percent_encoding::percent_decode_str;
use serde::Deserialize;

use super::list::names_below;
use super::pin::FilePin;
use crate::{Error, Result, list_names};

/// The value that Hive and Spark write for null.
const NULL: &str = "__HIVE_DEFAULT_PARTITION__";

/// Whether directory names are read as columns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Partitioning {
    /// Where there are `key=value` directories.
    #[default]
    Detect,
    /// Always; a table without such directories is an error.
    Hive,
    /// Never.
    Off,
}

impl Partitioning {
    /// The word for it in a form.
    pub fn name(self) -> &'static str {
        match self {
            Self::Detect => "detect",
            Self::Hive => "hive",
            Self::Off => "off",
        }
    }
}

/// The hive columns of a table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HivePartitions {
    /// One field per key, in the order of the directories; nullable where a value is null.
    pub fields: Vec<Field>,
    /// For each file the value of each field.
    pub values: Vec<Vec<ScalarValue>>,
}

/// A key and its value as text, both decoded; None is null.
type Pair = (String, Option<String>);

/// Reads the hive partitions of a table's files. `roots[i]` is the directory below which the
/// directories of `pins[i]` count (see [`Listing`](super::Listing)).
///
/// Keys and values are percent-decoded once, and are only ever values: nothing is opened by them.
/// A type is the declared one of `types`, or else Int64 where every value is an integer as `i64`
/// prints it (so neither `007` nor `+7`), Date32 where every value is a `YYYY-MM-DD`, and Utf8
/// otherwise. `types` may name columns that are no hive keys.
///
/// # Errors
///
/// `Config`, where partitions are demanded and there are none; `Data`, where files have different
/// keys, a key stands twice in a path, or a value does not fit its declared type.
pub fn decode(
    pins: &[FilePin],
    roots: &[Path],
    partitioning: Partitioning,
    types: &BTreeMap<String, DataType>,
) -> Result<HivePartitions> {
    if partitioning == Partitioning::Off || pins.is_empty() {
        return Ok(HivePartitions { fields: Vec::new(), values: vec![Vec::new(); pins.len()] });
    }
    if pins.len() != roots.len() {
        return Err(Error::config(format!("{} files have {} roots", pins.len(), roots.len())));
    }
    let rows: Vec<Vec<Pair>> =
        pins.iter().zip(roots).map(|(pin, root)| pairs(pin, root)).collect::<Result<_>>()?;
    check_same_keys(pins, &rows)?;
    if rows[0].is_empty() && partitioning == Partitioning::Hive {
        return Err(Error::config(format!(
            "partitioning=\"hive\" demands key=value directories, but the path of {} has none; \
             leave partitioning out, or name the directory above them",
            pins[0].location
        )));
    }
    let mut partitions =
        HivePartitions { fields: Vec::new(), values: vec![Vec::new(); pins.len()] };
    for (column, (key, _)) in rows[0].iter().enumerate() {
        let texts: Vec<Option<&str>> = rows.iter().map(|row| row[column].1.as_deref()).collect();
        let data_type = types.get(key).cloned().unwrap_or_else(|| infer(&texts));
        for ((pin, text), values) in pins.iter().zip(&texts).zip(&mut partitions.values) {
            values.push(parse(pin, key, *text, &data_type)?);
        }
        let nullable = texts.iter().any(Option::is_none);
        partitions.fields.push(Field::new(key, data_type, nullable));
    }
    Ok(partitions)
}

/// The `key=value` directories between the root and the file. Others may stand between them.
fn pairs(pin: &FilePin, root: &Path) -> Result<Vec<Pair>> {
    let names = names_below(&pin.location, root);
    let directories = names.split_last().map_or(&names[..], |(_, directories)| directories);
    let mut pairs: Vec<Pair> = Vec::new();
    for name in directories {
        let Some((key, value)) = name.split_once('=').filter(|(key, _)| !key.is_empty()) else {
            continue;
        };
        let key = unescape(pin, key)?;
        if pairs.iter().any(|(other, _)| *other == key) {
            return Err(Error::data(format!(
                "the hive key {key:?} stands twice in the path {}; rename one of the directories, \
                 or pass partitioning=False",
                pin.location
            )));
        }
        let value = match value {
            NULL => None,
            value => Some(unescape(pin, value)?),
        };
        pairs.push((key, value));
    }
    Ok(pairs)
}

fn unescape(pin: &FilePin, text: &str) -> Result<String> {
    match percent_decode_str(text).decode_utf8() {
        Ok(decoded) => Ok(decoded.into_owned()),
        Err(_) => Err(Error::data(format!(
            "the percent escapes of {text:?} in the path {} are not UTF-8; rename the directory, \
             or pass partitioning=False",
            pin.location
        ))),
    }
}

fn check_same_keys(pins: &[FilePin], rows: &[Vec<Pair>]) -> Result<()> {
    let keys = |row: &[Pair]| -> Vec<String> { row.iter().map(|(key, _)| key.clone()).collect() };
    let first = keys(&rows[0]);
    for (pin, row) in pins.iter().zip(rows) {
        if row.iter().map(|(key, _)| key).eq(&first) {
            continue;
        }
        let show = |keys: &[String]| match keys {
            [] => "no hive keys".to_owned(),
            keys => {
                let names: Vec<&str> = keys.iter().map(String::as_str).collect();
                format!("the hive keys {}", list_names(&names))
            }
        };
        return Err(Error::data(format!(
            "{} has {}, but {} has {}; give all files the same directories, or pass \
             partitioning=False to ignore them",
            pins[0].location,
            show(&first),
            pin.location,
            show(&keys(row)),
        )));
    }
    Ok(())
}

fn infer(texts: &[Option<&str>]) -> DataType {
    let all = |fits: fn(&str) -> bool| {
        texts.iter().flatten().count() > 0 && texts.iter().flatten().all(|text| fits(text))
    };
    if all(is_integer) {
        DataType::Int64
    } else if all(is_date) {
        DataType::Date32
    } else {
        DataType::Utf8
    }
}

/// Returns true if the text is an `i64` as it prints itself, so that no spelling is lost.
fn is_integer(text: &str) -> bool {
    text.parse::<i64>().is_ok_and(|value| value.to_string() == text)
}

fn is_date(text: &str) -> bool {
    let bytes = text.as_bytes();
    let shaped = bytes.len() == 10
        && bytes.iter().enumerate().all(|(at, byte)| match at {
            4 | 7 => *byte == b'-',
            _ => byte.is_ascii_digit(),
        });
    shaped && NaiveDate::parse_from_str(text, "%Y-%m-%d").is_ok()
}

fn parse(
    pin: &FilePin,
    key: &str,
    text: Option<&str>,
    data_type: &DataType,
) -> Result<ScalarValue> {
    let bad = |error: String| {
        Error::data(format!(
            "the hive value {:?} of {key:?} in the path {} is no {data_type}: {error}",
            text.unwrap_or(NULL),
            pin.location
        ))
    };
    let Some(text) = text else {
        return ScalarValue::try_from(data_type).map_err(|error| bad(error.strip_backtrace()));
    };
    let value = ScalarValue::try_from_string(text.to_owned(), data_type)
        .map_err(|error| bad(error.strip_backtrace()))?;
    // Some casts of text give null where they fail.
    if value.is_null() {
        return Err(bad("it cannot be read as one".to_owned()));
    }
    Ok(value)
}
