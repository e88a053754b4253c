//! The session: registered tables over a DataFusion context, lazy queries, and their plans.

mod analyze;
mod count;
mod engine;
mod epoch_plan;
mod files;
mod functions;
mod ipc;
mod lake;
mod memo;
mod metadata_tables;
mod moment;
mod part;
mod plan;
mod plan_cache;
mod query;
mod recipe;
mod registered;
mod registry;
mod replay;
mod samples;
mod staged;
mod verify;

pub use analyze::OperatorRun;
pub use count::{SplitCount, SplitCounter};
pub use engine::StageEngine;
pub use epoch_plan::EpochPlan;
pub use functions::{FunctionInfo, decode_schema, encode_schema};
pub use lake::{LakeChange, LakeOrigin, LakeSource};
pub use plan::{Plan, PlanOptions, ScanReport, SplitInfo, Totals};
pub use query::Query;
pub use recipe::Recipe;
pub use registered::TableInfo;
pub use registry::{Session, SessionOptions};
pub use replay::{Numbering, Replay};
pub use staged::{Building, StageMode, StagedPart};
pub use verify::{PartVerdict, SplitVerdict, SplitVerifier};
