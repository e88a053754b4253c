//! The possible values of an expression in each container: between two bounds, NaN, or NULL.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, Datum, Scalar, new_null_array};
use arrow::buffer::BooleanBuffer;
use arrow::compute::kernels::cmp::{gt_eq, lt, lt_eq};
use arrow::compute::{CastOptions, cast_with_options, nullif};
use arrow::datatypes::DataType;
use datafusion::scalar::ScalarValue;

use super::bounds::{ColumnBounds, or_unknown};
use super::casts::{keeps_order, never_fails};
use super::truth::Truth;

/// A bound of each container, or one of all.
#[derive(Clone, Debug)]
enum Side {
    Each(ArrayRef),
    All(Scalar<ArrayRef>),
}

impl Side {
    fn datum(&self) -> &dyn Datum {
        match self {
            Self::Each(bounds) => bounds,
            Self::All(bound) => bound,
        }
    }

    fn data_type(&self) -> &DataType {
        self.datum().get().0.data_type()
    }

    /// Unknown where `unknown`.
    fn without(&self, unknown: &BooleanBuffer) -> Option<Self> {
        match self {
            Self::All(_) if unknown.count_set_bits() == 0 => Some(self.clone()),
            Self::All(bound) => {
                let unknown = new_null_array(bound.get().0.data_type(), 1);
                Some(Self::All(Scalar::new(unknown)))
            }
            Self::Each(bounds) => {
                Some(Self::Each(nullif(bounds, &BooleanArray::new(unknown.clone(), None)).ok()?))
            }
        }
    }

    fn cast(&self, to: &DataType) -> Option<Self> {
        // What cannot be cast is unknown.
        let options = CastOptions { safe: true, ..CastOptions::default() };
        let array = cast_with_options(self.datum().get().0, to, &options).ok()?;
        Some(match self {
            Self::Each(_) => Self::Each(array),
            Self::All(_) => Self::All(Scalar::new(array)),
        })
    }
}

/// The values that an expression may have.
#[derive(Clone, Debug)]
pub(super) struct Range {
    /// NaN aside.
    lower: Side,
    upper: Side,
    is_null: BooleanBuffer,
    is_value: BooleanBuffer,
    is_nan: BooleanBuffer,
    /// Whether NaN is above all numbers, and one value: the engine compares others by their bits,
    /// in whose order those with a sign are below all numbers.
    is_plain: bool,
}

impl Range {
    pub(super) fn of_column(bounds: ColumnBounds) -> Self {
        Self {
            lower: Side::Each(bounds.lower),
            upper: Side::Each(bounds.upper),
            is_null: bounds.may_be_null,
            is_value: bounds.may_be_value,
            is_nan: bounds.may_be_nan,
            is_plain: false,
        }
    }

    pub(super) fn of_literal(value: &ScalarValue, containers: usize) -> Option<Self> {
        let value = match value {
            ScalarValue::Dictionary(_, value) => value,
            value => value,
        };
        let is_nan = match value {
            ScalarValue::Float16(Some(value)) => value.is_nan(),
            ScalarValue::Float32(Some(value)) => value.is_nan(),
            ScalarValue::Float64(Some(value)) => value.is_nan(),
            _ => false,
        };
        let bound = match is_nan {
            true => new_null_array(&value.data_type(), 1),
            false => value.to_array().ok()?,
        };
        let mask = |is: bool| match is {
            true => BooleanBuffer::new_set(containers),
            false => BooleanBuffer::new_unset(containers),
        };
        Some(Self {
            lower: Side::All(Scalar::new(ArrayRef::clone(&bound))),
            upper: Side::All(Scalar::new(bound)),
            is_null: mask(value.is_null()),
            is_value: mask(!value.is_null()),
            is_nan: mask(is_nan),
            // A number is; NaN of a constant is compared by its bits.
            is_plain: !is_nan,
        })
    }

    /// A condition as a value.
    pub(super) fn of_truth(truth: &Truth) -> Self {
        let bound = |bits: BooleanBuffer| Side::Each(Arc::new(BooleanArray::from(bits)));
        Self {
            lower: bound(!&truth.is_false),
            upper: bound(truth.is_true.clone()),
            is_null: truth.is_null.clone(),
            is_value: &truth.is_true | &truth.is_false,
            is_nan: BooleanBuffer::new_unset(truth.is_true.len()),
            is_plain: true,
        }
    }

    pub(super) fn data_type(&self) -> &DataType {
        self.lower.data_type()
    }

    fn containers(&self) -> usize {
        self.is_null.len()
    }

    /// After the function that gives zeros and NaN one form each.
    pub(super) fn plain(self) -> Self {
        Self { is_plain: true, ..self }
    }

    /// The range after a cast; `gives_null` for a cast that turns failures into NULL instead of an
    /// error. None if the order is lost.
    pub(super) fn cast(self, to: &DataType, gives_null: bool) -> Option<Self> {
        let from = self.data_type().clone();
        if !keeps_order(&from, to) {
            return None;
        }
        let (lower, upper) = (self.lower.cast(to)?, self.upper.cast(to)?);
        let is_null = match gives_null && !never_fails(&from, to) {
            true => BooleanBuffer::new_set(self.containers()),
            false => self.is_null,
        };
        let is_nan = match to.is_floating() {
            true => self.is_nan,
            false => BooleanBuffer::new_unset(self.is_value.len()),
        };
        Some(Self { lower, upper, is_null, is_nan, ..self })
    }

    /// A boolean value as a condition.
    pub(super) fn truth(&self) -> Option<Truth> {
        let constant = |value| Scalar::new(BooleanArray::from(vec![value]));
        if *self.data_type() != DataType::Boolean {
            return None;
        }
        let is_true = self.mask(lt_eq(&constant(true), self.upper.datum()).ok()?)?;
        let is_false = self.mask(lt_eq(self.lower.datum(), &constant(false)).ok()?)?;
        Some(Truth {
            is_true: &is_true & &self.is_value,
            is_false: &is_false & &self.is_value,
            is_null: self.is_null.clone(),
        })
    }

    /// Whether the value is NULL.
    pub(super) fn null_test(&self) -> Truth {
        Truth::test(self.is_null.clone(), self.is_value.clone())
    }

    /// Where a comparison of bounds is true or unknown.
    fn mask(&self, compared: BooleanArray) -> Option<BooleanBuffer> {
        let found = or_unknown(&compared);
        match (found.len(), self.containers()) {
            (found_len, all) if found_len == all => Some(found),
            // Of two constants.
            (1, all) if found.value(0) => Some(BooleanBuffer::new_set(all)),
            (1, all) => Some(BooleanBuffer::new_unset(all)),
            _ => None,
        }
    }

    /// Returns true if both are of one type, or one of them is never a value.
    fn is_comparable(&self, other: &Self) -> bool {
        self.data_type() == other.data_type()
            || self.is_value.count_set_bits() == 0
            || other.is_value.count_set_bits() == 0
    }

    fn both(&self, other: &Self) -> BooleanBuffer {
        &self.is_value & &other.is_value
    }

    fn either_null(&self, other: &Self) -> BooleanBuffer {
        &self.is_null | &other.is_null
    }

    /// Nothing is true or false of a value that is not there.
    fn of_values(&self, other: &Self, is_true: &BooleanBuffer, is_false: &BooleanBuffer) -> Truth {
        let both = self.both(other);
        Truth {
            is_true: is_true & &both,
            is_false: is_false & &both,
            is_null: self.either_null(other),
        }
    }

    /// Where NaN may be compared by its bits.
    fn odd(&self) -> BooleanBuffer {
        match self.is_plain {
            true => BooleanBuffer::new_unset(self.containers()),
            false => self.is_nan.clone(),
        }
    }

    /// `self < other`.
    pub(super) fn less(&self, other: &Self) -> Option<Truth> {
        if !self.is_comparable(other) {
            return None;
        }
        if self.both(other).count_set_bits() == 0 {
            return Some(self.of_values(other, &self.is_value, &self.is_value));
        }
        // NaN is above every number, so no number is an upper bound.
        let (upper, other_upper) =
            (self.upper.without(&self.is_nan)?, other.upper.without(&other.is_nan)?);
        let is_true = self.mask(lt(self.lower.datum(), other_upper.datum()).ok()?)?;
        let is_false = self.mask(gt_eq(upper.datum(), other.lower.datum()).ok()?)?;
        let odd = &self.odd() | &other.odd();
        Some(self.of_values(other, &(&is_true | &odd), &(&is_false | &odd)))
    }

    /// `self = other`.
    pub(super) fn equal(&self, other: &Self) -> Option<Truth> {
        if !self.is_comparable(other) {
            return None;
        }
        if self.both(other).count_set_bits() == 0 {
            return Some(self.of_values(other, &self.is_value, &self.is_value));
        }
        let below = self.mask(lt_eq(self.lower.datum(), other.upper.datum()).ok()?)?;
        let above = self.mask(lt_eq(other.lower.datum(), self.upper.datum()).ok()?)?;
        let is_true = &(&below & &above) | &(&self.is_nan & &other.is_nan);
        // Some pair of values differs, unless all four bounds are one.
        let spread = self.mask(lt(self.lower.datum(), other.upper.datum()).ok()?)?;
        let other_spread = self.mask(lt(other.lower.datum(), self.upper.datum()).ok()?)?;
        let nan = &self.is_nan | &other.is_nan;
        let is_false = &(&spread | &other_spread) | &nan;
        Some(self.of_values(other, &is_true, &is_false))
    }

    /// `self IS NOT DISTINCT FROM other`.
    pub(super) fn same(&self, other: &Self) -> Option<Truth> {
        let equal = self.equal(other)?;
        let both_null = &self.is_null & &other.is_null;
        let one_null = &(&self.is_null & &other.is_value) | &(&self.is_value & &other.is_null);
        Some(Truth::test(&equal.is_true | &both_null, &equal.is_false | &one_null))
    }

    /// Texts that begin with `prefix`, and where `is_all` no others.
    pub(super) fn begins_with(&self, prefix: &str, is_all: bool) -> Option<Truth> {
        let (Side::Each(lower), Side::Each(upper)) = (&self.lower, &self.upper) else {
            return None;
        };
        let data_type = self.data_type();
        if !matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View) {
            return None;
        }
        let prefix = ScalarValue::from(prefix).cast_to(data_type).ok()?.to_scalar().ok()?;
        let begins = |bounds: &ArrayRef| {
            arrow::compute::kernels::comparison::starts_with(bounds, &prefix).ok()
        };
        let (lower_begins, upper_begins) = (begins(lower)?, begins(upper)?);
        let not_above = self.mask(lt_eq(lower, &prefix).ok()?)?;
        let not_below = self.mask(gt_eq(upper, &prefix).ok()?)?;
        let is_true = &(&not_above | &or_unknown(&lower_begins)) & &not_below;
        let all_begin = |begin: &BooleanArray| match begin.nulls() {
            Some(nulls) => begin.values() & nulls.inner(),
            None => begin.values().clone(),
        };
        let is_false = match is_all {
            true => !&(&all_begin(&lower_begins) & &all_begin(&upper_begins)),
            false => BooleanBuffer::new_set(self.containers()),
        };
        Some(Truth {
            is_true: &is_true & &self.is_value,
            is_false: &is_false & &self.is_value,
            is_null: self.is_null.clone(),
        })
    }
}
