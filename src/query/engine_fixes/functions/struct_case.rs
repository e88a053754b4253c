//! A struct that CASE, `coalesce` and their like make NULL has fields that are NULL, and a list no
//! elements. DataFusion 53 leaves their values, and reads them without asking whether the value
//! around them is NULL.

use std::sync::{Arc, LazyLock};

use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::DFSchema;
use datafusion::error::Result;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, Volatility,
};

use super::like_array;
use crate::basics::function_basics;
use crate::formats::emptied;

/// Functions that take a value or NULL in place of it.
const CHOOSING: [&str; 8] =
    ["coalesce", "nvl", "ifnull", "nvl2", "nullif", "greatest", "least", "array_element"];

static NULL_FIELDS: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| {
    let signature = Signature::any(1, Volatility::Immutable);
    Arc::new(ScalarUDF::from(NullFields { signature }))
});

/// Returns true for an expression that may make a struct or a list NULL.
pub(super) fn makes_null_structs(expr: &Expr, schema: &DFSchema) -> bool {
    let chooses = match expr {
        Expr::Case(_) => true,
        Expr::ScalarFunction(function) => CHOOSING.contains(&function.name()),
        _ => false,
    };
    chooses && expr.get_type(schema).is_ok_and(|found| found.is_nested())
}

/// Makes the fields of NULL values NULL.
pub(super) fn null_fields(expr: Expr) -> Expr {
    Expr::ScalarFunction(ScalarFunction::new_udf(Arc::clone(&NULL_FIELDS), vec![expr]))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct NullFields {
    signature: Signature,
}

impl ScalarUDFImpl for NullFields {
    function_basics!("null_fields");

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        Ok(types[0].clone())
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        Ok(Arc::clone(&args.arg_fields[0]))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        like_array(&args.args[0], |array| Ok(emptied(array)?))
    }
}
