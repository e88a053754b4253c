//! `TIME + INTERVAL` and `TIME - INTERVAL` are times of the day, modulo 24 hours, as in PostgreSQL
//! and DuckDB: the days and the months of the interval do not count. DataFusion 53 makes an
//! interval of both, and does not compare times of two units.
//!
//! Upstream: apache/datafusion#22265.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Time64NanosecondArray};
use arrow::compute::cast;
use arrow::datatypes::{
    DataType, DurationNanosecondType, IntervalDayTimeType, IntervalMonthDayNanoType, IntervalUnit,
    Time64NanosecondType, TimeUnit,
};
use datafusion::common::{DFSchema, plan_err};
use datafusion::error::Result;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};
use datafusion::sql::sqlparser::ast::BinaryOperator;

use crate::Error;
use crate::basics::{computed, function_basics};

/// The type of the finest unit.
const IN_FULL: DataType = DataType::Time64(TimeUnit::Nanosecond);

const DAY: i64 = 24 * 60 * 60 * 1_000_000_000;

/// `later_time(time, interval)` and `earlier_time(time, interval)`.
pub(super) fn functions() -> [ScalarUDF; 2] {
    [later(), earlier()]
}

fn later() -> ScalarUDF {
    function("later_time", 1)
}

fn earlier() -> ScalarUDF {
    function("earlier_time", -1)
}

fn function(name: &'static str, sign: i64) -> ScalarUDF {
    let signature = Signature::any(2, Volatility::Immutable);
    ScalarUDF::from(Moved { name, sign, signature })
}

/// Plans the operators as the functions, and comparisons by the finest unit.
#[derive(Debug)]
pub struct TimesOfDay;

impl ExprPlanner for TimesOfDay {
    fn plan_binary_op(
        &self,
        expr: RawBinaryExpr,
        schema: &DFSchema,
    ) -> Result<PlannerResult<RawBinaryExpr>> {
        use BinaryOperator::{Eq, Gt, GtEq, Lt, LtEq, Minus, NotEq, Plus};
        if !matches!(expr.op, Plus | Minus | Eq | NotEq | Lt | LtEq | Gt | GtEq) {
            return Ok(PlannerResult::Original(expr));
        }
        // What has no type yet is an error where the engine asks for it.
        let (Ok(left), Ok(right)) = (expr.left.get_type(schema), expr.right.get_type(schema))
        else {
            return Ok(PlannerResult::Original(expr));
        };
        let (function, time, span) = match (&expr.op, is_time(&left), is_time(&right)) {
            (Plus, true, _) if is_span(&right) => (later(), expr.left, expr.right),
            (Plus, _, true) if is_span(&left) => (later(), expr.right, expr.left),
            (Minus, true, _) if is_span(&right) => (earlier(), expr.left, expr.right),
            (Plus, true, true) | (Minus, false, true) if is_span(&left) || is_time(&left) => {
                return Err(Error::query(format!(
                    "{} {} {} is not defined for {left} and {right}; a time takes an interval, TIME + INTERVAL or TIME - INTERVAL, \
                     and TIME - TIME is an interval",
                    expr.left, expr.op, expr.right
                ))
                .into());
            }
            (op, true, true) if *op != Minus && left != right => {
                // The engine knows no type for times of two units.
                let [left, right] = [expr.left, expr.right]
                    .map(|side| datafusion::logical_expr::cast(side, IN_FULL));
                let compared = RawBinaryExpr { op: expr.op, left, right };
                return Ok(PlannerResult::Original(compared));
            }
            _ => return Ok(PlannerResult::Original(expr)),
        };
        let function = ScalarFunction { func: Arc::new(function), args: vec![time, span] };
        Ok(PlannerResult::Planned(Expr::ScalarFunction(function)))
    }
}

fn is_time(of: &DataType) -> bool {
    matches!(of, DataType::Time32(_) | DataType::Time64(_))
}

fn is_span(of: &DataType) -> bool {
    matches!(of, DataType::Interval(_) | DataType::Duration(_))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Moved {
    name: &'static str,
    sign: i64,
    signature: Signature,
}

impl ScalarUDFImpl for Moved {
    function_basics!(this => this.name);

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match types {
            [time, span] if is_time(time) && is_span(span) => Ok(IN_FULL),
            _ => plan_err!("{} takes a time and an interval", self.name),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        computed(&args, |arrays| {
            let times = cast(&arrays[0], &IN_FULL)?;
            let times = times.as_primitive::<Time64NanosecondType>();
            let spans = within_a_day(&arrays[1])?;
            let moved = times.iter().zip(spans);
            let moved = moved.map(|(time, span)| Some((time? + self.sign * span?).rem_euclid(DAY)));
            Ok(Arc::new(moved.collect::<Time64NanosecondArray>()))
        })
    }
}

/// Nanoseconds of each interval without its months, its days and its whole days of hours.
fn within_a_day(spans: &ArrayRef) -> Result<Vec<Option<i64>>> {
    Ok(match spans.data_type() {
        DataType::Interval(IntervalUnit::MonthDayNano) => {
            let spans = spans.as_primitive::<IntervalMonthDayNanoType>();
            spans.iter().map(|span| Some(span?.nanoseconds % DAY)).collect()
        }
        DataType::Interval(IntervalUnit::DayTime) => {
            let spans = spans.as_primitive::<IntervalDayTimeType>();
            let nanoseconds = |milliseconds| i64::from(milliseconds) * 1_000_000 % DAY;
            spans.iter().map(|span| Some(nanoseconds(span?.milliseconds))).collect()
        }
        DataType::Interval(IntervalUnit::YearMonth) => {
            (0..spans.len()).map(|row| spans.is_valid(row).then_some(0)).collect()
        }
        _ => {
            let spans = cast(spans, &DataType::Duration(TimeUnit::Nanosecond))?;
            let spans = spans.as_primitive::<DurationNanosecondType>();
            spans.iter().map(|span| Some(span? % DAY)).collect()
        }
    })
}
