//! Weights of a mixture's sources that change: by epoch, by step, or with the part of the run that
//! was delivered.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// Parts of a row: a share of less than a row adds up over steps.
const ROW: u128 = 1 << 32;

/// Positions of the whole run, where weights go by its parts.
const RUN: u64 = 1 << 32;

/// The positions that a ramp's points count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Epochs.
    Epoch,
    /// Batches of a rank, from the beginning of an epoch.
    Step,
    /// Parts of a run of some epochs: 2^32 are the whole.
    Fraction,
}

/// Weights at points of a run, and between them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ramp {
    /// What the positions of points count.
    pub by: Unit,
    /// Whether weights move in a straight line between points; otherwise they stay until the next
    /// one.
    pub linear: bool,
    /// Epochs of the run, of whose parts [`Unit::Fraction`] speaks.
    pub epochs: u64,
    /// Positions, ascending, and the weight of each source from there.
    pub points: Vec<(u64, Vec<u64>)>,
}

/// The rows of a run, as far as a ramp depends on them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ramped {
    pub ramp: Ramp,
    /// By source, the rows that are left where the run begins.
    pub left: Vec<u64>,
    /// Rows of the epoch.
    pub rows: u64,
    /// Steps of the epoch before the run.
    pub steps: u64,
    /// Whether the epoch ends with the first source that runs out.
    pub stop_first: bool,
}

/// Where each step of a run lies among the points of a ramp.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pace {
    base: u128,
    per_step: u128,
    scale: u128,
    whole: u128,
}

/// The weights of a shard's lanes, batch by batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaneRamp {
    ramp: Ramp,
    pace: Pace,
    workers: u64,
    worker: u64,
}

impl Ramp {
    /// The weight of each source at a position.
    fn weights(&self, position: u64) -> Cow<'_, [u64]> {
        let next = self.points.partition_point(|(at, _)| *at <= position);
        let Some((start, from)) = next.checked_sub(1).and_then(|at| self.points.get(at)) else {
            return Cow::Borrowed(self.points.first().map_or(&[], |(_, weights)| weights));
        };
        let Some((end, to)) = self.points.get(next).filter(|_| self.linear && position > *start)
        else {
            return Cow::Borrowed(from);
        };
        let (gone, all) = (u128::from(position - start), u128::from(end - start));
        let between = |(from, to): (&u64, &u64)| {
            ((u128::from(*from) * (all - gone) + u128::from(*to) * gone) / all) as u64
        };
        Cow::Owned(from.iter().zip(to).map(between).collect())
    }

    /// The first position from which other weights than at `position` hold; None where they hold to
    /// the end.
    fn next_change(&self, position: u64) -> Option<u64> {
        let next = self.points.partition_point(|(at, _)| *at <= position);
        let (at, _) = self.points.get(next)?;
        Some(if self.linear { position + 1 } else { *at })
    }
}

impl Pace {
    fn position(&self, step: u64) -> u64 {
        let at = self.base.saturating_add(u128::from(step).saturating_mul(self.per_step));
        u64::try_from(at.saturating_mul(self.scale) / self.whole).unwrap_or(u64::MAX)
    }

    /// How many steps from `step` on have the weights of it; at least one.
    fn steps_alike(&self, ramp: &Ramp, step: u64) -> u64 {
        let Some(until) = ramp.next_change(self.position(step)) else { return u64::MAX };
        if self.per_step == 0 {
            return u64::MAX;
        }
        let wanted = (u128::from(until) * self.whole).div_ceil(self.scale);
        let steps = wanted.saturating_sub(self.base).div_ceil(self.per_step);
        u64::try_from(steps).unwrap_or(u64::MAX).saturating_sub(step).max(1)
    }
}

impl Ramped {
    /// Where the steps of the run lie, of `step_rows` rows each over all ranks.
    fn pace(&self, epoch: u64, step_rows: u64) -> Pace {
        let wide = u128::from;
        match self.ramp.by {
            Unit::Epoch => Pace { base: wide(epoch), per_step: 0, scale: 1, whole: 1 },
            Unit::Step => Pace { base: wide(self.steps), per_step: 1, scale: 1, whole: 1 },
            Unit::Fraction => {
                let left: u128 = self.left.iter().map(|rows| wide(*rows)).sum();
                let consumed = wide(self.rows).saturating_sub(left);
                Pace {
                    base: (wide(epoch) * wide(self.rows)).saturating_add(consumed),
                    per_step: wide(step_rows),
                    scale: wide(RUN),
                    whole: (wide(self.rows) * wide(self.ramp.epochs)).max(1),
                }
            }
        }
    }

    /// The weights of one worker's lanes.
    pub fn of_worker(&self, epoch: u64, step_rows: u64, workers: u64, worker: u64) -> LaneRamp {
        LaneRamp { ramp: self.ramp.clone(), pace: self.pace(epoch, step_rows), workers, worker }
    }

    /// The rows that all ranks deliver: all that are left, or those until the first source runs out
    /// that has a weight then.
    pub fn delivered(&self, epoch: u64, step_rows: u64) -> u64 {
        let total = self.left.iter().sum();
        if !self.stop_first {
            return total;
        }
        let pace = self.pace(epoch, step_rows);
        let mut open: Vec<u128> = self.left.iter().map(|rows| u128::from(*rows) * ROW).collect();
        let (mut rows, mut step) = (0_u64, 0_u64);
        while rows < total {
            let steps = pace.steps_alike(&self.ramp, step);
            let weights = self.ramp.weights(pace.position(step));
            let all: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
            let wanted = step_rows.saturating_mul(steps).min(total - rows);
            // To the nearest row: weights are rounded, and 50 rows at a tenth are 500.
            let until = |(open, weight): (&u128, &u64)| match u128::from(*weight) {
                0 => None,
                weight => Some((open * all / weight + ROW / 2) / ROW),
            };
            let fits = open.iter().zip(weights.iter()).filter_map(until).min();
            let fits = fits.map_or(wanted, |fits| u64::try_from(fits).unwrap_or(u64::MAX));
            rows += fits.min(wanted);
            if fits < wanted {
                break;
            }
            for (open, weight) in open.iter_mut().zip(weights.iter()) {
                let share = u128::from(wanted) * ROW * u128::from(*weight) / all.max(1);
                *open = open.saturating_sub(share);
            }
            step = step.saturating_add(steps);
        }
        rows
    }
}

impl LaneRamp {
    /// The weights of the lanes in the batch of this number of the shard.
    pub(super) fn at(&self, batch: u64) -> Cow<'_, [u64]> {
        let step = batch.saturating_mul(self.workers).saturating_add(self.worker);
        self.ramp.weights(self.pace.position(step))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ramp(by: Unit, linear: bool, points: &[(u64, [u64; 2])]) -> Ramp {
        let points = points.iter().map(|(at, weights)| (*at, weights.to_vec())).collect();
        Ramp { by, linear, epochs: 2, points }
    }

    fn ramped(ramp: Ramp, left: [u64; 2]) -> Ramped {
        Ramped { ramp, left: left.to_vec(), rows: left.iter().sum(), steps: 0, stop_first: true }
    }

    #[test]
    fn weights_stay_until_the_next_point_or_move_in_a_line() {
        let points = [(0, [10, 0]), (4, [0, 20])];
        let stays = ramp(Unit::Step, false, &points);
        let moves = ramp(Unit::Step, true, &points);
        let of = |ramp: &Ramp| -> Vec<Vec<u64>> {
            [0, 1, 3, 4, 9].iter().map(|at| ramp.weights(*at).to_vec()).collect()
        };
        assert_eq!(of(&stays), [[10, 0], [10, 0], [10, 0], [0, 20], [0, 20]]);
        assert_eq!(of(&moves), [[10, 0], [7, 5], [2, 15], [0, 20], [0, 20]]);
    }

    #[test]
    fn an_epoch_ends_where_a_source_runs_out() {
        // 5 steps of 10 rows from the first source, then half and half.
        let stays = ramp(Unit::Step, false, &[(0, [1, 0]), (5, [1, 1])]);
        assert_eq!(ramped(stays.clone(), [60, 100]).delivered(0, 10), 70);
        assert_eq!(ramped(stays.clone(), [100, 10]).delivered(0, 10), 70);
        assert_eq!(ramped(stays.clone(), [40, 100]).delivered(0, 10), 40);
        // A source without a weight does not end it.
        assert_eq!(ramped(stays.clone(), [45, 0]).delivered(0, 10), 45);
        let later = Ramped { steps: 5, ..ramped(stays, [10, 100]) };
        assert_eq!(later.delivered(0, 10), 20);
        let moves = ramp(Unit::Step, true, &[(0, [1 << 32, 0]), (10, [0, 1 << 32])]);
        // 10 + 9 + … + 1 of the first, and then none: the second ends it.
        assert_eq!(ramped(moves, [56, 70]).delivered(0, 10), 125);
    }

    #[test]
    fn parts_of_a_run_are_of_all_its_epochs() {
        let stays = ramp(Unit::Fraction, false, &[(0, [1, 0]), (RUN / 4, [0, 1])]);
        let ramped = ramped(stays, [50, 50]);
        let of = |epoch, batch| ramped.of_worker(epoch, 10, 1, 0).at(batch).to_vec();
        assert_eq!((of(0, 4), of(0, 5), of(1, 0)), (vec![1, 0], vec![0, 1], vec![0, 1]));
        let by_worker = ramped.of_worker(0, 10, 2, 1);
        assert_eq!((by_worker.at(1).to_vec(), by_worker.at(2).to_vec()), (vec![1, 0], vec![0, 1]));
    }

    #[test]
    fn steps_alike_reach_the_next_change() {
        let stays = ramp(Unit::Fraction, false, &[(0, [1, 1]), (RUN / 3, [0, 1])]);
        let pace = ramped(stays.clone(), [50, 51]).pace(0, 7);
        let alike = pace.steps_alike(&stays, 0);
        let at = |step| stays.weights(pace.position(step)).to_vec();
        assert_eq!((at(alike - 1), at(alike)), (vec![1, 1], vec![0, 1]));
    }
}
