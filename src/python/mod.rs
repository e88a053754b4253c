//! The Python module `tensorquery._core`: the only code that knows pyo3. I/O and decoding release
//! the GIL here and nowhere else.

mod arrow;
mod bounds;
mod calls;
mod count;
mod delivery;
mod error;
mod exits;
mod filesystem;
mod import;
mod lease;
mod logs;
mod materialize;
mod pieces;
mod plan;
mod query;
mod row_store;
mod series;
mod session;
mod shards;
mod stream;
mod tensor;
mod udf;
mod verify;
mod wait;
mod work_queue;

use pyo3::prelude::*;

/// The compiled half of the package; `tensorquery` wraps it.
#[pymodule(name = "_core")]
fn core_module(module: &Bound<'_, PyModule>) -> PyResult<()> {
    logs::listen();
    crate::panics::spare_backtraces();
    crate::storage::set_foreign_opener(std::sync::Arc::new(filesystem::PyOpener));
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("FINGERPRINT_VERSION", crate::fingerprint::VERSION)?;
    module.add_class::<arrow::ArrowStream>()?;
    module.add_class::<session::PySession>()?;
    module.add_class::<query::PyDefinition>()?;
    module.add_class::<query::PyQuery>()?;
    module.add_class::<plan::PyPlan>()?;
    module.add_class::<shards::PyRankShare>()?;
    module.add_class::<shards::PyShards>()?;
    module.add_class::<work_queue::PyCounter>()?;
    module.add_class::<lease::SegmentLease>()?;
    module.add_class::<count::PySplitCounter>()?;
    module.add_class::<verify::PySplitVerifier>()?;
    module.add_class::<row_store::PyStage>()?;
    module.add_class::<series::PyWindows>()?;
    module.add_class::<stream::BatchStream>()?;
    module.add_class::<delivery::Delivery>()?;
    module.add_function(wrap_pyfunction!(materialize::stage_query, module)?)?;
    module.add_function(wrap_pyfunction!(materialize::stages_of, module)?)?;
    module.add_function(wrap_pyfunction!(materialize::listed, module)?)?;
    module.add_function(wrap_pyfunction!(materialize::cleared, module)?)?;
    module.add_function(wrap_pyfunction!(pieces::copy_pieces, module)?)?;
    module.add_function(wrap_pyfunction!(pieces::mark_pieces, module)?)?;
    module.add_function(wrap_pyfunction!(session::quote_identifier, module)?)?;
    module.add_function(wrap_pyfunction!(udf::function_types, module)?)?;
    module.add_function(wrap_pyfunction!(calls::end_calls, module)?)?;
    module.add_function(wrap_pyfunction!(logs::set_log_level, module)?)?;
    module.add_function(wrap_pyfunction!(bounds::bounds, module)?)?;
    module.add_function(wrap_pyfunction!(bounds::lower_bound, module)?)?;
    tensor::register(module)
}
