//! Judging a logical plan: output names are unique, and its functions give the same values on every
//! rank, worker and epoch.

use std::collections::HashSet;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::{Expr, LogicalPlan, Volatility};

use super::unsound::check_sound_windows;
use crate::error::duplicate_column;
use crate::{Error, ErrorKind, Result};

/// Two output columns of the same name would become one key of a batch; and what the engine answers wrongly is refused.
///
/// # Errors
/// `Query` naming the column, or the function and another wording.
pub fn check_plan(plan: &LogicalPlan) -> Result<()> {
    check_sound_windows(plan)?;
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
                "{name}() gives another value each time the query is planned, so ranks, workers and \
                 resumed runs would disagree; write its value as a literal (a function of your own: register it as \
                 immutable, or as volatile, which is evaluated once)"
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

/// A function that gives another value on every call, where the plan has one.
///
/// # Errors
/// `NotShardable` for one that gives another value on every planning: no stage makes that the same for all.
pub fn volatile_function(plan: &LogicalPlan) -> Result<Option<String>> {
    match unrepeatable_function(plan)? {
        None => Ok(None),
        Some((_, Volatility::Stable)) => check_repeatable(plan).map(|()| None),
        Some((name, _)) => Ok(Some(name)),
    }
}

/// The first function that is not immutable; one that is stable before those that are volatile.
fn unrepeatable_function(plan: &LogicalPlan) -> Result<Option<(String, Volatility)>> {
    let mut found: Option<(String, Volatility)> = None;
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expr| {
            expr.apply(|expr| {
                if let Expr::ScalarFunction(function) = expr
                    && function.func.signature().volatility != Volatility::Immutable
                {
                    let volatility = function.func.signature().volatility;
                    if found.is_none() || volatility == Volatility::Stable {
                        found = Some((function.func.name().to_owned(), volatility));
                    }
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    Ok(found)
}
