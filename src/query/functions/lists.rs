//! Lists as vectors: `multi_hot(indices, size)` has 1 at each index of a list, and
//! `top_k(values, k [, scores])` keeps the k greatest values, or those with the greatest scores.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeListArray, Float32Array, LargeListArray, ListArray,
    UInt64Array, make_comparator, new_null_array,
};
use arrow::buffer::OffsetBuffer;
use arrow::compute::{CastOptions, SortOptions, cast_with_options, take};
use arrow::datatypes::{DataType, Field, Int64Type};
use datafusion::common::ScalarValue;

use super::Spec;
use super::arguments::{Call, Lists, count, plain, wrong_type};
use crate::floats::in_one_form;
use crate::{Error, Result};

pub(super) static MULTI_HOT: Spec = Spec {
    name: "multi_hot",
    usage: "multi_hot(indices, size)",
    arguments: 2..=2,
    coerce: coerce_multi_hot,
    output: |_, constants| match constants[1] {
        Some(size) => multi_hot_of(size).map(|size| vectors(size as i32)),
        None => Err(Error::query(
            "multi_hot(): the size must be written out as a number, since the type of the column depends on it",
        )),
    },
    compute: multi_hot,
};

pub(super) static TOP_K: Spec = Spec {
    name: "top_k",
    usage: "top_k(values, k) or top_k(values, k, scores)",
    arguments: 2..=3,
    coerce: coerce_top_k,
    output: |types, constants| {
        if let Some(k) = constants[1] {
            count("top_k", "k", k, MOST_KEPT)?;
        }
        Ok(plain(&types[0], true))
    },
    compute: top_k,
};

/// Larger vectors take too much memory: a batch of 8,192 rows of them has 512 MiB.
const LARGEST: i64 = 16_384;

const MOST_KEPT: i64 = i32::MAX as i64;

fn multi_hot_of(size: &ScalarValue) -> Result<usize> {
    count("multi_hot", "the size", size, LARGEST).map(|size| size as usize)
}

fn vectors(size: i32) -> DataType {
    DataType::FixedSizeList(Arc::new(Field::new_list_field(DataType::Float32, true)), size)
}

fn item_of(of: &DataType) -> Option<&DataType> {
    match of {
        DataType::List(item) | DataType::LargeList(item) => Some(item.data_type()),
        _ => None,
    }
}

fn coerce_multi_hot(types: &[DataType]) -> Result<Vec<DataType>> {
    let of = plain(&types[0], true);
    match item_of(&of) {
        Some(item) if item.is_integer() || item.is_null() => {}
        None if of.is_null() => {}
        _ => return Err(wrong_type("multi_hot", "indices", "a list of integers", &of)),
    }
    Ok(vec![of, types[1].clone()])
}

fn multi_hot(call: &Call<'_>) -> Result<ArrayRef> {
    let constants = call.constants("multi_hot", &[(1, "the size")])?;
    let lists = call.array(0)?;
    let Some(size) = constants[1].filter(|_| !lists.data_type().is_null()) else {
        return Ok(new_null_array(call.output, call.rows));
    };
    let size = multi_hot_of(size)?;
    let lists = Lists::of_any(&lists);
    let exact = CastOptions { safe: false, ..CastOptions::default() };
    let indices = cast_with_options(&lists.values, &DataType::Int64, &exact)?;
    let indices = indices.as_primitive::<Int64Type>();
    let mut values = vec![0f32; call.rows * size];
    for (row, vector) in values.chunks_exact_mut(size).enumerate() {
        for place in lists.places(row).into_iter().flatten() {
            if indices.is_null(place) {
                continue;
            }
            let index = indices.value(place);
            let found = usize::try_from(index).ok().and_then(|index| vector.get_mut(index));
            *found.ok_or_else(|| {
                Error::data(format!(
                    "multi_hot(): the index {index} must be in 0..{size}; raise the size, or leave it out with a WHERE or \
                     array_remove"
                ))
            })? = 1.0;
        }
    }
    let item = Arc::new(Field::new_list_field(DataType::Float32, true));
    let values = Arc::new(Float32Array::from(values));
    let (width, nulls) = (size as i32, lists.nulls);
    Ok(Arc::new(FixedSizeListArray::try_new_with_length(item, width, values, nulls, call.rows)?))
}

fn coerce_top_k(types: &[DataType]) -> Result<Vec<DataType>> {
    let mut found = types.to_vec();
    found[0] = plain(&types[0], true);
    let item = item_of(&found[0]);
    if item.is_none() && !found[0].is_null() {
        return Err(wrong_type("top_k", "values", "a list", &found[0]));
    }
    if let Some(scores) = types.get(2) {
        found[2] = plain(scores, true);
        match item_of(&found[2]) {
            Some(item) if item.is_numeric() || item.is_null() => {}
            None if found[2].is_null() => {}
            _ => return Err(wrong_type("top_k", "scores", "a list of numbers", scores)),
        }
    } else if item.is_some_and(DataType::is_nested) {
        return Err(Error::query(format!(
            "top_k() without scores takes lists of numbers, texts and times, and these are of the type {}; give scores",
            found[0]
        )));
    }
    Ok(found)
}

fn top_k(call: &Call<'_>) -> Result<ArrayRef> {
    let constants = call.constants("top_k", &[(1, "k")])?;
    let k = constants[1].map(|k| count("top_k", "k", k, MOST_KEPT)).transpose()?;
    let k = k.unwrap_or_default() as usize;
    let lists = call.array(0)?;
    let scores = (call.args.len() == 3).then(|| call.array(2)).transpose()?;
    let is_null = |array: &ArrayRef| array.data_type().is_null();
    if is_null(&lists) || scores.as_ref().is_some_and(is_null) {
        return Ok(new_null_array(call.output, call.rows));
    }
    let lists = Lists::of_any(&lists);
    let scores = scores.map(|scores| Lists::of_any(&scores));
    let by = scores.as_ref().unwrap_or(&lists);
    let keys = in_one_form(&by.values)?;
    let order = make_comparator(&keys, &keys, SortOptions::default())?;
    let (values_nulls, keys_nulls) = (lists.values.logical_nulls(), keys.logical_nulls());
    let is_there = |place: usize, key: usize| {
        values_nulls.as_ref().is_none_or(|nulls| nulls.is_valid(place))
            && keys_nulls.as_ref().is_none_or(|nulls| nulls.is_valid(key))
    };
    let (mut kept, mut lengths) = (Vec::<u64>::new(), Vec::with_capacity(call.rows));
    let mut nulls = Vec::with_capacity(call.rows);
    // Pairs of a value's place and its key's.
    let mut row_places: Vec<(usize, usize)> = Vec::new();
    for row in 0..call.rows {
        let (Some(values), Some(keys)) = (lists.places(row), by.places(row)) else {
            nulls.push(false);
            lengths.push(0);
            continue;
        };
        if values.len() != keys.len() {
            return Err(Error::data(format!(
                "top_k(): a row has {} values and {} scores; each value needs one",
                values.len(),
                keys.len()
            )));
        }
        row_places.clear();
        row_places.extend(values.zip(keys).filter(|(place, key)| is_there(*place, *key)));
        row_places.sort_unstable_by(|one, other| order(other.1, one.1).then(one.0.cmp(&other.0)));
        row_places.truncate(k);
        kept.extend(row_places.iter().map(|(place, _)| *place as u64));
        lengths.push(row_places.len());
        nulls.push(true);
    }
    let values = take(&lists.values, &UInt64Array::from(kept), None)?;
    let nulls = nulls.contains(&false).then(|| nulls.into());
    Ok(match call.output {
        DataType::LargeList(item) => {
            let offsets = OffsetBuffer::from_lengths(lengths);
            Arc::new(LargeListArray::try_new(Arc::clone(item), offsets, values, nulls)?)
        }
        DataType::List(item) => {
            let offsets = OffsetBuffer::from_lengths(lengths);
            Arc::new(ListArray::try_new(Arc::clone(item), offsets, values, nulls)?)
        }
        other => return Err(wrong_type("top_k", "values", "a list", other)),
    })
}
