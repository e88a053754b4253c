//! Zero is equal to zero, whatever its sign, as IEEE 754, SQL and every other engine say; DataFusion 53 compares floats by their total
//! order, in which -0.0 comes before 0.0, so that `x >= 0` lost rows.
//!
//! A constant gets the sign to which the comparison is open, so that statistics leave out row groups as before. Where no side is a
//! constant, both sides lose the sign of their zeros. Keys of `USING` and of groups are compared by their bits.

use std::any::Any;
use std::sync::{Arc, LazyLock};

use arrow::array::{ArrayRef, ArrowPrimitiveType, AsArray};
use arrow::datatypes::{DataType, Float16Type, Float32Type, Float64Type};
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::error::Result;
use datafusion::logical_expr::expr::{Between, InList, ScalarFunction};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{
    BinaryExpr, ColumnarValue, Expr, ExprSchemable, LogicalPlan, Operator, ScalarFunctionArgs,
    ScalarUDF, ScalarUDFImpl, Signature, Volatility, and, or,
};
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};
use half::f16;

use super::exact::inputs_of;

/// The function after which there is one zero.
#[derive(Debug, PartialEq, Eq, Hash)]
struct OneZero {
    signature: Signature,
}

static ONE_ZERO: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| {
    let signature = Signature::any(1, Volatility::Immutable);
    Arc::new(ScalarUDF::from(OneZero { signature }))
});

impl ScalarUDFImpl for OneZero {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn name(&self) -> &str {
        "one_zero"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        Ok(types[0].clone())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let is_one = matches!(args.args[0], ColumnarValue::Scalar(_));
        let [array] = &ColumnarValue::values_to_arrays(&args.args)?[..] else { unreachable!() };
        let found = match array.data_type() {
            DataType::Float16 => with_one_zero::<Float16Type>(array, |value| value + f16::ZERO),
            DataType::Float32 => with_one_zero::<Float32Type>(array, |value| value + 0.0),
            _ => with_one_zero::<Float64Type>(array, |value| value + 0.0),
        };
        Ok(match is_one {
            true => ColumnarValue::Scalar(ScalarValue::try_from_array(&found, 0)?),
            false => ColumnarValue::Array(found),
        })
    }
}

/// The sum of -0.0 and 0.0 is 0.0.
fn with_one_zero<T: ArrowPrimitiveType>(
    array: &ArrayRef,
    plus_zero: impl Fn(T::Native) -> T::Native,
) -> ArrayRef {
    Arc::new(array.as_primitive::<T>().unary::<_, T>(plus_zero))
}

pub(super) fn one_zero(expr: Expr) -> Expr {
    Expr::ScalarFunction(ScalarFunction::new_udf(Arc::clone(&ONE_ZERO), vec![expr]))
}

fn has_one_zero(expr: &Expr) -> bool {
    matches!(expr, Expr::ScalarFunction(function) if function.func == *ONE_ZERO)
}

/// The rule; after those that compute constants.
#[derive(Debug)]
pub struct EqualZeros;

impl OptimizerRule for EqualZeros {
    fn name(&self) -> &str {
        "equal_zeros"
    }

    fn supports_rewrite(&self) -> bool {
        true
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        _config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        plan.transform_down_with_subqueries(|node| match concerns(&node)? {
            true => {
                let schema = inputs_of(&node)?;
                let names = NamePreserver::new(&node);
                node.map_expressions(|expr| {
                    let name = names.save(&expr);
                    let found = expr.transform_down(|expr| rewritten(expr, &schema))?;
                    Ok(Transformed::new_transformed(name.restore(found.data), found.transformed))
                })
            }
            false => Ok(Transformed::no(node)),
        })
    }
}

/// The plan with one zero wherever constants are compared: the optimiser computes those before the rule sees them.
///
/// # Errors
/// Those of walking a plan.
pub(super) fn constant_zeros(plan: LogicalPlan) -> crate::Result<LogicalPlan> {
    let found = plan.transform_up_with_subqueries(|node| {
        let names = NamePreserver::new(&node);
        node.map_expressions(|expr| {
            let name = names.save(&expr);
            let found = expr.transform_up(|expr| {
                Ok(match is_constant_comparison(&expr) {
                    true => Transformed::yes(expr.map_children(one_zero_of_floats)?.data),
                    false => Transformed::no(expr),
                })
            })?;
            Ok(found.update_data(|expr| name.restore(expr)))
        })
    })?;
    Ok(found.data)
}

fn is_constant_comparison(expr: &Expr) -> bool {
    let compares = match expr {
        Expr::BinaryExpr(BinaryExpr { op, .. }) => is_comparison(*op),
        Expr::Between(_) | Expr::InList(_) => true,
        _ => false,
    };
    let is_variable = |expr: &Expr| {
        Ok(matches!(
            expr,
            Expr::Column(_)
                | Expr::OuterReferenceColumn(..)
                | Expr::ScalarSubquery(_)
                | Expr::AggregateFunction(_)
                | Expr::WindowFunction(_)
        ))
    };
    compares && !expr.exists(is_variable).unwrap_or(true)
}

fn one_zero_of_floats(expr: Expr) -> Result<Transformed<Expr>> {
    let is_float = expr.get_type(&DFSchema::empty()).is_ok_and(|found| found.is_floating());
    Ok(match is_float && !has_one_zero(&expr) {
        true => Transformed::yes(one_zero(expr)),
        false => Transformed::no(expr),
    })
}

/// Whether a node compares with a zero, or what is no constant with what is none.
fn concerns(plan: &LogicalPlan) -> Result<bool> {
    let mut found = false;
    plan.apply_expressions(|expr| {
        found |= expr.exists(|expr| {
            Ok(match expr {
                Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
                    is_comparison(*op) && may_be_zeros(left) && may_be_zeros(right)
                }
                Expr::Between(between) => may_be_zeros(&between.low) || may_be_zeros(&between.high),
                Expr::InList(list) => list.list.iter().any(may_be_zeros),
                _ => false,
            })
        })?;
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(found)
}

fn rewritten(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    Ok(match expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if is_comparison(op) => {
            if !(may_be_zeros(&left) && may_be_zeros(&right) && is_float(&left, schema)?) {
                return Ok(Transformed::no(Expr::BinaryExpr(BinaryExpr { left, op, right })));
            }
            match (is_zero(&left), is_zero(&right), op.swap()) {
                (false, true, _) => with_zero(*left, op, &right),
                (true, false, Some(op)) => with_zero(*right, op, &left),
                _ => Transformed::yes(compared(with_one(*left), op, with_one(*right))),
            }
        }
        Expr::Between(Between { expr, negated, low, high }) if is_float(&expr, schema)? => {
            let is_changed = is_zero(&low) || is_zero(&high);
            let low = if is_zero(&low) { Box::new(signed(&low, true)) } else { low };
            let high = if is_zero(&high) { Box::new(signed(&high, false)) } else { high };
            let between = Expr::Between(Between { expr, negated, low, high });
            Transformed::new(between, is_changed, TreeNodeRecursion::Continue)
        }
        // What is computed may be a zero of either sign.
        Expr::InList(InList { expr, list, negated })
            if list
                .iter()
                .any(|each| !matches!(each, Expr::Literal(..)) && !has_one_zero(each))
                && is_float(&expr, schema)? =>
        {
            let list = list.into_iter().map(with_one).collect();
            let list = InList { expr: Box::new(with_one(*expr)), list, negated };
            Transformed::yes(Expr::InList(list))
        }
        Expr::InList(InList { expr, mut list, negated }) => {
            let zeros: Vec<&Expr> = list.iter().filter(|each| is_zero(each)).collect();
            let missing = match zeros.first() {
                Some(zero) => [signed(zero, true), signed(zero, false)]
                    .into_iter()
                    .filter(|each| !zeros.contains(&each))
                    .collect(),
                None => Vec::new(),
            };
            let is_changed = !missing.is_empty();
            list.extend(missing);
            let list = Expr::InList(InList { expr, list, negated });
            Transformed::new(list, is_changed, TreeNodeRecursion::Continue)
        }
        other => Transformed::no(other),
    })
}

/// A comparison with the zero to which it is open.
fn with_zero(value: Expr, op: Operator, zero: &Expr) -> Transformed<Expr> {
    let (least, most) = (signed(zero, true), signed(zero, false));
    let is_column = matches!(value, Expr::Column(_));
    let found = match op {
        Operator::Lt => value.lt(least),
        Operator::GtEq => value.gt_eq(least),
        Operator::Gt => value.gt(most),
        Operator::LtEq => value.lt_eq(most),
        // Statistics know what a range leaves out. What is computed is computed once.
        Operator::Eq if is_column => and(value.clone().gt_eq(least), value.lt_eq(most)),
        Operator::NotEq if is_column => or(value.clone().lt(least), value.gt(most)),
        op => compared(with_one(value), op, most),
    };
    Transformed::yes(found)
}

fn is_comparison(op: Operator) -> bool {
    use Operator::{Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq, NotEq};
    matches!(op, Eq | NotEq | Lt | LtEq | Gt | GtEq | IsDistinctFrom | IsNotDistinctFrom)
}

fn compared(left: Expr, op: Operator, right: Expr) -> Expr {
    Expr::BinaryExpr(BinaryExpr::new(Box::new(left), op, Box::new(right)))
}

fn with_one(expr: Expr) -> Expr {
    match is_zero(&expr) {
        true => signed(&expr, false),
        false if has_one_zero(&expr) => expr,
        false => one_zero(expr),
    }
}

/// Whether it may be a zero of either sign: constants are known.
fn may_be_zeros(expr: &Expr) -> bool {
    !matches!(expr, Expr::Literal(..)) && !has_one_zero(expr) || is_zero(expr)
}

fn is_zero(expr: &Expr) -> bool {
    match expr {
        Expr::Literal(ScalarValue::Float16(Some(value)), _) => *value == f16::ZERO,
        Expr::Literal(ScalarValue::Float32(Some(value)), _) => *value == 0.0,
        Expr::Literal(ScalarValue::Float64(Some(value)), _) => *value == 0.0,
        _ => false,
    }
}

fn is_float(expr: &Expr, schema: &DFSchema) -> Result<bool> {
    Ok(expr.get_type(schema)?.is_floating())
}

/// The zero of the same type with this sign.
fn signed(zero: &Expr, is_negative: bool) -> Expr {
    let Expr::Literal(value, _) = zero else { return zero.clone() };
    let value = match (value, is_negative) {
        (ScalarValue::Float16(_), true) => ScalarValue::Float16(Some(f16::NEG_ZERO)),
        (ScalarValue::Float16(_), false) => ScalarValue::Float16(Some(f16::ZERO)),
        (ScalarValue::Float32(_), true) => ScalarValue::Float32(Some(-0.0)),
        (ScalarValue::Float32(_), false) => ScalarValue::Float32(Some(0.0)),
        (_, true) => ScalarValue::Float64(Some(-0.0)),
        (_, false) => ScalarValue::Float64(Some(0.0)),
    };
    Expr::Literal(value, None)
}
