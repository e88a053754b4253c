//! The one Rust integration binary: a module per feature.

mod catalog;
mod catalogs;
mod count;
mod cursors;
mod epochs;
mod error;
mod even;
mod functions;
mod materialize;
mod permutation;
mod pipeline;
mod query;
mod resume;
mod rewrite;
mod row_store;
mod sample;
mod sharding;
mod splits;
mod storage;
mod stream;
mod support;
mod tensor;
