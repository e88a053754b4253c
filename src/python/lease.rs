//! Memory that another process fills, lent to the tensors over it.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU8, Ordering};

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::tensor::fill_view;
use crate::runtime::Forks;

/// The value of a free segment's byte: nobody uses it, and its owner may fill it again.
const FREE: u8 = 0;

/// Another process may see it: its owner must forget it.
const ABANDONED: u8 = 2;

/// The first bytes of a segment of shared memory. Each tensor over it keeps it alive; with the last
/// one the segment's byte says that its owner may fill it anew, or, where this process has forked
/// meanwhile, that it may not: the child still sees the old content.
#[pyclass(module = "tensorquery._core", name = "Lease", frozen)]
pub struct SegmentLease {
    memory: PyBuffer<u8>,
    len: usize,
    states: PyBuffer<u8>,
    slot: usize,
    forks: Forks,
}

#[pymethods]
impl SegmentLease {
    #[new]
    fn new(memory: PyBuffer<u8>, len: usize, states: PyBuffer<u8>, slot: usize) -> PyResult<Self> {
        let writable = !memory.readonly() && !states.readonly();
        let fits = len <= memory.len_bytes() && slot < states.len_bytes();
        let flat = memory.is_c_contiguous() && states.is_c_contiguous();
        if !(writable && fits && flat) {
            return Err(PyValueError::new_err(format!(
                "a lease of {len} bytes of {} and state {slot} of {} needs writable, contiguous memory that is large \
                 enough",
                memory.len_bytes(),
                states.len_bytes()
            )));
        }
        Ok(Self { memory, len, states, slot, forks: Forks::now() })
    }

    fn __len__(&self) -> usize {
        self.len
    }

    /// # Safety
    ///
    /// Called by Python only, with a view to be filled.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut pyo3::ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let lease = slf.get();
        let bytes = lease.memory.buf_ptr();
        // SAFETY: the first `len` bytes of the buffer are writable and live as long as `slf`, which
        // holds the buffer.
        unsafe { fill_view(&slf, view, bytes, lease.len, flags) }
    }
}

impl Drop for SegmentLease {
    fn drop(&mut self) {
        let state = match self.forks.since() {
            Some(0) => FREE,
            Some(_) => ABANDONED,
            // A child that drops what it inherited: the memory is its parent's to give back.
            None => return,
        };
        // SAFETY: `slot` is a byte of the buffer, which is held until after this; that other
        // processes read and write the same byte is what an atomic is for.
        let byte = unsafe { AtomicU8::from_ptr(self.states.buf_ptr().cast::<u8>().add(self.slot)) };
        byte.store(state, Ordering::Release);
    }
}
