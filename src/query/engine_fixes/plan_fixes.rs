//! Plans changed before DataFusion analyses them, so that it answers rightly.

use arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{Cast, Expr, LogicalPlan, LogicalPlanBuilder};

use super::equal_grouping_sets::with_equal_sets;
use super::functions::with_own_functions;
use super::grand_total::with_grand_totals;
use super::narrow_decimals::with_wide_decimals;
use super::nested_order::with_nested_extremes;
use super::number_digits::exact_comparisons;
use super::numbers_as_text;
use super::signed_zeros::constant_zeros;
use super::standard_meanings::as_the_standard;
use super::subqueries::unnested;
use super::timestamp_units::finer_units;
use super::volatile_calls::drawn_once;
use super::walk::{with_names, with_new_schema};
use crate::Result;

/// Applies all fixes to a query before it is planned.
///
/// # Errors
/// `Query` where a volatile function stands where it cannot be drawn once.
pub fn mended(plan: LogicalPlan) -> Result<LogicalPlan> {
    let plan = with_own_functions(exact_comparisons(plan)?)?;
    let plan = with_equal_sets(as_the_standard(plan)?)?;
    let plan = with_wide_decimals(with_grand_totals(unnested(plan)?)?)?;
    let plan = with_nested_extremes(plan.transform_up(with_plain_casts)?.data)?;
    let plan = finer_units(numbers_as_text::numbers(constant_zeros(plan)?)?)?;
    keep_one_row(drawn_once(plan)?)
}

/// `arrow_cast` as the cast that it is: the optimiser makes a cast of it in the same step in which
/// it moves casts to constants.
fn with_plain_casts(plan: LogicalPlan) -> DfResult<Transformed<LogicalPlan>> {
    let plain = |expr: Expr| match expr {
        Expr::ScalarFunction(function) if function.name() == "arrow_cast" => {
            let named = match &function.args[..] {
                [_, Expr::Literal(value, _)] => value.try_as_str().flatten(),
                _ => None,
            };
            let Some(named) = named.and_then(|name| name.parse::<DataType>().ok()) else {
                return Ok(Transformed::no(Expr::ScalarFunction(function)));
            };
            let value = function.args.into_iter().next().unwrap_or_default();
            Ok(Transformed::yes(Expr::Cast(Cast::new(Box::new(value), named))))
        }
        _ => Ok(Transformed::no(expr)),
    };
    with_new_schema(with_names(plan, |expr| expr.transform_up(plain))?)
}

/// The plan with a limit of one row above every aggregate of all rows below a filter. It changes
/// nothing, but that the optimiser stops there: a condition without columns (WHERE 'train' =
/// 'test') would go below the aggregate, which makes one row of none.
fn keep_one_row(plan: LogicalPlan) -> Result<LogicalPlan> {
    fn guard(plan: LogicalPlan, filtered: bool) -> DfResult<LogicalPlan> {
        let below = filtered || matches!(plan, LogicalPlan::Filter(_));
        let plan = plan.map_children(|child| guard(child, below).map(Transformed::yes))?.data;
        match &plan {
            LogicalPlan::Aggregate(aggregate) if filtered && aggregate.group_expr.is_empty() => {
                LogicalPlanBuilder::from(plan).limit(0, Some(1))?.build()
            }
            _ => Ok(plan),
        }
    }
    Ok(guard(plan, false)?)
}
