//! The function after which floats compare as the product has it: zero equals zero, and NaN equals
//! NaN and is above all numbers, for any signs. The engine compares by bits, in whose order -0.0
//! comes before 0.0, and NaN with a sign, which processors make of `inf - inf`, before all numbers.

use std::sync::{Arc, LazyLock};

use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, AsArray, FixedSizeListArray, LargeListArray, ListArray,
    MapArray, StructArray,
};
use arrow::datatypes::{DataType, FieldRef, Float16Type, Float32Type, Float64Type};
use datafusion::error::Result;
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};
use half::f16;

use crate::basics::{computed, function_basics};

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

/// Returns true if a function is this one.
pub fn is_plain_float(function: &ScalarUDF) -> bool {
    function.inner().as_any().is::<PlainFloat>()
}

impl ScalarUDFImpl for PlainFloat {
    function_basics!("plain_float");

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        Ok(types[0].clone())
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        Ok(Arc::clone(&args.arg_fields[0]))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        computed(&args, |values| in_one_form(&values[0]))
    }
}

/// Returns true for floats, and for types that contain floats.
pub fn has_floats(data_type: &DataType) -> bool {
    use DataType::{FixedSizeList, LargeList, List, Map, Struct};
    match data_type {
        List(item) | LargeList(item) | FixedSizeList(item, _) | Map(item, _) => {
            has_floats(item.data_type())
        }
        Struct(fields) => fields.iter().any(|field| has_floats(field.data_type())),
        other => other.is_floating(),
    }
}

/// The values with each float in one form, also those in lists, structs and maps.
pub fn in_one_form(array: &ArrayRef) -> Result<ArrayRef> {
    use DataType::{FixedSizeList, Float16, Float32, Float64, LargeList, List, Map, Struct};
    // The sum of -0.0 and 0.0 is 0.0.
    Ok(match array.data_type() {
        Float16 => plain::<Float16Type>(array, |value| match value.is_nan() {
            true => f16::NAN,
            false => value + f16::ZERO,
        }),
        Float32 => plain::<Float32Type>(array, |value| match value.is_nan() {
            true => f32::NAN,
            false => value + 0.0,
        }),
        Float64 => plain::<Float64Type>(array, |value| match value.is_nan() {
            true => f64::NAN,
            false => value + 0.0,
        }),
        other if !has_floats(other) => Arc::clone(array),
        List(_) => {
            let (item, offsets, values, nulls) = array.as_list::<i32>().clone().into_parts();
            Arc::new(ListArray::try_new(item, offsets, in_one_form(&values)?, nulls)?)
        }
        LargeList(_) => {
            let (item, offsets, values, nulls) = array.as_list::<i64>().clone().into_parts();
            Arc::new(LargeListArray::try_new(item, offsets, in_one_form(&values)?, nulls)?)
        }
        FixedSizeList(item, width) => {
            let lists = array.as_fixed_size_list();
            let (values, nulls) = (in_one_form(lists.values())?, lists.nulls().cloned());
            Arc::new(FixedSizeListArray::try_new_with_length(
                Arc::clone(item),
                *width,
                values,
                nulls,
                lists.len(),
            )?)
        }
        Struct(_) => {
            let (fields, columns, nulls) = array.as_struct().clone().into_parts();
            let columns = columns.iter().map(in_one_form).collect::<Result<_>>()?;
            Arc::new(StructArray::try_new_with_length(fields, columns, nulls, array.len())?)
        }
        Map(_, _) => {
            let (entry, offsets, entries, nulls, ordered) = array.as_map().clone().into_parts();
            let entries: ArrayRef = Arc::new(entries);
            let entries = in_one_form(&entries)?.as_struct().clone();
            Arc::new(MapArray::try_new(entry, offsets, entries, nulls, ordered)?)
        }
        _ => Arc::clone(array),
    })
}

fn plain<T: ArrowPrimitiveType>(
    array: &ArrayRef,
    value: impl Fn(T::Native) -> T::Native,
) -> ArrayRef {
    Arc::new(array.as_primitive::<T>().unary::<_, T>(value))
}
