//! What the tensor modules take from DataFusion.

/// `datafusion::common`.
pub mod common {
    pub use hashbrown::HashMap;
}
