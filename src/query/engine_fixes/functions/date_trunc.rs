//! `date_trunc` of all times that a type has. DataFusion 53 goes by way of nanoseconds, which end
//! in 2262 and wrap around, and cuts parts of a second of constants before 1970 towards 1970.
//!
//! Upstream: apache/datafusion#22209, apache/datafusion#25129.

use std::sync::Arc;

use arrow::array::timezone::Tz;
use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, PrimitiveArray};
use arrow::datatypes::{
    DataType, FieldRef, TimeUnit, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType,
};
use chrono::{DateTime, LocalResult, NaiveDateTime, Offset, TimeDelta, TimeZone};
use datafusion::error::Result;
use datafusion::logical_expr::sort_properties::{ExprProperties, SortProperties};
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
};

use super::in_place::accessors_of_inner;
use super::like_array;
use crate::Error;
use crate::basics::forwarded;
use crate::query::engine_fixes::kept_from_optimizer::per_second;

const DAY: i64 = 24 * 60 * 60;

/// The function under its own name.
pub(super) fn of_all_times() -> ScalarUDF {
    ScalarUDF::from(DateTrunc { inner: datafusion::functions::datetime::date_trunc() })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct DateTrunc {
    inner: Arc<ScalarUDF>,
}

impl ScalarUDFImpl for DateTrunc {
    accessors_of_inner!();

    forwarded! {
        this => this.inner;
        fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef>;
        fn output_ordering(&self, input: &[ExprProperties]) -> Result<SortProperties>;
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let part = match &args.args[..] {
            [ColumnarValue::Scalar(part), _] => part.try_as_str().flatten(),
            _ => None,
        };
        let part = part.and_then(|part| TimeField::named(&part.to_lowercase()));
        let (Some(part), DataType::Timestamp(..)) = (part, args.args[1].data_type()) else {
            return self.inner.invoke_with_args(args);
        };
        like_array(&args.args[1], |times| truncated(times, part))
    }
}

/// A part of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TimeField {
    /// One that is as long as any other: so many of them in a second.
    OfSecond(i64),
    /// So many seconds, by any clock.
    Seconds(i64),
    Hour,
    Day,
    Week,
    /// So many months, in a year that they divide.
    Months(i64),
}

impl TimeField {
    /// The parts that DataFusion's function knows.
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "microsecond" => Self::OfSecond(1_000_000),
            "millisecond" => Self::OfSecond(1_000),
            "second" => Self::Seconds(1),
            "minute" => Self::Seconds(60),
            "hour" => Self::Hour,
            "day" => Self::Day,
            "week" => Self::Week,
            "month" => Self::Months(1),
            "quarter" => Self::Months(3),
            "year" => Self::Months(12),
            _ => return None,
        })
    }

    /// Its first second by a clock.
    fn first_second(self, second: i64) -> i64 {
        let day = second.div_euclid(DAY);
        match self {
            Self::OfSecond(_) => second,
            Self::Seconds(length) => second - second.rem_euclid(length),
            Self::Hour => second - second.rem_euclid(60 * 60),
            Self::Day => day * DAY,
            // The first day of 1970 was a Thursday.
            Self::Week => (day - (day + 3).rem_euclid(7)) * DAY,
            Self::Months(length) => {
                let month = month_of(day);
                first_day(month - month.rem_euclid(length)) * DAY
            }
        }
    }
}

/// Months since the year 0 of a day since 1970, in the Gregorian calendar.
fn month_of(day: i64) -> i64 {
    // Years begin with March, so that a leap day ends one.
    let day = day + 719_468;
    let (era, day) = (day.div_euclid(146_097), day.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    (era * 400 + year) * 12 + (5 * day + 2) / 153 + 2
}

/// The first day, since 1970, of a month since the year 0.
fn first_day(month: i64) -> i64 {
    let month = month - 2;
    let (year, month) = (month.div_euclid(12), month.rem_euclid(12));
    let (era, year) = (year.div_euclid(400), year.rem_euclid(400));
    era * 146_097 + 365 * year + year / 4 - year / 100 + (153 * month + 2) / 5 - 719_468
}

fn truncated(times: &ArrayRef, part: TimeField) -> Result<ArrayRef> {
    fn of<T: ArrowPrimitiveType<Native = i64>>(
        times: &ArrayRef,
        part: TimeField,
    ) -> Result<ArrayRef> {
        let DataType::Timestamp(unit, zone) = times.data_type() else {
            return datafusion::common::internal_err!("date_trunc of {}", times.data_type());
        };
        let zone = match zone {
            Some(name) if !matches!(part, TimeField::OfSecond(_) | TimeField::Seconds(_)) => {
                Some(name.parse::<Tz>()?)
            }
            _ => None,
        };
        let one = |time: i64| {
            let found = match zone {
                Some(zone) => at_zone(time, *unit, zone, part),
                None => by_clock(time, *unit, part),
            };
            found.ok_or_else(|| beyond(time, *unit))
        };
        let times = times.as_primitive::<T>();
        let found: PrimitiveArray<T> = times.try_unary(one)?;
        Ok(Arc::new(found.with_data_type(times.data_type().clone())))
    }
    match times.data_type() {
        DataType::Timestamp(TimeUnit::Second, _) => of::<TimestampSecondType>(times, part),
        DataType::Timestamp(TimeUnit::Millisecond, _) => {
            of::<TimestampMillisecondType>(times, part)
        }
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            of::<TimestampMicrosecondType>(times, part)
        }
        _ => of::<TimestampNanosecondType>(times, part),
    }
}

fn beyond(time: i64, unit: TimeUnit) -> Error {
    Error::query(format!(
        "date_trunc() of the timestamp {time} in {unit:?}s since 1970 is beyond the range of its type; cast it to a coarser \
         unit: arrow_cast(x, 'Timestamp(Second, None)'), or leave it out"
    ))
}

/// The time at which a part begins; None where the unit does not have it.
fn by_clock(time: i64, unit: TimeUnit, part: TimeField) -> Option<i64> {
    let steps = per_second(unit);
    match part {
        TimeField::OfSecond(count) if count >= steps => Some(time),
        TimeField::OfSecond(count) => time.checked_sub(time.rem_euclid(steps / count)),
        _ => part.first_second(time.div_euclid(steps)).checked_mul(steps),
    }
}

/// The time at which a part begins by the clocks of a zone. Returns None for years that its rules
/// do not reach, too.
fn at_zone(time: i64, unit: TimeUnit, zone: Tz, part: TimeField) -> Option<i64> {
    let second = DateTime::from_timestamp(time.div_euclid(per_second(unit)), 0)?;
    let local = second.with_timezone(&zone);
    let first = part.first_second(local.naive_local().and_utc().timestamp());
    let clock: NaiveDateTime = DateTime::from_timestamp(first, 0)?.naive_utc();
    let found = match zone.from_local_datetime(&clock) {
        LocalResult::Single(found) => found,
        // Of a time that the clocks show twice that of the same offset, of one that they skip that
        // after the gap.
        LocalResult::Ambiguous(first, second) => match first.offset().fix() == local.offset().fix()
        {
            true => first,
            false => second,
        },
        LocalResult::None => {
            let before = zone.from_local_datetime(&(clock - TimeDelta::hours(3))).single()?;
            before + TimeDelta::hours(3)
        }
    };
    found.timestamp().checked_mul(per_second(unit))
}

#[cfg(test)]
mod tests {
    use chrono::Datelike;

    use super::*;

    #[test]
    fn months_are_those_of_the_calendar() {
        let epoch = chrono::NaiveDate::from_ymd_opt(1970, 1, 1).unwrap();
        for day in (-3_000_000..3_000_000).step_by(13) {
            let date = epoch + TimeDelta::days(day);
            let month = i64::from(date.year()) * 12 + i64::from(date.month0());
            assert_eq!(month_of(day), month, "{date}");
            let first = date.with_day(1).unwrap();
            assert_eq!(first_day(month), (first - epoch).num_days(), "{date}");
        }
    }
}
