//! The user's choices about tensors. Plain data: Python sends it as JSON, and a worker's plan
//! carries it.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// All choices about the conversion of a query's columns to tensors.
///
/// Columns are named as in the schema; a field of a struct is `column.field`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TensorOptions {
    /// The policy for nulls.
    pub nulls: Nulls,
    /// Output name and the scalar columns that are packed, in this order, into its (N, F) tensor.
    pub stack: Vec<(String, Vec<String>)>,
    /// The format of decimals.
    pub decimal: DecimalFormat,
    /// Lists of variable length that become (N, L) instead of jagged.
    pub pad: BTreeMap<String, Pad>,
    /// String, binary and dictionary columns that become positions in the given list.
    pub categories: BTreeMap<String, Vec<Value>>,
}

/// Null policies: one for all columns, or by column.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Nulls {
    /// One policy for every column. If it cannot apply to a column's type ("nan" for integers, a
    /// number for strings), a null in that column is an error.
    All(NullPolicy),
    /// By column; a null in any other column is an error.
    Columns(BTreeMap<String, NullPolicy>),
}

impl Default for Nulls {
    fn default() -> Self {
        Self::All(NullPolicy::Error)
    }
}

/// The policy for a null in a tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NullPolicy {
    /// An error that names the column.
    Error,
    /// NaN, in columns whose tensor is of floats.
    Nan,
    /// Zero, with a second tensor `<column>_mask` that is True where the value is valid.
    Mask,
    /// This value.
    Fill(Value),
}

/// The tensor format of a decimal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecimalFormat {
    /// The nearest float64.
    #[default]
    Float64,
    /// The unscaled integer: 1.25 in `DECIMAL(9, 2)` is 125. Beyond 64 bits it is an error.
    Int64,
}

/// How a list of variable length becomes a row of fixed length.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pad {
    /// The element after a list's last one.
    pub value: Value,
    /// Elements per row; None: as many as the longest list of the batch has. A longer list is an
    /// error.
    #[serde(default)]
    pub max_length: Option<usize>,
}

/// A single value: to fill, to pad with, or a category.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Value {
    /// A boolean.
    Bool(bool),
    /// An integer.
    Int(i128),
    /// A float; as text in JSON, which has neither NaN nor infinities.
    Float(#[serde(with = "float_text")] f64),
    /// A string.
    Text(String),
    /// A byte string.
    Bytes(Vec<u8>),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(true) => f.write_str("True"),
            Self::Bool(false) => f.write_str("False"),
            Self::Int(value) => write!(f, "{value}"),
            Self::Float(value) => write!(f, "{value:?}"),
            Self::Text(value) => write!(f, "{value:?}"),
            Self::Bytes(value) => write!(f, "b\"{}\"", value.escape_ascii()),
        }
    }
}

mod float_text {
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&value.to_string())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|_| de::Error::custom(format!("{text:?} is not a float")))
    }
}
