//! The header of an Avro file: schema, codec and sync marker; and where its blocks lie.

use std::fmt;
use std::sync::{Arc, OnceLock};

use arrow::datatypes::{Field, Schema, SchemaRef};
use arrow_avro::reader::ReaderBuilder;
use bytes::Bytes;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};

use super::codec::Codec;
use super::normal::{normalized, widen_single_unions};
use super::schema::Shape;
use super::walk::walk;
use super::wire::{Cursor, put_long};
use crate::bounds::AVRO_HEADER;
use crate::formats::footers::{FooterCache, MemorySize};
use crate::formats::guard::guarded;
use crate::formats::units::UnitRange;
use crate::{Error, ErrorKind, Result, error::plain_text};

/// The first bytes of an object container file.
pub(super) const MAGIC: &[u8] = b"Obj\x01";

/// The header's key of the schema.
const SCHEMA: &[u8] = b"avro.schema";

/// The header's key of the codec.
pub(super) const CODEC: &[u8] = b"avro.codec";

/// Bytes of the marker between blocks.
pub(super) const SYNC: usize = 16;

/// Bytes asked for in the first request: most headers fit.
const FIRST: u64 = 64 << 10;

/// Schema, codec and sync marker found in an Avro file's header.
pub struct AvroHead {
    schema: SchemaRef,
    /// A header that says the normalized schema and no codec, as the decoder reads it.
    plain: Vec<u8>,
    shape: Shape,
    codec: Codec,
    sync: [u8; SYNC],
    /// Where the first block begins, in bytes.
    start: u64,
    blocks: OnceLock<Arc<[UnitRange]>>,
}

impl AvroHead {
    /// The columns.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    pub(super) fn plain(&self) -> &[u8] {
        &self.plain
    }

    pub(super) fn shape(&self) -> &Shape {
        &self.shape
    }

    pub(super) fn codec(&self) -> Codec {
        self.codec
    }

    pub(super) fn sync(&self) -> &[u8; SYNC] {
        &self.sync
    }

    pub(super) fn start(&self) -> u64 {
        self.start
    }

    /// Rows and places of the blocks, found by walking the file once; see [`walk`].
    ///
    /// # Errors
    /// `Data` where the file is damaged; storage errors as they are.
    pub async fn blocks(
        &self,
        store: &Arc<dyn ObjectStore>,
        meta: &ObjectMeta,
    ) -> Result<Arc<[UnitRange]>> {
        if let Some(known) = self.blocks.get() {
            return Ok(Arc::clone(known));
        }
        let found: Arc<[UnitRange]> =
            walk(store, meta, self.start..meta.size, &self.sync).await?.into();
        Ok(Arc::clone(self.blocks.get_or_init(|| found)))
    }
}

impl fmt::Debug for AvroHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AvroHead")
            .field("codec", &self.codec)
            .field("start", &self.start)
            .finish_non_exhaustive()
    }
}

impl MemorySize for AvroHead {
    fn memory_size(&self) -> usize {
        let blocks = self.blocks.get().map_or(0, |blocks| blocks.len());
        size_of::<Self>()
            + self.schema.fields.size()
            + 4 * self.plain.len()
            + blocks * size_of::<UnitRange>()
    }
}

/// Reads the header of an Avro file, or takes it from the cache.
///
/// # Errors
/// `Data` where it is damaged, `UnsupportedType` naming the column where it is of a type that
/// cannot be read (the caller names the file); storage errors as they are.
pub async fn read_avro_head(
    store: &Arc<dyn ObjectStore>,
    meta: &ObjectMeta,
    cache: &FooterCache,
) -> Result<Arc<AvroHead>> {
    if let Some(known) = cache.avro().get(&meta.location) {
        return Ok(known);
    }
    if meta.size == 0 {
        return Err(unreadable("it is empty"));
    }
    let most = AVRO_HEADER.most();
    let mut wanted = FIRST.min(most);
    let header = loop {
        let bytes = store.get_range(&meta.location, 0..wanted.min(meta.size)).await?;
        if !bytes.starts_with(MAGIC) {
            return Err(unreadable("it does not begin as one"));
        }
        if let Some(header) = parse(&bytes)? {
            break header;
        }
        if wanted >= meta.size {
            return Err(unreadable("it ends within its header; it was cut short"));
        }
        if wanted >= most {
            return Err(AVRO_HEADER.exceeded("the header of this Avro file has"));
        }
        wanted = (wanted * 8).min(most);
    };
    let head = Arc::new(head(&header)?);
    cache.avro().put(&meta.location, &head);
    Ok(head)
}

/// A header as it is written.
pub(super) struct Header {
    pub pairs: Vec<(Bytes, Bytes)>,
    pub sync: [u8; SYNC],
    /// Its length in bytes.
    pub length: u64,
}

impl Header {
    /// The value of a key: the last one where there are several.
    pub fn value(&self, key: &[u8]) -> Option<&Bytes> {
        self.pairs.iter().rev().find(|(known, _)| known == key).map(|(_, value)| value)
    }

    /// The schema.
    ///
    /// # Errors
    /// `Data` where there is none.
    pub fn schema(&self) -> Result<&Bytes> {
        self.value(SCHEMA).ok_or_else(|| unreadable("its header has no schema"))
    }

    /// The codec of its blocks.
    ///
    /// # Errors
    /// `Data` where it is not known.
    pub fn codec(&self) -> Result<Codec> {
        Codec::of(self.value(CODEC).map(Bytes::as_ref))
    }
}

/// The header at the beginning of `bytes`; None where more of them are needed.
pub(super) fn parse(bytes: &Bytes) -> Result<Option<Header>> {
    let mut cursor = Cursor::new(bytes);
    if cursor.take(MAGIC.len()).is_none() {
        return Ok(None);
    }
    let mut pairs = Vec::new();
    loop {
        let Some(mut count) = cursor.long()? else { return Ok(None) };
        if count == 0 {
            break;
        }
        if count < 0 {
            if cursor.long()?.is_none() {
                return Ok(None);
            }
            count = count.checked_neg().ok_or_else(|| unreadable("its header is damaged"))?;
        }
        for _ in 0..count {
            let (Some(key), Some(value)) = (sized(&mut cursor)?, sized(&mut cursor)?) else {
                return Ok(None);
            };
            pairs.push((bytes.slice_ref(key), bytes.slice_ref(value)));
        }
    }
    let Some(sync) = cursor.take(SYNC) else { return Ok(None) };
    let sync = <[u8; SYNC]>::try_from(sync).map_err(|_| unreadable("its header is damaged"))?;
    let length = (bytes.len() - cursor.left()) as u64;
    Ok(Some(Header { pairs, sync, length }))
}

fn sized<'a>(cursor: &mut Cursor<'a>) -> Result<Option<&'a [u8]>> {
    let Some(length) = cursor.long()? else { return Ok(None) };
    match usize::try_from(length) {
        Ok(length) => Ok(cursor.take(length)),
        Err(_) => Err(unreadable("its header is damaged")),
    }
}

fn head(header: &Header) -> Result<AvroHead> {
    let codec = header.codec()?;
    let mut schema = normalized(header.schema()?)?;
    let shape = Shape::of(&schema, "")?;
    if shape.takes_nothing() {
        return Err(Error::new(
            ErrorKind::UnsupportedType,
            "the rows of this Avro file take no bytes: all its columns are of type null",
        ));
    }
    widen_single_unions(&mut schema);
    let text = schema.to_string();
    let mut plain = MAGIC.to_vec();
    put_long(&mut plain, 1);
    for part in [SCHEMA, text.as_bytes()] {
        put_long(&mut plain, part.len() as i64);
        plain.extend_from_slice(part);
    }
    put_long(&mut plain, 0);
    plain.extend_from_slice(&header.sync);
    let decoded = guarded("Avro", || Ok(builder().build(plain.as_slice())?.schema()));
    let schema = decoded.map_err(|error| {
        let what = plain_text(&error.to_string());
        Error::new(ErrorKind::UnsupportedType, format!("the Avro schema cannot be read: {what}"))
    })?;
    // What the decoder notes of names and symbols means nothing to a table, and differs between
    // files.
    let fields = schema
        .fields()
        .iter()
        .map(|field| Field::new(field.name(), field.data_type().clone(), field.is_nullable()));
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    let (sync, start) = (header.sync, header.length);
    Ok(AvroHead { schema, plain, shape, codec, sync, start, blocks: OnceLock::new() })
}

/// How rows are decoded.
pub(super) fn builder() -> ReaderBuilder {
    ReaderBuilder::new().with_tz(arrow_avro::codec::Tz::Utc)
}

pub(super) fn unreadable(what: &str) -> Error {
    Error::data(format!("this is not a readable Avro file: {what}"))
}
