//! Columns that the engine's own scan cannot read, or reads wrongly, so that they are read here
//! despite all other reasons.
//!
//! Integers of 32 bits that are stored as differences may have some of 64, which the decoder
//! refuses (`unpacked.rs`). Intervals lose their months, and texts that repeat exceed what an array
//! holds (`decoded.rs`). Differences that are packed in blocks of another size than most writers
//! choose, as DuckDB's are, are an error to the decoder where it has to pass over some. And times
//! of twelve bytes (`INT96`) become 64-bit numbers of nanoseconds, which hold the years 1677 to
//! 2262: others would be another time.

use std::ops::Range;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef, TimeUnit};
use parquet::basic::{ConvertedType, Type};
use parquet::column::reader::ColumnReaderImpl;
use parquet::data_type::{Int96, Int96Type};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};

use super::chunk::{Chunk, pages};
use super::decoded::may_be_wide;
use super::group::can_skip;
use super::page_filter::PageLayout;
use super::unpacked::is_unpacked;
use crate::formats::parquet::pages::wrong;

/// Values that are looked at together.
const AT_ONCE: usize = 4096;

/// 1970-01-01 as a Julian day, by which such times are counted.
const EPOCH_DAY: i128 = 2_440_588;

const DAY_NANOSECONDS: i128 = 86_400_000_000_000;

/// Returns true if the scan would read some of the `leaves` wrongly in some of the row groups. It
/// may pass rows over if it `skips`. With a page index it does so page by page as far as possible,
/// so reading only these pages is better.
pub(super) fn is_hard(
    footer: &ParquetMetaData,
    groups: Range<usize>,
    leaves: &[usize],
    skips: bool,
) -> bool {
    let groups = footer.row_groups().get(groups).unwrap_or_default();
    groups.iter().any(|group| {
        let is_indexed = |leaf: &usize| group.column(*leaf).offset_index_offset().is_some();
        let is_hard = |leaf: &usize| {
            let column = group.column(*leaf);
            is_other(column) || is_unpacked(column) || may_be_wide(column)
        };
        leaves.iter().any(is_hard)
            || skips && !can_skip(group, leaves) && !leaves.iter().any(is_indexed)
    })
}

/// Returns true if all pages of `leaves` must be read, for any wanted rows: to check all values,
/// because values cannot be skipped, or because single pages are left to the decoder of the
/// `parquet` crate.
pub(super) fn needs_all(
    footer: &ParquetMetaData,
    groups: Range<usize>,
    leaves: &[usize],
    skips: bool,
) -> bool {
    let groups = footer.row_groups().get(groups).unwrap_or_default();
    groups.iter().any(|group| {
        let needs_all = |leaf: &usize| {
            let column = group.column(*leaf);
            let is_changed = is_unpacked(column) || may_be_wide(column);
            is_other(column) || is_changed && PageLayout::of(column).is_none()
        };
        leaves.iter().any(needs_all) || skips && !can_skip(group, leaves)
    })
}

/// Returns true if the decoder makes something else of a column's values than they are.
fn is_other(column: &ColumnChunkMetaData) -> bool {
    column.column_type() == Type::INT96
        || column.column_descr().converted_type() == ConvertedType::INTERVAL
}

/// The columns of a file, with `INT96` columns in the unit that the table's schema declares: a unit
/// that holds all years needs no nanoseconds.
pub(super) fn in_units_of(
    physical: SchemaRef,
    footer: &ParquetMetaData,
    table: &Schema,
) -> SchemaRef {
    let schema = footer.file_metadata().schema_descr();
    let leaves = schema.columns().iter().enumerate();
    let times = leaves.filter(|(_, column)| column.physical_type() == Type::INT96);
    let times: Vec<usize> = times
        .filter(|(_, column)| column.path().parts().len() == 1)
        .map(|(leaf, _)| schema.get_column_root_idx(leaf))
        .collect();
    if times.is_empty() {
        return physical;
    }
    let unit = |field: &Field| match (field.data_type(), table.field_with_name(field.name())) {
        (DataType::Timestamp(TimeUnit::Nanosecond, None), Ok(declared)) => {
            match declared.data_type() {
                DataType::Timestamp(unit, _) if *unit != TimeUnit::Nanosecond => Some(*unit),
                _ => None,
            }
        }
        _ => None,
    };
    let fields = physical.fields().iter().enumerate().map(|(root, field)| {
        match unit(field).filter(|_| times.contains(&root)) {
            Some(unit) => {
                let data_type = DataType::Timestamp(unit, None);
                Arc::new(field.as_ref().clone().with_data_type(data_type))
            }
            None => Arc::clone(field),
        }
    });
    let fields: Fields = fields.collect();
    Arc::new(Schema::new_with_metadata(fields, physical.metadata().clone()))
}

/// Refuses times of a chunk, which is all here, that a column of this type does not hold.
///
/// # Errors
/// That one of them is such a time, or that the chunk is damaged.
pub(super) fn check_times(
    chunk: &Arc<Chunk>,
    column: &ColumnChunkMetaData,
    rows: usize,
    data_type: &DataType,
) -> Result<()> {
    if column.column_type() != Type::INT96 {
        return Ok(());
    }
    let (divisor, years, advice) = match has_nanoseconds(data_type) {
        true => (1, "1677 to 2262", "; declare its type (schema=): timestamp[us]"),
        false => (1000, "-290307 to 294246", ""),
    };
    let mut pages = pages(chunk, column, rows, None)?;
    let reader = pages.next().transpose()?;
    let reader = reader.ok_or_else(|| ParquetError::General("a chunk has no pages".to_owned()))?;
    let mut reader = ColumnReaderImpl::<Int96Type>::new(column.column_descr_ptr(), reader);
    let (mut values, mut definition, mut repetition) = (Vec::new(), Vec::new(), Vec::new());
    loop {
        let levels = (Some(&mut definition), Some(&mut repetition));
        let (records, ..) = reader.read_records(AT_ONCE, levels.0, levels.1, &mut values)?;
        if !values.iter().all(|value| i64::try_from(nanoseconds(value) / divisor).is_ok()) {
            return Err(wrong(
                column.column_path(),
                &format!("it holds a time that its unit does not (years {years}){advice}"),
            ));
        }
        if records == 0 {
            return Ok(());
        }
        values.clear();
        definition.clear();
        repetition.clear();
    }
}

/// Since 1970.
fn nanoseconds(value: &Int96) -> i128 {
    let [low, high, day] = [value.data()[0], value.data()[1], value.data()[2]];
    let of_day = i128::from(u64::from(high) << 32 | u64::from(low));
    (i128::from(day.cast_signed()) - EPOCH_DAY) * DAY_NANOSECONDS + of_day
}

fn has_nanoseconds(data_type: &DataType) -> bool {
    match data_type {
        DataType::Timestamp(unit, _) => *unit == TimeUnit::Nanosecond,
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::FixedSizeList(item, _)
        | DataType::Map(item, _) => has_nanoseconds(item.data_type()),
        DataType::Struct(fields) => fields.iter().any(|field| has_nanoseconds(field.data_type())),
        DataType::Dictionary(_, value) => has_nanoseconds(value),
        _ => false,
    }
}
