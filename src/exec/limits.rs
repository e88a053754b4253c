//! LIMIT and OFFSET stay where the query has them, over the order that the query gives them.
//!
//! DataFusion's own rules move limits through operators, into windows and aggregates, and leave out
//! files and row groups for them by statistics; and its enforcement of orders passes over limits:
//! `ORDER BY a OFFSET 5` below another order became that other order, and below an aggregate none.
//! Here a limit is a wall while orders are enforced: operators above it do not see those below.
//! Afterwards a sort right below one keeps as few rows as are asked for, and a scan without a
//! filter ends after them.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use datafusion::common::Statistics;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::limit::{GlobalLimitExec, LocalLimitExec};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

use super::node_rule::{NodeRule, Rule};
use super::rewrite::file_scan;

/// A limit that hides everything below it.
#[derive(Debug)]
struct WallExec {
    limit: Arc<dyn ExecutionPlan>,
}

impl DisplayAs for WallExec {
    fn fmt_as(&self, kind: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.limit.fmt_as(kind, f)
    }
}

impl ExecutionPlan for WallExec {
    fn name(&self) -> &'static str {
        "WallExec"
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.limit.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn with_new_children(
        self: Arc<Self>,
        _: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        self.limit.execute(partition, context)
    }

    fn partition_statistics(&self, partition: Option<usize>) -> Result<Statistics> {
        self.limit.partition_statistics(partition)
    }
}

/// A rule that enforces orders, for which limits are walls.
pub fn orders_below_limits(inner: Rule) -> NodeRule {
    NodeRule::around(inner, |inner, plan, config| {
        if !plan.exists(|node| Ok(is_limit(node)))? {
            return inner.optimize(plan, config);
        }
        // The part below each limit by itself, from the lowest limit on.
        let walled = plan.transform_up(|node| match is_limit(&node) {
            true => {
                // A sort that keeps some rows is not moved below a join.
                let input = Arc::clone(node.children()[0]);
                let first = rows_taken(&node).map(|rows| first_rows(&input, rows)).transpose()?;
                let input = inner.optimize(first.flatten().unwrap_or(input), config)?;
                let limit = node.with_new_children(vec![input])?;
                Ok(Transformed::yes(Arc::new(WallExec { limit }) as Arc<dyn ExecutionPlan>))
            }
            false => Ok(Transformed::no(node)),
        });
        let plan = inner.optimize(walled.data()?, config)?;
        // Walls below walls are met after those.
        plan.transform_down(|node| match node.as_any().downcast_ref::<WallExec>() {
            Some(wall) => Ok(Transformed::yes(Arc::clone(&wall.limit))),
            None => Ok(Transformed::no(node)),
        })
        .data()
    })
}

fn is_limit(node: &Arc<dyn ExecutionPlan>) -> bool {
    node.as_any().is::<GlobalLimitExec>() || node.as_any().is::<LocalLimitExec>()
}

/// Tells sorts and scans right below a limit how many rows it takes; the limit stays.
pub fn first_rows_of_limits() -> NodeRule {
    NodeRule::new("first_rows", |plan| {
        plan.transform_up(|node| {
            let Some(rows) = rows_taken(&node) else { return Ok(Transformed::no(node)) };
            match first_rows(node.children()[0], rows)? {
                Some(input) => Ok(Transformed::yes(node.with_new_children(vec![input])?)),
                None => Ok(Transformed::no(node)),
            }
        })
        .data()
    })
}

/// The rows that a limit takes from its input, including the rows that it skips.
fn rows_taken(node: &Arc<dyn ExecutionPlan>) -> Option<usize> {
    if let Some(limit) = node.as_any().downcast_ref::<GlobalLimitExec>() {
        return limit.skip().checked_add(limit.fetch()?);
    }
    Some(node.as_any().downcast_ref::<LocalLimitExec>()?.fetch())
}

/// Returns true if a sort orders lists, structs or maps. A sort that keeps some rows leaves out
/// those above the last of them by an operator, which orders NULL in such values otherwise than the
/// sort does.
fn orders_nested(sort: &SortExec) -> Result<bool> {
    let schema = sort.input().schema();
    for key in sort.expr() {
        if key.expr.data_type(&schema)?.is_nested() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The plan that gives no more than its first rows; None where that saves nothing. Only operators
/// that give a row for each row of their input lie between.
fn first_rows(
    plan: &Arc<dyn ExecutionPlan>,
    rows: usize,
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let node = plan.as_any();
    if let Some(sort) = node.downcast_ref::<SortExec>() {
        if orders_nested(sort)? {
            return Ok(None);
        }
        let rows = sort.fetch().map_or(rows, |fetch| fetch.min(rows));
        return Ok(Some(Arc::new(sort.with_fetch(Some(rows)))));
    }
    if let Some(source) = node.downcast_ref::<DataSourceExec>() {
        // A filter inside a scan may leave out any of its rows.
        return Ok(match file_scan(source) {
            Some(config) if config.file_source.filter().is_none() => plan.with_fetch(Some(rows)),
            _ => None,
        });
    }
    let passes = node.is::<ProjectionExec>()
        || node.is::<CoalescePartitionsExec>()
        || node.is::<SortPreservingMergeExec>()
        || node.is::<UnionExec>();
    if !passes {
        return Ok(None);
    }
    let (mut found, mut inputs) = (false, Vec::new());
    for child in plan.children() {
        let first = first_rows(child, rows)?;
        found |= first.is_some();
        inputs.push(first.unwrap_or_else(|| Arc::clone(child)));
    }
    Ok(if found { Some(Arc::clone(plan).with_new_children(inputs)?) } else { None })
}
