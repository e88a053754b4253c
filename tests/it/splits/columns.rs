//! Splits that are read column by column have the rows of DataFusion's own scan.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, Int64Array, ListArray, RecordBatch, StringArray};
use arrow::datatypes::Int32Type;
use futures::TryStreamExt;
use parquet::file::properties::WriterProperties;
use tempfile::TempDir;
use tensorquery::session::PlanOptions;

use super::super::support::{
    all_splits, block_on, execute, finest, plan_with, query, register, rows, run, session,
    write_parquet_with,
};

const ROWS: usize = 40_000;

/// Numbers, texts and lists in turns, a fifth of them null; no column has two rows alike, so that none can stand for another.
fn wide() -> RecordBatch {
    let column = |number: usize| {
        let some = (0..ROWS).map(|row| (row % 5 != number % 5).then_some(row * 12 + number));
        let array: ArrayRef = match number % 3 {
            0 => Arc::new(Int64Array::from_iter(some.map(|value| value.map(|value| value as i64)))),
            1 => Arc::new(StringArray::from_iter(
                some.map(|value| value.map(|v| format!("text {v}"))),
            )),
            _ => {
                let lists = some.map(|value| value.map(|v| vec![Some(v as i32); v % 3]));
                Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists))
            }
        };
        (format!("c{number}"), array, true)
    };
    let id: ArrayRef = Arc::new(Int32Array::from_iter_values(0..ROWS as i32));
    let columns = (0..12).map(column).chain([("id".to_owned(), id, false)]);
    RecordBatch::try_from_iter_with_nullable(columns).unwrap()
}

fn write(path: &Path, batch: &RecordBatch, rows: usize) {
    let properties = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_max_row_group_row_count(Some(rows))
        .build();
    write_parquet_with(path, &batch.schema(), std::slice::from_ref(batch), properties);
}

/// The system's memory gives up what it has of a file, where it can.
fn forget(path: &Path) {
    use std::os::fd::AsRawFd;
    let file = File::open(path).unwrap();
    file.sync_all().unwrap();
    // SAFETY: the descriptor is open; the call only drops clean pages from memory.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
}

#[test]
fn columns_of_a_row_group_keep_their_rows_together() {
    let (folder, batch) = (TempDir::new().unwrap(), wide());
    for rows_per_group in [ROWS, 9000, 700] {
        let path = folder.path().join(format!("{rows_per_group}.parquet"));
        write(&path, &batch, rows_per_group);
        let session = session();
        register(&session, "t", &path).unwrap();
        for sql in [
            "SELECT * FROM t",
            "SELECT c7, id, c0, c11 FROM t",
            "SELECT c5, c3 + id AS sum, 'x' AS fixed FROM t",
            "SELECT 1 AS one FROM t",
            "SELECT c1, c2, c6, id FROM t WHERE c0 IS NOT NULL",
            "SELECT * FROM t WHERE id >= 0",
        ] {
            let plan = plan_with(&session, sql, &finest()).unwrap();
            let expected = rows(&run(&query(&session, sql).unwrap()));
            assert!(!expected.is_empty());
            // From memory, then from the disk.
            for _ in 0..2 {
                let found = rows(&execute(&plan, &all_splits(&plan)).unwrap());
                assert!(found == expected, "{sql} by {rows_per_group} rows");
                forget(&path);
            }
        }
    }
}

#[test]
fn a_file_that_changes_while_it_is_read_is_an_error() {
    let (folder, batch) = (TempDir::new().unwrap(), wide());
    let path = folder.path().join("t.parquet");
    write(&path, &batch, 5000);
    let session = session();
    register(&session, "t", &path).unwrap();
    let whole = PlanOptions { split_bytes: 1 << 30, explicit: true, ..PlanOptions::default() };
    let plan = plan_with(&session, "SELECT * FROM t", &whole).unwrap();
    assert_eq!(plan.splits().len(), 1);
    let error = block_on(async {
        let mut batches = plan.epoch().unwrap().execute(0).unwrap();
        let first = batches.try_next().await.unwrap().unwrap();
        assert_eq!(first, batch.slice(0, first.num_rows()));
        // Other rows of the same size, in the file that is open.
        let content = std::fs::read(&path).unwrap();
        std::fs::write(&path, content).unwrap();
        batches.try_collect::<Vec<_>>().await.unwrap_err()
    });
    assert!(error.to_string().contains("written to while it was read"), "{error}");
}
