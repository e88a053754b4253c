//! Sizes that a stripe declares, checked before it is decoded: of the chunks of its streams, and the
//! lengths of its texts, lists and maps.
//!
//! The decoder takes memory for what lengths declare before it looks for the values, and keeps a
//! chunk of each stream.

use bytes::Bytes;
use orc_rust::schema::{DataType as OrcType, RootDataType};

use super::footer::OrcFooter;
use super::rle::{Encoding, sum};
use super::streams::{Chunks, StripeFooter};
use crate::Result;
use crate::bounds::{ORC_STRIPE, ORC_VALUES};

/// Kinds of streams.
const DATA: u64 = 1;
const LENGTH: u64 = 2;
const DICTIONARY_DATA: u64 = 3;

/// The streams of a stripe.
pub(super) struct Streams<'a> {
    pub file: &'a OrcFooter,
    pub footer: &'a StripeFooter,
    /// Where the stripe begins.
    pub offset: u64,
}

impl Streams<'_> {
    /// Checks the streams of the wanted columns, which are in `chunks`.
    ///
    /// # Errors
    /// `Data` where they declare more than is read.
    pub fn check(&self, root: &RootDataType, rows: u64, chunks: &Chunks) -> Result<()> {
        self.check_chunks(root, chunks)?;
        let mut columns = root.children().iter();
        columns.try_for_each(|column| {
            self.check_lengths(column.data_type(), rows, chunks)
                .map_err(|error| error.with_context("column", column.name()))
        })
    }

    /// Checks what one chunk of each stream becomes. Chunks are counted only if they could become
    /// too much together.
    fn check_chunks(&self, root: &RootDataType, chunks: &Chunks) -> Result<()> {
        let mut start = self.offset;
        let mut wanted = Vec::new();
        for stream in &self.footer.streams {
            let range = start..start.saturating_add(stream.length);
            start = range.end;
            if root.contains_column_index(stream.column as usize) && !stream.is_index() {
                wanted.push((chunks.get(&range), range.start));
            }
        }
        let stored = wanted.iter().map(|(stream, _)| stream.len() as u64).sum();
        let most = || -> Result<u64> {
            let largest = wanted.iter().map(|(stream, at)| self.file.largest_chunk(stream, *at));
            largest.sum()
        };
        if most()? > ORC_STRIPE.unpacked(stored) {
            wanted.iter().try_for_each(|(stream, at)| self.file.count_chunks(stream, *at))?;
        }
        ORC_STRIPE.check_unpacked(stored, most()?, "the chunks of a stripe become")
    }

    /// Checks the lengths of a column, of which `count` are read.
    fn check_lengths(&self, column: &OrcType, count: u64, chunks: &Chunks) -> Result<()> {
        let number = column.column_index();
        match column {
            OrcType::String { .. }
            | OrcType::Varchar { .. }
            | OrcType::Char { .. }
            | OrcType::Binary { .. } => {
                let dictionary = self.footer.dictionary(number);
                let (texts, count) = match dictionary {
                    Some(entries) => {
                        let stored = self.stored(number, LENGTH);
                        let what = format!("a dictionary says that it has {entries} entries,");
                        ORC_VALUES.check_unpacked(stored, entries, &what)?;
                        (DICTIONARY_DATA, entries)
                    }
                    None => (DATA, count),
                };
                let stored = self.stored(number, texts);
                self.sum(number, count, stored, "texts say that they have", chunks).map(drop)
            }
            OrcType::List { child, .. } => {
                let items = self.items(number, &[child], count, chunks)?;
                self.check_lengths(child, items, chunks)
            }
            OrcType::Map { key, value, .. } => {
                let items = self.items(number, &[key, value], count, chunks)?;
                self.check_lengths(key, items, chunks)?;
                self.check_lengths(value, items, chunks)
            }
            OrcType::Struct { children, .. } => children
                .iter()
                .try_for_each(|child| self.check_lengths(child.data_type(), count, chunks)),
            OrcType::Union { variants, .. } => {
                variants.iter().try_for_each(|variant| self.check_lengths(variant, count, chunks))
            }
            _ => Ok(()),
        }
    }

    /// How many items the lists of a column have.
    fn items(&self, number: usize, parts: &[&OrcType], count: u64, chunks: &Chunks) -> Result<u64> {
        let mut below: Vec<usize> = parts.iter().flat_map(|part| part.all_indices()).collect();
        below.sort_unstable();
        let is_below = |column: u64| below.binary_search(&(column as usize)).is_ok();
        let streams = self.footer.streams.iter().filter(|stream| !stream.is_index());
        let stored = streams.filter(|stream| is_below(stream.column)).map(|stream| stream.length);
        let stored = stored.fold(0, u64::saturating_add);
        self.sum(number, count, stored, "lists say that they have", chunks)
    }

    /// The sum of a column's lengths, for values that take `stored` bytes.
    fn sum(
        &self,
        number: usize,
        count: u64,
        stored: u64,
        what: &str,
        chunks: &Chunks,
    ) -> Result<u64> {
        let range = self.footer.range_of(self.offset, number, LENGTH);
        let lengths = range.map_or_else(Bytes::new, |range| chunks.get(&range));
        let lengths = self.file.decompress(lengths, &ORC_STRIPE)?;
        let encoding = Encoding { second: self.footer.is_second(number), signed: false };
        let found = sum(&lengths, encoding, count, ORC_VALUES.unpacked(stored))?;
        ORC_VALUES.check_unpacked(stored, found, what)?;
        Ok(found)
    }

    fn stored(&self, number: usize, kind: u64) -> u64 {
        let range = self.footer.range_of(self.offset, number, kind);
        range.map_or(0, |range| range.end - range.start)
    }
}
