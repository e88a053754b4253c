//! Large memory that was given back, kept for those who need as much next.
//!
//! A large allocation is fresh from the system and goes back to it: a page fault for every 4 KiB,
//! which costs about as much as to fill them. Batches of a run are alike, and so are the row groups
//! that they are read from, so memory that one of them gave back fits the next.

use std::alloc::{Layout, alloc_zeroed};
use std::sync::{Mutex, TryLockError};

/// Smaller ones the allocator itself keeps.
const SMALLEST: usize = 32 << 10;

/// Bytes that lie here at most.
const MOST_BYTES: usize = 64 << 20;

/// How often a lock is tried: it is held for a look through a short list.
const TRIES: usize = 100;

/// Kept memory, the last one given back at the end: it is the likeliest to be in a cache.
static KEPT: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

/// Memory of `bytes`, and whether it is fresh, and zero: otherwise it holds earlier content.
/// Returns None if the system has no such memory.
pub fn take(bytes: usize) -> Option<(Vec<u8>, bool)> {
    if let Some(memory) = kept(bytes) {
        return Some((memory, false));
    }
    let mut memory = zeroed(roomy(bytes))?;
    memory.truncate(bytes);
    Some((memory, true))
}

/// Memory fresh from the system, which is zero, and nobody writes to it for that: a page that
/// nobody writes to is not there. `vec!` would end the process where the system has none.
fn zeroed(bytes: usize) -> Option<Vec<u8>> {
    let layout = Layout::array::<u8>(bytes).ok()?;
    if bytes == 0 {
        return Some(Vec::new());
    }
    // SAFETY: the layout has a size. What it gives is of the layout that a vector of so many bytes
    // has, and each of these is zero.
    unsafe {
        let memory = alloc_zeroed(layout);
        (!memory.is_null()).then(|| Vec::from_raw_parts(memory, bytes, bytes))
    }
}

/// Memory of `bytes` that was given back; None where nothing fits.
fn kept(bytes: usize) -> Option<Vec<u8>> {
    if bytes < SMALLEST {
        return None;
    }
    let fits = |memory: &Vec<u8>| (bytes..=bytes.saturating_mul(2)).contains(&memory.capacity());
    let mut memory = briefly(&KEPT, |kept| {
        let found = kept.iter().rposition(fits)?;
        Some(kept.remove(found))
    })
    .flatten()?;
    memory.resize(bytes, 0);
    Some(memory)
}

/// A little more than `bytes`, so that similar needs, such as those of row groups, fit the same
/// memory. Otherwise each need slightly larger than all before would take memory of its own.
fn roomy(bytes: usize) -> usize {
    match (bytes / 4).checked_ilog2() {
        Some(bits) if bytes <= MOST_BYTES / 2 => bytes.next_multiple_of(1 << bits),
        _ => bytes,
    }
}

/// Keeps `memory`, unless that would be too much.
pub fn give(memory: Vec<u8>) {
    if !(SMALLEST..=MOST_BYTES / 2).contains(&memory.capacity()) {
        return;
    }
    // What is too much goes back to the system after the lock is released.
    let _oldest = briefly(&KEPT, |kept| {
        let mut bytes: usize = kept.iter().map(Vec::capacity).sum::<usize>() + memory.capacity();
        kept.push(memory);
        let excess = kept.iter().take_while(|memory| {
            let is_excess = bytes > MOST_BYTES;
            bytes = bytes.saturating_sub(memory.capacity());
            is_excess
        });
        let excess = excess.count();
        kept.drain(..excess).collect::<Vec<_>>()
    });
}

/// Works on a value whose lock is only held for a moment. Never waits for long: a process forked
/// while another thread held it would wait for ever.
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
pub struct Pooled(Vec<u8>);

impl Pooled {
    /// So many bytes, of any content.
    pub fn new(len: usize) -> Self {
        Self(take(len).map_or_else(|| vec![0; len], |(memory, _)| memory))
    }

    /// The bytes, to be written.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl AsRef<[u8]> for Pooled {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        give(std::mem::take(&mut self.0));
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

    #[test]
    fn memory_that_no_system_has_is_none() {
        assert!(take(usize::MAX).is_none() && (cfg!(miri) || take(isize::MAX as usize).is_none()));
        assert_eq!([take(0), take(3)], [Some((vec![], true)), Some((vec![0; 3], true))]);
    }
}
