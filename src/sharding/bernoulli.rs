//! Which rows a deterministic sample keeps: each by itself, by its number.

use super::order::derive_key;
use super::rng::{GOLDEN_RATIO, mix};

/// Tells the keys of samples from other keys.
const SAMPLE: u64 = 0x7361_6d70_6c65;

/// A Bernoulli sample: every row is kept with one probability, independent of the others.
///
/// A row's fate is 64 bits of SplitMix64 (G. Steele, D. Lea and C. Flood, "Fast Splittable
/// Pseudorandom Number Generators", OOPSLA 2014) at a place that (seed, file, row) name, compared
/// with the probability. So it is the same on every machine and however the rows are read, and with
/// one seed a smaller sample lies within a larger one. Not for cryptography.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bernoulli {
    /// How many of the 2^64 possible values of the bits keep a row.
    kept: u128,
    seed: u64,
}

impl Bernoulli {
    /// Keeps `percent` of 100 rows; below 0 none, from 100 on all.
    pub fn new(percent: f64, seed: u64) -> Self {
        let share = (percent / 100.0).clamp(0.0, 1.0);
        // Exact: a product with a power of two.
        Self { kept: (share * 2_f64.powi(64)) as u128, seed }
    }

    /// The sample of one file, by its place in its table.
    pub fn of_file(self, place: u64) -> FileSample {
        FileSample { kept: self.kept, key: derive_key(&[SAMPLE, self.seed, place]) }
    }
}

/// A [`Bernoulli`] sample of one file.
#[derive(Clone, Copy, Debug)]
pub struct FileSample {
    kept: u128,
    key: u64,
}

impl FileSample {
    /// Returns true if row `row` of the file, counted from 0, is in the sample.
    pub fn keeps(&self, row: u64) -> bool {
        let at = self.key.wrapping_add(row.wrapping_add(1).wrapping_mul(GOLDEN_RATIO));
        u128::from(mix(at)) < self.kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(percent: f64, seed: u64, place: u64) -> Vec<u64> {
        let sample = Bernoulli::new(percent, seed).of_file(place);
        (0..100_000).filter(|row| sample.keeps(*row)).collect()
    }

    #[test]
    fn shares_are_those_asked_for() {
        assert!(rows(0.0, 7, 0).is_empty());
        assert_eq!(rows(100.0, 7, 0).len(), 100_000);
        for percent in [0.1, 1.0, 12.5, 50.0, 99.0] {
            for seed in [0, 1, 7, u64::MAX] {
                let found = rows(percent, seed, 3).len() as f64;
                let share = percent / 100.0;
                let sigma = (100_000.0 * share * (1.0 - share)).sqrt();
                let off = (found - 100_000.0 * share) / sigma;
                assert!(off.abs() < 4.0, "{percent}% with seed {seed}: {found} rows, {off} sigma");
            }
        }
    }

    #[test]
    fn seeds_and_files_are_independent_and_shares_are_nested() {
        let both =
            |a: &[u64], b: &[u64]| a.iter().filter(|row| b.binary_search(row).is_ok()).count();
        let (first, seed, file) = (rows(10.0, 7, 0), rows(10.0, 8, 0), rows(10.0, 7, 1));
        // Of 100,000 rows one in a hundred is in two independent samples; four sigma are 126.
        for other in [&seed, &file] {
            assert!(both(&first, other).abs_diff(1000) < 126, "{}", both(&first, other));
        }
        let smaller = rows(3.0, 7, 0);
        assert_eq!(both(&first, &smaller), smaller.len());
    }

    #[test]
    fn neighbouring_rows_are_independent() {
        let kept = rows(50.0, 7, 0);
        let pairs = kept.windows(2).filter(|pair| pair[0] + 1 == pair[1]).count();
        // 25,000 pairs are expected; four sigma are 548.
        assert!(pairs.abs_diff(25_000) < 548, "{pairs}");
    }
}
