"""Promise: statements in the forms of PostgreSQL, DuckDB and Spark have DuckDB's rows, over all ranks, or are
refused by name."""

import duckdb
import pyarrow as pa
import pytest
from test_subqueries import delivered, plain, rows_of

import tensorquery as tq

T = {"a": [1, 2, 2, 3, None, 4], "b": [5, 6, 5, 7, 5, None], "s": ["x", "y", "x", None, "z", "y"]}
U = {"a": [1, 2, 3, 5, None], "c": [10, 20, 30, 50, 60], "l": [[1], [1, 2], [], None, [3]]}
EMPTY = pa.table({"a": pa.array([], pa.int64()), "b": pa.array([], pa.int64())})


def tables():
    return {"t": pa.table(T), "u": pa.table(U), "e": EMPTY}


@pytest.fixture(scope="module")
def session():
    session = tq.Session()
    for name, table in tables().items():
        session.register_table(name, table)
    return session


@pytest.fixture(scope="module")
def duck():
    connection = duckdb.connect()
    for name, table in tables().items():
        connection.register(f"arrow_{name}", table)
        connection.execute(f"CREATE TABLE {name} AS SELECT * FROM arrow_{name}")
    return connection


STARS = [
    "SELECT *, a FROM t",
    "SELECT *, 1 AS a FROM t",
    "SELECT *, 1 AS a FROM e",
    "SELECT a, * FROM t",
    "SELECT *, * FROM t",
    "SELECT t.*, b, t.* FROM t",
    "SELECT *, a + 1 AS A FROM t",
    "SELECT t.*, u.*, t.a, u.c FROM t JOIN u ON t.a = u.a",
    "SELECT *, u.a FROM t LEFT JOIN u ON t.a = u.a",
    "SELECT *, x.b FROM t AS x, u AS y WHERE x.a = y.a",
    "SELECT *, y.c FROM t AS x, u AS y JOIN e ON y.a = e.a",
    "SELECT *, a FROM t JOIN u USING (a)",
    "SELECT *, a FROM t FULL JOIN u USING (a)",
    "SELECT t.*, a FROM t JOIN u USING (a)",
    "SELECT *, a FROM t NATURAL JOIN u",
    "SELECT * EXCLUDE (s), b AS a FROM t",
    "SELECT * REPLACE (a + 1 AS a), a FROM t",
    "SELECT t.* EXCLUDE (a), u.*, b FROM t CROSS JOIN u",
    "SELECT DISTINCT *, b AS a FROM t",
    "SELECT *, sum(b) OVER (PARTITION BY s) AS b FROM t",
    "SELECT *, row_number() OVER (ORDER BY a, b) AS a FROM t QUALIFY a > 1",
    "SELECT *, unnest([1, 2]) AS a FROM t",
    "SELECT *, unnest(l) AS a FROM u",
    "SELECT *, a + 1 AS a FROM t GROUP BY ALL",
    "SELECT *, (SELECT max(a) FROM u) AS a FROM t",
    "SELECT *, (SELECT max(c) FROM u WHERE u.a = t.a) AS a FROM t WHERE b > 4",
    "SELECT a FROM t WHERE EXISTS (SELECT *, c FROM u WHERE u.a = t.a)",
    "SELECT a FROM t WHERE a IN (SELECT a FROM (SELECT *, c AS a FROM u WHERE u.a >= t.a) q)",
    "SELECT q.a_1 FROM (SELECT *, b AS a FROM t) q",
    "SELECT * FROM (SELECT *, b AS a FROM (SELECT *, s AS b FROM t) p) q",
    "WITH q AS (SELECT *, b AS a FROM t) SELECT a_1, a FROM q",
    "SELECT *, b AS a FROM t UNION ALL SELECT *, 3 FROM t",
    "SELECT *, b AS a FROM t EXCEPT SELECT *, 5 AS a FROM t",
    "SELECT *, q.a FROM t, LATERAL (SELECT c, a FROM u WHERE u.a = t.a) q",
    "SELECT 3 IN (SELECT a FROM t), 3 IN (SELECT b FROM t)",
    "SELECT EXISTS (SELECT 1 FROM t), EXISTS (SELECT 1 FROM e), NOT EXISTS (SELECT 1 FROM e)",
    "SELECT a IN (SELECT a FROM u), t.a IN (SELECT a FROM e) FROM t",
    "SELECT (SELECT max(a) FROM t), (SELECT max(a) FROM t WHERE b = 5)",
]

ORDERED = [
    "SELECT *, a FROM t ORDER BY a, b",
    "SELECT *, -b AS a FROM t ORDER BY a, s, t.a LIMIT 4",
    "SELECT *, b AS z FROM t ORDER BY z DESC, a LIMIT 3 OFFSET 1",
    "SELECT *, -b AS b FROM t WHERE b IS NOT NULL ORDER BY b, a NULLS FIRST",
    "SELECT * EXCLUDE (b), s AS a FROM t ORDER BY b, t.a, s",
    "SELECT *, b AS a FROM t ORDER BY 3 NULLS FIRST, 2, 1",
    "SELECT a FROM t ORDER BY row_number() OVER (ORDER BY b DESC, a)",
    "SELECT a, b FROM t ORDER BY rank() OVER (PARTITION BY s ORDER BY b), 2, 1 LIMIT 4",
    "SELECT a AS n FROM t ORDER BY count(*) OVER (PARTITION BY b) DESC, n",
    "SELECT a, a + b AS n FROM t ORDER BY a + b + sum(b) OVER (), t.s",
    "SELECT * FROM t ORDER BY row_number() OVER (ORDER BY s, b, a) DESC OFFSET 2",
    "SELECT s FROM t GROUP BY s ORDER BY rank() OVER (ORDER BY sum(b) DESC), s",
    "SELECT a, row_number() OVER (ORDER BY b, a) FROM t ORDER BY row_number() OVER (ORDER BY b, a)",
    "SELECT x.a, y.a FROM t AS x JOIN u AS y ON x.a = y.a ORDER BY row_number() OVER (ORDER BY y.c, x.b)",
    "WITH q AS (SELECT a FROM t ORDER BY row_number() OVER (ORDER BY b, a) LIMIT 2) SELECT a FROM q ORDER BY a",
    "SELECT CAST(b AS DOUBLE) FROM t ORDER BY b",
    "SELECT CAST(b AS VARCHAR), a FROM t ORDER BY t.b DESC, a",
    "SELECT b::VARCHAR FROM t ORDER BY b + a, b, a LIMIT 3",
    "SELECT TRY_CAST(s AS INT) FROM t ORDER BY s, b",
    "SELECT CAST(a AS DOUBLE) FROM t GROUP BY a ORDER BY a DESC",
    "SELECT s, b, a FROM t ORDER BY ALL",
    "SELECT s, sum(b) AS n FROM t GROUP BY ALL ORDER BY all DESC LIMIT 2",
    "SELECT a FROM t UNION ALL SELECT c FROM u ORDER BY ALL",
    "SELECT x.a FROM (SELECT a, b FROM t ORDER BY ALL NULLS FIRST LIMIT 3) AS x ORDER BY ALL",
    "SELECT a FROM t QUALIFY row_number() OVER (ORDER BY b, a) < 4 ORDER BY row_number() OVER (ORDER BY a)",
]

GROUPS = [
    "SELECT a, count(*) FROM t GROUP BY GROUPING SETS ((a), (a), ())",
    "SELECT a, count(*) FROM t GROUP BY GROUPING SETS ((a), (a))",
    "SELECT count(*), sum(b) FROM e GROUP BY GROUPING SETS ((), (), ())",
    "SELECT a, count(*) FROM e GROUP BY GROUPING SETS ((a), (a), (), ())",
    "SELECT a, b, grouping(a, b), sum(b) FROM t GROUP BY GROUPING SETS ((a, b), (b, a), (a), (), (a), (a))",
    "SELECT a, b, count(*) FROM t GROUP BY a, CUBE (a, b)",
    "SELECT a, b, count(*) FROM t GROUP BY ROLLUP (a), ROLLUP (a, b)",
    "SELECT a % 2, count(*) FROM t GROUP BY GROUPING SETS ((a % 2), (a % 2), (b))",
    "SELECT a, s, b, count(*) FROM t GROUP BY GROUPING SETS ((a, b), (s), (b, a), (), (s, a), (s))",
    "SELECT DISTINCT a, count(*) FROM t GROUP BY GROUPING SETS ((a), (a), (b))",
    "SELECT a, count(*) FROM t GROUP BY GROUPING SETS ((a), (b), (a)) HAVING count(*) > 1",
    "SELECT a, rank() OVER (ORDER BY count(*)) FROM t GROUP BY GROUPING SETS ((a), (a))",
    "SELECT q.n FROM (SELECT a, sum(b) AS n FROM t GROUP BY GROUPING SETS ((a), (a))) q JOIN u ON u.a = q.a",
    "SELECT c, (SELECT count(*) FROM (SELECT b FROM t WHERE t.a >= u.a GROUP BY GROUPING SETS ((b), (b))) q) FROM u",
    "SELECT count(*) FROM e GROUP BY ()",
    "SELECT count(*) FROM e GROUP BY GROUPING SETS (())",
    "SELECT a, count(*) FROM t GROUP BY a, GROUPING SETS (())",
    "SELECT sum(b), max(s) FROM t WHERE a > 1 GROUP BY ()",
    "SELECT 1 FROM t GROUP BY ()",
    "SELECT 1 FROM e GROUP BY ()",
    "SELECT a, count(*) FROM t GROUP BY a, ()",
    "SELECT a, count(*) FROM t GROUP BY (), a, ()",
    "SELECT count(*) FROM t GROUP BY () HAVING count(*) > 100",
    "SELECT 1 FROM t HAVING 1 < 2",
    "SELECT 1 FROM e HAVING true",
    "SELECT 1 FROM t HAVING false",
    "SELECT sum(b) FROM t HAVING 1 < 2",
    "SELECT a, sum(b) FROM t GROUP BY a HAVING true",
    "SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u HAVING t.a > 1)",
    "SELECT a, b, sum(b) FROM t GROUP BY (a, b)",
    "SELECT a, b, s, count(*) FROM t GROUP BY s, (1, b)",
    "SELECT a, b, s, count(*) FROM t GROUP BY ROLLUP ((a, b), s)",
    "SELECT a, b, s, count(*), grouping(a, s) FROM t GROUP BY CUBE ((a, b), s)",
    "SELECT a, b, s, count(*) FROM t GROUP BY s, ROLLUP ((a, 2))",
    "SELECT a, count(*) FROM t GROUP BY ROLLUP (a, a)",
    "SELECT a, count(*) FROM t GROUP BY CUBE (a, a)",
    "SELECT a, b, count(*) FROM t GROUP BY GROUPING SETS (a, (a, b), b, ())",
    "SELECT a, a + b, count(*) FROM t GROUP BY a, GROUPING SETS (a + b, a)",
    "SELECT a FROM (SELECT a, b FROM t GROUP BY GROUPING SETS (a, b)) q WHERE a IN (SELECT a FROM u GROUP BY GROUPING SETS (a, c))",
]

NESTED = [
    "WITH q AS (SELECT 1 AS x), r AS (WITH q AS (SELECT 2 AS x) SELECT x FROM q) SELECT q.x, r.x FROM q, r",
    "WITH q AS (SELECT 1 AS x) SELECT (WITH q AS (SELECT x + 1 AS x FROM q) SELECT q.x FROM q) AS y, x FROM q",
    "WITH q AS (SELECT a FROM t) SELECT p.a FROM (WITH q AS (SELECT c AS a FROM u) SELECT * FROM q) p",
    "WITH q AS (SELECT a FROM t) SELECT a FROM q WHERE a IN (WITH q AS (SELECT a FROM u) SELECT z.a FROM q AS z)",
    "WITH q AS (SELECT 1 AS x) SELECT * FROM (WITH Q AS (SELECT 2 AS x), r AS (SELECT x FROM q) SELECT * FROM r UNION ALL SELECT x FROM q) p",
    "WITH q AS (SELECT 1 AS x) (WITH q AS (SELECT 2 AS x) SELECT x FROM q) UNION ALL SELECT x FROM q",
    "WITH q AS (SELECT 1 AS x) SELECT * FROM (WITH q AS (WITH q AS (SELECT x + 5 AS x FROM q) SELECT x * 10 AS x FROM q) SELECT x FROM q) p, q",
    "WITH t AS (SELECT a FROM t WHERE a > 1) SELECT * FROM (WITH t AS (SELECT a FROM t WHERE a < 4) SELECT a FROM t) p",
    "WITH q AS (SELECT 9 AS n), r AS (WITH RECURSIVE q AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM q WHERE n < 3) SELECT n FROM q) SELECT r.n, q.n FROM r, q",
    "WITH RECURSIVE q AS (SELECT 1 AS n UNION ALL SELECT p.n FROM (WITH q AS (SELECT n + 1 AS n FROM q) SELECT n FROM q) p WHERE p.n < 4) SELECT n FROM q",
    "WITH q AS (SELECT 1 AS x), q2 AS (WITH q (y) AS (SELECT x + 1 FROM q) SELECT y FROM q) SELECT q.x, q2.y FROM q, q2",
]


@pytest.mark.parametrize("sql", STARS + GROUPS + NESTED)
def test_rows_are_those_of_duckdb_on_two_ranks(session, duck, sql):
    want = plain(duck.execute(sql).fetchall())
    got = session.sql(sql).to_arrow()
    assert plain(rows_of(got)) == want
    assert len(set(got.column_names)) == len(got.column_names)
    assert plain(delivered(session, sql)) == want


@pytest.mark.parametrize("sql", ORDERED)
def test_orders_are_those_of_duckdb(session, duck, sql):
    nulls_as_here = "SET default_null_order = 'nulls_last_on_asc_first_on_desc'"
    duck.execute(nulls_as_here)
    want = [tuple(row) for row in duck.execute(sql).fetchall()]
    assert rows_of(session.sql(sql).to_arrow()) == want
    # In a part of another statement, and dealt to ranks.
    assert plain(rows_of(session.sql(f"SELECT * FROM ({sql}) q").to_arrow())) == plain(want)
    assert plain(delivered(session, sql)) == plain(want)


def test_an_order_may_name_a_window(session):
    sql = "SELECT s, a FROM t WHERE a > 1{} ORDER BY row_number() OVER {}, sum(b) OVER {}"
    named = session.sql(sql.format(" WINDOW w AS (ORDER BY b, a)", "w", "w"))
    written = session.sql(sql.format("", "(ORDER BY b, a)", "(ORDER BY b, a)"))
    assert rows_of(named.to_arrow()) == rows_of(written.to_arrow())
    assert rows_of(named.to_arrow()) == [("x", 2), ("y", 2), (None, 3), ("y", 4)]


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("SELECT *, a FROM t", ["a", "b", "s", "a_1"]),
        ("SELECT a, * FROM t", ["a", "a_1", "b", "s"]),
        ("SELECT *, *, 1 AS a FROM t", ["a", "b", "s", "a_1", "b_1", "s_1", "a_2"]),
        ("SELECT *, 1 AS a_1, 2 AS a FROM t", ["a", "b", "s", "a_1", "a_2"]),
        ("SELECT *, a AS z, row_number() OVER () AS n FROM t", ["a", "b", "s", "z", "n"]),
        ("SELECT *, u.a FROM t JOIN u USING (a)", ["a", "b", "s", "c", "l", "a_1"]),
        ("SELECT a FROM t ORDER BY row_number() OVER (ORDER BY b)", ["a"]),
        (
            "SELECT EXISTS (SELECT 1 FROM t), EXISTS (SELECT 1 FROM e)",
            ["EXISTS (<subquery>)", "EXISTS (<subquery>)_1"],
        ),
    ],
)
def test_columns_of_one_name_get_numbers(session, sql, names):
    assert session.sql(sql).to_arrow().column_names == names


def test_star_beside_a_column_stays_split_by_split(session):
    loader, _ = tq.create_dataloader(
        session.sql("SELECT *, b AS a FROM t WHERE b = 5"), stage="never", output_format="arrow"
    )
    assert sum(batch.num_rows for batch in loader) == 3
    query = session.sql("SELECT *, a FROM t").select(["a_1", "b"], "a_1 > 1")
    assert rows_of(query.to_arrow()) == [(2, 6), (2, 5), (3, 7), (4, None)]


def test_stars_in_stars_take_linear_time(session):
    sql = "SELECT * FROM t"
    for _ in range(16):
        sql = f"SELECT *, s AS b FROM ({sql}) q"
    assert session.sql(sql).to_arrow().num_columns == 19


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT t.a FROM t JOIN u", "JOIN without ON or USING.*CROSS JOIN"),
        ("SELECT t.a FROM t INNER JOIN u", "INNER JOIN without ON or USING.*CROSS JOIN"),
        ("SELECT t.a FROM t LEFT JOIN u", "LEFT JOIN without ON or USING"),
        ("SELECT t.a FROM (t JOIN u)", "JOIN without ON or USING"),
        ("SELECT t.a FROM t JOIN u JOIN e ON t.a = e.a", "JOIN without ON or USING"),
        ("SELECT a FROM u WHERE EXISTS (SELECT 1 FROM t SEMI JOIN e)", "SEMI JOIN without"),
        ("SELECT * FROM t POSITIONAL JOIN u", "POSITIONAL JOIN.*row_number"),
        ("SELECT * FROM t, e POSITIONAL JOIN u", "POSITIONAL JOIN"),
        ("SELECT * FROM (t positional JOIN u)", "POSITIONAL JOIN"),
        ("SELECT * FROM (SELECT 1 AS a) PASTE JOIN u", "PASTE JOIN"),
        ("SELECT * FROM t ANY JOIN u ON t.a = u.a", "ANY JOIN.*leave ANY out"),
        ("SELECT * FROM t ANY LEFT JOIN u USING (a)", "ANY JOIN"),
        ("SELECT DISTINCT a FROM t ORDER BY row_number() OVER (ORDER BY b)", "DISTINCT"),
        ("SELECT -a AS a FROM t ORDER BY a + rank() OVER (ORDER BY b)", "not supported in this"),
        ("SELECT *, nowhere FROM t", "nowhere"),
        ("SELECT *, a FROM t JOIN u ON t.a = u.a", "ambiguous"),
        ("SELECT *, v.* FROM t", "qualifier v"),
        ("SELECT *, a AS b FROM t WHERE z = 1", "z"),
        ("WITH q AS (SELECT 1 AS x), q AS (SELECT 2 AS x) SELECT x FROM q", "more than once"),
        (
            "SELECT * FROM (WITH q AS (SELECT 1 AS x), q AS (SELECT 2 AS x) SELECT x FROM q) p",
            "more than once",
        ),
        (
            "WITH q AS (SELECT 1 AS x) SELECT * FROM (WITH q AS (SELECT random() AS r) SELECT a.r FROM q AS a, q AS b) p",
            "WITH q calls a function",
        ),
    ],
)
def test_mistakes_say_so(session, sql, words):
    with pytest.raises(tq.QueryError, match=words) as error:
        session.sql(sql)
    assert "\x02" not in str(error.value)


def test_a_word_before_a_join_may_name_a_table(session):
    for alias in ("AS positional", '"positional"', "AS any"):
        name = alias.split()[-1]
        sql = f"SELECT {name}.a FROM t {alias} JOIN u ON {name}.a = u.a"
        assert session.sql(sql).count() == 4
