"""Promise: row values are compared as the standard says, NULL being unknown; SQLite is the judge."""

import random
import sqlite3

import pyarrow as pa
import pytest

import tensorquery as tq

VALUES = [None, 1, 2, 3]
NAMES = ("id", "a", "b", "c")


@pytest.fixture(scope="module")
def tables():
    """A session and an SQLite connection with equal rows."""
    rng = random.Random(1)
    data = [(i, *(rng.choice(VALUES) for _ in range(3))) for i in range(40)]
    session = tq.Session()
    session.register_table("t", pa.table({n: [r[i] for r in data] for i, n in enumerate(NAMES)}))
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE t (id INTEGER, a INTEGER, b INTEGER, c INTEGER)")
    connection.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", data)
    yield session, connection
    connection.close()


@pytest.fixture(scope="module")
def judged(tables):
    """A function that runs one statement here and in SQLite."""
    session, connection = tables

    def both(sql):
        found = session.sql(sql).to_arrow().to_pydict()
        ours = zip(*found.values(), strict=True)
        return sorted(ours, key=repr), sorted(connection.execute(sql).fetchall(), key=repr)

    return both


def row(rng, length):
    return (
        "(" + ", ".join(rng.choice(["a", "b", "c", "1", "2", "NULL"]) for _ in range(length)) + ")"
    )


@pytest.mark.slow
def test_random_comparisons(judged):
    rng = random.Random(7)
    for _ in range(120):
        length = rng.choice([2, 2, 3])
        left, right = row(rng, length), row(rng, length)
        condition = f"{left} {rng.choice(['=', '<>', '<', '<=', '>', '>='])} {right}"
        if rng.random() < 0.3:
            condition = f"NOT ({condition})"
        if rng.random() < 0.3:
            condition = f"{condition} OR (a, b) = (1, 2)"
        ours, theirs = judged(f"SELECT id FROM t WHERE {condition}")
        assert ours == theirs, condition
        ours, theirs = judged(f"SELECT id, ({condition}) IS NULL AS u FROM t")
        assert [(i, int(u)) for i, u in ours] == theirs, condition


@pytest.mark.parametrize("negated", ["", "NOT "])
def test_between(judged, negated):
    ours, theirs = judged(f"SELECT id FROM t WHERE (a, b) {negated}BETWEEN (1, 2) AND (2, NULL)")
    assert ours == theirs


@pytest.mark.parametrize(
    ("condition", "written_out"),
    [
        (
            "(a, b) IN ((1, 2), (2, NULL), (3, 3))",
            "(a=1 AND b=2) OR (a=2 AND b=NULL) OR (a=3 AND b=3)",
        ),
        ("(a, b) NOT IN ((1, 2), (2, NULL))", "NOT ((a=1 AND b=2) OR (a=2 AND b=NULL))"),
        ("(a, (b, c)) = (1, (2, 3))", "a=1 AND b=2 AND c=3"),
        ("(a, (b, c)) < (1, (2, 3))", "a<1 OR (a=1 AND (b<2 OR (b=2 AND c<3)))"),
        ("(a, b) IS NULL", "a IS NULL AND b IS NULL"),
        ("(a, b) IS NOT NULL", "a IS NOT NULL AND b IS NOT NULL"),
        ("(a, b) IS DISTINCT FROM (1, NULL)", "a IS NOT 1 OR b IS NOT NULL"),
        ("(a, b) IS NOT DISTINCT FROM (1, NULL)", "a IS 1 AND b IS NULL"),
        (
            "CASE (a, b) WHEN (1, 2) THEN true WHEN (2, NULL) THEN true ELSE false END",
            "a=1 AND b=2",
        ),
    ],
)
def test_other_forms(tables, condition, written_out):
    session, connection = tables
    ours = session.sql(f"SELECT id FROM t WHERE {condition}").to_arrow().to_pydict()["id"]
    theirs = connection.execute(f"SELECT id FROM t WHERE {written_out}").fetchall()
    assert sorted((i,) for i in ours) == sorted(theirs)
    assert len(ours) < 40


def test_a_join_by_rows(judged):
    sql = "SELECT x.id AS i, y.id AS j FROM t x JOIN t y ON (x.a, x.b) {} (y.b, y.c)"
    for op in ("=", "<"):
        ours, theirs = judged(sql.format(op))
        assert ours == theirs
        assert ours


@pytest.mark.slow
def test_thousands_of_rows_in_a_list(tables):
    session, connection = tables
    listed = ", ".join(f"({i}, {i % 3})" for i in range(3000))
    ours = session.sql(f"SELECT id FROM t WHERE (a, b) IN ({listed})").to_arrow().to_pydict()["id"]
    theirs = connection.execute(f"SELECT id FROM t WHERE (a, b) IN (VALUES {listed})").fetchall()
    assert sorted((i,) for i in ours) == sorted(theirs)


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("(a, b) = (1, 2, 3)", "only rows of one length"),
        ("(a, b) IN (1, 2)", "only one is a row"),
        ("(random(), b) < (1, 2)", "several values"),
    ],
)
def test_what_is_no_comparison_of_rows_is_refused(condition, message):
    session = tq.Session()
    session.register_table("t", pa.table({"a": [1], "b": [2]}))
    with pytest.raises(tq.QueryError, match=message):
        session.sql(f"SELECT a FROM t WHERE {condition}")
