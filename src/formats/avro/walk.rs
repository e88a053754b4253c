//! From block to block: each says how many bytes it takes, so that the next one is found without
//! reading it.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};

use super::head::SYNC;
use super::wire::{Cursor, LONGEST, damaged};
use crate::bounds::ROWS;
use crate::formats::units::UnitRange;
use crate::{Error, Result};

/// Blocks of more bytes are passed over; of a file of smaller ones everything is read, several in
/// one request.
const LARGE_BLOCK: u64 = 256 << 10;

/// Bytes of the first request, before any block is known.
const FIRST_WINDOW: u64 = 64 << 10;

/// Bytes of a request where large blocks are passed over: the marker, and the next block's
/// beginning.
const SMALL_WINDOW: u64 = 4 << 10;

/// Bytes of a request where blocks are small.
const LARGE_WINDOW: u64 = 4 << 20;

/// The header of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockHead {
    pub rows: u64,
    /// Bytes of its rows, compressed.
    pub bytes: u64,
    /// Bytes of these two numbers.
    pub length: u64,
}

impl BlockHead {
    /// The numbers at the beginning of `bytes`, which are at least twenty or all that are left.
    ///
    /// # Errors
    /// `Data` where they are impossible.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut cursor = Cursor::new(bytes);
        let (Some(rows), Some(size)) = (cursor.long()?, cursor.long()?) else {
            return Err(cut_short());
        };
        let rows = u64::try_from(rows)
            .map_err(|_| damaged(&format!("a block says that it has {rows} rows")))?;
        ROWS.check(rows, &format!("a block says that it has {rows} rows,"))?;
        let size = u64::try_from(size)
            .map_err(|_| damaged(&format!("a block says that it has {size} bytes")))?;
        let length = (bytes.len() - cursor.left()) as u64;
        Ok(Self { rows, bytes: size, length })
    }

    /// The whole block, marker included, in bytes.
    pub fn total(&self) -> Option<u64> {
        self.bytes.checked_add(self.length + SYNC as u64)
    }
}

/// The blocks of a part of a file, which begins and ends with one; rows are counted from its start.
///
/// Requests: one per block where blocks are large, and otherwise one per several of them.
///
/// # Errors
/// `Data` where the part does not end with a block, or a marker is wrong; storage errors as they
/// are.
pub(super) async fn walk(
    store: &Arc<dyn ObjectStore>,
    meta: &ObjectMeta,
    part: Range<u64>,
    sync: &[u8; SYNC],
) -> Result<Vec<UnitRange>> {
    let mut window = Window { store, meta, end: part.end, start: part.start, bytes: Bytes::new() };
    let mut blocks = Vec::new();
    let (mut at, mut first_row, mut last) = (part.start, 0, 0);
    while at < part.end {
        let numbered = |error: Error| error.with_context("block", blocks.len());
        let head = window.get(at, 2 * LONGEST as u64, window_after(last)).await?;
        let head = BlockHead::parse(&head).map_err(numbered)?;
        let next = head.total().and_then(|total| at.checked_add(total));
        let Some(next) = next.filter(|next| *next <= part.end) else {
            return Err(numbered(damaged(&format!(
                "a block of {} bytes goes beyond the end; the file was cut short",
                head.bytes
            ))));
        };
        last = next - at;
        // The marker and the head of the next block are fetched together.
        let marker = window.get(next - SYNC as u64, SYNC as u64, window_after(last)).await?;
        if marker != sync[..] {
            return Err(numbered(wrong_marker()));
        }
        if head.rows > 0 {
            blocks.push(UnitRange { first_row, rows: head.rows, offset: at, bytes: last });
            first_row += head.rows;
        }
        at = next;
    }
    Ok(blocks)
}

/// Bytes of a request after a block of `last` bytes, markers included; 0 before the first.
fn window_after(last: u64) -> u64 {
    match last {
        0 => FIRST_WINDOW,
        last if last > LARGE_BLOCK => SMALL_WINDOW,
        _ => LARGE_WINDOW,
    }
}

/// The bytes of a file that were fetched last.
struct Window<'a> {
    store: &'a Arc<dyn ObjectStore>,
    meta: &'a ObjectMeta,
    /// Nothing is fetched from here on.
    end: u64,
    start: u64,
    bytes: Bytes,
}

impl Window<'_> {
    /// `length` bytes from `at` on, fewer where the part ends; a request where they are not there
    /// fetches `size`.
    async fn get(&mut self, at: u64, length: u64, size: u64) -> Result<Bytes> {
        let end = (at + length).min(self.end);
        let held = self.start..self.start + self.bytes.len() as u64;
        if at < held.start || end > held.end {
            let until = (at + size.max(length)).min(self.end);
            self.bytes = self.store.get_range(&self.meta.location, at..until).await?;
            self.start = at;
        }
        let from = (at - self.start) as usize;
        Ok(self.bytes.slice(from..from + (end - at) as usize))
    }
}

pub(super) fn wrong_marker() -> Error {
    damaged("a block does not end with the file's marker")
}

pub(super) fn cut_short() -> Error {
    damaged("it ends in the middle of a block; the file was cut short")
}
