//! Rows of a Parquet file by number: what a split reads where rows are deleted, or passed over.

use datafusion::datasource::physical_plan::parquet::{ParquetAccessPlan, RowGroupAccess};
use parquet::arrow::arrow_reader::{RowSelection, RowSelector};
use roaring::RoaringTreemap;

use super::files::TableFiles;
use super::footers::read_footer;
use super::format::Format;
use super::parquet::damaged;
use super::{Split, SplitUnit};
use crate::Result;

/// What is read of a file: the row groups of `split` without the rows that position deletes take out, and without the
/// first `skip` of the others. None where the split is not of row groups, or where some rows cannot be told by their
/// number (equality deletes). Skipping is only for scans without a predicate, whose rows are those of the file.
///
/// # Errors
/// `Data` where the footer or a delete file is damaged; storage errors as they are.
pub async fn access_after(
    table: &TableFiles,
    split: &Split,
    skip: u64,
) -> Result<Option<ParquetAccessPlan>> {
    let (first, count) = match split.unit {
        SplitUnit::RowGroups { first, count, .. } => (first as usize, count as usize),
        SplitUnit::File if *table.format_of(split.file as usize) == Format::Parquet => {
            (0, usize::MAX)
        }
        _ => return Ok(None),
    };
    let index = split.file as usize;
    let Some(file) = table.files.get(index) else { return Ok(None) };
    let deleted = match &table.lake {
        Some(lake) if skip > 0 && !lake.file(index).equality.is_empty() => return Ok(None),
        Some(lake) => lake.positions(&table.store, index).await?,
        None => None,
    };
    // With the page index where many rows are passed over, so that their pages need no request; deleted rows
    // lie scattered, and seldom fill a page.
    let footer = read_footer(&table.store, &file.meta, &table.footers, skip > 0)
        .await
        .map_err(|error| error.with_context("file", table.display_path(index)))?;
    let groups = footer.row_groups();
    let mut access = ParquetAccessPlan::new_none(groups.len());
    let mut skip = skip;
    let mut start = 0;
    for (number, group) in groups.iter().enumerate().take(first.saturating_add(count)) {
        let rows = u64::try_from(group.num_rows())
            .map_err(|_| damaged(table, index, number, "its row count is negative"))?;
        if number >= first {
            let live = live_runs(deleted.as_deref(), start, rows, &mut skip);
            access.set(number, access_to(&live, rows));
        }
        start += rows;
    }
    Ok(Some(access))
}

/// The rows `start..start + rows` of a file that are read, as ranges counted from `start`: those not deleted, after the
/// first `skip`, which is lowered by what is passed over here.
fn live_runs(
    deleted: Option<&RoaringTreemap>,
    start: u64,
    rows: u64,
    skip: &mut u64,
) -> Vec<(u64, u64)> {
    let mut runs = Vec::new();
    let mut push = |from: u64, to: u64| {
        let passed = (*skip).min(to - from);
        *skip -= passed;
        if from + passed < to {
            runs.push((from + passed, to));
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

fn access_to(live: &[(u64, u64)], rows: u64) -> RowGroupAccess {
    match live {
        [] => RowGroupAccess::Skip,
        [(0, end)] if *end == rows => RowGroupAccess::Scan,
        _ => {
            let mut selectors = Vec::with_capacity(2 * live.len() + 1);
            let mut at = 0;
            for (from, to) in live {
                if *from > at {
                    selectors.push(RowSelector::skip((from - at) as usize));
                }
                selectors.push(RowSelector::select((to - from) as usize));
                at = *to;
            }
            if at < rows {
                selectors.push(RowSelector::skip((rows - at) as usize));
            }
            RowGroupAccess::Selection(RowSelection::from(selectors))
        }
    }
}

/// How many of the rows `start..start + rows` are deleted.
pub(super) fn deleted_in(deleted: &RoaringTreemap, start: u64, rows: u64) -> u64 {
    // `rank` counts the positions up to and including its argument.
    let below = |end: u64| end.checked_sub(1).map_or(0, |last| deleted.rank(last));
    below(start + rows) - below(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deleted_and_skipped_rows_are_left_out() {
        let deleted: RoaringTreemap = [3, 10, 11, 19].into_iter().collect();
        let runs = |start, rows, mut skip| {
            let runs = live_runs(Some(&deleted), start, rows, &mut skip);
            (runs, skip)
        };
        assert_eq!(runs(10, 10, 0), (vec![(2, 9)], 0));
        assert_eq!(runs(0, 10, 0), (vec![(0, 3), (4, 10)], 0));
        assert_eq!(runs(0, 10, 5), (vec![(6, 10)], 0));
        assert_eq!(runs(0, 10, 12), (vec![], 3));
        assert_eq!(live_runs(None, 40, 2, &mut 0), vec![(0, 2)]);
        assert_eq!((deleted_in(&deleted, 0, 10), deleted_in(&deleted, 10, 10)), (1, 3));
    }
}
