//! Numbers decoded here equal the written ones, in every layout of pages, and damage is an error.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, BooleanArray, FixedSizeListArray, RecordBatch, UInt64Array, new_null_array,
};
use arrow::compute::{cast, concat, filter, take};
use arrow::datatypes::{DataType, Field, Float32Type, Schema, TimeUnit};
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaDataReader};
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder, WriterVersion};
use proptest::prelude::*;

use super::lists::begin_every;
use super::{flat_column, is_flat};

const TYPES: [DataType; 12] = [
    DataType::Int32,
    DataType::UInt32,
    DataType::Date32,
    DataType::Time32(TimeUnit::Millisecond),
    DataType::Float32,
    DataType::Int64,
    DataType::UInt64,
    DataType::Float64,
    DataType::Time64(TimeUnit::Nanosecond),
    DataType::Duration(TimeUnit::Microsecond),
    DataType::Timestamp(TimeUnit::Microsecond, None),
    DataType::Timestamp(TimeUnit::Nanosecond, None),
];

/// How a column is made.
#[derive(Clone, Debug)]
struct Made {
    data_type: DataType,
    rows: usize,
    /// Different values, about.
    distinct: u64,
    /// Equal values that follow each other, about.
    repeats: u64,
    /// NULLs of eight rows, in stretches of so many; None where the column cannot have any.
    nulls: Option<(u64, u64)>,
}

fn mixed(number: u64, salt: u64) -> u64 {
    (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17).wrapping_mul(2 * salt + 3)
        >> 11
}

impl Made {
    fn array(&self) -> ArrayRef {
        let value = |row: u64| mixed(row / self.repeats.max(1), 1) % self.distinct.max(1);
        let values: UInt64Array =
            (0..self.rows as u64).map(|row| Some(value(row) % (1 << 31))).collect();
        // By way of a signed number of the same width.
        let narrow = matches!(self.data_type.primitive_width(), Some(4));
        let signed =
            cast(&values, if narrow { &DataType::Int32 } else { &DataType::Int64 }).unwrap();
        let typed = cast(&signed, &self.data_type).unwrap();
        let Some((nulls, stretch)) = self.nulls else { return typed };
        let present =
            (0..self.rows as u64).map(|row| Some(mixed(row / stretch.max(1), 2) % 8 >= nulls));
        let places: UInt64Array = (0..)
            .zip(present.collect::<BooleanArray>().iter())
            .map(|(row, is)| is.unwrap().then_some(row))
            .collect();
        take(&typed, &places, None).unwrap()
    }

    fn written(&self, properties: WriterProperties) -> (ColumnChunkMetaData, Bytes) {
        let field = Field::new("c", self.data_type.clone(), self.nulls.is_some());
        let rows =
            RecordBatch::try_new(Arc::new(Schema::new(vec![field])), vec![self.array()]).unwrap();
        file_of(&rows, properties)
    }
}

/// The first column chunk of a file of these rows.
fn file_of(rows: &RecordBatch, properties: WriterProperties) -> (ColumnChunkMetaData, Bytes) {
    let mut file = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut file, rows.schema(), Some(properties)).unwrap();
    writer.write(rows).unwrap();
    writer.close().unwrap();
    let file = Bytes::from(file);
    let footer = ParquetMetaDataReader::new().parse_and_finish(&file).unwrap();
    let metadata = footer.row_group(0).column(0).clone();
    let (start, length) = metadata.byte_range();
    (metadata, file.slice(start as usize..(start + length) as usize))
}

fn layout(
    version: bool,
    dictionary: bool,
    page_rows: usize,
    dictionary_bytes: usize,
) -> WriterPropertiesBuilder {
    let version = if version { WriterVersion::PARQUET_2_0 } else { WriterVersion::PARQUET_1_0 };
    WriterProperties::builder()
        .set_writer_version(version)
        .set_dictionary_enabled(dictionary)
        .set_dictionary_page_size_limit(dictionary_bytes)
        .set_write_batch_size(32)
        .set_data_page_row_count_limit(page_rows)
        // The default of this version is to pack differences.
        .set_encoding(parquet::basic::Encoding::PLAIN)
}

fn read(
    metadata: &ColumnChunkMetaData,
    made: &Made,
    chunk: &Bytes,
    batch_rows: usize,
    places: Option<Arc<[u32]>>,
) -> parquet::errors::Result<ArrayRef> {
    let column = flat_column(metadata, &made.data_type, chunk, made.rows, places.as_ref());
    let mut column = column.expect("a column of numbers is read here");
    let mut parts = vec![new_null_array(&made.data_type, 0)];
    loop {
        let part = column.next(batch_rows)?;
        assert!(part.len() <= batch_rows);
        if part.is_empty() {
            break;
        }
        parts.push(part);
    }
    let parts: Vec<_> = parts.iter().map(AsRef::as_ref).collect();
    Ok(concat(&parts).unwrap())
}

fn made() -> impl Strategy<Value = Made> {
    let nulls = prop_oneof![Just(None), (0..=8_u64, 1..300_u64).prop_map(Some)];
    let distinct = prop_oneof![Just(1_u64), 2..40_u64, 1000..u64::MAX];
    (prop::sample::select(TYPES.to_vec()), 1..4000_usize, distinct, 1..200_u64, nulls).prop_map(
        |(data_type, rows, distinct, repeats, nulls)| Made {
            data_type,
            rows,
            distinct,
            repeats,
            nulls,
        },
    )
}

fn written() -> impl Strategy<Value = WriterProperties> {
    let codec = prop::sample::select(vec![
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::ZSTD(ZstdLevel::default()),
        Compression::LZ4_RAW,
    ]);
    let dictionary_bytes = prop::sample::select(vec![200, 3000, 1 << 20]);
    (any::<bool>(), any::<bool>(), 32..5000_usize, dictionary_bytes, codec).prop_map(
        |(version, dictionary, page_rows, bytes, codec)| {
            layout(version, dictionary, page_rows, bytes).set_compression(codec).build()
        },
    )
}

proptest! {
    #[test]
    fn rows_are_those_that_were_written(
        made in made(),
        properties in written(),
        batch_rows in prop::sample::select(vec![1, 7, 64, 1000, 8192]),
        part in 1..1000_u64,
    ) {
        let (metadata, chunk) = made.written(properties);
        let expected = made.array();
        let all = read(&metadata, &made, &chunk, batch_rows, None).unwrap();
        prop_assert_eq!(&all, &expected);
        let mask: BooleanArray = (0..made.rows as u64).map(|row| Some(mixed(row, 90) % 1000 < part)).collect();
        let places = mask.values().set_indices_u32().collect();
        let some = read(&metadata, &made, &chunk, batch_rows, Some(places)).unwrap();
        prop_assert_eq!(&some, &filter(&expected, &mask).unwrap());
    }

    /// Reading a damaged chunk gives as many rows or an error, and never a panic.
    #[test]
    fn damage_is_an_error_or_other_values(
        made in made(),
        properties in written(),
        strikes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let (metadata, chunk) = made.written(properties);
        let mut damaged = chunk.to_vec();
        for (place, byte) in strikes {
            *place.get_mut(&mut damaged) = byte;
        }
        if let Some(cut) = cut {
            damaged.truncate(cut.index(chunk.len()));
        }
        let damaged = Bytes::from(damaged);
        // The declared size of a page is bounded elsewhere (`pages.rs`).
        if crate::formats::parquet::pages::check_pages(&damaged).is_err() {
            return Ok(());
        }
        let places: Arc<[u32]> = (0..made.rows as u32).step_by(3).collect();
        for places in [None, Some(places)] {
            let rows = places.as_ref().map_or(made.rows, |places| places.len());
            let column = flat_column(&metadata, &made.data_type, &damaged, made.rows, places.as_ref());
            if let Some(mut column) = column
                && let Ok(found) = column.next(usize::MAX)
            {
                prop_assert_eq!(found.len(), rows);
            }
        }
    }
}

proptest! {
    #[test]
    fn damage_of_lists_is_an_error_or_other_values(
        properties in written(),
        strikes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        const ROWS: usize = 200;
        let lists = (0..ROWS as u64).map(|row| Some((0..6).map(move |at| Some(mixed(row * 6 + at, 3) as f32))));
        let array = FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(lists, 6);
        let field = Field::new("c", array.data_type().clone(), true);
        let data_type = field.data_type().clone();
        let rows = RecordBatch::try_new(Arc::new(Schema::new(vec![field])), vec![Arc::new(array)]).unwrap();
        let (metadata, chunk) = file_of(&rows, properties);
        prop_assert!(flat_column(&metadata, &data_type, &chunk, ROWS, None).is_some());
        let mut damaged = chunk.to_vec();
        for (place, byte) in strikes {
            *place.get_mut(&mut damaged) = byte;
        }
        let damaged = Bytes::from(damaged);
        if crate::formats::parquet::pages::check_pages(&damaged).is_ok()
            && let Some(mut column) = flat_column(&metadata, &data_type, &damaged, ROWS, None)
            && let Ok(found) = column.next(usize::MAX)
        {
            prop_assert_eq!(found.len(), ROWS);
        }
    }
}

/// Lists of one length come back as written, for any division into pages. If a list or a number in
/// one is missing, and for single rows, they are left to the `parquet` crate.
#[test]
fn full_lists_are_read_and_others_are_not() {
    const LENGTH: usize = 7;
    const ROWS: usize = 500;
    let (mut read_here, mut left) = (0, 0);
    for (version, dictionary, page_rows) in
        [(false, false, 64), (true, false, 64), (false, true, 1000), (true, true, 33)]
    {
        for (gap, nullable) in
            [(None, false), (None, true), (Some("list"), true), (Some("item"), true)]
        {
            let number = |at: usize| mixed(at as u64 / 3, 8) as f32;
            let missing = |place: &str, at: usize| gap == Some(place) && at == 77;
            let lists = (0..ROWS).map(|row| {
                let items = (0..LENGTH).map(|item| {
                    let at = row * LENGTH + item;
                    (!missing("item", at)).then(|| number(at))
                });
                (!missing("list", row)).then(|| items.collect::<Vec<_>>())
            });
            let array =
                FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(lists, LENGTH as i32);
            let item = Arc::new(Field::new("element", DataType::Float32, nullable));
            let (_, length, values, nulls) = array.into_parts();
            let array: ArrayRef = Arc::new(FixedSizeListArray::new(item, length, values, nulls));
            let field = Field::new("c", array.data_type().clone(), nullable);
            let rows =
                RecordBatch::try_new(Arc::new(Schema::new(vec![field])), vec![Arc::clone(&array)])
                    .unwrap();
            let (metadata, chunk) =
                file_of(&rows, layout(version, dictionary, page_rows, 1 << 20).build());
            assert!(is_flat(&metadata, array.data_type()));
            let places: Arc<[u32]> = [3, 5].into();
            assert!(
                flat_column(&metadata, array.data_type(), &chunk, ROWS, Some(&places)).is_none()
            );
            assert!(flat_column(&metadata, array.data_type(), &chunk, ROWS - 1, None).is_none());
            let column = flat_column(&metadata, array.data_type(), &chunk, ROWS, None);
            let Some(mut column) = column else {
                assert!(gap.is_some());
                left += 1;
                continue;
            };
            assert!(gap.is_none());
            read_here += 1;
            let parts: Vec<ArrayRef> = (0..=ROWS / 96).map(|_| column.next(96).unwrap()).collect();
            let parts: Vec<_> = parts.iter().map(AsRef::as_ref).collect();
            assert_eq!(&concat(&parts).unwrap(), &array);
            assert_eq!(column.next(96).unwrap().len(), 0);
        }
    }
    assert_eq!((read_here, left), (8, 8));
}

/// Lists of other lengths that have as many numbers in all.
#[test]
fn repetition_levels_that_begin_elsewhere_are_seen() {
    let bits = |levels: &[u32]| {
        let packed = levels.chunks(8).map(|eight| {
            eight.iter().enumerate().fold(0, |byte, (at, level)| byte | (*level as u8) << at)
        });
        let mut bytes = vec![(levels.len().div_ceil(8) << 1 | 1) as u8];
        bytes.extend(packed);
        bytes
    };
    let full = [0, 1, 1, 0, 1, 1, 0, 1, 1, 0, 1, 1];
    assert!(begin_every(3, &bits(&full), 0, 12));
    assert!(begin_every(3, &bits(&full), 300, 11));
    assert!(!begin_every(3, &bits(&full), 1, 12));
    assert!(!begin_every(3, &bits(&full), 0, 20), "there are no more levels");
    for at in 0..12 {
        let mut other = full;
        other[at] ^= 1;
        assert!(!begin_every(3, &bits(&other), 0, 12), "{at}");
    }
    // Runs: one zero, then seven ones, which begin no list of eight.
    let run = |level: u8, count: u8| [count << 1, level];
    let runs = [run(0, 1), run(1, 7), run(0, 1), run(1, 7)].concat();
    assert!(begin_every(8, &runs, 0, 16) && !begin_every(8, &runs, 4, 16));
    assert!(!begin_every(4, &runs, 0, 16) && !begin_every(16, &runs, 0, 16));
    assert!(begin_every(1, &run(0, 9), 5, 9) && !begin_every(1, &run(1, 1), 0, 1));
}

/// Indices beyond the dictionary, pages without a dictionary, and chunks with more or fewer rows
/// than the footer says.
#[test]
fn what_does_not_fit_together_is_not_read() {
    let made =
        Made { data_type: DataType::Int64, rows: 1000, distinct: 20, repeats: 1, nulls: None };
    let (metadata, chunk) = made.written(
        layout(false, true, 400, 1 << 20).set_compression(Compression::UNCOMPRESSED).build(),
    );
    let column = |chunk: &Bytes, rows| flat_column(&metadata, &made.data_type, chunk, rows, None);
    assert!(column(&chunk, 1000).is_some());
    for rows in [0, 399, 999, 1001] {
        assert!(column(&chunk, rows).is_none(), "{rows}");
    }
    let header = crate::formats::parquet::thrift::page_header(&chunk).unwrap();
    let behind = header.length + header.stored as usize;
    assert!(column(&chunk.slice(behind..), 1000).is_none(), "its dictionary is gone");
    assert!(
        column(&[chunk.clone(), chunk.clone()].concat().into(), 1000).is_none(),
        "it is there twice"
    );
    assert!(
        column(&[&chunk[..], &[0; 9]].concat().into(), 1000).is_some(),
        "something lies behind it"
    );

    // The twenty indices have five bits: with all set they are beyond the dictionary.
    let mut beyond = chunk.to_vec();
    let page = crate::formats::parquet::thrift::page_header(&chunk[behind..]).unwrap();
    let values = behind + page.length;
    assert_eq!(beyond[values], 5);
    beyond[values + 10] = 0xff;
    let error = column(&beyond.into(), 1000).unwrap().next(1000).unwrap_err();
    assert!(error.to_string().contains("the dictionary does not have"), "{error}");
}

/// Columns with a different layout from Arrow's, nested ones and other encodings are left to the
/// `parquet` crate.
#[test]
fn other_columns_are_left_to_the_parquet_crate() {
    let other = |data_type: DataType, properties: WriterPropertiesBuilder| {
        let made = Made { data_type, rows: 100, distinct: 100, repeats: 1, nulls: None };
        let (metadata, chunk) = made.written(properties.build());
        flat_column(&metadata, &made.data_type, &chunk, 100, None).is_none()
    };
    let plain = || layout(false, false, 1000, 1 << 20);
    assert!(!other(DataType::Int32, plain()));
    for data_type in [DataType::Int16, DataType::UInt8, DataType::Decimal128(9, 2), DataType::Utf8]
    {
        assert!(other(data_type.clone(), plain()), "{data_type}");
    }
    assert!(other(
        DataType::Int32,
        plain().set_encoding(parquet::basic::Encoding::DELTA_BINARY_PACKED)
    ));
    assert!(other(
        DataType::Float32,
        plain().set_encoding(parquet::basic::Encoding::BYTE_STREAM_SPLIT)
    ));
    assert!(other(DataType::Int32, plain().set_compression(Compression::GZIP(Default::default()))));
}
