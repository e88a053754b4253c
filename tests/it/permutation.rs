//! A permutation of row numbers is a bijection, the same everywhere and forever, and looks random.

use proptest::prelude::*;
use tensorquery::sharding::{Permutation, derive_key};

/// More than this is computed by the network, not by a table.
const TABLE_LEN: u64 = 4096;

fn order(key: u64, len: u64) -> Vec<u64> {
    let permutation = Permutation::new(key, len);
    (0..len).map(|position| permutation.at(position)).collect()
}

fn assert_bijective(key: u64, len: u64) {
    let mut seen = vec![false; len as usize];
    for value in order(key, len) {
        assert!(!std::mem::replace(&mut seen[value as usize], true), "{value} twice, len {len}");
    }
}

#[test]
fn every_row_has_one_position() {
    for len in (0..600).chain([1000, 4095]).chain(TABLE_LEN..TABLE_LEN + 300) {
        assert_bijective(derive_key(&[len]), len);
    }
    // Around squares, where the digits' ranges change, and powers of two.
    for root in [65_u64, 100, 255, 256, 257, 512] {
        for len in root * root - 2..root * root + 3 {
            assert_bijective(1, len);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_row_of_many_has_one_position(len in TABLE_LEN..1_000_000, key: u64) {
        assert_bijective(key, len);
    }

    #[test]
    fn rows_of_huge_tables_are_in_range_and_differ(len in 1_u64 << 32..1 << 62, key: u64, start: u64) {
        let permutation = Permutation::new(key, len);
        let start = start % (len - 1000);
        let mut values: Vec<u64> = (start..start + 1000).map(|at| permutation.at(at)).collect();
        prop_assert!(values.iter().all(|&value| value < len));
        values.sort_unstable();
        values.dedup();
        prop_assert_eq!(values.len(), 1000);
    }
}

#[test]
#[should_panic(expected = "position 10 must be in 0..10")]
fn a_position_beyond_the_end_is_refused() {
    Permutation::new(1, 10).at(10);
}

#[test]
fn the_orders_never_change() {
    assert_eq!(order(42, 10), GOLDEN_TABLE);
    let large = Permutation::new(42, 1_000_000_007);
    let found: Vec<u64> = (0..6).map(|position| large.at(position)).collect();
    assert_eq!(found, GOLDEN_NETWORK);
}

const GOLDEN_TABLE: [u64; 10] = [5, 3, 1, 0, 9, 6, 4, 7, 2, 8];
/// Computed by another implementation, in Python.
const GOLDEN_NETWORK: [u64; 6] =
    [632_430_737, 240_043_998, 715_477_536, 33_071_440, 128_586_665, 990_651_305];

/// Sum over cells of (found - expected)^2 / expected.
fn chi_square(counts: &[u64], expected: f64) -> f64 {
    counts.iter().map(|&count| (count as f64 - expected).powi(2) / expected).sum()
}

/// Asserts that a chi-square with so many degrees of freedom lies within four standard deviations of its mean.
#[track_caller]
fn assert_chance(statistic: f64, degrees: f64) {
    let deviation = (2.0 * degrees).sqrt();
    assert!((statistic - degrees).abs() < 4.0 * deviation, "{statistic} for {degrees} degrees");
}

#[test]
fn each_order_of_a_few_rows_is_equally_likely() {
    for (len, orders) in [(3_u64, 6_usize), (4, 24), (5, 120)] {
        let mut counts = std::collections::BTreeMap::new();
        let draws = 2000 * orders as u64;
        for key in 0..draws {
            *counts.entry(order(derive_key(&[9, key]), len)).or_insert(0_u64) += 1;
        }
        assert_eq!(counts.len(), orders);
        let counts: Vec<u64> = counts.into_values().collect();
        assert_chance(chi_square(&counts, 2000.0), orders as f64 - 1.0);
    }
}

#[test]
fn a_position_says_nothing_about_its_row() {
    // Positions and rows in 32 buckets each: every cell is as full as any other.
    for (seed, len) in [(1, 4097_u64), (2, 5000), (3, 65_536), (4, 100_003), (5, 1 << 20)] {
        let mut counts = vec![0_u64; 32 * 32];
        let keys = 3;
        for key in 0..keys {
            for (position, row) in order(derive_key(&[seed, key]), len).into_iter().enumerate() {
                let cell = |value: u64| (value * 32 / len) as usize;
                counts[cell(position as u64) * 32 + cell(row)] += 1;
            }
        }
        // Rows and columns of the table are full by construction, which leaves 31 * 31 degrees.
        assert_chance(chi_square(&counts, (len * keys) as f64 / 1024.0), 31.0 * 31.0);
    }
}

#[test]
fn a_row_says_nothing_about_the_next() {
    for len in [5000_u64, 65_536, 1_000_003] {
        let rows = order(derive_key(&[len, 5]), len);
        let mean = (len - 1) as f64 / 2.0;
        let variance: f64 = rows.iter().map(|&row| (row as f64 - mean).powi(2)).sum();
        for lag in [1, 2, 70, 71, 255, 256, 1000, 1001] {
            let products = rows.iter().zip(&rows[lag..]);
            let sum: f64 = products.map(|(&a, &b)| (a as f64 - mean) * (b as f64 - mean)).sum();
            let correlation = sum / variance;
            assert!(
                correlation.abs() < 4.5 / (len as f64).sqrt(),
                "{correlation} at {lag} of {len}"
            );
        }
        // Neighbours in the file stay neighbours as often as chance has it: 2 in len.
        let together = rows.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) == 1).count();
        assert!(together < 12, "{together} neighbours of {len}");
    }
}

#[test]
fn one_bit_of_the_key_changes_everything() {
    let len = 100_000;
    let whole = order(77, len);
    for bit in 0..64 {
        let same = order(77 ^ (1 << bit), len).iter().zip(&whole).filter(|(a, b)| a == b).count();
        assert!(same < 9, "{same} rows stay where they were at bit {bit}");
    }
}
