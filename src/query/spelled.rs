//! Numbers that are compared with text in quotes, as in `part >= '9'`: the text means the number that it spells, as in the
//! standard. DataFusion 53 makes text of the column, of which '10' is less than '9'.

use arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::expr::{Between, Case, InList};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable, LogicalPlan, Operator, lit};

use crate::{Error, Result};

/// The plan with numbers in the place of texts that numbers are compared with.
///
/// # Errors
/// `Query` where a text spells no number, and where text is compared with a number by its order.
pub(super) fn numbers(plan: LogicalPlan) -> Result<LogicalPlan> {
    let of_node = |plan: LogicalPlan| {
        let schema = merge_schema(&plan.inputs());
        let names = NamePreserver::new(&plan);
        plan.map_expressions(|expr| {
            let name = names.save(&expr);
            let found = expr.transform_up(|expr| of_expr(expr, &schema))?;
            Ok(found.update_data(|expr| name.restore(expr)))
        })
    };
    Ok(plan.transform_up_with_subqueries(of_node)?.data)
}

fn of_expr(expr: Expr, schema: &DFSchema) -> DfResult<Transformed<Expr>> {
    match expr {
        Expr::BinaryExpr(BinaryExpr { mut left, op, mut right }) if compares(op) => {
            let changed = meet(&mut left, &mut [&mut right], schema)?
                || meet(&mut right, &mut [&mut left], schema)?;
            if !matches!(op, Operator::Eq | Operator::NotEq) {
                check_order(&left, op, &right, schema)?;
            }
            let found = Expr::BinaryExpr(BinaryExpr { left, op, right });
            Ok(Transformed::new_transformed(found, changed))
        }
        Expr::Between(Between { mut expr, negated, mut low, mut high }) => {
            let changed = meet(&mut expr, &mut [&mut low, &mut high], schema)?;
            let found = Expr::Between(Between { expr, negated, low, high });
            Ok(Transformed::new_transformed(found, changed))
        }
        Expr::InList(InList { mut expr, mut list, negated }) => {
            let changed = meet(&mut expr, &mut list.iter_mut().collect::<Vec<_>>(), schema)?;
            let found = Expr::InList(InList { expr, list, negated });
            Ok(Transformed::new_transformed(found, changed))
        }
        Expr::Case(Case { expr: Some(mut expr), mut when_then_expr, else_expr }) => {
            let mut whens: Vec<&mut Expr> =
                when_then_expr.iter_mut().map(|(when, _)| &mut **when).collect();
            let changed = meet(&mut expr, &mut whens, schema)?;
            let found = Expr::Case(Case { expr: Some(expr), when_then_expr, else_expr });
            Ok(Transformed::new_transformed(found, changed))
        }
        _ => Ok(Transformed::no(expr)),
    }
}

fn compares(op: Operator) -> bool {
    use Operator::{Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq, NotEq};
    matches!(op, Eq | NotEq | Lt | LtEq | Gt | GtEq | IsDistinctFrom | IsNotDistinctFrom)
}

/// Puts numbers in the place of the texts among `others`, where `value` is a number.
fn meet(value: &mut Expr, others: &mut [&mut Expr], schema: &DFSchema) -> DfResult<bool> {
    if !others.iter().any(|other| spelled(other).is_some()) || !is_number(value, schema) {
        return Ok(false);
    }
    for other in others {
        let Some(text) = spelled(other) else { continue };
        let Some(number) = number_of(text) else {
            return Err(Error::query(format!(
                "{value} is a number and is compared with {text:?}, which is none; give a number, or compare as text: \
                 CAST({value} AS VARCHAR)"
            ))
            .into());
        };
        **other = number;
    }
    Ok(true)
}

/// Numbers and texts have other orders.
fn check_order(left: &Expr, op: Operator, right: &Expr, schema: &DFSchema) -> DfResult<()> {
    for (number, text) in [(left, right), (right, left)] {
        if is_number(number, schema) && is_text(text, schema) {
            return Err(Error::query(format!(
                "{left} {op} {right} compares a number with text: the engine would compare both as texts, of which '10' is \
                 less than '9'; write CAST({text} AS DOUBLE), or CAST({number} AS VARCHAR) to compare texts"
            ))
            .into());
        }
    }
    Ok(())
}

fn spelled(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::Literal(value, _) => value.try_as_str().flatten(),
        _ => None,
    }
}

/// The literal that SQL has for this text without its quotes.
fn number_of(text: &str) -> Option<Expr> {
    let text = text.trim();
    if let Ok(number) = text.parse::<i64>() {
        return Some(lit(number));
    }
    if let Ok(number) = text.parse::<u64>() {
        return Some(lit(number));
    }
    text.parse::<f64>().ok().map(|number| Expr::Literal(ScalarValue::Float64(Some(number)), None))
}

fn is_number(expr: &Expr, schema: &DFSchema) -> bool {
    expr.get_type(schema).is_ok_and(|found| found.is_numeric())
}

fn is_text(expr: &Expr, schema: &DFSchema) -> bool {
    use DataType::{LargeUtf8, Utf8, Utf8View};
    matches!(expr.get_type(schema), Ok(Utf8 | LargeUtf8 | Utf8View))
}
