//! The totals of groups.

use std::marker::PhantomData;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, AsArray, BooleanArray, PrimitiveArray, UInt64Array,
};
use arrow::buffer::NullBuffer;
use arrow::datatypes::UInt64Type;
use datafusion::error::Result;
use datafusion::logical_expr::{EmitTo, GroupsAccumulator};

use super::outcome::Outcome;
use super::wide::{Wide, Widen, wide_type};

/// The totals of groups.
pub(super) struct Groups<T, W: ArrowPrimitiveType> {
    result: Outcome,
    totals: Vec<W::Native>,
    counts: Vec<u64>,
    of: PhantomData<fn() -> T>,
}

impl<T, W: ArrowPrimitiveType> Groups<T, W>
where
    W::Native: Wide,
{
    pub(super) fn new(result: Outcome) -> Self {
        Self { result, totals: Vec::new(), counts: Vec::new(), of: PhantomData }
    }

    fn grow(&mut self, groups: usize) {
        self.totals.resize(groups, W::default_value());
        self.counts.resize(groups, 0);
    }

    fn add(&mut self, group: usize, value: W::Native, count: u64) -> Result<()> {
        match self.totals[group].plus(value) {
            Some(total) => self.totals[group] = total,
            None => return Err(self.result.overflow()),
        }
        self.counts[group] += count;
        Ok(())
    }
}

/// Returns true if a filter of an aggregate keeps a row.
fn keeps(filter: Option<&BooleanArray>, row: usize) -> bool {
    filter.is_none_or(|filter| filter.is_valid(row) && filter.value(row))
}

impl<T, W> GroupsAccumulator for Groups<T, W>
where
    T: ArrowPrimitiveType,
    W: ArrowPrimitiveType + Send,
    W::Native: Wide,
    T::Native: Widen<W::Native>,
{
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        opt_filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<()> {
        self.grow(total_num_groups);
        let values = values[0].as_primitive::<T>();
        for (row, group) in group_indices.iter().enumerate() {
            if values.is_valid(row) && keeps(opt_filter, row) {
                self.add(*group, values.value(row).widen(), 1)?;
            }
        }
        Ok(())
    }

    fn merge_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        opt_filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<()> {
        self.grow(total_num_groups);
        let (totals, counts) =
            (values[0].as_primitive::<W>(), values[1].as_primitive::<UInt64Type>());
        for (row, group) in group_indices.iter().enumerate() {
            if totals.is_valid(row) && keeps(opt_filter, row) {
                self.add(*group, totals.value(row), counts.value(row))?;
            }
        }
        Ok(())
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let totals = emit_to.take_needed(&mut self.totals);
        let counts = emit_to.take_needed(&mut self.counts);
        let numbers = totals
            .into_iter()
            .zip(counts)
            .map(|(total, count)| self.result.number(total.widest(), count))
            .collect::<Result<Vec<_>>>()?;
        self.result.array(&numbers)
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let totals = emit_to.take_needed(&mut self.totals);
        let counts = emit_to.take_needed(&mut self.counts);
        let totals = PrimitiveArray::<W>::new(totals.into(), None);
        Ok(vec![
            Arc::new(totals.with_data_type(wide_type::<W>())),
            Arc::new(UInt64Array::from(counts)),
        ])
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        opt_filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>> {
        let values = values[0].as_primitive::<T>();
        let kept = |row: usize| values.is_valid(row) && keeps(opt_filter, row);
        let nulls = NullBuffer::from_iter((0..values.len()).map(kept));
        let totals =
            values.values().iter().map(|value| (*value).widen()).collect::<Vec<W::Native>>();
        let totals = PrimitiveArray::<W>::new(totals.into(), Some(nulls));
        Ok(vec![
            Arc::new(totals.with_data_type(wide_type::<W>())),
            Arc::new(UInt64Array::from(vec![1; values.len()])),
        ])
    }

    fn supports_convert_to_state(&self) -> bool {
        true
    }

    fn size(&self) -> usize {
        self.totals.capacity() * size_of::<W::Native>() + self.counts.capacity() * 8
    }
}
