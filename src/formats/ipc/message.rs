//! One message of Arrow IPC: its metadata, checked against the bytes that there are.

use std::ops::Range;

use arrow::datatypes::{DataType, Field, Schema, UnionMode};
use arrow::error::ArrowError;
use arrow::ipc::{
    CompressionType, Message as Header, MessageHeader, MetadataVersion, RecordBatch as BatchHeader,
    root_as_message,
};

use super::compressed::{self, Codec};
use crate::bounds::{IPC_BATCH, ROWS};
use crate::error::plain_text;
use crate::{Error, ErrorKind, Result};

/// The marker before a message's metadata since version 0.15 of Arrow.
pub(super) const CONTINUATION: [u8; 4] = [0xff; 4];

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Rows.
    Batch,
    /// Values of a dictionary.
    Dictionary {
        /// Which one.
        id: i64,
        /// Whether they are added to those there are.
        is_delta: bool,
    },
    /// The columns.
    Schema,
}

/// The metadata of a message, whose buffers lie inside its body.
#[derive(Debug)]
pub(super) struct Message<'a> {
    pub kind: Kind,
    pub version: MetadataVersion,
    /// Rows, or values of a dictionary.
    pub rows: u64,
    /// Length of the body, in bytes.
    pub body: u64,
    header: Header<'a>,
    codec: Option<Codec>,
}

impl<'a> Message<'a> {
    /// Reads the metadata of a message, with or without its prefix; `bytes` may go on behind it.
    ///
    /// # Errors
    /// `Data` where it is damaged, `UnsupportedType` where it is of a version that is not read.
    pub fn parse(bytes: &'a [u8]) -> Result<Self> {
        let at = if bytes.starts_with(&CONTINUATION) { 8 } else { 4 };
        let metadata = bytes.get(at..).unwrap_or_default();
        let header = root_as_message(metadata)
            .map_err(|error| damaged(&format!("a message is no flatbuffer: {error}")))?;
        let body = u64::try_from(header.bodyLength())
            .map_err(|_| damaged("a message has a body of negative length"))?;
        let kind = match header.header_type() {
            MessageHeader::Schema => Kind::Schema,
            MessageHeader::RecordBatch => Kind::Batch,
            MessageHeader::DictionaryBatch => {
                let batch = header.header_as_dictionary_batch();
                let batch = batch.ok_or_else(|| damaged("a dictionary message is empty"))?;
                Kind::Dictionary { id: batch.id(), is_delta: batch.isDelta() }
            }
            other => return Err(damaged(&format!("a message is of the kind {other:?}"))),
        };
        let mut message =
            Self { kind, version: header.version(), rows: 0, body, header, codec: None };
        if kind != Kind::Schema {
            message.check()?;
        }
        Ok(message)
    }

    /// Rows, nodes and buffers that can be true.
    fn check(&mut self) -> Result<()> {
        if !matches!(self.version, MetadataVersion::V4 | MetadataVersion::V5) {
            return Err(Error::new(
                ErrorKind::UnsupportedType,
                format!(
                    "this is Arrow IPC with metadata of version {:?}, which is not read; write it again with Arrow 0.8 \
                     or later",
                    self.version
                ),
            ));
        }
        let batch = self.batch()?;
        let rows = batch.length();
        let says = format!("a record batch says that it has {rows} rows");
        self.rows = u64::try_from(rows).map_err(|_| damaged(&says))?;
        ROWS.check(self.rows, &format!("{says},"))?;
        for node in batch.nodes().iter().flatten() {
            if node.length() < 0 || !(0..=node.length()).contains(&node.null_count()) {
                return Err(damaged(&format!(
                    "a column of {} values says that {} of them are null",
                    node.length(),
                    node.null_count()
                )));
            }
        }
        for range in buffers(&batch) {
            if range?.end > self.body {
                return Err(damaged("a buffer does not lie inside its record batch"));
            }
        }
        self.codec = match batch.compression().map(|compression| compression.codec()) {
            None => None,
            Some(CompressionType::LZ4_FRAME) => Some(Codec::Lz4),
            Some(CompressionType::ZSTD) => Some(Codec::Zstd),
            Some(other) => {
                return Err(damaged(&format!("its buffers are compressed by {other:?}")));
            }
        };
        Ok(())
    }

    fn batch(&self) -> Result<BatchHeader<'a>> {
        let batch = match self.kind {
            Kind::Batch => self.header.header_as_record_batch(),
            Kind::Dictionary { .. } => {
                self.header.header_as_dictionary_batch().and_then(|batch| batch.data())
            }
            Kind::Schema => None,
        };
        batch.ok_or_else(|| damaged("a message lacks its record batch"))
    }

    /// Checks the lengths that compressed buffers say they have, each and together.
    ///
    /// # Errors
    /// `Data` where they cannot be true, or are more than is read. `body` must be as long as the
    /// message says.
    pub fn check_body(&self, body: &[u8], wanted: Option<&[Range<u64>]>) -> Result<()> {
        let Some(codec) = self.codec else { return Ok(()) };
        let (mut stored, mut unpacked) = (0, 0_u64);
        let mut check = |range: &Range<u64>| -> Result<()> {
            let buffer = &body[range.start as usize..range.end as usize];
            stored += buffer.len() as u64;
            unpacked = unpacked.saturating_add(compressed::check(codec, buffer)?);
            let what = format!("the buffers of a record batch become {unpacked} bytes,");
            IPC_BATCH.check_unpacked(stored, unpacked, &what)
        };
        match wanted {
            Some(wanted) => wanted.iter().try_for_each(check),
            None => buffers(&self.batch()?).try_for_each(|range| check(&range?)),
        }
    }

    /// The buffers of each top-level column of `schema`, as ranges of the body.
    ///
    /// # Errors
    /// `Data` where there are fewer than the columns need.
    pub fn buffers_by_column(&self, schema: &Schema) -> Result<Vec<Vec<Range<u64>>>> {
        let batch = self.batch()?;
        let mut ranges = buffers(&batch);
        let mut variadic = batch.variadicBufferCounts().into_iter().flatten();
        schema
            .fields()
            .iter()
            .map(|field| {
                let count = buffer_count(field, self.version, &mut variadic)?;
                let found: Vec<_> = ranges.by_ref().take(count).collect::<Result<_>>()?;
                if found.len() < count {
                    return Err(damaged(&format!(
                        "column {:?} needs {count} buffers, and has {}",
                        field.name(),
                        found.len()
                    )));
                }
                Ok(found)
            })
            .collect()
    }
}

fn buffers<'a>(batch: &BatchHeader<'a>) -> impl Iterator<Item = Result<Range<u64>>> + use<'a> {
    batch.buffers().into_iter().flatten().map(|buffer| {
        let start = u64::try_from(buffer.offset()).ok();
        let range = start.zip(u64::try_from(buffer.length()).ok());
        let range = range.and_then(|(start, length)| Some(start..start.checked_add(length)?));
        range.ok_or_else(|| damaged("a buffer has a negative place or length"))
    })
}

/// How many buffers a column takes, its children included.
fn buffer_count(
    field: &Field,
    version: MetadataVersion,
    variadic: &mut impl Iterator<Item = i64>,
) -> Result<usize> {
    use DataType::*;
    let mut of = |fields: &[&Field]| -> Result<usize> {
        fields.iter().map(|field| buffer_count(field, version, variadic)).sum()
    };
    Ok(match field.data_type() {
        Null => 0,
        Utf8 | LargeUtf8 | Binary | LargeBinary => 3,
        Utf8View | BinaryView => {
            let count = variadic.next().and_then(|count| usize::try_from(count).ok());
            let count = count.filter(|count| *count <= i32::MAX as usize);
            2 + count.ok_or_else(|| {
                damaged(&format!("column {:?} lacks its number of buffers", field.name()))
            })?
        }
        List(item) | LargeList(item) | Map(item, _) => 2 + of(&[item])?,
        ListView(item) | LargeListView(item) => 3 + of(&[item])?,
        FixedSizeList(item, _) => 1 + of(&[item])?,
        Struct(fields) => 1 + of(&fields.iter().map(AsRef::as_ref).collect::<Vec<_>>())?,
        RunEndEncoded(ends, values) => of(&[ends, values])?,
        Union(fields, mode) => {
            let validity = usize::from(version < MetadataVersion::V5);
            let own = validity + if *mode == UnionMode::Dense { 2 } else { 1 };
            own + of(&fields.iter().map(|(_, field)| field.as_ref()).collect::<Vec<_>>())?
        }
        _ => 2,
    })
}

/// Converts an error of the decoder or of decompression. None of them comes from the store.
pub(super) fn decoding(error: ArrowError) -> Error {
    damaged(&plain_text(&error.to_string()))
}

pub(super) fn damaged(what: &str) -> Error {
    Error::data(format!("the Arrow IPC data are damaged: {what}"))
}
