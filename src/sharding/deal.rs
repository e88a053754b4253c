//! Dealing: from the splits of a plan, less the consumption of earlier runs, to the shards of an
//! epoch.

use std::collections::BTreeMap;

use super::cursor::{Shard, ShardCursor};
use super::even::{Remainder, level, proportional, share};
use super::layout::{EarlierRun, Layout, OrderKey, ShardInput};
use super::left::Left;
use super::lpt::{lpt, round_robin};
use super::order::{derive_key, epoch_order};
use super::plan::Builtin;
use super::quota::{delivered, paddings, rows_of, schedules};
use super::ramp::Ramped;
use super::row_slice::{RowSlice, Source};
use super::share::{Common, RankShare};
use crate::{Error, ErrorKind, Result};

/// Separates keys of one purpose from others.
const PARTITION: u64 = 0x7061_7274;
const MIXTURE: u64 = 0x6d69_7865;
const RESUMED: u64 = 0x7265_7375;

/// The splits of each shard that a custom strategy dealt; None deals by weight.
pub(super) type Lists<'a> = Option<&'a [Vec<u32>]>;

/// The shards of an epoch in reading order, `rank * workers + worker`: of all its rows, or of those
/// `left` by the runs before.
///
/// `lists` are the splits of each shard that a custom strategy dealt; the rest of an epoch is dealt
/// by weight.
///
/// # Errors
/// `Config` where the layout asks for equal steps that are impossible, or for partitions that the
/// ranks do not divide.
pub fn resume(
    input: &ShardInput,
    left: Option<&Left>,
    layout: &Layout,
    lists: Option<&[Vec<u32>]>,
    key: OrderKey<'_>,
) -> Result<Vec<Shard>> {
    let lists = lists.filter(|_| left.is_none());
    let mut shards = Vec::with_capacity(layout.world_size as usize * layout.workers());
    for share in shares(input, left, layout, lists)? {
        input.stop.check()?;
        shards.extend(share.shards_of(layout, lists, key)?);
    }
    Ok(shards)
}

/// The shares of all ranks; see [`resume`].
///
/// Those of a whole epoch are the same in every epoch, unless a custom strategy deals each anew.
///
/// # Errors
/// As for [`resume`].
pub fn shares(
    input: &ShardInput,
    left: Option<&Left>,
    layout: &Layout,
    lists: Option<&[Vec<u32>]>,
) -> Result<Vec<RankShare>> {
    let Some(left) = left else { return deal(input, input.pieces(), layout, lists, 0) };
    deal(input, left.pieces().to_vec(), layout, None, left.depth()).map_err(|error| {
        match error.kind() {
            ErrorKind::Config => error.with_context(
                "these are the rows left of a resumed epoch",
                "resume it with as many ranks as before, or go on with set_epoch(epoch + 1)",
            ),
            _ => error,
        }
    })
}

/// What is left of an epoch after `run`, which began with what was `left` before.
///
/// # Errors
/// `Checkpoint` where the run's cursors are not those of its layout.
pub fn left_after(
    input: &ShardInput,
    left: Option<&Left>,
    run: &EarlierRun,
    lists: Option<&[Vec<u32>]>,
    key: OrderKey<'_>,
) -> Result<Left> {
    run.layout.check()?;
    let mut ranks = 0..run.layout.world_size;
    if let Some(rank) =
        ranks.find(|rank| !run.layout.follows_steps() && !run.cursors.contains_key(rank))
    {
        return Err(silent(run, rank as usize));
    }
    let shards = resume(input, left, &run.layout, lists, key)?;
    let depth = left.map_or(0, Left::depth) + 1;
    Ok(Left::new(depth, left_by(input, run, &shards)?))
}

/// The pieces that a run left of its shards.
fn left_by(input: &ShardInput, run: &EarlierRun, shards: &[Shard]) -> Result<Vec<RowSlice>> {
    let workers = run.layout.workers();
    if let Some(rank) = run.cursors.keys().find(|rank| **rank >= run.layout.world_size) {
        let ranks = run.layout.world_size;
        return Err(damaged(&format!("it has a cursor of rank {rank} of {ranks}")));
    }
    let mut left = Vec::new();
    for (index, shard) in shards.iter().enumerate() {
        input.stop.check()?;
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
pub fn cursor_of(
    run: &EarlierRun,
    shard: &Shard,
    rank: usize,
    worker: usize,
) -> Result<ShardCursor> {
    if let Some(workers) = run.cursors.get(&(rank as u32)) {
        let numbers = workers.get(worker).ok_or_else(|| {
            Error::checkpoint(format!("the state of rank {rank} has no cursor of worker {worker}"))
        })?;
        if numbers.is_empty() {
            return Ok(shard.start());
        }
        let cursor = ShardCursor::decode(numbers, &shard.lanes)?;
        let accepts = match run.layout.refills {
            true => shard.accepts_refilled(&cursor),
            false => shard.accepts(&cursor),
        };
        if !accepts {
            return Err(damaged(&format!(
                "{} batches of worker {worker} of rank {rank} do not have the rows that its cursor says",
                cursor.batches
            )));
        }
        return Ok(cursor);
    }
    if !run.layout.follows_steps() {
        return Err(silent(run, rank));
    }
    let (workers, worker) = (run.layout.workers() as u64, worker as u64);
    let batches = (run.step.saturating_add(workers - 1 - worker)) / workers;
    if shard.batches().is_some_and(|all| batches > all) {
        return Err(damaged(&format!(
            "step {} is beyond the {} batches of a shard",
            run.step,
            shard.batches().unwrap_or(0)
        )));
    }
    Ok(shard.cursor_at(batches))
}

pub(super) fn damaged(how: &str) -> Error {
    Error::checkpoint(format!("the state is damaged: {how}; load an earlier state"))
}

fn silent(run: &EarlierRun, rank: usize) -> Error {
    Error::checkpoint(format!(
        "the state does not say how far rank {rank} of {} came, and without equal steps, or with rows that a failing \
         transform left out, that does not follow from the other ranks; join the states of all ranks: load_state_dict(tensorquery.merge_state_dicts([…]))",
        run.layout.world_size
    ))
}

/// Deals pieces to ranks, in the order of the pieces: by source, so that each of them is spread
/// evenly, and as even by weight as one level over ranks makes them, for any number of workers.
fn deal(
    input: &ShardInput,
    mut pieces: Vec<RowSlice>,
    layout: &Layout,
    lists: Lists<'_>,
    depth: u64,
) -> Result<Vec<RankShare>> {
    if layout.counted && input.counts.is_none() && !input.weights.is_empty() {
        return Err(Error::config(
            "rows are dealt by number, but were not counted; please report it with the state that was loaded",
        ));
    }
    if layout.counted {
        pieces.retain(|piece| !piece.is_empty());
    }
    if let Some(partitions) = layout.partitions {
        return deal_partitions(input, pieces, layout, partitions, depth);
    }
    let ranks = layout.world_size as usize;
    let sources = input.source_weights.len().max(1);
    let mut by_source = vec![Vec::new(); sources];
    for piece in pieces {
        by_source[input.source(&piece) as usize].push(piece);
    }
    let rows: Vec<u64> = by_source.iter().map(|pieces| rows_of(pieces)).collect();
    let total: u64 = rows.iter().sum();
    let delivered = delivered(input, &rows);
    let schedules = schedules(layout, delivered)?;
    let mut open: Vec<u64> = match layout.is_exact() {
        true => (0..ranks as u64).map(|rank| share(total, ranks as u64, rank)).collect(),
        false => vec![0; ranks],
    };
    let padding = match layout.remainder {
        Remainder::Pad => paddings(input, &schedules, &open),
        _ => vec![Vec::new(); ranks],
    };
    let mut lanes: Vec<Vec<(u32, Vec<RowSlice>)>> = vec![Vec::new(); ranks];
    for ((number, pieces), rows) in (0_u32..).zip(by_source).zip(rows.clone()) {
        input.stop.check()?;
        let mut dealt = match lists {
            Some(lists) => group_by_lists(pieces, lists, ranks, |shard| {
                Some(shard / layout.workers()).filter(|rank| *rank < ranks)
            }),
            None => {
                let bins = bins_of(input, &pieces, layout, ranks);
                group(pieces, &bins, ranks)
            }
        };
        if layout.is_exact() {
            let wanted = part(&open, rows);
            open.iter_mut().zip(&wanted).for_each(|(open, wanted)| *open -= wanted);
            level(&mut dealt, &wanted, lists.is_none());
        }
        for (lanes, pieces) in lanes.iter_mut().zip(dealt) {
            lanes.push((number, pieces));
        }
    }
    let common = Common {
        depth,
        source_weights: &input.source_weights,
        ramped: ramped(input, rows),
        delivered,
        rows: total,
    };
    finish(input, layout, &common, lanes, padding)
}

/// How weights change, where so many rows are left by source.
fn ramped(input: &ShardInput, left: Vec<u64>) -> Option<Ramped> {
    let (ramp, steps, stop_first) = (input.ramp.clone()?, input.steps, input.stop_first);
    Some(Ramped { ramp, left, rows: rows_of(&input.pieces()), steps, stop_first })
}

fn finish(
    input: &ShardInput,
    layout: &Layout,
    common: &Common<'_>,
    lanes: Vec<Vec<(u32, Vec<RowSlice>)>>,
    padding: Vec<Vec<RowSlice>>,
) -> Result<Vec<RankShare>> {
    let share = |((rank, lanes), padding)| {
        input.stop.check()?;
        let weight_of = |id| input.weight_of_split(id);
        Ok(RankShare::new(layout, rank, common, lanes, padding, weight_of))
    };
    (0_u32..).zip(lanes).zip(padding).map(share).collect()
}

fn bins_of(input: &ShardInput, pieces: &[RowSlice], layout: &Layout, bins: usize) -> Vec<u32> {
    match layout.strategy.unwrap_or_default() {
        Builtin::Lpt => {
            let weight = |piece| input.weight(piece, layout.counted);
            lpt(&pieces.iter().map(weight).collect::<Vec<_>>(), bins)
        }
        Builtin::RoundRobin => round_robin(pieces.len(), bins),
    }
}

/// Pieces in `bins` bins, where `bin` finds the shard to which a custom strategy gave the split.
pub(super) fn group_by_lists(
    pieces: Vec<RowSlice>,
    lists: &[Vec<u32>],
    bins: usize,
    bin: impl Fn(usize) -> Option<usize>,
) -> Vec<Vec<RowSlice>> {
    let mut places: BTreeMap<u32, (usize, usize)> = BTreeMap::new();
    for (shard, ids) in lists.iter().enumerate() {
        if bin(shard).is_some() {
            places.extend(ids.iter().enumerate().map(|(place, id)| (*id, (shard, place))));
        }
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
    let in_order = |mut group: Vec<(usize, RowSlice)>| {
        group.sort_by_key(|(place, piece)| (*place, piece.start));
        group.into_iter().map(|(_, piece)| piece).collect()
    };
    groups.into_iter().map(in_order).collect()
}

/// Divides `rows` among the open rows, in proportion and never more than open.
pub(super) fn part(open: &[u64], rows: u64) -> Vec<u64> {
    if rows == open.iter().sum::<u64>() { open.to_vec() } else { proportional(rows, open) }
}

/// The pieces of each bin, in their order.
pub(super) fn group(pieces: Vec<RowSlice>, bin_of: &[u32], bins: usize) -> Vec<Vec<RowSlice>> {
    let mut groups = vec![Vec::new(); bins];
    for (piece, bin) in pieces.into_iter().zip(bin_of) {
        groups[*bin as usize].push(piece);
    }
    groups
}

/// Deals `partitions` lists of equal rows; each rank has every W-th. The rows of a step over all
/// ranks do not depend on the number of ranks.
fn deal_partitions(
    input: &ShardInput,
    pieces: Vec<RowSlice>,
    layout: &Layout,
    partitions: u32,
    depth: u64,
) -> Result<Vec<RankShare>> {
    let (ranks, bins) = (u64::from(layout.world_size), u64::from(partitions));
    if !bins.is_multiple_of(ranks) || !(layout.batch_size * ranks).is_multiple_of(bins) {
        return Err(Error::config(format!(
            "partitions={partitions} must be a multiple of world_size={ranks}, and batch_size × world_size = {} a \
             multiple of partitions, so that every step takes equal rows from each of them",
            layout.batch_size * ranks
        )));
    }
    let rows = rows_of(&pieces);
    let weights: Vec<u64> = pieces.iter().map(|piece| input.weight(piece, true)).collect();
    let mut lists = group(pieces, &lpt(&weights, partitions as usize), partitions as usize);
    let quotas: Vec<u64> = (0..bins).map(|bin| share(rows, bins, bin)).collect();
    level(&mut lists, &quotas, true);
    let schedules = schedules(layout, rows)?;
    let mut lanes: Vec<Vec<(u32, Vec<RowSlice>)>> = vec![Vec::new(); ranks as usize];
    for (number, pieces) in (0_u32..).zip(lists) {
        lanes[(u64::from(number) % ranks) as usize].push((number, pieces));
    }
    let padding = match layout.remainder {
        Remainder::Pad => {
            let of_rank =
                |lanes: &Vec<(u32, Vec<RowSlice>)>| lanes.iter().map(|lane| rows_of(&lane.1)).sum();
            paddings(input, &schedules, &lanes.iter().map(of_rank).collect::<Vec<u64>>())
        }
        _ => vec![Vec::new(); ranks as usize],
    };
    let common = Common { depth, source_weights: &[], ramped: None, delivered: rows, rows };
    finish(input, layout, &common, lanes, padding)
}

/// Permutes the pieces of every lane of a rank's shards, and keys its windows. Rests of windows are
/// mixed already, and come first.
pub(super) fn put_in_order(
    shards: &mut [Shard],
    rank: u32,
    layout: &Layout,
    key: OrderKey<'_>,
    depth: u64,
) {
    for (worker, shard) in shards.iter_mut().enumerate() {
        let number = u64::from(rank) << 32 | worker as u64;
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
            (lane.rests, lane.pieces) =
                std::mem::take(&mut lane.pieces).into_iter().partition(RowSlice::is_rest);
            if layout.shuffle {
                let mut order: Vec<u32> = (0..lane.pieces.len() as u32).collect();
                epoch_order(&mut order, key.seed, key.epoch, id, key.fingerprint);
                lane.pieces =
                    order.into_iter().map(|at| lane.pieces[at as usize].clone()).collect();
            }
        }
    }
}
