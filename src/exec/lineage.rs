//! Traces what a rewritten plan does to the rows of its driving scans, and lists the tables that it
//! reads.

use std::sync::Arc;

use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::projection::{ProjectionExpr, update_expr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::union::UnionExec;

use super::build_side::BuildSideExec;
use super::rewrite::{DrivingScan, Rewritten, file_scan};
use super::split_scan::{ScanSource, SplitScanExec};
use crate::Result;
use crate::formats::FileRef;

/// How many output rows a row of a driving scan becomes.
#[derive(Clone, Debug)]
pub enum RowFate {
    /// One, where all of these predicates over the table's schema are true, and none otherwise.
    Filtered(Vec<Arc<dyn PhysicalExpr>>),
    /// Any number: a join or `unnest` lies above.
    Open,
}

impl RowFate {
    /// Returns true if every row becomes one row.
    pub fn keeps_all(&self) -> bool {
        matches!(self, Self::Filtered(predicates) if predicates.is_empty())
    }
}

impl Rewritten {
    /// The fate of each driving scan's rows, in the order of `scans`.
    ///
    /// # Errors
    /// An internal error where an expression refers to a column that is not there.
    pub fn fates(&self) -> Result<Vec<RowFate>> {
        let mut fates = Vec::with_capacity(self.scans.len());
        follow(&self.plan, RowFate::Filtered(Vec::new()), &mut fates)?;
        Ok(fates)
    }

    /// Returns true if splits of this plan's driving scans may be used in `other`. Both must drive
    /// the same tables in the same order, with the same pushed-down predicates (which prune row
    /// groups and pages). No driving table may be read a second time in either plan, since a table
    /// that stands in two places looks the same in both.
    pub fn drives_like(&self, other: &Self) -> bool {
        let mut leaves = [Vec::new(), Vec::new()];
        tables_below(&self.plan, &mut leaves[0]);
        tables_below(&other.plan, &mut leaves[1]);
        let read_once = |scan: &DrivingScan| {
            leaves.iter().all(|tables| {
                identity(&scan.source)
                    .is_none_or(|own| tables.iter().filter(|table| **table == own).count() == 1)
            })
        };
        self.scans.len() == other.scans.len()
            && self.scans.iter().zip(&other.scans).all(|(a, b)| {
                identity(&a.source) == identity(&b.source)
                    && a.files == b.files
                    && a.request.predicate == b.request.predicate
                    && read_once(a)
            })
    }
}

/// Follows the rows from the root down, with the facts about the nodes above. It visits driving
/// scans in the order of `Rewritten::scans`, children first to last, without build sides.
fn follow(plan: &Arc<dyn ExecutionPlan>, above: RowFate, fates: &mut Vec<RowFate>) -> Result<()> {
    let node = plan.as_any();
    if node.is::<BuildSideExec>() {
        return Ok(());
    }
    if let Some(scan) = node.downcast_ref::<SplitScanExec>() {
        fates.push(at_scan(scan.source(), above)?);
        return Ok(());
    }
    let below = if let Some(projection) = node.downcast_ref::<ProjectionExec>() {
        through(above, projection.expr())?
    } else if let Some(filter) = node.downcast_ref::<FilterExec>() {
        let schema = filter.input().schema();
        let above = match filter.projection() {
            Some(columns) => {
                let column = |index: &usize| {
                    let name = schema.field(*index).name();
                    ProjectionExpr::new(Arc::new(Column::new(name, *index)), name)
                };
                through(above, &columns.iter().map(column).collect::<Vec<_>>())?
            }
            None => above,
        };
        with_predicate(above, filter.predicate())
    } else if node.is::<CooperativeExec>() || node.is::<UnionExec>() {
        above
    } else {
        RowFate::Open
    };
    for child in plan.children() {
        follow(child, below.clone(), fates)?;
    }
    Ok(())
}

/// The fate over the table's schema: through the scan's projection, with the predicate in the scan.
fn at_scan(source: &ScanSource, above: RowFate) -> Result<RowFate> {
    match source {
        ScanSource::Files { config, .. } => {
            let above = match config.file_source.projection() {
                Some(projection) => through(above, projection.as_ref())?,
                None => above,
            };
            Ok(match config.file_source.filter() {
                Some(predicate) => with_predicate(above, &predicate),
                None => above,
            })
        }
        // Nothing judges predicates over these; that there is one says enough.
        ScanSource::Memory { .. } | ScanSource::Empty => Ok(above),
    }
}

fn with_predicate(fate: RowFate, predicate: &Arc<dyn PhysicalExpr>) -> RowFate {
    match fate {
        RowFate::Filtered(mut predicates) => {
            predicates.push(Arc::clone(predicate));
            RowFate::Filtered(predicates)
        }
        RowFate::Open => RowFate::Open,
    }
}

/// Rewrites the predicates from the output of a projection to its input.
fn through(fate: RowFate, projection: &[ProjectionExpr]) -> Result<RowFate> {
    let RowFate::Filtered(predicates) = fate else { return Ok(RowFate::Open) };
    let mut below = Vec::with_capacity(predicates.len());
    for predicate in predicates {
        match update_expr(&predicate, projection, true)? {
            Some(predicate) => below.push(predicate),
            None => return Ok(RowFate::Open),
        }
    }
    Ok(RowFate::Filtered(below))
}

/// The identity of a scan's table: the address of its pinned files or batches, which scans of one
/// table share.
fn identity(source: &ScanSource) -> Option<usize> {
    match source {
        ScanSource::Files { table, .. } => Some(Arc::as_ptr(table) as usize),
        ScanSource::Memory { batches, .. } => Some(Arc::as_ptr(batches) as usize),
        ScanSource::Empty => None,
    }
}

/// The tables of all leaves, build sides included, once per leaf.
fn tables_below(plan: &Arc<dyn ExecutionPlan>, tables: &mut Vec<usize>) {
    if let Some(scan) = plan.as_any().downcast_ref::<SplitScanExec>() {
        tables.extend(identity(scan.source()));
    } else if let Some(source) = plan.as_any().downcast_ref::<DataSourceExec>()
        && let Some(config) = file_scan(source)
        && let Some(file) = config.file_groups.iter().flat_map(|group| group.files()).next()
    {
        tables.extend(FileRef::of(file).map(|file| Arc::as_ptr(&file.table) as usize));
    }
    for child in plan.children() {
        tables_below(child, tables);
    }
}
