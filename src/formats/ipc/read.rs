//! Reading record batches of the file form: mapped, or fetched by ranges.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::RecordBatchOptions;
use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, Field, SchemaRef};
use arrow::ipc::Block;
use arrow::ipc::reader::FileDecoder;
use arrow::record_batch::RecordBatch;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};

use super::Ipc;
use super::head::{IpcHead, MessageIndex, batch_of, metadata_range, whole_range};
use super::message::{Kind, Message, damaged, decoding};
use crate::formats::guard::guarded;
use crate::formats::source::ColumnRead;
use crate::formats::with_null_fields;
use crate::storage::MappedFile;
use crate::{Error, Result};

/// The file beside a stage's files that says that one of them is damaged.
pub const SUSPECT: &str = "suspect";

/// Record batches are fetched together up to this many bytes.
const TOGETHER: u64 = 8 << 20;

/// Size of a record batch below which all columns are fetched, in one request.
const SMALL_BATCH: u64 = 256 << 10;

/// Opens the record batches that begin in the wanted range, in their order. No batch crosses one of
/// the file.
pub(super) async fn open(
    format: &Ipc,
    store: Arc<dyn ObjectStore>,
    meta: ObjectMeta,
    head: Arc<IpcHead>,
    read: ColumnRead,
) -> Result<BoxStream<'static, Result<RecordBatch>>> {
    let wanted = head.batches_in(read.range.as_ref());
    let output = Arc::new(read.schema.project(&read.columns)?);
    if read.columns.is_empty() {
        let batches = head.batches(&store, &meta).await?;
        let rows: u64 = batches.units[wanted].iter().map(|unit| unit.rows).sum();
        return Ok(counted(output, rows, read.batch_rows));
    }
    let mapped = match format.unmapped {
        true => None,
        false => MappedFile::open(&store, &meta.location).await?,
    };
    let mut file = File { store, meta, head, mapped, columns: read.columns, decoder: None };
    file.decoder = Some(file.with_dictionaries().await?);
    let groups = file.groups(wanted);
    let (file, batch_rows) = (Arc::new(file), read.batch_rows);
    let batches = stream::iter(groups)
        .then(move |group| {
            let file = Arc::clone(&file);
            async move {
                let messages = file.fetch(group.clone()).await?;
                let decode = move |(number, message): (usize, Buffer)| {
                    let batch = file.decode(number, &message);
                    batch.map_err(|error| error.with_context("record batch", number))
                };
                Ok::<_, Error>(stream::iter(group.zip(messages).map(decode)))
            }
        })
        .try_flatten()
        .map_ok(move |batch| stream::iter(sliced(batch, batch_rows).map(Ok)))
        .try_flatten();
    Ok(batches.boxed())
}

/// Batches without columns.
pub(super) fn counted(
    schema: SchemaRef,
    rows: u64,
    batch_rows: usize,
) -> BoxStream<'static, Result<RecordBatch>> {
    let starts = (0..rows).step_by(batch_rows);
    let batches = starts.map(move |start| {
        let count = (rows - start).min(batch_rows as u64) as usize;
        let options = RecordBatchOptions::new().with_row_count(Some(count));
        Ok(RecordBatch::try_new_with_options(Arc::clone(&schema), Vec::new(), &options)?)
    });
    stream::iter(batches).boxed()
}

/// A batch in slices of at most `batch_rows` rows.
pub(super) fn sliced(batch: RecordBatch, batch_rows: usize) -> impl Iterator<Item = RecordBatch> {
    let rows = batch.num_rows();
    (0..rows).step_by(batch_rows).map(move |at| batch.slice(at, batch_rows.min(rows - at)))
}

struct File {
    store: Arc<dyn ObjectStore>,
    meta: ObjectMeta,
    head: Arc<IpcHead>,
    mapped: Option<MappedFile>,
    /// Wanted columns, ascending.
    columns: Vec<usize>,
    /// With the dictionaries of the wanted columns; None until they are read.
    decoder: Option<FileDecoder>,
}

impl File {
    fn blocks(&self) -> (&[Block], &[Block]) {
        match self.head.layout() {
            MessageIndex::File { dictionaries, batches, .. } => (dictionaries, batches),
            MessageIndex::Stream { .. } => (&[], &[]),
        }
    }

    fn is_whole(&self) -> bool {
        self.columns.len() == self.head.schema().fields().len()
    }

    /// Record batches that are fetched together. Mapped ones are decoded one by one.
    fn groups(&self, wanted: Range<usize>) -> Vec<Range<usize>> {
        let (_, blocks) = self.blocks();
        let mut groups: Vec<(Range<usize>, u64)> = Vec::new();
        for number in wanted {
            let range = whole_range(&blocks[number]);
            let bytes = range.end - range.start;
            match groups.last_mut() {
                Some((group, sum)) if self.mapped.is_none() && *sum + bytes <= TOGETHER => {
                    group.end = number + 1;
                    *sum += bytes;
                }
                _ => groups.push((number..number + 1, bytes)),
            }
        }
        groups.into_iter().map(|(group, _)| group).collect()
    }

    /// A decoder that knows the values of the wanted columns' dictionaries.
    async fn with_dictionaries(&self) -> Result<FileDecoder> {
        let mut decoder = self.head.decoder();
        let ids = dictionary_ids(self.head.schema(), &self.columns);
        let (blocks, _) = self.blocks();
        let ranges: Vec<Range<u64>> = blocks.iter().map(whole_range).collect();
        let messages = match ids.is_empty() {
            true => Vec::new(),
            false => self.ranges(&ranges).await?,
        };
        let mut seen = HashSet::new();
        for (block, bytes) in blocks.iter().zip(&messages) {
            let message = Message::parse(bytes)?;
            let Kind::Dictionary { id, is_delta } = message.kind else {
                return Err(damaged("the footer names a dictionary where there is none"));
            };
            if !ids.contains(&id) {
                continue;
            }
            if !seen.insert(id) && !is_delta {
                return Err(damaged(&format!("dictionary {id} is given twice")));
            }
            if message.body > block.bodyLength() as u64 {
                return Err(damaged("a dictionary is longer than the footer says"));
            }
            message.check_body(&bytes[block.metaDataLength() as usize..], None)?;
            guarded("Arrow IPC", || decoder.read_dictionary(block, bytes).map_err(decoding))?;
        }
        self.check()?;
        Ok(match self.is_whole() {
            true => decoder,
            false => decoder.with_projection(self.columns.clone()),
        })
    }

    /// The messages of record batches, with the buffers of the wanted columns.
    async fn fetch(&self, numbers: Range<usize>) -> Result<Vec<Buffer>> {
        let (_, blocks) = self.blocks();
        let blocks = &blocks[numbers];
        let large = |block: &Block| block.bodyLength() as u64 >= SMALL_BATCH;
        if self.mapped.is_none() && !self.is_whole() && blocks.iter().any(large) {
            return self.sparse(blocks).await;
        }
        self.ranges(&blocks.iter().map(whole_range).collect::<Vec<_>>()).await
    }

    /// Messages in which only the buffers of the wanted columns are filled. Unfilled buffers are
    /// never touched, so the system provides no memory for them.
    async fn sparse(&self, blocks: &[Block]) -> Result<Vec<Buffer>> {
        let heads = self.ranges(&blocks.iter().map(metadata_range).collect::<Vec<_>>()).await?;
        let mut wanted = Vec::new();
        let mut places = Vec::new();
        for (number, (block, head)) in blocks.iter().zip(&heads).enumerate() {
            let columns = batch_of(block, head)?.buffers_by_column(self.head.schema())?;
            let body = metadata_range(block).end;
            for range in self.columns.iter().flat_map(|column| &columns[*column]) {
                if range.start < range.end {
                    wanted.push(body + range.start..body + range.end);
                    places.push((number, head.len() + range.start as usize));
                }
            }
        }
        let buffers = self.ranges(&wanted).await?;
        let mut messages: Vec<Vec<u8>> = Vec::with_capacity(blocks.len());
        for (block, head) in blocks.iter().zip(&heads) {
            let mut message = vec![0; head.len() + block.bodyLength() as usize];
            message[..head.len()].copy_from_slice(head);
            messages.push(message);
        }
        for ((number, at), buffer) in places.into_iter().zip(buffers) {
            messages[number][at..at + buffer.len()].copy_from_slice(&buffer);
        }
        Ok(messages.into_iter().map(Buffer::from).collect())
    }

    async fn ranges(&self, ranges: &[Range<u64>]) -> Result<Vec<Buffer>> {
        let Some(mapped) = &self.mapped else {
            let read = self.store.get_ranges(&self.meta.location, ranges).await?;
            return Ok(read.into_iter().map(Buffer::from).collect());
        };
        // What the footer says was checked against the size that the map has.
        let slice = |range: &Range<u64>| {
            let length = (range.end - range.start) as usize;
            mapped.count_bytes(length);
            mapped.data().slice_with_length(range.start as usize, length)
        };
        Ok(ranges.iter().map(slice).collect())
    }

    fn decode(&self, number: usize, bytes: &Buffer) -> Result<RecordBatch> {
        let block = &self.blocks().1[number];
        let decoded = guarded("Arrow IPC", || {
            let (metadata, body) = bytes.split_at(block.metaDataLength() as usize);
            let sums = self.head.sums();
            sums.map_or(Ok(()), |sums| sums.check_metadata(number, metadata))?;
            let message = batch_of(block, bytes)?;
            let columns = message.buffers_by_column(self.head.schema())?;
            if let Some(sums) = sums {
                self.columns.iter().try_for_each(|column| {
                    sums.check_column(number, *column, body, &columns[*column])
                })?;
            }
            let wanted: Vec<Range<u64>> =
                self.columns.iter().flat_map(|column| columns[*column].clone()).collect();
            message.check_body(body, Some(&wanted))?;
            let decoder = self.decoder.as_ref().ok_or_else(|| damaged("it was not opened"))?;
            let batch = decoder.read_record_batch(block, bytes).map_err(decoding)?;
            with_null_fields(batch.ok_or_else(|| damaged("a record batch is empty"))?)
        });
        // That the file changed is the better message.
        self.check()?;
        if self.mapped.is_some() && decoded.as_ref().is_err_and(Error::is_of_other_file) {
            suspect(&self.meta.location);
        }
        decoded
    }

    fn check(&self) -> Result<()> {
        self.mapped.as_ref().map_or(Ok(()), MappedFile::check)
    }
}

/// Leaves word beside a stage's file that it is damaged, for the next who opens the stage. Where it
/// cannot be left, that one finds out as this one did.
fn suspect(location: &Path) {
    let path = std::path::Path::new("/").join(location.as_ref()).with_file_name(SUSPECT);
    let _ = std::fs::File::create_new(path);
}

/// The dictionaries that columns take their values from, those inside of other dictionaries
/// included.
pub(super) fn dictionary_ids(schema: &SchemaRef, columns: &[usize]) -> HashSet<i64> {
    fn visit(field: &Field, ids: &mut HashSet<i64>) {
        // The only way to learn which dictionary of the file it is.
        #[allow(deprecated)]
        ids.extend(field.dict_id());
        let mut data_type = field.data_type();
        while let DataType::Dictionary(_, value) = data_type {
            data_type = value;
        }
        match data_type {
            DataType::List(item)
            | DataType::LargeList(item)
            | DataType::ListView(item)
            | DataType::LargeListView(item)
            | DataType::FixedSizeList(item, _)
            | DataType::Map(item, _) => visit(item, ids),
            DataType::Struct(fields) => fields.iter().for_each(|field| visit(field, ids)),
            DataType::Union(fields, _) => fields.iter().for_each(|(_, field)| visit(field, ids)),
            DataType::RunEndEncoded(ends, values) => {
                visit(ends, ids);
                visit(values, ids);
            }
            _ => {}
        }
    }
    let mut ids = HashSet::new();
    columns.iter().for_each(|column| visit(schema.field(*column), &mut ids));
    ids
}
