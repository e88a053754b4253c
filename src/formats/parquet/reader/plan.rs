//! Which splits are read column by column, and how.

use std::collections::{HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::datasource::physical_plan::parquet::{
    ParquetAccessPlan, apply_file_schema_type_coercions,
};
use datafusion::error::DataFusionError;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::projection::ProjectionExprs;
use parquet::file::metadata::ParquetMetaData;

use super::group::{Group, Wanted, can_skip, is_dense, row_bytes, wanted_rows};
use super::lengths::{BatchEnds, Lengths};
use super::row_major::Matrices;
use super::scan::ColumnScan;
use super::stages::{Stage, stages};
use super::unsupported_by_engine::{in_units_of, is_hard, needs_all};
use crate::Result;
use crate::formats::footers::read_footer;
use crate::formats::parquet::discover::Adapter;
use crate::formats::{Format, Split, SplitUnit, TableFiles, UnitKind};
use crate::storage::LocalFile;

/// A split that is to be read, by a predicate and a projection over the table's schema.
#[derive(Clone, Copy, Debug)]
pub struct ColumnRequest<'a> {
    /// The table of the file.
    pub table: &'a Arc<TableFiles>,
    /// The split.
    pub split: &'a Split,
    /// The rows of it that are read; None for all.
    pub only: Option<&'a ParquetAccessPlan>,
    /// The condition of rows that are kept.
    pub predicate: Option<&'a Arc<dyn PhysicalExpr>>,
    /// The columns that are wanted of them.
    pub projection: &'a ProjectionExprs,
}

/// A split that is read column by column.
pub struct Eligible<'a> {
    request: ColumnRequest<'a>,
    local: Option<LocalFile>,
    footer: Arc<ParquetMetaData>,
    /// All columns of the file, as they are decoded.
    physical: SchemaRef,
    /// The row groups, and which of their rows the page index leaves.
    groups: VecDeque<(usize, Wanted)>,
    stages: Vec<Stage>,
    /// Over the columns of the file.
    projection: ProjectionExprs,
    matrices: Matrices,
    is_hard: bool,
    needs_all: bool,
}

impl<'a> ColumnRequest<'a> {
    /// Takes a split that can be read column by column. Returns None if DataFusion's own scan is to
    /// read it: other formats; files whose Bloom filters may exclude row groups; types that it
    /// reads in its own way; parts of row groups with values that cannot be skipped. Remote files
    /// without a predicate, and small parts of row groups, gain nothing here. Columns that DataFusion
    /// reads wrongly are read here in any case: see [`is_hard`].
    ///
    /// # Errors
    /// `Data` where the footer is damaged; storage errors as they are.
    pub async fn eligible(self) -> Result<Option<Eligible<'a>>> {
        let Self { table, split, only, predicate, projection } = self;
        let index = split.file as usize;
        if *table.format_of(index) != Format::Parquet {
            return Ok(None);
        }
        let file = &table.files[index];
        let local = LocalFile::open(&table.store, &file.meta.location).await?;
        let footer = footer_of(table, index, predicate.is_some()).await?;
        let groups = match split.unit {
            SplitUnit::Units { kind: UnitKind::RowGroups, first, count, .. } => {
                first as usize..(first + count) as usize
            }
            SplitUnit::File => 0..footer.num_row_groups(),
            _ => return Ok(None),
        };
        let skips = self.skips();
        let gains_nothing = match only {
            Some(only) => local.is_none() || !is_dense(only, &footer, groups.clone()),
            None => local.is_none() && predicate.is_none(),
        };
        if gains_nothing && !has_hard(&footer, groups.clone(), skips) {
            return Ok(None);
        }
        let physical = table.footers.schema(&footer).map_err(DataFusionError::from)?;
        let mut physical = in_units_of(physical, &footer, table.schema.file_schema());
        let coerced = apply_file_schema_type_coercions(table.schema.file_schema(), &physical);
        // It also answers with the types as they were.
        let is_coerced = coerced.as_ref().is_some_and(|other| other.fields() != physical.fields());
        if let Some(coerced) = coerced.filter(|_| is_coerced) {
            physical = Arc::new(coerced);
        }
        let adapter = Adapter::try_new(table, index, &physical)?;
        let predicate = predicate.map(|asked| adapter.rewrite(Arc::clone(asked))).transpose()?;
        let rows = wanted_rows(&physical, &footer, predicate.as_ref(), only, groups.clone());
        let Some(rows) = rows else { return Ok(None) };
        let projection = projection.clone().try_map_exprs(|expr| Ok(adapter.rewrite(expr)?))?;
        let matrices = match skips {
            false => Matrices::of(&projection, &physical),
            true => Matrices::default(),
        };
        let stages = predicate.as_ref().map(stages).unwrap_or_default();
        let asked = stages.iter().flat_map(|stage| stage.columns.iter().copied());
        let all: Vec<usize> = wanted(&matrices, &projection).into_iter().chain(asked).collect();
        let leaves = leaves_of(&footer, &all);
        let is_hard = is_hard(&footer, groups.clone(), &leaves, skips);
        let needs_all = needs_all(&footer, groups, &leaves, skips);
        let is_other =
            gains_nothing || is_coerced || predicate.is_some() && !is_best(&footer, &rows, &leaves);
        if is_other && !is_hard {
            return Ok(None);
        }
        let (request, groups) = (self, rows);
        drop(adapter);
        Ok(Some(Eligible {
            request,
            local,
            footer,
            physical,
            groups,
            stages,
            projection,
            matrices,
            is_hard,
            needs_all,
        }))
    }

    /// Takes a split of a file that the engine's own scan reads wrongly or not at all; returns None
    /// for others.
    ///
    /// # Errors
    /// As [`eligible`](Self::eligible).
    pub async fn eligible_if_hard(self) -> Result<Option<Eligible<'a>>> {
        let index = self.split.file as usize;
        if *self.table.format_of(index) != Format::Parquet {
            return Ok(None);
        }
        let footer = footer_of(self.table, index, self.predicate.is_some()).await?;
        if !has_hard(&footer, 0..footer.num_row_groups(), self.predicate.is_some()) {
            return Ok(None);
        }
        Ok(self.eligible().await?.filter(|eligible| eligible.is_hard))
    }

    /// Returns true if some rows are passed over.
    fn skips(&self) -> bool {
        self.only.is_some() || self.predicate.is_some()
    }
}

impl Eligible<'_> {
    /// The scan. Batches have `batch_rows` rows at most, and end at `cuts` where that saves copies.
    ///
    /// # Errors
    /// An internal error where the projection does not fit the table.
    pub fn build(self, batch_rows: usize, cuts: Option<BatchEnds>) -> Result<ColumnScan> {
        let Self { request, local, footer, physical, groups, stages, .. } = self;
        let (table, matrices) = (request.table, self.matrices);
        let output = request.projection.project_schema(table.schema.table_schema())?;
        let columns = matrices.other_columns(&self.projection);
        let wanted = wanted(&matrices, &self.projection);
        let narrow = matrices.schema(&physical, &columns)?;
        // The reader of the `parquet` crate has batches of one length.
        let is_flat = |(number, _): &(usize, Wanted)| {
            let group = Group::new(Arc::clone(&footer), Arc::clone(&physical), *number, &wanted);
            group.is_flat(&wanted)
        };
        // How many rows a condition keeps is not known before it is asked.
        let is_known = request.predicate.is_none();
        let cuts = cuts.filter(|_| is_known && groups.iter().all(is_flat));
        let projection = matrices.project(self.projection, &narrow)?;
        let row_bytes = row_bytes(&physical, &wanted);
        Ok(ColumnScan {
            table: Arc::clone(table),
            file: request.split.file as usize,
            local,
            stages,
            projector: projection.make_projector(&narrow)?,
            footer,
            physical,
            groups,
            needs_all: self.needs_all,
            // Where there is no column, rows are only counted.
            by_pages: !columns.is_empty()
                && !request.skips()
                && cuts.is_some_and(|cuts| cuts.turns),
            columns,
            matrices,
            narrow,
            output: Arc::new(output),
            lengths: Lengths::new(batch_rows, row_bytes, cuts),
            passed: 0,
        })
    }
}

/// The columns of the file that are decoded for a projection.
fn wanted(matrices: &Matrices, projection: &ProjectionExprs) -> Vec<usize> {
    let columns = matrices.other_columns(projection);
    columns.into_iter().chain(matrices.columns()).collect()
}

async fn footer_of(
    table: &Arc<TableFiles>,
    index: usize,
    page_index: bool,
) -> Result<Arc<ParquetMetaData>> {
    read_footer(&table.store, &table.files[index].meta, &table.footers, page_index)
        .await
        .map_err(|error| error.with_context("file", table.display_path(index)))
}

/// Returns true if some column of these row groups must be read here, despite all other reasons.
fn has_hard(footer: &ParquetMetaData, groups: Range<usize>, skips: bool) -> bool {
    let all: Vec<usize> = (0..footer.file_metadata().schema_descr().num_columns()).collect();
    is_hard(footer, groups, &all, skips)
}

fn leaves_of(footer: &ParquetMetaData, columns: &[usize]) -> Vec<usize> {
    let schema = footer.file_metadata().schema_descr();
    let wanted: HashSet<usize> = columns.iter().copied().collect();
    (0..schema.num_columns())
        .filter(|leaf| wanted.contains(&schema.get_column_root_idx(*leaf)))
        .collect()
}

/// Returns true if nothing is against reading the row groups by columns: Bloom filters that may
/// save reading, or parts of row groups in which values cannot be passed over.
fn is_best(footer: &ParquetMetaData, groups: &VecDeque<(usize, Wanted)>, leaves: &[usize]) -> bool {
    groups.iter().all(|(number, wanted)| {
        let group = footer.row_group(*number);
        match can_skip(group, leaves) {
            true => leaves.iter().all(|leaf| group.column(*leaf).bloom_filter_offset().is_none()),
            // DataFusion's scan may fail to pass over them. Better to read more, but not what the
            // page index takes out.
            false => !wanted.is_part(),
        }
    })
}
