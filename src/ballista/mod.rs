//! Stages that a Ballista cluster computes, with the feature `ballista`.
//!
//! A part of a query that would run in this process:
//! ```text
//! Aggregate
//!   Join
//!     TableScan: lineitem        a table of pinned files, which only this process knows
//!     TableScan: orders
//! ```
//! The plan that the scheduler gets. Executors read the files by their URLs, and one task writes
//! the stage's file:
//! ```text
//! CopyTo: s3://…/<key>/<build>/part-00000.parquet
//!   Projection: the stage's columns
//!     Aggregate
//!       Join
//!         TableScan: lineitem    DataFusion's listing table over the same files
//!         TableScan: orders
//! ```
//! Nothing is sent that would mean something else there: [`judge`] says which operators run on a
//! cluster as they run here, [`scans`] which tables, and [`wire`] decodes its own encoding, and
//! compares. Stock executors suffice: they know `s3://` and folders, and take credentials from
//! their environment; none is sent.

mod floats;
mod job;
mod judge;
mod lake;
mod scans;
mod wire;
mod written;

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::common::config::TableParquetOptions;
use datafusion::datasource::file_format::format_as_file_type;
use datafusion::datasource::file_format::parquet::ParquetFormatFactory;
use datafusion::logical_expr::dml::CopyTo;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, cast};
use object_store::path::Path;

use crate::Result;
use crate::materialize::{StageFile, StagePlace};

/// The name of the stage's file. One: a file appears in one step, and a task that is run again
/// writes the same one again.
const FILE: &str = "part-00000.parquet";

/// Rows of a row group, which is the smallest split of the stage; a file may have 32,767 of them.
const GROUP_ROWS: usize = 131_072;

/// A scheduler and how it is used.
#[derive(Clone, Copy, Debug)]
pub struct Cluster<'a> {
    /// Its host and port.
    pub scheduler: &'a str,
    /// Into how many partitions joins and aggregates divide their rows: tasks that can run at once.
    pub partitions: usize,
}

/// A part of a query that a cluster computes, and the place to which it writes the rows.
#[derive(Clone, Copy, Debug)]
pub struct Order<'a> {
    /// The part of a query.
    pub part: &'a LogicalPlan,
    /// The columns of its stage.
    pub schema: &'a SchemaRef,
    /// The place of stages.
    pub place: &'a StagePlace,
    /// The folder of this build in the place's store.
    pub folder: &'a Path,
}

/// Has a cluster compute and write a part of a query: the files, and a digest of their content.
///
/// # Errors
/// `Query` naming the operation that cannot run on a cluster; `Data` where computing it fails
/// there, or a file has changed; `Storage` where the scheduler cannot be reached, or its files are
/// not in the stage's store.
pub async fn stage(cluster: Cluster<'_>, order: Order<'_>) -> Result<(Vec<StageFile>, String)> {
    let part = floats::spelled_out(order.part)?;
    let order = Order { part: &part, ..order };
    judge::check(order.part)?;
    let tables = scans::tables_of(order.part)?;
    for table in &tables {
        lake::check(table).await?;
    }
    let file = order.folder.clone().join(FILE);
    let output = scans::url_of(&order.place.describe(&file))?;
    let plan = scans::over_listings(order.part, cluster.partitions)?;
    let plan = copy_to(named(plan, order.schema)?, output.to_string());
    let message = wire::encode(&plan)?;
    job::run(cluster, order.folder.filename().unwrap_or_default(), message).await?;
    // The rows are those of the pinned files, if these are still there.
    scans::check_pins(&tables).await?;
    written::look(order.place, &file, FILE, order.schema).await
}

/// The plan with the names and types of a stage's columns.
fn named(plan: LogicalPlan, stage: &SchemaRef) -> Result<LogicalPlan> {
    let columns = plan.schema().columns().into_iter().zip(plan.schema().fields());
    let columns = columns.zip(stage.fields()).map(|((column, field), stored)| {
        let column = match field.data_type() == stored.data_type() {
            true => Expr::Column(column),
            false => cast(Expr::Column(column), stored.data_type().clone()),
        };
        column.alias(stored.name())
    });
    let columns: Vec<Expr> = columns.collect();
    Ok(LogicalPlanBuilder::from(plan).project(columns)?.build()?)
}

/// The plan that writes another one's rows into one Parquet file, in their order.
fn copy_to(plan: LogicalPlan, output: String) -> LogicalPlan {
    let mut options = TableParquetOptions::default();
    options.global.max_row_group_size = GROUP_ROWS;
    options.global.compression = Some("zstd(1)".to_owned());
    // Types that Parquet lacks are read back from the Arrow schema in the footer.
    options.global.skip_arrow_metadata = false;
    let format = Arc::new(ParquetFormatFactory::new_with_options(options));
    let (input, format) = (Arc::new(plan), format_as_file_type(format));
    LogicalPlan::Copy(CopyTo::new(input, output, Vec::new(), format, Default::default()))
}
