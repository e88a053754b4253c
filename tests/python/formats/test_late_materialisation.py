"""A filter decodes its own columns first, and only the kept rows of the others. Rows and order stay those of the
files."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
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
            "money": column(lambda: pick.randrange(10**6), 0.1, pa.int64()).cast(
                pa.decimal128(21, 2)
            ),
            "list": column(numbers, 0.1, pa.list_(pa.int64())),
            "pair": column(
                lambda: {"a": number(), "b": text()},
                0.1,
                pa.struct([("a", pa.int64()), ("b", pa.string())]),
            ),
            "nothing": pa.nulls(rows, pa.int64()),
            # As pandas writes its categories: keys of as few bits as do.
            **{
                f"kind_{keys}": column(lambda: f"k{pick.randrange(90)}", 0.1, pa.string())
                .dictionary_encode()
                .cast(pa.dictionary(keys, pa.string()))
                for keys in (pa.int8(), pa.uint16(), pa.int32())
            },
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
    "deltas": {
        "use_dictionary": False,
        "column_encoding": {
            "key": "DELTA_BINARY_PACKED",
            "name": "DELTA_BYTE_ARRAY",
            "ratio": "BYTE_STREAM_SPLIT",
        },
    },
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
    "kind_int8 = 'k7' AND key < 700",
    "kind_uint16 IN ('k1', 'k2') OR kind_int32 = 'k3'",
]

SELECTED = [
    "*",
    "row, price, name",
    "kind_int8, row, kind_uint16, kind_int32, code",
    "row",
    "name, list, key",
    "row, key + 1 AS next, nothing",
]


def write(folder: Path, rows: pa.Table, **options: Any) -> Path:
    folder.mkdir(exist_ok=True)
    pq.write_table(rows, folder / "part.parquet", row_group_size=GROUP, **options)
    return folder


def rows_of(session: tq.Session, query: str) -> list[dict[str, Any]]:
    """As a loader delivers them: `to_arrow` reads by DataFusion's own scan."""
    options: dict[str, Any] = {"output_format": "arrow", "batch_size": 3_000, "rank": 0, "world_size": 1}  # fmt: skip
    loader, _ = tq.create_dataloader(query, session=session, **options)
    return [row for batch in loader for row in batch.to_pylist()]


def expected_of(session: tq.Session, query: str) -> list[dict[str, Any]]:
    return session.sql(query).to_arrow().to_pylist()


@pytest.mark.slow
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
        assert found == expected_of(session, query.format("memory")), (layout, condition, selected)
        kept += len(found)
    assert kept > ROWS


def test_columns_that_are_read_apart_and_of_which_one_cannot_be_passed_over(tmp_path: Path) -> None:
    """Columns of more than 512 KiB are decoded one after the other: all in the same way, or their batches differ."""
    rows = 200_000
    columns = {
        "key": [row * 7919 % 100 for row in range(rows)],
        "plain": [row * 2_654_435_761 % 2**40 for row in range(rows)],
        "deltas": [row * 40_503_113 % 2**40 for row in range(rows)],
    }
    encodings = {"key": "PLAIN", "plain": "PLAIN", "deltas": "DELTA_BINARY_PACKED"}
    memory = pa.table(columns)
    pq.write_table(memory, tmp_path / "f.parquet", use_dictionary=False, column_encoding=encodings)
    session = tq.Session()
    session.register_parquet("files", str(tmp_path / "f.parquet"))
    session.register_table("memory", memory)
    query = "SELECT key, plain, deltas FROM {} WHERE key < 5"
    found = rows_of(session, query.format("files"))
    assert found == expected_of(session, query.format("memory"))
    assert len(found) == rows // 20


def test_files_that_differ_and_values_of_folders(tmp_path: Path) -> None:
    """A column that a file lacks, or has in a narrower type, and one that is in no file."""
    rows = table(seed=5, rows=3_000).select(["row", "key", "name", "price"])
    narrow = rows.set_column(1, "key", rows["key"].cast(pa.int32())).drop_columns(["price"])
    for folder, part in {"side=left": rows, "side=right": narrow}.items():
        (tmp_path / "t").mkdir(exist_ok=True)
        write(tmp_path / "t" / folder, part)
    memory = pa.concat_tables(
        [
            rows.append_column("side", pa.array(["left"] * len(rows))),
            narrow.append_column("side", pa.array(["right"] * len(rows))),
        ],
        promote_options="permissive",
    )
    session = tq.Session()
    session.register_parquet("files", str(tmp_path / "t"), schema=rows.schema)
    session.register_table("memory", memory)
    kept = 0
    for condition in [
        "key = 7",
        "key < 30 AND price IS NULL",
        "key < 300 AND price > 50",
        "side = 'right' AND key BETWEEN 3 AND 5",
        "name = 'xx7' AND side <> 'right'",
        "price IS NULL AND side = 'right'",
    ]:
        query = f"SELECT row, side, price, key FROM {{}} WHERE {condition}"
        found = rows_of(session, query.format("files"))
        assert found == expected_of(session, query.format("memory")), condition
        kept += len(found)
    assert kept > 1_000


def test_a_condition_is_asked_of_the_rows_that_those_before_it_keep(tmp_path: Path) -> None:
    """A division by zero is an error in a row that the earlier parts of the filter keep, and none in one that they drop."""
    rows = pa.table({"n": pa.array([0, 1, 2, 4] * 500), "m": pa.array(range(2_000))})
    session = tq.Session()
    session.register_parquet("files", str(write(tmp_path / "t", rows)))
    found = rows_of(session, "SELECT m FROM files WHERE n <> 0 AND 4 / n = 2")
    assert [row["m"] for row in found] == list(range(2, 2_000, 4))
    with pytest.raises(
        tq.DataError, match=r"(?i)divide by zero.*part\.parquet|part\.parquet.*(?i:divide by zero)"
    ):
        rows_of(session, "SELECT m FROM files WHERE m >= 0 AND 4 / n = 2")


def test_a_damaged_page_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    rows = table(seed=9).select(["row", "key", "price", "name"])
    folder = write(tmp_path / "t", rows, compression="none")
    file = folder / "part.parquet"
    group = pq.ParquetFile(file).metadata.row_group(1)
    start = group.column(2).dictionary_page_offset
    content = bytearray(file.read_bytes())
    content[start : start + group.column(2).total_compressed_size] = b"\xa5" * group.column(2).total_compressed_size  # fmt: skip
    file.write_bytes(content)
    session = tq.Session()
    session.register_parquet("files", str(folder))
    with pytest.raises(tq.DataError, match=r"part\.parquet"):
        rows_of(session, "SELECT * FROM files WHERE key BETWEEN 500 AND 504")
    untouched = rows_of(session, "SELECT row, name FROM files WHERE key BETWEEN 500 AND 504")
    assert 0 < len(untouched) < 300


def test_differences_in_blocks_that_the_decoder_cannot_pass_over(tmp_path: Path) -> None:
    """DuckDB packs them in blocks of 256."""
    file = tmp_path / "part.parquet"
    rows = "SELECT i AS id, (i * 7919) % 1000 AS p, CASE WHEN i % 3 > 0 THEN (i * 104729) % 1000003 END AS many FROM range(30000) t(i)"
    duckdb.sql(f"COPY ({rows}) TO '{file}' (FORMAT parquet, PARQUET_VERSION V2)")
    encodings = duckdb.sql(f"SELECT encodings FROM parquet_metadata('{file}')").fetchall()
    assert any("DELTA_BINARY_PACKED" in found for (found,) in encodings)
    session = tq.Session()
    session.register_parquet("files", str(file))
    for condition in ["p < 50", "p BETWEEN 100 AND 700", "p = 7", "many < 1000", "p < 0"]:
        query = f"SELECT id, p, many FROM {{}} WHERE {condition}"
        expected = duckdb.sql(query.format(f"({rows})")).fetchall()
        found = rows_of(session, query.format("files"))
        assert [tuple(row.values()) for row in found] == expected, condition


@pytest.mark.slow
def test_whatever_is_damaged_is_an_error_that_names_the_file_or_rows(tmp_path: Path) -> None:
    pick = random.Random(2)
    columns = ["row", "key", "price", "name", "code", "kind_int8", "pair", "list"]
    folder = write(tmp_path / "t", table(seed=4, rows=2_000).select(columns), compression="none")
    file = folder / "part.parquet"
    content = file.read_bytes()
    errors = []
    for _ in range(150):
        damaged = bytearray(content)
        for _ in range(3):
            damaged[pick.randrange(4, len(content) * 9 // 10)] = pick.randrange(256)
        file.write_bytes(damaged)
        session = tq.Session()
        try:
            session.register_parquet("files", str(folder))
            rows_of(session, "SELECT * FROM files WHERE key BETWEEN 100 AND 499")
        except tq.DataError as error:
            errors.append(str(error))
    assert len(errors) > 20
    assert [error for error in errors if "part.parquet" not in error] == []
