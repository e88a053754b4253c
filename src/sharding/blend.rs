//! How several lanes share a batch.

/// How many of a batch's `size` rows come from each lane: in proportion to `weights` (evenly where
/// there are none), of lanes that have `left` rows left. A lane that has too few gives all, the
/// others the rest; one of weight 0 gives rows only where no other lane has any.
///
/// A pure function of the remaining rows, so that a resumed run goes on as if it had not been
/// stopped. Over many batches each lane's part is exact but for rounding, also with batches smaller
/// than the number of lanes.
pub fn blend(size: u64, left: &[u64], weights: &[u64]) -> Vec<u64> {
    if let [only] = left {
        return vec![size.min(*only)];
    }
    let total: u64 = left.iter().fold(0, |sum: u64, rows| sum.saturating_add(*rows));
    if total <= size {
        return left.to_vec();
    }
    let weight = |lane: usize| match (left[lane], weights.get(lane)) {
        (0, _) => 0,
        (_, None) => 1,
        (_, Some(weight)) => *weight,
    };
    let weights: Vec<u128> = (0..left.len()).map(|lane| u128::from(weight(lane))).collect();
    if weights.iter().all(|weight| *weight == 0) {
        // What is left has no weight: it goes round.
        return blend(size, left, &[]);
    }
    // The position is counted from the end, so that what is rounded now is made up for later.
    let (mut before, mut after) = (Vec::with_capacity(left.len()), Vec::with_capacity(left.len()));
    divide(total, &weights, &mut before);
    divide(total - size, &weights, &mut after);
    let shares = before.iter().zip(&after).zip(left);
    let mut shares: Vec<u64> =
        shares.map(|((before, after), rows)| (before - after).min(*rows)).collect();
    // Lanes that ran out: the rest goes round.
    let mut given: u64 = shares.iter().sum();
    while given < size {
        let open = |lane: &usize| shares[*lane] < left[*lane];
        let mut free: Vec<usize> =
            (0..left.len()).filter(|lane| weights[*lane] > 0 && open(lane)).collect();
        if free.is_empty() {
            free = (0..left.len()).filter(open).collect();
        }
        let each = ((size - given) / free.len().max(1) as u64).max(1);
        for lane in free {
            let more = each.min(left[lane] - shares[lane]).min(size - given);
            shares[lane] += more;
            given += more;
        }
    }
    shares
}

/// The lanes' parts of the last `rows` rows. Halves the lanes again and again: so the parts sum up
/// to `rows`, and with each more row one of them grows by one and none shrinks.
fn divide(rows: u64, weights: &[u128], parts: &mut Vec<u64>) {
    if weights.len() <= 1 {
        parts.extend(weights.iter().map(|_| rows));
        return;
    }
    let (first, second) = weights.split_at(weights.len() / 2);
    let (below, above): (u128, u128) = (first.iter().sum(), second.iter().sum());
    let of_first = (u128::from(rows) * below).checked_div(below + above).unwrap_or(0) as u64;
    divide(of_first, first, parts);
    divide(rows - of_first, second, parts);
}
