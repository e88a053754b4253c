//! Dealing: from the splits of a plan, and what earlier runs consumed of them, to the shards of an epoch.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::cursor::{Lane, Mixing, Shard, ShardCursor};
use super::even::{Remainder, Schedule, level, proportional, share};
use super::lpt::{lpt, round_robin};
use super::order::{derive_key, digest, epoch_order};
use super::piece::{Piece, Source};
use super::plan::Builtin;
use crate::{Error, Result};

/// Tells keys of one purpose from those of another.
const PARTITION: u64 = 0x7061_7274;
const MIXTURE: u64 = 0x6d69_7865;
const PERMUTED: u64 = 0x7065_726d;
const RESUMED: u64 = 0x7265_7375;

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
    /// What happens to rows that do not divide evenly.
    pub remainder: Remainder,
    /// Whether shares are exact, by counted rows; otherwise by weight.
    pub counted: bool,
    /// A fixed number of partitions, whose order does not depend on the topology.
    pub partitions: Option<u32>,
    /// How splits are dealt; None where a custom strategy does it.
    pub strategy: Option<Builtin>,
    /// Whether the splits are permuted.
    pub shuffle: bool,
    /// Rows of the runs into which all rows are cut after they were permuted; None deals the plan's splits.
    pub permuted: Option<u64>,
    /// How the pieces of a lane are mixed.
    pub mixing: Mixing,
}

/// What is dealt: the same for every layout.
#[derive(Clone, Debug, Default)]
pub struct Stock {
    /// By split: what balancing goes by.
    pub weights: Vec<u64>,
    /// By split: its output rows, where they were counted.
    pub counts: Option<Vec<u64>>,
    /// By split: its source in a mixture; empty where there is one source.
    pub sources: Vec<u32>,
    /// By source: its weight in a mixture.
    pub source_weights: Vec<u64>,
    /// Whether a mixture ends with the first source that runs out.
    pub stop_first: bool,
    /// Output rows of splits that are left out: split, first row, one past the last.
    pub exclude: Vec<(u32, u64, u64)>,
}

/// What the order of an epoch depends on beside the layout.
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
pub struct Run {
    /// How it divided the rows.
    pub layout: Layout,
    /// Batches that every rank received, where `cursors` does not say more.
    pub step: u64,
    /// By rank, and there by worker: a [`ShardCursor`] as numbers; none where the worker has not begun.
    #[serde(default)]
    pub cursors: BTreeMap<u32, Vec<Vec<u64>>>,
}

/// Bounds of what a state may ask for, far above what a run has.
const MOST_SHARDS: u64 = 1 << 20;
const MOST_BATCH_ROWS: u64 = 1 << 40;

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
            && self.mixing.width > 0
            && self.mixing.chunk > 0;
        if sane {
            return Ok(());
        }
        Err(Error::checkpoint(
            "the state is damaged: its layout has numbers that no run has; load an earlier state",
        ))
    }

    fn workers(&self) -> usize {
        self.num_workers.max(1) as usize
    }

    /// Whether every shard gets its exact number of rows.
    fn is_exact(&self) -> bool {
        self.counted && self.remainder != Remainder::Uneven
    }
}

impl Stock {
    /// `rows` rows in runs of `run` rows.
    pub fn of_runs(rows: u64, run: u64) -> Self {
        let run = run.max(1);
        let runs: Vec<u64> =
            (0..rows.div_ceil(run)).map(|number| run.min(rows - number * run)).collect();
        Self { weights: runs.clone(), counts: Some(runs), ..Self::default() }
    }

    /// All splits without what is excluded, in the order of the plan.
    pub fn pieces(&self) -> Vec<Piece> {
        let mut exclude = self.exclude.clone();
        exclude.sort_unstable();
        let mut gaps = exclude.into_iter().peekable();
        let mut pieces = Vec::with_capacity(self.weights.len());
        for id in 0..self.weights.len() as u32 {
            let mut rest = Piece::split(id, self.counts.as_ref().map(|counts| counts[id as usize]));
            while let Some((_, start, end)) = gaps.next_if(|gap| gap.0 <= id) {
                let clip = |row: u64| rest.end.map_or(row, |last| row.min(last)).max(rest.start);
                let (start, end) = (clip(start), clip(end));
                let head = Piece { end: Some(start), to_end: false, ..rest.clone() };
                pieces.push(head);
                rest.start = end;
            }
            pieces.push(rest);
        }
        pieces
    }

    /// What a piece weighs: its part of its split, or, where a layout does not go by counted rows, the whole
    /// split. A run that knows the counts must deal as one that does not.
    fn weight(&self, piece: &Piece, counted: bool) -> u64 {
        match &piece.source {
            Source::Split(id) => {
                let weight = self.weights[*id as usize];
                let all = self.counts.as_ref().map(|counts| counts[*id as usize]);
                match (piece.rows(), all) {
                    (Some(rows), Some(all)) if counted && rows < all => {
                        (u128::from(weight) * u128::from(rows) / u128::from(all)) as u64
                    }
                    _ => weight,
                }
            }
            // It is read from the window's start, whoever holds which part of it.
            Source::Window(window) => {
                window.pieces.iter().map(|piece| self.weight(piece, counted)).sum()
            }
        }
    }

    /// The source of a piece.
    fn source(&self, piece: &Piece) -> u32 {
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

/// The shards of an epoch in reading order, `rank * workers + worker`, after the `runs` before it.
///
/// `lists` are the splits of each shard that a custom strategy dealt for the first run; what is left by one is
/// dealt by weight.
///
/// # Errors
/// `Config` where the layout asks for equal steps that are impossible, or for partitions that the ranks do not
/// divide; `Checkpoint` where a run's cursors are not those of its layout.
pub fn resume(
    stock: &Stock,
    runs: &[Run],
    layout: &Layout,
    lists: Option<&[Vec<u32>]>,
    key: OrderKey<'_>,
) -> Result<Vec<Shard>> {
    let mut pieces = stock.pieces();
    let mut lists = lists;
    for (depth, run) in (0_u64..).zip(runs) {
        run.layout.check()?;
        let mut shards = deal(stock, pieces, &run.layout, lists.take(), depth)?;
        put_in_order(&mut shards, &run.layout, key, depth);
        pieces = left_by(run, &shards)?;
        pieces.sort_by_key(Piece::place);
    }
    let depth = runs.len() as u64;
    let mut shards = deal(stock, pieces, layout, lists, depth).map_err(|error| match depth {
        0 => error,
        _ => error.with_context(
            "these are the rows left of a resumed epoch",
            "resume it with as many ranks as before, or go on with set_epoch(epoch + 1)",
        ),
    })?;
    put_in_order(&mut shards, layout, key, depth);
    Ok(shards)
}

/// What a run left of its shards.
fn left_by(run: &Run, shards: &[Shard]) -> Result<Vec<Piece>> {
    let workers = run.layout.workers();
    if let Some(rank) = run.cursors.keys().find(|rank| **rank >= run.layout.world_size) {
        return Err(Error::checkpoint(format!(
            "the state is damaged: it has a cursor of rank {rank} of {}; load an earlier state",
            run.layout.world_size
        )));
    }
    let mut left = Vec::new();
    for (index, shard) in shards.iter().enumerate() {
        let cursor = cursor_of(run, shard, index / workers, index % workers)?;
        left.extend(shard.remaining(&cursor));
    }
    Ok(left)
}

/// How far a shard of `run` came.
///
/// # Errors
/// `Checkpoint` where the run does not say.
pub fn cursor_of(run: &Run, shard: &Shard, rank: usize, worker: usize) -> Result<ShardCursor> {
    if let Some(workers) = run.cursors.get(&(rank as u32)) {
        let numbers = workers.get(worker).ok_or_else(|| {
            Error::checkpoint(format!("the state of rank {rank} has no cursor of worker {worker}"))
        })?;
        if numbers.is_empty() {
            return Ok(shard.start());
        }
        let cursor = ShardCursor::decode(numbers, &shard.lanes)?;
        if !shard.accepts(&cursor) {
            return Err(Error::checkpoint(format!(
                "the state is damaged: {} batches of worker {worker} of rank {rank} do not have the rows that its \
                 cursor says; load an earlier state",
                cursor.batches
            )));
        }
        return Ok(cursor);
    }
    if !run.layout.is_exact() {
        return Err(Error::checkpoint(format!(
            "the state does not say how far rank {rank} of {} came, and without equal steps that does not \
             follow from the other ranks; join the states of all ranks: \
             load_state_dict(tensorquery.merge_state_dicts([…]))",
            run.layout.world_size
        )));
    }
    let (workers, worker) = (run.layout.workers() as u64, worker as u64);
    let batches = (run.step.saturating_add(workers - 1 - worker)) / workers;
    if shard.batches().is_some_and(|all| batches > all) {
        return Err(Error::checkpoint(format!(
            "the state is damaged: step {} is beyond the {} batches of a shard; load an earlier state",
            run.step,
            shard.batches().unwrap_or(0)
        )));
    }
    Ok(shard.cursor_at(batches))
}

/// Deals pieces to shards, in the order of the pieces.
fn deal(
    stock: &Stock,
    mut pieces: Vec<Piece>,
    layout: &Layout,
    lists: Option<&[Vec<u32>]>,
    depth: u64,
) -> Result<Vec<Shard>> {
    if layout.counted && stock.counts.is_none() && !stock.weights.is_empty() {
        return Err(Error::config(
            "rows are dealt by number, but were not counted; please report it with the state that was loaded",
        ));
    }
    if layout.counted {
        pieces.retain(|piece| !piece.is_empty());
    }
    if let Some(partitions) = layout.partitions {
        return deal_partitions(stock, pieces, layout, partitions);
    }
    let sources = stock.source_weights.len().max(1);
    let mut by_source = vec![Vec::new(); sources];
    for piece in pieces {
        by_source[stock.source(&piece) as usize].push(piece);
    }
    let rows: Vec<u64> = by_source.iter().map(|pieces| rows_of(pieces)).collect();
    let schedules = schedules(stock, layout, &rows)?;
    let quotas = quotas(layout, &schedules, rows.iter().sum());
    let padding = if layout.remainder == Remainder::Pad {
        paddings(stock, &schedules, &quotas)
    } else {
        Vec::new()
    };
    let mut padding = padding.into_iter();
    let mut shards: Vec<Shard> = schedules
        .into_iter()
        .map(|schedule| Shard {
            lanes: Vec::new(),
            lane_weights: stock.source_weights.clone(),
            schedule,
            padding: padding.next().unwrap_or_default(),
        })
        .collect();
    // By source, so that each of them is spread evenly over all shards.
    let lists = lists.filter(|_| depth == 0);
    let mut dealer = Dealer { stock, layout, lists, open: quotas };
    for ((number, pieces), rows) in (0_u32..).zip(by_source).zip(rows) {
        for (shard, pieces) in shards.iter_mut().zip(dealer.deal(pieces, rows)) {
            shard.lanes.push(Lane { pieces, key: 0, mixing: layout.mixing, number });
        }
    }
    Ok(shards)
}

/// Deals one source after the other to shards.
struct Dealer<'a> {
    stock: &'a Stock,
    layout: &'a Layout,
    lists: Option<&'a [Vec<u32>]>,
    /// Rows that each shard still lacks.
    open: Vec<u64>,
}

impl Dealer<'_> {
    /// Pieces of `rows` rows by shard. In two levels, so that what a rank reads does not depend on its number of
    /// workers, and ranks are as even by weight as one level over ranks makes them.
    fn deal(&mut self, pieces: Vec<Piece>, rows: u64) -> Vec<Vec<Piece>> {
        let (ranks, workers) = (self.layout.world_size as usize, self.layout.workers());
        let in_place = self.lists.is_none();
        let of_rank: Vec<u64> = self.open.chunks(workers).map(|open| open.iter().sum()).collect();
        let wanted = part(&of_rank, rows);
        let mut dealt =
            self.group(pieces, ranks, |shard| Some(shard / workers).filter(|rank| *rank < ranks));
        if self.layout.is_exact() {
            level(&mut dealt, &wanted, in_place);
        }
        let mut shards = Vec::with_capacity(self.open.len());
        for (rank, own) in dealt.into_iter().enumerate() {
            let mut own = self.group(own, workers, |shard| {
                shard.checked_sub(rank * workers).filter(|worker| *worker < workers)
            });
            let open = &mut self.open[rank * workers..(rank + 1) * workers];
            if self.layout.is_exact() {
                let wanted = part(open, wanted[rank]);
                open.iter_mut().zip(&wanted).for_each(|(open, wanted)| *open -= wanted);
                level(&mut own, &wanted, in_place);
            }
            shards.extend(own);
        }
        shards
    }

    /// Pieces in `bins` bins: by weight, or where `bin` finds the shard to which a custom strategy gave the split.
    fn group(
        &self,
        pieces: Vec<Piece>,
        bins: usize,
        bin: impl Fn(usize) -> Option<usize>,
    ) -> Vec<Vec<Piece>> {
        let Some(lists) = self.lists else {
            return group(pieces, |pieces, bins| self.by_weight(pieces, bins), bins);
        };
        let mut places: BTreeMap<u32, (usize, usize)> = BTreeMap::new();
        for (shard, ids) in lists.iter().enumerate() {
            places.extend(ids.iter().enumerate().map(|(place, id)| (*id, (shard, place))));
        }
        let mut groups = vec![Vec::new(); bins];
        for piece in pieces {
            let place = match piece.source {
                Source::Split(id) => places.get(&id).copied(),
                Source::Window(_) => None,
            };
            // What was cut off another rank's list comes last, on the last worker.
            let (shard, place) = place.unwrap_or((usize::MAX, usize::MAX));
            match bin(shard) {
                Some(bin) => groups[bin].push((place, piece)),
                None => groups[bins - 1].push((usize::MAX, piece)),
            }
        }
        let in_order = |mut group: Vec<(usize, Piece)>| {
            group.sort_by_key(|(place, piece)| (*place, piece.start));
            group.into_iter().map(|(_, piece)| piece).collect()
        };
        groups.into_iter().map(in_order).collect()
    }

    fn by_weight(&self, pieces: &[Piece], bins: usize) -> Vec<u32> {
        match self.layout.strategy.unwrap_or_default() {
            Builtin::Lpt => {
                let weight = |piece| self.stock.weight(piece, self.layout.counted);
                lpt(&pieces.iter().map(weight).collect::<Vec<_>>(), bins)
            }
            Builtin::RoundRobin => round_robin(pieces.len(), bins),
        }
    }
}

/// `rows` of what is open, in proportion and never more than open.
fn part(open: &[u64], rows: u64) -> Vec<u64> {
    if rows == open.iter().sum::<u64>() { open.to_vec() } else { proportional(rows, open) }
}

fn rows_of(pieces: &[Piece]) -> u64 {
    pieces.iter().filter_map(Piece::rows).sum()
}

/// The batches of every shard.
fn schedules(stock: &Stock, layout: &Layout, rows: &[u64]) -> Result<Vec<Schedule>> {
    let (ranks, workers) = (u64::from(layout.world_size), layout.workers() as u64);
    if !layout.counted {
        let open_ended = Schedule::open_ended(layout.batch_size, layout.remainder);
        return Ok(vec![open_ended; (ranks * workers) as usize]);
    }
    let delivered =
        if stock.stop_first { until_first(rows, &stock.source_weights) } else { rows.iter().sum() };
    let mut schedules = Vec::new();
    for rank in 0..ranks {
        let own = Schedule::of_rank(delivered, ranks, rank, layout.batch_size, layout.remainder)?;
        schedules.extend((0..workers).map(|worker| own.of_worker(workers, worker)));
    }
    Ok(schedules)
}

/// The rows that a mixture delivers until its first source runs out.
fn until_first(rows: &[u64], weights: &[u64]) -> u64 {
    let all: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
    let until =
        |(rows, weight): (&u64, &u64)| u128::from(*rows) * all / u128::from((*weight).max(1));
    let first = rows.iter().zip(weights).map(until).min().unwrap_or(0);
    first.min(rows.iter().map(|rows| u128::from(*rows)).sum()) as u64
}

/// The rows of every shard, of `rows` in all: those of its batches, and of what batches leave over.
fn quotas(layout: &Layout, schedules: &[Schedule], rows: u64) -> Vec<u64> {
    if !layout.is_exact() {
        return vec![0; schedules.len()];
    }
    let (ranks, workers) = (u64::from(layout.world_size), layout.workers());
    let planned: Vec<u64> = schedules.iter().map(|schedule| schedule.rows().unwrap_or(0)).collect();
    let mut quotas = Vec::with_capacity(planned.len());
    for (rank, planned) in (0_u64..).zip(planned.chunks(workers)) {
        let own = share(rows, ranks, rank);
        let mut mine: Vec<u64> = if planned.iter().sum::<u64>() == 0 {
            proportional(own, &vec![1; workers])
        } else {
            planned.to_vec()
        };
        let all: u64 = mine.iter().sum();
        if all < own {
            // More than is delivered: every worker has some of it, so that what is left out varies.
            for (quota, more) in mine.iter_mut().zip(proportional(own - all, planned)) {
                *quota += more;
            }
        }
        // Less than is delivered: the worker of the last batch repeats rows.
        if all > own {
            let first = rank as usize * workers;
            let batches = schedules[first..first + workers].iter().filter_map(Schedule::batches);
            let last = (batches.sum::<u64>() - 1) % workers as u64;
            mine[last as usize] -= all - own;
        }
        quotas.extend(mine);
    }
    quotas
}

/// For every shard the rows that it repeats: the first rows of the plan, handed round.
fn paddings(stock: &Stock, schedules: &[Schedule], quotas: &[u64]) -> Vec<Vec<Piece>> {
    let all = stock.pieces();
    let rows = rows_of(&all);
    let mut at = 0;
    let missing = schedules.iter().zip(quotas).map(|(schedule, quota)| match schedule.rows() {
        Some(rows) => rows - quota.min(&rows),
        None => schedule.batch_size,
    });
    missing
        .map(|missing| {
            let mut own = Vec::new();
            if rows == 0 {
                // Not counted: the whole plan, of which the reader takes what it needs.
                own.extend(all.iter().filter(|_| missing > 0).cloned());
            }
            // Each row once: the reader begins again where it needs more.
            let mut left = missing.min(rows);
            let next = at + missing;
            while left > 0 {
                let piece = nth_row(&all, at % rows);
                let here = piece.rows().unwrap_or(0).min(left);
                own.push(piece.cut(here).0);
                left -= here;
                at += here;
            }
            at = next;
            own
        })
        .collect()
}

/// The rest of the piece in which row `row` of all lies, from that row on.
fn nth_row(pieces: &[Piece], mut row: u64) -> Piece {
    let mut found = pieces[0].clone();
    for piece in pieces {
        let rows = piece.rows().unwrap_or(0);
        found = piece.clone();
        if row < rows {
            break;
        }
        row -= rows;
    }
    found.skip(row)
}

fn group(
    pieces: Vec<Piece>,
    bin_of: impl Fn(&[Piece], usize) -> Vec<u32>,
    bins: usize,
) -> Vec<Vec<Piece>> {
    let bin_of = bin_of(&pieces, bins);
    let mut groups = vec![Vec::new(); bins];
    for (piece, bin) in pieces.into_iter().zip(bin_of) {
        groups[bin as usize].push(piece);
    }
    groups
}

/// `partitions` lists of equal rows, of which each rank has every W-th: what a step delivers over all ranks does
/// not depend on their number.
fn deal_partitions(
    stock: &Stock,
    pieces: Vec<Piece>,
    layout: &Layout,
    partitions: u32,
) -> Result<Vec<Shard>> {
    let (ranks, bins) = (u64::from(layout.world_size), u64::from(partitions));
    if bins % ranks != 0 || (layout.batch_size * ranks) % bins != 0 {
        return Err(Error::config(format!(
            "partitions={partitions} must be a multiple of world_size={ranks}, and batch_size × world_size = {} a \
             multiple of partitions, so that every step takes equal rows from each of them",
            layout.batch_size * ranks
        )));
    }
    let rows = rows_of(&pieces);
    let weights: Vec<u64> = pieces.iter().map(|piece| stock.weight(piece, true)).collect();
    let mut lists = group(pieces, |_, bins| lpt(&weights, bins), partitions as usize);
    let quotas: Vec<u64> = (0..bins).map(|bin| share(rows, bins, bin)).collect();
    level(&mut lists, &quotas, true);
    let mut shards = Vec::new();
    for rank in 0..ranks {
        let schedule = Schedule::of_rank(rows, ranks, rank, layout.batch_size, layout.remainder)?;
        shards.push(Shard {
            lanes: Vec::new(),
            lane_weights: Vec::new(),
            schedule,
            padding: Vec::new(),
        });
    }
    for (number, pieces) in (0_u32..).zip(lists) {
        let lane = Lane { pieces, key: 0, mixing: layout.mixing, number };
        shards[(u64::from(number) % ranks) as usize].lanes.push(lane);
    }
    if layout.remainder == Remainder::Pad {
        let schedules: Vec<Schedule> = shards.iter().map(|shard| shard.schedule.clone()).collect();
        let quotas: Vec<u64> = shards.iter().map(|shard| shard.rows().unwrap_or(0)).collect();
        for (shard, padding) in shards.iter_mut().zip(paddings(stock, &schedules, &quotas)) {
            shard.padding = padding;
        }
    }
    Ok(shards)
}

/// Permutes the pieces of every lane, and keys its windows.
fn put_in_order(shards: &mut [Shard], layout: &Layout, key: OrderKey<'_>, depth: u64) {
    let workers = layout.workers();
    for (index, shard) in shards.iter_mut().enumerate() {
        let number = ((index / workers) as u64) << 32 | (index % workers) as u64;
        let several = shard.lanes.len() > 1;
        for lane in &mut shard.lanes {
            let lane_number = u64::from(lane.number);
            // A partition's order is the same on whichever rank it is.
            let mut id = match layout.partitions {
                Some(_) => derive_key(&[PARTITION, lane_number]),
                None if several => derive_key(&[MIXTURE, number, lane_number]),
                None => number,
            };
            if depth > 0 {
                id = derive_key(&[RESUMED, depth, id]);
            }
            lane.key = derive_key(&[key.seed, key.epoch, id]);
            if layout.shuffle {
                let mut order: Vec<u32> = (0..lane.pieces.len() as u32).collect();
                epoch_order(&mut order, key.seed, key.epoch, id, key.fingerprint);
                lane.pieces =
                    order.into_iter().map(|at| lane.pieces[at as usize].clone()).collect();
            }
        }
    }
}
