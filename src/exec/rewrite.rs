//! The plan rewrite: classifies a physical plan and replaces its driving scans.
//!
//! Before, for `SELECT … FROM flights LEFT JOIN planes … WHERE …`:
//! ```text
//! ProjectionExec
//!   HashJoinExec: mode=CollectLeft, join_type=Right
//!     DataSourceExec: file_groups={1 group: [planes]}
//!     FilterExec
//!       DataSourceExec: file_groups={1 group: [01, 02, …]}
//! ```
//! After; every operator above the leaf has one partition per split:
//! ```text
//! ProjectionExec
//!   HashJoinExec: mode=CollectLeft, join_type=Right
//!     BuildSideExec: collected once
//!       DataSourceExec: file_groups={1 group: [planes]}
//!     FilterExec
//!       SplitScanExec: splits=96
//! ```
//! The check is an allowlist that fails closed: an operator not named here is not row-local.

use std::sync::Arc;

use datafusion::common::JoinType;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::datasource::physical_plan::{FileScanConfig, FileScanConfigBuilder};
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{
    CrossJoinExec, HashJoinExec, NestedLoopJoinExec, PartitionMode,
};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::unnest::UnnestExec;

use super::build_side::BuildSideExec;
use super::lake_scan::LakeScan;
use super::sample::SampleExec;
use super::split_scan::{ScanSource, SplitScanExec};
use crate::catalog::SoundScan;
use crate::formats::orc::OrcSource;
use crate::formats::{FileRef, ScanRequest, Split, columns_of};
use crate::{Error, ErrorKind, Result};

/// One leaf that is scanned split by split: the only one, or one per UNION ALL input.
#[derive(Clone, Debug)]
pub struct DrivingScan {
    /// Where its rows come from.
    pub source: ScanSource,
    /// For files: indices into the table's files, in plan order, hive pruning done.
    pub files: Vec<usize>,
    /// Columns and predicate that the driving scan reads.
    pub request: ScanRequest,
}

/// A plan that was found row-local.
#[derive(Debug)]
pub struct Rewritten {
    pub(super) plan: Arc<dyn ExecutionPlan>,
    /// The driving scans, in tree order; their splits concatenated are the plan's partitions.
    pub scans: Vec<DrivingScan>,
}

impl Rewritten {
    /// The plan, whose driving scans are split scans without splits.
    pub fn plan(&self) -> &Arc<dyn ExecutionPlan> {
        &self.plan
    }

    /// The executable plan over these splits, one slice of splits per driving scan.
    ///
    /// # Errors
    /// An internal error where DataFusion refuses the new leaves.
    pub fn with_splits(&self, splits: &[Arc<[Split]>]) -> Result<Arc<dyn ExecutionPlan>> {
        let mut next = 0;
        let plan = Arc::clone(&self.plan).transform_down(|node| {
            if node.as_any().is::<BuildSideExec>() {
                // The leaves below are read whole.
                return Ok(Transformed::new(node, false, TreeNodeRecursion::Jump));
            }
            if !node.as_any().is::<SplitScanExec>() {
                return Ok(Transformed::no(node));
            }
            let source = self.scans[next].source.clone();
            let leaf = SplitScanExec::new(source, Arc::clone(&splits[next]), node.schema());
            next += 1;
            Ok(Transformed::yes(Arc::new(leaf) as Arc<dyn ExecutionPlan>))
        });
        Ok(plan.data()?)
    }
}

/// Classifies an optimised single-partition plan and puts split-scan leaves in place of its driving
/// scans.
///
/// # Errors
/// `NotShardable`, naming the operator that is not row-local and a way out.
pub fn rewrite(plan: Arc<dyn ExecutionPlan>) -> Result<Rewritten> {
    let mut scans = Vec::new();
    let plan = visit(plan, &mut scans)?;
    Ok(Rewritten { plan, scans })
}

fn visit(
    plan: Arc<dyn ExecutionPlan>,
    scans: &mut Vec<DrivingScan>,
) -> Result<Arc<dyn ExecutionPlan>> {
    if plan.fetch().is_some() {
        return Err(not_row_local("LIMIT"));
    }
    let node = plan.as_any();
    if let Some(source) = node.downcast_ref::<DataSourceExec>() {
        let scan = driving_scan(source)?;
        let leaf = SplitScanExec::new(scan.source.clone(), Arc::from([]), plan.schema());
        scans.push(scan);
        return Ok(Arc::new(leaf));
    }
    if let Some(table) = node.downcast_ref::<SplitScanExec>() {
        let source = table.source().clone();
        scans.push(DrivingScan { source, files: Vec::new(), request: ScanRequest::default() });
        return Ok(plan);
    }
    if node.is::<EmptyExec>() {
        scans.push(DrivingScan {
            source: ScanSource::Empty,
            files: Vec::new(),
            request: ScanRequest::default(),
        });
        return Ok(Arc::new(SplitScanExec::new(ScanSource::Empty, Arc::from([]), plan.schema())));
    }
    if is_row_local_operator(&plan) {
        let first = scans.len();
        let children = plan
            .children()
            .into_iter()
            .map(|child| visit(Arc::clone(child), scans))
            .collect::<Result<_>>()?;
        if node.is::<SampleExec>() {
            scans[first..].iter_mut().for_each(|scan| scan.request.numbered = true);
        }
        return Ok(plan.with_new_children(children)?);
    }
    if let Some(join) = node.downcast_ref::<HashJoinExec>() {
        if join.null_aware {
            return Err(Error::new(
                ErrorKind::NotShardable,
                "NOT IN (subquery) is not row-local: one NULL in the subquery changes every row; \
                 write NOT EXISTS (SELECT 1 FROM … WHERE …) instead",
            ));
        }
        if join.partition_mode() != &PartitionMode::CollectLeft {
            return Err(not_row_local("HashJoinExec that repartitions both sides"));
        }
        if drives_from_left(join.join_type(), join.left(), join.right()) {
            return visit(join.swap_inputs(PartitionMode::CollectLeft)?, scans);
        }
        return visit_join(&plan, join.join_type(), scans);
    }
    if let Some(join) = node.downcast_ref::<NestedLoopJoinExec>() {
        if drives_from_left(join.join_type(), join.left(), join.right()) {
            return visit(join.swap_inputs()?, scans);
        }
        return visit_join(&plan, join.join_type(), scans);
    }
    if let Some(join) = node.downcast_ref::<CrossJoinExec>() {
        if drives_from_left(&JoinType::Inner, join.left(), join.right()) {
            return visit(join.swap_inputs()?, scans);
        }
        return visit_join(&plan, &JoinType::Inner, scans);
    }
    Err(not_row_local(plan.name()))
}

/// Returns true if the build (left) side must or should drive instead: the join type emits
/// unmatched left rows, or it is an inner join and only the left side can drive, or both can and
/// left is larger.
fn drives_from_left(
    join_type: &JoinType,
    left: &Arc<dyn ExecutionPlan>,
    right: &Arc<dyn ExecutionPlan>,
) -> bool {
    match join_type {
        JoinType::Left | JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => true,
        JoinType::Inner => {
            can_drive(left) && (!can_drive(right) || largest_leaf(left) > largest_leaf(right))
        }
        _ => false,
    }
}

/// Returns true if a subtree is row-local above one scan: the shape of [`visit`], without
/// rewriting.
fn can_drive(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let node = plan.as_any();
    let join = |join_type: &JoinType, left, right| match join_type {
        JoinType::Inner => can_drive(left) || can_drive(right),
        JoinType::Left | JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => {
            can_drive(left)
        }
        JoinType::Full => false,
        _ => can_drive(right),
    };
    if plan.fetch().is_some() {
        false
    } else if node.is::<DataSourceExec>() || node.is::<SplitScanExec>() || node.is::<EmptyExec>() {
        true
    } else if is_row_local_operator(plan) {
        plan.children().into_iter().all(can_drive)
    } else if let Some(hash) = node.downcast_ref::<HashJoinExec>() {
        !hash.null_aware && join(hash.join_type(), hash.left(), hash.right())
    } else if let Some(nested) = node.downcast_ref::<NestedLoopJoinExec>() {
        join(nested.join_type(), nested.left(), nested.right())
    } else if let Some(cross) = node.downcast_ref::<CrossJoinExec>() {
        join(&JoinType::Inner, cross.left(), cross.right())
    } else {
        false
    }
}

/// Operators that map each input row to output rows without looking at any other.
fn is_row_local_operator(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let node = plan.as_any();
    node.is::<FilterExec>()
        || node.is::<ProjectionExec>()
        || node.is::<CooperativeExec>()
        || node.is::<UnnestExec>()
        || node.is::<UnionExec>()
        || node.is::<SampleExec>()
}

/// Stored bytes of the largest table below a node.
fn largest_leaf(plan: &Arc<dyn ExecutionPlan>) -> u64 {
    if let Some(source) = plan.as_any().downcast_ref::<DataSourceExec>()
        && let Some(config) = file_scan(source)
    {
        // Not the sum over the files at hand, which may be a part of those that are scanned.
        return config.statistics().total_byte_size.get_value().map_or(0, |bytes| *bytes as u64);
    }
    if let Some(table) = plan.as_any().downcast_ref::<SplitScanExec>() {
        return table.splits().iter().map(|split| split.bytes).sum();
    }
    plan.children().into_iter().map(largest_leaf).max().unwrap_or(0)
}

/// A join whose right side drives; the left side is broadcast.
fn visit_join(
    plan: &Arc<dyn ExecutionPlan>,
    join_type: &JoinType,
    scans: &mut Vec<DrivingScan>,
) -> Result<Arc<dyn ExecutionPlan>> {
    match join_type {
        JoinType::Inner
        | JoinType::Right
        | JoinType::RightSemi
        | JoinType::RightAnti
        | JoinType::RightMark => {}
        JoinType::Full => return Err(not_row_local("FULL JOIN")),
        other => return Err(not_row_local(&format!("{other} join"))),
    }
    let children = plan.children();
    let (Some(left), Some(right)) = (children.first(), children.get(1)) else {
        return Err(not_row_local(plan.name()));
    };
    let build = Arc::new(BuildSideExec::new(ordered(Arc::clone(left))?));
    let probe = visit(Arc::clone(right), scans)?;
    Ok(Arc::clone(plan).with_new_children(vec![build, probe])?)
}

/// The build side without operators whose output order follows thread timing.
fn ordered(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let plan =
        plan.transform_up(|node| match node.as_any().downcast_ref::<CoalescePartitionsExec>() {
            Some(coalesce) if coalesce.fetch().is_some() => {
                Err(not_row_local("LIMIT over UNION ALL in the build side of a join").into())
            }
            Some(coalesce) => {
                let input = Arc::clone(coalesce.input());
                Ok(Transformed::yes(Arc::new(BuildSideExec::new(input)) as Arc<dyn ExecutionPlan>))
            }
            None => Ok(Transformed::no(node)),
        });
    Ok(plan.data()?)
}

/// The file scan of a leaf, of plain files or of an Iceberg table.
pub fn file_scan(leaf: &DataSourceExec) -> Option<&FileScanConfig> {
    let source = leaf.data_source().as_any();
    source
        .downcast_ref::<FileScanConfig>()
        .or_else(|| Some(source.downcast_ref::<SoundScan>()?.config()))
        .or_else(|| Some(source.downcast_ref::<LakeScan>()?.config()))
}

fn driving_scan(leaf: &DataSourceExec) -> Result<DrivingScan> {
    if let Some(config) = file_scan(leaf) {
        let refs: Vec<&FileRef> = config
            .file_groups
            .iter()
            .flat_map(|group| group.files())
            .filter_map(FileRef::of)
            .collect();
        let Some(first) = refs.first() else {
            return Err(not_row_local("a scan of files that this session did not register"));
        };
        let table = Arc::clone(&first.table);
        let files = refs.iter().map(|file| file.index).collect();
        let request = scan_request(config);
        let config =
            FileScanConfigBuilder::from(config.clone()).with_file_groups(Vec::new()).build();
        return Ok(DrivingScan {
            source: ScanSource::Files { table, config: Arc::new(config) },
            files,
            request,
        });
    }
    Err(not_row_local("a scan of an unknown kind"))
}

/// The predicate by which a scan leaves out parts of its files.
pub(super) fn pruning_predicate(config: &FileScanConfig) -> Option<Arc<dyn PhysicalExpr>> {
    match config.file_source.as_any().downcast_ref::<OrcSource>() {
        // Evaluated above the scan, but it prunes stripes.
        Some(orc) => orc.pruning_predicate().cloned(),
        None => config.file_source.filter(),
    }
}

/// The columns and the predicate that a scan pushes into its files.
fn scan_request(config: &FileScanConfig) -> ScanRequest {
    let predicate = pruning_predicate(config);
    let schema = config.file_source.table_schema().table_schema();
    let mut columns: Vec<String> = match config.file_source.projection() {
        Some(projection) => projection
            .column_indices()
            .into_iter()
            .filter_map(|index| schema.fields().get(index).map(|field| field.name().clone()))
            .collect(),
        None => schema.fields().iter().map(|field| field.name().clone()).collect(),
    };
    if let Some(predicate) = &predicate {
        columns.extend(columns_of(predicate));
    }
    columns.sort();
    columns.dedup();
    ScanRequest { columns, predicate, ..ScanRequest::default() }
}

/// The error for an operator that needs more than one row, with an alternative.
fn not_row_local(operator: &str) -> Error {
    let what = match operator {
        "AggregateExec" => "an aggregate (GROUP BY, DISTINCT, count, sum, …)",
        "WindowAggExec" | "BoundedWindowAggExec" => "a window function (OVER …)",
        "SortExec" | "SortPreservingMergeExec" => "ORDER BY",
        "GlobalLimitExec" | "LocalLimitExec" => "LIMIT or OFFSET",
        "SortMergeJoinExec" | "SymmetricHashJoinExec" => "a join that needs both sides sorted",
        "RecursiveQueryExec" => "a recursive CTE",
        "PlaceholderRowExec" => "a SELECT without FROM",
        other => other,
    };
    let operator = if what == operator { String::new() } else { format!(" ({operator})") };
    Error::new(
        ErrorKind::NotShardable,
        format!(
            "{what}{operator} is not row-local above one scan, so the query cannot run split by \
             split; leave stage=\"never\" out: stage=\"auto\" runs that part once and shards its rows"
        ),
    )
}
