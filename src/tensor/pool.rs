//! Memory of dropped blocks, kept for the blocks to come.
//!
//! A large allocation is fresh from the system and goes back to it: a page fault for every 4 KiB, which costs about as
//! much as to fill them. Batches of a run are alike, so what one of them gave back fits the next.

use std::sync::{Mutex, TryLockError};

/// Smaller ones the allocator itself keeps.
const SMALLEST: usize = 32 << 10;

/// Bytes that lie here at most.
const MOST_BYTES: usize = 64 << 20;

/// Kept memory, the last one given back at the end: it is the likeliest to be in a cache.
static KEPT: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

/// Memory of at least `bytes`, with whatever was written to it before; None where nothing fits.
pub(super) fn take(bytes: usize) -> Option<Vec<u8>> {
    if bytes < SMALLEST {
        return None;
    }
    let fits = |memory: &Vec<u8>| (bytes..=2 * bytes).contains(&memory.len());
    with(|kept| {
        let found = kept.iter().rposition(fits)?;
        Some(kept.remove(found))
    })
    .flatten()
}

/// Keeps `memory`, unless that would be too much.
pub(super) fn give(memory: Vec<u8>) {
    if memory.len() < SMALLEST || memory.len() > MOST_BYTES / 2 {
        return;
    }
    with(|kept| {
        let mut bytes: usize = kept.iter().map(Vec::len).sum::<usize>() + memory.len();
        kept.push(memory);
        while bytes > MOST_BYTES {
            bytes -= kept.remove(0).len();
        }
    });
}

/// Never waits: a process forked while another thread was in here would wait for ever.
fn with<T>(work: impl FnOnce(&mut Vec<Vec<u8>>) -> T) -> Option<T> {
    match KEPT.try_lock() {
        Ok(mut kept) => Some(work(&mut kept)),
        Err(TryLockError::Poisoned(kept)) => Some(work(&mut kept.into_inner())),
        Err(TryLockError::WouldBlock) => None,
    }
}
