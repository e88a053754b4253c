//! Columns of one type side by side, row after row, as a model takes its features.
//!
//! A stack of columns becomes such a matrix when a batch is finished, unless its columns become one already where they are decoded
//! ([`MatrixExpr`]): a few of them at a time, while what was decoded of these is still in the processor's cache. Then the matrix is all
//! that is left of them, a column of lists of one length whose items are null where the columns are.

mod expr;
mod transpose;

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use arrow::array::{
    Array, ArrayData, AsArray, BooleanBufferBuilder, FixedSizeListArray, downcast_primitive_array,
    make_array,
};
use arrow::buffer::{Buffer, NullBuffer};
use arrow::datatypes::{DataType, Field};

pub use expr::MatrixExpr;
pub(crate) use transpose::{LINE_BYTES, Scratch, TILE_ROWS, are_words, transpose, transpose_words};

use crate::pool::Pooled;

/// A matrix that is being written, of numbers of one size.
#[derive(Debug)]
pub(crate) struct Matrix {
    memory: Pooled,
    /// Where the first number lies in the memory.
    start: usize,
    rows: usize,
    width: usize,
    size: usize,
    /// By number, whether it is not null; None as long as none is.
    valid: Option<BooleanBufferBuilder>,
}

/// Columns of a schema that become a matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatrixColumns {
    /// The number of the stack that they are for.
    pub stack: usize,
    /// Their places, in the order that the matrix has them.
    pub columns: Vec<usize>,
}

/// Of `columns` columns, the places of those that no matrix takes, where matrices come after all others; and the place of the first
/// matrix.
pub(crate) fn places(columns: usize, matrices: &[MatrixColumns]) -> (Vec<Option<usize>>, usize) {
    let mut is_left = vec![true; columns];
    matrices.iter().flat_map(|matrix| &matrix.columns).for_each(|place| is_left[*place] = false);
    let mut first = 0;
    let place = |is_left: bool| {
        is_left.then(|| {
            first += 1;
            first - 1
        })
    };
    let left = is_left.into_iter().map(place).collect();
    (left, first)
}

/// How many columns of numbers of `size` bytes are written together: as many as fill a cache line of each row.
pub(crate) fn line_columns(size: usize) -> usize {
    LINE_BYTES / size.max(1)
}

/// The type of a matrix of `width` columns of `item`.
pub(crate) fn matrix_type(item: &DataType, width: i32) -> DataType {
    DataType::FixedSizeList(Arc::new(Field::new_list_field(item.clone(), true)), width)
}

/// The values of a primitive array as they lie in memory; nothing for other arrays.
pub(crate) fn native_bytes(array: &dyn Array) -> &[u8] {
    downcast_primitive_array!(
        array => array.values().inner().as_slice(),
        _ => &[],
    )
}

/// Whether nothing but this array holds the memory of its values, which was a [`Matrix`] of which nothing is null: then they may be
/// written to.
pub(crate) fn is_alone(array: &dyn Array) -> bool {
    let values = array.as_fixed_size_list().values();
    let buffer = |values: &dyn Array| -> Option<usize> {
        downcast_primitive_array!(
            values => Some(values.values().inner().strong_count()),
            _ => None,
        )
    };
    let is_alone = values.null_count() == 0 && buffer(values.as_ref()) == Some(1);
    // What those who held it before did with it comes before what the next one does.
    fence(Ordering::Acquire);
    is_alone
}

impl Matrix {
    /// A matrix of `width` columns whose numbers take `size` bytes, and are of any value. None where it exceeds the address space.
    pub(crate) fn new(rows: usize, width: usize, size: usize) -> Option<Self> {
        let bytes = rows.checked_mul(width)?.checked_mul(size)?.checked_add(LINE_BYTES)?;
        let memory = Pooled::new(bytes);
        let start = memory.as_ref().as_ptr().align_offset(LINE_BYTES);
        Some(Self { memory, start, rows, width, size, valid: None })
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Writes the columns from number `first` on: of each the bytes of all its numbers.
    pub(crate) fn write(&mut self, first: usize, columns: &[&[u8]]) {
        let (size, row_bytes) = (self.size, self.width * self.size);
        let rows = &mut self.memory.as_mut_slice()[self.start..][..self.rows * row_bytes];
        let mut scratch: Scratch = [0; LINE_BYTES * TILE_ROWS];
        for (number, tile) in rows.chunks_mut(TILE_ROWS * row_bytes).enumerate() {
            let (from, bytes) = (number * TILE_ROWS * size, tile.len() / self.width);
            let cells: Vec<&[u8]> =
                columns.iter().map(|column| &column[from..from + bytes]).collect();
            for (group, lanes) in cells.chunks(line_columns(size)).enumerate() {
                let start = first * size + group * LINE_BYTES;
                if are_words(size) {
                    transpose_words(lanes, tile, row_bytes, start);
                    continue;
                }
                for (cells, made) in lanes.iter().zip(scratch.chunks_exact_mut(TILE_ROWS * size)) {
                    made[..cells.len()].copy_from_slice(cells);
                }
                transpose(&scratch, lanes.len(), size, tile, row_bytes, start);
            }
        }
    }

    /// Says which numbers of a column are null.
    pub(crate) fn set_nulls(&mut self, column: usize, nulls: Option<&NullBuffer>) {
        let Some(nulls) = nulls.filter(|nulls| nulls.null_count() > 0) else { return };
        let cells = self.rows * self.width;
        let valid = self.valid.get_or_insert_with(|| {
            let mut valid = BooleanBufferBuilder::new(cells);
            valid.append_n(cells, true);
            valid
        });
        for row in (!nulls.inner()).set_indices() {
            valid.set_bit(row * self.width + column, false);
        }
    }

    /// The matrix as an array of [`matrix_type`]; None where its numbers are not of `item`'s size.
    pub(crate) fn finish(mut self, item: &DataType) -> Option<FixedSizeListArray> {
        let (rows, cells, width) =
            (self.rows, self.rows * self.width, i32::try_from(self.width).ok()?);
        (item.primitive_width() == Some(self.size)).then_some(())?;
        let values = &mut self.memory.as_mut_slice()[self.start..][..cells * self.size];
        // The pointer that may be written through, should nobody else hold the memory any more: see `Lent::address`.
        let (address, bytes) = (NonNull::from(&mut *values).cast::<u8>(), values.len());
        address.as_ptr().expose_provenance();
        // SAFETY: the memory is the buffer's owner, so that it is there as long as the buffer; nobody writes to it while others read.
        let buffer =
            unsafe { Buffer::from_custom_allocation(address, bytes, Arc::new(self.memory)) };
        let nulls = self.valid.map(|mut valid| NullBuffer::new(valid.finish()));
        let items = ArrayData::builder(item.clone()).len(cells).add_buffer(buffer).nulls(nulls);
        let items = make_array(items.build().ok()?);
        let field = Arc::new(Field::new_list_field(item.clone(), true));
        FixedSizeListArray::try_new_with_length(field, width, items, None, rows).ok()
    }
}
