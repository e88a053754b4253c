//! Tables: pinned files with one schema, as DataFusion table providers.

mod agree;
mod bad_files;
mod csv_schema;
mod file_schema;
mod files;
mod infer;
mod json_array;
mod lakehouse;
mod long_lines;
mod merge;
mod sound_scan;
mod text_types;

pub use files::{FilesTable, outlined, statistics, unqualified};
pub use infer::{FilesSpec, ListedFiles, TableOptions, infer_table, list_table};
pub use lakehouse::{open_delta, open_lake};
pub use merge::merge_schemas;
pub use sound_scan::{SoundScan, of_table, push_filters};
