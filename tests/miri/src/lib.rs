//! Unsafe code under Miri, which finds memory used after it was freed, read before it was written, aliased, or raced for.
//!
//! The modules themselves are those of the crate, with their unit tests; what they need of other modules stands here in
//! short. `make miri` runs it. Memory that goes to Python is reached through addresses there, so provenance is permissive.
//!
//! Not here, since Miri knows no such calls: mapped files (`storage/mapped.rs`, `row_store/map.rs`), locks of files, `fork`
//! (`runtime.rs`), and Python (`python/`); what `python/tensor.rs` does with memory is repeated by `lending.rs`.

// Parts of modules are used here.
#![allow(dead_code, unused_imports, missing_docs)]

mod error;
mod formats;
#[path = "../../../src/matrix/mod.rs"]
pub mod matrix;
#[path = "../../../src/pool.rs"]
mod pool;
#[path = "../../../src/sharding/mod.rs"]
pub mod sharding;
#[path = "../../../src/tensor/mod.rs"]
pub mod tensor;
#[path = "../../../src/varint.rs"]
mod varint;
#[path = "../../../src/stream/work_queue.rs"]
mod work_queue;

pub mod storage {
    mod options;
    #[path = "../../../../src/storage/secrets.rs"]
    mod secrets;

    #[cfg(test)]
    pub(crate) fn note_and_scrub(
        options: &std::collections::BTreeMap<String, String>,
        text: &str,
    ) -> String {
        secrets::note_secrets(options);
        secrets::scrub(text)
    }
}

pub use error::{Error, ErrorKind, Result, list_names, suggestion};

#[cfg(test)]
mod lending;
#[cfg(test)]
mod sharing;
