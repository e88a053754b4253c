//! A sampled scan is row-local, nothing is pushed below it, and a process with a part of the files numbers their rows
//! as one with all of them.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::datatypes::Int64Type;
use insta::assert_snapshot;
use tempfile::TempDir;
use tensorquery::session::{Session, WorkerPlan};
use tensorquery::sharding::Bernoulli;

use super::support::{
    all_splits, assert_same_rows, block_on, execute, finest, plan, plan_with, query, register, run,
    session, write_parquet,
};

const ROWS: i64 = 40;
const FILES: i64 = 12;

/// `t`: twelve files of 40 rows in row groups of ten; and `m`, one of them.
fn tables() -> (TempDir, Arc<Session>) {
    let directory = tempfile::tempdir().unwrap();
    let session = session();
    for file in 0..FILES {
        write(&directory.path().join(format!("t/{file:02}.parquet")), file * ROWS);
    }
    write(&directory.path().join("m.parquet"), 0);
    register(&session, "t", &directory.path().join("t")).unwrap();
    register(&session, "m", &directory.path().join("m.parquet")).unwrap();
    (directory, session)
}

fn write(path: &Path, first: i64) {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(first..first + ROWS));
    let k: ArrayRef = Arc::new(Int64Array::from_iter_values((0..ROWS).map(|row| row % 5)));
    let batch = RecordBatch::try_from_iter([("id", ids), ("k", k)]).unwrap();
    write_parquet(path, &batch.schema(), &[batch], 10);
}

fn ids(batches: &[RecordBatch]) -> Vec<i64> {
    batches
        .iter()
        .flat_map(|batch| batch.column(0).as_primitive::<Int64Type>().values().to_vec())
        .collect()
}

fn expected(percent: f64, seed: u64) -> Vec<i64> {
    let sample = Bernoulli::new(percent, seed);
    let kept = |id: &i64| sample.of_file((id / ROWS) as u64).keeps((id % ROWS) as u64);
    (0..FILES * ROWS).filter(kept).collect()
}

#[test]
fn filters_stay_above_the_sample_and_columns_go_below() {
    let (directory, session) = tables();
    let sql = "SELECT a.id FROM m TABLESAMPLE BERNOULLI (12.5) REPEATABLE (3) AS a WHERE a.k > 2";
    let plan = plan(&session, sql).unwrap();
    let after = datafusion::physical_plan::displayable(plan.physical().as_ref());
    let here = directory.path().display().to_string();
    let text = format!("{}--\n{}", plan.shape(), after.indent(false));
    assert_snapshot!(text.replace(here.trim_start_matches('/'), ""), @r"
    FilterExec: k@1 > 2, projection=[id@0]
      SampleExec: bernoulli 12.5%, repeatable 3
        DataSourceExec: file_groups={1 group: [[/m.parquet]]}, projection=[id, k], file_type=parquet
    --
    FilterExec: k@1 > 2, projection=[id@0]
      SampleExec: bernoulli 12.5%, repeatable 3
        SplitScanExec: splits=4, format=parquet, files=1
    ");
    assert!(plan.known_counts().unwrap().is_none());
}

#[test]
fn splits_and_the_engine_keep_the_same_rows() {
    let (_directory, session) = tables();
    for clause in
        ["(50) REPEATABLE (7)", "(3) REPEATABLE (0)", "(0) REPEATABLE (1)", "(100) REPEATABLE (1)"]
    {
        let sample = format!("t TABLESAMPLE BERNOULLI {clause}");
        assert_same_rows(&session, &format!("SELECT id FROM {sample}"));
        assert_same_rows(&session, &format!("SELECT id FROM {sample} WHERE id % 3 = 0"));
        assert_same_rows(
            &session,
            &format!(
                "SELECT id FROM {sample} UNION ALL SELECT id FROM m TABLESAMPLE BERNOULLI {clause}"
            ),
        );
        assert_same_rows(
            &session,
            &format!(
                "SELECT a.id, m.k FROM {sample} AS a LEFT JOIN m TABLESAMPLE BERNOULLI {clause} ON a.id = m.id"
            ),
        );
    }
    let sql = "SELECT id FROM t TABLESAMPLE BERNOULLI (50) REPEATABLE (7)";
    assert_eq!(ids(&run(&query(&session, sql).unwrap())), expected(50.0, 7));
    let counted = block_on(query(&session, sql).unwrap().count()).unwrap();
    assert_eq!(counted as usize, expected(50.0, 7).len());
    let first = block_on(query(&session, sql).unwrap().head(5)).unwrap();
    assert_eq!(ids(&first), expected(50.0, 7)[..5]);
}

#[test]
fn a_part_of_the_files_keeps_their_places() {
    let (_directory, session) = tables();
    let sql = "SELECT id FROM t TABLESAMPLE BERNOULLI (50) REPEATABLE (7)";
    let plan = plan_with(&session, sql, &finest()).unwrap();
    let wanted = expected(50.0, 7);
    // The last splits of all: of the files between them and the first ones there is nothing in the recipe.
    let splits = all_splits(&plan);
    let last = &splits[splits.len() - 6..];
    let recipe = WorkerPlan::of(&plan, Some(last)).unwrap();
    let opened = block_on(recipe.open()).unwrap();
    let found = ids(&execute(&opened, last).unwrap());
    let start = (FILES * ROWS) - 60;
    assert_eq!(found, wanted.into_iter().filter(|id| *id >= start).collect::<Vec<_>>());
    // And a part of the part.
    let again = WorkerPlan::of(&opened, Some(&last[4..])).unwrap();
    let opened = block_on(again.open()).unwrap();
    let found = ids(&execute(&opened, &last[4..]).unwrap());
    let wanted = expected(50.0, 7);
    assert_eq!(found, wanted.into_iter().filter(|id| *id >= start + 40).collect::<Vec<_>>());
}
