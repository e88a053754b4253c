//! Casts to timestamps whose failure names the value: local times that a zone skips or has twice,
//! and dates that the unit does not reach, which DataFusion 53 wraps around in silence.
//!
//! Upstream: apache/datafusion#17534.

use std::sync::Arc;

use arrow::array::timezone::Tz;
use arrow::array::{Array, ArrayRef, AsArray, new_null_array};
use arrow::compute::{CastOptions, cast, cast_with_options, concat};
use arrow::datatypes::{
    DataType, Date32Type, Date64Type, Field, FieldRef, Int64Type, TimeUnit, TimestampNanosecondType,
};
use arrow::temporal_conversions::as_datetime;
use chrono::{MappedLocalTime, TimeZone};
use datafusion::error::Result;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};

use super::kept_from_optimizer::per_second;
use super::time_constants::is_utc;
use crate::Error;
use crate::basics::{computed, function_basics};

const SECONDS_OF_A_DAY: i64 = 24 * 60 * 60;

/// Returns true if a cast of these types may fail without a word on the value, or wrap around.
pub(super) fn needs_care(from: &DataType, to: &DataType) -> bool {
    let DataType::Timestamp(_, zone) = to else { return false };
    let is_local = zone.as_deref().is_some_and(|zone| !is_utc(zone));
    match from {
        DataType::Date32 | DataType::Date64 => true,
        DataType::Timestamp(_, None) => is_local,
        text => text.is_string() && is_local,
    }
}

/// The cast as a function. With `or_null` failures are NULL, as in TRY_CAST.
pub(super) fn to_instant(value: Expr, target: DataType, or_null: bool) -> Expr {
    let signature = Signature::any(1, Volatility::Immutable);
    let function = ScalarUDF::from(ToInstant { signature, target, or_null });
    Expr::ScalarFunction(ScalarFunction::new_udf(Arc::new(function), vec![value]))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct ToInstant {
    signature: Signature,
    target: DataType,
    or_null: bool,
}

impl ScalarUDFImpl for ToInstant {
    function_basics!(this => if this.or_null { "try_to_instant" } else { "to_instant" });

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(self.target.clone())
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let nullable = args.arg_fields.iter().any(|field| field.is_nullable()) || self.or_null;
        Ok(Arc::new(Field::new(self.name(), self.target.clone(), nullable)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        computed(&args, |values| self.cast(&values[0]))
    }
}

impl ToInstant {
    fn cast(&self, values: &ArrayRef) -> Result<ArrayRef> {
        let strict = CastOptions { safe: self.or_null, ..CastOptions::default() };
        if self.all_reached(values)
            && let Ok(found) = cast_with_options(values, &self.target, &strict)
        {
            return Ok(found);
        }
        // Value by value: one of them fails.
        let mut found: Vec<ArrayRef> = Vec::with_capacity(values.len());
        for row in 0..values.len() {
            let one = values.slice(row, 1);
            if one.is_null(0) {
                found.push(new_null_array(&self.target, 1));
                continue;
            }
            let strict = CastOptions { safe: false, ..CastOptions::default() };
            let cast = match self.all_reached(&one) {
                true => cast_with_options(&one, &self.target, &strict).ok(),
                false => None,
            };
            found.push(match cast {
                Some(one) => one,
                None if self.or_null => new_null_array(&self.target, 1),
                None => return Err(self.failure(&one).into()),
            });
        }
        Ok(concat(&found.iter().map(AsRef::as_ref).collect::<Vec<_>>())?)
    }

    /// Returns true if the unit reaches all of these dates, those under a NULL too: the cast
    /// multiplies all. True of anything else.
    fn all_reached(&self, values: &ArrayRef) -> bool {
        let DataType::Timestamp(unit, _) = self.target else { return true };
        let seconds = |seconds: i64| seconds.checked_mul(per_second(unit)).is_some();
        match values.data_type() {
            DataType::Date32 => {
                let days = values.as_primitive::<Date32Type>();
                days.values().iter().all(|days| seconds(i64::from(*days) * SECONDS_OF_A_DAY))
            }
            DataType::Date64 => {
                let days = values.as_primitive::<Date64Type>();
                days.values().iter().all(|milliseconds| seconds(milliseconds / 1_000))
            }
            _ => true,
        }
    }

    /// The error for one value that is none of the target's.
    fn failure(&self, value: &ArrayRef) -> Error {
        let text = cast(value, &DataType::Utf8).ok();
        let text = text.as_ref().map_or("?", |text| text.as_string::<i32>().value(0));
        let DataType::Timestamp(unit, zone) = &self.target else {
            return Error::query(format!("{text} is no {}", self.target));
        };
        if !self.all_reached(value) {
            return Error::query(format!(
                "the date {text} is beyond the timestamps of {unit:?}s; cast it to a coarser unit: arrow_cast(x, \
                 'Timestamp(Second, None)')"
            ));
        }
        let zone = zone.as_deref().unwrap_or("UTC");
        let why = match clock(value).zip(zone.parse::<Tz>().ok()) {
            Some((local, zone)) => match zone.offset_from_local_datetime(&local) {
                MappedLocalTime::None => "does not exist: the clocks skip it",
                MappedLocalTime::Ambiguous(..) => "exists twice: the clocks are set back over it",
                MappedLocalTime::Single(_) => "is beyond the range of the type",
            },
            None => "is no time of the day there",
        };
        Error::query(format!(
            "the local time {text} in the zone {zone:?} {why}; give it with its offset, '2024-03-31T02:30:00+01:00', or add \
             or subtract an hour first"
        ))
    }
}

/// The clock reading of a time without a zone.
fn clock(value: &ArrayRef) -> Option<chrono::NaiveDateTime> {
    let none = DataType::Timestamp(TimeUnit::Nanosecond, None);
    let strict = CastOptions { safe: false, ..CastOptions::default() };
    let nanoseconds = cast_with_options(value, &none, &strict).ok()?;
    let number = cast(&nanoseconds, &DataType::Int64).ok()?;
    let number = number.as_primitive::<Int64Type>();
    as_datetime::<TimestampNanosecondType>(number.iter().next()??)
}
