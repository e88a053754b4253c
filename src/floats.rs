//! The function after which floats compare as the product has it: zero equals zero, and NaN equals NaN and is above all
//! numbers, whatever their signs. The engine compares by bits, in whose order -0.0 comes before 0.0, and NaN with a sign, which
//! processors make of `inf - inf`, before all numbers.

use std::any::Any;
use std::sync::{Arc, LazyLock};

use arrow::array::{ArrayRef, ArrowPrimitiveType, AsArray};
use arrow::datatypes::{DataType, FieldRef, Float16Type, Float32Type, Float64Type};
use datafusion::common::ScalarValue;
use datafusion::error::Result;
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};
use half::f16;

#[derive(Debug, PartialEq, Eq, Hash)]
struct PlainFloat {
    signature: Signature,
}

static PLAIN_FLOAT: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| {
    let signature = Signature::any(1, Volatility::Immutable);
    Arc::new(ScalarUDF::from(PlainFloat { signature }))
});

/// The function.
pub fn plain_float() -> &'static Arc<ScalarUDF> {
    &PLAIN_FLOAT
}

/// Whether a function is this one.
pub fn is_plain_float(function: &ScalarUDF) -> bool {
    function.inner().as_any().is::<PlainFloat>()
}

impl ScalarUDFImpl for PlainFloat {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn name(&self) -> &str {
        "plain_float"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        Ok(types[0].clone())
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        Ok(Arc::clone(&args.arg_fields[0]))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let is_one = matches!(args.args[0], ColumnarValue::Scalar(_));
        let [array] = &ColumnarValue::values_to_arrays(&args.args)?[..] else { unreachable!() };
        // The sum of -0.0 and 0.0 is 0.0.
        let found = match array.data_type() {
            DataType::Float16 => plain::<Float16Type>(array, |value| match value.is_nan() {
                true => f16::NAN,
                false => value + f16::ZERO,
            }),
            DataType::Float32 => plain::<Float32Type>(array, |value| match value.is_nan() {
                true => f32::NAN,
                false => value + 0.0,
            }),
            _ => plain::<Float64Type>(array, |value| match value.is_nan() {
                true => f64::NAN,
                false => value + 0.0,
            }),
        };
        Ok(match is_one {
            true => ColumnarValue::Scalar(ScalarValue::try_from_array(&found, 0)?),
            false => ColumnarValue::Array(found),
        })
    }
}

fn plain<T: ArrowPrimitiveType>(
    array: &ArrayRef,
    value: impl Fn(T::Native) -> T::Native,
) -> ArrayRef {
    Arc::new(array.as_primitive::<T>().unary::<_, T>(value))
}
