//! Arithmetic of integers that is an error where it overflows. DataFusion 53 wraps around.
//!
//! The operators `+`, `-` and `*` between integers, and the sign, become functions; of decimals the
//! engine checks them itself.

use std::any::Any;
use std::sync::{Arc, LazyLock};

use arrow::array::{ArrayRef, Datum};
use arrow::compute::kernels::numeric::{add, mul, neg, sub};
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::error::Result;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{
    BinaryExpr, ColumnarValue, Expr, ExprSchemable, LogicalPlan, Operator, ReturnFieldArgs,
    ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

use super::kept_from_optimizer::inputs_of;
use crate::Error;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Operation {
    Add,
    Subtract,
    Multiply,
    Negate,
}

/// An operation that fails where its result does not fit the type of its arguments.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Checked {
    operation: Operation,
    signature: Signature,
}

static CHECKED: LazyLock<[Arc<ScalarUDF>; 4]> = LazyLock::new(|| {
    use Operation::{Add, Multiply, Negate, Subtract};
    [(Add, 2), (Subtract, 2), (Multiply, 2), (Negate, 1)].map(|(operation, arguments)| {
        let signature = Signature::any(arguments, Volatility::Immutable);
        Arc::new(ScalarUDF::from(Checked { operation, signature }))
    })
});

impl ScalarUDFImpl for Checked {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn name(&self) -> &str {
        match self.operation {
            Operation::Add => "checked_add",
            Operation::Subtract => "checked_subtract",
            Operation::Multiply => "checked_multiply",
            Operation::Negate => "checked_negate",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        Ok(types[0].clone())
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let nullable = args.arg_fields.iter().any(|field| field.is_nullable());
        Ok(Arc::new(Field::new(self.name(), args.arg_fields[0].data_type().clone(), nullable)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let is_one = args.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let sides = args.args.iter().map(datum).collect::<Result<Vec<_>>>()?;
        let found = match (self.operation, &sides[..]) {
            (Operation::Add, [left, right]) => add(left.as_ref(), right.as_ref()),
            (Operation::Subtract, [left, right]) => sub(left.as_ref(), right.as_ref()),
            (Operation::Multiply, [left, right]) => mul(left.as_ref(), right.as_ref()),
            (_, [value, ..]) => neg(value.get().0),
            (_, []) => return datafusion::common::internal_err!("{} of nothing", self.name()),
        };
        let found = found.map_err(|error| {
            Error::query(format!(
                "arithmetic of {} overflows ({error}); cast to a wider type first, for example CAST(x AS BIGINT) or CAST(x AS \
                 DECIMAL(38, 0))",
                args.return_field.data_type()
            ))
        })?;
        Ok(match is_one {
            true => ColumnarValue::Scalar(ScalarValue::try_from_array(&found, 0)?),
            false => ColumnarValue::Array(found),
        })
    }
}

fn datum(value: &ColumnarValue) -> Result<Box<dyn Datum>> {
    Ok(match value {
        ColumnarValue::Array(array) => Box::new(ArrayRef::clone(array)),
        ColumnarValue::Scalar(value) => Box::new(value.to_scalar()?),
    })
}

/// The rule; before the rules that compute constants.
#[derive(Debug)]
pub struct CheckArithmetic;

impl OptimizerRule for CheckArithmetic {
    fn name(&self) -> &str {
        "check_arithmetic"
    }

    fn supports_rewrite(&self) -> bool {
        true
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        _: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        plan.transform_down_with_subqueries(|node| match concerns(&node)? {
            true => {
                let schema = inputs_of(&node)?;
                let names = NamePreserver::new(&node);
                let mut rewrite = |expr: Expr| {
                    let name = names.save(&expr);
                    let found = expr.transform_up(|expr| rewritten(expr, &schema))?;
                    Ok(found.update_data(|expr| name.restore(expr)))
                };
                node.map_expressions(|expr| match expr {
                    Expr::GroupingSet(_) => expr.map_children(&mut rewrite),
                    _ => rewrite(expr),
                })
            }
            false => Ok(Transformed::no(node)),
        })
    }
}

/// Returns true if a node has arithmetic; most have none, and tables may have thousands of columns.
fn concerns(plan: &LogicalPlan) -> Result<bool> {
    let mut found = false;
    plan.apply_expressions(|expr| {
        found |= expr.exists(|expr| {
            Ok(match expr {
                Expr::BinaryExpr(BinaryExpr { op, .. }) => operation(*op).is_some(),
                Expr::Negative(_) => true,
                _ => false,
            })
        })?;
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(found)
}

fn operation(op: Operator) -> Option<Operation> {
    match op {
        Operator::Plus => Some(Operation::Add),
        Operator::Minus => Some(Operation::Subtract),
        Operator::Multiply => Some(Operation::Multiply),
        _ => None,
    }
}

/// The type of an expression; a call of our own functions has its first argument's type. The engine
/// instead writes out the name of each nested call to find the type, so that a sum of a thousand
/// terms took minutes.
fn type_of(mut expr: &Expr, schema: &DFSchema) -> Result<DataType> {
    while let Expr::ScalarFunction(call) = expr
        && call.func.inner().as_any().is::<Checked>()
    {
        expr = &call.args[0];
    }
    expr.get_type(schema)
}

fn rewritten(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let (operation, args) = match expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
            let types = (type_of(&left, schema)?, type_of(&right, schema)?);
            match operation(op) {
                Some(operation) if types.0.is_integer() && types.0 == types.1 => {
                    (operation, vec![*left, *right])
                }
                _ => return Ok(Transformed::no(Expr::BinaryExpr(BinaryExpr { left, op, right }))),
            }
        }
        Expr::Negative(value) if type_of(&value, schema)?.is_signed_integer() => {
            (Operation::Negate, vec![*value])
        }
        _ => return Ok(Transformed::no(expr)),
    };
    let function = Arc::clone(&CHECKED[operation as usize]);
    Ok(Transformed::yes(Expr::ScalarFunction(ScalarFunction::new_udf(function, args))))
}
