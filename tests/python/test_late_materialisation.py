"""A filter decodes its own columns first, and of the others what it keeps: the rows and their order stay those of the files."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import tensorquery as tq

ROWS = 20_000
GROUP = 6_000


def table(seed: int, rows: int = ROWS) -> pa.Table:
    """Columns of every kind that pages hold in their own way, with and without nulls."""
    pick = random.Random(seed)

    def column(make: Any, nulls: float, type_: pa.DataType) -> pa.Array:
        return pa.array([None if pick.random() < nulls else make() for _ in range(rows)], type_)

    def number() -> int:
        return pick.randrange(1000)

    def text() -> str:
        return "x" * pick.randrange(9) + str(pick.randrange(300))

    def numbers() -> list[int | None]:
        return [pick.choice([None, 1, 2, 3]) for _ in range(pick.randrange(4))]

    return pa.table(
        {
            "row": pa.array(range(rows), pa.int64()),
            "key": column(number, 0.0, pa.int64()),
            "sparse": column(number, 0.4, pa.int32()),
            "price": column(lambda: pick.random() * 100, 0.1, pa.float64()),
            "small": column(lambda: pick.randrange(3), 0.0, pa.int16()),
            "ratio": column(pick.random, 0.0, pa.float32()),
            "flag": column(lambda: pick.random() < 0.5, 0.2, pa.bool_()),
            "name": column(text, 0.3, pa.string()),
            "code": column(lambda: bytes([pick.randrange(256)] * 3), 0.1, pa.binary(3)),
            "day": column(lambda: pick.randrange(20_000), 0.2, pa.date32()),
            "money": column(lambda: pick.randrange(10**6), 0.1, pa.int64()).cast(pa.decimal128(21, 2)),
            "list": column(numbers, 0.1, pa.list_(pa.int64())),
            "pair": column(lambda: {"a": number(), "b": text()}, 0.1, pa.struct([("a", pa.int64()), ("b", pa.string())])),  # fmt: skip
            "nothing": pa.nulls(rows, pa.int64()),
        }
    )


LAYOUTS: dict[str, dict[str, Any]] = {
    "dictionaries": {},
    "dictionaries that overflow": {"dictionary_pagesize_limit": 2_000},
    "plain": {"use_dictionary": False},
    "small pages": {"data_page_size": 1_000, "use_dictionary": ["key", "name"]},
    "pages of version 2": {"data_page_version": "2.0", "data_page_size": 4_000},
    "zstd": {"compression": "zstd"},
    "no compression": {"compression": "none"},
    "page index": {"write_page_index": True, "data_page_size": 2_000},
    "deltas": {"use_dictionary": False, "column_encoding": {"key": "DELTA_BINARY_PACKED", "name": "DELTA_BYTE_ARRAY", "ratio": "BYTE_STREAM_SPLIT"}},  # fmt: skip
}

CONDITIONS = [
    "key BETWEEN 500 AND 504",
    "key BETWEEN 500 AND 599",
    "key BETWEEN 100 AND 600",
    "key >= 5",
    "key >= 0",
    "key < 0",
    "key = 77 OR key = 78",
    "key IN (3, 500, 999)",
    "key NOT IN (3, 500, 999)",
    "sparse = 12",
    "sparse IS NULL AND key < 20",
    "sparse > 990 OR sparse IS NULL",
    "name = 'xx7'",
    "name LIKE 'xxxx%' AND key < 200 AND sparse > 500",
    "key + small > 990 AND small <> 0 AND key / small > 400",
    "flag AND key < 30",
    "NOT flag AND price < 2.5",
    "nothing IS NULL AND key < 12",
    "nothing = 1",
    "row BETWEEN 5990 AND 6010",
    "row % 97 = 0",
    "row >= 12000",
    "pair['a'] = 5 AND key < 500",
    "array_length(list) = 2 AND key < 50",
    "cast(name AS varchar) <> '' AND key < 3",
]

SELECTED = ["*", "row, price, name", "row", "name, list, key", "row, key + 1 AS next, nothing"]


def write(folder: Path, rows: pa.Table, **options: Any) -> Path:
    folder.mkdir(exist_ok=True)
    pq.write_table(rows, folder / "part.parquet", row_group_size=GROUP, **options)
    return folder


def rows_of(session: tq.Session, query: str) -> pa.Table:
    return session.sql(query).to_arrow()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_same_rows_as_a_filter_in_memory(tmp_path: Path, layout: str) -> None:
    rows = table(seed=sum(map(ord, layout)))
    session = tq.Session()
    session.register_parquet("files", str(write(tmp_path / "t", rows, **LAYOUTS[layout])))
    session.register_table("memory", rows)
    kept = 0
    for number, condition in enumerate(CONDITIONS):
        selected = SELECTED[number % len(SELECTED)]
        query = f"SELECT {selected} FROM {{}} WHERE {condition}"
        found = rows_of(session, query.format("files"))
        expected = rows_of(session, query.format("memory"))
        assert found.equals(expected.cast(found.schema)), (layout, condition, selected)
        kept += found.num_rows
    assert kept > ROWS
