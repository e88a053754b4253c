//! A part of a plan: some of its splits, and of the tables that only they are read from the files
//! that they need.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::datasource::source::DataSourceExec;

use super::plan::Plan;
use super::worker_plan::{PackedSplit, pack, unpack};
use crate::exec::{NAMED_FILES, ScanSource, SplitScanExec, file_scan};
use crate::formats::{FileRef, Split, TableFiles};
use crate::varint::{Reader, Writer};
use crate::{Error, Result};

/// Files of each scan that stay though no split needs them: the plan's form names as many, and says
/// whether there are more.
const KEPT_FILES: usize = NAMED_FILES + 1;

/// Some of the splits of a plan.
pub(super) struct PlanPart {
    /// Ascending.
    pub ids: Vec<u32>,
    /// With the numbers that their files have in the part.
    pub splits: Vec<Split>,
    /// By table (its place in memory), the files of the part.
    files: BTreeMap<usize, Vec<usize>>,
}

impl PlanPart {
    /// The part of `plan` with the splits of these ids, ascending.
    pub(super) fn of(plan: &Plan, ids: &[u32]) -> Result<Self> {
        let scans = &plan.rewritten.scans;
        let table_of = |scan: usize| match scans.get(scan).map(|scan| &scan.source) {
            Some(ScanSource::Files { table, .. }) => Some(place(table)),
            _ => None,
        };
        let whole = tables_read_whole(plan)?;
        let mut wanted: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        for (number, scan) in scans.iter().enumerate() {
            if let Some(table) = table_of(number).filter(|table| !whole.contains(table)) {
                wanted.entry(table).or_default().extend(scan.files.iter().take(KEPT_FILES));
            }
        }
        let mut splits = Vec::with_capacity(ids.len());
        for id in ids {
            let split = *plan.split(*id)?;
            if let Some(files) = table_of(split.scan as usize).and_then(|t| wanted.get_mut(&t)) {
                files.insert(split.file as usize);
            }
            splits.push(split);
        }
        let files: BTreeMap<usize, Vec<usize>> =
            wanted.into_iter().map(|(table, files)| (table, files.into_iter().collect())).collect();
        for split in &mut splits {
            if let Some(files) = table_of(split.scan as usize).and_then(|table| files.get(&table)) {
                let at = files.binary_search(&(split.file as usize));
                split.file = at.map_err(|_| Error::config("a split lost its file"))? as u32;
            }
        }
        Ok(Self { ids: ids.to_vec(), splits, files })
    }

    /// The files of a table that are in the part, ascending; None where all are.
    pub(super) fn files_of(&self, table: &Arc<TableFiles>) -> Option<&[usize]> {
        self.files.get(&place(table)).map(Vec::as_slice)
    }
}

/// Tells tables apart.
pub(super) fn place(table: &Arc<TableFiles>) -> usize {
    Arc::as_ptr(table) as usize
}

/// The tables that a plan reads, by their places in memory; tables in memory by the places of their
/// batches.
pub(super) fn tables_read(plan: &Plan) -> Result<BTreeSet<usize>> {
    let mut tables = tables_read_whole(plan)?;
    tables.extend(plan.rewritten.scans.iter().filter_map(|scan| match &scan.source {
        ScanSource::Files { table, .. } => Some(place(table)),
        _ => None,
    }));
    plan.rewritten.plan().apply(|node| {
        if let Some(scan) = node.as_any().downcast_ref::<SplitScanExec>()
            && let ScanSource::Memory { batches, .. } = scan.source()
        {
            tables.insert(Arc::as_ptr(batches) as usize);
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(tables)
}

/// The tables that are read below the build side of a join, which needs all of their files.
fn tables_read_whole(plan: &Plan) -> Result<BTreeSet<usize>> {
    let mut tables = BTreeSet::new();
    plan.rewritten.plan().apply(|node| {
        // What is a driving scan has been replaced.
        if let Some(config) = node.as_any().downcast_ref::<DataSourceExec>().and_then(file_scan) {
            let files = config.file_groups.iter().flat_map(|group| group.files());
            tables.extend(files.filter_map(FileRef::of).map(|file| place(&file.table)));
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(tables)
}

/// Splits in about a dozen bytes each: most follow the one before.
pub(super) fn pack_splits(splits: &[Split]) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.number(splits.len() as u64);
    let mut before = Neighbour::default();
    for split in splits {
        let (scan, file, kind, numbers, rows, deleted, first_row, bytes) = pack(split);
        writer.near(u64::from(scan), &mut before.scan);
        writer.near(u64::from(file), &mut before.file);
        writer.number(u64::from(kind));
        for (number, before) in numbers.into_iter().zip(&mut before.numbers) {
            writer.near(number, before);
        }
        writer.number(u64::from(rows.is_some()));
        if let Some(rows) = rows {
            writer.near(rows, &mut before.rows);
        }
        writer.number(deleted);
        writer.near(first_row, &mut before.first_row);
        writer.near(bytes, &mut before.bytes);
    }
    writer.finish()
}

/// Unpacks splits that [`pack_splits`] packed.
pub(super) fn unpack_splits(bytes: &[u8]) -> Result<Vec<Split>> {
    let mut reader = Reader::new(bytes);
    let count = reader.length()?;
    let mut splits = Vec::with_capacity(count);
    let mut before = Neighbour::default();
    let small =
        |number: u64| u32::try_from(number).map_err(|_| Error::config("packed splits are damaged"));
    for _ in 0..count {
        let scan = small(reader.near(&mut before.scan)?)?;
        let file = small(reader.near(&mut before.file)?)?;
        let kind = reader.number()? as u8;
        let mut numbers = [0; 4];
        for (number, before) in numbers.iter_mut().zip(&mut before.numbers) {
            *number = reader.near(before)?;
        }
        let rows = match reader.number()? {
            0 => None,
            _ => Some(reader.near(&mut before.rows)?),
        };
        let deleted = reader.number()?;
        let first_row = reader.near(&mut before.first_row)?;
        let bytes = reader.near(&mut before.bytes)?;
        let packed: PackedSplit = (scan, file, kind, numbers, rows, deleted, first_row, bytes);
        splits.push(unpack(&packed)?);
    }
    reader.end()?;
    Ok(splits)
}

/// The numbers of the split before.
#[derive(Default)]
struct Neighbour {
    scan: u64,
    file: u64,
    numbers: [u64; 4],
    rows: u64,
    first_row: u64,
    bytes: u64,
}

/// Ascending ids.
pub(super) fn pack_ids(ids: &[u32]) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.number(ids.len() as u64);
    let mut before = 0;
    ids.iter().for_each(|id| writer.near(u64::from(*id), &mut before));
    writer.finish()
}

/// Unpacks ids that [`pack_ids`] packed.
pub(super) fn unpack_ids(bytes: &[u8]) -> Result<Vec<u32>> {
    let mut reader = Reader::new(bytes);
    let mut before = 0;
    let ids = (0..reader.length()?)
        .map(|_| Ok(u32::try_from(reader.near(&mut before)?).unwrap_or(u32::MAX)))
        .collect::<Result<_>>()?;
    reader.end()?;
    Ok(ids)
}
