//! Integers of 32 bits that are stored as differences (`DELTA_BINARY_PACKED`), as pages of plain
//! integers.
//!
//! Differences of such integers need up to 33 bits, and writers that compute them in 64 bits store
//! those (DuckDB's V2 writer). The format allows that: sums wrap around. The decoder of the
//! `parquet` crate takes 32 bits for the most there can be, so pages are decoded here before it
//! sees them. Differences of 64 bits, and those by which lengths of texts are stored, it reads.

use bytes::Bytes;
use parquet::basic::{Encoding, Type};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::Result;
use parquet::file::metadata::ColumnChunkMetaData;

use super::damaged;

/// Bytes of an integer.
const WIDTH: usize = size_of::<i32>();

/// Integers of a page that are decoded at once. Of a page with more, which no writer makes, the
/// crate has the word.
const MOST_VALUES: u32 = 1 << 28;

/// Returns true if pages of a chunk are made plain.
pub(super) fn is_unpacked(chunk: &ColumnChunkMetaData) -> bool {
    chunk.column_type() == Type::INT32
        && chunk.encodings().any(|encoding| encoding == Encoding::DELTA_BINARY_PACKED)
}

/// The pages of another reader, with pages of packed differences as plain ones.
pub(super) struct Unpacked<R> {
    pages: R,
    /// The greatest repetition and definition level of the column; None where nothing is packed.
    levels: Option<[i16; 2]>,
}

impl<R: PageReader> Unpacked<R> {
    /// Unpacks the pages of `chunk` that `pages` reads.
    pub(super) fn new(pages: R, chunk: &ColumnChunkMetaData) -> Self {
        let column = chunk.column_descr();
        let levels = is_unpacked(chunk).then(|| [column.max_rep_level(), column.max_def_level()]);
        Self { pages, levels }
    }
}

impl<R: PageReader> Iterator for Unpacked<R> {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl<R: PageReader> PageReader for Unpacked<R> {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let page = self.pages.get_next_page()?;
        let (Some(page), Some(levels)) = (&page, self.levels) else { return Ok(page) };
        plain(page, levels).map(Some)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.pages.skip_next_page()
    }

    fn at_record_boundary(&mut self) -> Result<bool> {
        self.pages.at_record_boundary()
    }
}

/// A page with plain integers in the place of packed ones; its levels stay as they are.
fn plain(page: &Page, levels: [i16; 2]) -> Result<Page> {
    let mut page = page.clone();
    let packed = page.encoding() == Encoding::DELTA_BINARY_PACKED;
    if !packed || page.num_values() > MOST_VALUES {
        return Ok(page);
    }
    let most = page.num_values() as usize;
    match &mut page {
        Page::DataPage { buf, encoding, def_level_encoding, rep_level_encoding, .. } => {
            let mut at = 0;
            for (level, by) in levels.iter().zip([*rep_level_encoding, *def_level_encoding]) {
                at += bytes_of_levels(&buf[at..], *level, by, most)?;
            }
            *buf = with_plain(buf, at, most)?;
            *encoding = Encoding::PLAIN;
        }
        Page::DataPageV2 { buf, encoding, def_levels_byte_len, rep_levels_byte_len, .. } => {
            let at = (*rep_levels_byte_len as usize).saturating_add(*def_levels_byte_len as usize);
            *buf = with_plain(buf, at, most)?;
            *encoding = Encoding::PLAIN;
        }
        Page::DictionaryPage { .. } => {}
    }
    Ok(page)
}

/// How many bytes the levels at the beginning of a page of the first version take.
fn bytes_of_levels(page: &[u8], most: i16, encoding: Encoding, values: usize) -> Result<usize> {
    if most == 0 {
        return Ok(0);
    }
    let bytes = match encoding {
        Encoding::RLE => {
            let length = page.first_chunk().ok_or_else(|| damaged("it has no levels"))?;
            4_usize.saturating_add(u32::from_le_bytes(*length) as usize)
        }
        _ => {
            let bits = (i16::BITS - most.leading_zeros()) as usize;
            (values * bits).div_ceil(8)
        }
    };
    if bytes > page.len() {
        return Err(damaged("its levels end beyond it"));
    }
    Ok(bytes)
}

/// The first `at` bytes of a page, and then the integers that are packed behind them, `most` at
/// most.
fn with_plain(page: &Bytes, at: usize, most: usize) -> Result<Bytes> {
    let (levels, packed) =
        page.split_at_checked(at).ok_or_else(|| damaged("its levels end beyond it"))?;
    let mut plain = levels.to_vec();
    if !packed.is_empty() {
        unpack(packed, most, &mut plain)?;
    }
    Ok(plain.into())
}

/// Appends the integers of `packed`, `most` at most.
fn unpack(packed: &[u8], most: usize, to: &mut Vec<u8>) -> Result<()> {
    let mut rest = Packed(packed);
    let [block, minis, count] = [rest.varint()?, rest.varint()?, rest.varint()?];
    let first = rest.zigzag()?;
    let sizes = [block, minis, count].map(usize::try_from);
    let [Ok(block), Ok(minis), Ok(count)] = sizes else {
        return Err(damaged("its blocks are too long"));
    };
    if minis == 0
        || !block.is_multiple_of(minis)
        || !(block / minis).is_multiple_of(8)
        || block == 0
    {
        return Err(damaged(format!("blocks of {block} differences in {minis} parts")));
    }
    if count > most {
        return Err(damaged(format!("it has {count} integers, and {most} values by its header")));
    }
    if count == 0 {
        return Ok(());
    }
    to.reserve(count * WIDTH);
    // Sums wrap around: their lowest 32 bits are those of the integers, whatever the differences
    // are.
    let mut value = first as u32;
    to.extend_from_slice(&value.to_le_bytes());
    let (mut left, each) = (count - 1, block / minis);
    while left > 0 {
        let least = rest.zigzag()? as u32;
        let widths = rest.take(minis)?;
        for width in widths.iter().map(|width| usize::from(*width)) {
            if left == 0 {
                break;
            }
            if width > 64 {
                return Err(damaged(format!("differences of {width} bits")));
            }
            // The padding of the last part may be missing.
            let here = left.min(each);
            let bytes = each.saturating_mul(width) / 8;
            let bits = rest.take(bytes.min(rest.0.len()))?;
            if bits.len() * 8 < here * width {
                return Err(damaged("a difference is missing"));
            }
            for number in 0..here {
                let step = lowest_bits(bits, number * width, width);
                value = value.wrapping_add(least).wrapping_add(step);
                to.extend_from_slice(&value.to_le_bytes());
            }
            left -= here;
        }
    }
    Ok(())
}

/// The lowest 32 of the `width` bits from number `at` on, all of which are there.
fn lowest_bits(bits: &[u8], at: usize, width: usize) -> u32 {
    let (first, shift) = (at / 8, at % 8);
    let word = match bits[first..].first_chunk() {
        Some(bytes) => u64::from_le_bytes(*bytes),
        None => {
            let mut bytes = [0; 8];
            let rest = &bits[first..];
            bytes[..rest.len()].copy_from_slice(rest);
            u64::from_le_bytes(bytes)
        }
    };
    // 32 bits from the first one on are within eight bytes.
    let kept = width.min(32) as u32;
    ((word >> shift) & ((1_u64 << kept) - 1)) as u32
}

/// The rest of some bit-packed differences.
struct Packed<'a>(&'a [u8]);

impl<'a> Packed<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8]> {
        let split = self.0.split_at_checked(bytes);
        let (taken, rest) = split.ok_or_else(|| damaged("its integers end too early"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64> {
        let mut number = 0_u64;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.take(1)?[0];
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(damaged("a number of its integers has no end"))
    }

    fn zigzag(&mut self) -> Result<i64> {
        let number = self.varint()?;
        Ok((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn varint(mut number: u64, to: &mut Vec<u8>) {
        while number >= 0x80 {
            to.push(number as u8 | 0x80);
            number >>= 7;
        }
        to.push(number as u8);
    }

    fn zigzag(number: i64, to: &mut Vec<u8>) {
        varint((number << 1 ^ number >> 63).cast_unsigned(), to);
    }

    /// Differences in 64 bits, as they are.
    fn packed(values: &[i32], block: usize, minis: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for number in [block, minis, values.len()] {
            varint(number as u64, &mut bytes);
        }
        zigzag(values.first().copied().unwrap_or(0).into(), &mut bytes);
        let steps: Vec<i64> =
            values.windows(2).map(|pair| i64::from(pair[1]) - i64::from(pair[0])).collect();
        for steps in steps.chunks(block) {
            let least = steps.iter().copied().min().unwrap_or(0);
            zigzag(least, &mut bytes);
            let each = block / minis;
            let width = |steps: &[i64]| {
                let most = steps.iter().map(|step| (step - least).cast_unsigned()).max();
                64 - most.unwrap_or(0).leading_zeros() as usize
            };
            let mut widths: Vec<u8> = steps.chunks(each).map(|mini| width(mini) as u8).collect();
            // Whatever stands there, the parts behind the last value have no bytes.
            widths.resize(minis, 99);
            bytes.extend(&widths);
            for mini in steps.chunks(each) {
                let width = width(mini);
                let mut bits = vec![0_u8; each * width / 8];
                for (number, step) in mini.iter().enumerate() {
                    for bit in 0..width {
                        let at = number * width + bit;
                        bits[at / 8] |= ((((step - least) >> bit) & 1) as u8) << (at % 8);
                    }
                }
                bytes.extend(bits);
            }
        }
        bytes
    }

    proptest! {
        #[test]
        fn integers_of_all_sizes_come_back(
            values in prop::collection::vec(prop_oneof![any::<i32>(), -3..3_i32, Just(i32::MIN), Just(i32::MAX)], 0..600),
            shape in prop::sample::select(vec![(128, 4), (128, 1), (256, 8), (2048, 8), (64, 8)]),
        ) {
            let mut found = Vec::new();
            unpack(&packed(&values, shape.0, shape.1), values.len(), &mut found).unwrap();
            let expected: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn damage_is_an_error_or_other_integers(
            values in prop::collection::vec(any::<i32>(), 1..300),
            strikes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
            cut in prop::option::of(any::<prop::sample::Index>()),
        ) {
            let mut bytes = packed(&values, 128, 4);
            for (place, byte) in strikes {
                *place.get_mut(&mut bytes) = byte;
            }
            if let Some(cut) = cut {
                bytes.truncate(cut.index(bytes.len()));
            }
            let mut found = Vec::new();
            let _ = unpack(&bytes, values.len(), &mut found);
            prop_assert!(found.len() <= values.len() * WIDTH);
        }
    }
}
