"""Promise: lead, lag and the values of frames follow the standard, with or without IGNORE NULLS; DuckDB is the
judge."""

import functools
import random

import duckdb
import pyarrow as pa
import pytest

import tensorquery as tq

EXTREMES = [0, 1, -2, 3, 100, 2**63 - 1, -(2**63) + 1]


def table(seed, rows=60):
    rng = random.Random(seed)
    return pa.table(
        {
            "id": list(range(rows)),
            "k": [rng.randint(0, 2) for _ in range(rows)],
            "v": pa.array(
                [rng.choice([None, None, rng.randint(0, 99)]) for _ in range(rows)], pa.int64()
            ),
            "s": [rng.choice([None, "a", "bb", "ccc"]) for _ in range(rows)],
            "none": pa.array([None] * rows, pa.int64()),
        }
    )


@functools.cache
def engines(seed, rows):
    """A session and a DuckDB connection with one table."""
    session, connection = tq.Session(), duckdb.connect()
    session.register_table("t", table(seed, rows))
    connection.register("t", table(seed, rows))
    return session, connection


def both(ours, theirs=None, seed=5, rows=60):
    """Our rows of one statement, and DuckDB's of it or of another wording."""
    session, connection = engines(seed, rows)
    found = session.sql(ours).to_arrow().to_pydict()
    wanted = connection.sql(theirs or ours).fetchall()
    return sorted(zip(*found.values(), strict=True)), sorted(wanted)


@pytest.mark.slow
@pytest.mark.parametrize("function", ["lead", "lag"])
@pytest.mark.parametrize("ignored", [True, False])
@pytest.mark.parametrize("column", ["v", "s", "none"])
def test_every_offset(function, ignored, column):
    default = {"v": "-1", "s": "'none'", "none": "5"}[column]
    for offset in EXTREMES:
        for rest in (f"{offset}", f"{offset}, {default}", f"{offset}, NULL"):
            ours = f"{function}({column}, {rest})" + (" IGNORE NULLS" if ignored else "")
            theirs = f"{function}({column}, {rest}" + (" IGNORE NULLS)" if ignored else ")")
            for over in ("ORDER BY id", "PARTITION BY k ORDER BY id", "ORDER BY id DESC"):
                sql = "SELECT id, {} OVER (" + over + ") AS r FROM t ORDER BY id"
                found, wanted = both(sql.format(ours), sql.format(theirs))
                assert repr(found) == repr(wanted), (ours, over)


def test_the_least_offset():
    rows = table(2, 5)
    for function in ("lead", "lag"):
        for ignored in ("", " IGNORE NULLS"):
            sql = f"SELECT {function}(id, -9223372036854775808, -7){ignored} OVER (ORDER BY id) AS r FROM t"
            session = tq.Session()
            session.register_table("t", rows)
            assert session.sql(sql).to_arrow()["r"].to_pylist() == [-7] * 5


def test_an_offset_of_null_gives_null():
    found, wanted = both("SELECT id, lead(id, NULL) OVER (ORDER BY id) AS r FROM t")
    assert repr(found) == repr(wanted)


def test_several_at_once_over_many_rows():
    ours = "SELECT id, lead(v, 2) IGNORE NULLS OVER w AS a, lag(v, 3, 0) OVER w AS b, lag(v) IGNORE NULLS OVER w AS c FROM t WINDOW w AS (PARTITION BY k ORDER BY id)"
    theirs = "SELECT id, lead(v, 2 IGNORE NULLS) OVER w AS a, lag(v, 3, 0) OVER w AS b, lag(v IGNORE NULLS) OVER w AS c FROM t WINDOW w AS (PARTITION BY k ORDER BY id)"
    found, wanted = both(ours, theirs, 9, 20_000)
    assert repr(found) == repr(wanted)


FRAMES = [
    "",
    "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
    "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING",
    "ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
    "ROWS BETWEEN 2 PRECEDING AND 1 FOLLOWING",
    "ROWS BETWEEN 3 PRECEDING AND 2 PRECEDING",
    "ROWS BETWEEN 1 FOLLOWING AND 3 FOLLOWING",
]


@pytest.mark.parametrize(
    "call", ["first_value(v{})", "last_value(v{})", "nth_value(v, 2{})", "nth_value(v, 5{})"]
)
@pytest.mark.parametrize("frame", FRAMES)
def test_values_of_frames(call, frame):
    for ignored in (True, False):
        ours = call.format("") + (" IGNORE NULLS" if ignored else "")
        theirs = call.format(" IGNORE NULLS" if ignored else "")
        for part in ("", "PARTITION BY k "):
            sql = "SELECT id, {} OVER (" + part + "ORDER BY id " + frame + ") AS r FROM t"
            found, wanted = both(sql.format(ours), sql.format(theirs))
            assert repr(found) == repr(wanted), (ours, frame)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("lead(v, id)", "constant integer"),
        ("lead(v, 1.5)", "constant integer"),
        ("lag(v, 1, 1.5)", "does not fit the value's type Int64"),
        ("lag(v, 1, id)", "is no constant"),
        ("nth_value(v, 0)", "1 or more"),
        ("nth_value(v, -1)", "1 or more"),
        ("nth_value(v, -9223372036854775808)", "1 or more"),
    ],
)
def test_other_arguments_are_refused(call, message):
    session = tq.Session()
    session.register_table("t", table(1, 5))
    with pytest.raises(tq.TensorQueryError, match=message):
        session.sql(f"SELECT {call} OVER (ORDER BY id) AS r FROM t").to_arrow()
