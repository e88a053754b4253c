//! Delta tables: the log, the files of a version, the mapping of columns, statistics, and deleted
//! rows. Specification: <https://github.com/delta-io/delta/blob/master/PROTOCOL.md>.

mod actions;
mod appended;
mod changes;
mod checkpoint;
mod files;
mod history;
mod load;
mod partition_values;
mod place;
mod protocol;
mod rename;
mod replay;
mod schema;
mod spec;
mod stats;
mod table;
mod texts;
mod values;
mod vectors;

pub use actions::{CommitInfo, VectorPlace};
pub use history::{Commit, commits};
pub use load::load;
pub use place::TablePlace;
pub use spec::{DataFile, DeltaSpec};
pub use table::DeltaTable;
