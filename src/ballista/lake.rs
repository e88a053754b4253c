//! Iceberg tables whose files say all: without deletes, and with the table's columns under their
//! present names.
//!
//! Executors find columns by name, and Iceberg by field id. Where both lead to the same columns in
//! every file, the pinned file list is the table.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use parquet::arrow::async_reader::{AsyncFileReader, ParquetObjectReader};
use parquet::schema::types::{SchemaDescriptor, Type as ParquetType};

use super::judge::refused;
use super::scans::{LOOKS, ReadTable};
use crate::formats::FooterNames;
use crate::iceberg::{LakeTable, Storage};
use crate::{Error, Result};

/// Refuses an Iceberg table that a list of its files would not give the rows of. Any other table
/// passes.
///
/// # Errors
/// `Query` naming the table, the file and why; errors of reading a footer.
pub(super) async fn check(table: &ReadTable) -> Result<()> {
    let Some(metadata) = &table.files.metadata else { return Ok(()) };
    let Some(lake) = LakeTable::of(&table.files) else {
        let what = metadata.pinned().format;
        return Err(refused(&format!(
            "the table {} is of the format {what}, which executors cannot read as this process does",
            metadata.label()
        )));
    };
    for index in 0..table.files.files.len() {
        let file = lake.file(index);
        let why = if file.has_deletes() {
            "has rows that a delete file deletes"
        } else if file.format != Storage::Parquet {
            "is not Parquet"
        } else {
            continue;
        };
        return Err(not_plain(table, &file.uri, why));
    }
    let looks = (0..table.files.files.len()).map(|index| check_columns(table, &lake, index));
    futures::stream::iter(looks).buffer_unordered(LOOKS).try_collect::<()>().await
}

/// Demands that the columns that are read have the table's names in a file.
async fn check_columns(table: &ReadTable, lake: &LakeTable, index: usize) -> Result<()> {
    let (meta, uri) = (&table.files.files[index].meta, &lake.file(index).uri);
    let store = Arc::clone(&table.files.store);
    // Not by the table's own reader, which renames columns while it reads.
    let mut reader =
        ParquetObjectReader::new(store, meta.location.clone()).with_file_size(meta.size);
    let footer = reader.get_metadata(None).await.map_err(|error| {
        Error::data(format!("the footer of {uri} cannot be read: {error}")).with_source(error)
    })?;
    let stored = footer.file_metadata().schema_descr();
    let named = lake.columns().rename(stored)?;
    match misnamed(stored, &named, &table.columns) {
        Some(column) => {
            let why = format!(
                "has no column {column:?} under that name: it was renamed or added after the file was written"
            );
            Err(not_plain(table, uri, &why))
        }
        None => Ok(()),
    }
}

/// The first of these columns that a file does not have under the name that the table has for it.
fn misnamed<'a>(
    stored: &SchemaDescriptor,
    named: &SchemaDescriptor,
    columns: &'a [String],
) -> Option<&'a str> {
    let (stored, named) = (stored.root_schema().get_fields(), named.root_schema().get_fields());
    let is_there = |column: &&String| {
        let mut both = stored.iter().zip(named);
        both.any(|(stored, named)| named.name() == column.as_str() && same_names(stored, named))
    };
    columns.iter().find(|column| !is_there(column)).map(String::as_str)
}

fn same_names(one: &ParquetType, two: &ParquetType) -> bool {
    one.name() == two.name()
        && match (one.is_group(), two.is_group()) {
            (true, true) => {
                let (one, two) = (one.get_fields(), two.get_fields());
                one.len() == two.len() && one.iter().zip(two).all(|(a, b)| same_names(a, b))
            }
            (one, two) => one == two,
        }
}

fn not_plain(table: &ReadTable, uri: &str, why: &str) -> Error {
    refused(&format!(
        "the file {uri} of the Iceberg table {} {why}, and executors read files by themselves; rewrite the table's data \
         files (Spark: CALL system.rewrite_data_files)",
        table.name
    ))
}
