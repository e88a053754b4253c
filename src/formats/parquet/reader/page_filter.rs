//! Data pages made shorter: the wanted rows of a page as a page of these alone.
//!
//! A decoder that skips rows walks over each of them, and stops and starts for every wanted one. In
//! a page whose values have a fixed place (`PLAIN` numbers, dictionary indices packed by bits) a
//! value is found without its predecessors, so that the decoder gets a page that has nothing to
//! skip.

use bytes::Bytes;
use parquet::basic::{Encoding, Type};
use parquet::column::page::Page;
use parquet::errors::Result;
use parquet::file::metadata::ColumnChunkMetaData;

use super::damaged;
use super::present::{Present, places};
use super::runs::{MOST_BITS, pick};
use super::unpacked::is_unpacked;

/// The written bit width of dictionary indices: their bytes are a `u32`.
const INDEX_BITS: u8 = MOST_BITS;

/// Facts about a column that are needed to split its pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageLayout {
    /// Whether pages begin with definition levels.
    nullable: bool,
    plain: Plain,
}

/// How `PLAIN` values lie in a page.
#[derive(Clone, Copy, Debug)]
enum Plain {
    /// Each in so many bytes.
    Fixed(usize),
    /// Each behind its length.
    Prefixed,
}

impl PageLayout {
    /// None where the column's pages cannot be shortened: nested columns, and encodings in which a
    /// value follows from those before it.
    pub(super) fn of(chunk: &ColumnChunkMetaData) -> Option<Self> {
        let column = chunk.column_descr();
        if column.max_rep_level() > 0 || column.max_def_level() > 1 {
            return None;
        }
        let plain = match column.physical_type() {
            Type::INT32 | Type::FLOAT => Plain::Fixed(4),
            Type::INT64 | Type::DOUBLE => Plain::Fixed(8),
            Type::INT96 => Plain::Fixed(12),
            Type::FIXED_LEN_BYTE_ARRAY => Plain::Fixed(usize::try_from(column.type_length()).ok()?),
            Type::BYTE_ARRAY => Plain::Prefixed,
            Type::BOOLEAN => return None,
        };
        let nullable = column.max_def_level() > 0;
        let known = chunk.encodings().all(|encoding| match encoding {
            Encoding::PLAIN | Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY => true,
            // They are plain before they get here.
            Encoding::DELTA_BINARY_PACKED => is_unpacked(chunk),
            // Of levels: values other than booleans have it nowhere.
            Encoding::RLE => true,
            // Of the levels of old files, which need not have any.
            #[expect(deprecated, reason = "files have it nevertheless")]
            Encoding::BIT_PACKED => !nullable,
            _ => false,
        });
        known.then_some(Self { nullable, plain })
    }

    /// The rows `rows` of a data page, ascending numbers that are counted so that the page's first
    /// row has number `first`, as a page of these alone.
    ///
    /// # Errors
    /// Where the page is damaged, or no data page of this layout.
    pub(super) fn compact(self, page: &Page, first: u32, rows: &[u32]) -> Result<Page> {
        let (levels, values) = self.parts(page)?;
        let present = match levels {
            Some(levels) => Present::parse(levels, page.num_values())?,
            None => Present::All,
        };
        let mut buffer = Vec::new();
        let places: Vec<u32> = match &present {
            Present::All => {
                if self.nullable {
                    let run = [run_of(rows.len()).as_slice(), &[1]].concat();
                    push_levels(&mut buffer, &run);
                }
                rows.iter().map(|row| row - first).collect()
            }
            Present::Some(bits) => {
                let mut kept = vec![0u8; rows.len().div_ceil(8)];
                let places = places(bits, first, rows, &mut kept)?;
                let packed = [packed_of(kept.len()).as_slice(), &kept].concat();
                push_levels(&mut buffer, &packed);
                places
            }
        };
        match page.encoding() {
            Encoding::PLAIN => match self.plain {
                Plain::Fixed(4) => gather::<4>(values, &places, &mut buffer)?,
                Plain::Fixed(8) => gather::<8>(values, &places, &mut buffer)?,
                Plain::Fixed(width) => gather_wide(values, width, &places, &mut buffer)?,
                Plain::Prefixed => gather_prefixed(values, &places, &mut buffer)?,
            },
            Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY => {
                gather_indices(values, &places, &mut buffer)?;
            }
            other => return Err(damaged(format!("its values are encoded by {other}"))),
        }
        Ok(Page::DataPage {
            buf: Bytes::from(buffer),
            num_values: rows.len() as u32,
            encoding: page.encoding(),
            def_level_encoding: Encoding::RLE,
            rep_level_encoding: Encoding::RLE,
            statistics: None,
        })
    }

    /// The levels, where the column has any, and the values of a data page.
    fn parts(self, page: &Page) -> Result<(Option<&[u8]>, &[u8])> {
        let (buffer, at, end) = match page {
            Page::DataPage { buf, .. } if !self.nullable => (buf, 0, 0),
            Page::DataPage { buf, def_level_encoding: Encoding::RLE, .. } => {
                let length = buf.first_chunk().ok_or_else(|| damaged("it has no levels"))?;
                (buf, 4, 4usize.saturating_add(u32::from_le_bytes(*length) as usize))
            }
            Page::DataPageV2 { buf, def_levels_byte_len, rep_levels_byte_len, .. } => {
                let at = *rep_levels_byte_len as usize;
                (buf, at, at.saturating_add(*def_levels_byte_len as usize))
            }
            _ => return Err(damaged("it is no data page that can be shortened")),
        };
        let levels = buffer.get(at..end).ok_or_else(|| damaged("its levels end beyond it"))?;
        Ok((self.nullable.then_some(levels), &buffer[end..]))
    }
}

/// The header of a run.
fn varint(mut header: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while header >= 0x80 {
        bytes.push(header as u8 | 0x80);
        header >>= 7;
    }
    bytes.push(header as u8);
    bytes
}

/// The header of `count` times one value.
fn run_of(count: usize) -> Vec<u8> {
    varint(count << 1)
}

/// The header of `groups` of eight values by their bits.
fn packed_of(groups: usize) -> Vec<u8> {
    varint(groups << 1 | 1)
}

fn push_levels(buffer: &mut Vec<u8>, levels: &[u8]) {
    buffer.extend_from_slice(&(levels.len() as u32).to_le_bytes());
    buffer.extend_from_slice(levels);
}

fn gather<const WIDTH: usize>(values: &[u8], places: &[u32], to: &mut Vec<u8>) -> Result<()> {
    let (values, _) = values.as_chunks::<WIDTH>();
    to.reserve(places.len() * WIDTH);
    for place in places {
        let value = values.get(*place as usize).ok_or_else(|| damaged("a value is missing"))?;
        to.extend_from_slice(value);
    }
    Ok(())
}

fn gather_wide(values: &[u8], width: usize, places: &[u32], to: &mut Vec<u8>) -> Result<()> {
    to.reserve(places.len() * width);
    for place in places {
        let at = *place as usize * width;
        let value = values.get(at..at + width).ok_or_else(|| damaged("a value is missing"))?;
        to.extend_from_slice(value);
    }
    Ok(())
}

fn gather_prefixed(values: &[u8], places: &[u32], to: &mut Vec<u8>) -> Result<()> {
    let mut rest = values;
    let mut next = 0;
    for place in places {
        loop {
            let length: &[u8; 4] =
                rest.first_chunk().ok_or_else(|| damaged("a value is missing"))?;
            let length = 4usize.saturating_add(u32::from_le_bytes(*length) as usize);
            let (value, after) =
                rest.split_at_checked(length).ok_or_else(|| damaged("a value ends beyond it"))?;
            rest = after;
            next += 1;
            if next > *place {
                to.extend_from_slice(value);
                break;
            }
        }
    }
    Ok(())
}

/// Dictionary indices: their width in bits, and one run of them.
fn gather_indices(values: &[u8], places: &[u32], to: &mut Vec<u8>) -> Result<()> {
    to.push(INDEX_BITS);
    if places.is_empty() {
        return Ok(());
    }
    let groups = places.len().div_ceil(8);
    to.extend_from_slice(&packed_of(groups));
    let end = to.len() + groups * 8 * size_of::<u32>();
    to.reserve(end - to.len());
    pick(values, places)?.iter().for_each(|index| to.extend_from_slice(&index.to_le_bytes()));
    to.resize(end, 0);
    Ok(())
}
