//! Bounds of floats in Parquet footers, as far as they hold for NaN.
//!
//! Writers leave NaN out of a column's minimum and maximum, and nothing says whether there is one. To a comparison here NaN is
//! greater than every number, so a row group whose greatest number is 2 may hold rows of which `x > 5` or `x <> 2` is true. A
//! maximum is therefore taken for NaN, as it is in manifests of Iceberg; minima hold, so that `x < 5` prunes as ever. (A NaN with
//! a sign, which comparisons put below all numbers, may be pruned by one.)

use parquet::basic::{LogicalType, Type};
use parquet::errors::Result;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};
use parquet::file::page_index::column_index::ColumnIndexMetaData;
use parquet::file::statistics::Statistics;
use parquet::schema::types::ColumnDescriptor;

/// The footer without maxima of floats that may not be.
///
/// # Errors
/// Those of the format's own checks, when it is put together again.
pub(super) fn without_float_maxima(footer: ParquetMetaData) -> Result<ParquetMetaData> {
    let schema = footer.file_metadata().schema_descr_ptr();
    let floats: Vec<bool> = schema.columns().iter().map(|column| is_float(column)).collect();
    if !floats.contains(&true) {
        return Ok(footer);
    }
    let mut footer = footer.into_builder();
    let groups = footer.take_row_groups().into_iter().map(|group| {
        let mut group = group.into_builder();
        let columns = group
            .take_columns()
            .into_iter()
            .zip(&floats)
            .map(|(column, is_float)| if *is_float { bounded(column) } else { Ok(column) });
        let columns = columns.collect::<Result<Vec<_>>>()?;
        group.set_column_metadata(columns).build()
    });
    let groups = groups.collect::<Result<Vec<_>>>()?;
    let pages = footer.take_column_index().map(|mut groups| {
        for (page, _) in
            groups.iter_mut().flat_map(|group| group.iter_mut().zip(&floats)).filter(|(_, is)| **is)
        {
            *page = ColumnIndexMetaData::NONE;
        }
        groups
    });
    Ok(footer.set_row_groups(groups).set_column_index(pages).build())
}

fn is_float(column: &ColumnDescriptor) -> bool {
    matches!(column.physical_type(), Type::FLOAT | Type::DOUBLE)
        || matches!(column.logical_type_ref(), Some(LogicalType::Float16))
}

fn bounded(column: ColumnChunkMetaData) -> Result<ColumnChunkMetaData> {
    let Some(found) = column.statistics() else { return Ok(column) };
    let (distinct, nulls) = (found.distinct_count_opt(), found.null_count_opt());
    let deprecated = found.is_min_max_deprecated();
    let bounded = match found {
        Statistics::Float(found) => {
            let least = found.min_opt().copied();
            Some(Statistics::float(least, Some(f32::NAN), distinct, nulls, deprecated))
        }
        Statistics::Double(found) => {
            let least = found.min_opt().copied();
            Some(Statistics::double(least, Some(f64::NAN), distinct, nulls, deprecated))
        }
        // Half floats are stored as bytes.
        _ => None,
    };
    let column = column.into_builder();
    match bounded {
        Some(bounded) => column.set_statistics(bounded).build(),
        None => column.clear_statistics().build(),
    }
}
