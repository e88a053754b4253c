//! JSON files that are one array: told from files of lines, and their schema. DataFusion 53.1
//! infers it line by line, and so fails on arrays that are written over several lines, though it
//! reads them.

use std::fmt;
use std::io::{BufRead, BufReader};
use std::sync::Arc;

use arrow::datatypes::Schema;
use arrow::json::reader::infer_json_schema_from_iterator;
use bytes::{Buf, Bytes};
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use futures::stream::{self, StreamExt, TryStreamExt};
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde_json::Value;

use super::long_lines::text_of;
use crate::formats::Compression;
use crate::{Error, Result};

/// Bytes in which the first character that is no white space must stand.
const PROBE: u64 = 64 << 10;

/// Returns true if the file's first character opens an array; no line of an object each begins so.
///
/// # Arguments
/// `store` unpacks compressed files that DataFusion does not ([`Compression::members`]).
///
/// # Errors
/// Errors of the store, and `Data` where the file cannot be decompressed.
pub(super) async fn is_array(
    store: &Arc<dyn ObjectStore>,
    meta: &ObjectMeta,
    compression: Compression,
) -> Result<bool> {
    if meta.size == 0 {
        return Ok(false);
    }
    let mut text = match compression {
        Compression::None => {
            let begin = store.get_range(&meta.location, 0..meta.size.min(PROBE)).await?;
            stream::iter([Ok(begin)]).boxed()
        }
        _ => text_of(store, meta, compression).await?,
    };
    let mut left = PROBE as usize;
    while left > 0
        && let Some(chunk) = text.try_next().await?
    {
        let here = &chunk[..chunk.len().min(left)];
        if let Some(byte) = here.iter().find(|byte| !byte.is_ascii_whitespace()) {
            return Ok(*byte == b'[');
        }
        left -= here.len();
    }
    Ok(false)
}

/// The schema of the first `rows` objects of the array.
///
/// # Errors
/// Errors of the store, and `Data` where the file is no array of objects.
pub(super) async fn infer(
    store: &Arc<dyn ObjectStore>,
    meta: &ObjectMeta,
    compression: Compression,
    rows: usize,
) -> Result<Schema> {
    let bytes = store.get(&meta.location).await?.bytes().await?;
    let mut json = serde_json::Deserializer::from_reader(reader(bytes, compression)?);
    let read = First { rows }.deserialize(&mut json).and_then(|values| {
        json.end()?;
        Ok(values)
    });
    let values = read.map_err(|error| match error.is_io() {
        true => undecompressable(compression, error),
        false if error.to_string().contains("unicode code point") => Error::data(format!(
            "this JSON array is not written in UTF-8 ({error}); convert the file to UTF-8"
        )),
        false => Error::data(format!(
            "this is not one JSON array of objects ({error}); pass array=False for a file of one \
             object per line"
        )),
    })?;
    if values.iter().any(|value| !value.is_object()) {
        return Err(Error::data(
            "this JSON array holds values that are not objects; a table needs one object per row",
        ));
    }
    Ok(infer_json_schema_from_iterator(values.into_iter().map(Ok))?)
}

/// A text file that is not compressed as its name or the user says.
pub(super) fn undecompressable(
    compression: Compression,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> Error {
    Error::data(format!(
        "this cannot be decompressed as {}; name its compression: compression=\"none\" | \"gzip\" | \"bz2\" | \
         \"xz\" | \"zstd\"",
        compression.name(),
    ))
    .with_source(source)
}

fn reader(bytes: Bytes, compression: Compression) -> Result<impl BufRead> {
    let compression: FileCompressionType = compression.variant().into();
    Ok(BufReader::new(compression.convert_read(bytes.reader())?))
}

/// The first elements of an array; the others are checked to be JSON and dropped.
struct First {
    rows: usize,
}

impl<'de> DeserializeSeed<'de> for First {
    type Value = Vec<Value>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for First {
    type Value = Vec<Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of objects")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Self::Value, A::Error> {
        let mut values = Vec::new();
        while values.len() < self.rows {
            match array.next_element()? {
                Some(value) => values.push(value),
                None => return Ok(values),
            }
        }
        while array.next_element::<IgnoredAny>()?.is_some() {}
        Ok(values)
    }
}
