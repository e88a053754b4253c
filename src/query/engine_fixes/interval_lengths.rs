//! Intervals compared by their length, a month being 30 days and a day 24 hours, as in PostgreSQL
//! and DuckDB. DataFusion 53 compares months first, then days, then the rest, so that 25 hours are
//! less than a day, and `a - b > INTERVAL '1 day'` with them.
//!
//! Upstream: apache/datafusion#8468.

use std::sync::{Arc, LazyLock};

use arrow::array::{Array, ArrayRef, AsArray, Decimal128Array};
use arrow::compute::cast;
use arrow::datatypes::{
    DataType, Field, FieldRef, Int64Type, IntervalMonthDayNanoType, IntervalUnit, TimeUnit,
};
use datafusion::common::DFSchema;
use datafusion::error::Result;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, Volatility,
};

use super::kept_from_optimizer::per_second;
use crate::basics::{computed, function_basics};

const DAY: i128 = 24 * 60 * 60 * 1_000_000_000;

/// The function of an interval's or a duration's nanoseconds.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Length {
    signature: Signature,
}

static LENGTH: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| {
    let signature = Signature::any(1, Volatility::Immutable);
    Arc::new(ScalarUDF::from(Length { signature }))
});

/// Puts lengths in the place of intervals and durations that are compared with each other; whether
/// there is an interval.
pub(super) fn lengths(met: &mut [&mut Expr], schema: &DFSchema) -> bool {
    let types: Vec<_> = met.iter().map(|expr| expr.get_type(schema).ok()).collect();
    let is_length = |of: &Option<DataType>| {
        matches!(of, Some(DataType::Interval(_) | DataType::Duration(_) | DataType::Null))
    };
    let has_interval = types.iter().any(|of| matches!(of, Some(DataType::Interval(_))));
    if !has_interval || !types.iter().all(is_length) {
        return false;
    }
    for (expr, of) in met.iter_mut().zip(types) {
        if of != Some(DataType::Null) {
            let inner = std::mem::take(*expr);
            **expr = length(inner);
        }
    }
    true
}

/// The length of an interval as a number.
pub(in crate::query) fn length(expr: Expr) -> Expr {
    Expr::ScalarFunction(ScalarFunction::new_udf(Arc::clone(&LENGTH), vec![expr]))
}

impl ScalarUDFImpl for Length {
    function_basics!("length_of_interval");

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Decimal128(38, 0))
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let nullable = args.arg_fields.iter().any(|field| field.is_nullable());
        Ok(Arc::new(Field::new(self.name(), DataType::Decimal128(38, 0), nullable)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        computed(&args, |values| nanoseconds(&values[0]))
    }
}

fn nanoseconds(values: &ArrayRef) -> Result<ArrayRef> {
    let found: Decimal128Array = match values.data_type() {
        DataType::Duration(unit) => {
            let step = i128::from(per_second(TimeUnit::Nanosecond) / per_second(*unit));
            let numbers = cast(values, &DataType::Int64)?;
            let numbers = numbers.as_primitive::<Int64Type>().iter();
            numbers.map(|number| number.map(|number| i128::from(number) * step)).collect()
        }
        _ => {
            let parts = cast(values, &DataType::Interval(IntervalUnit::MonthDayNano))?;
            let parts = parts.as_primitive::<IntervalMonthDayNanoType>().iter();
            let length = |months: i32, days: i32, nanoseconds: i64| {
                (i128::from(months) * 30 + i128::from(days)) * DAY + i128::from(nanoseconds)
            };
            parts
                .map(|part| part.map(|part| length(part.months, part.days, part.nanoseconds)))
                .collect()
        }
    };
    Ok(Arc::new(found.with_data_type(DataType::Decimal128(38, 0))))
}
