//! The runtime, the queues of a stream and what its threads share under ThreadSanitizer, which finds memory that two threads
//! reach without an order between them. `make races` runs it.
//!
//! The modules themselves are those of the crate; what they need of other modules stands here in short. Splits are batches in
//! memory. The tests are those of the crate over streams and cursors (`tests/streams.rs`), and what happens at one time in a
//! training process (`tests/at_once.rs`).

// Parts of modules are used here.
#![allow(dead_code, unused_imports, missing_docs)]

#[path = "../../miri/src/error.rs"]
mod error;
#[path = "../../miri/src/formats.rs"]
mod formats;
mod materialize;
#[path = "../../../src/matrix/mod.rs"]
pub mod matrix;
#[path = "../../../src/pool.rs"]
pub mod pool;
#[path = "../../../src/request_limiter.rs"]
pub mod request_limiter;
mod row_store;
#[path = "../../../src/runtime.rs"]
pub mod runtime;
pub mod session;
#[path = "../../../src/sharding/mod.rs"]
pub mod sharding;
#[path = "../../../src/stream/mod.rs"]
pub mod stream;
#[path = "../../../src/tensor/mod.rs"]
pub mod tensor;
#[path = "../../../src/varint.rs"]
mod varint;

pub use error::{Error, ErrorKind, Result, list_names, suggestion};
