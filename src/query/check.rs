//! Judging a logical plan: output names are unique, and its functions give the same values on every
//! rank, worker and epoch.

use std::collections::HashSet;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::{Expr, LogicalPlan, ScalarUDF, Volatility};

use super::engine_fixes::refused::{check_sound_values, check_sound_windows};
use super::statement::{check_places, check_recursion};
use crate::error::duplicate_column;
use crate::{Error, ErrorKind, Result};

/// Two output columns with one name would become one key of a batch. Expressions that the engine
/// answers wrongly are refused.
///
/// # Errors
/// `Query` naming the column, or the function and another wording.
pub fn check_plan(plan: &LogicalPlan) -> Result<()> {
    check_sound_windows(plan)?;
    check_sound_values(plan)?;
    check_recursion(plan)?;
    check_places(plan)?;
    let mut seen = HashSet::new();
    for field in plan.schema().fields() {
        if !seen.insert(field.name()) {
            return Err(duplicate_column(field.name()));
        }
    }
    Ok(())
}

/// A function that gives another value on every call, or on every planning, would give other rows
/// on every worker.
///
/// # Errors
/// `NotShardable` naming the function and a way out.
pub fn check_repeatable(plan: &LogicalPlan) -> Result<()> {
    match unrepeatable_function(plan)? {
        None => Ok(()),
        Some((name, Volatility::Stable)) => Err(Error::new(
            ErrorKind::NotShardable,
            format!(
                "{name}() is stable: it may give another value each time the query is planned, so ranks, workers and \
                 resumed runs would disagree; register it as immutable, or let the query run once: stage=\"auto\""
            ),
        )),
        Some((name, _)) => Err(Error::new(
            ErrorKind::NotShardable,
            format!(
                "{name}() is volatile: it gives another value on every call, so ranks and epochs would \
                 disagree; derive the value from columns (for example a hash), or let the query run once: \
                 stage=\"auto\""
            ),
        )),
    }
}

/// Why a plan is to be evaluated once, where that is for one of its functions: it gives another
/// value on every call, or, being the user's own, may give one on every planning.
///
/// # Errors
/// Errors of walking a plan.
pub fn evaluated_once(plan: &LogicalPlan) -> Result<Option<String>> {
    let found = unrepeatable_function(plan)?;
    Ok(found.map(|(name, volatility)| match volatility {
        Volatility::Stable => format!(
            "{name}() may give another value whenever the query is planned: it is evaluated once"
        ),
        _ => format!("{name}() gives another value on every call: it is evaluated once"),
    }))
}

/// The first function that gives another value on every call, or, being the user's own, may give
/// one on every planning.
///
/// # Errors
/// Errors of walking a plan.
pub fn volatile_function(plan: &LogicalPlan) -> Result<Option<String>> {
    Ok(unrepeatable_function(plan)?.map(|(name, _)| name))
}

/// The first function that is not immutable.
fn unrepeatable_function(plan: &LogicalPlan) -> Result<Option<(String, Volatility)>> {
    let mut found: Option<(String, Volatility)> = None;
    each_function(plan, |function| {
        let volatility = function.signature().volatility;
        if found.is_none() && volatility != Volatility::Immutable {
            found = Some((function.name().to_owned(), volatility));
        }
    })?;
    Ok(found)
}

/// Calls `look` with every scalar function of a plan and of its subqueries.
///
/// # Errors
/// Errors of walking a plan.
pub(super) fn each_function(plan: &LogicalPlan, mut look: impl FnMut(&ScalarUDF)) -> Result<()> {
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expr| {
            expr.apply(|expr| {
                if let Expr::ScalarFunction(function) = expr {
                    look(&function.func);
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    Ok(())
}
