"""Every format, and tables in memory, with their options; the judges are pyarrow and DuckDB."""

import bz2
import datetime as dt
import gzip
import json
import lzma
import os

import duckdb
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

import tensorquery as tq
from rows import assert_same, multiset, sharded

SMALL = pa.table(
    {
        "n": [1, 2, 3],
        "s": ["x", None, "z"],
        "f": [1.5, None, 2.5],
        "d": [dt.date(2026, 1, 1)] * 3,
    }
)


pytestmark = pytest.mark.usefixtures("folder")


def zstd_open(path, mode):
    return pa.CompressedOutputStream(str(path), "zstd")


COMPRESSORS = {
    "gz": ("gzip", gzip.open),
    "bz2": ("bz2", bz2.open),
    "xz": ("xz", lzma.open),
    "zst": ("zstd", zstd_open),
}


def write(path, content):
    content = content.encode() if isinstance(content, str) else content
    with open(path, "wb") as file:
        file.write(content)


# --- Parquet ---


def test_parquet_against_pyarrow(session):
    table = pa.table({"n": range(5000), "s": [f"row {n}" for n in range(5000)]})
    pq.write_table(table, "t.parquet", row_group_size=300)
    session.register_parquet("t", "t.parquet")
    assert_same(session.table("t"), table.to_pylist(), world_size=3, split_rows=700)
    assert session.tables == [tq.TableInfo("t", "parquet", 1, os.path.getsize("t.parquet"), 5000)]


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd", "lz4", "brotli"])
def test_parquet_codecs(session, compression):
    pq.write_table(SMALL, "t.parquet", compression=compression)
    session.register_parquet("t", "t.parquet")
    assert_same(session.table("t"), SMALL.to_pylist())


def test_an_empty_parquet_file_has_columns_and_no_rows(session):
    pq.write_table(SMALL.slice(0, 0), "t.parquet")
    session.register_parquet("t", "t.parquet")
    assert session.table("t").column_names == SMALL.column_names
    assert_same(session.table("t"), [])


# --- CSV ---


@pytest.mark.parametrize(
    ("content", "options"),
    [
        ("a,b\n1,x\n2,y\n", {}),
        ("a,b\n1,x\n2,y", {}),
        ("a,b\r\n1,x\r\n2,y\r\n", {}),
        ("\ufeffa,b\r\n1,x\r\n2,y\r\n", {}),
        ("a;b\n1;x\n2;y\n", {"delimiter": ";"}),
        ("a\tb\n1\tx\n2\ty\n", {"delimiter": "\t"}),
        ("# made today\na,b\n1,x\n# half way\n2,y\n", {"comment": "#"}),
        ("a,b\n'1',x\n2,'y'\n", {"quote": "'"}),
    ],
)
def test_csv_dialects(session, content, options):
    write("t.csv", content)
    session.register_csv("t", "t.csv", **options)
    assert_same(session.table("t"), [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}])


def test_csv_without_header_names_its_columns(session):
    write("t.csv", "1,x\n2,y\n")
    session.register_csv("t", "t.csv", header=False)
    expected = [{"column_1": 1, "column_2": "x"}, {"column_1": 2, "column_2": "y"}]
    assert_same(session.table("t"), expected)


def test_csv_without_header_takes_declared_names(session):
    write("t.csv", "1,x\n2,y\n")
    schema = pa.schema([("id", pa.int32()), ("name", pa.string())])
    session.register_csv("t", "t.csv", header=False, schema=schema)
    assert session.table("t").schema.field("id").type == pa.int32()
    assert_same(session.table("t"), [{"id": 1, "name": "x"}, {"id": 2, "name": "y"}])


def test_csv_quotes_escapes_and_newlines_inside_fields(session):
    write("t.csv", 'a,b\n1,"two\nlines, and ""quotes"""\n2,plain\n')
    session.register_csv("t", "t.csv")
    expected = [{"a": 1, "b": 'two\nlines, and "quotes"'}, {"a": 2, "b": "plain"}]
    assert_same(session.table("t"), expected)
    write("e.csv", 'a,b\n1,"say \\"hi\\""\n')
    session.register_csv("e", "e.csv", escape="\\")
    assert_same(session.table("e"), [{"a": 1, "b": 'say "hi"'}])


def test_csv_types_are_inferred_and_empty_fields_are_null(session):
    write("t.csv", "d,t,b,f,e\n2026-01-31,2026-01-31T01:02:03,true,1.5,\n,,,,\n")
    session.register_csv("t", "t.csv")
    row = {
        "d": dt.date(2026, 1, 31),
        "t": dt.datetime(2026, 1, 31, 1, 2, 3),
        "b": True,
        "f": 1.5,
        "e": None,
    }
    assert_same(session.table("t"), [row, dict.fromkeys(row)])


@pytest.mark.parametrize("ending", COMPRESSORS)
def test_compressed_csv_is_one_split(session, ending):
    name, opener = COMPRESSORS[ending]
    text = "a,b\n" + "".join(f"{n},row {n}\n" for n in range(3000))
    for path in (f"t.csv.{ending}", "t.bin"):
        with opener(path, "wb") as file:
            file.write(text.encode())
    expected = [{"a": n, "b": f"row {n}"} for n in range(3000)]
    session.register_csv("t", f"t.csv.{ending}")
    assert_same(session.table("t"), expected, split_bytes=1000)
    assert session.table("t").plan_shards(split_bytes=1000).num_splits == 1
    session.register_csv("u", "t.bin", compression=name)
    assert_same(session.table("u"), expected)


def test_compression_none_overrules_a_misleading_name(session):
    write("t.csv.gz", "a\n1\n")
    session.register_csv("t", "t.csv.gz", compression="none")
    assert_same(session.table("t"), [{"a": 1}])


@pytest.mark.slow
def test_byte_ranges_respect_records(session):
    # Quoted newlines, quotes and delimiters everywhere, so that most blind cuts would be wrong.
    rows = [
        {"n": n, "text": f'line {n}\nsecond, "quoted" ' + "\n" * (n % 4) + "x" * (n % 37)}
        for n in range(4000)
    ]
    pacsv.write_csv(pa.Table.from_pylist(rows), "t.csv")
    session.register_csv("t", "t.csv")
    query = session.table("t")
    assert duckdb.sql("SELECT count(*) FROM 't.csv'").fetchall() == [(4000,)]
    for split_bytes in (1, 97, 5000, 60_000):
        plan = query.plan_shards(split_bytes=split_bytes)
        assert plan.num_splits > 1
        splits = plan.splits()
        assert sum(split.bytes for split in splits) == os.path.getsize("t.csv")
        if split_bytes > 1:
            assert_same(query, rows, world_size=3, split_bytes=split_bytes)


@pytest.mark.slow
def test_files_over_four_mebibytes_are_cut_by_default(session):
    rows = [{"n": n, "text": f"{n} " * 20} for n in range(60_000)]
    pacsv.write_csv(pa.Table.from_pylist(rows), "t.csv")
    write("t.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    session.register_csv("c", "t.csv")
    session.register_json("j", "t.jsonl")
    for name, file in (("c", "t.csv"), ("j", "t.jsonl")):
        assert os.path.getsize(file) > 4 << 20
        assert session.table(name).plan_shards().num_splits > 1
        assert multiset(sharded(table=name, session=session)) == multiset(rows)


def test_a_bom_and_crlf_file_is_cut_right(session):
    text = "\ufeffn,s\r\n" + "".join(f'{n},"a\r\nb{n}"\r\n' for n in range(2000))
    write("t.csv", text)
    session.register_csv("t", "t.csv")
    assert session.table("t").plan_shards(split_bytes=500).num_splits > 10
    expected = [{"n": n, "s": f"a\r\nb{n}"} for n in range(2000)]
    assert_same(session.table("t"), expected, split_bytes=500)


def test_csv_files_with_whole_and_broken_numbers_are_floats(session):
    write("a.csv", "n\n1\n2\n")
    write("b.csv", "n\n1.5\n")
    session.register_csv("t", ["a.csv", "b.csv"])
    assert_same(session.table("t"), [{"n": 1.0}, {"n": 2.0}, {"n": 1.5}])


# --- JSON ---

DOCUMENTS = [{"n": n, "s": f"é {n}\n", "o": {"list": [n, n + 1]}} for n in range(300)]
LINES = "".join(json.dumps(row) + "\n" for row in DOCUMENTS)
ARRAY = json.dumps(DOCUMENTS, indent=1)


@pytest.mark.parametrize("name", ["t.json", "t.ndjson", "t.jsonl"])
def test_json_lines(session, name):
    write(name, LINES)
    session.register_json("t", name)
    assert session.table("t").plan_shards(split_bytes=1000).num_splits > 5
    assert_same(session.table("t"), DOCUMENTS, split_bytes=1000)


@pytest.mark.parametrize("array", [None, True])
def test_json_array_is_found_or_declared(session, array):
    write("t.json", ARRAY)
    session.register_json("t", "t.json", array=array)
    assert session.table("t").plan_shards(split_bytes=1000).num_splits == 1
    assert_same(session.table("t"), DOCUMENTS)


def test_json_array_by_path_and_in_a_path_literal(session):
    write("t.json", ARRAY)
    assert multiset(sharded(path="t.json")) == multiset(DOCUMENTS)
    assert_same(session.sql("SELECT * FROM 't.json'"), DOCUMENTS)


@pytest.mark.parametrize("ending", COMPRESSORS)
@pytest.mark.parametrize("text", [LINES, ARRAY], ids=["lines", "array"])
def test_compressed_json(session, ending, text):
    with COMPRESSORS[ending][1](f"t.json.{ending}", "wb") as file:
        file.write(text.encode())
    session.register_json("t", f"t.json.{ending}")
    assert_same(session.table("t"), DOCUMENTS)


def test_lines_and_arrays_are_not_mixed(session):
    write("a.json", LINES)
    write("b.json", ARRAY)
    with pytest.raises(tq.ConfigError, match=r"a\.json is json and .*b\.json is a JSON array"):
        session.register_json("t", ["a.json", "b.json"])


# --- Arrow ---


@pytest.mark.parametrize("name", ["t.arrow", "t.arrows", "t.feather", "t.ipc"])
@pytest.mark.parametrize("new", [pa.ipc.new_file, pa.ipc.new_stream], ids=["file", "stream"])
def test_arrow_files_and_streams(session, name, new):
    with new(name, SMALL.schema) as writer:
        writer.write_table(SMALL, max_chunksize=2)
    session.register_arrow("t", name)
    assert_same(session.table("t"), SMALL.to_pylist())
    assert_same(
        session.sql("SELECT f, n FROM t WHERE n > 1"), [{"f": None, "n": 2}, {"f": 2.5, "n": 3}]
    )
    assert_same(session.sql(f"SELECT s FROM '{name}'"), SMALL.select(["s"]).to_pylist())


def test_arrow_files_and_streams_are_not_mixed(session):
    for name, new in (("a.arrow", pa.ipc.new_file), ("b.arrow", pa.ipc.new_stream)):
        with new(name, SMALL.schema) as writer:
            writer.write_table(SMALL)
    with pytest.raises(tq.ConfigError, match=r"an arrow file and .* an arrow stream"):
        session.register_arrow("t", ["a.arrow", "b.arrow"])


# --- memory ---


def test_tables_in_memory(session):
    pandas = pytest.importorskip("pandas")
    batches = pa.RecordBatchReader.from_batches(SMALL.schema, SMALL.to_batches(max_chunksize=1))
    sources = {
        "table": SMALL,
        "batch": SMALL.to_batches()[0],
        "reader": batches,
        "relation": duckdb.sql("SELECT * FROM SMALL").arrow(),
    }
    frame = SMALL.to_pandas()
    if hasattr(pandas.DataFrame, "__arrow_c_stream__"):
        frame["d"] = frame["d"].astype("date32[pyarrow]")
        sources["frame"] = frame
    for name, source in sources.items():
        session.register_table(name, source)
        rows = session.table(name).to_arrow().to_pylist()
        for row in rows:
            row["f"] = None if row["f"] != row["f"] else row["f"]
        assert rows == SMALL.to_pylist(), name
        assert len(sharded(table=name, session=session)) == 3


class Capsule:
    """A table with nothing but the PyCapsule interface, as polars and others give it."""

    def __arrow_c_stream__(self, requested_schema=None):
        return SMALL.__arrow_c_stream__(requested_schema)


def test_any_object_with_the_stream_interface(session):
    session.register_table("t", Capsule())
    assert_same(session.table("t"), SMALL.to_pylist(), split_rows=1)


def test_a_query_can_be_registered_as_a_table(session):
    session.register_table("t", SMALL)
    session.register_table("once", session.sql("SELECT sum(n) AS total FROM t"))
    assert_same(session.table("once"), [{"total": 6}])


def test_registering_again_replaces(session):
    session.register_table("t", SMALL)
    query = session.table("t")
    session.register_table("t", pa.table({"other": [9]}))
    assert session.table("t").column_names == ["other"]
    assert query.count() == 3
    session.deregister("t")
    assert session.tables == []
