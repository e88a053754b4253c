//! `hash64(value [, seed [, modulus]])`: XXH64 of a value's bytes, the same on every platform and
//! in every version.
//!
//! Source of the algorithm: the specification of xxHash, `doc/xxhash_spec.md` of Cyan4973/xxHash.
//! The bytes of a value, little-endian, never depend on the width or the encoding of its type:
//!
//! - integers and booleans (0 and 1): the 8 bytes of the number in two's complement
//! - floats: the 8 bytes of the DOUBLE; -0.0 as 0.0, and every NaN as `0x7ff8000000000000`
//! - texts: UTF-8; byte strings as they are

use std::sync::Arc;

use arrow::array::{
    Array, ArrayAccessor, ArrayRef, AsArray, Int64Array, PrimitiveArray, new_null_array,
};
use arrow::compute::{cast, take};
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type,
    Int32Type, Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use datafusion::common::ScalarValue;
use twox_hash::XxHash64;

use super::Spec;
use super::arguments::{
    Call, count, each_element, element_of, plain, refused, whole, with_element, wrong_type,
};
use crate::{Error, Result};

pub(super) static HASH64: Spec = Spec {
    name: NAME,
    usage: "hash64(value), hash64(value, seed) or hash64(value, seed, modulus)",
    arguments: 1..=3,
    coerce,
    output,
    compute,
};

const NAME: &str = "hash64";

fn coerce(types: &[DataType]) -> Result<Vec<DataType>> {
    let mut found = types.to_vec();
    // A dictionary's values are hashed once.
    if !matches!(types[0], DataType::Dictionary(..)) {
        found[0] = plain(&types[0], false);
    }
    let element = plain(element_of(&found[0]), false);
    if !is_hashed(&element) {
        return Err(Error::query(format!(
            "{NAME}() takes integers, floats, booleans, texts, byte strings and lists of them, and {element} is none; hash its \
             text, {NAME}(CAST(… AS VARCHAR)), or a field of it"
        )));
    }
    Ok(found)
}

fn is_hashed(of: &DataType) -> bool {
    use DataType::{
        Binary, BinaryView, Boolean, FixedSizeBinary, LargeBinary, LargeUtf8, Null, Utf8, Utf8View,
    };
    of.is_integer()
        || of.is_floating()
        || matches!(
            of,
            Boolean
                | Utf8
                | LargeUtf8
                | Utf8View
                | Binary
                | LargeBinary
                | BinaryView
                | FixedSizeBinary(_)
                | Null
        )
}

fn output(types: &[DataType], constants: &[Option<&ScalarValue>]) -> Result<DataType> {
    for (at, name) in CONSTANTS {
        if let Some(of) = types.get(at)
            && !of.is_integer()
            && constants[at].is_none()
        {
            return Err(wrong_type(NAME, name, "a whole number", of));
        }
    }
    Hashing::of(constants)?;
    Ok(with_element(&plain(&types[0], false), DataType::Int64))
}

fn compute(call: &Call<'_>) -> Result<ArrayRef> {
    let how = Hashing::of(&call.constants(NAME, &CONSTANTS)?)?;
    each_element(&call.array(0)?, &|values| how.values(values))
}

const CONSTANTS: [(usize, &str); 2] = [(1, "the seed"), (2, "the modulus")];

/// A seed, and the modulus where there is one.
struct Hashing {
    seed: u64,
    modulus: Option<Modulus>,
}

impl Hashing {
    fn of(constants: &[Option<&ScalarValue>]) -> Result<Self> {
        let given = |at: usize| constants.get(at).copied().flatten();
        let seed = given(1).map(|value| match whole(value).map(u64::try_from) {
            Some(Ok(seed)) => Ok(seed),
            _ => Err(refused(NAME, "the seed", "a whole number from 0 to 2^64 - 1", value)),
        });
        let modulus = given(2).map(|value| count(NAME, "the modulus", value, i64::MAX));
        Ok(Self {
            seed: seed.transpose()?.unwrap_or(0),
            modulus: modulus.transpose()?.map(|divisor| Modulus::of(divisor as u64)),
        })
    }

    fn values(&self, array: &ArrayRef) -> Result<ArrayRef> {
        use DataType::{
            Binary, BinaryView, Boolean, Dictionary, FixedSizeBinary, Float16, Float32, Float64,
            Int8, Int16, Int32, Int64, LargeBinary, LargeUtf8, Null, UInt8, UInt16, UInt32, UInt64,
            Utf8, Utf8View,
        };
        Ok(match array.data_type() {
            Null => new_null_array(&DataType::Int64, array.len()),
            Boolean => {
                let (no, yes) = (self.word(0), self.word(1));
                let values = array.as_boolean().values().iter();
                let values = values.map(|is| if is { yes } else { no }).collect::<Vec<_>>();
                Arc::new(Int64Array::new(values.into(), array.nulls().cloned()))
            }
            Int8 => self.words::<Int8Type>(array, |value| i64::from(value) as u64),
            Int16 => self.words::<Int16Type>(array, |value| i64::from(value) as u64),
            Int32 => self.words::<Int32Type>(array, |value| i64::from(value) as u64),
            Int64 => self.words::<Int64Type>(array, |value| value as u64),
            UInt8 => self.words::<UInt8Type>(array, u64::from),
            UInt16 => self.words::<UInt16Type>(array, u64::from),
            UInt32 => self.words::<UInt32Type>(array, u64::from),
            UInt64 => self.words::<UInt64Type>(array, |value| value),
            Float16 => self.words::<Float16Type>(array, |value| bits(value.to_f64())),
            Float32 => self.words::<Float32Type>(array, |value| bits(f64::from(value))),
            Float64 => self.words::<Float64Type>(array, bits),
            Utf8 => self.texts(array.as_string::<i32>()),
            LargeUtf8 => self.texts(array.as_string::<i64>()),
            Utf8View => self.texts(array.as_string_view()),
            Binary => self.texts(array.as_binary::<i32>()),
            LargeBinary => self.texts(array.as_binary::<i64>()),
            BinaryView => self.texts(array.as_binary_view()),
            FixedSizeBinary(_) => self.texts(array.as_fixed_size_binary()),
            Dictionary(_, of) => {
                let encoded = array.as_any_dictionary();
                if encoded.values().len() > array.len() {
                    return self.values(&cast(array, of)?);
                }
                take(&self.values(encoded.values())?, encoded.keys(), None)?
            }
            other => return Err(wrong_type(NAME, "the value", "a plain value", other)),
        })
    }

    fn words<T: ArrowPrimitiveType>(
        &self,
        array: &ArrayRef,
        word: impl Fn(T::Native) -> u64,
    ) -> ArrayRef {
        let values = array.as_primitive::<T>();
        let found: PrimitiveArray<Int64Type> = match &self.modulus {
            None => values.unary(|value| hash_of_word(word(value), self.seed) as i64),
            Some(modulus) => {
                values.unary(|value| modulus.rest(hash_of_word(word(value), self.seed)))
            }
        };
        Arc::new(found)
    }

    fn texts<A: ArrayAccessor>(&self, array: A) -> ArrayRef
    where
        A::Item: AsRef<[u8]>,
    {
        let hash = |row: usize| self.reduced(hash_of_bytes(array.value(row).as_ref(), self.seed));
        let rows = 0..array.len();
        let nulls = array.nulls().cloned();
        let values: Vec<i64> = match nulls.as_ref().filter(|nulls| nulls.null_count() > 0) {
            None => rows.map(hash).collect(),
            Some(nulls) => {
                rows.map(|row| if nulls.is_valid(row) { hash(row) } else { 0 }).collect()
            }
        };
        Arc::new(Int64Array::new(values.into(), nulls))
    }

    fn word(&self, word: u64) -> i64 {
        self.reduced(hash_of_word(word, self.seed))
    }

    /// The rest by the modulus; without one the 64 bits as a BIGINT.
    fn reduced(&self, hash: u64) -> i64 {
        self.modulus.as_ref().map_or(hash as i64, |modulus| modulus.rest(hash))
    }
}

/// The numbers under which a type's values lie, where they are numbers without being called so.
fn under(of: &DataType) -> Option<DataType> {
    use DataType::{Date32, Date64, Duration, Time32, Time64, Timestamp};
    match of {
        Date32 | Time32(_) => Some(DataType::Int32),
        Date64 | Time64(_) | Timestamp(..) | Duration(_) => Some(DataType::Int64),
        _ => None,
    }
}

/// Returns true for types of which [`hash_of_rows`] gives equal values equal hashes.
pub fn has_hash_of_rows(of: &DataType) -> bool {
    is_hashed(of) || under(of).is_some()
}

/// A hash of each value of a column, NULL for NULL, the same on every platform.
///
/// # Errors
/// A query error for other types than those of [`has_hash_of_rows`].
pub fn hash_of_rows(column: &ArrayRef) -> Result<ArrayRef> {
    let how = Hashing { seed: 0, modulus: None };
    match under(column.data_type()) {
        Some(number) => how.values(&cast(column, &number)?),
        None => how.values(column),
    }
}

/// The bits of a float that all equal floats share.
fn bits(value: f64) -> u64 {
    match value.is_nan() {
        true => 0x7ff8_0000_0000_0000,
        // The sum of -0.0 and 0.0 is 0.0.
        false => (value + 0.0).to_bits(),
    }
}

const PRIMES: [u64; 5] = [
    0x9E37_79B1_85EB_CA87,
    0xC2B2_AE3D_27D4_EB4F,
    0x1656_67B1_9E37_79F9,
    0x85EB_CA77_C2B2_AE63,
    0x27D4_EB2F_1656_67C5,
];

/// XXH64 of 8 bytes, written out: a call for bytes of any number takes several times as long.
fn hash_of_word(word: u64, seed: u64) -> u64 {
    mixed(with_word(seed.wrapping_add(PRIMES[4]).wrapping_add(8), word))
}

/// XXH64 of bytes; of fewer than 32 written out, since most texts are short and a call for each takes as long as their bytes.
#[inline]
fn hash_of_bytes(bytes: &[u8], seed: u64) -> u64 {
    if bytes.len() >= 32 {
        return XxHash64::oneshot(seed, bytes);
    }
    let mut hash = seed.wrapping_add(PRIMES[4]).wrapping_add(bytes.len() as u64);
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        hash = with_word(hash, u64::from_le_bytes(*word));
    }
    let (half, rest) = rest.as_chunks::<4>();
    if let [half] = half {
        hash ^= u64::from(u32::from_le_bytes(*half)).wrapping_mul(PRIMES[0]);
        hash = hash.rotate_left(23).wrapping_mul(PRIMES[1]).wrapping_add(PRIMES[2]);
    }
    for byte in rest {
        hash ^= u64::from(*byte).wrapping_mul(PRIMES[4]);
        hash = hash.rotate_left(11).wrapping_mul(PRIMES[0]);
    }
    mixed(hash)
}

fn with_word(hash: u64, word: u64) -> u64 {
    let lane = word.wrapping_mul(PRIMES[1]).rotate_left(31).wrapping_mul(PRIMES[0]);
    (hash ^ lane).rotate_left(27).wrapping_mul(PRIMES[0]).wrapping_add(PRIMES[3])
}

fn mixed(mut hash: u64) -> u64 {
    hash = (hash ^ (hash >> 33)).wrapping_mul(PRIMES[1]);
    hash = (hash ^ (hash >> 29)).wrapping_mul(PRIMES[2]);
    hash ^ (hash >> 32)
}

/// A divisor, and the factor and shifts by which a rest takes two multiplications instead of a division: Granlund and
/// Montgomery, "Division by invariant integers using multiplication" (1994), figure 4.1.
struct Modulus {
    divisor: u64,
    factor: u64,
    shifts: (u32, u32),
}

impl Modulus {
    fn of(divisor: u64) -> Self {
        // Bits of the least power of two that is no less than the divisor.
        let bits = u64::BITS - (divisor - 1).leading_zeros();
        let above = (1_u128 << bits) - u128::from(divisor);
        let factor = (above << 64) / u128::from(divisor) + 1;
        Self { divisor, factor: factor as u64, shifts: (bits.min(1), bits.saturating_sub(1)) }
    }

    /// The rest of an unsigned number, from 0 to the divisor - 1.
    fn rest(&self, of: u64) -> i64 {
        let high = ((u128::from(self.factor) * u128::from(of)) >> 64) as u64;
        let quotient = (high + ((of - high) >> self.shifts.0)) >> self.shifts.1;
        (of - quotient * self.divisor) as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_hashed_like_their_bytes() {
        for word in [0, 1, 42, u64::MAX, 1 << 63, 0x0123_4567_89ab_cdef] {
            for seed in [0, 1, 2_654_435_761, u64::MAX] {
                let found = XxHash64::oneshot(seed, &word.to_le_bytes());
                assert_eq!(hash_of_word(word, seed), found, "{word} {seed}");
            }
        }
    }

    #[test]
    fn bytes_of_every_length_are_hashed_as_the_specification_says() {
        let bytes: Vec<u8> = (0..100u32).map(|n| (n * 151 + 7) as u8).collect();
        for length in 0..=bytes.len() {
            for seed in [0, 1, 2_654_435_761, u64::MAX] {
                let found = XxHash64::oneshot(seed, &bytes[..length]);
                assert_eq!(hash_of_bytes(&bytes[..length], seed), found, "{length} {seed}");
            }
        }
    }

    #[test]
    fn the_rest_is_that_of_a_division() {
        let numbers: Vec<u64> = (0..2_000u64)
            .map(|n| hash_of_word(n, 7))
            .chain([0, 1, u64::MAX, u64::MAX - 1, 1 << 63])
            .collect();
        for divisor in [1, 2, 3, 10, 1 << 20, 1_000_003, (1 << 62) + 1, i64::MAX as u64] {
            let modulus = Modulus::of(divisor);
            for number in &numbers {
                assert_eq!(modulus.rest(*number), (number % divisor) as i64, "{number} {divisor}");
            }
        }
    }
}
