//! `length` of a list is the number of its elements, and `length` of bytes the number of bytes.
//! DataFusion 53 writes a list as text, and counts its characters.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int64Array};
use arrow::compute::cast;
use arrow::compute::kernels::length::length;
use arrow::datatypes::DataType;
use datafusion::error::Result;
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use super::like_array;
use crate::basics::function_basics;

/// The function under its own names.
pub(super) fn of_lists_too() -> ScalarUDF {
    let inner = datafusion::functions::unicode::character_length();
    ScalarUDF::from(Length { inner, signature: Signature::user_defined(Volatility::Immutable) })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Length {
    inner: Arc<ScalarUDF>,
    signature: Signature,
}

fn counts_elements(data_type: &DataType) -> bool {
    use DataType::{
        Binary, BinaryView, FixedSizeBinary, FixedSizeList, LargeBinary, LargeList, List,
    };
    matches!(
        data_type,
        List(_)
            | LargeList(_)
            | FixedSizeList(_, _)
            | Binary
            | LargeBinary
            | BinaryView
            | FixedSizeBinary(_)
    )
}

impl ScalarUDFImpl for Length {
    function_basics!(inner);

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        use DataType::{Binary, BinaryView, LargeUtf8, Utf8, Utf8View};
        let [argument] = types else {
            return datafusion::common::plan_err!(
                "{}() takes one argument, and {} were given",
                self.name(),
                types.len()
            );
        };
        Ok(vec![match argument {
            BinaryView => Binary,
            Utf8 | LargeUtf8 | Utf8View => argument.clone(),
            counted if counts_elements(counted) => argument.clone(),
            _ => Utf8,
        }])
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match counts_elements(&types[0]) {
            true => Ok(DataType::Int64),
            false => self.inner.return_type(types),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match counts_elements(&args.args[0].data_type()) {
            true => like_array(&args.args[0], elements),
            false => self.inner.invoke_with_args(args),
        }
    }
}

fn elements(array: &ArrayRef) -> Result<ArrayRef> {
    let count = |width: i32| -> ArrayRef {
        let width = i64::from(width);
        let counts = (0..array.len()).map(|row| array.is_valid(row).then_some(width));
        Arc::new(counts.collect::<Int64Array>())
    };
    Ok(match array.data_type() {
        DataType::FixedSizeList(_, width) | DataType::FixedSizeBinary(width) => count(*width),
        _ => cast(&length(array)?, &DataType::Int64)?,
    })
}

#[cfg(test)]
mod tests {
    use arrow::array::{AsArray, BinaryArray, FixedSizeBinaryArray, ListArray};
    use arrow::datatypes::{Int32Type, Int64Type};

    use super::*;

    #[test]
    fn elements_are_counted() {
        let lists = vec![Some(vec![Some(1), None]), None, Some(vec![])];
        let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists));
        let fixed = FixedSizeBinaryArray::try_from_sparse_iter_with_size(
            [Some([1u8, 2]), None, Some([3, 4])].into_iter(),
            2,
        );
        let bytes = BinaryArray::from_opt_vec(vec![Some(b"\xc3\xa9".as_ref()), None, Some(b"")]);
        for (array, expected) in [
            (lists, [Some(2), None, Some(0)]),
            (Arc::new(fixed.unwrap()), [Some(2), None, Some(2)]),
            (Arc::new(bytes), [Some(2), None, Some(0)]),
        ] {
            let found = elements(&array).unwrap();
            assert_eq!(found.as_primitive::<Int64Type>().iter().collect::<Vec<_>>(), expected);
        }
    }
}
