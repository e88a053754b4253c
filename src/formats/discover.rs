//! Finding the splits of a scan: the request, the size of splits, and the way by format.

use std::sync::Arc;

use datafusion::physical_expr::PhysicalExpr;
use futures::{StreamExt, TryStreamExt};

use super::blame::{blame_content, caught_of};
use super::files::TableFiles;
use super::format::{Compression, Format};
use super::parquet::access::deleted_in;
use super::table_metadata::TableMetadata;
use super::units::UnitRange;
use super::{Split, SplitUnit, avro, ipc, orc, parquet, text};
use crate::{Error, Result};

/// How many files of a format are looked at together: where metadata tells all, as many as the
/// network takes; fewer where records are read.
pub fn concurrent_files(format: &Format) -> usize {
    match format {
        Format::Parquet | Format::Orc | Format::Arrow(_) | Format::Avro => 128,
        Format::Csv(_) | Format::Json(_) => 32,
    }
}

/// Splits that a table should have at least, where its units allow: enough for LPT to balance
/// dozens of shards for any world size, so that the splits do not depend on the topology.
const WANTED_SPLITS: u64 = 256;

/// Text splits are not made smaller than this unless the user says so.
const MIN_TEXT_BYTES: u64 = 4 << 20;

/// Columns and predicate that a driving scan reads from its files.
#[derive(Clone, Debug, Default)]
pub struct ScanRequest {
    /// Names of the file columns read, the predicate's included.
    pub columns: Vec<String>,
    /// The pushed-down predicate over the table's schema.
    pub predicate: Option<Arc<dyn PhysicalExpr>>,
    /// Whether a file that cannot be understood becomes a split, for [`ScanSplits::damaged`],
    /// instead of an error.
    pub tolerant: bool,
    /// Whether each split must know the number that its first row has in its file.
    pub numbered: bool,
}

/// How large splits become: at least one unit, then towards a number of rows or bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitTarget {
    /// Stored bytes of the projected columns.
    pub bytes: u64,
    /// Rows; takes precedence over `bytes`.
    pub rows: Option<u64>,
}

impl SplitTarget {
    /// Returns true if a split may grow to this many rows and bytes.
    pub fn allows(self, rows: u64, bytes: u64) -> bool {
        match self.rows {
            Some(target) => rows <= target,
            None => bytes <= self.bytes,
        }
    }
}

/// The splits of one file, and the rows that pruning left out.
#[derive(Clone, Debug, Default)]
pub struct FileSplits {
    /// In file order.
    pub splits: Vec<Split>,
    /// Row groups, stripes, record batches or blocks, or 1.
    pub units: usize,
    /// Row groups or stripes that no row can come from.
    pub pruned: usize,
    /// Why the file's own metadata cannot be understood; its split is then the whole file.
    pub damaged: Option<String>,
}

/// The splits of one scan, in plan order.
#[derive(Clone, Debug, Default)]
pub struct ScanSplits {
    /// Every split, by file and position.
    pub splits: Vec<Split>,
    /// Row groups or stripes (or files, for formats without) of the listed files.
    pub units: usize,
    /// The number of these that were pruned.
    pub units_pruned: usize,
    /// Files that are not read at all.
    pub files_pruned: usize,
    /// For a tolerant request: the places in `splits` of files that cannot be understood, and the
    /// reasons.
    pub damaged: Vec<(usize, String)>,
}

/// Discovers, prunes and weighs the splits of `files` (indices into the table's files).
///
/// # Errors
/// The first error of any file, in file order.
pub async fn discover(
    table: &Arc<TableFiles>,
    files: &[usize],
    request: &ScanRequest,
    target: SplitTarget,
    explicit: bool,
) -> Result<ScanSplits> {
    let target = if explicit { target } else { balanced(table, files, request, target).await? };
    // Boxed owned futures: borrowed closures in `buffered` defeat higher-ranked lifetime inference.
    let found: Vec<FileSplits> = futures::stream::iter(files.to_vec())
        .map(|index| {
            let (table, request) = (Arc::clone(table), request.clone());
            Box::pin(async move {
                match request.tolerant {
                    true => discover_tolerantly(&table, index, &request, target, explicit).await,
                    false => discover_file(&table, index, &request, target, explicit).await,
                }
            })
        })
        .buffered(concurrent_files(&table.format))
        .try_collect()
        .await?;
    let mut all = ScanSplits::default();
    for file in found {
        all.units += file.units;
        all.units_pruned += file.pruned;
        all.files_pruned += usize::from(file.splits.is_empty());
        all.damaged.extend(file.damaged.map(|error| (all.splits.len(), error)));
        all.splits.extend(file.splits);
    }
    Ok(all)
}

/// Lowers the default target where it would leave fewer than [`WANTED_SPLITS`] splits.
async fn balanced(
    table: &TableFiles,
    files: &[usize],
    request: &ScanRequest,
    target: SplitTarget,
) -> Result<SplitTarget> {
    if let Some(metadata) = table.metadata.as_deref() {
        let bytes = |index: &usize| listed_bytes(table, metadata, *index, request);
        let read: u64 = files.iter().map(bytes).sum();
        return Ok(SplitTarget {
            bytes: target.bytes.min((read / WANTED_SPLITS).max(1)),
            ..target
        });
    }
    let stored: u64 = files.iter().map(|index| table.files[*index].meta.size).sum();
    let share = match (&table.format, files.first()) {
        // The projected share of the bytes, judged by the first file: a narrow projection of a wide
        // table reads little, and its splits should still be many.
        (Format::Parquet | Format::Orc | Format::Arrow(_), Some(first)) => {
            let one = SplitTarget { bytes: u64::MAX, rows: None };
            let unfiltered = ScanRequest { predicate: None, ..request.clone() };
            let sample = match request.tolerant {
                true => discover_tolerantly(table, *first, &unfiltered, one, true).await?,
                false => discover_file(table, *first, &unfiltered, one, true).await?,
            };
            let read: u64 = sample.splits.iter().map(|split| split.bytes).sum();
            read as f64 / table.files[*first].meta.size.max(1) as f64
        }
        _ => 1.0,
    };
    let wanted = (stored as f64 * share / WANTED_SPLITS as f64) as u64;
    Ok(SplitTarget { bytes: target.bytes.min(wanted.max(1)), ..target })
}

/// Discovers the splits of a table. A file that cannot be understood becomes one split that nobody
/// will read.
async fn discover_tolerantly(
    table: &TableFiles,
    index: usize,
    request: &ScanRequest,
    target: SplitTarget,
    explicit: bool,
) -> Result<FileSplits> {
    match discover_file(table, index, request, target, explicit).await {
        Err(error) => {
            let location = &table.files[index].meta.location;
            let error = blame_content(&table.store, location, error).await?;
            Ok(FileSplits { damaged: Some(error.to_string()), ..whole_file(table, index) })
        }
        found => found,
    }
}

/// The splits of one file. Decoders panic on some damaged files.
async fn discover_file(
    table: &TableFiles,
    index: usize,
    request: &ScanRequest,
    target: SplitTarget,
    explicit: bool,
) -> Result<FileSplits> {
    caught_of(table.display_path(index), found_in(table, index, request, target, explicit)).await
}

async fn found_in(
    table: &TableFiles,
    index: usize,
    request: &ScanRequest,
    target: SplitTarget,
    explicit: bool,
) -> Result<FileSplits> {
    let target = match explicit {
        true => target,
        false => SplitTarget { bytes: target.bytes.max(text_floor(&table.format)), ..target },
    };
    if let Some(metadata) = table.metadata.as_deref()
        && request.predicate.is_none()
        && !metadata.listed(index).has_equality_deletes
    {
        let bytes = listed_bytes(table, metadata, index, request);
        if target.allows(metadata.listed(index).records, bytes) {
            return whole_listed_file(table, metadata, index, bytes).await;
        }
    }
    let located = |error: Error| error.with_context("file", table.display_path(index));
    if request.numbered
        && let Some(metadata) = table.metadata.as_deref()
        && metadata.listed(index).has_deletes
    {
        // Rows are numbered as they are read, without the deleted ones.
        let bytes = listed_bytes(table, metadata, index, request);
        return whole_listed_file(table, metadata, index, bytes).await;
    }
    match table.format_of(index) {
        // Borders between records say nothing of the records before them.
        Format::Csv(_) | Format::Json(_) if request.numbered => Ok(whole_file(table, index)),
        Format::Parquet => parquet::discover(table, index, request, target).await,
        Format::Orc => match table.metadata.as_deref() {
            Some(metadata) => orc_with_metadata(table, metadata, index, target).await,
            None => orc::discover(table, index, request, target).await,
        },
        Format::Csv(csv) if table.format.compression() == Compression::None => {
            text::discover(table, index, target, text::csv_dialect(csv)).await.map_err(located)
        }
        Format::Json(json)
            if table.format.compression() == Compression::None && !json.is_array() =>
        {
            text::discover(table, index, target, text::json_dialect()).await.map_err(located)
        }
        Format::Arrow(_) => ipc::discover(table, index, request, target).await,
        Format::Avro => avro::discover(table, index, target).await,
        Format::Csv(_) | Format::Json(_) => Ok(whole_file(table, index)),
    }
}

/// Stored bytes of the projected columns of a listed data file, as far as metadata says.
fn listed_bytes(
    table: &TableFiles,
    metadata: &dyn TableMetadata,
    index: usize,
    request: &ScanRequest,
) -> u64 {
    metadata.stored_bytes(&request.columns, index).unwrap_or(table.files[index].meta.size)
}

/// An ORC data file by stripes. Its statistics go by its own names, so they prune nothing here.
async fn orc_with_metadata(
    table: &TableFiles,
    metadata: &dyn TableMetadata,
    index: usize,
    target: SplitTarget,
) -> Result<FileSplits> {
    let mut found = orc::discover(table, index, &ScanRequest::default(), target).await?;
    let deleted = metadata.deleted_positions(&table.store, index).await?;
    let is_counted = !metadata.listed(index).has_equality_deletes;
    for split in &mut found.splits {
        if let (Some(deleted), Some(rows)) = (&deleted, split.rows) {
            split.deleted = deleted_in(deleted, split.first_row, rows);
            split.rows = Some(rows - split.deleted);
        }
        if !is_counted {
            split.rows = None;
        }
    }
    found.splits.retain(|split| split.rows != Some(0));
    Ok(found)
}

/// A data file that is one split, from metadata alone: its footer is read when it is scanned.
async fn whole_listed_file(
    table: &TableFiles,
    metadata: &dyn TableMetadata,
    index: usize,
    bytes: u64,
) -> Result<FileSplits> {
    let records = metadata.listed(index).records;
    let deleted = match metadata.listed(index).live {
        Some(live) => records.saturating_sub(live),
        None => {
            let deleted = metadata.deleted_positions(&table.store, index).await?;
            deleted.map_or(0, |deleted| deleted.len())
        }
    };
    let rows = records.saturating_sub(deleted);
    let is_counted = !metadata.listed(index).has_equality_deletes;
    if rows == 0 {
        return Ok(FileSplits { units: 1, pruned: 1, ..FileSplits::default() });
    }
    let split = Split {
        scan: 0,
        file: index as u32,
        unit: SplitUnit::File,
        rows: is_counted.then_some(rows),
        deleted,
        first_row: 0,
        bytes: (bytes as f64 * rows as f64 / records as f64) as u64,
    };
    Ok(FileSplits { splits: vec![split], units: 1, ..FileSplits::default() })
}

fn text_floor(format: &Format) -> u64 {
    match format {
        Format::Csv(_) | Format::Json(_) => MIN_TEXT_BYTES,
        Format::Parquet | Format::Arrow(_) | Format::Orc | Format::Avro => 0,
    }
}

/// Rows and places of the units of file `index`: stripes, record batches or blocks. None of other
/// formats.
///
/// # Errors
/// `Data` where the file is damaged (the caller names it); storage errors as they are.
pub async fn units(table: &TableFiles, index: usize) -> Result<Vec<UnitRange>> {
    let (store, meta) = (&table.store, &table.files[index].meta);
    match table.format_of(index) {
        Format::Orc => {
            Ok(orc::read_orc_footer(store, meta, &table.footers).await?.stripes().to_vec())
        }
        Format::Arrow(_) => {
            let head = ipc::read_ipc_head(store, meta, &table.footers).await?;
            Ok(head.batches(store, meta).await?.units.clone())
        }
        Format::Avro => {
            let head = avro::read_avro_head(store, meta, &table.footers).await?;
            Ok(head.blocks(store, meta).await?.to_vec())
        }
        Format::Parquet | Format::Csv(_) | Format::Json(_) => Ok(Vec::new()),
    }
}

/// Formats and compressions without inner borders: one split per file.
pub(super) fn whole_file(table: &TableFiles, index: usize) -> FileSplits {
    let file = &table.files[index];
    let split = Split {
        scan: 0,
        file: index as u32,
        unit: SplitUnit::File,
        rows: file.rows,
        deleted: 0,
        first_row: 0,
        bytes: file.meta.size,
    };
    FileSplits { splits: vec![split], units: 1, ..FileSplits::default() }
}
