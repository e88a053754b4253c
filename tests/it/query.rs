//! SQL is one read-only statement: whatever writes, configures or explains is refused by its name.

use tensorquery::query::{
    Definition, Layer, PATH_SCHEMA, ParsedQuery, parse_predicate, quote_identifier,
};
use tensorquery::{ErrorKind, Result};

fn parse_query(sql: &str) -> Result<ParsedQuery> {
    Ok(Definition::statement(sql, |_| false)?.parsed().clone())
}

#[track_caller]
fn refused(sql: &str, what: &str) {
    let error = match parse_query(sql) {
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
        parse_query(sql).unwrap();
    }
    parse_query("SELECT 'a; DROP TABLE t' AS t -- ; SELECT 2").unwrap();
}

#[test]
fn path_literals_become_tables_in_order_and_once() {
    let sql = "SELECT * FROM 'b.csv' AS b JOIN 'a/**/*.parquet' AS a ON a.x = b.x \
               WHERE a.y IN (SELECT y FROM 'it''s.csv') AND a.z = 'not a path' \
               UNION ALL SELECT * FROM 'b.csv', \"t\" , u";
    let parsed = parse_query(sql).unwrap();
    assert_eq!(parsed.paths, ["b.csv", "a/**/*.parquet", "it's.csv"]);
    let text = parsed.statement.to_string();
    assert!(text.contains(&format!("\"{PATH_SCHEMA}\".\"b.csv\"")), "{text}");
    assert!(text.contains("\"it's.csv\"") && text.contains("'not a path'"), "{text}");
    let quoted = parse_query("SELECT * FROM 'a \"b\".csv'").unwrap();
    parse_query(&quoted.statement.to_string()).unwrap();
}

#[test]
fn a_filter_is_one_expression() {
    for text in ["a > 1", "a IN (1, 2) OR b IS NULL", "a LIKE 'x;--%'", "(a) AND (NOT b)"] {
        parse_predicate(text).unwrap();
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
        let error = parse_predicate(text).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Query, "{text}");
        assert!(error.message().contains(what), "{text}: {error}");
    }
}

fn layered(layers: &[Layer]) -> Result<Definition> {
    Definition::of_layers(layers.to_vec(), |_| false)
}

#[test]
fn layers_make_a_definition_that_has_them() {
    let statement = |sql: &str| Layer::Statement(sql.to_owned());
    let rows = |columns: Option<&[&str]>, predicate: Option<&str>| Layer::Rows {
        columns: columns.map(|names| names.iter().map(|&name| name.to_owned()).collect()),
        predicate: predicate.map(str::to_owned),
    };
    let layers = [
        statement("SELECT a, b FROM t ORDER BY a;"),
        rows(Some(&["a"]), Some("a > 1 -- and no more")),
        statement("SELECT a FROM 'u.csv'"),
        Layer::UnionAll(2),
        Layer::Expressions("count(*) AS n, max(a)".to_owned()),
    ];
    let definition = layered(&layers).unwrap();
    assert_eq!(definition.layers(), layers);
    assert_eq!(
        definition.text(),
        "SELECT count(*) AS n, max(a) FROM (\n\
         SELECT * FROM (\n\
         SELECT \"a\" FROM (\nSELECT a, b FROM t ORDER BY a\nOFFSET 0\n) AS query\n\
         WHERE (\na > 1 -- and no more\n)\n\
         ) AS source_0\nUNION ALL\n\
         SELECT * FROM (\nSELECT a FROM 'u.csv'\n) AS source_1\n\
         ) AS given"
    );
    for incomplete in [&layers[1..2], &layers[2..], &layers[..3], &[]] {
        assert_eq!(layered(incomplete).unwrap_err().kind(), ErrorKind::Config);
    }
    // Each layer is planned within the one above it.
    let mut many = vec![statement("SELECT 1 AS a")];
    many.extend(std::iter::repeat_n(rows(None, Some("a > 0")), 100));
    layered(&many).unwrap();
    many.push(rows(None, None));
    assert!(layered(&many).unwrap_err().message().contains("more than 300 joins"));
}

#[test]
fn identifiers_are_quoted() {
    assert_eq!(quote_identifier("a"), "\"a\"");
    assert_eq!(quote_identifier("Two words"), "\"Two words\"");
    let hostile = quote_identifier("a\" FROM t; --");
    assert_eq!(hostile, "\"a\"\" FROM t; --\"");
    parse_query(&format!("SELECT {hostile} FROM t")).unwrap();
}
