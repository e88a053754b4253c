//! The plan rewrite and the split-scan leaf.

mod build_side;
mod foreign_function;
mod guards;
mod in_order;
mod lake_filter;
mod lake_orc;
mod lake_scan;
mod lake_table;
mod limits;
mod lineage;
mod low_memory;
mod memory_table;
mod node_rule;
mod open;
mod pass_on;
mod plan_form;
mod replay;
mod rewrite;
mod sample;
mod split_scan;

pub use build_side::BuildSideExec;
pub use foreign_function::{ForeignUdf, functions_of, two_functions};
pub use guards::{filters_near_scans, padded_sides, projections_without_semi_joins};
pub use in_order::in_order;
pub use lake_table::LakeProvider;
pub use limits::{first_rows_of_limits, orders_below_limits};
pub use lineage::RowFate;
pub use low_memory::{SharedPool, with_spilling_joins};
pub use memory_table::MemoryTable;
pub use pass_on::{PassOnExec, Reason};
pub use plan_form::{NAMED_FILES, write_plan};
pub use replay::numbered;
pub use rewrite::{DrivingScan, Rewritten, file_scan, rewrite};
pub use sample::{Sample, SampleExec, SampledTable};
pub use split_scan::{ReadOnly, ScanSource, SplitScanExec};
