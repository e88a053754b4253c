"""Promise: functions answer each row by its own arguments, as in PostgreSQL and DuckDB, also where the engine's own
do not; or they are refused by name."""

import datetime as dt
import itertools
import random

import duckdb
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

import tensorquery as tq


def session_of(**tables):
    session = tq.Session()
    for name, table in tables.items():
        session.register_table(name, table)
    return session


def column(session, sql):
    return session.sql(sql).to_arrow().column(0).to_pylist()


def value(sql):
    (found,) = column(tq.Session(), f"SELECT {sql} AS v")
    return found


# ------------------------------------------------------------------------------------------------
# date_part and extract

DAYS = (
    [dt.date(1899, 12, 28) + dt.timedelta(days) for days in range(0, 90_000, 997)]
    + [dt.date(2024, 1, d) for d in range(1, 9)]
    + [None]
)


@pytest.mark.parametrize(
    "kind",
    [pa.date32(), pa.timestamp("s"), pa.timestamp("us"), pa.timestamp("ms", tz="UTC")],
    ids=str,
)
def test_days_of_the_week_begin_with_monday(kind, tmp_path):
    table = pa.table({"d": pa.array(DAYS, pa.date32()).cast(kind)})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=10)
    session = session_of(t=table)
    wanted = [day and day.isoweekday() for day in DAYS]
    for source in ("t", f"'{tmp_path}/t.parquet'"):
        for call in ("extract(isodow FROM d)", "date_part('ISODOW', d)", "datepart('isodow', d)"):
            assert column(session, f"SELECT {call} AS w FROM {source}") == wanted, call
        assert column(
            session, f"SELECT count(*) AS n FROM {source} WHERE extract(isodow FROM d) = 7"
        ) == [wanted.count(7)]
        assert column(session, f"SELECT max(extract(isodow FROM d)) AS m FROM {source}") == [7]
        # The week that begins with Sunday, as before.
        assert column(session, f"SELECT extract(dow FROM d) AS w FROM {source}") == [
            w and w % 7 for w in wanted
        ]
    assert value("extract(isodow FROM DATE '2024-01-07')") == 7


INTERVALS = [
    "1 minute 2.5 seconds", "62.5 seconds", "3 hours", "25 hours 61 minutes", "-1.5 seconds", "14 months", "-13 months", "1 year", "10 years 3 months", "45 days 2 seconds",
    "2 days 59.999999 seconds", "0 seconds", "1 month -1 day",
]  # fmt: skip


@pytest.mark.parametrize("text", INTERVALS)
def test_parts_of_an_interval(text):
    judge = duckdb.connect()
    for part in (
        "year",
        "month",
        "day",
        "hour",
        "minute",
        "second",
        "millisecond",
        "microsecond",
        "epoch",
    ):
        (wanted,) = judge.execute(f"SELECT date_part('{part}', INTERVAL '{text}')").fetchone()
        assert value(f"extract({part} FROM INTERVAL '{text}')") == wanted, part
    for part in ("isodow", "doy", "quarter"):
        with pytest.raises(tq.TensorQueryError, match=part):
            value(f"extract({part} FROM INTERVAL '{text}')")


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_parts_of_a_difference_of_times(unit):
    seconds = [0, 59, 3_600, 90_061, -90_061, 10**9, None, 86_399]
    start = 86_400 * 365
    table = pa.table(
        {
            "a": pa.array(
                [s and s + start if s is not None else None for s in seconds], pa.int64()
            ),
            "b": pa.array([start] * 8, pa.int64()),
        }
    )
    table = pa.table(
        {name: table[name].cast(pa.timestamp("s")).cast(pa.timestamp(unit)) for name in "ab"}
    )
    session = session_of(t=table)

    def truncated(number, by):
        return None if number is None else int(abs(number) // by) * (1 if number >= 0 else -1)

    rest = [s if s is None else (1 if s >= 0 else -1) * (abs(s) % 86_400) for s in seconds]
    starts = [None if s is None else s + start if s else 0 for s in seconds]
    seconds = [None if s is None else s - start for s in starts]
    rest = [None if s is None else (1 if s >= 0 else -1) * (abs(s) % 86_400) for s in seconds]
    for part, wanted in {
        "epoch": seconds,
        "day": [truncated(s, 86_400) for s in seconds],
        "hour": [truncated(s, 3_600) for s in rest],
        "minute": [
            None if s is None else (1 if s >= 0 else -1) * (abs(s) // 60 % 60) for s in rest
        ],
        "second": [None if s is None else (1 if s >= 0 else -1) * (abs(s) % 60) for s in rest],
    }.items():
        assert column(session, f"SELECT extract({part} FROM a - b) AS p FROM t") == wanted, part


# ------------------------------------------------------------------------------------------------
# Texts


def test_overlay_by_characters():
    assert value("overlay('wxyz' placing 'Q' from 5)") == "wxyzQ"
    chance = random.Random(7)
    texts = ["", "wxyz", "äöü€", "a\U0001f600b", None]
    rows = [
        (
            chance.choice(texts),
            chance.choice(["", "Q", "ßß", None]),
            chance.choice([1, 2, 3, 5, 9, None]),
            chance.choice([0, 1, 2, 99, None]),
        )
        for _ in range(120)
    ]
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        names = zip("sqij", (kind, kind, pa.int64(), pa.int64()), strict=True)
        session = session_of(
            t=pa.table(
                {
                    name: pa.array([row[at] for row in rows], of)
                    for at, (name, of) in enumerate(names)
                }
            )
        )

        def model(s, q, i, j):
            return None if None in (s, q, i, j) else s[: i - 1] + q + s[i - 1 + j :]

        assert column(session, "SELECT overlay(s placing q from i for j) AS r FROM t") == [
            model(*row) for row in rows
        ]
        wanted = [model(s, q, i, None if q is None else len(q)) for s, q, i, _ in rows]
        assert column(session, "SELECT overlay(s placing q from i) AS r FROM t") == wanted
    with pytest.raises(tq.QueryError, match="first character is number 1"):
        value("overlay('wxyz' placing 'Q' from 0)")


LISTS = pa.table({
    "l": pa.array([[1, 2, 3], [], None, [None, 4]], pa.list_(pa.int64())),
    "f": pa.array([[1.0, 2.0], None, [3.0, 4.0], [5.0, 6.0]], pa.list_(pa.float32(), 2)),
    "b": pa.array([b"\xc3\xa9", b"", None, b"\xff"], pa.binary()),
    "s": ["é", "", None, "abc"],
    "st": [{"a": 1}, None, {"a": 2}, {"a": 3}],
})  # fmt: skip


def test_length_counts_elements_bytes_and_characters():
    session = session_of(t=LISTS)
    for call in ("length", "char_length", "character_length"):
        for name, wanted in {
            "l": [3, 0, None, 2],
            "f": [2, None, 2, 2],
            "b": [2, 0, None, 1],
            "s": [1, 0, None, 3],
        }.items():
            assert column(session, f"SELECT {call}({name}) AS n FROM t") == wanted, (call, name)
    assert column(session, "SELECT s FROM t WHERE length(l) > 2 OR length(s) > 2") == ["é", "abc"]
    assert value("length([1, 2, 3])") == 3
    assert value("length('é')") == 1
    assert value("length(NULL)") is None


@pytest.mark.parametrize(
    "call",
    [
        "upper(l)",
        "concat(s, l)",
        "substr(l, 1)",
        "starts_with(l, '1')",
        "md5(st)",
        "replace(f, '1', '2')",
        "regexp_like(l, '1')",
    ],
)
def test_lists_and_structs_are_no_texts(call):
    with pytest.raises(
        tq.QueryError, match="takes texts|to match any signature|requires TypeSignatureClass"
    ):
        column(session_of(t=LISTS), f"SELECT {call} AS r FROM t")


# ------------------------------------------------------------------------------------------------
# Lists


def any_of(x, items):
    if items is None:
        return None
    found = [None if x is None or item is None else x == item for item in items]
    return True if True in found else None if None in found else False


@pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.float32(), pa.date32()], ids=str)
def test_any_and_all_of_a_list_know_null(kind):
    values = {
        "int64": [1, 2, 4],
        "string": ["a", "b", ""],
        "float": [0.5, 2.0, -1.0],
        "date32[day]": [dt.date(2024, 1, d) for d in (1, 2, 3)],
    }[str(kind)]
    lists = [None, [], [None], *([a, b] for a, b in itertools.product([*values, None], repeat=2))]
    rows = list(itertools.product([*values, None], lists))
    for list_kind in (pa.list_(kind), pa.large_list(kind)):
        table = pa.table(
            {
                "x": pa.array([x for x, _ in rows], kind),
                "l": pa.array([items for _, items in rows], list_kind),
            }
        )
        session = session_of(t=table)
        wanted = [any_of(x, items) for x, items in rows]
        assert column(session, "SELECT x = ANY (l) AS r FROM t") == wanted
        assert column(session, "SELECT x <> ALL (l) AS r FROM t") == [
            None if w is None else not w for w in wanted
        ]
        assert column(session, "SELECT count(*) AS n FROM t WHERE x = ANY (l)") == [
            wanted.count(True)
        ]
        assert column(session, "SELECT count(*) AS n FROM t WHERE NOT x = SOME (l)") == [
            wanted.count(False)
        ]
    assert value("4 = ANY ([1, 2, NULL])") is None
    assert value("1 = ANY ([1, NULL])") is True
    assert value("4 <> ALL ([1, 2])") is True
    assert value("array_has([1, 2, NULL], 4)") is False


def test_array_sort_by_the_order_of_each_row():
    chance = random.Random(3)
    rows = []
    for _ in range(60):
        items = chance.choice([None, [], [2, 1, 3], [1, None, 2], [None], [5, 5, 4]])
        rows.append(
            (
                items,
                chance.choice(["asc", "DESC", "desc", "ASC", None]),
                chance.choice(["nulls first", "NULLS LAST", None]),
            )
        )

    def model(items, order, nulls="as ORDER BY"):
        if None in (order, nulls) or items is None:
            return None
        if nulls == "as ORDER BY":
            nulls = "NULLS FIRST" if order.upper() == "DESC" else "NULLS LAST"
        known = sorted((i for i in items if i is not None), reverse=order.upper() == "DESC")
        empty = [None] * items.count(None)
        return empty + known if nulls.upper() == "NULLS FIRST" else known + empty

    for kind in (pa.list_(pa.int64()), pa.large_list(pa.int32())):
        table = pa.table(
            {
                "a": pa.array([r[0] for r in rows], kind),
                "o": [r[1] for r in rows],
                "n": [r[2] for r in rows],
            }
        )
        session = session_of(t=table)
        assert column(session, "SELECT array_sort(a, o) AS r FROM t") == [
            model(*row[:2]) for row in rows
        ]
        assert column(session, "SELECT array_sort(a) AS r FROM t") == [
            model(a, "asc") for a, _, _ in rows
        ]
        assert column(session, "SELECT list_sort(a, o, n) AS r FROM t") == [
            model(*row) for row in rows
        ]
        assert column(session, "SELECT array_sort(a, 'desc', n) AS r FROM t") == [
            model(a, "desc", n) for a, _, n in rows
        ]
        assert column(session, "SELECT array_sort(a, 'desc') AS r FROM t") == [
            model(a, "desc") for a, _, _ in rows
        ]
    with pytest.raises(tq.TensorQueryError, match="DESC or ASC"):
        column(
            session_of(t=pa.table({"a": [[1], [2]], "o": ["asc", "up"]})),
            "SELECT array_sort(a, o) AS r FROM t",
        )


# ------------------------------------------------------------------------------------------------
# Structs that are NULL

STRUCTS = pa.table({
    "id": [0, 1, 2],
    "s": pa.array([{"a": 1, "b": {"c": "x"}}, {"a": 2, "b": {"c": "y"}}, {"a": 3, "b": {"c": "z"}}]),
    "l": pa.array([[{"a": 1}], [{"a": 2}], [{"a": 3}]]),
})  # fmt: skip


@pytest.mark.parametrize(
    "made",
    [
        "CASE WHEN id > 1 THEN s END",
        "CASE id WHEN 2 THEN s ELSE NULL END",
        "CASE WHEN id < 2 THEN NULL ELSE s END",
        "coalesce(CASE WHEN id > 1 THEN s END, CASE WHEN id > 5 THEN s END)",
    ],
)
def test_fields_of_a_struct_that_is_made_null_are_null(made, tmp_path):
    pq.write_table(STRUCTS, tmp_path / "t.parquet")
    session = session_of(t=STRUCTS)
    for source in ("t", f"'{tmp_path}/t.parquet'"):
        assert column(session, f"SELECT ({made})['a'] AS a FROM {source} ORDER BY id") == [
            None,
            None,
            3,
        ]
        assert column(session, f"SELECT ({made})['b']['c'] AS c FROM {source} ORDER BY id") == [
            None,
            None,
            "z",
        ]
        inner = f"(SELECT id, {made} AS c FROM {source})"
        assert column(session, f"SELECT sum(c['a']) AS total FROM {inner}") == [3]
        assert column(session, f"SELECT id FROM {inner} WHERE c['a'] IS NULL ORDER BY id") == [0, 1]
        assert column(session, f"SELECT c['b']['c'] AS c FROM {inner} ORDER BY id") == [
            None,
            None,
            "z",
        ]
        assert column(session, f"SELECT max(c['a']) OVER () AS m FROM {inner}") == [3] * 3
        loader, _ = tq.create_dataloader(
            f"SELECT id, c['a'] AS a FROM {inner}", session=session, output_format="dict"
        )
        assert [a for batch in loader for a in batch["a"]] == [None, None, 3]


def test_fields_of_joined_and_listed_structs_are_null():
    session = session_of(t=STRUCTS, u=pa.table({"id": [2, 9]}))
    left = "SELECT t.s['a'] AS a FROM u LEFT JOIN t ON u.id = t.id ORDER BY u.id"
    assert column(session, left) == [3, None]
    listed = "SELECT (CASE WHEN id > 1 THEN l END)[1]['a'] AS a FROM t ORDER BY id"
    assert column(session, listed) == [None, None, 3]
    lagged = "SELECT (lag(s) OVER (ORDER BY id))['a'] AS a FROM t ORDER BY id"
    assert column(session, lagged) == [None, 1, 2]
    union = "SELECT s['a'] AS a FROM (SELECT id, s FROM t UNION ALL SELECT 5, NULL) ORDER BY id"
    assert column(session, union) == [1, 2, 3, None]


HIDDEN = pa.ListArray.from_arrays(
    pa.array([0, 2, 4, 5], pa.int32()),
    pa.array([1, 2, 3, 4, 5]),
    mask=pa.array([False, True, False]),
)
LIST_CALLS = {
    "l[1]": [1, None, 5],
    "l[-1]": [2, None, 5],
    "array_append(l, 9)": [[1, 2, 9], [9], [5, 9]],
    "array_concat(l, [7])": [[1, 2, 7], [7], [5, 7]],
    "array_any_value(l)": [1, None, 5],
    "array_max(l)": [2, None, 5],
    "length(l)": [2, None, 1],
    "3 = ANY (l)": [False, None, False],
}  # fmt: skip


# Lists of one length are longer than those of the table.
OF_ANY_LENGTH = ("l[1]", "array_max(l)", "3 = ANY (l)")


@pytest.mark.parametrize(
    ("made", "call"),
    [
        (made, call)
        for made in ("hidden", "case", "fixed", "file")
        for call in (OF_ANY_LENGTH if made == "fixed" else LIST_CALLS)
    ],
)
def test_a_list_that_is_null_has_no_elements(made, call, tmp_path):
    wanted = LIST_CALLS[call]
    whole = pa.array([[1, 2], [3, 4], [5]])
    if made == "fixed":
        whole = pa.array([[1, 2], [3, 4], [5, 5]], pa.list_(pa.int64(), 2))
    table = pa.table({"id": [0, 1, 2], "l": HIDDEN if made in ("hidden", "file") else whole})
    session = session_of(t=table)
    source = (
        "(SELECT id, CASE WHEN id <> 1 THEN l END AS l FROM t)"
        if made in ("case", "fixed")
        else "t"
    )
    if made == "file":
        pa.feather.write_feather(table, tmp_path / "t.arrow", compression="uncompressed")
        source = f"'{tmp_path}/t.arrow'"
    assert column(session, f"SELECT {call} AS r FROM {source} ORDER BY id") == wanted


# ------------------------------------------------------------------------------------------------
# Constants, and columns that are replaced


@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        ("0.0 = -0.0", True),
        ("-0.0 < 0.0", False),
        ("0.0 * -1 = 0.0", True),
        ("0.0 <> -0.0", False),
        ("0.0 IS DISTINCT FROM -0.0", False),
        ("-0.0 BETWEEN 0.0 AND 1.0", True),
        ("-0.0 IN (1.0, 0.0)", True),
        ("0.0 NOT IN (1.0, -0.0)", False),
        ("0 = -0.0", True),
        ("CAST(-0.0 AS FLOAT) = 0.0", True),
        ("CASE -0.0 WHEN 0.0 THEN true ELSE false END", True),
        ("1.5 > -0.0", True),
        ("nullif(-0.0, 0.0) IS NULL", True),
    ],
)
def test_zeros_of_both_signs_are_equal(condition, wanted):
    assert value(condition) is wanted
    assert column(
        tq.Session(), f"SELECT count(*) AS n FROM (VALUES (1), (2)) AS t(x) WHERE {condition}"
    ) == [2 * wanted]
    table = pa.table({"z": [0.0, -0.0, 1.0]})
    of_column = condition.replace("-0.0", "z", 1)
    if "z" in of_column and "FLOAT" not in of_column:
        found = column(session_of(t=table), f"SELECT {of_column} AS r FROM t")
        assert found[:2] == [wanted, wanted], of_column


def test_replace_needs_its_column():
    session = session_of(two=pa.table({"lo": [1], "Hi": [2]}), other=pa.table({"x": [7]}))
    for sql in (
        "SELECT * REPLACE (lo + 9 AS nosuch) FROM two",
        "SELECT two.* REPLACE (lo AS nosuch) FROM two",
        "SELECT * REPLACE (1 AS hi) FROM two",
        "SELECT 1 AS one UNION ALL (SELECT * REPLACE (1 AS nosuch) FROM other)",
        "SELECT two.* REPLACE (1 AS x) FROM two, other",
        "SELECT n FROM (SELECT * REPLACE (1 AS nosuch) FROM two)",
    ):
        with pytest.raises(tq.QueryError, match="unknown (column|table or alias)"):
            session.sql(sql)
    run = lambda sql: session.sql(sql).to_arrow().to_pylist()  # noqa: E731
    assert run("SELECT * REPLACE (lo + 9 AS lo) FROM two") == [{"lo": 10, "Hi": 2}]
    assert run("SELECT * REPLACE (lo + 9 AS LO, 'h' AS \"Hi\") FROM two") == [{"lo": 10, "Hi": "h"}]
    assert run("SELECT two.* REPLACE (x AS lo), other.* FROM two, other") == [
        {"lo": 7, "Hi": 2, "x": 7}
    ]
    assert run("WITH w AS (SELECT * REPLACE (NULL AS x) FROM other) SELECT * FROM w") == [
        {"x": None}
    ]
