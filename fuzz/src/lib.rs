//! How the fuzz targets use their bytes, and which faults must never happen.
//!
//! - A panic of our own code is a bug, even where it is caught: [`judge_panics`] makes it a crash.
//! - A panic of another crate must come back as an error: one that leaves the engine is a crash.
//! - One allocation beyond [`MOST_BYTES_AT_ONCE`] is a crash: inputs are small, so that only a length that a file declares and
//!   nobody compared with the file asks for it.
//! - libFuzzer itself ends what takes too long (`-timeout`) or too much memory in all (`-rss_limit_mb`).

mod files;
mod limit;
mod panics;
mod sql;
mod states;
mod stores;

pub use files::read_file;
pub use limit::MOST_BYTES_AT_ONCE;
pub use panics::judge_panics;
pub use sql::{run_filter, run_sql};
pub use states::resume_checkpoint;
pub use stores::open_store;
