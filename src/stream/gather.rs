//! Gathering rows at random from the arrays of one column.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::{concat, interleave};
use arrow::datatypes::DataType;

use crate::Result;
pub(super) use crate::staging::release;

/// One column of a window.
///
/// Two ways to gather, chosen by measuring 122 arrays of 8192 rows (ns per row, `interleave` against one
/// `concat` and `take`): int64 7 to 4, bool 15 to 2, dictionaries of 1000 strings 143 to 5; strings of 100
/// bytes 58 to 107, lists of 256 floats 505 to 1672.
pub(super) enum Column {
    /// As it came, gathered by `interleave`: no second copy of wide values, and no 32-bit offset that all of
    /// them together could overflow.
    Pieces(Vec<ArrayRef>),
    /// Made one array, from which rows are picked where they are written: narrow values, and dictionaries, since
    /// `interleave` would join those of all pieces again for every batch.
    Whole(ArrayRef),
}

impl Column {
    /// The column whose arrays are `pieces`.
    pub(super) fn new(pieces: Vec<ArrayRef>) -> Self {
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

    /// Whether rows are picked by their number in the window, and not gathered by piece.
    pub(super) fn is_whole(&self) -> bool {
        matches!(self, Self::Whole(_))
    }

    /// The rows at `places`, (piece, row of the piece), or the array to pick them from; and the bytes that they take.
    pub(super) fn gather(
        &self,
        places: &[(usize, usize)],
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
        }
    }

    /// Bytes of a row, where all take equally many.
    pub(super) fn row_bytes(&self) -> Option<usize> {
        match self {
            Self::Pieces(_) => None,
            Self::Whole(array) => Some(row_bytes(array.data_type())),
        }
    }
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

/// Whether values take a few bytes each, wherever they come from.
fn is_narrow(data_type: &DataType) -> bool {
    data_type.is_primitive() || matches!(data_type, DataType::Boolean | DataType::Dictionary(_, _))
}
