//! One column of a plan and its pieces of a batch.

use arrow::array::{Array, ArrayRef, AsArray, UInt32Array};
use arrow::buffer::{BooleanBuffer, NullBuffer};
use arrow::datatypes::DataType;

use super::batch_slice::BatchSlice;
use super::block::Lent;
use super::buffer_ownership::native_values;
use super::codes::Codes;
use super::dtype::{DType, Scalar};
use super::leaf::{Leaf, flatten};
use super::list::List;
use super::nulls::{Policy, patch_nulls};
use super::options::Value;
use crate::Result;

/// Fewer bytes are copied: memory of its own costs a column more than that.
const LENT_BYTES: usize = 4096;

/// A batch that is kept keeps the memory of all rows that were decoded with it, but not if these
/// take more than so many times its own.
const MOST_HELD: usize = 64;

/// How one column, or one field of a struct, is converted.
#[derive(Debug)]
pub(super) struct Column {
    /// `column`, or `column.field` inside structs.
    pub(super) name: String,
    pub(super) data_type: DataType,
    /// Position in the schema, then in each struct.
    pub(super) path: Vec<usize>,
    pub(super) policy: Policy,
    /// The slot of its mask.
    pub(super) mask: Option<usize>,
    pub(super) kind: Kind,
}

#[derive(Debug)]
pub(super) enum Kind {
    /// An equal number of elements in each row.
    Fixed { fixed: Fixed, slot: usize },
    /// Lists of variable length.
    List(List),
    /// Codes of dictionaries or strings.
    Codes { codes: Codes, slot: usize },
    /// Strings that stay strings. `patch` stands for nulls.
    Text { patch: Option<Value> },
    /// A struct has only a mask of its own; its fields are columns.
    Struct { covers_nulls: bool },
}

/// Scalars and fixed-size lists, nested to any depth.
#[derive(Debug)]
pub(super) struct Fixed {
    pub(super) leaf: Leaf,
    /// The dtype that is written: the leaf's own, or the common one of a stack.
    pub(super) dtype: DType,
    /// How many fixed-size lists enclose the scalar.
    pub(super) depth: usize,
    /// Elements per row.
    pub(super) width: usize,
    /// The value of a null row; None: a null is an error.
    pub(super) patch: Option<Scalar>,
    /// True where a null inside a valid list is covered too.
    pub(super) covers_elements: bool,
}

/// One portion's rows of a column.
#[derive(Clone, Debug)]
pub(super) struct ColumnSlice {
    pub(super) array: ArrayRef,
    /// The numbers of the rows in the array; None: they are its rows, in their order.
    picked: Option<UInt32Array>,
    /// Null rows, if there are any: the array's own and the nulls of the structs around it.
    pub(super) nulls: Option<NullBuffer>,
    /// Whether nothing else holds the memory of these rows.
    is_alone: bool,
}

impl ColumnSlice {
    pub(super) fn rows(&self) -> usize {
        self.picked.as_ref().map_or(self.array.len(), Array::len)
    }

    pub(super) fn null_count(&self) -> usize {
        self.nulls.as_ref().map_or(0, NullBuffer::null_count)
    }
}

impl Column {
    /// The column's arrays, one for each portion.
    pub(super) fn parts(&self, portions: &[BatchSlice]) -> Result<Vec<ColumnSlice>> {
        portions.iter().map(|portion| self.part(portion)).collect()
    }

    /// The slices of this column. Values that [`Fixed::write`] can pick itself stay where they are.
    pub(super) fn parts_in_place(&self, portions: &[BatchSlice]) -> Result<Vec<ColumnSlice>> {
        match &self.kind {
            Kind::Fixed { fixed, .. } if fixed.picks() && self.path.len() == 1 => {
                portions.iter().map(|portion| self.part_in_place(portion)).collect()
            }
            _ => self.parts(portions),
        }
    }

    fn part(&self, portion: &BatchSlice) -> Result<ColumnSlice> {
        let mut array = portion.gathered(self.path[0])?;
        let mut nulls = row_nulls(&array);
        for field in &self.path[1..] {
            array = array.as_struct().column(*field).clone();
            nulls = NullBuffer::union(nulls.as_ref(), row_nulls(&array).as_ref());
        }
        let is_alone = self.path.len() == 1 && portion.is_alone(self.path[0]);
        let nulls = nulls.filter(|nulls| nulls.null_count() > 0);
        Ok(ColumnSlice { array, picked: None, nulls, is_alone })
    }

    fn part_in_place(&self, portion: &BatchSlice) -> Result<ColumnSlice> {
        let (array, Some(rows)) = portion.in_place(self.path[0]) else {
            return self.part(portion);
        };
        let nulls = array.nulls().filter(|nulls| nulls.null_count() > 0).map(|nulls| {
            let numbers = rows.values();
            let is_valid = |row: usize| nulls.is_valid(numbers[row] as usize);
            NullBuffer::new(BooleanBuffer::collect_bool(numbers.len(), is_valid))
        });
        let nulls = nulls.filter(|nulls| nulls.null_count() > 0);
        Ok(ColumnSlice { array: array.clone(), picked: Some(rows.clone()), nulls, is_alone: false })
    }

    /// The slot of the column and the memory of its rows, if they need no copy: they are one part
    /// in its final form, and nothing else holds it.
    pub(super) fn lent(&self, parts: &[ColumnSlice]) -> Option<(usize, Lent)> {
        let (Kind::Fixed { fixed, slot }, [part]) = (&self.kind, parts) else { return None };
        if !part.is_alone || part.nulls.is_some() || !fixed.leaf.copies(fixed.dtype) {
            return None;
        }
        let (values, nulls) = flatten(&part.array, fixed.depth);
        let values = native_values(&values).filter(|_| nulls.is_none())?;
        let is_whole = values.len() == part.rows() * fixed.width * fixed.dtype.size();
        let is_large = values.len() >= LENT_BYTES && values.capacity() / MOST_HELD <= values.len();
        (is_whole && is_large).then(|| (*slot, Lent::new(values)))
    }

    /// Fails where rows are null and the policy does not cover them.
    pub(super) fn check_rows(&self, parts: &[ColumnSlice], covers: bool) -> Result<()> {
        let count = parts.iter().map(ColumnSlice::null_count).sum();
        self.check_nulls(count, parts.iter().map(ColumnSlice::rows).sum(), covers)
    }

    /// Checks `count` nulls among so many `rows`.
    pub(super) fn check_nulls(&self, count: usize, rows: usize, covers: bool) -> Result<()> {
        if count > 0 && !covers {
            let what = format!(" in a batch of {rows} rows");
            return Err(self.policy.refuse(&self.name, &self.data_type, count, &what));
        }
        Ok(())
    }
}

/// A dictionary's key may be valid and point to a null value.
fn row_nulls(array: &ArrayRef) -> Option<NullBuffer> {
    match array.data_type() {
        DataType::Dictionary(_, _) => array.logical_nulls(),
        _ => array.nulls().cloned(),
    }
}

impl Fixed {
    /// Returns true if values are written as they lie in an array, so that they need not be
    /// neighbours there.
    fn picks(&self) -> bool {
        self.depth == 0 && self.leaf.copies(self.dtype)
    }

    /// Fails where rows or elements are null and the policy does not cover them.
    pub(super) fn check(&self, column: &Column, parts: &[ColumnSlice]) -> Result<()> {
        column.check_rows(parts, self.patch.is_some())?;
        if self.depth == 0 || self.covers_elements {
            return Ok(());
        }
        let count: usize = parts.iter().map(|part| self.null_elements(part)).sum();
        if count > 0 {
            return Err(column.policy.refuse_elements(&column.name, &column.data_type, count));
        }
        Ok(())
    }

    /// Null elements that do not lie in a null row.
    fn null_elements(&self, part: &ColumnSlice) -> usize {
        let (_, elements) = flatten(&part.array, self.depth);
        let Some(elements) = elements.filter(|nulls| nulls.null_count() > 0) else { return 0 };
        match &part.nulls {
            None => elements.null_count(),
            Some(rows) => {
                let rows = rows.expand(self.width);
                let all = NullBuffer::union(Some(&rows), Some(&elements));
                all.map_or(0, |all| all.null_count()) - rows.null_count()
            }
        }
    }

    /// The elements of `part` where they lie in memory as they are to be written: of the type that
    /// is written, and none of them null.
    pub(super) fn stored<'a>(&self, part: &'a ColumnSlice) -> Option<&'a [u8]> {
        let as_written = self.depth == 0 && part.nulls.is_none() && part.picked.is_none();
        as_written.then(|| self.leaf.stored(part.array.as_ref(), self.dtype)).flatten()
    }

    /// Writes the rows `first..first + target length` of `part`.
    pub(super) fn write(
        &self,
        column: &Column,
        part: &ColumnSlice,
        first: usize,
        target: &mut [u8],
    ) -> Result<()> {
        if self.width == 0 {
            return Ok(());
        }
        if let Some(rows) = &part.picked {
            let rows = &rows.values()[first..first + target.len() / self.dtype.size()];
            self.leaf.write_picked(&part.array, rows, target);
            if let (Some(nulls), Some(patch)) = (&part.nulls, self.patch) {
                patch_nulls(target, &nulls.slice(first, rows.len()), patch);
            }
            return Ok(());
        }
        let (values, elements) = flatten(&part.array, self.depth);
        let nulls = match (&part.nulls, self.depth) {
            (rows, 0) => rows.clone(),
            (rows, _) => {
                let rows = rows.as_ref().map(|rows| rows.expand(self.width));
                NullBuffer::union(rows.as_ref(), elements.as_ref())
            }
        };
        let start = first * self.width;
        let count = target.len() / self.dtype.size();
        let range = start..start + count;
        self.leaf.write(&column.name, &values, range, nulls.as_ref(), self.dtype, target)?;
        if let (Some(nulls), Some(patch)) = (nulls, self.patch) {
            patch_nulls(target, &nulls.slice(start, count), patch);
        }
        Ok(())
    }
}
