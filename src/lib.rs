//! tensorquery: a SQL query over files becomes exact, sharded batches of tensors.
//!
//! The flow goes one way: SQL → [`session`] → physical plan → [`exec`] (classify and rewrite) →
//! [`split`]s → [`partition`] (balance and deal) → [`stream`] (read ahead, shuffle, cut) →
//! [`tensor`]s.

#[cfg(feature = "ballista")]
mod ballista;
pub mod catalog;
mod engine;
mod error;
pub mod exec;
mod fingerprint;
mod floats;
pub mod lake;
pub mod matrix;
mod packed;
mod panics;
pub mod partition;
mod pool;
mod prune;
#[cfg(feature = "python")]
mod python;
pub mod query;
pub mod runtime;
pub mod session;
pub mod split;
pub mod stage;
pub mod staging;
pub mod storage;
pub mod stream;
pub mod tensor;
mod ticket;
pub mod traffic;

pub use error::{Error, ErrorKind, Result, list_names, nearest, suggestion};
