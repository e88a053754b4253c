//! Subqueries become joins, whatever columns they refer to and wherever they stand.
//!
//! DataFusion 53 plans some of them, and answers some of those wrongly: it finds columns by their
//! names, moves conditions above operators that they stand below, and takes unknown for false
//! outside of WHERE. So no subquery reaches its optimiser. Before, for `SELECT a.id, (SELECT
//! max(b.v) FROM b WHERE b.k < a.k) AS m FROM a`:
//! ```text
//! Projection: a.id, (<subquery>) AS m
//!   TableScan: a
//! ```
//! After:
//! ```text
//! Projection: a.id, __s1.__value AS m
//!   Left Join: a.k IS NOT DISTINCT FROM __s1.__key
//!     TableScan: a
//!     SubqueryAlias: __s1
//!       the rows of the subquery for each value of a.k, with that value as __key
//! ```
//! Most conditions need no list of values: `EXISTS (SELECT … WHERE b.k < a.k)` is a mark join by
//! `b.k < a.k`, and an aggregate by `b.k = a.k` is grouped by `b.k`. Everything else goes by the
//! values of the columns that the subquery refers to (Neumann and Kemper, "Unnesting Arbitrary
//! Queries", 2015): [`dependent`] moves them down through the subquery's plan.
//!
//! Three values: `x IN (subquery)` is true where a row equals x, else NULL where a row's equality
//! is NULL, else false. `x op ANY` is the same with another operator, and `x op ALL` is `NOT (x
//! not-op ANY)`.
//!
//! Upstream: apache/datafusion#15032, apache/datafusion#25347, apache/datafusion#25480.

mod dependent;
mod names;
mod row_values;
mod rows;
mod values;

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, JoinType};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::logical_plan::Subquery;
use datafusion::logical_expr::utils::split_conjunction_owned;
use datafusion::logical_expr::{
    Expr, Filter, Join, LogicalPlan, LogicalPlanBuilder, Projection, Sort,
};

use crate::{Error, Result};
use names::{Names, columns_of, keep_columns};

/// The plan without subqueries.
///
/// # Errors
/// `Query` for the few places where a subquery cannot be planned, saying how to write it instead.
pub(super) fn unnested(plan: LogicalPlan) -> Result<LogicalPlan> {
    match has_any(&plan)? {
        true => {
            check_aggregates(&plan)?;
            let plan = Unnest::default().plan(plan)?;
            check_references(&plan)?;
            Ok(plan)
        }
        false => Ok(plan),
    }
}

/// Refuses an aggregate in a subquery that names columns of a query around it alone. By the
/// standard it is an aggregate of that query, whose rows it makes one group; the planner takes it
/// for one of the subquery.
fn check_aggregates(plan: &LogicalPlan) -> Result<()> {
    let mut found = None;
    plan.apply_with_subqueries(|node| {
        let LogicalPlan::Aggregate(aggregate) = node else {
            return Ok(TreeNodeRecursion::Continue);
        };
        for expr in &aggregate.aggr_expr {
            expr.apply(|expr| {
                if let Expr::AggregateFunction(_) = expr {
                    let outer =
                        expr.exists(|expr| Ok(matches!(expr, Expr::OuterReferenceColumn(..))))?;
                    if outer && expr.column_refs().is_empty() {
                        found = Some(expr.schema_name().to_string());
                    }
                }
                Ok(TreeNodeRecursion::Continue)
            })?;
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    match found {
        None => Ok(()),
        Some(aggregate) => Err(Error::query(format!(
            "{aggregate} in a subquery names columns of the query around it alone, so that it is an aggregate of that query by the \
             standard; compute it there, or name a column of the subquery in it"
        ))),
    }
}

/// Refuses a reference that found no query around it which has its column.
fn check_references(plan: &LogicalPlan) -> Result<()> {
    let mut lost = None;
    plan.apply(|node| {
        node.apply_expressions(|expr| {
            expr.apply(|expr| {
                if let Expr::OuterReferenceColumn(_, column) = expr {
                    lost = Some(column.flat_name());
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    match lost {
        None => Ok(()),
        Some(column) => Err(Error::query(format!(
            "a subquery refers to {column}, which the query around it does not have at that place (below its GROUP BY, DISTINCT or \
             UNION, for example); name the column in a subquery in FROM, and refer to it there"
        ))),
    }
}

/// Returns true if a plan has a subquery, in an expression or as a relation that refers to those
/// beside it.
fn has_any(plan: &LogicalPlan) -> DfResult<bool> {
    plan.exists(|node| Ok(matches!(node, LogicalPlan::Subquery(_)) || has_own(node)?))
}

/// Returns true if the expressions of a node have a subquery.
fn has_own(plan: &LogicalPlan) -> DfResult<bool> {
    let mut found = false;
    plan.apply_expressions(|expr| {
        found = found || has_subquery(expr)?;
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(found)
}

fn has_subquery(expr: &Expr) -> DfResult<bool> {
    expr.exists(|expr| Ok(subquery_of(expr).is_some()))
}

fn subquery_of(expr: &Expr) -> Option<&Subquery> {
    match expr {
        Expr::Exists(exists) => Some(&exists.subquery),
        Expr::InSubquery(list) => Some(&list.subquery),
        Expr::SetComparison(comparison) => Some(&comparison.subquery),
        Expr::ScalarSubquery(subquery) => Some(subquery),
        _ => None,
    }
}

/// The rewrite of one statement; it makes names that nothing else has.
#[derive(Default)]
struct Unnest {
    names: Names,
    /// The columns of subqueries that are one row, by the names of their relations.
    rows: HashMap<String, Vec<Column>>,
}

impl Unnest {
    fn plan(&mut self, plan: LogicalPlan) -> DfResult<LogicalPlan> {
        let plan = plan.map_children(|child| self.plan(child).map(Transformed::yes))?.data;
        let plan = match plan {
            LogicalPlan::Join(join) if has_relation(&join.right)? => self.lateral(join)?,
            other => other,
        };
        if !has_own(&plan)? {
            return Ok(plan);
        }
        let plan = self.inside(plan)?;
        match plan {
            LogicalPlan::Filter(filter) => self.filter(filter),
            LogicalPlan::Join(join) => self.join(join),
            LogicalPlan::Projection(_) | LogicalPlan::Aggregate(_) => self.node(plan),
            LogicalPlan::Sort(sort) => {
                let columns = columns_of(sort.input.schema());
                let sort = LogicalPlan::Sort(with_hidden_columns(sort)?);
                keep_columns(self.node(sort)?, columns)
            }
            LogicalPlan::Window(_) => {
                let columns = columns_of(plan.schema());
                keep_columns(self.node(plan)?, columns)
            }
            other => Err(Error::query(format!(
                "a subquery is not supported in {}; put it into a column of a subquery in FROM, and name the column there",
                other.display()
            ))
            .into()),
        }
    }

    /// Takes away the subqueries within a node's subqueries.
    fn inside(&mut self, plan: LogicalPlan) -> DfResult<LogicalPlan> {
        let mut own = |subquery: Subquery| -> DfResult<Subquery> {
            let plan = self.plan(Arc::unwrap_or_clone(Arc::clone(&subquery.subquery)))?;
            Ok(subquery.with_plan(Arc::new(plan)))
        };
        let names = NamePreserver::new(&plan);
        let mut each = |expr: Expr| -> DfResult<Transformed<Expr>> {
            let name = names.save(&expr);
            let expr = expr.transform_down(|expr| {
                Ok(Transformed::yes(match expr {
                    Expr::Exists(mut exists) => {
                        exists.subquery = own(exists.subquery)?;
                        Expr::Exists(exists)
                    }
                    Expr::InSubquery(mut list) => {
                        list.subquery = own(list.subquery)?;
                        Expr::InSubquery(list)
                    }
                    Expr::SetComparison(mut comparison) => {
                        comparison.subquery = own(comparison.subquery)?;
                        Expr::SetComparison(comparison)
                    }
                    Expr::ScalarSubquery(subquery) => Expr::ScalarSubquery(own(subquery)?),
                    other => return Ok(Transformed::no(other)),
                }))
            })?;
            Ok(expr.update_data(|expr| name.restore(expr)))
        };
        let exprs = plan.expressions().into_iter().map(|expr| Ok(each(expr)?.data));
        let exprs = exprs.collect::<DfResult<Vec<_>>>()?;
        let inputs = plan.inputs().into_iter().cloned().collect();
        plan.with_new_exprs(exprs, inputs)
    }

    /// A node of one input, which gets a column for each subquery.
    fn node(&mut self, plan: LogicalPlan) -> DfResult<LogicalPlan> {
        let mut input = plan.inputs()[0].clone();
        let names = NamePreserver::new(&plan);
        let mut exprs = Vec::new();
        for expr in plan.expressions() {
            let name = names.save(&expr);
            exprs.push(name.restore(self.value(expr, &mut input)?));
        }
        plan.with_new_exprs(exprs, vec![input])
    }

    /// An expression over `input` without subqueries; `input` gets columns for them.
    fn value(&mut self, expr: Expr, input: &mut LogicalPlan) -> DfResult<Expr> {
        let value = expr.transform_up(|expr| {
            if subquery_of(&expr).is_none() {
                return Ok(Transformed::no(expr));
            }
            let (extended, value) = self.column(expr, input.clone())?;
            *input = extended;
            Ok(Transformed::yes(value))
        })?;
        Ok(value.data)
    }

    /// Conditions that are subqueries become semi and anti joins, where that is the same; others
    /// get a column.
    fn filter(&mut self, filter: Filter) -> DfResult<LogicalPlan> {
        let mut input = Arc::unwrap_or_clone(filter.input);
        let columns = columns_of(input.schema());
        let mut rest = Vec::new();
        for condition in split_conjunction_owned(filter.predicate) {
            if let Some(joined) = self.restricted(&condition, &input)? {
                input = joined;
            } else if has_subquery(&condition)? {
                rest.push(self.value(condition, &mut input)?);
            } else {
                rest.push(condition);
            }
        }
        let filtered = match rest.into_iter().reduce(Expr::and) {
            Some(condition) => LogicalPlanBuilder::from(input).filter(condition)?.build()?,
            None => input,
        };
        keep_columns(filtered, columns)
    }

    /// Subqueries of ON: above an inner join they are conditions of WHERE, of an outer join each
    /// belongs to one side.
    fn join(&mut self, join: Join) -> DfResult<LogicalPlan> {
        let columns = columns_of(&join.schema);
        let Join { left, right, mut on, filter, join_type, null_equality, .. } = join;
        let (mut left, mut right) = (Arc::unwrap_or_clone(left), Arc::unwrap_or_clone(right));
        if join_type == JoinType::Inner {
            let (own, with): (Vec<_>, Vec<_>) = {
                let conditions = filter.map(split_conjunction_owned).unwrap_or_default();
                let mut parts = (Vec::new(), Vec::new());
                for condition in conditions {
                    let part = if has_subquery(&condition)? { &mut parts.1 } else { &mut parts.0 };
                    part.push(condition);
                }
                parts
            };
            let keys = names::key_conditions(on, null_equality);
            let joined = LogicalPlanBuilder::from(left)
                .join_on(right, JoinType::Inner, keys.into_iter().chain(own))?
                .build()?;
            return match with.into_iter().reduce(Expr::and) {
                Some(condition) => self.filter(Filter::try_new(condition, Arc::new(joined))?),
                None => Ok(joined),
            };
        }
        for (of_left, of_right) in &mut on {
            *of_left = self.value(of_left.clone(), &mut left)?;
            *of_right = self.value(of_right.clone(), &mut right)?;
        }
        let mut conditions = names::key_conditions(on, null_equality);
        for condition in filter.map(split_conjunction_owned).unwrap_or_default() {
            conditions.push(match has_subquery(&condition)? {
                true => self.of_one_side(condition, &mut left, &mut right)?,
                false => condition,
            });
        }
        let joined = LogicalPlanBuilder::from(left).join_on(right, join_type, conditions)?;
        keep_columns(joined.build()?, columns)
    }

    fn of_one_side(
        &mut self,
        condition: Expr,
        left: &mut LogicalPlan,
        right: &mut LogicalPlan,
    ) -> DfResult<Expr> {
        let condition = condition.transform_up(|expr| {
            let Some(subquery) = subquery_of(&expr) else { return Ok(Transformed::no(expr)) };
            let mut needed: Vec<Column> = expr.column_refs().into_iter().cloned().collect();
            needed.extend(subquery.outer_ref_columns.iter().filter_map(|outer| match outer {
                Expr::OuterReferenceColumn(_, column) => Some(column.clone()),
                _ => None,
            }));
            let of = |plan: &LogicalPlan| needed.iter().any(|name| plan.schema().has_column(name));
            let side = match (of(left), of(right)) {
                (true, true) => {
                    return Err(Error::query(
                        "a subquery in ON of an outer join is not supported where it refers to both sides; compute it in a \
                         subquery of one side, or write the join as INNER JOIN with UNION ALL of the rows without a match",
                    )
                    .into());
                }
                (true, false) => &mut *left,
                (false, _) => &mut *right,
            };
            let (extended, value) = self.column(expr, side.clone())?;
            *side = extended;
            Ok(Transformed::yes(value))
        })?;
        Ok(condition.data)
    }

    /// A join whose right side refers to columns of its left side.
    fn lateral(&mut self, join: Join) -> DfResult<LogicalPlan> {
        let columns = columns_of(&join.schema);
        let right = Arc::unwrap_or_clone(join.right).transform_down(|node| match node {
            LogicalPlan::Subquery(subquery) => {
                Ok(Transformed::yes(Arc::unwrap_or_clone(subquery.subquery)))
            }
            other => Ok(Transformed::no(other)),
        })?;
        let left = Arc::unwrap_or_clone(join.left);
        if !matches!(join.join_type, JoinType::Inner | JoinType::Left) {
            return Err(Error::query(format!(
                "LATERAL on the right side of {} JOIN is not supported; write INNER JOIN or LEFT JOIN",
                join.join_type
            ))
            .into());
        }
        let rows = self.rows_beside(right.data, &left)?;
        let mut conditions = names::key_conditions(join.on, join.null_equality);
        conditions.extend(join.filter);
        conditions.extend(rows.conditions);
        let joined =
            LogicalPlanBuilder::from(left).join_on(rows.plan, join.join_type, conditions)?;
        keep_columns(joined.build()?, columns)
    }
}

/// Lets the subqueries of an ORDER BY refer to columns that the SELECT list leaves out.
fn with_hidden_columns(sort: Sort) -> DfResult<Sort> {
    let LogicalPlan::Projection(projection) = &*sort.input else { return Ok(sort) };
    let mut exprs = projection.expr.clone();
    let hidden = |column: &Column| {
        !sort.input.schema().has_column(column) && projection.input.schema().has_column(column)
    };
    for order in &sort.expr {
        order.expr.apply(|expr| {
            for outer in subquery_of(expr).iter().flat_map(|subquery| &subquery.outer_ref_columns) {
                if let Expr::OuterReferenceColumn(_, column) = outer
                    && hidden(column)
                    && !exprs.contains(&Expr::Column(column.clone()))
                {
                    exprs.push(Expr::Column(column.clone()));
                }
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
    }
    let input = Projection::try_new(exprs, Arc::clone(&projection.input))?;
    Ok(Sort { input: Arc::new(LogicalPlan::Projection(input)), ..sort })
}

fn has_relation(plan: &LogicalPlan) -> DfResult<bool> {
    plan.exists(|node| Ok(matches!(node, LogicalPlan::Subquery(_))))
}
