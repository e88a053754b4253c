//! State that threads share without a lock, in the orders that Miri tries: `-Zmiri-many-seeds` tries more.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::thread;

use crate::pool::{self, Pooled};
use crate::storage::note_and_scrub;
use crate::work_queue::{Counter, WorkQueue};

/// A counter in shared memory, as a tensor's is.
fn counter() -> Counter {
    let memory = Arc::new(AtomicI64::new(0));
    let address = memory.as_ptr().expose_provenance();
    // SAFETY: the number is aligned, and lives as long as the memory.
    unsafe { Counter::at(address, memory) }.unwrap()
}

#[test]
fn every_piece_is_taken_once_and_none_of_a_newer_iteration() {
    let counter = counter();
    let iteration = counter.begin();
    let takers: Vec<_> = (0..3)
        .map(|_| {
            let feed = WorkQueue::new(counter.clone(), iteration, 20);
            thread::spawn(move || {
                while (feed.taken().len() as u32) < feed.take_until(feed.taken().len() as u32 + 2) {
                }
                feed.taken()
            })
        })
        .collect();
    let taken: Vec<u32> = takers.into_iter().flat_map(|taker| taker.join().unwrap()).collect();
    assert_eq!((taken.len(), BTreeSet::from_iter(taken).len()), (20, 20));
    counter.begin();
    assert_eq!(WorkQueue::new(counter, iteration, 100).take_until(1), 0);
}

#[test]
fn kept_memory_has_one_owner() {
    const BYTES: usize = 64 << 10;
    let users: Vec<_> = (1..=3_u8)
        .map(|user| {
            thread::spawn(move || {
                for _ in 0..4 {
                    let mut memory = Pooled::new(BYTES);
                    memory.as_mut_slice()[..64].fill(user);
                    thread::yield_now();
                    assert!(memory.as_ref()[..64].iter().all(|byte| *byte == user));
                }
            })
        })
        .collect();
    users.into_iter().for_each(|user| user.join().unwrap());
    let (_kept, is_fresh) = pool::take(BYTES).unwrap();
    assert!(!is_fresh);
}

#[test]
fn secrets_are_noted_while_others_look_for_them() {
    let writers: Vec<_> = (0..3)
        .map(|writer| {
            thread::spawn(move || {
                let secret = format!("planted-{writer}");
                let options = BTreeMap::from([("secret".to_owned(), secret.clone())]);
                assert_eq!(note_and_scrub(&options, &format!("a {secret} b")), "a *** b");
            })
        })
        .collect();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
}
