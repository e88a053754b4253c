//! Run-length encoded integers, as far as [`timestamps`](super::timestamps) must read and write
//! them itself. Both versions: <https://orc.apache.org/specification/ORCv1/#run-length-encoding>.

use crate::bounds::ORC_VALUES;
use crate::{Error, Result};

/// How the integers of a stream are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoding {
    /// Version 2 (`DIRECT_V2`), otherwise version 1.
    pub second: bool,
    /// Whether the sign is in the last bit.
    pub signed: bool,
}

/// Integers of one run of version 2, at most.
const LONGEST_RUN: usize = 512;

/// Bits of the 32 codes of a width; 0 stands for 1 but in deltas.
const WIDTHS: [u32; 32] = [
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 26, 28,
    30, 32, 40, 48, 56, 64,
];

/// All integers of a stream that is not compressed (any more).
///
/// # Errors
/// `Data` where the stream is cut off, or has more integers than are read.
pub fn decode(stream: &[u8], encoding: Encoding) -> Result<Vec<i64>> {
    let mut reader = Reader { bytes: stream, at: 0, signed: encoding.signed };
    let mut found = Vec::new();
    while reader.at < stream.len() {
        reader.next_run(encoding, &mut found)?;
        ORC_VALUES.check(found.len() as u64, "a stream of integers has")?;
    }
    Ok(found)
}

/// The sum of the first `count` integers of such a stream, or of all where there are fewer; what
/// exceeds `most` ends it.
///
/// # Errors
/// `Data` where one of them is negative.
pub fn sum(stream: &[u8], encoding: Encoding, count: u64, most: u64) -> Result<u64> {
    let mut reader = Reader { bytes: stream, at: 0, signed: encoding.signed };
    let (mut run, mut left, mut sum) = (Vec::new(), count, 0_u64);
    while left > 0 && sum <= most && reader.at < stream.len() {
        run.clear();
        // A stream that is cut off is the decoder's to tell.
        if reader.next_run(encoding, &mut run).is_err() {
            break;
        }
        for number in run.iter().take(usize::try_from(left).unwrap_or(usize::MAX)) {
            let number = u64::try_from(*number)
                .map_err(|_| Error::data("the ORC data are damaged: a length is negative"))?;
            sum = sum.saturating_add(number);
        }
        left = left.saturating_sub(run.len() as u64);
    }
    Ok(sum)
}

/// Integers as a stream that is not compressed: without any repetition found, eight bytes each.
pub fn encode(numbers: &[i64], encoding: Encoding) -> Vec<u8> {
    let stored = |number: i64| match encoding.signed {
        true => ((number << 1) ^ (number >> 63)) as u64,
        false => number as u64,
    };
    let mut bytes = Vec::with_capacity(numbers.len() * 8 + numbers.len() / 64 + 8);
    if encoding.second {
        for run in numbers.chunks(LONGEST_RUN) {
            let length = run.len() - 1;
            // DIRECT (01), the code of 64 bits (31), and nine bits of length.
            bytes.push(0b0111_1110 | (length >> 8) as u8);
            bytes.push(length as u8);
            run.iter().for_each(|number| bytes.extend_from_slice(&stored(*number).to_be_bytes()));
        }
    } else {
        for run in numbers.chunks(128) {
            bytes.push((-(run.len() as i16)) as i8 as u8);
            for number in run {
                let mut rest = stored(*number);
                while rest >= 0x80 {
                    bytes.push(rest as u8 | 0x80);
                    rest >>= 7;
                }
                bytes.push(rest as u8);
            }
        }
    }
    bytes
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    signed: bool,
}

impl Reader<'_> {
    fn next_run(&mut self, encoding: Encoding, found: &mut Vec<i64>) -> Result<()> {
        match encoding.second {
            true => self.run(found),
            false => self.first_run(found),
        }
    }

    fn byte(&mut self) -> Result<u8> {
        let byte = self.bytes.get(self.at).copied().ok_or_else(cut)?;
        self.at += 1;
        Ok(byte)
    }

    /// A big-endian integer of up to eight bytes.
    fn big_endian(&mut self, bytes: u32) -> Result<u64> {
        (0..bytes).try_fold(0, |number, _| Ok(number << 8 | u64::from(self.byte()?)))
    }

    fn varint(&mut self) -> Result<u64> {
        let mut number = 0;
        for place in 0..10 {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << (7 * place);
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(cut())
    }

    /// Decodes a stored integer.
    fn number(&self, stored: u64) -> i64 {
        if self.signed { zigzag(stored) } else { stored as i64 }
    }

    /// A run of version 1: equal steps from a base, or literals.
    fn first_run(&mut self, found: &mut Vec<i64>) -> Result<()> {
        let control = self.byte()? as i8;
        if control < 0 {
            for _ in 0..-i16::from(control) {
                let stored = self.varint()?;
                found.push(self.number(stored));
            }
            return Ok(());
        }
        let step = i64::from(self.byte()? as i8);
        let stored = self.varint()?;
        let mut number = self.number(stored);
        for _ in 0..i16::from(control) + 3 {
            found.push(number);
            number = number.wrapping_add(step);
        }
        Ok(())
    }

    /// A run of version 2, of one of four kinds.
    fn run(&mut self, found: &mut Vec<i64>) -> Result<()> {
        let header = self.byte()?;
        let code = usize::from(header >> 1 & 0x1f);
        match header >> 6 {
            0 => {
                let stored = self.big_endian(u32::from(header >> 3 & 7) + 1)?;
                let number = self.number(stored);
                found.extend(std::iter::repeat_n(number, usize::from(header & 7) + 3));
                Ok(())
            }
            1 => {
                let length = self.length(header)?;
                let numbers = self.packed(length, WIDTHS[code])?;
                found.extend(numbers.into_iter().map(|stored| self.number(stored)));
                Ok(())
            }
            2 => self.patched(header, WIDTHS[code], found),
            _ => self.deltas(header, if code == 0 { 0 } else { WIDTHS[code] }, found),
        }
    }

    fn length(&mut self, header: u8) -> Result<usize> {
        Ok((usize::from(header & 1) << 8 | usize::from(self.byte()?)) + 1)
    }

    /// Integers of `width` bits each, from the first bit on; they end with a byte.
    fn packed(&mut self, length: usize, width: u32) -> Result<Vec<u64>> {
        let mut numbers = Vec::with_capacity(length);
        let (mut held, mut bits) = (0_u128, 0);
        for _ in 0..length {
            while bits < width {
                held = held << 8 | u128::from(self.byte()?);
                bits += 8;
            }
            bits -= width;
            numbers.push((held >> bits) as u64 & (u64::MAX >> (64 - width)));
            held &= (1 << bits) - 1;
        }
        Ok(numbers)
    }

    /// Small integers over a base, and the upper bits of the few that are larger.
    fn patched(&mut self, header: u8, width: u32, found: &mut Vec<i64>) -> Result<()> {
        let length = self.length(header)?;
        let (third, fourth) = (self.byte()?, self.byte()?);
        let base_bytes = u32::from(third >> 5) + 1;
        let patch_width = WIDTHS[usize::from(third & 0x1f)];
        let gap_width = u32::from(fourth >> 5) + 1;
        let patches = usize::from(fourth & 0x1f);
        let stored = self.big_endian(base_bytes)?;
        // Sign and magnitude, whether or not the integers are signed.
        let sign = 1_u64 << (8 * base_bytes - 1);
        let base = match stored & sign {
            0 => stored as i64,
            _ => -((stored & !sign) as i64),
        };
        let mut numbers = self.packed(length, width)?;
        let entry_width = WIDTHS.iter().copied().find(|bits| *bits >= patch_width + gap_width);
        let mut place = 0;
        for entry in self.packed(patches, entry_width.ok_or_else(cut)?)? {
            let patch = entry & (u64::MAX >> (64 - patch_width));
            place += entry.checked_shr(patch_width).unwrap_or(0) as usize;
            let number = numbers.get_mut(place).ok_or_else(cut)?;
            *number |= patch.checked_shl(width).unwrap_or(0);
        }
        found.extend(numbers.into_iter().map(|number| base.wrapping_add(number as i64)));
        Ok(())
    }

    /// A base, a first step, and steps of the same direction.
    fn deltas(&mut self, header: u8, width: u32, found: &mut Vec<i64>) -> Result<()> {
        let length = self.length(header)?;
        let stored = self.varint()?;
        let mut number = self.number(stored);
        let step = zigzag(self.varint()?);
        found.push(number);
        if length == 1 {
            return Ok(());
        }
        number = number.wrapping_add(step);
        found.push(number);
        let steps = match width {
            0 => vec![step.unsigned_abs(); length - 2],
            width => self.packed(length - 2, width)?,
        };
        for more in steps {
            let more = more as i64;
            number = number.wrapping_add(if step < 0 { more.wrapping_neg() } else { more });
            found.push(number);
        }
        Ok(())
    }
}

fn zigzag(stored: u64) -> i64 {
    (stored >> 1) as i64 ^ -((stored & 1) as i64)
}

fn cut() -> Error {
    Error::data("the ORC data are damaged: a stream of integers is cut off")
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNSIGNED: Encoding = Encoding { second: true, signed: false };
    const SIGNED: Encoding = Encoding { second: true, signed: true };

    #[test]
    fn the_examples_of_the_specification_decode() {
        let short_repeat = [0x0a, 0x27, 0x10];
        assert_eq!(decode(&short_repeat, UNSIGNED).unwrap(), [10000; 5]);
        let direct = [0x5e, 0x03, 0x5c, 0xa1, 0xab, 0x1e, 0xde, 0xad, 0xbe, 0xef];
        assert_eq!(decode(&direct, UNSIGNED).unwrap(), [23713, 43806, 57005, 48879]);
        let delta = [0xc6, 0x09, 0x02, 0x02, 0x22, 0x42, 0x42, 0x46];
        assert_eq!(decode(&delta, UNSIGNED).unwrap(), [2, 3, 5, 7, 11, 13, 17, 19, 23, 29]);
        let patched = [
            0x8e, 0x13, 0x2b, 0x21, 0x07, 0xd0, 0x1e, 0x00, 0x14, 0x70, 0x28, 0x32, 0x3c, 0x46,
            0x50, 0x5a, 0x64, 0x6e, 0x78, 0x82, 0x8c, 0x96, 0xa0, 0xaa, 0xb4, 0xbe, 0xfc, 0xe8,
        ];
        let mut wanted: Vec<i64> = vec![2030, 2000, 2020, 1_000_000];
        wanted.extend((2040..=2190).step_by(10));
        assert_eq!(decode(&patched, UNSIGNED).unwrap(), wanted);
        let first = Encoding { second: false, signed: false };
        assert_eq!(decode(&[0x61, 0x00, 0x07], first).unwrap(), [7; 100]);
        assert_eq!(decode(&[0xfb, 2, 3, 6, 7, 11], first).unwrap(), [2, 3, 6, 7, 11]);
        assert!(decode(&direct[..5], UNSIGNED).is_err());
    }

    #[test]
    fn lengths_are_summed_as_far_as_they_are_read() {
        // Five times 10,000; then 2, 3, 5, 7 and six others.
        let runs = [&[0x0a, 0x27, 0x10][..], &[0xc6, 0x09, 0x02, 0x02, 0x22, 0x42, 0x42, 0x46]];
        let stream = runs.concat();
        let sum = |count, most| sum(&stream, UNSIGNED, count, most).unwrap();
        assert_eq!([sum(0, 1 << 20), sum(3, 1 << 20), sum(7, 1 << 20)], [0, 30_000, 50_005]);
        assert_eq!([sum(100, 1 << 20), sum(100, 40_000)], [50_129, 50_000]);
        let negative = encode(&[-1], UNSIGNED);
        assert!(super::sum(&negative, UNSIGNED, 1, 10).is_err());
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        let numbers: Vec<i64> =
            (0..1500).map(|n: i64| (n * n - 700_000).wrapping_mul(1 << 40)).collect();
        for second in [true, false] {
            for signed in [true, false] {
                let encoding = Encoding { second, signed };
                assert_eq!(decode(&encode(&numbers, encoding), encoding).unwrap(), numbers);
            }
        }
        assert_eq!(decode(&encode(&[i64::MIN, -1, i64::MAX], SIGNED), SIGNED).unwrap()[1], -1);
    }
}
