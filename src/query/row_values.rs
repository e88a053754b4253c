//! Comparisons of row values, written out by their parts as the standard defines them: `(a, b) < (1, 2)` is
//! `a < 1 OR a = 1 AND b < 2`. DataFusion 53 compares structs, in which NULL equals NULL and is the least value.

use std::mem;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, Query, UnaryOperator, Value, Visit, VisitMut, Visitor, VisitorMut,
};

use crate::{Error, Result};

/// Functions that give another value wherever they are written out.
const VOLATILE: [&str; 4] = ["random", "rand", "uuid", "gen_random_uuid"];

/// Writes out every comparison of row values.
///
/// # Errors
/// `Query` where rows of different lengths are compared, or one with something else than a row.
pub(super) fn write_out(query: &mut Query) -> Result<()> {
    match VisitMut::visit(query, &mut Rows) {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(()),
    }
}

struct Rows;

impl VisitorMut for Rows {
    type Break = Error;

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Error> {
        match written_out(expr) {
            Ok(Some(found)) => *expr = Expr::Nested(Box::new(found)),
            Ok(None) => {}
            Err(error) => return ControlFlow::Break(error),
        }
        ControlFlow::Continue(())
    }
}

/// The expression without row values; None where it compares none.
fn written_out(expr: &mut Expr) -> Result<Option<Expr>> {
    Ok(match expr {
        Expr::BinaryOp { left, op, right } => match (row(left), row(right)) {
            (None, None) => None,
            // A subquery with as many columns is a row, too, and is judged elsewhere.
            (Some(_), None) if is_subquery(right) => None,
            (None, Some(_)) if is_subquery(left) => None,
            _ if !is_comparison(op) => None,
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

/// The parts of a row value.
fn row(expr: &Expr) -> Option<&[Expr]> {
    match expr {
        Expr::Tuple(parts) => Some(parts),
        Expr::Nested(inner) => row(inner),
        _ => None,
    }
}

fn is_subquery(expr: &Expr) -> bool {
    match expr {
        Expr::Subquery(_) => true,
        Expr::Nested(inner) => is_subquery(inner),
        _ => false,
    }
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
            "{left} is compared with {right}, of which only one is a row in parentheses; write both as rows, (a, b) = (1, 2)"
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
    struct Calls;
    impl Visitor for Calls {
        type Break = String;

        fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<String> {
            match expr {
                Expr::Function(function) => {
                    let name = function.name.to_string().to_lowercase();
                    match VOLATILE.contains(&name.as_str()) {
                        true => ControlFlow::Break(name),
                        false => ControlFlow::Continue(()),
                    }
                }
                _ => ControlFlow::Continue(()),
            }
        }
    }
    match Visit::visit(expr, &mut Calls) {
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
