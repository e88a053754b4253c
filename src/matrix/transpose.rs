//! Lanes of cells written side by side, as rows.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m128i, _MM_HINT_ET0, _MM_HINT_T0, _mm_loadu_si128, _mm_prefetch, _mm_setzero_si128,
    _mm_storeu_si128, _mm_unpackhi_epi32, _mm_unpackhi_epi64, _mm_unpacklo_epi32,
    _mm_unpacklo_epi64,
};

/// Bytes of one row that are written together: a cache line.
pub(crate) const LINE_BYTES: usize = 64;

/// Rows per tile. A tile's cells, at most [`LINE_BYTES`] for each row, stay in a cache near the
/// core, and each column is read in runs that are long enough to be fetched ahead.
pub(crate) const TILE_ROWS: usize = 512;

/// The cells of some columns, with room for [`TILE_ROWS`] in each.
pub(crate) type Scratch = [u8; LINE_BYTES * TILE_ROWS];

/// Returns true if cells of `size` bytes are read wherever they lie, by [`transpose_words`]; others
/// by [`transpose`].
pub(crate) fn are_words(size: usize) -> bool {
    cfg!(target_arch = "x86_64") && size == 4
}

/// Writes the n-th cell of every lane into the n-th of `rows`, side by side from the byte `start`
/// of a row on. A cell has `size` bytes, a row `row_bytes`. At distances that it knows the compiler
/// finds vector code for it.
pub(crate) fn transpose(
    scratch: &Scratch,
    lanes: usize,
    size: usize,
    rows: &mut [u8],
    row_bytes: usize,
    start: usize,
) {
    let lines = rows.chunks_exact_mut(row_bytes).map(|row| &mut row[start..start + lanes * size]);
    match size {
        1 => by_cell::<1>(scratch, lines),
        2 => by_cell::<2>(scratch, lines),
        4 => by_cell::<4>(scratch, lines),
        _ => by_cell::<8>(scratch, lines),
    }
}

fn by_cell<'a, const SIZE: usize>(scratch: &Scratch, lines: impl Iterator<Item = &'a mut [u8]>) {
    let (cells, _) = scratch.as_chunks::<SIZE>();
    for (index, line) in lines.take(TILE_ROWS).enumerate() {
        let (line, _) = line.as_chunks_mut::<SIZE>();
        let values = cells[index..].iter().step_by(TILE_ROWS);
        for (cell, value) in line.iter_mut().zip(values) {
            *cell = *value;
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn transpose_words(_: &[&[u8]], _: &mut [u8], _: usize, _: usize) {
    unreachable!("are_words says so");
}

/// Copies the lanes that [`transpose_words`] left over.
#[cfg(target_arch = "x86_64")]
fn one_by_one(lanes: &[&[u8]], rows: &mut [u8], row_bytes: usize, start: usize) {
    let rows = rows.chunks_exact_mut(row_bytes);
    for (first, row) in (0..).step_by(WORD_BYTES).zip(rows) {
        let (cells, _) = row[start..start + lanes.len() * WORD_BYTES].as_chunks_mut::<WORD_BYTES>();
        for (cell, lane) in cells.iter_mut().zip(lanes) {
            cell.copy_from_slice(&lane[first..first + WORD_BYTES]);
        }
    }
}

/// Cells of four bytes: four rows of four lanes at a time pass through registers, for which the
/// compiler finds no code by itself. Sixteen lanes fill a cache line of a row, which is written at
/// once.
#[cfg(target_arch = "x86_64")]
pub(crate) fn transpose_words(lanes: &[&[u8]], rows: &mut [u8], row_bytes: usize, start: usize) {
    let count = rows.len() / row_bytes;
    let (whole, rest) = rows.split_at_mut(count / WORDS * WORDS * row_bytes);
    let (quads, singles) = lanes.as_chunks::<WORDS>();
    let (lines, quads_left) = quads.as_chunks::<4>();
    let mut at = start;
    for line in lines {
        words(line, whole, row_bytes, at);
        at += 4 * VECTOR_BYTES;
    }
    for quad in quads_left {
        words(&[*quad], whole, row_bytes, at);
        at += VECTOR_BYTES;
    }
    if !singles.is_empty() {
        one_by_one(singles, whole, row_bytes, at);
    }
    if !rest.is_empty() {
        let done = count / WORDS * VECTOR_BYTES;
        let ends: Vec<&[u8]> = lanes.iter().map(|lane| &lane[done..]).collect();
        one_by_one(&ends, rest, row_bytes, start);
    }
}

/// As many vectors of each row as there are `quads` of lanes; `rows` are a multiple of four. In
/// plain loops of known length, which the compiler unrolls: the values stay in registers.
#[cfg(target_arch = "x86_64")]
fn words<const COUNT: usize>(
    quads: &[[&[u8]; WORDS]; COUNT],
    rows: &mut [u8],
    row_bytes: usize,
    start: usize,
) {
    for (index, rows) in rows.chunks_exact_mut(WORDS * row_bytes).enumerate() {
        let first = index * VECTOR_BYTES;
        if first.is_multiple_of(LINE_BYTES) {
            quads.iter().flatten().for_each(|lane| fetch(lane, first + AHEAD_BYTES));
        }
        // SAFETY: x86-64 has SSE2; nothing in memory is touched.
        let mut squares = [[unsafe { _mm_setzero_si128() }; WORDS]; COUNT];
        for (rows, [a, b, c, d]) in squares.iter_mut().zip(quads) {
            *rows = square(vector(a, first), vector(b, first), vector(c, first), vector(d, first));
        }
        for row in 0..WORDS {
            fetch_to_write(rows, (row + AHEAD_ROWS) * row_bytes + start);
            let line = &mut rows[row * row_bytes + start..][..COUNT * VECTOR_BYTES];
            for (at, square) in (0..).step_by(VECTOR_BYTES).zip(&squares) {
                put(line, at, square[row]);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
const WORD_BYTES: usize = 4;

/// Words of a vector register, and so rows and lanes that are transposed together.
#[cfg(target_arch = "x86_64")]
const WORDS: usize = 4;

#[cfg(target_arch = "x86_64")]
const VECTOR_BYTES: usize = WORDS * WORD_BYTES;

/// How far ahead of the transposed bytes each lane is fetched. The processor follows a few lanes by
/// itself, not sixty.
#[cfg(target_arch = "x86_64")]
const AHEAD_BYTES: usize = 4 * LINE_BYTES;

/// How many rows ahead of the rows being written.
#[cfg(target_arch = "x86_64")]
const AHEAD_ROWS: usize = 16;

/// Has the processor fetch the cache line around the byte `at` of a lane, wherever the lane ends:
/// no access of the program.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn fetch(lane: &[u8], at: usize) {
    if cfg!(miri) {
        return;
    }
    // SAFETY: x86-64 has SSE; a hint neither reads nor faults.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(lane.as_ptr().wrapping_add(at).cast()) };
}

/// Fetches a cache line that will be written, which the processor reads first. Rows are too far
/// apart for the processor to foresee them.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn fetch_to_write(rows: &[u8], at: usize) {
    if cfg!(miri) {
        return;
    }
    // SAFETY: x86-64 has SSE; a hint neither reads nor writes nor faults.
    unsafe { _mm_prefetch::<_MM_HINT_ET0>(rows.as_ptr().wrapping_add(at).cast()) };
}

/// Four words of a lane, from the byte `first` on.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn vector(lane: &[u8], first: usize) -> __m128i {
    let words = &lane[first..first + VECTOR_BYTES];
    // SAFETY: x86-64 has SSE2, and the slice has the sixteen bytes that this reads, aligned or not.
    unsafe { _mm_loadu_si128(words.as_ptr().cast()) }
}

/// Writes four words, from the byte `first` on.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn put(rows: &mut [u8], first: usize, vector: __m128i) {
    let words = &mut rows[first..first + VECTOR_BYTES];
    // SAFETY: x86-64 has SSE2, and the slice has the sixteen bytes that this writes, aligned or
    // not.
    unsafe { _mm_storeu_si128(words.as_mut_ptr().cast(), vector) }
}

/// Four rows of four words, from four columns of them.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn square(a: __m128i, b: __m128i, c: __m128i, d: __m128i) -> [__m128i; WORDS] {
    // SAFETY: x86-64 has SSE2; nothing in memory is touched.
    unsafe {
        let (ab, ab_end) = (_mm_unpacklo_epi32(a, b), _mm_unpackhi_epi32(a, b));
        let (cd, cd_end) = (_mm_unpacklo_epi32(c, d), _mm_unpackhi_epi32(c, d));
        [
            _mm_unpacklo_epi64(ab, cd),
            _mm_unpackhi_epi64(ab, cd),
            _mm_unpacklo_epi64(ab_end, cd_end),
            _mm_unpackhi_epi64(ab_end, cd_end),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cell for cell, for every number of lanes and rows around the sizes that are handled
    /// together.
    #[test]
    fn every_cell_lands_in_its_row_and_place_and_nothing_else_is_written() {
        // Miri takes its time for each cell.
        let (all_lanes, all_rows): (&[usize], &[usize]) = match cfg!(miri) {
            true => (&[1, 5, 17], &[0, 3, 9]),
            false => (&[1, 2, 3, 4, 5, 15, 16, 17, 31, 64, 65], &[0, 1, 3, 4, 5, 63, 64, 65]),
        };
        for size in [1, 2, 4, 8] {
            for &lanes in all_lanes {
                for &rows in all_rows {
                    check(size, lanes, rows);
                }
            }
        }
    }

    fn check(size: usize, lanes: usize, rows: usize) {
        let (before, after) = (3, 5);
        let row_bytes = before + lanes * size + after;
        let byte = |lane: usize, at: usize| (lane * 31 + at * 7 + 1) as u8;
        let mut found = vec![0xEE_u8; rows * row_bytes];
        if are_words(size) {
            let lane = |lane| (0..rows * size).map(|at| byte(lane, at)).collect();
            let columns: Vec<Vec<u8>> = (0..lanes).map(lane).collect();
            let columns: Vec<&[u8]> = columns.iter().map(Vec::as_slice).collect();
            transpose_words(&columns, &mut found, row_bytes, before);
        } else if lanes * size <= LINE_BYTES {
            let mut scratch = [0; LINE_BYTES * TILE_ROWS];
            for (lane, cells) in scratch.chunks_exact_mut(TILE_ROWS * size).enumerate() {
                cells.iter_mut().enumerate().for_each(|(at, cell)| *cell = byte(lane, at));
            }
            transpose(&scratch, lanes, size, &mut found, row_bytes, before);
        } else {
            return;
        }
        for (row, line) in found.chunks_exact(row_bytes).enumerate() {
            for (at, value) in line.iter().enumerate() {
                let wanted = match at.checked_sub(before).filter(|at| *at < lanes * size) {
                    Some(at) => byte(at / size, row * size + at % size),
                    None => 0xEE,
                };
                assert_eq!(*value, wanted, "{size} bytes, {lanes} lanes, {rows} rows: {row}, {at}");
            }
        }
    }
}
