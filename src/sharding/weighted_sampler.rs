//! Rows drawn by weight: an epoch whose positions are draws, computed point by point where rows may
//! repeat.
//!
//! - with replacement: each draw takes row i with probability w_i / sum(w), independent of other
//!   draws, as torch's `WeightedRandomSampler` does. Draw p finds its row from (key, p) alone:
//!   among the sums of blocks of rows, then among the weights of one block.
//! - without: P. Efraimidis and P. Spirakis, "Weighted random sampling with a reservoir",
//!   Information Processing Letters 97(5), 2006. Each row gets the key -ln(u_i) / w_i, and the rows
//!   of the smallest keys come in the order of their keys, which is that of drawing one row after
//!   the other, each by its share of the weight that is left.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use super::permutation::Permutation;
use super::rng::{GOLDEN_RATIO, mix};
use crate::{Error, Result};

/// Rows whose weights have one sum. A draw looks at the weights of one block: at fewer of them it
/// is faster, and the sums take more memory.
const BLOCK_ROWS: u64 = 64;

/// 2^-53: between two neighbours of the numbers that 53 bits make in 0..1.
const STEP: f64 = 1.0 / (1_u64 << 53) as f64;

/// The weights of rows numbered from 0, each finite and at least 0.
pub trait RowWeights: Debug + Send + Sync {
    /// Number of rows.
    fn num_rows(&self) -> u64;

    /// Calls `each` with the weights of `rows`, in order and in pieces.
    fn visit(&self, rows: Range<u64>, each: &mut dyn FnMut(&[f64]));
}

/// Rows to draw from by weight. It keeps one number for 64 rows, and reads weights where they lie.
#[derive(Clone, Debug)]
pub struct WeightedSampler {
    weights: Arc<dyn RowWeights>,
    /// The sum of the weights of all blocks up to each, that block included.
    ends: Arc<[f64]>,
    /// Rows with a weight above 0.
    positive: u64,
    largest: f64,
}

impl WeightedSampler {
    /// Reads all weights once.
    ///
    /// # Errors
    /// `Data` where nothing can be drawn: all weights are 0, or their sum is not finite.
    pub fn try_new(weights: Arc<dyn RowWeights>) -> Result<Self> {
        let rows = weights.num_rows();
        let mut ends = Vec::with_capacity(rows.div_ceil(BLOCK_ROWS) as usize);
        let (mut sum, mut positive, mut largest) = (0.0, 0, 0_f64);
        for block in 0..rows.div_ceil(BLOCK_ROWS) {
            // Summed by block first: a running sum of billions would round each weight by its own
            // size.
            let mut own = 0.0;
            weights.visit(rows_of(block, rows), &mut |weights: &[f64]| {
                for &weight in weights {
                    own += weight;
                    positive += u64::from(weight > 0.0);
                    largest = largest.max(weight);
                }
            });
            sum += own;
            ends.push(sum);
        }
        if positive == 0 {
            return Err(Error::data(format!(
                "all {rows} weights are 0, so that no row can be drawn; give some rows a weight above 0"
            )));
        }
        if !sum.is_finite() {
            return Err(Error::data(
                "the sum of the weights is not finite; divide them by the largest",
            ));
        }
        Ok(Self { weights, ends: ends.into(), positive, largest })
    }

    /// Number of rows, rows of weight 0 included.
    pub fn num_rows(&self) -> u64 {
        self.weights.num_rows()
    }

    /// Rows with a weight above 0.
    pub fn num_positive(&self) -> u64 {
        self.positive
    }

    /// The row of draw `position` under `key`, with replacement.
    fn draw(&self, key: u64, position: u64) -> u64 {
        let total = self.ends.last().copied().unwrap_or(0.0);
        let point = (bits(key, position) >> 11) as f64 * STEP * total;
        let mut block = self.ends.partition_point(|end| *end <= point);
        if block == self.ends.len() {
            // Rounded up to the sum of all: the last block that adds to it.
            block = self.ends.partition_point(|end| *end < total);
        }
        let start = block.checked_sub(1).map_or(0.0, |before| self.ends[before]);
        let (mut end, mut row, mut found, mut last) =
            (0.0, block as u64 * BLOCK_ROWS, None, row_of(block));
        self.weights.visit(rows_of(block as u64, self.num_rows()), &mut |weights: &[f64]| {
            for &weight in weights {
                if found.is_some() {
                    return;
                }
                if weight > 0.0 {
                    end += weight;
                    last = row;
                    found = (point - start < end).then_some(row);
                }
                row += 1;
            }
        });
        // Sums of a block and of its rows round differently.
        found.unwrap_or(last)
    }

    /// The first `draws` rows under `key`, drawn without replacement.
    fn draw_apart(&self, key: u64, draws: u64) -> Vec<u64> {
        if draws == 0 {
            return Vec::new();
        }
        let wanted = draws as usize;
        let most = wanted.saturating_mul(2).max(1024);
        let mut best: Vec<(f64, u64)> = Vec::with_capacity(most.min(self.positive as usize));
        let by_key = |a: &(f64, u64), b: &(f64, u64)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
        let (mut row, mut worst) = (0, f64::INFINITY);
        for block in 0..self.ends.len() as u64 {
            self.weights.visit(rows_of(block, self.num_rows()), &mut |weights: &[f64]| {
                for &weight in weights {
                    if weight > 0.0 {
                        let uniform = ((bits(key, row) >> 11) + 1) as f64 * STEP;
                        // Times the largest weight, which changes no order, and keeps tiny weights
                        // from overflowing.
                        let own = -ln(uniform) * (self.largest / weight).min(f64::MAX);
                        if own <= worst {
                            best.push((own, row));
                        }
                    }
                    row += 1;
                }
            });
            if best.len() >= most {
                best.select_nth_unstable_by(wanted - 1, by_key);
                worst = best[wanted - 1].0;
                best.truncate(wanted);
            }
        }
        best.sort_unstable_by(by_key);
        best.truncate(wanted);
        best.into_iter().map(|(_, row)| row).collect()
    }
}

fn row_of(block: usize) -> u64 {
    block as u64 * BLOCK_ROWS
}

fn rows_of(block: u64, rows: u64) -> Range<u64> {
    block * BLOCK_ROWS..((block + 1) * BLOCK_ROWS).min(rows)
}

/// 64 random bits for a number: SplitMix64 at a place of its stream, see [`Rng`](super::Rng).
fn bits(key: u64, number: u64) -> u64 {
    mix(key.wrapping_add(number.wrapping_add(1).wrapping_mul(GOLDEN_RATIO)))
}

/// The natural logarithm of a positive normal number, the same on every machine, which the
/// platform's own need not be.
///
/// The method of `e_log.c` of Sun's fdlibm (1993): x = 2^k (1 + f) with 1 + f near 1, s = f / (2 +
/// f), and ln(1 + f) = f - s (f - R) with a polynomial R in s². Its error is below one unit in the
/// last place.
fn ln(x: f64) -> f64 {
    const LN2_HIGH: f64 = 0.693_147_180_369_123_8;
    const LN2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    const R: [f64; 7] = [
        0.666_666_666_666_673_5,
        0.399_999_999_994_094_2,
        0.285_714_287_436_623_9,
        0.222_221_984_321_497_84,
        0.181_835_721_616_180_5,
        0.153_138_376_992_093_73,
        0.147_981_986_051_165_86,
    ];
    let bits = x.to_bits();
    let mut exponent = (bits >> 52) as i64 - 1023;
    let mut mantissa = f64::from_bits((bits & 0x000f_ffff_ffff_ffff) | 0x3ff0_0000_0000_0000);
    if mantissa > std::f64::consts::SQRT_2 {
        mantissa /= 2.0;
        exponent += 1;
    }
    let f = mantissa - 1.0;
    let s = f / (2.0 + f);
    let z = s * s;
    let r = z * R.iter().rev().fold(0.0, |sum, term| sum * z + term);
    let half = 0.5 * f * f;
    let k = exponent as f64;
    k * LN2_HIGH - ((half - (s * (half + r) + k * LN2_LOW)) - f)
}

/// Which row lies at which position of an epoch over numbered rows.
#[derive(Clone, Debug)]
pub struct Order {
    kind: Kind,
    len: u64,
}

#[derive(Clone, Debug)]
enum Kind {
    Permutation(Permutation),
    Draws { sampler: WeightedSampler, key: u64 },
    Listed(Arc<[u64]>),
}

impl From<Permutation> for Order {
    fn from(permutation: Permutation) -> Self {
        Self { len: permutation.len(), kind: Kind::Permutation(permutation) }
    }
}

impl Order {
    /// `draws` rows of a sampler. Without replacement they are drawn here and now: that takes 8
    /// bytes for each, and up to 32 meanwhile.
    ///
    /// # Errors
    /// `Config` where more rows are to be drawn without replacement than have a weight.
    pub fn drawn(
        sampler: &WeightedSampler,
        key: u64,
        draws: u64,
        replacement: bool,
    ) -> Result<Self> {
        if replacement {
            return Ok(Self { kind: Kind::Draws { sampler: sampler.clone(), key }, len: draws });
        }
        if draws > sampler.positive {
            return Err(Error::config(format!(
                "{draws} rows cannot be drawn without replacement, because only {} of {} rows have a weight above 0; \
                 set num_samples to at most that, or draw with replacement",
                sampler.positive,
                sampler.num_rows()
            )));
        }
        let rows = sampler.draw_apart(key, draws);
        Ok(Self { len: rows.len() as u64, kind: Kind::Listed(rows.into()) })
    }

    /// Number of positions.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns true if it has no position.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of rows that it is over; None if it is known to be within the weights' number of
    /// rows.
    pub fn num_rows(&self) -> Option<u64> {
        match &self.kind {
            Kind::Permutation(permutation) => Some(permutation.len()),
            Kind::Draws { sampler, .. } => Some(sampler.num_rows()),
            Kind::Listed(_) => None,
        }
    }

    /// The row at `position`.
    ///
    /// # Panics
    /// Where `position` is not in `0..len`.
    pub fn at(&self, position: u64) -> u64 {
        assert!(position < self.len, "position {position} must be in 0..{}", self.len);
        match &self.kind {
            Kind::Permutation(permutation) => permutation.at(position),
            Kind::Draws { sampler, key } => sampler.draw(*key, position),
            Kind::Listed(rows) => rows[position as usize],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Given(Vec<f64>);

    impl RowWeights for Given {
        fn num_rows(&self) -> u64 {
            self.0.len() as u64
        }

        fn visit(&self, rows: Range<u64>, each: &mut dyn FnMut(&[f64])) {
            each(&self.0[rows.start as usize..rows.end as usize]);
        }
    }

    fn sampler(weights: &[f64]) -> WeightedSampler {
        WeightedSampler::try_new(Arc::new(Given(weights.to_vec()))).unwrap()
    }

    #[test]
    fn the_logarithm_is_that_of_the_platform_but_for_the_last_bit() {
        for number in 1..100_000_u64 {
            for x in [number as f64 * STEP, number as f64 / 100_000.0, 1.0 - number as f64 * STEP] {
                let (own, theirs) = (ln(x), x.ln());
                assert!(
                    (own - theirs).abs() <= 4.0 * f64::EPSILON * theirs.abs(),
                    "{x}: {own} {theirs}"
                );
            }
        }
        assert_eq!(ln(1.0), 0.0);
    }

    #[test]
    fn draws_follow_the_weights_across_blocks() {
        // Four classes that lie in different blocks; class 0 weighs nothing.
        let class = |row: usize| (row / 100) % 4;
        let weights: Vec<f64> = (0..2000).map(|row| class(row) as f64 * 0.25).collect();
        let order = Order::drawn(&sampler(&weights), 11, 600_000, true).unwrap();
        let mut rows = vec![0_f64; weights.len()];
        (0..order.len()).for_each(|at| rows[order.at(at) as usize] += 1.0);
        let total: f64 = weights.iter().sum();
        let mut chi_square = 0.0;
        for (weight, found) in weights.iter().zip(&rows) {
            let expected = weight / total * 600_000.0;
            if expected == 0.0 {
                assert_eq!(*found, 0.0);
            } else {
                chi_square += (found - expected).powi(2) / expected;
            }
        }
        // 1500 rows have a weight: 1499 degrees of freedom, whose deviation is the root of 2998.
        assert!((chi_square - 1499.0).abs() < 4.0 * 2998_f64.sqrt(), "{chi_square}");
    }

    #[test]
    fn without_replacement_every_row_comes_once_and_the_first_by_its_share() {
        let weights = [0.0, 1.0, 2.0, 0.0, 5.0];
        let mut firsts = [0_f64; 5];
        let mut pairs = 0_f64;
        for key in 0..20_000 {
            let order = Order::drawn(&sampler(&weights), mix(key), 3, false).unwrap();
            let rows: Vec<u64> = (0..3).map(|at| order.at(at)).collect();
            let mut sorted = rows.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, [1, 2, 4]);
            firsts[rows[0] as usize] += 1.0;
            pairs += f64::from(rows[..2] == [4, 2]);
        }
        for (weight, found) in weights.iter().zip(firsts) {
            let share = weight / 8.0;
            let sigma = (20_000.0 * share * (1.0 - share)).sqrt();
            assert!((found - 20_000.0 * share).abs() <= 4.0 * sigma, "{weight}: {found}");
        }
        // After row 4, row 2 has two thirds of what is left.
        let share = 5.0 / 8.0 * 2.0 / 3.0;
        assert!((pairs - 20_000.0 * share).abs() < 4.0 * (20_000.0 * share * (1.0 - share)).sqrt());
    }

    #[test]
    fn a_part_of_the_draws_without_replacement_begins_all_of_them() {
        let weights: Vec<f64> = (0..10_000).map(|row| f64::from(row % 7)).collect();
        let sampler = sampler(&weights);
        let rows = |draws| {
            let order = Order::drawn(&sampler, 5, draws, false).unwrap();
            (0..draws).map(|at| order.at(at)).collect::<Vec<_>>()
        };
        let all = rows(sampler.num_positive());
        for draws in [0, 1, 10, 600, 3000] {
            assert_eq!(rows(draws), all[..draws as usize]);
        }
        assert!(Order::drawn(&sampler, 5, sampler.num_positive() + 1, false).is_err());
    }

    /// Measures a draw: `cargo test --lib a_draw_takes -- --ignored --nocapture`, optimised.
    #[test]
    #[ignore = "prints how long a draw takes and asserts nothing: it is run by hand, optimised"]
    fn a_draw_takes() {
        const DRAWS: u64 = 1_000_000;
        for rows in [100_000_u64, 20_000_000] {
            let weights: Vec<f64> = (0..rows).map(|row| (row % 13) as f64).collect();
            let order = Order::drawn(&sampler(&weights), 3, DRAWS, true).unwrap();
            let began = std::time::Instant::now();
            let sum = (0..DRAWS).fold(0_u64, |sum, at| sum.wrapping_add(order.at(at)));
            let nanos = began.elapsed().as_nanos() / u128::from(DRAWS);
            println!("{rows} rows: {nanos} ns a draw ({sum})");
        }
    }

    #[test]
    fn tiny_and_huge_weights_are_drawn_and_nothing_else() {
        let order = Order::drawn(&sampler(&[0.0, 1e-320, 0.0]), 1, 1000, true).unwrap();
        assert!((0..1000).all(|at| order.at(at) == 1));
        let order = Order::drawn(&sampler(&[1e-320, 1e-320, 1e300]), 1, 3, false).unwrap();
        assert_eq!(order.at(0), 2);
        assert!(WeightedSampler::try_new(Arc::new(Given(vec![0.0; 9]))).is_err());
        assert!(WeightedSampler::try_new(Arc::new(Given(vec![1e308; 9]))).is_err());
    }
}
