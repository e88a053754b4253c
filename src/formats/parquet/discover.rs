//! Parquet: row groups are discovered from footers, pruned by statistics, page index and hive
//! values, weighed by the stored bytes of the projected columns, and merged into splits.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::datasource::physical_plan::parquet::RowGroupAccess;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::simplifier::PhysicalExprSimplifier;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr_adapter::{
    PhysicalExprAdapter, PhysicalExprAdapterFactory, replace_columns_with_literals,
};
use datafusion::scalar::ScalarValue;
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};

use super::access::deleted_in;
use super::prune::{kept_groups, wanted_pages};
use crate::formats::discover::{FileSplits, ScanRequest, SplitTarget};
use crate::formats::evolve::ByName;
use crate::formats::files::TableFiles;
use crate::formats::footers::read_footer;
use crate::formats::{Split, SplitUnit, UnitKind};
use crate::{Error, Result};

/// The splits of file `index`.
///
/// # Errors
/// `Data` where the footer is damaged.
pub async fn discover(
    table: &TableFiles,
    index: usize,
    request: &ScanRequest,
    target: SplitTarget,
) -> Result<FileSplits> {
    let file = &table.files[index];
    let located = |error: Error| error.with_context("file", table.display_path(index));
    let mut footer =
        read_footer(&table.store, &file.meta, &table.footers, false).await.map_err(located)?;
    let mut keep = vec![true; footer.num_row_groups()];
    if let Some(predicate) = &request.predicate {
        let physical = table.footers.schema(&footer)?;
        let predicate = adapt(table, index, predicate, &physical)?;
        keep = kept_groups(&physical, &footer, &predicate, 0..keep.len());
        // The page index costs a request more, so only files that statistics leave are asked for
        // it.
        if keep.contains(&true) {
            footer = read_footer(&table.store, &file.meta, &table.footers, true)
                .await
                .map_err(located)?;
        }
        for (number, keep) in keep.iter_mut().enumerate().filter(|(_, keep)| **keep) {
            let rows = wanted_pages(&physical, &footer, &predicate, number);
            *keep = !matches!(rows, RowGroupAccess::Skip);
        }
    }
    let groups = footer.row_groups();
    let leaves = projected_leaves(&footer, request);
    let deleted = match &table.metadata {
        Some(metadata) => metadata.deleted_positions(&table.store, index).await?,
        None => None,
    };
    let mut splits = Splitter::new(index, file.meta.size, target);
    let mut first_row = 0;
    for (number, group) in groups.iter().enumerate() {
        let rows = u64::try_from(group.num_rows())
            .map_err(|_| damaged(table, index, number, "its row count is negative"))?;
        let gone = deleted.as_ref().map_or(0, |deleted| deleted_in(deleted, first_row, rows));
        if keep[number] && rows > gone {
            let bytes: u64 =
                leaves.iter().map(|leaf| group.column(*leaf).compressed_size().max(0) as u64).sum();
            // By live rows: those are what a shard has to convert and to deliver.
            let bytes = (bytes as f64 * (rows - gone) as f64 / rows as f64) as u64;
            splits.push(number as u32, first_row, rows - gone, gone, bytes);
        } else {
            splits.close();
        }
        first_row += rows;
    }
    if let Some(metadata) = &table.metadata {
        check_records(table, index, metadata.listed(index).records, first_row)?;
    }
    let pruned = keep.iter().filter(|keep| !**keep).count();
    let splits = match group_starts(groups) {
        Some(starts) => splits.finish(&starts),
        None => {
            let gone = deleted.as_ref().map_or(0, |deleted| deleted.len());
            splits.whole_file(groups.len() as u32, first_row, gone)
        }
    };
    let splits = match &table.metadata {
        // How many rows equality deletes leave, only reading tells.
        Some(metadata) if metadata.listed(index).has_equality_deletes => {
            splits.into_iter().map(|split| Split { rows: None, ..split }).collect()
        }
        _ => splits,
    };
    Ok(FileSplits { splits, units: groups.len(), pruned, ..FileSplits::default() })
}

/// Merges consecutive row groups into splits towards the target.
struct Splitter {
    file: usize,
    file_size: u64,
    target: SplitTarget,
    done: Vec<Split>,
    open: Option<Split>,
}

impl Splitter {
    fn new(file: usize, file_size: u64, target: SplitTarget) -> Self {
        Self { file, file_size, target, done: Vec::new(), open: None }
    }

    fn push(&mut self, group: u32, first_row: u64, rows: u64, deleted: u64, bytes: u64) {
        if let Some(open) = &mut self.open {
            let together = open.rows.unwrap_or(0) + rows;
            if self.target.allows(together, open.bytes + bytes)
                && let SplitUnit::Units { kind: UnitKind::RowGroups, count, .. } = &mut open.unit
            {
                *count += 1;
                open.rows = Some(together);
                open.deleted += deleted;
                open.bytes += bytes;
                return;
            }
        }
        self.close();
        self.open = Some(Split {
            scan: 0,
            file: self.file as u32,
            unit: SplitUnit::Units {
                kind: UnitKind::RowGroups,
                first: group,
                count: 1,
                byte_start: 0,
                byte_end: 0,
            },
            rows: Some(rows),
            deleted,
            first_row,
            bytes,
        });
    }

    fn close(&mut self) {
        self.done.extend(self.open.take());
    }

    /// One split over all row groups, if any is wanted; those pruned are pruned again when it is
    /// read.
    fn whole_file(mut self, groups: u32, rows: u64, deleted: u64) -> Vec<Split> {
        self.close();
        let bytes = self.done.iter().map(|split| split.bytes).sum();
        let unit = SplitUnit::Units {
            kind: UnitKind::RowGroups,
            first: 0,
            count: groups,
            byte_start: 0,
            byte_end: self.file_size,
        };
        self.done.truncate(1);
        for split in &mut self.done {
            *split =
                Split { unit, rows: Some(rows - deleted), deleted, first_row: 0, bytes, ..*split };
        }
        self.done
    }

    /// Fills in the byte ranges by which DataFusion selects row groups.
    fn finish(mut self, starts: &[u64]) -> Vec<Split> {
        self.close();
        for split in &mut self.done {
            if let SplitUnit::Units {
                kind: UnitKind::RowGroups,
                first,
                count,
                byte_start,
                byte_end,
            } = &mut split.unit
            {
                *byte_start = starts[*first as usize];
                *byte_end =
                    starts.get((*first + *count) as usize).copied().unwrap_or(self.file_size);
            }
        }
        self.done
    }
}

/// Where each row group starts, by the rule of DataFusion's `prune_by_range`: the first column's
/// dictionary page, or else its first data page. None where the starts do not ascend (some writers
/// say 0 for "no dictionary", or reorder row groups): then no byte range addresses a row group.
fn group_starts(groups: &[RowGroupMetaData]) -> Option<Vec<u64>> {
    let mut starts: Vec<u64> = Vec::with_capacity(groups.len());
    for group in groups {
        let column = group.columns().first()?;
        let start = column.dictionary_page_offset().unwrap_or_else(|| column.data_page_offset());
        let start = u64::try_from(start).ok()?;
        if starts.last().is_some_and(|last| *last >= start) {
            return None;
        }
        starts.push(start);
    }
    Some(starts)
}

/// The metadata of an Iceberg table counts its files' rows; deletes by position, and counts, rely
/// on it.
fn check_records(table: &TableFiles, index: usize, records: u64, found: u64) -> Result<()> {
    match records == found {
        true => Ok(()),
        false => Err(Error::data(format!(
            "the table's metadata says that the data file has {records} rows, but it has {found}"
        ))
        .with_context("file", table.display_path(index))),
    }
}

pub(in crate::formats) fn damaged(
    table: &TableFiles,
    index: usize,
    group: usize,
    what: &str,
) -> Error {
    Error::data(format!("row group {group} cannot be read: {what}"))
        .with_context("file", table.display_path(index))
}

/// The leaf columns that the scan reads, for the projection and the predicate.
fn projected_leaves(footer: &ParquetMetaData, request: &ScanRequest) -> Vec<usize> {
    let schema = footer.file_metadata().schema_descr();
    // Both may be tens of thousands.
    let columns: HashSet<&str> = request.columns.iter().map(String::as_str).collect();
    (0..schema.num_columns())
        .filter(|leaf| columns.contains(schema.get_column_root(*leaf).name()))
        .collect()
}

/// The predicate over the table's schema as one over this file's own schema.
pub(in crate::formats) fn adapt(
    table: &TableFiles,
    index: usize,
    predicate: &Arc<dyn PhysicalExpr>,
    physical: &SchemaRef,
) -> Result<Arc<dyn PhysicalExpr>> {
    Adapter::try_new(table, index, physical)?.rewrite(Arc::clone(predicate))
}

/// From expressions over a table's schema to those over the schema of one of its files.
pub(super) struct Adapter<'a> {
    constants: HashMap<&'a str, &'a ScalarValue>,
    adapter: Arc<dyn PhysicalExprAdapter>,
    /// The columns as the table has them, where names alone say which one a column of the file is.
    by_name: Option<&'a SchemaRef>,
    physical: &'a SchemaRef,
}

impl<'a> Adapter<'a> {
    /// For file `index`, whose columns are decoded as `physical`.
    ///
    /// # Errors
    /// Errors of the engine's own adapter.
    pub(in crate::formats) fn try_new(
        table: &'a TableFiles,
        index: usize,
        physical: &'a SchemaRef,
    ) -> Result<Self> {
        let constants = table
            .schema
            .table_partition_cols()
            .iter()
            .zip(&table.files[index].partition_values)
            .map(|(field, value)| (field.name().as_str(), value))
            .collect();
        let logical = Arc::clone(table.schema.file_schema());
        let adapter = match &table.metadata {
            Some(metadata) => {
                metadata.expr_adapter(index)?.create(logical, Arc::clone(physical))?
            }
            None => ByName.create(logical, Arc::clone(physical))?,
        };
        let by_name = table.metadata.is_none().then(|| table.schema.file_schema());
        Ok(Self { constants, adapter, by_name, physical })
    }

    /// An expression over the file's columns.
    ///
    /// # Errors
    /// Where the file lacks a column that has to be there, or has it in a type that cannot be cast.
    pub(in crate::formats) fn rewrite(
        &self,
        expr: Arc<dyn PhysicalExpr>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        if self.is_itself(&expr) {
            return Ok(expr);
        }
        let expr = replace_columns_with_literals(expr, &self.constants)?;
        let simplifier = PhysicalExprSimplifier::new(self.physical);
        Ok(simplifier.simplify(self.adapter.rewrite(expr)?)?)
    }

    /// Returns true if it is a column that the file has in the same place, under the same name and
    /// with the same type: the engine's adapter would look it up among all.
    fn is_itself(&self, expr: &Arc<dyn PhysicalExpr>) -> bool {
        let (Some(column), Some(table)) = (expr.as_any().downcast_ref::<Column>(), self.by_name)
        else {
            return false;
        };
        let (name, index) = (column.name(), column.index());
        let (logical, physical) = (table.fields().get(index), self.physical.fields().get(index));
        !self.constants.contains_key(name)
            && logical.zip(physical).is_some_and(|(logical, physical)| {
                logical.name() == name
                    && physical.name() == name
                    && logical.data_type() == physical.data_type()
            })
    }
}

/// The names of the columns that a predicate reads.
pub fn columns_of(predicate: &Arc<dyn PhysicalExpr>) -> Vec<String> {
    let mut names: Vec<String> =
        collect_columns(predicate).iter().map(|column| column.name().to_owned()).collect();
    names.sort();
    names
}
