//! Plans: splits, their assignment to shards, recipes and streams.

use std::collections::BTreeMap;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule, PyList};

use super::arrow::schema_capsule;
use super::count::PySplitCounter;
use super::error::to_py;
use super::filesystem::{Shipped, from_shipped, to_shipped};
use super::row_store::PyStage;
use super::series::PyWindows;
use super::shards::PyShards;
use super::stream::{BatchStream, IoCounts};
use super::verify::PySplitVerifier;
use super::wait::{at_once, compute, planned, wait};
use super::work_queue::PyCounter;
use crate::session::{Numbering, Plan, WorkerPlan};
use crate::sharding::{Assignment, Builtin, MixedSplits, Mixing, ShardSpec};
use crate::stream::{Output, RowSource, ShardStream, WorkQueue};
use crate::tensor::{Converter, TensorOptions};
use crate::{Error, Result};

/// A split: id, path, file size, rows, first row, bytes, unit as text, partition values.
type SplitRow = (
    u32,
    String,
    u64,
    Option<u64>,
    Option<(u64, u64)>,
    u64,
    String,
    Vec<(String, Option<String>)>,
    Option<i64>,
);

/// A shard: rank, worker, splits, rows, bytes.
type ShardRow = (usize, usize, usize, Option<u64>, u64);

/// How splits are mixed: how many are open, the rows of their turns, the rows of a window.
type MixingRow = (u32, u64, Option<u64>);

fn row_of(mixing: Mixing) -> MixingRow {
    (mixing.width, mixing.chunk, mixing.window)
}

/// A query by splits.
#[pyclass(name = "Plan", module = "tensorquery._core", frozen)]
pub struct PyPlan {
    plan: Arc<Plan>,
}

impl PyPlan {
    /// Wraps a plan.
    pub fn new(plan: Plan) -> Self {
        Self { plan: Arc::new(plan) }
    }

    fn mixed(&self) -> MixedSplits {
        let totals = self.plan.totals();
        let (splits, bytes) = (totals.splits, totals.bytes);
        MixedSplits { splits, bytes, row_bytes: self.plan.row_bytes() }
    }

    /// The plan, for a background job.
    pub fn plan(&self) -> Arc<Plan> {
        Arc::clone(&self.plan)
    }
}

#[pymethods]
impl PyPlan {
    /// Plans again from a recipe of [`PyPlan::recipe`].
    #[staticmethod]
    #[pyo3(signature = (text, blobs, foreign=Vec::new()))]
    fn from_recipe(
        py: Python<'_>,
        text: String,
        blobs: Vec<Vec<u8>>,
        foreign: Vec<(String, Bound<'_, PyAny>)>,
    ) -> PyResult<Self> {
        let things = foreign.iter().map(|(kind, object)| from_shipped(kind, object));
        let foreign = things.collect::<PyResult<Vec<_>>>()?;
        let recipe = WorkerPlan { text, blobs, foreign };
        Ok(Self::new(wait(py, || planned(move || async move { recipe.open().await }))?))
    }

    #[getter]
    fn fingerprint(&self) -> &str {
        self.plan.fingerprint()
    }

    #[getter]
    fn num_splits(&self) -> usize {
        self.plan.totals().splits as usize
    }

    /// By split, the driving scan that it belongs to.
    fn scans(&self) -> PyResult<Vec<u32>> {
        Ok(self.plan.whole().map_err(to_py)?.iter().map(|split| split.scan).collect())
    }

    /// Stored bytes of all splits.
    #[getter]
    fn bytes(&self) -> u64 {
        self.plan.totals().bytes
    }

    /// Rows of all splits before filters, where every split knows its own.
    fn known_rows(&self) -> Option<u64> {
        let totals = self.plan.totals();
        totals.all_rows.then_some(totals.rows)
    }

    /// A guess of the bytes that a decoded row takes.
    fn row_bytes(&self) -> u64 {
        self.plan.row_bytes()
    }

    /// Chooses how the splits of a shard are mixed: how many are open, the rows of their turns, and
    /// the rows of a window.
    fn mixing(&self, permutes: bool, window: Option<u64>, partitions: Option<u64>) -> MixingRow {
        row_of(Mixing::choose(self.mixed(), permutes, window, partitions))
    }

    /// Chooses the same for workers that take splits as they come.
    fn mixing_of_takers(
        &self,
        mixing: MixingRow,
        takers: u64,
        rows: Option<u64>,
        batch_rows: u64,
    ) -> MixingRow {
        let (width, chunk, window) = mixing;
        let mixing = Mixing { width, chunk, window };
        row_of(mixing.of_takers(self.mixed(), takers, rows, batch_rows))
    }

    /// Name and identity of every file or table in memory that the query can read.
    fn files(&self) -> PyResult<Vec<(String, String)>> {
        self.plan.files().map_err(to_py)
    }

    /// How splits were cut: bytes and rows that they grow towards, and whether the user chose one
    /// of these.
    fn options(&self) -> (u64, Option<u64>, bool) {
        let options = self.plan.options();
        (options.split_bytes, options.split_rows, options.explicit)
    }

    /// DataFusion's plan before the splits were put in.
    fn shape(&self) -> &str {
        self.plan.shape()
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        schema_capsule(py, &self.plan.schema())
    }

    /// The splits with these ids.
    fn splits(&self, ids: Vec<u32>) -> PyResult<Vec<SplitRow>> {
        ids.into_iter()
            .map(|id| {
                let split = self.plan.split(id).map_err(to_py)?;
                let info = self.plan.describe(split);
                Ok((
                    id,
                    info.path,
                    info.file_size,
                    split.rows,
                    split.row_range().map(|range| (range.start, range.end)),
                    split.bytes,
                    split.unit.to_string(),
                    info.partition_values,
                    info.snapshot,
                ))
            })
            .collect()
    }

    /// Row groups read, of units; files and files pruned, over all scans:
    /// (files_total, files_pruned, units, units_pruned).
    fn pruning(&self) -> (usize, usize, usize, usize) {
        self.plan.reports().iter().fold((0, 0, 0, 0), |sum, report| {
            (
                sum.0 + report.files_total,
                sum.1 + report.files_pruned,
                sum.2 + report.units,
                sum.3 + report.units_pruned,
            )
        })
    }

    /// Split ids by shard, `rank * workers + worker`.
    fn assign(
        &self,
        world_size: usize,
        num_workers: usize,
        strategy: &str,
    ) -> PyResult<Vec<Vec<u32>>> {
        let spec = ShardSpec::try_new(0, world_size, num_workers).map_err(to_py)?;
        let strategy = match strategy {
            "lpt" => Builtin::Lpt,
            "round_robin" => Builtin::RoundRobin,
            other => {
                return Err(to_py(Error::config(format!(
                    "split_strategy {other:?} must be \"lpt\", \"round_robin\" or an object with \
                     generate(splits, num_shards, epoch)"
                ))));
            }
        };
        let splits = self.plan.whole().map_err(to_py)?;
        Ok(Assignment::assign(splits, &spec, strategy).into_shards())
    }

    /// Checks that lists of split ids cover every split once, one list per shard.
    fn check_cover(
        &self,
        lists: Vec<Vec<u32>>,
        world_size: usize,
        num_workers: usize,
    ) -> PyResult<()> {
        let spec = ShardSpec::try_new(0, world_size, num_workers).map_err(to_py)?;
        let splits = self.plan.whole().map_err(to_py)?;
        Assignment::from_lists(lists, splits.len(), &spec).map_err(to_py)?;
        Ok(())
    }

    /// Summarises the reads of each shard, and the imbalance over shards and over ranks.
    fn summarize(
        &self,
        lists: Vec<Vec<u32>>,
        world_size: usize,
        num_workers: usize,
    ) -> PyResult<(Vec<ShardRow>, f64, f64)> {
        let spec = ShardSpec::try_new(0, world_size, num_workers).map_err(to_py)?;
        let splits = self.plan.whole().map_err(to_py)?;
        let assignment = Assignment::from_lists(lists, splits.len(), &spec).map_err(to_py)?;
        let rows = assignment.summaries(splits).into_iter();
        let rows = rows.map(|s| (s.rank, s.worker, s.splits, s.rows, s.bytes)).collect();
        let imbalance = assignment.imbalance(splits);
        Ok((rows, imbalance.shards, imbalance.ranks))
    }

    /// The text, bytes and objects (each with its kind) from which another process plans again.
    /// They cover all splits, or those with these ids (ascending) and only the files that these are
    /// read from.
    #[pyo3(signature = (ids=None))]
    fn recipe<'py>(
        &self,
        py: Python<'py>,
        ids: Option<Vec<u32>>,
    ) -> PyResult<(String, Bound<'py, PyList>, Vec<Shipped>)> {
        let recipe = compute(py, || WorkerPlan::of(&self.plan, ids.as_deref()))?;
        let blobs = PyList::empty(py);
        for blob in &recipe.blobs {
            blobs.append(PyBytes::new(py, blob))?;
        }
        let foreign = recipe.foreign.iter().map(|thing| to_shipped(py, thing));
        let foreign = foreign.collect::<Result<Vec<_>>>().map_err(to_py)?;
        Ok((recipe.text, blobs, foreign))
    }

    /// The splits as bytes for another process that has the same tables: all, or those with these
    /// ids (ascending).
    #[pyo3(signature = (ids=None))]
    fn memo<'py>(&self, py: Python<'py>, ids: Option<Vec<u32>>) -> PyResult<Bound<'py, PyBytes>> {
        let memo = compute(py, || self.plan.memo(ids.as_deref()))?;
        Ok(PyBytes::new(py, &memo))
    }

    /// Output columns by which Parquet row groups are sorted, and whether in descending order;
    /// reads nothing.
    fn sorted_by(&self, py: Python<'_>) -> PyResult<Vec<(String, bool)>> {
        let columns = compute(py, || Ok(self.plan.sorted_by()))?;
        Ok(columns.into_iter().map(|column| (column.name, column.descending)).collect())
    }

    /// Output rows by split, where metadata says them all.
    fn known_counts(&self, py: Python<'_>) -> PyResult<Option<Vec<u64>>> {
        compute(py, || self.plan.known_counts())
    }

    /// The verification of splits.
    fn verifier(&self) -> PySplitVerifier {
        PySplitVerifier::new(self.plan.verifier())
    }

    /// The parts of a split that are verified one by one: their names, and their rows if metadata
    /// says them.
    fn parts(&self, py: Python<'_>, id: u32) -> PyResult<Vec<(String, Option<u64>)>> {
        let plan = Arc::clone(&self.plan);
        let parts = wait(py, move || async move { plan.parts(id).await })?;
        Ok(parts.into_iter().map(|part| (part.unit.to_string(), part.rows)).collect())
    }

    /// This plan without some parts of its splits, under a fingerprint of its own.
    fn without(&self, py: Python<'_>, bad: BTreeMap<u32, Vec<u32>>) -> PyResult<Self> {
        let plan = Arc::clone(&self.plan);
        Ok(Self::new(wait(py, move || async move { plan.without(&bad).await })?))
    }

    /// Plans the counting of output rows.
    fn counter(&self, py: Python<'_>) -> PyResult<PySplitCounter> {
        let plan = Arc::clone(&self.plan);
        Ok(PySplitCounter::new(wait(py, move || async move { plan.counter().await })?))
    }

    /// Starts reading a shard from a cursor on. `tensor_options` is JSON; None yields Arrow
    /// batches. With `lends` columns may have memory of their own instead of a slot in the batch's
    /// block; with `loose`, too, that block is one whose parts are put together where it is copied.
    /// With `refills` batches are full while there are rows.
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of one Python call")]
    #[pyo3(signature = (shards, rank, worker, cursor, threads, tensor_options, stage=None, lends=false, loose=false, refills=false, windows=None))]
    fn stream(
        &self,
        py: Python<'_>,
        shards: &PyShards,
        rank: usize,
        worker: usize,
        cursor: Vec<u64>,
        threads: usize,
        tensor_options: Option<&str>,
        stage: Option<&PyStage>,
        lends: bool,
        loose: bool,
        refills: bool,
        windows: Option<&PyWindows>,
    ) -> PyResult<BatchStream> {
        let (mut shard, cursor) = at_once(|| shards.at(rank, worker, &cursor))?;
        if refills {
            shard = Arc::new(shard.open_ended());
        }
        let start = || -> Result<ShardStream> {
            let mut source = shards.source(&self.plan, stage, windows)?;
            let mut output = self.output(tensor_options, windows)?;
            let lends = lends || loose;
            if lends {
                output = output.lending();
            }
            // A window holds a batch of each of many splits, and copies their rows anyway.
            if shard.lanes.iter().all(|lane| lane.mixing.window.is_none()) {
                if lends {
                    source = source.in_long_batches();
                }
                (output, source) = output.of_matrices(source)?;
            }
            ShardStream::start(source, &shard, &cursor, threads, Arc::new(output))
        };
        let before = IoCounts::of(self.plan.query().session());
        let stream = compute(py, start)?;
        let stream = BatchStream::new(stream, Arc::clone(self.plan.query().session()), before);
        Ok(stream.loose(loose))
    }

    /// Starts reading the pieces of its rank that `worker` takes from `counter`, as long as
    /// `iteration` is under way. `loose` as for [`stream`](Self::stream).
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of one Python call")]
    #[pyo3(signature = (shards, rank, worker, counter, iteration, threads, tensor_options, loose=false, windows=None))]
    fn stream_taken(
        &self,
        py: Python<'_>,
        shards: &PyShards,
        rank: usize,
        worker: usize,
        counter: &PyCounter,
        iteration: u32,
        threads: usize,
        tensor_options: Option<&str>,
        loose: bool,
        windows: Option<&PyWindows>,
    ) -> PyResult<BatchStream> {
        let (shard, pieces) = at_once(|| shards.of_taker(rank, worker))?;
        let feed = Arc::new(WorkQueue::new(counter.counter(), iteration, pieces));
        let start = || -> Result<ShardStream> {
            let source = shards.source(&self.plan, None, windows)?;
            let output = self.output(tensor_options, windows)?;
            let output = Arc::new(if loose { output.lending() } else { output });
            ShardStream::start_fed(source, &shard, threads, output, Arc::clone(&feed))
        };
        let session = Arc::clone(self.plan.query().session());
        let before = IoCounts::of(&session);
        let stream = compute(py, start)?;
        Ok(BatchStream::new(stream, session, before).fed_by(feed).loose(loose))
    }

    /// The split and output row of each row that a shard would deliver from a cursor on, without
    /// reading any; with `refills`, of rows in full batches up to the last.
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of one Python call")]
    #[pyo3(signature = (shards, rank, worker, cursor, counts, refills=false))]
    fn positions(
        &self,
        py: Python<'_>,
        shards: &PyShards,
        rank: usize,
        worker: usize,
        cursor: Vec<u64>,
        counts: Vec<u64>,
        refills: bool,
    ) -> PyResult<BatchStream> {
        let (mut shard, cursor) = at_once(|| shards.at(rank, worker, &cursor))?;
        if refills {
            shard = Arc::new(shard.open_ended());
        }
        let output = Arc::new(Output::Arrow(RowSource::positions_schema()));
        let source = RowSource::Positions(Arc::from(counts));
        let start = || ShardStream::start(source, &shard, &cursor, 1, output);
        let before = IoCounts::of(self.plan.query().session());
        let stream = compute(py, start)?;
        Ok(BatchStream::new(stream, Arc::clone(self.plan.query().session()), before))
    }

    /// Physical rows of table files are addressed by row range: (start, end) of a split, if known.
    fn row_range(&self, id: u32) -> Option<(u64, u64)> {
        let split = self.plan.split(id).ok()?;
        split.row_range().map(|range| (range.start, range.end))
    }

    /// From where physical rows of a split are counted: "file", "table" or "split".
    fn numbering(&self, id: u32) -> PyResult<&'static str> {
        Ok(match self.plan.numbering(id).map_err(to_py)? {
            Numbering::File => "file",
            Numbering::Table => "table",
            Numbering::Split => "split",
        })
    }

    /// The physical row behind each of these output rows, in their order; splits are executed one
    /// after the other.
    fn physical_rows(
        &self,
        py: Python<'_>,
        wanted: Vec<(u32, Vec<u64>)>,
    ) -> PyResult<Vec<Vec<u64>>> {
        let plan = Arc::clone(&self.plan);
        wait(py, move || async move {
            let mut replay = plan.replay()?;
            let mut found = Vec::with_capacity(wanted.len());
            for (id, outputs) in wanted {
                let rows = replay.rows(id).await?;
                let physical = |output: u64| {
                    rows.get(output as usize).copied().ok_or_else(|| {
                        Error::config(format!(
                            "split {id} has {} output rows, and so no row {output}",
                            rows.len()
                        ))
                    })
                };
                found.push(outputs.into_iter().map(physical).collect::<Result<_>>()?);
            }
            Ok(found)
        })
    }

    /// Start and end of each row group, stripe, record batch or block of the file of a split, in
    /// physical rows; none of text and Arrow streams.
    fn file_row_groups(&self, py: Python<'_>, id: u32) -> PyResult<Vec<(u64, u64)>> {
        let plan = Arc::clone(&self.plan);
        let groups = wait(py, move || async move { plan.row_groups(id).await })?;
        Ok(groups.into_iter().map(|group| (group.start, group.end)).collect())
    }

    /// The plan whose partitions are splits, as an indented tree.
    fn explain(&self) -> String {
        use datafusion::physical_plan::displayable;
        displayable(self.plan.physical().as_ref()).indent(false).to_string()
    }

    /// First and one past the last row group, stripe, record batch or block of a split.
    fn row_groups(&self, id: u32) -> Option<(u32, u32)> {
        let units = self.plan.split(id).ok()?.unit.units()?;
        Some((units.start, units.end))
    }
}

impl PyPlan {
    fn output(&self, tensor_options: Option<&str>, windows: Option<&PyWindows>) -> Result<Output> {
        let schema = match windows {
            Some(windows) => Arc::clone(windows.reader().schema()),
            None => self.plan.schema(),
        };
        let Some(text) = tensor_options else { return Ok(Output::Arrow(schema)) };
        let options: TensorOptions = serde_json::from_str(text)
            .map_err(|error| Error::config(format!("bad tensor options: {error}")))?;
        Ok(Output::Tensors(Converter::try_new(&schema, &options)?))
    }
}
