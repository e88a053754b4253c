//! The result of a total: its type, its rounding, and whether it fits.

use std::sync::Arc;

use arrow::array::{ArrayRef, ArrowPrimitiveType, PrimitiveArray};
use arrow::datatypes::{
    DataType, Decimal128Type, Decimal256Type, DurationMicrosecondType, DurationMillisecondType,
    DurationNanosecondType, DurationSecondType, Int64Type, TimeUnit, UInt64Type, i256,
};
use datafusion::common::{ScalarValue, internal_err};
use datafusion::error::Result;

use super::Rule;
use crate::Error;

/// How a total becomes a result.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) rule: Rule,
    /// The call, for errors.
    pub(super) name: String,
    /// The type of the values.
    pub(super) of: DataType,
    /// The type of the result.
    pub(super) data_type: DataType,
}

impl Outcome {
    /// The result of a total of values; None of no value.
    pub(super) fn number(&self, total: i256, count: u64) -> Result<Option<i256>> {
        if count == 0 {
            return Ok(None);
        }
        let number = match self.rule {
            Rule::Sum => Some(total),
            Rule::Mean => self.mean(total, count),
        };
        match number.filter(|number| self.fits(*number)) {
            Some(number) => Ok(Some(number)),
            None => Err(self.overflow()),
        }
    }

    /// The mean, rounded half away from zero to the digits of the result.
    fn mean(&self, total: i256, count: u64) -> Option<i256> {
        let more = u32::try_from(scale(&self.data_type) - scale(&self.of)).unwrap_or(0);
        let (shift, count) =
            (i256::from_i128(10).checked_pow(more)?, i256::from_i128(count.into()));
        let whole = total.checked_div(count)?.checked_mul(shift)?;
        let rest = total.checked_rem(count)?.checked_mul(shift)?;
        let mean = whole.checked_add(rest.checked_div(count)?)?;
        let left = rest.checked_rem(count)?;
        match left.checked_abs()?.checked_mul(i256::from_i128(2))? >= count {
            true if left < i256::ZERO => mean.checked_sub(i256::ONE),
            true => mean.checked_add(i256::ONE),
            false => Some(mean),
        }
    }

    fn fits(&self, number: i256) -> bool {
        let digits = |precision: &u8| {
            let bound = i256::from_i128(10).checked_pow(u32::from(*precision));
            bound.is_none_or(|bound| number < bound && number > bound.wrapping_neg())
        };
        match &self.data_type {
            DataType::Decimal128(precision, _) | DataType::Decimal256(precision, _) => {
                digits(precision)
            }
            DataType::UInt64 => {
                number.to_i128().is_some_and(|number| u64::try_from(number).is_ok())
            }
            _ => number.to_i128().is_some_and(|number| i64::try_from(number).is_ok()),
        }
    }

    pub(super) fn overflow(&self) -> datafusion::error::DataFusionError {
        let wider = match &self.of {
            DataType::Decimal128(_, scale)
            | DataType::Decimal32(_, scale)
            | DataType::Decimal64(_, scale) => {
                format!("DECIMAL(76, {scale})) or CAST(x AS DOUBLE")
            }
            DataType::Decimal256(..) => "DOUBLE".to_owned(),
            _ => "DECIMAL(38, 0)".to_owned(),
        };
        Error::query(format!(
            "{} is beyond the range of its type {}; cast its argument to a wider type first: CAST(x AS {wider})",
            self.name, self.data_type
        ))
        .into()
    }

    /// Results as an array of their type.
    pub(super) fn array(&self, numbers: &[Option<i256>]) -> Result<ArrayRef> {
        fn packed<T: ArrowPrimitiveType>(
            numbers: &[Option<i256>],
            of: &DataType,
            pack: impl Fn(i256) -> T::Native,
        ) -> ArrayRef {
            let values = numbers.iter().map(|number| number.map(&pack));
            Arc::new(PrimitiveArray::<T>::from_iter(values).with_data_type(of.clone()))
        }
        // All of them fit.
        let short = |number: i256| number.as_i128() as i64;
        let of = &self.data_type;
        Ok(match of {
            DataType::Int64 => packed::<Int64Type>(numbers, of, short),
            DataType::UInt64 => packed::<UInt64Type>(numbers, of, |number| number.as_i128() as u64),
            DataType::Decimal128(..) => packed::<Decimal128Type>(numbers, of, i256::as_i128),
            DataType::Decimal256(..) => packed::<Decimal256Type>(numbers, of, |number| number),
            DataType::Duration(TimeUnit::Second) => {
                packed::<DurationSecondType>(numbers, of, short)
            }
            DataType::Duration(TimeUnit::Millisecond) => {
                packed::<DurationMillisecondType>(numbers, of, short)
            }
            DataType::Duration(TimeUnit::Microsecond) => {
                packed::<DurationMicrosecondType>(numbers, of, short)
            }
            DataType::Duration(TimeUnit::Nanosecond) => {
                packed::<DurationNanosecondType>(numbers, of, short)
            }
            other => return internal_err!("{} has results of type {other}", self.name),
        })
    }

    pub(super) fn scalar(&self, total: i256, count: u64) -> Result<ScalarValue> {
        let number = self.number(total, count)?;
        ScalarValue::try_from_array(&self.array(&[number])?, 0)
    }
}

/// Digits after the point.
fn scale(of: &DataType) -> i32 {
    match of {
        DataType::Decimal32(_, scale)
        | DataType::Decimal64(_, scale)
        | DataType::Decimal128(_, scale)
        | DataType::Decimal256(_, scale) => i32::from(*scale),
        _ => 0,
    }
}
