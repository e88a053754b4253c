//! Equal steps: how many rows each shard delivers, in which batches, and cutting pieces to fit.

use serde::{Deserialize, Serialize};

use super::row_slice::RowSlice;
use crate::{Error, Result};

/// The policy for rows that do not divide evenly by ranks and batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Remainder {
    /// All ranks take the same number of steps, and each row is delivered once.
    #[default]
    Even,
    /// All ranks take the same number of full batches; at most W·B - 1 rows of an epoch are left
    /// out.
    Drop,
    /// All ranks take the same number of full batches; rows are repeated to fill them, less than a
    /// batch or one batch per rank.
    Pad,
    /// Each rank delivers the rows of its splits.
    Uneven,
}

/// The sizes of a shard's batches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schedule {
    /// Rows of a full batch.
    pub batch_size: u64,
    /// Full batches before the tail; None goes on while there are rows, and the last batch may be
    /// short.
    pub full: Option<u64>,
    /// Sizes of the batches after the full ones.
    pub tail: Vec<u64>,
    /// Whether a short batch is filled up with repeated rows.
    pub pad: bool,
    /// Whether a short last batch is left out.
    pub drop_short: bool,
}

impl Schedule {
    /// Full batches while there are rows.
    pub fn open_ended(batch_size: u64, remainder: Remainder) -> Self {
        Self {
            batch_size,
            full: None,
            tail: Vec::new(),
            pad: remainder == Remainder::Pad,
            drop_short: remainder == Remainder::Drop,
        }
    }

    /// The batches of `rank` where `rows` rows go to `world_size` ranks.
    ///
    /// Shares differ by at most one row: the first `rows % world_size` ranks have one more. With
    /// [`Remainder::Even`] all ranks take S = ceil(ceil(N/W)/B) steps; where only ranks with the
    /// additional row need the last of them, the others divide their last full batch in two.
    ///
    /// # Errors
    /// `Config` where equal steps are impossible: fewer rows than ranks, or single-row batches of
    /// rows that the ranks do not divide.
    pub fn of_rank(
        rows: u64,
        world_size: u64,
        rank: u64,
        batch_size: u64,
        remainder: Remainder,
    ) -> Result<Self> {
        let (full, tail) = match remainder {
            Remainder::Uneven => return Ok(Self::open_ended(batch_size, remainder)),
            Remainder::Drop => (rows / world_size / batch_size, Vec::new()),
            Remainder::Pad => (rows.div_ceil(world_size).div_ceil(batch_size), Vec::new()),
            Remainder::Even => {
                check_possible(rows, world_size, batch_size)?;
                let own = share(rows, world_size, rank);
                let steps = rows.div_ceil(world_size).div_ceil(batch_size);
                if own.div_ceil(batch_size) < steps {
                    let half = batch_size / 2;
                    (own / batch_size - 1, vec![batch_size - half, half])
                } else {
                    (
                        own / batch_size,
                        Some(own % batch_size).filter(|rest| *rest > 0).into_iter().collect(),
                    )
                }
            }
        };
        Ok(Self {
            batch_size,
            full: Some(full),
            tail,
            pad: remainder == Remainder::Pad,
            drop_short: remainder == Remainder::Drop,
        })
    }

    /// The part of one of `workers` workers: batch j of the rank is worker j mod `workers`'s.
    pub fn of_worker(&self, workers: u64, worker: u64) -> Self {
        let Some(full) = self.full else { return self.clone() };
        let mine = |batch: u64| batch % workers == worker;
        let tail =
            (full..).zip(&self.tail).filter(|(batch, _)| mine(*batch)).map(|(_, rows)| *rows);
        Self {
            full: Some((full + workers - 1 - worker) / workers),
            tail: tail.collect(),
            ..self.clone()
        }
    }

    /// The size of batch `batch`; None after the last.
    pub fn size(&self, batch: u64) -> Option<u64> {
        match self.full {
            Some(full) if batch >= full => self.tail.get((batch - full) as usize).copied(),
            _ => Some(self.batch_size),
        }
    }

    /// The number of batches, where it is fixed.
    pub fn batches(&self) -> Option<u64> {
        self.full.map(|full| full + self.tail.len() as u64)
    }

    /// The rows of the first `batches` batches.
    pub fn rows_before(&self, batches: u64) -> u64 {
        let full = self.full.unwrap_or(u64::MAX).min(batches);
        let tail = self.tail.iter().take((batches - full) as usize).sum::<u64>();
        full * self.batch_size + tail
    }

    /// The rows of all batches, where their number is fixed.
    pub fn rows(&self) -> Option<u64> {
        self.batches().map(|batches| self.rows_before(batches))
    }
}

fn check_possible(rows: u64, world_size: u64, batch_size: u64) -> Result<()> {
    if rows > 0 && rows < world_size {
        return Err(Error::config(format!(
            "{rows} rows (N) cannot give each of {world_size} ranks (W) a row at every step, with batches of \
             {batch_size} (B); use fewer ranks, or remainder=\"pad\", \"drop\" or \"uneven\""
        )));
    }
    if batch_size == 1 && !rows.is_multiple_of(world_size) {
        return Err(Error::config(format!(
            "{rows} rows (N) over {world_size} ranks (W) in batches of one row (B = 1) cannot give all ranks \
             the same number of steps; use batch_size=2 or more, or remainder=\"pad\", \"drop\" or \"uneven\""
        )));
    }
    Ok(())
}

/// The rows of bin `bin` where `rows` rows go to `bins` bins: the first ones have one more.
pub fn share(rows: u64, bins: u64, bin: u64) -> u64 {
    rows / bins + u64::from(bin < rows % bins)
}

/// Divides `rows` in proportion to `weights`: sums to `rows`, each part off by less than one row.
/// Zero weights alone divide evenly.
pub fn proportional(rows: u64, weights: &[u64]) -> Vec<u64> {
    let total: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
    let (mut seen, mut given) = (0_u128, 0_u64);
    let bins = weights.len() as u64;
    (0_u64..)
        .zip(weights)
        .map(|(bin, weight)| {
            if total == 0 {
                return share(rows, bins, bin);
            }
            seen += u128::from(*weight);
            let until = (u128::from(rows) * seen / total) as u64;
            let part = until - given;
            given = until;
            part
        })
        .collect()
}

/// Cuts lists of counted pieces so that list i has exactly `quotas[i]` rows: excess rows at the end
/// of one list go to lists with too few. With `in_place` the pieces of a list are put in the order
/// of the plan again, else added pieces come last.
///
/// All lists together must have as many rows as all quotas.
pub fn level(lists: &mut [Vec<RowSlice>], quotas: &[u64], in_place: bool) {
    let mut spare: Vec<RowSlice> = Vec::new();
    let mut missing = vec![0; lists.len()];
    for ((list, quota), missing) in lists.iter_mut().zip(quotas).zip(&mut missing) {
        let mut wanted = *quota;
        let mut kept = Vec::with_capacity(list.len());
        for piece in list.drain(..) {
            let rows = piece.rows().unwrap_or(0);
            if rows <= wanted {
                wanted -= rows;
                kept.push(piece);
            } else if wanted > 0 {
                let (head, tail) = piece.cut(wanted);
                wanted = 0;
                kept.push(head);
                spare.push(tail);
            } else {
                spare.push(piece);
            }
        }
        *list = kept;
        *missing = wanted;
    }
    let mut spare = spare.into_iter();
    let mut rest: Option<RowSlice> = None;
    for (list, mut missing) in lists.iter_mut().zip(missing) {
        let touched = missing > 0;
        while missing > 0 {
            let Some(piece) = rest.take().or_else(|| spare.next()) else { break };
            let rows = piece.rows().unwrap_or(0);
            if rows <= missing {
                missing -= rows;
                list.push(piece);
            } else {
                let (head, tail) = piece.cut(missing);
                missing = 0;
                list.push(head);
                rest = Some(tail);
            }
        }
        if touched && in_place {
            list.sort_by_cached_key(RowSlice::place);
        }
    }
}
