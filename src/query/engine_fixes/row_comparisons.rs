//! Comparisons of row values, written out by their parts as the standard defines them: `(a, b) <
//! (1, 2)` is `a < 1 OR a = 1 AND b < 2`. DataFusion 53 compares structs, in which NULL equals NULL
//! and is the least value.
//!
//! A subquery of several columns is no value to the planner. So it becomes a relation whose columns
//! have names of their own, and of which one is selected; [`subquery`](super::subqueries) takes the
//! others, too:
//!
//! ```text
//! (a, b) IN (SELECT x, y FROM u)      (a, b) IN (SELECT c0 FROM (SELECT x, y FROM u) AS row (c0, c1))
//! (a, b) = (SELECT x, y FROM u)       a = (SELECT c0 FROM (SELECT x, y FROM u) AS value1 (c0, c1)) AND
//!                                     b = (SELECT c1 FROM (SELECT x, y FROM u) AS value1 (c0, c1))
//! ```

use std::mem;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, Query,
    SelectItem, SetExpr, TableAlias, TableAliasColumnDef, TableFactor, UnaryOperator, Value,
    visit_expressions, visit_expressions_mut,
};

use crate::query::statement::{last, query_of, select_from};
use crate::{Error, Result};

/// Functions that give another value wherever they are written out.
const VOLATILE: [&str; 4] = ["random", "rand", "uuid", "gen_random_uuid"];

/// Writes out every comparison of row values.
///
/// # Errors
/// `Query` where rows of different lengths are compared, or one with something else than a row.
pub(in crate::query) fn write_out(query: &mut Query) -> Result<()> {
    // How many subqueries that are one row were found.
    let mut values = 0;
    let found = visit_expressions_mut(query, |expr| match written_out(expr, &mut values) {
        Ok(Some(found)) => {
            *expr = Expr::Nested(Box::new(found));
            ControlFlow::Continue(())
        }
        Ok(None) => ControlFlow::Continue(()),
        Err(error) => ControlFlow::Break(error),
    });
    found.break_value().map_or(Ok(()), Err)
}

/// Begins the name of the relation of a subquery with which rows are compared by IN.
pub(in crate::query) const ROW: &str = "\u{2}row";

/// Begins the name of the relation of a subquery that is one row; its number tells it from others.
pub(in crate::query) const VALUE: &str = "\u{2}value";

/// The expression without row values; None where it compares none.
fn written_out(expr: &mut Expr, values: &mut usize) -> Result<Option<Expr>> {
    Ok(match expr {
        Expr::Function(function) => of_call(function),
        Expr::InSubquery { expr: value, subquery, negated } => match row(value) {
            Some(parts) => Some(in_rows(parts, subquery, *negated)?),
            None => None,
        },
        Expr::AnyOp { left, compare_op, right, is_some: _ } => {
            quantified(left, compare_op, right, false)?
        }
        Expr::AllOp { left, compare_op, right } => quantified(left, compare_op, right, true)?,
        Expr::BinaryOp { left, op, right } => match (row(left), row(right)) {
            (None, None) => None,
            _ if !is_comparison(op) => None,
            (Some(parts), None) if let Some(subquery) = subquery_of(right) => {
                let row = values_of(subquery, parts.len(), values);
                Some(compared(left, op, &row)?)
            }
            (None, Some(parts)) if let Some(subquery) = subquery_of(left) => {
                let row = values_of(subquery, parts.len(), values);
                Some(compared(&row, op, right)?)
            }
            _ => Some(compared(left, op, right)?),
        },
        Expr::IsDistinctFrom(left, right) if row(left).is_some() || row(right).is_some() => {
            let (left, right) = pair(left, right)?;
            let parts = left.iter().zip(right).map(|(left, right)| distinct(left, right));
            Some(any(parts.collect::<Result<_>>()?))
        }
        Expr::IsNotDistinctFrom(left, right) if row(left).is_some() || row(right).is_some() => {
            let (left, right) = pair(left, right)?;
            let parts = left.iter().zip(right).map(|(left, right)| distinct(left, right));
            Some(not(any(parts.collect::<Result<_>>()?)))
        }
        Expr::IsNull(inner) => {
            row(inner).map(|parts| all(parts.iter().map(|part| is_null(part, true)).collect()))
        }
        Expr::IsNotNull(inner) => {
            row(inner).map(|parts| all(parts.iter().map(|part| is_null(part, false)).collect()))
        }
        Expr::InList { expr: value, list, negated }
            if row(value).is_some() || list.iter().any(|item| row(item).is_some()) =>
        {
            if list.len() > 1 {
                refuse_volatile(value)?;
            }
            let equal = |item: &Expr| compared(value, &BinaryOperator::Eq, item);
            let found = any(list.iter().map(equal).collect::<Result<_>>()?);
            Some(if *negated { not(found) } else { found })
        }
        Expr::Between { expr: value, negated, low, high } if row(value).is_some() => {
            refuse_volatile(value)?;
            let found = all(vec![
                compared(value, &BinaryOperator::GtEq, low)?,
                compared(value, &BinaryOperator::LtEq, high)?,
            ]);
            Some(if *negated { not(found) } else { found })
        }
        Expr::Case { operand, conditions, .. }
            if operand.as_ref().is_some_and(|operand| row(operand).is_some()) =>
        {
            let Some(value) = operand.take() else { return Ok(None) };
            refuse_volatile(&value)?;
            for when in conditions.iter_mut() {
                when.condition = compared(&value, &BinaryOperator::Eq, &when.condition)?;
            }
            Some(mem::replace(expr, null()))
        }
        _ => None,
    })
}

/// `ROW(a, b)` as `(a, b)`; None for other calls.
fn of_call(function: &Function) -> Option<Expr> {
    let is_row = last(&function.name).is_some_and(|name| name == "row");
    let FunctionArguments::List(list) = &function.args else { return None };
    let part = |arg: &FunctionArg| match arg {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Some(expr.clone()),
        _ => None,
    };
    let parts: Vec<Expr> = list.args.iter().map(part).collect::<Option<_>>()?;
    (is_row && parts.len() > 1).then_some(Expr::Tuple(parts))
}

/// The parts of a row value.
fn row(expr: &Expr) -> Option<&[Expr]> {
    match expr {
        Expr::Tuple(parts) => Some(parts),
        Expr::Nested(inner) => row(inner),
        _ => None,
    }
}

fn subquery_of(expr: &Expr) -> Option<&Query> {
    match expr {
        Expr::Subquery(query) => Some(query),
        Expr::Nested(inner) => subquery_of(inner),
        _ => None,
    }
}

/// A row IN a subquery of as many columns.
fn in_rows(parts: &[Expr], subquery: &Query, negated: bool) -> Result<Expr> {
    if let Some(part) = parts.iter().find(|part| row(part).is_some()) {
        return Err(Error::query(format!(
            "the row {part} within a row is not compared with a subquery; write all values in one row, (a, b, c) IN (SELECT x, y, z …)"
        )));
    }
    Ok(Expr::InSubquery {
        expr: Box::new(Expr::Tuple(parts.to_vec())),
        subquery: Box::new(column_of(subquery, ROW, parts.len(), 0)),
        negated,
    })
}

/// A row compared with any or all rows of a subquery; None if it is no row.
fn quantified(left: &Expr, op: &BinaryOperator, right: &Expr, all: bool) -> Result<Option<Expr>> {
    let (Some(parts), Some(subquery)) = (row(left), subquery_of(right)) else { return Ok(None) };
    match (op, all) {
        (BinaryOperator::Eq, false) => in_rows(parts, subquery, false).map(Some),
        (BinaryOperator::NotEq, true) => in_rows(parts, subquery, true).map(Some),
        _ => Err(Error::query(format!(
            "{left} {op} {} (SELECT …) is not supported; of rows write = ANY, <> ALL, IN or NOT IN, or EXISTS (SELECT … WHERE …) \
             with the comparison in it",
            if all { "ALL" } else { "ANY" }
        ))),
    }
}

/// The columns of a subquery that is one row, as a row of subqueries.
fn values_of(subquery: &Query, columns: usize, values: &mut usize) -> Expr {
    *values += 1;
    let name = format!("{VALUE}{values}");
    let column = |at| Expr::Subquery(Box::new(column_of(subquery, &name, columns, at)));
    Expr::Tuple((0..columns).map(column).collect())
}

/// One of the columns of a subquery, which gets a name.
fn column_of(subquery: &Query, name: &str, columns: usize, at: usize) -> Query {
    let column = |at: usize| Ident::with_quote('"', format!("{ROW}{at}"));
    let of_alias = |at| TableAliasColumnDef { name: column(at), data_type: None };
    let mut body = select_from(TableFactor::Derived {
        lateral: false,
        subquery: Box::new(subquery.clone()),
        alias: Some(TableAlias {
            explicit: true,
            name: Ident::with_quote('"', name),
            columns: (0..columns).map(of_alias).collect(),
        }),
        sample: None,
    });
    if let SetExpr::Select(select) = &mut body {
        select.projection = vec![SelectItem::UnnamedExpr(Expr::Identifier(column(at)))];
    }
    query_of(body)
}

fn is_comparison(op: &BinaryOperator) -> bool {
    use BinaryOperator::{Eq, Gt, GtEq, Lt, LtEq, NotEq};
    matches!(op, Eq | NotEq | Lt | LtEq | Gt | GtEq)
}

/// Two rows of one length.
fn pair<'a>(left: &'a Expr, right: &'a Expr) -> Result<(&'a [Expr], &'a [Expr])> {
    match (row(left), row(right)) {
        (Some(first), Some(other)) if first.len() == other.len() => Ok((first, other)),
        (Some(first), Some(other)) => Err(Error::query(format!(
            "{left} has {} values and {right} has {}: only rows of one length are compared",
            first.len(),
            other.len()
        ))),
        _ => Err(Error::query(format!(
            "{left} is compared with {right}, but only one is a row in parentheses; write both as rows, (a, b) = (1, 2)"
        ))),
    }
}

/// Two values or two rows compared.
fn compared(left: &Expr, op: &BinaryOperator, right: &Expr) -> Result<Expr> {
    use BinaryOperator::{Eq, Gt, GtEq, Lt, LtEq, NotEq};
    if row(left).is_none() && row(right).is_none() {
        return Ok(binary(left.clone(), op.clone(), right.clone()));
    }
    let (left, right) = pair(left, right)?;
    let each = |op: &BinaryOperator| -> Result<Vec<Expr>> {
        left.iter().zip(right).map(|(left, right)| compared(left, op, right)).collect()
    };
    let strict = match op {
        Eq => return Ok(all(each(&Eq)?)),
        NotEq => return Ok(any(each(&NotEq)?)),
        Lt | LtEq => Lt,
        _ => Gt,
    };
    // The first parts that differ decide; the last ones may be equal where the whole rows may.
    let (Some((first, rest)), Some((other, others))) = (left.split_first(), right.split_first())
    else {
        return Ok(Expr::Value(Value::Boolean(matches!(op, LtEq | GtEq)).into()));
    };
    if rest.is_empty() {
        return compared(first, op, other);
    }
    refuse_volatile(first)?;
    refuse_volatile(other)?;
    let later = compared(&Expr::Tuple(rest.to_vec()), op, &Expr::Tuple(others.to_vec()))?;
    let equal = compared(first, &Eq, other)?;
    Ok(any(vec![compared(first, &strict, other)?, all(vec![equal, later])]))
}

fn distinct(left: &Expr, right: &Expr) -> Result<Expr> {
    if row(left).is_none() && row(right).is_none() {
        return Ok(Expr::IsDistinctFrom(nested(left.clone()), nested(right.clone())));
    }
    let (left, right) = pair(left, right)?;
    let parts = left.iter().zip(right).map(|(left, right)| distinct(left, right));
    Ok(any(parts.collect::<Result<_>>()?))
}

/// A row is NULL where all of its parts are, and NOT NULL where none is.
fn is_null(part: &Expr, is: bool) -> Expr {
    match (row(part), is) {
        (Some(parts), _) => all(parts.iter().map(|part| is_null(part, is)).collect()),
        (None, true) => Expr::IsNull(nested(part.clone())),
        (None, false) => Expr::IsNotNull(nested(part.clone())),
    }
}

fn refuse_volatile(expr: &Expr) -> Result<()> {
    let found = visit_expressions(expr, |expr| match expr {
        Expr::Function(function) => {
            let name = function.name.to_string().to_lowercase();
            match VOLATILE.contains(&name.as_str()) {
                true => ControlFlow::Break(name),
                false => ControlFlow::Continue(()),
            }
        }
        _ => ControlFlow::Continue(()),
    });
    match found {
        ControlFlow::Break(name) => Err(Error::query(format!(
            "a row with {name}() is compared by its parts, which would draw several values; compute it in a subquery first"
        ))),
        ControlFlow::Continue(()) => Ok(()),
    }
}

fn any(parts: Vec<Expr>) -> Expr {
    joined(&parts, &BinaryOperator::Or, false)
}

fn all(parts: Vec<Expr>) -> Expr {
    joined(&parts, &BinaryOperator::And, true)
}

/// As a tree that is no deeper than it must be: a list may have thousands of rows.
fn joined(parts: &[Expr], op: &BinaryOperator, of_none: bool) -> Expr {
    match parts {
        [] => Expr::Value(Value::Boolean(of_none).into()),
        [one] => one.clone(),
        _ => {
            let (left, right) = parts.split_at(parts.len() / 2);
            binary(joined(left, op, of_none), op.clone(), joined(right, op, of_none))
        }
    }
}

fn not(expr: Expr) -> Expr {
    Expr::UnaryOp { op: UnaryOperator::Not, expr: nested(expr) }
}

fn binary(left: Expr, op: BinaryOperator, right: Expr) -> Expr {
    Expr::BinaryOp { left: nested(left), op, right: nested(right) }
}

/// In parentheses where it is not a word.
fn nested(expr: Expr) -> Box<Expr> {
    Box::new(match expr {
        Expr::Identifier(_) | Expr::CompoundIdentifier(_) | Expr::Value(_) | Expr::Nested(_) => {
            expr
        }
        other => Expr::Nested(Box::new(other)),
    })
}

fn null() -> Expr {
    Expr::Value(Value::Null.into())
}
