//! Tables in memory: ranges of rows.

use arrow::record_batch::RecordBatch;

use super::discover::{FileSplits, SplitTarget};
use super::{RowRange, Split, SplitUnit};

/// Rows of one split where neither `split_rows` nor bytes ask for fewer.
const MAX_ROWS: u64 = 1 << 20;

/// The splits of a table held as consecutive batches, `bytes` in all.
pub fn discover(
    batches: &[RecordBatch],
    bytes: u64,
    target: SplitTarget,
    wanted: u64,
) -> FileSplits {
    let rows: u64 = batches.iter().map(|batch| batch.num_rows() as u64).sum();
    if rows == 0 {
        return FileSplits { units: 1, ..FileSplits::default() };
    }
    let row_bytes = (bytes / rows).max(1);
    let step = target
        .rows
        .unwrap_or_else(|| (target.bytes / row_bytes).min(MAX_ROWS).min(rows.div_ceil(wanted)))
        .max(1);
    let splits = (0..rows.div_ceil(step))
        .map(|number| {
            let range = RowRange { start: number * step, end: ((number + 1) * step).min(rows) };
            Split {
                scan: 0,
                file: 0,
                unit: SplitUnit::Rows(range),
                rows: Some(range.end - range.start),
                deleted: 0,
                first_row: range.start,
                bytes: (range.end - range.start) * row_bytes,
            }
        })
        .collect();
    FileSplits { splits, units: 1, ..FileSplits::default() }
}

/// The rows `range` of consecutive batches, without copying.
pub fn slice(batches: &[RecordBatch], range: RowRange) -> Vec<RecordBatch> {
    let mut pieces = Vec::new();
    let mut first = 0;
    for batch in batches {
        let end = first + batch.num_rows() as u64;
        let (from, to) = (range.start.max(first), range.end.min(end));
        if from < to {
            pieces.push(batch.slice((from - first) as usize, (to - from) as usize));
        }
        first = end;
    }
    pieces
}
