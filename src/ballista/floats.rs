//! Comparisons of floats without a function of ours, which executors do not have.

use datafusion::common::ScalarValue;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::functions::math::expr_fn::isnan;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, when};

use crate::Result;
use crate::floats::is_plain_float;
use crate::query::{inputs_of, with_names};

/// The plan with `CASE WHEN isnan(x) THEN NaN ELSE x + 0.0 END` in place of `plain_float(x)`.
///
/// # Errors
/// An internal error where the plan is inconsistent.
pub(super) fn spelled_out(plan: &LogicalPlan) -> Result<LogicalPlan> {
    let spelled = plan.clone().transform_up_with_subqueries(|node| {
        let schema = inputs_of(&node)?;
        with_names(node, |expr| {
            expr.transform_up(|expr| {
                let argument = match &expr {
                    Expr::ScalarFunction(call) if is_plain_float(&call.func) => call.args.first(),
                    _ => None,
                };
                let Some(value) = argument else { return Ok(Transformed::no(expr)) };
                let of_type = |number: f64| {
                    let data_type = value.get_type(&schema)?;
                    Ok::<_, datafusion::error::DataFusionError>(Expr::Literal(
                        ScalarValue::from(number).cast_to(&data_type)?,
                        None,
                    ))
                };
                let number = value.clone() + of_type(0.0)?;
                let mut case = when(isnan(value.clone()), of_type(f64::NAN)?);
                Ok(Transformed::yes(case.otherwise(number)?))
            })
        })
    })?;
    Ok(spelled.data)
}
