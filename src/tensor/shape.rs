//! The shape of one row: scalars, fixed-size lists, and the `arrow.fixed_shape_tensor` extension.

use arrow::datatypes::{DataType, Field};
use serde::Deserialize;

use super::leaf::Leaf;
use super::options::DecimalFormat;
use crate::{Error, ErrorKind, Result};

/// A column whose rows all have the same number of elements.
#[derive(Debug)]
pub(super) struct FixedShape {
    pub(super) leaf: Leaf,
    /// How many fixed-size lists enclose the scalar.
    pub(super) depth: usize,
    /// The stored shape of a row; empty for a scalar.
    pub(super) shape: Vec<usize>,
    /// The order in which the axes are presented, where it is not the stored one.
    pub(super) permutation: Option<Vec<usize>>,
}

/// The metadata of a fixed-shape tensor. Its names of axes have no place in a tensor.
#[derive(Deserialize)]
struct TensorMetadata {
    shape: Vec<usize>,
    #[serde(default)]
    permutation: Option<Vec<usize>>,
}

impl FixedShape {
    /// None where `field` is of another kind.
    ///
    /// # Errors
    ///
    /// Metadata of the extension that are malformed, or contradict the storage.
    pub(super) fn of(field: &Field, decimal: DecimalFormat) -> Result<Option<Self>> {
        let DataType::FixedSizeList(item, size) = field.data_type() else {
            let leaf = Leaf::of(field.data_type(), decimal);
            let scalar = |leaf| Self { leaf, depth: 0, shape: Vec::new(), permutation: None };
            return Ok(leaf.map(scalar));
        };
        let Some(inner) = Self::of(item, decimal)? else { return Ok(None) };
        if inner.permutation.is_some() {
            return Err(refuse(field, "axes are permuted inside a list"));
        }
        let size =
            usize::try_from(*size).map_err(|_| refuse(field, "the list size is negative"))?;
        let depth = inner.depth + 1;
        let extension = field.extension_type_name() == Some("arrow.fixed_shape_tensor");
        if !extension {
            let shape = [&[size], inner.shape.as_slice()].concat();
            return Ok(Some(Self { leaf: inner.leaf, depth, shape, permutation: None }));
        }
        let text = field.extension_type_metadata().unwrap_or("{}");
        let metadata: TensorMetadata =
            serde_json::from_str(text).map_err(|error| refuse(field, &error.to_string()))?;
        let TensorMetadata { mut shape, permutation } = metadata;
        let elements = shape.iter().try_fold(1_usize, |all, axis| all.checked_mul(*axis));
        if elements != Some(size) {
            return Err(refuse(
                field,
                &format!("the shape {shape:?} does not have {size} elements"),
            ));
        }
        let axes = shape.len();
        if let Some(order) = &permutation {
            let mut sorted = order.clone();
            sorted.sort_unstable();
            if !sorted.iter().copied().eq(0..axes) {
                let problem = format!("{order:?} is no permutation of {axes} axes");
                return Err(refuse(field, &problem));
            }
        }
        shape.extend(&inner.shape);
        let all_axes = shape.len();
        let permutation = permutation
            .map(|order| order.into_iter().chain(axes..all_axes).collect::<Vec<_>>())
            .filter(|order| !order.iter().copied().eq(0..all_axes));
        Ok(Some(Self { leaf: inner.leaf, depth, shape, permutation }))
    }
}

fn refuse(field: &Field, problem: &str) -> Error {
    Error::new(
        ErrorKind::UnsupportedType,
        format!(
            "column {:?} ({}): {problem}; correct its extension metadata, leave the column out of the \
             query, or choose output_format=\"arrow\"",
            field.name(),
            field.data_type()
        ),
    )
}
