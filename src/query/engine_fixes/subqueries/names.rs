//! Names that nothing else has, and columns that are kept.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, DFSchema, NullEquality, ScalarValue};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{
    Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, Operator, Projection, binary_expr, lit,
    when,
};

/// Makes names of relations and columns.
#[derive(Default)]
pub(super) struct Names {
    made: usize,
}

impl Names {
    pub(super) fn next(&mut self, kind: &str) -> String {
        self.made += 1;
        format!("__{kind}{}", self.made)
    }
}

/// The columns of a schema, with their qualifiers.
pub(super) fn columns_of(schema: &DFSchema) -> Vec<Column> {
    schema.columns()
}

/// The plan with these columns alone.
pub(super) fn keep_columns(plan: LogicalPlan, columns: Vec<Column>) -> DfResult<LogicalPlan> {
    if plan.schema().columns() == columns {
        return Ok(plan);
    }
    let exprs = columns.into_iter().map(Expr::Column).collect();
    Ok(LogicalPlan::Projection(Projection::try_new(exprs, Arc::new(plan))?))
}

/// The plan with columns added to it, and these columns.
pub(super) fn with_columns(plan: LogicalPlan, added: Vec<Expr>) -> DfResult<LogicalPlan> {
    let mut exprs: Vec<Expr> = plan.schema().columns().into_iter().map(Expr::Column).collect();
    exprs.extend(added);
    Ok(LogicalPlan::Projection(Projection::try_new(exprs, Arc::new(plan))?))
}

/// The pairs of a join as conditions.
pub(super) fn key_conditions(on: Vec<(Expr, Expr)>, nulls: NullEquality) -> Vec<Expr> {
    let operator = match nulls {
        NullEquality::NullEqualsNothing => Operator::Eq,
        NullEquality::NullEqualsNull => Operator::IsNotDistinctFrom,
    };
    on.into_iter().map(|(left, right)| binary_expr(left, operator, right)).collect()
}

/// Two lists of columns have the same values, NULL among them.
pub(super) fn same_values(left: &[Expr], right: &[Column]) -> Vec<Expr> {
    let pairs = left.iter().zip(right);
    pairs
        .map(|(left, right)| {
            binary_expr(left.clone(), Operator::IsNotDistinctFrom, Expr::Column(right.clone()))
        })
        .collect()
}

/// An expression in which zeros of both signs are one value: they are equal, but make two groups.
pub(super) fn one_zero(expr: Expr, schema: &DFSchema) -> DfResult<Expr> {
    let data_type = expr.get_type(schema)?;
    if !matches!(data_type, DataType::Float16 | DataType::Float32 | DataType::Float64) {
        return Ok(expr);
    }
    let zero = lit(ScalarValue::new_zero(&data_type)?);
    when(expr.clone().eq(zero.clone()), zero).otherwise(expr)
}

/// Returns true if an expression refers to one of these columns of the query around it.
pub(super) fn refers(expr: &Expr, outer: &[Column]) -> bool {
    expr.exists(|expr| {
        Ok(matches!(expr, Expr::OuterReferenceColumn(_, column) if outer.contains(column)))
    })
    .unwrap_or(true)
}

/// The expression with these references to the query around it replaced.
pub(super) fn substituted(expr: Expr, outer: &[Column], by: &[Expr]) -> DfResult<Expr> {
    let expr = expr.transform_up(|expr| match &expr {
        Expr::OuterReferenceColumn(_, column) => {
            Ok(match outer.iter().position(|known| known == column) {
                Some(at) => Transformed::yes(by[at].clone()),
                None => Transformed::no(expr),
            })
        }
        _ => Ok(Transformed::no(expr)),
    })?;
    Ok(expr.data)
}

/// The expression with these columns replaced.
pub(super) fn renamed(expr: Expr, from: &[Column], to: &[Expr]) -> DfResult<Expr> {
    let expr = expr.transform_up(|expr| match &expr {
        Expr::Column(column) => Ok(match from.iter().position(|known| known == column) {
            Some(at) => Transformed::yes(to[at].clone()),
            None => Transformed::no(expr),
        }),
        _ => Ok(Transformed::no(expr)),
    })?;
    Ok(expr.data)
}

/// The plan under another name.
pub(super) fn aliased(plan: LogicalPlan, name: &str) -> DfResult<LogicalPlan> {
    LogicalPlanBuilder::from(plan).alias(name)?.build()
}
