//! Arrow IPC files and streams whose metadata may lie.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryViewArray, BooleanArray, Decimal128Array, DictionaryArray,
    FixedSizeBinaryArray, FixedSizeListArray, Float64Array, Int64Array, LargeStringArray,
    ListArray, NullArray, RecordBatch, RunArray, StringArray, StringViewArray, StructArray,
};
use arrow::datatypes::{DataType, Field, Float32Type, Int32Type, Schema};
use arrow::ipc::root_as_message;
use arrow::ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use arrow::ipc::{CompressionType, MetadataVersion};

use crate::choices::Choices;

const CONTINUATION: [u8; 4] = [0xff; 4];

/// Bytes of a file's end: the length of the footer, and the magic.
const TRAILER: usize = 10;

/// A file or stream of some columns and batches, with words of its metadata changed.
pub fn ipc_file(bytes: &[u8]) -> Vec<u8> {
    let choices = &mut Choices::new(bytes);
    let is_stream = choices.below(2) == 1;
    let compression =
        *choices.one_of(&[None, Some(CompressionType::LZ4_FRAME), Some(CompressionType::ZSTD)]);
    let all = columns();
    let wanted = choices.below(1 << all.len().min(16)).max(1);
    let chosen = all.into_iter().enumerate().filter(|(at, _)| wanted >> at & 1 == 1);
    let (fields, arrays): (Vec<Field>, Vec<ArrayRef>) = chosen
        .map(|(_, (name, array))| (Field::new(name, array.data_type().clone(), true), array))
        .unzip();
    let noted = HashMap::from([("note".to_owned(), "text".to_owned())]);
    let schema = Arc::new(Schema::new_with_metadata(fields, noted));
    let batch = RecordBatch::try_new(Arc::clone(&schema), arrays).expect("columns fit");
    let batches = 1 + choices.below(3);
    let version = *choices.one_of(&[MetadataVersion::V5, MetadataVersion::V4]);
    let options = IpcWriteOptions::try_new(8, false, version)
        .and_then(|options| options.try_with_compression(compression))
        .or_else(|_| IpcWriteOptions::try_new(64, false, MetadataVersion::V5))
        .expect("these options fit");
    let mut out = Vec::new();
    let written = match is_stream {
        true => {
            StreamWriter::try_new_with_options(&mut out, &schema, options).and_then(|mut to| {
                (0..batches).try_for_each(|_| to.write(&batch))?;
                to.finish()
            })
        }
        false => FileWriter::try_new_with_options(&mut out, &schema, options).and_then(|mut to| {
            (0..batches).try_for_each(|_| to.write(&batch))?;
            to.finish()
        }),
    };
    // Older versions have not all types.
    if written.is_err() {
        return Vec::new();
    }
    for range in metadata(&out, is_stream) {
        for at in range.step_by(4) {
            if choices.strikes() {
                change(&mut out, at, choices);
            }
        }
    }
    choices.bytes(out)
}

/// Changes a number of one to eight bytes.
fn change(file: &mut [u8], at: usize, choices: &mut Choices<'_>) {
    let width = *choices.one_of(&[4, 8, 2, 1]);
    let Some(place) = file.get_mut(at..at + width) else { return };
    let mut truth = [0; 8];
    truth[..width].copy_from_slice(place);
    let truth = u64::from_le_bytes(truth);
    // One place for the choice, and one for the number: the one after it.
    let number = match choices.below(6) {
        0 => truth.wrapping_add(1),
        1 => truth.wrapping_sub(1),
        2 => truth.wrapping_add(u64::from(choices.byte()) * 8),
        3 => u64::from(choices.byte()),
        4 => truth ^ u64::from(choices.byte()),
        _ => *choices.one_of(&[
            u64::MAX,
            1 << 31,
            1 << 40,
            i32::MAX as u64,
            i64::MAX as u64,
            1 << 63,
        ]),
    };
    place.copy_from_slice(&number.to_le_bytes()[..width]);
}

/// Where messages' metadata lie, the lengths before buffers that are compressed, and the footer.
fn metadata(file: &[u8], is_stream: bool) -> Vec<Range<usize>> {
    let word = |at: usize| {
        let bytes = file.get(at..)?.first_chunk::<4>()?;
        usize::try_from(i32::from_le_bytes(*bytes)).ok()
    };
    let mut found = Vec::new();
    let mut at = if is_stream { 0 } else { 8 };
    while file.get(at..).is_some_and(|rest| rest.starts_with(&CONTINUATION)) {
        let Some(length) = word(at + 4).filter(|length| *length > 0) else { break };
        let start = at + 8;
        let Ok(message) = root_as_message(&file[start..start + length]) else { break };
        found.push(at..start + length);
        at = start + length;
        if let Some(batch) = message.header_as_record_batch()
            && batch.compression().is_some()
        {
            for buffer in batch.buffers().iter().flatten().filter(|buffer| buffer.length() >= 8) {
                let start = at + buffer.offset() as usize;
                found.push(start..start + 8);
            }
        }
        at += message.bodyLength() as usize;
    }
    let end = file.len().saturating_sub(TRAILER);
    if !is_stream
        && let Some(length) = word(end)
        && length <= end
    {
        found.push(end - length..end + 4);
    }
    found
}

/// Four rows of many types.
fn columns() -> Vec<(&'static str, ArrayRef)> {
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(-3), Some(4)]));
    let texts = vec![Some("a"), None, Some("a text of more than twelve bytes"), Some("")];
    let keys: DictionaryArray<Int32Type> = texts.iter().copied().collect();
    let runs: RunArray<Int32Type> = texts.iter().copied().collect();
    let lists = vec![Some(vec![Some(1.0), None]), Some(vec![]), None, Some(vec![Some(2.5)])];
    let field =
        |name: &str, array: &ArrayRef| Arc::new(Field::new(name, array.data_type().clone(), true));
    let inner: ArrayRef = Arc::new(StringArray::from(texts.clone()));
    let record = StructArray::from(vec![
        (field("x", &numbers), Arc::clone(&numbers)),
        (field("y", &inner), Arc::clone(&inner)),
    ]);
    let two: ArrayRef = Arc::new(Float64Array::from(vec![0.5; 8]));
    let fixed = FixedSizeListArray::new(
        Arc::new(Field::new("item", DataType::Float64, true)),
        2,
        two,
        None,
    );
    let decimals = Decimal128Array::from(vec![Some(1), None, Some(3), Some(4)]);
    vec![
        ("numbers", numbers),
        ("texts", inner),
        ("keys", Arc::new(keys)),
        ("lists", Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(lists))),
        ("record", Arc::new(record)),
        ("views", Arc::new(StringViewArray::from(texts.clone()))),
        ("flags", Arc::new(BooleanArray::from(vec![Some(true), None, Some(false), None]))),
        ("fixed", Arc::new(fixed)),
        ("runs", Arc::new(runs)),
        ("nulls", Arc::new(NullArray::new(4))),
        ("large", Arc::new(LargeStringArray::from(texts))),
        ("decimals", Arc::new(decimals)),
        ("bytes", Arc::new(BinaryViewArray::from(vec![b"x".as_slice(); 4]))),
        ("width", Arc::new(FixedSizeBinaryArray::from(vec![b"ab", b"cd", b"ef", b"gh"]))),
    ]
}
