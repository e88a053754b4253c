//! The parts of DataFusion that the tensor modules use.

/// `datafusion::common`.
pub mod common {
    pub use hashbrown::HashMap;
}
