//! A column of a stage as the weights of its rows.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{
    DataType, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, Float16Type,
    Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, Schema, UInt8Type,
    UInt16Type, UInt32Type, UInt64Type, i256,
};

use super::read::Stage;
use crate::formats::stored_type;
use crate::sharding::{Order, RowWeights, WeightedSampler};
use crate::{Error, Result, suggestion};

/// Weights that are converted at a time.
const CHUNK: usize = 64;

/// How the rows of an epoch are drawn from a stage.
#[derive(Debug)]
pub struct Drawing {
    sampler: Option<WeightedSampler>,
    draws: u64,
    replacement: bool,
    /// The order that was made last: without replacement, making one takes all weights.
    newest: Mutex<Option<(u64, Order)>>,
}

impl Drawing {
    /// Draws by the weights in `column`; None draws as many rows as there are.
    ///
    /// # Errors
    /// `Config` for a column that cannot be a weight, and for more draws without replacement than
    /// rows with a weight; `Data` for a weight that is null, negative or not finite, and where
    /// there is nothing to draw from.
    pub fn try_new(
        stage: &Arc<Stage>,
        column: &str,
        replacement: bool,
        draws: Option<u64>,
    ) -> Result<Self> {
        let draws = draws.unwrap_or(stage.num_rows());
        if draws == 0 {
            return Ok(Self { sampler: None, draws, replacement, newest: Mutex::default() });
        }
        if stage.num_rows() == 0 {
            return Err(Error::data(format!(
                "{draws} rows cannot be drawn, because the query has none"
            )));
        }
        let weights = ColumnWeights::try_new(stage, column)?;
        let named = |error: Error| error.with_context("sample_weight", column);
        let sampler = WeightedSampler::try_new(Arc::new(weights)).map_err(named)?;
        if !replacement && draws > sampler.num_positive() {
            // Says what is wrong.
            Order::drawn(&sampler, 0, draws, replacement).map_err(named)?;
        }
        Ok(Self { sampler: Some(sampler), draws, replacement, newest: Mutex::default() })
    }

    /// Draws of an epoch.
    pub fn draws(&self) -> u64 {
        self.draws
    }

    /// The rows of the epoch that `key` stands for.
    ///
    /// # Errors
    /// None that `try_new` has not found.
    pub fn order(&self, key: u64) -> Result<Order> {
        let Some(sampler) = &self.sampler else {
            return Ok(crate::sharding::Permutation::new(key, 0).into());
        };
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, order)) = newest.as_ref()
            && *known == key
        {
            return Ok(order.clone());
        }
        // The old one goes first: without replacement both are large.
        *newest = None;
        let order = Order::drawn(sampler, key, self.draws, self.replacement)?;
        *newest = Some((key, order.clone()));
        Ok(order)
    }
}

/// The place of the weights among a query's columns.
///
/// # Errors
/// `Config` where there is no such column, or it is not numeric; names it and the nearest name.
pub fn weight_column(schema: &Schema, column: &str) -> Result<usize> {
    let Some((index, field)) = schema.column_with_name(column) else {
        let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        return Err(Error::config(format!(
            "sample_weight={column:?} is no column of the query{}; its columns are {}",
            suggestion(column, names.iter().copied()),
            crate::list_names(&names)
        )));
    };
    // A dictionary is stored as its values.
    let kind = stored_type(field.data_type());
    if !(kind.is_integer() || kind.is_floating() || kind.is_decimal()) {
        return Err(Error::config(format!(
            "sample_weight={column:?} has the type {}, and weights are numbers; cast it in the query: \
             CAST({column} AS DOUBLE)",
            field.data_type()
        )));
    }
    Ok(index)
}

#[derive(Debug)]
struct ColumnWeights {
    /// By record batch: the number of its first row, and its weights, which lie in the map.
    batches: Vec<(u64, ArrayRef)>,
    rows: u64,
}

impl ColumnWeights {
    fn try_new(stage: &Arc<Stage>, column: &str) -> Result<Self> {
        let index = weight_column(stage.schema(), column)?;
        let mut batches = Vec::with_capacity(stage.num_batches());
        let mut rows = 0;
        for number in 0..stage.num_batches() {
            let array = stage.stored(number, index)?;
            check(array.as_ref(), rows, column)?;
            let start = rows;
            rows += array.len() as u64;
            batches.push((start, array));
        }
        Ok(Self { batches, rows })
    }
}

impl RowWeights for ColumnWeights {
    fn num_rows(&self) -> u64 {
        self.rows
    }

    fn visit(&self, rows: Range<u64>, each: &mut dyn FnMut(&[f64])) {
        let first =
            self.batches.partition_point(|(start, _)| *start <= rows.start).saturating_sub(1);
        for (start, array) in &self.batches[first..] {
            if *start >= rows.end {
                break;
            }
            let from = rows.start.saturating_sub(*start) as usize;
            let to = (rows.end - start).min(array.len() as u64) as usize;
            if from < to {
                values(array.as_ref(), from..to, each);
            }
        }
    }
}

/// Finds the first weight that is none.
fn check(array: &dyn Array, first: u64, column: &str) -> Result<()> {
    let refuse = |row: usize, what: String| {
        Err(Error::data(format!(
            "the weight in column {column:?} is {what} in row {} of the query; weights are finite numbers of at least \
             0: filter the row out, or write COALESCE or GREATEST around it",
            first + row as u64
        )))
    };
    if array.null_count() > 0 {
        let row = (0..array.len()).find(|row| array.is_null(*row)).unwrap_or_default();
        return refuse(row, "null".to_owned());
    }
    let (mut row, mut odd) = (0, None);
    values(array, 0..array.len(), &mut |weights: &[f64]| {
        for &weight in weights {
            if odd.is_none() && !(weight.is_finite() && weight >= 0.0) {
                odd = Some((row, weight));
            }
            row += 1;
        }
    });
    match odd {
        Some((row, weight)) => refuse(row, weight.to_string()),
        None => Ok(()),
    }
}

/// Some values of a numeric array as float64, in pieces; none of other types, which `weight_column`
/// refuses.
///
/// A decimal becomes a float64: the one nearest to its digits as a whole number, divided by the one
/// of its power of ten, as `CAST(w AS DOUBLE)` does.
fn values(array: &dyn Array, rows: Range<usize>, each: &mut dyn FnMut(&[f64])) {
    macro_rules! visit {
        ($kind:ty, $value:ident => $weight:expr) => {{
            let mut piece = [0.0; CHUNK];
            for values in array.as_primitive::<$kind>().values()[rows].chunks(CHUNK) {
                for (weight, &$value) in piece.iter_mut().zip(values) {
                    *weight = $weight;
                }
                each(&piece[..values.len()]);
            }
        }};
    }
    macro_rules! visit_decimals {
        ($kind:ty, $scale:expr, $value:ident => $digits:expr) => {{
            let (times, by) = (power_of_ten(-i32::from($scale)), power_of_ten($scale.into()));
            visit!($kind, $value => $digits * times / by)
        }};
    }
    match array.data_type() {
        DataType::Int8 => visit!(Int8Type, value => f64::from(value)),
        DataType::Int16 => visit!(Int16Type, value => f64::from(value)),
        DataType::Int32 => visit!(Int32Type, value => f64::from(value)),
        DataType::Int64 => visit!(Int64Type, value => value as f64),
        DataType::UInt8 => visit!(UInt8Type, value => f64::from(value)),
        DataType::UInt16 => visit!(UInt16Type, value => f64::from(value)),
        DataType::UInt32 => visit!(UInt32Type, value => f64::from(value)),
        DataType::UInt64 => visit!(UInt64Type, value => value as f64),
        DataType::Float16 => visit!(Float16Type, value => f64::from(value)),
        DataType::Float32 => visit!(Float32Type, value => f64::from(value)),
        DataType::Float64 => each(&array.as_primitive::<Float64Type>().values()[rows]),
        DataType::Decimal32(_, scale) => {
            visit_decimals!(Decimal32Type, *scale, value => f64::from(value));
        }
        DataType::Decimal64(_, scale) => {
            visit_decimals!(Decimal64Type, *scale, value => value as f64);
        }
        DataType::Decimal128(_, scale) => {
            visit_decimals!(Decimal128Type, *scale, value => value as f64);
        }
        DataType::Decimal256(_, scale) => {
            visit_decimals!(Decimal256Type, *scale, value => digits_of(value));
        }
        _ => {}
    }
}

/// The float64 nearest to a power of ten; 1 for negative exponents.
fn power_of_ten(exponent: i32) -> f64 {
    // The platform's own powers may differ in the last bit.
    format!("1e{}", exponent.max(0)).parse().unwrap_or(f64::INFINITY)
}

/// The float64 of a whole number.
fn digits_of(value: i256) -> f64 {
    const TWO_TO_128: f64 = 340_282_366_920_938_463_463_374_607_431_768_211_456.0;
    let (low, high) = value.to_parts();
    value.to_i128().map_or(high as f64 * TWO_TO_128 + low as f64, |value| value as f64)
}

#[cfg(test)]
mod tests {
    use arrow::array::{Decimal256Array, Float64Array};
    use arrow::compute::cast;

    use super::*;

    fn floats(array: &dyn Array) -> Vec<f64> {
        let mut found = Vec::new();
        values(array, 0..array.len(), &mut |weights: &[f64]| found.extend_from_slice(weights));
        found
    }

    #[test]
    fn a_decimal_is_the_float64_that_a_cast_makes_of_it() {
        let numbers: Vec<f64> = (0..1000).map(|n| f64::from(n * n) / 131.0).collect();
        let numbers: ArrayRef = Arc::new(Float64Array::from(numbers));
        for kind in [
            DataType::Decimal32(9, 3),
            DataType::Decimal64(18, 11),
            DataType::Decimal128(38, 30),
            DataType::Decimal128(12, 0),
            DataType::Decimal128(9, -2),
            DataType::Decimal256(76, 40),
        ] {
            let decimals = cast(&numbers, &kind).unwrap();
            assert_eq!(decimals.null_count(), 0, "{kind}");
            let wanted = cast(&decimals, &DataType::Float64).unwrap();
            let wanted = wanted.as_primitive::<Float64Type>().values();
            for (found, wanted) in floats(decimals.as_ref()).iter().zip(wanted) {
                // Powers of ten beyond 10^22 are no float64: theirs may be off by a bit.
                let apart = (found - wanted).abs();
                assert!(apart <= 2.0 * f64::EPSILON * wanted.abs(), "{kind}: {found} {wanted}");
            }
        }
    }

    #[test]
    fn digits_beyond_128_bits_are_right_with_either_sign() {
        let huge = i256::from_parts(12_345, 1 << 70);
        let array = Decimal256Array::from(vec![huge, huge.wrapping_neg(), i256::MINUS_ONE]);
        let array = array.with_precision_and_scale(76, 0).unwrap();
        let power = 2_f64.powi(198);
        assert_eq!(floats(&array), [power, -power, -1.0]);
    }

    #[test]
    fn any_range_of_any_type_comes_in_order() {
        let numbers: ArrayRef = Arc::new(Float64Array::from_iter_values((0..300).map(f64::from)));
        for kind in [DataType::Float64, DataType::Int16, DataType::UInt64, DataType::Float32] {
            let array = cast(&numbers, &kind).unwrap();
            let mut found = Vec::new();
            values(array.as_ref(), 7..211, &mut |weights: &[f64]| found.extend_from_slice(weights));
            assert_eq!(found, (7..211).map(f64::from).collect::<Vec<_>>(), "{kind}");
        }
    }
}
