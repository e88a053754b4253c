//! `bucketize(value, boundaries [, right])`: the number of boundaries below a value, as
//! `torch.bucketize` has it. With `right` (false unless given) boundaries that equal the value
//! count, too.
//!
//! `numpy.digitize(x, bins)` is `bucketize(x, bins, true)`, and `numpy.digitize(x, bins,
//! right=True)` is `bucketize(x, bins)`. NaN is above all numbers, so it has the last bucket, as in
//! both.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, new_null_array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type, Int64Type, UInt64Type};
use datafusion::common::ScalarValue;

use super::Spec;
use super::arguments::{Call, each_element, element_of, plain, refused, with_element, wrong_type};
use crate::{Error, Result};

pub(super) static BUCKETIZE: Spec = Spec {
    name: NAME,
    usage: "bucketize(value, boundaries) or bucketize(value, boundaries, right)",
    arguments: 2..=3,
    coerce,
    output,
    compute,
};

const NAME: &str = "bucketize";

const CONSTANTS: [(usize, &str); 2] = [(1, "boundaries"), (2, "right")];

fn coerce(types: &[DataType]) -> Result<Vec<DataType>> {
    let mut found = types.to_vec();
    found[0] = plain(&types[0], false);
    found[1] = plain(&types[1], true);
    let is_taken = |of: &DataType| of.is_numeric() || of.is_null();
    let element = element_of(&found[0]);
    if !is_taken(element) {
        return Err(wrong_type(NAME, "the value", "a number or a list of numbers", element));
    }
    match &found[1] {
        DataType::List(item) | DataType::LargeList(item) if is_taken(item.data_type()) => {}
        DataType::Null => {}
        other => return Err(wrong_type(NAME, "boundaries", "a list of numbers", other)),
    }
    match found.get(2) {
        None | Some(DataType::Boolean | DataType::Null) => Ok(found),
        Some(other) => Err(wrong_type(NAME, "right", "true or false", other)),
    }
}

fn output(types: &[DataType], constants: &[Option<&ScalarValue>]) -> Result<DataType> {
    if constants[1].is_some() {
        boundaries_of(constants)?;
    }
    is_right(constants)?;
    Ok(with_element(&plain(&types[0], false), DataType::Int64))
}

fn compute(call: &Call<'_>) -> Result<ArrayRef> {
    let constants = call.constants(NAME, &CONSTANTS)?;
    let (boundaries, right) = (boundaries_of(&constants)?, is_right(&constants)?);
    each_element(&call.array(0)?, &|values| boundaries.buckets(values, right))
}

fn is_right(constants: &[Option<&ScalarValue>]) -> Result<bool> {
    match constants.get(2).copied().flatten() {
        None => Ok(false),
        Some(ScalarValue::Boolean(Some(right))) => Ok(*right),
        Some(other) => Err(refused(NAME, "right", "true or false", other)),
    }
}

/// Boundaries in rising order; several may be equal.
#[derive(Debug)]
enum Boundaries {
    Whole(Vec<i128>),
    Real(Vec<f64>),
}

fn boundaries_of(constants: &[Option<&ScalarValue>]) -> Result<Boundaries> {
    let values = match constants[1] {
        Some(ScalarValue::List(list)) if list.is_valid(0) => list.value(0),
        Some(ScalarValue::LargeList(list)) if list.is_valid(0) => list.value(0),
        Some(ScalarValue::FixedSizeList(list)) if list.is_valid(0) => list.value(0),
        Some(other) => return Err(refused(NAME, "boundaries", "a list of numbers", other)),
        None => return Err(Error::query(format!("{NAME}() has no boundaries"))),
    };
    if let Some(at) =
        (0..values.len()).find(|at| values.is_null(*at)).or(match values.data_type() {
            DataType::Null if !values.is_empty() => Some(0),
            _ => None,
        })
    {
        return Err(Error::query(format!(
            "{NAME}(): boundaries must be numbers, and number {} is NULL; leave it out",
            at + 1
        )));
    }
    if values.data_type().is_integer() {
        let values = whole_numbers(&values)?;
        return rising(&values).map(|()| Boundaries::Whole(values));
    }
    let values = cast(&values, &DataType::Float64)?;
    let values = values.as_primitive::<Float64Type>().values().to_vec();
    if let Some(at) = values.iter().position(|value| value.is_nan()) {
        return Err(Error::query(format!(
            "{NAME}(): boundaries must be numbers, and number {} is NaN, beside which nothing is lower or higher; leave it out",
            at + 1
        )));
    }
    rising(&values).map(|()| Boundaries::Real(values))
}

fn rising<T: PartialOrd + std::fmt::Display>(values: &[T]) -> Result<()> {
    match values.windows(2).position(|pair| pair[1] < pair[0]) {
        None => Ok(()),
        Some(at) => Err(Error::query(format!(
            "{NAME}(): boundaries must be in rising order, and number {} is {}, after {}; sort them",
            at + 2,
            values[at + 1],
            values[at]
        ))),
    }
}

fn whole_numbers(array: &ArrayRef) -> Result<Vec<i128>> {
    Ok(match array.data_type() {
        DataType::UInt64 => {
            array.as_primitive::<UInt64Type>().values().iter().map(|v| i128::from(*v)).collect()
        }
        _ => {
            let array = cast(array, &DataType::Int64)?;
            array.as_primitive::<Int64Type>().values().iter().map(|v| i128::from(*v)).collect()
        }
    })
}

impl Boundaries {
    fn buckets(&self, array: &ArrayRef, right: bool) -> Result<ArrayRef> {
        let of = array.data_type();
        if of.is_null() {
            return Ok(new_null_array(&DataType::Int64, array.len()));
        }
        let found: Vec<i64> = if of.is_integer() {
            let bounds = self.whole(right);
            let bucket = |value: &i128| match right {
                true => bounds.partition_point(|bound| bound <= value) as i64,
                false => bounds.partition_point(|bound| bound < value) as i64,
            };
            whole_numbers(array)?.iter().map(bucket).collect()
        } else {
            let bounds = self.real(right);
            let bucket = |value: &f64| match right {
                _ if value.is_nan() => bounds.len() as i64,
                true => bounds.partition_point(|bound| bound <= value) as i64,
                false => bounds.partition_point(|bound| bound < value) as i64,
            };
            let array = cast(array, &DataType::Float64)?;
            array.as_primitive::<Float64Type>().values().iter().map(bucket).collect()
        };
        Ok(Arc::new(Int64Array::new(found.into(), array.logical_nulls())))
    }

    /// Whole numbers that are below, or with `right` at most, the same whole values: a whole number
    /// is above 1.5 if it is above 1, and at least 1.5 if it is at least 2.
    fn whole(&self, right: bool) -> Vec<i128> {
        match self {
            Self::Whole(bounds) => bounds.clone(),
            Self::Real(bounds) => {
                let rounded = |bound: &f64| if right { bound.ceil() } else { bound.floor() };
                bounds.iter().map(|bound| rounded(bound) as i128).collect()
            }
        }
    }

    /// Floats that are below, or with `right` at most, the same floats: not each whole number is one.
    fn real(&self, right: bool) -> Vec<f64> {
        let rounded = |bound: &i128| {
            let near = *bound as f64;
            match right {
                true if (near as i128) < *bound => near.next_up(),
                false if near as i128 > *bound => near.next_down(),
                _ => near,
            }
        };
        match self {
            Self::Whole(bounds) => bounds.iter().map(rounded).collect(),
            Self::Real(bounds) => bounds.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Float64Array, UInt64Array};

    use super::*;

    fn buckets(bounds: &Boundaries, values: ArrayRef, right: bool) -> Vec<i64> {
        let found = bounds.buckets(&values, right).unwrap();
        found.as_primitive::<Int64Type>().values().to_vec()
    }

    #[test]
    fn whole_numbers_that_no_float_is_are_compared_exactly() {
        let bound = (1i128 << 53) + 1;
        let bounds = Boundaries::Whole(vec![bound]);
        let floats: ArrayRef =
            Arc::new(Float64Array::from(vec![9_007_199_254_740_992.0, 9_007_199_254_740_994.0]));
        assert_eq!(buckets(&bounds, Arc::clone(&floats), false), [0, 1]);
        assert_eq!(buckets(&bounds, floats, true), [0, 1]);
        let whole: ArrayRef =
            Arc::new(Int64Array::from(vec![1 << 53, (1 << 53) + 1, (1 << 53) + 2]));
        assert_eq!(buckets(&bounds, Arc::clone(&whole), false), [0, 0, 1]);
        assert_eq!(buckets(&bounds, whole, true), [0, 1, 1]);
    }

    #[test]
    fn whole_numbers_are_compared_with_fractions_and_infinities() {
        let bounds = Boundaries::Real(vec![f64::NEG_INFINITY, 1.5, 2.0, 1e300, f64::INFINITY]);
        let whole: ArrayRef = Arc::new(Int64Array::from(vec![i64::MIN, 1, 2, 3, i64::MAX]));
        assert_eq!(buckets(&bounds, Arc::clone(&whole), false), [1, 1, 2, 3, 3]);
        assert_eq!(buckets(&bounds, whole, true), [1, 1, 3, 3, 3]);
        let large: ArrayRef = Arc::new(UInt64Array::from(vec![u64::MAX]));
        assert_eq!(buckets(&bounds, large, false), [3]);
    }
}
