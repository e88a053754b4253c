//! Column bounds from the footers and page indexes of Parquet files; whatever these leave out stays
//! unknown.
//!
//! A minimum and a maximum count only where they are in the order of the column's type: files of
//! old writers use another order, and files that name no order may use any, unless a type has only
//! one. A NULL count that nobody wrote is unknown: writers of Java leave it out of long texts. NaN
//! is in no bound.

use std::ops::Range;

use arrow::array::{Array, ArrayRef, BooleanArray};
use arrow::buffer::BooleanBuffer;
use arrow::compute::nullif;
use arrow::datatypes::{DataType, SchemaRef, TimeUnit};
use datafusion::physical_expr::expressions::Column;
use parquet::arrow::arrow_reader::statistics::StatisticsConverter;
use parquet::basic::{
    ColumnOrder, ConvertedType, LogicalType, SortOrder, TimeUnit as StoredUnit, Type,
};
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, RowGroupMetaData};
use parquet::file::page_index::column_index::ColumnIndexMetaData;
use parquet::file::page_index::offset_index::PageLocation;
use parquet::file::statistics::Statistics;
use parquet::schema::types::ColumnDescriptor;

use crate::prune::{Bounds, ColumnBounds, above_cut};

/// A column of a file that may have bounds: one that is not nested.
pub(super) struct Leaf<'a> {
    physical: &'a SchemaRef,
    footer: &'a ParquetMetaData,
    column: usize,
    leaf: usize,
    data_type: &'a DataType,
    converter: StatisticsConverter<'a>,
}

impl<'a> Leaf<'a> {
    /// The column at place `column` of `physical`, the columns of the file as they are decoded;
    /// None of a nested one.
    pub(in crate::formats) fn of(
        footer: &'a ParquetMetaData,
        physical: &'a SchemaRef,
        column: usize,
    ) -> Option<Self> {
        let field = physical.fields().get(column)?;
        let schema = footer.file_metadata().schema_descr();
        let leaf =
            (0..schema.num_columns()).find(|leaf| schema.get_column_root_idx(*leaf) == column)?;
        let root = schema.get_column_root(leaf);
        if !root.is_primitive()
            || root.name() != field.name()
            || schema.column(leaf).max_rep_level() > 0
        {
            return None;
        }
        let converter = StatisticsConverter::try_new(field.name(), physical, schema).ok()?;
        // Of two columns of one name it knows the first.
        (converter.parquet_column_index() == Some(leaf)).then_some(())?;
        let data_type = match field.data_type() {
            DataType::Dictionary(_, value) => value,
            data_type => data_type,
        };
        Some(Self { physical, footer, column, leaf, data_type, converter })
    }

    fn descriptor(&self) -> &ColumnDescriptor {
        &self.footer.file_metadata().schema_descr().columns()[self.leaf]
    }

    /// Returns true if the writer is known to compute bounds of this type wrongly: parquet-go 0.25
    /// lets a NaN end its search for the least and the greatest float, so that the numbers before
    /// it are out of its bounds.
    fn is_misjudged(&self) -> bool {
        let writer = self.footer.file_metadata().created_by();
        self.data_type.is_floating() && writer.is_some_and(|writer| writer.contains("parquet-go"))
    }

    fn is_required(&self) -> bool {
        self.descriptor().max_def_level() == 0
    }

    /// Least and greatest value by row group, null where they are not known or not in order.
    fn extremes(&self, groups: &[&RowGroupMetaData]) -> Option<(ArrayRef, ArrayRef)> {
        if self.is_misjudged() {
            return None;
        }
        let order = self.footer.file_metadata().column_order(self.leaf);
        if !in_order(order, self.descriptor(), self.data_type) {
            return None;
        }
        let chunks = || groups.iter().map(|group| group.column(self.leaf));
        if !decodes(self.data_type, self.descriptor(), chunks()) {
            return None;
        }
        let doubted = chunks().map(|chunk| !is_trusted(chunk, self.data_type));
        let doubted = BooleanArray::from(doubted.collect::<Vec<bool>>());
        let lower = self.converter.row_group_mins(groups.iter().copied()).ok()?;
        let upper = self.converter.row_group_maxes(groups.iter().copied()).ok()?;
        let may_be_cut = chunks().map(|chunk| chunk.statistics().is_none_or(|s| !s.max_is_exact()));
        let upper = above_cut(&upper, &may_be_cut.collect());
        Some((nullif(&lower, &doubted).ok()?, nullif(&upper, &doubted).ok()?))
    }

    /// Bounds of the column in these row groups.
    pub(super) fn of_groups(&self, groups: &[&RowGroupMetaData]) -> ColumnBounds {
        let bounds = ColumnBounds::unknown(self.data_type, groups.len());
        let nulls =
            groups.iter().map(|group| group.column(self.leaf).statistics()?.null_count_opt());
        let rows = groups.iter().map(|group| rows_of(group)).collect::<Vec<_>>();
        let bounds = match self.is_required() {
            true => bounds.without_nulls(),
            false => bounds.with_nulls(&nulls.collect::<Vec<_>>(), &rows),
        };
        match self.extremes(groups) {
            Some((lower, upper)) => bounds.with_extremes(&lower, &upper),
            None => bounds,
        }
    }

    /// The pages of the column in row group `number`; None where the page index does not say them.
    fn pages(&self, number: usize) -> Option<&'a [PageLocation]> {
        let pages = self.footer.offset_index()?.get(number)?.get(self.leaf)?.page_locations();
        let index = self.footer.column_index()?.get(number)?.get(self.leaf)?;
        // What it says is of other pages where there are more or fewer.
        let is_of_them =
            !matches!(index, ColumnIndexMetaData::NONE) && index.num_pages() == pages.len() as u64;
        is_of_them.then_some(pages.as_slice())
    }

    /// How many rows each page of row group `number` has. They were looked at when the page index
    /// was read.
    pub(super) fn page_rows(&self, number: usize) -> Option<Vec<u64>> {
        let pages = self.pages(number)?;
        let first = |page: &PageLocation| u64::try_from(page.first_row_index).ok();
        let all = rows_of(self.footer.row_group(number));
        let starts = pages.iter().map(first).collect::<Option<Vec<_>>>()?;
        let ends = starts.iter().skip(1).copied().chain([all]);
        starts.iter().zip(ends).map(|(start, end)| end.checked_sub(*start)).collect()
    }

    /// Bounds of the column in the pages of row group `number`.
    fn of_pages(&self, number: usize) -> Option<ColumnBounds> {
        let rows = self.page_rows(number)?;
        let bounds = ColumnBounds::unknown(self.data_type, rows.len());
        let index = self.footer.column_index()?.get(number)?.get(self.leaf)?;
        let nulls: Vec<Option<u64>> = match index.null_counts() {
            Some(counts) => counts.iter().map(|count| u64::try_from(*count).ok()).collect(),
            None => vec![None; rows.len()],
        };
        let bounds = match self.is_required() {
            true => bounds.without_nulls(),
            false => bounds.with_nulls(&nulls, &rows),
        };
        Some(match self.page_extremes(number) {
            Some((lower, upper)) => bounds.with_extremes(&lower, &upper),
            None => bounds,
        })
    }

    fn page_extremes(&self, number: usize) -> Option<(ArrayRef, ArrayRef)> {
        if self.is_misjudged() {
            return None;
        }
        let order = self.footer.file_metadata().column_order(self.leaf);
        let stored = self.descriptor().physical_type();
        // Numbers in bytes may have been cut like texts.
        let is_number_in_bytes = (self.data_type.is_numeric())
            && matches!(stored, Type::BYTE_ARRAY | Type::FIXED_LEN_BYTE_ARRAY);
        if is_number_in_bytes || !in_order(order, self.descriptor(), self.data_type) {
            return None;
        }
        let (columns, offsets) = (self.footer.column_index()?, self.footer.offset_index()?);
        let lower = self.converter.data_page_mins(columns, offsets, [&number]).ok()?;
        let upper = self.converter.data_page_maxes(columns, offsets, [&number]).ok()?;
        let upper = above_cut(&upper, &BooleanBuffer::new_set(upper.len()));
        Some((lower, upper))
    }
}

fn rows_of(group: &RowGroupMetaData) -> u64 {
    u64::try_from(group.num_rows()).unwrap_or(0)
}

/// Returns true if minima and maxima of a column are in the order in which its values are compared
/// here.
fn in_order(order: ColumnOrder, column: &ColumnDescriptor, data_type: &DataType) -> bool {
    let wanted = match data_type {
        DataType::Boolean
        | DataType::Utf8
        | DataType::LargeUtf8
        | DataType::Utf8View
        | DataType::Binary
        | DataType::LargeBinary
        | DataType::BinaryView
        | DataType::FixedSizeBinary(_) => SortOrder::UNSIGNED,
        data_type if data_type.is_unsigned_integer() => SortOrder::UNSIGNED,
        data_type if data_type.is_numeric() => SortOrder::SIGNED,
        DataType::Date32 | DataType::Date64 => SortOrder::SIGNED,
        DataType::Time32(unit) | DataType::Time64(unit) | DataType::Timestamp(unit, _) => {
            if !is_stored_in(*unit, column) {
                return false;
            }
            SortOrder::SIGNED
        }
        _ => return false,
    };
    let is_wanted = column.sort_order() == wanted;
    match order {
        ColumnOrder::TYPE_DEFINED_ORDER(_) => is_wanted,
        ColumnOrder::UNDEFINED => is_wanted && has_one_order(column),
        ColumnOrder::UNKNOWN => false,
    }
}

/// Returns true if the values of a column have only one order: booleans, signed integers, and types
/// stored as one.
fn has_one_order(column: &ColumnDescriptor) -> bool {
    match column.physical_type() {
        Type::BOOLEAN => true,
        Type::INT32 | Type::INT64 => column.sort_order() == SortOrder::SIGNED,
        _ => false,
    }
}

/// Returns true if times are stored in the unit in which they are decoded: bounds are not
/// converted.
fn is_stored_in(unit: TimeUnit, column: &ColumnDescriptor) -> bool {
    let stored = match (column.logical_type_ref(), column.converted_type()) {
        (Some(LogicalType::Timestamp { unit, .. } | LogicalType::Time { unit, .. }), _) => {
            match unit {
                StoredUnit::MILLIS => TimeUnit::Millisecond,
                StoredUnit::MICROS => TimeUnit::Microsecond,
                StoredUnit::NANOS => TimeUnit::Nanosecond,
            }
        }
        (_, ConvertedType::TIMESTAMP_MILLIS | ConvertedType::TIME_MILLIS) => TimeUnit::Millisecond,
        (_, ConvertedType::TIMESTAMP_MICROS | ConvertedType::TIME_MICROS) => TimeUnit::Microsecond,
        // A plain number, which the writer's Arrow schema declares to be a time.
        (None, ConvertedType::NONE) => return true,
        _ => return false,
    };
    stored == unit
}

/// Returns true if the minimum and maximum of a chunk may be believed.
fn is_trusted(chunk: &ColumnChunkMetaData, data_type: &DataType) -> bool {
    let Some(statistics) = chunk.statistics() else { return false };
    // The fields of old writers are in signed order, whatever the column is.
    if statistics.is_min_max_deprecated() && !has_one_order(chunk.column_descr()) {
        return false;
    }
    // A decimal of which digits were cut off is another number.
    let is_decimal_in_bytes =
        data_type.is_decimal() && matches!(statistics, Statistics::ByteArray(_));
    !is_decimal_in_bytes || statistics.min_is_exact() && statistics.max_is_exact()
}

/// Returns true if the `parquet` crate decodes all bounds of a column without failing: of numbers
/// in bytes it demands the right length.
fn decodes<'a>(
    data_type: &DataType,
    column: &ColumnDescriptor,
    mut chunks: impl Iterator<Item = &'a ColumnChunkMetaData>,
) -> bool {
    let Some(most) = data_type.primitive_width().filter(|_| data_type.is_numeric()) else {
        return true;
    };
    let fits = |bytes: Option<&[u8]>, is_fixed: bool| {
        bytes.is_none_or(|bytes| match is_fixed {
            true => bytes.len() <= most && usize::try_from(column.type_length()) == Ok(bytes.len()),
            false => (1..=most).contains(&bytes.len()),
        })
    };
    chunks.all(|chunk| match chunk.statistics() {
        Some(statistics @ Statistics::FixedLenByteArray(_)) => {
            fits(statistics.min_bytes_opt(), true) && fits(statistics.max_bytes_opt(), true)
        }
        Some(statistics @ Statistics::ByteArray(_)) => {
            fits(statistics.min_bytes_opt(), false) && fits(statistics.max_bytes_opt(), false)
        }
        _ => true,
    })
}

/// Row groups of a file as containers.
pub(super) struct GroupBounds<'a> {
    pub(in crate::formats) footer: &'a ParquetMetaData,
    /// The columns of the file, as they are decoded.
    pub(in crate::formats) physical: &'a SchemaRef,
    pub(in crate::formats) groups: Range<usize>,
}

impl Bounds for GroupBounds<'_> {
    fn containers(&self) -> usize {
        self.groups.len()
    }

    fn column(&self, column: &Column) -> Option<ColumnBounds> {
        let leaf = Leaf::of(self.footer, self.physical, column.index())?;
        let groups: Vec<_> = self.footer.row_groups().get(self.groups.clone())?.iter().collect();
        (self.physical.field(column.index()).name() == column.name())
            .then(|| leaf.of_groups(&groups))
    }
}

/// The pages of one column in a row group as containers.
pub(super) struct PageBounds<'a> {
    pub(super) leaf: &'a Leaf<'a>,
    pub(in crate::formats) group: usize,
    /// How many they are.
    pub(in crate::formats) pages: usize,
}

impl Bounds for PageBounds<'_> {
    fn containers(&self) -> usize {
        self.pages
    }

    fn column(&self, column: &Column) -> Option<ColumnBounds> {
        let is_same = column.index() == self.leaf.column
            && self.leaf.physical.field(column.index()).name() == column.name();
        is_same.then(|| self.leaf.of_pages(self.group))?
    }
}
