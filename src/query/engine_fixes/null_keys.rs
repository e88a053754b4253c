//! Joins whose keys match NULL with NULL stay apart from equalities, for which NULL matches
//! nothing.
//!
//! DataFusion 53 has one setting for all keys of a join. A join by `IS NOT DISTINCT FROM` got the
//! equalities of WHERE as further keys, and with them rows whose values are NULL on both sides:
//! ```text
//! Filter: t.x = u.y                                  Inner Join: t.a = u.a, t.x = u.y    (NULL equals NULL)
//!   Inner Join: t.a = u.a    (NULL equals NULL)        t
//!     t                                         ⇒      u
//!     u
//! ```
//! Here such an equality stays the join's filter. Where inner joins are put into another order, a
//! join of this kind is taken for an input like any other.

use std::sync::Arc;

use datafusion::common::NullEquality;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, Join, JoinType, LogicalPlan, Projection};

use super::rule_around::{Rule, RuleAround};

/// `extract_equijoin_predicate` or `eliminate_cross_join`, for joins by `IS NOT DISTINCT FROM`
/// beside others.
pub fn null_keys_apart(inner: Rule) -> RuleAround {
    RuleAround::new(inner, |inner, plan, config| {
        if inner.apply_order().is_none() {
            let apart = plan.transform_up(set_apart)?;
            if !apart.transformed {
                return inner.rewrite(apart.data, config);
            }
            let rewritten = inner.rewrite(apart.data, config)?;
            return Ok(Transformed::yes(rewritten.data.transform_up(without_wraps)?.data));
        }
        // The rule sees one node at a time.
        match plan {
            LogicalPlan::Join(join) if matches_nulls(&join) => match join.on.is_empty() {
                true => {
                    let null_equality = NullEquality::NullEqualsNothing;
                    inner.rewrite(LogicalPlan::Join(Join { null_equality, ..join }), config)
                }
                false => Ok(Transformed::no(LogicalPlan::Join(join))),
            },
            plan => inner.rewrite(plan, config),
        }
    })
}

fn matches_nulls(join: &Join) -> bool {
    join.null_equality == NullEquality::NullEqualsNull
}

/// An inner join that matches NULL with NULL, and its inputs, below projections: the rule takes
/// joins apart down to these.
fn set_apart(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    match plan {
        LogicalPlan::Join(mut join)
            if join.join_type == JoinType::Inner && matches_nulls(&join) =>
        {
            join.left = Arc::new(wrapped(Arc::unwrap_or_clone(join.left))?);
            join.right = Arc::new(wrapped(Arc::unwrap_or_clone(join.right))?);
            Ok(Transformed::yes(wrapped(LogicalPlan::Join(join))?))
        }
        other => Ok(Transformed::no(other)),
    }
}

/// A join below a projection of all its columns.
fn wrapped(plan: LogicalPlan) -> Result<LogicalPlan> {
    match &plan {
        LogicalPlan::Join(_) => {
            let columns = plan.schema().columns().into_iter().map(Expr::Column).collect();
            let projection = Projection::try_new(columns, Arc::new(plan))?;
            Ok(LogicalPlan::Projection(projection))
        }
        _ => Ok(plan),
    }
}

/// Takes projections of all columns of a join out again.
fn without_wraps(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    match plan {
        LogicalPlan::Projection(projection) if wraps_join(&projection) => {
            Ok(Transformed::yes(Arc::unwrap_or_clone(projection.input)))
        }
        other => Ok(Transformed::no(other)),
    }
}

fn wraps_join(projection: &Projection) -> bool {
    let below = projection.input.schema();
    matches!(&*projection.input, LogicalPlan::Join(_))
        && projection.expr.len() == below.fields().len()
        && projection
            .expr
            .iter()
            .zip(below.columns())
            .all(|(expr, column)| matches!(expr, Expr::Column(of_expr) if *of_expr == column))
}
