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
#[path = "../../../src/matrix/mod.rs"]
pub mod matrix;
#[path = "../../../src/packed.rs"]
mod packed;
#[path = "../../../src/partition/mod.rs"]
pub mod partition;
#[path = "../../../src/pool.rs"]
pub mod pool;
#[path = "../../../src/runtime.rs"]
pub mod runtime;
pub mod session;
#[path = "../../miri/src/split.rs"]
mod split;
mod stage;
mod staging;
#[path = "../../../src/stream/mod.rs"]
pub mod stream;
#[path = "../../../src/tensor/mod.rs"]
pub mod tensor;
#[path = "../../../src/traffic.rs"]
pub mod traffic;

pub use error::{Error, ErrorKind, Result, list_names, suggestion};
