//! Bloom filters in Parquet footers, as far as the engine asks them rightly.
//!
//! It looks for a decimal by sixteen bytes. Writers take the bytes that they store, and those of fewer digits have fewer: the filter would say
//! of each decimal that it is not there.

use parquet::basic::{ConvertedType, LogicalType, Type};
use parquet::errors::Result;
use parquet::file::metadata::ParquetMetaData;
use parquet::schema::types::ColumnDescriptor;

/// Bytes by which the engine looks for a decimal.
const DECIMAL_BYTES: i32 = 16;

/// The footer without filters of such columns.
///
/// # Errors
/// Those of the format's own checks, when it is put together again.
pub(super) fn without_short_decimals(footer: ParquetMetaData) -> Result<ParquetMetaData> {
    let schema = footer.file_metadata().schema_descr_ptr();
    let short: Vec<bool> = schema.columns().iter().map(|column| is_short(column)).collect();
    if !short.contains(&true) {
        return Ok(footer);
    }
    let mut footer = footer.into_builder();
    let groups = footer.take_row_groups().into_iter().map(|group| {
        let mut group = group.into_builder();
        let columns = group.take_columns().into_iter().zip(&short);
        let columns = columns.map(|(column, is_short)| match is_short {
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

fn is_short(column: &ColumnDescriptor) -> bool {
    let is_decimal = column.converted_type() == ConvertedType::DECIMAL
        || matches!(column.logical_type_ref(), Some(LogicalType::Decimal { .. }));
    is_decimal
        && column.physical_type() == Type::FIXED_LEN_BYTE_ARRAY
        && column.type_length() != DECIMAL_BYTES
}
