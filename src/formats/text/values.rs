//! Columns that were decoded as text, parsed: exactly the values of a type are taken, decimals
//! rounded as SQL's `CAST` rounds.

use std::str::FromStr;
use std::sync::Arc;

use arrow::array::timezone::Tz;
use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, PrimitiveBuilder, cast::AsArray, downcast_integer,
    make_array,
};
use arrow::compute::kernels::cast_utils::{
    Parser, parse_decimal, string_to_datetime, string_to_time_nanoseconds,
};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::*;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use chrono::{NaiveTime, Utc};
use datafusion::error::DataFusionError;
use memchr::memchr;

use crate::error::misfit;
use crate::{Error, Result};

const SECOND: i64 = 1_000_000_000;

/// How a format writes values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Notation {
    /// Whole numbers have no other form.
    Csv,
    /// All numbers may have fractions and exponents.
    Json,
}

impl Notation {
    /// Returns true if values of the type are parsed here, since the decoder would cut them off.
    pub(super) fn is_parsed_here(self, data_type: &DataType) -> bool {
        use DataType::*;
        match data_type {
            Date32 | Date64 | Time32(_) | Time64(_) | Timestamp(_, _) => true,
            Decimal32(_, _) | Decimal64(_, _) | Decimal128(_, _) | Decimal256(_, _) => true,
            Float16 | Float32 => true,
            Duration(_) => self == Self::Json,
            other => other.is_integer() && self == Self::Json,
        }
    }
}

/// A table's columns as they are decoded.
pub(super) fn decoded(table: &Schema, notation: Notation) -> Schema {
    let fields = table.fields().iter().map(|field| decoded_field(field, notation));
    Schema::new_with_metadata(fields.collect::<Fields>(), table.metadata().clone())
}

fn decoded_field(field: &FieldRef, notation: Notation) -> FieldRef {
    let data_type = decoded_type(field.data_type(), notation);
    Arc::new(field.as_ref().clone().with_data_type(data_type))
}

fn decoded_type(data_type: &DataType, notation: Notation) -> DataType {
    use DataType::*;
    let inner = |field| decoded_field(field, notation);
    match data_type {
        text if notation.is_parsed_here(text) => Utf8View,
        Struct(fields) => Struct(fields.iter().map(inner).collect()),
        List(item) => List(inner(item)),
        LargeList(item) => LargeList(inner(item)),
        ListView(item) => ListView(inner(item)),
        LargeListView(item) => LargeListView(inner(item)),
        FixedSizeList(item, size) => FixedSizeList(inner(item), *size),
        Map(entries, sorted) => Map(inner(entries), *sorted),
        other => other.clone(),
    }
}

/// A decoded batch as one of the table's columns.
///
/// # Arguments
/// `first`: the number of its first record.
///
/// # Errors
/// `Data` naming the column and the value that is not exactly one of its type.
pub(super) fn parsed(batch: &RecordBatch, table: &Schema, first: usize) -> Result<RecordBatch> {
    let columns = batch.columns().iter().zip(table.fields()).map(|(column, field)| {
        let place = Place { column: field.name(), first: Some(first) };
        place.parse(column, field.data_type())
    });
    let columns = columns.collect::<Result<Vec<_>>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(Arc::new(table.clone()), columns, &options)
        .map_err(|error| DataFusionError::from(error).into())
}

/// The place of a value in error messages.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) column: &'a str,
    /// The number of the first record; None where rows are no records, as those inside of lists.
    pub(super) first: Option<usize>,
}

impl Place<'_> {
    /// An array as one of type `to`.
    fn parse(self, array: &ArrayRef, to: &DataType) -> Result<ArrayRef> {
        if array.data_type() == to {
            return Ok(Arc::clone(array));
        }
        if let Some(texts) = array.as_string_view_opt() {
            return self.parse_texts(texts.iter(), to);
        }
        let fields: Vec<&FieldRef> = match to {
            DataType::Struct(fields) => fields.iter().collect(),
            DataType::List(item)
            | DataType::LargeList(item)
            | DataType::ListView(item)
            | DataType::LargeListView(item)
            | DataType::FixedSizeList(item, _)
            | DataType::Map(item, _) => vec![item],
            _ => Vec::new(),
        };
        let inside = Self { first: None, ..self };
        let data = array.to_data();
        let children = data.child_data().iter().zip(fields).map(|(child, field)| {
            let child = make_array(child.clone());
            Ok(inside.parse(&child, field.data_type())?.into_data())
        });
        let children = children.collect::<Result<Vec<_>>>()?;
        let data = data.into_builder().data_type(to.clone()).child_data(children).build();
        Ok(make_array(data.map_err(DataFusionError::from)?))
    }

    /// The values that texts write, as an array of type `to`.
    pub(super) fn parse_texts<'t>(
        self,
        texts: impl ExactSizeIterator<Item = Option<&'t str>>,
        to: &DataType,
    ) -> Result<ArrayRef> {
        macro_rules! integers {
            ($type:ty) => {
                self.values::<$type>(texts, to, json_integer)
            };
        }
        macro_rules! times {
            ($type:ty, $parse:expr) => {
                self.values::<$type>(texts, to, |text| {
                    let parsed: Option<i64> = $parse(text);
                    parsed?.try_into().ok()
                })
            };
        }
        macro_rules! timestamps {
            ($type:ty, $zone:expr) => {
                match $zone {
                    None => times!($type, |text| timestamp(text, &Utc, <$type>::UNIT)),
                    Some(zone) => {
                        let zone = self.zone(zone)?;
                        times!($type, |text| timestamp(text, &zone, <$type>::UNIT))
                    }
                }
            };
        }
        use DataType::*;
        use TimeUnit::*;
        downcast_integer! {
            to => (integers),
            Duration(Second) => integers!(DurationSecondType),
            Duration(Millisecond) => integers!(DurationMillisecondType),
            Duration(Microsecond) => integers!(DurationMicrosecondType),
            Duration(Nanosecond) => integers!(DurationNanosecondType),
            Float16 => self.values::<Float16Type>(texts, to, float::<Float16Type>),
            Float32 => self.values::<Float32Type>(texts, to, float::<Float32Type>),
            Date32 => times!(Date32Type, |text| date(text).map(i64::from)),
            Date64 => times!(Date64Type, milliseconds),
            Time32(Second) => times!(Time32SecondType, |text| time(text, Second)),
            Time32(unit) => times!(Time32MillisecondType, |text| time(text, *unit)),
            Time64(Microsecond) => times!(Time64MicrosecondType, |text| time(text, Microsecond)),
            Time64(unit) => times!(Time64NanosecondType, |text| time(text, *unit)),
            Timestamp(Second, zone) => timestamps!(TimestampSecondType, zone),
            Timestamp(Millisecond, zone) => timestamps!(TimestampMillisecondType, zone),
            Timestamp(Microsecond, zone) => timestamps!(TimestampMicrosecondType, zone),
            Timestamp(Nanosecond, zone) => timestamps!(TimestampNanosecondType, zone),
            Decimal32(precision, scale)
            | Decimal64(precision, scale)
            | Decimal128(precision, scale)
            | Decimal256(precision, scale) => self.decimals(texts, to, *precision, *scale),
            other => Err(Error::data(format!("text is no {other}"))),
        }
    }

    fn values<'t, T: ArrowPrimitiveType>(
        self,
        texts: impl ExactSizeIterator<Item = Option<&'t str>>,
        to: &DataType,
        parse: impl Fn(&str) -> Option<T::Native>,
    ) -> Result<ArrayRef> {
        let mut values =
            PrimitiveBuilder::<T>::with_capacity(texts.len()).with_data_type(to.clone());
        for (row, text) in texts.enumerate() {
            match text {
                None => values.append_null(),
                Some(text) => {
                    values.append_value(parse(text).ok_or_else(|| self.misfit(row, text, to))?);
                }
            }
        }
        Ok(Arc::new(values.finish()))
    }

    /// With one digit more, by which they are rounded.
    fn decimals<'t>(
        self,
        texts: impl ExactSizeIterator<Item = Option<&'t str>>,
        to: &DataType,
        precision: u8,
        scale: i8,
    ) -> Result<ArrayRef> {
        let finer = (scale.max(0) + 1).min(DECIMAL256_MAX_SCALE);
        let digits = (i16::from(precision) + i16::from(finer) - i16::from(scale))
            .clamp(1, DECIMAL256_MAX_PRECISION.into()) as u8;
        let values = match digits <= DECIMAL128_MAX_PRECISION {
            true => {
                self.values::<Decimal128Type>(texts, &DataType::Decimal128(digits, finer), |text| {
                    parse_decimal::<Decimal128Type>(text, digits, finer).ok()
                })
            }
            false => {
                self.values::<Decimal256Type>(texts, &DataType::Decimal256(digits, finer), |text| {
                    parse_decimal::<Decimal256Type>(text, digits, finer).ok()
                })
            }
        };
        let options = CastOptions { safe: false, ..CastOptions::default() };
        cast_with_options(&values?, to, &options).map_err(|error| {
            Error::from(DataFusionError::from(error)).with_context("column", self.column)
        })
    }

    fn zone(self, name: &str) -> Result<Tz> {
        name.parse().map_err(|error| {
            Error::from(DataFusionError::from(error)).with_context("column", self.column)
        })
    }

    fn misfit(self, row: usize, text: &str, to: &DataType) -> Error {
        let record = match self.first {
            Some(first) => format!(" in record {} of what was read", first + row),
            None => String::new(),
        };
        misfit(&format!(
            "{text:?} in column {:?}{record} is not exactly a value of {to}",
            self.column
        ))
    }
}

/// A whole number that JSON writes, of a type that holds it.
pub(super) fn json_integer<N: FromStr + TryFrom<i128>>(text: &str) -> Option<N> {
    text.parse().ok().or_else(|| whole(text)?.try_into().ok())
}

/// A whole number in any form that JSON knows: `3`, `3.0`, `3e2`, `30e-1`.
fn whole(text: &str) -> Option<i128> {
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (units, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let fraction = fraction.trim_end_matches('0');
    let digits: i128 = format!("{units}{fraction}").parse().ok()?;
    let zeros = exponent.parse::<i32>().ok()?.checked_sub(fraction.len().try_into().ok()?)?;
    if digits == 0 {
        return Some(0);
    }
    let factor = 10_i128.checked_pow(zeros.unsigned_abs())?;
    match zeros {
        0.. => digits.checked_mul(factor),
        _ => (digits % factor == 0).then(|| digits / factor),
    }
}

/// A number that is not too large to be finite, or one of the words for infinity and no number.
fn float<T: Parser>(text: &str) -> Option<T::Native>
where
    T::Native: Into<f64>,
{
    let is_number = text.ends_with(|last: char| last.is_ascii_digit() || last == '.');
    T::parse(text).filter(|value| !is_number || Into::<f64>::into(*value).is_finite())
}

/// Days since 1970 of a date, or of a time at midnight.
fn date(text: &str) -> Option<i32> {
    let is_midnight = || match string_to_datetime(&Utc, text) {
        Ok(time) => time.time() == NaiveTime::MIN,
        Err(_) => true,
    };
    Date32Type::parse(text).filter(|_| text.len() <= 10 || is_midnight())
}

/// Milliseconds since 1970 of a date or time.
fn milliseconds(text: &str) -> Option<i64> {
    match string_to_datetime(&Utc, text) {
        Ok(_) => timestamp(text, &Utc, TimeUnit::Millisecond),
        Err(_) => Date64Type::parse(text),
    }
}

/// Units since 1970 of a time.
fn timestamp(text: &str, zone: &impl chrono::TimeZone, unit: TimeUnit) -> Option<i64> {
    let time = string_to_datetime(zone, text).ok()?;
    in_unit(time.timestamp(), time.timestamp_subsec_nanos().into(), text, unit)
}

/// Units since midnight of a time of day, or a number of them.
fn time(text: &str, unit: TimeUnit) -> Option<i64> {
    match string_to_time_nanoseconds(text) {
        Ok(nanoseconds) => in_unit(0, nanoseconds, text, unit),
        Err(_) => text.parse().ok(),
    }
}

fn in_unit(seconds: i64, nanoseconds: i64, text: &str, unit: TimeUnit) -> Option<i64> {
    let per_second = match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => SECOND,
    };
    let length = SECOND / per_second;
    // The parser drops what is finer than nanoseconds.
    let finer = memchr(b'.', text.as_bytes()).is_some_and(|point| {
        let digits = text.bytes().skip(point + 1).take_while(u8::is_ascii_digit);
        digits.skip(9).any(|digit| digit != b'0')
    });
    if finer || nanoseconds % length != 0 {
        return None;
    }
    seconds.checked_mul(per_second)?.checked_add(nanoseconds / length)
}
