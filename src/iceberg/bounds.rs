//! The least and greatest value of a column in a data file, as far as metadata says: by the file's
//! metrics and by its partition.

use std::collections::HashMap;

use arrow::datatypes::{DataType, TimeUnit};
use chrono::{Days, Months, NaiveDate};
use datafusion::scalar::ScalarValue;
use iceberg::spec::{DataFile, Datum, PrimitiveLiteral, Transform};

use super::types::primitive_scalar;

/// Bounds of a column's values in one file; None where metadata has none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bounds {
    /// No value is less.
    pub lower: Option<ScalarValue>,
    /// No value is greater.
    pub upper: Option<ScalarValue>,
    /// Nulls.
    pub nulls: Option<u64>,
    /// NaN, which is in no bound.
    pub nans: Option<u64>,
}

impl Bounds {
    /// Takes bounds from `other` that are missing here.
    pub fn narrow(&mut self, other: &Self) {
        if self.lower.is_none() {
            self.lower.clone_from(&other.lower);
        }
        if self.upper.is_none() {
            self.upper.clone_from(&other.upper);
        }
    }
}

/// By the file's metrics. A bound that does not fit the column's type by now says nothing.
pub fn file_bounds(file: &DataFile, id: i32, data_type: &DataType) -> Bounds {
    let bound = |bounds: &HashMap<i32, Datum>| {
        bounds.get(&id).and_then(|datum| primitive_scalar(datum.literal(), data_type).ok())
    };
    Bounds {
        lower: bound(file.lower_bounds()),
        upper: bound(file.upper_bounds()),
        nulls: file.null_value_counts().get(&id).copied(),
        nans: file.nan_value_counts().get(&id).copied(),
    }
}

/// By a partition value that is not null: which values the transform maps to it.
/// Transforms: <https://iceberg.apache.org/spec/#partition-transforms>.
pub fn partition_bounds(
    transform: Transform,
    value: &PrimitiveLiteral,
    data_type: &DataType,
) -> Bounds {
    let between = |range: Option<(ScalarValue, ScalarValue)>| match range {
        Some((lower, upper)) => {
            Bounds { lower: Some(lower), upper: Some(upper), ..Bounds::default() }
        }
        None => Bounds::default(),
    };
    match (transform, value) {
        (Transform::Identity, _) if !data_type.is_floating() => {
            let value = primitive_scalar(value, data_type).ok();
            Bounds { lower: value.clone(), upper: value, ..Bounds::default() }
        }
        (Transform::Truncate(width), value) => between(truncated(width, value, data_type)),
        (Transform::Year, PrimitiveLiteral::Int(years)) => {
            let start = add_months(earliest(*years), 12);
            between(dates(start, add_months(years.saturating_add(1), 12), data_type))
        }
        (Transform::Month, PrimitiveLiteral::Int(months)) => {
            let start = add_months(earliest(*months), 1);
            between(dates(start, add_months(months.saturating_add(1), 1), data_type))
        }
        (Transform::Day, PrimitiveLiteral::Int(days)) => {
            between(dates(add_days(earliest(*days)), add_days(days.saturating_add(1)), data_type))
        }
        (Transform::Hour, PrimitiveLiteral::Int(hours)) => {
            let hour = 3_600_000_000_i64;
            let at = |hours: i32| i64::from(hours).checked_mul(hour);
            let (start, end) = (at(earliest(*hours)), at(hours.saturating_add(1)));
            between(start.zip(end).and_then(|(start, end)| micros(start, end, data_type)))
        }
        _ => Bounds::default(),
    }
}

/// Old writers rounded times before 1970 towards it, not down: such a value may lie one unit
/// earlier than it says.
fn earliest(count: i32) -> i32 {
    if count <= 0 { count.saturating_sub(1) } else { count }
}

fn truncated(
    width: u32,
    value: &PrimitiveLiteral,
    data_type: &DataType,
) -> Option<(ScalarValue, ScalarValue)> {
    let last = i128::from(width) - 1;
    let shifted = match value {
        PrimitiveLiteral::Int(start) => {
            let end = i128::from(*start) + last;
            PrimitiveLiteral::Int(i32::try_from(end).unwrap_or(i32::MAX))
        }
        PrimitiveLiteral::Long(start) => {
            let end = i128::from(*start) + last;
            PrimitiveLiteral::Long(i64::try_from(end).unwrap_or(i64::MAX))
        }
        PrimitiveLiteral::Int128(start) => PrimitiveLiteral::Int128(start.checked_add(last)?),
        // What starts with these characters: a shorter string is the whole value.
        PrimitiveLiteral::String(start) if start.chars().count() < width as usize => {
            PrimitiveLiteral::String(start.clone())
        }
        _ => return None,
    };
    Some((primitive_scalar(value, data_type).ok()?, primitive_scalar(&shifted, data_type).ok()?))
}

fn epoch() -> NaiveDate {
    NaiveDate::default()
}

/// 1970-01-01 and so many times so many months.
fn add_months(count: i32, months: u32) -> Option<NaiveDate> {
    let total = count.unsigned_abs().checked_mul(months)?;
    match count < 0 {
        true => epoch().checked_sub_months(Months::new(total)),
        false => epoch().checked_add_months(Months::new(total)),
    }
}

fn add_days(days: i32) -> Option<NaiveDate> {
    let total = Days::new(u64::from(days.unsigned_abs()));
    match days < 0 {
        true => epoch().checked_sub_days(total),
        false => epoch().checked_add_days(total),
    }
}

/// From midnight of `start` until before `end`.
fn dates(
    start: Option<NaiveDate>,
    end: Option<NaiveDate>,
    data_type: &DataType,
) -> Option<(ScalarValue, ScalarValue)> {
    let days = |date: NaiveDate| date.signed_duration_since(epoch()).num_days();
    let (start, end) = (days(start?), days(end?));
    if *data_type == DataType::Date32 {
        let day = |days: i64| i32::try_from(days).ok().map(|days| ScalarValue::Date32(Some(days)));
        return Some((day(start)?, day(end - 1)?));
    }
    let day = 86_400_000_000_i64;
    micros(start.checked_mul(day)?, end.checked_mul(day)?, data_type)
}

/// Timestamps from `start` until before `end`, in microseconds.
fn micros(start: i64, end: i64, data_type: &DataType) -> Option<(ScalarValue, ScalarValue)> {
    match data_type {
        DataType::Timestamp(TimeUnit::Microsecond, zone) => Some((
            ScalarValue::TimestampMicrosecond(Some(start), zone.clone()),
            ScalarValue::TimestampMicrosecond(Some(end - 1), zone.clone()),
        )),
        DataType::Timestamp(TimeUnit::Nanosecond, zone) => Some((
            ScalarValue::TimestampNanosecond(Some(start.checked_mul(1000)?), zone.clone()),
            ScalarValue::TimestampNanosecond(Some(end.checked_mul(1000)? - 1), zone.clone()),
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_bounds_its_values() {
        let date = |value: i32| ScalarValue::Date32(Some(value));
        let of = |transform, value| {
            let bounds =
                partition_bounds(transform, &PrimitiveLiteral::Int(value), &DataType::Date32);
            (bounds.lower.unwrap(), bounds.upper.unwrap())
        };
        assert_eq!(of(Transform::Year, 1), (date(365), date(729)));
        assert_eq!(of(Transform::Month, 1), (date(31), date(58)));
        assert_eq!(of(Transform::Day, 1), (date(1), date(1)));
        // One unit more before 1970, for writers that rounded the wrong way.
        assert_eq!(of(Transform::Year, 0), (date(-365), date(364)));
        assert_eq!(of(Transform::Month, -1), (date(-61), date(-1)));
        assert_eq!(of(Transform::Day, -1), (date(-2), date(-1)));
        let hour = DataType::Timestamp(TimeUnit::Microsecond, None);
        let bounds = partition_bounds(Transform::Hour, &PrimitiveLiteral::Int(-1), &hour);
        assert_eq!(
            bounds.lower,
            Some(ScalarValue::TimestampMicrosecond(Some(-7_200_000_000), None))
        );
        assert_eq!(bounds.upper, Some(ScalarValue::TimestampMicrosecond(Some(-1), None)));
        let bounds = partition_bounds(
            Transform::Truncate(10),
            &PrimitiveLiteral::Int(-10),
            &DataType::Int32,
        );
        assert_eq!(bounds.upper, Some(ScalarValue::Int32(Some(-1))));
    }
}
