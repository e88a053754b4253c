//! Expressions that mean something else to DataFusion 53 than to the standard, or make it fail:
//!
//! - An order that names an expression twice: the engine drops the second one on one side only, and
//!   panics. It decides nothing.
//! - `LIKE … ESCAPE '!'`: the engine knows the backslash alone. The pattern is written with that.
//! - The median of integers is a fraction, where the engine cuts it off.
//!
//! Upstream: apache/datafusion#19536.

use arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::expr::Sort as SortExpr;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Distinct, Expr, ExprSchemable, Like, LogicalPlan, cast, lit};

use super::walk::with_names;
use crate::{Error, Result};

/// The plan with their other wordings.
///
/// # Errors
/// `Query` where a pattern of LIKE ends with its escape, or is no constant beside one.
pub(super) fn as_the_standard(plan: LogicalPlan) -> Result<LogicalPlan> {
    let of_node = |plan: LogicalPlan| {
        let plan = match plan {
            LogicalPlan::Distinct(Distinct::On(mut on)) => {
                if let Some(order) = &mut on.sort_expr {
                    once_each(order);
                }
                LogicalPlan::Distinct(Distinct::On(on))
            }
            LogicalPlan::Sort(mut sort) => {
                once_each(&mut sort.expr);
                LogicalPlan::Sort(sort)
            }
            other => other,
        };
        let schema = merge_schema(&plan.inputs());
        with_names(plan, |expr| expr.transform_up(|expr| of_expr(expr, &schema)))
    };
    Ok(plan.transform_up_with_subqueries(of_node)?.data)
}

fn of_expr(expr: Expr, schema: &DFSchema) -> DfResult<Transformed<Expr>> {
    Ok(match expr {
        Expr::AggregateFunction(mut function) => {
            let mut changed = once_each(&mut function.params.order_by);
            if function.func.name() == "median"
                && let [value] = &mut function.params.args[..]
                && value.get_type(schema).is_ok_and(|of| of.is_integer())
            {
                *value = cast(value.clone(), DataType::Float64);
                changed = true;
            }
            Transformed::new_transformed(Expr::AggregateFunction(function), changed)
        }
        Expr::WindowFunction(mut function) => {
            let changed = once_each(&mut function.params.order_by);
            Transformed::new_transformed(Expr::WindowFunction(function), changed)
        }
        Expr::Like(Like {
            negated,
            expr,
            pattern,
            escape_char: Some(escape),
            case_insensitive,
        }) if escape != '\\' => {
            let pattern = match *pattern {
                Expr::Literal(ScalarValue::Utf8(Some(text)), _) => lit(escaped(&text, escape)?),
                null @ Expr::Literal(ScalarValue::Null | ScalarValue::Utf8(None), _) => null,
                other => {
                    return Err(Error::query(format!(
                        "LIKE {other} ESCAPE '{escape}' is not supported: beside an escape that is no backslash the pattern must be \
                         a text in quotes; write the backslash, or leave ESCAPE out"
                    ))
                    .into());
                }
            };
            let like = Like::new(negated, expr, Box::new(pattern), None, case_insensitive);
            Transformed::yes(Expr::Like(like))
        }
        other => Transformed::no(other),
    })
}

/// A pattern with backslashes for its escapes.
fn escaped(pattern: &str, escape: char) -> Result<String> {
    let mut found = String::with_capacity(pattern.len());
    let mut characters = pattern.chars();
    while let Some(one) = characters.next() {
        if one == escape {
            let next = characters.next().ok_or_else(|| {
                Error::query(format!(
                    "the pattern '{pattern}' of LIKE ends with its escape '{escape}'; write the escape twice, or leave it out"
                ))
            })?;
            if matches!(next, '%' | '_' | '\\') {
                found.push('\\');
            }
            found.push(next);
        } else {
            if one == '\\' {
                found.push('\\');
            }
            found.push(one);
        }
    }
    Ok(found)
}

/// Leaves out keys that an order repeats; returns true if it did.
fn once_each(order: &mut Vec<SortExpr>) -> bool {
    let before = order.len();
    let mut seen: Vec<Expr> = Vec::new();
    order.retain(|sort| {
        let is_new = !seen.contains(&sort.expr);
        if is_new {
            seen.push(sort.expr.clone());
        }
        is_new
    });
    order.len() < before
}
