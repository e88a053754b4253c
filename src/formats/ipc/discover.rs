//! Splits of Arrow IPC files: consecutive record batches, weighed by the bytes of the projected
//! columns.

use super::head::{MessageIndex, read_ipc_head};
use crate::formats::UnitKind;
use crate::formats::discover::{FileSplits, ScanRequest, SplitTarget, whole_file};
use crate::formats::files::TableFiles;
use crate::formats::units::Splitter;
use crate::{Error, Result};

/// The splits of file `index`; a stream is one.
///
/// # Errors
/// `Data` where the file is damaged.
pub async fn discover(
    table: &TableFiles,
    index: usize,
    request: &ScanRequest,
    target: SplitTarget,
) -> Result<FileSplits> {
    let located = |error: Error| error.with_context("file", table.display_path(index));
    let file = &table.files[index];
    let head = read_ipc_head(&table.store, &file.meta, &table.footers).await.map_err(located)?;
    if matches!(head.layout(), MessageIndex::Stream { .. }) {
        return Ok(whole_file(table, index));
    }
    let batches = head.batches(&table.store, &file.meta).await.map_err(located)?;
    let fields = head.schema().fields().iter();
    let wanted = fields.map(|field| request.columns.contains(field.name()));
    let projected = batches.column_bytes.iter().zip(wanted).filter(|(_, wanted)| *wanted);
    let read: u64 = projected.map(|(bytes, _)| bytes).sum();
    let all = batches.column_bytes.iter().sum::<u64>().max(1);
    let weight = |number: usize| {
        (u128::from(batches.units[number].bytes) * u128::from(read) / u128::from(all)) as u64
    };
    let splitter = Splitter {
        file: index as u32,
        size: file.meta.size,
        kind: UnitKind::Batches,
        units: &batches.units,
        target,
    };
    let splits = splitter.split(&vec![true; batches.units.len()], weight);
    Ok(FileSplits { splits, units: batches.units.len(), ..FileSplits::default() })
}
