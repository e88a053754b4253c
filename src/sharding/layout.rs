//! The input of a deal: the splits of a plan, layouts, and the runs of an epoch.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::cursor::Mixing;
use super::even::Remainder;
use super::order::{derive_key, digest};
use super::plan::Builtin;
use super::ramp::Ramp;
use super::row_slice::{RowSlice, Source};
use super::stop::Stop;
use crate::{Error, Result};

/// Tells the key of a permutation of all rows from other keys.
const PERMUTED: u64 = 0x7065_726d;

/// How an epoch is divided: the part of the order that is not the query's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layout {
    /// Number of ranks.
    pub world_size: u32,
    /// Worker processes on each rank; 0 means that the training process reads.
    pub num_workers: u32,
    /// Rows per batch.
    pub batch_size: u64,
    /// The policy for rows that do not divide evenly.
    pub remainder: Remainder,
    /// Whether the workers of a rank take its pieces one by one; otherwise they are dealt to them.
    pub dynamic: bool,
    /// Whether shares are exact, by counted rows; otherwise by weight.
    pub counted: bool,
    /// A fixed number of partitions, whose order does not depend on the topology.
    pub partitions: Option<u32>,
    /// How splits are dealt; None where a custom strategy does it.
    pub strategy: Option<Builtin>,
    /// Whether the splits are permuted.
    pub shuffle: bool,
    /// Rows of the runs into which all rows are cut after they were permuted; None deals the plan's
    /// splits.
    pub permuted: Option<u64>,
    /// How the pieces of a lane are mixed.
    pub mixing: Mixing,
    /// Whether rows on which a transform fails are left out, and batches filled up with the rows
    /// that follow. Then a step does not say how many rows were consumed; cursors do.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub refills: bool,
}

/// The input of a deal, equal for every layout.
#[derive(Clone, Debug, Default)]
pub struct ShardInput {
    /// By split: the weight for balancing.
    pub weights: Vec<u64>,
    /// By split: its output rows, where they were counted.
    pub counts: Option<Vec<u64>>,
    /// By split: its source in a mixture; empty where there is one source.
    pub sources: Vec<u32>,
    /// By source: its weight in a mixture.
    pub source_weights: Vec<u64>,
    /// How the sources' weights change, where they do.
    pub ramp: Option<Ramp>,
    /// Steps of the epoch before what is left of it.
    pub steps: u64,
    /// Whether what is left has other weights than the rows before, so that the end of the epoch
    /// follows from it alone.
    pub anew: bool,
    /// Whether a mixture ends with the first source that runs out.
    pub stop_first: bool,
    /// Output rows of splits that are left out: split, first row, one past the last.
    pub exclude: Vec<(u32, u64, u64)>,
    /// Ends a long deal.
    pub stop: Stop,
}

/// The values on which an epoch's order depends, beside the layout.
#[derive(Clone, Copy, Debug)]
pub struct OrderKey<'a> {
    /// The user's seed.
    pub seed: u64,
    /// The number of the pass.
    pub epoch: u64,
    /// The plan's.
    pub fingerprint: &'a [u8],
}

impl OrderKey<'_> {
    /// Keys the permutation of all rows: the same for every topology.
    pub fn of_permutation(&self) -> u64 {
        derive_key(&[PERMUTED, self.seed, self.epoch, digest(self.fingerprint)])
    }
}

/// A run of the same epoch before this one, and how far each of its shards came.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlierRun {
    /// How it divided the rows.
    pub layout: Layout,
    /// Batches that every rank received, where `cursors` does not say more.
    pub step: u64,
    /// By rank, and there by worker: a [`ShardCursor`] as numbers; none where the worker has not
    /// begun.
    #[serde(default)]
    pub cursors: BTreeMap<u32, Vec<Vec<u64>>>,
}

/// Bounds on the requests of a state, far above those of any run.
const MOST_SHARDS: u64 = 1 << 20;
const MOST_BATCH_ROWS: u64 = 1 << 40;
pub(super) const MOST_WIDTH: u32 = 1 << 16;

impl Layout {
    /// Checks the numbers of a layout that was read from a state.
    ///
    /// # Errors
    /// `Checkpoint` where no run can have had it.
    pub fn check(&self) -> Result<()> {
        let shards = u64::from(self.world_size) * u64::from(self.num_workers.max(1));
        let sane = (1..=MOST_SHARDS).contains(&shards)
            && (1..=MOST_BATCH_ROWS).contains(&self.batch_size)
            && self.partitions.is_none_or(|bins| (1..=MOST_SHARDS).contains(&u64::from(bins)))
            && self.permuted != Some(0)
            && self.mixing.window != Some(0)
            && (1..=MOST_WIDTH).contains(&self.mixing.width)
            && self.mixing.chunk > 0
            && !(self.dynamic
                && (self.counted || self.num_workers == 0 || self.partitions.is_some()))
            && !(self.refills
                && (!self.counted
                    || self.remainder != Remainder::Even
                    || self.partitions.is_some()));
        if sane {
            return Ok(());
        }
        Err(Error::checkpoint(
            "the state is damaged: its layout has numbers that no run has; load an earlier state",
        ))
    }

    /// Shards of each rank, to which pieces are dealt.
    pub fn workers(&self) -> usize {
        if self.dynamic { 1 } else { self.num_workers.max(1) as usize }
    }

    /// Returns true if the rows that a shard has consumed follow from its steps.
    pub(super) fn follows_steps(&self) -> bool {
        self.is_exact() && !self.refills
    }

    /// Returns true if every shard gets its exact number of rows.
    pub(super) fn is_exact(&self) -> bool {
        self.counted && self.remainder != Remainder::Uneven
    }
}

impl ShardInput {
    /// `rows` rows in runs of `run` rows.
    pub fn of_runs(rows: u64, run: u64) -> Self {
        let run = run.max(1);
        let runs: Vec<u64> =
            (0..rows.div_ceil(run)).map(|number| run.min(rows - number * run)).collect();
        Self { weights: runs.clone(), counts: Some(runs), ..Self::default() }
    }

    /// All splits without excluded rows, in the order of the plan.
    pub fn pieces(&self) -> Vec<RowSlice> {
        let mut exclude = self.exclude.clone();
        exclude.sort_unstable();
        let mut gaps = exclude.into_iter().peekable();
        let mut pieces = Vec::with_capacity(self.weights.len());
        for id in 0..self.weights.len() as u32 {
            let mut rest =
                RowSlice::split(id, self.counts.as_ref().map(|counts| counts[id as usize]));
            while let Some((_, start, end)) = gaps.next_if(|gap| gap.0 <= id) {
                let clip = |row: u64| rest.end.map_or(row, |last| row.min(last)).max(rest.start);
                let (start, end) = (clip(start), clip(end));
                let head = RowSlice { end: Some(start), to_end: false, ..rest.clone() };
                pieces.push(head);
                rest.start = end;
            }
            pieces.push(rest);
        }
        pieces
    }

    /// The weight of a piece: see [`RowSlice::weight`].
    pub(super) fn weight(&self, piece: &RowSlice, counted: bool) -> u64 {
        piece.weight(counted, &|id| self.weight_of_split(id))
    }

    /// The weight of a split, and its rows where they were counted.
    pub(super) fn weight_of_split(&self, id: u32) -> (u64, Option<u64>) {
        (self.weights[id as usize], self.counts.as_ref().map(|counts| counts[id as usize]))
    }

    /// The source of a piece.
    pub(super) fn source(&self, piece: &RowSlice) -> u32 {
        match &piece.source {
            Source::Split(id) => self.sources.get(*id as usize).copied().unwrap_or(0),
            // Its lane may have been a partition.
            Source::Window(window) if (window.lane as usize) < self.source_weights.len() => {
                window.lane
            }
            Source::Window(_) => 0,
        }
    }
}
