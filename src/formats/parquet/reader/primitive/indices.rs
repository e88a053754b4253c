//! Dictionary indices of a page.

use std::ops::Range;

use parquet::errors::Result;

use super::super::runs::{Run, Runs, missing_index, unpack, width_of};

/// Indices that are unpacked together; a multiple of eight, as packed runs are.
const BLOCK: usize = 1024;

/// How far the indices of a page were read. The page's bytes are not held: they are given each
/// time.
pub(super) struct Indices {
    /// Where the next run begins, and before the first one, the width of all.
    at: usize,
    width: Option<u8>,
    run: Held,
    /// Unpacked indices that were not taken yet.
    block: [u32; BLOCK],
    ready: Range<usize>,
}

/// The run that was read last.
enum Held {
    Same {
        index: u32,
        left: usize,
    },
    /// Bytes of the page, and which of the indices in them are left.
    Packed {
        bytes: Range<usize>,
        left: Range<usize>,
    },
}

/// Some indices.
pub(super) enum Found<'a> {
    Each(&'a [u32]),
    /// One index, so many times.
    Same(u32, usize),
}

impl Indices {
    /// The indices that begin at the byte `at` of a page.
    pub(super) fn new(at: usize) -> Self {
        let run = Held::Same { index: 0, left: 0 };
        Self { at, width: None, run, block: [0; BLOCK], ready: 0..0 }
    }

    /// Gives `each` the next `count` indices of `page`.
    ///
    /// # Errors
    /// Errors of `each`, and an error if there are fewer.
    pub(super) fn take(
        &mut self,
        page: &[u8],
        count: usize,
        mut each: impl FnMut(Found) -> Result<()>,
    ) -> Result<()> {
        let mut missing = count;
        while missing > 0 {
            let found = match &mut self.run {
                _ if !self.ready.is_empty() => {
                    let first = self.ready.start;
                    let found = self.ready.len().min(missing);
                    self.ready.start += found;
                    each(Found::Each(&self.block[first..first + found]))?;
                    found
                }
                Held::Same { index, left } if *left > 0 => {
                    let found = missing.min(*left);
                    *left -= found;
                    each(Found::Same(*index, found))?;
                    found
                }
                Held::Packed { bytes, left } if left.start < left.end => {
                    let count = left.len().min(BLOCK);
                    let width = usize::from(self.width.unwrap_or_default());
                    let first = bytes.start + left.start / 8 * width;
                    unpack(&page[first..bytes.end], width, &mut self.block[..count])
                        .ok_or_else(missing_index)?;
                    left.start += count;
                    self.ready = 0..count;
                    0
                }
                _ => {
                    self.run = self.next_run(page)?;
                    0
                }
            };
            missing -= found;
        }
        Ok(())
    }

    fn next_run(&mut self, page: &[u8]) -> Result<Held> {
        let width = match self.width {
            Some(width) => width,
            None => {
                let width = width_of(page.get(self.at..).unwrap_or_default())?;
                self.at += 1;
                *self.width.insert(width)
            }
        };
        let mut runs = Runs::new(&page[self.at..], width);
        let run = runs.next()?;
        self.at = page.len() - runs.rest();
        Ok(match run {
            Run::Same(index) => Held::Same { index, left: runs.end },
            Run::Packed(packed) => {
                // The padding of the last run may be missing.
                let stored = (packed.len() * 8).checked_div(width.into()).unwrap_or(usize::MAX);
                Held::Packed {
                    bytes: self.at - packed.len()..self.at,
                    left: 0..runs.end.min(stored),
                }
            }
        })
    }
}
