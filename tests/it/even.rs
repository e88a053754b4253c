//! Promises 2 and 3 (docs/promises.md): the arithmetic of equal steps, exact batches and exact quotas. Also the
//! blend of lanes and the interleave of row slices, which mix rows without looking at them.

use proptest::prelude::*;
use tensorquery::ErrorKind;
use tensorquery::sharding::{
    Interleave, Remainder, RowSlice, Schedule, blend, level, proportional, share,
};

use super::epochs::piece_rows;
use super::support::tries;

/// The sizes of all batches of a schedule with a fixed number of them.
fn sizes(schedule: &Schedule) -> Vec<u64> {
    (0..).map_while(|batch| schedule.size(batch)).collect()
}

fn of_rank(rows: u64, ranks: u64, rank: u64, batch: u64, remainder: Remainder) -> Vec<u64> {
    sizes(&Schedule::of_rank(rows, ranks, rank, batch, remainder).unwrap())
}

/// Whether all ranks can take the same number of batches, no row left out or repeated: whether the steps that
/// the largest share needs at least are not more than the rows of the smallest.
fn is_possible(rows: u64, ranks: u64, batch: u64) -> bool {
    rows.div_ceil(ranks).div_ceil(batch) <= rows / ranks
}

proptest! {
    #![proptest_config(tries(2000))]

    #[test]
    fn even_shares_take_equal_steps(rows in 0_u64..400, ranks in 1_u64..14, batch in 1_u64..20) {
        let found: Vec<_> = (0..ranks)
            .map(|rank| Schedule::of_rank(rows, ranks, rank, batch, Remainder::Even))
            .collect();
        if !is_possible(rows, ranks, batch) {
            for error in found {
                let error = error.unwrap_err();
                prop_assert_eq!(error.kind(), ErrorKind::Config);
                for named in [format!("{rows} rows (N)"), format!("{ranks} ranks (W)")] {
                    prop_assert!(error.message().contains(&named), "{}", error);
                }
                let named = error.message().contains("(B = 1)")
                    || error.message().contains(&format!("{batch} (B)"));
                prop_assert!(named, "{}", error);
            }
            return Ok(());
        }
        let steps = rows.div_ceil(ranks).div_ceil(batch);
        let exception = (1..ranks).contains(&(rows % (ranks * batch)));
        for (rank, schedule) in (0_u64..).zip(found) {
            let found = sizes(&schedule.unwrap());
            let own = share(rows, ranks, rank);
            prop_assert_eq!(found.len() as u64, steps);
            prop_assert_eq!(found.iter().sum::<u64>(), own);
            if exception && rank >= rows % ranks {
                let (tail, full) = (&found[found.len() - 2..], &found[..found.len() - 2]);
                prop_assert_eq!(tail, [batch.div_ceil(2), batch / 2]);
                prop_assert!(full.iter().all(|size| *size == batch));
            } else if let Some((last, full)) = found.split_last() {
                prop_assert!(full.iter().all(|size| *size == batch));
                prop_assert!((1..=batch).contains(last));
            }
        }
    }

    #[test]
    fn equal_steps_are_possible_as_promised(
        rows in 0_u64..400, ranks in 1_u64..14, batch in 1_u64..20,
    ) {
        let promised = rows == 0 || rows >= ranks && (batch >= 2 || rows % ranks == 0);
        prop_assert_eq!(is_possible(rows, ranks, batch), promised);
    }

    #[test]
    fn shares_differ_by_one_row(rows in 0_u64..10_000, bins in 1_u64..50) {
        let shares: Vec<u64> = (0..bins).map(|bin| share(rows, bins, bin)).collect();
        prop_assert_eq!(shares.iter().sum::<u64>(), rows);
        prop_assert!(shares.is_sorted_by(|a, b| a >= b));
        prop_assert!(shares[0] - shares[shares.len() - 1] <= 1);
    }

    #[test]
    fn dropping_leaves_out_less_than_a_step(
        rows in 0_u64..400, ranks in 1_u64..14, batch in 1_u64..20,
    ) {
        let found: Vec<Vec<u64>> = (0..ranks)
            .map(|rank| of_rank(rows, ranks, rank, batch, Remainder::Drop))
            .collect();
        prop_assert!(found.iter().flatten().all(|size| *size == batch));
        prop_assert!(found.iter().all(|sizes| sizes.len() == found[0].len()));
        let kept: u64 = found.iter().flatten().sum();
        prop_assert!(kept <= rows && rows - kept < ranks * batch);
    }

    #[test]
    fn padding_repeats_at_most_a_batch_per_rank(
        rows in 0_u64..400, ranks in 1_u64..14, batch in 1_u64..20,
    ) {
        for rank in 0..ranks {
            let found = of_rank(rows, ranks, rank, batch, Remainder::Pad);
            prop_assert!(found.iter().all(|size| *size == batch));
            prop_assert_eq!(found.len() as u64, rows.div_ceil(ranks).div_ceil(batch));
            let (own, all) = (share(rows, ranks, rank), found.iter().sum::<u64>());
            prop_assert!(own <= all && all - own <= batch);
            // A whole batch only where other ranks need the step for one row more.
            prop_assert!(all - own < batch || rows % ranks > 0);
        }
    }

    #[test]
    fn workers_take_whole_batches_in_turn(
        rows in 0_u64..400,
        ranks in 1_u64..6,
        batch in 1_u64..20,
        workers in 1_u64..7,
        remainder in prop::sample::select(vec![Remainder::Even, Remainder::Drop, Remainder::Pad]),
    ) {
        let rows = if is_possible(rows, ranks, batch) { rows } else { rows * ranks };
        for rank in 0..ranks {
            let own = Schedule::of_rank(rows, ranks, rank, batch, remainder).unwrap();
            let all = sizes(&own);
            prop_assert_eq!(own.batches(), Some(all.len() as u64));
            prop_assert_eq!(own.rows(), Some(all.iter().sum()));
            for worker in 0..workers {
                let mine = own.of_worker(workers, worker);
                let wanted: Vec<u64> = (0_u64..)
                    .zip(&all)
                    .filter(|(batch, _)| batch % workers == worker)
                    .map(|(_, size)| *size)
                    .collect();
                prop_assert_eq!(sizes(&mine), wanted.clone());
                for batches in 0..=wanted.len() {
                    let rows: u64 = wanted[..batches].iter().sum();
                    prop_assert_eq!(mine.rows_before(batches as u64), rows);
                }
            }
        }
    }

    #[test]
    fn proportional_parts_are_within_a_row(
        rows in 0_u64..1_000_000, weights in prop::collection::vec(0_u64..1000, 1..20),
    ) {
        let parts = proportional(rows, &weights);
        prop_assert_eq!(parts.iter().sum::<u64>(), rows);
        let total: u64 = weights.iter().sum();
        for (part, weight) in parts.iter().zip(&weights) {
            if total > 0 {
                prop_assert!((part * total).abs_diff(rows * weight) < total);
            } else {
                prop_assert!(part.abs_diff(rows / weights.len() as u64) <= 1);
            }
        }
    }

    /// Splits cut into pieces, dealt to lists at random: afterwards each list has its quota, in plan order.
    #[test]
    fn lists_are_cut_to_their_exact_quotas(
        splits in prop::collection::vec((0_u64..40, prop::collection::vec(0_u64..40, 0..3)), 0..12),
        dealt in prop::collection::vec(0_usize..6, 1..30),
        weights in prop::collection::vec(0_u64..5, 6),
        in_place: bool,
    ) {
        let counts: Vec<u64> = splits.iter().map(|split| split.0).collect();
        let mut lists: Vec<Vec<RowSlice>> = vec![Vec::new(); 6];
        let mut at = dealt.iter().cycle();
        for (id, (rows, cuts)) in (0_u32..).zip(&splits) {
            let mut rest = RowSlice::split(id, Some(*rows));
            for cut in cuts {
                let (head, tail) = rest.clone().cut(*cut.min(&rest.rows().unwrap()));
                rest = tail;
                lists[*at.next().unwrap()].push(head);
            }
            lists[*at.next().unwrap()].push(rest);
        }
        let before = lists.clone();
        let quotas = proportional(counts.iter().sum(), &weights);
        level(&mut lists, &quotas, in_place);

        let rows = |list: &[RowSlice]| -> Vec<(u32, u64)> {
            list.iter().flat_map(|piece| piece_rows(piece, &counts)).collect()
        };
        let mut all: Vec<(u32, u64)> = lists.iter().flat_map(|list| rows(list)).collect();
        all.sort_unstable();
        let wanted: Vec<(u32, u64)> = (0_u32..)
            .zip(&counts)
            .flat_map(|(split, rows)| (0..*rows).map(move |row| (split, row)))
            .collect();
        prop_assert_eq!(all, wanted);
        for ((list, before), quota) in lists.iter().zip(&before).zip(&quotas) {
            let (found, had) = (rows(list), rows(before));
            prop_assert_eq!(found.len() as u64, *quota);
            if in_place {
                prop_assert!(found.is_sorted());
            }
            // What a list keeps is the front of what it had.
            let kept = had.len().min(*quota as usize);
            if in_place {
                prop_assert!(had[..kept].iter().all(|row| found.contains(row)));
            } else {
                prop_assert_eq!(&found[..kept], &had[..kept]);
            }
        }
        // Nobody's piece ends its split but the one that does.
        for piece in lists.iter().flatten() {
            let tensorquery::sharding::Source::Split(id) = piece.source else { unreachable!() };
            prop_assert!(!piece.to_end || piece.end == Some(counts[id as usize]));
        }
    }

    #[test]
    fn a_blend_is_full_and_takes_only_what_is_there(
        lanes in prop::collection::vec((0_u64..50, 0_u64..9), 1..9),
        size in 0_u64..80,
        weighted: bool,
    ) {
        let (left, mut weights): (Vec<u64>, Vec<u64>) = lanes.into_iter().unzip();
        if !weighted {
            weights.clear();
        }
        let shares = blend(size, &left, &weights);
        prop_assert_eq!(shares.iter().sum::<u64>(), size.min(left.iter().sum()));
        prop_assert!(shares.iter().zip(&left).all(|(share, left)| share <= left));
    }

    /// Also with batches smaller than the number of lanes.
    #[test]
    fn blends_are_in_proportion_after_any_number_of_batches(
        weights in prop::collection::vec(1_u64..9, 1..12),
        size in 1_u64..20,
        start in 0_u64..50,
        batches in 1_u64..60,
    ) {
        let all: u64 = weights.iter().sum();
        // So many that no lane runs out.
        let rows = (start + batches + 20) * size + 100;
        let before: Vec<u64> = weights.iter().map(|weight| rows * weight).collect();
        let mut left = before.clone();
        for batch in 1..=batches {
            let shares = blend(size, &left, &weights);
            left.iter_mut().zip(shares).for_each(|(left, share)| *left -= share);
            for ((before, left), weight) in before.iter().zip(&left).zip(&weights) {
                let off = ((before - left) * all).abs_diff(batch * size * weight);
                // Rounding halves the lanes again and again, so that its error grows with their logarithm.
                let bound = u64::from(weights.len().ilog2()) + 2;
                prop_assert!(off < bound * all, "{left:?} after {batch} batches, {off} of {all}");
            }
        }
    }

    #[test]
    fn lanes_of_any_length_are_exhausted(
        lanes in prop::collection::vec((0_u64..40, 1_u64..9), 1..7), size in 1_u64..20,
    ) {
        let (mut left, weights): (Vec<u64>, Vec<u64>) = lanes.into_iter().unzip();
        let total: u64 = left.iter().sum();
        for _ in 0..total.div_ceil(size) {
            let shares = blend(size, &left, &weights);
            left.iter_mut().zip(shares).for_each(|(left, share)| *left -= share);
        }
        prop_assert!(left.iter().all(|left| *left == 0), "{:?}", left);
    }

    /// Partitions: as many rows of each, whoever reads them.
    #[test]
    fn a_batch_of_equal_lanes_takes_equal_rows(
        lanes in 1_u64..9, each in 1_u64..9, rows in 0_u64..100,
    ) {
        let left: Vec<u64> = (0..lanes).map(|lane| each + share(rows, lanes, lane)).collect();
        prop_assert_eq!(blend(lanes * each, &left, &[]), vec![each; lanes as usize]);
    }

    #[test]
    fn an_interleave_takes_turns(
        rows in prop::collection::vec(0_u64..20, 0..10),
        width in 1_u32..5,
        chunk in prop_oneof![3 => 1_u64..6, 1 => Just(u64::MAX)],
    ) {
        let mut state = Interleave::new(width, chunk);
        let mut found = Vec::new();
        let passed = state.advance(rows.len() as u32, u64::MAX, |at| rows[at as usize], |turn| {
            found.extend((turn.row..turn.row + turn.rows).map(|row| (turn.piece, row)));
        });
        prop_assert_eq!(passed, rows.iter().sum::<u64>());

        // Slots round and round; a piece that has no more rows leaves its slot to the next, whose turn is
        // one round later.
        let mut queue = (0_u32..).zip(&rows);
        let mut slots: Vec<Option<(u32, u64)>> = Vec::new();
        slots.extend(queue.by_ref().take(width as usize).map(|(piece, _)| Some((piece, 0))));
        let mut wanted = Vec::new();
        let mut at = 0;
        while slots.iter().any(Option::is_some) {
            if let Some((piece, row)) = slots[at] {
                let end = rows[piece as usize].min(row.saturating_add(chunk));
                wanted.extend((row..end).map(|row| (piece, row)));
                let is_cut = end - row < chunk;
                slots[at] = if is_cut { queue.next().map(|(piece, _)| (piece, 0)) } else { Some((piece, end)) };
            }
            at = (at + 1) % slots.len();
        }
        prop_assert_eq!(found, wanted);
    }

    #[test]
    fn an_interleave_goes_on_from_its_numbers(
        rows in prop::collection::vec(0_u64..20, 0..10),
        width in 1_u32..5,
        chunk in prop_oneof![3 => 1_u64..6, 1 => Just(u64::MAX)],
        steps in prop::collection::vec(0_u64..30, 0..8),
        more in 0_u64..60,
    ) {
        let pieces = rows.len() as u32;
        let run = |state: &mut Interleave, pieces: u32, of: &[u32], most: u64| {
            let mut found = Vec::new();
            state.advance(pieces, most, |at| rows[of[at as usize] as usize], |turn| {
                found.extend((turn.row..turn.row + turn.rows).map(|row| (of[turn.piece as usize], row)));
            });
            found
        };
        let all: Vec<u32> = (0..pieces).collect();
        let (mut once, mut stepwise) = (Interleave::new(width, chunk), Interleave::new(width, chunk));
        let passed = run(&mut once, pieces, &all, steps.iter().sum());
        let mut in_steps = Vec::new();
        for step in &steps {
            in_steps.extend(run(&mut stepwise, pieces, &all, *step));
            // Every stop is a position of its own.
            stepwise = Interleave::decode(width, chunk, &stepwise.encode()).unwrap();
        }
        prop_assert_eq!(&in_steps, &passed);
        prop_assert_eq!(stepwise.encode(), once.encode());

        let mut end = once.clone();
        let rest = run(&mut end, pieces, &all, more);
        prop_assert_eq!(passed.iter().chain(&rest).count() as u64, (steps.iter().sum::<u64>() + more).min(rows.iter().sum()));
        let (mut narrow, touched) = once.narrowed(end.next());
        prop_assert_eq!(run(&mut narrow, touched.len() as u32, &touched, more), rest.clone());
        let mut again = Interleave::decode(width, chunk, &once.encode()).unwrap();
        prop_assert_eq!(run(&mut again, pieces, &all, more), rest);
    }

    #[test]
    fn numbers_of_no_interleave_are_refused_or_harmless(
        numbers in prop::collection::vec(prop_oneof![4 => 0_u64..6, 1 => any::<u64>()], 0..9),
        width in 1_u32..4,
        chunk in prop_oneof![1_u64..6, Just(u64::MAX)],
    ) {
        if let Ok(state) = Interleave::decode(width, chunk, &numbers) {
            prop_assert!(state.open().len() <= width as usize);
            prop_assert!(state.open().iter().all(|open| open.piece < state.next()));
        }
    }
}
