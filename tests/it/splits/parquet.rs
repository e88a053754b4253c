//! Parquet splits: merging towards a target, weights, byte ranges, and files that differ.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch, StringArray};
use datafusion::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader, ParquetMetaDataWriter};
use parquet::file::properties::WriterProperties;
use parquet::schema::types::ColumnPath;
use tensorquery::formats::{SplitUnit, UnitKind};
use tensorquery::session::{Plan, PlanOptions};

use super::super::support::{
    all_splits, assert_same_rows, execute, finest, plan, plan_error, plan_with, properties,
    register, rows, session, sorted, write_parquet, write_parquet_with,
};

/// `id` ascending, a wide text and a null column.
fn batch(ids: std::ops::Range<i64>) -> RecordBatch {
    let texts = ids.clone().map(|id| format!("{id} ").repeat(20));
    let columns: [(&str, ArrayRef); 3] = [
        ("none", Arc::new(Int32Array::new_null(ids.clone().count()))),
        ("id", Arc::new(Int64Array::from_iter_values(ids.clone()))),
        ("t", Arc::new(StringArray::from_iter_values(texts))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| (name, array, true)))
        .unwrap()
}

fn footer(path: &Path) -> ParquetMetaData {
    ParquetMetaDataReader::new().parse_and_finish(&File::open(path).unwrap()).unwrap()
}

fn by_rows(rows: u64) -> PlanOptions {
    PlanOptions { split_rows: Some(rows), explicit: true, ..PlanOptions::default() }
}

fn by_bytes(bytes: u64) -> PlanOptions {
    PlanOptions { split_bytes: bytes, split_rows: None, explicit: true, ..PlanOptions::default() }
}

fn row_ranges(plan: &Plan) -> Vec<(u64, u64)> {
    let ranges = plan.splits().iter().map(|split| split.row_range().unwrap());
    ranges.map(|range| (range.start, range.end)).collect()
}

/// Asserts that each split alone yields exactly the ids of its rows.
#[track_caller]
fn assert_addressed(plan: &Plan) {
    for id in all_splits(plan) {
        let range = plan.splits()[id as usize].row_range().unwrap();
        let wanted: Vec<String> = (range.start..range.end).map(|row| row.to_string()).collect();
        assert_eq!(
            rows(&execute(plan, &[id]).unwrap()),
            wanted,
            "{:?}",
            plan.splits()[id as usize]
        );
    }
}

#[test]
fn row_groups_are_merged_towards_the_target() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.parquet");
    let batch = batch(0..95);
    write_parquet(&path, &batch.schema(), &[batch], 10);
    let session = session();
    register(&session, "t", &path).unwrap();
    let sql = "SELECT id FROM t";
    let planned = |options| plan_with(&session, sql, &options).unwrap();
    assert_eq!(
        row_ranges(&planned(by_rows(25))),
        [(0, 20), (20, 40), (40, 60), (60, 80), (80, 95)]
    );
    assert_eq!(planned(by_rows(1)).splits().len(), 10);
    assert_eq!(row_ranges(&planned(by_rows(1000))), [(0, 95)]);
    let stored: Vec<u64> = footer(&path)
        .row_groups()
        .iter()
        .map(|group| group.column(1).compressed_size() as u64)
        .collect();
    let weights: Vec<u64> = planned(by_rows(1)).splits().iter().map(|split| split.bytes).collect();
    assert_eq!(weights, stored);
    let three = planned(by_bytes(stored[0] + stored[1] + stored[2]));
    assert_eq!(row_ranges(&three)[0], (0, 30));
    assert_eq!(three.splits()[0].bytes, stored[..3].iter().sum::<u64>());
    assert_eq!(planned(by_bytes(stored[0] + stored[1] + stored[2] - 1)).splits()[0].rows, Some(20));
    // Rows take precedence over bytes.
    let both = PlanOptions {
        split_bytes: 1,
        split_rows: Some(50),
        explicit: true,
        ..PlanOptions::default()
    };
    assert_eq!(row_ranges(&planned(both)), [(0, 50), (50, 95)]);
    for options in [by_rows(1), by_rows(25), by_rows(1000), by_bytes(1)] {
        assert_addressed(&planned(options));
    }
}

#[test]
fn the_columns_of_the_predicate_weigh_too() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.parquet");
    let batch = batch(0..20);
    write_parquet(&path, &batch.schema(), &[batch], 20);
    let session = session();
    register(&session, "t", &path).unwrap();
    let footer = footer(&path);
    let size = |column: usize| footer.row_group(0).column(column).compressed_size() as u64;
    let weight = |sql: &str| plan(&session, sql).unwrap().splits()[0].bytes;
    assert_eq!(weight("SELECT id FROM t"), size(1));
    assert_eq!(weight("SELECT id FROM t WHERE t <> 'x'"), size(1) + size(2));
    assert_eq!(weight("SELECT t FROM t"), size(2));
    assert_eq!(weight("SELECT 1 AS one FROM t"), 0);
}

#[test]
fn a_pruned_row_group_parts_splits_and_is_not_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.parquet");
    let batch = batch(0..100);
    write_parquet(&path, &batch.schema(), &[batch], 10);
    let session = session();
    register(&session, "t", &path).unwrap();
    let sql = "SELECT id FROM t WHERE id < 20 OR id >= 40";
    let plan = plan_with(&session, sql, &by_rows(1000)).unwrap();
    assert_eq!(row_ranges(&plan), [(0, 20), (40, 100)]);
    assert_eq!((plan.reports()[0].units, plan.reports()[0].units_pruned), (10, 2));
    assert_addressed(&plan);
    // Row group 0 holds 0 to 9, but the page index knows that rows 3 to 5 match and says so.
    let one =
        plan_with(&session, "SELECT id FROM t WHERE id BETWEEN 93 AND 95", &finest()).unwrap();
    assert_eq!(row_ranges(&one), [(90, 100)]);
    assert_eq!(sorted(&execute(&one, &[0]).unwrap()), ["93", "94", "95"]);
}

#[test]
fn the_page_index_prunes_row_groups_that_statistics_leave() {
    // Two pages of one row group: 0 to 9 and 90 to 99; 50 lies in the group's range and in no page's.
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.parquet");
    let ids: Vec<i64> = (0..10).chain(90..100).collect();
    let batch =
        RecordBatch::try_from_iter([("id", Arc::new(Int64Array::from(ids)) as ArrayRef)]).unwrap();
    let small = WriterProperties::builder()
        .set_data_page_row_count_limit(10)
        .set_write_batch_size(10)
        .set_dictionary_enabled(false)
        .build();
    write_parquet_with(&path, &batch.schema(), &[batch], small);
    let session = session();
    register(&session, "t", &path).unwrap();
    assert_eq!(plan(&session, "SELECT id FROM t WHERE id = 50").unwrap().splits().len(), 0);
    assert_eq!(assert_same_rows(&session, "SELECT id FROM t WHERE id = 95"), ["95"]);
}

#[test]
fn byte_ranges_address_row_groups_with_and_without_a_dictionary() {
    for dictionary in [Some(true), Some(false), None] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t.parquet");
        let mut properties = properties(7).into_builder();
        if let Some(enabled) = dictionary {
            properties = properties.set_dictionary_enabled(enabled);
        } else {
            // Only the first column lacks one, so row groups start on data pages.
            properties = properties.set_column_dictionary_enabled(ColumnPath::from("none"), false);
        }
        let batch = batch(0..50);
        write_parquet_with(&path, &batch.schema(), &[batch], properties.build());
        let session = session();
        register(&session, "t", &path).unwrap();
        for options in [by_rows(1), by_rows(14), by_rows(1000)] {
            assert_addressed(&plan_with(&session, "SELECT id FROM t", &options).unwrap());
        }
    }
}

#[test]
fn row_groups_out_of_order_are_one_split() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.parquet");
    let batch = batch(0..40);
    write_parquet(&path, &batch.schema(), &[batch], 10);
    // The same file with a footer that lists the row groups from the last to the first.
    let mut bytes = std::fs::read(&path).unwrap();
    let metadata = footer(&path);
    let groups = metadata.row_groups().iter().rev().cloned().collect();
    let reversed = metadata.into_builder().set_row_groups(groups).build();
    let length = u32::from_le_bytes(bytes[bytes.len() - 8..bytes.len() - 4].try_into().unwrap());
    bytes.truncate(bytes.len() - 8 - length as usize);
    ParquetMetaDataWriter::new(&mut bytes, &reversed).finish().unwrap();
    std::fs::write(&path, bytes).unwrap();
    let wanted: Vec<String> = [30..40, 20..30, 10..20, 0..10]
        .into_iter()
        .flatten()
        .map(|id: i64| id.to_string())
        .collect();
    let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(&path).unwrap()).unwrap();
    assert_eq!(reader.metadata().num_row_groups(), 4);
    let session = session();
    register(&session, "t", &path).unwrap();
    let plan = plan_with(&session, "SELECT id FROM t", &finest()).unwrap();
    assert_eq!(row_ranges(&plan), [(0, 40)]);
    assert_eq!(rows(&execute(&plan, &[0]).unwrap()), wanted);
    assert_eq!(assert_same_rows(&session, "SELECT id FROM t WHERE id IN (5, 35)"), ["35", "5"]);
    assert!(
        plan_with(&session, "SELECT id FROM t WHERE id > 99", &finest())
            .unwrap()
            .splits()
            .is_empty()
    );
}

#[test]
fn files_may_differ_in_width_order_and_columns() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, columns: Vec<(&str, ArrayRef)>| {
        let batch = RecordBatch::try_from_iter_with_nullable(
            columns.into_iter().map(|(name, array)| (name, array, true)),
        )
        .unwrap();
        write_parquet(&directory.path().join(name), &batch.schema(), &[batch], 2);
    };
    let ints = |values: [i32; 3]| -> ArrayRef { Arc::new(Int32Array::from(values.to_vec())) };
    let longs = |values: [i64; 3]| -> ArrayRef { Arc::new(Int64Array::from(values.to_vec())) };
    let texts = |values: [&str; 3]| -> ArrayRef { Arc::new(StringArray::from(values.to_vec())) };
    write("a.parquet", vec![("v", ints([1, 2, 3])), ("s", texts(["a", "b", "c"]))]);
    write("b.parquet", vec![("s", texts(["d", "e", "f"])), ("v", longs([4, 5, 1 << 40]))]);
    write("c.parquet", vec![("v", ints([7, 8, 9])), ("n", longs([70, 80, 90]))]);
    let session = session();
    register(&session, "t", directory.path()).unwrap();
    let all = assert_same_rows(&session, "SELECT v, s, n FROM t");
    assert_eq!(all.len(), 9);
    assert!(all.contains(&"1099511627776 | f | NULL".to_owned()), "{all:?}");
    assert!(all.contains(&"7 | NULL | 70".to_owned()), "{all:?}");
    assert_eq!(assert_same_rows(&session, "SELECT v FROM t WHERE s IS NULL"), ["7", "8", "9"]);
    assert_eq!(assert_same_rows(&session, "SELECT v FROM t WHERE n > 75"), ["8", "9"]);
    assert_eq!(assert_same_rows(&session, "SELECT s FROM t WHERE v > 5000000000"), ["f"]);
    assert_eq!(assert_same_rows(&session, "SELECT v FROM t WHERE s = 'e' OR n = 90"), ["5", "9"]);
    assert_eq!(assert_same_rows(&session, "SELECT n FROM t WHERE v = 2"), ["NULL"]);
    assert_eq!(
        assert_same_rows(&session, "SELECT s || 'x' AS sx FROM t WHERE v BETWEEN 3 AND 4").len(),
        2
    );
}

#[test]
fn files_without_rows_have_no_splits() {
    let directory = tempfile::tempdir().unwrap();
    let some = batch(0..5);
    write_parquet(&directory.path().join("a.parquet"), &some.schema(), &[], 10);
    write_parquet(
        &directory.path().join("b.parquet"),
        &some.schema(),
        std::slice::from_ref(&some),
        10,
    );
    write_parquet(&directory.path().join("c.parquet"), &some.schema(), &[some.slice(0, 0)], 10);
    let session = session();
    register(&session, "t", directory.path()).unwrap();
    register(&session, "none", &directory.path().join("a.parquet")).unwrap();
    let plan = plan(&session, "SELECT id FROM t").unwrap();
    assert_eq!(row_ranges(&plan), [(0, 5)]);
    assert!(matches!(plan.splits()[0].unit, SplitUnit::Units { kind: UnitKind::RowGroups, .. }));
    assert_eq!(assert_same_rows(&session, "SELECT id FROM t").len(), 5);
    assert!(assert_same_rows(&session, "SELECT id FROM none").is_empty());
    assert!(assert_same_rows(&session, "SELECT id FROM none WHERE id > 3").is_empty());
}

#[test]
fn a_changed_file_is_an_error_that_names_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.parquet");
    let one = batch(0..5);
    write_parquet(&path, &one.schema(), &[one], 10);
    let session = session();
    register(&session, "t", &path).unwrap();
    let two = batch(100..300);
    write_parquet(&path, &two.schema(), &[two], 10);
    let plan = plan(&session, "SELECT id FROM t");
    let error = match plan {
        Ok(plan) => execute(&plan, &all_splits(&plan)).unwrap_err(),
        Err(error) => error,
    };
    assert!(error.to_string().contains("t.parquet"), "{error}");
}

#[test]
fn an_unknown_column_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.parquet");
    let one = batch(0..5);
    write_parquet(&path, &one.schema(), &[one], 10);
    let session = session();
    register(&session, "t", &path).unwrap();
    let error = plan_error(&session, "SELECT idd FROM t");
    assert!(error.message().contains("did you mean \"id\""), "{error}");
}

/// Every process of a job reads the footers: what is read beside them adds up. One that is longer is read whole all the same.
#[test]
fn planning_reads_little_more_than_the_footers_of_local_files() {
    let folder = tempfile::tempdir().unwrap();
    let groups = |name: &str, rows_of_group: usize| {
        let path = folder.path().join(name);
        let batch = batch(0..20_000);
        write_parquet(&path, &batch.schema(), &[batch], rows_of_group);
        let footer = footer_bytes(&path);
        let session = session();
        register(&session, "t", &path).unwrap();
        let plan = plan_with(&session, "SELECT id FROM t", &finest()).unwrap();
        assert_eq!(plan.splits().len(), 20_000 / rows_of_group);
        (footer, session.counters().bytes())
    };
    let (footer, read) = groups("few.parquet", 10_000);
    assert!(footer < 2_000 && read == 8 << 10, "{read} bytes for {footer}");
    let (footer, read) = groups("many.parquet", 100);
    assert!(footer > 32_000 && (footer..footer + (9 << 10)).contains(&read), "{read} for {footer}");
}

fn footer_bytes(path: &Path) -> u64 {
    let bytes = std::fs::read(path).unwrap();
    let (_, tail) = bytes.split_last_chunk::<8>().unwrap();
    u64::from(u32::from_le_bytes(*tail.first_chunk().unwrap()))
}
