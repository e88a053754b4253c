//! How the rows of a staged part are computed on all cores of this machine.

use std::sync::Arc;

use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{CrossJoinExec, HashJoinExec, NestedLoopJoinExec};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::recursive_query::RecursiveQueryExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::FutureExt;
use futures::future::BoxFuture;

use super::discovery::discover_scan;
use super::plan::PlanOptions;
use super::query::Query;
use crate::Result;
use crate::exec::{AheadExec, BuildSideExec, Rewritten, in_lanes, in_order, rewrite};
use crate::formats::SplitTarget;
use crate::query::{Cut, volatile_function};

type PhysicalPlan = Arc<dyn ExecutionPlan>;

impl Query {
    /// The plan of a part, with one partition. Scans are read by splits, several at a time, and
    /// their rows come in the order of the files; operators of many rows work in lanes.
    ///
    /// On one core alone runs a part whose functions may give another value on every call, since
    /// the rows that get them would follow from timing, and one with a memory limit: how much each
    /// lane could hold would depend on the timing of the others, and the order of rows on when they
    /// spill.
    pub(super) async fn plan_of_part(&self, cut: &Cut) -> Result<PhysicalPlan> {
        let state = self.session().context().state();
        let physical = in_order(state.create_physical_plan(&cut.plan).await?)?;
        let is_limited = self.session().options().memory_limit.is_some();
        if is_limited || volatile_function(&cut.plan)?.is_some() {
            return Ok(physical);
        }
        in_lanes(&cut.plan, by_splits(physical).await?)
    }
}

/// The plan with scans that are read by splits, together with the filters, projections and joins
/// above.
fn by_splits(plan: PhysicalPlan) -> BoxFuture<'static, Result<PhysicalPlan>> {
    async move {
        // Its second part runs again and again over other rows, and a join would keep the first ones.
        if plan.as_any().is::<RecursiveQueryExec>() {
            return Ok(plan);
        }
        // Nothing above can rely on an order that is not there.
        if plan.output_ordering().is_none()
            && reads_a_scan(&plan)
            && let Ok(rewritten) = rewrite(Arc::clone(&plan))
        {
            let rows = build_sides(over_splits(&rewritten).await?).await?;
            let is_local = rewritten.scans.iter().all(|scan| scan.source.is_local());
            let rows: PhysicalPlan = Arc::new(AheadExec::new(rows, is_local));
            if knows_as_much(&rows, &plan) {
                return Ok(rows);
            }
        }
        over_children(plan, by_splits).await
    }
    .boxed()
}

/// Returns true if no less is known of a plan's columns: a window above may rely on one that is
/// constant, or equal to another.
fn knows_as_much(plan: &PhysicalPlan, other: &PhysicalPlan) -> bool {
    let (plan, other) = (plan.equivalence_properties(), other.equivalence_properties());
    plan.constants().len() >= other.constants().len()
        && plan.eq_group().len() >= other.eq_group().len()
}

/// The plan by splits, whose joins collect one side by splits, too.
fn build_sides(plan: PhysicalPlan) -> BoxFuture<'static, Result<PhysicalPlan>> {
    async move {
        match plan.as_any().is::<BuildSideExec>() {
            true => over_children(plan, by_splits).await,
            false => over_children(plan, build_sides).await,
        }
    }
    .boxed()
}

async fn over_children(
    plan: PhysicalPlan,
    changed: fn(PhysicalPlan) -> BoxFuture<'static, Result<PhysicalPlan>>,
) -> Result<PhysicalPlan> {
    let mut children = Vec::new();
    for child in plan.children() {
        children.push(changed(Arc::clone(child)).await?);
    }
    Ok(plan.with_new_children(children)?)
}

/// Returns true for a scan, and for filters, projections and joins above one.
fn reads_a_scan(plan: &PhysicalPlan) -> bool {
    let node = plan.as_any();
    let passes = node.is::<FilterExec>()
        || node.is::<ProjectionExec>()
        || node.is::<CooperativeExec>()
        || node.is::<HashJoinExec>()
        || node.is::<NestedLoopJoinExec>()
        || node.is::<CrossJoinExec>();
    node.is::<DataSourceExec>() || passes && plan.children().into_iter().any(reads_a_scan)
}

async fn over_splits(rewritten: &Rewritten) -> Result<PhysicalPlan> {
    let options = PlanOptions::default();
    let target = SplitTarget { bytes: options.split_bytes, rows: options.split_rows };
    let mut splits = Vec::with_capacity(rewritten.scans.len());
    for scan in &rewritten.scans {
        let found = discover_scan(scan, target, options.explicit, false).await?;
        splits.push(Arc::from(found.splits));
    }
    rewritten.with_splits(&splits)
}
