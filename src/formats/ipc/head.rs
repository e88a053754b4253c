//! The head of an Arrow IPC file: its columns, and the places of its record batches.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use arrow::datatypes::SchemaRef;
use arrow::ipc::convert::fb_to_schema;
use arrow::ipc::reader::{FileDecoder, read_footer_length};
use arrow::ipc::{Block, Endianness, MetadataVersion, Schema as SchemaHeader, root_as_footer};
use arrow::ipc::{MessageHeader, root_as_message};
use bytes::Bytes;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};

use super::message::{CONTINUATION, Kind, Message, damaged};
use super::sums::{SUMS_TRAILER, Sums, SumsTrailer};
use crate::formats::footers::{FooterCache, MemorySize};
use crate::formats::guard::guarded;
use crate::formats::units::UnitRange;
use crate::{Error, ErrorKind, Result};

/// The first and last bytes of the file form; the stream form has none of its own.
const MAGIC: &[u8] = b"ARROW1";

/// The first bytes of files by the first version of Feather.
const FEATHER_1: &[u8] = b"FEA1";

/// Length of the footer's length and the closing magic, in bytes.
pub(super) const TRAILER: u64 = 10;

/// Bytes asked for at the end of a file, or at the beginning of a stream, in the first request.
const HINT: u64 = 64 << 10;

/// Record batches whose metadata are fetched in one call.
const HEADS: usize = 1024;

/// Columns and record batches of an Arrow IPC file or stream.
pub struct IpcHead {
    schema: SchemaRef,
    layout: MessageIndex,
    /// Of a stage's file.
    sums: Option<Sums>,
}

/// Where the messages lie.
#[derive(Debug)]
pub enum MessageIndex {
    /// The file form: its footer says it.
    File {
        /// Values of dictionaries, in the order in which they are read.
        dictionaries: Vec<Block>,
        /// Record batches in the order of their rows.
        batches: Vec<Block>,
        /// Read when they are asked for: see [`IpcHead::batches`].
        heads: OnceLock<Arc<Batches>>,
    },
    /// The stream form: one after the other.
    Stream {
        /// Where the message after the schema begins.
        start: u64,
    },
}

/// Row counts and places of all record batches of a file, from their metadata.
#[derive(Debug)]
pub struct Batches {
    /// Rows and place of each.
    pub units: Vec<UnitRange>,
    /// Bytes of each top-level column, stored, over all of them.
    pub column_bytes: Vec<u64>,
}

impl IpcHead {
    /// The columns.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// A decoder of the messages, which knows no dictionary yet.
    pub(super) fn decoder(&self) -> FileDecoder {
        // With V1 it takes each message by the message's own version. By another one it would
        // refuse messages that do not share it, as those that pyarrow writes with V4, whose footer
        // says V5.
        FileDecoder::new(Arc::clone(&self.schema), MetadataVersion::V1)
    }

    pub(super) fn with_sums(self, sums: Sums) -> Self {
        Self { sums: Some(sums), ..self }
    }

    /// The checksums that a stage's file has.
    pub(super) fn sums(&self) -> Option<&Sums> {
        self.sums.as_ref()
    }

    /// Where the messages lie.
    pub fn layout(&self) -> &MessageIndex {
        &self.layout
    }

    /// The record batches that begin in a byte range of the file, all of them without one, from the
    /// footer alone.
    pub(super) fn batches_in(&self, range: Option<&Range<u64>>) -> Range<usize> {
        let MessageIndex::File { batches, .. } = &self.layout else { return 0..0 };
        let Some(range) = range else { return 0..batches.len() };
        let inside = |number: &usize| range.contains(&metadata_range(&batches[*number]).start);
        let mut numbers = (0..batches.len()).filter(inside);
        match numbers.next() {
            Some(first) => first..numbers.next_back().unwrap_or(first) + 1,
            None => 0..0,
        }
    }

    /// Rows and places of the record batches, from their metadata: read once, near ones in one
    /// request and far ones side by side. A stream has none.
    ///
    /// # Errors
    /// `Data` where they are damaged; storage errors as they are.
    pub async fn batches(
        &self,
        store: &Arc<dyn ObjectStore>,
        meta: &ObjectMeta,
    ) -> Result<Arc<Batches>> {
        let MessageIndex::File { batches, heads, .. } = &self.layout else {
            return Ok(Arc::new(Batches { units: Vec::new(), column_bytes: Vec::new() }));
        };
        if let Some(known) = heads.get() {
            return Ok(Arc::clone(known));
        }
        let mut units = Vec::with_capacity(batches.len());
        let mut column_bytes = vec![0; self.schema.fields().len()];
        let mut first_row = 0;
        for blocks in batches.chunks(HEADS) {
            let ranges: Vec<Range<u64>> = blocks.iter().map(metadata_range).collect();
            let heads = store.get_ranges(&meta.location, &ranges).await?;
            for (block, head) in blocks.iter().zip(heads) {
                let numbered = |error: Error| error.with_context("record batch", units.len());
                if let Some(sums) = &self.sums {
                    sums.check_metadata(units.len(), &head).map_err(numbered)?;
                }
                let message = batch_of(block, &head).map_err(numbered)?;
                let columns = message.buffers_by_column(&self.schema).map_err(numbered)?;
                for (sum, buffers) in column_bytes.iter_mut().zip(columns) {
                    *sum += buffers.iter().map(|range| range.end - range.start).sum::<u64>();
                }
                let whole = whole_range(block);
                let (offset, bytes) = (whole.start, whole.end - whole.start);
                units.push(UnitRange { first_row, rows: message.rows, offset, bytes });
                first_row += message.rows;
            }
        }
        let found = Arc::new(Batches { units, column_bytes });
        Ok(Arc::clone(heads.get_or_init(|| found)))
    }
}

impl fmt::Debug for IpcHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IpcHead").field("layout", &self.layout).finish_non_exhaustive()
    }
}

impl MemorySize for IpcHead {
    fn memory_size(&self) -> usize {
        let blocks = match &self.layout {
            MessageIndex::File { dictionaries, batches, .. } => {
                dictionaries.len() + 3 * batches.len()
            }
            MessageIndex::Stream { .. } => 0,
        };
        let sums = self.sums.as_ref().map_or(0, Sums::memory_size);
        size_of::<Self>() + self.schema.fields.size() + blocks * size_of::<Block>() + sums
    }
}

/// The metadata of a block that is a record batch, of the length that the footer says.
pub(super) fn batch_of<'a>(block: &Block, bytes: &'a [u8]) -> Result<Message<'a>> {
    let message = Message::parse(bytes)?;
    if message.kind != Kind::Batch {
        return Err(damaged("the footer names a record batch where there is none"));
    }
    if message.body > block.bodyLength() as u64 {
        return Err(damaged("a record batch is longer than the footer says"));
    }
    Ok(message)
}

/// The bytes of a message's metadata; the block was checked when the footer was read.
pub(super) fn metadata_range(block: &Block) -> Range<u64> {
    let start = block.offset() as u64;
    start..start + block.metaDataLength() as u64
}

/// The bytes of a message, body included.
pub(super) fn whole_range(block: &Block) -> Range<u64> {
    let metadata = metadata_range(block);
    metadata.start..metadata.end + block.bodyLength() as u64
}

/// Reads the head of an Arrow IPC file, or takes it from the cache.
///
/// # Errors
/// `Data` where it is damaged, `UnsupportedType` for Feather 1 and big-endian files (the caller
/// names the file); storage errors as they are.
pub async fn read_ipc_head(
    store: &Arc<dyn ObjectStore>,
    meta: &ObjectMeta,
    cache: &FooterCache,
) -> Result<Arc<IpcHead>> {
    if let Some(known) = cache.ipc().get(&meta.location) {
        return Ok(known);
    }
    let size = meta.size;
    if size == 0 {
        return Err(Error::data("this is neither an Arrow IPC file nor a stream: it is empty"));
    }
    let ranges = [0..size.min(8), size.saturating_sub(HINT)..size];
    let read = store.get_ranges(&meta.location, &ranges).await?;
    let [first, tail] = <[Bytes; 2]>::try_from(read).map_err(|_| {
        Error::storage("the store answered another number of ranges than it was asked for")
    })?;
    let head = if first.starts_with(MAGIC) {
        file_head(store, meta, tail).await?
    } else if first.starts_with(FEATHER_1) {
        return Err(Error::new(
            ErrorKind::UnsupportedType,
            "this is a Feather file of version 1, which is not read; write it again as version 2 \
             (pyarrow.feather.write_feather), which is an Arrow IPC file",
        ));
    } else {
        stream_head(store, meta).await?
    };
    let head = Arc::new(head);
    cache.ipc().put(&meta.location, &head);
    Ok(head)
}

async fn file_head(
    store: &Arc<dyn ObjectStore>,
    meta: &ObjectMeta,
    tail: Bytes,
) -> Result<IpcHead> {
    let size = meta.size;
    let Some((_, trailer)) = tail.split_last_chunk::<{ TRAILER as usize }>() else {
        return Err(unreadable("it is too short"));
    };
    let length = read_footer_length(*trailer).map_err(|_| {
        unreadable("its end is missing; the file was cut short, or is still being written")
    })?;
    let length = length as u64;
    let end = size - TRAILER;
    let Some(start) = end.checked_sub(length).filter(|start| *start >= MAGIC.len() as u64) else {
        return Err(unreadable(&format!("its footer of {length} bytes does not fit into it")));
    };
    let range = async |range: Range<u64>| -> Result<Bytes> {
        match range.start.checked_sub(size - tail.len() as u64) {
            Some(at) => {
                let at = at as usize;
                Ok(tail.slice(at..at + (range.end - range.start) as usize))
            }
            None => Ok(store.get_range(&meta.location, range).await?),
        }
    };
    let bytes = range(start.saturating_sub(SUMS_TRAILER)..end).await?;
    let (before, footer) = bytes.split_at(bytes.len() - length as usize);
    let Some(trailer) = SumsTrailer::parse(before) else { return parse_footer(footer, start) };
    let stored = range(trailer.range(start)?).await?;
    let head = parse_footer(footer, start)?;
    let sums = trailer.open(&stored, footer, &head)?;
    Ok(head.with_sums(sums))
}

/// The head that a footer is, which begins at `start` in its file.
pub(super) fn parse_footer(bytes: &[u8], start: u64) -> Result<IpcHead> {
    let footer = root_as_footer(bytes)
        .map_err(|error| unreadable(&format!("its footer is no flatbuffer: {error}")))?;
    let schema = schema_of(footer.schema())?;
    let dictionaries: Vec<Block> = footer.dictionaries().iter().flatten().copied().collect();
    let batches: Vec<Block> = footer.recordBatches().iter().flatten().copied().collect();
    check_blocks(dictionaries.iter().chain(&batches), start)?;
    let layout = MessageIndex::File { dictionaries, batches, heads: OnceLock::new() };
    Ok(IpcHead { schema, layout, sums: None })
}

/// Blocks lie between the first magic and the footer, and do not overlap.
fn check_blocks<'a>(blocks: impl Iterator<Item = &'a Block>, end: u64) -> Result<()> {
    let mut ranges = Vec::new();
    for block in blocks {
        let number = |value: i64| u64::try_from(value).ok();
        let range = number(block.offset()).zip(number(block.metaDataLength().into()));
        let range = range.zip(number(block.bodyLength())).and_then(|((start, head), body)| {
            (head >= 8).then_some(start..start.checked_add(head)?.checked_add(body)?)
        });
        match range {
            Some(range) if range.end <= end => ranges.push(range),
            _ => return Err(unreadable("a message does not lie inside it")),
        }
    }
    ranges.sort_unstable_by_key(|range| range.start);
    match ranges.windows(2).any(|pair| pair[0].end > pair[1].start) {
        true => Err(unreadable("two messages overlap")),
        false => Ok(()),
    }
}

async fn stream_head(store: &Arc<dyn ObjectStore>, meta: &ObjectMeta) -> Result<IpcHead> {
    let neither = || Error::data("this is neither an Arrow IPC file nor an Arrow IPC stream");
    let mut bytes = store.get_range(&meta.location, 0..meta.size.min(HINT)).await?;
    let (prefix, length) = message_length(&bytes).ok_or_else(neither)?;
    let start = prefix + length;
    if length == 0 || start > meta.size {
        return Err(neither());
    }
    if start > bytes.len() as u64 {
        bytes = store.get_range(&meta.location, 0..start).await?;
    }
    let header = root_as_message(&bytes[prefix as usize..start as usize]).map_err(|_| neither())?;
    if header.header_type() != MessageHeader::Schema {
        return Err(neither());
    }
    let schema = schema_of(header.header_as_schema())?;
    Ok(IpcHead { schema, layout: MessageIndex::Stream { start }, sums: None })
}

/// How many bytes stand before a message's metadata, and how many these are; None where there are
/// too few bytes to say, or the length is negative. A length of zero ends a stream.
pub(super) fn message_length(bytes: &[u8]) -> Option<(u64, u64)> {
    let at = if bytes.starts_with(&CONTINUATION) { 4 } else { 0 };
    let length = bytes.get(at..)?.first_chunk::<4>()?;
    Some((at as u64 + 4, u64::try_from(i32::from_le_bytes(*length)).ok()?))
}

fn schema_of(header: Option<SchemaHeader<'_>>) -> Result<SchemaRef> {
    let header = header.ok_or_else(|| unreadable("it does not say its columns"))?;
    if header.endianness() != Endianness::Little {
        return Err(Error::new(
            ErrorKind::UnsupportedType,
            "this Arrow IPC file has big-endian values, which are not read; write it on a \
             little-endian machine",
        ));
    }
    guarded("Arrow IPC", || Ok(Arc::new(fb_to_schema(header))))
}

fn unreadable(what: &str) -> Error {
    Error::data(format!("this is not a readable Arrow IPC file: {what}"))
}
