//! `lead` and `lag` as the standard has them.
//!
//! DataFusion 53 answers `IGNORE NULLS` with NULL though the row exists, takes an offset of NULL
//! for 0, cuts a default to the type of the value, and fails on an offset of the least integer.
//!
//! Upstream: apache/datafusion#25471.

use std::any::Any;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, new_null_array};
use arrow::compute::interleave;
use arrow::datatypes::FieldRef;
use datafusion::common::ScalarValue;
use datafusion::error::Result;
use datafusion::functions_window::lead_lag::WindowShift;
use datafusion::logical_expr::function::{
    ExpressionArgs, PartitionEvaluatorArgs, WindowUDFFieldArgs,
};
use datafusion::logical_expr::{PartitionEvaluator, Signature, WindowUDF, WindowUDFImpl};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Literal;

use crate::Error;
use crate::basics::forwarded;

/// No partition has as many rows: an offset beyond it finds none.
const FARTHEST: i64 = 1 << 40;

/// Both functions under their own names.
pub fn exact_shifts() -> [WindowUDF; 2] {
    [WindowShift::lead(), WindowShift::lag()].map(|inner| WindowUDF::from(ExactShift { inner }))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct ExactShift {
    inner: WindowShift,
}

impl WindowUDFImpl for ExactShift {
    fn as_any(&self) -> &dyn Any {
        self
    }

    forwarded! {
        this => this.inner;
        fn name(&self) -> &str;
        fn signature(&self) -> &Signature;
        fn expressions(&self, args: ExpressionArgs<'_>) -> Vec<Arc<dyn PhysicalExpr>>;
        fn field(&self, args: WindowUDFFieldArgs<'_>) -> Result<FieldRef>;
    }

    fn partition_evaluator(
        &self,
        args: PartitionEvaluatorArgs<'_>,
    ) -> Result<Box<dyn PartitionEvaluator>> {
        let name = self.name();
        let offset = offset_of(name, args.input_exprs())?;
        check_default(name, &args)?;
        let Some(offset) = offset else { return Ok(Box::new(Nothing)) };
        let offset = offset.clamp(-FARTHEST, FARTHEST);
        if !args.ignore_nulls() || offset == 0 {
            let mut exprs = args.input_exprs().to_vec();
            if let Some(given) = exprs.get_mut(1) {
                *given = Arc::new(Literal::new(ScalarValue::Int64(Some(offset))));
            }
            return self.inner.partition_evaluator(PartitionEvaluatorArgs::new(
                &exprs,
                args.input_fields(),
                args.is_reversed(),
                false,
            ));
        }
        let ahead = if name == "lead" { offset } else { -offset };
        let ahead = if args.is_reversed() { -ahead } else { ahead };
        Ok(Box::new(AmongValues { ahead, default: literal(args.input_exprs(), 2).cloned() }))
    }
}

/// The constant argument at a place; None where it is left out or no constant.
fn literal(exprs: &[Arc<dyn PhysicalExpr>], place: usize) -> Option<&ScalarValue> {
    exprs.get(place)?.as_any().downcast_ref::<Literal>().map(Literal::value)
}

/// The offset: 1 where it is left out, None where it is NULL.
fn offset_of(name: &str, exprs: &[Arc<dyn PhysicalExpr>]) -> Result<Option<i64>> {
    let Some(given) = exprs.get(1) else { return Ok(Some(1)) };
    let misfit = || {
        Error::query(format!(
            "{name}() has the offset {given}, which must be a constant integer, for example {name}(x, 2)"
        ))
    };
    let value = literal(exprs, 1).ok_or_else(misfit)?;
    if value.is_null() {
        return Ok(None);
    }
    if !value.data_type().is_integer() {
        return Err(misfit().into());
    }
    match value.cast_to(&arrow::datatypes::DataType::Int64) {
        Ok(ScalarValue::Int64(Some(offset))) => Ok(Some(offset)),
        // Only an unsigned number is beyond.
        _ => Ok(Some(FARTHEST)),
    }
}

/// A default is a constant of the value's type: another would be cut to it.
fn check_default(name: &str, args: &PartitionEvaluatorArgs<'_>) -> Result<()> {
    let (exprs, fields) = (args.input_exprs(), args.input_fields());
    let (Some(given), Some(field)) = (exprs.get(2), fields.first()) else { return Ok(()) };
    let misfit = |why: &str| {
        Error::query(format!(
            "{name}() has the default {given}, which {why}; cast one of them, or write coalesce({name}(…), {given}) where the \
             value is never NULL"
        ))
    };
    let value = literal(exprs, 2).ok_or_else(|| misfit("is no constant"))?;
    let of = field.data_type();
    if value.is_null() || of.is_null() || value.data_type() == *of {
        return Ok(());
    }
    let kept = value.cast_to(of).ok().filter(|cast| {
        cast.cast_to(&value.data_type()).is_ok_and(|back| back == *value)
            || !value.data_type().is_numeric()
    });
    match kept {
        Some(_) => Ok(()),
        None => Err(misfit(&format!("does not fit the value's type {of}")).into()),
    }
}

/// The answer to an offset of NULL.
#[derive(Debug)]
struct Nothing;

impl PartitionEvaluator for Nothing {
    fn evaluate_all(&mut self, values: &[ArrayRef], rows: usize) -> Result<ArrayRef> {
        Ok(new_null_array(values[0].data_type(), rows))
    }
}

/// A shift among the rows whose value is not NULL. It sees a whole partition: how far the next
/// value lies is not known before.
#[derive(Debug)]
struct AmongValues {
    /// Values after the current row; before it where negative. Never 0.
    ahead: i64,
    default: Option<ScalarValue>,
}

impl PartitionEvaluator for AmongValues {
    fn evaluate_all(&mut self, values: &[ArrayRef], rows: usize) -> Result<ArrayRef> {
        let values = &values[0];
        let default = match self.default.as_ref().filter(|value| !value.is_null()) {
            Some(value) => value.cast_to(values.data_type())?.to_array()?,
            None => new_null_array(values.data_type(), 1),
        };
        // Of a dictionary, a code may stand for NULL.
        let nulls = values.logical_nulls();
        let is_value = |row: usize| nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row));
        let filled: Vec<usize> = (0..rows).filter(|row| is_value(*row)).collect();
        let far = usize::try_from(self.ahead.unsigned_abs()).unwrap_or(usize::MAX);
        // Values among the rows so far, without the current row's own.
        let mut before = 0;
        let mut found = Vec::with_capacity(rows);
        for row in 0..rows {
            let own = usize::from(is_value(row));
            let place = match self.ahead > 0 {
                true => (before + own).checked_add(far - 1),
                false => before.checked_sub(far),
            };
            let place = place.and_then(|place| filled.get(place));
            found.push(place.map_or((1, 0), |row| (0, *row)));
            before += own;
        }
        Ok(interleave(&[values.as_ref(), default.as_ref()], &found)?)
    }
}
