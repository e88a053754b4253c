//! An operator that is not row-local is refused, and the error names it and a way out.

use tensorquery::ErrorKind;
use tensorquery::session::PlanOptions;

use super::super::support::{block_on, plan_error};
use super::tables;

#[test]
fn each_operator_is_refused_by_name() {
    let (_directory, session) = tables();
    let cases = [
        ("SELECT k, count(*) AS n FROM big GROUP BY k", "an aggregate"),
        ("SELECT max(id) AS top FROM big", "an aggregate"),
        ("SELECT DISTINCT k FROM big", "an aggregate"),
        ("SELECT k FROM big UNION SELECT k FROM other", "an aggregate"),
        ("SELECT id, row_number() OVER (ORDER BY id) AS n FROM big", "a window function"),
        ("SELECT id, sum(id) OVER (PARTITION BY k) AS s FROM big", "a window function"),
        ("SELECT id FROM big ORDER BY k", "ORDER BY"),
        ("SELECT id FROM big LIMIT 3", "LIMIT"),
        ("SELECT id FROM big OFFSET 3", "LIMIT"),
        ("SELECT id FROM (SELECT * FROM big LIMIT 3) AS b WHERE id > 1", "LIMIT"),
        (
            "SELECT b.id, s.name FROM (SELECT * FROM big LIMIT 30) AS b LEFT JOIN small AS s ON b.k = s.k",
            "LIMIT",
        ),
        (
            "SELECT id FROM (SELECT id FROM big LIMIT 3) AS b UNION ALL SELECT id FROM other",
            "LIMIT",
        ),
        ("SELECT id FROM big ORDER BY id LIMIT 3", "LIMIT"),
        ("SELECT big.id, small.name FROM big FULL JOIN small ON big.k = small.k", "FULL JOIN"),
        ("SELECT id, random() AS r FROM big", "random()"),
        ("SELECT id FROM big WHERE random() < 0.5", "random()"),
        ("SELECT id FROM big WHERE id IN (SELECT k FROM small WHERE random() < 0.5)", "random()"),
        ("SELECT id, uuid() AS u FROM big", "uuid()"),
        (
            "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 3) SELECT n FROM r",
            "a recursive CTE",
        ),
        ("SELECT 1 AS one", "a SELECT without FROM"),
        ("SELECT id FROM big INTERSECT SELECT id FROM other", "an aggregate"),
    ];
    for (sql, operator) in cases {
        let error = plan_error(&session, sql);
        assert_eq!(error.kind(), ErrorKind::NotShardable, "{sql}: {error}");
        assert!(error.message().contains(operator), "{sql}: {error}");
    }
}

#[test]
fn a_volatile_function_in_a_view_is_found() {
    let (_directory, session) = tables();
    let sql = "SELECT id, random() AS r FROM big";
    block_on(session.register_view("noisy", sql)).unwrap();
    let error = plan_error(&session, "SELECT id FROM noisy WHERE r > 0.5");
    assert!(error.message().contains("random()"), "{error}");
}

#[test]
fn a_function_of_the_time_is_a_literal_and_runs_split_by_split() {
    let (_directory, session) = tables();
    block_on(session.register_view("seen", "SELECT id, now() AS t FROM big")).unwrap();
    for sql in ["SELECT id FROM seen WHERE t > now() - INTERVAL '1 day'", "SELECT now() FROM big"] {
        let query = block_on(session.query(sql)).unwrap();
        assert!(query.moment().is_some(), "{sql}");
        let options = PlanOptions::default();
        block_on(query.plan_splits(&options)).unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
    let query = block_on(session.query("SELECT id FROM big")).unwrap();
    assert!(query.moment().is_none());
}
