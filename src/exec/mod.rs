//! The plan rewrite and the split-scan leaf.

mod build_side;
mod lake_filter;
mod lake_orc;
mod lake_scan;
mod lake_table;
mod lineage;
mod memory_table;
mod open;
mod replay;
mod rewrite;
mod split_scan;

pub use build_side::BuildSideExec;
pub use lake_table::LakeProvider;
pub use lineage::RowFate;
pub use memory_table::MemoryTable;
pub use replay::numbered;
pub use rewrite::{DrivingScan, Rewritten, rewrite};
pub use split_scan::{ReadOnly, ScanSource, SplitScanExec};
