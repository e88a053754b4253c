"""Lists and structs are compared, ordered and grouped as DuckDB and PostgreSQL do: NULL in them is above all values, zeros are equal.

Promise 1 (docs/promises.md): the rows of the query.
"""

import struct

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tensorquery as tq

NAN = struct.unpack("d", struct.pack("Q", 0xFFF8000000000000))[0]
"""A NaN with a sign, as processors make it."""

ROWS = pa.table(
    {
        "i": range(8),
        "g": [0, 1, 0, 1, 0, 1, 0, 1],
        "s": pa.array(
            [
                {"a": 1.0, "b": "x"},
                {"a": 2.0, "b": None},
                {"a": None, "b": "y"},
                {"a": 0.0, "b": "x"},
                {"a": -0.0, "b": "x"},
                None,
                {"a": NAN, "b": "z"},
                {"a": float("nan"), "b": "z"},
            ],
            pa.struct([("a", pa.float64()), ("b", pa.string())]),
        ),
        "l": [[1, 2], [], [None], [0, None], [0, 5], None, [1], [-3]],
        "f": [[1.0], [-0.0], [0.0], [None], [NAN], [float("nan")], [], None],
        "n": [
            [{"a": 1}],
            [{"a": None}],
            None,
            [],
            [{"a": 1}, None],
            [None],
            [{"a": 0}],
            [{"a": 2}],
        ],
    }
)


@pytest.fixture(params=["memory", "parquet"])
def session(request, tmp_path):
    session = tq.Session()
    if request.param == "memory":
        session.register_table("t", ROWS)
    else:
        # Several batches: what is left out by the first shows.
        pq.write_table(ROWS, tmp_path / "t.parquet", row_group_size=2)
        session.register_parquet("t", tmp_path / "t.parquet")
    return session


def texts(table):
    """Rows as texts; zeros of both signs have one text, and so have NaNs."""
    return [
        str(list(row.values())).replace("-0.0", "0.0").replace("-nan", "nan")
        for row in table.to_pylist()
    ]


def by_duckdb(sql):
    with duckdb.connect() as connection:
        connection.register("t", ROWS)
        return texts(connection.sql(sql).to_arrow_table())


def check(session, sql, ordered=False):
    found, expected = texts(session.sql(sql).to_arrow()), by_duckdb(sql)
    if not ordered:
        found, expected = sorted(found), sorted(expected)
    assert found == expected, sql


COLUMNS = ["s", "l", "f", "n"]


@pytest.mark.slow
@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("operator", ["<", "<=", ">", ">=", "=", "<>", "IS NOT DISTINCT FROM"])
def test_comparisons(session, column, operator):
    condition = f"x.{column} {operator} y.{column}"
    check(session, f"SELECT x.i, y.i AS j FROM t AS x JOIN t AS y ON {condition}")
    check(session, f"SELECT x.i, y.i AS j FROM t AS x, t AS y WHERE NOT ({condition})")
    check(session, f"SELECT x.i, y.i AS j, {condition} AS c FROM t AS x, t AS y")


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("negated", ["", "NOT "])
def test_between(session, column, negated):
    between = f"x.{column} {negated}BETWEEN y.{column} AND z.{column}"
    check(session, f"SELECT x.i, y.i AS j, z.i AS k FROM t AS x, t AS y, t AS z WHERE {between}")


@pytest.mark.slow
@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize(
    "end", ["ASC NULLS LAST", "ASC NULLS FIRST", "DESC NULLS LAST", "DESC NULLS FIRST"]
)
def test_orders_and_limits(session, column, end):
    order = f"ORDER BY {column} {end}, i"
    check(session, f"SELECT i FROM t {order}", ordered=True)
    for limit in (1, 3, 6):
        check(session, f"SELECT i FROM t {order} LIMIT {limit}", ordered=True)
    check(session, f"SELECT i FROM t {order} LIMIT 3 OFFSET 2", ordered=True)
    numbered = f"SELECT i, row_number() OVER ({order} ROWS UNBOUNDED PRECEDING) AS r FROM t"
    check(session, f"SELECT array_agg(i ORDER BY r) AS a FROM ({numbered}) AS q")


@pytest.mark.slow
@pytest.mark.parametrize("column", COLUMNS)
def test_extremes_and_groups(session, column):
    check(session, f"SELECT min({column}) AS a, max({column}) AS b FROM t")
    check(session, f"SELECT min({column}) AS a FROM t WHERE i > 100")
    check(session, f"SELECT g, max({column}) FILTER (WHERE i < 5) AS a FROM t GROUP BY g")
    check(session, f"SELECT {column}, count(*) AS c FROM t GROUP BY {column}")
    check(session, f"SELECT DISTINCT {column} FROM t")
    check(session, f"SELECT count(DISTINCT {column}) AS n FROM t")
    check(session, f"SELECT {column}, g, count(*) AS c FROM t GROUP BY ROLLUP ({column}, g)")
    check(session, f"SELECT x.i, y.i AS j FROM t AS x JOIN t AS y USING ({column})")
    check(session, f"SELECT i, count(*) OVER (PARTITION BY {column}) AS n FROM t")


@pytest.mark.parametrize("column", COLUMNS)
def test_ranks(session, column):
    check(session, f"SELECT i, rank() OVER (ORDER BY {column} NULLS LAST) AS r FROM t")
    check(session, f"SELECT i, rank() OVER (ORDER BY {column} NULLS FIRST) AS r FROM t")


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        (
            "SELECT i, max(l) OVER (PARTITION BY g) AS m FROM t",
            "max.. OVER .* of lists.*first_value",
        ),
        ("SELECT array_agg(i ORDER BY l) AS m FROM t", "array_agg.*row_number"),
        ("SELECT greatest(l, l) AS m FROM t", "greatest.*CASE WHEN"),
        ("SELECT nullif(s, s) AS m FROM t", "nullif.*CASE WHEN"),
    ],
)
def test_what_has_no_order_is_refused_by_name(session, sql, told):
    with pytest.raises(tq.QueryError, match=told):
        session.sql(sql).to_arrow()


FLOATS = {
    "t": pa.table({"i": range(4), "x": [0.0, -0.0, float("nan"), NAN], "k": [1, 1, 2, 2]}),
    "u": pa.table({"x": [-0.0, float("nan")], "j": [1, 2]}),
}


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT x, count(*) AS c FROM t GROUP BY ROLLUP (x)",
        "SELECT x, k, count(*) AS n, grouping(x) AS g FROM t GROUP BY GROUPING SETS ((x), (k), (x, k), (x))",
        "SELECT x * -1 AS y, count(*) AS c FROM t GROUP BY CUBE (x * -1, k)",
        "SELECT x, count(*) AS c FROM t GROUP BY k, ROLLUP (x) HAVING x = 0",
        "SELECT i, j, x FROM t JOIN u USING (x)",
        "SELECT i, j, x FROM t NATURAL JOIN u",
        "SELECT i, j, x FROM t FULL JOIN u USING (x)",
        "SELECT i, x FROM t SEMI JOIN u USING (x)",
    ],
)
def test_zeros_and_nan_in_using_and_in_grouping_sets(sql):
    session = tq.Session()
    with duckdb.connect() as connection:
        for name, rows in FLOATS.items():
            session.register_table(name, rows)
            connection.register(name, rows)
        expected = texts(connection.sql(sql).to_arrow_table())
    assert sorted(texts(session.sql(sql).to_arrow())) == sorted(expected)
