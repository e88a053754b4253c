//! Walks over plans that change expressions and keep their names, and over statements.

use std::convert::Infallible;
use std::ops::ControlFlow;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, DFSchemaRef};
use datafusion::error::Result;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};
use datafusion::sql::sqlparser::ast::{Expr as StatementExpr, Query, visit_expressions_mut};

/// A rule of the optimiser that walks the plan by itself.
#[derive(Debug)]
pub struct PlanRule {
    name: &'static str,
    rewrite: fn(LogicalPlan, &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>>,
}

impl PlanRule {
    pub(super) const fn new(
        name: &'static str,
        rewrite: fn(LogicalPlan, &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>>,
    ) -> Self {
        Self { name, rewrite }
    }
}

impl OptimizerRule for PlanRule {
    fn name(&self) -> &str {
        self.name
    }

    fn supports_rewrite(&self) -> bool {
        true
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        (self.rewrite)(plan, config)
    }
}

/// The schema over which a node's expressions are written: for a table with filters, all of its
/// columns.
pub fn inputs_of(plan: &LogicalPlan) -> Result<DFSchemaRef> {
    Ok(match plan {
        LogicalPlan::TableScan(scan) => Arc::new(DFSchema::try_from_qualified_schema(
            scan.table_name.clone(),
            &scan.source.schema(),
        )?),
        _ => Arc::new(merge_schema(&plan.inputs())),
    })
}

/// Returns true if a node has an expression of a kind; most have none, and tables may have thousands
/// of columns.
pub(super) fn has_any(plan: &LogicalPlan, is_wanted: impl Fn(&Expr) -> bool) -> Result<bool> {
    let mut found = false;
    plan.apply_expressions(|expr| {
        found |= expr.exists(|expr| Ok(is_wanted(expr)))?;
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(found)
}

/// Rewrites the expressions of a node. Each keeps its name, except the keys of a sort, which nobody
/// sees; so do the keys in grouping sets.
pub fn with_names(
    node: LogicalPlan,
    mut rewrite: impl FnMut(Expr) -> Result<Transformed<Expr>>,
) -> Result<Transformed<LogicalPlan>> {
    let names = (!matches!(node, LogicalPlan::Sort(_))).then(|| NamePreserver::new(&node));
    let mut rewrite = |expr: Expr| match &names {
        Some(names) => {
            let name = names.save(&expr);
            Ok(rewrite(expr)?.update_data(|expr| name.restore(expr)))
        }
        None => rewrite(expr),
    };
    node.map_expressions(|expr| match expr {
        Expr::GroupingSet(_) => expr.map_children(&mut rewrite),
        _ => rewrite(expr),
    })
}

/// A rewritten node with its schema computed anew.
pub(super) fn with_new_schema(node: Transformed<LogicalPlan>) -> Result<Transformed<LogicalPlan>> {
    match node.transformed {
        true => node.map_data(LogicalPlan::recompute_schema),
        false => Ok(node),
    }
}

/// Changes every expression of a statement, those within it first.
pub(super) fn each_of_statement(query: &mut Query, mut change: impl FnMut(&mut StatementExpr)) {
    let ControlFlow::Continue(()) = visit_expressions_mut(query, |expr| {
        change(expr);
        ControlFlow::<Infallible>::Continue(())
    });
}
