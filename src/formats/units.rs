//! Units of a file that are read one by one (stripes, record batches, blocks), merged into splits.

use std::ops::Range;

use super::discover::SplitTarget;
use super::{Split, SplitUnit, UnitKind};

/// Where a unit of a file lies, and which rows it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitRange {
    /// Its first row, counted from the start of the file.
    pub first_row: u64,
    /// Its rows; exact.
    pub rows: u64,
    /// Where it begins, in bytes.
    pub offset: u64,
    /// Its stored length with everything that belongs to it, in bytes.
    pub bytes: u64,
}

/// Merges consecutive units into splits towards the target.
pub(super) struct Splitter<'a> {
    /// Index into the table's files.
    pub file: u32,
    /// Size of the file, in bytes.
    pub size: u64,
    pub kind: UnitKind,
    pub units: &'a [UnitRange],
    pub target: SplitTarget,
}

impl Splitter<'_> {
    /// The splits of the units to `keep`, with the weights that `weight` gives.
    pub fn split(&self, keep: &[bool], weight: impl Fn(usize) -> u64) -> Vec<Split> {
        // A byte range addresses units only where they lie in the order of their rows.
        if self.units.windows(2).any(|pair| pair[0].offset >= pair[1].offset) {
            let all = 0..self.units.len();
            let bytes = all.clone().map(&weight).fold(0, u64::saturating_add);
            let wanted = keep.contains(&true);
            return wanted.then(|| self.of(all, bytes)).into_iter().collect();
        }
        let mut splits = Vec::new();
        let mut open: Option<(Range<usize>, u64, u64)> = None;
        for (number, unit) in self.units.iter().enumerate() {
            if unit.rows == 0 || !keep[number] {
                splits.extend(open.take().map(|(units, bytes, _)| self.of(units, bytes)));
                continue;
            }
            let bytes = weight(number);
            if let Some((units, before, rows)) = &mut open
                && self.target.allows(*rows + unit.rows, before.saturating_add(bytes))
            {
                units.end = number + 1;
                *before = before.saturating_add(bytes);
                *rows += unit.rows;
                continue;
            }
            splits.extend(open.take().map(|(units, bytes, _)| self.of(units, bytes)));
            open = Some((number..number + 1, bytes, unit.rows));
        }
        splits.extend(open.take().map(|(units, bytes, _)| self.of(units, bytes)));
        splits
    }

    fn of(&self, units: Range<usize>, bytes: u64) -> Split {
        let whole = units.len() == self.units.len();
        let (first, count) = (units.start as u32, units.len() as u32);
        let byte_start = if whole { 0 } else { self.units[units.start].offset };
        let byte_end = match self.units.get(units.end) {
            Some(next) if !whole => next.offset,
            _ => self.size,
        };
        let unit = SplitUnit::Units { kind: self.kind, first, count, byte_start, byte_end };
        Split {
            scan: 0,
            file: self.file,
            unit,
            rows: Some(self.units[units.clone()].iter().map(|unit| unit.rows).sum()),
            deleted: 0,
            first_row: self.units[units.start].first_row,
            bytes,
        }
    }
}

/// The units that begin in a byte range of the file; all of them without one.
pub(super) fn units_in(units: &[UnitRange], range: Option<&Range<u64>>) -> Range<usize> {
    let Some(range) = range else { return 0..units.len() };
    let mut numbers = (0..units.len()).filter(|number| range.contains(&units[*number].offset));
    match numbers.next() {
        Some(first) => first..numbers.next_back().unwrap_or(first) + 1,
        None => 0..0,
    }
}
