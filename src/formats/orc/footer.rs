//! The end of an ORC file: schema, stripes and statistics, read once per file and process.

use std::collections::HashSet;
use std::fmt;
use std::io::Read;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use arrow::datatypes::{Fields, Schema, SchemaRef};
use bytes::{Bytes, BytesMut};
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use orc_rust::compression::{Compression, Decompressor};
use orc_rust::error::OrcError;
use orc_rust::reader::metadata::{FileMetadata, read_metadata};
use orc_rust::schema::{DataType as OrcType, RootDataType};

use super::chunks::{Codec, Unpacked};
use super::timestamps::framed;
use super::types::{STRUCT, TypeAttributes, TypeTree, arrow_schema};
use super::wire::{Value, fields, put};
use crate::bounds::{Bound, ORC_CHUNK, ORC_PARTS, ORC_SECTION, ROWS};
use crate::formats::footers::{FooterCache, MemorySize};
use crate::formats::guard::guarded;
use crate::formats::units::UnitRange;
use crate::formats::unreadable::marked;
use crate::{Error, ErrorKind, Result};

/// Bytes asked for at the end of a file in the first request: most footers fit.
const TAIL_HINT: u64 = 64 << 10;

/// The last kind of compression that is known here (zstd); later ones would be taken for none.
const LAST_COMPRESSION: u64 = 5;

/// Bytes of a chunk where the postscript does not say them.
const DEFAULT_BLOCK: u64 = 256 << 10;

/// The footer's field of types.
const TYPES_FIELD: u64 = 4;

/// The fields of the footer that the decoder gets: lengths, stripes, types, rows, and the rows of
/// an entry of the index.
const KEPT_FIELDS: [u64; 6] = [1, 2, 3, TYPES_FIELD, 6, 8];

/// The first version of Java's writer whose string statistics are right (HIVE-8732).
const FIRST_TRUSTED_WRITER: u64 = 1;

/// The decoded end of an ORC file.
pub struct OrcFooter {
    metadata: FileMetadata,
    codec: Option<Codec>,
    /// Bytes that a chunk becomes at most, as the file says.
    block_size: u64,
    attributes: Vec<TypeAttributes>,
    stripes: Vec<UnitRange>,
    /// The program that wrote the file, by its number in the specification.
    writer: u64,
    /// The `Metadata` section: statistics by stripe, compressed as the file is. Empty where its
    /// writer is not trusted.
    statistics: Bytes,
    /// Footers of stripes as they were read, compressed as the file is.
    stripe_footers: Vec<OnceLock<Bytes>>,
    /// Where streams begin whose chunks were counted, and were not too large.
    counted: Mutex<HashSet<u64>>,
    /// Bytes that this takes, about.
    memory: usize,
}

impl OrcFooter {
    /// The stripes in file order.
    pub fn stripes(&self) -> &[UnitRange] {
        &self.stripes
    }

    /// Rows of all stripes.
    pub fn rows(&self) -> u64 {
        self.stripes.iter().map(|stripe| stripe.rows).sum()
    }

    /// The columns, timestamps in nanoseconds. Fields carry Iceberg's attributes of their types as
    /// metadata, nested ones included: the id as `PARQUET:field_id`, and `iceberg.required`,
    /// `iceberg.binary-type`, `iceberg.length`, `iceberg.long-type` and the like under their own
    /// names. A timestamp with local time zone is one in UTC.
    pub fn schema(&self) -> SchemaRef {
        Arc::new(arrow_schema(self.root(), Some(&self.attributes)))
    }

    /// The columns without any metadata, timestamps in nanoseconds. Columns that cannot be decoded
    /// are marked.
    pub fn plain_schema(&self) -> Schema {
        let schema = arrow_schema(self.root(), None);
        let fields = schema.fields().iter().zip(self.root().children());
        let fields = fields.map(|(field, column)| match is_unbounded(column.data_type()) {
            true => Arc::new(marked(
                field,
                "it holds decimals without precision and scale, as Hive 0.11 and 0.12 wrote them; write the file with a \
                 newer version",
            )),
            false => Arc::clone(field),
        });
        Schema::new(fields.collect::<Fields>())
    }

    pub(super) fn root(&self) -> &RootDataType {
        self.metadata.root_data_type()
    }

    pub(super) fn metadata(&self) -> &FileMetadata {
        &self.metadata
    }

    /// Returns true if times before 1970 may have negative nanoseconds: with all writers but Java's
    /// (0), Presto's (2) and Trino's (4).
    pub(super) fn may_have_negative_nanoseconds(&self) -> bool {
        !matches!(self.writer, 0 | 2 | 4)
    }

    /// How many types the schema has, nested ones and the root included.
    pub(super) fn types(&self) -> usize {
        self.attributes.len()
    }

    /// The `Metadata` section, decompressed.
    pub(super) fn statistics(&self) -> Result<Vec<u8>> {
        self.decompress(self.statistics.clone(), &ORC_SECTION)
    }

    /// Bytes that the largest chunk of the stream at `start` becomes, at most.
    ///
    /// # Errors
    /// `Data` where a chunk is cut off.
    pub(super) fn largest_chunk(&self, stream: &Bytes, start: u64) -> Result<u64> {
        let known = || self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let most = Unpacked::most(stream, self.codec)?.largest;
        Ok(if known().contains(&start) { most.min(self.block_size) } else { most })
    }

    /// Counts the chunks of a stream for [`largest_chunk`](Self::largest_chunk).
    ///
    /// # Errors
    /// `Data` where one becomes more than the file says.
    pub(super) fn count_chunks(&self, stream: &Bytes, start: u64) -> Result<()> {
        if self.codec != Some(Codec::Zlib) {
            return Ok(());
        }
        let largest = Unpacked::counted(stream, self.codec, self.block_size)?.largest;
        if largest > self.block_size {
            return Err(Error::data(format!(
                "the ORC file is damaged: a chunk becomes more than {} bytes, the most that the file says of its chunks",
                self.block_size
            )));
        }
        self.counted.lock().unwrap_or_else(PoisonError::into_inner).insert(start);
        Ok(())
    }

    /// Where the footer of a stripe is kept once it was read.
    pub(super) fn stripe_footer(&self, stripe: usize) -> Option<&OnceLock<Bytes>> {
        self.stripe_footers.get(stripe)
    }

    /// The bytes of a section of the file, decompressed.
    ///
    /// # Errors
    /// `Data` where it is damaged, or becomes more than `bound`.
    pub(super) fn decompress(&self, section: Bytes, bound: &Bound) -> Result<Vec<u8>> {
        decompress(section, self.codec, self.metadata.compression(), bound)
    }
}

impl fmt::Debug for OrcFooter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OrcFooter")
            .field("stripes", &self.stripes.len())
            .field("rows", &self.rows())
            .finish_non_exhaustive()
    }
}

impl MemorySize for OrcFooter {
    fn memory_size(&self) -> usize {
        self.memory
    }
}

/// Reads the footer of an ORC file, or takes it from the cache.
///
/// # Errors
/// `Data` where it is damaged, `UnsupportedType` for encrypted files and ORC versions that are not
/// known (the caller names the file); storage errors as they are.
pub async fn read_orc_footer(
    store: &Arc<dyn ObjectStore>,
    meta: &ObjectMeta,
    cache: &FooterCache,
) -> Result<Arc<OrcFooter>> {
    if let Some(footer) = cache.orc().get(&meta.location) {
        return Ok(footer);
    }
    let gate = cache.gate(&meta.location);
    let _held = gate.lock().await;
    if let Some(footer) = cache.orc().get(&meta.location) {
        return Ok(footer);
    }
    let tail = read_tail(store, meta).await?;
    let footer = Arc::new(decode(meta.size, &tail)?);
    cache.orc().put(&meta.location, &footer);
    Ok(footer)
}

/// The end of a file: statistics, footer, postscript, and the byte that says the postscript's
/// length.
struct Tail {
    bytes: Bytes,
    postscript: Postscript,
    /// Bytes of the postscript and its length byte.
    postscript_bytes: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Postscript {
    footer: u64,
    metadata: Option<u64>,
    compression: u64,
    block_size: Option<u64>,
    writer: u64,
    /// Major and minor version of the format.
    version: (u64, u64),
    is_orc: bool,
}

impl Postscript {
    /// Refuses features of other writers' files that this reader lacks.
    fn check(&self) -> Result<()> {
        let (major, minor) = self.version;
        if !matches!((major, minor), (0, 11 | 12)) {
            return Err(Error::new(
                ErrorKind::UnsupportedType,
                format!(
                    "ORC version {major}.{minor} cannot be read, only 0.11 and 0.12; write the file with \
                     orc.write.format=0.12"
                ),
            ));
        }
        if self.compression > LAST_COMPRESSION {
            return Err(Error::new(
                ErrorKind::UnsupportedType,
                format!(
                    "ORC compression number {} cannot be read, only none, zlib, snappy, lzo, lz4 and zstd; write the \
                     file with one of these",
                    self.compression
                ),
            ));
        }
        Ok(())
    }
}

async fn read_tail(store: &Arc<dyn ObjectStore>, meta: &ObjectMeta) -> Result<Tail> {
    if meta.size == 0 {
        return Err(unreadable("it is empty"));
    }
    let start = meta.size.saturating_sub(TAIL_HINT);
    let mut bytes = store.get_range(&meta.location, start..meta.size).await?;
    let length = bytes.last().copied().unwrap_or_default() as usize;
    let postscript_bytes = length + 1;
    let Some(at) = bytes.len().checked_sub(postscript_bytes) else {
        return Err(unreadable("it is shorter than its postscript"));
    };
    let postscript = read_postscript(&bytes[at..at + length])?;
    // The writer of Hive 0.11 left its mark at the beginning only. So does a file that was cut
    // short, which ends with any bytes: those seldom make sense.
    if !postscript.is_orc {
        let beginning = store.get_range(&meta.location, 0..meta.size.min(3)).await?;
        if beginning.as_ref() != b"ORC" || postscript.check().is_err() {
            return Err(unreadable("it does not end with an ORC postscript"));
        }
    }
    postscript.check()?;
    let wanted = (postscript_bytes as u64)
        .saturating_add(postscript.footer)
        .saturating_add(postscript.metadata.unwrap_or(0));
    if wanted > meta.size {
        return Err(unreadable("it is shorter than its footer says"));
    }
    if wanted > bytes.len() as u64 {
        let before = store.get_range(&meta.location, meta.size - wanted..start).await?;
        let mut all = BytesMut::with_capacity(before.len() + bytes.len());
        all.extend_from_slice(&before);
        all.extend_from_slice(&bytes);
        bytes = all.freeze();
    }
    Ok(Tail { bytes, postscript, postscript_bytes })
}

fn read_postscript(message: &[u8]) -> Result<Postscript> {
    let mut found = Postscript { version: (0, 12), ..Postscript::default() };
    for field in fields(message) {
        match field? {
            (1, value) => found.footer = value.number()?,
            (2, value) => found.compression = value.number()?,
            (4, value) => {
                let mut version = value.numbers()?.into_iter();
                found.version = (version.next().unwrap_or(0), version.next().unwrap_or(12));
            }
            (3, value) => found.block_size = Some(value.number()?),
            (5, value) => found.metadata = Some(value.number()?),
            (6, value) => found.writer = value.number()?,
            (8000, value) => found.is_orc = value.bytes()? == b"ORC",
            _ => {}
        }
    }
    Ok(found)
}

fn decode(size: u64, tail: &Tail) -> Result<OrcFooter> {
    let postscript = &tail.postscript;
    let codec = Codec::of(postscript.compression);
    if codec.is_some() {
        ORC_CHUNK.check(postscript.block_size.unwrap_or(0), "a chunk of this ORC file becomes")?;
    }
    // Only the decoder makes its kind of compression, and only when it reads a footer; so it reads
    // one without columns first.
    let mut no_columns = Vec::new();
    put(&mut no_columns, TYPES_FIELD, Value::Bytes(&[0x08, STRUCT as u8]));
    let compression = metadata_of(postscript, no_columns)?.compression();
    let end = tail.bytes.len() - tail.postscript_bytes;
    let footer_start = end - postscript.footer as usize;
    let section = tail.bytes.slice(footer_start..end);
    let message = decompress(section, codec, compression, &ORC_SECTION)?;
    let (mut types, mut writer) = (TypeTree::default(), 0);
    // The footer as the decoder gets it: statistics and the user's own metadata stay here.
    let mut kept = Vec::new();
    let mut parts = 0;
    for field in fields(&message) {
        let (number, value) = field?;
        match number {
            TYPES_FIELD => parts += types.push(value.bytes()?)?,
            9 => writer = value.number()?,
            10 => refuse_encryption(value.bytes()?)?,
            _ => {}
        }
        parts += 1;
        ORC_PARTS.check(parts, "the footer of this ORC file has")?;
        if KEPT_FIELDS.contains(&number) {
            put(&mut kept, number, value);
        }
    }
    let attributes = types.finish()?;
    drop(message);
    let metadata = metadata_of(postscript, kept)
        .map_err(|error| unreadable("its footer is damaged").with_source(error))?;
    let stripes = stripes(&metadata, size)?;
    let statistics = match postscript.writer >= FIRST_TRUSTED_WRITER {
        true => {
            let start = footer_start - postscript.metadata.unwrap_or(0) as usize;
            tail.bytes.slice(start..footer_start)
        }
        false => Bytes::new(),
    };
    Ok(OrcFooter {
        metadata,
        codec,
        block_size: postscript.block_size.unwrap_or(DEFAULT_BLOCK),
        attributes,
        stripe_footers: stripes.iter().map(|_| OnceLock::new()).collect(),
        counted: Mutex::default(),
        stripes,
        writer,
        statistics,
        memory: tail.bytes.len() * 8,
    })
}

/// Metadata as the decoder makes it of a footer: of a file that has nothing else, and that is
/// compressed as the postscript says.
fn metadata_of(postscript: &Postscript, footer: Vec<u8>) -> Result<FileMetadata> {
    let footer = framed(footer, postscript.compression > 0);
    let mut message = Vec::new();
    let numbers = [
        (1, Some(footer.len() as u64)),
        (2, Some(postscript.compression)),
        (3, postscript.block_size),
        (5, Some(0)),
    ];
    for (number, value) in numbers {
        value.into_iter().for_each(|value| put(&mut message, number, Value::Number(value)));
    }
    let length = message.len() as u8;
    let mut reader = Bytes::from([&footer, message.as_slice(), &[length]].concat());
    guarded("ORC", || read_metadata(&mut reader).map_err(|error| decoding(&error)))
}

/// The bytes of a section of the file, decompressed. Refuses one that becomes more than it may
/// before it does.
fn decompress(
    section: Bytes,
    codec: Option<Codec>,
    compression: Option<Compression>,
    bound: &Bound,
) -> Result<Vec<u8>> {
    let stored = section.len() as u64;
    let allowed = bound.unpacked(stored);
    let mut becomes = Unpacked::most(&section, codec)?.all;
    if becomes > allowed {
        becomes = Unpacked::counted(&section, codec, allowed)?.all;
    }
    bound.check_unpacked(stored, becomes, "a part of this ORC file becomes")?;
    guarded("ORC", || {
        let mut bytes = Vec::new();
        Decompressor::new(section, compression, Vec::new())
            .read_to_end(&mut bytes)
            .map_err(|error| Error::data(format!("the ORC data cannot be decoded: {error}")))?;
        Ok(bytes)
    })
}

/// Returns true if a type has decimals without precision and scale, each value with its own, as
/// Hive 0.11 and 0.12 wrote them.
fn is_unbounded(orc: &OrcType) -> bool {
    match orc {
        OrcType::Decimal { precision, .. } => *precision == 0,
        OrcType::Struct { children, .. } => {
            children.iter().any(|child| is_unbounded(child.data_type()))
        }
        OrcType::List { child, .. } => is_unbounded(child),
        OrcType::Map { key, value, .. } => is_unbounded(key) || is_unbounded(value),
        OrcType::Union { variants, .. } => variants.iter().any(is_unbounded),
        _ => false,
    }
}

/// Refuses encrypted columns, which would hold arbitrary values in place of the encrypted ones.
fn refuse_encryption(message: &[u8]) -> Result<()> {
    for field in fields(message) {
        if let (3, _) = field? {
            return Err(Error::new(
                ErrorKind::UnsupportedType,
                "the ORC file has encrypted columns, which cannot be read; write it without encryption",
            ));
        }
    }
    Ok(())
}

fn stripes(metadata: &FileMetadata, size: u64) -> Result<Vec<UnitRange>> {
    let mut first_row: u64 = 0;
    let mut found = Vec::new();
    for (number, stripe) in metadata.stripe_metadatas().iter().enumerate() {
        let bytes = stripe
            .index_length()
            .checked_add(stripe.data_length())
            .and_then(|bytes| bytes.checked_add(stripe.footer_length()));
        let inside = bytes
            .and_then(|bytes| stripe.offset().checked_add(bytes))
            .is_some_and(|end| end <= size && stripe.footer_length() > 0);
        let after = first_row.checked_add(stripe.number_of_rows());
        let (Some(bytes), true, Some(after)) = (bytes, inside, after) else {
            return Err(unreadable(&format!(
                "its stripe {number} lies outside of the file, or has no footer"
            )));
        };
        let (rows, offset) = (stripe.number_of_rows(), stripe.offset());
        ROWS.check(rows, &format!("stripe {number} says that it has {rows} rows,"))?;
        found.push(UnitRange { first_row, rows, offset, bytes });
        first_row = after;
    }
    if first_row != metadata.number_of_rows() {
        return Err(unreadable(&format!(
            "its footer says {} rows, and its stripes have {first_row}",
            metadata.number_of_rows()
        )));
    }
    Ok(found)
}

fn unreadable(what: &str) -> Error {
    Error::data(format!("this is not a readable ORC file: {what}"))
}

/// Errors of the decoder by which the table's schema can help.
pub(super) fn decoding(error: &OrcError) -> Error {
    match error {
        OrcError::DecodeTimestamp { seconds, nanoseconds, to_time_unit, .. } => {
            Error::data(format!(
                "a timestamp ({seconds} s and {nanoseconds} ns since 1970) is no whole 64-bit number of \
             {to_time_unit:?}s; declare the column's type (schema=): timestamp[us] holds all years, timestamp[ns] \
             1677 to 2262"
            ))
        }
        other => Error::data(format!("the ORC data cannot be decoded: {other}")),
    }
}
