//! `round`, `trunc`, `ceil` and `floor` of decimals, exactly, and of a type that planning decides
//! once.
//!
//! DataFusion 53 plans the type of `round(x, places)` by places that are a literal, and computes
//! with another type once an expression has become one, so that 3 was 0.3. It cuts off a decimal's
//! digits as a float, and fails where `ceil` needs a digit more.
//!
//! Upstream: apache/datafusion#22511, apache/datafusion#22512.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Decimal256Array};
use arrow::compute::{CastOptions, cast, cast_with_options};
use arrow::datatypes::{
    DECIMAL256_MAX_PRECISION, DataType, Decimal256Type, DecimalType, Int64Type, i256,
};
use datafusion::common::types::{NativeType, logical_float32, logical_float64, logical_int64};
use datafusion::common::{DFSchema, ScalarValue, plan_err};
use datafusion::error::Result;
use datafusion::functions::math;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::preimage::PreimageResult;
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::logical_expr::sort_properties::{ExprProperties, SortProperties};
use datafusion::logical_expr::{
    Coercion, ColumnarValue, Expr, ExprSchemable, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, TypeSignature, TypeSignatureClass, Volatility,
};

use crate::Error;
use crate::basics::{computed, function_basics};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Toward {
    /// To the nearest; the half away from zero.
    Nearest,
    Zero,
    Above,
    Below,
}

/// The functions that take the place of others.
pub(super) fn functions() -> [ScalarUDF; 3] {
    let decimal = || Coercion::new_exact(TypeSignatureClass::Decimal);
    let places = || {
        Coercion::new_implicit(
            TypeSignatureClass::Native(logical_int64()),
            vec![TypeSignatureClass::Integer],
            NativeType::Int64,
        )
    };
    let float = Coercion::new_exact(TypeSignatureClass::Native(logical_float32()));
    let double = Coercion::new_implicit(
        TypeSignatureClass::Native(logical_float64()),
        vec![TypeSignatureClass::Numeric],
        NativeType::Float64,
    );
    // The engine's own makes a REAL of an integer beside places, which has seven digits.
    let trunc = vec![
        TypeSignature::Coercible(vec![decimal(), places()]),
        TypeSignature::Coercible(vec![decimal()]),
        TypeSignature::Coercible(vec![float, places()]),
        TypeSignature::Coercible(vec![double, places()]),
    ];
    let one = || vec![TypeSignature::Coercible(vec![decimal()])];
    [
        (math::trunc(), Toward::Zero, trunc),
        (math::ceil(), Toward::Above, one()),
        (math::floor(), Toward::Below, one()),
    ]
    .map(|(inner, toward, mut forms)| {
        forms.push(inner.signature().type_signature.clone());
        let signature = Signature::one_of(forms, Volatility::Immutable);
        ScalarUDF::from(Whole { inner, toward, signature })
    })
}

/// `rounded_decimal(x, places, NULL)`, where the NULL has the type of the result.
pub(super) fn rounded() -> ScalarUDF {
    ScalarUDF::from(Rounded { signature: Signature::any(3, Volatility::Immutable) })
}

/// `round` of a decimal with its planned type; for anything else, the unchanged arguments.
pub(super) fn round_of_a_type(
    function: &Arc<ScalarUDF>,
    args: &[Expr],
    schema: &DFSchema,
) -> Option<Expr> {
    let as_planned = ScalarFunction { func: Arc::clone(function), args: args.to_vec() };
    let planned = Expr::ScalarFunction(as_planned).get_type(schema).ok()?;
    if !planned.is_decimal() || !args.first()?.get_type(schema).ok()?.is_decimal() {
        return None;
    }
    let places = args.get(1).cloned().unwrap_or(Expr::Literal(ScalarValue::from(0i64), None));
    let of = Expr::Literal(ScalarValue::try_new_null(&planned).ok()?, None);
    let args = vec![args.first()?.clone(), places, of];
    Some(Expr::ScalarFunction(ScalarFunction { func: Arc::new(rounded()), args }))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Rounded {
    signature: Signature,
}

impl ScalarUDFImpl for Rounded {
    function_basics!("rounded_decimal");

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match types {
            [value, places, of]
                if value.is_decimal()
                    && (places.is_integer() || places.is_null())
                    && of.is_decimal() =>
            {
                Ok(of.clone())
            }
            _ => plan_err!("{} takes a decimal, an integer and a decimal", self.name()),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        computed(&args, |arrays| {
            let of = args.return_field.data_type();
            all_to(&arrays[0], Some(&arrays[1]), Toward::Nearest, of, "round")
        })
    }
}

/// A function for decimals that does what the engine's own does for other numbers.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Whole {
    inner: Arc<ScalarUDF>,
    toward: Toward,
    signature: Signature,
}

impl ScalarUDFImpl for Whole {
    function_basics!(inner);

    fn output_ordering(&self, inputs: &[ExprProperties]) -> Result<SortProperties> {
        self.inner.output_ordering(inputs)
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        use DataType::{Decimal32, Decimal64, Decimal128, Decimal256};
        Ok(match &types[0] {
            of if types.len() > 1 && of.is_decimal() => of.clone(),
            Decimal32(digits, 1..) => Decimal32(*digits, 0),
            Decimal64(digits, 1..) => Decimal64(*digits, 0),
            Decimal128(digits, 1..) => Decimal128(*digits, 0),
            Decimal256(digits, 1..) => Decimal256(*digits, 0),
            of if of.is_decimal() => of.clone(),
            _ => return self.inner.return_type(types),
        })
    }

    fn preimage(
        &self,
        args: &[Expr],
        literal: &Expr,
        context: &SimplifyContext,
    ) -> Result<PreimageResult> {
        match context.get_data_type(&args[0])?.is_decimal() {
            true => Ok(PreimageResult::None),
            false => self.inner.preimage(args, literal, context),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        if !args.args[0].data_type().is_decimal() {
            return self.inner.invoke_with_args(args);
        }
        computed(&args, |arrays| {
            let of = args.return_field.data_type();
            all_to(&arrays[0], arrays.get(1), self.toward, of, self.name())
        })
    }
}

/// Decimals to as many places as are said for each; 0 where none are.
fn all_to(
    values: &ArrayRef,
    places: Option<&ArrayRef>,
    toward: Toward,
    of: &DataType,
    name: &str,
) -> Result<ArrayRef> {
    let (from, (precision, scale)) = (digits(values.data_type())?, digits(of)?);
    let widest = |scale| DataType::Decimal256(DECIMAL256_MAX_PRECISION, scale);
    let values = cast(values, &widest(from.1))?;
    let values = values.as_primitive::<Decimal256Type>();
    let places = places.map(|places| cast(places, &DataType::Int64)).transpose()?;
    let places = places.as_ref().map(|places| places.as_primitive::<Int64Type>());
    let made = (0..values.len()).map(|row| {
        if values.is_null(row) || places.is_some_and(|places| places.is_null(row)) {
            return Ok(None);
        }
        let (value, places) = (values.value(row), places.map_or(0, |places| places.value(row)));
        let found = to_places(value, from.1, places, toward, scale).filter(|found| {
            Decimal256Type::validate_decimal_precision(*found, precision, scale).is_ok()
        });
        match found {
            Some(found) => Ok(Some(found)),
            None => Err(Error::query(format!(
                "{name}({}, {places}) does not fit the type {of}; cast to a decimal of more digits first, or to DOUBLE",
                Decimal256Type::format_decimal(value, DECIMAL256_MAX_PRECISION, from.1)
            ))),
        }
    });
    let made = made.collect::<crate::Result<Decimal256Array>>()?;
    let made = made.with_precision_and_scale(DECIMAL256_MAX_PRECISION, scale)?;
    let options = CastOptions { safe: false, ..CastOptions::default() };
    Ok(cast_with_options(&made, of, &options)?)
}

fn digits(of: &DataType) -> Result<(u8, i8)> {
    use DataType::{Decimal32, Decimal64, Decimal128, Decimal256};
    match of {
        Decimal32(precision, scale)
        | Decimal64(precision, scale)
        | Decimal128(precision, scale)
        | Decimal256(precision, scale) => Ok((*precision, *scale)),
        other => datafusion::common::internal_err!("{other} is no decimal"),
    }
}

/// A value of the scale `from` to places after the point, in the scale `to`. None where it has too
/// many digits.
fn to_places(value: i256, from: i8, places: i64, toward: Toward, to: i8) -> Option<i256> {
    let power = |digits: i64| i256::from_i128(10).checked_pow(u32::try_from(digits).ok()?);
    let kept = places.min(i64::from(from));
    let dropped = i64::from(from).saturating_sub(kept);
    // What has fewer digits than are dropped is nearer to zero than to anything else.
    let whole = match dropped {
        0 => value,
        1..=76 => {
            let unit = power(dropped)?;
            let (whole, rest) = (value.wrapping_div(unit), value.wrapping_rem(unit));
            let sign = if value.is_negative() { i256::MINUS_ONE } else { i256::ONE };
            let away = match toward {
                Toward::Nearest => rest.wrapping_abs() >= unit.wrapping_sub(rest.wrapping_abs()),
                Toward::Zero => false,
                Toward::Above => rest > i256::ZERO,
                Toward::Below => rest < i256::ZERO,
            };
            if away { whole.wrapping_add(sign) } else { whole }
        }
        _ => i256::ZERO,
    };
    if whole == i256::ZERO {
        return Some(whole);
    }
    let finer = i64::from(to) - kept;
    match finer >= 0 {
        true => whole.checked_mul(power(finer)?),
        // Only zeros are left out: the type has the places that are kept.
        false => Some(whole.wrapping_div(power(-finer)?)),
    }
}
