//! SQL is one read-only statement: whatever writes, configures or explains is refused by its name.

use tensorquery::ErrorKind;
use tensorquery::query::{PATH_SCHEMA, check_predicate, parse_query, quote_identifier};

#[track_caller]
fn refused(sql: &str, what: &str) {
    let error = match parse_query(sql, |_| false) {
        Ok(query) => panic!("{sql} was parsed: {query:?}"),
        Err(error) => error,
    };
    assert_eq!(error.kind(), ErrorKind::Query, "{sql}");
    assert!(error.message().contains(what), "{sql}: {error}");
}

#[test]
fn statements_that_do_not_only_read_are_refused() {
    let cases = [
        ("CREATE TABLE t AS SELECT 1", "CREATE is not allowed"),
        ("CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '/x'", "CREATE is not allowed"),
        ("create view v as select 1", "CREATE is not allowed"),
        ("DROP TABLE t", "DROP is not allowed"),
        ("ALTER TABLE t ADD COLUMN a INT", "ALTER is not allowed"),
        ("TRUNCATE TABLE t", "TRUNCATE is not allowed"),
        ("INSERT INTO t VALUES (1)", "INSERT is not allowed"),
        ("UPDATE t SET a = 1", "UPDATE is not allowed"),
        ("DELETE FROM t", "DELETE is not allowed"),
        ("COPY t TO 'x.parquet'", "COPY is not allowed"),
        ("COPY (SELECT 1) TO 'x.parquet'", "COPY is not allowed"),
        ("SET datafusion.execution.batch_size = 1", "SET is not allowed"),
        ("RESET datafusion.execution.batch_size", "RESET is not allowed"),
        ("EXPLAIN SELECT 1", "EXPLAIN is not allowed"),
        ("EXPLAIN ANALYZE SELECT * FROM t", "EXPLAIN is not allowed"),
        ("SHOW TABLES", "SHOW is not allowed"),
        ("PREPARE p AS SELECT 1", "PREPARE is not allowed"),
        ("BEGIN", "BEGIN is not allowed"),
        ("SELECT a INTO u FROM t", "SELECT INTO is not allowed"),
        ("SELECT a FROM t UNION ALL SELECT b INTO u FROM t", "SELECT INTO is not allowed"),
        ("SELECT a FROM (SELECT b INTO u FROM t) AS x", "SELECT INTO is not allowed"),
        ("SELECT a FROM t WHERE a IN (SELECT b INTO u FROM t)", "SELECT INTO is not allowed"),
        ("WITH x AS (INSERT INTO t VALUES (1)) SELECT 1", "INSERT is not allowed"),
        ("WITH x AS (UPDATE t SET a = 1) SELECT 1", "UPDATE is not allowed"),
        ("WITH x AS (DELETE FROM t) SELECT 1", "DELETE is not allowed"),
    ];
    for (sql, what) in cases {
        refused(sql, what);
    }
}

#[test]
fn there_is_exactly_one_statement() {
    refused("SELECT 1; SELECT 2", "2 statements were given");
    refused("SELECT 1; DROP TABLE t;", "2 statements were given");
    refused("", "the SQL is empty");
    refused(" -- nothing\n", "the SQL is empty");
    refused("SELEC 1", "does not parse");
    refused("SELECT (1", "does not parse");
    for sql in ["SELECT 1;", "  select 1  ", "WITH x AS (SELECT 1) SELECT * FROM x", "VALUES (1)"] {
        parse_query(sql, |_| false).unwrap();
    }
    parse_query("SELECT 'a; DROP TABLE t' AS t -- ; SELECT 2", |_| false).unwrap();
}

#[test]
fn path_literals_become_tables_in_order_and_once() {
    let sql = "SELECT * FROM 'b.csv' AS b JOIN 'a/**/*.parquet' AS a ON a.x = b.x \
               WHERE a.y IN (SELECT y FROM 'it''s.csv') AND a.z = 'not a path' \
               UNION ALL SELECT * FROM 'b.csv', \"t\" , u";
    let parsed = parse_query(sql, |_| false).unwrap();
    assert_eq!(parsed.paths, ["b.csv", "a/**/*.parquet", "it's.csv"]);
    let text = parsed.statement.to_string();
    assert!(text.contains(&format!("\"{PATH_SCHEMA}\".\"b.csv\"")), "{text}");
    assert!(text.contains("\"it's.csv\"") && text.contains("'not a path'"), "{text}");
    let quoted = parse_query("SELECT * FROM 'a \"b\".csv'", |_| false).unwrap();
    parse_query(&quoted.statement.to_string(), |_| false).unwrap();
}

#[test]
fn a_filter_is_one_expression() {
    for text in ["a > 1", "a IN (1, 2) OR b IS NULL", "a LIKE 'x;--%'", "(a) AND (NOT b)"] {
        check_predicate(text).unwrap();
    }
    let cases = [
        ("a > 1; DROP TABLE t", "must be one boolean expression"),
        ("a > 1) OR (b", "must be one boolean expression"),
        ("a > 1 ORDER BY a", "must be one boolean expression"),
        ("a > 1 b", "must be one boolean expression"),
        ("", "does not parse"),
        ("a >", "does not parse"),
        ("a = 'x", "does not parse"),
        ("a IN (SELECT b INTO u FROM t)", "SELECT INTO is not allowed"),
    ];
    for (text, what) in cases {
        let error = check_predicate(text).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Query, "{text}");
        assert!(error.message().contains(what), "{text}: {error}");
    }
}

#[test]
fn a_filter_cannot_comment_out_what_follows() {
    // Pasted as `WHERE (…)`, a trailing comment would swallow the parenthesis.
    for text in ["a > 1 -- ", "a > 1 /* "] {
        if check_predicate(text).is_ok() {
            parse_query(&format!("SELECT * FROM t WHERE ({text}\n)"), |_| false).unwrap();
        }
    }
}

#[test]
fn identifiers_are_quoted() {
    assert_eq!(quote_identifier("a"), "\"a\"");
    assert_eq!(quote_identifier("Two words"), "\"Two words\"");
    let hostile = quote_identifier("a\" FROM t; --");
    assert_eq!(hostile, "\"a\"\" FROM t; --\"");
    parse_query(&format!("SELECT {hostile} FROM t"), |_| false).unwrap();
}
