//! Columns of numbers that are not nested, decoded from the bytes of their chunk.
//!
//! Most columns that become tensors are such: `PLAIN` or dictionary-encoded numbers of four or
//! eight bytes, with or without NULLs. The reader of the `parquet` crate, which reads all others,
//! decompresses each page into fresh memory that it fills with zeros first, copies dictionaries,
//! and decodes through several layers; that takes a third longer than decoding here
//! (`benches/README.md`). Whether a chunk is read here is decided by the headers of all its pages,
//! so that nothing unexpected is found in the middle of it.

mod batches;
mod codec;
mod heads;
mod indices;
mod lists;
mod pack;
mod stored;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::buffer::{BooleanBuffer, Buffer};
use arrow::datatypes::{ArrowNativeType, DataType, TimeUnit};
use bytes::Bytes;
use parquet::basic::{Encoding, Type};
use parquet::errors::Result;
use parquet::file::metadata::ColumnChunkMetaData;

use super::damaged;
use super::present::{Present, places};
use super::runs::{pick, run_of};
use super::steps::Kept;
use codec::{Codec, PageBytes};
use heads::{DEFINITION_LEVELS, Head, Heads, Levels, Values, heads};
use indices::{Found, Indices};
use pack::Bits;
use stored::Pages;
pub(super) use stored::Stored;

/// Rows of a column chunk, decoded when they are asked for.
pub(super) trait FlatColumn: Send {
    /// The next `rows` rows, or the remaining ones.
    ///
    /// # Errors
    /// Where the chunk is damaged.
    fn next(&mut self, rows: usize) -> Result<ArrayRef>;

    /// Those of the next `rows` rows that are `kept`, which are all there.
    ///
    /// # Errors
    /// Where the chunk is damaged.
    fn kept(&mut self, rows: usize, kept: &Kept) -> Result<ArrayRef> {
        kept.of(&self.next(rows)?)
    }

    /// The next `rows` rows, left in the page that they were read from if possible.
    ///
    /// # Errors
    /// Where the chunk is damaged.
    fn cells(&mut self, rows: usize) -> Result<Cells<'_>> {
        Ok(Cells::Decoded(self.next(rows)?))
    }

    /// The ranges to read from the file before the next `rows` rows; none if the chunk is in
    /// memory.
    fn missing(&self, _rows: usize) -> Vec<Range<u64>> {
        Vec::new()
    }

    /// Takes the bytes read for one of these ranges.
    fn put(&mut self, _range: &Range<u64>, _bytes: Bytes) {}
}

/// Numbers of some rows.
pub(super) enum Cells<'a> {
    /// The bytes of all of them, as they lie in memory.
    Stored(&'a [u8]),
    Decoded(ArrayRef),
}

/// Returns true if a column is likely to be decoded here; its chunks say it for certain.
pub(super) fn is_flat(metadata: &ColumnChunkMetaData, data_type: &DataType) -> bool {
    let column = metadata.column_descr();
    let nested =
        column.max_rep_level() > 0 || column.max_def_level() > 1 || column.path().parts().len() > 1;
    let width = match (nested, data_type) {
        (false, _) => width_of(column.physical_type(), data_type),
        (true, _) => lists::item(metadata, data_type)
            .and_then(|(item, _)| width_of(column.physical_type(), item.data_type())),
    };
    let is_known = |encoding| {
        matches!(
            encoding,
            Encoding::PLAIN | Encoding::RLE | Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY
        )
    };
    width.is_some()
        && Codec::of(metadata.compression()).is_some()
        && metadata.encodings().all(is_known)
}

/// The rows of the column chunk `chunk`, which has `rows` rows in all, as `data_type`: of all rows,
/// or of the ascending `places` alone. None where the reader of the `parquet` crate is to be taken.
pub(super) fn flat_column(
    metadata: &ColumnChunkMetaData,
    data_type: &DataType,
    chunk: impl Into<Stored>,
    rows: usize,
    places: Option<&Arc<[u32]>>,
) -> Option<Box<dyn FlatColumn>> {
    let (column, chunk) = (metadata.column_descr(), chunk.into());
    if let Some((item, length)) = lists::item(metadata, data_type) {
        return match (width_of(column.physical_type(), item.data_type())?, places) {
            (4, None) => lists::read::<u32>(metadata, item, length, chunk, rows),
            (8, None) => lists::read::<u64>(metadata, item, length, chunk, rows),
            _ => None,
        };
    }
    if column.max_rep_level() > 0 || column.max_def_level() > 1 || column.path().parts().len() > 1 {
        return None;
    }
    let nullable = column.max_def_level() > 0;
    let codec = Codec::of(metadata.compression())?;
    let width = width_of(column.physical_type(), data_type)?;
    let heads = heads(&chunk, rows, if nullable { &[DEFINITION_LEVELS] } else { &[] })?;
    let data_type = data_type.clone();
    let pages = chunk.pages(metadata.column_path());
    let parts = Parts { pages, codec, nullable, data_type, places: places.cloned() };
    Some(match width {
        4 => Box::new(Flat::<u32>::new(parts, heads, rows)),
        _ => Box::new(Flat::<u64>::new(parts, heads, rows)),
    })
}

/// The bytes of a value, if it is stored as in the Arrow type.
fn width_of(physical: Type, data_type: &DataType) -> Option<usize> {
    use DataType::{
        Date32, Date64, Duration, Float32, Float64, Int32, Int64, Time32, Time64, Timestamp,
        UInt32, UInt64,
    };
    match (physical, data_type) {
        (
            Type::INT32,
            Int32 | UInt32 | Date32 | Time32(TimeUnit::Second | TimeUnit::Millisecond),
        )
        | (Type::FLOAT, Float32) => Some(4),
        (Type::INT64, Int64 | UInt64 | Date64 | Timestamp(..) | Duration(_))
        | (Type::INT64, Time64(TimeUnit::Microsecond | TimeUnit::Nanosecond))
        | (Type::DOUBLE, Float64) => Some(8),
        _ => None,
    }
}

/// The bits of a number.
trait Word: ArrowNativeType + Bits {
    /// As they are stored, the lowest byte first.
    type Stored: Bits;

    fn stored(bytes: &[u8]) -> &[Self::Stored];

    fn load(stored: Self::Stored) -> Self;
}

macro_rules! word {
    ($native:ty) => {
        impl Word for $native {
            type Stored = [u8; size_of::<$native>()];

            fn stored(bytes: &[u8]) -> &[Self::Stored] {
                bytes.as_chunks().0
            }

            fn load(stored: Self::Stored) -> Self {
                Self::from_le_bytes(stored)
            }
        }
    };
}

word!(u32);
word!(u64);

/// The parts of a chunk that do not depend on its number type.
struct Parts {
    pages: Pages,
    codec: Codec,
    nullable: bool,
    data_type: DataType,
    places: Option<Arc<[u32]>>,
}

struct Flat<T> {
    parts: Parts,
    /// The dictionary's header until the dictionary is needed.
    unread: Option<Head>,
    dictionary: Option<PageBytes>,
    pages: VecDeque<Head>,
    /// Pages that were opened before it was their turn.
    opened: VecDeque<Open<T>>,
    open: Option<Open<T>>,
    /// Rows that are left to be delivered.
    left: usize,
    /// Rows of the pages that were opened, or passed over; and how many of the places are in these.
    passed: u32,
    placed: usize,
}

/// A page that is being read.
struct Open<T> {
    /// Rows that are left in it, and which of all its rows have a value.
    left: usize,
    present: Option<BooleanBuffer>,
    at: usize,
    values: Source<T>,
}

/// Where the values of a page come from.
enum Source<T> {
    /// From its bytes, from an offset on.
    Plain(PageBytes, usize),
    /// From the dictionary.
    Indices(PageBytes, Box<Indices>),
    /// They were found already; so many are used up.
    Picked(Vec<T>, usize),
}

impl<T: Word> Flat<T> {
    fn new(parts: Parts, heads: Heads, rows: usize) -> Self {
        let left = parts.places.as_ref().map_or(rows, |places| places.len());
        Self {
            parts,
            unread: heads.dictionary,
            dictionary: None,
            pages: heads.pages,
            opened: VecDeque::new(),
            open: None,
            left,
            passed: 0,
            placed: 0,
        }
    }

    /// The next page with wanted rows.
    fn page(&mut self) -> Result<Open<T>> {
        if let Some(open) = self.opened.pop_front() {
            return Ok(open);
        }
        loop {
            let head = self.pages.pop_front().ok_or_else(|| damaged("its rows end too early"))?;
            let first = self.passed;
            self.passed = first.saturating_add(head.rows);
            let Some(all) = self.parts.places.clone() else { return self.read(&head, None) };
            let rest = all.get(self.placed..).unwrap_or_default();
            let here = &rest[..rest.partition_point(|place| *place < self.passed)];
            self.placed += here.len();
            if !here.is_empty() {
                return self.read(&head, Some((first, here)));
            }
        }
    }

    /// Opens a page. All of its rows are wanted, or some, counted so that its first one has a
    /// number.
    fn read(&mut self, head: &Head, wanted: Option<(u32, &[u32])>) -> Result<Open<T>> {
        let (present, bytes, at) = self.parts.unpack(head)?;
        if let Values::Indices = head.values {
            self.read_dictionary()?;
        }
        if self.pages.is_empty() {
            self.parts.pages.clear();
        }
        let part = wanted.filter(|(_, rows)| rows.len() < head.rows as usize);
        let Some((first, rows)) = part else {
            let present = match present {
                Present::All => None,
                Present::Some(present) => Some(present),
            };
            let values = match head.values {
                Values::Plain => Source::Plain(bytes, at),
                Values::Indices => Source::Indices(bytes, Box::new(Indices::new(at))),
            };
            return Ok(Open { left: head.rows as usize, present, at: 0, values });
        };
        if let (Present::All, Values::Plain, Some(from)) = (&present, head.values, run_of(rows)) {
            let skipped = (from - first) as usize * size_of::<T>();
            let values = Source::Plain(bytes, at.saturating_add(skipped));
            return Ok(Open { left: rows.len(), present: None, at: 0, values });
        }
        let (present, places) = match present {
            Present::All => (None, rows.iter().map(|row| row - first).collect()),
            Present::Some(present) => {
                let mut kept = vec![0_u8; rows.len().div_ceil(8)];
                let places = places(&present, first, rows, &mut kept)?;
                (Some(BooleanBuffer::new(Buffer::from_vec(kept), 0, rows.len())), places)
            }
        };
        let bytes = &bytes.as_slice()[at..];
        let mut values = Vec::with_capacity(places.len());
        match head.values {
            Values::Plain => load(T::stored(bytes), &places, "a value is missing", &mut values)?,
            Values::Indices => {
                let indices = pick(bytes, &places)?;
                load(self.words(), &indices, NO_WORD, &mut values)?;
            }
        }
        Ok(Open { left: rows.len(), present, at: 0, values: Source::Picked(values, 0) })
    }

    fn read_dictionary(&mut self) -> Result<()> {
        let Some(head) = self.unread.take() else { return Ok(()) };
        let stored = self.parts.pages.take(&head)?;
        let bytes = self.parts.codec.unpack(stored, head.declared)?;
        if T::stored(bytes.as_slice()).len() < head.rows as usize {
            return Err(damaged("a value of the dictionary is missing"));
        }
        self.dictionary = Some(bytes);
        Ok(())
    }

    /// The dictionary.
    fn words(&self) -> &[T::Stored] {
        T::stored(self.dictionary.as_ref().map(PageBytes::as_slice).unwrap_or_default())
    }
}

const NO_WORD: &str = "a value that the dictionary does not have";

impl Parts {
    /// Which rows of a page have a value, its bytes, and from where on these are values.
    fn unpack(&mut self, head: &Head) -> Result<(Present, PageBytes, usize)> {
        let stored = self.pages.take(head)?;
        match head.levels {
            Levels::Inside => {
                let bytes = self.codec.unpack(stored, head.declared)?;
                if !self.nullable {
                    return Ok((Present::All, bytes, 0));
                }
                let page = bytes.as_slice();
                let length = page.first_chunk().ok_or_else(|| damaged("it has no levels"))?;
                let end = 4_usize.saturating_add(u32::from_le_bytes(*length) as usize);
                let levels = page.get(4..end).ok_or_else(|| damaged("its levels end beyond it"))?;
                Ok((Present::parse(levels, head.rows)?, bytes, end))
            }
            Levels::Before { skipped, bytes, compressed } => {
                let end = skipped.saturating_add(bytes);
                let levels =
                    stored.get(skipped..end).ok_or_else(|| damaged("its levels end beyond it"))?;
                let present = match self.nullable {
                    true => Present::parse(levels, head.rows)?,
                    false => Present::All,
                };
                let codec = if compressed { self.codec } else { Codec::None };
                Ok((present, codec.unpack(stored.slice(end..), head.declared)?, 0))
            }
        }
    }
}

impl<T: Word> Flat<T> {
    /// Returns true if the next `rows` rows are in one page, as the Arrow type has them, and none
    /// is NULL.
    fn are_stored(&mut self, rows: usize) -> Result<bool> {
        if rows == 0 || rows > self.left || cfg!(target_endian = "big") {
            return Ok(false);
        }
        let open = match self.open.take().filter(|open| open.left > 0) {
            Some(open) => open,
            None => self.page()?,
        };
        let is_plain = matches!(open.values, Source::Plain(..)) && open.present.is_none();
        let are_stored = is_plain && open.left >= rows;
        self.open = Some(open);
        Ok(are_stored)
    }
}

impl<T: Word> FlatColumn for Flat<T> {
    fn missing(&self, rows: usize) -> Vec<Range<u64>> {
        let mut wanted = rows.min(self.left);
        wanted = wanted.saturating_sub(self.open.as_ref().map_or(0, |open| open.left));
        let (mut missing, mut dictionary) = (Vec::new(), self.unread.as_ref());
        for head in &self.pages {
            if wanted == 0 {
                break;
            }
            if let Values::Indices = head.values {
                let head = dictionary.take();
                missing.extend(head.and_then(|head| self.parts.pages.missing(&head.stored)));
            }
            missing.extend(self.parts.pages.missing(&head.stored));
            wanted = wanted.saturating_sub(head.rows as usize);
        }
        missing
    }

    fn put(&mut self, range: &Range<u64>, bytes: Bytes) {
        self.parts.pages.put(range, bytes);
    }

    fn cells(&mut self, rows: usize) -> Result<Cells<'_>> {
        if !self.are_stored(rows)? {
            return Ok(Cells::Decoded(self.next(rows)?));
        }
        self.left -= rows;
        let open = self.open.as_mut().map(|open| {
            open.at += rows;
            open.left -= rows;
            &mut open.values
        });
        let Some(Source::Plain(bytes, at)) = open else { return Err(damaged("it has no page")) };
        let start = std::mem::replace(at, at.saturating_add(rows * size_of::<T>()));
        let cells = bytes.as_slice().get(start..*at);
        Ok(Cells::Stored(cells.ok_or_else(|| damaged("a value is missing"))?))
    }

    fn next(&mut self, rows: usize) -> Result<ArrayRef> {
        self.all(rows)
    }

    fn kept(&mut self, rows: usize, kept: &Kept) -> Result<ArrayRef> {
        self.some(rows, kept)
    }
}

impl<T: Word> Source<T> {
    /// Appends the next `count` values.
    fn take(&mut self, count: usize, words: &[T::Stored], to: &mut Vec<T>) -> Result<()> {
        match self {
            Self::Plain(bytes, at) => {
                let end = at.saturating_add(count * size_of::<T>());
                let values =
                    bytes.as_slice().get(*at..end).ok_or_else(|| damaged("a value is missing"))?;
                to.extend(T::stored(values).iter().map(|value| T::load(*value)));
                *at = end;
                Ok(())
            }
            Self::Indices(bytes, indices) => {
                indices.take(bytes.as_slice(), count, |found| match found {
                    Found::Each(indices) => load(words, indices, NO_WORD, to),
                    Found::Same(index, count) => {
                        let word = words.get(index as usize).ok_or_else(|| damaged(NO_WORD))?;
                        to.resize(to.len() + count, T::load(*word));
                        Ok(())
                    }
                })
            }
            Self::Picked(values, used) => {
                let end = used.saturating_add(count);
                let picked = values.get(*used..end).ok_or_else(|| damaged("a value is missing"))?;
                to.extend_from_slice(picked);
                *used = end;
                Ok(())
            }
        }
    }
}

/// Appends the `words` with the numbers `indices`.
fn load<T: Word>(
    words: &[T::Stored],
    indices: &[u32],
    missing: &str,
    to: &mut Vec<T>,
) -> Result<()> {
    // `max` calls a function for each index where the compiler does not inline it, which took a
    // tenth of a scan.
    let last = indices.iter().fold(0, |last, index| u32::max(last, *index));
    if !indices.is_empty() && last as usize >= words.len() {
        return Err(damaged(missing));
    }
    to.extend(indices.iter().map(|index| T::load(words[*index as usize])));
    Ok(())
}

#[cfg(test)]
mod tests;
