//! Arithmetic of integers that is an error where it overflows. DataFusion 53 wraps around.
//!
//! The operators `+`, `-` and `*` between integers, and the sign, become functions; of decimals the
//! engine checks them itself.
//!
//! Upstream: apache/datafusion#3520, apache/datafusion#17539.

use std::sync::{Arc, LazyLock};

use arrow::array::{ArrayRef, Datum};
use arrow::compute::kernels::numeric::{add, mul, neg, sub};
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::error::Result;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{
    BinaryExpr, ColumnarValue, Expr, ExprSchemable, LogicalPlan, Operator, ReturnFieldArgs,
    ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use super::walk::{PlanRule, has_any, inputs_of, with_names};
use crate::Error;
use crate::basics::function_basics;

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
    function_basics!(this => match this.operation {
        Operation::Add => "checked_add",
        Operation::Subtract => "checked_subtract",
        Operation::Multiply => "checked_multiply",
        Operation::Negate => "checked_negate",
    });

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
pub const CHECK_ARITHMETIC: PlanRule = PlanRule::new("check_arithmetic", |plan, _| {
    plan.transform_down_with_subqueries(|node| match concerns(&node)? {
        true => {
            let schema = inputs_of(&node)?;
            with_names(node, |expr| expr.transform_up(|expr| rewritten(expr, &schema)))
        }
        false => Ok(Transformed::no(node)),
    })
});

/// Returns true if a node has arithmetic.
fn concerns(plan: &LogicalPlan) -> Result<bool> {
    has_any(plan, |expr| match expr {
        Expr::BinaryExpr(BinaryExpr { op, .. }) => operation(*op).is_some(),
        expr => matches!(expr, Expr::Negative(_)),
    })
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
