//! Partition values: texts in the log, typed as the protocol says.
//! Rules: <https://github.com/delta-io/delta/blob/master/PROTOCOL.md#partition-value-serialization>.

use arrow::compute::kernels::cast_utils::parse_decimal;
use arrow::datatypes::{DataType, Decimal128Type, TimeUnit};
use chrono::{DateTime, NaiveDate, NaiveDateTime};
use datafusion::scalar::ScalarValue;

use crate::{Error, Result};

/// The value of a partition column of this type. An absent text and an empty one are null,
/// whatever the type.
///
/// # Errors
/// `Data` for a text that is no value of the type.
pub fn partition_value(text: Option<&str>, data_type: &DataType) -> Result<ScalarValue> {
    let Some(text) = text.filter(|text| !text.is_empty()) else {
        return Ok(ScalarValue::try_from(data_type)?);
    };
    typed(text, data_type).ok_or_else(|| {
        Error::data(format!("the partition value {text:?} is no value of type {data_type}"))
    })
}

fn typed(text: &str, data_type: &DataType) -> Option<ScalarValue> {
    Some(match data_type {
        DataType::Utf8 => ScalarValue::Utf8(Some(text.to_owned())),
        DataType::Int8 => ScalarValue::Int8(Some(text.parse().ok()?)),
        DataType::Int16 => ScalarValue::Int16(Some(text.parse().ok()?)),
        DataType::Int32 => ScalarValue::Int32(Some(text.parse().ok()?)),
        DataType::Int64 => ScalarValue::Int64(Some(text.parse().ok()?)),
        DataType::Float32 => ScalarValue::Float32(Some(text.parse().ok()?)),
        DataType::Float64 => ScalarValue::Float64(Some(text.parse().ok()?)),
        DataType::Boolean => ScalarValue::Boolean(Some(flag(text)?)),
        DataType::Binary => ScalarValue::Binary(Some(text.as_bytes().to_vec())),
        DataType::Date32 => ScalarValue::Date32(Some(days(text)?)),
        DataType::Timestamp(TimeUnit::Microsecond, zone) => {
            let micros = match zone {
                Some(_) => instant(text)?,
                None => clock(text)?,
            };
            ScalarValue::TimestampMicrosecond(Some(micros), zone.clone())
        }
        DataType::Decimal128(precision, scale) => {
            let digits = text.bytes().filter(u8::is_ascii_digit).count();
            let value = parse_decimal::<Decimal128Type>(text, *precision, *scale).ok()?;
            // What the scale does not hold would be cut off.
            let fraction = text
                .split_once('.')
                .map_or(0, |(_, fraction)| fraction.trim_end_matches('0').len());
            if digits == 0 || fraction > usize::try_from(*scale).ok()? {
                return None;
            }
            ScalarValue::Decimal128(Some(value), *precision, *scale)
        }
        _ => return None,
    })
}

fn flag(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" => Some(true),
        "false" => Some(false),
        _ => None,
    }
}

/// Days since 1970-01-01.
pub fn days(text: &str) -> Option<i32> {
    let day = NaiveDate::parse_from_str(text, "%Y-%m-%d").ok()?;
    i32::try_from(day.signed_duration_since(NaiveDate::default()).num_days()).ok()
}

/// Microseconds of a time with an offset, or of one without, which is UTC.
fn instant(text: &str) -> Option<i64> {
    match DateTime::parse_from_rfc3339(text) {
        Ok(time) => Some(time.timestamp_micros()),
        Err(_) => clock(text),
    }
}

/// Microseconds of a time without an offset, or of a date.
pub fn clock(text: &str) -> Option<i64> {
    for format in ["%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%dT%H:%M:%S%.f"] {
        if let Ok(time) = NaiveDateTime::parse_from_str(text, format) {
            return Some(time.and_utc().timestamp_micros());
        }
    }
    i64::from(days(text)?).checked_mul(86_400_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_become_values_of_their_columns() {
        let value = |text, data_type| partition_value(Some(text), &data_type);
        let micros =
            |zone: Option<&str>| DataType::Timestamp(TimeUnit::Microsecond, zone.map(Into::into));
        let time = |value, zone: Option<&str>| {
            ScalarValue::TimestampMicrosecond(Some(value), zone.map(Into::into))
        };
        assert_eq!(value("", DataType::Utf8).unwrap(), ScalarValue::Utf8(None));
        assert_eq!(partition_value(None, &DataType::Int8).unwrap(), ScalarValue::Int8(None));
        assert_eq!(value("-7", DataType::Int8).unwrap(), ScalarValue::Int8(Some(-7)));
        assert!(value("128", DataType::Int8).is_err());
        assert_eq!(value("1969-12-31", DataType::Date32).unwrap(), ScalarValue::Date32(Some(-1)));
        assert_eq!(
            value("1969-12-31 23:59:59.999999", micros(Some("UTC"))).unwrap(),
            time(-1, Some("UTC"))
        );
        assert_eq!(
            value("1970-01-01T01:00:00.000001+01:00", micros(Some("UTC"))).unwrap(),
            time(1, Some("UTC"))
        );
        assert_eq!(value("1970-01-01 00:00:01", micros(None)).unwrap(), time(1_000_000, None));
        let decimal = DataType::Decimal128(6, 2);
        assert_eq!(
            value("-12.5", decimal.clone()).unwrap(),
            ScalarValue::Decimal128(Some(-1250), 6, 2)
        );
        assert!(value("12.555", decimal.clone()).is_err());
        assert!(value("x", decimal).is_err());
        assert_eq!(value("true", DataType::Boolean).unwrap(), ScalarValue::Boolean(Some(true)));
        assert!(matches!(
            value("Infinity", DataType::Float64).unwrap(),
            ScalarValue::Float64(Some(value)) if value == f64::INFINITY
        ));
        assert!(value("NaN", DataType::Float32).is_ok());
    }
}
