//! From the ranges that a reader wants to the requests that are sent, and back.

use std::ops::Range;

use bytes::{Bytes, BytesMut};

/// Ranges this close together are one request: the bytes between cost less than a request.
const NEAR: u64 = 64 << 10;

/// Ranges farther apart than this are never one request.
const FAR: u64 = 1 << 20;

/// Between both, the gap may be this part of the wanted bytes beside it: a fifth of the bytes is
/// read in vain.
const WASTE: u64 = 4;

/// Larger requests are cut: one connection to a store is slower than several.
const LARGEST: u64 = 16 << 20;

/// Advice for a server that answers a range request with the whole file.
pub(super) const NO_RANGES: &str =
    "; its server sends whole files only: download the file, or use a server that sends ranges";

/// The requests that bring all `ranges`: sorted and disjoint.
pub(super) fn requests_of(ranges: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut sorted: Vec<&Range<u64>> = ranges.iter().filter(|range| !range.is_empty()).collect();
    sorted.sort_unstable_by_key(|range| (range.start, range.end));
    let mut requests: Vec<Range<u64>> = Vec::new();
    let mut wanted = 0;
    for range in sorted {
        match requests.last_mut() {
            Some(last) if joins(last, wanted, range) => {
                wanted += range.end.saturating_sub(range.start.max(last.end));
                last.end = last.end.max(range.end);
            }
            _ => {
                wanted = range.end - range.start;
                requests.push(range.clone());
            }
        }
    }
    requests.into_iter().flat_map(cut).collect()
}

/// Returns true if `range` is requested together with `last`, which holds `wanted` wanted bytes.
fn joins(last: &Range<u64>, wanted: u64, range: &Range<u64>) -> bool {
    let Some(gap) = range.start.checked_sub(last.end) else { return true };
    let both = wanted + (range.end - range.start);
    // A long request loses nothing by ending where a wanted range does.
    let is_long = range.end - last.start > LARGEST && gap > 0;
    !is_long && gap <= NEAR.max(FAR.min(both / WASTE))
}

fn cut(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let pieces = (range.end - range.start).div_ceil(LARGEST);
    let size = (range.end - range.start).div_ceil(pieces.max(1));
    (0..pieces).map(move |piece| {
        let start = range.start + piece * size;
        start..range.end.min(start + size)
    })
}

/// The bytes of `range` out of the answers to requests that [`requests_of`] made of it and others.
pub(super) fn bytes_of(range: &Range<u64>, answers: &[(Range<u64>, Bytes)]) -> Bytes {
    let first = answers.partition_point(|(request, _)| request.end <= range.start);
    let parts = answers[first..].iter().take_while(|(request, _)| request.start < range.end);
    let mut parts = parts.map(|(request, bytes)| {
        let from = range.start.max(request.start) - request.start;
        let to = range.end.min(request.end) - request.start;
        bytes.slice(from as usize..to as usize)
    });
    let one = parts.next().unwrap_or_default();
    let Some(two) = parts.next() else { return one };
    let mut all = BytesMut::with_capacity((range.end - range.start) as usize);
    for part in [one, two].into_iter().chain(parts) {
        all.extend_from_slice(&part);
    }
    all.freeze()
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "lists of one request")]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    /// Checks the requests, and that every range comes back whole.
    fn check(ranges: &[Range<u64>], expected: &[Range<u64>]) {
        let requests = requests_of(ranges);
        assert_eq!(requests, expected);
        let byte = |at: u64| (at % 251) as u8;
        let answer = |request: Range<u64>| (request.clone(), request.map(byte).collect::<Bytes>());
        let answers: Vec<(Range<u64>, Bytes)> = requests.into_iter().map(answer).collect();
        for range in ranges {
            assert!(bytes_of(range, &answers).iter().copied().eq(range.clone().map(byte)));
        }
    }

    #[test]
    fn near_ranges_are_one_request() {
        check(&[], &[]);
        check(&[5..5], &[]);
        check(&[0..10, 20..30], &[0..30]);
        check(&[20..30, 0..10, 5..25], &[0..30]);
        check(&[0..10, 100 * KIB..101 * KIB], &[0..10, 100 * KIB..101 * KIB]);
    }

    #[test]
    fn a_gap_may_grow_with_what_is_wanted_beside_it() {
        check(&[0..MIB, MIB + 200 * KIB..2 * MIB], &[0..2 * MIB]);
        check(&[0..100 * KIB, 300 * KIB..400 * KIB], &[0..100 * KIB, 300 * KIB..400 * KIB]);
        check(&[0..8 * MIB, 10 * MIB..12 * MIB], &[0..8 * MIB, 10 * MIB..12 * MIB]);
    }

    #[test]
    fn long_ranges_are_cut_and_put_together_again() {
        check(&[0..40 * MIB], &[0..13981014, 13981014..27962028, 27962028..40 * MIB]);
        check(&[0..10 * MIB, 10 * MIB..20 * MIB], &[0..10 * MIB, 10 * MIB..20 * MIB]);
        check(&[0..MIB, 7..9, 3 * MIB..3 * MIB + 1], &[0..MIB, 3 * MIB..3 * MIB + 1]);
    }
}
