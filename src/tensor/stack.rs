//! Scalar columns packed into one row-major matrix.

use arrow::buffer::NullBuffer;

use super::batch_slice::BatchSlice;
use super::block::{Block, Lent, Slot};
use super::column::{Column, ColumnSlice, Fixed, Kind};
use super::leaf::flatten;
use super::nulls::write_mask;
use crate::Result;
use crate::matrix::{
    LINE_BYTES, Scratch, TILE_ROWS, are_words, line_columns, transpose, transpose_words,
};

/// F columns that become one (N, F) tensor.
#[derive(Debug)]
pub(super) struct Stack {
    pub(super) columns: Vec<Column>,
    pub(super) slot: usize,
    /// The slot of its (N, F) mask, where one of the columns has one.
    pub(super) mask: Option<usize>,
    /// The matrix that arrives in place of the columns, where one does: as a column of lists.
    pub(super) matrix: Option<Column>,
}

/// The received parts of a stack.
pub(super) enum StackParts {
    /// The pieces of each column.
    Columns(Vec<Vec<ColumnSlice>>),
    /// The pieces of the matrix.
    Matrix(Vec<ColumnSlice>),
}

impl Stack {
    fn fixed(&self) -> impl Iterator<Item = (&Column, &Fixed)> {
        self.columns.iter().filter_map(|column| match &column.kind {
            Kind::Fixed { fixed, .. } => Some((column, fixed)),
            _ => None,
        })
    }

    pub(super) fn parts(&self, portions: &[BatchSlice]) -> Result<StackParts> {
        if let Some(matrix) = &self.matrix {
            return Ok(StackParts::Matrix(matrix.parts(portions)?));
        }
        let columns = self.columns.iter().map(|column| column.parts(portions));
        Ok(StackParts::Columns(columns.collect::<Result<_>>()?))
    }

    /// Fails where a column has nulls that its policy does not cover.
    pub(super) fn check(&self, parts: &StackParts) -> Result<()> {
        match parts {
            StackParts::Columns(parts) => self
                .fixed()
                .zip(parts)
                .try_for_each(|((column, fixed), parts)| fixed.check(column, parts)),
            StackParts::Matrix(parts) => {
                let width = self.columns.len();
                let mut counts = vec![0; width];
                for nulls in parts.iter().filter_map(null_cells) {
                    null_places(&nulls).iter().for_each(|cell| counts[cell % width] += 1);
                }
                let rows = parts.iter().map(ColumnSlice::rows).sum();
                self.fixed().zip(counts).try_for_each(|((column, fixed), count)| {
                    column.check_nulls(count, rows, fixed.patch.is_some())
                })
            }
        }
    }

    /// The slot of the stack and its memory, where a matrix needs no copy.
    pub(super) fn lent(&self, parts: &StackParts) -> Option<(usize, Lent)> {
        match (&self.matrix, parts) {
            (Some(matrix), StackParts::Matrix(parts)) => matrix.lent(parts),
            _ => None,
        }
    }

    /// Writes the matrix, unless it is lent, and its mask.
    pub(super) fn write(
        &self,
        parts: &StackParts,
        is_lent: bool,
        slots: &[Slot],
        block: &mut Block,
    ) -> Result<()> {
        match (&self.matrix, parts) {
            (Some(matrix), StackParts::Matrix(parts)) => {
                self.write_matrix(matrix, parts, is_lent, slots, block)
            }
            (_, StackParts::Columns(parts)) => self.write_columns(parts, slots, block),
            (None, StackParts::Matrix(_)) => Ok(()),
        }
    }

    fn write_matrix(
        &self,
        matrix: &Column,
        parts: &[ColumnSlice],
        is_lent: bool,
        slots: &[Slot],
        block: &mut Block,
    ) -> Result<()> {
        let slot = slots[self.slot];
        let size = slot.dtype.size();
        if let (false, Kind::Fixed { fixed, .. }) = (is_lent, &matrix.kind) {
            let patches: Vec<_> = self.fixed().map(|(_, fixed)| fixed.patch).collect();
            let mut rest = block.slot_mut(slot);
            for part in parts {
                let (front, after) = rest.split_at_mut(part.rows() * patches.len() * size);
                fixed.write(matrix, part, 0, front)?;
                if let Some(nulls) = null_cells(part) {
                    for cell in null_places(&nulls) {
                        if let Some(patch) = &patches[cell % patches.len()] {
                            front[cell * size..][..size].copy_from_slice(patch.as_bytes());
                        }
                    }
                }
                rest = after;
            }
        }
        let Some(mask) = self.mask else { return Ok(()) };
        let mut rest = block.slot_mut(slots[mask]);
        for part in parts {
            let (front, after) = rest.split_at_mut(part.rows() * self.columns.len());
            write_mask(front, null_cells(part).as_ref());
            rest = after;
        }
        Ok(())
    }

    /// `parts[f]` are the pieces of column f.
    fn write_columns(
        &self,
        parts: &[Vec<ColumnSlice>],
        slots: &[Slot],
        block: &mut Block,
    ) -> Result<()> {
        let slot = slots[self.slot];
        let size = slot.dtype.size();
        self.each_piece(parts, size, block.slot_mut(slot), |lanes, rows| {
            let stored: Vec<_> = lanes.iter().map(|lane| lane.fixed.stored(lane.part)).collect();
            write_tiles(lanes, &stored, size, rows, |lane, first, cells| {
                lane.fixed.write(lane.column, lane.part, first, cells)
            })
        })?;
        let Some(mask) = self.mask else { return Ok(()) };
        self.each_piece(parts, 1, block.slot_mut(slots[mask]), |lanes, rows| {
            if lanes.iter().all(|lane| lane.part.nulls.is_none()) {
                write_mask(rows, None);
                return Ok(());
            }
            write_tiles(lanes, &vec![None; lanes.len()], 1, rows, |lane, first, cells| {
                let nulls = lane.part.nulls.as_ref().map(|nulls| nulls.slice(first, cells.len()));
                write_mask(cells, nulls.as_ref());
                Ok(())
            })
        })
    }

    /// Calls `write` with the columns of each piece and with those rows of `target`, of `size`
    /// bytes a cell, that the piece becomes.
    fn each_piece(
        &self,
        parts: &[Vec<ColumnSlice>],
        size: usize,
        target: &mut [u8],
        mut write: impl FnMut(&[Lane<'_>], &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let row_bytes = self.columns.len() * size;
        let mut rest = target;
        for piece in 0..parts.first().map_or(0, Vec::len) {
            let columns = self.fixed().zip(parts);
            let lanes: Vec<Lane<'_>> = columns
                .map(|((column, fixed), parts)| Lane { column, fixed, part: &parts[piece] })
                .collect();
            let (rows, after) = rest.split_at_mut(parts[0][piece].array.len() * row_bytes);
            write(&lanes, rows)?;
            rest = after;
        }
        Ok(())
    }
}

/// Which numbers of a matrix are null, row after row; None where none is.
fn null_cells(matrix: &ColumnSlice) -> Option<NullBuffer> {
    let (_, nulls) = flatten(&matrix.array, 1);
    nulls.filter(|nulls| nulls.null_count() > 0)
}

fn null_places(nulls: &NullBuffer) -> Vec<usize> {
    (!nulls.inner()).set_indices().collect()
}

/// One column of a piece.
struct Lane<'a> {
    column: &'a Column,
    fixed: &'a Fixed,
    part: &'a ColumnSlice,
}

/// Goes over `rows` in tiles of as many columns as fill a cache line of each row, and transposes
/// the columns' cells into them. Cells that are `stored` are taken from there; others `write`
/// makes, for some rows from the first one given on.
fn write_tiles(
    lanes: &[Lane<'_>],
    stored: &[Option<&[u8]>],
    size: usize,
    rows: &mut [u8],
    mut write: impl FnMut(&Lane<'_>, usize, &mut [u8]) -> Result<()>,
) -> Result<()> {
    let row_bytes = lanes.len() * size;
    let width = line_columns(size);
    let mut scratch: Scratch = [0; LINE_BYTES * TILE_ROWS];
    for (number, tile) in rows.chunks_mut(TILE_ROWS * row_bytes).enumerate() {
        let first = number * TILE_ROWS;
        let cells = tile.len() / lanes.len();
        let groups = lanes.chunks(width).zip(stored.chunks(width));
        for (group, (lanes, stored)) in groups.enumerate() {
            let start = group * LINE_BYTES;
            let made = scratch.chunks_exact_mut(TILE_ROWS * size);
            for ((lane, stored), made) in lanes.iter().zip(stored).zip(made) {
                match stored {
                    None => write(lane, first, &mut made[..cells])?,
                    Some(_) if are_words(size) => {}
                    Some(stored) => {
                        made[..cells].copy_from_slice(&stored[first * size..][..cells]);
                    }
                }
            }
            if !are_words(size) {
                transpose(&scratch, lanes.len(), size, tile, row_bytes, start);
                continue;
            }
            let mut sources: [&[u8]; LINE_BYTES] = [&[]; LINE_BYTES];
            let made = scratch.chunks_exact(TILE_ROWS * size);
            for ((source, stored), made) in sources.iter_mut().zip(stored).zip(made) {
                *source = stored.map_or(&made[..cells], |stored| &stored[first * size..][..cells]);
            }
            transpose_words(&sources[..lanes.len()], tile, row_bytes, start);
        }
    }
    Ok(())
}
