//! SQL that DataFusion 53 answers wrongly, refused with another wording of the same: a wrong row is
//! worse than an error.
//!
//! A FILTER of an aggregate that may be NULL counts as true: it becomes `… IS TRUE`.
//!
//! A date with an interval of hours is a date, as if nothing was added.
//!
//! A cast of a value that is no list to a list makes a list of one element, for example of a text
//! `[1, 2]`.
//!
//! `SIMILAR TO` takes its pattern for a regular expression that is found anywhere.
//!
//! Of window functions, RANGE frames that may be empty keep rows of earlier frames
//! (apache/datafusion issue 24184). A sliding `min` that stays where a frame holds nulls alone
//! (23872) and a sliding `median` (21299) are computed anew: see
//! [`sliding`](super::sliding_frames).

use std::ops::ControlFlow;

use arrow::datatypes::DataType;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    BinaryExpr, Cast, Expr as PlanExpr, ExprSchemable, LogicalPlan, Operator, TryCast,
    WindowFrameBound, WindowFrameUnits, WindowFunctionDefinition,
};
use datafusion::sql::sqlparser::ast::{Expr, Query, visit_expressions};

use crate::{Error, Result};

/// Refuses expressions that would be answered wrongly.
///
/// # Errors
/// `Query` saying how to write it instead.
pub(in crate::query) fn check_sound(query: &Query) -> Result<()> {
    let found = visit_expressions(query, |expr| match expr {
        Expr::SimilarTo { .. } => ControlFlow::Break(Error::query(
            "SIMILAR TO is not supported: the engine takes its pattern for a regular expression that is found anywhere; \
             write LIKE, or a regular expression for the whole text: s ~ '^(…)$'",
        )),
        _ => ControlFlow::Continue(()),
    });
    found.break_value().map_or(Ok(()), Err)
}

/// Refuses window functions that would be answered wrongly.
///
/// # Errors
/// `Query` saying how to write it instead.
pub(in crate::query) fn check_sound_windows(plan: &LogicalPlan) -> Result<()> {
    let mut found = None;
    plan.apply_with_subqueries(|node| {
        if let LogicalPlan::Window(window) = node {
            found = found.take().or_else(|| window.window_expr.iter().find_map(unsound_window));
        }
        Ok(if found.is_some() { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    found.map_or(Ok(()), Err)
}

/// Refuses a date plus or minus hours, minutes or seconds, and casts that put a value into a list.
///
/// # Errors
/// `Query` saying how to write it instead.
pub(in crate::query) fn check_sound_values(plan: &LogicalPlan) -> Result<()> {
    let mut found = None;
    plan.apply_with_subqueries(|node| {
        let inputs = merge_schema(&node.inputs());
        node.apply_expressions(|expr| {
            expr.apply(|expr| {
                found = found
                    .take()
                    .or_else(|| unsound_date(expr, &inputs))
                    .or_else(|| unsound_cast(expr, &inputs));
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    found.map_or(Ok(()), Err)
}

fn unsound_date(expr: &PlanExpr, inputs: &DFSchema) -> Option<Error> {
    let PlanExpr::BinaryExpr(BinaryExpr { left, op, right }) = expr else { return None };
    let sign = match op {
        Operator::Plus => "+",
        Operator::Minus => "-",
        _ => return None,
    };
    let is_date = |expr: &PlanExpr| matches!(expr.get_type(inputs), Ok(DataType::Date32));
    let added = (is_date(left) && is_part_of_day(right))
        || (op == &Operator::Plus && is_date(right) && is_part_of_day(left));
    added.then(|| {
        Error::query(format!(
            "a date {sign} an interval of hours, minutes or seconds is not supported: the engine drops the time; write \
             CAST({} AS TIMESTAMP) {sign} INTERVAL …, or add whole days",
            if is_date(left) { left } else { right }
        ))
    })
}

fn unsound_cast(expr: &PlanExpr, inputs: &DFSchema) -> Option<Error> {
    let (PlanExpr::Cast(Cast { expr, data_type }) | PlanExpr::TryCast(TryCast { expr, data_type })) =
        expr
    else {
        return None;
    };
    let from = expr.get_type(inputs).ok()?;
    let is_wrapped = depth(data_type) > depth(&from) && !innermost(&from).is_null();
    is_wrapped.then(|| {
        Error::query(format!(
            "a cast of {expr}, which is {}, to a list is not supported: the engine makes a list of one element of it; write \
             [{expr}] for that, or string_to_array(…, ',') for the parts of a text",
            match depth(&from) {
                0 => format!("of the type {from}"),
                _ => "a list of fewer dimensions".to_owned(),
            }
        ))
    })
}

/// How many lists lie in each other.
fn depth(data_type: &DataType) -> usize {
    element(data_type).map_or(0, |element| 1 + depth(element))
}

fn innermost(data_type: &DataType) -> &DataType {
    element(data_type).map_or(data_type, innermost)
}

fn element(data_type: &DataType) -> Option<&DataType> {
    match data_type {
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::ListView(field)
        | DataType::LargeListView(field)
        | DataType::FixedSizeList(field, _) => Some(field.data_type()),
        _ => None,
    }
}

/// Returns true if an interval is not of whole days.
fn is_part_of_day(expr: &PlanExpr) -> bool {
    const DAY: i64 = 24 * 60 * 60 * 1_000;
    match expr {
        PlanExpr::Literal(ScalarValue::IntervalMonthDayNano(Some(time)), _) => {
            time.nanoseconds % (DAY * 1_000_000) != 0
        }
        PlanExpr::Literal(ScalarValue::IntervalDayTime(Some(time)), _) => {
            i64::from(time.milliseconds) % DAY != 0
        }
        PlanExpr::BinaryExpr(BinaryExpr { left, right, .. }) => {
            is_part_of_day(left) || is_part_of_day(right)
        }
        PlanExpr::Negative(inner) => is_part_of_day(inner),
        PlanExpr::Cast(cast) => is_part_of_day(&cast.expr),
        _ => false,
    }
}

fn unsound_window(expr: &PlanExpr) -> Option<Error> {
    let PlanExpr::WindowFunction(function) = expr else {
        return match expr {
            PlanExpr::Alias(alias) => unsound_window(&alias.expr),
            _ => None,
        };
    };
    let (frame, name) = (&function.params.window_frame, function.fun.name());
    if name == "nth_value"
        && let Some(n) = function.params.args.get(1)
        && is_below_one(n)
    {
        return Some(Error::query(format!(
            "nth_value() has the place {n}, which must be 1 or more: the standard counts from the first row of the frame; for \
             the last one write last_value(), or order the other way around"
        )));
    }
    let is_aggregate = matches!(function.fun, WindowFunctionDefinition::AggregateUDF(_));
    let ends_before = matches!(&frame.end_bound, WindowFrameBound::Preceding(to) if !is_zero(to));
    let starts_after =
        matches!(&frame.start_bound, WindowFrameBound::Following(from) if !is_zero(from));
    if is_aggregate && frame.units == WindowFrameUnits::Range && (ends_before || starts_after) {
        return Some(Error::query(format!(
            "{name}() OVER (… RANGE {} …) is not supported: where such a frame is empty, the engine keeps rows of an earlier \
             one; take two frames that include the current row and subtract, or join the table to itself",
            if ends_before {
                "BETWEEN … AND … PRECEDING"
            } else {
                "BETWEEN … FOLLOWING AND …"
            }
        )));
    }
    None
}

/// Returns true if a constant is no place of a row.
fn is_below_one(expr: &PlanExpr) -> bool {
    match expr {
        PlanExpr::Literal(value, _) => {
            let number = value.cast_to(&DataType::Float64);
            !matches!(number, Ok(ScalarValue::Float64(Some(number))) if number >= 1.0)
        }
        PlanExpr::Negative(_) => true,
        _ => false,
    }
}

fn is_zero(bound: &ScalarValue) -> bool {
    ScalarValue::new_zero(&bound.data_type()).is_ok_and(|zero| zero == *bound)
}
