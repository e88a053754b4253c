//! Rows from anywhere in a stage, as one array per column.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayData, ArrayRef, AsArray, BooleanArray, GenericListArray, OffsetSizeTrait,
    make_array,
};
use arrow::buffer::{BooleanBuffer, Buffer, MutableBuffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::compute::interleave;
use arrow::datatypes::{ArrowNativeType, DataType, FieldRef};

use crate::Result;
use crate::materialize::release;

/// The values at `places`, (array, row of the array), of at least one array, in memory of their
/// own.
pub(super) fn gather(arrays: &[&dyn Array], places: &[(usize, usize)]) -> Result<ArrayRef> {
    let lists = match arrays[0].data_type() {
        DataType::Boolean => return Ok(gather_bits(arrays, places)),
        DataType::List(item) => gather_lists::<i32>(item, arrays, places)?,
        DataType::LargeList(item) => gather_lists::<i64>(item, arrays, places)?,
        _ => None,
    };
    match lists {
        Some(lists) => Ok(lists),
        None => release(&interleave(arrays, places)?),
    }
}

/// `interleave` takes seven times as long for booleans as for numbers.
fn gather_bits(arrays: &[&dyn Array], places: &[(usize, usize)]) -> ArrayRef {
    let arrays: Vec<&BooleanArray> = arrays.iter().map(|array| array.as_boolean()).collect();
    let collect = |value: &dyn Fn(&BooleanArray, usize) -> bool| {
        BooleanBuffer::collect_bool(places.len(), |place| {
            let (array, row) = places[place];
            value(arrays[array], row)
        })
    };
    let values = collect(&|array, row| array.value(row));
    let nulls = nulls_of(arrays.iter().map(|array| array.nulls()), places);
    Arc::new(BooleanArray::new(values, nulls))
}

/// Lists of numbers without NULLs among them, copied list by list: `interleave` makes a place of
/// sixteen bytes for each number. None for other lists, and for more numbers than offsets count.
fn gather_lists<O: OffsetSizeTrait>(
    item: &FieldRef,
    arrays: &[&dyn Array],
    places: &[(usize, usize)],
) -> Result<Option<ArrayRef>> {
    let Some(width) = item.data_type().primitive_width() else { return Ok(None) };
    let lists: Vec<&GenericListArray<O>> = arrays.iter().map(|array| array.as_list()).collect();
    if lists.iter().any(|list| list.values().null_count() > 0) {
        return Ok(None);
    }
    let numbers: Vec<ArrayData> = lists.iter().map(|list| list.values().to_data()).collect();
    let stored: Vec<&[u8]> =
        numbers.iter().map(|data| &data.buffers()[0].as_slice()[data.offset() * width..]).collect();
    let nulls = nulls_of(lists.iter().map(|list| list.nulls()), places);
    let range = |(array, row): (usize, usize)| {
        let list = lists[array];
        let offsets = list.value_offsets();
        // A NULL may have numbers behind it.
        match list.is_valid(row) {
            true => offsets[row].as_usize()..offsets[row + 1].as_usize(),
            false => 0..0,
        }
    };
    let mut offsets = vec![O::usize_as(0); places.len() + 1];
    let mut end = 0_usize;
    for (place, offset) in places.iter().zip(&mut offsets[1..]) {
        end += range(*place).len();
        let Some(found) = O::from_usize(end) else { return Ok(None) };
        *offset = found;
    }
    let mut values = MutableBuffer::with_capacity(end * width);
    for place in places {
        let numbers = range(*place);
        values.extend_from_slice(&stored[place.0][numbers.start * width..numbers.end * width]);
    }
    let values = ArrayData::builder(item.data_type().clone()).len(end).add_buffer(values.into());
    let (offsets, values) = (ScalarBuffer::from(offsets), make_array(values.build()?));
    let offsets = OffsetBuffer::new(offsets);
    let lists = GenericListArray::<O>::try_new(Arc::clone(item), offsets, values, nulls)?;
    Ok(Some(Arc::new(lists)))
}

/// A column of lists of whole numbers or floats, as bytes.
pub(super) struct Lists<'a> {
    ends: Ends<'a>,
    /// What the ends count from.
    numbers: Buffer,
    /// Bytes of a number.
    width: usize,
}

enum Ends<'a> {
    Short(&'a [i32]),
    Long(&'a [i64]),
}

impl<'a> Lists<'a> {
    /// The lists of an array with numbers of `width` bytes; None for other types, and where a list
    /// or a number is NULL.
    pub(super) fn of(array: &'a dyn Array, width: usize) -> Option<Self> {
        let (ends, values) = match array.data_type() {
            DataType::List(_) => {
                let lists = array.as_list::<i32>();
                (Ends::Short(lists.value_offsets()), lists.values())
            }
            DataType::LargeList(_) => {
                let lists = array.as_list::<i64>();
                (Ends::Long(lists.value_offsets()), lists.values())
            }
            _ => return None,
        };
        let kind = values.data_type();
        let is_number = kind.is_integer() || kind.is_floating();
        let is_plain = is_number && kind.primitive_width() == Some(width);
        if !is_plain || array.null_count() > 0 || values.null_count() > 0 {
            return None;
        }
        let data = values.to_data();
        let numbers = data.buffers()[0].slice(data.offset() * width);
        Some(Self { ends, numbers, width })
    }

    /// The bytes of `length` numbers of a list, from the number `from` on; None where it has fewer.
    pub(super) fn part(&self, row: usize, from: usize, length: usize) -> Option<&[u8]> {
        let (start, end) = match self.ends {
            Ends::Short(ends) => (ends.get(row)?.as_usize(), ends.get(row + 1)?.as_usize()),
            Ends::Long(ends) => (ends.get(row)?.as_usize(), ends.get(row + 1)?.as_usize()),
        };
        let start = start.checked_add(from)?;
        let stop = start.checked_add(length).filter(|stop| *stop <= end)?;
        self.numbers.get(start * self.width..stop * self.width)
    }
}

/// Which of the values at `places` are NULL, by the NULLs of each array; None where no array has
/// one.
fn nulls_of<'a>(
    nulls: impl Iterator<Item = Option<&'a NullBuffer>>,
    places: &[(usize, usize)],
) -> Option<NullBuffer> {
    let nulls: Vec<_> = nulls.map(|nulls| nulls.filter(|nulls| nulls.null_count() > 0)).collect();
    nulls.iter().any(Option::is_some).then(|| {
        let is_valid = |place: usize| {
            let (array, row) = places[place];
            nulls[array].is_none_or(|nulls| nulls.is_valid(row))
        };
        NullBuffer::new(BooleanBuffer::collect_bool(places.len(), is_valid))
    })
}

#[cfg(test)]
mod tests {
    use arrow::array::{FixedSizeBinaryArray, Float32Array, Int64Array, StringArray};
    use arrow::datatypes::Field;
    use proptest::prelude::*;

    use super::*;

    /// Lists of these lengths over `values`, every fifth one NULL, as a slice of longer arrays.
    fn lists<O: OffsetSizeTrait>(lengths: &[usize], values: ArrayRef, skipped: usize) -> ArrayRef {
        let mut offsets = vec![O::usize_as(0)];
        for length in lengths {
            let last = offsets[offsets.len() - 1].as_usize();
            offsets.push(O::usize_as((last + length).min(values.len())));
        }
        let field = Arc::new(Field::new("item", values.data_type().clone(), true));
        let offsets = OffsetBuffer::new(offsets.into());
        let nulls: NullBuffer = (0..lengths.len()).map(|row| row % 5 != 3).collect();
        let all = GenericListArray::<O>::try_new(field, offsets, values, Some(nulls)).unwrap();
        let skipped = skipped.min(all.len());
        Arc::new(all.slice(skipped, all.len() - skipped))
    }

    proptest! {
        #[test]
        fn lists_are_those_that_interleave_makes(
            lengths in prop::collection::vec(0..9_usize, 1..40),
            skipped in 0..5_usize,
            picks in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 0..60),
        ) {
            let number = |place: i64| place * 7 - 3;
            let integers: ArrayRef = Arc::new(Int64Array::from_iter_values((0..90).map(number)));
            let floats: ArrayRef = Arc::new(Float32Array::from_iter_values((0..90_u8).map(f32::from)));
            let with_nulls: ArrayRef =
                Arc::new((0..90).map(|place| (place % 4 > 0).then_some(place)).collect::<Int64Array>());
            let texts: ArrayRef =
                Arc::new(StringArray::from_iter_values((0..90).map(|place| place.to_string())));
            let bytes: ArrayRef = Arc::new(
                FixedSizeBinaryArray::try_from_iter((0..90_u8).map(|byte| [byte, 1, 2])).unwrap(),
            );
            for values in [integers, floats, with_nulls, texts, bytes] {
                // Values that are a slice, too.
                let values = values.slice(skipped, 90 - skipped);
                for is_large in [false, true] {
                    let make = |lengths: &[usize]| match is_large {
                        false => lists::<i32>(lengths, Arc::clone(&values), skipped),
                        true => lists::<i64>(lengths, Arc::clone(&values), skipped),
                    };
                    let (one, other) = (make(&lengths), make(&lengths[lengths.len() / 2..]));
                    let arrays = [one.as_ref(), other.as_ref()];
                    let places: Vec<(usize, usize)> = picks
                        .iter()
                        .map(|(second, row)| (usize::from(*second), row))
                        .filter(|(array, _)| !arrays[*array].is_empty())
                        .map(|(array, row)| (array, row.index(arrays[array].len())))
                        .collect();
                    let found = gather(&arrays, &places).unwrap();
                    let expected = interleave(&arrays, &places).unwrap();
                    found.to_data().validate_full().unwrap();
                    prop_assert_eq!(&found, &expected);
                }
            }
        }
    }

    #[test]
    fn gathered_lists_hold_no_more_than_their_own_numbers() {
        let all: ArrayRef = Arc::new(Int64Array::from_iter_values(0..100_000));
        let lists: ArrayRef = lists::<i32>(&[50_000, 50_000], all, 0);
        let found = gather(&[lists.as_ref()], &[(0, 0)]).unwrap();
        assert!(found.get_array_memory_size() < 500_000);
    }
}
