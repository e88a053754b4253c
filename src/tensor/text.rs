//! Strings and byte strings, whichever of Arrow's seven layouts holds them.

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BinaryViewArray, FixedSizeBinaryArray, LargeBinaryArray,
    LargeStringArray, StringArray, StringViewArray,
};
use arrow::datatypes::DataType;

use super::column::ColumnSlice;
use super::options::Value;

/// True for byte strings, false for strings, None for all other types.
pub(super) fn is_binary(data_type: &DataType) -> Option<bool> {
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Some(false),
        DataType::Binary
        | DataType::LargeBinary
        | DataType::BinaryView
        | DataType::FixedSizeBinary(_) => Some(true),
        _ => None,
    }
}

/// One string or byte string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextRef<'a> {
    /// A string.
    Str(&'a str),
    /// A byte string.
    Bytes(&'a [u8]),
}

impl<'a> TextRef<'a> {
    pub(super) fn as_bytes(self) -> &'a [u8] {
        match self {
            Self::Str(text) => text.as_bytes(),
            Self::Bytes(bytes) => bytes,
        }
    }
}

/// A string array of any layout.
#[derive(Clone, Copy)]
pub(super) enum TextArray<'a> {
    Utf8(&'a StringArray),
    LargeUtf8(&'a LargeStringArray),
    Utf8View(&'a StringViewArray),
    Binary(&'a BinaryArray),
    LargeBinary(&'a LargeBinaryArray),
    BinaryView(&'a BinaryViewArray),
    FixedSizeBinary(&'a FixedSizeBinaryArray),
}

impl<'a> TextArray<'a> {
    /// None where the array holds no strings.
    pub(super) fn of(array: &'a dyn Array) -> Option<Self> {
        Some(match array.data_type() {
            DataType::Utf8 => Self::Utf8(array.as_string()),
            DataType::LargeUtf8 => Self::LargeUtf8(array.as_string()),
            DataType::Utf8View => Self::Utf8View(array.as_string_view()),
            DataType::Binary => Self::Binary(array.as_binary()),
            DataType::LargeBinary => Self::LargeBinary(array.as_binary()),
            DataType::BinaryView => Self::BinaryView(array.as_binary_view()),
            DataType::FixedSizeBinary(_) => Self::FixedSizeBinary(array.as_fixed_size_binary()),
            _ => return None,
        })
    }

    pub(super) fn get(self, row: usize) -> TextRef<'a> {
        match self {
            Self::Utf8(array) => TextRef::Str(array.value(row)),
            Self::LargeUtf8(array) => TextRef::Str(array.value(row)),
            Self::Utf8View(array) => TextRef::Str(array.value(row)),
            Self::Binary(array) => TextRef::Bytes(array.value(row)),
            Self::LargeBinary(array) => TextRef::Bytes(array.value(row)),
            Self::BinaryView(array) => TextRef::Bytes(array.value(row)),
            Self::FixedSizeBinary(array) => TextRef::Bytes(array.value(row)),
        }
    }
}

/// The strings of one column of a batch. They still lie in the Arrow pieces, which are freed with
/// this value; Python's own strings are made from it once, under the GIL.
#[derive(Debug)]
pub struct TextColumn {
    parts: Vec<ColumnSlice>,
    patch: Option<Value>,
}

impl TextColumn {
    pub(super) fn new(parts: Vec<ColumnSlice>, patch: Option<Value>) -> Self {
        Self { parts, patch }
    }

    /// The arrays that hold the strings.
    pub(crate) fn arrays(&self) -> impl Iterator<Item = &ArrayRef> {
        self.parts.iter().map(|part| &part.array)
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.parts.iter().map(|part| part.array.len()).sum()
    }

    /// True without rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The rows in order, nulls replaced as the policy says.
    pub fn iter(&self) -> impl Iterator<Item = TextRef<'_>> {
        let patch = match &self.patch {
            Some(Value::Text(text)) => TextRef::Str(text),
            Some(Value::Bytes(bytes)) => TextRef::Bytes(bytes),
            // Without a patch there are no nulls: `Converter::convert` has checked.
            _ => TextRef::Bytes(&[]),
        };
        self.parts.iter().filter_map(|part| Some((part, TextArray::of(&part.array)?))).flat_map(
            move |(part, texts)| {
                let nulls = part.nulls.as_ref();
                (0..part.array.len()).map(move |row| match nulls {
                    Some(nulls) if nulls.is_null(row) => patch,
                    _ => texts.get(row),
                })
            },
        )
    }
}
