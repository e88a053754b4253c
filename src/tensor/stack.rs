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

/// Bytes of one row that are written together: a cache line.
const LINE_BYTES: usize = 64;

/// Rows per tile. A tile's cells, at most `LINE_BYTES` for each row, stay in the first-level cache.
const TILE_ROWS: usize = 256;

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

    /// Goes over `target` in tiles of some rows and as many columns as fill a cache line of each: `write`
    /// fills each column's cells of the tile, one column after the other, and they are transposed into
    /// the rows.
    fn each_tile(
        &self,
        parts: &[Vec<Part>],
        size: usize,
        target: &mut [u8],
        mut write: impl FnMut((&Column, &Fixed), Tile<'_>) -> Result<()>,
    ) -> Result<()> {
        let row_bytes = self.columns.len() * size;
        let columns: Vec<((&Column, &Fixed), &Vec<Part>)> = self.fixed().zip(parts).collect();
        let mut scratch = [0_u8; LINE_BYTES * TILE_ROWS];
        let mut rest = target;
        for piece in 0..parts.first().map_or(0, Vec::len) {
            let rows = parts[0][piece].array.len();
            for first in (0..rows).step_by(TILE_ROWS) {
                let count = TILE_ROWS.min(rows - first);
                let (tile, after) = rest.split_at_mut(count * row_bytes);
                for (group, columns) in columns.chunks(LINE_BYTES / size).enumerate() {
                    let lanes = scratch.chunks_exact_mut(TILE_ROWS * size);
                    for ((column, parts), lane) in columns.iter().zip(lanes) {
                        let cells = &mut lane[..count * size];
                        write(*column, Tile { part: &parts[piece], first, cells })?;
                    }
                    let start = group * LINE_BYTES;
                    let width = columns.len() * size;
                    let lines =
                        tile.chunks_exact_mut(row_bytes).map(|row| &mut row[start..start + width]);
                    match size {
                        1 => transpose::<1>(&scratch, lines),
                        2 => transpose::<2>(&scratch, lines),
                        4 => transpose::<4>(&scratch, lines),
                        _ => transpose::<8>(&scratch, lines),
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

/// Writes lanes of cells of `SIZE` bytes side by side: the n-th cell of each lane into the n-th line.
fn transpose<'a, const SIZE: usize>(
    lanes: &[u8; LINE_BYTES * TILE_ROWS],
    lines: impl Iterator<Item = &'a mut [u8]>,
) {
    let (cells, _) = lanes.as_chunks::<SIZE>();
    for (index, line) in lines.take(TILE_ROWS).enumerate() {
        let (line, _) = line.as_chunks_mut::<SIZE>();
        let values = cells[index..].iter().step_by(TILE_ROWS);
        for (cell, value) in line.iter_mut().zip(values) {
            *cell = *value;
        }
    }
}
