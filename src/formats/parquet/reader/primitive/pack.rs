//! Values of the rows that are kept, written behind each other.

use super::super::steps::Kept;
use super::Word;

/// Rows whose bits are in one byte, and in one word.
const EIGHT: usize = 8;
const WORD: usize = 64;

/// Bytes that the widest instruction here writes.
const VECTOR: usize = 64;

/// Values for which a vector that is packed into has room behind its last one.
pub(super) const ROOM: usize = VECTOR / size_of::<u32>();

/// By byte, the numbers of its bits that are set, ascending; and then zeros.
static SET: [[u8; EIGHT]; 256] = {
    let mut all = [[0; EIGHT]; 256];
    let mut byte = 0;
    while byte < all.len() {
        let (mut bit, mut count) = (0, 0);
        while bit < EIGHT {
            if byte >> bit & 1 == 1 {
                all[byte][count] = bit as u8;
                count += 1;
            }
            bit += 1;
        }
        byte += 1;
    }
    all
};

/// The bytes of a number, the lowest first, or the number itself.
pub(super) trait Bits: Copy {}

impl Bits for u32 {}
impl Bits for u64 {}
impl Bits for [u8; 4] {}
impl Bits for [u8; 8] {}

/// Appends those of the values of the rows from `at` on that are `kept`, each as `load` makes it.
///
/// Single rows are missing here and there, so a branch for each row, or for each run of rows, would
/// often be predicted wrongly.
pub(super) fn pack<S: Bits, T: Word>(
    from: &[S],
    load: impl Fn(S) -> T,
    kept: &Kept,
    at: usize,
    to: &mut Vec<T>,
) {
    let (words, rest) = from.as_chunks::<WORD>();
    let bits = |word: usize| kept.bits(at + word * WORD);
    packed(words, &load, bits, to);
    // Writers end a run of indices after 504 of them, so there is nearly always a rest.
    if let Some(first) = rest.first() {
        let mut last = [*first; WORD];
        last[..rest.len()].copy_from_slice(rest);
        let mask = (1 << rest.len()) - 1;
        packed(&[last], load, |_| bits(words.len()) & mask, to);
    }
}

/// Packs words of rows; each word has a bit for each kept row, the first row's the lowest.
fn packed<S: Bits, T: Word>(
    words: &[[S; WORD]],
    load: impl Fn(S) -> T,
    bits: impl Fn(usize) -> u64,
    to: &mut Vec<T>,
) {
    if !compressed(words, &bits, to) {
        by_eights(words, load, bits, to);
    }
}

/// Packs words of rows for any processor: eight rows at a time, the kept ones are written behind
/// those before them, and what is written behind the last one is overwritten.
fn by_eights<S: Bits, T: Word>(
    words: &[[S; WORD]],
    load: impl Fn(S) -> T,
    bits: impl Fn(usize) -> u64,
    to: &mut Vec<T>,
) {
    for (number, values) in words.iter().enumerate() {
        let (mut packed, mut count) = ([T::default(); WORD], 0);
        let (eights, _) = values.as_chunks::<EIGHT>();
        for (eight, byte) in eights.iter().zip(bits(number).to_le_bytes()) {
            // There is room: no more were written than read.
            let Some(place) = packed[count..].first_chunk_mut::<EIGHT>() else { break };
            for (value, bit) in place.iter_mut().zip(SET[usize::from(byte)]) {
                *value = load(eight[usize::from(bit) % EIGHT]);
            }
            count += byte.count_ones() as usize;
        }
        to.extend_from_slice(&packed[..count]);
    }
}

/// Packs words of rows by the instruction that is made for it; returns false if the processor has
/// none.
#[cfg(target_arch = "x86_64")]
fn compressed<S: Bits, T: Word>(
    words: &[[S; WORD]],
    bits: &impl Fn(usize) -> u64,
    to: &mut Vec<T>,
) -> bool {
    if !is_x86_feature_detected!("avx512f") || !is_x86_feature_detected!("popcnt") {
        return false;
    }
    // SAFETY: the processor has both.
    unsafe { compress(words, bits, to) };
    true
}

#[cfg(not(target_arch = "x86_64"))]
fn compressed<S: Bits, T: Word>(
    _: &[[S; WORD]],
    _: &impl Fn(usize) -> u64,
    _: &mut Vec<T>,
) -> bool {
    false
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,popcnt")]
fn compress<S: Bits, T: Word>(words: &[[S; WORD]], bits: &impl Fn(usize) -> u64, to: &mut Vec<T>) {
    use std::arch::x86_64::{
        _mm512_loadu_si512, _mm512_maskz_compress_epi32, _mm512_maskz_compress_epi64,
        _mm512_storeu_si512,
    };

    const { assert!(size_of::<S>() == size_of::<T>()) };
    let count: usize = (0..words.len()).map(|number| bits(number).count_ones() as usize).sum();
    to.reserve(count + VECTOR / size_of::<T>());
    let mut place = to.spare_capacity_mut().as_mut_ptr().cast::<u8>();
    for (number, word) in words.iter().enumerate() {
        let (kept, values) = (bits(number), word.as_ptr().cast::<u8>());
        let lanes = VECTOR / size_of::<T>();
        for (part, first) in (0..WORD).step_by(lanes).enumerate() {
            let here = kept >> first;
            // SAFETY: a word of rows is as many vectors as there are parts. What is written is
            // reserved: no more values than are kept, and one vector behind them. On this processor
            // a number and its bytes, the lowest first, are alike.
            unsafe {
                let found = _mm512_loadu_si512(values.add(part * VECTOR).cast());
                let (packed, mask) = match lanes {
                    16 => (_mm512_maskz_compress_epi32(here as u16, found), here as u16),
                    _ => (_mm512_maskz_compress_epi64(here as u8, found), u16::from(here as u8)),
                };
                _mm512_storeu_si512(place.cast(), packed);
                place = place.add(mask.count_ones() as usize * size_of::<T>());
            }
        }
    }
    // SAFETY: so many were written.
    unsafe { to.set_len(to.len() + count) };
}

#[cfg(test)]
mod tests {
    use arrow::buffer::BooleanBuffer;

    use super::*;

    /// Packs three words of rows and some more, from a row in the midst of a byte on.
    fn check<S: Bits, T: Word + PartialEq + std::fmt::Debug>(
        value: impl Fn(usize) -> S,
        load: impl Fn(S) -> T,
    ) {
        let (at, rows) = (13, 3 * WORD + 21);
        let values: Vec<S> = (0..rows).map(value).collect();
        let masks: [fn(usize) -> bool; 5] = [
            |_| true,
            |_| false,
            |row| row % 20 != 7,
            |row| row % 3 == 1,
            |row| (row * 2_654_435_761) >> 7 & 1 == 0,
        ];
        for is_kept in masks {
            let mask = BooleanBuffer::collect_bool(at + rows, is_kept);
            let kept = Kept::new(mask.clone(), mask.count_set_bits());
            let expected: Vec<T> =
                (0..rows).filter(|row| is_kept(at + row)).map(|row| load(values[row])).collect();
            let mut found = vec![T::default(); 3];
            pack(&values, &load, &kept, at, &mut found);
            assert_eq!(found[3..], expected);
            let (words, _) = values.as_chunks::<WORD>();
            let mut found = Vec::new();
            by_eights(words, &load, |word| kept.bits(at + word * WORD), &mut found);
            assert_eq!(found, expected[..found.len()]);
            let count = (at..at + words.len() * WORD).filter(|row| is_kept(*row)).count();
            assert_eq!(found.len(), count);
        }
    }

    #[test]
    fn kept_values_are_packed_in_their_order_whatever_the_processor() {
        check(|row| row as u32 * 77, |value| value);
        check(|row| (row as u64 * 77) << 30, |value| value);
        check(|row| (row as u32 * 77).to_le_bytes(), u32::from_le_bytes);
        check(|row| ((row as u64 * 77) << 30).to_le_bytes(), u64::from_le_bytes);
    }
}
