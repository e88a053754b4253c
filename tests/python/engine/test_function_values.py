"""Promise: functions of decimals, times of the day, texts and lists have the values of PostgreSQL and DuckDB, for constants and for
columns of every width alike."""

import datetime as dt
import math
from collections import Counter
from decimal import Decimal

import duckdb
import pyarrow as pa
import pytest

import tensorquery as tq


def column(sql, **tables):
    session = tq.Session()
    for name, table in tables.items():
        session.register_table(name, table)
    return session.sql(sql).to_arrow().column(0).to_pylist()


def value(sql):
    (found,) = column(f"SELECT {sql} AS v")
    return found


# ------------------------------------------------------------------------------------------------
# Decimals

DECIMALS = [Decimal(text) for text in ("2.50", "-2.55", "0.29", "99.99", "-0.01", "0.00")] + [None]
WIDTHS = [pa.decimal32(4, 2), pa.decimal64(4, 2), pa.decimal128(4, 2), pa.decimal256(4, 2)]


@pytest.mark.parametrize(
    "places",
    ["0", "CAST(0 AS INT)", "1", "CAST(1 AS BIGINT)", "2 - 1", "-1", "0 - 1", "5", "-9", "CAST('1' AS INT)"],
)  # fmt: skip
@pytest.mark.parametrize("kind", WIDTHS, ids=str)
def test_places_of_any_form(kind, places):
    table = pa.table({"d": pa.array(DECIMALS, kind)})
    judge = duckdb.connect()
    ((n,),) = judge.sql(f"SELECT {places}").fetchall()
    unit = Decimal(1).scaleb(-n)
    for name, rounding in (("round", "ROUND_HALF_UP"), ("trunc", "ROUND_DOWN")):
        wanted = [
            d if d is None or n > 2 else (d / unit).to_integral_value(rounding) * unit
            for d in DECIMALS
        ]
        assert column(f"SELECT {name}(d, {places}) AS r FROM t", t=table) == wanted, name
        below = f"WITH w AS (SELECT {name}(d, {places}) AS r FROM t) SELECT r FROM w"
        assert column(below, t=table) == wanted, name
        for d, right in zip(DECIMALS[:4], wanted, strict=False):
            constant = f"{name}(CAST('{d}' AS DECIMAL(4, 2)), {places})"
            assert value(constant) == right, constant
            count = f"SELECT count(*) AS n FROM t WHERE {name}(d, {places}) = {constant}"
            assert column(count, t=table) == [wanted.count(right)]


@pytest.mark.parametrize("kind", WIDTHS, ids=str)
def test_whole_decimals_have_the_digit_more(kind):
    table = pa.table({"d": pa.array(DECIMALS, kind), "p": pa.array([0, 1, 2, -1, 1, None, 1])})
    judge = duckdb.connect()
    judge.register("t", pa.table({"d": pa.array(DECIMALS, pa.decimal128(4, 2))}))
    for name in ("ceil", "floor", "trunc", "round"):
        sql = f"SELECT {name}(d) AS v FROM t"
        assert column(sql, t=table) == [v for (v,) in judge.sql(sql).fetchall()]
    assert column("SELECT round(d, p) AS v FROM t", t=table) == [
        None if d is None else Decimal(d) for d in ("3", "-2.6", "0.29", "100", "0", None, None)
    ]
    assert column("SELECT trunc(d, p) AS v FROM t", t=table) == [
        None if d is None else Decimal(d) for d in ("2", "-2.5", "0.29", "90", "0", None, None)
    ]


def test_digits_of_decimals_and_integers_are_kept():
    assert value("trunc(CAST('12345678901234567890.99' AS DECIMAL(38, 2)))") == Decimal(
        "12345678901234567890"
    )
    assert value("trunc(16777217, 0)") == 16777217
    assert value("trunc(2.75, 1)") == 2.7
    assert value("ceil(CAST(9.9 AS DECIMAL(2, 1)))") == 10
    assert value("round(CAST(2.5 AS DECIMAL(2, 1)), NULL)") is None
    with pytest.raises(tq.QueryError, match="does not fit the type"):
        value(f"round(CAST('{'9' * 38}' AS DECIMAL(38, 0)), -1)")


@pytest.mark.parametrize(
    "form",
    [
        "CAST({} AS VARCHAR)",
        "TRY_CAST({} AS VARCHAR)",
        "{} || 'x'",
        "concat('x', {})",
        "length(CAST({} AS VARCHAR))",
    ],
)
@pytest.mark.parametrize("name", ["us", "s", "ms", "ns", "utc", "clock", "day"])
def test_times_as_text_are_those_of_the_standard(form, name):
    numbers = [0, 1, -1, 1_700_000_000_500, 3_600_000, None, 86_399_000]
    zoned = pa.array(numbers, pa.timestamp("ms", "UTC"))
    table = pa.table(
        {
            "us": pa.array(numbers, pa.timestamp("us")),
            "s": pa.array([None if n is None else n // 1000 for n in numbers], pa.timestamp("s")),
            "ms": pa.array(numbers, pa.timestamp("ms")),
            "ns": pa.array(numbers, pa.timestamp("ns")),
            "utc": zoned,
            "clock": pa.array(
                [0, 1, 500_000, 86_399_999_999, 3_600_000_000, None, 60_000_000], pa.time64("us")
            ),
            "day": pa.array([0, 1, -1, 20_000, None, 5, 7], pa.date32()),
        }
    )
    judge = duckdb.connect()
    judge.sql("SET TimeZone = 'UTC'")
    judge.register("t", table)
    sql = f"SELECT {form.format(name)} AS v FROM t"
    assert column(sql, t=table) == [value for (value,) in judge.sql(sql).fetchall()]


def test_times_as_text_with_a_zone_have_its_clocks():
    zoned = pa.table({"k": pa.array([0, 500], pa.timestamp("ms", "Asia/Kolkata"))})
    assert column("SELECT CAST(k AS VARCHAR) AS v FROM t", t=zoned) == [
        "1970-01-01 05:30:00+05:30",
        "1970-01-01 05:30:00.5+05:30",
    ]
    assert value("CAST(TIMESTAMP '2020-01-02 03:04:05.600' AS VARCHAR)") == "2020-01-02 03:04:05.6"
    assert column(
        "SELECT count(*) AS n FROM t WHERE CAST(k AS VARCHAR) LIKE '% 05:30:00+%'", t=zoned
    ) == [1]


def test_times_as_text_are_grouped_by_rollup():
    times = pa.table({"k": pa.array([0, 0, 500], pa.timestamp("ms"))})
    key = "CAST(k AS VARCHAR)"
    sql = f"SELECT {key}, grouping({key}), count(*) FROM t GROUP BY ROLLUP ({key}) ORDER BY 3"
    session = tq.Session()
    session.register_table("t", times)
    assert [column.to_pylist() for column in session.sql(sql).to_arrow().columns] == [
        ["1970-01-01 00:00:00.5", "1970-01-01 00:00:00", None],
        [0, 0, 1],
        [1, 2, 3],
    ]


def test_a_float_rounded_to_more_digits_than_it_has_is_itself():
    numbers = [53.0, 2.345, -2.5, 0.0, 1e300, None, math.inf]
    table = pa.table({"x": numbers, "p": [400, 2, 0, -400, 15, 1, 2]})
    assert column("SELECT round(x, p) AS v FROM t", t=table) == [
        53,
        2.35,
        -3,
        0,
        1e300,
        None,
        math.inf,
    ]
    assert column("SELECT round(x, 15) AS v FROM t", t=table) == numbers
    assert column("SELECT round(x, -2) AS v FROM t", t=table) == [
        100,
        0,
        0,
        0,
        1e300,
        None,
        math.inf,
    ]
    narrow = pa.table({"x": pa.array([0.1, 1e30, -0.5], pa.float32())})
    assert column("SELECT round(x, 300) AS v FROM t", t=narrow) == narrow["x"].to_pylist()
    assert value("round(53, 32767)") == 53
    assert value("round(53, NULL)") is None


@pytest.mark.parametrize("kind", WIDTHS, ids=str)
@pytest.mark.parametrize("integer", ["2", "CAST(2 AS SMALLINT)", "CAST(2 AS BIGINT)"])
def test_decimals_of_any_width_beside_integers(kind, integer):
    table = pa.table({"d": pa.array(DECIMALS, kind)})
    for op, wanted in {">": 2, "=": 0, "<=": 4, "<>": 6}.items():
        count = f"SELECT count(*) AS n FROM t WHERE d {op} {integer}"
        assert column(count, t=table) == [wanted], op
    assert column(f"SELECT {integer} + d AS v FROM t", t=table) == [
        d and d + 2 for d in DECIMALS[:-2]
    ] + [2, None]
    assert column(f"SELECT max(v) AS m FROM (SELECT d * {integer} AS v FROM t)", t=table) == [
        Decimal("199.98")
    ]
    for condition, wanted in {
        "d BETWEEN 1 AND X": 0,
        "d NOT BETWEEN 0 AND X": 4,
        "d BETWEEN X AND 100": 2,
        "d IN (0, X)": 1,
        "d NOT IN (0, X)": 5,
        "X BETWEEN d AND 3": 4,
        "X IN (d, 3)": 0,
    }.items():
        count = f"SELECT count(*) AS n FROM t WHERE {condition.replace('X', integer)}"
        assert column(count, t=table) == [wanted], condition


# ------------------------------------------------------------------------------------------------
# Times of the day

TIMES = [dt.time(0, 0), dt.time(22, 0), None, dt.time(23, 59, 59), dt.time(1, 30)]
SPANS = ["3 hours", "-1 second", "1 month 2 days 25 hours", "1.5 seconds", "0 seconds", "100 days"]


@pytest.mark.parametrize(
    "kind", [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")], ids=str
)
def test_times_move_within_a_day(kind):
    table = pa.table({"t": pa.array(TIMES, pa.time64("us")).cast(kind)})
    judge = duckdb.connect()
    judge.register("d", pa.table({"t": pa.array(TIMES, pa.time64("us"))}))
    for span in SPANS:
        for moved in ("t + i", "i + t", "t - i"):
            sql = f"SELECT {moved} AS v FROM d".replace("i", f"INTERVAL '{span}'", 1)
            assert column(sql, d=table) == [v for (v,) in judge.sql(sql).fetchall()], sql
    spans = pa.array(
        [(0, 0, 10_800 * 10**9), (1, 2, -(10**9)), (0, 0, 0), None, (0, 0, 90_000 * 10**9)],
        pa.month_day_nano_interval(),
    )
    both = table.append_column("i", spans)
    wanted = [dt.time(3), dt.time(21, 59, 59), None, None, dt.time(2, 30)]
    assert column("SELECT t + i AS v FROM d", d=both) == wanted
    assert column("SELECT max(v) AS m FROM (SELECT i + t AS v FROM d)", d=both) == [
        dt.time(21, 59, 59)
    ]
    where = "SELECT count(*) AS n FROM d WHERE t + INTERVAL '3 hours' = TIME '01:00'"
    assert column(where, d=table) == [1]
    where = "SELECT count(*) AS n FROM d WHERE t + INTERVAL '3 hours' < t"
    assert column(where, d=table) == [2]
    below = "WITH w AS (SELECT t - INTERVAL '1 hour' AS v FROM d) SELECT v FROM w WHERE v > TIME '22:30' ORDER BY v"
    assert column(below, d=table) == [dt.time(22, 59, 59), dt.time(23)]


def test_times_and_what_is_no_interval():
    assert value("TIME '22:00' + INTERVAL '3 hours'") == dt.time(1)
    assert value("TIME '01:00' + CAST(NULL AS INTERVAL)") is None
    assert value("TIME '01:00' - TIME '03:30'").nanoseconds == -9_000 * 10**9
    assert value("DATE '2020-01-01' + TIME '01:00'") == dt.datetime(2020, 1, 1, 1)
    assert value("extract(hour FROM TIME '22:00' + INTERVAL '3 hours')") == 1
    for sql in ("TIME '01:00' + TIME '02:00'", "INTERVAL '1 hour' - TIME '01:00'"):
        with pytest.raises(tq.QueryError, match="is not defined for"):
            value(sql)


# ------------------------------------------------------------------------------------------------
# Texts

TEXTS = ["abc", "", None, "e\u0301bé", "b,b,", "ab,c"]


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())],
    ids=str,
)
def test_texts_by_their_characters(kind):
    table = pa.table({"x": pa.array(TEXTS).cast(kind)})
    judge = duckdb.connect()
    judge.register("t", pa.table({"x": pa.array(TEXTS)}))
    for call in (
        "replace(x, '', 'y')",
        "replace(x, 'b', '')",
        "replace(x, x, 'é')",
        "replace(x, NULL, 'é')",
        "translate(x, 'be', 'é')",
        "translate(x, chr(769), 'X')",
        "translate(x, x, 'zzz')",
        "translate(x, '', 'z')",
        "lpad(x, 5, 'xé')",
        "rpad(x, 5, 'e' || chr(769))",
        "lpad(x, 2, '-')",
        "rpad(x, 0, '-')",
        "reverse(x)",
        "left(x, 2)",
        "left(x, -1)",
        "right(x, 2)",
        "substr(x, 2, 2)",
        "strpos(x, 'é')",
        "length(x)",
    ):
        sql = f"SELECT {call} AS v FROM t"
        wanted = [v for (v,) in judge.sql(sql).fetchall()]
        if call == "reverse(x)":
            # DuckDB keeps marks with their letters here, where PostgreSQL does not.
            wanted = [text and text[::-1] for text in TEXTS]
        assert column(sql, t=table) == wanted, call
    empty_is_none = [["a", "c"], [], None, ["e\u0301", "é"], ["", ",", ","], ["a", ",c"]]
    assert column("SELECT string_to_array(x, 'b') AS v FROM t", t=table) == empty_is_none
    characters = [text if text is None else list(text) for text in TEXTS]
    assert column("SELECT string_to_array(x, NULL) AS v FROM t", t=table) == characters
    count = "SELECT cardinality(string_to_array(x, ',')) AS n FROM t"
    assert column(count, t=table) == [1, 0, None, 1, 3, 2]


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        ("replace('abc', '', 'x')", "abc"),
        ("replace('', '', 'x')", ""),
        ("translate('e' || chr(769), chr(769), 'X')", "eX"),
        ("translate('12345', '143', 'ax')", "a2x5"),
        ("translate('abca', 'aa', 'xy')", "xbcx"),
        ("lpad('hi', 5)", "   hi"),
        ("lpad('hi', 5, '')", "hi"),
        ("rpad('hi', -1, 'x')", ""),
        ("lpad('e' || chr(769), 1, 'x')", "e"),
        ("string_to_array('', ',')", []),
        ("string_to_array('', ',', '')", []),
        ("string_to_array('a,b,', '')", ["a,b,"]),
        ("string_to_array('a,b,', ',', '')", ["a", "b", None]),
        ("string_to_array('a,b', ',', NULL)", ["a", "b"]),
        ("string_to_array(NULL, ',')", None),
        ("split_part('a,b', '', 1)", "a,b"),
        ("split_part('a,b', '', 2)", ""),
        ("split_part('a,b,c', ',', -1)", "c"),
        ("split_part('a,b,c', ',', 9)", ""),
    ],
)
def test_empty_and_combined_texts_as_in_postgresql(sql, wanted):
    assert value(sql) == wanted


def test_texts_of_too_many_characters_are_refused():
    with pytest.raises(tq.QueryError, match="at most 2147483647 characters"):
        value("lpad('hi', 99999999999)")


# ------------------------------------------------------------------------------------------------
# Zeros and NaN among the elements of lists

NAN = float("nan")
LISTS = [[0.0, -0.0], [-0.0], None, [], [1.0, None, -0.0], [2.0]]


@pytest.mark.parametrize(
    "kind",
    [pa.list_(pa.float64()), pa.list_(pa.float32()), pa.large_list(pa.float64())],
    ids=str,
)
def test_zeros_in_lists_are_equal(kind):
    table = pa.table({"l": pa.array(LISTS, kind)})
    for call, wanted in {
        "array_distinct(l)": [[0.0], [0.0], None, [], [1.0, None, 0.0], [2.0]],
        "array_position(l, 0.0)": [1, 1, None, None, 3, None],
        "array_remove_all(l, -0.0)": [[], [], None, [], [1.0, None], [2.0]],
        "array_replace_all(l, 0.0, 5.0)": [[5.0] * 2, [5.0], None, [], [1.0, None, 5.0], [2.0]],
        "array_has(l, 0.0)": [True, True, None, False, True, False],
        "array_positions(l, 0.0)": [[1, 2], [1], None, [], [3], []],
    }.items():
        assert column(f"SELECT {call} AS v FROM t", t=table) == wanted, call
    assert column("SELECT count(*) AS n FROM t WHERE array_has(l, 0.0)", t=table) == [3]
    below = (
        "WITH w AS (SELECT array_distinct(l) AS v FROM t) SELECT sum(cardinality(v)) AS n FROM w"
    )
    assert column(below, t=table) == [6]


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        ("array_distinct([0.0, -0.0])", [0.0]),
        ("array_except([0.0], [-0.0])", []),
        ("array_union([0.0], [-0.0])", [0.0]),
        ("array_intersect([0.0], [-0.0])", [0.0]),
        ("array_position([0.0], -0.0)", 1),
        ("array_has_all([0.0, 1.0], [-0.0])", True),
        ("array_has_any([0.0, 1.0], [-0.0])", True),
        ("[0.0] @> [-0.0]", True),
        ("-0.0 = ANY([0.0])", True),
        ("array_distinct([[0.0], [-0.0]])", [[0.0]]),
        ("array_distinct([{'a': 0.0}, {'a': -0.0}])", [{"a": 0.0}]),
        ("cardinality(array_distinct([CAST('NaN' AS DOUBLE), -CAST('NaN' AS DOUBLE)]))", 1),
        ("array_position([CAST('NaN' AS DOUBLE)], -CAST('NaN' AS DOUBLE))", 1),
        ("array_sort([-CAST('NaN' AS DOUBLE), 1.0])[1]", 1.0),
        ("array_distinct(CAST(NULL AS DOUBLE[]))", None),
        ("array_distinct([1, 1, 2])", [1, 2]),
    ],
)
def test_zeros_and_nan_of_both_signs_are_equal_elements(sql, wanted):
    assert value(sql) == wanted


@pytest.mark.parametrize("kind", WIDTHS, ids=str)
@pytest.mark.parametrize("integer", ["2", "CAST(2 AS BIGINT)"])
def test_decimals_and_integers_become_values_of_one_type(kind, integer):
    tables = {
        "t": pa.table({"id": range(len(DECIMALS)), "d": pa.array(DECIMALS, kind)}),
        "i": pa.table({"v": [2, 7, None]}),
    }
    judge = duckdb.connect()
    judge.register("t", tables["t"].set_column(1, "d", pa.array(DECIMALS, pa.decimal128(4, 2))))
    judge.register("i", tables["i"])
    for value_of in (
        f"coalesce(d, {integer})",
        f"CASE WHEN id < 3 THEN d ELSE {integer} END",
        f"CASE d WHEN {integer} THEN 1 ELSE 0 END",
        f"greatest(d, {integer})",
        f"least({integer}, d)",
        f"nullif(d, {integer})",
        f"CASE WHEN id > 1 THEN {integer} WHEN id = 1 THEN NULL ELSE -d END",
    ):
        for sql in (
            f"SELECT {value_of} AS v FROM t",
            f"SELECT max(v) AS v FROM (SELECT {value_of} AS v FROM t) AS q WHERE v > 2",
        ):
            found, wanted = column(sql, **tables), [v for (v,) in judge.sql(sql).fetchall()]
            assert found == wanted, sql
    for sql in (
        "SELECT d AS v FROM t UNION ALL SELECT v FROM i",
        "SELECT v FROM i UNION SELECT d FROM t",
        "SELECT v FROM i INTERSECT SELECT d FROM t",
        "SELECT sum(v) AS v FROM (SELECT v FROM i UNION ALL SELECT d FROM t) AS q WHERE v > 2",
        "SELECT count(*) AS v FROM t JOIN i ON t.d > i.v",
        "SELECT id AS v FROM t WHERE d > ANY (SELECT v FROM i)",
        "SELECT id AS v FROM t WHERE d NOT IN (SELECT v FROM i WHERE v IS NOT NULL)",
        "SELECT count(*) AS v FROM t JOIN (SELECT v AS d FROM i) AS j USING (d)",
    ):
        found, wanted = column(sql, **tables), [v for (v,) in judge.sql(sql).fetchall()]
        assert Counter(found) == Counter(wanted), sql
