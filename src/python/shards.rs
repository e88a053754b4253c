//! The shards of an epoch.

use std::sync::Arc;

use pyo3::prelude::*;
use serde::Deserialize;

use super::error::to_py;
use super::plan::PyPlan;
use crate::partition::{
    Layout, OrderKey, Permutation, Run, Shard, ShardCursor, Stock, cursor_of, resume, weight,
};
use crate::session::Plan;
use crate::stage::Stage;
use crate::stream::RowSource;
use crate::{Error, Result};

/// What the shards of an epoch follow from, beside the plan.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    layout: Layout,
    seed: u64,
    epoch: u64,
    /// Output rows by split, where counted.
    counts: Option<Vec<u64>>,
    exclude: Vec<(u32, u64, u64)>,
    /// By split, its source in a mixture.
    sources: Vec<u32>,
    source_weights: Vec<u64>,
    stop_first: bool,
    /// The runs of the epoch before this one.
    runs: Vec<Run>,
}

/// All shards of an epoch, in reading order.
#[pyclass(name = "Shards", module = "tensorquery._core", frozen)]
pub struct PyShards {
    shards: Vec<Arc<Shard>>,
    workers: usize,
    /// Keys the permutation of all rows, and the rows of a run of it.
    permuted: Option<(u64, u64)>,
}

/// Rows by split of a shard: split, first row, one past the last where known.
type PieceRow = (u32, u64, Option<u64>);

#[pymethods]
impl PyShards {
    /// Deals a plan's rows. `request` is JSON; `lists` are the splits by shard where a custom strategy deals.
    #[staticmethod]
    fn deal(
        py: Python<'_>,
        plan: &PyPlan,
        request: &str,
        lists: Option<Vec<Vec<u32>>>,
    ) -> PyResult<Self> {
        let plan = plan.plan();
        let deal = || -> Result<Self> {
            let request: Request = serde_json::from_str(request).map_err(unreadable)?;
            let stock = match request.layout.permuted {
                Some(run) => {
                    let rows = request.counts.iter().flatten().sum();
                    Stock::of_runs(rows, run)
                }
                None => Stock {
                    weights: plan.splits().iter().map(weight).collect(),
                    counts: request.counts,
                    sources: request.sources,
                    source_weights: request.source_weights,
                    stop_first: request.stop_first,
                    exclude: request.exclude,
                },
            };
            let fingerprint = plan.fingerprint().as_bytes();
            let key = OrderKey { seed: request.seed, epoch: request.epoch, fingerprint };
            let workers = request.layout.workers();
            let shards = resume(&stock, &request.runs, &request.layout, lists.as_deref(), key)?;
            let shards = shards.into_iter().map(Arc::new).collect();
            let permuted = request.layout.permuted.map(|run| (key.of_permutation(), run));
            Ok(Self { shards, workers, permuted })
        };
        py.detach(deal).map_err(to_py)
    }

    /// Batches and rows of a shard, repeated rows included; None where they are not counted.
    fn size(&self, rank: usize, worker: usize) -> PyResult<(Option<u64>, Option<u64>)> {
        let shard = self.get(rank, worker).map_err(to_py)?;
        Ok((shard.batches(), shard.schedule.rows().or_else(|| shard.rows())))
    }

    /// Rows of a shard without those that it repeats; None where they are not counted.
    fn rows(&self, rank: usize, worker: usize) -> PyResult<Option<u64>> {
        Ok(self.get(rank, worker).map_err(to_py)?.rows())
    }

    /// The rows that lie at these positions of a permutation of `len` rows, by their run and the position in it.
    fn permuted(&self, positions: Vec<(u64, u64)>, len: u64) -> PyResult<Vec<u64>> {
        let Some((key, run)) = self.permuted else {
            return Err(to_py(Error::config("the rows of these shards are not permuted")));
        };
        let permutation = Permutation::new(key, len);
        let row = |(number, row): (u64, u64)| match number * run + row {
            at if at < len => Ok(permutation.at(at)),
            at => Err(to_py(Error::config(format!("position {at} must be in 0..{len}")))),
        };
        positions.into_iter().map(row).collect()
    }

    /// Whether the number of a shard's batches is known to it before it ends.
    fn is_fixed(&self, rank: usize, worker: usize) -> PyResult<bool> {
        Ok(self.get(rank, worker).map_err(to_py)?.schedule.batches().is_some())
    }

    /// How far a shard came in `run` (JSON), which had the same shards: as numbers.
    fn cursor_of(&self, run: &str, rank: usize, worker: usize) -> PyResult<Vec<u64>> {
        let run: Run = serde_json::from_str(run).map_err(|error| to_py(unreadable(error)))?;
        let shard = self.get(rank, worker).map_err(to_py)?;
        Ok(cursor_of(&run, shard, rank, worker).map_err(to_py)?.encode())
    }

    /// The cursor of a shard of counted rows after so many batches.
    fn cursor_at(&self, rank: usize, worker: usize, batches: u64) -> PyResult<Vec<u64>> {
        Ok(self.get(rank, worker).map_err(to_py)?.cursor_at(batches).encode())
    }

    /// How many pieces the workers of a rank take.
    fn num_pieces(&self, rank: usize) -> PyResult<usize> {
        let shard = self.get(rank, 0).map_err(to_py)?;
        Ok(shard.lanes.iter().map(|lane| lane.pieces.len()).sum())
    }

    /// The pieces of a shard in reading order, lane by lane; the rest of a window stands for its splits.
    fn pieces(&self, rank: usize, worker: usize) -> PyResult<Vec<PieceRow>> {
        use crate::partition::Source;
        let shard = self.get(rank, worker).map_err(to_py)?;
        let mut rows = Vec::new();
        for piece in shard.lanes.iter().flat_map(|lane| &lane.pieces) {
            match piece.source {
                Source::Split(id) => rows.push((id, piece.start, piece.end)),
                Source::Window(_) => {
                    let mut ids = Vec::new();
                    piece.split_ids(&mut ids);
                    rows.extend(ids.into_iter().map(|id| (id, 0, None)));
                }
            }
        }
        Ok(rows)
    }
}

fn unreadable(error: serde_json::Error) -> Error {
    Error::checkpoint("the state cannot be read").with_source(error)
}

impl PyShards {
    fn get(&self, rank: usize, worker: usize) -> Result<&Arc<Shard>> {
        self.shards.get(rank * self.workers + worker).filter(|_| worker < self.workers).ok_or_else(
            || Error::config(format!("there is no shard of rank {rank}, worker {worker}")),
        )
    }

    /// Where the rows of these shards lie: in the plan, or in a stage of it.
    pub fn source(&self, plan: &Plan, stage: Option<&Arc<Stage>>) -> Result<RowSource> {
        match (self.permuted, stage) {
            (None, None) => Ok(RowSource::Plan(plan.epoch()?)),
            (Some((key, rows)), Some(stage)) => {
                let permutation = Permutation::new(key, stage.num_rows());
                Ok(RowSource::Permuted { stage: Arc::clone(stage), permutation, rows })
            }
            _ => {
                Err(Error::config("shards of permuted rows, and they alone, are read from a stage"))
            }
        }
    }

    /// What a rank's worker takes pieces from, with windows of its own; and how many pieces there are.
    pub fn of_taker(&self, rank: usize, worker: usize) -> Result<(Shard, u32)> {
        let shard = self.get(rank, 0)?.of_taker(worker);
        let pieces = shard.lanes.iter().map(|lane| lane.pieces.len() as u32).sum();
        Ok((shard, pieces))
    }

    /// One shard, and its cursor from numbers; none is its start.
    pub fn at(
        &self,
        rank: usize,
        worker: usize,
        cursor: &[u64],
    ) -> Result<(Arc<Shard>, ShardCursor)> {
        let shard = self.get(rank, worker)?;
        let cursor = match cursor {
            [] => shard.start(),
            numbers => ShardCursor::decode(numbers, &shard.lanes)?,
        };
        Ok((Arc::clone(shard), cursor))
    }
}
