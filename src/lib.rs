//! tensorquery: a SQL query over files becomes exact, sharded batches of tensors.
//!
//! The flow goes one way: SQL → [`session`] → physical plan → [`exec`] (classify and rewrite) →
//! splits of [`formats`] → [`sharding`] (balance and deal) → [`stream`] (read ahead, shuffle, cut) →
//! [`tensor`]s.

#[cfg(feature = "ballista")]
mod ballista;
pub mod catalog;
mod engine;
mod error;
pub mod exec;
mod fingerprint;
mod floats;
pub mod formats;
pub mod iceberg;
pub mod materialize;
pub mod matrix;
mod panics;
mod pool;
mod prune;
#[cfg(feature = "python")]
mod python;
pub mod query;
pub mod request_limiter;
pub mod row_store;
pub mod runtime;
pub mod session;
pub mod sharding;
pub mod storage;
pub mod stream;
pub mod tensor;
mod varint;

pub use error::{Error, ErrorKind, Result, list_names, nearest, suggestion};
