//! Zero of any sign equals zero, as IEEE 754, SQL and every other engine say. NaN of any sign
//! equals NaN and is above all numbers, as in PostgreSQL and DuckDB. DataFusion 53 compares floats
//! by their bits, in whose order -0.0 comes before 0.0, so that `x >= 0` lost rows, and a NaN with
//! a sign, which processors make of `inf - inf`, before all numbers.
//!
//! Normalises values through [`plain_float`](crate::floats::plain_float) before they are compared,
//! ordered or grouped. A constant with only one form is exempt, and so is a value that is only
//! tested for being one.
//!
//! Upstream: apache/datafusion#11108, apache/datafusion#22490.

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, JoinConstraint, ScalarValue};
use datafusion::error::Result;
use datafusion::logical_expr::expr::{
    AggregateFunction, Between, Cast, InList, ScalarFunction, Sort, WindowFunction,
};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{
    Aggregate, BinaryExpr, Expr, ExprSchemable, GroupingSet, Join, LogicalPlan, Operator,
};
use half::f16;

use super::walk::{PlanRule, has_any, inputs_of, with_names};
use crate::floats::{has_floats, is_plain_float, plain_float};

/// The rule; after the rules that compute constants.
pub const EQUAL_ZEROS: PlanRule = PlanRule::new("equal_zeros", |plan, _| {
    plan.transform_down_with_subqueries(|node| match concerns(&node)? {
        true => {
            let schema = inputs_of(&node)?;
            let node = keys(node, &schema)?;
            node.transform_data(|node| {
                with_names(node, |expr| expr.transform_down(|expr| rewritten(expr, &schema)))
            })
        }
        false => Ok(Transformed::no(node)),
    })
});

/// The plan with constants that are compared in one form each: the optimiser computes those before
/// the rule sees them.
///
/// # Errors
/// Errors of walking a plan.
pub(super) fn constant_zeros(plan: LogicalPlan) -> crate::Result<LogicalPlan> {
    let found = plan.transform_up_with_subqueries(|node| {
        with_names(node, |expr| {
            expr.transform_up(|expr| {
                Ok(match is_constant_comparison(&expr) {
                    true => Transformed::yes(expr.map_children(in_one_form)?.data),
                    false => Transformed::no(expr),
                })
            })
        })
    })?;
    Ok(found.data)
}

fn is_constant_comparison(expr: &Expr) -> bool {
    let compares = match expr {
        Expr::BinaryExpr(BinaryExpr { op, .. }) => is_comparison(*op),
        Expr::Between(_) | Expr::InList(_) => true,
        _ => false,
    };
    let is_variable = |expr: &Expr| {
        Ok(matches!(
            expr,
            Expr::Column(_)
                | Expr::OuterReferenceColumn(..)
                | Expr::ScalarSubquery(_)
                | Expr::AggregateFunction(_)
                | Expr::WindowFunction(_)
        ))
    };
    compares && !expr.exists(is_variable).unwrap_or(true)
}

fn in_one_form(expr: Expr) -> Result<Transformed<Expr>> {
    let is_float = expr.get_type(&DFSchema::empty()).is_ok_and(|found| has_floats(&found));
    Ok(match is_float && may_be_odd(&expr) {
        true => Transformed::yes(plain(expr)),
        false => Transformed::no(expr),
    })
}

/// Returns true if a node may compare, order or group floats.
fn concerns(plan: &LogicalPlan) -> Result<bool> {
    if matches!(plan, LogicalPlan::Sort(_) | LogicalPlan::Aggregate(_) | LogicalPlan::Window(_))
        || matches!(plan, LogicalPlan::Join(join) if !join.on.is_empty())
    {
        return Ok(true);
    }
    has_any(plan, |expr| match expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
            is_comparison(*op)
                && may_be_odd(left)
                && may_be_odd(right)
                && !is_settled(left, *op, right)
        }
        Expr::Between(between) => may_be_odd(&between.low) || may_be_odd(&between.high),
        Expr::InList(list) => list.list.iter().any(|item| !is_number(item)),
        _ => false,
    })
}

/// A node with the keys by which it orders, groups or joins in one form each.
fn keys(plan: LogicalPlan, schema: &DFSchema) -> Result<Transformed<LogicalPlan>> {
    match plan {
        LogicalPlan::Sort(mut sort) => {
            let is_changed = sorts(&mut sort.expr, schema)?;
            Ok(changed(LogicalPlan::Sort(sort), is_changed))
        }
        LogicalPlan::Aggregate(Aggregate {
            input,
            mut group_expr,
            aggr_expr,
            schema: output,
            ..
        }) => {
            let mut is_changed = false;
            for key in &mut group_expr {
                let mut sets = match key {
                    Expr::GroupingSet(set) => in_sets(set),
                    key => vec![key],
                };
                for key in &mut sets {
                    let name = NamePreserver::new_for_projection().save(key);
                    if make_plain(key, schema)? {
                        **key = name.restore(std::mem::take(*key));
                        is_changed = true;
                    }
                }
            }
            let aggregate = Aggregate::try_new_with_schema(input, group_expr, aggr_expr, output)?;
            Ok(changed(LogicalPlan::Aggregate(aggregate), is_changed))
        }
        LogicalPlan::Join(mut join) => {
            let mut is_changed = false;
            let Join { left, right, on, .. } = &mut join;
            for (one, other) in on {
                is_changed |= make_plain(one, left.schema())?;
                is_changed |= make_plain(other, right.schema())?;
            }
            if is_changed {
                // The planner has taken the columns of USING together before.
                join.join_constraint = JoinConstraint::On;
            }
            Ok(changed(LogicalPlan::Join(join), is_changed))
        }
        other => Ok(Transformed::no(other)),
    }
}

/// The keys of all sets.
fn in_sets(sets: &mut GroupingSet) -> Vec<&mut Expr> {
    match sets {
        GroupingSet::Rollup(keys) | GroupingSet::Cube(keys) => keys.iter_mut().collect(),
        GroupingSet::GroupingSets(sets) => sets.iter_mut().flatten().collect(),
    }
}

fn changed<T>(data: T, is_changed: bool) -> Transformed<T> {
    Transformed::new(data, is_changed, TreeNodeRecursion::Continue)
}

fn sorts(sorts: &mut [Sort], schema: &DFSchema) -> Result<bool> {
    let mut is_changed = false;
    for sort in sorts {
        is_changed |= make_plain(&mut sort.expr, schema)?;
    }
    Ok(is_changed)
}

/// Puts the function around a float that may be of another form. Whether it did.
fn make_plain(expr: &mut Expr, schema: &DFSchema) -> Result<bool> {
    if let Expr::Alias(alias) = expr {
        return make_plain(&mut alias.expr, schema);
    }
    let is_odd = may_be_odd(expr) && has_odd_values(expr, schema)?;
    if is_odd {
        *expr = plain(std::mem::take(expr));
    }
    Ok(is_odd)
}

fn rewritten(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    Ok(match expr {
        Expr::BinaryExpr(BinaryExpr { mut left, op, mut right }) if is_comparison(op) => {
            let is_changed = !is_settled(&left, op, &right)
                && may_be_odd(&left)
                && may_be_odd(&right)
                && (has_odd_values(&left, schema)? || has_odd_values(&right, schema)?);
            if is_changed {
                make_plain(&mut left, schema)?;
                make_plain(&mut right, schema)?;
            }
            changed(Expr::BinaryExpr(BinaryExpr { left, op, right }), is_changed)
        }
        Expr::Between(Between { mut expr, negated, mut low, mut high }) => {
            let mut is_changed = false;
            if has_floats(&expr.get_type(schema)?) {
                for part in [&mut expr, &mut low, &mut high] {
                    is_changed |= make_plain(part, schema)?;
                }
            }
            changed(Expr::Between(Between { expr, negated, low, high }), is_changed)
        }
        Expr::InList(InList { mut expr, mut list, negated }) => {
            let is_odd = list.iter().any(|item| !is_number(item));
            let mut is_changed = false;
            if is_odd && has_floats(&expr.get_type(schema)?) {
                is_changed |= make_plain(&mut expr, schema)?;
                for item in &mut list {
                    is_changed |= make_plain(item, schema)?;
                }
            }
            changed(Expr::InList(InList { expr, list, negated }), is_changed)
        }
        Expr::AggregateFunction(AggregateFunction { func, mut params }) => {
            let mut is_changed = sorts(&mut params.order_by, schema)?;
            if params.distinct || is_extreme(func.name()) {
                for argument in &mut params.args {
                    is_changed |= make_plain(argument, schema)?;
                }
            }
            changed(Expr::AggregateFunction(AggregateFunction { func, params }), is_changed)
        }
        Expr::WindowFunction(mut function) => {
            let WindowFunction { fun, params } = function.as_mut();
            let mut is_changed = sorts(&mut params.order_by, schema)?;
            let is_compared = params.distinct || is_extreme(fun.name());
            let arguments = params.args.iter_mut().filter(|_| is_compared);
            for part in arguments.chain(&mut params.partition_by) {
                is_changed |= make_plain(part, schema)?;
            }
            changed(Expr::WindowFunction(function), is_changed)
        }
        other => Transformed::no(other),
    })
}

fn is_extreme(function: &str) -> bool {
    matches!(function, "min" | "max")
}

fn is_comparison(op: Operator) -> bool {
    use Operator::{Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq, NotEq};
    matches!(op, Eq | NotEq | Lt | LtEq | Gt | GtEq | IsDistinctFrom | IsNotDistinctFrom)
}

/// Returns true if a comparison is right already: a number other than zero has one form, and
/// nothing else equals it.
fn is_settled(left: &Expr, op: Operator, right: &Expr) -> bool {
    use Operator::{Eq, IsDistinctFrom, IsNotDistinctFrom, NotEq};
    matches!(op, Eq | NotEq | IsDistinctFrom | IsNotDistinctFrom)
        && (is_number(left) || is_number(right))
}

/// Returns true for an expression that may be a float with several forms: literals of other types
/// are not.
fn may_be_odd(expr: &Expr) -> bool {
    match expr {
        Expr::Literal(value, _) => has_floats(&value.data_type()) && !value.is_null(),
        Expr::ScalarFunction(function) => !is_plain_float(&function.func),
        _ => true,
    }
}

/// Returns true if it is a float, or has floats in it, and is not made of a number of another type,
/// which has neither a negative zero nor NaN.
fn has_odd_values(expr: &Expr, schema: &DFSchema) -> Result<bool> {
    match expr {
        Expr::Literal(value, _) => {
            Ok(value.data_type().is_nested() || plain_value(value.clone()) != *value)
        }
        Expr::Cast(Cast { expr: inner, data_type }) if data_type.is_floating() => {
            let from = inner.get_type(schema)?;
            Ok(!from.is_integer() && !from.is_decimal())
        }
        _ => Ok(has_floats(&expr.get_type(schema)?)),
    }
}

/// Returns true if it is a constant that has one form.
fn is_number(expr: &Expr) -> bool {
    let Expr::Literal(value, _) = expr else { return false };
    match value {
        ScalarValue::Float16(Some(value)) => *value != f16::ZERO && !value.is_nan(),
        ScalarValue::Float32(Some(value)) => *value != 0.0 && !value.is_nan(),
        ScalarValue::Float64(Some(value)) => *value != 0.0 && !value.is_nan(),
        other => !has_floats(&other.data_type()),
    }
}

/// Normalises a value to one form.
pub(in crate::query) fn plain(expr: Expr) -> Expr {
    match expr {
        Expr::Literal(value, metadata) if !value.data_type().is_nested() => {
            Expr::Literal(plain_value(value), metadata)
        }
        expr => Expr::ScalarFunction(ScalarFunction::new_udf(plain_float().clone(), vec![expr])),
    }
}

fn plain_value(value: ScalarValue) -> ScalarValue {
    match value {
        ScalarValue::Float16(Some(value)) => {
            ScalarValue::Float16(Some(if value.is_nan() { f16::NAN } else { value + f16::ZERO }))
        }
        ScalarValue::Float32(Some(value)) => {
            ScalarValue::Float32(Some(if value.is_nan() { f32::NAN } else { value + 0.0 }))
        }
        ScalarValue::Float64(Some(value)) => {
            ScalarValue::Float64(Some(if value.is_nan() { f64::NAN } else { value + 0.0 }))
        }
        other => other,
    }
}
