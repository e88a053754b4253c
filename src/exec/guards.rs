//! Physical rules of DataFusion 53 that move filters and columns, kept where they are right.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::common::JoinType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::error::Result;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{HashJoinExec, NestedLoopJoinExec, SortMergeJoinExec};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use super::node_rule::{NodeRule, Rule};
use super::{PassOnExec, Reason};

/// The rule that moves filters into scans, within the parts of a plan that lead to a scan by
/// filters, projections and unions alone.
///
/// The logical plan has moved filters through joins and aggregates already. The physical rule does
/// so wrongly: an aggregate of several grouping sets reports the filters that it lets through
/// before those that it keeps, so that of `a IS NULL AND k IS NOT NULL` above `GROUP BY a, ROLLUP
/// (k)` the wrong one stays; and filters find their columns by name, so that of `t RIGHT JOIN u …
/// WHERE t.id IS NULL` it asks for NULL in `u.id`.
pub fn filters_near_scans(inner: Rule) -> NodeRule {
    NodeRule::around(inner, |inner, plan, config| below(plan, config, inner, lets_through))
}

/// Applies a rule to the largest parts of a plan in which it is right about every operator.
fn below(
    plan: Arc<dyn ExecutionPlan>,
    config: &ConfigOptions,
    rule: &dyn PhysicalOptimizerRule,
    is_right: impl Fn(&Arc<dyn ExecutionPlan>) -> bool + Copy,
) -> Result<Arc<dyn ExecutionPlan>> {
    if !plan.exists(|node| Ok(!is_right(node)))? {
        return rule.optimize(plan, config);
    }
    let children = plan.children().into_iter();
    let children = children.map(|child| below(Arc::clone(child), config, rule, is_right));
    let children = children.collect::<Result<Vec<_>>>()?;
    plan.with_new_children(children)
}

/// Returns true if a filter above this operator may move below it: its rows come from its inputs
/// unchanged, and no two columns have one name.
fn lets_through(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let any = plan.as_any();
    let passes = plan.children().is_empty()
        || any.is::<FilterExec>()
        || any.is::<ProjectionExec>()
        || any.is::<UnionExec>()
        || any.is::<RepartitionExec>()
        || any.is::<CoalescePartitionsExec>()
        || any.is::<CooperativeExec>();
    let (schema, mut names) = (plan.schema(), HashSet::new());
    passes && schema.fields().iter().all(|field| names.insert(field.name()))
}

/// The rule that moves projections towards scans, for parts of plans without semi, anti and mark
/// joins. It takes the columns of every join for the left input's, and after them the right
/// input's, which is wrong for such joins: it then reads a column of the other input ("Input field
/// name … does not match with the projection expression").
pub fn projections_without_semi_joins(inner: Rule) -> NodeRule {
    NodeRule::around(inner, |inner, plan, config| {
        below(plan, config, inner, |node| !has_one_side(node))
    })
}

/// Returns true for a join whose columns are not the columns of both its inputs.
fn has_one_side(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let two_sides = [JoinType::Inner, JoinType::Left, JoinType::Right, JoinType::Full];
    join_type(plan).is_some_and(|kind| !two_sides.contains(&kind))
}

fn join_type(plan: &Arc<dyn ExecutionPlan>) -> Option<JoinType> {
    let any = plan.as_any();
    if let Some(join) = any.downcast_ref::<HashJoinExec>() {
        return Some(*join.join_type());
    }
    if let Some(join) = any.downcast_ref::<NestedLoopJoinExec>() {
        return Some(*join.join_type());
    }
    any.downcast_ref::<SortMergeJoinExec>().map(SortMergeJoinExec::join_type)
}

/// Hides from an outer join which columns of the side that it pads with NULLs are constant or
/// equal.
///
/// DataFusion 53 takes a column that is constant below a join for constant above it: of `(… WHERE a
/// = 5) AS x RIGHT JOIN u` it left `x.a` out of orders and partitions of windows.
pub fn padded_sides() -> NodeRule {
    NodeRule::new("padded_sides", |plan| {
        plan.transform_up(|node| {
            let padded = match join_type(&node) {
                Some(JoinType::Left) => [false, true],
                Some(JoinType::Right) => [true, false],
                Some(JoinType::Full) => [true, true],
                _ => return Ok(Transformed::no(node)),
            };
            let mut hidden = false;
            let children = node.children().into_iter().zip(padded).map(|(child, padded)| {
                if !padded || child.equivalence_properties().eq_group().is_empty() {
                    return Arc::clone(child);
                }
                hidden = true;
                Arc::new(PassOnExec::new(Arc::clone(child), Reason::Padded))
            });
            let children = children.collect();
            match hidden {
                true => Ok(Transformed::yes(node.with_new_children(children)?)),
                false => Ok(Transformed::no(node)),
            }
        })
        .data()
    })
}
