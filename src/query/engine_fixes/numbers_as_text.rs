//! Numbers that are compared with text in quotes, as in `part >= '9'`: the text means the number
//! that it spells, as in the standard. DataFusion 53 makes text of the column, and as text '10' is
//! less than '9'.
//!
//! The texts of rows are no numbers: beside one they are refused, wherever values are compared.
//!
//! Upstream: apache/datafusion#15161.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::expr::{Between, Case, InList, InSubquery, ScalarFunction};
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable, LogicalPlan, Operator, lit};

use super::walk::with_names;
use crate::{Error, Result};

/// Functions that compare their arguments.
const COMPARING: [&str; 3] = ["greatest", "least", "nullif"];

/// The plan with numbers in the place of texts that numbers are compared with.
///
/// # Errors
/// `Query` where a text spells no number, and where the text of rows is compared with a number.
pub(in crate::query) fn numbers(plan: LogicalPlan) -> Result<LogicalPlan> {
    let of_node = |plan: LogicalPlan| {
        let schema = merge_schema(&plan.inputs());
        if let LogicalPlan::Join(join) = &plan {
            for (left, right) in &join.on {
                let types = [
                    (left, left.get_type(join.left.schema())),
                    (right, right.get_type(join.right.schema())),
                ];
                refuse_mixed(types.into_iter().filter_map(|(expr, of)| Some((expr, of.ok()?))))?;
            }
        }
        with_names(plan, |expr| expr.transform_up(|expr| of_expr(expr, &schema)))
    };
    Ok(plan.transform_up_with_subqueries(of_node)?.data)
}

fn of_expr(expr: Expr, schema: &DFSchema) -> DfResult<Transformed<Expr>> {
    match expr {
        Expr::BinaryExpr(BinaryExpr { mut left, op, mut right }) if compares(op) => {
            let changed = meet(&mut [&mut left, &mut right], schema)?;
            let found = Expr::BinaryExpr(BinaryExpr { left, op, right });
            Ok(Transformed::new_transformed(found, changed))
        }
        Expr::Between(Between { mut expr, negated, mut low, mut high }) => {
            let changed = meet(&mut [&mut expr, &mut low, &mut high], schema)?;
            let found = Expr::Between(Between { expr, negated, low, high });
            Ok(Transformed::new_transformed(found, changed))
        }
        Expr::InList(InList { mut expr, mut list, negated }) => {
            let mut met: Vec<&mut Expr> = vec![&mut expr];
            met.extend(&mut list);
            let changed = meet(&mut met, schema)?;
            let found = Expr::InList(InList { expr, list, negated });
            Ok(Transformed::new_transformed(found, changed))
        }
        Expr::Case(Case { expr: Some(mut expr), mut when_then_expr, else_expr }) => {
            let mut met: Vec<&mut Expr> = vec![&mut expr];
            met.extend(when_then_expr.iter_mut().map(|(when, _)| &mut **when));
            let changed = meet(&mut met, schema)?;
            let found = Expr::Case(Case { expr: Some(expr), when_then_expr, else_expr });
            Ok(Transformed::new_transformed(found, changed))
        }
        Expr::ScalarFunction(ScalarFunction { func, mut args })
            if COMPARING.contains(&func.name()) =>
        {
            let changed = meet(&mut args.iter_mut().collect::<Vec<_>>(), schema)?;
            let found = Expr::ScalarFunction(ScalarFunction { func, args });
            Ok(Transformed::new_transformed(found, changed))
        }
        Expr::InSubquery(InSubquery { expr, subquery, negated }) => {
            let rows = Arc::clone(&subquery.subquery);
            if let (Ok(own), [column]) = (expr.get_type(schema), &rows.schema().columns()[..]) {
                let of_rows = rows.schema().field(0).data_type().clone();
                let column = Expr::Column(column.clone());
                refuse_mixed([(&*expr, own), (&column, of_rows)])?;
            }
            Ok(Transformed::no(Expr::InSubquery(InSubquery { expr, subquery, negated })))
        }
        _ => Ok(Transformed::no(expr)),
    }
}

fn compares(op: Operator) -> bool {
    use Operator::{Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq, NotEq};
    matches!(op, Eq | NotEq | Lt | LtEq | Gt | GtEq | IsDistinctFrom | IsNotDistinctFrom)
}

/// Puts numbers in the place of the texts in quotes among values that are compared, where one of
/// them is a number.
fn meet(values: &mut [&mut Expr], schema: &DFSchema) -> DfResult<bool> {
    let Some(number) = values.iter().find(|value| is_number(&type_of(value, schema))) else {
        return Ok(false);
    };
    let number = (**number).clone();
    let mut changed = false;
    for value in values.iter_mut() {
        let Some(text) = spelled(value) else { continue };
        let Some(found) = number_of(text) else {
            return Err(Error::query(format!(
                "{number} is a number and is compared with {text:?}, which is none; give a number, or compare as text: \
                 CAST({number} AS VARCHAR)"
            ))
            .into());
        };
        **value = found;
        changed = true;
    }
    refuse_mixed(values.iter().map(|value| (&**value, type_of(value, schema))))?;
    Ok(changed)
}

/// Numbers and texts have other orders, and a number has several spellings.
fn refuse_mixed<'a>(values: impl IntoIterator<Item = (&'a Expr, DataType)>) -> DfResult<()> {
    let (mut number, mut text) = (None, None);
    for (value, of) in values {
        if is_number(&of) {
            number = number.or(Some(value));
        } else if is_text(&of) {
            text = text.or(Some(value));
        }
    }
    let (Some(number), Some(text)) = (number, text) else { return Ok(()) };
    Err(Error::query(format!(
        "{text} beside {number} compares a number with text: the engine would compare both as texts, so that '10' is less \
         than '9', and '07' is not 7; write CAST({text} AS DOUBLE), or CAST({number} AS VARCHAR) to compare texts"
    ))
    .into())
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

/// The type of an expression; for a dictionary, the type of its values.
fn type_of(expr: &Expr, schema: &DFSchema) -> DataType {
    match expr.get_type(schema) {
        Ok(DataType::Dictionary(_, values)) => *values,
        Ok(of) => of,
        Err(_) => DataType::Null,
    }
}

fn is_number(of: &DataType) -> bool {
    of.is_numeric()
}

fn is_text(of: &DataType) -> bool {
    of.is_string()
}
