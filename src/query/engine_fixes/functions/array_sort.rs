//! `array_sort(list, order, nulls)` with an order of each row's own, and with NULLs where ORDER BY
//! has them: last of ASC, first of DESC. DataFusion 53 takes the order of the first row for all,
//! and has NULLs first of both.
//!
//! Upstream: apache/datafusion#24132.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, new_null_array};
use arrow::compute::interleave;
use arrow::datatypes::{DataType, Field};
use datafusion::common::ScalarValue;
use datafusion::error::Result;
use datafusion::functions_nested::sort::array_sort_udf;
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl};

use super::in_place::accessors_of_inner;

/// The function under its own name.
pub(super) fn order_of_each_row() -> ScalarUDF {
    ScalarUDF::from(ArraySort { inner: array_sort_udf() })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct ArraySort {
    inner: Arc<ScalarUDF>,
}

impl ScalarUDFImpl for ArraySort {
    accessors_of_inner!();

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let constants: Option<Vec<ScalarValue>> = args.args.iter().skip(1).map(constant).collect();
        if let Some(order) = constants {
            return self.sorted(args, &order);
        }
        let rows = args.number_rows;
        let orders: Vec<ArrayRef> =
            args.args[1..].iter().map(|order| order.to_array(rows)).collect::<Result<_>>()?;
        // All rows are sorted once by each order there is; one of text that is no order is an
        // error.
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
                    sorted.push(self.sorted(args.clone(), &order)?.into_array(rows)?);
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

impl ArraySort {
    /// All rows sorted by one order, of none to two words.
    fn sorted(&self, mut args: ScalarFunctionArgs, order: &[ScalarValue]) -> Result<ColumnarValue> {
        let mut order = order.to_vec();
        if order.is_empty() {
            order.push(ScalarValue::from("ASC"));
        }
        if order.len() == 1 {
            let descends = matches!(order[0].try_as_str(), Some(Some(word)) if word.eq_ignore_ascii_case("DESC"));
            order.push(ScalarValue::from(if descends { "NULLS FIRST" } else { "NULLS LAST" }));
        }
        args.args.splice(1.., order.into_iter().map(ColumnarValue::Scalar));
        let word = Arc::new(Field::new("order", DataType::Utf8, true));
        args.arg_fields.resize(3, word);
        self.inner.invoke_with_args(args)
    }
}

fn constant(order: &ColumnarValue) -> Option<ScalarValue> {
    match order {
        ColumnarValue::Scalar(word) => Some(word.clone()),
        ColumnarValue::Array(_) => None,
    }
}
