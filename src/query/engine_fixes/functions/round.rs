//! `round(x, places)` of floats to more places than they have digits, which is x. DataFusion 53
//! multiplies by a power of ten that is infinite then, or has lost digits: `round(53, 400)` was
//! NaN, and `round(53, 15)` 52.99999999999999.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Float32Array, Float64Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type, Int64Type};
use datafusion::error::Result;
use datafusion::functions::math;
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl};

use super::in_place::accessors_of_inner;
use crate::basics::computed;

/// The function in the place of the engine's.
pub(super) fn of_floats() -> ScalarUDF {
    ScalarUDF::from(Round { inner: math::round() })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Round {
    inner: Arc<ScalarUDF>,
}

impl ScalarUDFImpl for Round {
    accessors_of_inner!();

    fn return_field_from_args(
        &self,
        args: datafusion::logical_expr::ReturnFieldArgs<'_>,
    ) -> Result<arrow::datatypes::FieldRef> {
        self.inner.return_field_from_args(args)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let is_float = args.args[0].data_type().is_floating();
        if !is_float || args.args.len() < 2 || !args.return_field.data_type().is_floating() {
            return self.inner.invoke_with_args(args);
        }
        computed(&args, |arrays| {
            let values = cast(&arrays[0], &DataType::Float64)?;
            let places = cast(&arrays[1], &DataType::Int64)?;
            let rows = values.as_primitive::<Float64Type>().iter();
            let rounded = rows
                .zip(places.as_primitive::<Int64Type>())
                .map(|(value, places)| Some(to_places(value?, places?)));
            Ok(match args.return_field.data_type() {
                // A float of 32 bits has all of its digits in one of 64.
                DataType::Float32 => {
                    let narrow = rounded.map(|value| value.map(|value| value as f32));
                    Arc::new(narrow.collect::<Float32Array>()) as ArrayRef
                }
                of => cast(&(Arc::new(rounded.collect::<Float64Array>()) as ArrayRef), of)?,
            })
        })
    }
}

/// A number to places after the point, the half away from zero.
fn to_places(value: f64, places: i64) -> f64 {
    /// Larger numbers have no digit after the point.
    const WHOLE: f64 = 4_503_599_627_370_496.0;
    let exponent = i32::try_from(places.unsigned_abs()).unwrap_or(i32::MAX);
    let power = 10_f64.powi(exponent);
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    if places < 0 {
        return if power.is_finite() { (value / power).round() * power } else { 0.0 };
    }
    let digits = value * power;
    // Also where the power is infinite.
    if digits.abs() < WHOLE { digits.round() / power } else { value }
}
