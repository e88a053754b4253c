//! Looked-up rows equal the rows that a filter of all rows keeps, in every layout of pages.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, FixedSizeBinaryArray, Float64Array, Int32Array, Int64Array, ListArray,
    RecordBatch, StringArray,
};
use arrow::compute::{concat, filter};
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use bytes::Bytes;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{binary, col, lit};
use parquet::arrow::arrow_reader::{RowSelection, RowSelector};
use parquet::arrow::{ArrowWriter, parquet_to_arrow_schema};
use parquet::basic::{Encoding, Type};
use parquet::column::page::Page;
use parquet::errors::Result;
use parquet::file::metadata::{
    ColumnChunkMetaData, PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader,
};
use parquet::file::page_index::offset_index::PageLocation;
use parquet::file::properties::{WriterProperties, WriterVersion};
use parquet::schema::types::{ColumnDescriptor, ColumnPath, Type as SchemaType};
use proptest::prelude::*;

use super::group::{Group, Wanted};
use super::lengths::Lengths;
use super::page_filter::PageLayout;
use super::stages::stages;

const ROWS: usize = 3000;

/// A number that follows from another.
fn mixed(row: usize, salt: usize) -> usize {
    (row + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17).wrapping_mul(2 * salt + 3) >> 11
}

fn rows() -> RecordBatch {
    let some = |salt: usize| {
        (0..ROWS)
            .map(move |row| (!mixed(row, salt).is_multiple_of(5)).then(|| mixed(row, salt + 50)))
    };
    let text =
        some(3).map(|value| value.map(|value| "y".repeat(value % 7) + &(value % 90).to_string()));
    let fixed = some(4).map(|value| value.map(|value| [(value % 9) as u8; 3]));
    let lists = some(5).map(|value| value.map(|value| vec![Some(value as i64); value % 3]));
    let columns: Vec<(&str, ArrayRef, bool)> = vec![
        ("row", Arc::new(Int64Array::from_iter_values(0..ROWS as i64)), false),
        (
            "few",
            Arc::new(Int32Array::from_iter_values((0..ROWS).map(|row| mixed(row, 1) as i32 % 40))),
            false,
        ),
        (
            "runs",
            Arc::new(Int64Array::from_iter(
                (0..ROWS).map(|row| (row / 700 != 2).then_some(row as i64 / 500)),
            )),
            true,
        ),
        (
            "real",
            Arc::new(Float64Array::from_iter(some(2).map(|value| value.map(|value| value as f64)))),
            true,
        ),
        ("text", Arc::new(StringArray::from_iter(text)), true),
        (
            "fixed",
            Arc::new(FixedSizeBinaryArray::try_from_sparse_iter_with_size(fixed, 3).unwrap()),
            true,
        ),
        (
            "flag",
            Arc::new(BooleanArray::from_iter(
                some(6).map(|value| value.map(|value| value % 2 == 0)),
            )),
            true,
        ),
        ("list", Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(lists)), true),
        ("nothing", Arc::new(Int64Array::from(vec![None; ROWS])), true),
    ];
    RecordBatch::try_from_iter_with_nullable(columns).unwrap()
}

fn written(rows: &RecordBatch, properties: WriterProperties) -> Bytes {
    let mut file = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut file, rows.schema(), Some(properties)).unwrap();
    writer.write(rows).unwrap();
    writer.close().unwrap();
    Bytes::from(file)
}

fn footer_of(file: &Bytes) -> ParquetMetaData {
    let reader = ParquetMetaDataReader::new().with_page_index_policy(PageIndexPolicy::Required);
    reader.parse_and_finish(file).unwrap()
}

/// The first row group, without its chunks.
fn group_of(footer: ParquetMetaData) -> Group {
    let described = footer.file_metadata();
    let schema =
        parquet_to_arrow_schema(described.schema_descr(), described.key_value_metadata()).unwrap();
    let all: Vec<usize> = (0..schema.fields().len()).collect();
    Group::new(Arc::new(footer), Arc::new(schema), 0, &all)
}

/// A file of one row group, and the row group without its chunks.
fn file_of(rows: &RecordBatch, properties: WriterProperties) -> (Bytes, Group) {
    let file = written(rows, properties);
    let group = group_of(footer_of(&file));
    (file, group)
}

/// Reads the missing bytes of the columns; returns their number.
fn fetch(group: &mut Group, file: &Bytes, columns: &[usize]) -> usize {
    let bytes = try_fetch(group, file, columns).unwrap();
    assert!(group.missing(columns).0.is_empty());
    bytes
}

fn try_fetch(group: &mut Group, file: &Bytes, columns: &[usize]) -> Result<usize> {
    let (leaves, ranges) = group.missing(columns);
    let chunks = ranges.iter().map(|range| file.slice(range.start as usize..range.end as usize));
    let chunks: Vec<Bytes> = chunks.collect();
    let bytes = chunks.iter().map(Bytes::len).sum();
    group.put(&leaves, &ranges, chunks)?;
    Ok(bytes)
}

/// A file of one row group, with all its chunks.
fn group(rows: &RecordBatch, properties: WriterProperties) -> Group {
    let (file, mut group) = file_of(rows, properties);
    let all: Vec<usize> = (0..rows.num_columns()).collect();
    fetch(&mut group, &file, &all);
    group
}

/// All batches of the columns, and the rows of each.
fn read(group: &Group, columns: &[usize], wanted: &Wanted, looks: bool) -> Vec<ArrayRef> {
    let mut read = group.read(columns, wanted, looks, Lengths::new(128, 8, None)).unwrap();
    let mut parts: Vec<Vec<ArrayRef>> = vec![Vec::new(); columns.len()];
    while let Some((count, columns)) = read.next().unwrap() {
        for (part, column) in parts.iter_mut().zip(columns) {
            assert_eq!(column.len(), count);
            part.push(column);
        }
    }
    let joined = |parts: &Vec<ArrayRef>| {
        let parts: Vec<_> = parts.iter().map(AsRef::as_ref).collect();
        concat(&parts).unwrap()
    };
    parts.iter().map(joined).collect()
}

fn layouts() -> Vec<WriterProperties> {
    let new = || WriterProperties::builder().set_write_batch_size(64);
    vec![
        new().build(),
        new().set_data_page_row_count_limit(100).build(),
        new().set_dictionary_enabled(false).set_data_page_row_count_limit(333).build(),
        // Pages with dictionary indices, then plain ones.
        new().set_dictionary_page_size_limit(600).set_data_page_row_count_limit(200).build(),
        new()
            .set_writer_version(WriterVersion::PARQUET_2_0)
            .set_data_page_row_count_limit(400)
            .build(),
        new()
            .set_writer_version(WriterVersion::PARQUET_2_0)
            .set_dictionary_enabled(false)
            .set_data_page_row_count_limit(250)
            .build(),
    ]
}

#[test]
fn rows_are_those_of_a_filter_whichever_way_they_are_read() {
    let rows = rows();
    let (mut looked, mut filtered) = (0, 0);
    for properties in layouts() {
        // Then values are packed as differences, which are not passed over.
        let packed = properties.writer_version() == WriterVersion::PARQUET_2_0
            && !properties.dictionary_enabled(&ColumnPath::from("row"));
        let group = group(&rows, properties);
        for (salt, part) in [1, 2, 20, 150, 300, 700, 900, 990, 999].into_iter().enumerate() {
            let keeps = |row: usize| mixed(row, 90 + salt) % 1000 < part;
            let mask: BooleanArray = (0..ROWS).map(|row| Some(keeps(row))).collect();
            let wanted = Wanted::all(ROWS).narrowed(mask.values().clone());
            assert_eq!(wanted.count(), mask.true_count());
            let columns = [0, 1, 2, 3, 4, 5, 6, 7, 8];
            let looks = group.looks(&columns, &wanted);
            assert_eq!(looks, part < 790 && !packed, "{part} in a thousand");
            if looks {
                looked += 1;
            } else {
                filtered += 1;
            }
            for (column, found) in columns.iter().zip(read(&group, &columns, &wanted, looks)) {
                let expected = filter(rows.column(*column), &mask).unwrap();
                assert_eq!(&found, &expected, "column {column}, {part}");
            }
        }
    }
    assert!(looked > 10 && filtered > 10);
}

/// The layouts in which values can be passed over.
fn skippable() -> Vec<WriterProperties> {
    let packs = |properties: &WriterProperties| {
        properties.writer_version() == WriterVersion::PARQUET_2_0
            && !properties.dictionary_enabled(&ColumnPath::from("row"))
    };
    layouts().into_iter().filter(|properties| !packs(properties)).collect()
}

const ALL: [usize; 9] = [0, 1, 2, 3, 4, 5, 6, 7, 8];

#[test]
fn of_pages_without_wanted_rows_nothing_is_read() {
    let rows = rows();
    for properties in skippable() {
        let has_pages = properties.data_page_row_count_limit() < ROWS;
        for (first, end) in [(0, 1), (0, 250), (95, 105), (1000, 1900), (2999, 3000), (1, 3000)] {
            let keeps = |row: usize| (first..end).contains(&row);
            let mask: BooleanArray = (0..ROWS).map(|row| Some(keeps(row))).collect();
            let wanted = Wanted::all(ROWS).narrowed(mask.values().clone());
            let (file, mut all) = file_of(&rows, properties.clone());
            let all = fetch(&mut all, &file, &ALL);
            let (_, group) = file_of(&rows, properties.clone());
            let mut group = group.part(&wanted);
            let bytes = fetch(&mut group, &file, &ALL);
            let saves = has_pages && end - first <= 900;
            assert!(if saves { bytes < all } else { bytes <= all }, "{bytes} of {all}");
            for (column, found) in ALL.iter().zip(read(&group, &ALL, &wanted, true)) {
                let expected = rows.column(*column).slice(first, end - first);
                assert_eq!(&found, &expected, "column {column}, rows {first} to {end}");
            }
        }
    }
}

/// Rows that a page index selects, and the rows of these that a condition keeps, so many
/// `together`.
fn narrowed(
    runs: &[(usize, usize)],
    part: usize,
    together: usize,
) -> (Wanted, Wanted, BooleanArray) {
    let mut selectors = Vec::new();
    for (skip, select) in runs {
        selectors.extend([RowSelector::skip(*skip), RowSelector::select(*select)]);
    }
    let first = Wanted::selected(ROWS, &RowSelection::from(selectors));
    let mut selected = vec![false; ROWS];
    let mut at = 0;
    for (skip, select) in runs {
        at = (at + skip).min(ROWS);
        let end = (at + select).min(ROWS);
        selected[at..end].fill(true);
        at = end;
    }
    assert_eq!(first.count(), selected.iter().filter(|selected| **selected).count());
    let keeps = |row: usize| mixed(row / together, 77) % 10 < part;
    let asked = (0..ROWS).filter(|row| selected[*row]).map(|row| Some(keeps(row)));
    let second = first.narrowed(asked.collect::<BooleanArray>().values().clone());
    let both = (0..ROWS).map(|row| Some(selected[row] && keeps(row)));
    (first, second, both.collect())
}

proptest! {
    /// The columns of a condition are read for the first rows, and the others for the rows that it
    /// keeps.
    #[test]
    fn parts_of_a_row_group_are_read_as_all_of_it(
        layout in prop::sample::select(skippable()),
        runs in prop::collection::vec((0..900_usize, 1..900_usize), 1..6),
        part in 1..=10_usize,
        together in prop::sample::select(vec![1_usize, 2, 30]),
        asked in prop::sample::subsequence(ALL.to_vec(), 1..=3),
    ) {
        let rows = rows();
        let (wanted, fewer, mask) = narrowed(&runs, part, together);
        prop_assume!(fewer.count() > 0);
        let (file, group) = file_of(&rows, layout);
        let mut group = group.part(&wanted);
        fetch(&mut group, &file, &asked);
        for (column, found) in asked.iter().zip(read(&group, &asked, &wanted, true)) {
            prop_assert_eq!(found.len(), wanted.count(), "column {}", column);
        }
        group.narrow(&fewer);
        fetch(&mut group, &file, &ALL);
        for (column, found) in ALL.iter().zip(read(&group, &ALL, &fewer, true)) {
            let expected = filter(rows.column(*column), &mask).unwrap();
            prop_assert_eq!(&found, &expected, "column {}", column);
        }
    }
}

/// The decoder would read all rows from the first wanted one to the last, and leave out the others
/// then.
#[test]
fn between_wanted_rows_that_alternate_with_others_pages_may_be_missing() {
    let rows = rows();
    for properties in skippable() {
        let keeps = |row: usize| row.is_multiple_of(3) && !(300..2700).contains(&row);
        let mask: BooleanArray = (0..ROWS).map(|row| Some(keeps(row))).collect();
        let wanted = Wanted::all(ROWS).narrowed(mask.values().clone());
        let (file, group) = file_of(&rows, properties);
        let mut group = group.part(&wanted);
        fetch(&mut group, &file, &ALL);
        for (column, found) in ALL.iter().zip(read(&group, &ALL, &wanted, true)) {
            let expected = filter(rows.column(*column), &mask).unwrap();
            assert_eq!(&found, &expected, "column {column}");
        }
    }
}

/// A change to the page locations of a column.
type Change<'a> = &'a dyn Fn(&mut Vec<PageLocation>);

#[test]
fn an_index_that_counts_other_rows_is_an_error() {
    let rows = rows();
    let properties = WriterProperties::builder()
        .set_write_batch_size(64)
        .set_data_page_row_count_limit(100)
        .build();
    let file = written(&rows, properties);
    let footer = footer_of(&file);
    let keeps = |row: usize| (1000..1900).contains(&row);
    let mask: BooleanArray = (0..ROWS).map(|row| Some(keeps(row))).collect();
    let wanted = Wanted::all(ROWS).narrowed(mask.values().clone());
    let with_index = |change: Change<'_>, columns: &[usize]| {
        let mut index = footer.offset_index().unwrap().clone();
        index[0].iter_mut().for_each(|leaf| change(&mut leaf.page_locations));
        let footer = footer.clone().into_builder().set_offset_index(Some(index)).build();
        let mut group = group_of(footer).part(&wanted);
        try_fetch(&mut group, &file, columns)
    };
    with_index(&|_| {}, &ALL).unwrap();
    // Each page has a row more than it has, or a byte less. How many rows a page of lists has is
    // not known.
    let other: [Change<'_>; 2] = [
        &|pages| {
            pages.iter_mut().zip(0..).for_each(|(page, number)| page.first_row_index += number);
        },
        &|pages| pages.iter_mut().for_each(|page| page.compressed_page_size -= 1),
    ];
    for change in other {
        for column in [0, 1, 2, 3, 4, 5, 6, 8] {
            let error = with_index(change, &[column]).err().unwrap().to_string();
            assert!(error.contains("the page index"), "{error}");
        }
    }
}

#[test]
fn all_rows_are_read_as_they_are() {
    let rows = rows();
    let group = group(&rows, WriterProperties::default());
    let all = BooleanArray::from(vec![true; ROWS]);
    let wanted = Wanted::all(ROWS).narrowed(all.values().clone());
    let mut read = group.read(&[0, 4], &wanted, false, Lengths::new(2000, 8, None)).unwrap();
    let (count, columns) = read.next().unwrap().unwrap();
    assert_eq!((count, &columns[1]), (2000, &rows.column(4).slice(0, 2000)));
}

#[test]
fn columns_are_read_together_up_to_what_a_cache_holds() {
    let column = |name: usize, rows: usize| {
        let values = Int64Array::from_iter_values((0..rows).map(|row| mixed(row, name) as i64));
        (format!("c{name}"), Arc::new(values) as ArrayRef)
    };
    let tiles = |rows: usize, wanted: &[usize]| {
        let batch = RecordBatch::try_from_iter((0..10).map(|name| column(name, rows))).unwrap();
        let properties = WriterProperties::builder().set_dictionary_enabled(false).build();
        group(&batch, properties).tiles(wanted)
    };
    // Of 160, 640 and 8 KB each.
    assert_eq!(tiles(20_000, &[0, 2, 3, 4, 5, 8, 9]), [&[0, 2, 3][..], &[4, 5, 8], &[9]]);
    assert_eq!(tiles(80_000, &[1, 7]), [[1], [7]]);
    assert_eq!(tiles(1000, &[1, 7, 8]), [[1, 7, 8]]);
    // Rows are counted where no column is wanted.
    assert_eq!(tiles(1000, &[]), [Vec::<usize>::new()]);
}

#[test]
fn rows_are_narrowed_one_condition_after_the_other() {
    let first: BooleanArray = (0..100).map(|row| Some(row % 3 == 0)).collect();
    let second: BooleanArray = (0..34).map(|row| Some(row % 2 == 1)).collect();
    let wanted = Wanted::all(100).narrowed(first.values().clone());
    let both = wanted.narrowed(second.values().clone());
    assert_eq!((wanted.count(), both.count()), (34, 17));
    let group = group(&rows().slice(0, 100), WriterProperties::default());
    let (_, columns) =
        group.read(&[0], &both, true, Lengths::new(100, 8, None)).unwrap().next().unwrap().unwrap();
    let expected: Int64Array = (0..100).filter(|row| row % 6 == 3).map(Some).collect();
    assert_eq!(columns[0].as_ref(), &expected as &dyn arrow::array::Array);
}

fn schema() -> Schema {
    let field = |name| Field::new(name, DataType::Int64, true);
    Schema::new(vec![field("a"), field("b")])
}

fn compare(
    left: Arc<dyn PhysicalExpr>,
    op: Operator,
    right: Arc<dyn PhysicalExpr>,
) -> Arc<dyn PhysicalExpr> {
    binary(left, op, right, &schema()).unwrap()
}

#[test]
fn a_range_is_one_condition_and_what_may_fail_waits_for_those_before_it() {
    let column = |name| col(name, &schema()).unwrap();
    let at_least = compare(column("a"), Operator::GtEq, lit(5i64));
    let at_most = compare(lit(9i64), Operator::GtEq, column("a"));
    let other = compare(column("b"), Operator::NotEq, lit(0i64));
    let quotient = compare(column("a"), Operator::Divide, column("b"));
    let fails = compare(quotient, Operator::Gt, lit(1i64));
    let all = [at_least, at_most, other, fails];
    let predicate = all.into_iter().reduce(|left, right| compare(left, Operator::And, right));
    let found = stages(&predicate.unwrap());
    let columns: Vec<&[usize]> = found.iter().map(|stage| stage.columns.as_slice()).collect();
    assert_eq!(columns, [&[0][..], &[1], &[0, 1]]);
    assert_eq!(found[0].condition.to_string(), "a@0 >= 5 AND 9 >= a@0");
}

fn chunk(physical: Type, nullable: bool) -> ColumnChunkMetaData {
    let column = SchemaType::primitive_type_builder("c", physical).with_length(3).build().unwrap();
    let level = i16::from(nullable);
    let column =
        ColumnDescriptor::new(Arc::new(column), level, 0, ColumnPath::new(vec!["c".to_owned()]));
    ColumnChunkMetaData::builder(Arc::new(column)).build().unwrap()
}

proptest! {
    #[test]
    fn a_damaged_page_is_an_error_or_a_page(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        physical in prop::sample::select(vec![Type::INT32, Type::DOUBLE, Type::INT96, Type::BYTE_ARRAY, Type::FIXED_LEN_BYTE_ARRAY]),
        dictionary: bool,
        nullable: bool,
        second: bool,
        levels in 0u32..300,
        rows in prop::collection::btree_set(0u32..500, 1..40),
    ) {
        let encoding = if dictionary { Encoding::RLE_DICTIONARY } else { Encoding::PLAIN };
        let buf = Bytes::from(bytes);
        let page = match second {
            true => Page::DataPageV2 {
                buf, num_values: 500, encoding, num_nulls: 0, num_rows: 500, def_levels_byte_len: levels,
                rep_levels_byte_len: 0, is_compressed: false, statistics: None,
            },
            false => Page::DataPage {
                buf, num_values: 500, encoding, def_level_encoding: Encoding::RLE,
                rep_level_encoding: Encoding::RLE, statistics: None,
            },
        };
        let rows: Vec<u32> = rows.into_iter().map(|row| row + 1000).collect();
        let layout = PageLayout::of(&chunk(physical, nullable)).unwrap();
        if let Ok(page) = layout.compact(&page, 1000, &rows) {
            prop_assert_eq!(page.num_values() as usize, rows.len());
        }
    }
}
