"""Point-in-time joins: `asof_join` gives each left row exactly once, with the right row that was known at its time.

The oracle is a few lines of Python; pandas.merge_asof and DuckDB's ASOF JOIN are asked as well, where they promise
the same.
"""

import datetime as dt
import re
from collections import Counter
from decimal import Decimal
from pathlib import Path

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import tensorquery as tq

PAGE = (Path(__file__).parents[3] / "docs/point-in-time.md").read_text()
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)


def table_of(rows, **types):
    columns = zip(*rows, strict=True) if rows else ([] for _ in types)
    return pa.table(
        {name: pa.array(column, types[name]) for name, column in zip(types, columns, strict=True)}
    )


def joined(left, right, **options):
    """The rows of the join as a multiset."""
    session = tq.Session()
    session.register_table("l", left)
    session.register_table("r", right)
    result = session.sql(tq.asof_join("l", "r", **options)).to_arrow()
    return Counter(map(tuple, zip(*(column.to_pylist() for column in result.columns), strict=True)))


# --- against an oracle, pandas and DuckDB ---

KEYS = st.sampled_from([None, 1, 2])
TIMES = st.none() | st.integers(0, 9)
LEFT = st.lists(st.tuples(KEYS, TIMES, st.integers(0, 3)), max_size=12)
RIGHT = st.lists(st.tuples(KEYS, TIMES, st.none() | st.integers(0, 3), TIMES), max_size=12)


def oracle(left, right, *, by, strategy, tolerance, exact, with_ties):
    """The join's rows by brute force: each left row is compared with all right rows."""

    def rank(row):
        _, time, value, tie = row
        deciding = (tie, value) if with_ties else (value, tie)
        least = tuple((known is not None, known or 0) for known in deciding)
        return (time if strategy == "backward" else -time, *least)

    rows = []
    for key, time, number in left:
        candidates = []
        for row in right:
            if time is None or row[1] is None or (by and (key is None or key != row[0])):
                continue
            ahead = time - row[1] if strategy == "backward" else row[1] - time
            if (
                ahead < 0
                or (ahead == 0 and not exact)
                or (tolerance is not None and ahead > tolerance)
            ):
                continue
            candidates.append(row)
        best = max(candidates, key=rank, default=(None, None, None, None))
        rows.append((key, time, number, best[2], best[3]))
    return Counter(rows)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sort", "interval"])
@pytest.mark.parametrize("strategy", ["backward", "forward"])
@given(
    left=LEFT,
    right=RIGHT,
    by=st.booleans(),
    tolerance=st.none() | st.integers(0, 3),
    exact=st.booleans(),
    with_ties=st.booleans(),
)
@example(left=[(1, 5, 0)] * 3, right=[], by=True, tolerance=None, exact=True, with_ties=False)
@example(left=[], right=[(1, 5, 0, 0)], by=True, tolerance=None, exact=True, with_ties=False)
@example(
    left=[(None, None, 0)] * 2,
    right=[(None, None, 1, 1)] * 2,
    by=True,
    tolerance=1,
    exact=True,
    with_ties=True,
)
@example(
    left=[(1, 5, 0)],
    right=[(1, 5, None, 1), (1, 5, 2, None)],
    by=True,
    tolerance=0,
    exact=True,
    with_ties=True,
)
def test_each_left_row_comes_once_with_the_row_of_the_oracle(
    method, strategy, left, right, by, tolerance, exact, with_ties
):  # fmt: skip
    by = by or method == "interval"
    got = joined(
        table_of(left, key=pa.int64(), at=pa.int64(), number=pa.int64()),
        table_of(right, key=pa.int64(), at=pa.int64(), value=pa.int64(), tie=pa.int64()),
        on="at",
        by="key" if by else None,
        columns=["value", "tie"],
        strategy=strategy,
        tolerance=tolerance,
        allow_exact_matches=exact,
        ties="tie" if with_ties else (),
        method=method,
    )
    assert got == oracle(
        left, right, by=by, strategy=strategy, tolerance=tolerance, exact=exact, with_ties=with_ties
    )


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["backward", "forward"])
@given(
    left=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 20)), min_size=1, max_size=15),
    right=st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, 20)), min_size=1, max_size=15, unique=True
    ),
    tolerance=st.none() | st.integers(0, 5),
    exact=st.booleans(),
)
def test_pandas_gives_the_same_rows(strategy, left, right, tolerance, exact):  # fmt: skip
    left = table_of(left, key=pa.int64(), at=pa.int64())
    right = table_of(
        [(*row, number) for number, row in enumerate(right)],
        key=pa.int64(),
        at=pa.int64(),
        value=pa.int64(),
    )
    wanted = pd.merge_asof(
        left.to_pandas().sort_values("at"),
        right.to_pandas().sort_values("at"),
        on="at",
        by="key",
        direction=strategy,
        tolerance=tolerance,
        allow_exact_matches=exact,
    )
    rows = wanted[["key", "at", "value"]].itertuples(index=False)
    wanted = Counter((key, at, None if pd.isna(value) else int(value)) for key, at, value in rows)
    for method in ("sort", "interval"):
        options = {"strategy": strategy, "tolerance": tolerance, "allow_exact_matches": exact}
        got = joined(left, right, on="at", by="key", columns=["value"], method=method, **options)
        assert got == wanted


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "compare"), [("backward", ">="), ("forward", "<=")])
@given(
    left=st.lists(st.tuples(KEYS, TIMES), max_size=12),
    right=st.lists(st.tuples(KEYS, TIMES), max_size=12, unique=True),
)
def test_duckdb_gives_the_same_rows_with_null_keys_and_times(strategy, compare, left, right):
    left = table_of(left, key=pa.int64(), at=pa.int64())
    numbered = [(*row, number) for number, row in enumerate(right)]
    right = table_of(numbered, key=pa.int64(), at=pa.int64(), value=pa.int64())
    with duckdb.connect() as connection:
        connection.register("l", left)
        connection.register("r", right)
        wanted = connection.execute(
            f"SELECT l.*, r.value FROM l ASOF LEFT JOIN r ON l.key = r.key AND l.at {compare} r.at"
        ).fetchall()
    for method in ("sort", "interval"):
        got = joined(
            left, right, on="at", by="key", columns=["value"], strategy=strategy, method=method
        )
        assert got == Counter(wanted)


# --- types of keys and times ---

DAY = dt.datetime(2026, 3, 1)
HOUR = dt.timedelta(hours=1)
UNITS = [pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC")]


@pytest.mark.parametrize("method", ["sort", "interval"])
@pytest.mark.parametrize("right_type", UNITS, ids=str)
@pytest.mark.parametrize("left_type", UNITS, ids=str)
def test_units_and_zones_of_the_times_may_differ(left_type, right_type, method):
    left = pa.table({"k": ["a"] * 3, "at": pa.array([DAY, DAY + 2 * HOUR, None]).cast(left_type)})
    right = pa.table({"k": ["a"], "at": pa.array([DAY + HOUR]).cast(right_type), "v": [1]})
    options = {"on": "at", "by": "k", "columns": ["v"], "method": method}
    got = joined(left, right, **options)
    assert Counter(row[-1] for row in got.elements()) == Counter([None, 1, None])
    session = tq.Session()
    session.register_table("l", left)
    session.register_table("r", right)
    assert session.sql(tq.asof_join("l", "r", **options)).schema.field("at").type == left_type


@pytest.mark.parametrize("method", ["sort", "interval"])
def test_a_nanosecond_after_is_after_where_the_type_of_time_says_so(method):
    left = pa.table({"k": [1], "at": pa.array([1_000_000_000], pa.timestamp("us"))})
    after = pa.array([1_000_000_000_001], pa.timestamp("ns"))
    right = pa.table({"k": [1], "at": after, "v": [1]})
    options = {"on": "at", "by": "k", "columns": ["v"], "method": method}
    for strategy, wanted in (("backward", None), ("forward", 1)):
        got = joined(left, right, **options, strategy=strategy, time_type="Timestamp(ns)")
        assert [row[-1] for row in got] == [wanted]
    strict = {**options, "time_type": "Timestamp(ns)", "allow_exact_matches": False}
    assert [row[-1] for row in joined(left, right, **strict, strategy="forward")] == [1]
    near = joined(left, right, **strict, strategy="forward", tolerance="1 nanosecond")
    assert [row[-1] for row in near] == [1]


@pytest.mark.parametrize("method", ["sort", "interval"])
def test_a_date_is_its_midnight(method):
    left = pa.table({"k": [1, 2], "at": [DAY.date()] * 2})
    right = pa.table({"k": [1, 2], "at": [DAY + HOUR, DAY], "v": [1, 2]})
    got = joined(left, right, on="at", by="k", columns=["v"], method=method)
    assert Counter(row[-1] for row in got) == Counter([None, 2])


@pytest.mark.parametrize("method", ["sort", "interval"])
@pytest.mark.parametrize(
    ("times", "tolerance", "wanted"),
    [
        (pa.array([DAY, DAY + 2 * HOUR]), 2 * HOUR, 1),
        (pa.array([DAY, DAY + 2 * HOUR]), "2 hours", 1),
        (pa.array([DAY, DAY + 2 * HOUR]), "119 minutes", None),
        (pa.array([DAY, DAY + 2 * HOUR]), 2 * HOUR - dt.timedelta(microseconds=1), None),
        (pa.array([DAY.date(), DAY.date() + dt.timedelta(31)]), dt.timedelta(31), 1),
        (pa.array([DAY.date(), DAY.date() + dt.timedelta(31)]), dt.timedelta(30), None),
        (pa.array([DAY.date(), DAY.date() + dt.timedelta(31)]), "1 month", 1),
        (pa.array([0.5, 0.75]), 0.25, 1),
        (pa.array([0.5, 0.75]), 0.2, None),
        (pa.array([5, 7], pa.int32()), 2, 1),
        (pa.array([5, 7], pa.uint8()), 1, None),
        (pa.array([Decimal("0.5"), Decimal("0.7")]), Decimal("0.2"), 1),
        (pa.array(["a", "b"]), None, 1),
    ],
    ids=str,
)  # fmt: skip
def test_tolerances_of_all_types_of_time(times, tolerance, wanted, method):
    left = pa.table({"k": [1], "at": times[1:]})
    right = pa.table({"k": [1], "at": times[:1], "v": [1]})
    options = {"on": "at", "by": "k", "columns": ["v"], "tolerance": tolerance, "method": method}
    assert [row[-1] for row in joined(left, right, **options)] == [wanted]


def test_unsigned_times_near_zero_have_a_tolerance():
    times = pa.array([1, 250], pa.uint8())
    left, right = pa.table({"at": times}), pa.table({"at": times, "v": [1, 2]})
    got = joined(left, right, on="at", columns=["v"], tolerance=5)
    assert got == Counter([(1, 1), (250, 2)])
    forward = joined(left, right, on="at", columns=["v"], tolerance=10, strategy="forward")
    assert forward == got


def test_values_of_every_kind_are_carried():
    left = pa.table({"k": ["x", "y"], "at": [2, 2], "payload": [[1, 2], None]})
    right = pa.table(
        {
            "k": ["x"],
            "at": [1],
            "list": [[0.5, 1.5]],
            "struct": [{"a": 1}],
            "text": ["été"],
            "flag": [True],
            "fixed": pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2)),
        }
    )
    session = tq.Session()
    session.register_table("l", left)
    session.register_table("r", right)
    columns = ["list", "struct", "text", "flag", "fixed"]
    for method in ("sort", "interval"):
        sql = tq.asof_join("l", "r", on="at", by="k", columns=columns, method=method)
        rows = sorted(session.sql(sql).to_arrow().to_pylist(), key=lambda row: row["k"])
        assert rows[0] == {
            **left.to_pylist()[0],
            **{name: right[name][0].as_py() for name in columns},
        }
        assert rows[1] == {**left.to_pylist()[1], **dict.fromkeys(columns)}
        assert session.sql(sql).schema.field("fixed").type == pa.list_(pa.float32(), 2)


# --- what left and right may be ---


@pytest.fixture
def files(tmp_path):
    clicks = pa.table({"User": [1, 1, 2], "at": [10, 20, 10]})
    prices = pa.table({"who": [1, 1, 2], "seen": [5, 20, 11], "price": [0.5, 0.7, 0.9]})
    pq.write_table(clicks, tmp_path / "it's clicks.parquet")
    pq.write_table(prices, tmp_path / "prices.parquet")
    session = tq.Session()
    session.register_parquet("Clicks", tmp_path / "it's clicks.parquet")
    session.register_parquet("a table", tmp_path / "prices.parquet")
    return session, tmp_path


@pytest.mark.slow
def test_sides_are_tables_paths_and_queries(files):
    session, folder = files
    sides = {
        "left": ["Clicks", '"Clicks"', folder / "it's clicks.parquet", "SELECT * FROM \"Clicks\"; "],
        "right": [
            "a table",
            f"'{folder}/prices.parquet'",
            "-- newest prices\n/* all */ WITH p AS (SELECT * FROM \"a table\") SELECT * FROM p -- end",
            "(SELECT * FROM \"a table\")",
        ],
    }  # fmt: skip
    for left in sides["left"]:
        for right in sides["right"]:
            sql = tq.asof_join(
                left, right, left_on="at", right_on="seen", left_by="User", right_by="who",
                columns={"price": "Price before", "seen": "since"},
            )  # fmt: skip
            result = session.sql(sql).to_arrow()
            assert result.column_names == ["User", "at", "Price before", "since"]
            rows = sorted(map(tuple, zip(*(c.to_pylist() for c in result.columns), strict=True)))
            assert rows == [(1, 10, 0.5, 5), (1, 20, 0.7, 20), (2, 10, None, None)]


def test_joins_go_into_joins(files):
    session, _ = files
    once = tq.asof_join(
        "Clicks", "a table", left_on="at", right_on="seen", left_by="User", right_by="who", columns={"price": "before"}
    )  # fmt: skip
    twice = tq.asof_join(
        once, "a table", left_on="at", right_on="seen", left_by="User", right_by="who", columns={"price": "after"},
        strategy="forward",
    )  # fmt: skip
    rows = session.sql(twice).to_arrow().to_pylist()
    assert Counter(map(str, rows)) == Counter(
        map(
            str,
            [
                {"User": 1, "at": 10, "before": 0.5, "after": 0.7},
                {"User": 1, "at": 20, "before": 0.7, "after": 0.7},
                {"User": 2, "at": 10, "before": None, "after": 0.9},
            ],
        )
    )


def test_the_interval_form_is_row_local_over_the_left(files):
    session, _ = files
    options = {
        "left_on": "at", "right_on": "seen", "left_by": "User", "right_by": "who", "columns": {"price": "before"},
    }  # fmt: skip
    interval = tq.asof_join("Clicks", "a table", **options, method="interval")
    loader, _ = tq.create_dataloader(interval, session=session, batch_size=2, nulls="nan")
    assert sum(len(batch["before"]) for batch in loader) == 3
    assert len(session.sql(interval).plan_shards().splits()) == 1


@pytest.mark.parametrize("method", ["sort", "interval"])
def test_a_column_of_both_sides_gets_a_number(method):
    session = tq.Session()
    session.register_table("left", pa.table({"k": [1, 1], "at": [10, 20]}))
    session.register_table("right", pa.table({"k": [1, 1], "at": [5, 15]}))
    sql = tq.asof_join('"left"', '"right"', on="at", by="k", columns=["at"], method=method)
    rows = session.sql(sql).to_arrow().sort_by("at").to_pylist()
    assert rows == [{"k": 1, "at": 10, "at_1": 5}, {"k": 1, "at": 20, "at_1": 15}]


def test_ties_do_not_depend_on_the_order_of_rows():
    left = pa.table({"k": [1], "at": [5]})
    rows = [(1, 5, 3, "c"), (1, 5, 9, "a"), (1, 5, None, "d")]
    for order in (rows, rows[::-1], rows[1:] + rows[:1]):
        right = table_of(order, k=pa.int64(), at=pa.int64(), version=pa.int64(), v=pa.string())
        for method in ("sort", "interval"):
            options = {"on": "at", "by": "k", "columns": ["v"], "method": method}
            assert [row[-1] for row in joined(left, right, **options)] == ["d"]
            assert [row[-1] for row in joined(left, right, **options, ties="version")] == ["a"]


# --- what is refused ---


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"on": None}, "the time column must be a name, got None; pass on=, or both left_on= and right_on="),
        ({"on": None, "left_on": "t"}, "the time column must be a name, got None"),
        ({"right_on": "t"}, "on='at' is for both sides; leave out left_on and right_on"),
        ({"left_by": "k"}, "by='k' is for both sides; leave out left_by and right_by"),
        ({"by": None, "left_by": ["a", "b"], "right_by": "a"}, "must name the same number of columns"),
        ({"by": 3}, "left_by=3 must be a name or a list of names"),
        ({"columns": []}, "columns=[] adds nothing"),
        ({"columns": ["a", "a"]}, "columns=['a', 'a'] names a column twice"),
        ({"columns": {"a": "x", "b": "x"}}, "gives two columns the same name"),
        ({"columns": {"a": None}}, "must be a name or a list of names"),
        ({"ties": [1]}, "ties=[1] must be a name or a list of names"),
        ({"strategy": "backwards"}, "did you mean 'backward'?"),
        ({"strategy": "nearest"}, "must be one of 'backward', 'forward'"),
        ({"method": "hash"}, "method='hash' must be one of 'sort', 'interval'"),
        ({"method": "interval", "by": None}, "joins on the key and there is none"),
        ({"allow_exact_matches": 1}, "allow_exact_matches=1 must be True or False"),
        ({"time_type": ""}, "time_type='' must be an Arrow type"),
        ({"tolerance": -1}, "tolerance=-1 must be a number of at least 0"),
        ({"tolerance": "-1 hour"}, "tolerance='-1 hour' must be"),
        ({"tolerance": True}, "tolerance=True must be"),
        ({"tolerance": float("nan")}, "tolerance=nan must be"),
        ({"tolerance": -HOUR}, "must be a number of at least 0, a timedelta or the text of an interval"),
        ({"left": "data/x.parquet"}, "looks like a path; write it in single quotes"),
        ({"left": ""}, "left='' must be a table's name, a path or a query"),
        ({"right": 3}, "right=3 must be a table's name, a path or a query"),
    ],
)  # fmt: skip
def test_what_makes_no_join_is_an_error_that_says_the_fix(changed, message):
    options = {"left": "l", "right": "r", "on": "at", "by": "k", "columns": ["v"], **changed}
    with pytest.raises(tq.ConfigError, match=re.escape(message)):
        tq.asof_join(**options)


def test_a_path_in_the_error_is_the_one_to_write():
    with pytest.raises(tq.ConfigError, match=re.escape("""left="'data/x.parquet'\"""")):
        tq.asof_join("data/x.parquet", "r", on="at", columns=["v"])


# --- the page ---


def test_every_snippet_of_the_page_runs_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(SNIPPETS) >= 2
    exec(compile("\n".join(SNIPPETS), "point-in-time.md", "exec"), {"__name__": "page"})


def test_the_page_shows_the_sql_that_the_helper_writes():
    shown = re.findall(r"^```sql\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    options = {"on": "at", "by": "user", "columns": ["price"]}
    written = [
        tq.asof_join("clicks", "prices", **options, method=method)
        for method in ("sort", "interval")
    ]
    assert [text.strip() for text in shown] == written
