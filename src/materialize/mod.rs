//! Stages of parts of a query: rows that were computed once, as Arrow IPC files in a folder or
//! below a URL. A cluster writes one Parquet file instead.
//!
//! Here is who builds a stage and who waits, how it becomes visible in one step, and when it goes.
//! The session decides which parts are staged, and under which key.
//!
//! ```text
//! <place>/<key>/manifest.json            what is there: files, rows, digest; written last, only once
//!               <build>/part-00000.arrow rows, in order
//!               lease.json               who builds, and how far it is
//!               used                     written when the stage is opened, and below URLs as long as it is: its time
//!                                        says the last use
//! <place>/<key>.lock                     local folders: held by the process that builds
//! <place>/<key>.use                      local folders: held, shared, by processes that read
//! ```

mod build_lease;
mod condition;
mod ensure;
#[cfg(test)]
mod faults;
mod in_use;
mod list;
mod lock;
mod manifest;
mod place;
mod progress;
mod room;
mod stored_schema;
mod trim;
mod views;
mod write;

pub use ensure::{Attempt, Made, OpenStage, Wanted, ensure};
pub use in_use::InUse;
pub use list::{StageInfo, Swept, clear_stages, find_stage, list_stages};
pub use manifest::{Manifest, StageFile};
pub use place::StagePlace;
pub use progress::{StageProgress, StageState};

pub(crate) use lock::Lock;
pub(crate) use stored_schema::{StoredSchema, rows_of};
pub(crate) use views::{has_views, release};
