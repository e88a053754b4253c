//! How many rows each shard delivers, in which batches, and which rows it repeats.

use super::even::{Schedule, proportional};
use super::layout::{Layout, ShardInput};
use super::row_slice::RowSlice;
use crate::Result;

pub(super) fn rows_of(pieces: &[RowSlice]) -> u64 {
    pieces.iter().filter_map(RowSlice::rows).sum()
}

/// The rows that all ranks deliver where so many are left by source: all of them, or those until
/// the first source runs out. Earlier runs of the epoch have rounded the sources' shares, so the
/// end is that of the whole epoch.
pub(super) fn delivered(input: &ShardInput, left: &[u64]) -> u64 {
    let left_in_all = left.iter().sum();
    // A ramp says it epoch by epoch.
    if !input.stop_first || input.ramp.is_some() {
        return left_in_all;
    }
    if input.anew {
        return until_first(left, &input.source_weights);
    }
    let mut rows = vec![0; left.len()];
    for piece in input.pieces() {
        rows[input.source(&piece) as usize] += piece.rows().unwrap_or(0);
    }
    let consumed = rows.iter().sum::<u64>().saturating_sub(left_in_all);
    until_first(&rows, &input.source_weights).saturating_sub(consumed)
}

/// The batches of every rank where `delivered` rows are.
pub(super) fn schedules(layout: &Layout, delivered: u64) -> Result<Vec<Schedule>> {
    let ranks = u64::from(layout.world_size);
    let of_rank = |rank| match layout.counted || layout.partitions.is_some() {
        true => Schedule::of_rank(delivered, ranks, rank, layout.batch_size, layout.remainder),
        false => Ok(Schedule::open_ended(layout.batch_size, layout.remainder)),
    };
    (0..ranks).map(of_rank).collect()
}

/// The rows that a mixture delivers until its first source runs out.
fn until_first(rows: &[u64], weights: &[u64]) -> u64 {
    let all: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
    let until = |(rows, weight): (&u64, &u64)| {
        // To the nearest: weights are rounded, and 50 rows at a tenth are 500.
        let weight = u128::from((*weight).max(1));
        (u128::from(*rows) * all + weight / 2) / weight
    };
    let first = rows.iter().zip(weights).map(until).min().unwrap_or(0);
    first.min(rows.iter().map(|rows| u128::from(*rows)).sum()) as u64
}

/// The rows of every worker of a rank that has `own` rows: the rows of its batches, and the
/// remainder.
pub(super) fn quotas_of_rank(own: u64, schedules: &[Schedule]) -> Vec<u64> {
    let workers = schedules.len();
    let planned: Vec<u64> = schedules.iter().map(|schedule| schedule.rows().unwrap_or(0)).collect();
    let mut quotas = match planned.iter().sum::<u64>() {
        0 => proportional(own, &vec![1; workers]),
        _ => planned.clone(),
    };
    let all: u64 = quotas.iter().sum();
    if all < own {
        // More than is delivered: every worker has some of it, so that what is left out varies.
        for (quota, more) in quotas.iter_mut().zip(proportional(own - all, &planned)) {
            *quota += more;
        }
    }
    // Less than is delivered: the worker of the last batch repeats rows.
    if all > own {
        let batches: u64 = schedules.iter().filter_map(Schedule::batches).sum();
        quotas[((batches - 1) % workers as u64) as usize] -= all - own;
    }
    quotas
}

/// For every rank the rows that it repeats: the first rows of the plan, handed round.
pub(super) fn paddings(
    input: &ShardInput,
    schedules: &[Schedule],
    quotas: &[u64],
) -> Vec<Vec<RowSlice>> {
    let all = input.pieces();
    // By piece, the rows before it.
    let mut starts = Vec::with_capacity(all.len());
    let mut rows = 0;
    for piece in &all {
        starts.push(rows);
        rows += piece.rows().unwrap_or(0);
    }
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
                // The last piece that starts no later: pieces without rows come before it.
                let index = starts.partition_point(|start| *start <= at % rows) - 1;
                let piece = all[index].clone().skip(at % rows - starts[index]);
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
