//! Gathering rows at random from the arrays of one column.

use arrow::array::{Array, ArrayData, ArrayRef, AsArray, make_array};
use arrow::buffer::Buffer;
use arrow::compute::{concat, interleave};
use arrow::datatypes::DataType;

use crate::Result;
pub(super) use crate::materialize::release;
use crate::matrix::native_bytes;
use crate::pool::Pooled;

/// One column of a window.
///
/// Numbers of which none is null are mixed at once: adjacent values are joined in memory that is
/// used again, and picked from there while it is in the processor's cache. For others there are two
/// ways to gather, chosen by measuring 122 arrays of 8192 rows (ns per row, `interleave` against
/// one `concat` and `take`): int64 7 to 4, bool 15 to 2, dictionaries of 1000 strings 143 to 5;
/// strings of 100 bytes 58 to 107, lists of 256 floats 505 to 1672.
pub(super) enum Column {
    /// As it came, gathered by `interleave`: no second copy of wide values, and no 32-bit offset
    /// that all of them together could overflow.
    Pieces(Vec<ArrayRef>),
    /// Made one array, from which rows are picked where they are written: narrow values, and
    /// dictionaries, since `interleave` would join those of all pieces again for every batch.
    Whole(ArrayRef),
    /// In the order of delivery, in arrays of [`BLOCK_ROWS`]: numbers without nulls.
    Mixed(Vec<ArrayRef>),
}

/// Rows of an array of mixed numbers at most: a batch that is a slice of it holds all of it, which
/// is 2 MiB of the widest numbers.
pub(super) const BLOCK_ROWS: usize = 131_072;

impl Column {
    /// The column with the arrays `pieces`, whose rows are delivered in this `order`.
    pub(super) fn new(pieces: Vec<ArrayRef>, order: &[u32]) -> Self {
        if let Some(mixed) = mixed(&pieces, order) {
            return Self::Mixed(mixed);
        }
        if !pieces.iter().all(|piece| is_narrow(piece.data_type())) {
            return Self::Pieces(pieces);
        }
        let arrays: Vec<&dyn Array> = pieces.iter().map(AsRef::as_ref).collect();
        match concat(&arrays) {
            Ok(array) => Self::Whole(array),
            // Together the dictionaries exceed the key type; those of one batch may still fit.
            Err(_) => Self::Pieces(pieces),
        }
    }

    /// Returns true if rows are picked by their number in the window, and not gathered by piece.
    pub(super) fn is_whole(&self) -> bool {
        matches!(self, Self::Whole(_))
    }

    /// Returns true if its rows lie in the order of delivery already.
    pub(super) fn is_mixed(&self) -> bool {
        matches!(self, Self::Mixed(_))
    }

    /// Returns true if its rows are gathered by piece.
    pub(super) fn is_in_pieces(&self) -> bool {
        matches!(self, Self::Pieces(_))
    }

    /// The `rows` rows from number `first` on of the order of delivery, or the array to pick them
    /// from; and the bytes that they take. They are those at `places`, (piece, row of the piece),
    /// if the column is in pieces; of one that is mixed, they lie in one block.
    pub(super) fn gather(
        &self,
        places: &[(usize, usize)],
        first: usize,
        rows: usize,
    ) -> Result<(ArrayRef, usize)> {
        match self {
            Self::Pieces(pieces) => {
                let arrays: Vec<&dyn Array> = pieces.iter().map(AsRef::as_ref).collect();
                let array = release(&interleave(&arrays, places)?)?;
                let bytes = own_bytes(&array);
                Ok((array, bytes))
            }
            Self::Whole(array) => Ok((array.clone(), rows * row_bytes(array.data_type()))),
            Self::Mixed(blocks) => {
                Ok((blocks[first / BLOCK_ROWS].slice(first % BLOCK_ROWS, rows), 0))
            }
        }
    }

    /// Bytes of a row, where all take equally many.
    pub(super) fn row_bytes(&self) -> Option<usize> {
        match self {
            Self::Pieces(_) => None,
            Self::Whole(array) => Some(row_bytes(array.data_type())),
            Self::Mixed(blocks) => blocks.first().map(|block| row_bytes(block.data_type())),
        }
    }
}

/// The numbers of `pieces` in this `order`, in memory of their own. None for other types, and where
/// any of them is null.
fn mixed(pieces: &[ArrayRef], order: &[u32]) -> Option<Vec<ArrayRef>> {
    let data_type = pieces.first()?.data_type();
    let width = data_type.primitive_width().filter(|width| matches!(width, 1 | 2 | 4 | 8 | 16))?;
    if pieces.iter().any(|piece| piece.null_count() > 0 || piece.data_type() != data_type) {
        return None;
    }
    let mut joined = Pooled::new(order.len() * width);
    let mut rest = joined.as_mut_slice();
    for piece in pieces {
        let (to, after) = rest.split_at_mut(piece.len() * width);
        to.copy_from_slice(native_bytes(piece.as_ref()));
        rest = after;
    }
    let blocks = order.chunks(BLOCK_ROWS).map(|rows| {
        let values = picked(joined.as_ref(), width, rows)?;
        let data = ArrayData::builder(data_type.clone()).len(rows.len()).add_buffer(values);
        Some(make_array(data.build().ok()?))
    });
    blocks.collect()
}

/// Picks the values with the numbers `rows` from `values`, each of so many bytes. Returns None for
/// a width that no number has.
fn picked(values: &[u8], width: usize, rows: &[u32]) -> Option<Buffer> {
    macro_rules! picked {
        ($native:ty) => {{
            let (values, _) = values.as_chunks();
            let number = |row: &u32| <$native>::from_ne_bytes(values[*row as usize]);
            Buffer::from_vec(rows.iter().map(number).collect())
        }};
    }
    Some(match width {
        1 => picked!(u8),
        2 => picked!(u16),
        4 => picked!(u32),
        8 => picked!(u64),
        16 => picked!(u128),
        _ => return None,
    })
}

/// Memory of a gathered array, but for the values of a dictionary, which it shares with the others.
fn own_bytes(array: &ArrayRef) -> usize {
    match array.as_any_dictionary_opt() {
        Some(dictionary) => dictionary.keys().get_array_memory_size(),
        None => array.get_array_memory_size(),
    }
}

/// Bytes of a narrow value; of a dictionary the key alone. Booleans, which take less, count as one.
fn row_bytes(data_type: &DataType) -> usize {
    match data_type {
        DataType::Dictionary(key, _) => row_bytes(key),
        other => other.primitive_width().unwrap_or(1),
    }
}

/// Returns true if values take a few bytes each, wherever they come from.
fn is_narrow(data_type: &DataType) -> bool {
    data_type.is_primitive() || matches!(data_type, DataType::Boolean | DataType::Dictionary(_, _))
}
