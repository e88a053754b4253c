//! Times as features, of timestamps, dates and numbers:
//!
//! - `time_decay(time, reference, half_life)` is 2^(-(reference - time) / half_life): 1 at the
//!   reference, and half as much after each half-life.
//! - `cyclic_sin(x, period)` and `cyclic_cos(x, period)` are sin(2πx / period) and cos(2πx /
//!   period). Times count from 1970-01-01 00:00, in UTC if they have a zone.
//!
//! Differences and rests of times and integers are exact, in nanoseconds; then they become floats.

use std::f64::consts::TAU;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array};
use arrow::buffer::NullBuffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type, Int64Type, TimeUnit, UInt64Type};
use datafusion::common::ScalarValue;

use super::Spec;
use super::arguments::{Call, number, plain, refused, whole, wrong_type};
use crate::{Error, Result};

pub(super) static TIME_DECAY: Spec = Spec {
    name: "time_decay",
    usage: "time_decay(time, reference, half_life)",
    arguments: 3..=3,
    coerce: |types| {
        let found: Vec<_> = types.iter().map(|of| plain(of, true)).collect();
        let kind = kind_of("time_decay", "the time", &found[0])?;
        let other = kind_of("time_decay", "the reference", &found[1])?;
        if matches!((kind, other), (Some(one), Some(other)) if one != other)
            || found[..2].iter().any(is_of_day)
        {
            return Err(Error::query(format!(
                "time_decay(): the time is of the type {}, and the reference {}; give two timestamps or dates, or two numbers",
                found[0], found[1]
            )));
        }
        check_length("time_decay", "half_life", kind.or(other), &found[2])?;
        Ok(found)
    },
    output: |_, constants| float(constants[2], "time_decay", "half_life"),
    compute: |call| {
        let constants = call.constants("time_decay", &[(2, "half_life")])?;
        let (time, reference) = (call.array(0)?, call.array(1)?);
        let nulls =
            NullBuffer::union(time.logical_nulls().as_ref(), reference.logical_nulls().as_ref());
        let half_life = given("time_decay", "half_life", constants[2])?.as_float();
        let weight = |age: f64| (-age / half_life).exp2();
        let weights: Vec<f64> = match (Points::of(&time)?, Points::of(&reference)?) {
            (Points::Whole(times), Points::Whole(references)) => {
                let ages = times.iter().zip(&references).map(|(time, then)| then - time);
                ages.map(|age| weight(age as f64)).collect()
            }
            (times, references) => {
                let ages = times.real().into_iter().zip(references.real());
                ages.map(|(time, then)| weight(then - time)).collect()
            }
        };
        Ok(Arc::new(Float64Array::new(weights.into(), nulls)))
    },
};

pub(super) static CYCLIC_SIN: Spec = Spec {
    name: "cyclic_sin",
    usage: "cyclic_sin(x, period)",
    arguments: 2..=2,
    coerce: |types| coerce_cyclic("cyclic_sin", types),
    output: |_, constants| float(constants[1], "cyclic_sin", "period"),
    compute: |call| cyclic("cyclic_sin", call, f64::sin),
};

pub(super) static CYCLIC_COS: Spec = Spec {
    name: "cyclic_cos",
    usage: "cyclic_cos(x, period)",
    arguments: 2..=2,
    coerce: |types| coerce_cyclic("cyclic_cos", types),
    output: |_, constants| float(constants[1], "cyclic_cos", "period"),
    compute: |call| cyclic("cyclic_cos", call, f64::cos),
};

/// The kinds of values that have a place on a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Number,
    Time,
}

fn is_of_day(of: &DataType) -> bool {
    matches!(of, DataType::Time32(_) | DataType::Time64(_))
}

/// The kind of a type; None for NULL.
fn kind_of(function: &str, name: &str, of: &DataType) -> Result<Option<Kind>> {
    use DataType::{Date32, Date64, Null, Time32, Time64, Timestamp};
    match of {
        Null => Ok(None),
        Timestamp(..) | Date32 | Date64 | Time32(_) | Time64(_) => Ok(Some(Kind::Time)),
        other if other.is_numeric() => Ok(Some(Kind::Number)),
        other => Err(wrong_type(function, name, "a timestamp, a date or a number", other)),
    }
}

/// Checks the type of a half-life or a period.
fn check_length(function: &str, name: &str, kind: Option<Kind>, of: &DataType) -> Result<()> {
    let is_span = matches!(of, DataType::Interval(_) | DataType::Duration(_));
    match kind {
        Some(Kind::Time) if !is_span && !of.is_null() => {
            Err(wrong_type(function, name, "an interval, such as INTERVAL '7 days'", of))
        }
        Some(Kind::Number) if !of.is_numeric() && !of.is_null() => {
            Err(wrong_type(function, name, "a number", of))
        }
        _ => Ok(()),
    }
}

/// The type of the values, if a length that is written out is a length.
fn float(length: Option<&ScalarValue>, function: &str, name: &str) -> Result<DataType> {
    if let Some(length) = length {
        Length::of(function, name, length)?;
    }
    Ok(DataType::Float64)
}

fn given(function: &str, name: &str, length: Option<&ScalarValue>) -> Result<Length> {
    match length {
        Some(length) => Length::of(function, name, length),
        None => Err(Error::query(format!("{function}() has no {name}"))),
    }
}

/// A length above zero: nanoseconds or an integer, or a float.
#[derive(Clone, Copy)]
enum Length {
    Whole(i128),
    Real(f64),
}

const NANOSECONDS_OF_DAY: i128 = 86_400_000_000_000;

impl Length {
    fn of(function: &str, name: &str, value: &ScalarValue) -> Result<Self> {
        use ScalarValue::{
            DurationMicrosecond, DurationMillisecond, DurationNanosecond, DurationSecond,
            IntervalDayTime, IntervalMonthDayNano, IntervalYearMonth,
        };
        let nanoseconds = |days: i32, rest: i128| i128::from(days) * NANOSECONDS_OF_DAY + rest;
        let (months, found) = match value {
            IntervalMonthDayNano(Some(span)) => {
                (span.months, nanoseconds(span.days, i128::from(span.nanoseconds)))
            }
            IntervalDayTime(Some(span)) => {
                (0, nanoseconds(span.days, i128::from(span.milliseconds) * 1_000_000))
            }
            IntervalYearMonth(Some(months)) => (*months, 0),
            DurationSecond(Some(span)) => (0, i128::from(*span) * 1_000_000_000),
            DurationMillisecond(Some(span)) => (0, i128::from(*span) * 1_000_000),
            DurationMicrosecond(Some(span)) => (0, i128::from(*span) * 1_000),
            DurationNanosecond(Some(span)) => (0, i128::from(*span)),
            other => match (whole(other), number(other)) {
                (Some(found), _) if found > 0 => return Ok(Self::Whole(found)),
                (None, Some(found)) if found > 0.0 && found.is_finite() => {
                    return Ok(Self::Real(found));
                }
                _ => return Err(refused(function, name, WANTED, other)),
            },
        };
        if months != 0 {
            return Err(Error::query(format!(
                "{function}(): {name} has months, whose lengths differ; write it in days, such as INTERVAL '30 days'"
            )));
        }
        if found <= 0 {
            return Err(refused(function, name, WANTED, value));
        }
        Ok(Self::Whole(found))
    }

    fn as_float(self) -> f64 {
        match self {
            Self::Whole(found) => found as f64,
            Self::Real(found) => found,
        }
    }
}

const WANTED: &str = "above zero and finite";

/// Places on a line: nanoseconds since 1970 and integers, or floats.
enum Points {
    Whole(Vec<i128>),
    Real(Vec<f64>),
}

impl Points {
    fn of(array: &ArrayRef) -> Result<Self> {
        use DataType::{Date32, Date64, Null, Time32, Time64, Timestamp, UInt64};
        let of = array.data_type();
        let ticks = match of {
            Null => return Ok(Self::Real(vec![0.0; array.len()])),
            UInt64 => {
                let values = array.as_primitive::<UInt64Type>().values();
                return Ok(Self::Whole(values.iter().map(|value| i128::from(*value)).collect()));
            }
            Timestamp(unit, _) | Time32(unit) | Time64(unit) => nanoseconds(unit),
            Date32 => NANOSECONDS_OF_DAY,
            Date64 => nanoseconds(&TimeUnit::Millisecond),
            other if other.is_integer() => 1,
            _ => {
                let array = cast(array, &DataType::Float64)?;
                return Ok(Self::Real(array.as_primitive::<Float64Type>().values().to_vec()));
            }
        };
        // Days and times of a day are numbers of 32 bits, which do not become wider at once.
        let array = match of {
            Date32 | Time32(_) => cast(array, &DataType::Int32)?,
            _ => Arc::clone(array),
        };
        let array = cast(&array, &DataType::Int64)?;
        let values = array.as_primitive::<Int64Type>().values();
        Ok(Self::Whole(values.iter().map(|value| i128::from(*value) * ticks).collect()))
    }

    fn real(self) -> Vec<f64> {
        match self {
            Self::Whole(values) => values.into_iter().map(|value| value as f64).collect(),
            Self::Real(values) => values,
        }
    }
}

fn nanoseconds(unit: &TimeUnit) -> i128 {
    match unit {
        TimeUnit::Second => 1_000_000_000,
        TimeUnit::Millisecond => 1_000_000,
        TimeUnit::Microsecond => 1_000,
        TimeUnit::Nanosecond => 1,
    }
}

fn coerce_cyclic(function: &str, types: &[DataType]) -> Result<Vec<DataType>> {
    let found: Vec<_> = types.iter().map(|of| plain(of, true)).collect();
    check_length(function, "period", kind_of(function, "x", &found[0])?, &found[1])?;
    Ok(found)
}

fn cyclic(function: &str, call: &Call<'_>, wave: impl Fn(f64) -> f64) -> Result<ArrayRef> {
    let constants = call.constants(function, &[(1, "period")])?;
    let period = given(function, "period", constants[1])?;
    let array = call.array(0)?;
    let length = period.as_float();
    let values: Vec<f64> = match (Points::of(&array)?, period) {
        (Points::Whole(points), Length::Whole(period)) => {
            points.into_iter().map(|point| wave(TAU * (rest(point, period) / length))).collect()
        }
        (points, _) => {
            let points = points.real().into_iter();
            points.map(|point| wave(TAU * (point.rem_euclid(length) / length))).collect()
        }
    };
    Ok(Arc::new(Float64Array::new(values.into(), array.logical_nulls())))
}

/// The rest of a division, at least 0. Numbers of 64 bits are divided much faster.
fn rest(of: i128, by: i128) -> f64 {
    match (i64::try_from(of), i64::try_from(by)) {
        (Ok(of), Ok(by)) => of.rem_euclid(by) as f64,
        _ => of.rem_euclid(by) as f64,
    }
}
