//! The splits of every shard, and how even they are.

use serde::{Deserialize, Serialize};

use super::lpt::{lpt, round_robin};
use super::shard::ShardSpec;
use crate::formats::Split;
use crate::{Error, Result};

/// The strategies that come with the crate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Builtin {
    /// Longest processing time first: even by weight.
    #[default]
    Lpt,
    /// In turn: even by the number of splits.
    RoundRobin,
}

impl Builtin {
    fn deal(self, weights: &[u64], bins: usize) -> Vec<u32> {
        match self {
            Self::Lpt => lpt(weights, bins),
            Self::RoundRobin => round_robin(weights.len(), bins),
        }
    }
}

/// The weight of a split: its projected bytes, or its rows if no bytes are stored, as for a query
/// that only counts.
pub fn weight(split: &Split) -> u64 {
    if split.bytes > 0 { split.bytes } else { split.rows.unwrap_or(0) }
}

/// Which shard reads which splits: each split in exactly one list.
///
/// Split ids are positions in the plan's list of splits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    shards: Vec<Vec<u32>>,
    shards_per_rank: usize,
}

impl Assignment {
    /// Divides `splits` over the ranks of `spec`, and the splits of each rank over its workers.
    ///
    /// Two levels, so that a rank's rows do not depend on its number of workers: ranks are as even
    /// as one level over ranks makes them, and a run resumed with another worker count moves no
    /// split between ranks. Within a shard the splits keep the order of the plan.
    pub fn assign(splits: &[Split], spec: &ShardSpec, strategy: Builtin) -> Self {
        let weights: Vec<u64> = splits.iter().map(weight).collect();
        let workers = spec.shards_per_rank();
        let mut shards = vec![Vec::new(); spec.num_shards()];
        let all: Vec<u32> = (0..splits.len() as u32).collect();
        let ranks = group(&all, &strategy.deal(&weights, spec.world_size()), spec.world_size());
        for (rank, own) in ranks.into_iter().enumerate() {
            let own_weights: Vec<u64> = own.iter().map(|&id| weights[id as usize]).collect();
            let lists = group(&own, &strategy.deal(&own_weights, workers), workers);
            for (worker, list) in lists.into_iter().enumerate() {
                shards[rank * workers + worker] = list;
            }
        }
        Self { shards, shards_per_rank: workers }
    }

    /// Takes the lists of a custom strategy, one per shard, and checks that they cover the splits
    /// `0..num_splits` exactly once.
    pub fn from_lists(lists: Vec<Vec<u32>>, num_splits: usize, spec: &ShardSpec) -> Result<Self> {
        let wanted = spec.num_shards();
        if lists.len() != wanted {
            return Err(Error::config(format!(
                "the split strategy returned {} lists, but {wanted} are wanted: one per shard \
                 (world_size {} times {} shards per rank)",
                lists.len(),
                spec.world_size(),
                spec.shards_per_rank(),
            )));
        }
        check_cover(&lists, num_splits)?;
        Ok(Self { shards: lists, shards_per_rank: spec.shards_per_rank() })
    }

    /// The split ids of every shard, in reading order; index `rank * workers + worker`.
    pub fn shards(&self) -> &[Vec<u32>] {
        &self.shards
    }

    /// The ids of each shard, taken out.
    pub fn into_shards(self) -> Vec<Vec<u32>> {
        self.shards
    }

    /// Summarises each shard. `splits` is the list that was assigned.
    pub fn summaries(&self, splits: &[Split]) -> Vec<ShardSummary> {
        let summary = |(index, ids): (usize, &Vec<u32>)| {
            let own = || ids.iter().filter_map(|&id| splits.get(id as usize));
            ShardSummary {
                rank: index / self.shards_per_rank,
                worker: index % self.shards_per_rank,
                splits: ids.len(),
                rows: own()
                    .map(|split| split.rows)
                    .try_fold(0, |sum: u64, rows| Some(sum.saturating_add(rows?))),
                bytes: own().fold(0, |sum, split| sum.saturating_add(split.bytes)),
            }
        };
        self.shards.iter().enumerate().map(summary).collect()
    }

    /// How uneven the weights of `splits`, the list that was assigned, lie.
    pub fn imbalance(&self, splits: &[Split]) -> Imbalance {
        let load = |ids: &Vec<u32>| -> u128 {
            ids.iter()
                .filter_map(|&id| splits.get(id as usize))
                .map(|split| u128::from(weight(split)))
                .sum()
        };
        let shards: Vec<u128> = self.shards.iter().map(load).collect();
        let ranks: Vec<u128> =
            shards.chunks(self.shards_per_rank).map(|loads| loads.iter().sum()).collect();
        Imbalance { shards: max_over_mean(&shards), ranks: max_over_mean(&ranks) }
    }
}

/// The reads of one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardSummary {
    /// The rank.
    pub rank: usize,
    /// The worker on that rank.
    pub worker: usize,
    /// Number of splits.
    pub splits: usize,
    /// Rows before any filter; None where a split's format does not say.
    pub rows: Option<u64>,
    /// Stored bytes of the projected columns.
    pub bytes: u64,
}

/// The heaviest load over the mean load: 1.0 is even, 2.0 waits twice as long as needed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Imbalance {
    /// Over all shards.
    pub shards: f64,
    /// Over all ranks: the part for which every training step waits.
    pub ranks: f64,
}

/// The items of each bin, in the order of `items`.
fn group(items: &[u32], bin_of: &[u32], bins: usize) -> Vec<Vec<u32>> {
    let mut groups = vec![Vec::new(); bins];
    for (&item, &bin) in items.iter().zip(bin_of) {
        groups[bin as usize].push(item);
    }
    groups
}

fn max_over_mean(loads: &[u128]) -> f64 {
    let total: u128 = loads.iter().sum();
    let heaviest = loads.iter().max().copied().unwrap_or(0);
    if total == 0 { 1.0 } else { heaviest as f64 * loads.len() as f64 / total as f64 }
}

/// Every split of `0..num_splits` in exactly one list, or an error that names those which are not.
fn check_cover(lists: &[Vec<u32>], num_splits: usize) -> Result<()> {
    let mut times = vec![0_u32; num_splits];
    let mut unknown = Vec::new();
    for &id in lists.iter().flatten() {
        match times.get_mut(id as usize) {
            Some(times) => *times = times.saturating_add(1),
            None => unknown.push(id as usize),
        }
    }
    let which = |wrong: fn(u32) -> bool| -> Vec<usize> {
        times.iter().enumerate().filter(|(_, times)| wrong(**times)).map(|(id, _)| id).collect()
    };
    let problems: Vec<String> = [
        ("left out", which(|times| times == 0)),
        ("repeated", which(|times| times > 1)),
        ("invented", unknown),
    ]
    .into_iter()
    .filter(|(_, ids)| !ids.is_empty())
    .map(|(what, ids)| format!("{what} {}", name_splits(&ids)))
    .collect();
    if problems.is_empty() {
        return Ok(());
    }
    Err(Error::config(format!(
        "the split strategy {}; each of the plan's {num_splits} splits must be in exactly one list",
        problems.join("; it ")
    )))
}

/// `split 7`, or `3 splits (1, 2, 5)`, or `40 splits (0, 1, 2, 3, 4 and 35 more)`.
fn name_splits(ids: &[usize]) -> String {
    const SHOWN: usize = 5;
    if let [id] = ids {
        return format!("split {id}");
    }
    let shown: Vec<String> = ids.iter().take(SHOWN).map(usize::to_string).collect();
    let more = ids.len().saturating_sub(SHOWN);
    let tail = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{} splits ({}{tail})", ids.len(), shown.join(", "))
}
