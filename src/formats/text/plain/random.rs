//! Random values, and decoders in turns, for the tests.

use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, SchemaRef};
use arrow::record_batch::RecordBatch;
use std::sync::Arc;

use super::Plain;
use super::PlainText;
use crate::formats::text::records::Decoder;
use crate::formats::text::values::parsed;

/// All rows of a text that comes in pieces, or the error's text.
pub(super) fn decoded(
    mut decoder: impl Decoder,
    text: &[u8],
    piece: usize,
    wanted: &SchemaRef,
    most: usize,
) -> Result<RecordBatch, String> {
    let mut pieces = text.chunks(piece);
    let (mut piece, mut is_over): (&[u8], _) = (&[], false);
    let (mut found, mut first) = (Vec::new(), 1);
    loop {
        if piece.is_empty() && !is_over {
            piece = pieces.next().unwrap_or_default();
            is_over = piece.is_empty();
        }
        let taken = decoder.decode(piece).map_err(|error| error.to_string())?;
        piece = &piece[taken..];
        if taken > 0 {
            continue;
        }
        match decoder.flush().map_err(|error| error.to_string())? {
            Some(batch) => {
                let rows = batch.num_rows();
                assert!(rows <= most);
                found.push(parsed(&batch, wanted, first).map_err(|error| error.to_string())?);
                first += rows;
            }
            None if is_over && piece.is_empty() => break,
            None => {}
        }
    }
    if found.is_empty() {
        return Ok(RecordBatch::new_empty(Arc::clone(wanted)));
    }
    Ok(concat_batches(wanted, &found).unwrap())
}

/// Whether a text needs no other decoder.
pub(super) fn is_plain<P: Plain>(mut decoder: PlainText<P>, mut text: &[u8]) -> bool {
    loop {
        match decoder.decode(text).unwrap() {
            0 if decoder.thorough.is_some() => return false,
            0 if decoder.rows == 0 => return true,
            0 => drop(decoder.flush().unwrap()),
            taken => text = &text[taken..],
        }
    }
}

/// Numbers that a seed alone decides: xorshift64*, as Vigna describes it ("An experimental exploration of Marsaglia's xorshift
/// generators, scrambled", 2016).
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }

    pub(super) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub(super) fn of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())].clone()
    }

    pub(super) fn value(&mut self, of: &DataType) -> String {
        const TEXTS: [&str; 11] = [
            "abc",
            "",
            "with space",
            "quote\"s",
            "a,b",
            "line\nbreak",
            "cr\r\nlf",
            "a text of many letters",
            "\u{fc}\u{4e2d}",
            "\"\"",
            "\"",
        ];
        match of {
            DataType::Int8 => (self.next() as i8).to_string(),
            DataType::Int32 => (self.next() as i32).to_string(),
            DataType::Int64 => ((self.next() as i64 - (1 << 40)) << self.below(10)).to_string(),
            DataType::UInt64 => (self.next() << self.below(17)).to_string(),
            DataType::Float64 | DataType::Float32 => match self.below(5) {
                0 => f64::from_bits(self.next() << 16).to_string(),
                1 => format!("{:.2}", self.next() as f64 / 1e6),
                2 => format!("-{}.{:03}", self.below(100_000), self.below(1_000)),
                3 => self.below(1_000).to_string(),
                _ => format!("{:e}", self.next() as f64 / 1e20),
            },
            DataType::Boolean => self.of(&["true", "FALSE", "True", "false"]).to_owned(),
            DataType::Date32 => {
                let (year, month, day) = (1900 + self.below(200), self.below(12), self.below(28));
                format!("{year:04}-{:02}-{:02}", 1 + month, 1 + day)
            }
            DataType::Timestamp(..) => {
                let (day, hour, milli) = (1 + self.below(28), self.below(24), self.below(1_000));
                format!("20{:02}-03-{day:02}T{hour:02}:00:09.{milli:03}", self.below(100))
            }
            DataType::Decimal128(..) => {
                format!("{}.{:03}", self.below(100_000), self.below(1_000))
            }
            _ => self.of(&TEXTS).to_owned(),
        }
    }
}
