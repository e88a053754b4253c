//! `ntile(n)` as the standard has it: of groups that cannot be equally large, the first ones have a
//! row more. DataFusion 53 has the larger ones anywhere.
//!
//! Upstream: apache/datafusion#22049.

use std::any::Any;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, UInt64Array};
use arrow::datatypes::{FieldRef, UInt64Type};
use datafusion::error::Result;
use datafusion::functions_window::ntile::Ntile;
use datafusion::logical_expr::function::{PartitionEvaluatorArgs, WindowUDFFieldArgs};
use datafusion::logical_expr::{PartitionEvaluator, Signature, WindowUDF, WindowUDFImpl};

use crate::basics::forwarded;

/// The function under its own name.
pub fn first_groups_larger() -> WindowUDF {
    WindowUDF::from(FirstLarger { inner: Ntile::new() })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct FirstLarger {
    inner: Ntile,
}

impl WindowUDFImpl for FirstLarger {
    fn as_any(&self) -> &dyn Any {
        self
    }

    forwarded! {
        this => this.inner;
        fn name(&self) -> &str;
        fn signature(&self) -> &Signature;
        fn field(&self, args: WindowUDFFieldArgs<'_>) -> Result<FieldRef>;
    }

    fn partition_evaluator(
        &self,
        args: PartitionEvaluatorArgs<'_>,
    ) -> Result<Box<dyn PartitionEvaluator>> {
        Ok(Box::new(Groups { inner: self.inner.partition_evaluator(args)? }))
    }
}

#[derive(Debug)]
struct Groups {
    inner: Box<dyn PartitionEvaluator>,
}

impl PartitionEvaluator for Groups {
    fn evaluate_all(&mut self, values: &[ArrayRef], rows: usize) -> Result<ArrayRef> {
        let found = self.inner.evaluate_all(values, rows)?;
        // As many groups as were asked for, or one for each row.
        let groups = found.as_primitive::<UInt64Type>().values().last().copied().unwrap_or(1);
        let (rows, mut numbers) = (rows as u64, Vec::with_capacity(rows));
        for group in 0..groups {
            let size = rows / groups + u64::from(group < rows % groups);
            numbers.extend((0..size).map(|_| group + 1));
        }
        Ok(Arc::new(UInt64Array::from(numbers)))
    }
}
