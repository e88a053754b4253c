//! One row group whose column chunks are in memory: all rows of it, or only some, as Arrow arrays.

use std::collections::HashMap;
use std::iter;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, BooleanBufferBuilder};
use arrow::buffer::BooleanBuffer;
use arrow::compute::filter;
use arrow::datatypes::{DataType, SchemaRef};
use bytes::Bytes;
use bytes::buf::{Buf, Reader};
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, RowGroups, RowSelection};
use parquet::arrow::{ProjectionMask, parquet_to_arrow_field_levels};
use parquet::basic::Encoding;
use parquet::column::page::{Page, PageIterator, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::serialized_reader::SerializedPageReader;

use super::compact::PageLayout;

/// Above this part of the rows, decoding all and leaving out the others is faster than looking for them: at half of the rows
/// looking takes 1.1 times as long as decoding everything, leaving out 1.5 times; at 0.99, 1.4 and 1.2.
const DENSE: f64 = 0.8;

/// Columns of a row group are read from its file and decoded together up to so many bytes: what was read is then still in
/// the processor's cache. Measured with 128, 256 and 512 KiB and all columns at once.
const TILE_BYTES: u64 = 512 << 10;

/// The rows of a row group that are wanted.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    rows: usize,
    /// None: all.
    some: Option<BooleanBuffer>,
}

impl Wanted {
    /// All of so many rows.
    pub(super) fn all(rows: usize) -> Self {
        Self { rows, some: None }
    }

    /// How many.
    pub(super) fn count(&self) -> usize {
        self.some.as_ref().map_or(self.rows, BooleanBuffer::count_set_bits)
    }

    /// Those of them for which `kept`, a bit by wanted row, is set.
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
        Self { rows: self.rows, some: Some(some) }
    }

    fn is_dense(&self) -> bool {
        self.count() as f64 > DENSE * self.rows as f64
    }
}

/// A column chunk, at its place in the file.
struct Chunk {
    start: u64,
    bytes: Bytes,
}

impl Chunk {
    fn range(&self, start: u64, length: usize) -> Result<Bytes> {
        let at = start.checked_sub(self.start).and_then(|at| usize::try_from(at).ok());
        let found = at
            .and_then(|at| Some(at..at.checked_add(length)?))
            .filter(|range| range.end <= self.bytes.len())
            .map(|range| self.bytes.slice(range));
        found.ok_or_else(|| {
            ParquetError::EOF(format!("{length} bytes at {start} are not in the column chunk"))
        })
    }
}

impl Length for Chunk {
    fn len(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

impl ChunkReader for Chunk {
    type T = Reader<Bytes>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        let length = usize::try_from(self.len().saturating_sub(start))?;
        Ok(self.range(start, length)?.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        self.range(start, length)
    }
}

/// A row group, with the chunks that were fetched so far.
pub(super) struct Group {
    footer: Arc<ParquetMetaData>,
    /// All columns of the file, as they are decoded.
    schema: SchemaRef,
    number: usize,
    chunks: HashMap<usize, Arc<Chunk>>,
}

impl Group {
    /// Row group `number` of a file, without its chunks.
    pub(super) fn new(footer: Arc<ParquetMetaData>, schema: SchemaRef, number: usize) -> Self {
        Self { footer, schema, number, chunks: HashMap::new() }
    }

    fn metadata(&self) -> &RowGroupMetaData {
        self.footer.row_group(self.number)
    }

    /// Its rows.
    pub(super) fn rows(&self) -> usize {
        usize::try_from(self.metadata().num_rows()).unwrap_or(0)
    }

    /// The leaves of the top-level columns `roots`.
    fn leaves(&self, roots: &[usize]) -> Vec<usize> {
        let schema = self.footer.file_metadata().schema_descr();
        let wanted = |leaf: &usize| roots.contains(&schema.get_column_root_idx(*leaf));
        (0..schema.num_columns()).filter(wanted).collect()
    }

    /// The chunks of `roots` that are not here yet, and where they lie in the file.
    pub(super) fn missing(&self, roots: &[usize]) -> (Vec<usize>, Vec<Range<u64>>) {
        let missing = self.leaves(roots).into_iter().filter(|leaf| !self.chunks.contains_key(leaf));
        let place = |leaf: usize| {
            let (start, length) = self.metadata().column(leaf).byte_range();
            (leaf, start..start + length)
        };
        missing.map(place).unzip()
    }

    /// Takes the chunks of `leaves`, which begin at `ranges`.
    pub(super) fn put(&mut self, leaves: &[usize], ranges: &[Range<u64>], chunks: Vec<Bytes>) {
        for ((leaf, range), bytes) in leaves.iter().zip(ranges).zip(chunks) {
            self.chunks.insert(*leaf, Arc::new(Chunk { start: range.start, bytes }));
        }
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

    /// Whether it is better to look for the wanted rows of the top-level columns `roots` than to decode all of them. The one and
    /// the other way give batches of other lengths, so columns that are read side by side must be asked for together.
    pub(super) fn looks(&self, roots: &[usize], wanted: &Wanted) -> bool {
        !wanted.is_dense() && can_skip(self.metadata(), &self.leaves(roots))
    }

    /// Reads the wanted rows of the top-level columns `roots`, ascending, in batches of `batch_rows` at most: where not all rows are
    /// wanted it `looks` for them, or decodes all and leaves out the others.
    ///
    /// # Errors
    /// Where the chunks are damaged.
    pub(super) fn read(
        &self,
        roots: &[usize],
        wanted: &Wanted,
        looks: bool,
        batch_rows: usize,
    ) -> Result<GroupRows> {
        let Some(rows) = wanted.some.as_ref() else {
            return Ok(GroupRows::All(self.reader(roots, None, batch_rows, None)?));
        };
        if !looks {
            let reader = self.reader(roots, None, batch_rows, None)?;
            return Ok(GroupRows::Filtered { reader, rows: rows.clone(), at: 0 });
        }
        let places: Arc<[u32]> = rows.set_indices_u32().collect();
        let short = |root: &usize| {
            let layout = |leaf: &usize| PageLayout::of(self.metadata().column(*leaf)).is_some();
            !has_narrow_keys(self.schema.field(*root).data_type())
                && self.leaves(&[*root]).iter().all(layout)
        };
        let (shortened, skipped): (Vec<usize>, Vec<usize>) =
            roots.iter().partition(|root| short(root));
        let mut parts = Vec::new();
        if !shortened.is_empty() {
            parts.push((
                shortened.clone(),
                self.reader(&shortened, Some(places), batch_rows, None)?,
            ));
        }
        if !skipped.is_empty() {
            let selection = RowSelection::from_filters(&[BooleanArray::new(rows.clone(), None)]);
            parts
                .push((skipped.clone(), self.reader(&skipped, None, batch_rows, Some(selection))?));
        }
        let mut order: Vec<(usize, usize)> =
            shortened.into_iter().chain(skipped).enumerate().map(|(at, root)| (root, at)).collect();
        order.sort_unstable();
        let order = order.into_iter().map(|(_, at)| at).collect();
        Ok(GroupRows::Looked {
            readers: parts.into_iter().map(|(_, reader)| reader).collect(),
            order,
        })
    }

    fn reader(
        &self,
        roots: &[usize],
        places: Option<Arc<[u32]>>,
        batch_rows: usize,
        selection: Option<RowSelection>,
    ) -> Result<ParquetRecordBatchReader> {
        let schema = self.footer.file_metadata().schema_descr();
        let mask = ProjectionMask::roots(schema, roots.iter().copied());
        let levels = parquet_to_arrow_field_levels(schema, mask, Some(self.schema.fields()))?;
        let pages = Pages { group: self, places };
        ParquetRecordBatchReader::try_new_with_row_groups(&levels, &pages, batch_rows, selection)
    }
}

/// Whether the decoder can pass over values of `leaves`: it cannot where differences are packed in blocks of another size
/// than most writers choose, which a page does not say before it is read.
pub(super) fn can_skip(group: &RowGroupMetaData, leaves: &[usize]) -> bool {
    let differences = |encoding| {
        use Encoding::{DELTA_BINARY_PACKED, DELTA_BYTE_ARRAY, DELTA_LENGTH_BYTE_ARRAY};
        matches!(encoding, DELTA_BINARY_PACKED | DELTA_BYTE_ARRAY | DELTA_LENGTH_BYTE_ARRAY)
    };
    !leaves.iter().any(|leaf| group.column(*leaf).encodings().any(differences))
}

/// Whether there are dictionaries whose keys have 8 or 16 bits: the decoder reads indices as keys, and shortened pages have
/// them in 32 bits.
fn has_narrow_keys(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(key, _) => key.primitive_width().is_none_or(|bytes| bytes < 4),
        DataType::Struct(fields) => fields.iter().any(|field| has_narrow_keys(field.data_type())),
        _ => false,
    }
}

/// The wanted rows of some columns of a row group, batch by batch.
pub(super) enum GroupRows {
    /// Every row.
    All(ParquetRecordBatchReader),
    /// All rows are decoded, and those not wanted left out.
    Filtered { reader: ParquetRecordBatchReader, rows: BooleanBuffer, at: usize },
    /// Only the wanted rows are decoded. Of the columns of all readers, `order` is the order asked for.
    Looked { readers: Vec<ParquetRecordBatchReader>, order: Vec<usize> },
}

impl GroupRows {
    /// The next batch, which may be empty: its rows, and its columns in the order asked for.
    ///
    /// # Errors
    /// Where the chunks are damaged.
    pub(super) fn next(&mut self) -> Result<Option<(usize, Vec<ArrayRef>)>> {
        match self {
            Self::All(reader) => {
                let batch = reader.next().transpose()?;
                Ok(batch.map(|batch| (batch.num_rows(), batch.columns().to_vec())))
            }
            Self::Filtered { reader, rows, at } => {
                let Some(batch) = reader.next().transpose()? else { return Ok(None) };
                if batch.num_rows() > rows.len() - *at {
                    return Err(ParquetError::General(format!(
                        "the pages of a row group have more than the {} rows that the footer says",
                        rows.len()
                    )));
                }
                let here = BooleanArray::new(rows.slice(*at, batch.num_rows()), None);
                *at += batch.num_rows();
                let columns = batch.columns().iter().map(|column| Ok(filter(column, &here)?));
                Ok(Some((here.true_count(), columns.collect::<Result<_>>()?)))
            }
            Self::Looked { readers, order } => {
                let mut columns = Vec::with_capacity(order.len());
                let mut rows = 0;
                for reader in readers {
                    let Some(batch) = reader.next().transpose()? else { return Ok(None) };
                    rows = batch.num_rows();
                    columns.extend_from_slice(batch.columns());
                }
                Ok(Some((rows, order.iter().map(|at| Arc::clone(&columns[*at])).collect())))
            }
        }
    }
}

/// The pages of a row group: as they are, or of these rows alone.
struct Pages<'a> {
    group: &'a Group,
    places: Option<Arc<[u32]>>,
}

impl RowGroups for Pages<'_> {
    fn num_rows(&self) -> usize {
        self.places.as_ref().map_or_else(|| self.group.rows(), |places| places.len())
    }

    fn column_chunks(&self, leaf: usize) -> Result<Box<dyn PageIterator>> {
        let metadata = self.group.metadata();
        let chunk =
            self.group.chunks.get(&leaf).ok_or_else(|| {
                ParquetError::General(format!("column chunk {leaf} was not fetched"))
            })?;
        let column = metadata.column(leaf);
        let reader = SerializedPageReader::new(Arc::clone(chunk), column, self.group.rows(), None)?;
        let pages: Box<dyn PageReader> = match (&self.places, PageLayout::of(column)) {
            (Some(places), Some(layout)) => Box::new(ShortPages {
                reader,
                layout,
                places: Arc::clone(places),
                at: 0,
                row: 0,
                peeked: None,
            }),
            _ => Box::new(reader),
        };
        Ok(Box::new(OneChunk(Some(pages))))
    }

    fn row_groups(&self) -> Box<dyn Iterator<Item = &RowGroupMetaData> + '_> {
        Box::new(iter::once(self.group.metadata()))
    }

    fn metadata(&self) -> &ParquetMetaData {
        &self.group.footer
    }
}

struct OneChunk(Option<Box<dyn PageReader>>);

impl Iterator for OneChunk {
    type Item = Result<Box<dyn PageReader>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.take().map(Ok)
    }
}

impl PageIterator for OneChunk {}

/// Pages of the rows `places` of a row group alone; pages of which no row is wanted are left out.
struct ShortPages {
    reader: SerializedPageReader<Chunk>,
    layout: PageLayout,
    places: Arc<[u32]>,
    /// How many of `places` were passed, and how many rows of the row group.
    at: usize,
    row: u32,
    /// The page after the last that was taken, if somebody looked at it.
    peeked: Option<Page>,
}

impl ShortPages {
    fn advance(&mut self) -> Result<Option<Page>> {
        while let Some(page) = self.reader.get_next_page()? {
            if matches!(page, Page::DictionaryPage { .. }) {
                return Ok(Some(page));
            }
            let first = self.row;
            self.row = first.saturating_add(page.num_values());
            let rest = &self.places[self.at..];
            let here = &rest[..rest.partition_point(|place| *place < self.row)];
            self.at += here.len();
            if !here.is_empty() {
                return self.layout.compact(&page, first, here).map(Some);
            }
        }
        Ok(None)
    }
}

impl Iterator for ShortPages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for ShortPages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        match self.peeked.take() {
            Some(page) => Ok(Some(page)),
            None => self.advance(),
        }
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        if self.peeked.is_none() {
            self.peeked = self.advance()?;
        }
        Ok(self.peeked.as_ref().map(|page| {
            let is_dict = matches!(page, Page::DictionaryPage { .. });
            let rows = (!is_dict).then(|| page.num_values() as usize);
            PageMetadata { num_rows: rows, num_levels: rows, is_dict }
        }))
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.get_next_page().map(drop)
    }
}
