//! The order of splits in an epoch.

use super::rng::{GOLDEN_RATIO, Rng, mix};

/// Permutes `splits`, the list of one shard, for one epoch.
///
/// The order depends on the arguments alone: the same on every machine, for any number of threads.
///
/// - `seed`, `epoch`: the user's seed, and the number of the pass.
/// - `shard_key`: what tells this list from the lists of other shards; those with equal keys and
///   lengths move in the same way.
/// - `fingerprint`: the plan's; another query or file list gives an unrelated order.
pub fn epoch_order(splits: &mut [u32], seed: u64, epoch: u64, shard_key: u64, fingerprint: &[u8]) {
    let key = derive_key(&[seed, epoch, shard_key, digest(fingerprint)]);
    Rng::new(key).shuffle(splits);
}

/// One key out of several: depends on each part, on their order and on their number.
///
/// SplitMix64's bijection scrambles the state after each part, so that neighbouring seeds and
/// epochs give unrelated keys. Not for cryptography.
pub fn derive_key(parts: &[u64]) -> u64 {
    parts
        .iter()
        .fold(mix(parts.len() as u64), |state, part| mix(state.wrapping_add(GOLDEN_RATIO) ^ part))
}

/// A key out of bytes of any length, read as little-endian words.
pub(super) fn digest(bytes: &[u8]) -> u64 {
    let words = bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    // The length tells "a" from "a\0".
    derive_key(&std::iter::once(bytes.len() as u64).chain(words).collect::<Vec<_>>())
}
