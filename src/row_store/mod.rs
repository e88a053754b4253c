//! The stage: a query's rows on local disk, for access at random.
//!
//! Writing and reading know nothing of shuffling: [`Stage::write`] executes a plan split by split
//! into Arrow IPC files and a manifest, [`Stage::open`] maps them into memory, [`Stage::gather`]
//! copies any rows out, and [`Stage::read`] streams a range of a permutation of them.
//! [`Stage::ensure`] shares one stage among processes.
//!
//! ```text
//! <root>/<fingerprint>/manifest.json     what is there: sizes, times, checksums, rows by batch; written last
//!                      schema.arrow      the query's schema, as an IPC stream without rows
//!                      rows-0.arrow      IPC files, one per writing thread; uncompressed, 64-byte aligned
//!                      verified          its time says when all files were found whole
//! <root>/<fingerprint>.lock              held while one process writes or removes
//! <root>/<fingerprint>.<process>-<n>.partial    while it is written; renamed when complete
//! ```

mod ensure;
mod forget;
mod gather;
mod manifest;
mod map;
mod output;
mod read;
mod sums;
mod weights;
mod write;

pub use read::Stage;
pub use weights::{Drawing, weight_column};
pub use write::{Progress, ProgressReport};
