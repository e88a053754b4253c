//! Constants of time: the instants that they name, and literals in the unit of the compared value.
//!
//! DataFusion 53 makes nanoseconds of every text and date beside a timestamp, which end in 2262. A
//! constant is a literal of the other side's unit instead; one that this unit does not reach is
//! before or after all of its values.

use std::sync::Arc;

use arrow::compute::kernels::cast_utils::string_to_datetime;
use arrow::datatypes::{DataType, TimeUnit};
use chrono::Utc;
use datafusion::common::ScalarValue;
use datafusion::logical_expr::{BinaryExpr, Cast, Expr, Operator, lit};

use super::kept_from_optimizer::per_second;

const SECOND: i128 = 1_000_000_000;
const DAY: i128 = 24 * 60 * 60 * SECOND;

/// Nanoseconds since 1970 that a constant names: a text, a date, a timestamp, or a text or number
/// that is cast to one of these. A value without a zone is in UTC. None for anything else.
pub(super) fn instant_of(expr: &Expr) -> Option<i128> {
    match expr {
        Expr::Literal(value, _) => instant_of_value(value),
        Expr::Cast(Cast { expr, data_type }) => {
            let value = match &**expr {
                Expr::Literal(value, _) => value,
                // A date that is cast to a timestamp.
                Expr::Cast(Cast { data_type: DataType::Date32, .. }) => {
                    return match data_type {
                        DataType::Timestamp(_, zone) if zone.as_deref().is_none_or(is_utc) => {
                            instant_of(expr)
                        }
                        _ => None,
                    };
                }
                _ => return None,
            };
            if let (Ok(ScalarValue::Int64(Some(number))), true) =
                (value.cast_to(&DataType::Int64), value.data_type().is_integer())
            {
                return match data_type {
                    DataType::Date32 => Some(i128::from(number) * DAY),
                    DataType::Timestamp(unit, _) => Some(i128::from(number) * step_of(*unit)),
                    _ => None,
                };
            }
            let named = text_instant(value.try_as_str()??)?;
            match data_type {
                DataType::Date32 => Some(named.div_euclid(DAY) * DAY),
                // What the text has beyond the unit is cut off.
                DataType::Timestamp(unit, zone) if zone.as_deref().is_none_or(is_utc) => {
                    let step = step_of(*unit);
                    Some(named.div_euclid(step) * step)
                }
                _ => None,
            }
        }
        _ => None,
    }
}

/// Returns true if a zone is UTC.
pub(super) fn is_utc(zone: &str) -> bool {
    matches!(zone, "UTC" | "utc" | "Z" | "+00:00" | "+00" | "+0000" | "Etc/UTC")
}

fn instant_of_value(value: &ScalarValue) -> Option<i128> {
    let scaled = |at: &Option<i64>, unit| Some(i128::from((*at)?) * (SECOND / unit));
    match value {
        ScalarValue::TimestampSecond(at, _) => scaled(at, 1),
        ScalarValue::TimestampMillisecond(at, _) => scaled(at, 1_000),
        ScalarValue::TimestampMicrosecond(at, _) => scaled(at, 1_000_000),
        ScalarValue::TimestampNanosecond(at, _) => scaled(at, SECOND),
        ScalarValue::Date32(days) => Some(i128::from((*days)?) * DAY),
        value => text_instant(value.try_as_str()??),
    }
}

fn text_instant(text: &str) -> Option<i128> {
    let at = string_to_datetime(&Utc, text.trim()).ok()?;
    Some(i128::from(at.timestamp()) * SECOND + i128::from(at.timestamp_subsec_nanos()))
}

/// Nanoseconds of a unit.
fn step_of(unit: TimeUnit) -> i128 {
    SECOND / i128::from(per_second(unit))
}

/// The literal of a timestamp that is this instant in this unit; None where the unit does not have
/// it.
pub(super) fn literal_at(nanos: i128, unit: TimeUnit, zone: &Option<Arc<str>>) -> Option<Expr> {
    let step = step_of(unit);
    let number = i64::try_from(nanos / step).ok().filter(|_| nanos % step == 0)?;
    Some(literal(number, unit, zone.clone()))
}

/// The coarsest unit that has an instant exactly.
pub(super) fn coarsest(nanos: i128) -> TimeUnit {
    use TimeUnit::{Microsecond, Millisecond, Nanosecond, Second};
    let mut units = [Second, Millisecond, Microsecond].into_iter();
    units.find(|unit| nanos % step_of(*unit) == 0).unwrap_or(Nanosecond)
}

/// A literal of a timestamp.
pub(in crate::query) fn literal(number: i64, unit: TimeUnit, zone: Option<Arc<str>>) -> Expr {
    let number = Some(number);
    let value = match unit {
        TimeUnit::Second => ScalarValue::TimestampSecond(number, zone),
        TimeUnit::Millisecond => ScalarValue::TimestampMillisecond(number, zone),
        TimeUnit::Microsecond => ScalarValue::TimestampMicrosecond(number, zone),
        TimeUnit::Nanosecond => ScalarValue::TimestampNanosecond(number, zone),
    };
    Expr::Literal(value, None)
}

/// The comparison of a timestamp of this unit with an instant, without a cast of the timestamp;
/// NULL stays NULL. None for an operator that does not compare.
///
/// An instant between two values of the unit is after the lower one, and equal to none.
pub(in crate::query) fn compared(
    value: &Expr,
    op: Operator,
    nanos: i128,
    unit: TimeUnit,
    zone: &Option<Arc<str>>,
) -> Option<Expr> {
    use Operator::{Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq, NotEq};
    let value = value.clone();
    if let Some(exact) = literal_at(nanos, unit, zone) {
        return Some(Expr::BinaryExpr(BinaryExpr::new(Box::new(value), op, Box::new(exact))));
    }
    // Where the unit ends before the instant, all of its values are on one side.
    let last = match nanos < 0 {
        true => i128::from(i64::MIN),
        false => i128::from(i64::MAX),
    };
    let lower = nanos.div_euclid(step_of(unit));
    let (number, has_lower) = match i64::try_from(lower) {
        Ok(number) => (number, true),
        Err(_) => (last as i64, nanos > 0),
    };
    let bound = literal(number, unit, zone.clone());
    let first = literal(i64::MIN, unit, zone.clone());
    Some(match op {
        Lt | LtEq if has_lower => value.lt_eq(bound),
        Gt | GtEq if has_lower => value.gt(bound),
        Lt | LtEq | Eq => value.lt(first),
        Gt | GtEq | NotEq => value.gt_eq(first),
        IsDistinctFrom => lit(true),
        IsNotDistinctFrom => lit(false),
        _ => return None,
    })
}
