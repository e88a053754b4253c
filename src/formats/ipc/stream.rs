//! Reading the stream form: messages one after the other, from the first.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::buffer::Buffer;
use arrow::ipc::Block;
use arrow::ipc::reader::FileDecoder;
use arrow::record_batch::RecordBatch;
use bytes::{Bytes, BytesMut};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore};

use super::Ipc;
use super::head::{IpcHead, MessageIndex, message_length};
use super::message::{Kind, Message, damaged, decoding};
use super::read::{counted, dictionary_ids, sliced};
use crate::formats::guard::guarded;
use crate::formats::source::ColumnRead;
use crate::formats::with_null_fields;
use crate::storage::MappedFile;
use crate::{Error, Result};

/// Opens a stream from its first record batch on.
pub(super) async fn open(
    format: &Ipc,
    store: Arc<dyn ObjectStore>,
    meta: ObjectMeta,
    head: Arc<IpcHead>,
    read: ColumnRead,
) -> Result<BoxStream<'static, Result<RecordBatch>>> {
    let MessageIndex::Stream { start } = *head.layout() else {
        return Err(damaged("it is no stream"));
    };
    let mapped = match format.unmapped {
        true => None,
        false => MappedFile::open(&store, &meta.location).await?,
    };
    let source = match mapped {
        Some(file) => Source::Mapped(file),
        None if start == meta.size => {
            Source::Fetched { chunks: stream::empty().boxed(), kept: BytesMut::new() }
        }
        None => {
            let range = Some(GetRange::Bounded(start..meta.size));
            let options = GetOptions { range, ..GetOptions::default() };
            let body = store.get_opts(&meta.location, options).await?.into_stream();
            Source::Fetched { chunks: body.map_err(Error::from).boxed(), kept: BytesMut::new() }
        }
    };
    let mut decoder = head.decoder();
    if read.columns.len() < head.schema().fields().len() {
        decoder = decoder.with_projection(read.columns.clone());
    }
    let messages = Messages {
        source,
        at: start,
        size: meta.size,
        decoder,
        dictionaries: dictionary_ids(head.schema(), &read.columns),
        counts_only: read.columns.is_empty(),
    };
    let output = Arc::new(read.schema.project(&read.columns)?);
    let batch_rows = read.batch_rows;
    let batches = stream::try_unfold((messages, 0_usize), |(mut messages, number)| async move {
        let next = messages.next().await;
        let next = next.map_err(|error| error.with_context("record batch", number))?;
        Ok::<_, Error>(next.map(|next| (next, (messages, number + 1))))
    });
    let sliced = batches.map_ok(move |next| match next {
        Next::Rows(batch) => stream::iter(sliced(batch, batch_rows).map(Ok)).boxed(),
        Next::Count(rows) => counted(Arc::clone(&output), rows, batch_rows),
    });
    Ok(sliced.try_flatten().boxed())
}

enum Next {
    Rows(RecordBatch),
    /// Where no column is wanted.
    Count(u64),
}

enum Source {
    Mapped(MappedFile),
    Fetched { chunks: BoxStream<'static, Result<Bytes>>, kept: BytesMut },
}

struct Messages {
    source: Source,
    /// Where the next message begins, in bytes.
    at: u64,
    /// Size of the file, in bytes.
    size: u64,
    decoder: FileDecoder,
    /// Dictionaries of the wanted columns.
    dictionaries: HashSet<i64>,
    counts_only: bool,
}

impl Messages {
    /// The next record batch; None at the end of the stream, which may be said by a length of zero.
    async fn next(&mut self) -> Result<Option<Next>> {
        loop {
            if self.at == self.size {
                return Ok(None);
            }
            let first = self.peek(8).await?;
            let Some((prefix, length)) = message_length(&first) else {
                return Err(cut_short());
            };
            if length == 0 {
                return Ok(None);
            }
            if prefix + length > self.size - self.at {
                return Err(cut_short());
            }
            let bytes = self.peek(prefix + length).await?;
            let message = Message::parse(&bytes)?;
            let body = message.body;
            let (kind, rows) = (message.kind, message.rows);
            let bytes = self.take(prefix + length + body).await?;
            let block = Block::new(0, (prefix + length) as i32, body as i64);
            match kind {
                Kind::Batch if self.counts_only => return Ok(Some(Next::Count(rows))),
                Kind::Batch => return self.decode(&block, &bytes).map(Next::Rows).map(Some),
                Kind::Dictionary { id, .. } if self.dictionaries.contains(&id) => {
                    let decoder = &mut self.decoder;
                    let read = guarded("Arrow IPC", || {
                        let message = Message::parse(&bytes)?;
                        message.check_body(&bytes[block.metaDataLength() as usize..], None)?;
                        decoder.read_dictionary(&block, &bytes).map_err(decoding)
                    });
                    self.check()?;
                    read?;
                }
                Kind::Dictionary { .. } => {}
                Kind::Schema => return Err(damaged("a stream has its columns twice")),
            }
        }
    }

    fn decode(&self, block: &Block, bytes: &Buffer) -> Result<RecordBatch> {
        let decoded = guarded("Arrow IPC", || {
            let message = Message::parse(bytes)?;
            message.check_body(&bytes[block.metaDataLength() as usize..], None)?;
            let batch = self.decoder.read_record_batch(block, bytes).map_err(decoding)?;
            with_null_fields(batch.ok_or_else(|| damaged("a record batch is empty"))?)
        });
        self.check()?;
        decoded
    }

    fn check(&self) -> Result<()> {
        match &self.source {
            Source::Mapped(file) => file.check(),
            Source::Fetched { .. } => Ok(()),
        }
    }

    /// The next `length` bytes; fewer only if the stream ends within them.
    async fn peek(&mut self, length: u64) -> Result<Buffer> {
        let length = length.min(self.size - self.at);
        Ok(match &mut self.source {
            Source::Mapped(file) => {
                file.data().slice_with_length(self.at as usize, length as usize)
            }
            Source::Fetched { chunks, kept } => {
                fill(chunks, kept, length).await?;
                Buffer::from(&kept[..length as usize])
            }
        })
    }

    /// Takes the next `length` bytes.
    async fn take(&mut self, length: u64) -> Result<Buffer> {
        if length > self.size - self.at {
            return Err(cut_short());
        }
        let taken = match &mut self.source {
            Source::Mapped(file) => {
                file.count_bytes(length as usize);
                file.data().slice_with_length(self.at as usize, length as usize)
            }
            Source::Fetched { chunks, kept } => {
                fill(chunks, kept, length).await?;
                Buffer::from(kept.split_to(length as usize).freeze())
            }
        };
        self.at += length;
        Ok(taken)
    }
}

/// Fetches until `length` bytes are there; the file is that long.
async fn fill(
    chunks: &mut BoxStream<'static, Result<Bytes>>,
    kept: &mut BytesMut,
    length: u64,
) -> Result<()> {
    while (kept.len() as u64) < length {
        let Some(chunk) = chunks.try_next().await? else { return Err(cut_short()) };
        kept.extend_from_slice(&chunk);
    }
    Ok(())
}

fn cut_short() -> Error {
    damaged("the stream ends in the middle of a message; the file was cut short")
}
