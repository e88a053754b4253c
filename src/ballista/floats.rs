//! Comparisons of floats without a function of ours, which executors do not have.

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::functions::math::expr_fn::isnan;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, when};

use crate::Result;
use crate::floats::is_plain_float;

/// The plan with `CASE WHEN isnan(x) THEN NaN ELSE x + 0.0 END` in place of `plain_float(x)`.
///
/// # Errors
/// An internal error where the plan is inconsistent.
pub(super) fn spelled_out(plan: &LogicalPlan) -> Result<LogicalPlan> {
    let spelled = plan.clone().transform_up_with_subqueries(|node| {
        let schema = match &node {
            LogicalPlan::TableScan(scan) => {
                DFSchema::try_from_qualified_schema(scan.table_name.clone(), &scan.source.schema())?
            }
            node => merge_schema(&node.inputs()),
        };
        let names = NamePreserver::new(&node);
        let is_named = !matches!(node, LogicalPlan::Sort(_));
        node.map_expressions(|expr| {
            let name = is_named.then(|| names.save(&expr));
            let found = expr.transform_up(|expr| {
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
            })?;
            Ok(found.update_data(|expr| match name {
                Some(name) => name.restore(expr),
                None => expr,
            }))
        })
    })?;
    Ok(spelled.data)
}
