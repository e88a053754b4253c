"""Parquet files whose footers, page indexes and page headers contradict each other: the right rows, or an error;
never wrong rows, a hang or the end of the process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import support
import tensorquery as tq
from parquet_footers import SCHEMA, TEXT, ParquetFile, Struct, change, struct_of

ROWS = 100

PAGED: dict[str, Any] = {
    "write_page_index": True,
    "write_batch_size": 10,
    "data_page_size": 1,
    "use_dictionary": False,
}
"""Pages of ten rows."""


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    """A hang fails the test."""
    with support.alarm(120):
        yield


def read(path: Path, **options: Any) -> pa.Table:
    loader, _ = tq.create_dataloader(
        path=path, rank=0, world_size=1, output_format="arrow", **options
    )
    return pa.Table.from_batches(list(loader))


def write(folder: Path, columns: dict[str, Any], **options: Any) -> ParquetFile:
    path = folder / "a.parquet"
    pq.write_table(pa.table(columns), path, **options)
    return ParquetFile(path)


KINDS: dict[str, Callable[[int], Any]] = {
    "flag": lambda row: row % 3 == 0,
    "maybe": lambda row: None if row % 7 == 0 else row % 3 == 0,
    "pair": lambda row: [row, row + 0.5],
    "list": lambda row: [1] * (row % 3),
    "struct": lambda row: {"a": row, "b": str(row)},
    "split": float,
    "number": float,
    "text": str,
}

FILTERS = [
    "id >= 30 AND id < 60 AND (id < 40 OR id >= 50)",
    "(id < 10 OR id >= 90) AND id % 3 = 0",
    "id IN (2, 25, 27, 61, 99)",
    "id >= 47 AND id % 5 <> 1",
]


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("filters", FILTERS)
def test_pages_between_wanted_ones_are_not_needed(
    tmp_path: Path, filters: str, version: str
) -> None:
    types = {"pair": pa.list_(pa.float64(), 2)}
    rows = range(ROWS)
    columns = {name: pa.array(map(make, rows), types.get(name)) for name, make in KINDS.items()}
    file = write(
        tmp_path,
        {"id": pa.array(rows), **columns},
        data_page_version=version,
        column_encoding={"split": "BYTE_STREAM_SPLIT"},
        **PAGED,
    )
    table = pq.read_table(file.path)
    python = filters.replace("AND", "and").replace("OR", "or").replace(" = ", " == ")
    python = python.replace("<>", "!=").replace("IN", "in")
    expected = table.filter(pa.array([eval(python, {}, {"id": row}) for row in rows]))
    assert read(file.path, filters=filters).equals(expected)
    for name in KINDS:
        found = read(file.path, filters=filters, columns=[name])
        assert found.equals(expected.select([name])), name
    # In a condition, too.
    found = read(file.path, filters=f"({filters}) AND flag")
    assert found.equals(expected.filter(expected["flag"]))


def test_pages_of_thousands_of_rows_between_wanted_ones_are_not_needed(tmp_path: Path) -> None:
    rows = 140_000
    columns = {
        "day": [row // 20_000 for row in range(rows)],
        "user": [row * 7919 % 1000 for row in range(rows)],
        "clicked": [row * 31 % 7 < 3 for row in range(rows)],
    }
    file = write(tmp_path, columns, write_page_index=True)
    table = pq.read_table(file.path)
    third = pa.array([user % 3 == 0 for user in columns["user"]])
    kept = pc.and_(pc.is_in(table["day"], pa.array([2, 5])), third)
    expected = table.filter(kept).select(["clicked"])
    assert 13_000 < expected.num_rows < 14_000
    found = read(file.path, columns=["clicked"], filters="day IN (2, 5) AND user % 3 = 0")
    assert found.equals(expected)


INDEXES: dict[str, Callable[[list[Struct]], None]] = {
    "the first begins later": lambda pages: change(pages[0], 3, 1),
    "two begin with one row": lambda pages: change(pages[4], 3, 30),
    "one begins behind all rows": lambda pages: change(pages[9], 3, 100),
    "one without bytes": lambda pages: change(pages[1], 2, 0),
    "one before the chunk": lambda pages: change(pages[0], 1, 3),
    "one behind it": lambda pages: change(pages[9], 2, 1 << 20),
    "none": lambda pages: pages.clear(),
}


@pytest.mark.parametrize("damage", INDEXES)
@pytest.mark.parametrize("column", [0, 1, 2])
def test_a_page_index_that_cannot_be_is_not_used(tmp_path: Path, damage: str, column: int) -> None:
    columns = {"id": range(ROWS), "x": [row / 2 for row in range(ROWS)], "s": ["a"] * ROWS}
    file = write(tmp_path, columns, **PAGED)
    pages = file.page_index(column)
    assert len(pages) == 10
    INDEXES[damage](pages)
    file.set_page_index(pages, column)
    file.write()
    for filters, wanted in {
        "id >= 0 AND id < 10": range(10),
        "id >= 18 AND id < 32": range(18, 32),
        "id >= 75": range(75, 100),
    }.items():
        found = read(file.path, filters=filters)
        assert found.to_pydict() == {
            "id": list(wanted),
            "x": [row / 2 for row in wanted],
            "s": ["a"] * len(wanted),
        }


@pytest.mark.parametrize("filters", ["id >= 3000 AND id < 3990", "id % 7 = 3 AND id >= 2000"])
@pytest.mark.parametrize("count", [100, 999, 1001, 2_000_000_000, -5])
@pytest.mark.parametrize("column", [1, 2])
def test_a_page_that_counts_other_values_than_rows_is_damaged(
    tmp_path: Path, column: int, count: int, filters: str
) -> None:
    rows = 5000
    columns = {
        "id": range(rows),
        "x": [None if row % 3 == 0 else row / 2 for row in range(rows)],
        "s": [None if row % 3 == 0 else str(row) for row in range(rows)],
    }
    file = write(
        tmp_path,
        columns,
        write_page_index=True,
        write_batch_size=1000,
        data_page_size=1000,
        data_page_version="2.0",
        use_dictionary=False,
        compression="none",
    )
    start, _, header = file.pages(column)[3]
    change(header[8][1], 1, count)
    written = struct_of(header)
    # A longer header overwrites bytes of the page, a shorter one leaves some: either way it is damaged.
    file.body[start : start + len(written)] = written
    file.write()
    with pytest.raises(tq.DataError, match="damaged"):
        read(file.path, filters=filters)


def refused(file: ParquetFile, match: str) -> None:
    """Assert that every read of the file raises an error that names it."""
    file.write()
    for options in ({}, {"filters": "id % 2 = 0"}, {"columns": ["id"]}, {"shuffle": True}):
        with pytest.raises(tq.DataError, match=match) as error:
            read(file.path, **options)
        assert "a.parquet" in str(error.value)


NUMBERS = {"id": range(ROWS), "x": [row / 2 for row in range(ROWS)]}


@pytest.mark.parametrize("children", [2**31 - 1, 3, -1, 50])
def test_a_schema_with_other_children_than_it_says(tmp_path: Path, children: int) -> None:
    file = write(tmp_path, NUMBERS)
    change(file.schema(0), 5, children)
    refused(file, f"declares {children} children, and the schema has 3 elements")


def test_a_schema_of_more_levels_than_a_stack_has(tmp_path: Path) -> None:
    file = write(tmp_path, {"id": [1, 2]})
    kind, (inner, (root, leaf)) = file.footer[SCHEMA]
    level = {3: (5, 0), 4: (TEXT, b"a"), 5: (5, 1)}
    file.footer[SCHEMA] = (kind, (inner, [root, *[level] * 50_000, leaf]))
    refused(file, "levels")


@pytest.mark.parametrize("rows", [2**62, 2**33, ROWS + 1, ROWS - 1, 0, -1])
def test_a_row_group_with_rows_that_no_column_has(tmp_path: Path, rows: int) -> None:
    file = write(tmp_path, {**NUMBERS, "list": [[row, row] for row in range(ROWS)]})
    change(file.group(), 3, rows)
    refused(file, f"row group 0: it has {rows} rows")


@pytest.mark.parametrize("rows", [2**33, ROWS * 2])
def test_a_row_group_with_more_rows_than_items_of_lists(tmp_path: Path, rows: int) -> None:
    file = write(tmp_path, {"id": [[] if row % 2 else [row] for row in range(ROWS)]})
    change(file.group(), 3, rows)
    file.write()
    with pytest.raises(tq.DataError, match=f"row group 0: it has {rows} rows"):
        read(file.path)


def test_row_counts_that_overflow_together(tmp_path: Path) -> None:
    file = write(tmp_path, NUMBERS, row_group_size=ROWS // 2)
    for group in range(2):
        change(file.group(group), 3, 2**62)
        for column in range(2):
            change(file.metadata(column, group), 5, 2**62)
    refused(file, "row group 1: it has")


@pytest.mark.parametrize("column", [0, 1])
def test_a_chunk_of_another_type_than_its_column(tmp_path: Path, column: int) -> None:
    file = write(tmp_path, {"id": range(ROWS), "in": [{"x": row / 2} for row in range(ROWS)]})
    name, found = [("id", "INT64"), ("in.x", "DOUBLE")][column]
    # Elements are the root, `id`, `in`, `x`.
    change(file.schema([1, 3][column]), 1, 4)
    refused(file, f'row group 0: column "{name}" is {found}, and FLOAT in the schema')


@pytest.mark.parametrize("field", [7, 9, 11])
def test_a_chunk_that_lies_nowhere(tmp_path: Path, field: int) -> None:
    file = write(tmp_path, NUMBERS, use_dictionary=field == 11)
    change(file.metadata(1), field, -5)
    refused(file, 'row group 0: column "x" begins at byte')


KINDS_OF_PAGES: dict[str, dict[str, Any]] = {
    "plain": {"use_dictionary": False, "compression": "none"},
    "dictionary": {},
    "zstd": {"compression": "zstd"},
    "version 2": {"data_page_version": "2.0"},
    "page index": {"write_page_index": True},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS_OF_PAGES)
@pytest.mark.parametrize("column", ["x", "maybe", "s", "flag", "pair"])
def test_a_bit_that_flipped_in_a_page_with_a_checksum(
    tmp_path: Path, kind: str, column: str
) -> None:
    rows = range(ROWS)
    columns = {
        "id": rows,
        "x": [row / 2 for row in rows],
        "maybe": [None if row % 3 else row for row in rows],
        "s": [str(row % 7) for row in rows],
        "flag": [row % 5 == 0 for row in rows],
        "pair": pa.array([[row, row] for row in rows], pa.list_(pa.int32(), 2)),
    }
    options = KINDS_OF_PAGES[kind]
    file = write(tmp_path, columns, write_page_checksum=True, **options)
    everything = [{}, {"filters": "id >= 0"}, {"shuffle": True}, {"filters": "id IN (2, 3, 50)"}]
    for how in everything:
        assert read(file.path, **how).num_rows in (3, ROWS)
    names = {"pair": "pair.list.element"}
    place = list(columns).index(column)
    for _, start, header in file.pages(place):
        at = start + header[3][1] // 2
        file.body[at] ^= 4
        file.write()
        for how in everything:
            name = names.get(column, column)
            message = f'column "{name}": a page is damaged: .* checksum .*a.parquet'
            with pytest.raises(tq.DataError, match=message):
                read(file.path, **how)
        file.body[at] ^= 4


@pytest.mark.slow
def test_checksums_are_looked_at_where_splits_take_turns_and_by_the_engine(tmp_path: Path) -> None:
    """Pages are read one by one, and by DataFusion's own scan."""
    rows = 40_000
    columns = {"id": range(rows), "x": [row / 2 for row in range(rows)]}
    options: dict[str, Any] = {"use_dictionary": False, "row_group_size": 10_000}
    file = write(tmp_path, columns, write_page_checksum=True, **options)
    _, start, header = file.pages(1, 2)[0]
    file.body[start + header[3][1] // 2] ^= 1
    file.write()
    for how in ({"shuffle": True}, {"filters": "x >= 0", "num_workers": 1}):
        with pytest.raises(tq.DataError, match='column "x": a page is damaged'):
            read(file.path, **how)
    session = tq.Session()
    session.register_parquet("t", file.path)
    with pytest.raises(tq.DataError, match='column "x": a page is damaged'):
        session.table("t").to_arrow()
