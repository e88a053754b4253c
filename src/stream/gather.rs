//! Gathering rows at random from the arrays of one column.

use arrow::array::{Array, ArrayRef, AsArray, UInt32Array};
use arrow::compute::{concat, interleave, take};
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
    /// Made one array: narrow values, and dictionaries, since `interleave` would join those of all pieces
    /// again for every batch.
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

    /// Whether rows are gathered by piece and not by their number in the window.
    pub(super) fn is_in_pieces(&self) -> bool {
        matches!(self, Self::Pieces(_))
    }

    /// The rows with the numbers `rows`, which lie at `places`: (piece, row of the piece). Only columns in
    /// pieces ask for places.
    pub(super) fn gather(&self, rows: &UInt32Array, places: &[(usize, usize)]) -> Result<ArrayRef> {
        match self {
            Self::Pieces(pieces) => {
                let arrays: Vec<&dyn Array> = pieces.iter().map(AsRef::as_ref).collect();
                release(&interleave(&arrays, places)?)
            }
            Self::Whole(array) => Ok(take(array, rows, None)?),
        }
    }
}

/// Memory of a gathered array, but for the values of a dictionary, which it shares with the others.
pub(super) fn own_bytes(array: &ArrayRef) -> usize {
    match array.as_any_dictionary_opt() {
        Some(dictionary) => dictionary.keys().get_array_memory_size(),
        None => array.get_array_memory_size(),
    }
}

/// Whether values take a few bytes each, wherever they come from.
fn is_narrow(data_type: &DataType) -> bool {
    data_type.is_primitive() || matches!(data_type, DataType::Boolean | DataType::Dictionary(_, _))
}
