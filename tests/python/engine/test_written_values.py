"""Numbers, intervals, booleans and times in a statement mean the same as in DuckDB and PostgreSQL, with all of their
digits."""

from datetime import date, datetime
from decimal import Decimal

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tensorquery as tq

DECIMALS = [
    Decimal(text)
    for text in ("1234567890123456789.12", "-1234567890123456789.12", "0.50", "0.55", "99.99")
]
ROWS = pa.table({
    "i": pa.array(range(6)),
    "b": pa.array([True, False, None, True, True, False]),
    "none": pa.array([None] * 6, pa.bool_()),
    "g": pa.array([1, 1, 2, 2, 3, 3]),
    "d": pa.array([*DECIMALS, None], pa.decimal128(38, 2)),
    "small": pa.array([Decimal("1.5"), Decimal("-9.9"), Decimal(0), None, Decimal("9.9"), Decimal("0.1")], pa.decimal128(2, 1)),
    "big": pa.array([2**53, 2**53 + 1, -(2**63), 2**63 - 1, 0, None]),
    "u": pa.array([2**63, 2**64 - 1, 0, 1, None, 2], pa.uint64()),
    "f": pa.array([0.1, 0.30000000000000004, float("nan"), None, -0.0, 1e300]),
    "r": pa.array([0.1, 0.5, float("nan"), None, -0.0, 1e30], pa.float32()),
})  # fmt: skip


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    path = tmp_path_factory.mktemp("written") / "t.parquet"
    pq.write_table(ROWS, path, row_group_size=2)
    session = tq.Session()
    session.register_parquet("t", str(path))
    judge = duckdb.connect()
    judge.execute(f"CREATE TABLE t AS FROM '{path}'")
    return session, judge


def rows(table):
    return [tuple(row.values()) for row in table.to_pylist()]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT sum(b) AS n FROM t",
        "SELECT sum(none) AS n FROM t",
        "SELECT sum(b) AS n FROM t WHERE i > 99",
        "SELECT g, sum(b) AS n FROM t GROUP BY g ORDER BY g",
        "SELECT g, sum(DISTINCT b) AS n FROM t GROUP BY g ORDER BY g",
        "SELECT sum(b) FILTER (WHERE g > 1) AS n, sum(none) FILTER (WHERE g > 9) AS m FROM t",
        "SELECT i, sum(b) OVER (ORDER BY i ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS n FROM t ORDER BY i",
        "SELECT i, sum(b) OVER (PARTITION BY g ORDER BY i) AS n FROM t ORDER BY i",
        "SELECT g FROM t GROUP BY g HAVING sum(b) > 1 ORDER BY g",
        "SELECT sum(coalesce(b, true)) AS n, sum(CASE WHEN b THEN true END) AS m, sum(f > 0) AS o FROM t WHERE f = f",
        "SELECT (SELECT sum(b) FROM t AS o WHERE o.g = t.g) AS n, i FROM t ORDER BY i",
        "SELECT sum(x) AS n FROM (VALUES (true), (false), (NULL)) v(x)",
    ],
)
def test_the_sum_of_booleans_is_how_many_are_true(both, sql):
    session, judge = both
    found = session.sql(sql).to_arrow()
    assert rows(found) == judge.sql(sql).fetchall()
    assert set(found.schema.types) == {pa.int64()}


def test_the_mean_of_booleans_is_refused_by_name(both):
    for call in ("avg(b)", "mean(b)", "avg(b) OVER ()", "avg(DISTINCT b)"):
        with pytest.raises(tq.QueryError, match=r"BOOLEAN.*CAST\(x AS INT\)"):
            both[0].sql(f"SELECT {call} AS n FROM t").to_arrow()
    with pytest.raises(tq.QueryError, match="numbers and durations"):
        both[0].sql("SELECT sum(DATE '2020-01-01') AS n FROM t").to_arrow()


@pytest.mark.parametrize(
    "condition",
    [
        f"{left} {right}"
        for left, numbers in {
            "d": ("1234567890123456789.12", "1234567890123456789.125", "-1234567890123456789.12", "0.5", "0.55", "0.555", "1e0"),
            "small": ("1.5", "9.95", "-9.95", "12345678901234567890.5", "-12345678901234567890.5", ".1"),
            "big": ("9007199254740993.0", "9007199254740992.5", "-9223372036854775808.5", "9223372036854775807.5", "18446744073709551616"),
            "u": ("9223372036854775808.5", "18446744073709551615.0", "-0.5", "18446744073709551616"),
            "f": ("0.1", "0.30000000000000004"),
            "r": ("0.5",),
        }.items()
        for number in numbers
        for right in (
            f"= {number}", f"<> {number}", f"< {number}", f">= {number}", f"IS DISTINCT FROM {number}", f"IN ({number}, 0.55)",
            f"NOT IN ({number})", f"BETWEEN {number} AND 0.555", f"NOT BETWEEN -0.555 AND {number}",
        )
    ],
)  # fmt: skip
def test_numbers_compare_with_all_of_their_digits(both, condition):
    session, judge = both
    sql = f"SELECT i, ({condition}) AS c FROM t ORDER BY i"
    expected = judge.sql(sql).fetchall()
    assert rows(session.sql(sql).to_arrow()) == expected
    kept = session.sql(f"SELECT i FROM t WHERE {condition} ORDER BY i").to_arrow()
    assert kept["i"].to_pylist() == [i for i, true in expected if true]


@pytest.mark.parametrize(
    "number",
    ["1234567890123456789.12", "-1234567890123456789.125", "12345678901234567890123", "0.1", "1.005", "-1.005", "2.5", "0.12345678901234567"],
)  # fmt: skip
@pytest.mark.parametrize("to", ["DECIMAL(38, 2)", "NUMERIC(38, 0)", "DECIMAL(38, 15)"])
def test_numbers_are_cast_with_all_of_their_digits(both, number, to):
    session, judge = both
    for sql in (f"SELECT CAST({number} AS {to}) AS x", f"SELECT ({number})::{to} AS x"):
        assert rows(session.sql(sql).to_arrow()) == judge.sql(sql).fetchall()


def test_other_numbers_stay_floats(both):
    found = (
        both[0]
        .sql("SELECT 0.1 AS a, f * 2.5 AS b, r > 0.1 AS c, 1.5 = 1.50 AS e FROM t")
        .to_arrow()
    )
    assert found.schema.types[:2] == [pa.float64(), pa.float64()]
    # The column holds another number than the literal.
    assert found["c"].to_pylist()[0] is True
    assert found["e"].to_pylist() == [True] * 6


@pytest.mark.parametrize(
    "text",
    [
        "1 day 02:00:00", "02:00", "-02:00:01.5", "1 day -02:00:00", "-1 day -02:00:00", "1 year 2 months 3 days 04:05:06", "1 day ago",
        "@ 1 minute", "100:00:00", "1 month 2 days", "1.5 days", "1",
    ],
)  # fmt: skip
def test_intervals_are_read_as_duckdb_reads_them(both, text):
    session, judge = both
    for form in (
        "INTERVAL '{}'",
        "'{}'::INTERVAL",
        "CAST('{}' AS INTERVAL)",
        "-INTERVAL '{}'",
        "-(INTERVAL '{}')",
    ):
        sql = f"SELECT TIMESTAMP '2020-03-31 12:00:00' + {form.format(text)} AS x"
        assert rows(session.sql(sql).to_arrow()) == judge.sql(sql).fetchall(), sql


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("'1-2'", "'14 months'"),
        ("'-1-2'", "'-14 months'"),
        ("'1-2' YEAR TO MONTH", "'14 months'"),
        ("'3 04:05:06'", "'3 days 4 hours 5 minutes 6 seconds'"),
        ("'1-2 3 04:05'", "'14 months 3 days 4 hours 5 minutes'"),
        ("'2 days 03:00 ago'", "'-2 days -3 hours'"),
        ("'1 day 02:00:00 3 months'", "'3 months 1 day 2 hours'"),
        ("'P1DT2H'", "'1 day 2 hours'"),
        ("'P1Y2M3W4DT5H6M7.5S'", "'14 months 25 days 5 hours 6 minutes 7.5 seconds'"),
        ("'P-1MT-30M'", "'-1 months -30 minutes'"),
    ],
)
def test_intervals_are_read_as_postgresql_reads_them(both, text, same):
    sql = "SELECT TIMESTAMP '2020-03-31 12:00:00' - INTERVAL {} AS x"
    assert rows(both[0].sql(sql.format(text)).to_arrow()) == rows(
        both[0].sql(sql.format(same)).to_arrow()
    )


@pytest.mark.parametrize(
    "text",
    [
        "25:61",
        "",
        "one day",
        "1-13",
        "P",
        "PT",
        "P1H",
        "1:2:3:4",
        "9999999999 years",
        "99999999999:00",
    ],
)
def test_what_is_no_interval_is_refused_by_name(both, text):
    for form in (f"INTERVAL '{text}'", f"'{text}'::INTERVAL", f"-INTERVAL '{text}'"):
        with pytest.raises(tq.QueryError, match="is no interval"):
            both[0].sql(f"SELECT {form} AS x").to_arrow()


PARTS = [
    "microsecond",
    "millisecond",
    "second",
    "minute",
    "hour",
    "day",
    "week",
    "month",
    "quarter",
    "year",
]


@pytest.fixture(scope="module")
def times():
    values = [
        datetime(1, 1, 3, 4, 5, 6, 7), datetime(1600, 2, 29, 23, 59, 59, 999999), datetime(1969, 12, 31, 23, 59, 59, 999999), None,
        datetime(2024, 3, 31, 1, 2, 3, 456789), datetime(2262, 4, 12), datetime(9999, 12, 31, 23, 59, 59, 999999),
    ]  # fmt: skip
    table = pa.table(
        {
            "i": pa.array(range(len(values))),
            "us": pa.array(values, pa.timestamp("us")),
            "d": pa.array([value and value.date() for value in values]),
        }
    )
    for unit in ("ms", "s"):
        table = table.append_column(unit, table["us"].cast(pa.timestamp(unit), safe=False))
    session = tq.Session()
    session.register_table("t", table)
    judge = duckdb.connect()
    judge.register("t", table)
    return session, judge


@pytest.mark.parametrize("part", PARTS)
def test_times_are_cut_in_all_years(times, part):
    session, judge = times
    for unit in ("us", "ms", "s"):
        if unit == "s" and part.endswith(("microsecond", "millisecond")):
            continue
        sql = f"SELECT i, date_trunc('{part}', {unit}) AS x FROM t ORDER BY i"
        found = session.sql(sql).to_arrow()
        assert found.schema.field("x").type == pa.timestamp(unit)
        assert rows(found) == judge.sql(sql).fetchall()
        # Constants go another way.
    for text in ("1969-12-31 23:59:59.9995", "2300-05-06 01:02:03.4567", "9999-12-31 23:59:59"):
        sql = f"SELECT date_trunc('{part}', TIMESTAMP '{text}') AS x"
        assert [(str(x)[:26],) for (x,) in rows(session.sql(sql).to_arrow())] == [
            (str(x),) for (x,) in judge.sql(sql).fetchall()
        ]


def test_times_are_cut_by_the_clock_of_their_zone(times):
    sql = (
        "SELECT CAST(arrow_cast(date_trunc('{}', arrow_cast({}, 'Timestamp(Second, Some(\"Europe/Berlin\"))')), 'Timestamp(Second, Some(\"UTC\"))') "
        "AS VARCHAR) AS x"
    )
    for part, seconds, found in [
        ("day", 253402207200, "9999-12-29 23:00:00+00"), ("month", 4102444800, "2099-12-31 23:00:00+00"), ("hour", 1711846800, "2024-03-31 01:00:00+00"),
        ("day", 1711882800, "2024-03-30 23:00:00+00"), ("hour", 1729989000, "2024-10-27 00:00:00+00"), ("hour", 1729992600, "2024-10-27 01:00:00+00"),
    ]:  # fmt: skip
        assert rows(times[0].sql(sql.format(part, seconds)).to_arrow()) == [(found,)]


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT date_trunc('hour', arrow_cast(-9223372036854775808, 'Timestamp(Nanosecond, None)')) AS x", "beyond the range of its type"),
        ("SELECT date_bin(INTERVAL '1 day', us) AS x FROM t", "1677 to 2262"),
        ("SELECT date_bin(INTERVAL '1 month', arrow_cast(-9223372036854775807, 'Timestamp(Nanosecond, None)')) AS x", "1677 to 2262"),
        ("SELECT CAST(d AS TIMESTAMP) AS x FROM t", "beyond the timestamps of Nanoseconds"),
        ("SELECT date_trunc('month', d) AS x FROM t", "beyond the timestamps of Nanoseconds"),
    ],
)  # fmt: skip
def test_what_no_unit_reaches_is_refused_by_name(times, sql, words):
    with pytest.raises(tq.QueryError, match=words):
        times[0].sql(sql).to_arrow()


def test_constant_dates_after_2262_are_timestamps(times):
    found = (
        times[0]
        .sql("SELECT DATE '2300-01-02'::TIMESTAMP AS x, CAST(DATE '9999-12-31' AS TIMESTAMP) AS y")
        .to_arrow()
    )
    assert rows(found) == [(datetime(2300, 1, 2), datetime(9999, 12, 31))]
    assert rows(
        times[0].sql("SELECT CAST(DATE '2300-01-02'::TIMESTAMP AS DATE) AS x").to_arrow()
    ) == [(date(2300, 1, 2),)]


# ------------------------------------------------------------------------------------------------
# Lists of all widths.

CALLS = """array_append(@, 7)
array_prepend(7, @)
array_concat(@, @)
list_cat(@, p)
list_concat(p, @)
@ || @
@ || 7
array_has(@, 3)
array_has_any(@, p)
@[1]
@[1:1]
array_pop_back(@)
array_position(@, 3)
array_remove(@, 3)
array_remove_n(@, 3, 1)
array_remove_all(@, 3)
array_replace_all(@, 3, 9)
array_sort(@)
array_reverse(@)
array_distinct(@)
array_union(@, p)
array_intersect(@, p)
array_except(@, [3])
array_resize(@, 3, 0)
array_to_string(@, ',')
flatten(@)
array_max(@)
array_repeat(@, 2)
array_concat(@, NULL::BIGINT[])""".splitlines()


@pytest.fixture(scope="module")
def lists(tmp_path_factory):
    path = tmp_path_factory.mktemp("lists") / "t.parquet"
    values, nested = [[1, 2], [3, 3], None, [5, 6]], [[[1], [2]], [[3]], None, []]
    item = pa.int64()
    pq.write_table(
        pa.table({
            "p": pa.array(values, pa.list_(item)), "l": pa.array(values, pa.large_list(item)), "f": pa.array(values, pa.list_(item, 2)),
            "pp": pa.array(nested, pa.list_(pa.list_(item))), "ll": pa.array(nested, pa.large_list(pa.large_list(item))),
            "pl": pa.array(nested, pa.list_(pa.large_list(item))), "texts": pa.array([["a"], None, [], ["b", None]], pa.large_list(pa.large_string())),
        }),
        path,
    )  # fmt: skip
    session = tq.Session()
    session.register_parquet("t", str(path))
    return session


@pytest.mark.parametrize("call", CALLS)
def test_array_functions_take_lists_of_all_widths(lists, call):
    def answer(column):
        return rows(lists.sql(f"SELECT {call.replace('@', column)} AS x FROM t").to_arrow())

    assert answer("l") == answer("f") == answer("p")


def test_nested_lists_are_joined(lists):
    twice = [([[1], [2], [1], [2]],), ([[3], [3]],), (None,), ([],)]
    for left in ("pp", "ll", "pl"):
        for right in ("pp", "ll", "pl"):
            assert (
                rows(lists.sql(f"SELECT array_concat({left}, {right}) AS x FROM t").to_arrow())
                == twice
            )
    found = rows(
        lists.sql(
            "SELECT array_concat(texts, ['q']) AS x FROM t WHERE texts IS NOT NULL"
        ).to_arrow()
    )
    assert found == [(["a", "q"],), (["q"],), (["b", None, "q"],)]
