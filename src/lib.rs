//! tensorquery: a SQL query over files becomes exact, sharded batches of tensors.

pub mod catalog;
mod error;
pub mod exec;
pub mod partition;
pub mod query;
pub mod session;
pub mod split;
pub mod storage;
pub mod stream;
pub mod tensor;

pub use error::{Error, ErrorKind, Result, list_names, nearest, suggestion};
