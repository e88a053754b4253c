//! The Python bindings: the only code that knows pyo3.

pub mod error;
pub mod tensor;

use pyo3::prelude::*;

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    tensor::register(module)
}
