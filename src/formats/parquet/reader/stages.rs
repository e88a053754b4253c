//! The conditions of a predicate, in the order in which they are asked.

use std::sync::Arc;

use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{
    BinaryExpr, Column, InListExpr, IsNotNullExpr, IsNullExpr, Literal,
};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr, conjunction, split_conjunction};

use crate::floats::is_plain_float;

/// A condition that is asked of the rows which those before it keep.
#[derive(Clone, Debug)]
pub(super) struct Stage {
    /// Over the file's columns.
    pub(super) condition: Arc<dyn PhysicalExpr>,
    /// The places of the columns that it reads, ascending.
    pub(super) columns: Vec<usize>,
}

/// The parts of `predicate` that are joined by AND, in its order: a later part may fail for rows
/// that an earlier part removes. Parts that cannot fail are joined to the part before them, if they
/// need no more columns of the file.
pub(super) fn stages(predicate: &Arc<dyn PhysicalExpr>) -> Vec<Stage> {
    let mut stages: Vec<(Stage, Vec<Arc<dyn PhysicalExpr>>)> = Vec::new();
    for part in split_conjunction(predicate) {
        let mut columns: Vec<usize> =
            collect_columns(part).iter().map(|column| column.index()).collect();
        columns.sort_unstable();
        columns.dedup();
        match stages.last_mut() {
            Some((stage, parts))
                if stage.columns == columns
                    && never_fails(part)
                    && parts.iter().all(never_fails) =>
            {
                parts.push(Arc::clone(part));
            }
            _ => {
                let stage = Stage { condition: Arc::clone(part), columns };
                stages.push((stage, vec![Arc::clone(part)]));
            }
        }
    }
    let joined = stages.into_iter().map(|(stage, parts)| match parts.len() {
        1 => stage,
        _ => Stage { condition: conjunction(parts), ..stage },
    });
    joined.collect()
}

/// Returns true for a comparison of a column with constants, which cannot fail for any value.
fn never_fails(part: &Arc<dyn PhysicalExpr>) -> bool {
    let is_column = |expr: &Arc<dyn PhysicalExpr>| {
        let function = expr.as_any().downcast_ref::<ScalarFunctionExpr>();
        let value = match function.map(|function| (function.fun(), function.args())) {
            Some((function, [value])) if is_plain_float(function) => value,
            _ => expr,
        };
        value.as_any().is::<Column>()
    };
    let is_literal = |expr: &Arc<dyn PhysicalExpr>| expr.as_any().is::<Literal>();
    let node = part.as_any();
    if let Some(binary) = node.downcast_ref::<BinaryExpr>() {
        let (left, right) = (binary.left(), binary.right());
        return is_comparison(*binary.op())
            && (is_column(left) && is_literal(right) || is_literal(left) && is_column(right));
    }
    if let Some(list) = node.downcast_ref::<InListExpr>() {
        return is_column(list.expr()) && list.list().iter().all(is_literal);
    }
    let tested = (node.downcast_ref::<IsNullExpr>().map(IsNullExpr::arg))
        .or_else(|| node.downcast_ref::<IsNotNullExpr>().map(IsNotNullExpr::arg));
    tested.is_some_and(is_column)
}

fn is_comparison(op: Operator) -> bool {
    use Operator::{Eq, Gt, GtEq, Lt, LtEq, NotEq};
    matches!(op, Eq | NotEq | Lt | LtEq | Gt | GtEq)
}
