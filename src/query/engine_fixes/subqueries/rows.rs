//! The rows of a subquery beside the rows of the query around it: a plan that refers to nothing
//! outside, and the conditions by which the rows of both belong together.

use std::sync::Arc;

use datafusion::common::{Column, DFSchema, JoinType};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::utils::split_conjunction_owned;
use datafusion::logical_expr::{
    Distinct, Expr, LogicalPlan, LogicalPlanBuilder, Projection, SubqueryAlias,
};

use super::Unnest;
use super::names::{
    aliased, key_conditions, refers, renamed, same_values, substituted, with_columns,
};

/// The rows of a subquery, and their relation to the rows of the query around it.
pub(super) struct Rows {
    /// The subquery's columns, followed by the columns that the conditions need.
    pub plan: LogicalPlan,
    /// Conditions over the columns of the query around it and of the plan.
    pub conditions: Vec<Expr>,
}

/// The rows under a name of their own.
pub(super) struct NamedRows {
    pub plan: LogicalPlan,
    pub conditions: Vec<Expr>,
    /// The name of the relation.
    pub name: String,
    /// The subquery's first columns, as many as were asked for.
    pub values: Vec<Expr>,
}

/// A plan whose conditions on the query around it were taken out.
pub(super) struct Pulled {
    pub plan: LogicalPlan,
    /// The conditions, over the plan's columns; they still refer to the query around.
    pub conditions: Vec<Expr>,
}

/// The columns of `around` that a plan refers to, each once.
pub(super) fn outer_columns(plan: &LogicalPlan, around: &DFSchema) -> Vec<Column> {
    let mut found: Vec<Column> = Vec::new();
    for expr in plan.all_out_ref_exprs() {
        if let Expr::OuterReferenceColumn(_, column) = expr
            && around.has_column(&column)
            && !found.contains(&column)
        {
            found.push(column);
        }
    }
    found
}

/// Returns true if a plan refers to one of these columns of the query around it.
pub(super) fn depends(plan: &LogicalPlan, outer: &[Column]) -> bool {
    let of_outer = |expr: &Expr| matches!(expr, Expr::OuterReferenceColumn(_, column) if outer.contains(column));
    plan.all_out_ref_exprs().iter().any(of_outer)
}

impl Unnest {
    /// The rows of a subquery beside `input`, under their own names.
    pub(super) fn rows_beside(&mut self, plan: LogicalPlan, input: &LogicalPlan) -> DfResult<Rows> {
        let outer = outer_columns(&plan, input.schema());
        let (plan, conditions) = self.rows_of(plan, input, &outer)?;
        let by: Vec<Expr> = outer.iter().cloned().map(Expr::Column).collect();
        let over_input = |condition| substituted(condition, &outer, &by);
        let conditions = conditions.into_iter().map(over_input).collect::<DfResult<_>>()?;
        Ok(Rows { plan, conditions })
    }

    /// The rows of a subquery beside `input`, under a name that nothing else has: it may be over
    /// the same tables.
    pub(super) fn named_rows(
        &mut self,
        plan: LogicalPlan,
        input: &LogicalPlan,
        columns: usize,
    ) -> DfResult<NamedRows> {
        let outer = outer_columns(&plan, input.schema());
        let mut first = plan.schema().columns();
        first.truncate(columns);
        let (plan, conditions) = self.rows_of(plan, input, &outer)?;
        let name = self.names.next("s");
        let all = plan.schema().columns();
        let mut needed = Vec::new();
        for condition in &conditions {
            for column in condition.column_refs() {
                if all.contains(column) && !needed.contains(column) {
                    needed.push(column.clone());
                }
            }
        }
        let mut exprs = Vec::new();
        let mut to = Vec::new();
        let from: Vec<Column> = first.into_iter().chain(needed).collect();
        for (number, column) in from.iter().enumerate() {
            let own = format!("{name}_{number}");
            exprs.push(Expr::Column(column.clone()).alias(&own));
            to.push(Expr::Column(Column::new(Some(name.as_str()), own)));
        }
        let plan = Projection::try_new(exprs, Arc::new(plan))?;
        let plan = aliased(LogicalPlan::Projection(plan), &name)?;
        let by: Vec<Expr> = outer.iter().cloned().map(Expr::Column).collect();
        let conditions = conditions.into_iter().map(|condition| {
            // First the subquery's own columns: those around it may have their names.
            substituted(renamed(condition, &from, &to)?, &outer, &by)
        });
        let conditions = conditions.collect::<DfResult<_>>()?;
        to.truncate(columns);
        Ok(NamedRows { plan, conditions, name, values: to })
    }

    /// The rows, and conditions that refer to the columns of `input` as outer ones.
    fn rows_of(
        &mut self,
        plan: LogicalPlan,
        input: &LogicalPlan,
        outer: &[Column],
    ) -> DfResult<(LogicalPlan, Vec<Expr>)> {
        if outer.is_empty() {
            return Ok((plan, Vec::new()));
        }
        if let Some(pulled) = self.pulled(&plan, outer)? {
            return Ok((pulled.plan, pulled.conditions));
        }
        let domain = self.domain(input, outer)?;
        let pushed = self.push(&plan, &domain)?;
        let conditions = same_values(&domain.values(input)?, &pushed.keys);
        Ok((pushed.plan, conditions))
    }

    /// A plan without its conditions on the query around it, where they may stand above all of it:
    /// above filters, projections, inner joins and the sides of joins whose rows are all kept. None
    /// where they may not.
    pub(super) fn pulled(
        &mut self,
        plan: &LogicalPlan,
        outer: &[Column],
    ) -> DfResult<Option<Pulled>> {
        if !depends(plan, outer) {
            return Ok(Some(Pulled { plan: plan.clone(), conditions: Vec::new() }));
        }
        match plan {
            LogicalPlan::Filter(filter) => {
                let Some(mut pulled) = self.pulled(&filter.input, outer)? else { return Ok(None) };
                let mut own = Vec::new();
                for condition in split_conjunction_owned(filter.predicate.clone()) {
                    match refers(&condition, outer) {
                        true => pulled.conditions.push(condition),
                        false => own.push(condition),
                    }
                }
                if let Some(own) = own.into_iter().reduce(Expr::and) {
                    pulled.plan = LogicalPlanBuilder::from(pulled.plan).filter(own)?.build()?;
                }
                Ok(Some(pulled))
            }
            LogicalPlan::Projection(projection) => {
                if projection.expr.iter().any(|expr| refers(expr, outer)) {
                    return Ok(None);
                }
                let Some(pulled) = self.pulled(&projection.input, outer)? else { return Ok(None) };
                self.projected(projection.expr.clone(), pulled).map(Some)
            }
            LogicalPlan::SubqueryAlias(alias) => {
                let Some(pulled) = self.pulled(&alias.input, outer)? else { return Ok(None) };
                renamed_pull(alias, pulled).map(Some)
            }
            // The order of a subquery's rows says nothing without a limit, above which nothing is
            // moved.
            LogicalPlan::Sort(sort) if sort.fetch.is_none() => self.pulled(&sort.input, outer),
            LogicalPlan::Join(join) => {
                let conditions = key_conditions(join.on.clone(), join.null_equality)
                    .into_iter()
                    .chain(join.filter.clone().map(split_conjunction_owned).unwrap_or_default());
                let (above, own): (Vec<_>, Vec<_>) =
                    conditions.partition(|condition| refers(condition, outer));
                let inner = join.join_type == JoinType::Inner;
                let keeps_left = matches!(
                    join.join_type,
                    JoinType::Left | JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark
                );
                if !inner && (depends(&join.right, outer) || !keeps_left || !above.is_empty()) {
                    return Ok(None);
                }
                let Some(left) = self.pulled(&join.left, outer)? else { return Ok(None) };
                let Some(right) = self.pulled(&join.right, outer)? else { return Ok(None) };
                let plan = LogicalPlanBuilder::from(left.plan)
                    .join_on(right.plan, join.join_type, own)?
                    .build()?;
                let conditions = left.conditions.into_iter().chain(right.conditions).chain(above);
                Ok(Some(Pulled { plan, conditions: conditions.collect() }))
            }
            _ => Ok(None),
        }
    }

    /// A projection of the pulled plan, with the columns that its conditions need.
    pub(super) fn projected(&mut self, exprs: Vec<Expr>, pulled: Pulled) -> DfResult<Pulled> {
        let mut exprs = exprs;
        let (mut from, mut to) = (Vec::new(), Vec::new());
        let inner = pulled.plan.schema().columns();
        for condition in &pulled.conditions {
            for column in condition.column_refs() {
                if inner.contains(column) && !from.contains(column) {
                    let name = self.names.next("c");
                    exprs.push(Expr::Column(column.clone()).alias(&name));
                    to.push(Expr::Column(Column::from_name(name)));
                    from.push(column.clone());
                }
            }
        }
        let plan = Projection::try_new(exprs, Arc::new(pulled.plan))?;
        let conditions = pulled.conditions.into_iter().map(|one| renamed(one, &from, &to));
        let conditions = conditions.collect::<DfResult<_>>()?;
        Ok(Pulled { plan: LogicalPlan::Projection(plan), conditions })
    }

    /// An expression as a column of `input`, so that it is computed once for each row.
    pub(super) fn hoisted(
        &mut self,
        expr: Expr,
        input: LogicalPlan,
    ) -> DfResult<(LogicalPlan, Expr)> {
        if matches!(expr, Expr::Column(_) | Expr::Literal(..) | Expr::OuterReferenceColumn(..)) {
            return Ok((input, expr));
        }
        let name = self.names.next("x");
        let input = with_columns(input, vec![expr.alias(&name)])?;
        Ok((input, Expr::Column(Column::from_name(name))))
    }
}

pub(super) fn renamed_pull(alias: &SubqueryAlias, pulled: Pulled) -> DfResult<Pulled> {
    let from = pulled.plan.schema().columns();
    let plan = LogicalPlanBuilder::from(pulled.plan).alias(alias.alias.clone())?.build()?;
    let to: Vec<Expr> = plan.schema().columns().into_iter().map(Expr::Column).collect();
    let conditions = pulled.conditions.into_iter().map(|one| renamed(one, &from, &to));
    Ok(Pulled { conditions: conditions.collect::<DfResult<_>>()?, plan })
}

/// The rows that make a difference to whether there is one: without an order, copies, or a limit
/// that keeps one.
pub(super) fn any_of(plan: LogicalPlan, exists: bool) -> LogicalPlan {
    use datafusion::logical_expr::{FetchType, SkipType};
    match plan {
        LogicalPlan::Sort(sort) if sort.fetch.is_none() => {
            any_of(Arc::unwrap_or_clone(sort.input), exists)
        }
        LogicalPlan::Distinct(Distinct::All(input)) => any_of(Arc::unwrap_or_clone(input), exists),
        LogicalPlan::Limit(limit) if exists => {
            let all = matches!(limit.get_skip_type(), Ok(SkipType::Literal(0)))
                && matches!(limit.get_fetch_type(), Ok(FetchType::Literal(Some(1..))));
            match all {
                true => any_of(Arc::unwrap_or_clone(limit.input), exists),
                false => LogicalPlan::Limit(limit),
            }
        }
        other => other,
    }
}
