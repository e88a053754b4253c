//! Batches of a column: all of some rows, or those of them that are kept.

use std::ops::Range;

use arrow::array::{ArrayData, ArrayRef, BooleanBufferBuilder, make_array};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer};
use parquet::errors::Result;

use super::super::damaged;
use super::super::steps::Kept;
use super::indices::Found;
use super::pack::{ROOM, pack};
use super::{Flat, NO_WORD, Open, Source, Word, load};

impl<T: Word> Flat<T> {
    /// The next `rows` rows, or the remaining ones.
    ///
    /// # Errors
    /// Where the chunk is damaged.
    pub(super) fn all(&mut self, rows: usize) -> Result<ArrayRef> {
        let rows = rows.min(self.left);
        let mut values = Vec::with_capacity(rows);
        let mut validity = Validity { rows, bits: None };
        self.pages_of(rows, |open, words, here| {
            match open.present_of(here.len()) {
                None => open.values.take(here.len(), words, &mut values)?,
                Some(present) => {
                    open.values.take(present.count_set_bits(), words, &mut values)?;
                    spread(&mut values, here.start, &present);
                    validity.append(here.start, &present);
                    return Ok(());
                }
            }
            validity.append_all(here.len());
            Ok(())
        })?;
        self.array(values, validity.finish())
    }

    /// Those of the next `rows` rows that are `kept`.
    ///
    /// # Errors
    /// Where the chunk is damaged, or has fewer rows.
    pub(super) fn some(&mut self, rows: usize, kept: &Kept) -> Result<ArrayRef> {
        if rows > self.left {
            return Err(damaged("its rows end too early"));
        }
        let mut values = Vec::with_capacity(kept.count() + ROOM);
        let mut validity = Validity { rows, bits: None };
        let mut with_nulls = Vec::new();
        self.pages_of(rows, |open, words, here| {
            match open.present_of(here.len()) {
                None => open.values.pick(here.clone(), kept, words, &mut values)?,
                Some(present) => {
                    with_nulls.clear();
                    open.values.take(present.count_set_bits(), words, &mut with_nulls)?;
                    spread(&mut with_nulls, 0, &present);
                    pack(&with_nulls, |value| value, kept, here.start, &mut values);
                    validity.append(here.start, &present);
                    return Ok(());
                }
            }
            validity.append_all(here.len());
            Ok(())
        })?;
        let nulls = validity.finish().map(|nulls| kept.of_nulls(nulls)).transpose()?;
        self.array(values, nulls.filter(|nulls| nulls.null_count() > 0))
    }

    /// Goes through the pages of the next `rows` rows: each with the dictionary, and which of the
    /// rows are its own.
    fn pages_of(
        &mut self,
        rows: usize,
        mut each: impl FnMut(&mut Open<T>, &[T::Stored], Range<usize>) -> Result<()>,
    ) -> Result<()> {
        let mut at = 0;
        while at < rows {
            let mut open = match self.open.take() {
                Some(open) => open,
                None => self.page()?,
            };
            let count = open.left.min(rows - at);
            each(&mut open, self.words(), at..at + count)?;
            at += count;
            open.at += count;
            open.left -= count;
            self.open = Some(open).filter(|open| open.left > 0);
        }
        self.left -= rows;
        Ok(())
    }

    fn array(&self, values: Vec<T>, nulls: Option<NullBuffer>) -> Result<ArrayRef> {
        let data = ArrayData::builder(self.parts.data_type.clone())
            .len(values.len())
            .add_buffer(Buffer::from_vec(values))
            .nulls(nulls);
        Ok(make_array(data.build()?))
    }
}

impl<T: Word> Open<T> {
    /// Which of the next `rows` rows have a value; None where all have.
    fn present_of(&self, rows: usize) -> Option<BooleanBuffer> {
        self.present.as_ref().map(|present| present.slice(self.at, rows))
    }
}

impl<T: Word> Source<T> {
    /// Takes the values of the rows `here`, and appends those that are `kept`.
    fn pick(
        &mut self,
        here: Range<usize>,
        kept: &Kept,
        words: &[T::Stored],
        to: &mut Vec<T>,
    ) -> Result<()> {
        match self {
            Self::Plain(bytes, at) => {
                let end = at.saturating_add(here.len() * size_of::<T>());
                let stored = bytes.as_slice().get(*at..end);
                let stored = T::stored(stored.ok_or_else(|| damaged("a value is missing"))?);
                *at = end;
                pack(stored, T::load, kept, here.start, to);
                Ok(())
            }
            Self::Indices(bytes, indices) => {
                let (mut at, mut packed) = (here.start, Vec::new());
                indices.take(bytes.as_slice(), here.len(), |found| match found {
                    Found::Each(indices) => {
                        packed.clear();
                        pack(indices, |index| index, kept, at, &mut packed);
                        at += indices.len();
                        load(words, &packed, NO_WORD, to)
                    }
                    Found::Same(index, count) => {
                        let word = words.get(index as usize).ok_or_else(|| damaged(NO_WORD))?;
                        let rows = kept.count_of(at..at + count);
                        at += count;
                        to.resize(to.len() + rows, T::load(*word));
                        Ok(())
                    }
                })
            }
            Self::Picked(values, used) => {
                let end = used.saturating_add(here.len());
                let picked = values.get(*used..end).ok_or_else(|| damaged("a value is missing"))?;
                *used = end;
                pack(picked, |value| value, kept, here.start, to);
                Ok(())
            }
        }
    }
}

/// Which rows have a value: all, until one has none.
struct Validity {
    rows: usize,
    bits: Option<BooleanBufferBuilder>,
}

impl Validity {
    /// Appends rows of which some have none, behind the first `before`.
    fn append(&mut self, before: usize, present: &BooleanBuffer) {
        let bits = self.bits.get_or_insert_with(|| {
            let mut bits = BooleanBufferBuilder::new(self.rows);
            bits.append_n(before, true);
            bits
        });
        bits.append_buffer(present);
    }

    /// Appends rows that all have one.
    fn append_all(&mut self, rows: usize) {
        if let Some(bits) = &mut self.bits {
            bits.append_n(rows, true);
        }
    }

    fn finish(self) -> Option<NullBuffer> {
        let nulls = self.bits.map(|mut bits| NullBuffer::new(bits.finish()));
        nulls.filter(|nulls| nulls.null_count() > 0)
    }
}

/// Puts the values from the place `first` on where `present` has a bit for them, and zeros between
/// them.
fn spread<T: Word>(values: &mut Vec<T>, first: usize, present: &BooleanBuffer) {
    let mut from = values.len();
    values.resize(first + present.len(), T::default());
    for (place, is_present) in (first..values.len()).zip(present.iter()).rev() {
        values[place] = match is_present {
            true => {
                from -= 1;
                values[from]
            }
            false => T::default(),
        };
    }
}
