//! Decimals of 32 and 64 bits beside integers. DataFusion 53 makes integers of them, so that `x > 2` lost 2.5, and `x + 0` was 2.

use arrow::datatypes::DataType;
use datafusion::common::DFSchema;
use datafusion::error::Result;
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr};
use datafusion::logical_expr::{Expr, ExprSchemable, cast};

/// Plans operators between both with decimals of 128 bits, of which the engine has the right types.
#[derive(Debug)]
pub struct NarrowDecimals;

impl ExprPlanner for NarrowDecimals {
    fn plan_binary_op(
        &self,
        expr: RawBinaryExpr,
        schema: &DFSchema,
    ) -> Result<PlannerResult<RawBinaryExpr>> {
        let RawBinaryExpr { op, mut left, mut right } = expr;
        // What has no type yet is an error where the engine asks for it.
        if let (Ok(of_left), Ok(of_right)) = (left.get_type(schema), right.get_type(schema)) {
            if of_right.is_integer() {
                left = widened(left, &of_left);
            } else if of_left.is_integer() {
                right = widened(right, &of_right);
            }
        }
        Ok(PlannerResult::Original(RawBinaryExpr { op, left, right }))
    }
}

/// BETWEEN and IN between both, in the same way; returns true where it did.
pub(super) fn widen_beside_integers(expr: &mut Expr, schema: &DFSchema) -> bool {
    let mut parts: Vec<&mut Expr> = match expr {
        Expr::Between(between) => {
            vec![&mut between.expr, &mut between.low, &mut between.high]
        }
        Expr::InList(list) => {
            let value = std::iter::once(&mut *list.expr);
            value.chain(&mut list.list).collect()
        }
        _ => return false,
    };
    let types = parts.iter().map(|part| part.get_type(schema)).collect::<Result<Vec<_>>>();
    let Ok(types) = types else { return false };
    let is_narrow = |of: &DataType| matches!(of, DataType::Decimal32(..) | DataType::Decimal64(..));
    if !types.iter().any(DataType::is_integer) || !types.iter().any(is_narrow) {
        return false;
    }
    for (part, of) in parts.iter_mut().zip(&types) {
        **part = widened(std::mem::take(*part), of);
    }
    true
}

fn widened(expr: Expr, of: &DataType) -> Expr {
    match of {
        DataType::Decimal32(precision, scale) | DataType::Decimal64(precision, scale) => {
            cast(expr, DataType::Decimal128(*precision, *scale))
        }
        _ => expr,
    }
}
