//! One row group whose column chunks are in memory: all rows of it, or only some, as Arrow arrays.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::iter;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use arrow::array::{BooleanArray, BooleanBufferBuilder};
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::{DataType, SchemaRef};
use bytes::Bytes;
use datafusion::datasource::physical_plan::parquet::{ParquetAccessPlan, RowGroupAccess};
use datafusion::physical_expr::PhysicalExpr;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader,
    ParquetRecordBatchReaderBuilder, RowGroups, RowSelection, RowSelectionPolicy,
};
use parquet::arrow::{ProjectionMask, parquet_to_arrow_field_levels};
use parquet::basic::Encoding;
use parquet::column::page::PageIterator;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};
use parquet::file::page_index::offset_index::PageLocation;
use parquet::schema::types::ColumnPath;

use super::chunk::{Chunk, pages};
use super::decoded::{decoded_schema, is_wide};
use super::lengths::Lengths;
use super::page_filter::PageLayout;
use super::primitive::{FlatColumn, Stored, flat_column, is_flat};
use super::rows::GroupRows;
use super::unpacked::is_unpacked;
use super::unsupported_by_engine::check_times;
use crate::formats::parquet::access::both;
use crate::formats::parquet::prune::wanted_groups;
use crate::storage::LocalFile;

/// Above this part of the rows, decoding all and leaving out the others is faster than looking for
/// them: at half of the rows looking takes 1.1 times as long as decoding everything, leaving out
/// 1.5 times; at 0.99, 1.4 and 1.2.
const DENSE: f64 = 0.8;

/// Assumed size of a value that is not a number.
const WIDE_BYTES: usize = 1 << 10;

/// Columns of a row group are read from its file and decoded together up to so many bytes: the
/// bytes are then still in the processor's cache. Measured with 128, 256 and 512 KiB and all
/// columns at once.
const TILE_BYTES: u64 = 512 << 10;

/// A row group whose rows take fewer bytes is decoded column by column (and of matrices line by
/// line), not batch by batch: then the pages of one are done with before those of the next are
/// decompressed, into the same memory. Of 66 columns in row groups of 4 MiB that halves the fresh
/// memory that a scan touches; row groups of 8 MiB, whose batches leave the processor's cache
/// meanwhile, take a quarter longer.
const WHOLE_BYTES: usize = 5 << 20;

/// The rows of a row group that are wanted.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    rows: usize,
    /// None: all.
    some: Option<BooleanBuffer>,
    /// Their numbers, once somebody has asked for them.
    places: OnceLock<Arc<[u32]>>,
}

impl Wanted {
    /// All of so many rows.
    pub(super) fn all(rows: usize) -> Self {
        Self::of(rows, None)
    }

    fn of(rows: usize, some: Option<BooleanBuffer>) -> Self {
        Self { rows, some, places: OnceLock::new() }
    }

    /// The lengths of so many rows that are selected.
    pub(super) fn selected(rows: usize, selection: &RowSelection) -> Self {
        let mut some = BooleanBufferBuilder::new(rows);
        for selector in selection.iter() {
            some.append_n(selector.row_count.min(rows - some.len()), !selector.skip);
        }
        some.append_n(rows - some.len(), false);
        Self::of(rows, Some(some.finish()))
    }

    /// Returns true if there are others.
    pub(super) fn is_part(&self) -> bool {
        self.some.is_some()
    }

    /// How many.
    pub(super) fn count(&self) -> usize {
        self.some.as_ref().map_or(self.rows, BooleanBuffer::count_set_bits)
    }

    /// The rows for which `kept`, a bit by wanted row, is set.
    pub(super) fn narrowed(&self, kept: BooleanBuffer) -> Self {
        if kept.count_set_bits() == kept.len() {
            return self.clone();
        }
        let some = match &self.some {
            None => kept,
            Some(wanted) => {
                let mut builder = BooleanBufferBuilder::new(self.rows);
                builder.append_n(self.rows, false);
                for (row, kept) in wanted.set_indices().zip(kept.iter()) {
                    builder.set_bit(row, kept);
                }
                builder.finish()
            }
        };
        Self::of(self.rows, Some(some))
    }

    /// Their numbers, ascending; None where all are wanted.
    fn places(&self) -> Option<&Arc<[u32]>> {
        let some = self.some.as_ref()?;
        Some(self.places.get_or_init(|| {
            let mut places = Vec::with_capacity(some.count_set_bits());
            places.extend(some.set_indices_u32());
            places.into()
        }))
    }

    /// Returns true if nearly all are.
    pub(super) fn is_dense(&self) -> bool {
        self.count() as f64 > DENSE * self.rows as f64
    }
}

/// A row group, with the chunks that were fetched so far.
pub(super) struct Group {
    footer: Arc<ParquetMetaData>,
    /// All columns of the file, as they are decoded.
    schema: SchemaRef,
    number: usize,
    /// Bytes of a decoded row, of all columns that are wanted.
    row_bytes: usize,
    /// Only pages that have one of these rows are read; None: all pages.
    part: Option<BooleanBuffer>,
    chunks: HashMap<usize, Arc<Chunk>>,
}

impl Group {
    /// Row group `number` of a file with the wanted top-level columns `roots`, without its chunks.
    pub(super) fn new(
        footer: Arc<ParquetMetaData>,
        schema: SchemaRef,
        number: usize,
        roots: &[usize],
    ) -> Self {
        let row_bytes = row_bytes(&schema, roots);
        Self { footer, schema, number, row_bytes, part: None, chunks: HashMap::new() }
    }

    /// Limits reading to the pages with `wanted` rows.
    pub(super) fn part(self, wanted: &Wanted) -> Self {
        Self { part: wanted.some.clone(), ..self }
    }

    /// Fewer rows are wanted: where pages without any are not read, that holds from now on of those
    /// without these.
    pub(super) fn narrow(&mut self, wanted: &Wanted) {
        if self.part.is_some() {
            self.part.clone_from(&wanted.some);
        }
    }

    fn metadata(&self) -> &RowGroupMetaData {
        self.footer.row_group(self.number)
    }

    /// The name of a leaf.
    pub(super) fn path_of(&self, leaf: usize) -> &ColumnPath {
        self.metadata().column(leaf).column_path()
    }

    /// Its rows.
    pub(super) fn rows(&self) -> usize {
        usize::try_from(self.metadata().num_rows()).unwrap_or(0)
    }

    /// The leaves of the top-level columns `roots`, ascending.
    fn leaves(&self, roots: &[usize]) -> Vec<usize> {
        let schema = self.footer.file_metadata().schema_descr();
        // Leaves lie in the order of their columns.
        let first = |root: usize| {
            let (mut first, mut end) = (0, schema.num_columns());
            while first < end {
                let middle = first.midpoint(end);
                match schema.get_column_root_idx(middle) < root {
                    true => first = middle + 1,
                    false => end = middle,
                }
            }
            first
        };
        let mut leaves: Vec<usize> =
            roots.iter().flat_map(|root| first(*root)..first(*root + 1)).collect();
        leaves.sort_unstable();
        leaves
    }

    /// The chunks of `roots` that are not in memory yet: the leaf of each, and its ranges of the
    /// file, ascending.
    pub(super) fn missing(&self, roots: &[usize]) -> (Vec<usize>, Vec<Range<u64>>) {
        let missing = self.leaves(roots).into_iter().filter(|leaf| !self.chunks.contains_key(leaf));
        missing.flat_map(|leaf| iter::repeat(leaf).zip(self.ranges(leaf))).unzip()
    }

    /// Where the bytes of a leaf lie that are wanted.
    fn ranges(&self, leaf: usize) -> Vec<Range<u64>> {
        let chunk = self.chunk_range(leaf);
        let (Some(wanted), Some(index)) = (&self.part, self.index_of(leaf)) else {
            return vec![chunk];
        };
        let start = |page: &PageLocation| page.offset as u64;
        let dictionary = chunk.start..index.first().map_or(chunk.start, start);
        let ends = index[1..].iter().map(|next| next.first_row_index as usize);
        let pages = index.iter().zip(ends.chain(iter::once(self.rows())));
        let is_wanted = |(page, end): &(&PageLocation, usize)| {
            let first = page.first_row_index as usize;
            wanted.slice(first, end - first).count_set_bits() > 0
        };
        let pages = pages
            .filter(is_wanted)
            .map(|(page, _)| start(page)..start(page) + page.compressed_page_size as u64);
        iter::once(dictionary).filter(|range| !range.is_empty()).chain(pages).collect()
    }

    fn chunk_range(&self, leaf: usize) -> Range<u64> {
        let (start, length) = self.metadata().column(leaf).byte_range();
        start..start + length
    }

    /// Where the data pages of a leaf lie; None where there is no page index. It was looked at when
    /// it was read.
    fn index_of(&self, leaf: usize) -> Option<&[PageLocation]> {
        let index = self.footer.offset_index()?.get(self.number)?.get(leaf)?.page_locations();
        (!index.is_empty()).then_some(index)
    }

    /// Takes the bytes read for the `leaves` at `ranges`.
    ///
    /// # Errors
    /// Where pages are others than the page index says, or times are none that the column holds.
    pub(super) fn put(
        &mut self,
        leaves: &[usize],
        ranges: &[Range<u64>],
        read: Vec<Bytes>,
    ) -> Result<()> {
        let starts = ranges.iter().map(|range| range.start);
        let mut pieces = starts.zip(read);
        for leaves in leaves.chunk_by(|one, next| one == next) {
            let leaf = leaves[0];
            let index = self.part.as_ref().and_then(|_| self.index_of(leaf)).map(<[_]>::to_vec);
            let pieces = pieces.by_ref().take(leaves.len()).collect();
            let (range, index) = (self.chunk_range(leaf), index.unwrap_or_default());
            let column = self.metadata().column(leaf);
            let repeats = column.column_descr().max_rep_level() > 0;
            let chunk = Arc::new(Chunk::part(range, pieces, index, self.rows(), repeats)?);
            let root = self.footer.file_metadata().schema_descr().get_column_root_idx(leaf);
            check_times(&chunk, column, self.rows(), self.schema.field(root).data_type())?;
            self.chunks.insert(leaf, chunk);
        }
        Ok(())
    }

    /// Drops the chunks of `roots`; readers keep theirs as long as they need them.
    pub(super) fn forget(&mut self, roots: &[usize]) {
        for leaf in self.leaves(roots) {
            self.chunks.remove(&leaf);
        }
    }

    /// `roots`, as they are read together; one tile at least.
    pub(super) fn tiles(&self, roots: &[usize]) -> Vec<Vec<usize>> {
        let schema = self.footer.file_metadata().schema_descr();
        let mut bytes = vec![0_u64; self.schema.fields().len()];
        for (leaf, column) in self.metadata().columns().iter().enumerate() {
            let found = u64::try_from(column.uncompressed_size()).unwrap_or(0);
            let root = &mut bytes[schema.get_column_root_idx(leaf)];
            *root = root.saturating_add(found);
        }
        let (mut tiles, mut filled) = (vec![Vec::new()], 0_u64);
        for root in roots {
            let bytes = bytes[*root];
            if filled > 0 && filled.saturating_add(bytes) > TILE_BYTES {
                tiles.push(Vec::new());
                filled = 0;
            }
            filled = filled.saturating_add(bytes);
            if let Some(tile) = tiles.last_mut() {
                tile.push(*root);
            }
        }
        tiles
    }

    /// Returns true if it is better to look for the wanted rows of the top-level columns `roots`
    /// than to decode all of them. The one and the other way give batches of other lengths, so
    /// columns that are read side by side must be asked for together.
    pub(super) fn looks(&self, roots: &[usize], wanted: &Wanted) -> bool {
        // Of pages that were not read, no row can be decoded.
        self.part.is_some() || !wanted.is_dense() && can_skip(self.metadata(), &self.leaves(roots))
    }

    /// Reads the wanted rows of the top-level columns `roots`, ascending, in batches of these
    /// `lengths`: where not all rows are wanted it `looks` for them, or decodes all and leaves out
    /// the others.
    ///
    /// # Errors
    /// Where the chunks are damaged.
    pub(super) fn read(
        &self,
        roots: &[usize],
        wanted: &Wanted,
        looks: bool,
        lengths: Lengths,
    ) -> Result<GroupRows> {
        let some = wanted.some.as_ref();
        let places = if looks { wanted.places() } else { None };
        let rows = places.map_or(self.rows(), |places| places.len());
        let mut read = GroupRows::new(lengths, some.filter(|_| !looks).cloned());
        read = read.at_a_time(self.batches_at_once(rows, lengths));
        let mut others = Vec::new();
        for root in roots {
            match self.flat(*root, places) {
                Some(column) => read.add_flat(*root, column),
                None => others.push(*root),
            }
        }
        let short = |root: &usize| {
            let layout = |leaf: &usize| PageLayout::of(self.metadata().column(*leaf)).is_some();
            !has_narrow_keys(self.schema.field(*root).data_type())
                && self.leaves(&[*root]).iter().all(layout)
        };
        // Of the columns that are looked for, those of which pages cannot be shortened have values
        // to pass over.
        let is_read = |root: &usize| places.is_none() || short(root);
        let (others, skipped): (Vec<usize>, Vec<usize>) =
            others.iter().partition(|root| is_read(root));
        if !others.is_empty() {
            let reader = self.reader(&others, places, lengths.most(), None)?;
            read.add(&others, reader);
        }
        if let Some(rows) = some.filter(|_| !skipped.is_empty()) {
            let selection = RowSelection::from_filters(&[BooleanArray::new(rows.clone(), None)]);
            let reader = self.selecting(&skipped, lengths.most(), selection)?;
            read.add(&skipped, reader);
        }
        Ok(read)
    }

    /// Reads all rows, each page from the file when it is needed. Returns None if a column is not
    /// decoded here, or if the system does not have it in memory.
    pub(super) fn read_by_pages(
        &self,
        file: &LocalFile,
        roots: &[usize],
        lengths: Lengths,
    ) -> Option<GroupRows> {
        // What was read with an earlier tile need not be read once more.
        (!self.missing(roots).0.is_empty()).then_some(())?;
        let mut read = GroupRows::new(lengths, None);
        for root in roots {
            let [leaf] = self.leaves(&[*root])[..] else { return None };
            let column = self.metadata().column(leaf);
            let (start, length) = column.byte_range();
            let stored = Stored::File(file.clone(), start..start.checked_add(length)?);
            let data_type = self.schema.field(*root).data_type();
            read.add_flat(*root, flat_column(column, data_type, stored, self.rows(), None)?);
        }
        Some(read)
    }

    /// How many batches of each column are decoded at a time, of so many `rows`.
    pub(super) fn batches_at_once(&self, rows: usize, lengths: Lengths) -> usize {
        match rows.saturating_mul(self.row_bytes) <= WHOLE_BYTES {
            true => rows.div_ceil(lengths.most()) + 1,
            false => 1,
        }
    }

    /// All rows of the columns `roots`, if every one of them is decoded here.
    pub(super) fn flat_columns(&self, roots: &[usize]) -> Option<Vec<Box<dyn FlatColumn>>> {
        roots.iter().map(|root| self.flat(*root, None)).collect()
    }

    /// Returns true if the columns `roots` are likely to be decoded here, and not by the `parquet`
    /// crate.
    pub(super) fn is_flat(&self, roots: &[usize]) -> bool {
        roots.iter().all(|root| match self.leaves(&[*root])[..] {
            [leaf] => is_flat(self.metadata().column(leaf), self.schema.field(*root).data_type()),
            _ => false,
        })
    }

    /// The column `root`, where it is decoded here.
    fn flat(&self, root: usize, places: Option<&Arc<[u32]>>) -> Option<Box<dyn FlatColumn>> {
        let [leaf] = self.leaves(&[root])[..] else { return None };
        let (column, chunk) = (self.metadata().column(leaf), self.chunks.get(&leaf)?);
        flat_column(column, self.schema.field(root).data_type(), chunk, self.rows(), places)
    }

    fn reader(
        &self,
        roots: &[usize],
        places: Option<&Arc<[u32]>>,
        batch_rows: usize,
        selection: Option<RowSelection>,
    ) -> Result<ParquetRecordBatchReader> {
        let schema = self.footer.file_metadata().schema_descr();
        let mut wide = Vec::new();
        for root in roots {
            if self.is_wide(*root, batch_rows)? {
                wide.push(*root);
            }
        }
        let is_wide = |root: usize| wide.contains(&root);
        let decoded = decoded_schema(schema, self.schema.fields(), roots, is_wide)?;
        let (schema, fields) = match &decoded {
            Some((schema, fields)) => (schema, fields),
            None => (schema, self.schema.fields()),
        };
        let mask = ProjectionMask::roots(schema, roots.iter().copied());
        let levels = parquet_to_arrow_field_levels(schema, mask, Some(fields))?;
        let pages = Pages { group: self, places };
        ParquetRecordBatchReader::try_new_with_row_groups(&levels, &pages, batch_rows, selection)
    }

    /// Returns true if a batch of a column may have more texts than an array of them holds.
    fn is_wide(&self, root: usize, batch_rows: usize) -> Result<bool> {
        for leaf in self.leaves(&[root]) {
            let (column, chunk) = (self.metadata().column(leaf), self.chunks.get(&leaf));
            let Some(chunk) = chunk else { continue };
            let values = usize::try_from(column.num_values()).unwrap_or(usize::MAX);
            let at_once = match column.column_descr().max_rep_level() {
                0 => values.min(batch_rows),
                _ => values,
            };
            if is_wide(chunk, column, self.rows(), at_once)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The selected rows of `roots`, whose other rows are passed over.
    fn selecting(
        &self,
        roots: &[usize],
        batch_rows: usize,
        selection: RowSelection,
    ) -> Result<ParquetRecordBatchReader> {
        let leaves = self.leaves(roots);
        let chunks = leaves.iter().filter_map(|leaf| self.chunks.get(leaf));
        if !chunks.clone().any(|chunk| chunk.has_gaps()) {
            return self.reader(roots, None, batch_rows, Some(selection));
        }
        // Where selected rows and others alternate, the reader would decode them all and leave out
        // the others: also those of pages that are not here. This one can be told not to.
        let metadata =
            ArrowReaderMetadata::try_new(Arc::clone(&self.footer), ArrowReaderOptions::new())?;
        let schema = self.footer.file_metadata().schema_descr();
        ParquetRecordBatchReaderBuilder::new_with_metadata(Chunk::together(chunks), metadata)
            .with_row_groups(vec![self.number])
            .with_projection(ProjectionMask::roots(schema, roots.iter().copied()))
            .with_batch_size(batch_rows)
            .with_row_selection(selection)
            .with_row_selection_policy(RowSelectionPolicy::Selectors)
            .build()
    }
}

/// Bytes of a decoded row of the columns `roots`.
pub(super) fn row_bytes(schema: &SchemaRef, roots: &[usize]) -> usize {
    let width = |root: &usize| schema.field(*root).data_type().primitive_width();
    roots.iter().map(|root| width(root).unwrap_or(WIDE_BYTES)).sum()
}

/// The groups of `groups` with rows that the predicate may keep, and these rows, by the page index;
/// only rows in `only`. Returns None if they cannot be counted.
pub(super) fn wanted_rows(
    physical: &SchemaRef,
    footer: &ParquetMetaData,
    predicate: Option<&Arc<dyn PhysicalExpr>>,
    only: Option<&ParquetAccessPlan>,
    groups: Range<usize>,
) -> Option<VecDeque<(usize, Wanted)>> {
    let access = match predicate {
        Some(predicate) => wanted_groups(physical, footer, predicate, groups.clone()),
        None => vec![RowGroupAccess::Scan; footer.num_row_groups()],
    };
    let only = only.map_or(&[][..], ParquetAccessPlan::inner);
    let mut wanted = VecDeque::new();
    for (number, access) in access.iter().enumerate().filter(|(number, _)| groups.contains(number))
    {
        let rows = usize::try_from(footer.row_group(number).num_rows()).unwrap_or(usize::MAX);
        let only = only.get(number).unwrap_or(&RowGroupAccess::Scan);
        // Scattered deletes are a long list, which is not copied where there is no other one.
        let access = match access {
            RowGroupAccess::Scan => Cow::Borrowed(only),
            access => Cow::Owned(both(access, only)),
        };
        match access.as_ref() {
            RowGroupAccess::Skip => {}
            // Rows are counted by 32 bits here.
            _ if u32::try_from(rows).is_err() => return None,
            RowGroupAccess::Selection(selection) if selection.row_count() < rows => {
                wanted.push_back((number, Wanted::selected(rows, selection)));
            }
            RowGroupAccess::Scan | RowGroupAccess::Selection(_) => {
                wanted.push_back((number, Wanted::all(rows)));
            }
        }
    }
    Some(wanted)
}

/// Returns true if nearly all rows of `groups` are in `only`, so that it is better to decode all.
pub(super) fn is_dense(
    only: &ParquetAccessPlan,
    footer: &ParquetMetaData,
    groups: Range<usize>,
) -> bool {
    let (mut wanted, mut all) = (0, 0);
    for number in groups {
        let rows = usize::try_from(footer.row_group(number).num_rows()).unwrap_or(usize::MAX);
        all += rows;
        wanted += match only.inner().get(number) {
            Some(RowGroupAccess::Skip) => 0,
            Some(RowGroupAccess::Selection(selection)) => selection.row_count().min(rows),
            Some(RowGroupAccess::Scan) | None => rows,
        };
    }
    wanted as f64 > DENSE * all as f64
}

/// Returns true if the decoder can pass over values of `leaves`: it cannot where differences are
/// packed in blocks of another size than most writers choose, which a page does not say before it
/// is read.
pub(super) fn can_skip(group: &RowGroupMetaData, leaves: &[usize]) -> bool {
    let differences = |encoding| {
        use Encoding::{DELTA_BINARY_PACKED, DELTA_BYTE_ARRAY, DELTA_LENGTH_BYTE_ARRAY};
        matches!(encoding, DELTA_BINARY_PACKED | DELTA_BYTE_ARRAY | DELTA_LENGTH_BYTE_ARRAY)
    };
    let is_packed = |leaf: &usize| {
        let column = group.column(*leaf);
        !is_unpacked(column) && column.encodings().any(differences)
    };
    !leaves.iter().any(is_packed)
}

/// Returns true if there are dictionaries whose keys have 8 or 16 bits: the decoder reads indices
/// as keys, and shortened pages have them in 32 bits.
fn has_narrow_keys(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(key, _) => key.primitive_width().is_none_or(|bytes| bytes < 4),
        DataType::Struct(fields) => fields.iter().any(|field| has_narrow_keys(field.data_type())),
        _ => false,
    }
}

/// The pages of a row group: as they are, or of these rows alone.
struct Pages<'a> {
    group: &'a Group,
    places: Option<&'a Arc<[u32]>>,
}

impl RowGroups for Pages<'_> {
    fn num_rows(&self) -> usize {
        self.places.map_or_else(|| self.group.rows(), |places| places.len())
    }

    fn column_chunks(&self, leaf: usize) -> Result<Box<dyn PageIterator>> {
        let chunk =
            self.group.chunks.get(&leaf).ok_or_else(|| {
                ParquetError::General(format!("column chunk {leaf} was not fetched"))
            })?;
        pages(chunk, self.group.metadata().column(leaf), self.group.rows(), self.places)
    }

    fn row_groups(&self) -> Box<dyn Iterator<Item = &RowGroupMetaData> + '_> {
        Box::new(iter::once(self.group.metadata()))
    }

    fn metadata(&self) -> &ParquetMetaData {
        &self.group.footer
    }
}
