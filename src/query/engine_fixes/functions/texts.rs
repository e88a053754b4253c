//! Functions of texts as PostgreSQL has them. Their characters are code points; DataFusion 53 takes
//! grapheme clusters in `translate`, `lpad` and `rpad`. It finds an empty text between all
//! characters in `replace`, and one element in an empty text in `string_to_array`.
//!
//! Upstream: apache/datafusion#21060.

use std::collections::HashMap;

use arrow::array::{
    Array, ArrayRef, AsArray, Int64Array, LargeStringArray, LargeStringBuilder, ListBuilder,
};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type};
use datafusion::error::Result;
use datafusion::functions::{string, unicode};
use datafusion::functions_nested::string::string_to_array_udf;
use datafusion::logical_expr::ScalarUDF;

use super::in_place::in_place_of;
use crate::Error;

/// The functions under their own names.
pub(super) fn functions() -> [ScalarUDF; 5] {
    [
        in_place_of(string::replace(), replace),
        in_place_of(unicode::translate(), translate),
        in_place_of(unicode::lpad(), |arrays, of| pad(arrays, of, true)),
        in_place_of(unicode::rpad(), |arrays, of| pad(arrays, of, false)),
        in_place_of(string_to_array_udf(), string_to_array),
    ]
}

fn texts(array: &ArrayRef) -> Result<LargeStringArray> {
    Ok(cast(array, &DataType::LargeUtf8)?.as_string().clone())
}

/// Three texts make one; NULL where one of them is.
fn of_three(
    arrays: &[ArrayRef],
    of: &DataType,
    mut make: impl FnMut(&str, &str, &str) -> String,
) -> Result<ArrayRef> {
    let [one, two, three] = arrays else {
        return datafusion::common::exec_err!("three texts are expected, not {}", arrays.len());
    };
    let (one, two, three) = (texts(one)?, texts(two)?, texts(three)?);
    let rows = one.iter().zip(&two).zip(&three);
    let made: LargeStringArray =
        rows.map(|((one, two), three)| Some(make(one?, two?, three?))).collect();
    Ok(cast(&made, of)?)
}

fn replace(arrays: &[ArrayRef], of: &DataType) -> Result<ArrayRef> {
    of_three(arrays, of, |text, from, to| match from {
        "" => text.to_owned(),
        _ => text.replace(from, to),
    })
}

fn translate(arrays: &[ArrayRef], of: &DataType) -> Result<ArrayRef> {
    // Mostly, both are the same in all rows.
    let mut known: Option<(String, String, HashMap<char, Option<char>>)> = None;
    of_three(arrays, of, |text, from, to| {
        let (.., others) = match known.take() {
            Some(same) if same.0 == from && same.1 == to => known.insert(same),
            _ => known.insert((from.to_owned(), to.to_owned(), others(from, to))),
        };
        let other = |one| others.get(&one).copied().unwrap_or(Some(one));
        text.chars().filter_map(other).collect()
    })
}

/// For each character the one in its place, or None where it is left out. The first of several
/// decides.
fn others(from: &str, to: &str) -> HashMap<char, Option<char>> {
    let mut found = HashMap::new();
    let mut to = to.chars();
    for one in from.chars() {
        let other = to.next();
        found.entry(one).or_insert(other);
    }
    found
}

fn pad(arrays: &[ArrayRef], of: &DataType, before: bool) -> Result<ArrayRef> {
    let of_texts = texts(&arrays[0])?;
    let lengths: Int64Array =
        cast(&arrays[1], &DataType::Int64)?.as_primitive::<Int64Type>().clone();
    let fills = arrays.get(2).map(texts).transpose()?;
    let mut made = LargeStringBuilder::new();
    for row in 0..of_texts.len() {
        let is_null = of_texts.is_null(row)
            || lengths.is_null(row)
            || fills.as_ref().is_some_and(|fills| fills.is_null(row));
        if is_null {
            made.append_null();
            continue;
        }
        let fill = fills.as_ref().map_or(" ", |fills| fills.value(row));
        let (text, length) = (of_texts.value(row), lengths.value(row));
        made.append_value(padded(text, length, fill, before)?);
    }
    Ok(cast(&made.finish(), of)?)
}

/// The text with as many characters as `length` says: cut at its end, or filled. Nothing fills
/// where `fill` is empty.
fn padded(text: &str, length: i64, fill: &str, before: bool) -> Result<String> {
    let length = match usize::try_from(length.max(0)) {
        Ok(length) if length <= i32::MAX as usize => length,
        _ => {
            return Err(Error::query(format!(
                "lpad and rpad make texts of at most {} characters, not {length}",
                i32::MAX
            ))
            .into());
        }
    };
    let count = text.chars().count();
    if count >= length {
        return Ok(text.chars().take(length).collect());
    }
    let filled: String = fill.chars().cycle().take(length - count).collect();
    Ok(match before {
        true => filled + text,
        false => text.to_owned() + &filled,
    })
}

fn string_to_array(arrays: &[ArrayRef], of: &DataType) -> Result<ArrayRef> {
    let (of_texts, delimiters) = (texts(&arrays[0])?, texts(&arrays[1])?);
    let nulls = arrays.get(2).map(texts).transpose()?;
    let mut made = ListBuilder::new(LargeStringBuilder::new());
    for row in 0..of_texts.len() {
        if of_texts.is_null(row) {
            made.append_null();
            continue;
        }
        let text = of_texts.value(row);
        let null = nulls.as_ref().and_then(|nulls| nulls.is_valid(row).then(|| nulls.value(row)));
        let values = made.values();
        let mut add = |part: &str| values.append_option((null != Some(part)).then_some(part));
        match delimiters.is_valid(row).then(|| delimiters.value(row)) {
            _ if text.is_empty() => {}
            None => text.chars().for_each(|one| add(one.encode_utf8(&mut [0; 4]))),
            Some("") => add(text),
            Some(delimiter) => text.split(delimiter).for_each(add),
        }
        made.append(true);
    }
    Ok(cast(&made.finish(), of)?)
}
