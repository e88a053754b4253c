//! Arguments of the functions: constants, which are read once for each batch, and lists, whose
//! elements are computed like values of a column.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeListArray, GenericListArray, OffsetSizeTrait,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::ScalarValue;
use datafusion::logical_expr::ColumnarValue;

use crate::{Error, Result};

/// A call with its arguments for one batch.
pub(super) struct Call<'a> {
    pub args: &'a [ColumnarValue],
    pub rows: usize,
    /// The type of the values, as it was planned.
    pub output: &'a DataType,
}

impl Call<'_> {
    /// The values of an argument, one for each row.
    pub fn array(&self, at: usize) -> Result<ArrayRef> {
        Ok(self.args[at].to_array(self.rows)?)
    }

    /// The arguments of which some must be constants, by place and name: those are there, the
    /// others are None.
    ///
    /// # Errors
    /// `Query` for a column in the place of a constant.
    pub fn constants(
        &self,
        function: &str,
        names: &[(usize, &str)],
    ) -> Result<Vec<Option<&ScalarValue>>> {
        let mut found = vec![None; self.args.len()];
        for (at, name) in names.iter().filter(|(at, _)| *at < self.args.len()) {
            match &self.args[*at] {
                ColumnarValue::Scalar(value) => found[*at] = Some(value),
                ColumnarValue::Array(_) => {
                    return Err(Error::query(format!(
                        "{function}(): {name} must be a constant, and here it has a value for each row; write it out"
                    )));
                }
            }
        }
        Ok(found)
    }
}

/// The error for a constant that is not what it must be.
pub(super) fn refused(function: &str, name: &str, wanted: &str, found: &ScalarValue) -> Error {
    let found = match found {
        found if found.is_null() => "NULL".to_owned(),
        ScalarValue::Utf8(Some(text))
        | ScalarValue::LargeUtf8(Some(text))
        | ScalarValue::Utf8View(Some(text)) => format!("the text {text:?}"),
        other => format!("{other}"),
    };
    Error::query(format!("{function}(): {name} must be {wanted}, not {found}"))
}

/// The error for an argument of a type that a function does not take.
pub(super) fn wrong_type(function: &str, name: &str, wanted: &str, found: &DataType) -> Error {
    Error::query(format!("{function}(): {name} must be {wanted}, and is of the type {found}"))
}

/// A constant that is a whole number; None for anything else, also for NULL.
pub(super) fn whole(value: &ScalarValue) -> Option<i128> {
    use ScalarValue::{Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64};
    match value {
        Int8(found) => found.map(i128::from),
        Int16(found) => found.map(i128::from),
        Int32(found) => found.map(i128::from),
        Int64(found) => found.map(i128::from),
        UInt8(found) => found.map(i128::from),
        UInt16(found) => found.map(i128::from),
        UInt32(found) => found.map(i128::from),
        UInt64(found) => found.map(i128::from),
        _ => None,
    }
}

/// A constant that is a number; None for anything else, also for NULL.
pub(super) fn number(value: &ScalarValue) -> Option<f64> {
    if !value.data_type().is_numeric() {
        return None;
    }
    match value.cast_to(&DataType::Float64) {
        Ok(ScalarValue::Float64(found)) => found,
        _ => None,
    }
}

/// A whole number from 1 to `most`.
pub(super) fn count(function: &str, name: &str, value: &ScalarValue, most: i64) -> Result<i64> {
    match whole(value) {
        Some(found) if (1..=i128::from(most)).contains(&found) => Ok(found as i64),
        _ => Err(refused(function, name, &format!("a whole number from 1 to {most}"), value)),
    }
}

/// The type of what a dictionary or a run stands for; lists as lists with offsets where
/// `only_lists`, or else with their fixed length.
pub(super) fn plain(of: &DataType, only_lists: bool) -> DataType {
    use DataType::{
        Dictionary, FixedSizeList, LargeList, LargeListView, List, ListView, RunEndEncoded,
    };
    let item = |field: &FieldRef| {
        Arc::new(Field::new_list_field(plain(field.data_type(), only_lists), true))
    };
    match of {
        Dictionary(_, values) => plain(values, only_lists),
        RunEndEncoded(_, values) => plain(values.data_type(), only_lists),
        List(field) | ListView(field) => List(item(field)),
        LargeList(field) | LargeListView(field) => LargeList(item(field)),
        FixedSizeList(field, _) if only_lists => List(item(field)),
        FixedSizeList(field, length) => FixedSizeList(item(field), *length),
        other => other.clone(),
    }
}

/// The type inside lists of any depth.
pub(super) fn element_of(of: &DataType) -> &DataType {
    use DataType::{FixedSizeList, LargeList, LargeListView, List, ListView};
    match of {
        List(item) | LargeList(item) | ListView(item) | LargeListView(item) => {
            element_of(item.data_type())
        }
        FixedSizeList(item, _) => element_of(item.data_type()),
        other => other,
    }
}

/// The type with another one inside of its lists.
pub(super) fn with_element(of: &DataType, element: DataType) -> DataType {
    use DataType::{FixedSizeList, LargeList, List};
    let item = |field: &FieldRef, element| {
        Arc::new(Field::new_list_field(with_element(field.data_type(), element), true))
    };
    match of {
        List(field) => List(item(field, element)),
        LargeList(field) => LargeList(item(field, element)),
        FixedSizeList(field, length) => FixedSizeList(item(field, element), *length),
        _ => element,
    }
}

/// Computes values, also those inside of lists.
pub(super) fn each_element(
    array: &ArrayRef,
    compute: &dyn Fn(&ArrayRef) -> Result<ArrayRef>,
) -> Result<ArrayRef> {
    Ok(match array.data_type() {
        DataType::List(_) => Arc::new(of_list(array.as_list::<i32>(), compute)?),
        DataType::LargeList(_) => Arc::new(of_list(array.as_list::<i64>(), compute)?),
        DataType::FixedSizeList(_, length) => {
            let lists = array.as_fixed_size_list();
            let values = each_element(lists.values(), compute)?;
            let item = Arc::new(Field::new_list_field(values.data_type().clone(), true));
            let nulls = lists.nulls().cloned();
            let rows = lists.len();
            Arc::new(FixedSizeListArray::try_new_with_length(item, *length, values, nulls, rows)?)
        }
        _ => compute(array)?,
    })
}

fn of_list<O: OffsetSizeTrait>(
    array: &GenericListArray<O>,
    compute: &dyn Fn(&ArrayRef) -> Result<ArrayRef>,
) -> Result<GenericListArray<O>> {
    let Lists { offsets, values, nulls } = Lists::of(array);
    let values = each_element(&values, compute)?;
    let item = Arc::new(Field::new_list_field(values.data_type().clone(), true));
    let offsets = offsets.into_iter().map(O::usize_as).collect::<Vec<_>>();
    Ok(GenericListArray::try_new(item, OffsetBuffer::new(offsets.into()), values, nulls)?)
}

/// Lists whose values are those of their own rows: an array may be a slice of a long one.
pub(super) struct Lists {
    /// Row i has the values from `offsets[i]` to `offsets[i + 1]`.
    pub offsets: Vec<usize>,
    pub values: ArrayRef,
    pub nulls: Option<NullBuffer>,
}

impl Lists {
    pub fn of<O: OffsetSizeTrait>(array: &GenericListArray<O>) -> Self {
        let ends = array.value_offsets();
        let (first, last) = (ends[0].as_usize(), ends[array.len()].as_usize());
        Self {
            offsets: ends.iter().map(|end| end.as_usize() - first).collect(),
            values: array.values().slice(first, last - first),
            nulls: array.nulls().cloned(),
        }
    }

    /// The lists of an array of lists with offsets.
    pub fn of_any(array: &ArrayRef) -> Self {
        match array.data_type() {
            DataType::LargeList(_) => Self::of(array.as_list::<i64>()),
            _ => Self::of(array.as_list::<i32>()),
        }
    }

    /// The places of a row's values; none of a row that is NULL.
    pub fn places(&self, row: usize) -> Option<std::ops::Range<usize>> {
        let is_null = self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
        (!is_null).then(|| self.offsets[row]..self.offsets[row + 1])
    }
}
