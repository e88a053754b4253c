//! The session: registered tables over a DataFusion context, lazy queries, and their plans.

mod count;
mod ipc;
mod lake;
mod metadata_tables;
mod plan;
mod query;
mod recipe;
mod registry;
mod replay;

pub use count::{SplitCount, SplitCounter};
pub use lake::{LakeChange, LakeOrigin, LakeSource};
pub use plan::{EpochPlan, Plan, PlanOptions, ScanReport, SplitInfo};
pub use query::Query;
pub use recipe::Recipe;
pub use registry::{Session, SessionOptions, TableInfo};
pub use replay::{Numbering, Replay};
