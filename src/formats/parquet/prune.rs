//! Prunes row groups and pages of a Parquet file by the bounds in its footer and page index.
//! DataFusion's own pruning is off.

use std::ops::Range;
use std::sync::Arc;

use arrow::buffer::BooleanBuffer;
use arrow::datatypes::SchemaRef;
use datafusion::datasource::physical_plan::parquet::{ParquetAccessPlan, RowGroupAccess};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{PhysicalExpr, split_conjunction};
use parquet::arrow::arrow_reader::{RowSelection, RowSelector};
use parquet::file::metadata::ParquetMetaData;

use super::access::both;
use super::bounds::{GroupBounds, Leaf, PageBounds};
use super::discover::adapt;
use crate::formats::files::TableFiles;
use crate::formats::footers::read_footer;
use crate::formats::{Split, SplitUnit, UnitKind};
use crate::prune::judge;
use crate::{Error, Result};

/// Which of the row groups `groups` may hold a row that a predicate over the file's own columns
/// keeps, by their statistics.
pub(super) fn kept_groups(
    physical: &SchemaRef,
    footer: &ParquetMetaData,
    predicate: &Arc<dyn PhysicalExpr>,
    groups: Range<usize>,
) -> Vec<bool> {
    let verdict = judge(predicate, &GroupBounds { footer, physical, groups });
    verdict.none.iter().map(|none| !none).collect()
}

/// Rows of row group `number` that such a predicate may keep, by the page index: for each condition
/// on one column, the rows of pages that may match.
pub(super) fn wanted_pages(
    physical: &SchemaRef,
    footer: &ParquetMetaData,
    predicate: &Arc<dyn PhysicalExpr>,
    number: usize,
) -> RowGroupAccess {
    let mut access = RowGroupAccess::Scan;
    if footer.column_index().is_none() {
        return access;
    }
    for condition in split_conjunction(predicate) {
        let columns = collect_columns(condition);
        let mut columns = columns.iter();
        let (Some(column), None) = (columns.next(), columns.next()) else { continue };
        let Some(leaf) = Leaf::of(footer, physical, column.index()) else { continue };
        let Some(rows) = leaf.page_rows(number) else { continue };
        let bounds = PageBounds { leaf: &leaf, group: number, pages: rows.len() };
        access = both(&access, &selected(&rows, &judge(condition, &bounds).none));
        if matches!(access, RowGroupAccess::Skip) {
            break;
        }
    }
    access
}

/// The rows of pages that are not left out.
fn selected(rows: &[u64], left_out: &BooleanBuffer) -> RowGroupAccess {
    match left_out.count_set_bits() {
        0 => RowGroupAccess::Scan,
        all if all == rows.len() => RowGroupAccess::Skip,
        _ => {
            let selectors = rows
                .iter()
                .zip(left_out.iter())
                .map(|(rows, left_out)| RowSelector { row_count: *rows as usize, skip: left_out });
            RowGroupAccess::Selection(RowSelection::from(selectors.collect::<Vec<_>>()))
        }
    }
}

/// Finds the rows of the row groups `groups` that the predicate may keep, by statistics and page
/// index. The other groups are not judged.
pub(super) fn wanted_groups(
    physical: &SchemaRef,
    footer: &ParquetMetaData,
    predicate: &Arc<dyn PhysicalExpr>,
    groups: Range<usize>,
) -> Vec<RowGroupAccess> {
    let mut access = vec![RowGroupAccess::Scan; footer.num_row_groups()];
    let kept = kept_groups(physical, footer, predicate, groups.clone());
    for (number, is_kept) in groups.zip(kept) {
        access[number] = match is_kept {
            true => wanted_pages(physical, footer, predicate, number),
            false => RowGroupAccess::Skip,
        };
    }
    access
}

/// The rows of `split` that DataFusion's scan has to read, since it prunes nothing itself: the rows
/// in `only` that a predicate over the table's schema may keep. Returns None if that is all rows,
/// or if the split is not of a Parquet file.
///
/// # Errors
/// `Data` where the footer is damaged; storage errors as they are.
pub async fn access_to_matches(
    table: &TableFiles,
    split: &Split,
    predicate: Option<&Arc<dyn PhysicalExpr>>,
    only: Option<ParquetAccessPlan>,
) -> Result<Option<ParquetAccessPlan>> {
    let index = split.file as usize;
    let Some(predicate) = predicate else { return Ok(only) };
    let file = &table.files[index];
    let footer = read_footer(&table.store, &file.meta, &table.footers, true)
        .await
        .map_err(|error| error.with_context("file", table.display_path(index)))?;
    let groups = match split.unit {
        SplitUnit::Units { kind: UnitKind::RowGroups, first, count, .. } => {
            first as usize..(first + count) as usize
        }
        SplitUnit::File => 0..footer.num_row_groups(),
        _ => return Ok(only),
    };
    let physical = table.footers.schema(&footer)?;
    let predicate = adapt(table, index, predicate, &physical)?;
    let mut wanted = wanted_groups(&physical, &footer, &predicate, groups);
    for (wanted, only) in wanted.iter_mut().zip(only.iter().flat_map(ParquetAccessPlan::inner)) {
        *wanted = both(wanted, only);
    }
    Ok(Some(ParquetAccessPlan::new(wanted)))
}

/// For each row group of Parquet file `index`, whether statistics prove that all its rows pass all
/// of `predicates`, which are over the table's schema. Reads the footer, from the cache where it is
/// there.
///
/// # Errors
/// `Data` where the footer is damaged.
pub async fn matched_groups(
    table: &TableFiles,
    index: usize,
    predicates: &[Arc<dyn PhysicalExpr>],
) -> Result<Vec<bool>> {
    let file = &table.files[index];
    let located = |error: Error| error.with_context("file", table.display_path(index));
    let footer =
        read_footer(&table.store, &file.meta, &table.footers, false).await.map_err(located)?;
    let physical = table.footers.schema(&footer)?;
    let groups = 0..footer.num_row_groups();
    let mut matched = BooleanBuffer::new_set(groups.len());
    for predicate in predicates {
        let predicate = adapt(table, index, predicate, &physical)?;
        let bounds = GroupBounds { footer: &footer, physical: &physical, groups: groups.clone() };
        matched = &matched & &judge(&predicate, &bounds).all;
    }
    Ok(matched.iter().collect())
}
