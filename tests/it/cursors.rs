//! Promises 1, 4 and 5 (docs/promises.md): the stream delivers the rows of a simple reader of its shard. Its cursor
//! after every batch is the counted one, and from each cursor it goes on as if nothing had happened.

use std::sync::Arc;
use std::time::Duration;

use arrow::array::AsArray;
use arrow::datatypes::{UInt32Type, UInt64Type};
use proptest::prelude::*;
use tensorquery::sharding::{
    Builtin, Lane, Layout, Mixing, Remainder, RowSlice, Schedule, Shard, ShardCursor, ShardInput,
    Source,
};
use tensorquery::stream::{Delivered, Finished, Next, Output, RowSource, ShardStream};
use tensorquery::{Error, ErrorKind};

use super::epochs::{Batch, Case, Consumed, Row, batches, cases, mixing};
use super::support::tries;

/// The batches of a shard from `cursor` on, of splits that have `counts` rows.
fn deliver(
    shard: &Shard,
    cursor: &ShardCursor,
    counts: &[u64],
    threads: usize,
) -> Result<Vec<Delivered>, Error> {
    let output = Arc::new(Output::Arrow(RowSource::positions_schema()));
    let source = RowSource::Positions(Arc::from(counts));
    let mut stream = ShardStream::start(source, shard, cursor, threads, output)?;
    let mut delivered = Vec::new();
    loop {
        match stream.next(Duration::from_secs(60))? {
            Next::Batches(group) => delivered.extend(group),
            Next::End => return Ok(delivered),
            Next::Pending => panic!("the stream hangs"),
        }
    }
}

fn rows(delivered: &Delivered) -> Vec<Row> {
    let Finished::Arrow(batch) = &delivered.batch else { panic!("tensors were not asked for") };
    let splits = batch.column(0).as_primitive::<UInt32Type>().values();
    let rows = batch.column(1).as_primitive::<UInt64Type>().values();
    splits.iter().copied().zip(rows.iter().copied()).collect()
}

fn all_rows(delivered: &[Delivered]) -> Vec<Vec<Row>> {
    delivered.iter().map(rows).collect()
}

/// Checks that a shard is delivered as the simple reader reads it, with the cursors of `twin`, which is the
/// shard with counts; and that each cursor leads to the rest.
fn check(shard: &Shard, twin: &Shard, counts: &[u64]) -> Result<(), TestCaseError> {
    let wanted: Vec<Vec<Row>> =
        batches(twin, counts).into_iter().map(|Batch { rows, .. }| rows).collect();
    let whole = deliver(shard, &shard.start(), counts, 1).unwrap();
    prop_assert_eq!(all_rows(&whole), &wanted[..], "{:?}", shard);
    for (number, batch) in (1_u64..).zip(&whole) {
        let is_last = number == wanted.len() as u64;
        prop_assert_eq!(batch.last, is_last);
        let counted = twin.cursor_at(number);
        let numbers = batch.cursor.encode();
        if shard.rows().is_some() {
            prop_assert_eq!(&numbers, &counted.encode(), "after {}: {:?}", number, shard);
        }
        // Whoever has counted since takes it too.
        let known = ShardCursor::decode(&numbers, &twin.lanes);
        prop_assert!(known.is_ok(), "after {number}: {:?} {numbers:?} {counted:?}", twin);
        for (reader, cursor) in
            [(shard, ShardCursor::decode(&numbers, &shard.lanes)), (twin, known)]
        {
            let rest = deliver(reader, &cursor.unwrap(), counts, 2).unwrap();
            prop_assert_eq!(
                all_rows(&rest),
                &wanted[number as usize..],
                "after {}: {:?}",
                number,
                shard
            );
            if shard == reader {
                let numbers = |batch: &Delivered| (batch.cursor.encode(), batch.last);
                let rest: Vec<_> = rest.iter().map(numbers).collect();
                let same: Vec<_> = whole[number as usize..].iter().map(numbers).collect();
                prop_assert_eq!(rest, same);
            }
        }
    }
    check_between(twin, counts, &wanted.concat())
}

/// Checks that the rows of one lane follow each other from any row on, and not only from where a
/// batch ends: a run that leaves rows out stands anywhere.
fn check_between(shard: &Shard, counts: &[u64], wanted: &[Row]) -> Result<(), TestCaseError> {
    if shard.lanes.len() != 1 || shard.rows() != Some(wanted.len() as u64) {
        return Ok(());
    }
    let open = shard.open_ended();
    for row in (0..=wanted.len()).step_by(wanted.len() / 5 + 1) {
        let numbers = shard.cursor_after(0, row as u64).unwrap().encode();
        let cursor = ShardCursor::decode(&numbers, &shard.lanes).unwrap();
        let rest = deliver(&open, &cursor, counts, 2).unwrap();
        prop_assert_eq!(&all_rows(&rest).concat(), &wanted[row..], "after {}: {:?}", row, shard);
    }
    Ok(())
}

/// A layout that always is possible, with windows that are left half drained.
fn windowed(world_size: u32, mixing: Mixing, remainder: Remainder) -> Layout {
    Layout {
        world_size,
        num_workers: 1,
        batch_size: 3,
        remainder,
        dynamic: false,
        counted: true,
        partitions: None,
        strategy: Some(Builtin::Lpt),
        shuffle: true,
        permuted: None,
        refills: false,
        mixing,
    }
}

/// The splits from which a piece is read directly, if it is a window of splits alone.
fn is_flat(piece: &RowSlice) -> bool {
    match &piece.source {
        Source::Split(_) => true,
        Source::Window(window) => window.pieces.iter().all(|piece| !piece.is_rest()),
    }
}

proptest! {
    #![proptest_config(tries(48))]

    /// Any layout, after any runs; without counts where no layout needs them.
    #[test]
    fn a_stream_goes_on_from_each_of_its_cursors(case in cases(3), unknown: bool) {
        let mut case = case;
        if unknown {
            for (layout, _) in &mut case.layouts {
                (layout.counted, layout.partitions) = (false, None);
                layout.remainder = Remainder::Uneven;
            }
            // Lanes that share batches are always counted.
            case.input.source_weights.clear();
            case.input.sources.clear();
            case.input.stop_first = false;
        }
        let chain = case.play();
        let shards = if unknown {
            let input = ShardInput { counts: None, ..case.input.clone() };
            case.resume_of(&input, &chain.runs, &chain.layout).unwrap()
        } else {
            chain.shards.clone()
        };
        for (shard, twin) in shards.iter().zip(&chain.shards) {
            check(shard, twin, case.counts())?;
        }
    }

    /// One epoch, interrupted again and again amid its windows.
    #[test]
    fn rests_of_windows_are_read_to_their_end(
        counts in prop::collection::vec(10_u64..40, 2..6),
        mixings in prop::collection::vec(mixing(), 4),
        window in 12_u64..40,
        remainder in prop::sample::select(vec![Remainder::Even, Remainder::Drop, Remainder::Pad]),
        worlds in prop::collection::vec(1_u32..3, 4),
        stop in 1_u16..3,
        seed: u64,
    ) {
        let layouts = mixings.into_iter().zip(worlds).map(|(mixing, world)| {
            let mixing = Mixing { window: Some(window), ..mixing };
            (windowed(world, mixing, remainder), Consumed::Step(stop))
        });
        let input = ShardInput { weights: counts.clone(), counts: Some(counts), ..ShardInput::default() };
        let case = Case { input, layouts: layouts.collect(), lists: None, seed };
        let chain = case.play();
        let rests: Vec<&RowSlice> =
            chain.shards.iter().flat_map(|shard| &shard.lanes).flat_map(|lane| &lane.rests).collect();
        prop_assume!(!rests.is_empty());
        prop_assert!(rests.into_iter().all(is_flat));
        for shard in &chain.shards {
            check(shard, shard, case.counts())?;
        }
    }

    /// Nothing that decodes makes the stream panic, hang, or deliver a row twice.
    #[test]
    fn a_damaged_cursor_is_an_error_or_another_cursor(
        case in cases(2),
        places in prop::collection::vec((any::<prop::sample::Index>(), 0_u64..40), 1..4),
        batches in any::<prop::sample::Index>(),
    ) {
        let mut case = case;
        for (layout, _) in &mut case.layouts {
            (layout.counted, layout.partitions) = (false, None);
            layout.remainder = Remainder::Uneven;
        }
        case.input.source_weights.clear();
        case.input.sources.clear();
        case.input.stop_first = false;
        let chain = case.play();
        let input = ShardInput { counts: None, ..case.input.clone() };
        let shards = case.resume_of(&input, &chain.runs, &chain.layout).unwrap();
        for (shard, twin) in shards.iter().zip(&chain.shards) {
            let all = twin.batches().unwrap() as usize;
            let mut numbers = twin.cursor_at(batches.index(all + 1) as u64).encode();
            for (place, number) in &places {
                let place = place.index(numbers.len());
                numbers[place] = *number;
            }
            let Ok(cursor) = ShardCursor::decode(&numbers, &shard.lanes) else { continue };
            match deliver(shard, &cursor, case.counts(), 1) {
                Ok(found) => {
                    let mut rows: Vec<Row> = all_rows(&found).concat();
                    rows.sort_unstable();
                    prop_assert!(rows.windows(2).all(|pair| pair[0] < pair[1]), "{:?}", numbers);
                }
                Err(error) => {
                    prop_assert_eq!(error.kind(), ErrorKind::Data);
                    prop_assert!(!error.message().contains("abnormally"), "{:?}: {}", numbers, error);
                }
            }
        }
    }
}

/// One lane of two splits, in their order.
fn small(counts: &[u64], schedule: Schedule) -> Shard {
    let pieces = (0..).zip(counts).map(|(id, rows)| RowSlice::split(id, Some(*rows))).collect();
    let lane = Lane { rests: Vec::new(), pieces, key: 0, mixing: Mixing::NONE, number: 0 };
    Shard { lanes: vec![lane], lane_weights: Vec::new(), ramp: None, schedule, padding: Vec::new() }
}

/// The data changed since they were counted: rows would be lost or repeated.
#[test]
fn splits_of_other_rows_than_counted_are_refused() {
    let schedule = |rows| Schedule::of_rank(rows, 1, 0, 4, Remainder::Even).unwrap();
    let shard = small(&[5, 6], schedule(11));
    let read = |counts: &[u64]| deliver(&shard, &shard.start(), counts, 1);
    assert_eq!(all_rows(&read(&[5, 6]).unwrap()).concat().len(), 11);
    for changed in [[4, 6], [5, 5], [6, 6], [0, 6]] {
        let error = read(&changed).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Data);
        assert!(error.message().contains("were counted"), "{error}");
        assert!(error.message().starts_with("split "), "{error}");
    }
}

#[test]
fn batches_of_no_rows_are_refused() {
    let shard = small(&[1], Schedule::open_ended(0, Remainder::Uneven));
    let error = deliver(&shard, &shard.start(), &[1], 1).unwrap_err();
    assert_eq!(error.message(), "batch_size 0 must be at least 1");
}

/// A change of these values reorders every user's epochs: it needs a new major version.
#[test]
fn the_golden_epoch_stays_as_it_is() {
    let counts = vec![7, 5, 9, 4];
    let mixing = Mixing { width: 2, chunk: 2, window: Some(6) };
    let layout = Layout { batch_size: 4, ..windowed(2, mixing, Remainder::Even) };
    let case = Case {
        input: ShardInput {
            weights: counts.clone(),
            counts: Some(counts),
            ..ShardInput::default()
        },
        layouts: vec![(layout.clone(), Consumed::Step(2)), (layout, Consumed::Step(0))],
        lists: None,
        seed: 42,
    };
    let epoch = |runs: &[_]| -> Vec<Vec<Vec<Row>>> {
        let shards = case.resume(runs, &case.layouts[0].0).unwrap();
        let read = |shard: &Shard| deliver(shard, &shard.start(), case.counts(), 2).unwrap();
        shards.iter().map(|shard| all_rows(&read(shard))).collect()
    };
    assert_eq!(epoch(&[]), GOLDEN_EPOCH);
    // After two steps, on as many ranks.
    assert_eq!(epoch(&case.play().runs), GOLDEN_REST);
}

const GOLDEN_EPOCH: [&[&[Row]]; 2] = [
    &[
        &[(2, 3), (3, 1), (3, 0), (2, 1)],
        &[(2, 0), (2, 2), (2, 5), (2, 6)],
        &[(2, 7), (3, 3), (3, 2), (2, 4)],
        &[(2, 8)],
    ],
    &[
        &[(1, 0), (0, 1), (0, 2), (1, 1)],
        &[(0, 0), (0, 3), (1, 4), (0, 6)],
        &[(1, 2), (0, 5)],
        &[(1, 3), (0, 4)],
    ],
];
/// The windows that were begun go on as they were.
const GOLDEN_REST: [&[&[Row]]; 2] =
    [&[&[(2, 7), (3, 3), (3, 2), (2, 4)], &[(2, 8)]], &[&[(1, 2), (0, 5)], &[(1, 3), (0, 4)]]];
