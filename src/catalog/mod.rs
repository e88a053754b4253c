//! Tables: pinned files with one schema, as DataFusion table providers.

mod files;
pub mod iceberg;
mod infer;
mod json_array;
mod lake;
mod merge;

pub use files::{FilesTable, unqualified};
pub use infer::{FilesSpec, TableOptions, open_files};
pub use lake::open_lake;
pub use merge::merge_schemas;
