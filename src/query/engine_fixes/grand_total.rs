//! The grand total of no rows. A grouping set without columns, as in ROLLUP and CUBE, has one row
//! for any input (SQL standard, PostgreSQL); DataFusion 53 makes none where its input has no rows.
//!
//! So the input gets one row of NULLs, which no aggregate counts, and the groups that it alone
//! makes are left out again. Before:
//! ```text
//! Aggregate: groupBy=[ROLLUP (a)], aggr=[sum(x)]
//!   t
//! ```
//! After:
//! ```text
//! Projection: the columns of the aggregate
//!   Filter: __rows OR grouping(a) = 1
//!     Aggregate: groupBy=[ROLLUP (a)], aggr=[sum(x) FILTER (WHERE __there), grouping(a), bool_or(__there) AS __rows]
//!       Union
//!         t, true AS __there
//!         NULLs, false AS __there
//! ```
//!
//! Upstream: apache/datafusion#21570, apache/datafusion#22040.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, ScalarValue};
use datafusion::error::Result as DfResult;
use datafusion::functions_aggregate::expr_fn::bool_or;
use datafusion::functions_aggregate::grouping::grouping_udaf;
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::utils::{enumerate_grouping_sets, grouping_set_to_exprlist};
use datafusion::logical_expr::{
    Aggregate, Expr, GroupingSet, LogicalPlan, LogicalPlanBuilder, Projection, lit,
};

use crate::{Error, Result};

const THERE: &str = "__there";
const ROWS: &str = "__rows";

/// Columns whose sets one number of `grouping` tells apart.
pub(super) const MOST_KEYS: usize = 30;

/// The plan in which every grouping set without columns has its row.
///
/// # Errors
/// An internal error where the plan cannot be rebuilt.
pub(super) fn with_grand_totals(plan: LogicalPlan) -> Result<LogicalPlan> {
    let of_node = |plan: LogicalPlan| match plan {
        LogicalPlan::Aggregate(aggregate) if has_total(&aggregate)? => {
            Ok(Transformed::yes(with_total(aggregate)?))
        }
        other => Ok(Transformed::no(other)),
    };
    Ok(plan.transform_up(of_node)?.data)
}

/// Returns true if one of several grouping sets has no columns.
fn has_total(aggregate: &Aggregate) -> DfResult<bool> {
    if !matches!(&aggregate.group_expr[..], [Expr::GroupingSet(_), ..]) {
        return Ok(false);
    }
    Ok(match &enumerate_grouping_sets(aggregate.group_expr.clone())?[..] {
        [Expr::GroupingSet(GroupingSet::GroupingSets(sets))] => sets.iter().any(Vec::is_empty),
        [Expr::GroupingSet(GroupingSet::Rollup(_) | GroupingSet::Cube(_))] => true,
        _ => false,
    })
}

fn with_total(aggregate: Aggregate) -> DfResult<LogicalPlan> {
    let columns = aggregate.schema.columns();
    let input = Arc::unwrap_or_clone(aggregate.input);
    let nulls = input.schema().iter().map(|(qualifier, field)| {
        let null = lit(ScalarValue::try_from(field.data_type())?);
        Ok(null.alias_qualified(qualifier.cloned(), field.name()))
    });
    let nulls: Vec<Expr> = nulls.chain([Ok(lit(false).alias(THERE))]).collect::<DfResult<_>>()?;
    let one = LogicalPlanBuilder::empty(true).project(nulls)?.build()?;
    let mut all: Vec<Expr> = input.schema().columns().into_iter().map(Expr::Column).collect();
    let names: Vec<_> = input
        .schema()
        .iter()
        .map(|(qualifier, field)| (qualifier.cloned(), field.name().clone()))
        .collect();
    all.push(lit(true).alias(THERE));
    let rows = LogicalPlanBuilder::from(input).project(all)?.union(one)?.build()?;
    // A union has no qualifiers.
    let qualified =
        rows.schema().columns().into_iter().zip(names).map(|(column, (qualifier, name))| {
            Expr::Column(column).alias_qualified(qualifier, name)
        });
    let mut qualified: Vec<Expr> = qualified.collect();
    let there = rows.schema().columns().pop().unwrap_or_else(|| Column::from_name(THERE));
    qualified.push(Expr::Column(there).alias(THERE));
    let rows = LogicalPlan::Projection(Projection::try_new(qualified, Arc::new(rows))?);
    let there = Expr::Column(Column::from_name(THERE));
    let keys: Vec<Expr> =
        grouping_set_to_exprlist(&aggregate.group_expr)?.into_iter().cloned().collect();
    if keys.len() > MOST_KEYS {
        return Err(Error::query(format!(
            "ROLLUP, CUBE or GROUPING SETS with a set of all rows is supported for {MOST_KEYS} columns at most, not {}; write \
             UNION ALL of the groups and of the total",
            keys.len()
        ))
        .into());
    }
    let total = (1_i32 << keys.len()) - 1;
    let set = grouping_udaf().call(keys);
    let of_set = Expr::Column(Column::from_name(set.schema_name().to_string()));
    let known = aggregate.aggr_expr.contains(&set);
    let aggregates = aggregate.aggr_expr.into_iter();
    let mut wanted: Vec<Expr> = aggregates
        .map(|expr| match is_grouping(&expr) {
            // What is no aggregate of rows.
            true => expr,
            false => only_where(expr, &there),
        })
        .collect();
    if !known {
        wanted.push(set);
    }
    wanted.push(bool_or(there).alias(ROWS));
    let plan = LogicalPlanBuilder::from(rows).aggregate(aggregate.group_expr, wanted)?.build()?;
    let kept = Expr::Column(Column::from_name(ROWS)).is_true().or(of_set.eq(lit(total)));
    let plan = LogicalPlanBuilder::from(plan).filter(kept)?.build()?;
    let own = columns.into_iter().filter(|column| column.name != Aggregate::INTERNAL_GROUPING_ID);
    let columns = own.map(Expr::Column).collect();
    Ok(LogicalPlan::Projection(Projection::try_new(columns, Arc::new(plan))?))
}

fn is_grouping(expr: &Expr) -> bool {
    matches!(expr, Expr::AggregateFunction(function) if function.func.name() == "grouping")
}

/// An aggregate over the rows for which a condition holds, under the name that it had.
pub(super) fn only_where(expr: Expr, condition: &Expr) -> Expr {
    let name = expr.schema_name().to_string();
    match expr.unalias() {
        Expr::AggregateFunction(AggregateFunction { func, mut params }) => {
            params.filter = Some(Box::new(match params.filter {
                Some(own) => condition.clone().and(*own),
                None => condition.clone(),
            }));
            Expr::AggregateFunction(AggregateFunction { func, params }).alias(name)
        }
        other => other.alias(name),
    }
}
