//! `date_bin` within the nanoseconds that DataFusion 53 computes in: they end in 2262, and it wraps
//! around. Beyond them it is refused.
//!
//! Upstream: apache/datafusion#22210, apache/datafusion#22211.

use std::sync::Arc;

use arrow::array::{Array, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, FieldRef, Int64Type};
use datafusion::common::ScalarValue;
use datafusion::error::Result;
use datafusion::logical_expr::sort_properties::{ExprProperties, SortProperties};
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
};

use super::in_place::accessors_of_inner;
use crate::Error;
use crate::basics::forwarded;
use crate::query::engine_fixes::kept_from_optimizer::per_second;

const DAY: i128 = 24 * 60 * 60 * 1_000_000_000;

/// The function under its own name.
pub(super) fn within_nanoseconds() -> ScalarUDF {
    ScalarUDF::from(DateBin { inner: datafusion::functions::datetime::date_bin() })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct DateBin {
    inner: Arc<ScalarUDF>,
}

impl ScalarUDFImpl for DateBin {
    accessors_of_inner!();

    forwarded! {
        this => this.inner;
        fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef>;
        fn output_ordering(&self, input: &[ExprProperties]) -> Result<SortProperties>;
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let stride = match args.args.first() {
            Some(ColumnarValue::Scalar(stride)) => length(stride),
            _ => 0,
        };
        let origin = args.args.get(2).map(nanoseconds).transpose()?;
        let origin = origin.and_then(|values| *values.first()?).unwrap_or(0);
        for time in nanoseconds(&args.args[1])?.into_iter().flatten() {
            let reached = [origin, time - stride, time + stride, time - origin];
            if reached.into_iter().any(|nanoseconds| i64::try_from(nanoseconds).is_err()) {
                return Err(Error::query(
                    "date_bin() of a timestamp beyond the years 1677 to 2262, or that far from its origin, is not supported; \
                     write date_trunc(), or count from an origin of your own: extract(epoch FROM x) - …",
                )
                .into());
            }
        }
        self.inner.invoke_with_args(args)
    }
}

/// The longest that a stride may be, in nanoseconds.
fn length(stride: &ScalarValue) -> i128 {
    let (months, days, nanoseconds) = match stride {
        ScalarValue::IntervalMonthDayNano(Some(of)) => {
            (of.months, of.days, i128::from(of.nanoseconds))
        }
        ScalarValue::IntervalDayTime(Some(of)) => {
            (0, of.days, i128::from(of.milliseconds) * 1_000_000)
        }
        ScalarValue::IntervalYearMonth(Some(months)) => (*months, 0, 0),
        _ => (0, 0, 0),
    };
    (i128::from(months) * 31 + i128::from(days)).abs() * DAY + nanoseconds.abs()
}

/// Timestamps in nanoseconds; of anything else nothing.
fn nanoseconds(times: &ColumnarValue) -> Result<Vec<Option<i128>>> {
    let DataType::Timestamp(unit, _) = times.data_type() else { return Ok(Vec::new()) };
    let array = match times {
        ColumnarValue::Array(array) => Arc::clone(array),
        ColumnarValue::Scalar(value) => value.to_array()?,
    };
    let numbers = cast(&array, &DataType::Int64)?;
    let step = i128::from(1_000_000_000 / per_second(unit));
    let numbers = numbers.as_primitive::<Int64Type>();
    Ok((0..numbers.len())
        .map(|row| numbers.is_valid(row).then(|| i128::from(numbers.value(row)) * step))
        .collect())
}
