//! The hybrid of run lengths and packed bits in which levels and dictionary indices are stored:
//! <https://parquet.apache.org/docs/file-format/data-pages/encodings/#RLE>.

use parquet::errors::{ParquetError, Result};

use super::damaged;

/// The widest values, in bits.
pub(super) const MOST_BITS: u8 = 32;

/// A run of one value, or of values packed by their width.
#[derive(Debug)]
pub(super) enum Run<'a> {
    /// One value all over.
    Same(u32),
    /// A value by `width` bits.
    Packed(&'a [u8]),
}

/// Goes through the runs of an encoded sequence.
pub(super) struct Runs<'a> {
    rest: &'a [u8],
    width: usize,
    /// The number of the last run's first value, and of the value after its last.
    pub(super) start: usize,
    pub(super) end: usize,
}

impl<'a> Runs<'a> {
    /// The runs in `data` of values of `width` bits, [`MOST_BITS`] at most.
    pub(super) fn new(data: &'a [u8], width: u8) -> Self {
        Self { rest: data, width: width as usize, start: 0, end: 0 }
    }

    /// The next run.
    ///
    /// # Errors
    /// Where there is none.
    pub(super) fn next(&mut self) -> Result<Run<'a>> {
        let header = self.header()?;
        let count = (header >> 1) as usize;
        self.start = self.end;
        if header & 1 == 0 {
            let bytes = self.take(self.width.div_ceil(8))?;
            self.end = self.start.saturating_add(count);
            let mut value = [0; 4];
            value[..bytes.len()].copy_from_slice(bytes);
            return Ok(Run::Same(u32::from_le_bytes(value)));
        }
        self.end = self.start.saturating_add(count.saturating_mul(8));
        // The padding of the last run may be missing.
        let bytes = count.saturating_mul(self.width).min(self.rest.len());
        Ok(Run::Packed(self.take(bytes)?))
    }

    /// Bytes behind the last run.
    pub(super) fn rest(&self) -> usize {
        self.rest.len()
    }

    fn take(&mut self, bytes: usize) -> Result<&'a [u8]> {
        let (taken, rest) =
            self.rest.split_at_checked(bytes).ok_or_else(|| damaged("a run ends beyond it"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn header(&mut self) -> Result<u64> {
        let mut header = 0u64;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.take(1)?[0];
            header |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(header);
            }
        }
        Err(damaged("the length of a run has no end"))
    }
}

/// For values that a run does not have.
pub(super) fn missing_index() -> ParquetError {
    damaged("an index is missing")
}

/// The width in bits of dictionary indices, the first byte of them.
///
/// # Errors
/// Where there are none, or wider ones than the format allows.
pub(super) fn width_of(indices: &[u8]) -> Result<u8> {
    match indices.first() {
        Some(width) if *width <= MOST_BITS => Ok(*width),
        Some(width) => Err(damaged(format!("indices of {width} bits"))),
        None => Err(damaged("it has no indices")),
    }
}

/// The dictionary indices at the ascending `places`, among all indices in `bytes`.
///
/// # Errors
/// Where one of them is not there.
pub(super) fn pick(bytes: &[u8], places: &[u32]) -> Result<Vec<u32>> {
    let mut found = Vec::with_capacity(places.len());
    if places.is_empty() {
        return Ok(found);
    }
    let width = width_of(bytes)?;
    let mut runs = Runs::new(&bytes[1..], width);
    let mut rest = places;
    while let Some(first) = rest.first() {
        let run = runs.next()?;
        if *first as usize >= runs.end {
            continue;
        }
        let (here, after) = rest.split_at(rest.partition_point(|at| (*at as usize) < runs.end));
        match run {
            Run::Same(index) => found.resize(found.len() + here.len(), index),
            Run::Packed(packed) => {
                let width = width.into();
                if let Some(first) = run_of(here) {
                    let first = first as usize - runs.start;
                    unpack_from(packed, width, first, here.len(), &mut found)
                        .ok_or_else(missing_index)?;
                } else {
                    for place in here {
                        let index = unpack_one(packed, *place as usize - runs.start, width);
                        found.push(index.ok_or_else(missing_index)?);
                    }
                }
            }
        }
        rest = after;
    }
    Ok(found)
}

/// The first of ascending `places`, where each is the one after that before it.
pub(super) fn run_of(places: &[u32]) -> Option<u32> {
    let (first, last) = (*places.first()?, *places.last()?);
    ((last - first) as usize + 1 == places.len()).then_some(first)
}

/// Appends `count` of the values packed by `width` bits, from number `first` on; None where there
/// are not as many.
fn unpack_from(
    packed: &[u8],
    width: usize,
    first: usize,
    count: usize,
    to: &mut Vec<u32>,
) -> Option<()> {
    // Eight values begin with a byte.
    let (groups, before) = (first / 8, first % 8);
    let at = to.len();
    to.resize(at + before + count, 0);
    unpack(packed.get(groups * width..)?, width, &mut to[at..])?;
    to.drain(at..at + before);
    Some(())
}

/// Value `number` of those packed by `width` bits, which are [`MOST_BITS`] at most.
pub(super) fn unpack_one(packed: &[u8], number: usize, width: usize) -> Option<u32> {
    let bit = number * width;
    let (at, shift) = (bit / 8, bit % 8);
    let word = match packed.get(at..).and_then(<[u8]>::first_chunk) {
        Some(bytes) => u64::from_le_bytes(*bytes),
        None if bit + width <= packed.len() * 8 => {
            let mut bytes = [0; 8];
            let rest = &packed[at..];
            bytes[..rest.len()].copy_from_slice(rest);
            u64::from_le_bytes(bytes)
        }
        None => return None,
    };
    Some((word >> shift & ((1 << width) - 1)) as u32)
}

/// Fills `values` with the first of those packed by `width` bits; None where there are not as many.
pub(super) fn unpack(packed: &[u8], width: usize, values: &mut [u32]) -> Option<()> {
    /// A window of eight values of `BITS` bits, and the bytes that a read of the last one reaches
    /// beyond it.
    macro_rules! by_width {
        ($($bits:literal)+) => {
            match width {
                $($bits => groups::<$bits, { $bits + 8 }>(packed, values),)+
                _ => 0,
            }
        };
    }
    let done = by_width!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32);
    for (number, value) in values.iter_mut().enumerate().skip(done) {
        *value = unpack_one(packed, number, width)?;
    }
    Some(())
}

/// Unpacks eight values at a time, as long as the bytes after them can be read, too; how many. The
/// places of all bits are known to the compiler.
fn groups<const BITS: usize, const WINDOW: usize>(packed: &[u8], values: &mut [u32]) -> usize {
    let mut done = 0;
    let (groups, _) = values.as_chunks_mut::<8>();
    for (group, at) in groups.iter_mut().zip((0..).step_by(BITS)) {
        let Some(window) = packed.get(at..).and_then(<[u8]>::first_chunk::<WINDOW>) else { break };
        for (number, value) in group.iter_mut().enumerate() {
            let bit = number * BITS;
            let mut word = [0; 8];
            word.copy_from_slice(&window[bit / 8..bit / 8 + 8]);
            *value = (u64::from_le_bytes(word) >> (bit % 8) & ((1 << BITS) - 1)) as u32;
        }
        done += 8;
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_every_width_are_unpacked_as_one_by_one() {
        let packed: Vec<u8> =
            (0..600_u32).map(|byte| (byte.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect();
        for width in 1..=usize::from(MOST_BITS) {
            let all = packed.len() * 8 / width;
            for count in [0, 1, 7, 8, 9, 63, 64, 100, all - 1, all] {
                let mut found = vec![0; count];
                unpack(&packed, width, &mut found).unwrap();
                let expected: Vec<u32> =
                    (0..count).map(|number| unpack_one(&packed, number, width).unwrap()).collect();
                assert_eq!(found, expected, "{count} of {width} bits");
            }
            assert!(unpack(&packed, width, &mut vec![0; all + 1]).is_none());
        }
        let mut nothing = [7; 9];
        unpack(&[], 0, &mut nothing).unwrap();
        assert_eq!(nothing, [0; 9]);
        // By hand: three bits each, the lowest first.
        let mut found = [0; 8];
        unpack(&[0b1000_1000, 0b1100_0110, 0b1111_1010], 3, &mut found).unwrap();
        assert_eq!(found, [0, 1, 2, 3, 4, 5, 6, 7]);
    }
}
