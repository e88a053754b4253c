//! Splits of Avro files: consecutive blocks. Rows are stored one after the other, so that every
//! column costs the same.

use super::head::read_avro_head;
use crate::formats::UnitKind;
use crate::formats::discover::{FileSplits, SplitTarget};
use crate::formats::files::TableFiles;
use crate::formats::units::Splitter;
use crate::{Error, Result};

/// The splits of file `index`.
///
/// # Errors
/// `Data` where the file is damaged.
pub async fn discover(table: &TableFiles, index: usize, target: SplitTarget) -> Result<FileSplits> {
    let located = |error: Error| error.with_context("file", table.display_path(index));
    let file = &table.files[index];
    let head = read_avro_head(&table.store, &file.meta, &table.footers).await.map_err(located)?;
    let blocks = head.blocks(&table.store, &file.meta).await.map_err(located)?;
    let splitter = Splitter {
        file: index as u32,
        size: file.meta.size,
        kind: UnitKind::Blocks,
        units: &blocks,
        target,
    };
    let splits = splitter.split(&vec![true; blocks.len()], |number| blocks[number].bytes);
    Ok(FileSplits { splits, units: blocks.len(), ..FileSplits::default() })
}
