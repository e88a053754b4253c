"""Valid Parquet files are read as other engines read them, whatever their writer chose; or a column is refused by
name, and no other column suffers."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tensorquery as tq
from parquet_by_hand import (
    GEOMETRY,
    INTERVAL,
    LATER,
    LIST_KIND,
    MAP_KIND,
    OPTIONAL,
    REPEATED,
    REQUIRED,
    VARIANT,
    annotate,
    element,
    elements,
    with_schema,
    written,
)
from rows import read_both_ways

RANDOM = np.random.default_rng(11)


# --- differences of 64 bits ---

FULL = [2**31 - 1, -(2**31), 5, 2**31 - 1, -(2**31), -7, 0]


def integers(kind: str, rows: int) -> list[int]:
    low, high = {
        "INTEGER": (-(2**31), 2**31),
        "UINTEGER": (0, 2**32),
        "BIGINT": (-(2**63), 2**63),
        "UBIGINT": (0, 2**64),
    }[kind]
    ends = [low, high - 1, low + 1, high - 2]
    return [ends[n] if n < 4 else int(n) for n in RANDOM.integers(0, 12, rows)]


@pytest.mark.parametrize("kind", ["INTEGER", "UINTEGER", "BIGINT", "UBIGINT"])
@pytest.mark.parametrize("shape", ["{}", "[{}, NULL, {}]", "{{'a': {}}}"])
def test_integers_over_their_full_range_whose_differences_are_wider(
    tmp_path: Path, kind: str, shape: str
) -> None:
    file, rows = tmp_path / "t.parquet", 1000
    connection = duckdb.connect()
    table = pa.table(
        {
            "id": range(rows),
            "v": pa.array(
                integers(kind, rows),
                {
                    "INTEGER": pa.int32(),
                    "UINTEGER": pa.uint32(),
                    "BIGINT": pa.int64(),
                    "UBIGINT": pa.uint64(),
                }[kind],
            ),
        }
    )
    connection.register("stored", table)
    value = "CASE WHEN id % 5 = 0 THEN NULL ELSE v END"
    connection.sql(
        f"COPY (SELECT id, {shape.format(value, value)} AS c FROM stored) TO '{file}' "
        "(PARQUET_VERSION V2, DICTIONARY_SIZE_LIMIT 1, ROW_GROUP_SIZE 2048)"
    )
    encodings = pq.ParquetFile(file).metadata.row_group(0).column(1).encodings
    assert "DELTA_BINARY_PACKED" in encodings
    expected = duckdb.sql(f"SELECT * FROM '{file}' ORDER BY id").to_arrow_table().to_pylist()
    assert read_both_ways(file) == expected
    for condition, keep in [
        ("id % 3 = 1", lambda n: n % 3 == 1),
        ("id >= 900 AND id < 930", lambda n: 900 <= n < 930),
    ]:
        assert read_both_ways(file, f"SELECT * FROM t WHERE {condition}") == [
            row for row in expected if keep(row["id"])
        ]


@pytest.mark.parametrize("page_index", [False, True])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_packed_differences_are_read_in_any_page(
    tmp_path: Path, version: str, page_index: bool
) -> None:
    """In a column with a condition, by the page index, in both kinds of pages."""
    file = tmp_path / "t.parquet"
    numbers = pa.array([None if n % 7 == 0 else FULL[n % 7] for n in range(5000)], pa.int32())
    table = pa.table({"id": pa.array(range(5000), pa.int32()), "n": numbers})
    encoding = dict.fromkeys(table.column_names, "DELTA_BINARY_PACKED")
    pq.write_table(
        table,
        file,
        use_dictionary=False,
        column_encoding=encoding,
        data_page_version=version,
        write_page_index=page_index,
        data_page_size=400,
        row_group_size=2000,
    )
    assert read_both_ways(file) == table.to_pylist()
    for condition, keep in [
        ("id BETWEEN 2100 AND 2110", lambda row: 2100 <= row["id"] <= 2110),
        ("id % 100 = 3 AND n > 0", lambda row: row["id"] % 100 == 3 and (row["n"] or 0) > 0),
        ("n = -2147483648", lambda row: row["n"] == -(2**31)),
    ]:
        assert read_both_ways(file, f"SELECT * FROM t WHERE {condition}") == [
            row for row in table.to_pylist() if keep(row)
        ]


# --- texts that repeat ---


def long_texts(path: Path, shape: Any, rows: int, **options: Any) -> pa.Table:
    """A dictionary has eight texts of 300 kB, and rows refer to them again and again."""
    texts = pa.array([f"{n} " + "lorem ipsum " * 25_000 for n in range(8)])
    column = pa.DictionaryArray.from_arrays(
        pa.array([n % 8 for n in range(rows)], pa.int32()), texts
    )
    table = pa.table({"id": range(rows), "text": shape(column)})
    pq.write_table(table, path, compression="zstd", store_schema=False, **options)
    return table


def listed(column: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(range(len(column) + 1), pa.int32()), column)


def held(column: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays([column], ["x"])


@pytest.mark.slow
def test_texts_of_a_dictionary_that_are_too_long_in_one_batch(tmp_path: Path) -> None:
    """2.4 GB in all, in batches of 8,192 rows."""
    file, rows = tmp_path / "t.parquet", 8192
    long_texts(file, lambda column: column, rows)
    session = tq.Session()
    session.register_parquet("t", str(file))
    some = session.sql("SELECT id, text FROM t WHERE id % 1000 = 7").to_arrow()
    assert some["id"].to_pylist() == list(range(7, rows, 1000))
    assert all(text.as_py().startswith("7 ") for text in some["text"])
    loader, _ = tq.create_dataloader(
        "SELECT * FROM t",
        session=session,
        batch_size=64,
        output_format="arrow",
        shuffle=True,
        shuffle_buffer_size=50,
    )
    ids = []
    for batch in loader:
        ids += batch["id"].to_pylist()
        assert batch["text"][0].as_py()[:2] == f"{ids[-len(batch)] % 8} "
    assert sorted(ids) == list(range(rows))


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "text"), [(listed, "text[1]"), (held, "text['x']")])
def test_such_texts_in_lists_and_structs(tmp_path: Path, shape: Any, text: str) -> None:
    file, rows = tmp_path / "t.parquet", 8192
    long_texts(file, shape, rows)
    session = tq.Session()
    session.register_parquet("t", str(file))
    found = session.sql(f"SELECT count({text}) AS n FROM t").to_arrow()
    assert found.to_pylist() == [{"n": rows}]
    some = session.sql(f"SELECT {text} AS text FROM t WHERE id % 1000 = 7").to_arrow()
    assert [str(text)[:2] for text in some["text"]] == ["7 "] * 9


# --- intervals ---


def intervals(path: Path, query: str) -> Path:
    duckdb.sql(f"COPY ({query}) TO '{path}' (FORMAT parquet)")
    return path


def test_intervals_keep_months_days_and_milliseconds(tmp_path: Path) -> None:
    query = (
        "SELECT i AS id, CASE WHEN i % 4 <> 3 THEN to_months(i) + to_days(i * 2) + to_milliseconds(i * 1000001) END AS iv, "
        "TIMESTAMP '2024-01-31' AS ts FROM range(3000) r(i)"
    )
    file = intervals(tmp_path / "t.parquet", query)
    found = read_both_ways(file, "SELECT id, iv FROM t")
    for row in found:
        n = row["id"]
        want = None if n % 4 == 3 else pa.MonthDayNano([n, n * 2, n * 1000001 * 10**6])
        assert row["iv"] == want
    months = read_both_ways(
        file, "SELECT id FROM t WHERE iv = INTERVAL '1 month 2 days 1000.001 seconds'"
    )
    assert months == [{"id": 1}]
    assert len(read_both_ways(file, "SELECT id FROM t WHERE iv IS NULL")) == 750
    for one, other in [("ts + iv", "ts + iv"), ("ts - iv", "ts - iv")]:
        want = duckdb.sql(f"SELECT {other} AS r FROM '{file}' WHERE id < 20 ORDER BY id").fetchall()
        assert [
            row["r"]
            for row in read_both_ways(file, f"SELECT {one} AS r FROM t WHERE id < 20 ORDER BY id")
        ] == [r for (r,) in want]


@pytest.mark.parametrize("shape", ["[{}]", "{{'x': {}}}", "MAP {{'k': {}}}"])
def test_intervals_within_other_types(tmp_path: Path, shape: str) -> None:
    file = intervals(
        tmp_path / "t.parquet", f"SELECT {shape.format('to_months(14)')} AS c, 1 AS id"
    )
    (row,) = read_both_ways(file)
    inner = row["c"]
    inner = inner["x"] if isinstance(inner, dict) else inner[0]
    assert (inner[1] if isinstance(inner, tuple) and inner[0] == "k" else inner) == pa.MonthDayNano(
        [14, 0, 0]
    )


def test_an_interval_of_more_months_than_there_can_be_is_refused(tmp_path: Path) -> None:
    file = written(
        tmp_path / "t.parquet", pa.table({"iv": pa.array([b"\xff" * 12], pa.binary(12)), "id": [1]})
    )
    annotate(file, "iv", converted=INTERVAL)
    with pytest.raises(tq.DataError, match="4294967295 months"):
        read_both_ways(file)
    assert read_both_ways(file, "SELECT id FROM t") == [{"id": 1}]


# --- lists as older writers have them ---


def legacy(path: Path, table: pa.Table, made: list[Any]) -> Path:
    """A file of `table` whose schema is `made`; a string stands for the element of that number."""
    written(path, table)
    _, found = elements(path)
    by_place = [
        element(fields[0], fields[1], like=found[fields[2]])
        if len(fields) == 3
        else element(fields[0], fields[1], fields[2], converted=fields[3])
        if fields[3]
        else element(fields[0], fields[1], fields[2])
        for fields in made
    ]
    with_schema(path, by_place)
    return path


def required(item: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", item, nullable=False))


LISTS = [[1, 2], [], None, [3]]
LISTS_OF_LISTS = [[[1, 2], [3]], [], None, [[], [4]]]
PAIR = pa.struct([pa.field("x", pa.int32(), nullable=False), pa.field("y", pa.string())])
PAIRS = [[{"x": 1, "y": "a"}, {"x": 2, "y": None}], [], None, [{"x": 3, "y": "c"}]]
ONE = pa.struct([pa.field("x", pa.int32())])
ONES = [[{"x": 1}, {"x": None}], [], None, [{"x": 3}]]

# Of each: the type, the rows, and the schema: name, repetition, children and kind of groups; or name, repetition and which element of pyarrow's.
LEGACY = {
    "two levels": (
        required(pa.int32()),
        LISTS,
        [("a", OPTIONAL, 1, LIST_KIND), ("array", REPEATED, 3)],
    ),
    "two levels, another name": (
        required(pa.int32()),
        LISTS,
        [("a", OPTIONAL, 1, LIST_KIND), ("element", REPEATED, 3)],
    ),
    "two levels of two levels": (
        required(required(pa.int32())),
        LISTS_OF_LISTS,
        [("a", OPTIONAL, 1, LIST_KIND), ("array", REPEATED, 1, LIST_KIND), ("array", REPEATED, 5)],
    ),
    "two levels of three": (
        required(required(pa.int32())),
        LISTS_OF_LISTS,
        [
            ("a", OPTIONAL, 1, LIST_KIND),
            ("array", REPEATED, 1, LIST_KIND),
            ("list", REPEATED, 1, None),
            ("element", REQUIRED, 5),
        ],
    ),
    "three levels of two": (
        required(required(pa.int32())),
        LISTS_OF_LISTS,
        [
            ("a", OPTIONAL, 1, LIST_KIND),
            ("bag", REPEATED, 1, None),
            ("array_element", REQUIRED, 1, LIST_KIND),
            ("array", REPEATED, 5),
        ],
    ),
    "three levels of Hive": (
        pa.list_(pa.int32()),
        [[1, None], [], None, [3]],
        [("a", OPTIONAL, 1, LIST_KIND), ("bag", REPEATED, 1, None), ("array_element", OPTIONAL, 3)],
    ),
    "two levels of maps": (
        pa.list_(pa.field("element", pa.map_(pa.string(), pa.int32()), nullable=False)),
        [[[("k", 1)], []], None, [], [[("l", 2), ("m", None)]]],
        [
            ("a", OPTIONAL, 1, LIST_KIND),
            ("array", REPEATED, 1, MAP_KIND),
            ("key_value", REPEATED, 2, None),
            ("key", REQUIRED, 5),
            ("value", OPTIONAL, 6),
        ],
    ),
    "three levels, three times": (
        required(required(required(pa.int32()))),
        [[[[1], []], []], None, [], [[[2, 3]]]],
        [
            ("a", OPTIONAL, 1, LIST_KIND),
            ("array", REPEATED, 1, LIST_KIND),
            ("array", REPEATED, 1, LIST_KIND),
            ("array", REPEATED, 7),
        ],
    ),
    "one repeated field": (
        pa.list_(
            pa.field(
                "element",
                pa.struct([pa.field("x", required(pa.int32()), nullable=False)]),
                nullable=False,
            )
        ),
        [[{"x": [1, 2]}, {"x": []}], None, [], [{"x": [3]}]],
        [("a", OPTIONAL, 1, LIST_KIND), ("bag", REPEATED, 1, None), ("x", REPEATED, 6)],
    ),
    "structs of several fields": (
        pa.list_(pa.field("element", PAIR, nullable=False)),
        PAIRS,
        [
            ("a", OPTIONAL, 1, LIST_KIND),
            ("element", REPEATED, 2, None),
            ("x", REQUIRED, 4),
            ("y", OPTIONAL, 5),
        ],
    ),
    "structs of one field named array": (
        pa.list_(pa.field("element", ONE, nullable=False)),
        ONES,
        [("a", OPTIONAL, 1, LIST_KIND), ("array", REPEATED, 1, None), ("x", OPTIONAL, 4)],
    ),
    "structs of one field named by the list": (
        pa.list_(pa.field("element", ONE, nullable=False)),
        ONES,
        [("a", OPTIONAL, 1, LIST_KIND), ("a_tuple", REPEATED, 1, None), ("x", OPTIONAL, 4)],
    ),
}


@pytest.mark.parametrize("name", LEGACY)
def test_lists_of_older_writers_are_those_of_newer_ones(tmp_path: Path, name: str) -> None:
    data_type, rows, made = LEGACY[name]
    table = pa.table({"a": pa.array(rows * 5, data_type)})
    file = legacy(tmp_path / "t.parquet", table, made)
    expected = [{"a": row} for row in rows * 5]
    if "of three" not in name:
        assert pq.read_table(file).to_pylist() == expected
    assert read_both_ways(file) == expected
    last = [{"x": row[-1]} for row in rows * 5 if row]
    assert (
        read_both_ways(file, "SELECT a[-1] AS x FROM t WHERE a IS NOT NULL AND array_length(a) > 0")
        == last
    )


def test_repeated_fields_without_a_list_are_lists(tmp_path: Path) -> None:
    """As protobuf's writer has them; an empty one is no NULL."""
    table = pa.table(
        {
            "a": pa.array(
                [[1, 2], [], [3]], pa.list_(pa.field("element", pa.int32(), nullable=False))
            )
        }
    )
    table = table.cast(pa.schema([pa.field("a", table.schema.field("a").type, nullable=False)]))
    file = legacy(tmp_path / "t.parquet", table, [("a", REPEATED, 3)])
    assert read_both_ways(file) == [{"a": [1, 2]}, {"a": []}, {"a": [3]}]


# --- columns that are not read ---


def variants(path: Path, logical: int = VARIANT) -> Path:
    value = pa.struct(
        [
            pa.field("metadata", pa.binary(), nullable=False),
            pa.field("value", pa.binary(), nullable=False),
        ]
    )
    rows = [{"metadata": b"\x01\x00\x00", "value": b"\x0c\x05"}] * 3
    written(path, pa.table({"id": [1, 2, 3], "v": pa.array(rows, value), "s": ["a", "b", None]}))
    annotate(path, "v", logical=logical)
    return path


@pytest.mark.parametrize(("logical", "told"), [(VARIANT, "VARIANT"), (LATER, "number 31")])
def test_what_would_show_its_storage_is_refused_where_it_is_read(
    tmp_path: Path, logical: int, told: str
) -> None:
    file = variants(tmp_path / "t.parquet", logical)
    assert read_both_ways(file, "SELECT id, s FROM t WHERE s IS NOT NULL") == [
        {"id": 1, "s": "a"},
        {"id": 2, "s": "b"},
    ]
    session = tq.Session()
    session.register_parquet("t", str(file))
    assert session.sql("SELECT * FROM t").count() == 3
    for query in [
        "SELECT * FROM t",
        "SELECT v FROM t",
        "SELECT id FROM t WHERE v IS NULL",
        "SELECT v['value'] AS x FROM t",
    ]:
        with pytest.raises(
            tq.UnsupportedTypeError,
            match=rf'column "v" cannot be read.*{told}.*select the other columns',
        ):
            session.sql(query).to_arrow()
        with pytest.raises(tq.UnsupportedTypeError, match='column "v"'):
            list(tq.create_dataloader(query, session=session)[0])
    stored = pa.schema(
        [("id", pa.int64()), ("v", pa.struct([("metadata", pa.binary()), ("value", pa.binary())]))]
    )
    assert read_both_ways(file, "SELECT v['value'] AS x FROM t", schema=stored)[0] == {
        "x": b"\x0c\x05"
    }


def test_a_column_that_is_refused_in_one_file_of_several(tmp_path: Path) -> None:
    variants(tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": [4], "v": [7], "s": ["z"]}), tmp_path / "b.parquet")
    assert [row["id"] for row in read_both_ways(tmp_path, "SELECT id FROM t")] == [1, 2, 3, 4]
    with pytest.raises(tq.UnsupportedTypeError, match="VARIANT"):
        read_both_ways(tmp_path)


def test_geometries_are_their_bytes(tmp_path: Path) -> None:
    file = written(tmp_path / "t.parquet", pa.table({"g": [b"\x01\x02", None]}))
    annotate(file, "g", logical=GEOMETRY)
    assert read_both_ways(file) == [{"g": b"\x01\x02"}, {"g": None}]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, None], pa.int32()),
        pa.array([2**40, None]),
        pa.array([b"a", None]),
        pa.array([b"abc", None], pa.binary(3)),
        pa.array([1.5, None]),
    ],
)
def test_numbers_and_bytes_of_an_unknown_type_are_what_they_are_stored_as(
    tmp_path: Path, column: pa.Array
) -> None:
    """As the format says, and pyarrow and DuckDB do."""
    table = pa.table({"id": [1, 2], "c": column})
    annotate(written(tmp_path / "t.parquet", table), "c", logical=LATER)
    assert read_both_ways(tmp_path / "t.parquet") == table.to_pylist()


def test_a_type_that_cannot_be_spoils_no_other_column(tmp_path: Path) -> None:
    """A list with two children, and a map whose keys are repeated."""
    pair = pa.StructArray.from_arrays([pa.array([1, 2]), pa.array([3, 4])], ["x", "y"])
    file = written(tmp_path / "t.parquet", pa.table({"id": [1, 2], "odd": pair}))
    annotate(file, "odd", converted=LIST_KIND)
    assert read_both_ways(file, "SELECT id FROM t WHERE id > 1") == [{"id": 2}]
    for query in [
        "SELECT * FROM t",
        "SELECT count(odd) AS n FROM t",
        "SELECT id FROM t WHERE odd IS NULL",
    ]:
        with pytest.raises(tq.UnsupportedTypeError, match='column "odd" cannot be read'):
            read_both_ways(file, query)
    file = written(tmp_path / "u.parquet", pa.table({"id": [1, 2], "wide": pa.array([[1], None])}))
    annotate(file, "wide", converted=MAP_KIND)
    assert read_both_ways(file, "SELECT id FROM t") == [{"id": 1}, {"id": 2}]


@pytest.mark.parametrize("write", ["arrow", "stream"])
def test_an_impossible_type_in_an_arrow_file_spoils_no_other_column(
    tmp_path: Path, write: str
) -> None:
    union = pa.UnionArray.from_sparse(
        pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])]
    )
    table = pa.table({"id": [1, 2], "u": union, "s": ["x", None]})
    new = {"arrow": pa.ipc.new_file, "stream": pa.ipc.new_stream}[write]
    with new(tmp_path / "t.arrow", table.schema) as file:
        file.write_table(table)
    session = tq.Session()
    session.register_arrow("t", str(tmp_path / "t.arrow"))
    assert (
        session.sql("SELECT id, s FROM t WHERE id > 0").to_arrow().to_pylist()
        == table.select(["id", "s"]).to_pylist()
    )


def test_an_arrow_schema_that_contradicts_its_file_is_only_a_hint(tmp_path: Path) -> None:
    file = tmp_path / "t.parquet"
    table = pa.table({"id": pa.array([1, 2], pa.int64()), "l": [[1], None]})
    pq.write_table(table, file)
    other = pq.ParquetFile(file).schema_arrow
    pq.write_table(pa.table({"id": [1, 2], "l": ["x", "y"]}), tmp_path / "o.parquet")
    note = pq.read_metadata(tmp_path / "o.parquet").metadata[b"ARROW:schema"]
    footer, _ = elements(file)
    for pair in footer.footer[5][1][1]:
        if pair[1][1] == b"ARROW:schema":
            pair[2] = (8, note)
    footer.write()
    assert other.field("l").type == table.schema.field("l").type
    assert read_both_ways(file) == table.to_pylist()


# --- other types ---


def test_dictionaries_of_values_that_are_no_texts_are_plain_columns(tmp_path: Path) -> None:
    columns = {
        "d": pa.array([Decimal("1.5"), None, Decimal("-2.25")], pa.decimal128(9, 2)),
        "f": pa.array([b"abc", None, b"def"], pa.binary(3)),
        "h": pa.array([np.float16(0.5), None, np.float16(2)], pa.float16()),
        "s": pa.array(["x", None, "y"], pa.large_string()),
    }
    encoded = {name: column.dictionary_encode() for name, column in columns.items()}
    pq.write_table(pa.table(encoded), tmp_path / "t.parquet")
    # pyarrow reads them as plain columns, too; the file says that they were dictionaries.
    assert read_both_ways(tmp_path / "t.parquet") == pa.table(columns).to_pylist()
    session = tq.Session()
    session.register_parquet("t", str(tmp_path / "t.parquet"))
    types = session.sql("SELECT * FROM t").to_arrow().schema.types
    assert types[:3] == [column.type for column in list(columns.values())[:3]]
    assert pa.types.is_dictionary(types[3])


def test_half_floats_and_dates_of_all_kinds(tmp_path: Path) -> None:
    halves = pa.array([np.float16(1.5), None, np.float16("-inf")], pa.float16())
    days = pa.array([dt.date(1, 1, 1), None, dt.date(9999, 12, 31)])
    table = pa.table({"h": halves, "d": days})
    pq.write_table(table, tmp_path / "t.parquet")
    assert read_both_ways(tmp_path / "t.parquet") == table.to_pylist()
