//! The total of different values.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, ListArray, PrimitiveArray};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{
    DataType, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type,
    DurationMicrosecondType, DurationMillisecondType, DurationNanosecondType, DurationSecondType,
    Field, Int64Type, TimeUnit, UInt64Type, i256,
};
use datafusion::common::{ScalarValue, internal_err};
use datafusion::error::Result;
use datafusion::logical_expr::Accumulator;

use super::outcome::Outcome;
use super::wide::{Wide, Widen};

/// The total of different values.
#[derive(Debug)]
pub(super) struct Distinct {
    pub(super) result: Outcome,
    /// How often each value is there.
    pub(super) counts: HashMap<i256, u64>,
}

impl Distinct {
    fn values(&self, array: &ArrayRef) -> Result<Vec<i256>> {
        macro_rules! made {
            ($values:ty, $totals:ty) => {{
                let values = array.as_primitive::<$values>().iter().flatten();
                let widen = |value| Widen::<<$totals as ArrowPrimitiveType>::Native>::widen(value);
                Ok(values.map(|value| widen(value).widest()).collect())
            }};
        }
        let of = array.data_type();
        with_types!(of, made, internal_err!("distinct values of {of} have no exact total"))
    }
}

impl Accumulator for Distinct {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for value in self.values(&values[0])? {
            *self.counts.entry(value).or_default() += 1;
        }
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for value in self.values(&values[0])? {
            if let Some(count) = self.counts.get_mut(&value) {
                *count -= 1;
                if *count == 0 {
                    self.counts.remove(&value);
                }
            }
        }
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        for values in states[0].as_list::<i32>().iter().flatten() {
            for value in values.as_primitive::<Decimal256Type>().iter().flatten() {
                *self.counts.entry(value).or_default() += 1;
            }
        }
        Ok(())
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let total =
            self.counts.keys().try_fold(i256::ZERO, |total, value| total.checked_add(*value));
        let total = total.ok_or_else(|| self.result.overflow())?;
        self.result.scalar(total, self.counts.len() as u64)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let values =
            PrimitiveArray::<Decimal256Type>::from_iter_values(self.counts.keys().copied())
                .with_data_type(DataType::Decimal256(76, 0));
        let field = Arc::new(Field::new_list_field(DataType::Decimal256(76, 0), true));
        let offsets = OffsetBuffer::from_lengths([values.len()]);
        let list = ListArray::new(field, offsets, Arc::new(values), None);
        Ok(vec![ScalarValue::List(Arc::new(list))])
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.counts.capacity() * size_of::<(i256, u64)>()
    }
}
