"""Promise: SQL that the engine misreads, or fails on, has the standard's meaning here."""

import datetime as dt

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tensorquery as tq
from tensorquery.errors import QueryError

ROWS = pa.table(
    {
        "a": [1, 1, 2, None],
        "b": ["x", "y", "x", None],
        "v": [0, 5, 7, None],
        "s": ["50%", "5_0", "a!b", "50\\"],
    }
)


@pytest.fixture
def session():
    session = tq.Session()
    session.register_table("t", ROWS)
    return session


def duck(sql):
    connection = duckdb.connect()
    connection.register("t", ROWS)
    return sorted(connection.execute(sql).fetchall(), key=repr)


def rows(session, sql):
    return sorted(
        (tuple(row.values()) for row in session.sql(sql).to_arrow().to_pylist()), key=repr
    )


@pytest.mark.parametrize("where", ["a > 5", "a = 1", "true"])
@pytest.mark.parametrize(
    "grouped",
    [
        "SELECT a, count(*) AS n, sum(v) AS s FROM t WHERE {} GROUP BY ROLLUP (a)",
        "SELECT a, b, count(v) AS n, max(v) AS m FROM t WHERE {} GROUP BY CUBE (a, b)",
        "SELECT a, b, grouping(a) AS g, count(*) AS n FROM t WHERE {} GROUP BY GROUPING SETS ((a, b), (a), ())",
        "SELECT a, grouping(a, b) AS g, count(*) FILTER (WHERE v > 1) AS n FROM t WHERE {} GROUP BY ROLLUP (a, b)",
        "SELECT a, count(*) AS n FROM t WHERE {} GROUP BY ROLLUP (a) HAVING count(*) < 2",
    ],
)
def test_a_set_of_all_rows_has_a_row_though_there_is_none(session, grouped, where):
    sql = grouped.format(where)
    assert rows(session, sql) == duck(sql)


@pytest.mark.parametrize(
    "pattern", ["'50!%' ESCAPE '!'", "'5!_0' ESCAPE '!'", "'a!!%' ESCAPE '!'", r"'50\' ESCAPE '!'"]
)
@pytest.mark.parametrize("operator", ["LIKE", "NOT LIKE", "ILIKE"])
def test_any_character_may_be_the_escape(session, operator, pattern):
    sql = f"SELECT s FROM t WHERE s {operator} {pattern}"
    assert rows(session, sql) == duck(sql)


def test_a_pattern_that_ends_with_its_escape_is_refused_when_it_is_planned(session):
    with pytest.raises(QueryError, match="ends with its escape '!'"):
        session.sql("SELECT s FROM t WHERE s LIKE '5!' ESCAPE '!'")
    with pytest.raises(QueryError, match="must be a text in quotes"):
        session.sql("SELECT s FROM t WHERE s LIKE b ESCAPE '!'")


@pytest.mark.parametrize("kind", ["TINYINT", "INTEGER", "BIGINT"])
def test_the_median_of_integers_is_no_integer(session, kind):
    for sql in (
        f"SELECT median(CAST(v AS {kind})) AS m FROM t",
        f"SELECT a, median(CAST(v AS {kind})) AS m FROM t GROUP BY a",
    ):
        assert rows(session, sql) == duck(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT DISTINCT ON (a) a AS d, a AS i FROM t ORDER BY a NULLS FIRST, a DESC",
        "SELECT a, first_value(b ORDER BY v, v DESC) AS f FROM t GROUP BY a",
        "SELECT a, row_number() OVER (ORDER BY v NULLS LAST, v DESC) AS n FROM t",
        "SELECT a FROM t ORDER BY a, a DESC",
    ],
)
def test_an_order_may_name_a_column_twice(session, sql):
    assert rows(session, sql) == duck(sql.replace("first_value(b ORDER", "first(b ORDER"))


def test_notes_beside_a_schema_do_not_tell_tables_apart(tmp_path):
    session = tq.Session()
    for name, keys in {"f": [0, 1, 1], "g": [1, 2]}.items():
        for number, key in enumerate(keys):
            (tmp_path / name).mkdir(exist_ok=True)
            one = pa.table({"k": [key]}).replace_schema_metadata({"of": f"{name}{number}"})
            pq.write_table(one, tmp_path / name / f"{number}.parquet")
        session.register_parquet(name, tmp_path / name)
    noted = pa.table({"k": [2, 3]}).replace_schema_metadata({"of": "memory"})
    session.register_table("m", noted)
    for sql, want in {
        "SELECT f.k AS a, g.k AS b FROM f FULL JOIN g ON f.k = g.k": [
            (0, None),
            (1, 1),
            (1, 1),
            (None, 2),
        ],
        "SELECT k FROM f GROUP BY k HAVING max(k) >= (SELECT min(k) FROM g)": [(1,)],
        "SELECT g.k AS a, m.k AS b FROM g FULL JOIN m ON g.k = m.k": [(1, None), (2, 2), (None, 3)],
    }.items():
        assert rows(session, sql) == sorted(want, key=repr)


def test_at_time_zone_of_an_instant_is_what_clocks_show():
    instants = [dt.datetime(2024, 2, 29, 10, 30, 45, tzinfo=dt.UTC), None]
    for unit in ("s", "ms", "us", "ns"):
        session = tq.Session()
        table = pa.table(
            {
                "tz": pa.array(instants, pa.timestamp(unit, "America/New_York")),
                "ts": pa.array([dt.datetime(2024, 2, 29, 10, 30, 45), None], pa.timestamp(unit)),
            }
        )
        session.register_table("t", table)
        shown = session.sql("SELECT tz AT TIME ZONE 'Europe/Berlin' AS r FROM t").to_arrow()["r"]
        assert shown.type == pa.timestamp(unit)
        assert shown.cast(pa.timestamp("us")).to_pylist() == [
            dt.datetime(2024, 2, 29, 11, 30, 45),
            None,
        ]
        instant = session.sql("SELECT ts AT TIME ZONE 'Europe/Berlin' AS r FROM t").to_arrow()["r"]
        assert instant.type == pa.timestamp(unit, "Europe/Berlin")
        both = "ts AT TIME ZONE 'Europe/Berlin' AT TIME ZONE 'Europe/Berlin' = ts"
        assert session.sql(f"SELECT ts FROM t WHERE {both}").count() == 1
        hours = "extract(hour FROM tz AT TIME ZONE 'Asia/Tokyo') = 19"
        assert session.sql(f"SELECT ts FROM t WHERE {hours}").count() == 1
