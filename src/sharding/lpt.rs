//! Balancing: which bin takes which item.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Deals items to bins so that the heaviest bin is light: longest processing time first.
///
/// The heaviest item left goes to the lightest bin. The heaviest bin then weighs at most 4/3 -
/// 1/(3m) times that of the best possible division over m bins (R. L. Graham, "Bounds on
/// Multiprocessing Timing Anomalies", SIAM J. Appl. Math. 17(2), 1969).
///
/// Returns the bin of each item. Equal weights are dealt in the order of items; of equally heavy
/// bins the one with the fewest items takes the next, then the one with the lowest number, so items
/// of weight zero spread too. Zero `bins` count as one. O(n log n + n log bins) time, O(n) memory.
pub fn lpt(weights: &[u64], bins: usize) -> Vec<u32> {
    // With more bins than items the first n take one item each: the others need not be kept.
    let bins = bins.min(weights.len()).max(1);
    let mut heaviest_first: Vec<u32> = (0..weights.len() as u32).collect();
    heaviest_first.sort_unstable_by_key(|&item| (Reverse(weights[item as usize]), item));

    // Load, items, bin. The load is wider than a weight, so that no sum wraps around.
    let mut lightest: BinaryHeap<Reverse<(u128, u32, u32)>> =
        (0..bins as u32).map(|bin| Reverse((0, 0, bin))).collect();
    let mut bin_of = vec![0; weights.len()];
    for item in heaviest_first {
        // Changed in place, the bin sifts down once, where a pop and a push would sift twice.
        if let Some(mut top) = lightest.peek_mut() {
            let Reverse((load, items, bin)) = &mut *top;
            *load += u128::from(weights[item as usize]);
            *items += 1;
            bin_of[item as usize] = *bin;
        }
    }
    bin_of
}

/// Deals `items` items to bins in turn: item i goes to bin i mod `bins`. Zero `bins` count as one.
pub fn round_robin(items: usize, bins: usize) -> Vec<u32> {
    let bins = bins.max(1);
    (0..items).map(|item| (item % bins) as u32).collect()
}
