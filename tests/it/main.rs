//! The one Rust integration binary: a module per feature.

mod error;
mod partition;
mod storage;
mod stream;
mod tensor;
