//! The types in which columns are decoded by the `parquet` crate, where these are others than
//! theirs: see `declared_columns.rs`.
//!
//! It makes two of an interval's three numbers, and without a word leaves out the months; so
//! intervals are decoded as bytes.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Fields};
use parquet::basic::{Encoding, Type as Physical};
use parquet::column::page::Page;
use parquet::errors::Result;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::schema::types::{SchemaDescriptor, Type};

use super::chunk::{Chunk, pages};
use crate::formats::parquet::types::{has_element, is_interval, without_annotations};

/// The most bytes of the texts of one array.
const MOST_BYTES: u64 = i32::MAX as u64;

/// The schema of a file, and its columns, with the types in which they are decoded. None if all are
/// decoded as their own types.
pub(super) fn decoded_schema(
    schema: &SchemaDescriptor,
    fields: &Fields,
    roots: &[usize],
    is_wide: impl Fn(usize) -> bool,
) -> Result<Option<(SchemaDescriptor, Fields)>> {
    let types = schema.root_schema().get_fields();
    let has_interval = |root: usize| has_element(&types[root], &is_interval);
    if !roots.iter().any(|root| is_wide(*root) || has_interval(*root)) {
        return Ok(None);
    }
    let stripped = |of: &Type| is_interval(of);
    let stored = types.iter().map(|of| without_annotations(of, &stripped));
    let stored = stored.collect::<Result<Vec<_>>>()?;
    let root = Type::group_type_builder(schema.root_schema().name()).with_fields(stored).build()?;
    let fields = fields.iter().enumerate().map(|(root, field)| {
        let wide = roots.contains(&root) && is_wide(root);
        with_type(field, decoded_type(field.data_type(), wide))
    });
    Ok(Some((SchemaDescriptor::new(Arc::new(root)), fields.collect())))
}

fn with_type(field: &FieldRef, data_type: DataType) -> FieldRef {
    Arc::new(Field::clone(field).with_data_type(data_type))
}

/// A type with bytes for intervals, and where it is `wide`, views for texts.
fn decoded_type(data_type: &DataType, wide: bool) -> DataType {
    use DataType::*;
    let below = |field: &FieldRef| with_type(field, decoded_type(field.data_type(), wide));
    match data_type {
        Interval(_) => FixedSizeBinary(12),
        Utf8 | LargeUtf8 if wide => Utf8View,
        Binary | LargeBinary if wide => BinaryView,
        Struct(fields) => Struct(fields.iter().map(below).collect()),
        List(item) => List(below(item)),
        LargeList(item) => LargeList(below(item)),
        FixedSizeList(item, length) => FixedSizeList(below(item), *length),
        Map(entries, sorted) => Map(below(entries), *sorted),
        other => other.clone(),
    }
}

/// Rows that are decoded together, at most: more than any session asks for.
const MOST_ROWS: u64 = 1 << 16;

/// Returns true if the texts of a batch of a chunk may be more than an array of them holds.
pub(super) fn may_be_wide(chunk: &ColumnChunkMetaData) -> bool {
    let values = u64::try_from(chunk.num_values()).unwrap_or(u64::MAX);
    let at_once = match chunk.column_descr().max_rep_level() {
        0 => values.min(MOST_ROWS),
        _ => values,
    };
    exceeds(chunk, at_once)
}

/// Returns true if so many texts of a chunk may take more memory. If texts repeat, in a dictionary
/// or as prefixes of others, only newer files give their total length; but no text is longer than
/// the stored bytes.
fn exceeds(chunk: &ColumnChunkMetaData, texts: u64) -> bool {
    if chunk.column_type() != Physical::BYTE_ARRAY {
        return false;
    }
    let stored = u64::try_from(chunk.uncompressed_size()).unwrap_or(u64::MAX);
    let repeated = if repeats(chunk) { texts } else { 1 };
    let bytes = chunk.unencoded_byte_array_data_bytes().map_or(u64::MAX, |bytes| bytes as u64);
    bytes.min(stored.saturating_mul(repeated)) > MOST_BYTES
}

fn repeats(chunk: &ColumnChunkMetaData) -> bool {
    use Encoding::{DELTA_BYTE_ARRAY, PLAIN_DICTIONARY, RLE_DICTIONARY};
    let repeats = |by| matches!(by, DELTA_BYTE_ARRAY | PLAIN_DICTIONARY | RLE_DICTIONARY);
    chunk.dictionary_page_offset().is_some() || chunk.encodings().any(repeats)
}

/// Returns true if text decoded from a chunk in memory may grow too large, when `at_once` of its
/// values are decoded together.
///
/// # Errors
/// Where its dictionary is damaged.
pub(super) fn is_wide(
    bytes: &Arc<Chunk>,
    chunk: &ColumnChunkMetaData,
    rows: usize,
    at_once: usize,
) -> Result<bool> {
    if !exceeds(chunk, at_once as u64) {
        return Ok(false);
    }
    let stored = u64::try_from(chunk.uncompressed_size()).unwrap_or(u64::MAX);
    let mut pages = pages(bytes, chunk, rows, None)?;
    let Some(mut pages) = pages.next().transpose()? else { return Ok(false) };
    // Only the dictionary is looked at: it comes first.
    let is_dictionary = pages.peek_next_page()?.is_some_and(|page| page.is_dict);
    if !is_dictionary {
        return Ok(true);
    }
    let Some(Page::DictionaryPage { buf, num_values, .. }) = pages.get_next_page()? else {
        return Ok(true);
    };
    let (mut rest, mut longest) = (&buf[..], 0_u64);
    for _ in 0..num_values {
        // What is wrong with it is told where it is decoded.
        let Some((length, after)) = rest.split_first_chunk() else { return Ok(true) };
        let length = u32::from_le_bytes(*length);
        let Some(after) = after.get(length as usize..) else { return Ok(true) };
        (rest, longest) = (after, longest.max(length.into()));
    }
    // Pages without indices have no more than they store.
    let repeated = longest.saturating_mul(at_once as u64);
    Ok(repeated.saturating_add(stored) > MOST_BYTES)
}
