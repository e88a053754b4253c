//! A plan that takes little memory: its joins sort both sides, which spills, and its operators
//! share a fixed amount.
//!
//! Before:
//! ```text
//! HashJoinExec: mode=CollectLeft, projection=[…]     holds its left side
//!   left
//!   right
//! ```
//! After, in the same one partition, so that the order of the rows does not depend on timing:
//! ```text
//! SortExec: the order of the right side, where it has one
//!   ProjectionExec
//!     SortMergeJoinExec
//!       SortExec: left keys
//!         left
//!       SortExec: right keys
//!         right
//! ```
//! A hash join keeps the order of its right side, so the planner omits sorts that would restore it:
//! for windows, groups and ORDER BY.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::compute::SortOptions;
use datafusion::common::JoinType;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::execution::memory_pool::{MemoryLimit, MemoryPool, MemoryReservation};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, Column, lit};
use datafusion::physical_expr::{LexOrdering, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::joins::{HashJoinExec, SortMergeJoinExec};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::sort::SortExec;

use crate::Result;

/// The part of the memory that all spilling operators share, in tenths. The rest is for merging
/// spilled data, and for operators that cannot spill.
const SPILLING_TENTHS: usize = 6;

/// The plan with joins that spill. A join that treats NULLs like NOT IN stays unchanged.
///
/// # Errors
/// An internal error where DataFusion refuses the new operators.
pub fn with_spilling_joins(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    // From the root on: what a join is said to keep in order follows from the joins below it, as
    // they were.
    let plan = plan.transform_down(|node| match node.as_any().downcast_ref::<HashJoinExec>() {
        Some(join) if !join.null_aware => Ok(Transformed::yes(as_before(join, from_left(join)?))),
        _ => Ok(Transformed::no(node)),
    });
    Ok(plan.data()?)
}

/// The rows of a join that sorts, in the order that the hash join promises.
fn as_before(join: &HashJoinExec, rows: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    match join.properties().output_ordering() {
        Some(ordering) => Arc::new(SortExec::new(ordering.clone(), rows)),
        None => rows,
    }
}

/// The sort-merge join, driven from the left where only one side decides: driven from the right, it
/// confuses the columns of the sides.
fn from_left(join: &HashJoinExec) -> DfResult<Arc<dyn ExecutionPlan>> {
    use JoinType::{RightAnti, RightMark, RightSemi};
    if !matches!(join.join_type, RightSemi | RightAnti | RightMark) {
        return sorted(join);
    }
    let swapped = join.swap_inputs(*join.partition_mode())?;
    match swapped.as_any().downcast_ref::<HashJoinExec>() {
        Some(join) => sorted(join),
        None => Ok(swapped),
    }
}

fn sorted(join: &HashJoinExec) -> DfResult<Arc<dyn ExecutionPlan>> {
    let options = SortOptions::default();
    let sort = |input: &Arc<dyn ExecutionPlan>, keys: Vec<Arc<dyn PhysicalExpr>>| {
        let keys = keys.into_iter().map(|expr| PhysicalSortExpr { expr, options });
        match LexOrdering::new(keys) {
            Some(ordering) => Arc::new(SortExec::new(ordering, Arc::clone(input))) as _,
            None => Arc::clone(input),
        }
    };
    let (left, right): (Vec<_>, Vec<_>) = join.on.iter().cloned().unzip();
    let merged = SortMergeJoinExec::try_new(
        sort(&join.left, left),
        sort(&join.right, right),
        join.on.clone(),
        join.filter.as_ref().map(true_or_false),
        join.join_type,
        vec![options; join.on.len()],
        join.null_equality,
    )?;
    let merged: Arc<dyn ExecutionPlan> = Arc::new(merged);
    let Some(projection) = &join.projection else { return Ok(merged) };
    let schema = merged.schema();
    let columns = projection.iter().map(|index| {
        let name = schema.field(*index).name().clone();
        (Arc::new(Column::new(&name, *index)) as Arc<dyn PhysicalExpr>, name)
    });
    Ok(Arc::new(ProjectionExec::try_new(columns.collect::<Vec<_>>(), merged)?))
}

/// A further condition that is never NULL: the join that sorts has a row twice where one is.
fn true_or_false(filter: &JoinFilter) -> JoinFilter {
    let condition = Arc::new(BinaryExpr::new(
        Arc::clone(filter.expression()),
        Operator::IsNotDistinctFrom,
        lit(true),
    ));
    let (columns, schema) = (filter.column_indices().to_vec(), Arc::clone(filter.schema()));
    JoinFilter::new(condition, columns, schema)
}

/// A memory pool with equal, fixed shares for all operators that can spill. DataFusion's fair pool
/// shrinks the shares of operators that run already, and its greedy one lets the first take all.
#[derive(Debug)]
pub struct SharedPool {
    limit: usize,
    share: usize,
    spilling: usize,
    used: AtomicUsize,
}

impl SharedPool {
    /// A pool of `limit` bytes for a plan.
    ///
    /// # Errors
    /// None that a plan can cause.
    pub fn of(plan: &Arc<dyn ExecutionPlan>, limit: usize) -> Result<Self> {
        let mut spilling = 0;
        plan.apply(|node| {
            let node = node.as_any();
            if node.is::<SortExec>() || node.is::<AggregateExec>() {
                spilling += 1;
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        let share = limit / 10 * SPILLING_TENTHS / spilling.max(1);
        Ok(Self { limit, share, spilling, used: AtomicUsize::new(0) })
    }

    /// Bytes that each sort may reserve for merging spilled data: all sorts together half of the
    /// unshared memory, each at most `most`.
    pub fn merging(&self, most: usize) -> usize {
        most.min(self.limit / 10 * (10 - SPILLING_TENTHS) / 2 / self.spilling.max(1))
    }
}

impl MemoryPool for SharedPool {
    fn grow(&self, _: &MemoryReservation, additional: usize) {
        self.used.fetch_add(additional, Ordering::Relaxed);
    }

    fn shrink(&self, _: &MemoryReservation, shrink: usize) {
        self.used.fetch_sub(shrink, Ordering::Relaxed);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> DfResult<()> {
        let exhausted = |most: usize| {
            DataFusionError::ResourcesExhausted(format!(
                "{} holds {} bytes, wants {additional} more, and may have {most}",
                reservation.consumer().name(),
                reservation.size(),
            ))
        };
        if reservation.consumer().can_spill() && reservation.size() + additional > self.share {
            return Err(exhausted(self.share));
        }
        let grow = |used: usize| (used + additional <= self.limit).then(|| used + additional);
        match self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grow) {
            Ok(_) => Ok(()),
            Err(used) => Err(exhausted(reservation.size() + self.limit.saturating_sub(used))),
        }
    }

    fn reserved(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    fn memory_limit(&self) -> MemoryLimit {
        MemoryLimit::Finite(self.limit)
    }
}
