//! The values of columns from their places in a text.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, ArrowPrimitiveType, BooleanBuilder, NullArray, NullBufferBuilder, PrimitiveArray,
    StringBuilder, StringViewBuilder, downcast_integer,
};
use arrow::compute::kernels::cast_utils::Parser;
use arrow::datatypes::{DataType, Field, Fields, Float64Type};

use super::{Span, UNDECODED};
use crate::formats::text::values::{Notation, Place, json_integer};

/// What an empty text is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Empty {
    IsNull,
    IsText,
}

/// The values of records, as text.
pub(super) struct Records<'a> {
    text: &'a str,
    /// Values that had to be decoded.
    decoded: String,
    spans: Vec<Span>,
    columns: usize,
    empty: Empty,
}

impl<'a> Records<'a> {
    /// Records of `columns` values each, whose spans are in `spans`, record by record.
    pub(super) fn new(text: &'a str, spans: Vec<Span>, columns: usize, empty: Empty) -> Self {
        Self { text, decoded: String::new(), spans, columns, empty }
    }

    /// Decodes the values that need it. Returns false where one cannot be decoded.
    ///
    /// # Arguments
    /// `decode`: appends the value of a span.
    pub(super) fn decode(&mut self, decode: impl Fn(Range<usize>, &mut String) -> bool) -> bool {
        self.spans.iter_mut().filter(|(_, end)| end & UNDECODED != 0).all(|(begin, end)| {
            let from = self.decoded.len();
            let is_decoded =
                decode(*begin as usize..(*end & !UNDECODED) as usize, &mut self.decoded);
            (*begin, *end) = (from as u32, self.decoded.len() as u32 | UNDECODED);
            is_decoded
        })
    }

    pub(super) fn into_spans(self) -> Vec<Span> {
        self.spans
    }

    /// All columns. None where a value is not exactly one of its type.
    pub(super) fn columns(&self, fields: &Fields, notation: Notation) -> Option<Vec<ArrayRef>> {
        let fields = fields.iter().enumerate();
        fields.map(|(place, field)| self.values(place, field, notation)).collect()
    }

    fn column(&self, place: usize) -> impl ExactSizeIterator<Item = Option<Text<'_>>> {
        self.spans.chunks_exact(self.columns).map(move |record| {
            let (begin, end) = record[place];
            let (of, end) = match end & UNDECODED {
                0 => (self.text, end),
                _ => (self.decoded.as_str(), end & !UNDECODED),
            };
            let is_null = begin > end || (begin == end && self.empty == Empty::IsNull);
            (!is_null).then_some(Text { of, begin: begin as usize, end: end as usize })
        })
    }

    fn texts(&self, place: usize) -> impl ExactSizeIterator<Item = Option<&str>> {
        self.column(place).map(|field| field.map(Text::whole))
    }

    fn values(&self, place: usize, field: &Field, notation: Notation) -> Option<ArrayRef> {
        macro_rules! integers {
            ($type:ty) => {
                primitives::<$type>(self.column(place), |text| {
                    whole_number(text).and_then(|value| value.try_into().ok()).or_else(|| {
                        match notation {
                            Notation::Csv => <$type>::parse(text.whole()),
                            Notation::Json => json_integer(text.whole()),
                        }
                    })
                })
            };
        }
        let to = field.data_type();
        downcast_integer! {
            to => (integers),
            DataType::Float64 => primitives::<Float64Type>(self.column(place), |text| {
                decimal_number(text).or_else(|| Float64Type::parse(text.whole()))
            }),
            DataType::Boolean => {
                let mut values = BooleanBuilder::with_capacity(self.texts(place).len());
                for text in self.texts(place) {
                    values.append_option(match text {
                        Some(text) => Some(boolean(text)?),
                        None => None,
                    });
                }
                Some(Arc::new(values.finish()))
            }
            DataType::Utf8 => {
                let mut values = StringBuilder::new();
                values.extend(self.texts(place));
                Some(Arc::new(values.finish()))
            }
            DataType::Utf8View => {
                let mut values = StringViewBuilder::with_capacity(self.texts(place).len());
                values.extend(self.texts(place));
                Some(Arc::new(values.finish()))
            }
            DataType::Null => Some(Arc::new(NullArray::new(self.texts(place).len()))),
            _ if notation.is_parsed_here(to) => {
                Place { column: field.name(), first: None }.parse_texts(self.texts(place), to).ok()
            }
            _ => None,
        }
    }
}

/// A part of a text.
#[derive(Clone, Copy)]
struct Text<'a> {
    of: &'a str,
    begin: usize,
    end: usize,
}

impl<'a> Text<'a> {
    fn whole(self) -> &'a str {
        &self.of[self.begin..self.end]
    }

    fn len(self) -> usize {
        self.end - self.begin
    }

    /// Without a minus, and whether there was one.
    fn without_minus(self) -> (Self, bool) {
        let is_negative = self.begin < self.end && self.of.as_bytes()[self.begin] == b'-';
        (Self { begin: self.begin + usize::from(is_negative), ..self }, is_negative)
    }

    /// Its last bytes, 8 at most, the last one highest, with zeros as digits before them.
    #[inline]
    fn last_word(self) -> u64 {
        let bytes = &self.of.as_bytes()[..self.end];
        let word = match bytes.last_chunk() {
            Some(last) => u64::from_le_bytes(*last),
            None => {
                let mut last = [0; 8];
                last[8 - bytes.len()..].copy_from_slice(bytes);
                u64::from_le_bytes(last)
            }
        };
        let before = 64 - 8 * self.len().min(8) as u32;
        let mask = u64::MAX.checked_shl(before).unwrap_or(0);
        (word & mask) | (ZEROS & !mask)
    }

    /// Without its last 8 bytes.
    fn before_last_word(self) -> Self {
        Self { end: self.end - 8, ..self }
    }
}

/// Whether [`Records`] have values of the type.
pub(super) fn is_read_here(to: &DataType, notation: Notation) -> bool {
    let is_null = *to == DataType::Null;
    to.is_integer()
        || (is_null && notation == Notation::Csv)
        || matches!(to, DataType::Boolean | DataType::Float64 | DataType::Utf8 | DataType::Utf8View)
        || notation.is_parsed_here(to)
}

fn primitives<'a, T: ArrowPrimitiveType>(
    texts: impl ExactSizeIterator<Item = Option<Text<'a>>>,
    parse: impl Fn(Text<'a>) -> Option<T::Native>,
) -> Option<ArrayRef> {
    let mut values = Vec::with_capacity(texts.len());
    let mut nulls = NullBufferBuilder::new(texts.len());
    for text in texts {
        match text {
            Some(text) => {
                values.push(parse(text)?);
                nulls.append_non_null();
            }
            None => {
                values.push(T::Native::default());
                nulls.append_null();
            }
        }
    }
    Some(Arc::new(PrimitiveArray::<T>::new(values.into(), nulls.finish())))
}

fn boolean(text: &str) -> Option<bool> {
    match text {
        _ if text.eq_ignore_ascii_case("true") => Some(true),
        _ if text.eq_ignore_ascii_case("false") => Some(false),
        _ => None,
    }
}

/// A whole number of up to 16 digits. None: another parser decides.
#[inline]
fn whole_number(text: Text<'_>) -> Option<i64> {
    let (text, is_negative) = text.without_minus();
    let value = match text.len() {
        1..=8 => digits(text.last_word())?,
        9..=16 => {
            let high = digits(text.before_last_word().last_word())?;
            high * 100_000_000 + digits(text.last_word())?
        }
        _ => return None,
    } as i64;
    Some(if is_negative { -value } else { value })
}

/// A number of so few digits that it, without its point, and the power of ten below it are doubles: their quotient is the
/// nearest double. Source: Clinger, "How to read floating point numbers accurately" (1990). None: another parser decides.
#[inline]
fn decimal_number(text: Text<'_>) -> Option<f64> {
    const POWERS: [f64; 15] =
        [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14];
    let (text, is_negative) = text.without_minus();
    let (value, places) = match text.len() {
        // A point alone is no number.
        1 => (digits(text.last_word())?, 0),
        2..=8 => {
            let (word, places) = without_point(text.last_word());
            (digits(word)?, places.unwrap_or(0))
        }
        9..=15 => {
            let (high, of_high) = without_point(text.before_last_word().last_word());
            let (low, of_low) = without_point(text.last_word());
            let (factor, places) = match (of_high, of_low) {
                (None, None) => (100_000_000, 0),
                (None, Some(places)) => (10_000_000, places),
                (Some(places), None) => (100_000_000, places + 8),
                (Some(_), Some(_)) => return None,
            };
            (digits(high)? * factor + digits(low)?, places)
        }
        _ => return None,
    };
    let value = value as f64 / POWERS[places];
    Some(if is_negative { -value } else { value })
}

/// Eight digits as bytes.
const ZEROS: u64 = 0x3030_3030_3030_3030;

/// The number that eight digits write, the first one's byte lowest: neighbours are added two by two, four by four and eight by
/// eight. None where a byte is no digit.
#[inline]
fn digits(word: u64) -> Option<u64> {
    let values = word.wrapping_sub(ZEROS);
    if (word.wrapping_add(0x4646_4646_4646_4646) | values) & 0x8080_8080_8080_8080 != 0 {
        return None;
    }
    let pairs = values * 10 + (values >> 8);
    let (even, odd) = (pairs & 0x0000_00FF_0000_00FF, (pairs >> 16) & 0x0000_00FF_0000_00FF);
    let sum = even
        .wrapping_mul(100 + (1_000_000 << 32))
        .wrapping_add(odd.wrapping_mul(1 + (10_000 << 32)));
    Some(sum >> 32)
}

/// Eight bytes without their first point, a zero before them instead, and how many bytes are behind the point.
#[inline]
fn without_point(word: u64) -> (u64, Option<usize>) {
    let others = word ^ 0x2E2E_2E2E_2E2E_2E2E;
    let points = others.wrapping_sub(0x0101_0101_0101_0101) & !others & 0x8080_8080_8080_8080;
    if points == 0 {
        return (word, None);
    }
    let place = points.trailing_zeros() / 8;
    let before = word & ((1 << (8 * place)) - 1);
    let after = word & u64::MAX.checked_shl(8 * (place + 1)).unwrap_or(0);
    (after | (before << 8) | u64::from(b'0'), Some(7 - place as usize))
}
