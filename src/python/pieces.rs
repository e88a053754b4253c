//! Packs of sequences in the memory of NumPy's arrays.

use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::error::to_py;
use crate::Error;
use crate::tensor::Pieces;

/// Copies pieces of `source` side by side into `target`: of `width` bytes an element, from the
/// elements `from` on to the elements `to`.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "arguments that Python gives")]
#[pyo3(signature = (source, target, width, from_, to, lengths))]
pub fn copy_pieces(
    py: Python<'_>,
    source: PyBuffer<u8>,
    target: PyBuffer<u8>,
    width: usize,
    from_: PyBuffer<i64>,
    to: PyBuffer<i64>,
    lengths: PyBuffer<i64>,
) -> PyResult<()> {
    let pieces = Pieces::try_new(&to.to_vec(py)?, &lengths.to_vec(py)?).map_err(to_py)?;
    let from = from_.to_vec(py)?;
    // SAFETY: `written` and `read` check what they get, and both are held while the slices live.
    // They are two arrays that `ReadPacks` has just made or read, and that nobody else has yet.
    let (source, target) = unsafe { (read(&source)?, written(&target)?) };
    py.detach(|| pieces.copy(source, target, width, &from)).map_err(to_py)
}

/// Lays pieces side by side in packs: pack `i` has the pieces from number `ends[i]` on to `ends[i +
/// 1]`. Numbers the elements of each piece from zero in `positions`, writes the piece's number to
/// `documents`, and 1 to `loss` for all elements of a piece but its first.
///
/// `begins` gets the place of each piece, and `bounds` those of the sequences, with the end of the
/// last one. Returns how many bounds there are, and the elements of the longest sequence.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "arguments that Python gives")]
#[expect(clippy::too_many_arguments, reason = "arrays that one call fills")]
pub fn mark_pieces(
    py: Python<'_>,
    positions: PyBuffer<i64>,
    documents: PyBuffer<i64>,
    loss: PyBuffer<u8>,
    begins: PyBuffer<i64>,
    bounds: PyBuffer<i32>,
    ends: PyBuffer<i64>,
    lengths: PyBuffer<i64>,
) -> PyResult<(usize, i32)> {
    let (ends, lengths) = (ends.to_vec(py)?, lengths.to_vec(py)?);
    // SAFETY: as above.
    let (positions, documents, loss, begins, bounds) = unsafe {
        (
            written(&positions)?,
            written(&documents)?,
            written(&loss)?,
            written(&begins)?,
            written(&bounds)?,
        )
    };
    let marked = py.detach(|| {
        let length = positions.len() / ends.len().saturating_sub(1).max(1);
        let (pieces, found) = Pieces::side_by_side(&ends, &lengths, length)?;
        pieces.mark(positions, documents, loss)?;
        let room = bounds.get_mut(..found.len()).filter(|_| begins.len() == lengths.len());
        let room = room.ok_or_else(|| Error::config("the arrays of pieces are too small"))?;
        room.copy_from_slice(&found);
        begins.iter_mut().zip(pieces.places()).for_each(|(begin, place)| *begin = place);
        let longest = found.windows(2).map(|two| two[1] - two[0]).max();
        Ok((found.len(), longest.unwrap_or(0)))
    });
    marked.map_err(to_py)
}

/// The elements of an array.
///
/// # Safety
///
/// Nobody writes to them while the slice lives.
unsafe fn read<T: Element>(buffer: &PyBuffer<T>) -> PyResult<&[T]> {
    if !buffer.is_c_contiguous() {
        return Err(PyValueError::new_err("the array must be contiguous"));
    }
    if buffer.item_count() == 0 {
        return Ok(&[]);
    }
    // SAFETY: a contiguous buffer of this type has so many of them at an address that is not null.
    Ok(unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast(), buffer.item_count()) })
}

/// The elements of an array that is written to.
///
/// # Safety
///
/// Nobody else uses them while the slice lives.
#[expect(clippy::mut_from_ref, reason = "the memory is the array's, and not the buffer's")]
pub(super) unsafe fn written<T: Element>(buffer: &PyBuffer<T>) -> PyResult<&mut [T]> {
    if buffer.readonly() || !buffer.is_c_contiguous() {
        return Err(PyValueError::new_err("the array must be contiguous and writable"));
    }
    if buffer.item_count() == 0 {
        return Ok(&mut []);
    }
    // SAFETY: as in `read`.
    Ok(unsafe { std::slice::from_raw_parts_mut(buffer.buf_ptr().cast(), buffer.item_count()) })
}
