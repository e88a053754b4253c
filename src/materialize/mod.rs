//! Stages of parts of a query: rows that were computed once, as Arrow IPC files in a folder or
//! below a URL. A cluster writes one Parquet file instead.
//!
//! Here is who builds a stage and who waits, how it becomes visible in one step, and when it goes.
//! The session decides which parts are staged, and under which key.
//!
//! ```text
//! <room> = <place>/queries
//! <room>/<key>/manifest.json             what is there: files, rows, digest; written last, only once
//!              <build>/part-00000.arrow  rows, in order, with checksums
//!                      suspect           written by a reader that found them damaged
//!              verified                  its time says when all files were found whole
//!              lease.json                who builds, and how far it is; in a folder: progress.json
//!              used                      written when the stage is opened, and below URLs as long as it is: its time
//!                                        says the last use
//! <room>/<key>.lock                      local folders: held by the process that builds
//! <room>/<key>.use                       local folders: held, shared, by processes that read
//! ```
//!
//! The user's place may hold anything else. Nothing is removed but files under these names, of a key
//! that has our manifest or the note of a builder; links are not followed.

mod build_lease;
mod condition;
mod ensure;
#[cfg(test)]
mod faults;
mod in_use;
mod list;
mod lock;
mod manifest;
mod names;
mod place;
mod progress;
mod remove;
mod room;
mod seal;
mod stored_schema;
mod trim;
mod verify;
mod views;
mod write;

pub use ensure::{Attempt, Made, OpenStage, Wanted, ensure, withdraw};
pub use in_use::InUse;
pub use list::{StageInfo, Swept, clear_stages, find_stage, list_stages};
pub use manifest::{Manifest, StageFile};
pub use place::StagePlace;
pub use progress::{StageProgress, StageState};

pub(crate) use lock::Lock;
pub(crate) use seal::{UNSEALED, is_sealed, seal};
pub(crate) use stored_schema::{StoredSchema, rows_of};
pub(crate) use verify::{VERIFIED, latest_write, note_verified, was_touched};
pub(crate) use views::{has_views, release};
