//! Packs of sequences in the memory of NumPy's arrays.

use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::error::to_py;
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

/// Numbers the elements of each piece from zero in `positions`, writes the piece's number to
/// `documents`, and 1 to `loss` for all elements of a piece but its first.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "arguments that Python gives")]
pub fn mark_pieces(
    py: Python<'_>,
    positions: PyBuffer<i64>,
    documents: PyBuffer<i64>,
    loss: PyBuffer<u8>,
    to: PyBuffer<i64>,
    lengths: PyBuffer<i64>,
) -> PyResult<()> {
    let pieces = Pieces::try_new(&to.to_vec(py)?, &lengths.to_vec(py)?).map_err(to_py)?;
    // SAFETY: as above.
    let (positions, documents, loss) =
        unsafe { (written(&positions)?, written(&documents)?, written(&loss)?) };
    py.detach(|| pieces.mark(positions, documents, loss)).map_err(to_py)
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
