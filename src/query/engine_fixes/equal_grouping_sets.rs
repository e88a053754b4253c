//! Equal grouping sets: each has its rows. DataFusion 53 makes one of them, with the rows of both.
//!
//! So each set is computed once, and its rows are repeated. Before:
//! ```text
//! Aggregate: groupBy=[GROUPING SETS ((a, b), (a), (a))], aggr=[sum(x)]
//!   t
//! ```
//! After:
//! ```text
//! Projection: the columns of the aggregate
//!   Filter: __copy <= CASE grouping(a, b) WHEN 0 THEN 1 WHEN 1 THEN 2 END
//!     Cross Join
//!       Aggregate: groupBy=[GROUPING SETS ((a, b), (a))], aggr=[sum(x), grouping(a, b)]
//!         t
//!       Values: (1), (2) AS __copy
//! ```
//!
//! Upstream: apache/datafusion#5672, apache/datafusion#21316.

use std::sync::Arc;

use datafusion::common::Column;
use datafusion::common::tree_node::Transformed;
use datafusion::error::Result as DfResult;
use datafusion::functions_aggregate::expr_fn::count;
use datafusion::functions_aggregate::grouping::grouping_udaf;
use datafusion::logical_expr::utils::{enumerate_grouping_sets, grouping_set_to_exprlist};
use datafusion::logical_expr::{
    Aggregate, Expr, GroupingSet, LogicalPlan, LogicalPlanBuilder, Projection, case, lit,
};

use super::grand_total::MOST_KEYS;
use crate::{Error, Result};

const COPY: &str = "__copy";

/// The plan in which each of several equal grouping sets has its rows.
///
/// # Errors
/// `Query` for sets of more columns than one number of `grouping` tells apart.
pub(super) fn with_equal_sets(plan: LogicalPlan) -> Result<LogicalPlan> {
    let of_node = |plan: LogicalPlan| match plan {
        LogicalPlan::Aggregate(aggregate) => match counted_sets(&aggregate)? {
            Some(sets) => Ok(Transformed::yes(repeated(aggregate, sets)?)),
            None => Ok(Transformed::no(LogicalPlan::Aggregate(aggregate))),
        },
        other => Ok(Transformed::no(other)),
    };
    Ok(plan.transform_up_with_subqueries(of_node)?.data)
}

/// The columns of a set, and how often it is there.
type Counted = (Vec<Expr>, i64);

/// Each set of an aggregate's, and how often it is there; None where each is there once.
fn counted_sets(aggregate: &Aggregate) -> DfResult<Option<Vec<Counted>>> {
    if !aggregate.group_expr.iter().any(|expr| matches!(expr, Expr::GroupingSet(_))) {
        return Ok(None);
    }
    let groups = enumerate_grouping_sets(aggregate.group_expr.clone())?;
    let [Expr::GroupingSet(GroupingSet::GroupingSets(sets))] = &groups[..] else {
        return Ok(None);
    };
    let mut counted: Vec<Counted> = Vec::new();
    for set in sets {
        let mut columns: Vec<Expr> = Vec::new();
        for column in set {
            if !columns.contains(column) {
                columns.push(column.clone());
            }
        }
        let is_equal = |(known, _): &&mut Counted| {
            known.len() == columns.len() && known.iter().all(|column| columns.contains(column))
        };
        match counted.iter_mut().find(is_equal) {
            Some((_, copies)) => *copies += 1,
            None => counted.push((columns, 1)),
        }
    }
    Ok(counted.iter().any(|(_, copies)| *copies > 1).then_some(counted))
}

fn repeated(aggregate: Aggregate, sets: Vec<Counted>) -> DfResult<LogicalPlan> {
    let columns = aggregate.schema.columns();
    let input = Arc::unwrap_or_clone(aggregate.input);
    let most = sets.iter().map(|(_, copies)| *copies).max().unwrap_or(1);
    let mut wanted = aggregate.aggr_expr;
    let (groups, copies) = match &sets[..] {
        [(set, copies)] => {
            if set.is_empty() && wanted.is_empty() {
                wanted.push(count(lit(1_i64)));
            }
            (set.clone(), lit(*copies))
        }
        _ => {
            let lists = sets.iter().map(|(set, _)| set.clone()).collect();
            let groups = vec![Expr::GroupingSet(GroupingSet::GroupingSets(lists))];
            let keys: Vec<Expr> = grouping_set_to_exprlist(&groups)?.into_iter().cloned().collect();
            if keys.len() > MOST_KEYS {
                return Err(Error::query(format!(
                    "GROUP BY with two equal grouping sets is supported for {MOST_KEYS} columns at most, not {}; name each set once, \
                     or write UNION ALL",
                    keys.len()
                ))
                .into());
            }
            // The bits of the columns that a set lacks, the last column's being 1.
            let number = |set: &Vec<Expr>| {
                keys.iter().fold(0_i32, |bits, key| bits << 1 | i32::from(!set.contains(key)))
            };
            let set = grouping_udaf().call(keys.clone());
            let mut copies = case(Expr::Column(Column::from_name(set.schema_name().to_string())));
            for (columns, times) in &sets {
                copies = copies.when(lit(number(columns)), lit(*times));
            }
            if !wanted.contains(&set) {
                wanted.push(set);
            }
            (groups, copies.end()?)
        }
    };
    let numbers = (1..=most).map(|number| vec![lit(number)]).collect();
    let numbers = LogicalPlanBuilder::values(numbers)?
        .project([Expr::Column(Column::from_name("column1")).alias(COPY)])?
        .build()?;
    let copy = Expr::Column(Column::from_name(COPY));
    let plan = LogicalPlanBuilder::from(input)
        .aggregate(groups, wanted)?
        .cross_join(numbers)?
        .filter(copy.lt_eq(copies))?
        .build()?;
    let own = columns.into_iter().filter(|column| column.name != Aggregate::INTERNAL_GROUPING_ID);
    let columns = own.map(Expr::Column).collect();
    Ok(LogicalPlan::Projection(Projection::try_new(columns, Arc::new(plan))?))
}
