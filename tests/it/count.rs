//! Counts of output rows per split are exact: whatever metadata, statistics or the plan without columns
//! say, executing the split gives as many rows.

use std::cell::Cell;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use proptest::prelude::*;
use tensorquery::session::{Plan, PlanOptions, Session, SplitCount, WorkerPlan};
use tensorquery::{Error, ErrorKind, Result};

use super::pipeline::{QUERIES, register_all, tables};
use super::splits::pruning::{self, DIRECTORIES, PREDICATES};
use super::support::{
    all_splits, block_on, execute, finest, plan_with, register, session, tries, write_parquet,
};

/// Counts of all splits, with two threads.
fn count(plan: &Arc<Plan>) -> Result<Vec<SplitCount>> {
    let ids = all_splits(plan);
    block_on(async { plan.counter().await?.count(&ids, 2, |_, _| Ok(())).await })
}

/// Asserts that counts equal the rows that each split yields, and returns the counts.
#[track_caller]
fn assert_counts(session: &Arc<Session>, sql: &str, options: &PlanOptions) -> Vec<SplitCount> {
    let plan = Arc::new(plan_with(session, sql, options).unwrap());
    let rows = |id| execute(&plan, &[id]).unwrap().iter().map(|b| b.num_rows() as u64).sum();
    let wanted: Vec<u64> = all_splits(&plan).into_iter().map(rows).collect();
    let found = count(&plan).unwrap();
    let counts: Vec<u64> = found.iter().map(|count| count.rows).collect();
    assert_eq!(counts, wanted, "{sql}\n{}", plan.shape());
    if let Some(known) = plan.known_counts().unwrap() {
        assert_eq!(known, wanted, "{sql}\n{}", plan.shape());
        assert!(found.iter().all(|count| !count.read), "{sql}: metadata says all");
    }
    found
}

fn split_rows(rows: u64) -> PlanOptions {
    PlanOptions { split_rows: Some(rows), explicit: true, ..PlanOptions::default() }
}

proptest! {
    #![proptest_config(tries(8))]

    #[test]
    fn any_query_is_counted_exactly(tables in tables(), constant in -2_i32..8, rows in 1_u64..40) {
        let (_directory, session) = register_all(&tables);
        let options = split_rows(rows);
        for template in QUERIES {
            let sql = template.replace("{c}", &constant.to_string());
            assert_counts(&session, &sql, &options);
        }
    }

    /// Every predicate of the pruning tests, over files with hive values, missing columns, nulls and
    /// NaN; sorted, so that statistics prove something.
    #[test]
    fn any_predicate_is_counted_exactly(
        mut files in pruning::values(),
        constant in -6_i32..26,
        sort in any::<bool>(),
        nulls in any::<bool>(),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let session = session();
        for (number, (values, group, has_w)) in files.iter_mut().enumerate() {
            if sort {
                values.sort_by_key(|value| value.0);
            }
            if !nulls {
                values.retain(|value| value.0.is_some() && value.2.is_some());
            }
            let file = pruning::batch(values, 0, None, *has_w || number == 0);
            let floats = values.iter().map(|value| value.1.map_or(f64::NAN, f64::from));
            let mut columns = file.columns().to_vec();
            columns[2] = Arc::new(Float64Array::from_iter_values(floats));
            let file = RecordBatch::try_new(file.schema(), columns).unwrap();
            let name = DIRECTORIES[number % DIRECTORIES.len()].0;
            let path = directory.path().join(format!("{name}/{number}.parquet"));
            write_parquet(&path, &file.schema(), &[file], *group);
        }
        register(&session, "t", directory.path()).unwrap();
        for predicate in PREDICATES {
            let predicate = predicate.replace("{c}", &format!("({constant})"))
                .replace(&format!("'({constant})'"), &format!("'{constant}'"));
            for options in [finest(), split_rows(30)] {
                assert_counts(&session, &format!("SELECT s, st FROM t WHERE {predicate}"), &options);
            }
        }
    }
}

const GROUPS: i64 = 10;
const GROUP: i64 = 100;

/// `id` ascends; `v` is `id`, with a null in the last row group; `f` is NaN once per row group; `s` is
/// text in the order of `id`.
fn ascending() -> (tempfile::TempDir, Arc<Session>) {
    let ids = || 0..GROUPS * GROUP;
    let float = |id| if id % GROUP == 7 { f64::NAN } else { id as f64 };
    let columns: [(&str, ArrayRef); 4] = [
        ("id", Arc::new(Int64Array::from_iter_values(ids()))),
        ("v", Arc::new(Int64Array::from_iter(ids().map(|id| (id != 950).then_some(id))))),
        ("f", Arc::new(Float64Array::from_iter_values(ids().map(float)))),
        ("s", Arc::new(StringArray::from_iter_values(ids().map(|id| format!("{id:06}"))))),
    ];
    let batch =
        RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| (name, array, true)))
            .unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.parquet");
    write_parquet(&path, &batch.schema(), &[batch], GROUP as usize);
    let session = session();
    register(&session, "t", &path).unwrap();
    (directory, session)
}

/// Splits of the ten row groups that were read, of those that are left.
#[track_caller]
fn read(session: &Arc<Session>, sql: &str) -> (usize, usize) {
    let counts = assert_counts(session, sql, &split_rows(1));
    (counts.iter().filter(|count| count.read).count(), counts.len())
}

#[test]
fn row_groups_that_match_fully_are_not_read() {
    let (_directory, session) = ascending();
    for (condition, expected) in [
        ("id >= 250", (1, 8)),
        ("id < 250", (1, 3)),
        ("250 <= id", (1, 8)),
        ("id >= 200", (0, 8)),
        ("id BETWEEN 150 AND 649", (2, 6)),
        ("NOT (id < 250)", (1, 8)),
        ("id <> 250", (1, 10)),
        ("id NOT IN (250, 251, 930)", (2, 10)),
        ("id IS DISTINCT FROM 250", (1, 10)),
        ("id < 250 OR id >= 650", (2, 7)),
        ("s >= '000250'", (1, 8)),
        ("id >= 250 AND s < '000650'", (2, 5)),
        ("CAST(id AS DOUBLE) >= 249.5", (1, 8)),
        ("id IS NOT NULL", (0, 10)),
        // Nulls of the last row group.
        ("v >= 0", (1, 10)),
        ("v IS NOT NULL", (1, 10)),
        // The other side of OR holds whatever they are.
        ("v < 0 OR id >= 0", (0, 10)),
        // Never true, or not provable: read.
        ("id NOT IN (5, NULL)", (10, 10)),
        ("id % 2 = 0", (10, 10)),
        ("TRY_CAST(s AS BIGINT) >= 0", (10, 10)),
    ] {
        let sql = format!("SELECT id, s FROM t WHERE {condition}");
        // Pruned row groups are no splits.
        assert_eq!(read(&session, &sql), expected, "{sql}");
    }
}

#[test]
fn nan_is_in_no_minimum_or_maximum() {
    let (_directory, session) = ascending();
    for condition in ["f < 1000", "f <= 999", "f < 1000 AND id >= 0", "NOT (f >= 1000)"] {
        let sql = format!("SELECT id FROM t WHERE {condition}");
        assert_eq!(read(&session, &sql), (10, 10), "{sql}");
    }
}

#[test]
fn filters_above_projections_and_unions_belong_to_the_proof() {
    let (_directory, session) = ascending();
    for (sql, expected) in [
        ("SELECT x FROM (SELECT s AS x, id + 0 AS y, id AS z FROM t) WHERE z >= 250", (1, 8)),
        ("SELECT x FROM (SELECT s AS x, id % 7 AS y FROM t WHERE id >= 250) WHERE y = 3", (8, 8)),
        ("SELECT id FROM t WHERE id >= 250 UNION ALL SELECT v FROM t", (1, 18)),
        ("SELECT x FROM (SELECT id AS x FROM t UNION ALL SELECT v FROM t) WHERE x >= 250", (3, 16)),
        ("SELECT id, 1 / (id + 1) AS q FROM t", (0, 10)),
        // Two conditions; statistics prove one.
        ("SELECT id FROM t WHERE id >= 0 AND length(s) = 6", (10, 10)),
        // A join may repeat or drop rows.
        ("SELECT a.id FROM t AS a JOIN t AS b ON a.id = b.v WHERE a.id >= 0", (10, 10)),
    ] {
        assert_eq!(read(&session, sql), expected, "{sql}");
    }
}

#[test]
fn metadata_says_the_rows_of_plain_queries() {
    let (_directory, session) = ascending();
    let known = |sql| plan_with(&session, sql, &split_rows(200)).unwrap().known_counts().unwrap();
    let halves = vec![200; 5];
    assert_eq!(known("SELECT s FROM t"), Some(halves.clone()));
    assert_eq!(known("SELECT upper(s) AS s FROM (SELECT s, id FROM t)"), Some(halves.clone()));
    assert_eq!(known("SELECT id FROM t UNION ALL SELECT v FROM t"), Some(vec![200; 10]));
    assert_eq!(known("SELECT id FROM t WHERE id > 2000"), Some(vec![]));
    assert_eq!(known("SELECT id FROM t WHERE id >= 0"), None);
    assert_eq!(known("SELECT id FROM t WHERE id % 2 = 0"), None);
    assert_eq!(known("SELECT a.id FROM t AS a LEFT JOIN t AS b ON a.id = b.id"), None);
    assert_eq!(known("SELECT unnest([id, v]) AS x FROM t"), None);
}

#[test]
fn a_worker_counts_the_same() {
    let (_directory, session) = ascending();
    let plan = plan_with(&session, "SELECT s FROM t WHERE v % 3 = 1", &split_rows(1)).unwrap();
    let of_all: Vec<_> = count(&Arc::new(plan)).unwrap();
    let plan = plan_with(&session, "SELECT s FROM t WHERE v % 3 = 1", &split_rows(1)).unwrap();
    let recipe = WorkerPlan::of(&plan, None).unwrap();
    let worker = Arc::new(block_on(recipe.open()).unwrap());
    assert_eq!(count(&worker).unwrap(), of_all);
    // Counts are of all splits, so who has some of them does not count.
    let recipe = WorkerPlan::of(&plan, Some(&[1, 4, 9])).unwrap();
    let part = Arc::new(block_on(recipe.open()).unwrap());
    assert!(count(&part).unwrap_err().to_string().contains("3 of"), "a part was counted");
}

#[test]
fn progress_and_errors() {
    let (_directory, session) = ascending();
    let sql = "SELECT id FROM t WHERE id >= 250 AND s LIKE '%5'";
    let plan = Arc::new(plan_with(&session, sql, &split_rows(1)).unwrap());
    let counter = block_on(plan.counter()).unwrap();
    let rows = Cell::new(0);
    let report = |_, count: SplitCount| {
        rows.set(rows.get() + count.rows);
        Ok(())
    };
    let counts = block_on(counter.count(&[3, 3, 7], 1, report)).unwrap();
    assert_eq!(counts.iter().map(|count| count.rows).sum::<u64>(), rows.get());
    assert_eq!(counts, [SplitCount { rows: 10, read: true }; 3]);
    assert!(block_on(counter.count(&[], 1, |_, _| Ok(()))).unwrap().is_empty());

    let error = block_on(counter.count(&[8], 1, |_, _| Ok(()))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("split 8 does not exist; the plan has 8"), "{error}");
    let stop = |_, _| Err(Error::data("enough"));
    let error = block_on(counter.count(&[0, 1], 1, stop)).unwrap_err();
    assert!(error.to_string().contains("enough"), "{error}");
}
