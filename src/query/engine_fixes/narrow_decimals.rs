//! Decimals of 32 and 64 bits beside integers. DataFusion 53 makes integers of them, so that `x >
//! 2` lost 2.5, and `x + 0` was 2.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::DFSchema;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::error::Result;
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr};
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    Expr, ExprSchemable, Join, LogicalPlan, LogicalPlanBuilder, Union, cast,
};

use super::walk::with_names;

/// Plans operators between decimals of 128 bits, for which the engine has the right types.
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

/// Functions whose arguments become values of one type.
const OF_ONE_TYPE: [&str; 8] =
    ["coalesce", "greatest", "least", "make_array", "nullif", "nvl", "nvl2", "ifnull"];

/// The query with such decimals of 128 bits in BETWEEN, IN, CASE, functions, conditions made of
/// subqueries, keys and unions, too.
///
/// # Errors
/// An internal error where a part cannot be planned with them.
pub(super) fn with_wide_decimals(plan: LogicalPlan) -> Result<LogicalPlan> {
    let has_any = plan.exists(|node| {
        Ok(node.schema().fields().iter().any(|field| is_narrow(field.data_type())))
    })?;
    if !has_any {
        return Ok(plan);
    }
    let of_node = |plan: LogicalPlan| {
        let plan = match plan {
            LogicalPlan::Union(union) => match union_of_widened(&union)? {
                Some(widened) => widened,
                None => LogicalPlan::Union(union),
            },
            LogicalPlan::Join(mut join) => {
                widen_keys(&mut join);
                LogicalPlan::Join(join)
            }
            other => other,
        };
        let schema = merge_schema(&plan.inputs());
        let plan = with_names(plan, |expr| {
            expr.transform_up(|mut expr| {
                let changed = widen_beside_integers(&mut expr, &schema);
                Ok(Transformed::new_transformed(expr, changed))
            })
        })?;
        // The schemas above a column of another type have that type, too.
        plan.map_data(LogicalPlan::recompute_schema)
    };
    Ok(plan.transform_up_with_subqueries(of_node)?.data)
}

/// Returns true where it changed an expression.
fn widen_beside_integers(expr: &mut Expr, schema: &DFSchema) -> bool {
    let groups: Vec<Vec<&mut Expr>> = match expr {
        Expr::BinaryExpr(both) => vec![vec![&mut both.left, &mut both.right]],
        Expr::Between(between) => {
            vec![vec![&mut between.expr, &mut between.low, &mut between.high]]
        }
        Expr::InList(list) => {
            let value = std::iter::once(&mut *list.expr);
            vec![value.chain(&mut list.list).collect()]
        }
        Expr::Case(case) => {
            let (mut compared, mut results) = (Vec::new(), Vec::new());
            let of_value = case.expr.is_some();
            compared.extend(case.expr.as_deref_mut());
            for (when, then) in &mut case.when_then_expr {
                if of_value {
                    compared.push(&mut **when);
                }
                results.push(&mut **then);
            }
            results.extend(case.else_expr.as_deref_mut());
            vec![compared, results]
        }
        Expr::ScalarFunction(function) if OF_ONE_TYPE.contains(&function.func.name()) => {
            vec![function.args.iter_mut().collect()]
        }
        _ => return false,
    };
    let mut changed = false;
    for parts in groups {
        changed |= widen_all(parts, schema);
    }
    changed
}

fn widen_all(parts: Vec<&mut Expr>, schema: &DFSchema) -> bool {
    let types = parts.iter().map(|part| part.get_type(schema)).collect::<Result<Vec<_>>>();
    let Ok(types) = types else { return false };
    if !types.iter().any(DataType::is_integer) || !types.iter().any(is_narrow) {
        return false;
    }
    for (part, of) in parts.into_iter().zip(&types) {
        *part = widened(std::mem::take(part), of);
    }
    true
}

/// The keys of a join (USING, INTERSECT).
fn widen_keys(join: &mut Join) {
    for (left, right) in &mut join.on {
        let of_left = left.get_type(join.left.schema());
        let (Ok(of_left), Ok(of_right)) = (of_left, right.get_type(join.right.schema())) else {
            continue;
        };
        if is_narrow(&of_left) && of_right.is_integer() {
            *left = widened(std::mem::take(left), &of_left);
        } else if of_left.is_integer() && is_narrow(&of_right) {
            *right = widened(std::mem::take(right), &of_right);
        }
    }
}

/// The inputs of a UNION; None where nothing changes.
///
/// # Errors
/// An internal error where an input cannot be projected.
fn union_of_widened(union: &Union) -> Result<Option<LogicalPlan>> {
    let types = |column: usize| {
        union.inputs.iter().map(move |input| input.schema().field(column).data_type())
    };
    let wide: Vec<bool> = (0..union.schema.fields().len())
        .map(|column| types(column).any(DataType::is_integer) && types(column).any(is_narrow))
        .collect();
    if !wide.contains(&true) {
        return Ok(None);
    }
    let inputs = union.inputs.iter().map(|input| {
        let columns = input.schema().iter().zip(&wide).map(|((qualifier, field), wide)| {
            let column = Expr::from((qualifier, field));
            match wide {
                true => widened(column, field.data_type())
                    .alias_qualified(qualifier.cloned(), field.name()),
                false => column,
            }
        });
        let columns = columns.collect::<Vec<_>>();
        LogicalPlanBuilder::from(Arc::clone(input)).project(columns)?.build().map(Arc::new)
    });
    let inputs = inputs.collect::<Result<Vec<_>>>()?;
    Ok(Some(LogicalPlan::Union(Union::try_new_with_loose_types(inputs)?)))
}

fn is_narrow(of: &DataType) -> bool {
    matches!(of, DataType::Decimal32(..) | DataType::Decimal64(..))
}

fn widened(expr: Expr, of: &DataType) -> Expr {
    match of {
        DataType::Decimal32(precision, scale) | DataType::Decimal64(precision, scale) => {
            cast(expr, DataType::Decimal128(*precision, *scale))
        }
        _ => expr,
    }
}
