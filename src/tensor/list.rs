//! Lists of variable length: jagged (values and offsets) or padded to a rectangle.

use std::ops::Range;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::DataType;

use super::block::{Block, Slot};
use super::column::{Column, ColumnSlice};
use super::dtype::{DType, Scalar};
use super::leaf::{Leaf, flatten};
use super::nulls::patch_nulls;
use crate::{Error, Result};

#[derive(Debug)]
pub(super) struct List {
    pub(super) leaf: Leaf,
    /// How many fixed-size lists make up one list element.
    pub(super) depth: usize,
    /// Scalars per list element.
    pub(super) width: usize,
    /// The value of a null element; None: a null is an error.
    pub(super) patch: Option<Scalar>,
    /// True where a null list counts as an empty one, its row marked in the mask.
    pub(super) null_is_empty: bool,
    pub(super) layout: ListLayout,
}

#[derive(Debug)]
pub(super) enum ListLayout {
    Jagged { values: usize, offsets: usize },
    Padded { slot: usize, value: Scalar, max_length: Option<usize> },
}

impl List {
    fn dtype(&self) -> DType {
        self.leaf.dtype
    }

    /// Checks nulls and lengths, and says how many elements each slot takes.
    pub(super) fn measure(
        &self,
        column: &Column,
        parts: &[ColumnSlice],
        counts: &mut [usize],
    ) -> Result<()> {
        self.check(column, parts)?;
        let lengths = || {
            parts.iter().flat_map(|part| {
                let rows = Rows::of(&part.array);
                valid_rows(part).map(move |row| rows.range(row).len())
            })
        };
        match self.layout {
            ListLayout::Jagged { values, offsets } => {
                counts[values] = lengths().sum::<usize>() * self.width;
                counts[offsets] = row_count(parts) + 1;
            }
            ListLayout::Padded { slot, max_length, .. } => {
                let longest = lengths().max().unwrap_or(0);
                let length = max_length.unwrap_or(longest);
                if longest > length {
                    return Err(Error::data(format!(
                        "column {:?} has a list of {longest} elements, longer than the max_length \
                         {length} of its pad option; raise max_length, or cut the lists in SQL with \
                         array_slice",
                        column.name
                    )));
                }
                let elements = length.checked_mul(self.width);
                counts[slot] = elements
                    .and_then(|elements| elements.checked_mul(row_count(parts)))
                    .ok_or_else(|| {
                        Error::data(format!(
                            "column {:?}, padded to {length} elements per row, exceeds the address \
                             space; lower max_length or the batch size",
                            column.name
                        ))
                    })?;
            }
        }
        Ok(())
    }

    fn check(&self, column: &Column, parts: &[ColumnSlice]) -> Result<()> {
        let count: usize = parts.iter().map(ColumnSlice::null_count).sum();
        if count > 0 && !self.null_is_empty {
            let what = " (null lists, which have no length to fill)";
            return Err(column.policy.refuse(&column.name, &column.data_type, count, what));
        }
        if self.patch.is_some() {
            return Ok(());
        }
        let mut count = 0;
        for part in parts {
            let Some(nulls) = self.elements(part).1 else { continue };
            let rows = Rows::of(&part.array);
            for row in valid_rows(part) {
                let range = self.scalars(rows.range(row));
                count += nulls.slice(range.start, range.len()).null_count();
            }
        }
        if count > 0 {
            return Err(column.policy.refuse_elements(&column.name, &column.data_type, count));
        }
        Ok(())
    }

    /// The scalars of all lists of `part`, and which of them are null.
    fn elements(&self, part: &ColumnSlice) -> (ArrayRef, Option<NullBuffer>) {
        let items = items(&part.array);
        let (values, mut nulls) = flatten(items, self.depth);
        let own = items.nulls().map(|nulls| match self.depth {
            0 => nulls.clone(),
            _ => nulls.expand(self.width),
        });
        nulls = NullBuffer::union(nulls.as_ref(), own.as_ref());
        (values, nulls.filter(|nulls| nulls.null_count() > 0))
    }

    fn scalars(&self, items: Range<usize>) -> Range<usize> {
        items.start * self.width..items.end * self.width
    }

    /// Writes all rows.
    pub(super) fn write(
        &self,
        column: &Column,
        parts: &[ColumnSlice],
        slots: &[Slot],
        block: &mut Block,
    ) -> Result<()> {
        match self.layout {
            ListLayout::Jagged { values, offsets } => {
                write_offsets(parts, block.slot_mut(slots[offsets]));
                self.write_values(column, parts, block.slot_mut(slots[values]))
            }
            ListLayout::Padded { slot, value, .. } => {
                let target = block.slot_mut(slots[slot]);
                self.write_padded(column, parts, value, target)
            }
        }
    }

    /// The lists' scalars one after the other; neighbours in memory are copied in one go.
    fn write_values(
        &self,
        column: &Column,
        parts: &[ColumnSlice],
        target: &mut [u8],
    ) -> Result<()> {
        let mut rest = target;
        for part in parts {
            let (values, nulls) = self.elements(part);
            let rows = Rows::of(&part.array);
            let mut run = 0..0;
            for row in valid_rows(part) {
                let range = rows.range(row);
                if range.start != run.end {
                    rest = self.copy(column, &values, nulls.as_ref(), run, rest)?;
                    run = range;
                } else {
                    run.end = range.end;
                }
            }
            rest = self.copy(column, &values, nulls.as_ref(), run, rest)?;
        }
        Ok(())
    }

    fn write_padded(
        &self,
        column: &Column,
        parts: &[ColumnSlice],
        value: Scalar,
        target: &mut [u8],
    ) -> Result<()> {
        let count = row_count(parts);
        if count == 0 || target.is_empty() {
            return Ok(());
        }
        let mut targets = target.chunks_exact_mut(target.len() / count);
        for part in parts {
            let (values, nulls) = self.elements(part);
            let rows = Rows::of(&part.array);
            let is_null = |row| part.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
            for (row, target) in (0..part.array.len()).zip(&mut targets) {
                let range = if is_null(row) { 0..0 } else { rows.range(row) };
                let rest = self.copy(column, &values, nulls.as_ref(), range, target)?;
                value.fill(rest);
            }
        }
        Ok(())
    }

    /// Writes the list elements `items` to the front of `target`; returns the rest of it.
    fn copy<'a>(
        &self,
        column: &Column,
        values: &ArrayRef,
        nulls: Option<&NullBuffer>,
        items: Range<usize>,
        target: &'a mut [u8],
    ) -> Result<&'a mut [u8]> {
        let range = self.scalars(items);
        let (front, rest) = target.split_at_mut(range.len() * self.dtype().size());
        if range.is_empty() {
            return Ok(rest);
        }
        self.leaf.write(&column.name, values, range.clone(), nulls, self.dtype(), front)?;
        if let (Some(nulls), Some(patch)) = (nulls, self.patch) {
            patch_nulls(front, &nulls.slice(range.start, range.len()), patch);
        }
        Ok(rest)
    }
}

/// The element field of a list of variable length.
pub(super) fn item_field(data_type: &DataType) -> Option<&arrow::datatypes::FieldRef> {
    match data_type {
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item) => Some(item),
        _ => None,
    }
}

/// All elements that the lists of `array` may point to.
fn items(array: &ArrayRef) -> &ArrayRef {
    match array.data_type() {
        DataType::List(_) => array.as_list::<i32>().values(),
        DataType::LargeList(_) => array.as_list::<i64>().values(),
        DataType::ListView(_) => array.as_list_view::<i32>().values(),
        _ => array.as_list_view::<i64>().values(),
    }
}

/// Where each list's elements are.
#[derive(Clone, Copy)]
enum Rows<'a> {
    Offsets32(&'a [i32]),
    Offsets64(&'a [i64]),
    View32(&'a [i32], &'a [i32]),
    View64(&'a [i64], &'a [i64]),
}

impl<'a> Rows<'a> {
    fn of(array: &'a ArrayRef) -> Self {
        match array.data_type() {
            DataType::List(_) => Self::Offsets32(array.as_list::<i32>().value_offsets()),
            DataType::LargeList(_) => Self::Offsets64(array.as_list::<i64>().value_offsets()),
            DataType::ListView(_) => {
                let view = array.as_list_view::<i32>();
                Self::View32(view.value_offsets(), view.value_sizes())
            }
            _ => {
                let view = array.as_list_view::<i64>();
                Self::View64(view.value_offsets(), view.value_sizes())
            }
        }
    }

    /// The elements of one row. Offsets are never negative: Arrow checks them.
    fn range(self, row: usize) -> Range<usize> {
        match self {
            Self::Offsets32(offsets) => offsets[row] as usize..offsets[row + 1] as usize,
            Self::Offsets64(offsets) => offsets[row] as usize..offsets[row + 1] as usize,
            Self::View32(offsets, sizes) => {
                offsets[row] as usize..offsets[row] as usize + sizes[row] as usize
            }
            Self::View64(offsets, sizes) => {
                offsets[row] as usize..offsets[row] as usize + sizes[row] as usize
            }
        }
    }
}

/// The rows of `part` whose list is not null. A null list may point to elements: they are not read.
fn valid_rows(part: &ColumnSlice) -> impl Iterator<Item = usize> + '_ {
    let nulls = part.nulls.as_ref();
    (0..part.array.len()).filter(move |row| nulls.is_none_or(|nulls| nulls.is_valid(*row)))
}

fn row_count(parts: &[ColumnSlice]) -> usize {
    parts.iter().map(|part| part.array.len()).sum()
}

fn write_offsets(parts: &[ColumnSlice], target: &mut [u8]) {
    let mut targets = target.chunks_exact_mut(size_of::<i64>());
    let mut end = 0_i64;
    // The block is zeroed: the first offset is there already.
    targets.next();
    for part in parts {
        let rows = Rows::of(&part.array);
        let is_null = |row| part.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
        for (row, target) in (0..part.array.len()).zip(&mut targets) {
            if !is_null(row) {
                end += rows.range(row).len() as i64;
            }
            target.copy_from_slice(&end.to_ne_bytes());
        }
    }
}
