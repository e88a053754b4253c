//! A plan of one partition whose operators of many rows work in lanes, on all cores.
//!
//! Before, for `SELECT …, sum(x) OVER (PARTITION BY k ORDER BY t)`:
//! ```text
//! BoundedWindowAggExec
//!   SortExec: k, t
//!     DataSourceExec
//! ```
//! After:
//! ```text
//! GatherExec: in turns
//!   BoundedWindowAggExec            in each lane
//!     SortExec: k, t
//!       DealExec: lanes=16, keys=[k]
//!         DataSourceExec
//! ```
//! Every other operator keeps its one partition. What a lane gives follows from its rows, and the
//! number of lanes is fixed, so that the order of all rows is the same on any number of cores. In a
//! lane rows keep their order, so that each group and each window has the rows that it had, in the
//! order that it had them: sums of floats are the same to the last bit.
//!
//! Lanes are below operators that take all of their rows before they give one: sorts, aggregates by
//! hash, and windows above a sort. Others would wait for each other, lane for lane.

mod deal;
mod gather;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_expr::expressions::{CastExpr, Column, Literal};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::recursive_query::RecursiveQueryExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use datafusion::physical_plan::{
    ExecutionPlan, ExecutionPlanProperties, InputOrderMode, WindowExpr,
};

use self::deal::{DealExec, Dealing};
use self::gather::GatherExec;
use super::ForeignUdf;
use crate::Result;
use crate::query::has_hash_of_rows;

type Plan = Arc<dyn ExecutionPlan>;

/// The number of lanes, whatever the number of cores: the order of the rows depends on it.
pub(super) const LANES: usize = 16;

/// The plan of a part of a query, with lanes where they pay.
///
/// # Errors
/// An internal error where DataFusion refuses the new operators.
pub fn in_lanes(part: &LogicalPlan, plan: Plan) -> Result<Plan> {
    // The planner leaves out a sort at the root where the rows below have its order.
    let is_ordered = part.exists(|node| Ok(matches!(node, LogicalPlan::Sort(_))))?;
    Ok(visit(plan, is_ordered)?)
}

/// `keep_order`: whether an operator above may need the order of the rows.
fn visit(plan: Plan, keep_order: bool) -> DfResult<Plan> {
    if let Some(windows) = Windows::of(&plan) {
        let input = visit(windows.input, false)?;
        let mut lanes: Plan = Arc::new(DealExec::new(input, Dealing::Keys(windows.keys)));
        for node in windows.nodes.into_iter().rev() {
            lanes = match node.as_any().downcast_ref::<SortExec>() {
                Some(sort) => sort_in_lanes(sort, lanes),
                None => node.with_new_children(vec![lanes])?,
            };
        }
        return Ok(gathered(lanes, keep_order));
    }
    if let Some(sort) = plan.as_any().downcast_ref::<SortExec>() {
        let input = visit(Arc::clone(sort.input()), false)?;
        // The first rows of an order are kept aside while rows stream by.
        if sort.fetch().is_some() || sort.preserve_partitioning() || !is_one(&input) {
            return plan.with_new_children(vec![input]);
        }
        let lanes = sort_in_lanes(sort, Arc::new(DealExec::new(input, Dealing::Turns)));
        return Ok(gathered(lanes, true));
    }
    if let Some(groups) = plan.as_any().downcast_ref::<AggregateExec>()
        && let Some((mode, keys)) = keys_of(groups)
    {
        let sort = sort_of(groups);
        let input = visit(Arc::clone(sort.map_or(groups.input(), SortExec::input)), false)?;
        let mut lanes: Plan = Arc::new(DealExec::new(input, Dealing::Keys(keys)));
        if let Some(sort) = sort {
            lanes = sort_in_lanes(sort, lanes);
        }
        let lanes = AggregateExec::try_new(
            mode,
            groups.group_expr().clone(),
            groups.aggr_expr().to_vec(),
            groups.filter_expr().to_vec(),
            lanes,
            Arc::clone(&groups.input_schema),
        )?;
        return Ok(gathered(Arc::new(lanes), false));
    }
    // Its second part runs again and again.
    if plan.as_any().is::<RecursiveQueryExec>() {
        return Ok(plan);
    }
    let needs_order = needs_order(&plan, keep_order);
    let children = plan.children().into_iter().zip(needs_order);
    let children = children.map(|(child, needs)| visit(Arc::clone(child), needs));
    let children = children.collect::<DfResult<Vec<_>>>()?;
    plan.with_new_children(children)
}

/// Of which inputs an operator, or one above it, may need the order.
fn needs_order(plan: &Plan, keep_order: bool) -> Vec<bool> {
    let by_mode = plan
        .as_any()
        .downcast_ref::<AggregateExec>()
        .is_some_and(|groups| *groups.input_order_mode() != InputOrderMode::Linear);
    let required = plan.required_input_ordering().into_iter();
    required.map(|required| keep_order || by_mode || required.is_some()).collect()
}

fn is_one(plan: &Plan) -> bool {
    plan.output_partitioning().partition_count() == 1
}

fn sort_in_lanes(sort: &SortExec, lanes: Plan) -> Plan {
    Arc::new(SortExec::new(sort.expr().clone(), lanes).with_preserve_partitioning(true))
}

/// All lanes in one partition: merged where their order is needed.
fn gathered(lanes: Plan, keep_order: bool) -> Plan {
    match lanes.output_ordering().filter(|_| keep_order).cloned() {
        // By default, rows that are equal come as their lanes happen to be ready.
        Some(order) => {
            Arc::new(SortPreservingMergeExec::new(order, lanes).with_round_robin_repartition(false))
        }
        None => Arc::new(GatherExec::new(lanes)),
    }
}

/// How an aggregate works in lanes, and the keys by which its rows are dealt, where it can.
fn keys_of(groups: &AggregateExec) -> Option<(AggregateMode, Vec<Arc<dyn PhysicalExpr>>)> {
    let mode = match groups.mode() {
        AggregateMode::Single => AggregateMode::SinglePartitioned,
        AggregateMode::Final => AggregateMode::FinalPartitioned,
        _ => return None,
    };
    let by = groups.group_expr();
    let is_plain = !by.is_empty()
        && by.is_single()
        && groups.limit_options().is_none()
        && *groups.input_order_mode() == InputOrderMode::Linear
        && (!needs_order_of_rows(groups) || sort_of(groups).is_some())
        && is_one(groups.input());
    let keys = is_plain.then(|| dealt_by(by.input_exprs(), groups.input())).flatten()?;
    Some((mode, keys))
}

/// Returns true for functions like `array_agg(x ORDER BY y)`.
fn needs_order_of_rows(groups: &AggregateExec) -> bool {
    groups.required_input_ordering().iter().any(Option::is_some)
}

/// The sort that such functions have below them.
fn sort_of(groups: &AggregateExec) -> Option<&SortExec> {
    let sort = groups.input().as_any().downcast_ref::<SortExec>()?;
    let is_whole = sort.fetch().is_none() && is_one(sort.input());
    (is_whole && needs_order_of_rows(groups)).then_some(sort)
}

/// The keys, where they can be computed a second time and have hashes.
fn dealt_by(keys: Vec<Arc<dyn PhysicalExpr>>, input: &Plan) -> Option<Vec<Arc<dyn PhysicalExpr>>> {
    let schema = input.schema();
    let is_dealt = |key: &Arc<dyn PhysicalExpr>| {
        key.data_type(&schema).is_ok_and(|of| has_hash_of_rows(&of)) && is_cheap(key)
    };
    keys.iter().all(is_dealt).then_some(keys)
}

/// Returns true for columns, and for functions of the engine over them that always give the same.
fn is_cheap(key: &Arc<dyn PhysicalExpr>) -> bool {
    let mut cheap = true;
    let walked = key.apply(|node| {
        let any = node.as_any();
        cheap = any.is::<Column>()
            || any.is::<Literal>()
            || any.is::<CastExpr>()
            || any.downcast_ref::<ScalarFunctionExpr>().is_some_and(|call| {
                !call.is_volatile_node() && ForeignUdf::of(call.fun()).is_none()
            });
        Ok(match cheap {
            true => TreeNodeRecursion::Continue,
            false => TreeNodeRecursion::Stop,
        })
    });
    walked.is_ok() && cheap
}

/// Windows and the sorts between them that all divide their rows by some common keys.
struct Windows {
    /// From the uppermost window to the lowest sort.
    nodes: Vec<Plan>,
    keys: Vec<Arc<dyn PhysicalExpr>>,
    input: Plan,
}

impl Windows {
    fn of(plan: &Plan) -> Option<Self> {
        let mut keys = common_keys(window_exprs(plan)?)?;
        let mut nodes = Vec::new();
        let mut lowest = 0;
        let mut next = Arc::clone(plan);
        loop {
            if let Some(windows) = window_exprs(&next) {
                // Window operators put their columns behind those of their input, so that keys
                // stay where they are.
                let mut own = common_keys(windows)?;
                own.retain(|key| keys.contains(key));
                if own.is_empty() {
                    break;
                }
                keys = own;
            } else if let Some(sort) = next.as_any().downcast_ref::<SortExec>()
                && sort.fetch().is_none()
            {
                lowest = nodes.len() + 1;
            } else {
                break;
            }
            let [child] = next.children()[..] else { break };
            let child = Arc::clone(child);
            nodes.push(std::mem::replace(&mut next, child));
        }
        // Windows below the lowest sort give rows as they get them.
        nodes.truncate(lowest);
        let input = Arc::clone(nodes.last()?.children().first()?);
        let keys = dealt_by(keys, &input)?;
        is_one(&input).then_some(Self { nodes, keys, input })
    }
}

fn window_exprs(plan: &Plan) -> Option<&[Arc<dyn WindowExpr>]> {
    let any = plan.as_any();
    if let Some(windows) = any.downcast_ref::<BoundedWindowAggExec>() {
        return Some(windows.window_expr());
    }
    any.downcast_ref::<WindowAggExec>().map(WindowAggExec::window_expr)
}

/// The keys of PARTITION BY that all windows have.
fn common_keys(windows: &[Arc<dyn WindowExpr>]) -> Option<Vec<Arc<dyn PhysicalExpr>>> {
    let (first, others) = windows.split_first()?;
    let mut keys = first.partition_by().to_vec();
    for other in others {
        keys.retain(|key| other.partition_by().contains(key));
    }
    (!keys.is_empty()).then_some(keys)
}
