//! Tables in memory and names: what a worker's copy of a table decides must not depend on how its
//! memory is laid out.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use tensorquery::ErrorKind;
use tensorquery::session::{Session, WorkerPlan};

use super::super::support::{
    all_splits, assert_same_rows, block_on, execute, finest, plan_with, query, register, rows, run,
    session, write_parquet,
};

fn numbers(name: &str, values: impl IntoIterator<Item = i64>) -> RecordBatch {
    let column: ArrayRef = Arc::new(Int64Array::from_iter_values(values));
    RecordBatch::try_from_iter([(name, column)]).unwrap()
}

/// Slices of one large batch: each seems to own all of its memory, and its copy owns a tenth.
fn sliced(session: &Session, name: &str, rows: usize, slices: usize) {
    let whole = numbers("x", 0..rows as i64);
    let each = rows / slices;
    let batches: Vec<RecordBatch> = (0..slices).map(|at| whole.slice(at * each, each)).collect();
    session.register_batches(name, whole.schema(), batches).unwrap();
}

#[test]
fn joins_choose_the_same_sides_in_a_worker() {
    let session = session();
    sliced(&session, "many", 1000, 10);
    session
        .register_batches("more", numbers("x", 0..1).schema(), vec![numbers("x", 500..2500)])
        .unwrap();
    for sql in [
        "SELECT many.x FROM many JOIN more ON many.x = more.x",
        "SELECT many.x FROM more JOIN many ON many.x = more.x",
        "SELECT many.x FROM more LEFT JOIN many ON many.x = more.x",
        "SELECT many.x, more.x AS y FROM many JOIN more ON many.x + 1999 = more.x + 0 OR many.x = 3",
    ] {
        assert_same_rows(&session, sql);
        let plan = plan_with(&session, sql, &finest()).unwrap();
        let ids = all_splits(&plan);
        let opened = block_on(WorkerPlan::of(&plan, Some(&ids)).unwrap().open()).unwrap();
        let (mine, theirs) = (execute(&plan, &ids).unwrap(), execute(&opened, &ids).unwrap());
        assert_eq!(rows(&theirs), rows(&mine), "{sql}");
    }
}

#[test]
fn splits_depend_on_the_content_alone() {
    let (sparse, dense) = (session(), session());
    sliced(&sparse, "t", 1000, 10);
    let batches = (0..10).map(|at| numbers("x", at * 100..(at + 1) * 100)).collect();
    dense.register_batches("t", numbers("x", []).schema(), batches).unwrap();
    let plans = [&sparse, &dense].map(|session| {
        let options = tensorquery::session::PlanOptions {
            split_bytes: 500,
            split_rows: None,
            explicit: true,
            without: None,
        };
        plan_with(session, "SELECT x FROM t", &options).unwrap()
    });
    assert_eq!(plans[0].fingerprint(), plans[1].fingerprint());
    assert_eq!(plans[0].splits(), plans[1].splits());
    assert!(plans[0].splits().len() > 10);
}

#[test]
fn an_empty_table_in_memory_has_no_rows() {
    let session = session();
    session.register_batches("none", numbers("x", []).schema(), Vec::new()).unwrap();
    session.register_batches("zero", numbers("x", []).schema(), vec![numbers("x", [])]).unwrap();
    sliced(&session, "t", 100, 1);
    for sql in [
        "SELECT x FROM none",
        "SELECT x FROM zero",
        "SELECT t.x, zero.x AS y FROM t LEFT JOIN zero ON t.x = zero.x",
        "SELECT t.x FROM t JOIN none ON t.x = none.x",
        "SELECT x FROM t UNION ALL SELECT x FROM none UNION ALL SELECT x FROM t",
    ] {
        assert_same_rows(&session, sql);
    }
    assert_eq!(rows(&run(&query(&session, "SELECT count(*) AS n FROM none").unwrap())), ["0"]);
    assert_eq!(rows(&run(&query(&session, "SELECT count(*) AS n FROM t").unwrap())), ["100"]);
}

#[test]
fn a_name_that_changed_below_a_view_is_refused() {
    let session = session();
    let register = |values: std::ops::Range<i64>| {
        let batch = numbers("x", values);
        session.register_batches("t", batch.schema(), vec![batch]).unwrap();
    };
    register(0..3);
    block_on(session.register_view("v", "SELECT x FROM t")).unwrap();
    let sql = "SELECT v.x, t.x AS y FROM v JOIN t ON v.x = t.x";
    register(0..3);
    assert_eq!(assert_same_rows(&session, sql).len(), 3);
    register(1..9);
    let error = query(&session, sql).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Query);
    assert!(error.message().contains("\"t\" means two tables"), "{error}");
    // The view alone goes on with what it was made of, also in a worker.
    let plan = plan_with(&session, "SELECT x FROM v", &finest()).unwrap();
    let ids = all_splits(&plan);
    let opened = block_on(WorkerPlan::of(&plan, Some(&ids)).unwrap().open()).unwrap();
    assert_eq!(rows(&execute(&opened, &ids).unwrap()), ["0", "1", "2"]);
}

#[test]
fn union_all_comes_in_its_order() {
    let session = session();
    let directory = tempfile::tempdir().unwrap();
    let batch = numbers("x", 0..2000);
    write_parquet(&directory.path().join("a.parquet"), &batch.schema(), &[batch], 100);
    register(&session, "a", &directory.path().join("a.parquet")).unwrap();
    let one = numbers("x", [-1]);
    session.register_batches("b", one.schema(), vec![one]).unwrap();
    let sql = "SELECT x FROM a UNION ALL SELECT x FROM b UNION ALL SELECT x FROM a";
    let wanted: Vec<String> =
        (0..2000).chain([-1]).chain(0..2000).map(|x: i64| x.to_string()).collect();
    for _ in 0..5 {
        assert_eq!(rows(&run(&query(&session, sql).unwrap())), wanted);
    }
}
