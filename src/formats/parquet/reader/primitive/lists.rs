//! Lists of one length, such as embeddings: numbers like others where every list is there and full.
//!
//! The levels of all pages are checked for this before the first row is read. Columns with NULLs in
//! or among their lists are left to the `parquet` crate.

use std::sync::Arc;

use arrow::array::{ArrayRef, FixedSizeListArray};
use arrow::datatypes::{DataType, FieldRef};
use parquet::errors::Result;
use parquet::file::metadata::ColumnChunkMetaData;

use super::super::runs::{Run, Runs, unpack_one};
use super::codec::Codec;
use super::heads::{DEFINITION_LEVELS, Head, Levels, REPETITION_LEVELS, Values, heads};
use super::indices::Indices;
use super::stored::Stored;
use super::{Flat, FlatColumn, Open, Parts, Source, Word};

/// Decompressed bytes of a chunk at most, since all its pages are looked through at once.
const MOST_BYTES: usize = 64 << 20;

/// The items of a column of lists of one length, and that length; None for other columns.
pub(super) fn item<'a>(
    metadata: &ColumnChunkMetaData,
    data_type: &'a DataType,
) -> Option<(&'a FieldRef, usize)> {
    let DataType::FixedSizeList(item, length @ 1..) = data_type else { return None };
    // Lists within lists and structures have more levels.
    let column = metadata.column_descr();
    let is_list = column.max_rep_level() == 1 && column.path().parts().len() == 3;
    is_list.then_some((item, usize::try_from(*length).ok()?))
}

/// A column of full lists.
struct Lists<T> {
    items: Flat<T>,
    item: FieldRef,
    length: usize,
}

/// The `rows` lists of a column chunk; None where one of them is missing or not full, or the chunk
/// cannot be read here.
pub(super) fn read<T: Word>(
    metadata: &ColumnChunkMetaData,
    item: &FieldRef,
    length: usize,
    chunk: Stored,
    rows: usize,
) -> Option<Box<dyn FlatColumn>> {
    let values = rows.checked_mul(length)?;
    chunk.is_read().then_some(())?;
    let mut heads = heads(&chunk, values, &[DEFINITION_LEVELS, REPETITION_LEVELS])?;
    let bytes = heads.pages.iter().map(|head| head.declared);
    (bytes.fold(0, usize::saturating_add) <= MOST_BYTES).then_some(())?;
    let codec = Codec::of(metadata.compression())?;
    let data_type = item.data_type().clone();
    let parts = Parts {
        pages: chunk.pages(metadata.column_path()),
        codec,
        nullable: false,
        data_type,
        places: None,
    };
    let level = u32::try_from(metadata.column_descr().max_def_level()).ok()?;
    let pages = std::mem::take(&mut heads.pages);
    let mut items = Flat::<T>::new(parts, heads, values);
    let mut at = 0;
    for head in pages {
        let open = items.full(&head, level, at, length)?;
        at += open.left;
        items.opened.push_back(open);
    }
    items.read_dictionary().ok()?;
    items.parts.pages.clear();
    Some(Box::new(Lists { items, item: Arc::clone(item), length }))
}

impl<T: Word> Flat<T> {
    /// Opens a page whose first value is number `at` of all values of lists of `length`; None where
    /// a list or a value in it is missing, whose definition levels are below `level`.
    fn full(&mut self, head: &Head, level: u32, at: usize, length: usize) -> Option<Open<T>> {
        let stored = self.parts.pages.take(head).ok()?;
        let count = head.rows as usize;
        let width = u8::try_from(u32::BITS - level.leading_zeros()).ok()?;
        let are_full = |repetition: &[u8], definition: &[u8]| {
            all_are(level, definition, width, count) && begin_every(length, repetition, at, count)
        };
        let (bytes, first) = match head.levels {
            Levels::Inside => {
                let bytes = self.parts.codec.unpack(stored, head.declared).ok()?;
                let page = bytes.as_slice();
                let (repetition, rest) = counted(page)?;
                let (definition, values) = counted(rest)?;
                are_full(repetition, definition).then_some(())?;
                let first = page.len() - values.len();
                (bytes, first)
            }
            Levels::Before { skipped, bytes, compressed } => {
                let (repetition, rest) = stored.split_at_checked(skipped)?;
                are_full(repetition, rest.get(..bytes)?).then_some(())?;
                let codec = if compressed { self.parts.codec } else { Codec::None };
                (codec.unpack(stored.slice(skipped + bytes..), head.declared).ok()?, 0)
            }
        };
        let values = match head.values {
            Values::Plain => Source::Plain(bytes, first),
            Values::Indices => Source::Indices(bytes, Box::new(Indices::new(first))),
        };
        Some(Open { left: count, present: None, at: 0, values })
    }
}

/// Levels behind their length, and the bytes after them.
fn counted(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(u32::from_le_bytes(*length) as usize)
}

/// Returns true if the first `count` levels are all `level`.
fn all_are(level: u32, levels: &[u8], width: u8, count: usize) -> bool {
    let mut runs = Runs::new(levels, width);
    while runs.end < count {
        let is_level = match runs.next() {
            Ok(Run::Same(found)) => found == level,
            Ok(Run::Packed(packed)) => {
                let count = runs.end.min(count) - runs.start;
                (0..count).all(|number| unpack_one(packed, number, width.into()) == Some(level))
            }
            Err(_) => false,
        };
        if !is_level {
            return false;
        }
    }
    true
}

/// Returns true if the first `count` repetition levels are zero exactly where a list of `length`
/// begins. The first level belongs to value number `at`.
pub(super) fn begin_every(length: usize, levels: &[u8], at: usize, count: usize) -> bool {
    let begins = |number: usize| (at + number).is_multiple_of(length);
    let mut runs = Runs::new(levels, 1);
    while runs.end < count {
        let Ok(run) = runs.next() else { return false };
        let end = runs.end.min(count);
        let fits = match run {
            Run::Same(0) => (runs.start..end).all(begins),
            // None of them begins a list.
            Run::Same(_) => {
                let next = (at + runs.start).next_multiple_of(length);
                next >= at + end
            }
            Run::Packed(packed) => (runs.start..end).all(|number| {
                let level = unpack_one(packed, number - runs.start, 1);
                level == Some(u32::from(!begins(number)))
            }),
        };
        if !fits {
            return false;
        }
    }
    true
}

impl<T: Word> FlatColumn for Lists<T> {
    fn next(&mut self, rows: usize) -> Result<ArrayRef> {
        let values = self.items.next(rows.saturating_mul(self.length))?;
        let (item, length) = (Arc::clone(&self.item), i32::try_from(self.length)?);
        Ok(Arc::new(FixedSizeListArray::try_new(item, length, values, None)?))
    }
}
