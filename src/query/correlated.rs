//! Correlated subqueries that DataFusion 53 answers wrongly. It takes their conditions on the query around them out, and joins by them: so
//! they come to stand above what they were written below. That is right above projections, inner joins and groups, and wrong
//! above what looks at all rows of one row of the query around, or makes a row of none.

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::expr::{Exists, InSubquery, SetComparison};
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{Expr, ExprSchemable, FetchType, JoinType, LogicalPlan, Subquery};

use crate::{Error, Result};

/// Refuses them.
///
/// # Errors
/// `Query` saying how to write it instead.
pub(super) fn check_sound_subqueries(plan: &LogicalPlan) -> Result<()> {
    let mut found = Ok(());
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expr| {
            expr.apply(|expr| {
                if found.is_ok() {
                    found = judge(expr, node);
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    found
}

/// Where a subquery stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Exists,
    In,
    NotIn,
    Comparison,
    Value,
}

impl Place {
    fn written(self) -> &'static str {
        match self {
            Self::Exists => "EXISTS (subquery)",
            Self::In => "IN (subquery)",
            Self::NotIn => "NOT IN (subquery)",
            Self::Comparison => "ANY or ALL (subquery)",
            Self::Value => "a subquery in place of a value",
        }
    }
}

fn judge(expr: &Expr, around: &LogicalPlan) -> Result<()> {
    let (place, subquery) = match expr {
        Expr::Exists(Exists { subquery, .. }) => (Place::Exists, subquery),
        Expr::InSubquery(InSubquery { subquery, negated: false, .. }) => (Place::In, subquery),
        Expr::InSubquery(InSubquery { subquery, expr, negated: true }) => {
            check_nulls(subquery, expr, around)?;
            (Place::NotIn, subquery)
        }
        Expr::SetComparison(SetComparison { subquery, .. }) => (Place::Comparison, subquery),
        Expr::ScalarSubquery(subquery) => (Place::Value, subquery),
        _ => return Ok(()),
    };
    let place = match place {
        Place::In if is_null_of_none(&subquery.subquery) => Place::Value,
        other => other,
    };
    is_correlated(&subquery.subquery, place).map(drop)
}

/// Whether a subquery is an aggregate that is NULL where there is no row: no value equals it, as none equals one of no rows.
fn is_null_of_none(plan: &LogicalPlan) -> bool {
    const NULL_OF_NONE: [&str; 7] =
        ["min", "max", "sum", "avg", "median", "first_value", "last_value"];
    match plan {
        LogicalPlan::Projection(projection) => {
            projection.expr.iter().all(|expr| matches!(expr.clone().unalias(), Expr::Column(_)))
                && is_null_of_none(&projection.input)
        }
        LogicalPlan::Aggregate(aggregate) => aggregate.aggr_expr.iter().all(|expr| {
            matches!(expr.clone().unalias(), Expr::AggregateFunction(function)
                if NULL_OF_NONE.contains(&function.func.name()))
        }),
        _ => false,
    }
}

/// Whether conditions on the query around stand in a plan.
///
/// # Errors
/// Where they would be moved above what they may not.
fn is_correlated(plan: &LogicalPlan, place: Place) -> Result<bool> {
    let mut below = Vec::new();
    for input in plan.inputs() {
        below.push(is_correlated(input, place)?);
    }
    let any = below.iter().any(|correlated| *correlated);
    match plan {
        LogicalPlan::Filter(filter) => return Ok(any || filter.predicate.contains_outer()),
        LogicalPlan::Window(_) if any => Err(refused(place, "a window function (OVER …)")),
        LogicalPlan::Aggregate(aggregate)
            if any && place != Place::Value && aggregate.group_expr.is_empty() =>
        {
            Err(refused(place, "an aggregate without GROUP BY, which gives a row of none"))
        }
        // The planner refuses those of the other places.
        LogicalPlan::Limit(limit) if any && place == Place::Exists => {
            match (limit.skip.is_some(), limit.get_fetch_type()?) {
                (false, FetchType::Literal(_)) => Ok(()),
                _ => Err(refused(place, "OFFSET")),
            }
        }
        LogicalPlan::Join(join) => match (join.join_type, &below[..]) {
            (JoinType::Left, [_, true])
            | (JoinType::Right, [true, _])
            | (JoinType::Full, [true, _] | [_, true]) => {
                Err(refused(place, "the side of an outer join that may have no match"))
            }
            _ => Ok(()),
        },
        _ => Ok(()),
    }?;
    Ok(any)
}

fn refused(place: Place, above: &str) -> Error {
    Error::query(format!(
        "{} is not supported where its condition on the query around it stands below {above}: the engine would move the \
         condition above that; join a subquery that computes it by key (GROUP BY, PARTITION BY) instead",
        place.written()
    ))
}

/// `NOT IN` is unknown where NULL is among the rows of the subquery for this row; the engine looks among those for all rows.
fn check_nulls(subquery: &Subquery, left: &Expr, around: &LogicalPlan) -> Result<()> {
    let mut conditions = Vec::new();
    subquery.subquery.apply(|node| {
        if let LogicalPlan::Filter(filter) = node {
            let of_around = |condition: &&Expr| condition.contains_outer();
            let found = split_conjunction(&filter.predicate).into_iter().filter(of_around);
            conditions.extend(found.map(|condition| (condition.clone(), node.clone())));
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    if conditions.is_empty() {
        return Ok(());
    }
    let schema = datafusion::logical_expr::utils::merge_schema(&around.inputs());
    let mut may_be_null =
        left.nullable(&schema).unwrap_or(true) || subquery.subquery.schema().field(0).is_nullable();
    for (condition, node) in &conditions {
        condition.apply(|expr| {
            may_be_null |= match expr {
                Expr::Column(_) => expr.nullable(node.schema().as_ref()).unwrap_or(true),
                Expr::OuterReferenceColumn(field, _) => field.is_nullable(),
                _ => false,
            };
            Ok(TreeNodeRecursion::Continue)
        })?;
    }
    match may_be_null {
        true => Err(Error::query(
            "NOT IN (subquery) with a condition on the query around it is not supported where columns may be NULL: the \
             engine takes a NULL of any row for one of all rows; write NOT EXISTS (SELECT 1 FROM … WHERE … AND a = b) \
             instead, or filter NULL out and join",
        )),
        false => Ok(()),
    }
}
