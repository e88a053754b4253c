//! Clears functional dependencies before DISTINCT and GROUP BY without keys. DataFusion 53 knows
//! columns whose values are unique in a group or a numbered row, and keeps them across joins and
//! `unnest`, which repeat rows. So DISTINCT of such a column vanished, and so did columns of GROUP
//! BY. Here DISTINCT always groups, and known keys are cleared before columns are pruned.
//!
//! Upstream: apache/datafusion#23626.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, DFSchemaRef, FunctionalDependencies};
use datafusion::error::Result;
use datafusion::logical_expr::{Aggregate, Distinct, Expr, LogicalPlan};

use super::rule_around::{Rule, RuleAround};

/// Makes groups of DISTINCT, even if keys are known. DISTINCT without columns, and DISTINCT ON, is
/// left to DataFusion.
pub fn group_distinct(inner: Rule) -> RuleAround {
    RuleAround::new(inner, |inner, plan, config| match plan {
        LogicalPlan::Distinct(Distinct::All(input)) if !input.schema().fields().is_empty() => {
            let columns = input.schema().columns().into_iter().map(Expr::Column).collect();
            let groups = Aggregate::try_new(input, columns, Vec::new())?;
            Ok(Transformed::yes(LogicalPlan::Aggregate(groups)))
        }
        other => inner.rewrite(other, config),
    })
}

/// A rule that sees no keys.
pub fn blind_to_keys(inner: Rule) -> RuleAround {
    RuleAround::new(inner, |inner, plan, config| {
        let cleared = plan.transform_up_with_subqueries(without_keys)?;
        let rewritten = inner.rewrite(cleared.data, config)?;
        let changed = cleared.transformed || rewritten.transformed;
        Ok(Transformed::new(rewritten.data, changed, rewritten.tnr))
    })
}

/// The plan of a relation without keys. The planner adds columns to a GROUP BY by keys, and
/// `unnest` and joins repeat rows that it takes for unique.
///
/// # Errors
/// An internal error where a schema cannot be rebuilt.
pub(in crate::query) fn relation_without_keys(plan: LogicalPlan) -> Result<LogicalPlan> {
    match plan.schema().functional_dependencies().is_empty() {
        true => Ok(plan),
        false => Ok(plan.transform_up(without_keys)?.data),
    }
}

/// A node without keys. Nodes that are not named have the schema of their input.
fn without_keys(mut plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let schema = match &mut plan {
        LogicalPlan::Projection(node) => &mut node.schema,
        LogicalPlan::Aggregate(node) => &mut node.schema,
        LogicalPlan::Window(node) => &mut node.schema,
        LogicalPlan::Join(node) => &mut node.schema,
        LogicalPlan::Union(node) => &mut node.schema,
        LogicalPlan::SubqueryAlias(node) => &mut node.schema,
        LogicalPlan::Unnest(node) => &mut node.schema,
        LogicalPlan::TableScan(node) => &mut node.projected_schema,
        LogicalPlan::Distinct(Distinct::On(node)) => &mut node.schema,
        LogicalPlan::EmptyRelation(node) => &mut node.schema,
        LogicalPlan::Values(node) => &mut node.schema,
        _ => return Ok(Transformed::no(plan)),
    };
    match keyless(schema)? {
        Some(cleared) => {
            *schema = cleared;
            Ok(Transformed::yes(plan))
        }
        None => Ok(Transformed::no(plan)),
    }
}

/// The schema without keys; None where it has none.
fn keyless(schema: &DFSchemaRef) -> Result<Option<DFSchemaRef>> {
    if schema.functional_dependencies().is_empty() {
        return Ok(None);
    }
    let cleared =
        DFSchema::clone(schema).with_functional_dependencies(FunctionalDependencies::empty())?;
    Ok(Some(Arc::new(cleared)))
}
