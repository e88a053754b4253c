//! A query's plan by splits: the data read, its division, and its fingerprint.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::physical_plan::ExecutionPlan;
use serde::{Deserialize, Serialize};

use super::epoch_plan::position;
use super::plan_fingerprint::{Shape, classify, fingerprint, shape_digest};
use super::query::Query;
use super::serialised_plan;
use crate::exec::{Rewritten, ScanSource};
use crate::formats::{SortedColumn, Split, sorted_columns};
use crate::{Error, Result};

/// The size of splits, and the rows left out of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanOptions {
    /// Stored bytes of the projected columns that a split grows towards.
    pub split_bytes: u64,
    /// Rows that a split grows towards; takes precedence.
    pub split_rows: Option<u64>,
    /// Whether the user chose one of them. Otherwise splits may be smaller than `split_bytes`, so
    /// that there are enough of them to balance.
    pub explicit: bool,
    /// Stands for the parts that were found bad and are left out: plans that leave out others are
    /// not the same.
    #[serde(default)]
    pub without: Option<String>,
}

impl Default for PlanOptions {
    fn default() -> Self {
        Self { split_bytes: 128 << 20, split_rows: None, explicit: false, without: None }
    }
}

/// Facts that planning found in one driving scan.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ScanReport {
    /// Files that the scan lists after hive pruning.
    pub files: usize,
    /// Files of the table.
    pub files_total: usize,
    /// Files without any remaining split.
    pub files_pruned: usize,
    /// Row groups of the listed files.
    pub units: usize,
    /// The number of these that were pruned by statistics or page index.
    pub units_pruned: usize,
}

/// A split as the user sees it.
#[derive(Clone, Debug)]
pub struct SplitInfo {
    /// The file's path, or the table's kind.
    pub path: String,
    /// The file's size in bytes.
    pub file_size: u64,
    /// Values of hive or identity partitions, by column, as text; None is null.
    pub partition_values: Vec<(String, Option<String>)>,
    /// The Iceberg snapshot.
    pub snapshot: Option<i64>,
}

/// Totals over all splits of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Splits.
    pub splits: u64,
    /// Rows of the splits whose rows are known.
    pub rows: u64,
    /// Whether these are the rows of all splits.
    pub all_rows: bool,
    /// Stored bytes of the projected columns.
    pub bytes: u64,
}

impl Totals {
    fn of(splits: &[Split]) -> Self {
        Self {
            splits: splits.len() as u64,
            rows: splits.iter().filter_map(|split| split.rows).sum(),
            all_rows: splits.iter().all(|split| split.rows.is_some()),
            bytes: splits.iter().fold(0, |sum, split| sum.saturating_add(split.bytes)),
        }
    }
}

/// Splits that were planned before: all of a plan, or some.
#[derive(Debug, Default)]
pub(super) struct Planned {
    pub splits: Vec<Split>,
    /// For a part of the splits: their ids, ascending, and the totals of all.
    pub part: Option<(Vec<u32>, Totals)>,
    /// The fingerprint of the whole plan; None takes the fingerprint of the plan that is made here.
    pub fingerprint: Option<String>,
    /// If the tables have only some of their files: the digest that planning again must reproduce,
    /// see [`Plan::shape_digest`]. Otherwise the fingerprint serves for that.
    pub shape: Option<String>,
    pub reports: Vec<ScanReport>,
    /// By which columns the whole plan is sorted; None looks at footers that were read.
    pub sorted: Option<Vec<SortedColumn>>,
    /// The splits of files that could not be understood when they were planned tolerantly, and why.
    pub damaged: BTreeMap<u32, String>,
}

/// A row-local query by splits.
#[derive(Debug)]
pub struct Plan {
    query: Query,
    pub(super) rewritten: Rewritten,
    physical: Arc<dyn ExecutionPlan>,
    /// For each split its partition in `physical`, where the splits of one scan lie side by side.
    partitions: Arc<[u32]>,
    splits: Arc<[Split]>,
    /// The splits of files that could not be understood when they were planned tolerantly, and why.
    damaged: BTreeMap<u32, String>,
    /// The ids of the splits, where they are only some of the plan's; ascending.
    pub(super) ids: Option<Arc<[u32]>>,
    totals: Totals,
    reports: Vec<ScanReport>,
    sorted: Option<Vec<SortedColumn>>,
    options: PlanOptions,
    /// The digest of the plan before splits were put in, which a worker's own planning must
    /// reproduce.
    shape: Shape,
    fingerprint: String,
}

/// A plan before its splits are known: query, rewritten plan, options, the plan before the rewrite,
/// and its fingerprint.
pub(super) type Base = (Query, Rewritten, PlanOptions, Shape, String);

impl Plan {
    /// The plan of its query over other splits; `without` names the missing ones.
    pub(super) async fn over(&self, splits: Vec<Split>, without: String) -> Result<Self> {
        let query = self.query.clone();
        let (rewritten, shape) = classify(&query).await?;
        let options = PlanOptions { without: Some(without), ..self.options.clone() };
        let fingerprint = fingerprint(&query, &options, &shape)?;
        let (reports, sorted) = (self.reports.clone(), self.sorted.clone());
        let planned = Planned { splits, reports, sorted, ..Planned::default() };
        Self::assemble((query, rewritten, options, shape, fingerprint), planned)
    }

    /// The plan of a process that did not find the splits itself: its own planning with given
    /// splits.
    ///
    /// # Errors
    /// `Data` where this process plans the query differently.
    pub(super) async fn resume(
        query: Query,
        planned: Planned,
        options: PlanOptions,
    ) -> Result<Self> {
        query.check()?;
        let (rewritten, shape) = classify(&query).await?;
        let own = fingerprint(&query, &options, &shape)?;
        let (found, wanted) = match &planned.shape {
            Some(wanted) => (shape_digest(&query, &options, &shape)?, Some(wanted)),
            None => (own.clone(), planned.fingerprint.as_ref()),
        };
        if let Some(wanted) = wanted.filter(|wanted| **wanted != found) {
            return Err(Error::data(format!(
                "this process planned the query differently (fingerprint {found}) from the one \
                 that made the shards ({wanted}); all processes must run the same version \
                 of tensorquery"
            )));
        }
        let fingerprint = planned.fingerprint.clone().unwrap_or(own);
        Self::assemble((query, rewritten, options, shape, fingerprint), planned)
    }

    /// The plan of a query over splits that are known.
    pub(super) fn assemble(base: Base, planned: Planned) -> Result<Self> {
        let (query, rewritten, options, shape, fingerprint) = base;
        let splits: Arc<[Split]> = Arc::from(planned.splits);
        let scans = rewritten.scans.len();
        if let Some(odd) = splits.iter().find(|split| split.scan as usize >= scans) {
            return Err(Error::data(format!("a split is of scan {} of {scans}", odd.scan)));
        }
        let (physical, partitions) = executable(&rewritten, &splits)?;
        let (ids, totals) = match planned.part {
            Some((ids, totals)) => (Some(Arc::from(ids)), totals),
            None => (None, Totals::of(&splits)),
        };
        Ok(Self {
            query,
            rewritten,
            physical,
            partitions,
            damaged: planned.damaged,
            splits,
            ids,
            totals,
            reports: planned.reports,
            sorted: planned.sorted,
            options,
            shape,
            fingerprint,
        })
    }

    /// The query.
    pub fn query(&self) -> &Query {
        &self.query
    }

    /// The output columns.
    pub fn schema(&self) -> SchemaRef {
        self.physical.schema()
    }

    /// The splits that this process has: all of them, with the position as id, or its share.
    pub fn splits(&self) -> &[Split] {
        &self.splits
    }

    /// Why the file of a split could not be understood when it was planned.
    pub(super) fn damage(&self, id: u32) -> Option<&str> {
        self.damaged.get(&id).map(String::as_str)
    }

    /// The files that could not be understood, by split id.
    pub(super) fn damaged(&self) -> &BTreeMap<u32, String> {
        &self.damaged
    }

    /// All splits; a split's position is its id.
    ///
    /// # Errors
    /// `Config` where this process has only its share of them.
    pub fn whole(&self) -> Result<&[Split]> {
        match &self.ids {
            None => Ok(&self.splits),
            Some(ids) => Err(Error::config(format!(
                "this process has only its share of the plan, {} of {} splits",
                ids.len(),
                self.totals.splits
            ))),
        }
    }

    /// The split with this id.
    ///
    /// # Errors
    /// `Config` where there is none, or where it is not in this process's share.
    pub fn split(&self, id: u32) -> Result<&Split> {
        let at = position(self.ids.as_deref(), self.splits.len(), id);
        at.map(|at| &self.splits[at]).ok_or_else(|| self.unknown(id))
    }

    fn unknown(&self, id: u32) -> Error {
        let all = self.totals.splits;
        match self.ids {
            Some(_) if u64::from(id) < all => Error::config(format!(
                "split {id} is not in this process's share of the plan, {} of {all} splits",
                self.splits.len()
            )),
            _ => Error::config(format!("split {id} does not exist; the plan has {all}")),
        }
    }

    /// Totals over all splits of the plan, even if this process has only its share.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Files and splits that pruning left out, by driving scan.
    pub fn reports(&self) -> &[ScanReport] {
        &self.reports
    }

    /// How splits were cut.
    pub fn options(&self) -> &PlanOptions {
        &self.options
    }

    /// Identifies the query's rows and their order: SQL plan, pinned files and split options.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// A digest that another process's plan must match to read some of the splits.
    pub(super) fn shape_digest(&self) -> Result<String> {
        shape_digest(&self.query, &self.options, &self.shape)
    }

    /// DataFusion's plan before the rewrite, as text.
    pub fn shape(&self) -> &str {
        self.shape.text()
    }

    /// The files of the query; see [`Query::files`].
    ///
    /// # Errors
    /// As there.
    pub fn files(&self) -> Result<Vec<(String, String)>> {
        self.query.files()
    }

    /// Encodes the splits for another process that has the same tables: all of them, or the ones
    /// with these ids, ascending.
    ///
    /// # Errors
    /// `Config` for an id that the plan does not have.
    pub fn memo(&self, ids: Option<&[u32]>) -> Result<Vec<u8>> {
        serialised_plan::of_plan(self, ids)
    }

    /// A guess of the bytes that a decoded row takes: the width of its fixed columns, and thrice
    /// the stored bytes where there are others. A function of the schema and the splits alone.
    pub fn row_bytes(&self) -> u64 {
        let schema = self.schema();
        let fixed: usize =
            schema.fields().iter().map(|f| f.data_type().primitive_width().unwrap_or(16)).sum();
        let variable = schema.fields().iter().any(|f| f.data_type().primitive_width().is_none());
        let Totals { rows, bytes, .. } = self.totals;
        let stored = if variable && rows > 0 { 3 * bytes / rows } else { 0 };
        (fixed as u64 + stored).max(1)
    }

    /// The output columns by which a driving scan's Parquet row groups are sorted, as far as
    /// statistics say; see [`sorted_columns`]. A column goes by its name: one that the query
    /// renames is not found.
    pub fn sorted_by(&self) -> Vec<SortedColumn> {
        if let Some(sorted) = &self.sorted {
            return sorted.clone();
        }
        let mut found: Vec<SortedColumn> = Vec::new();
        let schema = self.schema();
        for (number, scan) in self.rewritten.scans.iter().enumerate() {
            let ScanSource::Files { table, .. } = &scan.source else { continue };
            let splits: Vec<Split> =
                self.splits.iter().filter(|split| split.scan as usize == number).copied().collect();
            let is_table_column =
                |name: &String| table.schema.table_schema().column_with_name(name).is_some();
            let columns: Vec<String> = schema.fields().iter().map(|f| f.name().clone()).collect();
            let columns: Vec<String> = columns.into_iter().filter(is_table_column).collect();
            for column in sorted_columns(table, &splits, &columns) {
                if found.iter().all(|other| other.name != column.name) {
                    found.push(column);
                }
            }
        }
        found
    }

    /// The plan whose partitions are the splits.
    pub fn physical(&self) -> &Arc<dyn ExecutionPlan> {
        &self.physical
    }

    /// The splits that this process has, shared.
    pub(super) fn shared_splits(&self) -> &Arc<[Split]> {
        &self.splits
    }

    /// For each split its partition in [`physical`](Self::physical).
    pub(super) fn partitions(&self) -> &Arc<[u32]> {
        &self.partitions
    }

    /// Paths and hive values of a split.
    pub fn describe(&self, split: &Split) -> SplitInfo {
        match self.rewritten.scans.get(split.scan as usize).map(|scan| &scan.source) {
            Some(ScanSource::Files { table, .. }) => {
                let index = split.file as usize;
                let file = &table.files[index];
                let names = table.schema.table_partition_cols().iter().map(|f| f.name().clone());
                let values = file
                    .partition_values
                    .iter()
                    .map(|value| (!value.is_null()).then(|| value.to_string()));
                let mut partition_values: Vec<_> = names.zip(values).collect();
                let lake = table.metadata.as_ref();
                if let Some(lake) = lake {
                    let constants = lake.constants(index).unwrap_or_default();
                    partition_values
                        .extend(constants.into_iter().map(|(n, v)| (n, Some(v.to_string()))));
                }
                SplitInfo {
                    path: table.display_path(index),
                    file_size: file.meta.size,
                    partition_values,
                    snapshot: lake.and_then(|lake| lake.pinned().version),
                }
            }
            _ => SplitInfo {
                path: "memory".into(),
                file_size: split.bytes,
                partition_values: vec![],
                snapshot: None,
            },
        }
    }
}

/// A plan by splits, and for each split its partition there.
pub(super) type Executable = (Arc<dyn ExecutionPlan>, Arc<[u32]>);

/// The plan over these splits, and for each split its partition there: the splits of one scan lie
/// side by side, while a recipe's splits may come in any order.
pub(super) fn executable(rewritten: &Rewritten, splits: &Arc<[Split]>) -> Result<Executable> {
    let per_scan: Vec<Arc<[Split]>> = match rewritten.scans.len() {
        1 => vec![Arc::clone(splits)],
        scans => (0..scans)
            .map(|scan| splits.iter().filter(|s| s.scan as usize == scan).copied().collect())
            .collect(),
    };
    let physical = rewritten.with_splits(&per_scan)?;
    let mut by_scan: Vec<usize> = (0..splits.len()).collect();
    by_scan.sort_by_key(|id| splits[*id].scan);
    let mut partitions = vec![0; splits.len()];
    for (partition, id) in by_scan.into_iter().enumerate() {
        partitions[id] = partition as u32;
    }
    Ok((physical, Arc::from(partitions)))
}
