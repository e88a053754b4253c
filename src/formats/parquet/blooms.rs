//! Bloom filters in Parquet footers, as far as the engine asks them rightly.
//!
//! A filter knows the bytes that a writer stores. The engine has to ask for the same bytes, or it
//! is told of a value that it is not there: it looks for a decimal by sixteen bytes, where writers
//! store fewer, and zero and NaN have several forms. So only the filters of integers, texts and
//! bytes are kept.

use parquet::basic::{ConvertedType, LogicalType, Type};
use parquet::errors::Result;
use parquet::file::metadata::ParquetMetaData;
use parquet::schema::types::ColumnDescriptor;

/// The footer without filters of other columns.
///
/// # Errors
/// Errors of the format's own checks, when it is put together again.
pub(in crate::formats) fn with_known_filters(footer: ParquetMetaData) -> Result<ParquetMetaData> {
    let schema = footer.file_metadata().schema_descr_ptr();
    let unknown: Vec<bool> = schema.columns().iter().map(|column| !is_known(column)).collect();
    let has_any = footer.row_groups().iter().any(|group| {
        let mut columns = group.columns().iter().zip(&unknown);
        columns.any(|(column, unknown)| *unknown && column.bloom_filter_offset().is_some())
    });
    if !has_any {
        return Ok(footer);
    }
    let mut footer = footer.into_builder();
    let groups = footer.take_row_groups().into_iter().map(|group| {
        let mut group = group.into_builder();
        let columns = group.take_columns().into_iter().zip(&unknown);
        let columns = columns.map(|(column, unknown)| match unknown {
            true => column
                .into_builder()
                .set_bloom_filter_offset(None)
                .set_bloom_filter_length(None)
                .build(),
            false => Ok(column),
        });
        let columns = columns.collect::<Result<Vec<_>>>()?;
        group.set_column_metadata(columns).build()
    });
    let groups = groups.collect::<Result<Vec<_>>>()?;
    Ok(footer.set_row_groups(groups).build())
}

/// Returns true if values of a column are stored in the bytes by which the engine looks for them.
fn is_known(column: &ColumnDescriptor) -> bool {
    let is_plain = match column.logical_type_ref() {
        None => true,
        Some(LogicalType::Integer { .. } | LogicalType::String) => true,
        Some(_) => false,
    };
    let is_plain_too = matches!(
        column.converted_type(),
        ConvertedType::NONE
            | ConvertedType::UTF8
            | ConvertedType::INT_8
            | ConvertedType::INT_16
            | ConvertedType::INT_32
            | ConvertedType::INT_64
            | ConvertedType::UINT_8
            | ConvertedType::UINT_16
            | ConvertedType::UINT_32
            | ConvertedType::UINT_64
    );
    is_plain
        && is_plain_too
        && matches!(column.physical_type(), Type::INT32 | Type::INT64 | Type::BYTE_ARRAY)
}
