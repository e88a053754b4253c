//! Arrays of one type as arrays of another: fields of structs by their names, at every level of
//! lists, maps and structs.
//!
//! Files of one table differ in the fields of their structs: newer ones have fields that older ones
//! lack. The casts of Arrow and DataFusion match such fields by name in structs at the top, but
//! refuse lists and maps of them.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeBinaryArray, GenericListArray, IntervalDayTimeArray,
    IntervalMonthDayNanoArray, IntervalYearMonthArray, MapArray, OffsetSizeTrait, StructArray,
    new_null_array,
};
use arrow::buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::compute::{CastOptions, can_cast_types, cast_with_options};
use arrow::datatypes::{
    DataType, Field, FieldRef, IntervalDayTime, IntervalMonthDayNano, IntervalUnit,
};

use crate::{Error, Result};

const STRICT: CastOptions<'static> =
    CastOptions { safe: false, format_options: arrow::util::display::FormatOptions::new() };

/// Bytes of an interval in Parquet: months, days and milliseconds.
const INTERVAL_BYTES: i32 = 12;

/// Says whether values of type `from` can become `to`; the reason where they cannot.
pub fn can_reshape(from: &DataType, to: &DataType) -> std::result::Result<(), String> {
    use DataType::{FixedSizeBinary, Interval, Map, Struct};
    if from == to || matches!(from, DataType::Null) {
        return Ok(());
    }
    if let (Some((from, _)), Some((to, _))) = (item_of(from), item_of(to)) {
        return can_reshape(from.data_type(), to.data_type());
    }
    match (from, to) {
        (Struct(stored), Struct(wanted)) => wanted.iter().try_for_each(|field| {
            match stored.iter().find(|stored| stored.name() == field.name()) {
                Some(stored) => can_reshape(stored.data_type(), field.data_type()),
                None if field.is_nullable() => Ok(()),
                None => Err(format!("the required field {:?} is missing", field.name())),
            }
        }),
        (Map(stored, _), Map(wanted, _)) => {
            let [stored, wanted] = [pair_of(stored), pair_of(wanted)];
            let (Some(stored), Some(wanted)) = (stored, wanted) else {
                return Err("a map has no keys and values".to_owned());
            };
            stored.iter().zip(wanted).try_for_each(|(stored, wanted)| {
                can_reshape(stored.data_type(), wanted.data_type())
            })
        }
        (FixedSizeBinary(INTERVAL_BYTES), Interval(_)) => Ok(()),
        _ if from.is_nested() == to.is_nested() && can_cast_types(from, to) => Ok(()),
        _ => Err(format!("{from} does not become {to}")),
    }
}

/// Returns `array` as an array of type `to`: fields by name, missing ones NULL, other values cast.
///
/// # Errors
/// `Data` where a value does not become one of that type, or a required field is missing.
pub fn reshape(array: &ArrayRef, to: &DataType) -> Result<ArrayRef> {
    use DataType::{FixedSizeBinary, FixedSizeList, Interval, LargeList, List, Map, Null, Struct};
    let from = array.data_type();
    if from == to {
        return Ok(Arc::clone(array));
    }
    match (from, to) {
        (Null, _) => Ok(new_null_array(to, array.len())),
        (Struct(_), Struct(fields)) => {
            let stored = array.as_struct();
            let columns = fields.iter().map(|field| field_of(stored, field));
            let columns = columns.collect::<Result<Vec<_>>>()?;
            let nulls = stored.nulls().cloned();
            let made =
                StructArray::try_new_with_length(fields.clone(), columns, nulls, stored.len());
            Ok(Arc::new(made?))
        }
        (List(_) | LargeList(_) | FixedSizeList(_, _), List(item)) => {
            list_of::<i32>(Items::of(array)?, item)
        }
        (List(_) | LargeList(_) | FixedSizeList(_, _), LargeList(item)) => {
            list_of::<i64>(Items::of(array)?, item)
        }
        (List(_) | LargeList(_) | FixedSizeList(_, _), FixedSizeList(item, _)) => {
            // The lengths of the lists are looked at by the cast, once their items are what they
            // should be.
            let list = list_of::<i64>(Items::of(array)?, item)?;
            Ok(cast_with_options(&list, to, &STRICT)?)
        }
        (Map(_, _), Map(entries, sorted)) => map_of(array.as_map(), entries, *sorted),
        (FixedSizeBinary(INTERVAL_BYTES), Interval(unit)) => {
            intervals(array.as_fixed_size_binary(), *unit)
        }
        _ if from.is_nested() == to.is_nested() => Ok(cast_with_options(array, to, &STRICT)?),
        _ => Err(Error::data(format!("stored values of type {from} do not become {to}"))),
    }
}

/// The item of a list type, and its length where all lists have the same.
fn item_of(data_type: &DataType) -> Option<(&FieldRef, Option<i32>)> {
    match data_type {
        DataType::List(item) | DataType::LargeList(item) => Some((item, None)),
        DataType::FixedSizeList(item, length) => Some((item, Some(*length))),
        _ => None,
    }
}

/// The fields of a map's entries: keys and values.
fn pair_of(entries: &Field) -> Option<[&FieldRef; 2]> {
    match entries.data_type() {
        DataType::Struct(fields) if fields.len() == 2 => Some([&fields[0], &fields[1]]),
        _ => None,
    }
}

fn field_of(stored: &StructArray, field: &FieldRef) -> Result<ArrayRef> {
    match stored.column_by_name(field.name()) {
        Some(column) => reshape(column, field.data_type()),
        None if field.is_nullable() => Ok(new_null_array(field.data_type(), stored.len())),
        None => Err(Error::data(format!(
            "the required field {:?} is missing in the file; declare it nullable",
            field.name()
        ))),
    }
}

/// Lists of any type: where each begins and ends among the items, which are these lists' alone.
struct Items {
    offsets: Vec<i64>,
    values: ArrayRef,
    nulls: Option<NullBuffer>,
}

impl Items {
    fn of(array: &ArrayRef) -> Result<Self> {
        Ok(match array.data_type() {
            DataType::List(_) => Self::of_lists(array.as_list::<i32>()),
            DataType::LargeList(_) => Self::of_lists(array.as_list::<i64>()),
            DataType::FixedSizeList(_, length) => {
                let lists = array.as_fixed_size_list();
                let length = i64::from(*length);
                Self {
                    offsets: (0..=lists.len() as i64).map(|number| number * length).collect(),
                    values: Arc::clone(lists.values()),
                    nulls: lists.nulls().cloned(),
                }
            }
            other => return Err(Error::data(format!("{other} is no list"))),
        })
    }

    fn of_lists<O: OffsetSizeTrait>(lists: &GenericListArray<O>) -> Self {
        Self::within(lists.offsets(), lists.values(), lists.nulls())
    }

    fn within<O: OffsetSizeTrait>(
        offsets: &OffsetBuffer<O>,
        values: &ArrayRef,
        nulls: Option<&NullBuffer>,
    ) -> Self {
        let first = offsets.first().map_or(0, |first| first.as_usize());
        let end = offsets.last().map_or(first, |last| last.as_usize());
        let offsets = offsets.iter().map(|offset| (offset.as_usize() - first) as i64).collect();
        Self { offsets, values: values.slice(first, end - first), nulls: nulls.cloned() }
    }

    fn offsets<O: OffsetSizeTrait>(&self) -> Result<OffsetBuffer<O>> {
        let offset = |offset: &i64| O::from_usize(usize::try_from(*offset).ok()?);
        let offsets: Option<Vec<O>> = self.offsets.iter().map(offset).collect();
        let offsets =
            offsets.ok_or_else(|| Error::data("the lists of a batch have more than 2^31 items"))?;
        Ok(OffsetBuffer::new(ScalarBuffer::from(offsets)))
    }
}

fn list_of<O: OffsetSizeTrait>(lists: Items, item: &FieldRef) -> Result<ArrayRef> {
    let values = reshape(&lists.values, item.data_type())?;
    let offsets = lists.offsets::<O>()?;
    let made = GenericListArray::<O>::try_new(Arc::clone(item), offsets, values, lists.nulls)?;
    Ok(Arc::new(made))
}

fn map_of(stored: &MapArray, entries: &FieldRef, sorted: bool) -> Result<ArrayRef> {
    let Some([key, value]) = pair_of(entries) else {
        return Err(Error::data("a map has no keys and values"));
    };
    let pairs: ArrayRef = Arc::new(stored.entries().clone());
    let maps = Items::within(stored.offsets(), &pairs, stored.nulls());
    let pairs = maps.values.as_struct();
    let columns = vec![
        reshape(pairs.column(0), key.data_type())?,
        reshape(pairs.column(1), value.data_type())?,
    ];
    let fields = vec![Arc::clone(key), Arc::clone(value)].into();
    let pairs = StructArray::try_new(fields, columns, None)?;
    let offsets = maps.offsets::<i32>()?;
    Ok(Arc::new(MapArray::try_new(Arc::clone(entries), offsets, pairs, maps.nulls, sorted)?))
}

/// Intervals of Parquet: three numbers of 32 bits. By the format they have no sign; writers of
/// Arrow, which also say which of the three they use, write signed ones.
fn intervals(stored: &FixedSizeBinaryArray, unit: IntervalUnit) -> Result<ArrayRef> {
    let parts = |value: &[u8]| -> [u32; 3] {
        std::array::from_fn(|part| {
            value[part * 4..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
        })
    };
    let all = || stored.iter().map(|value| value.map(parts));
    let lost = |[months, days, milliseconds]: [u32; 3]| {
        Error::data(format!(
            "an interval of {months} months, {days} days and {milliseconds} milliseconds does not fit Interval({unit:?})"
        ))
    };
    Ok(match unit {
        IntervalUnit::YearMonth => {
            let months = |value: [u32; 3]| match value {
                [months, 0, 0] => Ok(months.cast_signed()),
                other => Err(lost(other)),
            };
            let values = all().map(|value| value.map(months).transpose());
            Arc::new(values.collect::<Result<IntervalYearMonthArray>>()?)
        }
        IntervalUnit::DayTime => {
            let time = |value: [u32; 3]| match value {
                [0, days, time] => Ok(IntervalDayTime::new(days.cast_signed(), time.cast_signed())),
                other => Err(lost(other)),
            };
            let values = all().map(|value| value.map(time).transpose());
            Arc::new(values.collect::<Result<IntervalDayTimeArray>>()?)
        }
        IntervalUnit::MonthDayNano => {
            let interval = |value: [u32; 3]| {
                let [Ok(months), Ok(days)] = [value[0], value[1]].map(i32::try_from) else {
                    return Err(lost(value));
                };
                let nanoseconds = i64::from(value[2]) * 1_000_000;
                Ok(IntervalMonthDayNano::new(months, days, nanoseconds))
            };
            let values = all().map(|value| value.map(interval).transpose());
            Arc::new(values.collect::<Result<IntervalMonthDayNanoArray>>()?)
        }
    })
}
