//! Where plans are cut, and stages that several processes share.

use std::sync::Arc;
use std::time::Duration;

use arrow::array::{Array, Int64Array, RecordBatch};
use futures::TryStreamExt;
use tempfile::TempDir;
use tensorquery::ErrorKind;
use tensorquery::materialize::{StagePlace, StageProgress, clear_stages, list_stages};
use tensorquery::session::{
    Building, PlanOptions, Query, Session, SessionOptions, StageEngine, StageMode,
};
use tensorquery::storage::StoreAccess;

use super::support::{all_splits, block_on, execute, query, register, sorted, write_parquet};

/// `a(k, v)` of 300 rows, `b(k, w)` of 40.
fn tables(options: SessionOptions) -> (TempDir, Arc<Session>) {
    let directory = TempDir::new().unwrap();
    let session = Session::try_new(options).unwrap();
    for (name, column, rows) in [("a", "v", 300), ("b", "w", 40)] {
        let keys: Int64Array = (0..rows).map(|row| row % 37).collect();
        let values: Int64Array = (0..rows).map(|row| (row % 11 != 0).then_some(row)).collect();
        let batch = RecordBatch::try_from_iter_with_nullable([
            ("k", Arc::new(keys) as Arc<dyn Array>, false),
            (column, Arc::new(values), true),
        ])
        .unwrap();
        let path = directory.path().join(format!("{name}.parquet"));
        write_parquet(&path, &batch.schema(), &[batch], 50);
        register(&session, name, &path).unwrap();
    }
    (directory, session)
}

/// The reasons of the cuts of a query.
fn cuts(sql: &str) -> Vec<String> {
    let (_directory, session) = tables(SessionOptions::default());
    let cuts = block_on(query(&session, sql).unwrap().cuts(StageMode::Auto)).unwrap();
    cuts.into_iter().map(|cut| format!("{}: {}", cut.node, cut.why)).collect()
}

#[test]
fn row_local_queries_are_not_cut() {
    for sql in [
        "SELECT v + 1 AS v FROM a WHERE k > 3",
        "SELECT * FROM a UNION ALL SELECT * FROM b",
        "SELECT a.v, b.w FROM a LEFT JOIN b ON a.k = b.k",
        "SELECT a.v FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.k = a.k)",
        "SELECT a.v - m.m AS d FROM a JOIN (SELECT k, max(w) AS m FROM b GROUP BY k) m ON a.k = m.k",
        "SELECT v FROM a WHERE k IN (SELECT k FROM b ORDER BY w LIMIT 3)",
    ] {
        assert_eq!(cuts(sql), Vec::<String>::new(), "{sql}");
        // What was planned for it serves one plan, which is the plan of a query that was never asked.
        let (_directory, session) = tables(SessionOptions::default());
        let plan = |query: &Query| block_on(query.plan_splits(&PlanOptions::default())).unwrap();
        let never = plan(&query(&session, sql).unwrap());
        let asked = query(&session, sql).unwrap();
        assert!(block_on(asked.cuts(StageMode::Auto)).unwrap().is_empty());
        for again in [plan(&asked), plan(&asked), plan(&asked.clone())] {
            assert_eq!((again.shape(), again.fingerprint()), (never.shape(), never.fingerprint()));
            let rows = |plan| sorted(&execute(plan, &all_splits(plan)).unwrap());
            assert_eq!(rows(&again), rows(&never), "{sql}");
        }
    }
}

#[test]
fn cuts_are_as_low_as_they_can_be() {
    let aggregate = "an aggregate (GROUP BY, DISTINCT, count, sum, …) is not row-local";
    for (sql, expected) in [
        ("SELECT k, count(*) AS n FROM a GROUP BY k", vec![format!("0: {aggregate}")]),
        // A filter and a projection above belong to it.
        (
            "SELECT n + 1 AS n FROM (SELECT k, count(*) AS n FROM a GROUP BY k) WHERE n > 8",
            vec![format!("0: {aggregate}")],
        ),
        // One input of a union.
        (
            "SELECT k, v FROM a UNION ALL SELECT k, count(*) FROM b GROUP BY k",
            vec![format!("2: {aggregate}")],
        ),
        // The side of a join that drives, but not the join.
        (
            "SELECT x.n, b.w FROM (SELECT k, count(*) AS n FROM a GROUP BY k) x LEFT JOIN b ON x.k = b.k",
            vec![format!("2: {aggregate}")],
        ),
        (
            "SELECT x.n, y.m FROM (SELECT k, count(*) AS n FROM a GROUP BY k) x \
             JOIN (SELECT k, max(w) AS m FROM b GROUP BY k) y ON x.k = y.k",
            vec!["0: neither side of a join is row-local".to_owned()],
        ),
        ("SELECT v FROM a ORDER BY v", vec!["0: ORDER BY is not row-local".to_owned()]),
        ("SELECT v FROM a LIMIT 5", vec!["0: LIMIT or OFFSET is not row-local".to_owned()]),
        (
            "SELECT v, random() AS r FROM a",
            vec!["0: random() gives another value on every call: it is evaluated once".to_owned()],
        ),
    ] {
        assert_eq!(cuts(sql), expected, "{sql}");
    }
}

#[test]
fn a_join_of_two_large_sides_is_cut_whole_and_a_large_aggregate_beside_one_alone() {
    // An eighth of it is less than either file.
    let options = SessionOptions { memory_limit: Some(2048), ..SessionOptions::default() };
    let (_directory, session) = tables(options);
    let why = |sql: &str| {
        let cuts = block_on(query(&session, sql).unwrap().cuts(StageMode::Auto)).unwrap();
        cuts.into_iter().map(|cut| (cut.node, cut.why)).collect::<Vec<_>>()
    };
    let [(0, join)] = &why("SELECT a.v, b.w FROM a JOIN b ON a.k = b.k")[..] else { panic!() };
    assert!(join.starts_with("both sides of a join are large"), "{join}");
    let sql =
        "SELECT a.v, m.m FROM a JOIN (SELECT k, max(w) AS m FROM b GROUP BY k) m ON a.k = m.k";
    let [(node, aggregate)] = &why(sql)[..] else { panic!() };
    assert!(*node > 0);
    assert!(aggregate.contains("of one side of a join would be computed by each process"));
}

async fn place_in(directory: &TempDir) -> StagePlace {
    let path = directory.path().join("stages");
    StagePlace::open(path.to_str().unwrap(), StoreAccess::default()).await.unwrap()
}

async fn staged(query: &Query, place: &StagePlace) -> Query {
    let progress = Arc::new(StageProgress::default());
    let (engine, timeout) = (StageEngine::Local, Duration::from_secs(60));
    let how = Building { place, engine: &engine, timeout, progress: &progress };
    query.staged(StageMode::Auto, how).await.unwrap()
}

#[test]
fn staged_queries_have_the_rows_and_the_columns_of_the_query() {
    let (directory, session) = tables(SessionOptions::default());
    for sql in [
        "SELECT k, count(*) AS n, sum(v) AS s FROM a GROUP BY k",
        "SELECT k, v FROM a UNION ALL SELECT k, count(*) FROM b GROUP BY k",
        "SELECT x.n, b.w FROM (SELECT k, count(*) AS n FROM a GROUP BY k) x LEFT JOIN b ON x.k = b.k",
        "SELECT a.k, row_number() OVER (PARTITION BY a.k ORDER BY v, w) AS r, w FROM a JOIN b ON a.k = b.k",
    ] {
        let query = query(&session, sql).unwrap();
        let (rows, plan) = block_on(async {
            let rows: Vec<RecordBatch> = query.stream().await.unwrap().try_collect().await.unwrap();
            let staged = staged(&query, &place_in(&directory).await).await;
            assert_eq!(staged.schema(), query.schema(), "{sql}");
            assert!(!staged.parts().is_empty());
            (rows, staged.plan_splits(&PlanOptions::default()).await.unwrap())
        });
        let got = execute(&plan, &all_splits(&plan)).unwrap();
        assert_eq!(sorted(&got), sorted(&rows), "{sql}");
    }
}

#[test]
fn fingerprints_go_by_content_and_not_by_place() {
    let (directory, session) = tables(SessionOptions::default());
    let query = query(&session, "SELECT k, count(*) AS n FROM a GROUP BY k").unwrap();
    let fingerprint = |directory: &TempDir| {
        block_on(async {
            let staged = staged(&query, &place_in(directory).await).await;
            staged.plan_splits(&PlanOptions::default()).await.unwrap().fingerprint().to_owned()
        })
    };
    let elsewhere = TempDir::new().unwrap();
    assert_eq!(fingerprint(&directory), fingerprint(&elsewhere));
}

#[test]
fn stages_are_listed_and_cleared_unless_they_are_in_use() {
    let (directory, session) = tables(SessionOptions::default());
    let query = query(&session, "SELECT k, count(*) AS n FROM a GROUP BY k").unwrap();
    block_on(async {
        let place = place_in(&directory).await;
        let held = staged(&query, &place).await;
        let all = Duration::ZERO;
        assert_eq!(list_stages(&place).await.unwrap()[0].rows, Some(37));
        let swept = clear_stages(&place, all, None).await.unwrap();
        assert_eq!((swept.stages, swept.in_use), (0, 1));
        drop(held);
        assert_eq!(clear_stages(&place, all, None).await.unwrap().stages, 1);
        assert!(list_stages(&place).await.unwrap().is_empty());
    });
}

#[test]
fn what_the_engine_answers_wrongly_is_refused() {
    let (_directory, session) = tables(SessionOptions::default());
    for (sql, told) in [
        (
            "SELECT sum(v) OVER (ORDER BY k RANGE BETWEEN 9 PRECEDING AND 5 PRECEDING) AS s FROM a",
            "frame is empty",
        ),
        ("SELECT DATE '2020-01-01' + INTERVAL '3 hours' AS d FROM a", "AS TIMESTAMP"),
    ] {
        let error = query(&session, sql).err().unwrap_or_else(|| panic!("{sql} is not refused"));
        assert_eq!(error.kind(), ErrorKind::Query, "{sql}");
        assert!(error.message().contains(told), "{sql}: {error}");
    }
    for sql in [
        "SELECT k FROM a INTERSECT SELECT k FROM b",
        "SELECT k FROM a INTERSECT ALL SELECT k FROM b",
        "SELECT k FROM a EXCEPT ALL SELECT k FROM b",
        "SELECT k FROM a WHERE nullif(k, 7) NOT IN (SELECT k FROM b)",
        "SELECT k FROM a WHERE k NOT IN (SELECT k FROM b) OR v = 1",
        "SELECT k FROM a WHERE NOT (k IN (SELECT k FROM b))",
        "SELECT k IN (SELECT k FROM b) AS i FROM a",
        "SELECT k FROM a WHERE v > 1 AND (k NOT IN (SELECT k FROM b))",
        "SELECT k FROM a WHERE k IN (SELECT k FROM b) OR v = 1",
        "SELECT sum(v) OVER (ORDER BY k RANGE BETWEEN 9 PRECEDING AND CURRENT ROW) AS s FROM a",
        "SELECT min(k) OVER (ORDER BY k ROWS 3 PRECEDING) AS m FROM a",
        "SELECT min(v) OVER (ORDER BY k) AS m FROM a",
    ] {
        query(&session, sql).unwrap();
    }
}
