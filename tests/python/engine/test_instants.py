"""Promise: a time is one value in any unit, zone and spelling; DuckDB in UTC is the judge."""

import datetime as dt
import itertools

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import tensorquery as tq

UTC = dt.UTC
OPERATORS = ("<", "<=", "=", "<>", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM")


def ids(session, where, table="t"):
    return sorted(session.sql(f"SELECT id FROM {table} WHERE {where}").to_arrow()["id"].to_pylist())


# --- beyond 2262 ---

LATE = [
    dt.datetime(1600, 1, 1),
    dt.datetime(2020, 1, 1),
    dt.datetime(2262, 4, 12),
    dt.datetime(9999, 12, 31),
    None,
    dt.datetime(9999, 12, 31, 23, 59, 59),
]
CONSTANTS = [
    "'9999-12-31'",
    "TIMESTAMP '9999-12-31'",
    "TIMESTAMP '9999-12-31 00:00:00'",
    "DATE '9999-12-31'",
    "CAST('9999-12-31' AS TIMESTAMP)",
    "'2020-01-01'",
    "TIMESTAMP '2020-01-01 00:00:00.000000001'",
    "TIMESTAMP '1600-01-01'",
    "DATE '0001-01-01'",
]


@pytest.fixture(scope="module", params=["s", "ms", "us"])
def late(request, tmp_path_factory):
    """Rows with times after 2262, in Parquet and in DuckDB."""
    values = pa.array(LATE, pa.timestamp(request.param))
    days = pa.array([None if v is None else v.date() for v in LATE], pa.date32())
    rows = pa.table({"id": range(len(LATE)), "t": values, "d": days})
    path = tmp_path_factory.mktemp("late") / "t.parquet"
    pq.write_table(rows, path, row_group_size=2)
    session = tq.Session()
    session.register_parquet("t", path)
    connection = duckdb.connect()
    connection.register("t", rows)
    yield session, connection
    connection.close()


def judged(late, where):
    session, connection = late
    theirs = connection.sql(f"SELECT id FROM t WHERE {where}").fetchall()
    assert ids(session, where) == sorted(i for (i,) in theirs), where


@pytest.mark.slow
@pytest.mark.parametrize("column", ["t", "d"])
def test_constants_after_2262(late, column):
    for op, constant in itertools.product(OPERATORS, CONSTANTS):
        if "000000001" in constant:
            # DuckDB cuts nanoseconds off.
            continue
        judged(late, f"{column} {op} {constant}")
        judged(late, f"{constant} {op} {column}")
    for low, high in itertools.product(
        CONSTANTS[:1] + CONSTANTS[5:6] + CONSTANTS[7:], CONSTANTS[:5]
    ):
        judged(late, f"{column} BETWEEN {low} AND {high}")
        judged(late, f"{column} NOT BETWEEN {low} AND {high}")
    judged(late, f"{column} IN ('9999-12-31', '2020-01-01')")
    judged(late, f"{column} NOT IN (DATE '9999-12-31', DATE '2020-01-01')")
    judged(late, "t = d")
    judged(late, "t > d")
    judged(late, "CASE t WHEN DATE '9999-12-31' THEN true ELSE false END")


def test_constants_between_two_values(late):
    session, _ = late
    for op, wanted in (("<", [0, 1]), (">", [2, 3, 5]), ("=", []), ("<>", [0, 1, 2, 3, 5])):
        assert ids(session, f"t {op} TIMESTAMP '2020-01-01 00:00:00.000000001'") == wanted
    fine = "'9999-12-31 00:00:00.000000001'"
    for op, wanted in (("<", [0, 1, 2, 3]), (">", [5]), ("=", []), ("<>", [0, 1, 2, 3, 5])):
        assert ids(session, f"t {op} {fine}") == wanted
    assert ids(session, f"t IN ({fine})") == []
    assert ids(session, f"t NOT IN ({fine})") == [0, 1, 2, 3, 5]
    assert ids(session, f"t NOT IN ({fine}, NULL)") == []
    assert ids(session, f"t BETWEEN '2020-01-01' AND {fine}") == [1, 2, 3]


def test_columns_of_nanoseconds_and_constants_beyond_them():
    session = tq.Session()
    session.register_table(
        "t", pa.table({"id": [0, 1, 2], "t": pa.array([0, 2**63 - 1, None], pa.timestamp("ns"))})
    )
    for constant, is_after in (
        ("'9999-12-31'", True),
        ("TIMESTAMP '9999-12-31'", True),
        ("DATE '0001-01-01'", False),
    ):
        for op in ("<", "<=", "<>", "IS DISTINCT FROM"):
            known = [0, 1] if is_after or op == "<>" else []
            if op == "IS DISTINCT FROM":
                known = [0, 1, 2]
            assert ids(session, f"t {op} {constant}") == known
        for op in (">", ">=", "="):
            assert ids(session, f"t {op} {constant}") == ([] if is_after or op == "=" else [0, 1])
    assert ids(session, "t BETWEEN DATE '0001-01-01' AND DATE '9999-12-31'") == [0, 1]
    assert ids(session, "t IN (DATE '9999-12-31', TIMESTAMP '1970-01-01')") == [0]


def test_filters_after_2262(tmp_path):
    rows = pa.table({"id": range(3), "t": pa.array([LATE[1], LATE[3], None], pa.timestamp("us"))})
    pq.write_table(rows, tmp_path / "t.parquet")
    end = dt.datetime(9999, 12, 31)
    forms = [
        "t < '9999-12-31'",
        [("t", "<", "9999-12-31")],
        [("t", "<", end)],
        [("t", "<", end.date())],
        pc.field("t") < end,
        pc.field("t") < pa.scalar(end.date()),
    ]
    for filters in forms:
        batches, *_ = tq.create_dataloader(path=str(tmp_path), columns=["id"], filters=filters)
        assert [i for batch in batches for i in batch["id"].tolist()] == [0], filters


def test_dates_that_nanoseconds_do_not_reach_are_named():
    session = tq.Session()
    session.register_table("t", pa.table({"id": [0], "d": [dt.date(9999, 12, 31)]}))
    with pytest.raises(tq.TensorQueryError, match="9999-12-31 is beyond"):
        session.sql("SELECT CAST(d AS TIMESTAMP) AS r FROM t").to_arrow()
    assert session.sql("SELECT TRY_CAST(d AS TIMESTAMP) AS r FROM t").to_arrow()[
        "r"
    ].to_pylist() == [None]
    exact = session.sql("SELECT arrow_cast(d, 'Timestamp(Microsecond, None)') AS r FROM t")
    assert exact.to_arrow()["r"].to_pylist() == [dt.datetime(9999, 12, 31)]
    assert session.sql("SELECT TIMESTAMP '9999-12-31 12:00:00' AS r").to_arrow()[
        "r"
    ].to_pylist() == [dt.datetime(9999, 12, 31, 12)]


# --- before 1970 ---


@pytest.mark.parametrize("form", ["arrow_cast", "schema", "int96"])
def test_a_value_cast_to_a_coarser_unit_is_one_value(tmp_path, form):
    numbers = [-2001, -2000, -1999, -1001, -1000, -999, -1, 0, 1, 999, 1000, 1001, None]
    rows = pa.table({"id": range(len(numbers)), "t": pa.array(numbers, pa.timestamp("ns"))})
    pq.write_table(
        rows,
        tmp_path / "t.parquet",
        row_group_size=3,
        use_deprecated_int96_timestamps=form == "int96",
    )
    session = tq.Session()
    unit = "Timestamp(Microsecond, None)"
    e = f"arrow_cast(t, '{unit}')" if form == "arrow_cast" else "t"
    schema = pa.schema([("id", pa.int64()), ("t", pa.timestamp("us"))])
    session.register_parquet("t", tmp_path, **({} if form == "arrow_cast" else {"schema": schema}))
    shown = session.sql(f"SELECT id, {e} AS r FROM t").to_arrow()
    values = dict(
        zip(shown["id"].to_pylist(), shown["r"].cast(pa.int64()).to_pylist(), strict=True)
    )
    compare = {
        "<": int.__lt__,
        "<=": int.__le__,
        "=": int.__eq__,
        "<>": int.__ne__,
        ">": int.__gt__,
        ">=": int.__ge__,
    }
    for bound in (-2, -1, 0, 1):
        constant = f"arrow_cast({bound}, '{unit}')"
        for op, judge in compare.items():
            wanted = sorted(i for i, v in values.items() if v is not None and judge(v, bound))
            assert ids(session, f"{e} {op} {constant}") == wanted, (op, bound)
        assert ids(session, f"{e} IN ({constant}, NULL)") == [
            i for i, v in values.items() if v == bound
        ]
    grouped = session.sql(f"SELECT {e} AS r, count(*) AS n FROM t GROUP BY {e}").to_arrow()
    assert grouped.num_rows == len(set(values.values()))
    session.register_table("u", pa.table({"u": pa.array([-2, -1, 0, 1], pa.timestamp("us"))}))
    joined = session.sql(f"SELECT id FROM t JOIN u ON {e} = u").to_arrow().num_rows
    assert joined == sum(v is not None and -2 <= v <= 1 for v in values.values())


# --- zones ---

ZONES = ["UTC", "America/Denver", "Asia/Kathmandu", "+05:30", None]


@pytest.fixture(scope="module")
def zoned(tmp_path_factory):
    """Equal hours in columns of several zones."""
    hours = [dt.datetime(2024, 3, 10) + dt.timedelta(hours=h) for h in range(24)]
    columns = {"id": range(24)}
    for number, zone in enumerate(ZONES):
        column = pa.array(hours, pa.timestamp("us"))
        if zone:
            column = column.cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us", zone))
        columns[f"z{number}"] = column
    columns["shifted"] = pa.array(
        [h + dt.timedelta(minutes=30) for h in hours], pa.timestamp("ms", "UTC")
    )
    path = tmp_path_factory.mktemp("zoned") / "t.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=5)
    session = tq.Session()
    session.register_parquet("t", path)
    session.register_table("m", pa.table(columns))
    return session


INSTANTS = [
    "'2024-03-10T06:00:00Z'",
    "TIMESTAMPTZ '2024-03-10 06:00:00Z'",
    "'2024-03-10T06:00:00Z'::timestamptz",
    "TIMESTAMPTZ '2024-03-10 00:00:00-06:00'",
    "CAST('2024-03-10 11:30:00+05:30' AS TIMESTAMP WITH TIME ZONE)",
    "to_timestamp(1710050400)",
    "TIMESTAMP '2024-03-10 06:00:00'",
    "'2024-03-10 06:00:00'",
    "arrow_cast('2024-03-10T06:00:00', 'Timestamp(Millisecond, Some(\"UTC\"))')",
]


@pytest.mark.slow
@pytest.mark.parametrize("table", ["t", "m"])
def test_instants_compare_as_instants(zoned, table):
    for number, instant in itertools.product(range(len(ZONES)), INSTANTS):
        column = f"z{number}"
        assert ids(zoned, f"{column} >= {instant}", table) == list(range(6, 24)), (column, instant)
        assert ids(zoned, f"{instant} > {column}", table) == list(range(6))
        assert ids(zoned, f"{column} = {instant}", table) == [6]
        assert ids(zoned, f"{column} IN ({instant})", table) == [6]
        assert ids(zoned, f"{column} BETWEEN {instant} AND {instant}", table) == [6]
        assert ids(zoned, f"{column} IS NOT DISTINCT FROM {instant}", table) == [6]
        assert ids(zoned, f"CASE {column} WHEN {instant} THEN true ELSE false END", table) == [6]
        assert ids(zoned, f"greatest({column}, {instant}) = {column}", table) == list(range(6, 24))


def test_dates_beside_zones_are_those_of_utc(zoned):
    for number in range(len(ZONES)):
        assert ids(zoned, f"z{number} > DATE '2024-03-10'") == list(range(1, 24))
        assert ids(zoned, f"z{number} = DATE '2024-03-10'") == [0]
        assert ids(zoned, f"z{number} < '2024-03-10'") == []


@pytest.mark.slow
def test_columns_of_different_zones_meet(zoned):
    for a, b in itertools.permutations(range(len(ZONES)), 2):
        assert ids(zoned, f"z{a} = z{b}") == list(range(24))
        assert ids(zoned, f"z{a} < shifted AND shifted > z{b}") == list(range(24))
        joined = zoned.sql(f"SELECT t.id FROM t JOIN m ON t.z{a} = m.z{b} WHERE t.id = m.id")
        assert joined.to_arrow().num_rows == 24
        inside = zoned.sql(f"SELECT id FROM t WHERE z{a} IN (SELECT z{b} FROM m WHERE id < 5)")
        assert sorted(inside.to_arrow()["id"].to_pylist()) == list(range(5))
        union = zoned.sql(f"SELECT z{a} AS z FROM t UNION SELECT z{b} FROM m")
        assert union.to_arrow().num_rows == 24
        chosen = zoned.sql(f"SELECT id FROM t WHERE coalesce(z{a}, z{b}) = z{b}")
        assert chosen.to_arrow().num_rows == 24
        apart = zoned.sql(f"SELECT DISTINCT z{a} - z{b} AS r FROM t").to_arrow()["r"]
        assert apart.cast(pa.int64()).to_pylist() == [0]
        top = zoned.sql(f"SELECT max(z{a}) = max(z{b}) AS r, min(z{a}) = min(z{b}) AS q FROM t")
        assert top.to_arrow().to_pylist() == [{"r": True, "q": True}]


# --- local times ---


@pytest.mark.parametrize(
    ("value", "why"),
    [("2024-03-31 02:30:00", "does not exist"), ("2024-10-27 02:30:00", "exists twice")],
)
def test_local_times_that_clocks_skip_or_repeat_are_named(value, why):
    session = tq.Session()
    local = pa.array(
        [dt.datetime(2024, 1, 1), dt.datetime.fromisoformat(value)], pa.timestamp("ms")
    )
    session.register_table(
        "t", pa.table({"id": [0, 1], "x": local, "s": ["2024-01-01T00:00:00", value]})
    )
    zone = "'Europe/Berlin'"
    for e in (
        f"x AT TIME ZONE {zone}",
        f"s AT TIME ZONE {zone}",
        f"'{value}' AT TIME ZONE {zone}",
        f"TIMESTAMP '{value}' AT TIME ZONE {zone}",
        "arrow_cast(x, 'Timestamp(Millisecond, Some(\"Europe/Berlin\"))')",
    ):
        with pytest.raises(tq.TensorQueryError, match=rf"02:30.*Europe/Berlin.*{why}"):
            session.sql(f"SELECT {e} AS r FROM t").to_arrow()
    sound = session.sql(f"SELECT x AT TIME ZONE {zone} AS r FROM t WHERE id = 0").to_arrow()
    assert sound["r"].type == pa.timestamp("ms", "Europe/Berlin")
    assert sound["r"].cast(pa.int64()).to_pylist() == [1704063600 * 10**3]


# --- intervals ---


def test_months_end_where_they_end():
    stamps = [
        "2024-01-31",
        "2024-02-29",
        "2023-12-31 23:59:59.5",
        "2024-03-31",
        "1969-12-31",
        "2024-10-31",
    ]
    rows = pa.table(
        {
            "id": range(6),
            "t": pa.array([dt.datetime.fromisoformat(s) for s in stamps], pa.timestamp("us")),
        }
    )
    rows = rows.append_column(
        "d", rows["t"].cast(pa.timestamp("s"), safe=False).cast(pa.date32(), safe=False)
    )
    session = tq.Session()
    session.register_table("t", rows)
    with duckdb.connect() as connection:
        connection.register("t", rows)
        for sign, interval in itertools.product(
            "+-",
            [
                "1 month",
                "1 year",
                "13 months",
                "1 month 1 day",
                "2 days",
                "1 day 12 hours",
                "1 month 36 hours",
            ],
        ):
            sql = f"SELECT id, t {sign} INTERVAL '{interval}' AS r FROM t ORDER BY id"
            ours = session.sql(sql).to_arrow()["r"].to_pylist()
            assert ours == [r for _, r in connection.sql(sql).fetchall()], sql
            if "hours" not in interval:
                sql = f"SELECT id, d {sign} INTERVAL '{interval}' AS r FROM t ORDER BY id"
                ours = session.sql(sql).to_arrow()["r"].to_pylist()
                assert ours == [r.date() for _, r in connection.sql(sql).fetchall()], sql


@pytest.mark.slow
def test_intervals_are_compared_by_their_length():
    base = dt.datetime(2024, 1, 1)
    hours = [0, 1, 23, 24, 25, 48, 719, 720, 721, None]
    later = pa.array(
        [None if h is None else base + dt.timedelta(hours=h) for h in hours], pa.timestamp("us")
    )
    rows = pa.table(
        {
            "id": range(len(hours)),
            "a": pa.array([base] * len(hours), pa.timestamp("us")),
            "b": later,
        }
    )
    session = tq.Session()
    session.register_table("t", rows)
    bounds = ["1 day", "24 hours", "1 month", "30 days", "25 hours", "0 days"]
    with duckdb.connect() as connection:
        connection.register("t", rows)
        conditions = [f"b - a {op} INTERVAL '{bound}'" for op in OPERATORS for bound in bounds]
        conditions += ["b - a BETWEEN INTERVAL '1 day' AND INTERVAL '1 month'"]
        conditions += ["b - a NOT BETWEEN INTERVAL '24 hours' AND INTERVAL '2 days'"]
        conditions += ["b - a IN (INTERVAL '1 day', INTERVAL '1 month')"]
        conditions += [
            f"INTERVAL '{a}' {op} INTERVAL '{b}'"
            for op in OPERATORS
            for a in bounds
            for b in bounds
        ]
        for where in conditions:
            theirs = connection.sql(f"SELECT id FROM t WHERE {where}").fetchall()
            assert ids(session, where) == sorted(i for (i,) in theirs), where
    listed = session.sql(
        "SELECT i FROM (SELECT INTERVAL '1 month' AS i UNION ALL SELECT INTERVAL '40 days' UNION ALL SELECT INTERVAL '25 hours' "
        "UNION ALL SELECT INTERVAL '1 day') ORDER BY i DESC"
    )
    assert [(i.months, i.days) for i in listed.to_arrow()["i"].to_pylist()] == [
        (0, 40),
        (1, 0),
        (0, 0),
        (0, 1),
    ]
