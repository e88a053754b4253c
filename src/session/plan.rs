//! A query's plan by splits: what is read, in which pieces, under which fingerprint.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::physical_plan::{ExecutionPlan, displayable};
use serde::{Deserialize, Serialize};

use super::epoch_plan::position;
use super::query::Query;
use super::serialised_plan;
use super::staged::{STAGE_SCHEMA, StagedPart};
use crate::exec::{DrivingScan, Rewritten, ScanSource, rewrite, write_plan};
use crate::fingerprint::Form;
use crate::formats::{
    ScanRequest, ScanSplits, SortedColumn, Split, SplitTarget, discover, memory, sorted_columns,
};
use crate::iceberg::LakeTable;
use crate::{Error, Result};

/// Splits a table in memory should have at least, so that every shard gets its share.
const WANTED_MEMORY_SPLITS: u64 = 256;

/// How large splits become, and what is left out of them.
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
    /// Stands for the parts that were found bad and are left out: plans that leave out others are not the same.
    #[serde(default)]
    pub without: Option<String>,
}

impl Default for PlanOptions {
    fn default() -> Self {
        Self { split_bytes: 128 << 20, split_rows: None, explicit: false, without: None }
    }
}

impl PlanOptions {
    fn write(&self, form: &mut Form) {
        form.number("split bytes", self.split_bytes);
        form.optional_number("split rows", self.split_rows).flag("explicit", self.explicit);
        form.optional_text("without", self.without.as_deref());
    }
}

/// What planning found in one driving scan.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ScanReport {
    /// Files that the scan lists after hive pruning.
    pub files: usize,
    /// Files of the table.
    pub files_total: usize,
    /// Files of which no split is left.
    pub files_pruned: usize,
    /// Row groups of the listed files.
    pub units: usize,
    /// Of those, pruned by statistics or page index.
    pub units_pruned: usize,
}

/// A split as the user sees it.
#[derive(Clone, Debug)]
pub struct SplitInfo {
    /// The file's path, or the table's kind.
    pub path: String,
    /// The file's size in bytes.
    pub file_size: u64,
    /// Hive values, or those of identity partitions, by column, as text; None is null.
    pub partition_values: Vec<(String, Option<String>)>,
    /// The Iceberg snapshot.
    pub snapshot: Option<i64>,
}

/// What is known of all splits of a plan together.
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
    /// Where these are only some: their ids, ascending, and what is known of all.
    pub part: Option<(Vec<u32>, Totals)>,
    /// The fingerprint of the whole plan; None takes that of the plan that is made here.
    pub fingerprint: Option<String>,
    /// Where the tables have only some of their files: what planning again must reproduce, see
    /// [`Plan::shape_digest`]. Otherwise that is the fingerprint.
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
    /// Of the plan before splits were put in: what a worker's own planning must reproduce.
    shape: Shape,
    fingerprint: String,
}

/// What a plan is before its splits: query, rewritten plan, options, what it was before the rewrite, and its fingerprint.
type Base = (Query, Rewritten, PlanOptions, Shape, String);

/// Where the plan cache keeps plans.
const CACHED_PLANS: &str = "plans";

impl Plan {
    /// With `tolerant`, a file that cannot be understood is a split that [`verify`](super::SplitVerifier) finds bad.
    pub(super) async fn discover(
        query: Query,
        options: &PlanOptions,
        tolerant: bool,
    ) -> Result<Self> {
        let (rewritten, shape) = classify(&query).await?;
        let fingerprint = fingerprint(&query, options, &shape)?;
        // Under names of their own: where nothing may be left out, a damaged file is an error and not a split.
        let entry = match tolerant {
            true => format!("{fingerprint}-tolerant"),
            false => fingerprint.clone(),
        };
        let cache = query.session().plan_cache().cloned();
        if let Some(cache) = &cache
            && let Some(memo) = cache.get(CACHED_PLANS, &entry).await
        {
            match serialised_plan::open_plan(&memo) {
                Ok(planned)
                    if planned.part.is_none()
                        && planned.fingerprint.as_ref() == Some(&fingerprint)
                        && (tolerant || planned.damaged.is_empty()) =>
                {
                    let base = (query, rewritten, options.clone(), shape, fingerprint);
                    return Self::assemble(base, planned);
                }
                Ok(_) => {
                    let other = Error::data("it is of another plan");
                    cache.is_odd(CACHED_PLANS, &entry, &other);
                }
                Err(error) => cache.is_odd(CACHED_PLANS, &entry, &error),
            }
        }
        let target = SplitTarget { bytes: options.split_bytes, rows: options.split_rows };
        let (mut found, mut damaged, mut first) = (Vec::new(), BTreeMap::new(), 0);
        for scan in &rewritten.scans {
            let splits = discover_scan(scan, target, options.explicit, tolerant).await?;
            damaged
                .extend(splits.damaged.iter().map(|(at, why)| (first + *at as u32, why.clone())));
            first += splits.splits.len() as u32;
            found.push(splits);
        }
        let reports = rewritten.scans.iter().zip(&found).map(report).collect();
        let splits = found
            .into_iter()
            .enumerate()
            .flat_map(|(scan, found)| {
                found.splits.into_iter().map(move |split| Split { scan: scan as u32, ..split })
            })
            .collect();
        let planned = Planned { splits, reports, damaged, ..Planned::default() };
        let base = (query, rewritten, options.clone(), shape, fingerprint);
        let plan = Self::assemble(base, planned)?;
        if let Some(cache) = cache {
            cache.put(CACHED_PLANS, &entry, &serialised_plan::of_plan(&plan, None)?).await;
        }
        Ok(plan)
    }

    /// The plan of the same query over other splits, of which `without` says what is not there.
    pub(super) async fn over(&self, splits: Vec<Split>, without: String) -> Result<Self> {
        let query = self.query.clone();
        let (rewritten, shape) = classify(&query).await?;
        let options = PlanOptions { without: Some(without), ..self.options.clone() };
        let fingerprint = fingerprint(&query, &options, &shape)?;
        let (reports, sorted) = (self.reports.clone(), self.sorted.clone());
        let planned = Planned { splits, reports, sorted, ..Planned::default() };
        Self::assemble((query, rewritten, options, shape, fingerprint), planned)
    }

    /// The plan of a process that did not find the splits itself: its own planning with given splits.
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

    fn assemble(base: Base, planned: Planned) -> Result<Self> {
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

    /// The splits that this process has: all of them, where a split's position is its id, or those of its share.
    pub fn splits(&self) -> &[Split] {
        &self.splits
    }

    /// Why the file of a split could not be understood when it was planned.
    pub(super) fn damage(&self, id: u32) -> Option<&str> {
        self.damaged.get(&id).map(String::as_str)
    }

    /// The same of all splits, by id.
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

    /// What is known of all splits of the plan, also where this process has only its share.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// What pruning left out, by driving scan.
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

    /// What another process must plan to read some of the splits.
    pub(super) fn shape_digest(&self) -> Result<String> {
        shape_digest(&self.query, &self.options, &self.shape)
    }

    /// DataFusion's plan before the rewrite, as text.
    pub fn shape(&self) -> &str {
        &self.shape.text
    }

    /// The files of the query; see [`Query::files`].
    ///
    /// # Errors
    /// As there.
    pub fn files(&self) -> Result<Vec<(String, String)>> {
        self.query.files()
    }

    /// As bytes for another process that has the same tables: all splits, or those of these ids, ascending.
    ///
    /// # Errors
    /// `Config` for an id that the plan does not have.
    pub fn memo(&self, ids: Option<&[u32]>) -> Result<Vec<u8>> {
        serialised_plan::of_plan(self, ids)
    }

    /// A guess of the bytes that a decoded row takes: the width of its fixed columns, and thrice the stored bytes
    /// where there are others. A function of the schema and the splits alone.
    pub fn row_bytes(&self) -> u64 {
        let schema = self.schema();
        let fixed: usize =
            schema.fields().iter().map(|f| f.data_type().primitive_width().unwrap_or(16)).sum();
        let variable = schema.fields().iter().any(|f| f.data_type().primitive_width().is_none());
        let Totals { rows, bytes, .. } = self.totals;
        let stored = if variable && rows > 0 { 3 * bytes / rows } else { 0 };
        (fixed as u64 + stored).max(1)
    }

    /// The output columns by which a driving scan's Parquet row groups are sorted, as far as statistics say;
    /// see [`sorted_columns`]. A column goes by its name: one that the query renames is not found.
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
                let lake = LakeTable::of(table);
                if let Some(lake) = &lake {
                    let constants = lake.values().constants(index).unwrap_or_default();
                    partition_values
                        .extend(constants.into_iter().map(|(n, v)| (n, Some(v.to_string()))));
                }
                SplitInfo {
                    path: table.display_path(index),
                    file_size: file.meta.size,
                    partition_values,
                    snapshot: lake.and_then(|lake| lake.spec().snapshot),
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

/// The plan over these splits, and for each split its partition there: the splits of one scan lie side
/// by side, while a recipe's splits may come in any order.
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

/// The driving scans of a query as an input of a UNION ALL; reads nothing. One of which all files are left out is a scan, too.
pub(super) async fn count_scans(query: &Query) -> Result<usize> {
    if query.is_proven_empty()? {
        return Ok(0);
    }
    let (rewritten, _) = classify(query).await?;
    Ok(rewritten.scans.len())
}

/// What a plan was before the rewrite.
#[derive(Debug)]
pub(super) struct Shape {
    /// As people read it.
    text: String,
    /// SHA-256 of its form.
    digest: [u8; 32],
}

/// A row-local plan, and what it was before.
pub(super) type Classified = (Rewritten, Shape);

pub(super) async fn classify(query: &Query) -> Result<Classified> {
    match query.take_classified() {
        Some(found) => Ok(found),
        None => classify_planned(query, query.physical_plan().await?),
    }
}

pub(super) fn classify_planned(
    query: &Query,
    physical: Arc<dyn ExecutionPlan>,
) -> Result<Classified> {
    // A stage that is built again lies elsewhere, and is the same.
    let stable = |text: &str| {
        let replaced = |text: String, part: &StagedPart| text.replace(&part.folder, part.digest());
        query.parts().iter().fold(text.to_owned(), replaced)
    };
    let mut form = Form::new("physical plan");
    write_plan(&mut form, "root", &physical, &stable)?;
    let text = stable(&displayable(physical.as_ref()).indent(false).to_string());
    Ok((rewrite(physical)?, Shape { text, digest: form.digest() }))
}

async fn discover_scan(
    scan: &DrivingScan,
    target: SplitTarget,
    explicit: bool,
    tolerant: bool,
) -> Result<ScanSplits> {
    match &scan.source {
        ScanSource::Files { table, .. } => {
            let request = ScanRequest { tolerant, ..scan.request.clone() };
            discover(table, &scan.files, &request, target, explicit).await
        }
        ScanSource::Memory { batches, bytes, .. } => {
            let wanted = if explicit { 1 } else { WANTED_MEMORY_SPLITS };
            let found = memory::discover(batches, *bytes, target, wanted);
            Ok(ScanSplits { splits: found.splits, units: 1, ..ScanSplits::default() })
        }
        ScanSource::Empty => Ok(ScanSplits::default()),
    }
}

fn report((scan, found): (&DrivingScan, &ScanSplits)) -> ScanReport {
    let files_total = match &scan.source {
        ScanSource::Files { table, .. } => table.files.len(),
        _ => 0,
    };
    ScanReport {
        files: scan.files.len(),
        files_total,
        files_pruned: files_total - scan.files.len() + found.files_pruned,
        units: found.units,
        units_pruned: found.units_pruned,
    }
}

/// A digest of what planning a query by splits comes to, whichever of its files this process has.
fn shape_digest(query: &Query, options: &PlanOptions, shape: &Shape) -> Result<String> {
    let mut form = Form::new("shape");
    write_planning(&mut form, query, options, shape)?;
    form.list("functions", query.functions(), |form, (name, digest)| {
        form.text("name", &name).text("digest", &digest);
        Ok(())
    })?;
    Ok(form.fingerprint())
}

/// A digest of the plan, the identities of all pinned files and the split options.
fn fingerprint(query: &Query, options: &PlanOptions, shape: &Shape) -> Result<String> {
    let mut form = Form::new("plan");
    write_planning(&mut form, query, options, shape)?;
    query.write_tables(&mut form)?;
    Ok(form.fingerprint())
}

fn write_planning(
    form: &mut Form,
    query: &Query,
    options: &PlanOptions,
    shape: &Shape,
) -> Result<()> {
    form.text("program", env!("CARGO_PKG_VERSION")).text("sql", query.sql());
    form.bytes("plan", &shape.digest);
    form.nested("options", "split options", |form| {
        options.write(form);
        Ok(())
    })?;
    Ok(())
}

impl Query {
    /// Writes the content of all that it reads into a form.
    ///
    /// # Errors
    /// `Config` where a column's type has no form.
    pub(super) fn write_tables(&self, form: &mut Form) -> Result<()> {
        form.list("tables", self.tables(), |form, ((schema, name), registered)| {
            form.text("schema", schema).text("name", name);
            // The name of a stage has the digest of its rows.
            if schema == STAGE_SCHEMA { Ok(()) } else { registered.write(form) }
        })?;
        Ok(())
    }
}
