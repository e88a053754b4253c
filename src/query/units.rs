//! Timestamps of different units meet in the finer one. DataFusion takes the coarser, and cuts off what lies between: a
//! millisecond would equal all of its microseconds.

use std::sync::Arc;

use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::DFSchema;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::expr::{Between, Case, InList, InSubquery, ScalarFunction};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    BinaryExpr, Cast, Expr, ExprSchemable, Join, LogicalPlan, LogicalPlanBuilder, Operator, Union,
};

use crate::{Error, Result};

/// Functions that choose one of their arguments, or compare them.
const CHOOSING: [&str; 6] = ["coalesce", "greatest", "least", "nullif", "nvl", "ifnull"];

/// The plan with casts to the finer unit wherever timestamps of different units meet.
///
/// # Errors
/// `Query` where columns of different units are joined with USING.
pub(super) fn finer_units(plan: LogicalPlan) -> Result<LogicalPlan> {
    Ok(plan.transform_up_with_subqueries(of_node)?.data)
}

fn of_node(plan: LogicalPlan) -> DfResult<Transformed<LogicalPlan>> {
    let schema = merge_schema(&plan.inputs());
    let names = NamePreserver::new(&plan);
    let plan = plan.map_expressions(|expr| {
        let name = names.save(&expr);
        let finer = expr.transform_up(|expr| of_expr(expr, &schema))?;
        Ok(finer.update_data(|expr| name.restore(expr)))
    })?;
    let plan = match plan.transformed {
        true => plan.map_data(LogicalPlan::recompute_schema)?,
        false => plan,
    };
    plan.transform_data(|plan| match plan {
        LogicalPlan::Union(union) => of_union(union),
        LogicalPlan::Join(join) => of_join(join),
        _ => Ok(Transformed::no(plan)),
    })
}

fn of_expr(expr: Expr, schema: &DFSchema) -> DfResult<Transformed<Expr>> {
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right })
            if compares(op) || op == Operator::Minus =>
        {
            let (mut left, mut right) = (left, right);
            let changed = align(&mut [&mut left, &mut right], schema);
            Ok(Transformed::new_transformed(
                Expr::BinaryExpr(BinaryExpr { left, op, right }),
                changed,
            ))
        }
        Expr::Between(Between { mut expr, negated, mut low, mut high }) => {
            let changed = align(&mut [&mut expr, &mut low, &mut high], schema);
            let between = Between { expr, negated, low, high };
            Ok(Transformed::new_transformed(Expr::Between(between), changed))
        }
        Expr::InList(InList { mut expr, mut list, negated }) => {
            let mut met: Vec<&mut Expr> = list.iter_mut().collect();
            met.push(&mut expr);
            let changed = align(&mut met, schema);
            let list = InList { expr, list, negated };
            Ok(Transformed::new_transformed(Expr::InList(list), changed))
        }
        Expr::Case(Case { mut expr, mut when_then_expr, mut else_expr }) => {
            let mut results: Vec<&mut Expr> = Vec::new();
            let mut compared: Vec<&mut Expr> = Vec::new();
            for (when, then) in &mut when_then_expr {
                compared.push(when);
                results.push(then);
            }
            results.extend(else_expr.as_deref_mut());
            let mut changed = align(&mut results, schema);
            if let Some(expr) = &mut expr {
                compared.push(expr);
                changed |= align(&mut compared, schema);
            }
            let case = Case { expr, when_then_expr, else_expr };
            Ok(Transformed::new_transformed(Expr::Case(case), changed))
        }
        Expr::ScalarFunction(ScalarFunction { func, mut args })
            if CHOOSING.contains(&func.name()) =>
        {
            let changed = align(&mut args.iter_mut().collect::<Vec<_>>(), schema);
            let function = ScalarFunction { func, args };
            Ok(Transformed::new_transformed(Expr::ScalarFunction(function), changed))
        }
        Expr::InSubquery(InSubquery { mut expr, mut subquery, negated }) => {
            let inner = subquery.subquery.schema().field(0).data_type().clone();
            let outer = expr.get_type(schema).ok();
            let finest = finest([outer.as_ref(), Some(&inner)]);
            let mut changed = align_to(&mut expr, finest, schema);
            if let Some(plan) = align_columns(&subquery.subquery, &[finest])? {
                subquery = subquery.with_plan(Arc::new(plan));
                changed = true;
            }
            let subquery = InSubquery { expr, subquery, negated };
            Ok(Transformed::new_transformed(Expr::InSubquery(subquery), changed))
        }
        _ => Ok(Transformed::no(expr)),
    }
}

fn of_union(union: Union) -> DfResult<Transformed<LogicalPlan>> {
    let units: Vec<Option<TimeUnit>> =
        (0..union.schema.fields().len())
            .map(|column| {
                finest(union.inputs.iter().map(|input| {
                    input.schema().fields().get(column).map(|field| field.data_type())
                }))
            })
            .collect();
    let mut changed = false;
    let mut inputs = Vec::new();
    for input in &union.inputs {
        match align_columns(input, &units)? {
            Some(finer) => {
                changed = true;
                inputs.push(Arc::new(finer));
            }
            None => inputs.push(Arc::clone(input)),
        }
    }
    match changed {
        // Its schema stays as it was where it is only computed anew.
        true => Ok(Transformed::yes(LogicalPlan::Union(Union::try_new_with_loose_types(inputs)?))),
        false => Ok(Transformed::no(LogicalPlan::Union(union))),
    }
}

fn of_join(mut join: Join) -> DfResult<Transformed<LogicalPlan>> {
    let using = join.join_constraint == datafusion::common::JoinConstraint::Using;
    let mut changed = false;
    for (left, right) in &mut join.on {
        let types = [left.get_type(join.left.schema()), right.get_type(join.right.schema())];
        let finest = finest(types.iter().map(|found| found.as_ref().ok()));
        let before = changed;
        changed |= align_to(left, finest, join.left.schema());
        changed |= align_to(right, finest, join.right.schema());
        if using && changed != before {
            return Err(Error::query(format!(
                "{left} is joined with USING, or naturally, and has timestamps of different units on both sides, which is \
                 not supported; write ON a.… = b.…"
            ))
            .into());
        }
    }
    Ok(Transformed::new_transformed(LogicalPlan::Join(join), changed))
}

fn compares(op: Operator) -> bool {
    use Operator::{Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq, NotEq};
    matches!(op, Eq | NotEq | Lt | LtEq | Gt | GtEq | IsDistinctFrom | IsNotDistinctFrom)
}

/// Casts what is a timestamp of a coarser unit than another of these.
fn align(met: &mut [&mut Expr], schema: &DFSchema) -> bool {
    let types: Vec<_> = met.iter().map(|expr| expr.get_type(schema).ok()).collect();
    let finest = finest(types.iter().map(Option::as_ref));
    met.iter_mut().fold(false, |changed, expr| align_to(expr, finest, schema) | changed)
}

fn align_to(expr: &mut Expr, finest: Option<TimeUnit>, schema: &DFSchema) -> bool {
    let Some(finer) = expr.get_type(schema).ok().and_then(|own| finer_type(&own, finest)) else {
        return false;
    };
    let own = std::mem::take(expr);
    *expr = Expr::Cast(Cast::new(Box::new(own), finer));
    true
}

/// The plan with columns cast to these units; None where they have them.
fn align_columns(
    plan: &Arc<LogicalPlan>,
    units: &[Option<TimeUnit>],
) -> DfResult<Option<LogicalPlan>> {
    let mut changed = false;
    let columns: Vec<Expr> = plan
        .schema()
        .columns()
        .into_iter()
        .zip(plan.schema().fields())
        .zip(units.iter().chain(std::iter::repeat(&None)))
        .map(|((column, field), unit)| match finer_type(field.data_type(), *unit) {
            Some(finer) => {
                changed = true;
                let name = column.name.clone();
                let relation = column.relation.clone();
                Expr::Cast(Cast::new(Box::new(column.into()), finer))
                    .alias_qualified(relation, name)
            }
            None => column.into(),
        })
        .collect();
    match changed {
        true => LogicalPlanBuilder::from(Arc::clone(plan)).project(columns)?.build().map(Some),
        false => Ok(None),
    }
}

/// The type of a timestamp in the finest unit, where its own is coarser.
fn finer_type(own: &DataType, finest: Option<TimeUnit>) -> Option<DataType> {
    match (own, finest) {
        (DataType::Timestamp(unit, zone), Some(finest)) if *unit < finest => {
            Some(DataType::Timestamp(finest, zone.clone()))
        }
        _ => None,
    }
}

fn finest<'a>(types: impl IntoIterator<Item = Option<&'a DataType>>) -> Option<TimeUnit> {
    let unit = |found: Option<&DataType>| match found {
        Some(DataType::Timestamp(unit, _)) => Some(*unit),
        _ => None,
    };
    types.into_iter().filter_map(unit).max()
}
