"""Promise: a subquery may stand anywhere and refer to any query around it; its answer is DuckDB's, NULLs included, and its rows
are delivered once over all ranks."""

import math
import sqlite3

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tensorquery as tq
from tensorquery.errors import DataError, QueryError

A = {
    "id": [1, 2, 3, 4, 5, 6, 7],
    "k": [1, 1, 2, 3, None, 4, None],
    "x": [5, None, 7, 2, 9, None, 2],
    "f": [0.0, -0.0, 1.5, None, 2.5, 1.5, -1.0],
    "s": ["a", "b", None, "a", "c", "", "b"],
}
B = {
    "k": [1, 1, 2, 2, None, 5, 3],
    "v": [5, 6, None, 7, 9, 2, 2],
    "w": [1, 2, 3, 4, 5, 6, None],
    "g": [0.0, -0.0, 1.5, 3.5, None, 2.5, 7.0],
    "s": ["a", None, "b", "z", "c", "", "b"],
}
E = {"k": [], "v": []}
FULL = {"k": [1, 2, 2, 3], "v": [5, 5, 6, 7]}


def tables():
    ints = pa.int64()
    return {
        "a": pa.table(A),
        "b": pa.table(B),
        "e": pa.table({name: pa.array(values, ints) for name, values in E.items()}),
        "whole": pa.table(
            FULL, schema=pa.schema([pa.field("k", ints, False), pa.field("v", ints, False)])
        ),
    }


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    folder = tmp_path_factory.mktemp("subqueries")
    session = tq.Session()
    for name, table in tables().items():
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=2)
        session.register_parquet(name, folder / f"{name}.parquet")
    return session


@pytest.fixture(scope="module")
def duck():
    connection = duckdb.connect()
    for name, table in tables().items():
        connection.register(f"arrow_{name}", table)
        connection.execute(f'CREATE TABLE "{name}" AS SELECT * FROM arrow_{name}')
    return connection


def plain(rows):
    """Rows in an order of their own, numbers as the same type, zeros of one sign."""

    def value(one):
        if isinstance(one, float) and math.isnan(one):
            return "nan"
        return (
            float(one) + 0.0 if isinstance(one, (int, float)) and not isinstance(one, bool) else one
        )

    return sorted((tuple(value(one) for one in row) for row in rows), key=repr)


def rows_of(table):
    columns = [column.to_pylist() for column in table.columns]
    return list(zip(*columns, strict=True)) if columns else []


EXISTS = [
    "SELECT id FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.k = a.k)",
    "SELECT id FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE b.k = a.k)",
    "SELECT id FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.v < a.x)",
    "SELECT id FROM a WHERE NOT EXISTS (SELECT * FROM b WHERE b.v < a.x AND b.k <> a.k)",
    "SELECT id, EXISTS (SELECT 1 FROM b WHERE b.k = a.k) AS found FROM a",
    "SELECT id, NOT EXISTS (SELECT 1 FROM b WHERE b.k > a.k OR a.k IS NULL) AS none FROM a",
    "SELECT id FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.k = a.k) OR x > 6",
    "SELECT id FROM a WHERE EXISTS (SELECT 1 FROM e)",
    "SELECT id FROM a WHERE NOT EXISTS (SELECT 1 FROM e) AND EXISTS (SELECT 1 FROM b)",
    "SELECT id FROM a WHERE EXISTS (SELECT count(*) FROM b WHERE b.k = a.k)",
    "SELECT id FROM a WHERE EXISTS (SELECT b.k FROM b WHERE b.k = a.k GROUP BY b.k HAVING count(*) > 1)",
    "SELECT id FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.k = a.k LIMIT 1)",
    "SELECT id FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.k = a.k LIMIT 0)",
    "SELECT id FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.k = a.k OFFSET 1)",
    "SELECT id FROM a WHERE EXISTS (SELECT 1 FROM b JOIN whole f ON f.k = b.k WHERE f.v > a.x)",
    "SELECT id FROM a WHERE EXISTS (SELECT 1 FROM whole f LEFT JOIN b ON f.k = b.k AND b.v > a.x WHERE b.k IS NULL)",
    "SELECT id FROM a WHERE EXISTS (SELECT k FROM b WHERE b.v > a.x EXCEPT SELECT k FROM whole)",
    "SELECT id FROM a WHERE EXISTS (SELECT v FROM b WHERE b.k = a.k UNION ALL SELECT v FROM whole WHERE whole.v = a.x)",
    "SELECT sum(CASE WHEN EXISTS (SELECT 1 FROM b WHERE b.k = a.k) THEN 1 ELSE 0 END) AS n FROM a",
]

IN = [
    "SELECT id FROM a WHERE k IN (SELECT k FROM b)",
    "SELECT id FROM a WHERE k NOT IN (SELECT k FROM b)",
    "SELECT id FROM a WHERE k NOT IN (SELECT k FROM whole)",
    "SELECT id FROM a WHERE k NOT IN (SELECT k FROM e)",
    "SELECT id, k IN (SELECT k FROM b) AS m FROM a",
    "SELECT id, k NOT IN (SELECT k FROM whole) AS m FROM a",
    "SELECT id, k IN (SELECT k FROM e) AS m, x NOT IN (SELECT v FROM b WHERE v IS NOT NULL) AS n FROM a",
    "SELECT id FROM a WHERE (k IN (SELECT k FROM b)) IS NULL",
    "SELECT id FROM a WHERE NOT (k IN (SELECT k FROM whole) AND x > 1)",
    "SELECT id FROM a WHERE x + 1 IN (SELECT v FROM b) OR id = 7",
    "SELECT id FROM a WHERE x IN (SELECT v FROM b WHERE b.k = a.k)",
    "SELECT id FROM a WHERE x NOT IN (SELECT v FROM b WHERE b.k = a.k)",
    "SELECT id, x IN (SELECT v FROM b WHERE b.k >= a.k) AS m FROM a",
    "SELECT id, CASE WHEN x IN (SELECT v FROM b WHERE b.w > a.id) THEN 'y' ELSE 'n' END AS m FROM a",
    "SELECT a.id FROM a WHERE a.k IN (SELECT a.k FROM a WHERE a.x > 4)",
    "SELECT id FROM a WHERE k IN (SELECT max(k) FROM b WHERE b.v <= a.x)",
    "SELECT id FROM a WHERE x IN (SELECT v FROM b WHERE b.k <= a.k ORDER BY w LIMIT 2)",
    "SELECT id FROM a WHERE f IN (SELECT g FROM b)",
    "SELECT id FROM a WHERE f NOT IN (SELECT g FROM b WHERE g IS NOT NULL)",
    "SELECT id FROM a WHERE s IN (SELECT s FROM b) AND s NOT IN (SELECT s FROM b WHERE s > 'b')",
    "SELECT k, count(*) AS n FROM a GROUP BY k HAVING k IN (SELECT k FROM b) OR count(*) > 1",
    "SELECT k, sum(CASE WHEN x IN (SELECT v FROM b) THEN 1 ELSE 0 END) AS n FROM a GROUP BY k",
    "SELECT a.id, b.w FROM a JOIN b ON a.k = b.k AND a.x IN (SELECT v FROM whole)",
    "SELECT a.id, b.w FROM a LEFT JOIN b ON a.k = b.k AND b.v IN (SELECT v FROM whole)",
    "SELECT id FROM a WHERE 5 IN (SELECT v FROM b WHERE b.k = a.k)",
    "SELECT id FROM a WHERE NULL IN (SELECT v FROM b)",
]

QUANTIFIED = [
    "SELECT id FROM a WHERE x >= ALL (SELECT x FROM a WHERE x IS NOT NULL)",
    "SELECT id FROM a WHERE x > ANY (SELECT x FROM a)",
    "SELECT id, x > ALL (SELECT v FROM b) AS m FROM a",
    "SELECT id, x < ANY (SELECT v FROM b WHERE b.k = a.k) AS m FROM a",
    "SELECT id, x <> ALL (SELECT v FROM b WHERE b.k = a.k) AS m FROM a",
    "SELECT id FROM a WHERE x = ANY (SELECT v FROM b) AND k <= ALL (SELECT k FROM whole)",
    "SELECT id FROM a WHERE NOT x > ALL (SELECT v FROM e)",
]

SCALAR = [
    "SELECT id, (SELECT max(v) FROM b WHERE b.k = a.k) AS m FROM a",
    "SELECT id, (SELECT count(*) FROM b WHERE b.k = a.k) AS m FROM a",
    "SELECT id, (SELECT count(v) + 1 FROM b WHERE b.k = a.k) AS m FROM a",
    "SELECT id, (SELECT coalesce(sum(v), -1) FROM b WHERE b.k = a.k AND b.s <> a.s) AS m FROM a",
    "SELECT id, (SELECT count(*) FROM b WHERE b.v < a.x) AS m FROM a",
    "SELECT id, (SELECT sum(v) FROM b WHERE b.v < a.x AND b.k <> a.k) AS m FROM a",
    "SELECT id, (SELECT max(v) FROM b WHERE b.g = a.f) AS m FROM a",
    "SELECT id, (SELECT count(*) FROM b WHERE b.g = a.f) AS m FROM a",
    "SELECT id, (SELECT count(*) FROM b WHERE b.k IS NOT DISTINCT FROM a.k) AS m FROM a",
    "SELECT id, (SELECT v FROM b WHERE b.w = a.id) AS m FROM a",
    "SELECT id, (SELECT v FROM b WHERE b.w = 99) AS m FROM a",
    "SELECT id FROM a WHERE (SELECT v FROM b WHERE b.w = 99) IS NULL",
    "SELECT id, coalesce((SELECT w FROM whole JOIN b USING (k) WHERE whole.v = a.x ORDER BY w LIMIT 1), 0) AS m FROM a",
    "SELECT id, (SELECT v FROM b WHERE b.k <= a.k ORDER BY v DESC NULLS LAST, w LIMIT 1) AS m FROM a",
    "SELECT id, (SELECT v FROM b WHERE b.k <= a.k ORDER BY v NULLS LAST, w LIMIT 1 OFFSET 1) AS m FROM a",
    "SELECT id FROM a WHERE x = (SELECT min(v) FROM b WHERE b.k = a.k)",
    "SELECT id FROM a WHERE x > (SELECT avg(x) FROM a)",
    "SELECT id FROM a AS o WHERE x >= (SELECT max(i.x) FROM a AS i WHERE i.k = o.k)",
    "SELECT id, (SELECT a.x + b.v FROM b WHERE b.w = a.id) AS m FROM a",
    "SELECT id, (SELECT max(a.x + b.v) FROM b WHERE b.k = a.k) AS m FROM a",
    "SELECT id, (SELECT count(DISTINCT s) FROM b WHERE b.v > a.x) AS m FROM a",
    "SELECT id, (SELECT max(n) FROM (SELECT s, count(*) AS n FROM b WHERE b.v >= a.x GROUP BY s) q) AS m FROM a",
    "SELECT id, (SELECT max(r) FROM (SELECT row_number() OVER (ORDER BY v, w) AS r FROM b WHERE b.k >= a.k) q) AS m FROM a",
    "SELECT id, (SELECT count(*) FROM (SELECT DISTINCT k FROM b WHERE b.v > a.x) q) AS m FROM a",
    "SELECT id, (SELECT count(*) FROM whole f LEFT JOIN b ON f.k = b.k AND b.v > a.x) AS m FROM a",
    "SELECT id, (SELECT count(b.k) FROM b RIGHT JOIN whole f ON f.k = b.k AND b.v > a.x) AS m FROM a",
    "SELECT id, (SELECT count(*) FROM b WHERE b.k = a.k HAVING count(*) > 1) AS m FROM a",
    "SELECT id, (SELECT a.x) AS m, (SELECT a.x + 1 WHERE a.k = 1) AS n FROM a",
    "SELECT id, (SELECT (SELECT max(f.v) FROM whole f WHERE f.k = b.k AND f.v > a.x - 3) FROM b WHERE b.w = a.id) AS m FROM a",
    "SELECT id FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.k = a.k AND EXISTS (SELECT 1 FROM whole f WHERE f.k = b.k AND f.v = a.x))",
    "SELECT id FROM a WHERE k IN (SELECT k FROM b WHERE v > (SELECT min(v) FROM whole WHERE whole.k = a.k))",
    "SELECT id FROM a ORDER BY (SELECT count(*) FROM b WHERE b.k = a.k), id",
    "SELECT k, max((SELECT sum(v) FROM b WHERE b.k = a.k)) AS m FROM a GROUP BY k",
    "SELECT k, (SELECT count(*) FROM b WHERE b.k = a.k) AS m, count(*) AS n FROM a GROUP BY k",
    "SELECT k, sum(x) AS t FROM a GROUP BY k HAVING sum(x) > (SELECT avg(v) FROM b WHERE b.k = a.k)",
    "SELECT id, sum(x) OVER (ORDER BY (SELECT count(*) FROM b WHERE b.k = a.k), id) AS m FROM a",
    "SELECT (SELECT count(*) FROM b) AS m, (SELECT max(v) FROM e) AS n",
    "SELECT a.id FROM a JOIN b ON a.k = b.k AND b.v = (SELECT max(v) FROM whole)",
    "SELECT id, (SELECT sum(v) FROM (SELECT v FROM b WHERE b.k = a.k UNION ALL SELECT v FROM whole WHERE whole.k = a.k) q) AS m FROM a",
    "SELECT id, (SELECT count(*) FROM b, whole f WHERE b.k = f.k AND f.v > a.x) AS m FROM a",
    "SELECT id, (SELECT approx_count_distinct(v) FROM b WHERE b.k = a.k) AS m FROM a",
    "SELECT id, (SELECT regr_count(v, w) FROM b WHERE b.k = a.k) AS m FROM a",
]

LATERAL = [
    "SELECT a.id, q.v FROM a, LATERAL (SELECT v FROM b WHERE b.k = a.k) q",
    "SELECT a.id, q.n FROM a, LATERAL (SELECT count(*) AS n FROM b WHERE b.k = a.k) q",
    "SELECT a.id, q.v FROM a CROSS JOIN LATERAL (SELECT v FROM b WHERE b.v < a.x ORDER BY v, w LIMIT 2) q",
    "SELECT a.id, q.v FROM a LEFT JOIN LATERAL (SELECT v FROM b WHERE b.v > a.x) q ON true",
]

# In these DuckDB counts by another function's name, or takes another one for it.
ROWS = [
    "SELECT id FROM a WHERE (k, x) IN (SELECT k, v FROM b)",
    "SELECT id FROM a WHERE (k, x) NOT IN (SELECT k, v FROM b)",
    "SELECT id FROM a WHERE (k, x) NOT IN (SELECT k, v FROM whole)",
    "SELECT id FROM a WHERE (k, x) NOT IN (SELECT k, v FROM e)",
    "SELECT id FROM a WHERE (id, id) NOT IN (SELECT k, v FROM whole)",
    "SELECT id, (k, x) IN (SELECT k, v FROM b) AS m FROM a",
    "SELECT id, (k, x) NOT IN (SELECT k, v FROM whole) AS m FROM a",
    "SELECT id, (k, x) IN (SELECT k, v FROM e) AS m FROM a",
    "SELECT id, (k, x, s) IN (SELECT k, v, s FROM b) AS m FROM a",
    "SELECT id, (k, x) IN (SELECT k, v FROM b WHERE b.w > a.id) AS m FROM a",
    "SELECT id, (k, x) NOT IN (SELECT k, v FROM b WHERE b.k = a.k) AS m FROM a",
    "SELECT id, (k, NULL) IN (SELECT k, v FROM whole) AS m FROM a",
    "SELECT id, (1, x) IN (SELECT k, v FROM whole) AS m FROM a",
    "SELECT id, (f, s) IN (SELECT g, s FROM b) AS m FROM a",
    "SELECT id FROM a WHERE ((k, x) IN (SELECT k, v FROM b)) IS NULL",
    "SELECT id FROM a WHERE NOT ((k, x) IN (SELECT k, v FROM b) AND id > 1)",
    "SELECT id FROM a WHERE (k, x + 1) IN (SELECT k, v FROM b) OR id = 7",
    "SELECT id FROM a WHERE (k, x) IN (SELECT k, max(v) FROM b GROUP BY k)",
    "SELECT id FROM a WHERE (k, x) IN (SELECT k, v FROM b WHERE w > 1 ORDER BY w DESC LIMIT 3)",
    "SELECT id FROM a WHERE (k, x) IN (SELECT * FROM whole)",
    "SELECT id FROM a WHERE (k, x) IN (VALUES (1, 5), (2, 7))",
    "SELECT id FROM a WHERE (k, x) IN (SELECT k, v FROM whole UNION SELECT k, v FROM b)",
    "WITH q AS (SELECT k, v FROM b) SELECT id FROM a WHERE (k, x) IN (SELECT k, v FROM q)",
    "SELECT id FROM a WHERE (k, (SELECT max(v) FROM whole)) IN (SELECT k, v FROM whole)",
    "SELECT id, CASE WHEN (k, x) IN (SELECT k, v FROM b) THEN 'y' ELSE 'n' END AS m FROM a",
    "SELECT k, count(*) AS n FROM a GROUP BY k HAVING (k, count(*)) IN (SELECT k, v - 3 FROM whole)",
    "SELECT a.id, b.w FROM a LEFT JOIN b ON a.k = b.k AND (b.k, b.v) IN (SELECT k, v FROM whole)",
    "SELECT id FROM a ORDER BY (k, x) IN (SELECT k, v FROM whole) DESC, id",
    "SELECT id, EXISTS (SELECT 1 FROM b WHERE (b.k, b.v) IN (SELECT k, v FROM whole WHERE v >= a.x)) AS m FROM a",
    "SELECT id FROM a WHERE (k, x) = (SELECT k, v FROM whole WHERE v = 6 OR v = 70)",
    "SELECT id FROM a WHERE (k, x) <= (SELECT k, v FROM whole WHERE v = 6)",
    "SELECT id FROM a WHERE (SELECT max(k), max(v) FROM whole) > (k, x)",
    "SELECT id, (k, x) = (SELECT k, v FROM whole WHERE v = 70) AS m FROM a",
    "SELECT id, (k, x) = (SELECT k, v FROM b WHERE b.w = a.id) AS m FROM a",
    "SELECT id, (k, x) <> (SELECT max(k), min(v) FROM b WHERE b.k = a.k) AS m FROM a",
    "SELECT id, (x, id) < (SELECT max(v), count(*) FROM b WHERE b.v > a.x) AS m FROM a",
]
"""By the standard, as SQLite has them: of a row NULL is unknown part by part. DuckDB does not plan some of them."""

OTHER_WORDS = {"approx_count_distinct": "approx_distinct"}


@pytest.mark.parametrize("sql", EXISTS + IN + QUANTIFIED + SCALAR + LATERAL)
def test_answers_are_those_of_duckdb(session, duck, sql):
    want = duck.execute(sql).fetchall()
    for theirs, ours in OTHER_WORDS.items():
        sql = sql.replace(theirs, ours)
    query = session.sql(sql)
    assert plain(rows_of(query.to_arrow())) == plain(want)


@pytest.fixture(scope="module")
def lite():
    connection = sqlite3.connect(":memory:")
    for name, table in tables().items():
        columns = ", ".join(table.column_names)
        connection.execute(f"CREATE TABLE {name} ({columns})")
        values = ", ".join("?" * table.num_columns)
        connection.executemany(f"INSERT INTO {name} VALUES ({values})", rows_of(table))
    return connection


@pytest.mark.parametrize("sql", ROWS)
def test_rows_beside_subqueries_have_sqlites_answers_on_two_ranks(session, lite, sql):
    # Its booleans are numbers, and `plain` keeps those apart.
    want = plain(lite.execute(sql).fetchall())
    for got in (rows_of(session.sql(sql).to_arrow()), delivered(session, sql)):
        numbers = [[int(one) if isinstance(one, bool) else one for one in row] for row in got]
        assert plain(numbers) == want


def test_row_as_a_word(session):
    """PostgreSQL, DuckDB and Spark write ROW(a, b) for (a, b)."""
    sql = "SELECT id FROM a WHERE {}(k, x) IN (SELECT k, v FROM b) AND {}(k, x) < {}(3, 0) AND {}(1, 2) = (1, 2)"
    words, plain_rows = sql.format(*["ROW"] * 4), sql.format(*[""] * 4)
    assert rows_of(session.sql(words).to_arrow()) == rows_of(session.sql(plain_rows).to_arrow())
    struct = session.sql("SELECT ROW(id, k) AS r FROM a WHERE id = 1").to_arrow()
    assert struct["r"].to_pylist() == [{"c0": 1, "c1": 1}]


def test_a_row_of_a_subquery_is_one_row(session):
    """Its parts come from one row, even where another run would have chosen another row."""
    session.register_table("many", pa.table({"n": range(20_000), "m": range(20_000)}))
    for _ in range(3):
        sql = "SELECT id FROM a WHERE (id, id) >= (SELECT n - m, m - n FROM (SELECT n, m FROM many LIMIT 1) q)"
        assert session.sql(sql).count() == 7
    with pytest.raises(DataError, match="more than one row"):
        session.sql("SELECT id FROM a WHERE (k, x) = (SELECT k, v FROM b)").to_arrow()
    random = "SELECT id FROM a WHERE (0.5, 0.5) = (SELECT r, r FROM (SELECT random() AS r) q)"
    assert session.sql(random).count() == 0


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("(k, x) IN (SELECT k FROM whole)", "row of 2 values.*subquery of one column"),
        ("(k, x) IN (SELECT k, v, v FROM whole)", "row of 2 values.*subquery of 3 columns"),
        ("(k, x) = (SELECT k, v, v FROM whole)", "row of 2 values.*subquery of 3 columns"),
        ("k IN (SELECT k, v FROM whole)", "only return one column"),
        ("(k, x) < ANY (SELECT k, v FROM whole)", r"\(k, x\) < ANY .*EXISTS"),
        ("(k, x) >= ALL (SELECT k, v FROM whole)", r"\(k, x\) >= ALL .*EXISTS"),
        ("((k, x), 1) IN (SELECT k, v FROM whole)", "within a row"),
        ("(k, s) IN (SELECT k, v FROM whole)", "compares a number with text"),
        ("(random(), x) < (SELECT k, v FROM whole)", "several values"),
    ],
)
def test_rows_that_cannot_be_compared_say_so(session, condition, words):
    with pytest.raises(QueryError, match=words):
        session.sql(f"SELECT id FROM a WHERE {condition}").to_arrow()


@pytest.mark.parametrize(
    "sql", [EXISTS[4], IN[4], IN[12], QUANTIFIED[3], SCALAR[1], SCALAR[4], SCALAR[13]]
)
def test_each_row_once_over_ranks(session, duck, sql):
    assert plain(delivered(session, sql)) == plain(duck.execute(sql).fetchall())


def delivered(session, sql):
    """The rows that loaders of two ranks deliver."""
    got = []
    for rank in range(2):
        loader, _ = tq.create_dataloader(
            session.sql(sql),
            rank=rank,
            world_size=2,
            batch_size=2,
            remainder="uneven",
            output_format="arrow",
        )
        got += [row for batch in loader for row in rows_of(pa.Table.from_batches([batch]))]
    return got


def test_conditions_on_one_row_stay_split_by_split(session):
    """Correlated subqueries and IN need no stage: each process holds the other side."""
    for sql in (EXISTS[0], EXISTS[2], IN[0], IN[4], QUANTIFIED[3], ROWS[0], ROWS[5]):
        loader, _ = tq.create_dataloader(
            session.sql(sql), rank=0, world_size=1, stage="never", output_format="arrow"
        )
        assert sum(batch.num_rows for batch in loader) == session.sql(sql).count()


def test_several_rows_in_place_of_a_value_are_an_error(session):
    for sql in (
        "SELECT id, (SELECT v FROM b) AS m FROM a",
        "SELECT id, (SELECT v FROM b WHERE b.k = a.k) AS m FROM a",
        "SELECT id FROM a WHERE x > (SELECT v FROM b WHERE b.v < a.x)",
    ):
        with pytest.raises(DataError, match="more than one row"):
            session.sql(sql).to_arrow()


def test_what_cannot_be_planned_says_so(session):
    with pytest.raises(QueryError, match="outer join is not supported where it refers to both"):
        session.sql(
            "SELECT a.id FROM a LEFT JOIN b ON (SELECT count(*) FROM whole f WHERE f.k = a.k AND f.v = b.v) > 0"
        )
    with pytest.raises(QueryError, match="recursive CTE"):
        session.sql(
            "SELECT id, (WITH RECURSIVE r AS (SELECT a.k AS n UNION ALL SELECT n + 1 FROM r WHERE n < 3) "
            "SELECT count(*) FROM r) AS m FROM a"
        )
    # An aggregate of the outer query, by the standard.
    for sql in (
        "SELECT id, (SELECT max(a.x)) AS m FROM a",
        "SELECT id FROM a WHERE id IN (SELECT count(a.x) FROM b)",
        "SELECT id, (SELECT sum(a.x + a.k) FROM b WHERE b.k = a.k) AS m FROM a",
    ):
        with pytest.raises(QueryError, match="aggregate of that query by the standard"):
            session.sql(sql)
