//! How several lanes share a batch.

/// How many of a batch's `size` rows come from each lane: in proportion to `weights` (evenly where there are
/// none), of lanes that have `left` rows left. A lane that has too few gives all, the others the rest.
///
/// A pure function of what is left, so that a resumed run goes on as if it had not been stopped. Over many
/// batches each lane's part is exact but for rounding, also with batches smaller than the number of lanes.
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
        (_, Some(weight)) => (*weight).max(1),
    };
    let all: u128 = (0..left.len()).map(|lane| u128::from(weight(lane))).sum();
    // The rows that the first lanes together have given when `rows` rows are left: what is rounded now is
    // made up for later, since the position is counted from the end.
    let until = |rows: u64, below: u128| (u128::from(rows) * below / all) as u64;
    let mut below = 0;
    let mut shares: Vec<u64> = Vec::with_capacity(left.len());
    for (lane, rows) in left.iter().enumerate() {
        let before = until(total, below).saturating_sub(until(total - size, below));
        below += u128::from(weight(lane));
        let after = until(total, below).saturating_sub(until(total - size, below));
        shares.push(after.saturating_sub(before).min(*rows));
    }
    // Rounding of three lanes and more, and lanes that ran out: the rest goes round.
    let mut given: u64 = shares.iter().sum();
    while given > size {
        let Some(most) = (0..shares.len()).max_by_key(|lane| shares[*lane]) else { break };
        shares[most] -= 1;
        given -= 1;
    }
    while given < size {
        let free: Vec<usize> = (0..left.len()).filter(|lane| shares[*lane] < left[*lane]).collect();
        let each = ((size - given) / free.len().max(1) as u64).max(1);
        for lane in free {
            let more = each.min(left[lane] - shares[lane]).min(size - given);
            shares[lane] += more;
            given += more;
        }
    }
    shares
}
