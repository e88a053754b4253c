//! Large memory that was given back, kept for those who need as much next.
//!
//! A large allocation is fresh from the system and goes back to it: a page fault for every 4 KiB, which costs about as
//! much as to fill them. Batches of a run are alike, and so are the row groups that they are read from, so what one of them
//! gave back fits the next.

use std::sync::{Mutex, TryLockError};

/// Smaller ones the allocator itself keeps.
const SMALLEST: usize = 32 << 10;

/// Bytes that lie here at most.
const MOST_BYTES: usize = 64 << 20;

/// How often a lock is tried: it is held for a look through a short list.
const TRIES: usize = 100;

/// Kept memory, the last one given back at the end: it is the likeliest to be in a cache.
static KEPT: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

/// Memory of at least `bytes`, with whatever was written to it before; None where nothing fits.
pub fn take(bytes: usize) -> Option<Vec<u8>> {
    if bytes < SMALLEST {
        return None;
    }
    let fits = |memory: &Vec<u8>| (bytes..=2 * bytes).contains(&memory.len());
    briefly(&KEPT, |kept| {
        let found = kept.iter().rposition(fits)?;
        Some(kept.remove(found))
    })
    .flatten()
}

/// A little more than `bytes`, so that needs that are almost alike, as those of row groups are, fit the same memory: otherwise each
/// that is a little larger than all before it takes memory of its own. What nobody writes to is not there.
pub fn roomy(bytes: usize) -> usize {
    match (bytes / 4).checked_ilog2() {
        Some(bits) if bytes <= MOST_BYTES / 2 => bytes.next_multiple_of(1 << bits),
        _ => bytes,
    }
}

/// Keeps `memory`, unless that would be too much.
pub fn give(memory: Vec<u8>) {
    if memory.len() < SMALLEST || memory.len() > MOST_BYTES / 2 {
        return;
    }
    // What is too much goes back to the system after the lock is released.
    let _oldest = briefly(&KEPT, |kept| {
        let mut bytes: usize = kept.iter().map(Vec::len).sum::<usize>() + memory.len();
        kept.push(memory);
        let excess = kept.iter().take_while(|memory| {
            let is_excess = bytes > MOST_BYTES;
            bytes = bytes.saturating_sub(memory.len());
            is_excess
        });
        let excess = excess.count();
        kept.drain(..excess).collect::<Vec<_>>()
    });
}

/// Works with what a lock guards that is only held for a moment. Never waits for long: a process forked while another thread
/// was in there would wait for ever.
pub fn briefly<T, R>(lock: &Mutex<T>, work: impl FnOnce(&mut T) -> R) -> Option<R> {
    for _ in 0..TRIES {
        match lock.try_lock() {
            Ok(mut kept) => return Some(work(&mut kept)),
            Err(TryLockError::Poisoned(kept)) => return Some(work(&mut kept.into_inner())),
            Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
        }
    }
    None
}

/// Bytes in kept memory, which goes back when it is dropped.
#[derive(Debug)]
pub struct Pooled {
    memory: Vec<u8>,
    len: usize,
}

impl Pooled {
    /// So many bytes, of any content.
    pub fn new(len: usize) -> Self {
        let memory = take(len).unwrap_or_else(|| vec![0; roomy(len)]);
        Self { memory, len }
    }

    /// The bytes, to be written.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.memory[..self.len]
    }
}

impl AsRef<[u8]> for Pooled {
    fn as_ref(&self) -> &[u8] {
        &self.memory[..self.len]
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        give(std::mem::take(&mut self.memory));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Row groups of a file differ by some bytes.
    #[test]
    fn needs_that_are_almost_alike_fit_the_same_memory() {
        for bytes in [SMALLEST, 4_300_000, MOST_BYTES / 2] {
            assert!((bytes..=bytes + bytes / 4).contains(&roomy(bytes)), "{bytes}");
        }
        // Of a size that no other test has.
        let first = Pooled::new(21_000_001);
        let address = first.as_ref().as_ptr();
        drop(first);
        let larger = Pooled::new(21_000_999);
        assert_eq!((larger.as_ref().as_ptr(), larger.as_ref().len()), (address, 21_000_999));
        assert_eq!([roomy(0), roomy(3), roomy(usize::MAX)], [0, 3, usize::MAX]);
    }
}
