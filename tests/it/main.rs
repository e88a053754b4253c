//! The one Rust integration binary: a module per feature.

mod catalog;
mod catalogs;
mod count;
mod cursors;
mod epochs;
mod error;
mod even;
mod functions;
mod partition;
mod permutation;
mod pipeline;
mod query;
mod resume;
mod rewrite;
mod sample;
mod splits;
mod stage;
mod staging;
mod storage;
mod stream;
mod support;
mod tensor;
