//! An aggregate that refuses more than one row: a subquery in place of a value has one at most, and
//! DataFusion 53 joins however many it has.
//!
//! Upstream: apache/datafusion#16134.

use std::sync::{Arc, LazyLock};

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{DataType, Field, FieldRef, UInt64Type};
use datafusion::common::ScalarValue;
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Expr, Signature, Volatility,
};

use crate::Error;
use crate::basics::function_basics;

/// The value of the rows of a group where they are one, NULL where there are none, an error where
/// there are several.
pub(super) fn only_value(expr: Expr) -> Expr {
    ONLY_VALUE.call(vec![expr])
}

static ONLY_VALUE: LazyLock<AggregateUDF> = LazyLock::new(|| {
    let signature = Signature::any(1, Volatility::Immutable);
    AggregateUDF::from(OnlyValue { signature })
});

/// The value of one row, NULL of none.
#[derive(Debug, PartialEq, Eq, Hash)]
struct OnlyValue {
    signature: Signature,
}

impl AggregateUDFImpl for OnlyValue {
    function_basics!("only_value");

    fn return_type(&self, types: &[DataType]) -> DfResult<DataType> {
        Ok(types[0].clone())
    }

    fn accumulator(&self, args: AccumulatorArgs<'_>) -> DfResult<Box<dyn Accumulator>> {
        Ok(Box::new(OneRow { rows: 0, value: ScalarValue::try_from(args.return_type())? }))
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> DfResult<Vec<FieldRef>> {
        let of = |name: &str, data_type| Arc::new(Field::new(name, data_type, true));
        Ok(vec![of("value", args.return_field.data_type().clone()), of("rows", DataType::UInt64)])
    }
}

#[derive(Debug)]
struct OneRow {
    rows: u64,
    value: ScalarValue,
}

impl OneRow {
    fn take(&mut self, rows: u64, values: &ArrayRef, at: usize) -> DfResult<()> {
        self.rows += rows;
        if self.rows > 1 {
            return Err(DataFusionError::External(Box::new(Error::data(
                "a subquery in place of a value has more than one row; take an aggregate of it, as max(…), or ORDER BY … \
                 LIMIT 1, or compare with IN (SELECT …)",
            ))));
        }
        if rows == 1 {
            self.value = ScalarValue::try_from_array(values, at)?;
        }
        Ok(())
    }
}

impl Accumulator for OneRow {
    fn update_batch(&mut self, values: &[ArrayRef]) -> DfResult<()> {
        self.take(values[0].len() as u64, &values[0], 0)
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> DfResult<()> {
        let rows = states[1].as_primitive::<UInt64Type>();
        rows.values().iter().enumerate().try_for_each(|(at, rows)| self.take(*rows, &states[0], at))
    }

    fn state(&mut self) -> DfResult<Vec<ScalarValue>> {
        Ok(vec![self.value.clone(), ScalarValue::UInt64(Some(self.rows))])
    }

    fn evaluate(&mut self) -> DfResult<ScalarValue> {
        Ok(self.value.clone())
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.value.size() - size_of_val(&self.value)
    }
}
