//! A permutation of row numbers, computed point by point.

use std::sync::Arc;

use super::order::derive_key;
use super::rng::{Rng, mix};

/// Up to so many positions the permutation is a table (16 KiB), drawn by Fisher and Yates: each of
/// the `len!` orders is then as likely as any other, which no Feistel network of a few bits can
/// claim.
const TABLE_LEN: u64 = 4096;

/// Rounds of the network. Luby and Rackoff prove four for secret round functions; the rest is
/// margin for the small domains here (V. Patarin, "Luby-Rackoff: 7 Rounds Are Enough", CRYPTO
/// 2003).
const ROUNDS: usize = 10;

/// A bijection of `0..len`, the same on every machine for the same key.
///
/// [`at`](Self::at) answers for one position in constant time and memory, so an epoch over billions
/// of rows needs no list of them, and a cursor is a position.
///
/// Beyond 4096 positions it is the generalised Feistel cipher of J. Black and P. Rogaway, "Ciphers
/// with Arbitrary Finite Domains", CT-RSA 2002, section 5, with cycle walking (section 4): a number
/// is a pair of digits, `left` in `0..a` and `right` in `0..b` with a·b >= len and both near its
/// root; each round adds to one digit a scrambled function of the other. A result outside `0..len`
/// is permuted again until it is inside; fewer than one in √len is. Not for cryptography: the round
/// function is that of SplitMix64.
#[derive(Clone, Debug)]
pub struct Permutation {
    len: u64,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Table(Arc<[u32]>),
    Network {
        /// Values of the left digit; at most 2^32.
        left: u64,
        /// Values of the right digit; at most 2^32.
        right: u64,
        keys: [u64; ROUNDS],
    },
}

impl Permutation {
    /// The permutation of `0..len` under `key`.
    pub fn new(key: u64, len: u64) -> Self {
        let kind = if len <= TABLE_LEN {
            let mut table: Vec<u32> = (0..len as u32).collect();
            Rng::new(key).shuffle(&mut table);
            Kind::Table(table.into())
        } else {
            let left = len.isqrt();
            let right = len.div_ceil(left);
            Kind::Network {
                left,
                right,
                keys: std::array::from_fn(|round| derive_key(&[key, round as u64])),
            }
        };
        Self { len, kind }
    }

    /// Number of positions.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns true if there is nothing to permute.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The row at `position` of the permuted order.
    ///
    /// # Panics
    /// Where `position` is not in `0..len`.
    pub fn at(&self, position: u64) -> u64 {
        assert!(position < self.len, "position {position} must be in 0..{}", self.len);
        match &self.kind {
            Kind::Table(table) => u64::from(table[position as usize]),
            Kind::Network { left, right, keys } => {
                let mut value = position;
                loop {
                    value = network(value, *left, *right, keys);
                    // The network permutes 0..left·right, so the walk from a position ends inside
                    // 0..len: at the latest where it began.
                    if value < self.len {
                        return value;
                    }
                }
            }
        }
    }
}

fn network(value: u64, left: u64, right: u64, keys: &[u64; ROUNDS]) -> u64 {
    let (mut high, mut low) = (value / right, value % right);
    for pair in keys.chunks_exact(2) {
        high = add(high, scaled(low, pair[0], left), left);
        low = add(low, scaled(high, pair[1], right), right);
    }
    high * right + low
}

/// A scrambled number of `0..bound`. Its bias is under bound / 2^64: out of reach of any count.
fn scaled(digit: u64, key: u64, bound: u64) -> u64 {
    ((u128::from(mix(digit ^ key)) * u128::from(bound)) >> 64) as u64
}

/// The sum modulo `bound`, of two numbers below it.
fn add(a: u64, b: u64, bound: u64) -> u64 {
    let sum = a + b;
    if sum >= bound { sum - bound } else { sum }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_network_permutes_domains_of_any_two_digits() {
        for (left, right) in [(1, 1), (1, 7), (2, 2), (3, 5), (8, 8), (9, 8), (64, 65)] {
            for key in 0..20 {
                let keys = std::array::from_fn(|round| derive_key(&[key, round as u64]));
                let mut seen: Vec<u64> =
                    (0..left * right).map(|value| network(value, left, right, &keys)).collect();
                seen.sort_unstable();
                assert_eq!(seen, (0..left * right).collect::<Vec<_>>());
            }
        }
    }
}
