//! Row values: `(a, b) IN (SELECT x, y …)` compares part by part, and `(a, b) = (SELECT x, y …)`
//! takes all parts of one row.

use std::sync::Arc;

use datafusion::common::Column;
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{
    Expr, LogicalPlan, LogicalPlanBuilder, Operator, Projection, SubqueryAlias, binary_expr, lit,
    when,
};

use super::Unnest;
use super::values::{lost, one_row};
use crate::query::engine_fixes::row_comparisons::{ROW, VALUE};

impl Unnest {
    /// Returns true if no part of a row differs from that of a row of the subquery, where NULL
    /// differs from nothing. Few rows have NULL on either side: they are found first in the
    /// subquery, and in `input` by a key that others lack.
    pub(super) fn unknown_row(
        &mut self,
        values: &[Expr],
        plan: LogicalPlan,
        input: LogicalPlan,
    ) -> DfResult<(LogicalPlan, Expr)> {
        let differs_nowhere = |row: &[Expr]| -> Vec<Expr> {
            let parts = values.iter().zip(row);
            parts.map(|(value, part)| value.clone().eq(part.clone()).is_not_false()).collect()
        };
        let columns = plan.schema().columns().into_iter().map(Expr::Column);
        let has_null = |parts: &mut dyn Iterator<Item = Expr>| {
            parts.map(Expr::is_null).reduce(Expr::or).unwrap_or(lit(false))
        };
        let is_partial = has_null(&mut columns.clone());
        let partial = LogicalPlanBuilder::from(plan.clone()).filter(is_partial)?.build()?;
        let (input, beside_partial) =
            self.mark(partial, &input, values.len(), |row| differs_nowhere(&row))?;
        let there = self.names.next("n");
        let all = columns.chain([lit(true).alias(&there)]);
        let all = LogicalPlan::Projection(Projection::try_new(all.collect(), Arc::new(plan))?);
        let partial = when(has_null(&mut values.iter().cloned()), lit(true)).end()?;
        let (input, partial) = self.hoisted(partial, input)?;
        let (input, of_partial) = self.mark(all, &input, values.len() + 1, |mut row| {
            let there = row.pop();
            let mut conditions = differs_nowhere(&row);
            conditions.extend(there.map(|there| partial.eq(there)));
            conditions
        })?;
        Ok((input, beside_partial.or(of_partial)))
    }

    /// A column of a subquery that is one row. All of them are taken at once: they must be of the
    /// same row.
    pub(super) fn part_of_row(
        &mut self,
        row: SubqueryAlias,
        at: usize,
        mut input: LogicalPlan,
    ) -> DfResult<(LogicalPlan, Expr)> {
        let name = row.alias.to_string();
        let is_there =
            |values: &&Vec<Column>| values.iter().all(|column| input.schema().has_column(column));
        let values = match self.rows.get(&name).filter(is_there) {
            Some(values) => values.clone(),
            None => {
                let columns = row.schema.fields().len();
                let plan = one_row(LogicalPlan::SubqueryAlias(row), columns)?;
                let (extended, values) = self.one_row_of(plan, input, columns)?;
                input = extended;
                let column = |value| match value {
                    Expr::Column(column) => Ok(column),
                    _ => Err(lost()),
                };
                let values = values.into_iter().map(column).collect::<DfResult<Vec<_>>>()?;
                self.rows.insert(name, values.clone());
                values
            }
        };
        Ok((input, Expr::Column(values.get(at).cloned().ok_or_else(lost)?)))
    }
}

/// The values that IN compares with a subquery's columns, and the subquery: of a row there are
/// several.
pub(super) fn compared(value: Expr, plan: LogicalPlan) -> DfResult<(Vec<Expr>, LogicalPlan)> {
    match (value, relation_below(&plan, ROW)) {
        (Expr::ScalarFunction(row), Some((relation, _))) => {
            Ok((row.args, LogicalPlan::SubqueryAlias(relation)))
        }
        (_, Some(_)) => Err(lost()),
        (value, None) => Ok((vec![value], plan)),
    }
}

/// The relation of a subquery that is one row, and which of its columns is meant; None for other
/// subqueries.
pub(super) fn row_value(plan: &LogicalPlan) -> Option<(SubqueryAlias, usize)> {
    relation_below(plan, VALUE)
}

/// The relation whose name begins so, and which of its columns a plan takes.
fn relation_below(plan: &LogicalPlan, mark: &str) -> Option<(SubqueryAlias, usize)> {
    let LogicalPlan::Projection(projection) = plan else { return None };
    let LogicalPlan::SubqueryAlias(alias) = &*projection.input else { return None };
    let [Expr::Column(column)] = &projection.expr[..] else { return None };
    if !alias.alias.table().starts_with(mark) {
        return None;
    }
    let at = alias.schema.columns().iter().position(|known| known == column)?;
    Some((alias.clone(), at))
}

/// Values compared with the columns of a row, one by one.
pub(super) fn pairs(values: &[Expr], op: Operator, row: Vec<Expr>) -> Vec<Expr> {
    values.iter().zip(row).map(|(value, part)| binary_expr(value.clone(), op, part)).collect()
}
