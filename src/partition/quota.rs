//! How many rows each shard delivers, in which batches, and which rows it repeats.

use super::even::{Schedule, proportional, share};
use super::layout::{Layout, Stock};
use super::piece::Piece;
use crate::Result;

pub(super) fn rows_of(pieces: &[Piece]) -> u64 {
    pieces.iter().filter_map(Piece::rows).sum()
}

/// The batches of every shard.
pub(super) fn schedules(stock: &Stock, layout: &Layout, rows: &[u64]) -> Result<Vec<Schedule>> {
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
    let until = |(rows, weight): (&u64, &u64)| {
        // To the nearest: weights are rounded, and 50 rows at a tenth are 500.
        let weight = u128::from((*weight).max(1));
        (u128::from(*rows) * all + weight / 2) / weight
    };
    let first = rows.iter().zip(weights).map(until).min().unwrap_or(0);
    first.min(rows.iter().map(|rows| u128::from(*rows)).sum()) as u64
}

/// The rows of every shard, of `rows` in all: those of its batches, and of what batches leave over.
pub(super) fn quotas(layout: &Layout, schedules: &[Schedule], rows: u64) -> Vec<u64> {
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
pub(super) fn paddings(stock: &Stock, schedules: &[Schedule], quotas: &[u64]) -> Vec<Vec<Piece>> {
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
