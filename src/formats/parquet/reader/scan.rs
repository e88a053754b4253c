//! The row groups of a split, one after the other: conditions, then the columns that are wanted.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, BooleanBufferBuilder};
use arrow::compute::{concat, filter, prep_null_mask_filter};
use arrow::datatypes::{DataType, SchemaRef};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use bytes::Bytes;
use datafusion::common::cast::as_boolean_array;
use datafusion::common::internal_datafusion_err;
use datafusion::error::Result as DfResult;
use datafusion::physical_expr::projection::Projector;
use datafusion::physical_expr::utils::reassign_expr_columns;
use futures::stream::{self, BoxStream, StreamExt};
use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaData;

use super::declared_columns::DeclaredColumns;
use super::group::{Group, Wanted};
use super::lengths::Lengths;
use super::row_major::{Batches, Line, LineRows, Matrices};
use super::rows::GroupRows;
use super::stages::Stage;
use crate::formats::TableFiles;
use crate::formats::parquet::pages::{check_pages, wrong};
use crate::panics::evaluated;
use crate::storage::LocalFile;

/// A decoded column of a row group that takes more bytes is not kept for later, but decoded again.
const KEPT_BYTES: usize = 32 << 20;

/// How the rows of one split are read, column by column.
pub struct ColumnScan {
    pub(super) table: Arc<TableFiles>,
    pub(super) file: usize,
    pub(super) footer: Arc<ParquetMetaData>,
    /// The file, where it is local.
    pub(super) local: Option<LocalFile>,
    /// All columns of the file, as they are decoded.
    pub(super) physical: SchemaRef,
    /// The row groups, and which of their rows the page index leaves.
    pub(super) groups: VecDeque<(usize, Wanted)>,
    pub(super) stages: Vec<Stage>,
    /// The columns of the file that the projection needs, by place, ascending, without the columns
    /// of matrices.
    pub(super) columns: Vec<usize>,
    pub(super) matrices: Matrices,
    /// These columns, and then the matrices.
    pub(super) narrow: SchemaRef,
    pub(super) projector: Projector,
    pub(super) output: SchemaRef,
    /// Lengths of the batches from the first row on.
    pub(super) lengths: Lengths,
    /// Whether pages are read when it is their turn, and not chunks.
    pub(super) by_pages: bool,
    /// True if all pages are needed of columns that must be read here, despite all other reasons.
    pub(super) needs_all: bool,
    /// Wanted rows of the row groups that were opened.
    pub(super) passed: usize,
}

/// Columns of the rows that were kept so far, by their place in the file.
type Kept = Vec<(usize, ArrayRef)>;

impl ColumnScan {
    /// The rows, in file order.
    pub fn rows(self) -> BoxStream<'static, DfResult<RecordBatch>> {
        let state = (self, None::<OpenGroup>);
        stream::try_unfold(state, |(mut scan, mut open)| async move {
            loop {
                if let Some(group) = &mut open
                    && let Some(batch) = group.next(&scan).await?
                {
                    return Ok(Some((batch, (scan, open))));
                }
                let Some((number, wanted)) = scan.groups.pop_front() else { return Ok(None) };
                let rows = wanted.count();
                open = scan.open(number, wanted).await?;
                scan.passed += rows;
            }
        })
        .boxed()
    }

    /// The place of the first matrix among the columns that are read: behind all of the file.
    fn matrices_at(&self) -> usize {
        self.physical.fields().len()
    }

    /// The type of a column of the file; None for matrices.
    fn type_of(&self, column: usize) -> Option<&DataType> {
        self.physical.fields().get(column).map(|field| field.data_type())
    }

    async fn fetch(&self, group: &mut Group, columns: &[usize]) -> DfResult<()> {
        let (leaves, ranges) = group.missing(columns);
        if leaves.is_empty() {
            return Ok(());
        }
        let chunks = match &self.local {
            Some(file) => file.read(&ranges).await?,
            None => {
                let path = &self.table.files[self.file].meta.location;
                self.table.store.get_ranges(path, &ranges).await?
            }
        };
        put(group, &leaves, &ranges, chunks)
    }

    /// Fetches columns from the system's page cache; returns false if they are not all there.
    fn fetch_cached(&self, group: &mut Group, columns: &[usize]) -> DfResult<bool> {
        let Some(file) = &self.local else { return Ok(false) };
        let (leaves, ranges) = group.missing(columns);
        let Some(chunks) = file.read_cached(&ranges)? else { return Ok(false) };
        put(group, &leaves, &ranges, chunks)?;
        Ok(true)
    }

    /// A row group after its conditions; None where they keep no row.
    async fn open(&self, number: usize, mut wanted: Wanted) -> DfResult<Option<OpenGroup>> {
        let (footer, schema) = (Arc::clone(&self.footer), Arc::clone(&self.physical));
        let all: Vec<usize> = self.columns.iter().copied().chain(self.matrices.columns()).collect();
        let mut group = Group::new(footer, schema, number, &all);
        // Where few rows were deleted, hardly a page has none left, and decoding all is faster.
        let decodes_all = self.stages.is_empty() && wanted.is_dense();
        if !self.needs_all && !decodes_all {
            group = group.part(&wanted);
        }
        let mut kept: Kept = Vec::new();
        for (number, stage) in self.stages.iter().enumerate() {
            let later = |column: &usize| {
                let mut stages = self.stages[number + 1..].iter();
                self.columns.contains(column) || stages.any(|stage| stage.columns.contains(column))
            };
            let is_new = |column: &&usize| !kept.iter().any(|(known, _)| known == *column);
            let new: Vec<usize> = stage.columns.iter().filter(is_new).copied().collect();
            if !self.fetch_cached(&mut group, &new)? {
                self.fetch(&mut group, &new).await?;
            }
            (wanted, kept) = self.ask(&group, stage, &new, &later, wanted, kept)?;
            if wanted.count() == 0 {
                return Ok(None);
            }
            group.narrow(&wanted);
        }
        let is_new = |column: &&usize| !kept.iter().any(|(known, _)| known == *column);
        let rest: Vec<usize> = self.columns.iter().filter(is_new).copied().collect();
        let looks = group.looks(&rest, &wanted);
        let tiles = if rest.is_empty() && !self.matrices.is_empty() {
            Vec::new()
        } else {
            group.tiles(&rest)
        };
        let tiles = tiles.into_iter().map(|columns| (columns, TileRows::Columns(None)));
        let lines = self.matrices.lines();
        let lines = lines.map(|(columns, line)| (columns, TileRows::Line(line, None)));
        let tiles = tiles.chain(lines).map(|(columns, rows)| Tile { columns, rows }).collect();
        let lengths = self.lengths.after(self.passed);
        let batches = self.matrices.batches();
        let pieces = DeclaredColumns::default();
        Ok(Some(OpenGroup { group, tiles, pieces, kept, batches, at: 0, wanted, looks, lengths }))
    }

    /// Evaluates a condition for the wanted rows. Returns the rows that it keeps, with the columns
    /// that are needed `later`.
    fn ask(
        &self,
        group: &Group,
        stage: &Stage,
        new: &[usize],
        later: &dyn Fn(&usize) -> bool,
        wanted: Wanted,
        kept: Kept,
    ) -> DfResult<(Wanted, Kept)> {
        let schema: SchemaRef = Arc::new(self.physical.project(&stage.columns)?);
        let condition = reassign_expr_columns(Arc::clone(&stage.condition), &schema)?;
        let looks = group.looks(new, &wanted);
        let mut rows = RowsOf::open(group, new, &wanted, looks, self.lengths)?;
        let mut found: Vec<(usize, Vec<ArrayRef>)> =
            new.iter().filter(|column| later(column)).map(|column| (*column, Vec::new())).collect();
        let mut mask = BooleanBufferBuilder::new(wanted.count());
        let mut pieces = DeclaredColumns::default();
        loop {
            let piece = match pieces.take(|column| self.type_of(column))? {
                Some(piece) => piece,
                None => {
                    let Some((count, columns)) = rows.next()? else { break };
                    pieces.put(count, new.iter().copied().zip(columns).collect());
                    continue;
                }
            };
            let (count, columns) = piece;
            let at = mask.len();
            let column = |column: &usize| match new.iter().position(|new| new == column) {
                Some(place) => Ok(Arc::clone(&columns[place].1)),
                None => Ok(of_kept(&kept, *column)?.slice(at, count)),
            };
            let asked = stage.columns.iter().map(column).collect::<DfResult<_>>()?;
            let batch = batch(&schema, asked, count)?;
            let answer = evaluated(|| condition.evaluate(&batch)?.into_array(count))?;
            let answer = match as_boolean_array(&answer)? {
                answer if answer.null_count() > 0 => prep_null_mask_filter(answer),
                answer => answer.clone(),
            };
            mask.append_buffer(answer.values());
            for (column, chunks) in &mut found {
                let place = new.iter().position(|new| new == column).unwrap_or_default();
                chunks.push(filter(&columns[place].1, &answer)?);
            }
            found.retain(|(_, chunks)| bytes_of(chunks) <= KEPT_BYTES);
        }
        let mask = BooleanArray::new(mask.finish(), None);
        check_rows(mask.len(), wanted.count())?;
        let mut narrowed: Kept = Vec::new();
        for (column, array) in kept.iter().filter(|(column, _)| later(column)) {
            narrowed.push((*column, filter(array, &mask)?));
        }
        for (column, chunks) in found {
            let chunks: Vec<&dyn Array> = chunks.iter().map(AsRef::as_ref).collect();
            if !chunks.is_empty() {
                narrowed.push((column, concat(&chunks)?));
            }
        }
        Ok((wanted.narrowed(mask.values().clone()), narrowed))
    }
}

fn put(
    group: &mut Group,
    leaves: &[usize],
    ranges: &[Range<u64>],
    chunks: Vec<Bytes>,
) -> DfResult<()> {
    for (leaf, pages) in leaves.iter().zip(&chunks) {
        check_pages(pages).map_err(|what| wrong(group.path_of(*leaf), &what))?;
    }
    Ok(group.put(leaves, ranges, chunks)?)
}

/// Pages say themselves how many rows they hold; where they are others than the footer says, none
/// may be lost for it.
pub(super) fn check_rows(found: usize, wanted: usize) -> DfResult<()> {
    if found == wanted {
        return Ok(());
    }
    Err(ParquetError::General(format!(
        "the pages of a row group have {found} of the {wanted} rows that the footer says"
    ))
    .into())
}

/// A column of the rows that were kept: it was read before it is asked for.
fn of_kept(kept: &Kept, column: usize) -> DfResult<&ArrayRef> {
    let found = kept.iter().find(|(known, _)| *known == column);
    let (_, array) =
        found.ok_or_else(|| internal_datafusion_err!("column {column} was not read"))?;
    Ok(array)
}

fn bytes_of(arrays: &[ArrayRef]) -> usize {
    arrays.iter().map(|array| array.get_array_memory_size()).sum()
}

fn batch(schema: &SchemaRef, columns: Vec<ArrayRef>, rows: usize) -> DfResult<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    Ok(RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)?)
}

/// The wanted rows of some columns, which may be none: then they are only counted.
enum RowsOf {
    Columns(GroupRows),
    Count { left: usize, lengths: Lengths },
}

impl RowsOf {
    fn open(
        group: &Group,
        columns: &[usize],
        wanted: &Wanted,
        looks: bool,
        lengths: Lengths,
    ) -> DfResult<Self> {
        Ok(match columns.is_empty() {
            true => Self::Count { left: wanted.count(), lengths },
            false => Self::Columns(group.read(columns, wanted, looks, lengths)?),
        })
    }

    /// Reads the missing bytes of the next rows.
    async fn fetch(&mut self, scan: &ColumnScan) -> DfResult<()> {
        let (Self::Columns(rows), Some(file)) = (self, &scan.local) else { return Ok(()) };
        let missing = rows.missing();
        if !missing.is_empty() {
            let ranges: Vec<_> = missing.iter().map(|(_, range)| range.clone()).collect();
            rows.put(&missing, file.read(&ranges).await?);
        }
        Ok(())
    }

    fn next(&mut self) -> DfResult<Option<(usize, Vec<ArrayRef>)>> {
        match self {
            Self::Columns(rows) => Ok(rows.next()?),
            Self::Count { left: 0, .. } => Ok(None),
            Self::Count { left, lengths } => {
                let rows = (*left).min(lengths.next());
                *left -= rows;
                Ok(Some((rows, Vec::new())))
            }
        }
    }
}

/// Columns of a row group that are read together.
struct Tile {
    columns: Vec<usize>,
    rows: TileRows,
}

/// The tile's rows; None before they are read.
enum TileRows {
    Columns(Option<RowsOf>),
    /// They become a line of a matrix.
    Line(Line, Option<LineRows>),
}

/// A row group whose wanted rows are known.
struct OpenGroup {
    group: Group,
    /// The columns that no condition has read.
    tiles: Vec<Tile>,
    /// Rows of these columns that were read, and wait.
    pieces: DeclaredColumns,
    kept: Kept,
    /// Batches of matrices.
    batches: Batches,
    /// How many rows were given.
    at: usize,
    wanted: Wanted,
    /// Whether they are looked for, in all tiles.
    looks: bool,
    lengths: Lengths,
}

impl OpenGroup {
    async fn next(&mut self, scan: &ColumnScan) -> DfResult<Option<RecordBatch>> {
        loop {
            let Some((count, read)) = self.pieces.take(|column| scan.type_of(column))? else {
                let Some((count, read)) = self.read(scan).await? else { break };
                self.pieces.put(count, read);
                continue;
            };
            if count == 0 {
                continue;
            }
            // Of a row group that is one batch nothing is held, so that its columns can be handed
            // out as they are.
            let is_all = self.at == 0 && count == self.wanted.count();
            let kept = if is_all { std::mem::take(&mut self.kept) } else { Kept::new() };
            let found: Kept = read.into_iter().chain(kept).collect();
            let column = |column: &usize| match found.iter().find(|(found, _)| found == column) {
                Some((_, array)) => Ok(Arc::clone(array)),
                None => Ok(of_kept(&self.kept, *column)?.slice(self.at, count)),
            };
            let matrices = scan.matrices_at()..scan.matrices_at() + scan.matrices.len();
            let columns = scan.columns.iter().copied().chain(matrices);
            let columns = columns.map(|place| column(&place)).collect::<DfResult<_>>()?;
            drop(found);
            self.at += count;
            let read = batch(&scan.narrow, columns, count)?;
            let projected = evaluated(|| scan.projector.project_batch(&read))?;
            let (_, columns, _) = projected.into_parts();
            return batch(&scan.output, columns, count).map(Some);
        }
        check_rows(self.at, self.wanted.count())?;
        Ok(None)
    }

    /// The next rows of all tiles; None where one of them has no more.
    async fn read(&mut self, scan: &ColumnScan) -> DfResult<Option<(usize, Kept)>> {
        let (mut count, mut read) = (None, Kept::new());
        let due = Matrices::due(&self.batches);
        for at in 0..self.tiles.len() {
            if matches!(&self.tiles[at].rows, TileRows::Line(line, _) if !line.is_due(&due)) {
                continue;
            }
            if matches!(&self.tiles[at].rows, TileRows::Columns(None) | TileRows::Line(_, None)) {
                self.begin(scan, at).await?;
            }
            let tile = &mut self.tiles[at];
            let next = match &mut tile.rows {
                TileRows::Line(line, Some(rows)) => {
                    scan.matrices.read(line, rows, &mut self.batches)?;
                    continue;
                }
                TileRows::Columns(Some(rows)) => {
                    rows.fetch(scan).await?;
                    rows.next()?
                }
                TileRows::Columns(None) | TileRows::Line(_, None) => None,
            };
            let Some((rows, columns)) = next else { return Ok(None) };
            check_rows(rows, *count.get_or_insert(rows))?;
            read.extend(tile.columns.iter().copied().zip(columns));
        }
        let Some(matrices) = scan.matrices.take(&mut self.batches)? else { return Ok(None) };
        for (place, (rows, matrix)) in (scan.matrices_at()..).zip(matrices) {
            check_rows(rows, *count.get_or_insert(rows))?;
            read.push((place, matrix));
        }
        Ok(count.map(|count| (count, read)))
    }

    /// Begins to read a tile. Bytes that are not in the system's memory are fetched for all
    /// remaining tiles, by few long reads.
    async fn begin(&mut self, scan: &ColumnScan, at: usize) -> DfResult<()> {
        if let (true, Some(file)) = (scan.by_pages, &scan.local) {
            let Tile { columns, rows } = &mut self.tiles[at];
            if let TileRows::Columns(rows) = rows
                && let Some(found) = self.group.read_by_pages(file, columns, self.lengths)
            {
                *rows = Some(RowsOf::Columns(found));
                return Ok(());
            }
        }
        let (tile, later) = (&self.tiles[at].columns, &self.tiles[at..]);
        if !scan.fetch_cached(&mut self.group, tile)? {
            let columns = later.iter().flat_map(|tile| &tile.columns).copied();
            scan.fetch(&mut self.group, &columns.collect::<Vec<_>>()).await?;
        }
        let (group, lengths) = (&self.group, self.lengths);
        let tile = &mut self.tiles[at];
        match &mut tile.rows {
            TileRows::Columns(rows) => {
                *rows =
                    Some(RowsOf::open(group, &tile.columns, &self.wanted, self.looks, lengths)?);
            }
            TileRows::Line(_, rows) => *rows = Some(LineRows::open(group, &tile.columns, lengths)?),
        }
        self.group.forget(&tile.columns);
        Ok(())
    }
}
