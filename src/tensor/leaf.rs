//! Fixed-width Arrow values as numbers: which dtype, and how they are written.

use std::ops::Range;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{
    DataType, Date32Type, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type,
    Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    Time32MillisecondType, Time32SecondType, TimeUnit, UInt8Type, UInt16Type, UInt32Type,
    UInt64Type, i256,
};

use super::dtype::{DType, F16};
use super::options::DecimalFormat;
use crate::matrix::native_bytes;
use crate::{Error, Result};

/// How one fixed-width Arrow value becomes one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Leaf {
    /// The number's type, where the column is not packed with others.
    pub(super) dtype: DType,
    source: Source,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// The Arrow values are the elements.
    Same,
    /// Another width or, for booleans, bits.
    Cast,
    /// Decimals with so many digits after the point.
    Decimal(i8),
}

impl Leaf {
    /// The leaf of `data_type`, or None where the type is not of numbers, booleans or times.
    pub(super) fn of(data_type: &DataType, decimal: DecimalFormat) -> Option<Self> {
        use Source::{Cast, Same};
        let (dtype, source) = match data_type {
            DataType::Boolean => (DType::Bool, Cast),
            DataType::Int8 => (DType::Int8, Same),
            DataType::Int16 => (DType::Int16, Same),
            DataType::Int32 => (DType::Int32, Same),
            DataType::Int64 => (DType::Int64, Same),
            DataType::UInt8 => (DType::UInt8, Same),
            DataType::UInt16 => (DType::UInt16, Same),
            DataType::UInt32 => (DType::UInt32, Same),
            DataType::UInt64 => (DType::UInt64, Same),
            DataType::Float16 => (DType::Float16, Same),
            DataType::Float32 => (DType::Float32, Same),
            DataType::Float64 => (DType::Float64, Same),
            DataType::Date32 | DataType::Time32(_) => (DType::Int64, Cast),
            DataType::Date64
            | DataType::Time64(_)
            | DataType::Timestamp(_, _)
            | DataType::Duration(_) => (DType::Int64, Same),
            DataType::Decimal32(_, scale)
            | DataType::Decimal64(_, scale)
            | DataType::Decimal128(_, scale)
            | DataType::Decimal256(_, scale) => match decimal {
                DecimalFormat::Float64 => (DType::Float64, Source::Decimal(*scale)),
                DecimalFormat::Int64 => (DType::Int64, Source::Decimal(*scale)),
            },
            _ => return None,
        };
        Some(Self { dtype, source })
    }

    /// True for numbers and booleans, false for dates and times.
    pub(super) fn is_numeric(data_type: &DataType) -> bool {
        data_type.is_numeric() || *data_type == DataType::Boolean
    }

    /// The values of `array` where they lie in memory, if they are elements of `dtype` as they are.
    pub(super) fn stored<'a>(&self, array: &'a dyn Array, dtype: DType) -> Option<&'a [u8]> {
        self.copies(dtype).then(|| native_bytes(array))
    }

    /// Returns true if elements of `dtype` are the values of the array as they lie in memory.
    pub(super) fn copies(&self, dtype: DType) -> bool {
        self.source == Source::Same && dtype == self.dtype
    }

    /// Writes the values of `array` at `rows` to `target`, for a leaf that
    /// [`copies`](Self::copies).
    pub(super) fn write_picked(&self, array: &dyn Array, rows: &[u32], target: &mut [u8]) {
        let values = native_bytes(array);
        match self.dtype.size() {
            1 => pick::<1>(values, rows, target),
            2 => pick::<2>(values, rows, target),
            4 => pick::<4>(values, rows, target),
            _ => pick::<8>(values, rows, target),
        }
    }

    /// Writes `array[range]` to `target` as elements of `dtype`: this leaf's own, or the common
    /// type of a stack. Values under a null (by `nulls`, of the whole array) have no meaning.
    ///
    /// # Errors
    ///
    /// A decimal beyond 64 bits under [`DecimalFormat::Int64`]; `column` names where.
    pub(super) fn write(
        &self,
        column: &str,
        array: &dyn Array,
        range: Range<usize>,
        nulls: Option<&NullBuffer>,
        dtype: DType,
        target: &mut [u8],
    ) -> Result<()> {
        if let Some(values) = self.stored(array, dtype) {
            let size = dtype.size();
            target.copy_from_slice(&values[range.start * size..range.end * size]);
            return Ok(());
        }
        match self.source {
            Source::Decimal(scale) => {
                let is_valid = |row| nulls.is_none_or(|nulls: &NullBuffer| nulls.is_valid(row));
                match self.dtype {
                    DType::Float64 => {
                        let values = range.map(|row| decimal_float(decimal(array, row), scale));
                        put(values, dtype, target);
                        Ok(())
                    }
                    _ => {
                        let values = range.map(|row| {
                            let value = decimal(array, row);
                            let whole = value.to_i128().and_then(|value| i64::try_from(value).ok());
                            whole
                                .or_else(|| (!is_valid(row)).then_some(0))
                                .ok_or_else(|| decimal_overflow(column, array.data_type(), value))
                        });
                        put_checked(values, dtype, target)
                    }
                }
            }
            _ => {
                cast(array, range, dtype, target);
                Ok(())
            }
        }
    }
}

fn decimal_overflow(column: &str, data_type: &DataType, value: i256) -> Error {
    Error::data(format!(
        "column {column:?} ({data_type}): the unscaled decimal {value} does not fit int64, whose \
         largest is {}; use decimal=\"float64\", or cast the column to fewer digits in SQL",
        i64::MAX
    ))
}

/// Writes the values of `SIZE` bytes with the numbers `rows`.
fn pick<const SIZE: usize>(values: &[u8], rows: &[u32], target: &mut [u8]) {
    let (values, _) = values.as_chunks::<SIZE>();
    let (cells, _) = target.as_chunks_mut::<SIZE>();
    for (cell, row) in cells.iter_mut().zip(rows) {
        *cell = values[*row as usize];
    }
}

/// The unscaled value of a decimal array.
fn decimal(array: &dyn Array, row: usize) -> i256 {
    match array.data_type() {
        DataType::Decimal32(..) => {
            i256::from_i128(array.as_primitive::<Decimal32Type>().values()[row].into())
        }
        DataType::Decimal64(..) => {
            i256::from_i128(array.as_primitive::<Decimal64Type>().values()[row].into())
        }
        DataType::Decimal128(..) => {
            i256::from_i128(array.as_primitive::<Decimal128Type>().values()[row])
        }
        _ => array.as_primitive::<Decimal256Type>().values()[row],
    }
}

/// The float64 nearest to `value` / 10^`scale`.
fn decimal_float(value: i256, scale: i8) -> f64 {
    /// Every power of ten that a float64 holds exactly.
    const POWERS: [f64; 23] = [
        1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16,
        1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
    ];
    const EXACT: i128 = 1 << 53;
    let power = usize::try_from(scale).ok().and_then(|scale| POWERS.get(scale));
    match (value.to_i128(), power) {
        // Both operands are exact, so that the quotient is rounded once.
        (Some(value), Some(power)) if (-EXACT..=EXACT).contains(&value) => value as f64 / power,
        // Digits and exponent: the parser rounds once, and cannot fail on them.
        _ => format!("{value}e{}", -i32::from(scale)).parse().unwrap_or(f64::NAN),
    }
}

/// A number that is on its way into another type, chosen so that its value is kept.
trait Number: Copy {
    fn int(self) -> i64;
    fn float(self) -> f64;
}

macro_rules! number {
    ($($native:ty),+) => {$(
        impl Number for $native {
            fn int(self) -> i64 {
                self as i64
            }
            fn float(self) -> f64 {
                self as f64
            }
        }
    )+};
}

number!(i8, i16, i32, i64, u8, u16, u32, u64, f32, f64);

impl Number for bool {
    fn int(self) -> i64 {
        self.into()
    }
    fn float(self) -> f64 {
        f64::from(u8::from(self))
    }
}

fn cast(array: &dyn Array, range: Range<usize>, dtype: DType, target: &mut [u8]) {
    macro_rules! from {
        ($native:ty) => {
            put(primitive::<$native>(array)[range].iter().copied(), dtype, target)
        };
    }
    match array.data_type() {
        DataType::Boolean => {
            put(array.as_boolean().values().slice(range.start, range.len()).iter(), dtype, target)
        }
        DataType::Int8 => from!(Int8Type),
        DataType::Int16 => from!(Int16Type),
        DataType::Int32 => from!(Int32Type),
        DataType::Int64 => from!(Int64Type),
        DataType::UInt8 => from!(UInt8Type),
        DataType::UInt16 => from!(UInt16Type),
        DataType::UInt32 => from!(UInt32Type),
        DataType::UInt64 => from!(UInt64Type),
        DataType::Float16 => {
            let values = primitive::<Float16Type>(array)[range].iter();
            put(values.map(|value| value.to_f64()), dtype, target)
        }
        DataType::Float32 => from!(Float32Type),
        DataType::Float64 => from!(Float64Type),
        DataType::Date32 => from!(Date32Type),
        DataType::Time32(TimeUnit::Second) => from!(Time32SecondType),
        DataType::Time32(_) => from!(Time32MillisecondType),
        other => unreachable!("Leaf::of gives no cast for {other}"),
    }
}

fn primitive<T: ArrowPrimitiveType>(array: &dyn Array) -> &[T::Native] {
    array.as_primitive::<T>().values()
}

/// Writes `values` to `target` as elements of `dtype`.
fn put(values: impl Iterator<Item = impl Number>, dtype: DType, target: &mut [u8]) {
    macro_rules! each {
        ($convert:expr) => {{
            let convert = $convert;
            for (element, value) in target.chunks_exact_mut(dtype.size()).zip(values) {
                element.copy_from_slice(&convert(value));
            }
        }};
    }
    match dtype {
        DType::Bool => each!(|value| [u8::from(Number::int(value) != 0)]),
        DType::Int8 => each!(|value| (Number::int(value) as i8).to_ne_bytes()),
        DType::Int16 => each!(|value| (Number::int(value) as i16).to_ne_bytes()),
        DType::Int32 => each!(|value| (Number::int(value) as i32).to_ne_bytes()),
        DType::Int64 => each!(|value| Number::int(value).to_ne_bytes()),
        DType::UInt8 => each!(|value| (Number::int(value) as u8).to_ne_bytes()),
        DType::UInt16 => each!(|value| (Number::int(value) as u16).to_ne_bytes()),
        DType::UInt32 => each!(|value| (Number::int(value) as u32).to_ne_bytes()),
        DType::UInt64 => each!(|value| (Number::int(value) as u64).to_ne_bytes()),
        DType::Float16 => each!(|value| F16::from_f64(Number::float(value)).to_ne_bytes()),
        DType::Float32 => each!(|value| (Number::float(value) as f32).to_ne_bytes()),
        DType::Float64 => each!(|value| Number::float(value).to_ne_bytes()),
    }
}

/// Like [`put`], and ends with the first error.
fn put_checked(
    values: impl Iterator<Item = Result<impl Number>>,
    dtype: DType,
    target: &mut [u8],
) -> Result<()> {
    let mut outcome = Ok(());
    let good = values.map_while(|value| value.map_err(|error| outcome = Err(error)).ok());
    put(good, dtype, target);
    outcome
}

/// The innermost values of `depth` nested fixed-size lists, and which of them are null or lie in a
/// null list. The outermost list's own nulls are left to the caller.
pub(super) fn flatten(array: &ArrayRef, depth: usize) -> (ArrayRef, Option<NullBuffer>) {
    let mut array = array.clone();
    let mut nulls: Option<NullBuffer> = None;
    for level in 0..depth {
        let list = array.as_fixed_size_list();
        let width = list.value_length() as usize;
        let above = if level == 0 { None } else { list.nulls() };
        let above = NullBuffer::union(nulls.as_ref(), above);
        nulls = above.map(|nulls| nulls.expand(width));
        array = list.values().clone();
    }
    if depth > 0 {
        nulls = NullBuffer::union(nulls.as_ref(), array.nulls());
    }
    (array, nulls)
}
