//! Tables: pinned files with one schema, as DataFusion table providers.

mod files;
pub mod iceberg;
mod infer;
mod json_array;
mod merge;

pub use files::FilesTable;
pub use infer::{FilesSpec, TableOptions, open_files};
pub use merge::merge_schemas;
