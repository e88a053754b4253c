//! Plans: splits, their assignment to shards, recipes and streams.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule, PyList};

use super::arrow::schema_capsule;
use super::count::PySplitCounter;
use super::error::to_py;
use super::feed::PyCounter;
use super::shards::PyShards;
use super::stage::PyStage;
use super::stream::BatchStream;
use super::wait::wait;
use crate::partition::{Assignment, Builtin, ShardSpec};
use crate::session::{Numbering, Plan, Recipe};
use crate::split::SplitUnit;
use crate::stream::{Feed, Output, RowSource, ShardStream};
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

    /// The plan, for a background job.
    pub fn plan(&self) -> Arc<Plan> {
        Arc::clone(&self.plan)
    }
}

#[pymethods]
impl PyPlan {
    /// Plans again what [`PyPlan::recipe`] described.
    #[staticmethod]
    fn from_recipe(py: Python<'_>, text: String, blobs: Vec<Vec<u8>>) -> PyResult<Self> {
        let recipe = Recipe { text, blobs };
        Ok(Self::new(wait(py, move || async move { recipe.open().await })?))
    }

    #[getter]
    fn fingerprint(&self) -> &str {
        self.plan.fingerprint()
    }

    #[getter]
    fn num_splits(&self) -> usize {
        self.plan.splits().len()
    }

    /// By split, the driving scan that it belongs to.
    fn scans(&self) -> Vec<u32> {
        self.plan.splits().iter().map(|split| split.scan).collect()
    }

    /// Stored bytes of all splits.
    #[getter]
    fn bytes(&self) -> u64 {
        self.plan.splits().iter().fold(0, |sum, split| sum.saturating_add(split.bytes))
    }

    /// A guess of the bytes that a decoded row takes.
    fn row_bytes(&self) -> u64 {
        self.plan.row_bytes()
    }

    /// Name and identity of every file or table in memory that the query can read.
    fn files(&self) -> Vec<(String, String)> {
        self.plan.files()
    }

    /// How splits were cut, as text.
    fn options(&self) -> String {
        format!("{:?}", self.plan.options())
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
        let all = self.plan.splits();
        ids.into_iter()
            .map(|id| {
                let split = all.get(id as usize).ok_or_else(|| {
                    to_py(Error::config(format!("split {id} must be in 0..{}", all.len())))
                })?;
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
        Ok(Assignment::assign(self.plan.splits(), &spec, strategy).into_shards())
    }

    /// Checks that lists of split ids cover every split once, one list per shard.
    fn check_cover(
        &self,
        lists: Vec<Vec<u32>>,
        world_size: usize,
        num_workers: usize,
    ) -> PyResult<()> {
        let spec = ShardSpec::try_new(0, world_size, num_workers).map_err(to_py)?;
        Assignment::from_lists(lists, self.plan.splits().len(), &spec).map_err(to_py)?;
        Ok(())
    }

    /// What each shard reads, and the imbalance over shards and over ranks.
    fn summarize(
        &self,
        lists: Vec<Vec<u32>>,
        world_size: usize,
        num_workers: usize,
    ) -> PyResult<(Vec<ShardRow>, f64, f64)> {
        let spec = ShardSpec::try_new(0, world_size, num_workers).map_err(to_py)?;
        let splits = self.plan.splits();
        let assignment = Assignment::from_lists(lists, splits.len(), &spec).map_err(to_py)?;
        let rows = assignment.summaries(splits).into_iter();
        let rows = rows.map(|s| (s.rank, s.worker, s.splits, s.rows, s.bytes)).collect();
        let imbalance = assignment.imbalance(splits);
        Ok((rows, imbalance.shards, imbalance.ranks))
    }

    /// What a worker process needs to plan these splits (ascending ids) again: text and bytes.
    fn recipe<'py>(
        &self,
        py: Python<'py>,
        ids: Vec<u32>,
    ) -> PyResult<(String, Bound<'py, PyList>)> {
        let recipe = py.detach(|| Recipe::of(&self.plan, &ids)).map_err(to_py)?;
        let blobs = PyList::empty(py);
        for blob in &recipe.blobs {
            blobs.append(PyBytes::new(py, blob))?;
        }
        Ok((recipe.text, blobs))
    }

    /// Output columns by which Parquet row groups are sorted, and whether in descending order; reads nothing.
    fn sorted_by(&self, py: Python<'_>) -> Vec<(String, bool)> {
        let columns = py.detach(|| self.plan.sorted_by());
        columns.into_iter().map(|column| (column.name, column.descending)).collect()
    }

    /// Output rows by split, where metadata says them all.
    fn known_counts(&self, py: Python<'_>) -> PyResult<Option<Vec<u64>>> {
        py.detach(|| self.plan.known_counts()).map_err(to_py)
    }

    /// Plans the counting of output rows.
    fn counter(&self, py: Python<'_>) -> PyResult<PySplitCounter> {
        let plan = Arc::clone(&self.plan);
        Ok(PySplitCounter::new(wait(py, move || async move { plan.counter().await })?))
    }

    /// Starts reading a shard from a cursor on. `tensor_options` is JSON; None yields Arrow batches.
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of one Python call")]
    #[pyo3(signature = (shards, rank, worker, cursor, threads, tensor_options, stage=None))]
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
    ) -> PyResult<BatchStream> {
        let (shard, cursor) = shards.at(rank, worker, &cursor).map_err(to_py)?;
        let stage = stage.map(|stage| Arc::clone(stage.stage()));
        let start = || -> Result<ShardStream> {
            let source = shards.source(&self.plan, stage.as_ref())?;
            let output = Arc::new(self.output(tensor_options)?);
            ShardStream::start(source, &shard, &cursor, threads, output)
        };
        let stream = py.detach(start).map_err(to_py)?;
        Ok(BatchStream::new(stream, Arc::clone(self.plan.query().session())))
    }

    /// Starts reading what `worker` takes of its rank's pieces from `counter`, as long as `iteration` is under way.
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of one Python call")]
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
    ) -> PyResult<BatchStream> {
        let (shard, pieces) = shards.of_taker(rank, worker).map_err(to_py)?;
        let feed = Arc::new(Feed::new(counter.counter(), iteration, pieces));
        let start = || -> Result<ShardStream> {
            let source = shards.source(&self.plan, None)?;
            let output = Arc::new(self.output(tensor_options)?);
            ShardStream::start_fed(source, &shard, threads, output, Arc::clone(&feed))
        };
        let stream = py.detach(start).map_err(to_py)?;
        let session = Arc::clone(self.plan.query().session());
        Ok(BatchStream::new(stream, session).fed_by(feed))
    }

    /// What a shard would deliver from a cursor on, as split and output row, without reading any.
    fn positions(
        &self,
        py: Python<'_>,
        shards: &PyShards,
        rank: usize,
        worker: usize,
        cursor: Vec<u64>,
        counts: Vec<u64>,
    ) -> PyResult<BatchStream> {
        let (shard, cursor) = shards.at(rank, worker, &cursor).map_err(to_py)?;
        let output = Arc::new(Output::Arrow(RowSource::positions_schema()));
        let source = RowSource::Positions(Arc::from(counts));
        let start = || ShardStream::start(source, &shard, &cursor, 1, output);
        let stream = py.detach(start).map_err(to_py)?;
        Ok(BatchStream::new(stream, Arc::clone(self.plan.query().session())))
    }

    /// Physical rows of table files are addressed by row range: (start, end) of a split, if known.
    fn row_range(&self, id: u32) -> Option<(u64, u64)> {
        let split = self.plan.splits().get(id as usize)?;
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

    /// The physical row behind each of these output rows, in their order; splits are executed one after the other.
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

    /// Start and end of each row group or stripe of the file of a split, in physical rows; none but for Parquet and ORC.
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

    /// First and one past the last row group or stripe of a Parquet or ORC split.
    fn row_groups(&self, id: u32) -> Option<(u32, u32)> {
        match self.plan.splits().get(id as usize)?.unit {
            SplitUnit::RowGroups { first, count, .. } | SplitUnit::Stripes { first, count, .. } => {
                Some((first, first + count))
            }
            _ => None,
        }
    }
}

impl PyPlan {
    fn output(&self, tensor_options: Option<&str>) -> Result<Output> {
        let schema = self.plan.schema();
        let Some(text) = tensor_options else { return Ok(Output::Arrow(schema)) };
        let options: TensorOptions = serde_json::from_str(text)
            .map_err(|error| Error::config(format!("bad tensor options: {error}")))?;
        Ok(Output::Tensors(Converter::try_new(&schema, &options)?))
    }
}
