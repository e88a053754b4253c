//! Which rows of a page have a value.

use arrow::array::BooleanBufferBuilder;
use arrow::buffer::BooleanBuffer;
use parquet::errors::Result;

use super::damaged;
use super::runs::{Run, Runs};

/// Which rows of a page have a value.
pub(super) enum Present {
    /// Each.
    All,
    /// Those whose bit is set.
    Some(BooleanBuffer),
}

impl Present {
    /// From definition levels of one bit.
    ///
    /// # Errors
    /// Where the levels are fewer than `rows`, or damaged.
    pub(super) fn parse(levels: &[u8], rows: u32) -> Result<Self> {
        let rows = rows as usize;
        let mut runs = Runs::new(levels, 1);
        let mut bits: Option<BooleanBufferBuilder> = None;
        while runs.end < rows {
            let run = runs.next()?;
            let count = runs.end.min(rows) - runs.start;
            if matches!(run, Run::Same(1)) && count == rows {
                return Ok(Self::All);
            }
            let bits = bits.get_or_insert_with(|| BooleanBufferBuilder::new(rows));
            match run {
                Run::Same(level) => bits.append_n(count, level != 0),
                Run::Packed(packed) if packed.len() * 8 < count => {
                    return Err(damaged("a level is missing"));
                }
                Run::Packed(packed) => bits.append_packed_range(0..count, packed),
            }
        }
        Ok(match bits.map(|mut bits| bits.finish()) {
            Some(bits) if bits.count_set_bits() < rows => Self::Some(bits),
            _ => Self::All,
        })
    }
}

/// Where the values of `rows` lie among the values of a page whose rows have a value where
/// `present` says so; whether there is one, by bit in `kept`. Rows are ascending numbers, counted
/// so that the page's first row has number `first`.
///
/// # Errors
/// Where the page has fewer rows.
pub(super) fn places(
    present: &BooleanBuffer,
    first: u32,
    rows: &[u32],
    kept: &mut [u8],
) -> Result<Vec<u32>> {
    if rows.last().is_some_and(|last| (last - first) as usize >= present.len()) {
        return Err(damaged("it has fewer rows than it should"));
    }
    let words: Vec<u64> = present.bit_chunks().iter_padded().collect();
    let mut places = Vec::with_capacity(rows.len());
    let (mut word, mut before) = (0, 0);
    for (number, row) in rows.iter().enumerate() {
        let row = (row - first) as usize;
        while word < row / 64 {
            before += words[word].count_ones();
            word += 1;
        }
        let (bits, at) = (words[word], row % 64);
        if bits >> at & 1 == 1 {
            kept[number / 8] |= 1 << (number % 8);
            places.push(before + (bits & ((1 << at) - 1)).count_ones());
        }
    }
    Ok(places)
}
