//! The total of all rows, or of a frame's rows.

use std::fmt::{self, Debug};
use std::marker::PhantomData;

use arrow::array::{ArrayRef, ArrowPrimitiveType, AsArray};
use arrow::datatypes::UInt64Type;
use datafusion::common::{ScalarValue, internal_err};
use datafusion::error::Result;
use datafusion::logical_expr::Accumulator;

use super::outcome::Outcome;
use super::wide::{Wide, Widen, wide_type};

/// The total of all rows, or of a frame's rows.
pub(super) struct One<T, W: ArrowPrimitiveType> {
    result: Outcome,
    total: W::Native,
    count: u64,
    of: PhantomData<T>,
}

impl<T, W: ArrowPrimitiveType> One<T, W> {
    pub(super) fn new(result: Outcome) -> Self {
        Self { result, total: W::default_value(), count: 0, of: PhantomData }
    }
}

impl<T, W: ArrowPrimitiveType> Debug for One<T, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("One").field("result", &self.result).field("count", &self.count).finish()
    }
}

impl<T, W> Accumulator for One<T, W>
where
    T: ArrowPrimitiveType + Send + Sync,
    W: ArrowPrimitiveType + Send + Sync,
    W::Native: Wide,
    T::Native: Widen<W::Native>,
{
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for value in values[0].as_primitive::<T>().iter().flatten() {
            let total = self.total.plus(value.widen());
            self.total = total.ok_or_else(|| self.result.overflow())?;
            self.count += 1;
        }
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for value in values[0].as_primitive::<T>().iter().flatten() {
            let total = self.total.minus(value.widen());
            self.total = total.ok_or_else(|| self.result.overflow())?;
            let Some(count) = self.count.checked_sub(1) else {
                return internal_err!("{}: more rows leave a frame than came", self.result.name);
            };
            self.count = count;
        }
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let (totals, counts) =
            (states[0].as_primitive::<W>(), states[1].as_primitive::<UInt64Type>());
        for (total, count) in totals.iter().zip(counts).filter_map(|(a, b)| Some((a?, b?))) {
            let total = self.total.plus(total);
            self.total = total.ok_or_else(|| self.result.overflow())?;
            self.count += count;
        }
        Ok(())
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        self.result.scalar(self.total.widest(), self.count)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![
            ScalarValue::new_primitive::<W>(Some(self.total), &wide_type::<W>())?,
            ScalarValue::UInt64(Some(self.count)),
        ])
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.result.name.capacity()
    }
}
