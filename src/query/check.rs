//! Judging a logical plan: output names are unique, and its functions give the same values on every
//! rank, worker and epoch.

use std::collections::HashSet;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::{Expr, LogicalPlan, Volatility};

use crate::error::duplicate_column;
use crate::{Error, ErrorKind, Result};

/// Two output columns of the same name would become one key of a batch.
///
/// # Errors
/// `Query` naming the column.
pub fn check_output_names(plan: &LogicalPlan) -> Result<()> {
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
    let mut found: Option<(String, Volatility)> = None;
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expr| {
            expr.apply(|expr| {
                if let Expr::ScalarFunction(function) = expr
                    && function.func.signature().volatility != Volatility::Immutable
                {
                    found = Some((
                        function.func.name().to_owned(),
                        function.func.signature().volatility,
                    ));
                    return Ok(TreeNodeRecursion::Stop);
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    match found {
        None => Ok(()),
        Some((name, Volatility::Stable)) => Err(Error::new(
            ErrorKind::NotShardable,
            format!(
                "{name}() gives another value each time the query is planned, so ranks, workers and \
                 resumed runs would disagree; write its value as a literal"
            ),
        )),
        Some((name, _)) => Err(Error::new(
            ErrorKind::NotShardable,
            format!(
                "{name}() is volatile: it gives another value on every call, so ranks and epochs would \
                 disagree; derive the value from columns (for example a hash), or run the query once: \
                 session.register_table(\"once\", session.sql(…)), then SELECT … FROM once"
            ),
        )),
    }
}
