//! Rows of a Parquet file by number, for splits with deleted or unwanted rows.

use std::ops::Range;

use datafusion::datasource::physical_plan::parquet::{ParquetAccessPlan, RowGroupAccess};
use parquet::arrow::arrow_reader::RowSelection;
use roaring::RoaringTreemap;

use super::discover::damaged;
use crate::Result;
use crate::formats::files::TableFiles;
use crate::formats::footers::read_footer;
use crate::formats::format::Format;
use crate::formats::{Split, SplitUnit, UnitKind};

/// All rows that are not deleted.
pub const ALL_ROWS: Range<u64> = 0..u64::MAX;

/// The rows to read from a file: the row groups of `split` without rows removed by position
/// deletes, and from the other groups the rows numbered in `wanted`. Returns None if the split is
/// not made of row groups, or if rows cannot be told by their number (equality deletes). Anything
/// but [`ALL_ROWS`] is only for scans without a predicate, whose rows are those of the file.
///
/// # Errors
/// `Data` where the footer or a delete file is damaged; storage errors as they are.
pub async fn access_to_rows(
    table: &TableFiles,
    split: &Split,
    wanted: Range<u64>,
) -> Result<Option<ParquetAccessPlan>> {
    let (first, count) = match split.unit {
        SplitUnit::Units { kind: UnitKind::RowGroups, first, count, .. } => {
            (first as usize, count as usize)
        }
        SplitUnit::File if *table.format_of(split.file as usize) == Format::Parquet => {
            (0, usize::MAX)
        }
        _ => return Ok(None),
    };
    let index = split.file as usize;
    let Some(file) = table.files.get(index) else { return Ok(None) };
    let is_part = wanted != ALL_ROWS;
    let deleted = match &table.metadata {
        Some(metadata) if is_part && metadata.listed(index).has_equality_deletes => {
            return Ok(None);
        }
        Some(metadata) => metadata.deleted_positions(&table.store, index).await?,
        None => None,
    };
    // With the page index where many rows are not wanted, so that their pages need no request;
    // deleted rows lie scattered, and seldom fill a page.
    let footer = read_footer(&table.store, &file.meta, &table.footers, is_part)
        .await
        .map_err(|error| error.with_context("file", table.display_path(index)))?;
    let groups = footer.row_groups();
    let mut access = ParquetAccessPlan::new_none(groups.len());
    let (mut passed, mut start) = (0, 0);
    for (number, group) in groups.iter().enumerate().take(first.saturating_add(count)) {
        let rows = u64::try_from(group.num_rows())
            .map_err(|_| damaged(table, index, number, "its row count is negative"))?;
        if number >= first {
            let runs = live_runs(deleted.as_deref(), start, rows, &wanted, &mut passed);
            access.set(number, access_to(&runs, rows));
        }
        start += rows;
    }
    Ok(Some(access))
}

/// The rows `start..start + rows` of a file that are read, as ranges counted from `start`: those
/// not deleted whose number is in `wanted`. The first of them has the number `passed`, which is
/// raised by how many there are.
fn live_runs(
    deleted: Option<&RoaringTreemap>,
    start: u64,
    rows: u64,
    wanted: &Range<u64>,
    passed: &mut u64,
) -> Vec<(u64, u64)> {
    let mut runs = Vec::new();
    let mut push = |from: u64, to: u64| {
        let numbers = *passed..*passed + (to - from);
        *passed = numbers.end;
        let first = wanted.start.max(numbers.start);
        let end = wanted.end.min(numbers.end);
        if first < end {
            runs.push((from + (first - numbers.start), from + (end - numbers.start)));
        }
    };
    let mut next = 0;
    if let Some(deleted) = deleted {
        let mut positions = deleted.iter();
        positions.advance_to(start);
        for position in positions.take_while(|position| *position < start + rows) {
            let at = position - start;
            if next < at {
                push(next, at);
            }
            next = at + 1;
        }
    }
    if next < rows {
        push(next, rows);
    }
    runs
}

/// The rows of a row group that both select.
pub(in crate::formats) fn both(one: &RowGroupAccess, other: &RowGroupAccess) -> RowGroupAccess {
    let rows = match (one, other) {
        (RowGroupAccess::Skip, _) | (_, RowGroupAccess::Skip) => return RowGroupAccess::Skip,
        (RowGroupAccess::Scan, rows) | (rows, RowGroupAccess::Scan) => return rows.clone(),
        (RowGroupAccess::Selection(one), RowGroupAccess::Selection(other)) => {
            one.intersection(other)
        }
    };
    match rows.selects_any() {
        true => RowGroupAccess::Selection(rows),
        false => RowGroupAccess::Skip,
    }
}

fn access_to(live: &[(u64, u64)], rows: u64) -> RowGroupAccess {
    match live {
        [] => RowGroupAccess::Skip,
        [(0, end)] if *end == rows => RowGroupAccess::Scan,
        _ => {
            let ranges = live.iter().map(|(from, to)| *from as usize..*to as usize);
            RowGroupAccess::Selection(RowSelection::from_consecutive_ranges(ranges, rows as usize))
        }
    }
}

/// How many of the rows `start..start + rows` are deleted.
pub(in crate::formats) fn deleted_in(deleted: &RoaringTreemap, start: u64, rows: u64) -> u64 {
    // `rank` counts the positions up to and including its argument.
    let below = |end: u64| end.checked_sub(1).map_or(0, |last| deleted.rank(last));
    below(start + rows) - below(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deleted_rows_and_those_not_wanted_are_left_out() {
        let deleted: RoaringTreemap = [3, 10, 11, 19].into_iter().collect();
        let runs = |start, rows, wanted: Range<u64>| {
            let mut passed = 0;
            let runs = live_runs(Some(&deleted), start, rows, &wanted, &mut passed);
            (runs, passed)
        };
        assert_eq!(runs(10, 10, ALL_ROWS), (vec![(2, 9)], 7));
        assert_eq!(runs(0, 10, ALL_ROWS), (vec![(0, 3), (4, 10)], 9));
        assert_eq!(runs(0, 10, 5..u64::MAX), (vec![(6, 10)], 9));
        assert_eq!(runs(0, 10, 0..3), (vec![(0, 3)], 9));
        assert_eq!(runs(0, 10, 2..5), (vec![(2, 3), (4, 6)], 9));
        assert_eq!(runs(0, 10, 4..5), (vec![(5, 6)], 9));
        assert_eq!(runs(0, 10, 12..u64::MAX), (vec![], 9));
        let mut passed = 7;
        assert_eq!(live_runs(None, 40, 3, &(0..9), &mut passed), vec![(0, 2)]);
        assert_eq!(passed, 10);
        assert_eq!((deleted_in(&deleted, 0, 10), deleted_in(&deleted, 10, 10)), (1, 3));
    }
}
