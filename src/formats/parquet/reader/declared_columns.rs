//! Converts decoded columns to their final types: texts that were decoded as views, and bytes that
//! are intervals.
//!
//! A column of texts has 2 GiB at most, which rows that name one long text of a dictionary again
//! and again exceed. Views of the texts repeat nothing; they become texts in batches that are short
//! enough.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::DataType;

use crate::formats::reshape::reshape;
use crate::{Error, Result};

/// Bytes of the texts of a batch of several rows.
const MOST_BYTES: u64 = 64 << 20;

/// Columns of some rows, by their place in the file.
pub(super) type Columns = Vec<(usize, ArrayRef)>;

/// Decoded rows that wait to be handed out.
#[derive(Default)]
pub(super) struct DeclaredColumns(Option<(usize, Columns)>);

impl DeclaredColumns {
    /// Takes the next rows; those before them were handed out.
    pub(super) fn put(&mut self, rows: usize, columns: Columns) {
        self.0 = Some((rows, columns));
    }

    /// The next rows, each column of the type that `type_of` says for its place; None if there are
    /// none. Other columns stay unchanged.
    ///
    /// # Errors
    /// `Data` where one row alone is too long, or a value is none of its column's type.
    pub(super) fn take<'a>(
        &mut self,
        type_of: impl Fn(usize) -> Option<&'a DataType>,
    ) -> Result<Option<(usize, Columns)>> {
        let Some((rows, columns)) = self.0.take() else { return Ok(None) };
        let is_other = |(place, array): &(usize, ArrayRef)| {
            type_of(*place).is_some_and(|wanted| wanted != array.data_type())
        };
        if !columns.iter().any(is_other) {
            return Ok(Some((rows, columns)));
        }
        let count = count_of(rows, &columns)?;
        let slice = |from: usize, rows: usize| -> Columns {
            columns.iter().map(|(place, array)| (*place, array.slice(from, rows))).collect()
        };
        if count < rows {
            self.put(rows - count, slice(count, rows - count));
        }
        let piece = slice(0, count).into_iter().map(|(place, array)| match type_of(place) {
            Some(wanted) => Ok((place, reshape(&array, wanted)?)),
            None => Ok((place, array)),
        });
        Ok(Some((count, piece.collect::<Result<_>>()?)))
    }
}

/// How many of the rows are a batch.
fn count_of(rows: usize, columns: &Columns) -> Result<usize> {
    let bytes = |count: usize| -> u64 {
        columns.iter().map(|(_, array)| bytes_of_views(&array.slice(0, count))).sum()
    };
    let mut count = rows;
    while count > 1 && bytes(count) > MOST_BYTES {
        count /= 2;
    }
    if count == 1 && bytes(1) > i32::MAX as u64 {
        return Err(Error::data(
            "one row has more than 2 GiB of texts, which a list of texts cannot hold; select the other columns",
        ));
    }
    Ok(count)
}

/// Bytes that the views in an array show.
fn bytes_of_views(array: &ArrayRef) -> u64 {
    let shown = |views: &[u128]| views.iter().map(|view| u64::from(*view as u32)).sum();
    let items = |values: &ArrayRef, first: usize, end: usize| {
        bytes_of_views(&values.slice(first, end - first))
    };
    match array.data_type() {
        DataType::Utf8View => shown(array.as_string_view().views()),
        DataType::BinaryView => shown(array.as_binary_view().views()),
        DataType::Struct(_) => array.as_struct().columns().iter().map(bytes_of_views).sum(),
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            let offsets = list.offsets();
            items(list.values(), offsets[0] as usize, offsets[list.len()] as usize)
        }
        DataType::LargeList(_) => {
            let list = array.as_list::<i64>();
            let offsets = list.offsets();
            items(list.values(), offsets[0] as usize, offsets[list.len()] as usize)
        }
        DataType::FixedSizeList(_, _) => bytes_of_views(array.as_fixed_size_list().values()),
        DataType::Map(_, _) => {
            let map = array.as_map();
            let (first, end) = (map.offsets()[0] as usize, map.offsets()[map.len()] as usize);
            items(map.keys(), first, end) + items(map.values(), first, end)
        }
        _ => 0,
    }
}
