//! `overlay(text PLACING other FROM start FOR length)` by characters, also behind the end of the
//! text. DataFusion 53 drops a text whose end lies before the start, and takes bytes for
//! characters.
//!
//! Upstream: apache/datafusion#22044, apache/datafusion#22045.

use std::sync::Arc;

use arrow::array::{Array, AsArray, LargeStringArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type};
use datafusion::error::Result;
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl};

use super::in_place::accessors_of_inner;
use crate::Error;

/// The function under its own name.
pub(super) fn by_characters() -> ScalarUDF {
    ScalarUDF::from(Overlay { inner: datafusion::functions::core::overlay() })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Overlay {
    inner: Arc<ScalarUDF>,
}

impl ScalarUDFImpl for Overlay {
    accessors_of_inner!();

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let rows = args.number_rows;
        let arrays = args.args.iter().map(|arg| arg.to_array(rows)).collect::<Result<Vec<_>>>()?;
        let text = |at: usize| cast(&arrays[at], &DataType::LargeUtf8);
        let (texts, others) = (text(0)?, text(1)?);
        let (texts, others) = (texts.as_string::<i64>(), others.as_string::<i64>());
        let starts = arrays[2].as_primitive::<Int64Type>();
        let lengths = arrays.get(3).map(|lengths| lengths.as_primitive::<Int64Type>());
        let mut made = Vec::with_capacity(rows);
        for row in 0..rows {
            let is_null = arrays.iter().any(|array| array.is_null(row));
            made.push(match is_null {
                true => None,
                false => {
                    let (text, other) = (texts.value(row), others.value(row));
                    let length = lengths.map(|lengths| lengths.value(row));
                    Some(overlaid(text, other, starts.value(row), length)?)
                }
            });
        }
        let made = cast(&LargeStringArray::from(made), args.return_field.data_type())?;
        Ok(ColumnarValue::Array(made))
    }
}

/// The characters before `start`, which counts from 1, the other text, and the characters from
/// `start + length` on.
fn overlaid(text: &str, other: &str, start: i64, length: Option<i64>) -> Result<String> {
    if start < 1 {
        return Err(Error::query(format!(
            "overlay(… FROM {start}) begins before the text: the first character is number 1"
        ))
        .into());
    }
    let length = length.unwrap_or_else(|| other.chars().count() as i64);
    // A negative length repeats what lies before, as in PostgreSQL.
    let rest = (start - 1).saturating_add(length).max(0);
    let place = |characters: i64| {
        let mut places = text.char_indices().map(|(place, _)| place);
        let at = usize::try_from(characters).unwrap_or(usize::MAX);
        places.nth(at).unwrap_or(text.len())
    };
    Ok([&text[..place(start - 1)], other, &text[place(rest)..]].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_replaced_and_none_is_lost() {
        for (start, length, expected) in [
            (1, None, "Qxyz"),
            (4, None, "wxyQ"),
            (5, None, "wxyzQ"),
            (99, None, "wxyzQ"),
            (2, Some(0), "wQxyz"),
            (2, Some(2), "wQz"),
            (2, Some(99), "wQ"),
            (3, Some(-1), "wxQxyz"),
            (1, Some(i64::MAX), "Q"),
            (i64::MAX, Some(i64::MAX), "wxyzQ"),
        ] {
            assert_eq!(
                overlaid("wxyz", "Q", start, length).unwrap(),
                expected,
                "{start} {length:?}"
            );
        }
        assert_eq!(overlaid("äöü€", "ß", 2, None).unwrap(), "äßü€");
        assert!(overlaid("wxyz", "Q", 0, None).is_err());
    }
}
