//! A stage holds exactly the query's rows: each value and null of any type, in the order of the splits, at random
//! and in a permuted order; and it says so where it does not.

mod concurrent;
mod types;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, StringArray, UInt64Array};
use arrow::compute::{concat_batches, take_record_batch};
use arrow::datatypes::Int64Type;
use futures::TryStreamExt;
use proptest::prelude::*;
use tempfile::TempDir;
use tensorquery::row_store::{Progress, Stage};
use tensorquery::session::{Plan, Session};
use tensorquery::sharding::{Permutation, Rng};
use tensorquery::{ErrorKind, Result};

use super::support::{
    all_splits, block_on, execute, finest, plan_with, register, rows, session, write_parquet,
};

/// `id` counts from `start`; `s` is a text whose length varies, or null.
fn batch(start: i64, count: i64) -> RecordBatch {
    let ids = start..start + count;
    let text = |id: i64| (id % 7 != 3).then(|| "text ".repeat(id as usize % 9));
    let columns: [(&str, ArrayRef); 2] = [
        ("id", Arc::new(Int64Array::from_iter_values(ids.clone()))),
        ("s", Arc::new(ids.map(text).collect::<StringArray>())),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| (name, array, true)))
        .unwrap()
}

/// A table `t` of files with so many rows each, in row groups of 100.
fn files(folder: &Path, sizes: &[i64]) -> Arc<Session> {
    let session = session();
    let mut start = 0;
    for (number, &size) in sizes.iter().enumerate() {
        let batch = batch(start, size);
        let path = folder.join(format!("t/{number:03}.parquet"));
        write_parquet(&path, &batch.schema(), &[batch], 100);
        start += size;
    }
    register(&session, "t", &folder.join("t")).unwrap();
    session
}

fn write(plan: &Plan, dir: &Path, threads: usize) -> Result<Stage> {
    block_on(Stage::write(plan, &all_splits(plan), dir, threads, &Arc::default()))
}

fn ensure(plan: &Plan, root: &Path) -> Result<Stage> {
    block_on(Stage::ensure(plan, root, 2, &Arc::default()))
}

/// All rows of all splits, as one batch.
fn collected(plan: &Plan) -> RecordBatch {
    concat_batches(&plan.schema(), &execute(plan, &all_splits(plan)).unwrap()).unwrap()
}

fn ids(batch: &RecordBatch) -> Vec<i64> {
    batch.column(0).as_primitive::<Int64Type>().values().to_vec()
}

/// Asserts that the stage has the plan's schema and rows, read in order and at random.
fn assert_holds(stage: &Stage, plan: &Plan) {
    let whole = collected(plan);
    assert_eq!(stage.schema(), &plan.schema());
    assert_eq!(stage.num_rows(), whole.num_rows() as u64);
    let all: Vec<u64> = (0..stage.num_rows()).collect();
    let mut rng = Rng::new(7);
    let random: Vec<u64> = match stage.num_rows() {
        0 => Vec::new(),
        count => (0..500).map(|_| rng.below(count)).collect(),
    };
    for wanted in [all, random] {
        let expected = take_record_batch(&whole, &UInt64Array::from(wanted.clone())).unwrap();
        let found = stage.gather(&wanted).unwrap();
        assert_eq!(found.schema(), plan.schema());
        for (index, field) in plan.schema().fields().iter().enumerate() {
            let text = |batch: &RecordBatch| rows(&[batch.project(&[index]).unwrap()]);
            assert_eq!(text(&found), text(&expected), "column {}", field.name());
        }
    }
}

#[test]
fn the_order_of_rows_is_that_of_the_splits_for_any_number_of_threads() {
    let folder = TempDir::new().unwrap();
    let session = files(folder.path(), &[1000, 3, 0, 250, 777, 1]);
    for sql in
        ["SELECT * FROM t", "SELECT id FROM t WHERE id % 10 = 1", "SELECT id FROM t WHERE id < 0"]
    {
        let plan = plan_with(&session, sql, &finest()).unwrap();
        for threads in [1, 2, 5] {
            let dir = folder.path().join(format!("stage-{threads}"));
            let stage = write(&plan, &dir, threads).unwrap();
            assert_holds(&stage, &plan);
            assert_holds(&Stage::open(&dir, plan.fingerprint()).unwrap(), &plan);
            stage.remove().unwrap();
            assert!(!dir.exists());
        }
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "only the table is left");
}

#[test]
fn large_groups_of_splits_are_written_by_several_threads_at_once() {
    let folder = TempDir::new().unwrap();
    let wide: Vec<String> = (0..6000).map(|id| format!("{id} ").repeat(1500)).collect();
    let columns: [(&str, ArrayRef); 2] = [
        ("id", Arc::new(Int64Array::from_iter_values(0..6000))),
        ("s", Arc::new(wide.iter().map(Some).collect::<StringArray>())),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let session = session();
    session.register_batches("t", batch.schema(), vec![batch]).unwrap();
    let plan = plan_with(&session, "SELECT * FROM t", &finest()).unwrap();
    let progress = Arc::new(Progress::default());
    let dir = folder.path().join("stage");
    let stage = block_on(Stage::write(&plan, &all_splits(&plan), &dir, 3, &progress)).unwrap();
    let files = (0..3).filter(|file| dir.join(format!("rows-{file}.arrow")).exists()).count();
    assert!(files > 1, "{files} file");
    let all: Vec<u64> = (0..6000).collect();
    assert_eq!(ids(&stage.gather(&all).unwrap()), (0..6000).collect::<Vec<_>>());
    let done = progress.report();
    assert_eq!((done.rows, done.splits_done), (6000, done.splits));
    assert_eq!((done.bytes, done.splits), (stage.bytes(), plan.splits().len()));
}

#[test]
fn no_rows_have_the_schema_all_the_same() {
    let folder = TempDir::new().unwrap();
    let session = files(folder.path(), &[250]);
    let plan = plan_with(&session, "SELECT id FROM t", &finest()).unwrap();
    let stage = write(&plan, &folder.path().join("stage"), 1).unwrap();
    let empty = stage.gather(&[]).unwrap();
    assert_eq!((empty.num_rows(), empty.schema()), (0, plan.schema()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn a_range_of_a_permutation_is_read_in_its_order(
        sizes in prop::collection::vec(0_i64..400, 1..5),
        key: u64,
        cut: prop::sample::Index,
        batch_rows in 1_usize..300,
        in_flight in 1_usize..4,
    ) {
        let folder = TempDir::new().unwrap();
        let session = files(folder.path(), &sizes);
        let plan = plan_with(&session, "SELECT id, s FROM t", &finest()).unwrap();
        let stage = Arc::new(write(&plan, &folder.path().join("stage"), 2).unwrap());
        let total = stage.num_rows();
        let permutation = Permutation::new(key, total);
        let read = |range| -> Vec<RecordBatch> {
            let rows = stage.read(permutation.clone().into(), range, batch_rows, in_flight).unwrap();
            block_on(rows.try_collect()).unwrap()
        };
        let at = cut.index(total as usize + 1) as u64;
        let (before, after) = (read(0..at), read(at..total));
        prop_assert!(before.iter().chain(&after).all(|batch| batch.num_rows() <= batch_rows));
        let found: Vec<i64> = before.iter().chain(&after).flat_map(ids).collect();
        let expected: Vec<i64> = (0..total).map(|at| permutation.at(at) as i64).collect();
        prop_assert_eq!(found, expected);
    }
}

#[test]
fn what_does_not_exist_cannot_be_read() {
    let folder = TempDir::new().unwrap();
    let session = files(folder.path(), &[10]);
    let plan = plan_with(&session, "SELECT * FROM t", &finest()).unwrap();
    let dir = folder.path().join("stage");
    let stage = Arc::new(write(&plan, &dir, 1).unwrap());
    let message = |error: tensorquery::Error, kind| {
        assert_eq!(error.kind(), kind, "{error}");
        error.to_string()
    };
    let error = message(stage.gather(&[3, 10]).unwrap_err(), ErrorKind::Config);
    assert!(error.contains("row 10") && error.contains("0..10"), "{error}");
    let read = |len, range, rows| {
        message(
            stage.read(Permutation::new(1, len).into(), range, rows, 1).map(drop).unwrap_err(),
            ErrorKind::Config,
        )
    };
    assert!(read(11, 0..10, 5).contains("an order of 11 rows does not fit a stage of 10"));
    assert!(read(10, 0..11, 5).contains("0..11 must lie in 0..10"));
    assert!(read(10, 0..10, 0).contains("batch_rows 0"));
    let error = message(Stage::open(&dir, "other").map(drop).unwrap_err(), ErrorKind::Storage);
    assert!(error.contains("another query") && error.contains("other"), "{error}");
    let error = Stage::open(&folder.path().join("no"), "other").map(drop).unwrap_err();
    assert!(message(error, ErrorKind::Storage).contains("there is no stage"));
    let error = message(write(&plan, &dir, 1).map(drop).unwrap_err(), ErrorKind::Storage);
    assert!(error.contains("removed first"), "{error}");
    let error = message(write(&plan, &dir, 0).map(drop).unwrap_err(), ErrorKind::Config);
    assert!(error.contains("threads 0"), "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing half-written is left");
}

#[test]
fn a_stage_that_was_changed_is_not_opened() {
    let folder = TempDir::new().unwrap();
    let session = files(folder.path(), &[500]);
    let plan = plan_with(&session, "SELECT * FROM t", &finest()).unwrap();
    let open = |dir: &Path| {
        let error = Stage::open(dir, plan.fingerprint()).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Storage, "{error}");
        error.to_string()
    };
    let changed = |name: &str, change: &dyn Fn(&Path)| {
        let dir = folder.path().join("stage");
        let stage = write(&plan, &dir, 1).unwrap();
        // Over the file that is mapped, not into it.
        let path = dir.join(name);
        let copy = dir.join("copy");
        fs::copy(&path, &copy).unwrap();
        let mut permissions = fs::metadata(&copy).unwrap().permissions();
        #[expect(clippy::permissions_set_readonly_false, reason = "a file of this test")]
        permissions.set_readonly(false);
        fs::set_permissions(&copy, permissions).unwrap();
        change(&copy);
        fs::rename(&copy, &path).unwrap();
        let message = open(&dir);
        assert!(
            message.contains("damaged") && message.contains("delete the directory"),
            "{message}"
        );
        assert!(message.contains(dir.to_str().unwrap()), "{message}");
        // The open stage still has the file as it was.
        assert_holds(&stage, &plan);
        stage.remove().unwrap();
        message
    };
    let cut = |path: &Path| {
        let file = fs::File::options().write(true).open(path).unwrap();
        let length = file.metadata().unwrap().len();
        file.set_len(length - 1).unwrap();
    };
    let flip = |path: &Path| {
        let mut bytes = fs::read(path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0x40;
        fs::write(path, bytes).unwrap();
    };
    assert!(changed("rows-0.arrow", &cut).contains("bytes, but"));
    assert!(changed("rows-0.arrow", &flip).contains("was changed"));
    assert!(changed("schema.arrow", &flip).contains("schema.arrow"));
    assert!(changed("manifest.json", &cut).contains("manifest.json"));
    let old = |path: &Path| {
        let text = fs::read_to_string(path).unwrap();
        fs::write(path, text.replacen("\"version\":2", "\"version\":99", 1)).unwrap();
    };
    assert!(changed("manifest.json", &old).contains("99"));
    let more = |path: &Path| {
        let text = fs::read_to_string(path).unwrap();
        fs::write(path, text.replacen("\"block\":0", "\"block\":9", 1)).unwrap();
    };
    assert!(changed("manifest.json", &more).contains("not as it was written"));
}
