//! Corrects the precedence of `IS DISTINCT FROM`. The parser of DataFusion 53 takes all that
//! follows for its right side: `a IS DISTINCT FROM b AND c` becomes `a IS DISTINCT FROM (b AND c)`.
//! Here the right side ends where AND or OR begin, as in the standard.
//!
//! Upstream: apache/datafusion#23692.

use std::mem;

use datafusion::sql::sqlparser::ast::{BinaryOperator, Expr, Query, UnaryOperator, Value};

use super::walk::each_of_statement;

/// Corrects every `IS [NOT] DISTINCT FROM` of a query that took too much.
pub fn bind(query: &mut Query) {
    // Expressions below this one are in order already. Parentheses are nodes of their own, so an AND
    // or OR directly below a stronger operator was written without them.
    each_of_statement(query, |expr| {
        let (strength, side) = match expr {
            Expr::BinaryOp { op: BinaryOperator::And, right, .. } => (1, right),
            Expr::UnaryOp { op: UnaryOperator::Not, expr } => (2, expr),
            Expr::IsDistinctFrom(_, right) | Expr::IsNotDistinctFrom(_, right) => (3, right),
            _ => return,
        };
        if strength_of(side) >= strength {
            return;
        }
        // The operators that follow become the top, and this one takes the first of their operands.
        let mut top = mem::replace(&mut **side, nothing());
        let first = first_operand(&mut top, strength);
        **side = mem::replace(first, nothing());
        *first = mem::replace(expr, nothing());
        *expr = top;
    });
}

/// The leftmost operand that binds as strongly as asked for.
fn first_operand(expr: &mut Expr, strength: u8) -> &mut Expr {
    if strength_of(expr) >= strength {
        return expr;
    }
    match expr {
        Expr::BinaryOp { left, .. } => first_operand(left, strength),
        other => other,
    }
}

fn strength_of(expr: &Expr) -> u8 {
    match expr {
        Expr::BinaryOp { op: BinaryOperator::Or, .. } => 0,
        Expr::BinaryOp { op: BinaryOperator::And, .. } => 1,
        _ => u8::MAX,
    }
}

fn nothing() -> Expr {
    Expr::Value(Value::Null.into())
}
