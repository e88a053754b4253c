//! The Python module `tensorquery._core`: the only code that knows pyo3. I/O and decoding release the
//! GIL here and nowhere else.

mod arrow;
mod count;
mod error;
mod feed;
mod plan;
mod session;
mod shards;
mod stage;
mod stream;
mod tensor;
mod wait;

use pyo3::prelude::*;

/// The compiled half of the package; `tensorquery` wraps it.
#[pymodule(name = "_core")]
fn core_module(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<arrow::ArrowStream>()?;
    module.add_class::<session::PySession>()?;
    module.add_class::<session::PyQuery>()?;
    module.add_class::<plan::PyPlan>()?;
    module.add_class::<shards::PyShards>()?;
    module.add_class::<feed::PyCounter>()?;
    module.add_class::<count::PySplitCounter>()?;
    module.add_class::<stage::PyStage>()?;
    module.add_class::<stream::BatchStream>()?;
    module.add_function(wrap_pyfunction!(session::check_predicate, module)?)?;
    module.add_function(wrap_pyfunction!(session::quote_identifier, module)?)?;
    tensor::register(module)
}
