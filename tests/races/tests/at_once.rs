//! Concurrent work of a training process: streams that start, run and are dropped, slow consumers, workers that share
//! a counter, throttled requests, and memory that is reused.

extern crate tensorquery_races as tensorquery;

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use tensorquery::partition::{
    Builtin, Layout, Mixing, OrderKey, Remainder, Shard, ShardInput, resume,
};
use tensorquery::pool::Pooled;
use tensorquery::runtime::Runtimes;
use tensorquery::session::EpochPlan;
use tensorquery::stream::{
    Counter, Finished, Next, Output, RowSource, ShardStream, StreamCounters, WorkQueue,
};
use tensorquery::tensor::{Converter, TensorOptions};
use tensorquery::traffic::{MOST_REQUESTS, RequestLimiter};

const COUNTS: [u64; 12] = [900, 1, 4000, 0, 2500, 37, 5000, 800, 3000, 2, 1200, 640];

fn layout(num_workers: u32, mixing: Mixing, dynamic: bool) -> Layout {
    Layout {
        world_size: 1,
        num_workers,
        batch_size: 128,
        remainder: Remainder::Uneven,
        dynamic,
        counted: !dynamic,
        partitions: None,
        strategy: Some(Builtin::Lpt),
        shuffle: mixing.window.is_some(),
        permuted: None,
        refills: false,
        mixing,
    }
}

fn shards(layout: &Layout) -> Vec<Shard> {
    let input = ShardInput {
        weights: COUNTS.to_vec(),
        counts: Some(COUNTS.to_vec()),
        ..ShardInput::default()
    };
    resume(&input, None, layout, None, OrderKey { seed: 7, epoch: 0, fingerprint: b"races" })
        .unwrap()
}

fn output(plan: &EpochPlan, lends: bool) -> Arc<Output> {
    let converter = Converter::try_new(&plan.schema(), &TensorOptions::default()).unwrap();
    let output = Output::Tensors(converter);
    Arc::new(if lends { output.lending() } else { output })
}

/// The numbers of the rows that a stream delivers, at most `most` batches of it. Whoever trains writes into batches, and others
/// look at the counters meanwhile.
fn drain(stream: &mut ShardStream, most: usize, pause: Duration) -> Vec<i64> {
    let (mut found, mut batches) = (Vec::new(), 0);
    let counters: Arc<StreamCounters> = Arc::clone(stream.counters());
    while batches < most {
        match stream.next(Duration::from_secs(120)).unwrap() {
            Next::Batches(group) => {
                for delivered in group {
                    let Finished::Tensors(batch) = delivered.batch else { panic!("no tensors") };
                    counters.hand_out(batch.rows() as u64);
                    batches += 1;
                    found.extend(numbers(&batch));
                    thread::sleep(pause);
                    let (_, lent) = batch.into_memory();
                    for memory in lent.into_iter().flatten() {
                        let (address, bytes) = (memory.address(), memory.as_slice().len());
                        // SAFETY: these bytes are lent to this batch alone, and to be written to.
                        unsafe { address.write_bytes(0xA5, bytes) };
                    }
                }
                assert!(counters.split_share() <= 1.0 && counters.reads.files() > 0);
            }
            Next::End => break,
            Next::Pending => panic!("the stream hangs"),
        }
    }
    found
}

fn numbers(batch: &tensorquery::tensor::TensorBatch) -> Vec<i64> {
    let bytes = match batch.lent().first() {
        Some(Some(memory)) => memory.as_slice(),
        _ => batch.block().slot(batch.slots()[0]),
    };
    bytes.chunks_exact(8).map(|bytes| i64::from_le_bytes(bytes.try_into().unwrap())).collect()
}

const WINDOW: Mixing = Mixing { width: 5, chunk: 16, window: Some(700) };

#[test]
fn streams_side_by_side_deliver_every_row_once_while_others_are_dropped() {
    let total: i64 = COUNTS.iter().sum::<u64>() as i64;
    let start = Arc::new(Barrier::new(6));
    let consumers: Vec<_> = (0..6)
        .map(|number| {
            let start = Arc::clone(&start);
            thread::spawn(move || {
                let plan = EpochPlan::new(&COUNTS, [64, 512, 8192][number % 3]);
                let mixing = if number % 2 == 0 { WINDOW } else { Mixing::NONE };
                let [shard] = shards(&layout(0, mixing, false)).try_into().unwrap();
                start.wait();
                for turn in 0..4 {
                    let source = RowSource::Plan(plan.clone()).in_long_batches();
                    let output = output(&plan, turn % 2 == 0);
                    let begin = shard.start();
                    let mut stream = ShardStream::start(source, &shard, &begin, 2, output).unwrap();
                    let most = if turn == 1 { 3 * number } else { usize::MAX };
                    let pause = Duration::from_micros(if turn == 2 { 300 } else { 0 });
                    let mut found = drain(&mut stream, most, pause);
                    drop(stream);
                    if turn != 1 {
                        found.sort_unstable();
                        assert_eq!(found, (0..total).collect::<Vec<_>>());
                    }
                }
            })
        })
        .collect();
    consumers.into_iter().for_each(|consumer| consumer.join().unwrap());
}

#[test]
fn workers_that_share_a_counter_take_every_row_once() {
    let memory = Arc::new(AtomicI64::new(0));
    let address = memory.as_ptr().expose_provenance();
    let keeper: Arc<dyn Any + Send + Sync> = memory;
    // SAFETY: the number is aligned, and lives as long as the memory.
    let counter = unsafe { Counter::at(address, keeper) }.unwrap();
    let shard = shards(&layout(3, WINDOW, true)).swap_remove(0);
    let pieces = shard.lanes[0].pieces.len() as u32;
    let iteration = counter.begin();
    let workers: Vec<_> = (0..3)
        .map(|_| {
            let feed = Arc::new(WorkQueue::new(counter.clone(), iteration, pieces));
            let shard = shard.clone();
            thread::spawn(move || {
                let plan = EpochPlan::new(&COUNTS, 256);
                let source = RowSource::Plan(plan.clone());
                let output = output(&plan, false);
                let mut stream =
                    ShardStream::start_fed(source, &shard, 2, output, Arc::clone(&feed)).unwrap();
                (drain(&mut stream, usize::MAX, Duration::from_micros(50)), feed.taken())
            })
        })
        .collect();
    let (mut rows, mut taken) = (Vec::new(), Vec::new());
    for worker in workers {
        let (found, pieces) = worker.join().unwrap();
        rows.extend(found);
        taken.extend(pieces);
    }
    rows.sort_unstable();
    assert_eq!(rows, (0..COUNTS.iter().sum::<u64>() as i64).collect::<Vec<_>>());
    assert_eq!((taken.len() as u32, BTreeSet::from_iter(taken).len() as u32), (pieces, pieces));
}

#[test]
fn everybody_starts_the_runtime_first() {
    let start = Arc::new(Barrier::new(8));
    let starters: Vec<_> = (0..8)
        .map(|_| {
            let start = Arc::clone(&start);
            thread::spawn(move || {
                start.wait();
                let runtimes = Runtimes::current().unwrap();
                let sum = runtimes.cpu().block_on(async { tokio::spawn(async { 40 + 2 }).await });
                assert_eq!(sum.unwrap(), 42);
                Arc::as_ptr(&runtimes).addr()
            })
        })
        .collect();
    let found: BTreeSet<usize> = starters.into_iter().map(|each| each.join().unwrap()).collect();
    assert_eq!(found.len(), 1);
}

#[test]
fn requests_wait_for_their_turn_while_stores_throttle() {
    let traffic = Arc::new(RequestLimiter::default());
    let runtimes = Runtimes::current().unwrap();
    let done = Arc::new(AtomicI64::new(0));
    let tasks: Vec<_> = (0..64)
        .map(|number| {
            let (traffic, done) = (Arc::clone(&traffic), Arc::clone(&done));
            runtimes.io().spawn(async move {
                for round in 0..8 {
                    let permit = traffic.admit("store", Duration::from_secs(1)).await;
                    permit.answered();
                    tokio::task::yield_now().await;
                    if (number + round) % 16 == 0 {
                        permit.throttled(Some(Duration::from_millis(1)));
                        permit.count_retry();
                    } else {
                        permit.completed(1 << 20, Duration::from_millis(1));
                    }
                    drop(permit);
                    assert!(traffic.bytes_in_flight() < u64::MAX);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    runtimes.io().block_on(async {
        for task in tasks {
            task.await.unwrap();
        }
    });
    assert_eq!(done.load(Ordering::Relaxed), 512);
    let counts = traffic.counts();
    assert!(counts.throttled > 0 && counts.throttled == counts.retries);
    assert!((1..=MOST_REQUESTS).contains(&traffic.limit()));
}

#[test]
fn memory_goes_round() {
    const BYTES: usize = 64 << 10;
    let users: Vec<_> = (1..=4_u8)
        .map(|user| {
            thread::spawn(move || {
                for _ in 0..200 {
                    let mut memory = Pooled::new(BYTES);
                    memory.as_mut_slice()[..64].fill(user);
                    thread::yield_now();
                    assert!(memory.as_ref()[..64].iter().all(|byte| *byte == user));
                }
            })
        })
        .collect();
    users.into_iter().for_each(|user| user.join().unwrap());
}
