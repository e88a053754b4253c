//! Plans: splits, their assignment to shards, recipes and streams.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule, PyList};

use super::arrow::schema_capsule;
use super::error::to_py;
use super::stream::BatchStream;
use super::wait::wait;
use crate::partition::{Assignment, Builtin, ShardSpec, derive_key, epoch_order};
use crate::session::{Plan, Recipe};
use crate::split::SplitUnit;
use crate::stream::{Output, ShardStream, StreamOptions};
use crate::tensor::{Converter, TensorOptions};
use crate::{Error, Result};

/// A split: id, path, file size, rows, first row, bytes, unit as text, partition values.
type SplitRow = (u32, String, u64, Option<u64>, u64, u64, String, Vec<(String, Option<String>)>);

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
                    split.first_row,
                    split.bytes,
                    split.unit.to_string(),
                    info.partition_values,
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

    /// Permutes a shard's splits for one epoch.
    fn order(&self, mut ids: Vec<u32>, seed: u64, epoch: u64, shard: u64) -> Vec<u32> {
        epoch_order(&mut ids, seed, epoch, shard, self.plan.fingerprint().as_bytes());
        ids
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

    /// Starts reading splits in the given order. `tensor_options` is JSON; None yields Arrow batches.
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of one Python call")]
    #[pyo3(signature = (ids, batch_size, shuffle_buffer, shuffle_key, threads, tensor_options))]
    fn stream(
        &self,
        py: Python<'_>,
        ids: Vec<u32>,
        batch_size: usize,
        shuffle_buffer: Option<usize>,
        shuffle_key: (u64, u64, u64),
        threads: usize,
        tensor_options: Option<&str>,
    ) -> PyResult<BatchStream> {
        let (seed, epoch, shard) = shuffle_key;
        let options = StreamOptions {
            batch_size,
            shuffle_buffer,
            shuffle_key: derive_key(&[seed, epoch, shard]),
            threads,
        };
        let stream = py.detach(|| self.start(ids, &options, tensor_options)).map_err(to_py)?;
        Ok(BatchStream::new(stream, Arc::clone(self.plan.query().session())))
    }

    /// Physical rows of table files are addressed by row range: (start, end) of a split, if known.
    fn row_range(&self, id: u32) -> Option<(u64, u64)> {
        let split = self.plan.splits().get(id as usize)?;
        split.row_range().map(|range| (range.start, range.end))
    }

    /// The plan whose partitions are splits, as an indented tree.
    fn explain(&self) -> String {
        use datafusion::physical_plan::displayable;
        displayable(self.plan.physical().as_ref()).indent(false).to_string()
    }

    /// First and one past the last row group of a Parquet split.
    fn row_groups(&self, id: u32) -> Option<(u32, u32)> {
        match self.plan.splits().get(id as usize)?.unit {
            SplitUnit::RowGroups { first, count, .. } => Some((first, first + count)),
            _ => None,
        }
    }
}

impl PyPlan {
    fn start(
        &self,
        ids: Vec<u32>,
        options: &StreamOptions,
        tensor_options: Option<&str>,
    ) -> Result<ShardStream> {
        let schema = self.plan.schema();
        let output = match tensor_options {
            Some(text) => {
                let tensor_options: TensorOptions = serde_json::from_str(text)
                    .map_err(|error| Error::config(format!("bad tensor options: {error}")))?;
                Output::Tensors(Converter::try_new(&schema, &tensor_options)?)
            }
            None => Output::Arrow(schema),
        };
        ShardStream::start(self.plan.epoch()?, ids, options, Arc::new(output))
    }
}
