//! Promises 1, 2, 3 and 5 (docs/promises.md), over metadata: whatever the splits, layouts and interruptions, consumed
//! and remaining rows are together all rows, each once, in equal steps and exact batches. A damaged state is refused,
//! or is another valid state.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tensorquery::ErrorKind;
use tensorquery::sharding::{
    EarlierRun, Interleave, Layout, Left, Mixing, Remainder, RowSlice, Shard, ShardCursor,
    ShardInput, Source, cursor_of, left_after, resume, share,
};

use super::epochs::{
    Batch, Case, Chain, Row, batch_of, batches, cases, is_exact, lane_rows, long_cases, piece_rows,
    size_of,
};
use super::support::tries;

/// The rows of all lanes, delivered or not.
fn all_rows(shards: &[Shard], counts: &[u64]) -> Vec<Row> {
    shards.iter().flat_map(|shard| &shard.lanes).flat_map(|lane| lane_rows(lane, counts)).collect()
}

fn sorted(mut rows: Vec<Row>) -> Vec<Row> {
    rows.sort_unstable();
    rows
}

/// The batches of each rank in the order in which it receives them.
fn by_rank(chain: &Chain, counts: &[u64]) -> Vec<Vec<Batch>> {
    let per_rank = chain.shards.len() / chain.layout.world_size as usize;
    let one_rank = |shards: &[Shard]| {
        let workers: Vec<Vec<Batch>> = shards.iter().map(|shard| batches(shard, counts)).collect();
        let all: usize = workers.iter().map(Vec::len).sum();
        (0..all)
            .map(|step| workers[step % per_rank].get(step / per_rank).cloned())
            .map(|batch| batch.expect("workers deliver in turn"))
            .collect()
    };
    chain.shards.chunks(per_rank).map(one_rank).collect()
}

/// Equal steps and exact batches of an exact layout.
fn check_steps(case: &Case, chain: &Chain) -> Result<(), TestCaseError> {
    let (layout, counts) = (&chain.layout, case.counts());
    let ranks = by_rank(chain, counts);
    let (size, world) = (layout.batch_size as usize, u64::from(layout.world_size));
    let per_rank = chain.shards.len() / ranks.len();
    prop_assert!(ranks.iter().all(|batches| batches.len() == ranks[0].len()));
    let left = all_rows(&chain.shards, counts).len();
    for (rank, (own, shards)) in ranks.iter().zip(chain.shards.chunks(per_rank)).enumerate() {
        prop_assert_eq!(
            all_rows(shards, counts).len() as u64,
            share(left as u64, world, rank as u64)
        );
        let sizes: Vec<usize> = own.iter().map(|batch| batch.rows.len()).collect();
        let exception = (1..world).contains(&(left as u64 % (world * layout.batch_size)))
            && rank as u64 >= left as u64 % world;
        match layout.remainder {
            Remainder::Even if exception && !case.input.stop_first => {
                let (full, tail) = sizes.split_at(sizes.len() - 2);
                prop_assert!(full.iter().all(|rows| *rows == size));
                prop_assert_eq!(tail, [size.div_ceil(2), size / 2]);
            }
            Remainder::Even if !case.input.stop_first => {
                let full = &sizes[..sizes.len().saturating_sub(1)];
                prop_assert!(full.iter().all(|rows| *rows == size));
                prop_assert!(sizes.iter().all(|rows| (1..=size).contains(rows)));
            }
            Remainder::Even => (),
            _ => prop_assert!(sizes.iter().all(|rows| *rows == size)),
        }
    }
    let delivered: usize =
        ranks.iter().flatten().map(|batch| batch.rows.len() - batch.padded).sum();
    let padded: Vec<usize> =
        ranks.iter().map(|own| own.iter().map(|batch| batch.padded).sum()).collect();
    if case.input.stop_first {
        prop_assert!(delivered <= left);
    } else if layout.remainder == Remainder::Drop {
        prop_assert!(left - delivered < size * world as usize);
    } else {
        prop_assert_eq!(delivered, left);
    }
    prop_assert!(layout.remainder == Remainder::Pad || padded.iter().all(|rows| *rows == 0));
    // Rows are repeated in a rank's last batch only.
    let before = ranks.iter().flat_map(|own| &own[..own.len().saturating_sub(1)]);
    prop_assert!(before.into_iter().all(|batch| batch.padded == 0) || case.input.stop_first);
    prop_assert!(padded.iter().all(|rows| *rows <= size));
    let all: BTreeSet<Row> = case.rows().into_iter().collect();
    prop_assert!(ranks.iter().flatten().flat_map(|batch| &batch.rows).all(|row| all.contains(row)));
    Ok(())
}

/// Without equal steps: each worker's batches are full but its last.
fn check_open_ended(case: &Case, chain: &Chain) -> Result<(), TestCaseError> {
    let size = chain.layout.batch_size as usize;
    for shard in &chain.shards {
        let own = batches(shard, case.counts());
        prop_assert_eq!(shard.batches(), Some(own.len() as u64));
        let sizes: Vec<usize> = own.iter().map(|batch| batch.rows.len()).collect();
        let full = &sizes[..sizes.len().saturating_sub(1)];
        prop_assert!(full.iter().all(|rows| *rows == size));
        prop_assert!(sizes.iter().all(|rows| (1..=size).contains(rows)));
    }
    Ok(())
}

/// Gives each piece an end, from the row counts of the splits.
fn counted(shards: Vec<Shard>, counts: &[u64]) -> Vec<Shard> {
    fn fill(piece: &mut RowSlice, counts: &[u64]) {
        match &mut piece.source {
            Source::Split(id) => piece.end = piece.end.or(Some(counts[*id as usize])),
            Source::Window(window) => {
                let mut filled = (**window).clone();
                filled.pieces.iter_mut().for_each(|piece| fill(piece, counts));
                *window = filled.into();
            }
        }
    }
    let mut shards = shards;
    for shard in &mut shards {
        let lanes = shard.lanes.iter_mut();
        let pieces = lanes.flat_map(|lane| lane.rests.iter_mut().chain(&mut lane.pieces));
        pieces.chain(&mut shard.padding).for_each(|piece| fill(piece, counts));
    }
    shards
}

proptest! {
    #![proptest_config(tries(1500))]

    #[test]
    fn each_row_is_read_once_over_any_chain_of_runs(case in cases(4)) {
        let chain = case.play();
        let rest = all_rows(&chain.shards, case.counts());
        let found = sorted([chain.consumed.clone(), rest].concat());
        prop_assert_eq!(found, case.rows());
        if is_exact(&chain.layout) {
            check_steps(&case, &chain)?;
        } else {
            check_open_ended(&case, &chain)?;
        }
    }

    /// A rank's step and its cursors lead to equal rows, rank by rank.
    #[test]
    fn a_state_with_cursors_leaves_what_a_step_leaves(case in cases(3), told in any::<u16>()) {
        let chain = case.play();
        let mut runs = chain.runs.clone();
        for at in 0..runs.len() {
            let before = runs[..at].to_vec();
            let run = &mut runs[at];
            if !run.cursors.is_empty() || !is_exact(&run.layout) {
                continue;
            }
            let shards = case.resume(&before, &run.layout).unwrap();
            let workers = run.layout.num_workers.max(1) as usize;
            for (rank, own) in (0_u32..).zip(shards.chunks(workers)) {
                if told >> (rank % 16) & 1 == 0 {
                    continue;
                }
                let cursors = own.iter().enumerate().map(|(worker, shard)| {
                    let batches = batch_of(run.step as usize, workers, worker) as u64;
                    let cursor = shard.cursor_at(batches);
                    assert_eq!(cursor_of(run, shard, rank as usize, worker).unwrap(), cursor);
                    cursor.encode()
                });
                let cursors = cursors.collect();
                run.cursors.insert(rank, cursors);
            }
        }
        prop_assert_eq!(case.resume(&runs, &chain.layout).unwrap(), chain.shards);
    }

    /// An epoch that was never counted is resumed by whoever has counted since, and the other way round.
    #[test]
    fn knowing_the_counts_changes_nothing(case in cases(3)) {
        let mut case = case;
        for (layout, _) in &mut case.layouts {
            layout.counted = false;
            layout.partitions = None;
            layout.remainder = Remainder::Uneven;
        }
        case.input.stop_first = false;
        let chain = case.play();
        let unknown = ShardInput { counts: None, ..case.input.clone() };
        let shards = case.resume_of(&unknown, &chain.runs, &chain.layout).unwrap();
        prop_assert_eq!(counted(shards, case.counts()), chain.shards);
    }

    #[test]
    fn what_a_rank_reads_does_not_depend_on_its_workers(case in cases(3), workers in 0_u32..6) {
        let mut case = Case { lists: None, ..case };
        if let Some((layout, _)) = case.layouts.last_mut() {
            layout.partitions = None;
        }
        let chain = case.play();
        let layout = Layout { num_workers: workers, ..chain.layout.clone() };
        let other = case.resume(&chain.runs, &layout).unwrap();
        let of_ranks = |shards: &[Shard]| -> Vec<Vec<Row>> {
            let per_rank = shards.len() / layout.world_size as usize;
            shards.chunks(per_rank).map(|own| sorted(all_rows(own, case.counts()))).collect()
        };
        prop_assert_eq!(of_ranks(&other), of_ranks(&chain.shards));
    }

    /// One rank without workers reads what is left in the order of the plan.
    #[test]
    fn what_is_left_keeps_the_order_of_the_plan(case in cases(4)) {
        let mut case = Case { lists: None, ..case };
        case.input.source_weights.clear();
        case.input.sources.clear();
        for (layout, _) in &mut case.layouts {
            layout.mixing.window = None;
        }
        let (last, _) = case.layouts.last_mut().unwrap();
        (last.world_size, last.num_workers, last.partitions) = (1, 0, None);
        (last.shuffle, last.mixing) = (false, Mixing::NONE);
        let chain = case.play();
        let rows = all_rows(&chain.shards, case.counts());
        prop_assert!(rows.is_sorted(), "{:?}", rows);
    }

    /// A partition is read in the same order on whichever rank it is, and steps are made of the same rows.
    #[test]
    fn partitions_have_the_same_order_on_any_number_of_ranks(case in cases(2), ranks in 1_u32..4) {
        let mut case = Case { lists: None, ..case };
        case.input.source_weights.clear();
        case.input.sources.clear();
        let steps = |world_size: u32| {
            let mut layout = case.layouts[0].0.clone();
            // 12 partitions, and 24 rows of each step.
            layout = Layout { world_size, num_workers: 0, partitions: Some(12), batch_size: u64::from(24 / world_size), ..layout };
            layout.remainder = Remainder::Drop;
            layout.counted = true;
            let shards = case.resume(&[], &layout).unwrap();
            let chain = Chain { runs: Vec::new(), consumed: Vec::new(), layout, shards };
            let ranks = by_rank(&chain, case.counts());
            let step = |at: usize| sorted(ranks.iter().flat_map(|own| own[at].rows.clone()).collect());
            (0..ranks[0].len()).map(step).collect::<Vec<_>>()
        };
        prop_assert_eq!(steps(ranks), steps(1));
    }

    #[test]
    fn a_step_of_unequal_ranks_is_not_enough(case in cases(1)) {
        let mut case = case;
        let layout = &mut case.layouts[0].0;
        (layout.remainder, layout.counted, layout.partitions) = (Remainder::Uneven, false, None);
        let layout = &case.layouts[0].0;
        let run = EarlierRun { layout: layout.clone(), step: 1, cursors: BTreeMap::new() };
        let error = case.resume(&[run], layout).unwrap_err();
        prop_assert_eq!(error.kind(), ErrorKind::CheckpointMismatch);
        prop_assert!(error.message().contains("merge_state_dicts"), "{}", error);
    }
}

proptest! {
    #![proptest_config(tries(30))]

    /// The rest of an epoch is as small after many runs as after one: windows are never filled from windows, no more of
    /// them are open than a run has shards, and ranges are merged.
    #[test]
    fn a_hundred_runs_leave_no_more_than_one(case in long_cases(100)) {
        let chain = case.play();
        let rest = all_rows(&chain.shards, case.counts());
        prop_assert_eq!(sorted([chain.consumed, rest].concat()), case.rows());
        let (mut left, mut shards): (Option<Left>, usize) = (None, 1);
        for run in chain.runs {
            shards = shards.max(run.layout.world_size as usize * run.layout.workers());
            let found = left_after(&case.input, left.as_ref(), &run, None, case.key()).unwrap();
            let ((windows, ranges), splits) = (size_of(&found), case.counts().len());
            prop_assert!(windows <= 2 * shards, "{windows} windows of {shards} shards");
            prop_assert!(ranges <= splits + 2 * shards, "{ranges} of {splits} and {shards}");
            left = Some(found);
        }
    }
}

proptest! {
    #![proptest_config(tries(2000))]

    /// Many rounds of turns at once lead where turn after turn does.
    #[test]
    fn passing_rounds_is_taking_turns(
        rows in prop::collection::vec(0_u64..60, 0..9),
        (width, chunk) in (1_u32..5, prop_oneof![1_u64..7, Just(u64::MAX)]),
        steps in prop::collection::vec(0_u64..90, 1..6),
    ) {
        let (mut slow, pieces) = (Interleave::new(width, chunk), rows.len() as u32);
        let mut fast = slow.clone();
        let rows_of = |piece: u32| rows[piece as usize];
        for step in steps {
            let passed = slow.advance(pieces, step, rows_of, |_| ());
            prop_assert_eq!(fast.pass(pieces, step, rows_of), passed);
            prop_assert_eq!(&fast, &slow);
        }
    }

    /// The rest that a forged state claims is refused, or is some of the rows, each once.
    #[test]
    fn damaged_rests_are_refused_or_rows(
        case in cases(3),
        known: bool,
        places in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in prop::option::weighted(0.1, any::<prop::sample::Index>()),
    ) {
        let chain = case.play();
        let Some(left) = case.left_of(&case.input, &chain.runs).unwrap() else { return Ok(()) };
        let mut bytes = left.encode();
        for (place, byte) in places {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len() + 1));
        }
        let unknown = ShardInput { counts: None, ..case.input.clone() };
        match Left::decode(&bytes, if known { &case.input } else { &unknown }) {
            Err(error) => prop_assert_eq!(error.kind(), ErrorKind::CheckpointMismatch),
            Ok(left) if known => {
                let layout = Layout { world_size: 1, num_workers: 0, partitions: None, ..chain.layout.clone() };
                let shards = resume(&case.input, Some(&left), &layout, None, case.key()).unwrap();
                let rows = sorted(all_rows(&shards, case.counts()));
                prop_assert!(rows.windows(2).all(|pair| pair[0] < pair[1]), "{:?}", rows);
                let all: BTreeSet<Row> = case.rows().into_iter().collect();
                prop_assert!(rows.iter().all(|row| all.contains(row)), "{:?}", rows);
            }
            Ok(_) => (),
        }
    }
}

/// Numbers in which a bit, a digit or all is wrong.
fn wrong_number() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0_u64..40, 1 => Just(u64::MAX), 1 => any::<u32>().prop_map(u64::from), 2 => any::<u64>()]
}

proptest! {
    #![proptest_config(tries(3000))]

    /// Reading what a damaged cursor leaves never panics, and reads no row twice.
    #[test]
    fn damaged_cursors_are_refused_or_cursors(
        case in cases(3),
        known: bool,
        shard in any::<prop::sample::Index>(),
        batches in any::<prop::sample::Index>(),
        places in prop::collection::vec((any::<prop::sample::Index>(), wrong_number()), 1..4),
        random in prop::option::weighted(0.3, prop::collection::vec(wrong_number(), 0..20)),
        cut in prop::option::weighted(0.1, any::<prop::sample::Index>()),
    ) {
        let chain = case.play();
        let shards = if known || chain.layout.counted || chain.runs.iter().any(|run| run.layout.counted) {
            chain.shards.clone()
        } else {
            let unknown = ShardInput { counts: None, ..case.input.clone() };
            case.resume_of(&unknown, &chain.runs, &chain.layout).unwrap()
        };
        let at = shard.index(shards.len());
        let (shard, twin) = (&shards[at], &chain.shards[at]);
        let all = twin.batches().unwrap() as usize;
        let mut numbers = twin.cursor_at(batches.index(all + 1) as u64).encode();
        let right = ShardCursor::decode(&numbers, &shard.lanes).unwrap();
        prop_assert!(shard.accepts(&right) && twin.accepts(&right));
        for (place, number) in places {
            let place = place.index(numbers.len());
            numbers[place] = number;
        }
        if let Some(random) = random {
            numbers = random;
        }
        if let Some(cut) = cut {
            numbers.truncate(cut.index(numbers.len() + 1));
        }
        match ShardCursor::decode(&numbers, &shard.lanes) {
            Err(error) => prop_assert_eq!(error.kind(), ErrorKind::CheckpointMismatch),
            Ok(cursor) => {
                prop_assert_eq!(cursor.encode(), numbers);
                let left = shard.remaining(&cursor);
                if shard.rows().is_some() {
                    let rows: Vec<Row> =
                        left.iter().flat_map(|piece| piece_rows(piece, case.counts())).collect();
                    let distinct: BTreeSet<Row> = rows.iter().copied().collect();
                    prop_assert_eq!(distinct.len(), rows.len());
                    let own = all_rows(std::slice::from_ref(twin), case.counts());
                    prop_assert_eq!(rows.len() as u64 + cursor.rows(), own.len() as u64);
                    let own: BTreeSet<Row> = own.into_iter().collect();
                    prop_assert!(distinct.is_subset(&own));
                    // A number of batches that has other rows would end the shard too early.
                    let found = (cursor.batches, cursor.rows());
                    let known = (0..=all as u64).map(|batches| (batches, twin.cursor_at(batches).rows()));
                    prop_assert!(!shard.accepts(&cursor) || known.into_iter().any(|known| known == found));
                }
            }
        }
    }

    /// A whole state of wrong numbers: refused, or dealt.
    #[test]
    fn damaged_states_never_panic(
        case in cases(2),
        known: bool,
        numbers in prop::collection::vec(prop::option::weighted(0.15, wrong_number()), 10),
        flags in any::<u8>(),
        cursor in prop::option::weighted(0.3, prop::collection::vec(wrong_number(), 0..20)),
    ) {
        let case = Case { lists: None, ..case };
        let mut chain = case.play();
        let input = if known || chain.layout.counted || chain.runs.iter().any(|run| run.layout.counted) {
            case.input.clone()
        } else {
            ShardInput { counts: None, ..case.input.clone() }
        };
        let Some(run) = chain.runs.last_mut() else { return Ok(()) };
        let wrong = |at: usize, right: u64| numbers[at].unwrap_or(right);
        let small = |at: usize, right: u32| numbers[at].map_or(right, |number| number as u32);
        run.step = wrong(0, run.step);
        let layout = &mut run.layout;
        layout.world_size = small(1, layout.world_size);
        layout.num_workers = small(2, layout.num_workers);
        layout.batch_size = wrong(3, layout.batch_size);
        layout.mixing.width = small(4, layout.mixing.width);
        layout.mixing.chunk = wrong(5, layout.mixing.chunk);
        layout.mixing.window = numbers[6].or(layout.mixing.window);
        layout.partitions = numbers[7].map(|number| number as u32).or(layout.partitions);
        layout.permuted = numbers[8].or(layout.permuted);
        if flags & 7 == 0 {
            layout.counted = !layout.counted;
        }
        if flags >> 3 & 7 == 0 {
            layout.remainder = Remainder::Pad;
        }
        // Millions of shards are allowed, and slow.
        let shards = u64::from(layout.world_size).saturating_mul(layout.num_workers.max(1).into());
        prop_assume!(layout.check().is_err() || shards.max(layout.partitions.unwrap_or(0).into()) < 2000);
        if let Some(numbers) = cursor {
            let workers = run.cursors.entry(0).or_default();
            match workers.first_mut() {
                Some(first) => *first = numbers,
                None => workers.push(numbers),
            }
        }
        match case.resume_of(&input, &chain.runs, &chain.layout) {
            Ok(shards) => prop_assert!(!shards.is_empty()),
            Err(error) => prop_assert!(
                matches!(error.kind(), ErrorKind::CheckpointMismatch | ErrorKind::Config),
                "{}", error
            ),
        }
    }
}
