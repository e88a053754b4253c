"""Promise: rows left out by statistics never match, and rows counted by them always do, whatever of the statistics
is absent, inexact, NaN or in another order. The rows themselves, registered from memory, are the judge."""

from __future__ import annotations

import datetime
import decimal
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tensorquery as tq
from parquet_footers import FALSE, GROUPS, TEXT, ParquetFile, Struct, struct_at, struct_of

# Fields of `ColumnMetaData`, `Statistics`, `ColumnChunk`, `ColumnIndex` and `FileMetaData`.
STATISTICS = 12
OLD_MAX, OLD_MIN, NULLS, DISTINCT, MAX, MIN, MAX_EXACT, MIN_EXACT = range(1, 9)
COLUMN_INDEX, COLUMN_INDEX_BYTES, PAGE_NULLS = 6, 7, 5
COLUMN_ORDERS = 7

NEGATIVE_NAN = float(np.copysign(np.nan, -1))

LONG = "a text that writers cut off somewhere "

VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i": (pa.int32(), [-3, 0, 1, 2, 7, 2**31 - 1, -(2**31)]),
    "u": (pa.uint32(), [0, 1, 2, 2**31, 2**32 - 1]),
    "f": (pa.float64(), [-0.0, 0.0, 1.0, -2.5, 7.0, math.nan, NEGATIVE_NAN, math.inf]),
    "h": (pa.float32(), [-0.0, 0.0, 1.5, math.nan, NEGATIVE_NAN]),
    "s": (pa.string(), ["", "a", "ab", "é", "z", LONG + "a", LONG + "z", LONG + "\U0010ffff"]),
    "y": (pa.binary(), [b"", b"\x01", b"\x7f", b"\x80", b"\xff", b"\xff" * 20]),
    "d": (pa.decimal128(20, 2), [decimal.Decimal(n) for n in ("-1.50", "0.00", "2.25", "99.99")]),
    "t": (pa.timestamp("us"), [datetime.datetime(1969, 12, 31), datetime.datetime(2020, 1, 1)]),
    "b": (pa.bool_(), [True, False]),
}

PREDICATES = [
    "i > 1",
    "i <= 0",
    "i <> 2",
    "NOT (i < 1 OR i = 7)",
    "i IN (1, 7, NULL)",
    "i NOT IN (1, 7)",
    "CAST(i AS BIGINT) >= 2",
    "CAST(i AS VARCHAR) > '2'",
    "i IS NOT DISTINCT FROM 2",
    "i IS DISTINCT FROM 2",
    "u > 2147483647",
    "u < 2",
    "f > 5",
    "f < 0",
    "f >= 0",
    "NOT (f >= 0)",
    "f = 0",
    "f <> 1",
    "f BETWEEN -1 AND 1",
    "f IN (0.0, 7.0)",
    "f = CAST('NaN' AS DOUBLE)",
    "h > 1",
    "h <= 0",
    "f > i",
    "s > 'b'",
    "s <= 'ab'",
    f"s > '{LONG}b'",
    f"s = '{LONG}z'",
    f"s LIKE '{LONG}%'",
    "s LIKE 'a%'",
    "s NOT LIKE 'a%'",
    "y > x'7f'",
    "y = x'ff'",
    "d > 2",
    "d = -1.5",
    "t < TIMESTAMP '1970-01-01T00:00:00'",
    "CAST(t AS DATE) = DATE '2020-01-01'",
    "b",
    "NOT b",
    "b IS NOT TRUE",
    *(f"{name} IS NULL" for name in "iufhsydtb"),
    *(f"{name} IS NOT NULL" for name in "iufhsydtb"),
    "i > 1 OR s IS NULL",
    "f > 5 AND i IS NOT NULL",
]


def bits(values: pa.Array) -> list[Any]:
    """Values that compare by their bits."""
    return [value.hex() if isinstance(value, float) else value for value in values.to_pylist()]


def damage(file: ParquetFile, chance: random.Random) -> None:
    """Remove the statistics that a writer may omit, and fill undefined ones with arbitrary values."""
    names = list(VALUES)
    without_orders = chance.random() < 0.3
    if without_orders:
        file.footer.pop(COLUMN_ORDERS, None)
    for group in range(len(file.footer[GROUPS][1][1])):
        for column, name in enumerate(names):
            metadata = file.metadata(column, group)
            if STATISTICS in metadata:
                damage_statistics(metadata[STATISTICS][1], name, without_orders, chance)
            if chance.random() < 0.1:
                metadata.pop(STATISTICS, None)
            damage_pages(file, column, group, without_orders, chance)


def damage_statistics(
    found: Struct, name: str, without_orders: bool, chance: random.Random
) -> None:
    for field in (NULLS, DISTINCT, MAX, MIN, MAX_EXACT, MIN_EXACT):
        if chance.random() < 0.2:
            found.pop(field, None)
    ordered = name in "idt"
    if without_orders and not ordered and MIN in found and MAX in found:
        # Bounds of an order that nobody says.
        found[MIN], found[MAX] = found[MAX], found[MIN]
    if name in "fh" and chance.random() < 0.3:
        nan = (np.float64 if name == "f" else np.float32)(chance.choice([math.nan, NEGATIVE_NAN]))
        found[MIN] = found[MAX] = (TEXT, nan.tobytes())
    if name in "sy" and chance.random() < 0.3:
        # Old writers compared bytes as signed numbers.
        lower, upper = found.pop(MIN, None), found.pop(MAX, None)
        if lower and upper:
            found[OLD_MIN], found[OLD_MAX] = upper, lower
    if name == "s" and MIN in found and chance.random() < 0.3:
        found[MIN] = (TEXT, found[MIN][1][:20].decode(errors="ignore").encode())
        found[MIN_EXACT] = (FALSE, None)


def damage_pages(
    file: ParquetFile, column: int, group: int, without_orders: bool, chance: random.Random
) -> None:
    chunk = file.chunk(column, group)
    if COLUMN_INDEX not in chunk:
        return
    index, _ = struct_at(file.body, chunk[COLUMN_INDEX][1])
    if chance.random() < 0.3:
        index.pop(PAGE_NULLS, None)
    if without_orders and list(VALUES)[column] not in "idt":
        index[2], index[3] = index[3], index[2]
    written = struct_of(index)
    chunk[COLUMN_INDEX] = (chunk[COLUMN_INDEX][0], len(file.body))
    chunk[COLUMN_INDEX_BYTES] = (chunk[COLUMN_INDEX_BYTES][0], len(written))
    file.body += written


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    rows = draw(st.integers(1, 9))
    columns = {}
    for name, (kind, values) in VALUES.items():
        value = st.one_of(st.none(), st.sampled_from(values), st.sampled_from(values))
        columns[name] = pa.array(draw(st.lists(value, min_size=rows, max_size=rows)), kind)
    return pa.table({"id": pa.array(range(rows)), **columns})


@pytest.mark.slow
@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    table=tables(),
    size=st.integers(1, 4),
    paged=st.booleans(),
    seed=st.integers(0, 2**32),
    asked=st.lists(st.sampled_from(PREDICATES), min_size=4, max_size=4, unique=True),
)
def test_damaged_statistics_cost_no_row(
    tmp_path: Path, table: pa.Table, size: int, paged: bool, seed: int, asked: list[str]
) -> None:
    path = tmp_path / f"{seed}.parquet"
    pq.write_table(
        table.drop(["id"]),
        path,
        row_group_size=size,
        write_page_index=paged,
        write_batch_size=1,
        data_page_size=1,
        use_dictionary=False,
        store_decimal_as_integer=seed % 2 == 0,
    )
    file = ParquetFile(path)
    damage(file, random.Random(seed))
    file.write()
    session = tq.Session()
    session.register_parquet("stored", path)
    session.register_table("there", table.drop(["id"]))
    for predicate in asked:
        wanted = session.sql(f"SELECT * FROM there WHERE {predicate}").to_arrow()
        stored = session.sql(f"SELECT * FROM stored WHERE {predicate}")
        found = stored.to_arrow()
        for name in VALUES:
            assert bits(found[name]) == bits(wanted[name]), (predicate, name)
        assert stored.count() == wanted.num_rows, predicate
        loader, _ = tq.create_dataloader(
            stored, rank=0, world_size=1, output_format="arrow", split_rows=1
        )
        assert sum(batch.num_rows for batch in loader) == wanted.num_rows, predicate
        limited = session.sql(f"SELECT i FROM stored WHERE {predicate} LIMIT 2").to_arrow()
        assert limited.num_rows == min(2, wanted.num_rows), predicate
    path.unlink()


KINDS = {
    "int32": (pa.int32(), [0, 1, 2], [100, 101]),
    "double": (pa.float64(), [0.0, 1.0, 2.0], [100.0, 101.0]),
    "text": (pa.string(), ["a", "b", "c"], ["x", "y"]),
    "long text": (pa.string(), [LONG * 200 + c for c in "abc"], [LONG * 300 + c for c in "xy"]),
    "date": (pa.date32(), [0, 1, 2], [100, 101]),
    "decimal": (
        pa.decimal128(10, 2),
        [decimal.Decimal(n) for n in range(3)],
        [decimal.Decimal(100)] * 2,
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("paged", [False, True])
def test_a_null_count_that_is_not_there_is_not_zero(tmp_path: Path, kind: str, paged: bool) -> None:
    """Java writers omit it for long texts."""
    data_type, low, high = KINDS[kind]
    x = [*low, None, *high, None, None, low[0]]
    path = tmp_path / "t.parquet"
    table = pa.table({"x": pa.array(x, data_type)})
    pq.write_table(table, path, row_group_size=9 if paged else 3, write_page_index=paged,
                   write_batch_size=3, data_page_size=1, use_dictionary=False)  # fmt: skip
    file = ParquetFile(path)
    for group in range(len(file.footer[GROUPS][1][1])):
        del file.metadata(0, group)[STATISTICS][1][NULLS]
        # Of long texts pyarrow writes no page index.
        if COLUMN_INDEX in file.chunk(0, group):
            index, _ = struct_at(file.body, file.chunk(0, group)[COLUMN_INDEX][1])
            del index[PAGE_NULLS]
            chunk, written = file.chunk(0, group), struct_of(index)
            chunk[COLUMN_INDEX] = (chunk[COLUMN_INDEX][0], len(file.body))
            chunk[COLUMN_INDEX_BYTES] = (chunk[COLUMN_INDEX_BYTES][0], len(written))
            file.body += written
    file.write()
    session = tq.Session()
    session.register_parquet("t", path)
    counts = {
        "x IS NULL": 3,
        "NOT (x IS NOT NULL)": 3,
        "x IS NOT NULL": 6,
        "x IS NULL OR x IS NOT NULL": 9,
    }
    for where, count in counts.items():
        query = session.sql(f"SELECT 1 AS one FROM t WHERE {where}")
        assert query.count() == count, where
        assert query.to_arrow().num_rows == count, where
        assert query.head(2).num_rows == 2, where


NANS = np.array([1.0, NEGATIVE_NAN, 1.0, 5.0, math.nan, 7.0, 500.0, NEGATIVE_NAN, 200.0])

WITH_NANS = {
    "x < 0": 0,
    "x > 100": 5,
    "NOT (x >= 0)": 0,
    "x <= 7": 4,
    "x BETWEEN 0 AND 10": 4,
    "x NOT BETWEEN 0 AND 10": 5,
    "x = CAST('NaN' AS DOUBLE)": 3,
    "x IN (1, CAST('NaN' AS DOUBLE))": 5,
    "x <> 1": 7,
    "x > y": 5,
    "-x > 0": 3,
}


@pytest.mark.parametrize("size", [9, 3, 1])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("source", ["parquet", "memory", "arrow"])
def test_a_nan_with_a_sign_is_above_all_numbers(
    tmp_path: Path, size: int, kind: Any, source: str
) -> None:
    table = pa.table({"x": NANS.astype(kind), "y": np.full(9, 100, kind)})
    session = tq.Session()
    match source:
        case "parquet":
            pq.write_table(table, tmp_path / "t.parquet", row_group_size=size)
            session.register_parquet("t", tmp_path / "t.parquet")
        case "memory":
            session.register_table("t", table)
        case "arrow":
            with pa.ipc.new_file(tmp_path / "t.arrow", table.schema) as file:
                file.write_table(table, max_chunksize=size)
            session.register_arrow("t", tmp_path / "t.arrow")
    for where, count in WITH_NANS.items():
        found = session.sql(f"SELECT x FROM t WHERE {where}")
        assert found.count() == found.to_arrow().num_rows == count, where
    rows = session.sql("SELECT x FROM t ORDER BY x").to_arrow()["x"].to_pylist()
    assert rows[:6] == [1.0, 1.0, 5.0, 7.0, 200.0, 500.0]
    assert all(map(math.isnan, rows[6:]))
    rows = session.sql("SELECT x FROM t ORDER BY x DESC").to_arrow()["x"].to_pylist()
    assert all(map(math.isnan, rows[:3]))
    assert rows[3] == 500.0
    found = session.sql("SELECT min(x) AS low, max(x) AS high FROM t").to_arrow().to_pylist()[0]
    assert found["low"] == 1.0
    assert math.isnan(found["high"])
    found = session.sql("SELECT x, count(*) AS n FROM t GROUP BY x ORDER BY x").to_arrow()
    assert found["n"].to_pylist() == [2, 1, 1, 1, 1, 3]
    assert session.sql("SELECT DISTINCT x FROM t").to_arrow().num_rows == 6
    found = session.sql("SELECT rank() OVER (ORDER BY x) AS r FROM t ORDER BY r").to_arrow()
    assert found["r"].to_pylist() == [1, 1, 3, 4, 5, 6, 7, 7, 7]
    joined = session.sql("SELECT a.x FROM t a JOIN t b ON a.x = b.x")
    assert joined.to_arrow().num_rows == 4 + 4 + 9


def test_what_is_read_keeps_its_bits(tmp_path: Path) -> None:
    """Only in comparisons are all NaNs one value."""
    pq.write_table(pa.table({"x": NANS}), tmp_path / "t.parquet")
    session = tq.Session()
    session.register_parquet("t", tmp_path / "t.parquet")
    found = session.sql("SELECT x FROM t WHERE x > 100 OR x <= 7").to_arrow()["x"]
    assert found.combine_chunks().to_numpy().tobytes() == NANS.tobytes()


@pytest.mark.parametrize(
    "numbered", [[False, True, True], [True, False, True], [True, True, False]]
)
def test_row_groups_may_be_numbered_in_part(tmp_path: Path, numbered: list[bool]) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"x": range(9), "s": list("abcdefghi")}), path, row_group_size=3)
    file = ParquetFile(path)
    for group, is_numbered in enumerate(numbered):
        file.group(group).pop(7, None)
        if is_numbered:
            file.group(group)[7] = (4, group)
    file.write()
    session = tq.Session()
    session.register_parquet("t", path)
    assert session.sql("SELECT x FROM t WHERE x >= 4").to_arrow()["x"].to_pylist() == list(
        range(4, 9)
    )
    assert session.table("t").count() == 9
    loader, _ = tq.create_dataloader(
        path=path, rank=0, world_size=1, split_rows=1, output_format="arrow"
    )
    assert pa.Table.from_batches(list(loader))["s"].to_pylist() == list("abcdefghi")


@pytest.mark.slow
def test_a_file_may_have_more_row_groups_than_16_bits_count(tmp_path: Path) -> None:
    path, groups = tmp_path / "t.parquet", 33_000
    pq.write_table(pa.table({"x": range(groups)}), path, row_group_size=1, use_dictionary=False)
    session = tq.Session()
    session.register_parquet("t", path)
    assert session.sql("SELECT x FROM t").count() == groups
    assert session.sql("SELECT x FROM t WHERE x >= 32765").to_arrow()["x"].to_pylist() == list(
        range(32765, groups)
    )


def test_whole_row_groups_are_counted_without_being_read(tmp_path: Path) -> None:
    """NULLs do not hinder the proof if the condition is true for NULL."""
    x = [1, 2, None, 4, 5, 6, None, None, None]
    pq.write_table(
        pa.table({"x": pa.array(x, pa.int64())}), tmp_path / "t.parquet", row_group_size=3
    )
    session = tq.Session()
    session.register_parquet("t", tmp_path / "t.parquet")
    for where, count in {
        "x IS NULL OR x < 100": 9,
        "x > 3": 3,
        "x IS NULL": 4,
        "x <> 1": 4,
    }.items():
        assert session.sql(f"SELECT x FROM t WHERE {where}").count() == count, where


def test_times_of_twelve_bytes_have_no_order(tmp_path: Path) -> None:
    """Some writers compare them as bytes."""
    times = [datetime.datetime(year, 6, 1, hour) for year in (1955, 1999, 2024) for hour in (1, 23)]
    path = tmp_path / "t.parquet"
    table = pa.table({"t": pa.array([*times, None], pa.timestamp("us"))})
    pq.write_table(table, path, row_group_size=2, use_deprecated_int96_timestamps=True)
    file = ParquetFile(path)
    for group in range(len(file.footer[GROUPS][1][1])):
        lower, upper = bytes(12), b"\xff" * 12
        # Above each other: whoever believes them finds nothing.
        statistics = {NULLS: (6, 0), MAX: (TEXT, lower), MIN: (TEXT, upper)}
        file.metadata(0, group)[STATISTICS] = (12, statistics)
    del file.metadata(0, 3)[STATISTICS][1][NULLS]
    file.write()
    session = tq.Session()
    session.register_parquet("t", path)
    for where, count in {
        "t > TIMESTAMP '1999-06-01 02:00:00'": 3,
        "t < TIMESTAMP '1970-01-01'": 2,
        "t IS NULL": 1,
    }.items():
        assert session.sql(f"SELECT t FROM t WHERE {where}").to_arrow().num_rows == count, where


def test_known_statistics_are_used(tmp_path: Path) -> None:
    """Otherwise a loader that prunes nothing would pass."""
    table = pa.table({"i": range(40), "f": np.arange(40.0), "s": [f"{n:03}" for n in range(40)]})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=4)
    session = tq.Session()
    session.register_parquet("t", tmp_path / "t.parquet")
    pruned = {
        "i < 8": 8,
        "i IN (1, 39)": 8,
        "f < 8": 8,
        "NOT (f >= 8)": 8,
        "f = 0": 9,
        "s BETWEEN '004' AND '007'": 9,
        "s LIKE '01%'": 7,
        "i IS NULL": 10,
    }
    for where, groups in pruned.items():
        plan = session.sql(f"SELECT * FROM t WHERE {where}").plan_shards(world_size=1, split_rows=1)
        assert plan.row_groups_pruned == groups, where
