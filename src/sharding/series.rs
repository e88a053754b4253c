//! Windows over series: which consecutive rows make which sample.
//!
//! The rows of a plan, in the order of its splits, are series one after the other. A window belongs
//! to the split of its first row, and counts there as a row does: so windows are dealt, shuffled and
//! resumed as rows are.

use std::ops::Range;

use super::row_slice::{RowSlice, Source};
use crate::{Error, Result};

/// How windows lie in a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowShape {
    /// Rows of the inputs; at least one.
    pub size: u64,
    /// Rows after the inputs that are targets.
    pub horizon: u64,
    /// Rows from the first row of a window to that of the next one; at least one.
    pub stride: u64,
}

impl WindowShape {
    /// Rows of a window.
    pub fn span(&self) -> u64 {
        self.size + self.horizon
    }

    /// The windows of a series of so many rows.
    pub fn windows(&self, rows: u64) -> u64 {
        rows.checked_sub(self.span()).map_or(0, |rest| rest / self.stride + 1)
    }
}

/// The windows of a plan's rows.
#[derive(Clone, Debug)]
pub struct SeriesLayout {
    shape: WindowShape,
    /// Rows before each split, and of all.
    split_rows: Vec<u64>,
    /// Windows that begin before each split, and all.
    split_windows: Vec<u64>,
    /// Rows before each series, and of all.
    series_rows: Vec<u64>,
    /// Windows before each series, and of all.
    series_windows: Vec<u64>,
}

impl SeriesLayout {
    /// The layout of splits with `counts` rows, whose rows are series of the lengths `series`.
    ///
    /// # Errors
    /// `Config` for a size or a stride of 0; `Data` where splits and series differ in rows.
    pub fn try_new(shape: WindowShape, counts: &[u64], series: &[u64]) -> Result<Self> {
        if shape.size == 0 || shape.stride == 0 {
            return Err(Error::config("the size and the stride of windows must be at least 1 row"));
        }
        let split_rows = sums(counts.iter().copied());
        let series_rows = sums(series.iter().copied());
        if split_rows.last() != series_rows.last() {
            return Err(Error::data(format!(
                "the splits have {:?} rows and the series {:?}; please report it",
                split_rows.last(),
                series_rows.last()
            )));
        }
        let series_windows = sums(series.iter().map(|rows| shape.windows(*rows)));
        let mut layout =
            Self { shape, split_rows, split_windows: Vec::new(), series_rows, series_windows };
        layout.split_windows =
            layout.split_rows.iter().map(|row| layout.windows_before(*row)).collect();
        Ok(layout)
    }

    /// How its windows lie.
    pub fn shape(&self) -> WindowShape {
        self.shape
    }

    /// Windows by split.
    pub fn counts(&self) -> Vec<u64> {
        self.split_windows.windows(2).map(|ends| ends[1] - ends[0]).collect()
    }

    /// The windows that begin before this row.
    fn windows_before(&self, row: u64) -> u64 {
        let at = self.series_rows.partition_point(|start| *start <= row) - 1;
        let Some(all) = self.series_windows.get(at + 1) else { return self.series_windows[at] };
        let begun = (row - self.series_rows[at]).div_ceil(self.shape.stride);
        (self.series_windows[at] + begun).min(*all)
    }

    /// The numbers of windows `wanted` of a split, among all windows.
    pub fn windows_of(&self, split: u32, wanted: Range<u64>) -> Range<u64> {
        let at = split as usize;
        let (Some(first), Some(end)) = (self.split_windows.get(at), self.split_windows.get(at + 1))
        else {
            return 0..0;
        };
        let place = |window: u64| first.saturating_add(window).min(*end);
        place(wanted.start)..place(wanted.end)
    }

    /// The first row of a window, which is one of all.
    pub fn first_row(&self, window: u64) -> u64 {
        let at = self.series_windows.partition_point(|before| *before <= window) - 1;
        self.series_rows[at] + (window - self.series_windows[at]) * self.shape.stride
    }

    /// The rows from the first one of these windows to the last one of the last of them.
    pub fn rows_of(&self, windows: Range<u64>) -> Range<u64> {
        match windows.is_empty() {
            true => 0..0,
            false => {
                let last = self.first_row(windows.end - 1);
                self.first_row(windows.start)..last + self.shape.span()
            }
        }
    }

    /// The split of a row, and its number there.
    pub fn place(&self, row: u64) -> (u32, u64) {
        let at = self.split_rows.partition_point(|start| *start <= row) - 1;
        (at as u32, row - self.split_rows[at])
    }

    /// The rows `rows` as slices of splits, in their order.
    pub fn slices(&self, rows: Range<u64>) -> Vec<RowSlice> {
        let mut slices = Vec::new();
        let mut row = rows.start;
        while row < rows.end {
            let (split, start) = self.place(row);
            let first = self.split_rows[split as usize];
            let all = self.split_rows[split as usize + 1] - first;
            let end = all.min(rows.end - first);
            let to_end = end == all;
            slices.push(RowSlice { source: Source::Split(split), start, end: Some(end), to_end });
            row = first + end;
        }
        slices
    }
}

/// 0, and the sum up to each number.
fn sums(numbers: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut sum = 0;
    let rest = numbers.map(|number| {
        sum += number;
        sum
    });
    let rest: Vec<u64> = rest.collect();
    std::iter::once(0).chain(rest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first rows of all windows, series by series.
    fn starts(shape: WindowShape, series: &[u64]) -> Vec<u64> {
        let mut starts = Vec::new();
        let mut before = 0;
        for rows in series {
            let mut at = 0;
            while at + shape.span() <= *rows {
                starts.push(before + at);
                at += shape.stride;
            }
            before += rows;
        }
        starts
    }

    #[test]
    fn every_window_is_in_the_split_of_its_first_row_and_nowhere_else() {
        let series = [0, 7, 3, 0, 0, 12, 1, 4, 0];
        for cuts in [vec![27], vec![0, 5, 0, 9, 13, 0], vec![1; 27]] {
            for size in 1..6 {
                for horizon in 0..4 {
                    for stride in 1..8 {
                        check(WindowShape { size, horizon, stride }, &cuts, &series);
                    }
                }
            }
        }
    }

    fn check(shape: WindowShape, cuts: &[u64], series: &[u64]) {
        let layout = SeriesLayout::try_new(shape, cuts, series).unwrap();
        let expected = starts(shape, series);
        assert_eq!(layout.counts().iter().sum::<u64>(), expected.len() as u64);
        let mut found = Vec::new();
        let mut before = 0;
        for (split, rows) in cuts.iter().enumerate() {
            let windows = layout.windows_of(split as u32, 0..u64::MAX);
            assert_eq!(windows.end - windows.start, layout.counts()[split]);
            for window in windows {
                let row = layout.first_row(window);
                assert!((before..before + rows).contains(&row));
                assert_eq!(layout.place(row), (split as u32, row - before));
                found.push(row);
            }
            before += rows;
        }
        assert_eq!(found, expected);
        let all = layout.rows_of(0..found.len() as u64);
        let slices = layout.slices(all.clone());
        let rows: u64 = slices.iter().filter_map(RowSlice::rows).sum();
        assert_eq!(rows, all.end - all.start);
        assert!(slices.iter().all(|slice| !slice.is_empty()));
    }

    #[test]
    fn rows_that_are_in_no_series_are_an_error() {
        let shape = WindowShape { size: 2, horizon: 0, stride: 1 };
        assert!(SeriesLayout::try_new(shape, &[3], &[2]).is_err());
        let none = SeriesLayout::try_new(shape, &[], &[]).unwrap();
        assert!(none.counts().is_empty() && none.windows_of(0, 0..9).is_empty());
        assert!(SeriesLayout::try_new(WindowShape { size: 0, ..shape }, &[], &[]).is_err());
    }
}
