//! Scalar columns packed into one row-major matrix.

use super::block::{Block, Slot};
use super::column::{Column, Fixed, Kind, Part};
use super::nulls::write_mask;
use crate::Result;

/// F columns that become one (N, F) tensor.
#[derive(Debug)]
pub(super) struct Stack {
    pub(super) columns: Vec<Column>,
    pub(super) slot: usize,
    /// The slot of its (N, F) mask, where one of the columns has one.
    pub(super) mask: Option<usize>,
}

/// Bytes of the matrix that are written before the next rows: they stay in the first-level cache while
/// column after column is scattered over them.
const TILE_BYTES: usize = 32 << 10;

/// Rows per tile at least, so that very wide stacks do not pay for each column's set-up at every row.
const TILE_ROWS: usize = 64;

impl Stack {
    fn fixed(&self) -> impl Iterator<Item = (&Column, &Fixed)> {
        self.columns.iter().filter_map(|column| match &column.kind {
            Kind::Fixed { fixed, .. } => Some((column, fixed)),
            _ => None,
        })
    }

    /// Fails where a column has nulls that its policy does not cover.
    pub(super) fn check(&self, parts: &[Vec<Part>]) -> Result<()> {
        self.fixed().zip(parts).try_for_each(|((column, fixed), parts)| fixed.check(column, parts))
    }

    /// Writes the matrix and its mask; `parts[f]` are the pieces of column f.
    pub(super) fn write(
        &self,
        parts: &[Vec<Part>],
        slots: &[Slot],
        block: &mut Block,
    ) -> Result<()> {
        let slot = slots[self.slot];
        self.each_tile(parts, slot.dtype.size(), block.slot_mut(slot), |(column, fixed), tile| {
            fixed.write(column, tile.part, tile.first, tile.cells)
        })?;
        let Some(mask) = self.mask else { return Ok(()) };
        self.each_tile(parts, 1, block.slot_mut(slots[mask]), |_, tile| {
            let rows = tile.cells.len();
            let nulls = tile.part.nulls.as_ref().map(|nulls| nulls.slice(tile.first, rows));
            write_mask(tile.cells, nulls.as_ref());
            Ok(())
        })
    }

    /// Goes over `target` tile by tile; in each, column by column: `write` fills the column's cells of
    /// the tile, and they are scattered over the rows.
    fn each_tile(
        &self,
        parts: &[Vec<Part>],
        size: usize,
        target: &mut [u8],
        mut write: impl FnMut((&Column, &Fixed), Tile<'_>) -> Result<()>,
    ) -> Result<()> {
        let row_bytes = self.columns.len() * size;
        let tile_rows = (TILE_BYTES / row_bytes).max(TILE_ROWS);
        let mut scratch = vec![0_u8; tile_rows * size];
        let mut rest = target;
        let pieces = parts.first().map_or(0, Vec::len);
        for piece in 0..pieces {
            let rows = parts[0][piece].array.len();
            for first in (0..rows).step_by(tile_rows) {
                let count = tile_rows.min(rows - first);
                let (tile, after) = rest.split_at_mut(count * row_bytes);
                for (position, column) in self.fixed().enumerate() {
                    let cells = &mut scratch[..count * size];
                    let part = &parts[position][piece];
                    write(column, Tile { part, first, cells: &mut *cells })?;
                    match size {
                        1 => scatter::<1>(cells, tile, row_bytes, position),
                        2 => scatter::<2>(cells, tile, row_bytes, position),
                        4 => scatter::<4>(cells, tile, row_bytes, position),
                        _ => scatter::<8>(cells, tile, row_bytes, position),
                    }
                }
                rest = after;
            }
        }
        Ok(())
    }
}

/// Some rows of one column.
struct Tile<'a> {
    part: &'a Part,
    first: usize,
    /// Where their cells go, contiguously.
    cells: &'a mut [u8],
}

/// Puts one cell of `SIZE` bytes into each row, at column `position`.
fn scatter<const SIZE: usize>(cells: &[u8], tile: &mut [u8], row_bytes: usize, position: usize) {
    let first = position * SIZE;
    for (cell, row) in cells.chunks_exact(SIZE).zip(tile.chunks_exact_mut(row_bytes)) {
        row[first..first + SIZE].copy_from_slice(cell);
    }
}
