//! `x = ANY (list)` and `x <> ALL (list)`, which are unknown where the list has a NULL and no such
//! element. DataFusion 53 takes the first for `array_has`, which is false then, and does not know
//! the second.
//!
//! Upstream: apache/datafusion#19288.

use std::any::Any;
use std::mem;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray};
use arrow::datatypes::DataType;
use datafusion::common::exec_err;
use datafusion::error::Result;
use datafusion::functions_nested::array_has::array_has_udf;
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
};
use datafusion::sql::sqlparser::ast::{BinaryOperator, Expr, Query, UnaryOperator, Value};

use super::call;
use crate::query::engine_fixes::walk::each_of_statement;

const NAME: &str = "equals_any";

/// Writes comparisons with the elements of a list as calls of the function.
pub(in crate::query) fn over_lists(query: &mut Query) {
    each_of_statement(query, |expr| {
        let (left, list, negated) = match expr {
            Expr::AnyOp { left, compare_op: BinaryOperator::Eq, right, .. } => (left, right, false),
            Expr::AllOp { left, compare_op: BinaryOperator::NotEq, right } => (left, right, true),
            _ => return,
        };
        if matches!(**list, Expr::Subquery(_)) {
            return;
        }
        let [left, list] =
            [left, list].map(|side| mem::replace(&mut **side, Expr::Value(Value::Null.into())));
        let found = call(NAME, vec![list, left]);
        *expr = match negated {
            true => Expr::UnaryOp { op: UnaryOperator::Not, expr: Box::new(found) },
            false => found,
        };
    });
}

/// `equals_any(list, x)`.
pub(super) fn function() -> ScalarUDF {
    ScalarUDF::from(EqualsAny { inner: array_has_udf() })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct EqualsAny {
    inner: Arc<ScalarUDF>,
}

impl ScalarUDFImpl for EqualsAny {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn name(&self) -> &str {
        NAME
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Boolean)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let rows = args.number_rows;
        let [lists, values] = [0, 1].map(|at| args.args[at].to_array(rows));
        let (lists, values) = (lists?, values?);
        if lists.data_type().is_null() {
            return Ok(ColumnarValue::Array(Arc::new(BooleanArray::new_null(rows))));
        }
        let arrays = [&lists, &values].map(|array| ColumnarValue::Array(Arc::clone(array)));
        let args = ScalarFunctionArgs { args: arrays.into(), ..args };
        let has = self.inner.invoke_with_args(args)?.into_array(rows)?;
        let has = has.as_boolean();
        let mut found = Vec::with_capacity(rows);
        for row in 0..rows {
            let Some(elements) = elements_of(&lists, row)? else {
                found.push(None);
                continue;
            };
            let has = has.is_valid(row) && has.value(row);
            let is_unknown = values.is_null(row) || elements.logical_null_count() > 0;
            found.push(match (elements.is_empty(), values.is_valid(row) && has) {
                (true, _) => Some(false),
                (false, true) => Some(true),
                (false, false) => (!is_unknown).then_some(false),
            });
        }
        Ok(ColumnarValue::Array(Arc::new(BooleanArray::from(found))))
    }
}

/// The elements of a row; None for NULL.
fn elements_of(lists: &ArrayRef, row: usize) -> Result<Option<ArrayRef>> {
    if lists.is_null(row) {
        return Ok(None);
    }
    Ok(Some(match lists.data_type() {
        DataType::List(_) => lists.as_list::<i32>().value(row),
        DataType::LargeList(_) => lists.as_list::<i64>().value(row),
        DataType::FixedSizeList(_, _) => lists.as_fixed_size_list().value(row),
        other => return exec_err!("ANY takes a list, not {other}"),
    }))
}
