//! Pieces: the units that shards read, cut at any row.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::interleave::Interleave;

/// Where a piece's rows come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// The output rows of the split with this id.
    Split(u32),
    /// The rows of a shuffle window that an earlier run left half drained, in its permuted order.
    Window(Arc<Window>),
}

/// A shuffle window that can be filled again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// The rows of splits from which the window was filled.
    pub pieces: Vec<RowSlice>,
    /// Where in `pieces` its first row lies.
    pub from: Interleave,
    /// Its rows.
    pub rows: u64,
    /// Keys its permutation.
    pub key: u64,
    /// The lane of a mixture to which it belongs.
    pub lane: u32,
}

/// A run of rows that one shard reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowSlice {
    /// Whose rows.
    pub source: Source,
    /// First row, counted in output rows of the source: after filters, and permuted for a window.
    pub start: u64,
    /// One past the last row; None is the source's end, where its rows were not counted.
    pub end: Option<u64>,
    /// Whether the source ends with this piece.
    pub to_end: bool,
}

impl RowSlice {
    /// A whole split, of so many rows where they are known.
    pub fn split(id: u32, rows: Option<u64>) -> Self {
        Self { source: Source::Split(id), start: 0, end: rows, to_end: true }
    }

    /// Its rows, where known.
    pub fn rows(&self) -> Option<u64> {
        self.end.map(|end| end - self.start)
    }

    /// Returns true if it certainly has no row.
    pub fn is_empty(&self) -> bool {
        self.rows() == Some(0)
    }

    /// The first `rows` rows, and the others. A piece that was not counted cannot be cut: take rows
    /// off its front with [`skip`](Self::skip).
    pub fn cut(self, rows: u64) -> (Self, Self) {
        let middle = self.start + rows;
        let tail = Self { start: middle, ..self.clone() };
        let to_end = self.to_end && self.end == Some(middle);
        (Self { end: Some(middle), to_end, ..self }, tail)
    }

    /// Without its first `rows` rows.
    #[must_use]
    pub fn skip(mut self, rows: u64) -> Self {
        self.start += rows;
        self
    }

    /// The ids of all splits that are read for it.
    pub fn split_ids(&self, ids: &mut Vec<u32>) {
        match &self.source {
            Source::Split(id) => ids.push(*id),
            Source::Window(window) => window.pieces.iter().for_each(|piece| piece.split_ids(ids)),
        }
    }

    /// The weight of a slice: its part of its split, or the whole split for a layout that does not
    /// use counted rows. A run that knows the counts must deal like one that does not. `split`
    /// returns the weight and the rows of a split.
    pub(super) fn weight(&self, counted: bool, split: &dyn Fn(u32) -> (u64, Option<u64>)) -> u64 {
        match &self.source {
            Source::Split(id) => {
                let (weight, all) = split(*id);
                match (self.rows(), all) {
                    (Some(rows), Some(all)) if counted && rows < all => {
                        (u128::from(weight) * u128::from(rows) / u128::from(all)) as u64
                    }
                    _ => weight,
                }
            }
            // It is read from the window's start, whoever holds which part of it.
            Source::Window(window) => {
                window.pieces.iter().map(|piece| piece.weight(counted, split)).sum()
            }
        }
    }

    /// Returns true if it is the rest of a shuffle window.
    pub fn is_rest(&self) -> bool {
        matches!(self.source, Source::Window(_))
    }

    /// Its place in the order of the plan: rests of windows first, by their first split, then rows
    /// of splits. Two windows are told apart by their keys.
    pub fn place(&self) -> (bool, u32, u64, u64) {
        match &self.source {
            Source::Split(id) => (true, *id, 0, self.start),
            Source::Window(window) => {
                let first = window.pieces.iter().map(|piece| piece.place().1).min();
                (false, first.unwrap_or(0), window.key, self.start)
            }
        }
    }
}
