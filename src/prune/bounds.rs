//! Bounds of one column in each of several containers.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, AsArray, BinaryArray, BooleanArray, StringArray,
    new_null_array,
};
use arrow::buffer::BooleanBuffer;
use arrow::compute::kernels::cmp::gt;
use arrow::compute::{cast, nullif};
use arrow::datatypes::{DataType, Float16Type, Float32Type, Float64Type};
use arrow::error::ArrowError;
use half::f16;

/// Writers cut texts to 16 bytes and more. A maximum of fewer bytes was not cut.
const SHORTEST_CUT: usize = 16;

/// Bounds of a column, a value per container. Unknown bounds leave every value possible.
#[derive(Clone, Debug)]
pub struct ColumnBounds {
    /// No value is less, NaN aside; null where unknown.
    pub(super) lower: ArrayRef,
    /// No value is greater, NaN aside; null where unknown.
    pub(super) upper: ArrayRef,
    /// Whether a NULL may be there.
    pub(super) may_be_null: BooleanBuffer,
    /// Whether a value may be there.
    pub(super) may_be_value: BooleanBuffer,
    /// Whether NaN may be there, of either sign.
    pub(super) may_be_nan: BooleanBuffer,
}

impl ColumnBounds {
    /// Bounds of containers about which nothing is known.
    pub fn unknown(data_type: &DataType, containers: usize) -> Self {
        let all = BooleanBuffer::new_set(containers);
        let nan = match data_type.is_floating() {
            true => all.clone(),
            false => BooleanBuffer::new_unset(containers),
        };
        Self {
            lower: new_null_array(data_type, containers),
            upper: new_null_array(data_type, containers),
            may_be_null: all.clone(),
            may_be_value: all,
            may_be_nan: nan,
        }
    }

    /// How many containers there are.
    pub(super) fn containers(&self) -> usize {
        self.may_be_null.len()
    }

    /// With a least and a greatest value by container, null where unknown. Arrays of another type
    /// or length say nothing, and neither does a NaN, or a least value above the greatest. A zero
    /// holds for both zeros.
    #[must_use]
    pub fn with_extremes(self, lower: &ArrayRef, upper: &ArrayRef) -> Self {
        let fits = |array: &ArrayRef| {
            array.len() == self.containers() && array.data_type() == self.lower.data_type()
        };
        if !fits(lower) || !fits(upper) {
            return self;
        }
        match extremes(lower, upper) {
            Ok((lower, upper)) => Self { lower, upper, ..self },
            Err(_) => self,
        }
    }

    /// With numbers of NULLs, and of rows. More NULLs than rows say nothing.
    #[must_use]
    pub fn with_nulls(self, nulls: &[Option<u64>], rows: &[u64]) -> Self {
        if nulls.len() != self.containers() || rows.len() != self.containers() {
            return self;
        }
        let counts = || nulls.iter().zip(rows);
        // A count that nobody wrote is not zero.
        let may_be_null = counts().map(|(nulls, _)| nulls.is_none_or(|nulls| nulls > 0));
        let may_be_value = counts().map(|(nulls, rows)| *nulls != Some(*rows));
        Self { may_be_null: may_be_null.collect(), may_be_value: may_be_value.collect(), ..self }
    }

    /// Where the column cannot hold a NULL.
    #[must_use]
    pub fn without_nulls(self) -> Self {
        Self { may_be_null: BooleanBuffer::new_unset(self.containers()), ..self }
    }

    /// With numbers of NaN by container, where somebody counted them.
    #[must_use]
    pub fn with_nans(self, nans: &[Option<u64>]) -> Self {
        if nans.len() != self.containers() {
            return self;
        }
        let may_be_nan = nans.iter().map(|nans| *nans != Some(0)).collect::<BooleanBuffer>();
        Self { may_be_nan: &self.may_be_nan & &may_be_nan, ..self }
    }

    /// Least and greatest value by container, NaN aside; null where unknown.
    pub fn extremes(&self) -> (&ArrayRef, &ArrayRef) {
        (&self.lower, &self.upper)
    }
}

fn extremes(lower: &ArrayRef, upper: &ArrayRef) -> Result<(ArrayRef, ArrayRef), ArrowError> {
    let (lower, upper) = (numbers(lower, true), numbers(upper, false));
    let contradicts = gt(&lower, &upper)?;
    Ok((nullif(&lower, &contradicts)?, nullif(&upper, &contradicts)?))
}

/// The bounds without NaN, and with the zero of the side that they bound: zeros of both signs are
/// written as either.
fn numbers(bounds: &ArrayRef, is_lower: bool) -> ArrayRef {
    fn of<T: ArrowPrimitiveType>(
        bounds: &ArrayRef,
        number: impl Fn(T::Native) -> Option<T::Native>,
    ) -> ArrayRef {
        Arc::new(bounds.as_primitive::<T>().unary_opt::<_, T>(number))
    }
    let sign = if is_lower { -1.0_f64 } else { 1.0 };
    match bounds.data_type() {
        DataType::Float16 => of::<Float16Type>(bounds, |value| {
            let zero = f16::from_f64(0.0_f64.copysign(sign));
            (!value.is_nan()).then_some(if value == f16::ZERO { zero } else { value })
        }),
        DataType::Float32 => of::<Float32Type>(bounds, |value| {
            let zero = 0.0_f32.copysign(sign as f32);
            (!value.is_nan()).then_some(if value == 0.0 { zero } else { value })
        }),
        DataType::Float64 => of::<Float64Type>(bounds, |value| {
            let zero = 0.0_f64.copysign(sign);
            (!value.is_nan()).then_some(if value == 0.0 { zero } else { value })
        }),
        _ => Arc::clone(bounds),
    }
}

/// Greatest texts or bytes that may have been cut off where `may_be_cut`, as bounds of all that
/// begin with them. A writer has to raise what it cuts; one that did not would lose rows here.
pub fn above_cut(upper: &ArrayRef, may_be_cut: &BooleanBuffer) -> ArrayRef {
    let data_type = upper.data_type();
    let raised: Result<ArrayRef, ArrowError> = match data_type {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => cast(upper, &DataType::Utf8)
            .map(|texts| {
                let texts = texts.as_string::<i32>().iter().zip(may_be_cut.iter());
                let raised = texts.map(|(text, cut)| match text {
                    Some(text) if cut && text.len() >= SHORTEST_CUT => next_text(text),
                    text => text.map(ToOwned::to_owned),
                });
                Arc::new(raised.collect::<StringArray>()) as ArrayRef
            }),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => {
            cast(upper, &DataType::Binary).map(|bytes| {
                let bytes = bytes.as_binary::<i32>().iter().zip(may_be_cut.iter());
                let raised = bytes.map(|(bytes, cut)| match bytes {
                    Some(bytes) if cut && bytes.len() >= SHORTEST_CUT => next_bytes(bytes),
                    bytes => bytes.map(<[u8]>::to_vec),
                });
                Arc::new(raised.collect::<BinaryArray>()) as ArrayRef
            })
        }
        _ => return Arc::clone(upper),
    };
    let raised = raised.and_then(|raised| cast(&raised, data_type));
    raised.unwrap_or_else(|_| new_null_array(data_type, upper.len()))
}

/// A text above all that begin with `text`; None where there is none.
fn next_text(text: &str) -> Option<String> {
    let mut chars: Vec<char> = text.chars().collect();
    while let Some(last) = chars.pop() {
        // Between the two lie the numbers that are no characters.
        let next =
            if last == '\u{d7ff}' { Some('\u{e000}') } else { char::from_u32(last as u32 + 1) };
        if let Some(next) = next {
            chars.push(next);
            return Some(chars.into_iter().collect());
        }
    }
    None
}

fn next_bytes(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = bytes.to_vec();
    while let Some(last) = bytes.pop() {
        if let Some(next) = last.checked_add(1) {
            bytes.push(next);
            return Some(bytes);
        }
    }
    None
}

/// A mask that is true where a comparison is true or its outcome unknown.
pub(super) fn or_unknown(compared: &BooleanArray) -> BooleanBuffer {
    match compared.nulls() {
        Some(nulls) => compared.values() | &!nulls.inner(),
        None => compared.values().clone(),
    }
}
