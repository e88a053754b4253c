//! Decoding blocks: fetched one after the other, decompressed and checked, then handed to
//! `arrow-avro`.

use std::collections::VecDeque;
use std::io::{self, BufRead, Read};
use std::sync::{Arc, Mutex, PoisonError};

use arrow::datatypes::SchemaRef;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use arrow_avro::reader::Reader;
use bytes::{Bytes, BytesMut};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore};

use super::head::{AvroHead, SYNC, builder};
use super::walk::{BlockHead, cut_short, walk, wrong_marker};
use super::wire::{LONGEST, damaged, put_long};
use crate::formats::guard::guarded;
use crate::formats::source::ColumnRead;
use crate::{Error, Result, error::plain_text};

/// Opens the blocks of the wanted range, in their order. A batch may hold rows of several.
pub(super) async fn open(
    store: Arc<dyn ObjectStore>,
    meta: ObjectMeta,
    head: Arc<AvroHead>,
    read: ColumnRead,
) -> Result<BoxStream<'static, Result<RecordBatch>>> {
    let output = Arc::new(read.schema.project(&read.columns)?);
    let range = read.range.unwrap_or(0..meta.size);
    let range = range.start.max(head.start())..range.end.min(meta.size);
    if range.is_empty() {
        return Ok(stream::empty().boxed());
    }
    if read.columns.is_empty() {
        let blocks = walk(&store, &meta, range, head.sync()).await?;
        let rows = blocks.iter().map(|block| block.rows).sum();
        return Ok(counted(output, rows, read.batch_rows));
    }
    let wanted = Some(GetRange::Bounded(range.clone()));
    let options = GetOptions { range: wanted, ..GetOptions::default() };
    let body = store.get_opts(&meta.location, options).await?.into_stream();
    let blocks = Blocks {
        chunks: body.map_err(Error::from).boxed(),
        kept: BytesMut::new(),
        left: range.end - range.start,
        head: Arc::clone(&head),
        number: 0,
    };
    let queue = Queue::default();
    let input = Input { queue: queue.clone(), current: head.plain().to_vec(), at: 0 };
    let projection = (read.columns.len() < head.schema().fields().len()).then_some(read.columns);
    let decoder = guarded("Avro", || {
        let mut builder = builder().with_batch_size(read.batch_rows);
        if let Some(columns) = projection {
            builder = builder.with_projection(columns);
        }
        builder.build(input).map_err(decoding)
    })?;
    let rows = Rows { blocks, queue, decoder, waiting: 0, ended: false, output };
    let batch_rows = read.batch_rows as u64;
    let batches = stream::try_unfold(rows, move |mut rows| async move {
        let next = rows.next(batch_rows).await?;
        Ok::<_, Error>(next.map(|batch| (batch, rows)))
    });
    Ok(batches.boxed())
}

/// Batches without columns.
fn counted(
    schema: SchemaRef,
    rows: u64,
    batch_rows: usize,
) -> BoxStream<'static, Result<RecordBatch>> {
    let batches = (0..rows).step_by(batch_rows).map(move |start| {
        let count = (rows - start).min(batch_rows as u64) as usize;
        let options = RecordBatchOptions::new().with_row_count(Some(count));
        Ok(RecordBatch::try_new_with_options(Arc::clone(&schema), Vec::new(), &options)?)
    });
    stream::iter(batches).boxed()
}

/// Rows as batches. The decoder takes the end of its input for the end of all rows, so that it is
/// asked only when a full batch is waiting, or nothing more comes.
struct Rows {
    blocks: Blocks,
    queue: Queue,
    decoder: Reader<Input>,
    /// Rows that the decoder can read, and has not.
    waiting: u64,
    ended: bool,
    output: SchemaRef,
}

impl Rows {
    async fn next(&mut self, batch_rows: u64) -> Result<Option<RecordBatch>> {
        while !self.ended && self.waiting < batch_rows {
            match self.blocks.next().await? {
                Some((rows, block)) => {
                    self.waiting += rows;
                    self.queue.push(rows, block);
                }
                None => self.ended = true,
            }
        }
        if self.waiting == 0 {
            return Ok(None);
        }
        let decoder = &mut self.decoder;
        let batch = guarded("Avro", || decoder.next().transpose().map_err(decoding))?;
        let wanted = self.waiting.min(batch_rows);
        let batch = batch.filter(|batch| batch.num_rows() as u64 == wanted).ok_or_else(|| {
            damaged(&format!("{wanted} rows were expected, and another number was found"))
        })?;
        self.waiting -= wanted;
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let (output, columns) = (Arc::clone(&self.output), batch.columns().to_vec());
        Ok(Some(RecordBatch::try_new_with_options(output, columns, &options)?))
    }
}

/// The blocks of a part of a file, as they arrive.
struct Blocks {
    chunks: BoxStream<'static, Result<Bytes>>,
    kept: BytesMut,
    /// Bytes of the part that are not taken yet.
    left: u64,
    head: Arc<AvroHead>,
    number: usize,
}

impl Blocks {
    /// The next block with its rows, decompressed and framed as the decoder wants it.
    async fn next(&mut self) -> Result<Option<(u64, Vec<u8>)>> {
        if self.left == 0 {
            return Ok(None);
        }
        let number = self.number;
        self.number += 1;
        let found = self.read().await;
        found.map(Some).map_err(|error| error.with_context("block", number))
    }

    async fn read(&mut self) -> Result<(u64, Vec<u8>)> {
        self.fill(self.left.min(2 * LONGEST as u64)).await?;
        let block = BlockHead::parse(&self.kept)?;
        let total = block.total().filter(|total| *total <= self.left).ok_or_else(cut_short)?;
        self.fill(total).await?;
        self.left -= total;
        let mut bytes = self.kept.split_to(total as usize).freeze();
        let marker = bytes.split_off(bytes.len() - SYNC);
        if marker != self.head.sync()[..] {
            return Err(wrong_marker());
        }
        let stored = bytes.slice(block.length as usize..);
        if block.rows == 0 {
            return Ok((0, Vec::new()));
        }
        let head = &self.head;
        let rows = guarded("Avro", || head.codec().decompress(&stored))?;
        head.shape().check(&rows, block.rows)?;
        let mut framed = Vec::with_capacity(rows.len() + 2 * LONGEST + SYNC);
        put_long(&mut framed, block.rows as i64);
        put_long(&mut framed, rows.len() as i64);
        framed.extend_from_slice(&rows);
        framed.extend_from_slice(head.sync());
        Ok((block.rows, framed))
    }

    /// Fetches until `length` bytes are there.
    async fn fill(&mut self, length: u64) -> Result<()> {
        while (self.kept.len() as u64) < length {
            let Some(chunk) = self.chunks.try_next().await? else { return Err(cut_short()) };
            self.kept.extend_from_slice(&chunk);
        }
        Ok(())
    }
}

/// Blocks on their way to the decoder.
#[derive(Clone, Default)]
struct Queue(Arc<Mutex<VecDeque<Vec<u8>>>>);

impl Queue {
    fn push(&self, rows: u64, block: Vec<u8>) {
        if rows > 0 {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back(block);
        }
    }

    fn pop(&self) -> Option<Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

/// The decoder's input: the header, then the blocks.
struct Input {
    queue: Queue,
    current: Vec<u8>,
    at: usize,
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.fill_buf()?.read(buffer)?;
        self.consume(length);
        Ok(length)
    }
}

impl BufRead for Input {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at == self.current.len()
            && let Some(next) = self.queue.pop()
        {
            (self.current, self.at) = (next, 0);
        }
        Ok(&self.current[self.at..])
    }

    fn consume(&mut self, length: usize) {
        self.at = (self.at + length).min(self.current.len());
    }
}

fn decoding(error: arrow::error::ArrowError) -> Error {
    damaged(&plain_text(&error.to_string()))
}
