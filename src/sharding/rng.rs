//! The one pseudo-random generator of the crate, fixed for all time.
//!
//! An order must be the same on every machine and after every update of a dependency, so the
//! generator is written out here and not taken from a crate whose stream may change:
//!
//! - xoshiro256++ 1.0: D. Blackman and S. Vigna, "Scrambled Linear Pseudorandom Number Generators",
//!   ACM Trans. Math. Softw. 47(4), 2021; <https://prng.di.unimi.it>.
//! - its state is seeded by SplitMix64, as its authors advise: G. Steele, D. Lea and C. Flood,
//!   "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014.
//! - bounded numbers: D. Lemire, "Fast Random Integer Generation in an Interval", ACM Trans. Model.
//!   Comput. Simul. 29(1), 2019; unbiased.
//!
//! Not for cryptography.

/// The step of SplitMix64's counter: 2^64 over the golden ratio, made odd.
pub(super) const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;

/// xoshiro256++: 256 bits of state, period 2^256 - 1.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// The generator of `seed`; equal seeds give equal numbers on every platform.
    pub fn new(seed: u64) -> Self {
        let mut counter = seed;
        // SplitMix64 is a bijection of its counter, so four draws are never all zero, the one state
        // that xoshiro could not leave.
        Self { state: std::array::from_fn(|_| split_mix(&mut counter)) }
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.state;
        let result = a.wrapping_add(*d).rotate_left(23).wrapping_add(*a);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        result
    }

    /// A number of `0..bound`, each with the same probability; 0 where `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        let mut product = u128::from(self.next_u64()) * u128::from(bound);
        if (product as u64) < bound {
            // The first 2^64 mod bound low halves would occur once too often: draw again.
            let threshold = bound.wrapping_neg() % bound;
            while (product as u64) < threshold {
                product = u128::from(self.next_u64()) * u128::from(bound);
            }
        }
        (product >> 64) as u64
    }

    /// Permutes `items`, each permutation with the same probability (Fisher and Yates, from the
    /// end).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.below(last as u64 + 1) as usize;
            items.swap(last, other);
        }
    }
}

/// One step of SplitMix64: advances the counter and returns its scrambled value.
fn split_mix(counter: &mut u64) -> u64 {
    *counter = counter.wrapping_add(GOLDEN_RATIO);
    mix(*counter)
}

/// The scrambling function of SplitMix64: a bijection in which every input bit moves every output
/// bit.
pub(super) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_streams_are_those_the_authors_published() {
        let mut counter = 0;
        let seeded: [u64; 3] = std::array::from_fn(|_| split_mix(&mut counter));
        assert_eq!(seeded, [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f]);

        let mut rng = Rng { state: [1, 2, 3, 4] };
        let drawn: [u64; 6] = std::array::from_fn(|_| rng.next_u64());
        assert_eq!(
            drawn,
            [
                41_943_041,
                58_720_359,
                3_588_806_011_781_223,
                3_591_011_842_654_386,
                9_228_616_714_210_784_205,
                9_973_669_472_204_895_162,
            ]
        );
    }
}
