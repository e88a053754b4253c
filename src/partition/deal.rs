//! Dealing: from the splits of a plan, and what earlier runs consumed of them, to the shards of an epoch.

use std::collections::BTreeMap;

use super::cursor::{Lane, Shard, ShardCursor};
use super::even::{Remainder, Schedule, level, proportional, share};
use super::layout::{Layout, OrderKey, Run, Stock};
use super::lpt::{lpt, round_robin};
use super::order::{derive_key, epoch_order};
use super::piece::{Piece, Source};
use super::plan::Builtin;
use super::quota::{paddings, quotas, rows_of, schedules};
use crate::{Error, Result};

/// Tells keys of one purpose from those of another.
const PARTITION: u64 = 0x7061_7274;
const MIXTURE: u64 = 0x6d69_7865;
const RESUMED: u64 = 0x7265_7375;

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
        if run.layout.dynamic {
            let said = run.cursors.get(&(index as u32)).ok_or_else(|| silent(run, index))?;
            left.extend(shard.left_by_takers(said, run.layout.num_workers as usize)?);
            continue;
        }
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
        return Err(silent(run, rank));
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

fn silent(run: &Run, rank: usize) -> Error {
    Error::checkpoint(format!(
        "the state does not say how far rank {rank} of {} came, and without equal steps that does not follow from \
         the other ranks; join the states of all ranks: load_state_dict(tensorquery.merge_state_dicts([…]))",
        run.layout.world_size
    ))
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
    if !bins.is_multiple_of(ranks) || !(layout.batch_size * ranks).is_multiple_of(bins) {
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
