//! Which ranges of a file there are, and which of them make up a range that is wanted.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use super::key::Key;

/// Files whose entries are remembered.
const REMEMBERED: usize = 4096;

/// The clock of folders has steps: a listing this short a time after a change may miss the next
/// one.
const SETTLED: Duration = Duration::from_millis(50);

/// The entries of a file in the order of their first bytes.
type Ranges = Arc<Vec<Range<u64>>>;

/// Entries as they were listed last, by file. Being wrong costs a miss and no more.
#[derive(Debug, Default)]
pub(super) struct Listings {
    known: Mutex<HashMap<Key, (SystemTime, Ranges)>>,
}

impl Listings {
    /// The entries in a file's folder; none where there is no folder.
    ///
    /// # Errors
    /// Errors of the file system.
    pub(super) fn of(&self, key: &Key, folder: &Path) -> io::Result<Ranges> {
        let changed = match fs::metadata(folder).and_then(|found| found.modified()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Ranges::default()),
            found => found?,
        };
        // Never waited for: after a fork, nobody may be left who would unlock it.
        if let Ok(known) = self.known.try_lock()
            && let Some((then, ranges)) = known.get(key)
            && *then == changed
        {
            return Ok(Arc::clone(ranges));
        }
        let now = SystemTime::now();
        let ranges = Arc::new(list(folder)?);
        if now.duration_since(changed).is_ok_and(|ago| ago >= SETTLED)
            && let Ok(mut known) = self.known.try_lock()
        {
            if known.len() >= REMEMBERED {
                known.clear();
            }
            known.insert(*key, (changed, Arc::clone(&ranges)));
        }
        Ok(ranges)
    }

    /// Lists the file's folder anew next time.
    pub(super) fn forget(&self, key: &Key) {
        if let Ok(mut known) = self.known.try_lock() {
            known.remove(key);
        }
    }
}

/// The name of an entry.
pub(super) fn name(range: &Range<u64>) -> String {
    format!("{:x}-{:x}", range.start, range.end)
}

/// The range that [`name`] made a name of.
fn parse(name: &str) -> Option<Range<u64>> {
    let (start, end) = name.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    let (start, end) = (number(start)?, number(end)?);
    (start < end).then_some(start..end)
}

/// Returns true for the name of an entry.
pub(super) fn is_name(text: &str) -> bool {
    parse(text).is_some_and(|range| name(&range) == text)
}

fn list(folder: &Path) -> io::Result<Vec<Range<u64>>> {
    let mut ranges = Vec::new();
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(ranges),
        entries => entries?,
    };
    for entry in entries {
        ranges.extend(entry?.file_name().to_str().and_then(parse));
    }
    ranges.sort_unstable_by_key(|range| (range.start, range.end));
    Ok(ranges)
}

/// A part of a wanted range: its place, and the entry that has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CoveredRange {
    pub(super) range: Range<u64>,
    pub(super) entry: Option<Range<u64>>,
}

/// `wanted` in parts, in order, each with the entry that has it or none; of several, the one that
/// reaches furthest.
pub(super) fn cover(entries: &[Range<u64>], wanted: &Range<u64>) -> Vec<CoveredRange> {
    let mut parts = Vec::new();
    let (mut at, mut next) = (wanted.start, 0);
    let mut best: Option<&Range<u64>> = None;
    while at < wanted.end {
        while let Some(entry) = entries.get(next).filter(|entry| entry.start <= at) {
            if best.is_none_or(|best| entry.end > best.end) {
                best = Some(entry);
            }
            next += 1;
        }
        let (end, entry) = match best.filter(|best| best.end > at) {
            Some(best) => (best.end, Some(best.clone())),
            None => (entries.get(next).map_or(wanted.end, |entry| entry.start), None),
        };
        let end = end.min(wanted.end);
        parts.push(CoveredRange { range: at..end, entry });
        at = end;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_are_read_back() {
        for range in [0..1, 10..4096, 0..u64::MAX] {
            assert_eq!(parse(&name(&range)), Some(range));
        }
        for odd in ["", "-", "1", "2-1", "1-1", "x-y", "tmp"] {
            assert_eq!(parse(odd), None, "{odd}");
        }
    }

    proptest! {
        #[test]
        fn parts_are_what_is_wanted(
            pairs in prop::collection::vec((0_u64..60, 1_u64..20), 0..12),
            start in 0_u64..60,
            length in 0_u64..40,
        ) {
            let mut entries: Vec<Range<u64>> =
                pairs.into_iter().map(|(start, length)| start..start + length).collect();
            entries.sort_unstable_by_key(|range| (range.start, range.end));
            let wanted = start..start + length;
            let parts = cover(&entries, &wanted);
            let mut at = wanted.start;
            for part in &parts {
                prop_assert_eq!(part.range.start, at);
                prop_assert!(part.range.end > at);
                at = part.range.end;
                for byte in part.range.clone() {
                    match &part.entry {
                        Some(entry) => prop_assert!(entries.contains(entry) && entry.contains(&byte)),
                        None => prop_assert!(!entries.iter().any(|entry| entry.contains(&byte))),
                    }
                }
            }
            prop_assert_eq!(at, wanted.end);
        }
    }
}
