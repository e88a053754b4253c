//! `array_sort(list, order, nulls)` with an order of each row's own. DataFusion 53 takes that of the first row for all.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, new_null_array};
use arrow::compute::interleave;
use arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::error::Result;
use datafusion::functions_nested::sort::array_sort_udf;
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
};

/// The function under its own name.
pub(super) fn order_of_each_row() -> ScalarUDF {
    ScalarUDF::from(ArraySort { inner: array_sort_udf() })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct ArraySort {
    inner: Arc<ScalarUDF>,
}

impl ScalarUDFImpl for ArraySort {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.inner.return_type(types)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let is_constant = |order: &ColumnarValue| matches!(order, ColumnarValue::Scalar(_));
        if args.args.iter().skip(1).all(is_constant) {
            return self.inner.invoke_with_args(args);
        }
        let rows = args.number_rows;
        let orders: Vec<ArrayRef> =
            args.args[1..].iter().map(|order| order.to_array(rows)).collect::<Result<_>>()?;
        // All rows are sorted once by each order there is; one of text that is no order is an error.
        let nothing = new_null_array(args.return_field.data_type(), 1);
        let mut sorted = vec![nothing];
        let mut known: HashMap<Vec<ScalarValue>, usize> = HashMap::new();
        let mut taken = Vec::with_capacity(rows);
        for row in 0..rows {
            if orders.iter().any(|order| order.is_null(row)) {
                taken.push((0, 0));
                continue;
            }
            let order: Vec<ScalarValue> = orders
                .iter()
                .map(|order| ScalarValue::try_from_array(order, row))
                .collect::<Result<_>>()?;
            let number = match known.get(&order) {
                Some(number) => *number,
                None => {
                    let mut args = args.clone();
                    let constants = order.iter().cloned().map(ColumnarValue::Scalar);
                    args.args.splice(1.., constants);
                    sorted.push(self.inner.invoke_with_args(args)?.into_array(rows)?);
                    known.insert(order, sorted.len() - 1);
                    sorted.len() - 1
                }
            };
            taken.push((number, row));
        }
        let sorted: Vec<&dyn Array> = sorted.iter().map(AsRef::as_ref).collect();
        Ok(ColumnarValue::Array(interleave(&sorted, &taken)?))
    }
}
