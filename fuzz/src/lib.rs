//! How the fuzz targets use their bytes, and which faults must never happen.
//!
//! - A panic of our own code is a bug, even where it is caught: [`begin`] makes it a crash.
//! - A panic of another crate must come back as an error: one that leaves the engine is a crash.
//! - One allocation beyond [`MOST_BYTES_AT_ONCE`] is a crash: inputs are small, so that only a length that a file declares and
//!   nobody compared with the file asks for it.
//! - A process has 3 GiB of addresses, so that more in many pieces is a crash too.
//! - libFuzzer itself ends what takes too long (`-timeout`) or too much memory in all (`-rss_limit_mb`).

mod avro;
mod choices;
mod delta;
mod files;
mod folder;
mod iceberg;
mod ipc;
mod json;
mod limit;
mod orc;
mod panics;
mod protobuf;
mod rest;
mod roaring;
mod sql;
mod states;
mod stores;

pub use delta::read_delta_log;
pub use files::read_file;
pub use iceberg::{read_iceberg_manifests, read_iceberg_metadata, read_vector};
pub use ipc::ipc_file;
pub use limit::MOST_BYTES_AT_ONCE;
pub use orc::orc_file;
pub use rest::ask_rest_catalog;
pub use sql::{run_filter, run_sql};
pub use states::resume_checkpoint;
pub use stores::open_store;

/// Prepares a process: panics of our own are crashes, and addresses end.
pub fn begin() {
    limit::limit_addresses();
    panics::judge_panics();
}
