//! The shards of an epoch.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde::Deserialize;

use super::error::to_py;
use super::plan::PyPlan;
use super::row_store::PyStage;
use super::series::PyWindows;
use super::wait::{at_once, compute, interruptible};
use crate::session::Plan;
use crate::sharding::{
    EarlierRun, Layout, Left, Order, OrderKey, Permutation, Ramp, RankShare, Shard, ShardCursor,
    ShardInput, Stop, cursor_of, left_after, resume, shares, weight,
};
use crate::stream::RowSource;
use crate::{Error, Result};

/// The inputs that decide an epoch's shards, beside the plan and its counts.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    layout: Layout,
    seed: u64,
    epoch: u64,
    exclude: Vec<(u32, u64, u64)>,
    source_weights: Vec<u64>,
    #[serde(default)]
    ramp: Option<Ramp>,
    stop_first: bool,
    /// Of what is left of an epoch: see [`ShardInput`].
    #[serde(default)]
    steps: u64,
    #[serde(default)]
    anew: bool,
}

/// A deal that runs in the background: its request, and the rows that are dealt.
struct Deal {
    plan: Arc<Plan>,
    request: String,
    counts: Option<Vec<u64>>,
    sources: Vec<u32>,
    /// What is left of an epoch that was begun, as bytes.
    left: Option<Vec<u8>>,
}

impl Deal {
    fn of(
        plan: &PyPlan,
        request: &str,
        counts: Option<Vec<u64>>,
        sources: Vec<u32>,
        left: Option<Vec<u8>>,
    ) -> Self {
        Self { plan: plan.plan(), request: request.to_owned(), counts, sources, left }
    }

    /// Runs it with the request, its input, what is left, and the key of the order.
    fn run<T>(
        self,
        stop: Stop,
        work: impl FnOnce(&Request, &ShardInput, Option<&Left>, OrderKey<'_>) -> Result<T>,
    ) -> Result<T> {
        let mut request = Request::parse(&self.request)?;
        let input = request.input(&self.plan, self.counts, self.sources)?;
        let input = ShardInput { stop, ..input };
        let left = self.left.map(|bytes| Left::decode(&bytes, &input)).transpose()?;
        let key = request.key(self.plan.fingerprint().as_bytes());
        work(&request, &input, left.as_ref(), key)
    }
}

impl Request {
    fn parse(text: &str) -> Result<Self> {
        serde_json::from_str(text).map_err(unreadable)
    }

    /// The input of the deal. `counts` are output rows by split, where counted; `sources` the
    /// source by split, in a mixture.
    fn input(
        &mut self,
        plan: &Plan,
        counts: Option<Vec<u64>>,
        sources: Vec<u32>,
    ) -> Result<ShardInput> {
        if let Some(run) = self.layout.permuted {
            return Ok(ShardInput::of_runs(counts.iter().flatten().sum(), run));
        }
        Ok(ShardInput {
            weights: plan.whole()?.iter().map(weight).collect(),
            counts,
            sources,
            source_weights: std::mem::take(&mut self.source_weights),
            ramp: self.ramp.take(),
            steps: self.steps,
            anew: self.anew,
            stop_first: self.stop_first,
            exclude: std::mem::take(&mut self.exclude),
            ..ShardInput::default()
        })
    }

    fn key<'a>(&self, fingerprint: &'a [u8]) -> OrderKey<'a> {
        OrderKey { seed: self.seed, epoch: self.epoch, fingerprint }
    }
}

/// The share of one rank, for any number of workers.
#[pyclass(name = "RankShare", module = "tensorquery._core", frozen)]
pub struct PyRankShare {
    share: RankShare,
}

#[pymethods]
impl PyRankShare {
    /// Deals a plan's rows to all ranks. `request` is JSON; `counts` are output rows by split,
    /// where counted, and `sources` the source by split, in a mixture. With `left` (see
    /// `Shards.left_after`) it deals these rows, and with `rank` the list has only the share of
    /// that rank.
    #[staticmethod]
    #[pyo3(signature = (plan, request, counts, sources, left=None, rank=None))]
    fn deal(
        py: Python<'_>,
        plan: &PyPlan,
        request: &str,
        counts: Option<Vec<u64>>,
        sources: Vec<u32>,
        left: Option<Vec<u8>>,
        rank: Option<u32>,
    ) -> PyResult<Vec<Self>> {
        let deal = Deal::of(plan, request, counts, sources, left);
        let work = move |stop| {
            deal.run(stop, |request, input, left, _key| {
                let shares = shares(input, left, &request.layout, None)?;
                let wanted = |share: &RankShare| rank.is_none_or(|rank| share.rank() == rank);
                Ok(shares.into_iter().filter(wanted).map(|share| Self { share }).collect())
            })
        };
        interruptible(py, work)
    }

    /// Decodes a share that `encode` wrote.
    #[staticmethod]
    fn decode(bytes: &[u8]) -> PyResult<Self> {
        Ok(Self { share: at_once(|| RankShare::decode(bytes))? })
    }

    /// As bytes, for another process.
    fn encode<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &at_once(|| self.share.encode())?))
    }

    #[getter]
    fn rank(&self) -> u32 {
        self.share.rank()
    }

    /// Ids of the splits that it reads, ascending.
    fn split_ids(&self) -> Vec<u32> {
        self.share.split_ids()
    }

    /// The total weight of its pieces, as a float.
    #[getter]
    fn weight(&self) -> f64 {
        self.share.weight() as f64
    }

    /// The shards of the rank's workers in an epoch. `request` is JSON, as for `deal`.
    fn shards(&self, py: Python<'_>, plan: &PyPlan, request: &str) -> PyResult<PyShards> {
        let plan = plan.plan();
        let deal = || -> Result<PyShards> {
            let request = Request::parse(request)?;
            let key = request.key(plan.fingerprint().as_bytes());
            let shards = self.share.shards(&request.layout, key)?;
            let first_rank = self.share.rank() as usize;
            Ok(PyShards::new(shards, first_rank, &request.layout, key))
        };
        compute(py, deal)
    }
}

/// The shards of an epoch in reading order: of all ranks, or of one.
#[pyclass(name = "Shards", module = "tensorquery._core", frozen)]
pub struct PyShards {
    shards: Vec<Arc<Shard>>,
    first_rank: usize,
    workers: usize,
    /// Workers of a rank that take its pieces.
    takers: usize,
    /// Keys the permutation of all rows, and the rows of a run of it.
    permuted: Option<(u64, u64)>,
}

/// Rows by split of a shard: split, first row, one past the last where known.
type PieceRow = (u32, u64, Option<u64>);

#[pymethods]
impl PyShards {
    /// Deals a plan's rows to the shards of all ranks; see `RankShare.deal`. `lists` are the splits
    /// by shard where a custom strategy deals.
    #[staticmethod]
    #[pyo3(signature = (plan, request, counts, sources, lists=None, left=None))]
    fn deal(
        py: Python<'_>,
        plan: &PyPlan,
        request: &str,
        counts: Option<Vec<u64>>,
        sources: Vec<u32>,
        lists: Option<Vec<Vec<u32>>>,
        left: Option<Vec<u8>>,
    ) -> PyResult<Self> {
        let deal = Deal::of(plan, request, counts, sources, left);
        let work = move |stop| {
            deal.run(stop, |request, input, left, key| {
                let shards = resume(input, left, &request.layout, lists.as_deref(), key)?;
                Ok(Self::new(shards, 0, &request.layout, key))
            })
        };
        interruptible(py, work)
    }

    /// What is left of an epoch after `run` (JSON), as bytes; the other arguments are those with
    /// which its shards were dealt.
    #[staticmethod]
    #[pyo3(signature = (plan, request, counts, sources, run, lists=None, left=None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of one Python call")]
    fn left_after<'py>(
        py: Python<'py>,
        plan: &PyPlan,
        request: &str,
        counts: Option<Vec<u64>>,
        sources: Vec<u32>,
        run: &str,
        lists: Option<Vec<Vec<u32>>>,
        left: Option<Vec<u8>>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let run: EarlierRun =
            serde_json::from_str(run).map_err(|error| to_py(unreadable(error)))?;
        let deal = Deal::of(plan, request, counts, sources, left);
        let work = move |stop| {
            deal.run(stop, |_request, input, left, key| {
                Ok(left_after(input, left, &run, lists.as_deref(), key)?.encode())
            })
        };
        Ok(PyBytes::new(py, &interruptible(py, work)?))
    }

    /// The rows of an epoch without those that `request` excludes, as bytes like those of
    /// `left_after`: what is left after `depth` runs, which delivered the excluded rows.
    #[staticmethod]
    fn left_without<'py>(
        py: Python<'py>,
        plan: &PyPlan,
        request: &str,
        counts: Vec<u64>,
        depth: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let deal = Deal::of(plan, request, Some(counts), Vec::new(), None);
        let work = move |stop| {
            deal.run(stop, |_request, input, _left, _key| {
                Ok(Left::new(depth, input.pieces()).encode())
            })
        };
        Ok(PyBytes::new(py, &interruptible(py, work)?))
    }

    /// Batches and rows of a shard, repeated rows included; None where they are not counted.
    fn size(&self, rank: usize, worker: usize) -> PyResult<(Option<u64>, Option<u64>)> {
        let shard = self.get(rank, worker).map_err(to_py)?;
        Ok((shard.batches(), shard.delivered_rows()))
    }

    /// Rows of a shard without repeated ones; None if they are not counted.
    fn rows(&self, rank: usize, worker: usize) -> PyResult<Option<u64>> {
        Ok(self.get(rank, worker).map_err(to_py)?.rows())
    }

    /// The rows that lie at these positions, by their run and the position in it: of a permutation
    /// of `len` rows, or of the draws from `stage`.
    #[pyo3(signature = (positions, len, stage=None))]
    fn permuted(
        &self,
        py: Python<'_>,
        positions: Vec<(u64, u64)>,
        len: u64,
        stage: Option<&PyStage>,
    ) -> PyResult<Vec<u64>> {
        let find = || -> Result<Vec<u64>> {
            let Some((key, run)) = self.permuted else {
                return Err(Error::config("the rows of these shards are not permuted"));
            };
            let order = match stage.and_then(PyStage::drawing) {
                Some(drawing) => drawing.order(key)?,
                None => Order::from(Permutation::new(key, len)),
            };
            let row = |(number, row): (u64, u64)| match number * run + row {
                at if at < order.len() => Ok(order.at(at)),
                at => Err(Error::config(format!("position {at} must be in 0..{}", order.len()))),
            };
            positions.into_iter().map(row).collect()
        };
        compute(py, find)
    }

    /// Returns true if the number of a shard's batches is known to it before it ends.
    fn is_fixed(&self, rank: usize, worker: usize) -> PyResult<bool> {
        Ok(self.get(rank, worker).map_err(to_py)?.schedule.batches().is_some())
    }

    /// How far a shard came in `run` (JSON), which had the same shards: as numbers.
    fn cursor_of(&self, run: &str, rank: usize, worker: usize) -> PyResult<Vec<u64>> {
        let run: EarlierRun =
            serde_json::from_str(run).map_err(|error| to_py(unreadable(error)))?;
        let shard = self.get(rank, worker).map_err(to_py)?;
        at_once(|| Ok(cursor_of(&run, shard, rank, worker)?.encode()))
    }

    /// The cursor of a shard of counted rows after so many batches.
    fn cursor_at(&self, rank: usize, worker: usize, batches: u64) -> PyResult<Vec<u64>> {
        at_once(|| Ok(self.get(rank, worker)?.cursor_at(batches).encode()))
    }

    /// The cursor of a shard after so many batches that consumed `rows` of its counted rows.
    fn cursor_after(
        &self,
        rank: usize,
        worker: usize,
        batches: u64,
        rows: u64,
    ) -> PyResult<Vec<u64>> {
        at_once(|| Ok(self.get(rank, worker)?.cursor_after(batches, rows)?.encode()))
    }

    /// How many pieces the workers of a rank take.
    fn num_pieces(&self, rank: usize) -> PyResult<usize> {
        let shard = self.get(rank, 0).map_err(to_py)?;
        Ok(shard.lanes.iter().map(|lane| lane.pieces.len()).sum())
    }

    /// The pieces of a shard in reading order, lane by lane; the rest of a window stands for its
    /// splits.
    fn pieces(&self, rank: usize, worker: usize) -> PyResult<Vec<PieceRow>> {
        use crate::sharding::Source;
        let shard = self.get(rank, worker).map_err(to_py)?;
        let mut rows = Vec::new();
        for piece in shard.lanes.iter().flat_map(|lane| lane.rests.iter().chain(&lane.pieces)) {
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
    fn new(shards: Vec<Shard>, first_rank: usize, layout: &Layout, key: OrderKey<'_>) -> Self {
        let permuted = layout.permuted.map(|run| (key.of_permutation(), run));
        let shards = shards.into_iter().map(Arc::new).collect();
        let takers = layout.num_workers as usize;
        Self { shards, first_rank, workers: layout.workers(), takers, permuted }
    }

    fn get(&self, rank: usize, worker: usize) -> Result<&Arc<Shard>> {
        let index = |rank: usize| rank * self.workers + worker;
        rank.checked_sub(self.first_rank)
            .and_then(|rank| self.shards.get(index(rank)))
            .filter(|_| worker < self.workers)
            .ok_or_else(|| {
                let ranks = self.first_rank..self.first_rank + self.shards.len() / self.workers;
                Error::config(format!(
                    "there is no shard of rank {rank}, worker {worker}; the ranks here are {ranks:?}"
                ))
            })
    }

    /// Where the rows of these shards lie: in the plan, in a stage of it, or as windows over it.
    pub fn source(
        &self,
        plan: &Plan,
        stage: Option<&PyStage>,
        windows: Option<&PyWindows>,
    ) -> Result<RowSource> {
        match (self.permuted, stage) {
            (None, None) => {
                let plan = plan.epoch()?;
                Ok(match windows.map(|windows| Arc::clone(windows.reader())) {
                    Some(reader) => RowSource::Windows { plan, reader },
                    None => RowSource::Plan(plan),
                })
            }
            (Some((key, rows)), Some(stage)) => {
                let order = match stage.drawing() {
                    Some(drawing) => drawing.order(key)?,
                    None => Permutation::new(key, stage.stage().num_rows()).into(),
                };
                Ok(RowSource::Permuted { stage: Arc::clone(stage.stage()), order, rows })
            }
            _ => {
                Err(Error::config("shards of permuted rows, and they alone, are read from a stage"))
            }
        }
    }

    /// The shard from which a rank's worker takes pieces, with windows of its own, and the number
    /// of these pieces.
    pub fn of_taker(&self, rank: usize, worker: usize) -> Result<(Shard, u32)> {
        let shard = self.get(rank, 0)?.of_taker(worker, self.takers);
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
