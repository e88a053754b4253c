//! The value of a subquery as a column beside the rows of the query around it.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::{Column, JoinType, ScalarValue};
use datafusion::error::Result as DfResult;
use datafusion::functions_aggregate::expr_fn::count;
use datafusion::logical_expr::expr::{Exists, InSubquery, SetComparison, SetQuantifier};
use datafusion::logical_expr::{
    BinaryExpr, EmptyRelation, Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, Operator,
    Projection, binary_expr, lit, not, when,
};

use super::Unnest;
use super::dependent::is_volatile;
use super::names::{aliased, refers, substituted};
use super::row_values::{compared, pairs, row_value};
use super::rows::{Pulled, any_of, outer_columns};
use crate::Error;
use crate::query::engine_fixes::single_value::only_value;

impl Unnest {
    /// `input` with the columns that a subquery's value needs, and the value.
    pub(super) fn column(
        &mut self,
        expr: Expr,
        input: LogicalPlan,
    ) -> DfResult<(LogicalPlan, Expr)> {
        match expr {
            Expr::Exists(Exists { subquery, negated }) => {
                let (input, found) = self.exists(own(subquery.subquery), input)?;
                Ok((input, if negated { not(found) } else { found }))
            }
            Expr::InSubquery(InSubquery { expr, subquery, negated }) => {
                let (values, plan) = compared(*expr, own(subquery.subquery))?;
                let (input, found) = self.any(values, Operator::Eq, plan, input)?;
                Ok((input, if negated { not(found) } else { found }))
            }
            Expr::SetComparison(SetComparison { expr, subquery, op, quantifier }) => {
                let plan = own(subquery.subquery);
                match quantifier {
                    SetQuantifier::Any => self.any(vec![*expr], op, plan, input),
                    SetQuantifier::All => {
                        let opposite = op.negate().ok_or_else(|| {
                            Error::query(format!(
                                "{op} ALL (subquery) is not supported; write =, <>, <, <=, > or >="
                            ))
                        })?;
                        let (input, found) = self.any(vec![*expr], opposite, plan, input)?;
                        Ok((input, not(found)))
                    }
                }
            }
            Expr::ScalarSubquery(subquery) => match row_value(&subquery.subquery) {
                Some((row, at)) => self.part_of_row(row, at, input),
                None => self.scalar(own(subquery.subquery), input),
            },
            other => Ok((input, other)),
        }
    }

    /// `input` without the rows for which a condition that is a subquery is not true, as a semi or
    /// anti join. None for other conditions, and for conditions that must tell NULL from false.
    pub(super) fn restricted(
        &mut self,
        condition: &Expr,
        input: &LogicalPlan,
    ) -> DfResult<Option<LogicalPlan>> {
        let (condition, inverted) = match condition {
            Expr::Not(inner) => (&**inner, true),
            other => (other, false),
        };
        let input = input.clone();
        match condition.clone() {
            Expr::Exists(Exists { subquery, negated }) => {
                let plan = any_of(own(subquery.subquery), true);
                if outer_columns(&plan, input.schema()).is_empty() {
                    return Ok(None);
                }
                let rows = self.named_rows(plan, &input, 1)?;
                let kind = match negated != inverted {
                    true => JoinType::LeftAnti,
                    false => JoinType::LeftSemi,
                };
                joined(input, rows.plan, kind, rows.conditions).map(Some)
            }
            Expr::InSubquery(InSubquery { expr, subquery, negated }) => {
                let (values, plan) = compared(*expr, own(subquery.subquery))?;
                self.restricted_by(values, Operator::Eq, plan, input, negated != inverted)
            }
            Expr::SetComparison(SetComparison {
                expr,
                subquery,
                op,
                quantifier: SetQuantifier::Any,
            }) if !inverted => {
                self.restricted_by(vec![*expr], op, own(subquery.subquery), input, false)
            }
            _ => Ok(None),
        }
    }

    fn restricted_by(
        &mut self,
        values: Vec<Expr>,
        op: Operator,
        plan: LogicalPlan,
        mut input: LogicalPlan,
        without: bool,
    ) -> DfResult<Option<LogicalPlan>> {
        let plan = any_of(plan, false);
        for value in &values {
            if super::has_subquery(value)? {
                return Ok(None);
            }
        }
        if without && may_be_null(&values, &plan, &input) {
            return Ok(None);
        }
        let values = self.all_hoisted(values, &mut input)?;
        let rows = self.named_rows(plan, &input, values.len())?;
        let mut conditions = rows.conditions;
        conditions.extend(pairs(&values, op, rows.values));
        let kind = if without { JoinType::LeftAnti } else { JoinType::LeftSemi };
        joined(input, rows.plan, kind, conditions).map(Some)
    }

    fn exists(&mut self, plan: LogicalPlan, input: LogicalPlan) -> DfResult<(LogicalPlan, Expr)> {
        let plan = any_of(plan, true);
        if !outer_columns(&plan, input.schema()).is_empty() {
            return self.mark(plan, &input, 1, |_| Vec::new());
        }
        let first = LogicalPlanBuilder::from(plan).limit(0, Some(1))?.build()?;
        let (input, counts) = self.one_row_beside(first, vec![count(lit(1_i64))], input)?;
        let [rows] = &counts[..] else { return Err(lost()) };
        Ok((input, rows.clone().gt(lit(0_i64))))
    }

    /// Whether `values op row` is true for a row of the subquery, else whether it is NULL for one.
    fn any(
        &mut self,
        values: Vec<Expr>,
        op: Operator,
        plan: LogicalPlan,
        mut input: LogicalPlan,
    ) -> DfResult<(LogicalPlan, Expr)> {
        let plan = any_of(plan, false);
        let values = self.all_hoisted(values, &mut input)?;
        let columns = values.len();
        let fits = |row: Vec<Expr>| pairs(&values, op, row);
        if !may_be_null(&values, &plan, &input) {
            return self.mark(plan, &input, columns, fits);
        }
        if is_volatile(&plan)? {
            return Err(Error::query(
                "IN, ANY or ALL of a subquery that draws other rows each time (random(), uuid()) is not supported where columns \
                 may be NULL: its rows are looked at twice; leave NULL out of both sides with WHERE … IS NOT NULL",
            )
            .into());
        }
        let correlated = !outer_columns(&plan, input.schema()).is_empty();
        let (input, found) = self.mark(plan.clone(), &input, columns, fits)?;
        let (input, unknown) = match (&values[..], correlated) {
            ([value], true) => self.mark(plan, &input, 1, |row| {
                row.into_iter().map(|row| binary_expr(value.clone(), op, row).is_null()).collect()
            })?,
            ([value], false) => {
                let column = Expr::Column(plan.schema().columns()[0].clone());
                let wanted = vec![count(lit(1_i64)), count(column)];
                let (input, counts) = self.one_row_beside(plan, wanted, input)?;
                let [rows, known] = &counts[..] else { return Err(lost()) };
                let none = value.clone().is_null().and(rows.clone().gt(lit(0_i64)));
                (input, known.clone().lt(rows.clone()).or(none))
            }
            _ => self.unknown_row(&values, plan, input)?,
        };
        let null = lit(ScalarValue::Boolean(None));
        let value = when(found, lit(true)).when(unknown, null).otherwise(lit(false))?;
        Ok((input, value))
    }

    /// `input` with a column that is true where the subquery has a row that belongs to it and fits.
    pub(super) fn mark(
        &mut self,
        plan: LogicalPlan,
        input: &LogicalPlan,
        columns: usize,
        fits: impl FnOnce(Vec<Expr>) -> Vec<Expr>,
    ) -> DfResult<(LogicalPlan, Expr)> {
        let rows = self.named_rows(plan, input, columns)?;
        let mark = Expr::Column(Column::new(Some(rows.name.as_str()), "mark"));
        let conditions = rows.conditions.into_iter().chain(fits(rows.values)).collect();
        Ok((joined(input.clone(), rows.plan, JoinType::LeftMark, conditions)?, mark))
    }

    /// Expressions as columns of `input`.
    fn all_hoisted(&mut self, exprs: Vec<Expr>, input: &mut LogicalPlan) -> DfResult<Vec<Expr>> {
        let mut hoisted = Vec::with_capacity(exprs.len());
        for expr in exprs {
            let (extended, column) = self.hoisted(expr, input.clone())?;
            *input = extended;
            hoisted.push(column);
        }
        Ok(hoisted)
    }

    /// `input` with aggregates over all rows of a plan.
    fn one_row_beside(
        &mut self,
        plan: LogicalPlan,
        wanted: Vec<Expr>,
        input: LogicalPlan,
    ) -> DfResult<(LogicalPlan, Vec<Expr>)> {
        let name = self.names.next("s");
        let (mut aggregates, mut values) = (Vec::new(), Vec::new());
        for (number, aggregate) in wanted.into_iter().enumerate() {
            let own = format!("{name}_{number}");
            aggregates.push(aggregate.alias(&own));
            values.push(Expr::Column(Column::new(Some(name.as_str()), own)));
        }
        let row = LogicalPlanBuilder::from(plan).aggregate(Vec::<Expr>::new(), aggregates)?;
        let row = aliased(row.build()?, &name)?;
        Ok((LogicalPlanBuilder::from(input).cross_join(row)?.build()?, values))
    }

    /// The value of the subquery's row, NULL where it has none, an error where it has several.
    fn scalar(&mut self, plan: LogicalPlan, input: LogicalPlan) -> DfResult<(LogicalPlan, Expr)> {
        let outer = outer_columns(&plan, input.schema());
        let plan = one_row(plan, 1)?;
        if !outer.is_empty()
            && let Some(grouped) = self.grouped(&plan, &outer, &input)?
        {
            return Ok(grouped);
        }
        let (input, values) = self.one_row_of(plan, input, 1)?;
        Ok((input, values.into_iter().next().ok_or_else(lost)?))
    }

    /// `input` with the columns of a subquery that has one row at most.
    pub(super) fn one_row_of(
        &mut self,
        plan: LogicalPlan,
        input: LogicalPlan,
        columns: usize,
    ) -> DfResult<(LogicalPlan, Vec<Expr>)> {
        let correlated = !outer_columns(&plan, input.schema()).is_empty();
        let rows = self.named_rows(plan, &input, columns)?;
        let input = match correlated {
            true => joined(input, rows.plan, JoinType::Left, rows.conditions)?,
            false => LogicalPlanBuilder::from(input).cross_join(rows.plan)?.build()?,
        };
        Ok((input, rows.values))
    }

    /// An aggregate whose conditions on the query around are equalities: it is grouped by their
    /// other sides.
    fn grouped(
        &mut self,
        plan: &LogicalPlan,
        outer: &[Column],
        input: &LogicalPlan,
    ) -> DfResult<Option<(LogicalPlan, Expr)>> {
        let mut above = Vec::new();
        let mut node = plan;
        let aggregate = loop {
            match node {
                LogicalPlan::Projection(projection)
                    if !projection.expr.iter().any(|expr| refers(expr, outer)) =>
                {
                    above.push(node);
                    node = &projection.input;
                }
                LogicalPlan::SubqueryAlias(alias) => {
                    above.push(node);
                    node = &alias.input;
                }
                LogicalPlan::Aggregate(aggregate) if aggregate.group_expr.is_empty() => {
                    break aggregate;
                }
                _ => return Ok(None),
            }
        };
        if aggregate.aggr_expr.iter().any(|expr| refers(expr, outer)) {
            return Ok(None);
        }
        let Some(pulled) = self.pulled(&aggregate.input, outer)? else { return Ok(None) };
        let by: Vec<Expr> = outer.iter().cloned().map(Expr::Column).collect();
        let mut sides = Vec::new();
        for condition in &pulled.conditions {
            let Some((of_around, of_rows)) = equality(condition, outer) else { return Ok(None) };
            let of_around = substituted(of_around, outer, &by)?;
            let types =
                (of_around.get_type(input.schema())?, of_rows.get_type(pulled.plan.schema())?);
            if types.0 != types.1 || !is_one_group(&types.0) {
                return Ok(None);
            }
            sides.push((of_around, of_rows));
        }
        if sides.is_empty() {
            return Ok(None);
        }
        // What it is of no rows, for those around it that have none.
        let empty = match above.iter().all(|node| is_plain(node))
            && aggregate.aggr_expr.iter().all(is_null_of_none)
        {
            true => None,
            false => {
                let rows = LogicalPlan::EmptyRelation(EmptyRelation {
                    produce_one_row: false,
                    schema: Arc::clone(pulled.plan.schema()),
                });
                let mut row = LogicalPlanBuilder::from(rows)
                    .aggregate(Vec::<Expr>::new(), aggregate.aggr_expr.clone())?
                    .build()?;
                for node in above.iter().rev() {
                    row = node.with_new_exprs(node.expressions(), vec![row])?;
                }
                Some(row)
            }
        };
        let mut keys = Vec::new();
        let mut groups = Vec::new();
        for (_, of_rows) in &sides {
            let name = self.names.next("k");
            groups.push(of_rows.clone().alias(&name));
            keys.push(Expr::Column(Column::from_name(name)));
        }
        let rows = LogicalPlanBuilder::from(pulled.plan)
            .aggregate(groups, aggregate.aggr_expr.clone())?
            .build()?;
        let mut pulled = Pulled { plan: rows, conditions: keys };
        for node in above.iter().rev() {
            pulled = match node {
                LogicalPlan::Projection(projection) => {
                    self.projected(projection.expr.clone(), pulled)?
                }
                LogicalPlan::SubqueryAlias(alias) => super::rows::renamed_pull(alias, pulled)?,
                _ => return Err(lost()),
            };
        }
        let name = self.names.next("s");
        let of_plan = Expr::Column(plan.schema().columns()[0].clone());
        let mut exprs = vec![of_plan.alias(format!("{name}_0"))];
        let of = |number: usize| {
            Expr::Column(Column::new(Some(name.as_str()), format!("{name}_{number}")))
        };
        let mut conditions = Vec::new();
        for (number, (key, (of_around, _))) in pulled.conditions.into_iter().zip(sides).enumerate()
        {
            exprs.push(key.alias(format!("{name}_{}", number + 1)));
            conditions.push(of_around.eq(of(number + 1)));
        }
        let rows = Projection::try_new(exprs, Arc::new(pulled.plan))?;
        let rows = aliased(LogicalPlan::Projection(rows), &name)?;
        let joined = joined(input.clone(), rows, JoinType::Left, conditions)?;
        let Some(empty) = empty else { return Ok(Some((joined, of(0)))) };
        let (joined, none) = self.one_row_of(empty, joined, 1)?;
        let none = none.into_iter().next().ok_or_else(lost)?;
        let value = when(of(1).is_not_null(), of(0)).otherwise(none)?;
        Ok(Some((joined, value)))
    }
}

fn own(plan: Arc<LogicalPlan>) -> LogicalPlan {
    Arc::unwrap_or_clone(plan)
}

fn joined(
    left: LogicalPlan,
    right: LogicalPlan,
    kind: JoinType,
    conditions: Vec<Expr>,
) -> DfResult<LogicalPlan> {
    LogicalPlanBuilder::from(left).join_on(right, kind, conditions)?.build()
}

/// An error that no statement leads to.
pub(super) fn lost() -> datafusion::error::DataFusionError {
    datafusion::error::DataFusionError::Internal("a subquery lost a column".to_owned())
}

/// Returns true if one of the values, or of the columns that they are compared with, may be NULL.
fn may_be_null(values: &[Expr], plan: &LogicalPlan, input: &LogicalPlan) -> bool {
    let fields = plan.schema().fields().iter().take(values.len());
    values.iter().any(|value| value.nullable(input.schema()).unwrap_or(true))
        || fields.into_iter().any(|field| field.is_nullable())
}

/// A plan of one row: NULL where it has none, an error where it has several.
pub(super) fn one_row(plan: LogicalPlan, columns: usize) -> DfResult<LogicalPlan> {
    if has_one_row(&plan) {
        return Ok(plan);
    }
    let columns = plan.schema().columns().into_iter().take(columns);
    let values: Vec<Expr> = columns
        .map(|column| {
            let name = column.name.clone();
            only_value(Expr::Column(column)).alias(name)
        })
        .collect();
    LogicalPlanBuilder::from(plan).aggregate(Vec::<Expr>::new(), values)?.build()
}

/// Returns true if a plan has one row for any content of its tables.
fn has_one_row(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Aggregate(aggregate) => aggregate.group_expr.is_empty(),
        LogicalPlan::EmptyRelation(empty) => empty.produce_one_row,
        LogicalPlan::Values(values) => values.values.len() == 1,
        LogicalPlan::Projection(_) | LogicalPlan::SubqueryAlias(_) | LogicalPlan::Sort(_) => {
            plan.inputs().into_iter().all(has_one_row)
        }
        _ => false,
    }
}

/// The side of an equality that is of the query around, and the one that is of the subquery.
fn equality(condition: &Expr, outer: &[Column]) -> Option<(Expr, Expr)> {
    let Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) = condition else {
        return None;
    };
    let of_rows = |expr: &Expr| !refers(expr, outer) && !expr.column_refs().is_empty();
    let of_around = |expr: &Expr| refers(expr, outer) && expr.column_refs().is_empty();
    if of_around(left) && of_rows(right) {
        Some(((**left).clone(), (**right).clone()))
    } else if of_around(right) && of_rows(left) {
        Some(((**right).clone(), (**left).clone()))
    } else {
        None
    }
}

/// Returns true if equal values of a type are one group: not so zeros of two signs.
fn is_one_group(data_type: &DataType) -> bool {
    data_type.is_integer()
        || data_type.is_temporal()
        || data_type.is_decimal()
        || data_type.is_string()
        || matches!(data_type, DataType::Boolean)
}

/// Returns true if a node only names columns.
fn is_plain(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Projection(projection) => {
            projection.expr.iter().all(|expr| matches!(expr.clone().unalias(), Expr::Column(_)))
        }
        LogicalPlan::SubqueryAlias(_) => true,
        _ => false,
    }
}

/// Returns true if an aggregate of no rows is NULL.
fn is_null_of_none(expr: &Expr) -> bool {
    const NULL_OF_NONE: [&str; 8] =
        ["min", "max", "sum", "avg", "median", "first_value", "last_value", "only_value"];
    matches!(expr.clone().unalias(), Expr::AggregateFunction(function)
        if NULL_OF_NONE.contains(&function.func.name()))
}
