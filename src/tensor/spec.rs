//! The description of a converter's outputs, fixed by the schema and the options before any row is
//! read.

use serde::Serialize;

use super::dtype::DType;

/// One entry of the dictionary that a batch becomes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OutputSpec {
    /// The key: a column, a mask or a stack.
    pub name: String,
    /// The column or stack of which it is the mask; None for everything else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub masks: Option<String>,
    /// The value's form.
    #[serde(flatten)]
    pub kind: OutputKind,
}

/// The form of one output. Slots are positions in
/// [`TensorBatch::slots`](super::TensorBatch::slots); N is the number of rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum OutputKind {
    /// A tensor of shape (N, *shape).
    Dense {
        /// Where its elements are.
        slot: usize,
        /// Their type.
        dtype: DType,
        /// The shape of one row as it lies in memory; empty for a scalar column.
        shape: Vec<usize>,
        /// The order in which the axes of one row are presented, where it is not the stored one.
        permutation: Option<Vec<usize>>,
    },
    /// A tensor of shape (N, L, *shape).
    Padded {
        /// Where its elements are.
        slot: usize,
        /// Their type.
        dtype: DType,
        /// The shape of one list element; empty for a list of scalars.
        shape: Vec<usize>,
        /// L, where it is fixed; else L is the slot's count over N and the shape.
        max_length: Option<usize>,
    },
    /// Lists of different lengths: the values of all rows, (total, *shape), and N + 1 int64
    /// offsets.
    Jagged {
        /// Where the values are.
        values: usize,
        /// Where the offsets are.
        offsets: usize,
        /// Type of the values.
        dtype: DType,
        /// The shape of one list element; empty for a list of scalars.
        shape: Vec<usize>,
    },
    /// Int64 codes of shape (N,) and the batch's own categories.
    Encoded {
        /// Where the codes are.
        codes: usize,
        /// Position in [`TensorBatch::categories`](super::TensorBatch::categories).
        categories: usize,
    },
    /// A list of N strings or byte strings.
    Text {
        /// Position in [`TensorBatch::texts`](super::TensorBatch::texts).
        index: usize,
    },
    /// A dictionary of its own.
    Struct {
        /// Its entries.
        fields: Vec<OutputSpec>,
    },
}
