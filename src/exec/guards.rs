//! Physical rules of DataFusion 53 that move filters and columns, kept where they are right.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::common::JoinType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::TreeNode;
use datafusion::error::Result;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{HashJoinExec, NestedLoopJoinExec, SortMergeJoinExec};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::union::UnionExec;

type Rule = Arc<dyn PhysicalOptimizerRule + Send + Sync>;

/// The rule that moves filters into scans, within the parts of a plan that lead to a scan by filters, projections and unions alone.
///
/// The logical plan has moved filters through joins and aggregates already. The physical rule does so wrongly: an aggregate of
/// several grouping sets reports the filters that it lets through before those that it keeps, so that of
/// `a IS NULL AND k IS NOT NULL` above `GROUP BY a, ROLLUP (k)` the wrong one stays; and filters find their columns by name, so
/// that of `t RIGHT JOIN u … WHERE t.id IS NULL` it asks for NULL in `u.id`.
#[derive(Debug)]
pub struct FiltersNearScans {
    inner: Rule,
}

impl FiltersNearScans {
    /// The rule around DataFusion's.
    pub fn new(inner: Rule) -> Self {
        Self { inner }
    }
}

impl PhysicalOptimizerRule for FiltersNearScans {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if !plan.exists(|node| Ok(!lets_through(node)))? {
            return self.inner.optimize(plan, config);
        }
        let below = plan.children().into_iter();
        let below = below.map(|child| self.optimize(Arc::clone(child), config));
        let below = below.collect::<Result<Vec<_>>>()?;
        plan.with_new_children(below)
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn schema_check(&self) -> bool {
        self.inner.schema_check()
    }
}

/// Whether a filter above this operator may move below it: its rows are those of its inputs, and no two columns have one name.
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

/// The rule that moves projections towards scans, for plans without semi, anti and mark joins. It takes the columns of every join
/// for the left input's, and after them the right input's, which those of such joins are not: it then reads a column of the other
/// input ("Input field name … does not match with the projection expression").
#[derive(Debug)]
pub struct ProjectionsWithoutSemiJoins {
    inner: Rule,
}

impl ProjectionsWithoutSemiJoins {
    /// The rule around DataFusion's.
    pub fn new(inner: Rule) -> Self {
        Self { inner }
    }
}

impl PhysicalOptimizerRule for ProjectionsWithoutSemiJoins {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match plan.exists(|node| Ok(has_one_side(node)))? {
            true => Ok(plan),
            false => self.inner.optimize(plan, config),
        }
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn schema_check(&self) -> bool {
        self.inner.schema_check()
    }
}

/// Whether this is a join whose columns are not those of both its inputs.
fn has_one_side(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let any = plan.as_any();
    let kind = any
        .downcast_ref::<HashJoinExec>()
        .map(HashJoinExec::join_type)
        .or_else(|| any.downcast_ref::<NestedLoopJoinExec>().map(NestedLoopJoinExec::join_type))
        .copied()
        .or_else(|| any.downcast_ref::<SortMergeJoinExec>().map(SortMergeJoinExec::join_type));
    let two_sides = [JoinType::Inner, JoinType::Left, JoinType::Right, JoinType::Full];
    kind.is_some_and(|kind| !two_sides.contains(&kind))
}
