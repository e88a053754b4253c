//! Promises 1 and 4 (docs/promises.md): every split is in exactly one shard, the shards are as even as LPT makes
//! them, and lists and orders are a function of their inputs on every machine.

use std::collections::BTreeSet;

use proptest::prelude::*;
use tensorquery::ErrorKind;
use tensorquery::formats::{Split, SplitUnit};
use tensorquery::sharding::{
    Assignment, Builtin, MixedSplits, Mixing, Rng, ShardSpec, derive_key, epoch_order, lpt,
    round_robin, weight,
};

fn split(bytes: u64, rows: Option<u64>) -> Split {
    Split { scan: 0, file: 0, unit: SplitUnit::File, rows, deleted: 0, first_row: 0, bytes }
}

fn splits_of(bytes: &[u64]) -> Vec<Split> {
    bytes.iter().map(|&bytes| split(bytes, Some(bytes / 10))).collect()
}

fn loads(weights: &[u64], bin_of: &[u32], bins: usize) -> Vec<u64> {
    let mut loads = vec![0; bins];
    for (&weight, &bin) in weights.iter().zip(bin_of) {
        loads[bin as usize] += weight;
    }
    loads
}

/// The lightest heaviest bin that any division has, by trying all of them.
fn optimum(weights: &[u64], loads: &mut Vec<u64>) -> u64 {
    let Some((&first, rest)) = weights.split_first() else {
        return loads.iter().max().copied().unwrap_or(0);
    };
    (0..loads.len())
        .map(|bin| {
            loads[bin] += first;
            let best = optimum(rest, loads);
            loads[bin] -= first;
            best
        })
        .min()
        .unwrap_or(0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn lpt_keeps_grahams_bound_to_the_optimum(
        weights in prop::collection::vec(0_u64..1000, 0..9),
        bins in 1_usize..4,
    ) {
        let heaviest = loads(&weights, &lpt(&weights, bins), bins).into_iter().max().unwrap_or(0);
        let best = optimum(&weights, &mut vec![0; bins]);
        // max <= (4/3 - 1/(3m)) opt, in whole numbers.
        let m = bins as u64;
        prop_assert!(3 * m * heaviest <= (4 * m - 1) * best, "{heaviest} against {best}");
    }

    #[test]
    fn lpt_is_within_one_item_of_even(
        weights in prop::collection::vec(0_u64..1_000_000, 1..400),
        bins in 1_usize..70,
    ) {
        let bin_of = lpt(&weights, bins);
        prop_assert_eq!(bin_of.len(), weights.len());
        prop_assert!(bin_of.iter().all(|&bin| (bin as usize) < bins));
        let loads = loads(&weights, &bin_of, bins);
        let (total, m) = (weights.iter().sum::<u64>(), bins as u64);
        let item = weights.iter().max().copied().unwrap_or(0);
        let heaviest = loads.iter().max().copied().unwrap_or(0);
        // Any greedy division: max <= mean + (1 - 1/m) max weight.
        prop_assert!(m * heaviest <= total + (m - 1) * item);
        prop_assert_eq!(&lpt(&weights, bins), &bin_of);
    }

    #[test]
    fn equal_weights_spread_evenly(weight in 0_u64..3, items in 0_usize..200, bins in 1_usize..30) {
        let bin_of = lpt(&vec![weight; items], bins);
        prop_assert_eq!(bin_of, round_robin(items, bins));
    }

    #[test]
    fn every_split_is_in_exactly_one_shard_in_plan_order(
        bytes in prop::collection::vec(0_u64..5000, 0..120),
        world_size in 1_usize..10,
        workers in 0_usize..5,
        strategy in prop::sample::select(vec![Builtin::Lpt, Builtin::RoundRobin]),
    ) {
        let splits = splits_of(&bytes);
        let spec = ShardSpec::try_new(0, world_size, workers).unwrap();
        let assignment = Assignment::assign(&splits, &spec, strategy);
        prop_assert_eq!(assignment.shards().len(), spec.num_shards());
        prop_assert!(assignment.shards().iter().all(|ids| ids.is_sorted()));
        let mut all = assignment.shards().concat();
        all.sort_unstable();
        prop_assert_eq!(all, (0..splits.len() as u32).collect::<Vec<_>>());
        let taken = Assignment::from_lists(assignment.shards().to_vec(), splits.len(), &spec);
        prop_assert_eq!(taken.unwrap(), assignment);
    }

    #[test]
    fn a_rank_reads_the_same_splits_with_any_number_of_workers(
        bytes in prop::collection::vec(0_u64..5000, 0..120),
        world_size in 1_usize..10,
        workers in 1_usize..5,
        strategy in prop::sample::select(vec![Builtin::Lpt, Builtin::RoundRobin]),
    ) {
        let splits = splits_of(&bytes);
        let of_rank = |workers: usize| -> Vec<BTreeSet<u32>> {
            let spec = ShardSpec::try_new(0, world_size, workers).unwrap();
            let shards = Assignment::assign(&splits, &spec, strategy).into_shards();
            shards.chunks(workers).map(|lists| lists.concat().into_iter().collect()).collect()
        };
        prop_assert_eq!(of_rank(workers), of_rank(1));
    }

    #[test]
    fn an_order_is_a_permutation_and_a_function_of_its_key(
        count in 0_u32..300,
        seed: u64,
        epoch in 0_u64..5,
        shard_key: u64,
        fingerprint in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let plan_order: Vec<u32> = (0..count).collect();
        let mut order = plan_order.clone();
        epoch_order(&mut order, seed, epoch, shard_key, &fingerprint);
        let mut again = plan_order.clone();
        epoch_order(&mut again, seed, epoch, shard_key, &fingerprint);
        prop_assert_eq!(&order, &again);
        order.sort_unstable();
        prop_assert_eq!(order, plan_order);
    }

    #[test]
    fn a_bounded_number_is_in_its_bound(seed: u64, bound in 1_u64..) {
        let mut rng = Rng::new(seed);
        prop_assert!((0..20).all(|_| rng.below(bound) < bound));
    }
}

#[test]
fn heavy_weights_do_not_overflow() {
    assert_eq!(lpt(&[u64::MAX, u64::MAX, u64::MAX, 1], 2), [0, 1, 0, 1]);
}

#[test]
fn zero_weights_spread_and_zero_bins_are_one() {
    assert_eq!(lpt(&[0, 0, 0, 0], 3), [0, 1, 2, 0]);
    assert_eq!(lpt(&[5, 0, 0, 0], 2), [0, 1, 1, 1]);
    assert_eq!(lpt(&[1, 2], 0), [0, 0]);
    assert_eq!(lpt(&[], 4), Vec::<u32>::new());
    assert_eq!(round_robin(3, 0), [0, 0, 0]);
}

#[test]
fn a_million_splits_on_a_hundred_thousand_ranks() {
    let splits: Vec<Split> = (0..1_000_000).map(|id| split(id % 977, None)).collect();
    let spec = ShardSpec::try_new(99_999, 100_000, 2).unwrap();
    let assignment = Assignment::assign(&splits, &spec, Builtin::Lpt);
    assert_eq!(assignment.shards().iter().map(Vec::len).sum::<usize>(), 1_000_000);
    assert!(assignment.imbalance(&splits).ranks < 1.01);
}

/// The values come from a second implementation, in Python. A change of them reorders epochs.
#[test]
fn the_mixing_follows_from_the_splits() {
    let all = u64::MAX;
    for ((splits, mebibytes, row_bytes), permutes, window, partitions, expected) in [
        ((3, 3, 16), true, None, None, (3, 3971, Some(262_144))),
        ((2000, 204_800, 100), true, None, None, (4, 4096, Some(65_536))),
        // A split holds what is stored of its row group, and its pages decompressed: thrice as much.
        ((16, 16 * 17, 10), true, None, None, (5, 3276, Some(65_536))),
        ((16, 16 * 9, 10), true, None, None, (9, 3640, Some(65_536))),
        ((50, 50, 100_000), true, None, None, (4, 1024, Some(4096))),
        ((8, 8, 10), true, Some(1000), Some(4), (1, all, Some(250))),
        ((8, 8, 10), false, Some(1000), None, (1, all, Some(1000))),
        ((8, 8, 10), false, None, None, (1, all, None)),
        ((8, 1, 10), true, Some(1), None, (1, all, None)),
    ] {
        let of = MixedSplits { splits, bytes: mebibytes << 20, row_bytes };
        let found = Mixing::choose(of, permutes, window, partitions);
        assert_eq!((found.width, found.chunk, found.window), expected);
    }
}

/// The values come from a second implementation, in Python. A change of them reorders every
/// user's epochs: it needs a new major version.
#[test]
fn golden_orders_stay_as_they_are() {
    let mut rng = Rng::new(42);
    assert_eq!([rng.next_u64(), rng.next_u64(), rng.next_u64()], GOLDEN_BITS);
    let mut rng = Rng::new(42);
    let bounded: Vec<u64> = (0..8).map(|_| rng.below(10)).collect();
    assert_eq!(bounded, GOLDEN_BOUNDED);
    assert_eq!(derive_key(&[]), GOLDEN_KEYS[0]);
    assert_eq!(derive_key(&[42, 0]), GOLDEN_KEYS[1]);
    assert_eq!(derive_key(&[0, 42]), GOLDEN_KEYS[2]);
    let mut order: Vec<u32> = (0..12).collect();
    epoch_order(&mut order, 42, 3, 7, b"0123456789abcdef");
    assert_eq!(order, GOLDEN_ORDER);
}

const GOLDEN_BITS: [u64; 3] = [15021278609987233951, 5881210131331364753, 18149643915985481100];
const GOLDEN_BOUNDED: [u64; 8] = [8, 3, 9, 7, 7, 5, 1, 6];
const GOLDEN_KEYS: [u64; 3] = [0, 15339386177421137002, 15837246217001813145];
const GOLDEN_ORDER: [u32; 12] = [7, 4, 11, 0, 8, 6, 2, 1, 10, 9, 3, 5];

#[test]
fn each_part_of_the_key_changes_the_order() {
    let order = |seed, epoch, shard, fingerprint: &[u8]| {
        let mut order: Vec<u32> = (0..50).collect();
        epoch_order(&mut order, seed, epoch, shard, fingerprint);
        order
    };
    let orders: BTreeSet<Vec<u32>> = [
        order(0, 0, 0, b""),
        order(1, 0, 0, b""),
        order(0, 1, 0, b""),
        order(0, 0, 1, b""),
        order(0, 0, 0, b"a"),
        order(0, 0, 0, b"a\0"),
        order(0, 0, 0, b"a\0\0\0\0\0\0\0\0"),
    ]
    .into();
    assert_eq!(orders.len(), 7);
    let keys: BTreeSet<u64> =
        (0..300_u64).flat_map(|a| (0..300).map(move |b| derive_key(&[a, b]))).collect();
    assert_eq!(keys.len(), 90_000);
}

#[test]
fn every_permutation_is_equally_likely() {
    let mut rng = Rng::new(1);
    let mut seen = std::collections::BTreeMap::new();
    for _ in 0..24_000 {
        let mut items = [0, 1, 2, 3];
        rng.shuffle(&mut items);
        *seen.entry(items).or_insert(0_i64) += 1;
    }
    assert_eq!(seen.len(), 24);
    // Each of 24 is expected 1000 times; chi-square over 23 degrees of freedom, 1e-6 point at 75.
    let chi: i64 = seen.values().map(|count| (count - 1000).pow(2)).sum::<i64>() / 1000;
    assert!(chi < 75, "{chi}");
}

#[test]
fn a_topology_says_what_is_wrong() {
    let message = |rank, world, workers| ShardSpec::try_new(rank, world, workers).unwrap_err();
    let error = message(8, 8, 0);
    assert_eq!(error.kind(), ErrorKind::Config);
    assert_eq!(error.to_string(), "rank 8 must be in 0..8 (world_size is 8)");
    assert!(message(0, 0, 0).to_string().starts_with("world_size 0 must be at least 1"));
    assert!(message(0, 100_000, 100_000).to_string().contains("lower num_workers"));
    assert!(message(0, usize::MAX, usize::MAX).to_string().contains("lower num_workers"));
}

#[test]
fn lists_of_a_strategy_must_cover_each_split_once() {
    let spec = ShardSpec::try_new(0, 2, 0).unwrap();
    let message = |lists: Vec<Vec<u32>>, splits: usize| {
        Assignment::from_lists(lists, splits, &spec).unwrap_err().to_string()
    };
    assert_eq!(
        message(vec![vec![0]], 1),
        "the split strategy returned 1 lists, but 2 are wanted: one per shard (world_size 2 times 1 \
         shards per rank)"
    );
    assert_eq!(
        message(vec![vec![0, 1, 1], vec![3, 9]], 4),
        "the split strategy left out split 2; it repeated split 1; it invented split 9; each of the \
         plan's 4 splits must be in exactly one list"
    );
    assert_eq!(
        message(vec![vec![], vec![]], 8),
        "the split strategy left out 8 splits (0, 1, 2, 3, 4 and 3 more); each of the plan's 8 splits \
         must be in exactly one list"
    );
    // A custom strategy's own order is kept.
    let kept = Assignment::from_lists(vec![vec![2, 0], vec![1]], 3, &spec).unwrap();
    assert_eq!(kept.into_shards(), [vec![2, 0], vec![1]]);
}

#[test]
fn a_summary_counts_each_shard() {
    let mut splits = splits_of(&[60, 30, 30, 0]);
    splits[3] = split(0, None);
    let spec = ShardSpec::try_new(0, 2, 1).unwrap();
    let assignment = Assignment::assign(&splits, &spec, Builtin::Lpt);
    assert_eq!(assignment.shards(), [vec![0, 3], vec![1, 2]]);
    let shown: Vec<_> = assignment
        .summaries(&splits)
        .into_iter()
        .map(|shard| (shard.rank, shard.worker, shard.splits, shard.rows, shard.bytes))
        .collect();
    assert_eq!(shown, [(0, 0, 2, None, 60), (1, 0, 2, Some(6), 60)]);
    assert_eq!(assignment.imbalance(&splits).ranks, 1.0);
}

#[test]
fn imbalance_is_the_heaviest_over_the_mean() {
    let splits = splits_of(&[40, 20, 20]);
    let spec = ShardSpec::try_new(0, 1, 3).unwrap();
    let imbalance = Assignment::assign(&splits, &spec, Builtin::Lpt).imbalance(&splits);
    assert_eq!((imbalance.shards, imbalance.ranks), (1.5, 1.0));
    let empty = Assignment::assign(&[], &spec, Builtin::Lpt);
    assert_eq!(empty.imbalance(&[]).shards, 1.0);
    assert!(empty.summaries(&[]).iter().all(|shard| shard.rows == Some(0)));
}

#[test]
fn a_split_without_bytes_weighs_its_rows() {
    assert_eq!(weight(&split(7, Some(100))), 7);
    assert_eq!(weight(&split(0, Some(100))), 100);
    assert_eq!(weight(&split(0, None)), 0);
}
