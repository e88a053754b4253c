//! Named windows, written out behind OVER.
//!
//! The planner puts a named window in the place of its name in the columns alone; of one that
//! extends another (`w ORDER BY x`, `v AS (w)`) it takes what is written there and forgets the
//! other, and a name in QUALIFY or ORDER BY it takes for no window at all.

use std::ops::ControlFlow;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::{Expr as PlanExpr, LogicalPlan};
use datafusion::sql::sqlparser::ast::{
    Expr, Ident, NamedWindowDefinition, NamedWindowExpr, Query, Select, SelectItem, SetExpr,
    WindowSpec, WindowType, visit_expressions_mut,
};

use super::joins::folded;
use crate::{Error, Result};

/// Writes out the windows of a query's own SELECTs.
///
/// # Errors
/// `Query` for a window that is not defined, defined twice, or extended by a clause that it has
/// already.
pub(super) fn resolve(query: &mut Query) -> Result<()> {
    let Query { body, order_by, .. } = query;
    let mut named = Vec::new();
    super::each_select(body, &mut |select| {
        named = defined(select)?;
        for item in &mut select.projection {
            if let SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } = item {
                write_out(expr, &named)?;
            }
        }
        for expr in [&mut select.qualify, &mut select.having].into_iter().flatten() {
            write_out(expr, &named)?;
        }
        Ok(())
    })?;
    if let (SetExpr::Select(_), Some(order)) = (&**body, order_by) {
        write_out(order, &named)?;
    }
    Ok(())
}

/// The windows that a SELECT defines, each with all that it extends; they are taken out of it.
fn defined(select: &mut Select) -> Result<Vec<(String, WindowSpec)>> {
    let mut named: Vec<(String, WindowSpec)> = Vec::new();
    for NamedWindowDefinition(name, definition) in std::mem::take(&mut select.named_window) {
        let spec = match definition {
            NamedWindowExpr::NamedWindow(other) => find(&other, &named)?.clone(),
            NamedWindowExpr::WindowSpec(spec) => extended(spec, &named)?,
        };
        let name = folded(&name);
        if named.iter().any(|(other, _)| *other == name) {
            return Err(Error::query(format!("the window {name} is defined twice; rename one")));
        }
        named.push((name, spec));
    }
    Ok(named)
}

fn write_out<V: datafusion::sql::sqlparser::ast::VisitMut>(
    part: &mut V,
    named: &[(String, WindowSpec)],
) -> Result<()> {
    let found = visit_expressions_mut(part, |expr| {
        let Expr::Function(function) = expr else { return ControlFlow::Continue(()) };
        let written = match function.over.take() {
            None => Ok(None),
            Some(WindowType::NamedWindow(name)) => find(&name, named).cloned().map(Some),
            Some(WindowType::WindowSpec(spec)) => extended(spec, named).map(Some),
        };
        match written {
            Err(error) => ControlFlow::Break(error),
            Ok(spec) => {
                function.over = spec.map(WindowType::WindowSpec);
                ControlFlow::Continue(())
            }
        }
    });
    super::broken(found)
}

/// A window with all that the one it extends says.
fn extended(spec: WindowSpec, named: &[(String, WindowSpec)]) -> Result<WindowSpec> {
    let WindowSpec { window_name, partition_by, order_by, window_frame } = spec;
    let Some(name) = window_name else {
        return Ok(WindowSpec { window_name, partition_by, order_by, window_frame });
    };
    let base = find(&name, named)?;
    let clause = match () {
        () if !partition_by.is_empty() => "PARTITION BY",
        () if !order_by.is_empty() && !base.order_by.is_empty() => "ORDER BY",
        () if base.window_frame.is_some() => "a frame",
        () => {
            let order_by = match order_by.is_empty() {
                true => base.order_by.clone(),
                false => order_by,
            };
            let partition_by = base.partition_by.clone();
            return Ok(WindowSpec { window_name: None, partition_by, order_by, window_frame });
        }
    };
    Err(Error::query(format!(
        "a window that extends {name} cannot have {clause}, which comes from {name}; write the whole window behind OVER"
    )))
}

/// Refuses window functions and aggregates in clauses that stand before they are computed.
///
/// # Errors
/// `Query` saying where they may stand.
pub fn check_places(plan: &LogicalPlan) -> Result<()> {
    let mut found = Ok(());
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expr| {
            expr.apply(|expr| {
                let what = match (expr, node) {
                    (PlanExpr::WindowFunction(_), LogicalPlan::Window(_))
                    | (PlanExpr::AggregateFunction(_), LogicalPlan::Aggregate(_)) => None,
                    (PlanExpr::WindowFunction(function), _) => Some((
                        format!("the window function {}()", function.fun.name()),
                        "columns, in QUALIFY, and in ORDER BY where it is a column, too",
                    )),
                    (PlanExpr::AggregateFunction(function), _) => Some((
                        format!("the aggregate {}()", function.func.name()),
                        "columns, in HAVING and in ORDER BY",
                    )),
                    _ => None,
                };
                if let (Some((what, places)), true) = (what, found.is_ok()) {
                    found = Err(Error::query(format!(
                        "{what} is not supported in this place; it may stand among the {places}; or make it a column of a subquery \
                         and name that column here"
                    )));
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    found
}

fn find<'a>(name: &Ident, named: &'a [(String, WindowSpec)]) -> Result<&'a WindowSpec> {
    let wanted = folded(name);
    let found = named.iter().find(|(name, _)| *name == wanted);
    found.map(|(_, spec)| spec).ok_or_else(|| {
        Error::query(format!(
            "the window {name} is not defined; write WINDOW {name} AS (…) behind the SELECT, before the windows that extend it"
        ))
    })
}
