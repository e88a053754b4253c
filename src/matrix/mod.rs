//! Columns of one type side by side, row after row, as a model takes its features.
//!
//! A stack of columns becomes such a matrix when a batch is finished, unless its columns became one
//! already when they were decoded: a few of them at a time, while the decoded values are still in
//! the processor's cache. Then the matrix is all that is left of them, a column of lists of one
//! length whose items are null where the columns are.

mod transpose;

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use arrow::array::{
    Array, ArrayData, ArrayRef, AsArray, BooleanBufferBuilder, FixedSizeListArray,
    downcast_primitive_array, make_array,
};
use arrow::buffer::{Buffer, NullBuffer};
use arrow::datatypes::{DataType, Field, SchemaRef};

pub(crate) use transpose::{LINE_BYTES, Scratch, TILE_ROWS, are_words, transpose, transpose_words};

use crate::pool::Pooled;

/// [`transpose`] of lanes of at most [`TILE_ROWS`] cells, wherever they lie.
fn transpose_copied(lanes: &[&[u8]], size: usize, rows: &mut [u8], row_bytes: usize, start: usize) {
    let mut scratch: Scratch = [0; LINE_BYTES * TILE_ROWS];
    for (cells, copy) in lanes.iter().zip(scratch.chunks_exact_mut(TILE_ROWS * size)) {
        copy[..cells.len()].copy_from_slice(cells);
    }
    transpose(&scratch, lanes.len(), size, rows, row_bytes, start);
}

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

/// The columns of rows after some have become matrices.
#[derive(Clone, Debug)]
pub struct MatrixSchema {
    /// The columns that became matrices, by their former places.
    pub matrices: Vec<MatrixColumns>,
    /// The other columns, and then a column for each matrix.
    pub schema: SchemaRef,
}

/// The places of columns that no matrix takes, out of `columns` columns, where matrices come after
/// all others; and the place of the first matrix.
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

/// How many columns of numbers of `size` bytes are written together: as many as fill a cache line
/// of each row.
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

/// Returns true if `array` alone holds the memory of its values, from a [`Matrix`] without nulls:
/// then they may be written to.
pub(crate) fn is_alone(array: &ArrayRef) -> bool {
    let values = array.as_fixed_size_list().values();
    let holders = |values: &dyn Array| -> Option<usize> {
        downcast_primitive_array!(
            values => Some(values.values().inner().strong_count()),
            _ => None,
        )
    };
    let is_alone = Arc::strong_count(array) == 1
        && Arc::strong_count(values) == 1
        && holders(values.as_ref()) == Some(1)
        && values.null_count() == 0;
    // What those who held it before did with it comes before what the next one does.
    fence(Ordering::Acquire);
    is_alone
}

impl Matrix {
    /// A matrix of `width` columns whose numbers take `size` bytes, and are of any value. None
    /// where it exceeds the address space.
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
        for (number, tile) in rows.chunks_mut(TILE_ROWS * row_bytes).enumerate() {
            let (from, bytes) = (number * TILE_ROWS * size, tile.len() / self.width);
            let cells: Vec<&[u8]> =
                columns.iter().map(|column| &column[from..from + bytes]).collect();
            for (group, lanes) in cells.chunks(line_columns(size)).enumerate() {
                let start = first * size + group * LINE_BYTES;
                match are_words(size) {
                    true => transpose_words(lanes, tile, row_bytes, start),
                    false => transpose_copied(lanes, size, tile, row_bytes, start),
                }
            }
        }
    }

    /// Writes all rows: the bytes of their numbers, in any number of pieces.
    pub(crate) fn fill<'a>(&mut self, pieces: impl Iterator<Item = &'a [u8]>) {
        let bytes = self.rows * self.width * self.size;
        let mut rest = &mut self.memory.as_mut_slice()[self.start..][..bytes];
        for piece in pieces {
            let (front, after) = rest.split_at_mut(piece.len());
            front.copy_from_slice(piece);
            rest = after;
        }
        // What no piece has is of earlier content.
        rest.fill(0);
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
        // The pointer that may be written through, should nobody else hold the memory any more: see
        // `Lent::address`.
        let (address, bytes) = (NonNull::from(&mut *values).cast::<u8>(), values.len());
        address.as_ptr().expose_provenance();
        // SAFETY: the memory is the buffer's owner, so that it is there as long as the buffer;
        // nobody writes to it while others read.
        let buffer =
            unsafe { Buffer::from_custom_allocation(address, bytes, Arc::new(self.memory)) };
        let nulls = self.valid.map(|mut valid| NullBuffer::new(valid.finish()));
        let items = ArrayData::builder(item.clone()).len(cells).add_buffer(buffer).nulls(nulls);
        let items = make_array(items.build().ok()?);
        let field = Arc::new(Field::new_list_field(item.clone(), true));
        FixedSizeListArray::try_new_with_length(field, width, items, None, rows).ok()
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Float64Array, Int32Array, UInt8Array};
    use arrow::datatypes::Int32Type;

    use super::*;

    fn written(columns: &[ArrayRef], together: usize) -> FixedSizeListArray {
        let (item, rows) = (columns[0].data_type(), columns[0].len());
        let mut matrix = Matrix::new(rows, columns.len(), item.primitive_width().unwrap()).unwrap();
        for (number, line) in columns.chunks(together).enumerate() {
            let cells: Vec<&[u8]> =
                line.iter().map(|column| native_bytes(column.as_ref())).collect();
            matrix.write(number * together, &cells);
        }
        for (place, column) in columns.iter().enumerate() {
            matrix.set_nulls(place, column.nulls());
        }
        matrix.finish(item).unwrap()
    }

    /// Row after row, and null where the columns are.
    fn check(columns: &[ArrayRef]) {
        for together in [1, 3, line_columns(4), columns.len()] {
            let matrix = written(columns, together);
            let width = i32::try_from(columns.len()).unwrap();
            assert_eq!(matrix.data_type(), &matrix_type(columns[0].data_type(), width));
            for row in 0..columns[0].len() {
                let cells = matrix.value(row);
                for (place, column) in columns.iter().enumerate() {
                    assert_eq!(cells.slice(place, 1).to_data(), column.slice(row, 1).to_data());
                }
            }
        }
    }

    #[test]
    fn every_number_is_in_its_row_and_place_and_null_where_it_was() {
        let rows = if cfg!(miri) { 9 } else { TILE_ROWS + 9 };
        let value = |place: usize, row: usize| {
            (!(row + place).is_multiple_of(5) || place.is_multiple_of(3))
                .then_some(row * 40 + place)
        };
        let ints = |place| {
            let values = (0..rows).map(|row| value(place, row).map(|value| value as i32));
            Arc::new(values.collect::<Int32Array>()) as ArrayRef
        };
        check(&(0..37).map(ints).collect::<Vec<_>>());
        let floats = |place| {
            let values = (0..rows).map(|row| value(place, row).map(|value| value as f64));
            Arc::new(values.collect::<Float64Array>()) as ArrayRef
        };
        check(&(0..9).map(floats).collect::<Vec<_>>());
        let bytes = |place| {
            let values = (0..rows).map(|row| value(place, row).map(|value| value as u8));
            Arc::new(values.collect::<UInt8Array>()) as ArrayRef
        };
        check(&(0..70).map(bytes).collect::<Vec<_>>());
    }

    fn numbers(rows: usize) -> Vec<ArrayRef> {
        let column = |place: usize| {
            Arc::new(Int32Array::from_iter_values((0..rows).map(|row| (row * 2 + place) as i32)))
                as ArrayRef
        };
        vec![column(0), column(1)]
    }

    #[test]
    fn a_matrix_is_alone_when_nothing_of_it_is_held_and_nothing_is_null() {
        let matrix: ArrayRef = Arc::new(written(&numbers(10), 2));
        assert!(is_alone(&matrix));
        let slice = matrix.slice(3, 4);
        assert!(!is_alone(&matrix) && !is_alone(&slice));
        drop(matrix);
        assert!(is_alone(&slice));
        let other = Arc::clone(&slice);
        assert!(!is_alone(&slice));
        drop(other);
        let values = Arc::clone(slice.as_fixed_size_list().values());
        assert!(!is_alone(&slice));
        drop(values);
        assert!(is_alone(&slice));
        let holes: ArrayRef = Arc::new(Int32Array::from(vec![Some(1), None]));
        let matrix: ArrayRef = Arc::new(written(&[holes], 1));
        assert!(!is_alone(&matrix));
    }

    #[test]
    fn sizes_that_do_not_fit_make_no_matrix() {
        assert!(Matrix::new(usize::MAX / 4, 2, 4).is_none());
        let matrix = Matrix::new(3, 2, 4).unwrap();
        assert!(matrix.finish(&DataType::Float64).is_none());
    }

    /// Under Miri: through the address that it told of, when nobody else looks at it; and then its
    /// memory serves the next one.
    #[test]
    fn a_matrix_may_be_written_to_and_its_memory_serves_another() {
        // Of a size that no other test has.
        let rows = if cfg!(miri) { 5_003 } else { 1_000_003 };
        let matrix = written(&numbers(rows), 2);
        let buffer = matrix.values().to_data().buffers()[0].clone();
        drop(matrix);
        let address = buffer.as_ptr().addr();
        let memory = std::ptr::with_exposed_provenance_mut::<u8>(address);
        // SAFETY: nothing but `buffer` holds the memory, and it is not looked at meanwhile.
        unsafe { memory.add(buffer.len() - 1).write(7) };
        assert_eq!(buffer.as_slice()[buffer.len() - 1], 7);
        drop(buffer);
        let next = written(&numbers(rows), 2);
        assert_eq!(next.values().to_data().buffers()[0].as_ptr().addr(), address);
        let last = next.value(rows - 1);
        assert_eq!(last.as_primitive::<Int32Type>().value(1), rows as i32 * 2 - 1);
    }
}
