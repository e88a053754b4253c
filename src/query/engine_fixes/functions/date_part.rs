//! `date_part` and `extract` with the results of PostgreSQL and DuckDB. DataFusion 53 has some
//! parts wrong: `isodow` begins with 0; the milliseconds and microseconds of an interval lack
//! everything above two seconds; a year of an interval has 360 days; and the hours, minutes and
//! seconds of a difference of two times each hold all of it.
//!
//! Upstream: apache/datafusion#22115.

use std::str::FromStr;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array, Int32Array, PrimitiveArray};
use arrow::compute::kernels::cast_utils::IntervalUnit as TimeField;
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, DurationMicrosecondType, DurationMillisecondType,
    DurationNanosecondType, DurationSecondType, FieldRef, Int32Type, IntervalDayTimeType,
    IntervalMonthDayNanoType, IntervalUnit, IntervalYearMonthType, TimeUnit,
};
use datafusion::common::exec_err;
use datafusion::error::Result;
use datafusion::logical_expr::preimage::PreimageResult;
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
};

use super::in_place::accessors_of_inner;
use super::like_array;
use crate::Error;

/// The function under its own name.
pub(super) fn right_parts() -> ScalarUDF {
    ScalarUDF::from(DatePart { inner: datafusion::functions::datetime::date_part() })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct DatePart {
    inner: Arc<ScalarUDF>,
}

impl ScalarUDFImpl for DatePart {
    accessors_of_inner!();

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        self.inner.return_field_from_args(args)
    }

    fn preimage(
        &self,
        args: &[Expr],
        literal: &Expr,
        context: &SimplifyContext,
    ) -> Result<PreimageResult> {
        self.inner.preimage(args, literal, context)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let Some(part) = name_of_part(&args.args) else {
            return self.inner.invoke_with_args(args);
        };
        let value = &args.args[1];
        if matches!(value.data_type(), DataType::Interval(_) | DataType::Duration(_)) {
            return like_array(value, |array| of_spans(array, &part));
        }
        let found = self.inner.invoke_with_args(args)?;
        match part.as_str() {
            "isodow" => like_array(&found, |days| {
                let days = days.as_primitive::<Int32Type>();
                Ok(Arc::new(days.unary::<_, Int32Type>(|since_monday| since_monday + 1)))
            }),
            _ => Ok(found),
        }
    }
}

/// The name of the part in lower case, without the quotes that it may have.
fn name_of_part(args: &[ColumnarValue]) -> Option<String> {
    let [ColumnarValue::Scalar(part), _] = args else { return None };
    let part = part.try_as_str().flatten()?.to_lowercase();
    let bare = part.strip_prefix(['\'', '"']).and_then(|part| part.strip_suffix(['\'', '"']));
    Some(bare.map(str::to_owned).unwrap_or(part))
}

/// A span of time in the three units of PostgreSQL, which do not add up to each other.
#[derive(Clone, Copy)]
struct Span {
    months: i64,
    days: i64,
    nanoseconds: i128,
}

const SECOND: i128 = 1_000_000_000;
const MINUTE: i128 = 60 * SECOND;
const HOUR: i128 = 60 * MINUTE;
const DAY: i128 = 24 * HOUR;

impl Span {
    /// A difference of two times has days, and a time that is less than one.
    fn of_time(nanoseconds: i128) -> Self {
        // Of 64 bits of seconds, fewer than 2^47 days.
        let days = i64::try_from(nanoseconds / DAY).unwrap_or_default();
        Self { months: 0, days, nanoseconds: nanoseconds % DAY }
    }

    /// Seconds; a year has 365.25 days and a month 30.
    fn seconds(self) -> f64 {
        const DAY_SECONDS: i64 = 86_400;
        let years = (self.months / 12) * (DAY_SECONDS * 1461 / 4);
        let days = ((self.months % 12) * 30 + self.days) * DAY_SECONDS;
        let whole = i128::from(years + days) + self.nanoseconds / SECOND;
        whole as f64 + (self.nanoseconds % SECOND) as f64 / SECOND as f64
    }

    fn part(self, part: &TimeField) -> Option<i128> {
        let Self { months, days, nanoseconds } = self;
        Some(match part {
            TimeField::Year => i128::from(months / 12),
            TimeField::Month => i128::from(months % 12),
            TimeField::Week => i128::from(days / 7),
            TimeField::Day => i128::from(days),
            TimeField::Hour => nanoseconds / HOUR,
            TimeField::Minute => nanoseconds / MINUTE % 60,
            TimeField::Second => nanoseconds / SECOND % 60,
            TimeField::Millisecond => nanoseconds % MINUTE / 1_000_000,
            TimeField::Microsecond => nanoseconds % MINUTE / 1_000,
            _ => return None,
        })
    }
}

fn of_spans(array: &ArrayRef, part: &str) -> Result<ArrayRef> {
    let spans = spans_of(array)?;
    if part == "epoch" {
        let seconds = spans.iter().map(|span| span.map(Span::seconds));
        return Ok(Arc::new(seconds.collect::<Float64Array>()));
    }
    let known = TimeField::from_str(part).ok();
    let zero = Span { months: 0, days: 0, nanoseconds: 0 };
    let Some(unit) = known.filter(|unit| zero.part(unit).is_some()) else {
        return Err(Error::query(format!(
            "an interval has no part {part:?}; its parts are year, month, week, day, hour, minute, second, millisecond, \
             microsecond and epoch"
        ))
        .into());
    };
    let mut values = Vec::with_capacity(spans.len());
    for span in spans {
        let value = span.and_then(|span| span.part(&unit));
        values.push(
            value
                .map(i32::try_from)
                .transpose()
                .or_else(|_| exec_err!("the {part} of an interval exceeds 32 bits"))?,
        );
    }
    Ok(Arc::new(Int32Array::from(values)))
}

fn spans_of(array: &ArrayRef) -> Result<Vec<Option<Span>>> {
    let scaled = |factor: i128| move |value: i64| Span::of_time(i128::from(value) * factor);
    Ok(match array.data_type() {
        DataType::Interval(IntervalUnit::YearMonth) => {
            each(array.as_primitive::<IntervalYearMonthType>(), |months| Span {
                months: i64::from(months),
                days: 0,
                nanoseconds: 0,
            })
        }
        DataType::Interval(IntervalUnit::DayTime) => {
            each(array.as_primitive::<IntervalDayTimeType>(), |value| Span {
                months: 0,
                days: i64::from(value.days),
                nanoseconds: i128::from(value.milliseconds) * 1_000_000,
            })
        }
        DataType::Interval(IntervalUnit::MonthDayNano) => {
            each(array.as_primitive::<IntervalMonthDayNanoType>(), |value| Span {
                months: i64::from(value.months),
                days: i64::from(value.days),
                nanoseconds: i128::from(value.nanoseconds),
            })
        }
        DataType::Duration(TimeUnit::Second) => {
            each(array.as_primitive::<DurationSecondType>(), scaled(SECOND))
        }
        DataType::Duration(TimeUnit::Millisecond) => {
            each(array.as_primitive::<DurationMillisecondType>(), scaled(1_000_000))
        }
        DataType::Duration(TimeUnit::Microsecond) => {
            each(array.as_primitive::<DurationMicrosecondType>(), scaled(1_000))
        }
        DataType::Duration(TimeUnit::Nanosecond) => {
            each(array.as_primitive::<DurationNanosecondType>(), scaled(1))
        }
        other => return exec_err!("{other} is no interval"),
    })
}

fn each<T: ArrowPrimitiveType>(
    array: &PrimitiveArray<T>,
    span: impl Fn(T::Native) -> Span,
) -> Vec<Option<Span>> {
    array.iter().map(|value| value.map(&span)).collect()
}
