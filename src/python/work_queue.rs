//! The counter from which the workers of a rank take pieces, in a tensor that they share.

use std::sync::Arc;

use pyo3::prelude::*;

use super::error::to_py;
use crate::Error;
use crate::stream::Counter;

/// One number of a shared tensor, changed atomically by all processes that map it.
#[pyclass(name = "Counter", module = "tensorquery._core", frozen)]
pub struct PyCounter {
    counter: Counter,
}

#[pymethods]
impl PyCounter {
    /// The number at `index` of a contiguous one-dimensional int64 tensor on the CPU.
    #[new]
    fn new(tensor: Bound<'_, PyAny>, index: usize) -> PyResult<Self> {
        let bytes: usize = tensor.call_method0("element_size")?.extract()?;
        let numbers: usize = tensor.call_method0("numel")?.extract()?;
        let contiguous: bool = tensor.call_method0("is_contiguous")?.extract()?;
        if bytes != size_of::<i64>() || index >= numbers || !contiguous {
            return Err(to_py(Error::config(
                "the counter of dynamic assignment lies in no tensor of int64; please report it",
            )));
        }
        let start: usize = tensor.call_method0("data_ptr")?.extract()?;
        let memory = Arc::new(tensor.unbind());
        // SAFETY: the tensor has that many numbers of 8 bytes, and its memory is never moved while
        // it lives; `memory` keeps it alive, in streams that are still being cancelled too. Python
        // code only ever stores whole numbers to other indices.
        let counter = unsafe { Counter::at(start + index * bytes, memory) }.map_err(to_py)?;
        Ok(Self { counter })
    }

    /// Starts an iteration, and returns its number; workers of earlier ones take no more.
    fn begin(&self) -> u32 {
        self.counter.begin()
    }

    /// The iteration under way.
    #[getter]
    fn iteration(&self) -> u32 {
        self.counter.iteration()
    }
}

impl PyCounter {
    /// The counter, for a stream.
    pub fn counter(&self) -> Counter {
        self.counter.clone()
    }
}
