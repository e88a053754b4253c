//! The element types of tensors, and single values encoded in them.

use std::fmt;

use arrow::datatypes::{ArrowPrimitiveType, Float16Type};
use serde::Serialize;

use super::options::Value;

/// A half-precision float, as arrow has it.
pub(super) type F16 = <Float16Type as ArrowPrimitiveType>::Native;

/// The element type of a tensor, named as torch and numpy name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// One byte, 0 or 1.
    Bool,
    /// Signed, one byte.
    Int8,
    /// Signed, two bytes.
    Int16,
    /// Signed, four bytes.
    Int32,
    /// Signed, eight bytes.
    Int64,
    /// Unsigned, one byte.
    UInt8,
    /// Unsigned, two bytes.
    UInt16,
    /// Unsigned, four bytes.
    UInt32,
    /// Unsigned, eight bytes.
    UInt64,
    /// IEEE 754 half precision.
    Float16,
    /// IEEE 754 single precision.
    Float32,
    /// IEEE 754 double precision.
    Float64,
}

impl DType {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Self::Bool | Self::Int8 | Self::UInt8 => 1,
            Self::Int16 | Self::UInt16 | Self::Float16 => 2,
            Self::Int32 | Self::UInt32 | Self::Float32 => 4,
            Self::Int64 | Self::UInt64 | Self::Float64 => 8,
        }
    }

    /// The name that both `getattr(torch, name)` and `numpy.dtype(name)` understand.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::Int8 => "int8",
            Self::Int16 => "int16",
            Self::Int32 => "int32",
            Self::Int64 => "int64",
            Self::UInt8 => "uint8",
            Self::UInt16 => "uint16",
            Self::UInt32 => "uint32",
            Self::UInt64 => "uint64",
            Self::Float16 => "float16",
            Self::Float32 => "float32",
            Self::Float64 => "float64",
        }
    }

    /// True for the three float types, which can hold NaN.
    pub fn is_float(self) -> bool {
        matches!(self, Self::Float16 | Self::Float32 | Self::Float64)
    }

    fn is_signed(self) -> bool {
        matches!(self, Self::Int8 | Self::Int16 | Self::Int32 | Self::Int64)
    }

    /// The common type of stacked columns: the one they share, or else numpy's `result_type` with
    /// one restriction: floats never become `float16` unless all are, and integers join floats as
    /// `float32` only where each of their values fits exactly (8 and 16 bits).
    ///
    /// Returns None for no columns at all.
    pub fn common(dtypes: &[Self]) -> Option<Self> {
        let first = *dtypes.first()?;
        let numbers: Vec<Self> =
            dtypes.iter().copied().filter(|dtype| *dtype != Self::Bool).collect();
        let Some(&number) = numbers.first() else { return Some(first) };
        if numbers.iter().all(|dtype| *dtype == number) {
            return Some(number);
        }
        if numbers.iter().any(|dtype| dtype.is_float()) {
            let wide =
                |dtype: &Self| *dtype == Self::Float64 || (!dtype.is_float() && dtype.size() >= 4);
            return Some(if numbers.iter().any(wide) { Self::Float64 } else { Self::Float32 });
        }
        let widest = |signed: bool| {
            let sizes = numbers.iter().filter(|dtype| dtype.is_signed() == signed);
            sizes.map(|dtype| dtype.size()).max().unwrap_or(0)
        };
        Some(match (widest(true), widest(false)) {
            (0, unsigned) => Self::unsigned(unsigned),
            (signed, 0) => Self::signed(signed),
            // A signed type holds every unsigned value of half its width.
            (signed, unsigned) if unsigned < 8 => Self::signed(signed.max(2 * unsigned)),
            _ => Self::Float64,
        })
    }

    fn signed(size: usize) -> Self {
        match size {
            1 => Self::Int8,
            2 => Self::Int16,
            4 => Self::Int32,
            _ => Self::Int64,
        }
    }

    fn unsigned(size: usize) -> Self {
        match size {
            1 => Self::UInt8,
            2 => Self::UInt16,
            4 => Self::UInt32,
            _ => Self::UInt64,
        }
    }

    /// `value` in this type, or None where it does not fit: an integer out of range, a fraction in
    /// an integer type, a finite float that would become infinite, a string.
    pub(super) fn encode(self, value: &Value) -> Option<Scalar> {
        let bytes = match (self, value) {
            (Self::Bool, Value::Bool(value)) => vec![u8::from(*value)],
            (Self::Bool, Value::Int(value @ (0 | 1))) => vec![*value as u8],
            (Self::Int8, Value::Int(value)) => i8::try_from(*value).ok()?.to_ne_bytes().to_vec(),
            (Self::Int16, Value::Int(value)) => i16::try_from(*value).ok()?.to_ne_bytes().to_vec(),
            (Self::Int32, Value::Int(value)) => i32::try_from(*value).ok()?.to_ne_bytes().to_vec(),
            (Self::Int64, Value::Int(value)) => i64::try_from(*value).ok()?.to_ne_bytes().to_vec(),
            (Self::UInt8, Value::Int(value)) => u8::try_from(*value).ok()?.to_ne_bytes().to_vec(),
            (Self::UInt16, Value::Int(value)) => u16::try_from(*value).ok()?.to_ne_bytes().to_vec(),
            (Self::UInt32, Value::Int(value)) => u32::try_from(*value).ok()?.to_ne_bytes().to_vec(),
            (Self::UInt64, Value::Int(value)) => u64::try_from(*value).ok()?.to_ne_bytes().to_vec(),
            (float, Value::Int(value)) if float.is_float() => float.float_bytes(*value as f64)?,
            (float, Value::Float(value)) if float.is_float() => float.float_bytes(*value)?,
            _ => return None,
        };
        Some(Scalar::new(&bytes))
    }

    fn float_bytes(self, value: f64) -> Option<Vec<u8>> {
        let (bytes, finite) = match self {
            Self::Float16 => {
                let half = F16::from_f64(value);
                (half.to_ne_bytes().to_vec(), half.is_finite())
            }
            Self::Float32 => {
                let single = value as f32;
                (single.to_ne_bytes().to_vec(), single.is_finite())
            }
            _ => (value.to_ne_bytes().to_vec(), value.is_finite()),
        };
        (finite || !value.is_finite()).then_some(bytes)
    }

    /// NaN, where this type has one.
    pub(super) fn nan(self) -> Option<Scalar> {
        self.encode(&Value::Float(f64::NAN))
    }

    /// Zero, or False.
    pub(super) fn zero(self) -> Scalar {
        Scalar { bytes: [0; 8], size: self.size() }
    }

    /// The value that `bytes`, one element of this type, holds.
    pub(super) fn decode(self, bytes: &[u8]) -> Value {
        let mut wide = [0; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        let [a, b, c, d, ..] = wide;
        match self {
            Self::Bool => Value::Bool(a != 0),
            Self::Int8 => Value::Int(i8::from_ne_bytes([a]).into()),
            Self::Int16 => Value::Int(i16::from_ne_bytes([a, b]).into()),
            Self::Int32 => Value::Int(i32::from_ne_bytes([a, b, c, d]).into()),
            Self::Int64 => Value::Int(i64::from_ne_bytes(wide).into()),
            Self::UInt8 => Value::Int(a.into()),
            Self::UInt16 => Value::Int(u16::from_ne_bytes([a, b]).into()),
            Self::UInt32 => Value::Int(u32::from_ne_bytes([a, b, c, d]).into()),
            Self::UInt64 => Value::Int(u64::from_ne_bytes(wide).into()),
            Self::Float16 => Value::Float(F16::from_ne_bytes([a, b]).to_f64()),
            Self::Float32 => Value::Float(f32::from_ne_bytes([a, b, c, d]).into()),
            Self::Float64 => Value::Float(f64::from_ne_bytes(wide)),
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One element of some [`DType`], as it lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scalar {
    bytes: [u8; 8],
    size: usize,
}

impl Scalar {
    fn new(element: &[u8]) -> Self {
        let mut bytes = [0; 8];
        bytes[..element.len()].copy_from_slice(element);
        Self { bytes, size: element.len() }
    }

    /// The element's bytes.
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.size]
    }

    /// Writes the element over all of `target`, a whole number of elements.
    pub(super) fn fill(&self, target: &mut [u8]) {
        for element in target.chunks_exact_mut(self.size) {
            element.copy_from_slice(self.as_bytes());
        }
    }
}
