//! The order of lists, structs and maps: NULL in them is above all values, as in PostgreSQL and
//! DuckDB, and as ORDER BY has it here.
//!
//! DataFusion 53 takes it for the least in `<`, `<=`, `>`, `>=` and BETWEEN, and for none in `min`
//! and `max`, so that `ORDER BY x LIMIT 1` and `min(x)` were different rows. So `x <= y` is
//! `nested_order(x, y) <= 0`, a function of ours, and the aggregates are ours.
//!
//! Upstream: apache/datafusion#24937.

use std::any::Any;
use std::cmp::Ordering;
use std::sync::{Arc, LazyLock};

use arrow::array::{Array, ArrayRef, Int8Array, UInt64Array, make_comparator, new_null_array};
use arrow::compute::{SortOptions, take};
use arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, ScalarValue, exec_err};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::expr::{AggregateFunction, Between, ScalarFunction, Sort};
use datafusion::logical_expr::function::AccumulatorArgs;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, BinaryExpr, ColumnarValue, Expr, ExprSchemable,
    LogicalPlan, Operator, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
    lit,
};

use super::signed_zeros::plain;
use super::walk::{PlanRule, inputs_of, with_names, with_new_schema};
use crate::basics::{computed, function_basics};
use crate::floats::has_floats;
use crate::{Error, Result};

/// The rule; before the rules that compute constants.
pub const ORDER_NESTED: PlanRule = PlanRule::new("order_nested", |plan, _| {
    plan.transform_down_with_subqueries(|node| {
        let schema = inputs_of(&node)?;
        let node = match node {
            LogicalPlan::Sort(mut sort) => {
                let is_changed = sorts(&mut sort.expr, &schema)?;
                Transformed::new_transformed(LogicalPlan::Sort(sort), is_changed)
            }
            other => Transformed::no(other),
        };
        node.transform_data(|node| {
            with_names(node, |expr| expr.transform_down(|expr| compared(expr, &schema)))
        })
    })
});

/// NULLS FIRST and LAST are about NULL itself, and the engine takes them for NULL in values, too:
/// `x DESC NULLS LAST` becomes `x IS NULL, x DESC NULLS FIRST`.
fn sorts(sorts: &mut Vec<Sort>, schema: &DFSchema) -> DfResult<bool> {
    let mut at = 0;
    let mut is_changed = false;
    while let Some(sort) = sorts.get_mut(at) {
        at += 1;
        if sort.nulls_first == sort.asc && is_nested(&sort.expr, schema)? {
            let is_null = Sort::new(sort.expr.clone().is_null(), !sort.nulls_first, false);
            sort.nulls_first = !sort.asc;
            sorts.insert(at - 1, is_null);
            at += 1;
            is_changed = true;
        }
    }
    Ok(is_changed)
}

fn compared(expr: Expr, schema: &DFSchema) -> DfResult<Transformed<Expr>> {
    Ok(match expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right })
            if is_order(op) && is_nested(&left, schema)? =>
        {
            Transformed::yes(order(*left, op, *right, schema)?)
        }
        Expr::Between(Between { expr, negated, low, high }) if is_nested(&expr, schema)? => {
            let (below, above) = match negated {
                false => (Operator::GtEq, Operator::LtEq),
                true => (Operator::Lt, Operator::Gt),
            };
            let low = order((*expr).clone(), below, *low, schema)?;
            let high = order(*expr, above, *high, schema)?;
            Transformed::yes(if negated { low.or(high) } else { low.and(high) })
        }
        Expr::WindowFunction(mut call) => {
            let is_changed = sorts(&mut call.params.order_by, schema)?;
            Transformed::new(Expr::WindowFunction(call), is_changed, TreeNodeRecursion::Continue)
        }
        other => Transformed::no(other),
    })
}

fn is_order(op: Operator) -> bool {
    matches!(op, Operator::Lt | Operator::LtEq | Operator::Gt | Operator::GtEq)
}

fn is_nested(expr: &Expr, schema: &DFSchema) -> DfResult<bool> {
    Ok(expr.get_type(schema)?.is_nested())
}

/// `left op right` by the function.
fn order(left: Expr, op: Operator, right: Expr, schema: &DFSchema) -> DfResult<Expr> {
    let in_one_form = |side: Expr| -> DfResult<Expr> {
        Ok(if has_floats(&side.get_type(schema)?) { plain(side) } else { side })
    };
    let args = vec![in_one_form(left)?, in_one_form(right)?];
    let call = ScalarFunction::new_udf(Arc::clone(&NESTED_ORDER), args);
    let call = Box::new(Expr::ScalarFunction(call));
    Ok(Expr::BinaryExpr(BinaryExpr { left: call, op, right: Box::new(lit(0_i8)) }))
}

const NULLS_ABOVE: SortOptions = SortOptions { descending: false, nulls_first: false };

static NESTED_ORDER: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| Arc::new(function()));

/// `nested_order(x, y)`: -1, 0 or 1 where x is below, equal to or above y; NULL where one of them
/// is.
pub(super) fn function() -> ScalarUDF {
    ScalarUDF::from(NestedOrder { signature: Signature::any(2, Volatility::Immutable) })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct NestedOrder {
    signature: Signature,
}

impl ScalarUDFImpl for NestedOrder {
    function_basics!("nested_order");

    fn return_type(&self, _: &[DataType]) -> DfResult<DataType> {
        Ok(DataType::Int8)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        computed(&args, |sides| Ok(Arc::new(orders(&sides[0], &sides[1])?)))
    }
}

fn orders(left: &ArrayRef, right: &ArrayRef) -> DfResult<Int8Array> {
    let order = make_comparator(left, right, NULLS_ABOVE)?;
    let of_row = |row| match left.is_null(row) || right.is_null(row) {
        true => None,
        false => Some(match order(row, row) {
            Ordering::Less => -1,
            Ordering::Equal => 0,
            Ordering::Greater => 1,
        }),
    };
    Ok((0..left.len()).map(of_row).collect())
}

/// The plan with aggregates of ours for `min` and `max` of nested values.
///
/// # Errors
/// `Query` for `min` and `max` with OVER, for an aggregate's ORDER BY, and for `greatest`, `least`
/// and `nullif`, of nested values.
pub(super) fn with_nested_extremes(plan: LogicalPlan) -> Result<LogicalPlan> {
    let mut refused = None;
    let found = plan.transform_up_with_subqueries(|node| {
        let schema = inputs_of(&node)?;
        let found = with_names(node, |expr| {
            expr.transform_up(|expr| {
                let (expr, is_changed) = nulls_apart(expr, &schema);
                let as_it_is = |expr| Transformed::new(expr, is_changed, TreeNodeRecursion::Continue);
                let (function, args) = match &expr {
                    Expr::AggregateFunction(call) => (call.func.name(), &call.params.args),
                    Expr::WindowFunction(call) => (call.fun.name(), &call.params.args),
                    Expr::ScalarFunction(call) => (call.name(), &call.args),
                    _ => return Ok(as_it_is(expr)),
                };
                let is_compared =
                    matches!(function, "min" | "max" | "greatest" | "least" | "nullif");
                if let Expr::AggregateFunction(call) = &expr
                    && call.params.order_by.iter().any(|key| is_nested(&key.expr, &schema).unwrap_or(false))
                {
                    refused.get_or_insert_with(|| {
                        Error::query(format!(
                            "{}(… ORDER BY x) by lists, structs or maps is not supported; number the rows in a subquery, row_number() OVER \
                             (ORDER BY x ROWS UNBOUNDED PRECEDING), and order by the number",
                            call.func.name()
                        ))
                    });
                    return Ok(as_it_is(expr));
                }
                let is_concerned =
                    |arg: &Expr| arg.get_type(&schema).is_ok_and(|of| of.is_nested());
                if !is_compared || !args.iter().any(is_concerned) {
                    return Ok(as_it_is(expr));
                }
                match expr {
                    Expr::AggregateFunction(call) => Ok(Transformed::yes(extreme(call))),
                    other => {
                        refused.get_or_insert_with(|| unordered(&other));
                        Ok(as_it_is(other))
                    }
                }
            })
        })?;
        with_new_schema(found)
    })?;
    refused.map_or(Ok(found.data), Err)
}

/// A window in the order of a struct, with a key for NULL itself before it: the engine refuses a
/// struct as the first key. Whether it is one.
fn nulls_apart(expr: Expr, schema: &DFSchema) -> (Expr, bool) {
    match expr {
        Expr::WindowFunction(mut call) => {
            let first = call.params.order_by.first().filter(|key| is_struct(&key.expr, schema));
            let is_null =
                first.map(|key| Sort::new(key.expr.clone().is_null(), !key.nulls_first, false));
            let is_changed = is_null.is_some();
            call.params.order_by.splice(..0, is_null);
            (Expr::WindowFunction(call), is_changed)
        }
        other => (other, false),
    }
}

fn is_struct(expr: &Expr, schema: &DFSchema) -> bool {
    matches!(expr.get_type(schema), Ok(DataType::Struct(_) | DataType::Map(..)))
}

fn unordered(call: &Expr) -> Error {
    Error::query(match call {
        Expr::WindowFunction(call) => format!(
            "{}() OVER (…) of lists, structs or maps is not supported; write first_value(x) OVER (ORDER BY x …), or join the value \
             of each group",
            call.fun.name()
        ),
        Expr::ScalarFunction(call) if call.name() == "nullif" => {
            "nullif() of lists, structs or maps is not supported; write CASE WHEN x = y THEN NULL ELSE x END".to_owned()
        }
        _ => "greatest() and least() of lists, structs or maps are not supported; write CASE WHEN x > y THEN x ELSE y END"
            .to_owned(),
    })
}

/// The aggregate in the place of the engine's.
fn extreme(call: AggregateFunction) -> Expr {
    let wanted = match call.func.name() {
        "max" => Ordering::Greater,
        _ => Ordering::Less,
    };
    let signature = Signature::any(1, Volatility::Immutable);
    let func = Arc::new(AggregateUDF::from(Extreme { signature, wanted }));
    Expr::AggregateFunction(AggregateFunction { func, params: call.params })
}

/// `min` or `max`: the value that is less or greater than all others.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Extreme {
    signature: Signature,
    wanted: Ordering,
}

impl AggregateUDFImpl for Extreme {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn name(&self) -> &str {
        match self.wanted {
            Ordering::Greater => "max",
            _ => "min",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> DfResult<DataType> {
        Ok(types[0].clone())
    }

    fn accumulator(&self, args: AccumulatorArgs<'_>) -> DfResult<Box<dyn Accumulator>> {
        let best = new_null_array(args.return_field.data_type(), 1);
        Ok(Box::new(Best { wanted: self.wanted, best }))
    }
}

/// The best value so far: an array of one, NULL at first.
#[derive(Debug)]
struct Best {
    wanted: Ordering,
    best: ArrayRef,
}

impl Accumulator for Best {
    fn update_batch(&mut self, values: &[ArrayRef]) -> DfResult<()> {
        let [values] = values else { return exec_err!("min and max take one value") };
        // NULL itself, unlike NULL in a value, is passed over.
        let Some(first) = (0..values.len()).find(|row| values.is_valid(*row)) else {
            return Ok(());
        };
        let among = make_comparator(values, values, NULLS_ABOVE)?;
        let better = |best, row| match values.is_valid(row) && among(row, best) == self.wanted {
            true => row,
            false => best,
        };
        let row = (first + 1..values.len()).fold(first, better);
        if self.best.is_null(0)
            || make_comparator(values, &self.best, NULLS_ABOVE)?(row, 0) == self.wanted
        {
            // A copy: a slice would keep the whole batch in memory.
            self.best = take(values, &UInt64Array::from(vec![row as u64]), None)?;
        }
        Ok(())
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> DfResult<()> {
        self.update_batch(states)
    }

    fn state(&mut self) -> DfResult<Vec<ScalarValue>> {
        Ok(vec![self.evaluate()?])
    }

    fn evaluate(&mut self) -> DfResult<ScalarValue> {
        ScalarValue::try_from_array(&self.best, 0)
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.best.get_array_memory_size()
    }
}
