//! Splits of CSV, JSON and tables in memory: each record in one of them.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use flate2::Compression;
use flate2::write::GzEncoder;
use tensorquery::formats::SplitUnit;
use tensorquery::session::{PlanOptions, Session};

use super::super::support::{all_splits, execute, plan_with, query, register, rows, run, session};

/// The number of splits of `bytes` each, all of them together being the result, in order.
#[track_caller]
fn check(session: &Arc<Session>, sql: &str, bytes: u64) -> usize {
    let options = PlanOptions {
        split_bytes: bytes,
        split_rows: None,
        explicit: true,
        ..PlanOptions::default()
    };
    let plan = plan_with(session, sql, &options).unwrap();
    let wanted = rows(&run(&query(session, sql).unwrap()));
    assert!(!wanted.is_empty());
    assert_eq!(rows(&execute(&plan, &all_splits(&plan)).unwrap()), wanted, "{sql} by {bytes}");
    plan.splits().len()
}

fn csv() -> String {
    let mut text = "id,t\n".to_owned();
    for id in 0..200 {
        let t = ["plain", "\"two\nlines\"", "\"a \"\"quote\"\",\n\"", ""][id % 4];
        writeln!(text, "{id},{t}").unwrap();
    }
    text
}

fn gzip(path: &Path, text: &str) {
    let mut encoder = GzEncoder::new(std::fs::File::create(path).unwrap(), Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap();
}

#[test]
fn csv_splits_lie_on_records() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("a.csv"), csv()).unwrap();
    std::fs::write(directory.path().join("b.csv"), csv().trim_end()).unwrap();
    let session = session();
    register(&session, "t", directory.path()).unwrap();
    let sql = "SELECT id, t FROM t";
    assert_eq!(check(&session, sql, 1 << 20), 2);
    for bytes in [1, 7, 64, 300, 1000] {
        assert!(check(&session, sql, bytes) > 2);
    }
    assert!(check(&session, "SELECT t FROM t WHERE id % 7 = 3", 50) > 10);
    assert!(check(&session, "SELECT 1 AS one FROM t", 50) > 10);
}

#[test]
fn json_lines_split_and_arrays_do_not() {
    let directory = tempfile::tempdir().unwrap();
    let lines: Vec<String> =
        (0..100).map(|id| format!("{{\"id\": {id}, \"t\": \"line\\n{id}\"}}")).collect();
    std::fs::write(directory.path().join("a.json"), lines.join("\n")).unwrap();
    gzip(&directory.path().join("b.json.gz"), &lines.join("\n"));
    let session = session();
    register(&session, "a", &directory.path().join("a.json")).unwrap();
    register(&session, "b", &directory.path().join("b.json.gz")).unwrap();
    for bytes in [1, 30, 500] {
        assert!(check(&session, "SELECT id, t FROM a", bytes) > 1);
        assert_eq!(check(&session, "SELECT id, t FROM b", bytes), 1);
    }
}

#[test]
fn compressed_csv_is_one_split() {
    let directory = tempfile::tempdir().unwrap();
    gzip(&directory.path().join("a.csv.gz"), &csv());
    let session = session();
    register(&session, "t", directory.path()).unwrap();
    assert_eq!(check(&session, "SELECT id, t FROM t", 10), 1);
}

#[test]
fn hive_values_of_text_files_are_constants_of_their_splits() {
    let directory = tempfile::tempdir().unwrap();
    for day in ["2026-01-01", "2026-01-02"] {
        std::fs::create_dir_all(directory.path().join(format!("day={day}"))).unwrap();
        std::fs::write(directory.path().join(format!("day={day}/a.csv")), csv()).unwrap();
    }
    let session = session();
    register(&session, "t", directory.path()).unwrap();
    assert!(check(&session, "SELECT id, day, t FROM t", 100) > 2);
    assert!(check(&session, "SELECT day FROM t WHERE day > '2026-01-01' AND id < 9", 100) > 2);
}

#[test]
fn memory_splits_are_ranges_of_rows() {
    let session = session();
    let column = |range: std::ops::Range<i64>| -> RecordBatch {
        let values: ArrayRef = Arc::new(Int64Array::from_iter_values(range));
        RecordBatch::try_from_iter([("x", values)]).unwrap()
    };
    let batches = vec![column(0..8), column(8..8), column(8..9), column(9..20)];
    session.register_batches("t", batches[0].schema(), batches).unwrap();
    let options = PlanOptions { split_rows: Some(7), explicit: true, ..PlanOptions::default() };
    let plan = plan_with(&session, "SELECT x FROM t", &options).unwrap();
    let ranges: Vec<(u64, u64)> = plan
        .splits()
        .iter()
        .map(|split| match split.unit {
            SplitUnit::Rows(range) => (range.start, range.end),
            other => panic!("{other}"),
        })
        .collect();
    assert_eq!(ranges, [(0, 7), (7, 14), (14, 20)]);
    assert_eq!(rows(&execute(&plan, &[1]).unwrap()), ["7", "8", "9", "10", "11", "12", "13"]);
    assert_eq!(check(&session, "SELECT x * 2 AS y FROM t WHERE x > 3", 1), 20);
}
