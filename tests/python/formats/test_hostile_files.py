"""Files and names made to do harm: links in circles, pipes, names that are paths, text without an end, types without
one."""

import bz2
import functools
import gzip
import lzma
import os
import resource
import subprocess
import sys
import textwrap

import fastavro
import pyarrow as pa
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet as pq
import pytest

import support
import tensorquery as tq

TABLE = pa.table({"id": range(10)})


@pytest.fixture(autouse=True)
def alarm():
    """A hang fails the test."""
    with support.alarm(240):
        yield


def rows_of(path, kind="parquet"):
    """All rows, through a loader."""
    session = tq.Session()
    getattr(session, f"register_{kind}")("t", path)
    loader, _ = tq.create_dataloader(
        "SELECT * FROM t", session=session, rank=0, world_size=1, output_format="arrow"
    )
    return [row for batch in loader for row in batch.to_pylist()]


# ------------------------------------------------------------------------------------------------
# Names.

HIVE = {
    "..": "..",
    "%2e%2e": "..",
    "..%2F..%2Fetc%2Fpasswd": "../../etc/passwd",
    "%2Fetc%2Fpasswd": "/etc/passwd",
    "'; DROP TABLE t; --": "'; DROP TABLE t; --",
    "a=b": "a=b",
    "%zz": "%zz",
    "": "",
    "x" * 240: "x" * 240,
    "99999999999999999999999": "99999999999999999999999",
    "1e999": "1e999",
}


@pytest.mark.parametrize("name", HIVE, ids=lambda name: name[:20] or "empty")
def test_a_hive_value_is_a_value_and_never_a_path(tmp_path, name, monkeypatch):
    folder = tmp_path / "t" / f"k={name}"
    folder.mkdir(parents=True)
    pq.write_table(TABLE, folder / "a.parquet")
    assert rows_of(tmp_path / "t") == [{"id": n, "k": HIVE[name]} for n in range(10)]
    # Nor is it one where rows are written: a stage is below its folder.
    stages = tmp_path / "stages"
    session = tq.Session()
    session.register_parquet("t", tmp_path / "t")
    before = {path for path in tmp_path.rglob("*") if stages not in path.parents}
    loader, _ = tq.create_dataloader(
        "SELECT k, count(*) AS n FROM t GROUP BY k",
        session=session,
        rank=0,
        world_size=1,
        stage_dir=stages,
        output_format="dict",
    )
    assert [batch["k"] for batch in loader] == [[HIVE[name]]]
    after = {path for path in tmp_path.rglob("*") if stages not in path.parents}
    assert after - before == {stages}


TABLES = (
    "../x",
    "/etc/passwd",
    "a.b.c",
    "%2e%2e",
    "a\0b",
    '"',
    "t; DROP TABLE t",
    "..",
    "x" * 5000,
    "select",
)


@pytest.mark.parametrize("name", TABLES, ids=lambda name: repr(name[:15]))
def test_a_table_name_is_a_name_and_never_a_path(tmp_path, name):
    pq.write_table(TABLE, tmp_path / "a.parquet")
    session = tq.Session(plan_cache=tmp_path / "plans")
    session.register_parquet(name, tmp_path / "a.parquet")
    loader, _ = tq.create_dataloader(
        table=name,
        session=session,
        rank=0,
        world_size=1,
        stage="always",
        stage_dir=tmp_path / "stages",
    )
    assert sum(len(batch["id"]) for batch in loader) == 10
    assert {path.name for path in tmp_path.iterdir()} <= {"a.parquet", "plans", "stages"}


def test_names_that_are_no_utf_8_are_told(tmp_path):
    for below in (b"\xff\xfe.parquet", b"\xff=1/a.parquet", b"k=\xff/a.parquet"):
        folder = tmp_path / str(len(below))
        path = os.path.join(os.fsencode(folder), below)
        os.makedirs(os.path.dirname(path))
        pq.write_table(TABLE, folder / "good.parquet")
        with open(path, "wb") as file:
            file.write((folder / "good.parquet").read_bytes())
        with pytest.raises(tq.StorageError, match="not UTF-8"):
            rows_of(folder)


def test_links_in_circles_and_out_of_the_folder(tmp_path):
    folder = tmp_path / "t"
    (folder / "x").mkdir(parents=True)
    pq.write_table(TABLE, folder / "a.parquet")
    os.symlink("nowhere", folder / "dangling.parquet")
    assert len(rows_of(folder)) == 10
    os.symlink("..", folder / "x" / "up")
    with pytest.raises(tq.StorageError, match=r"cannot list .*/t"):
        rows_of(folder)
    os.remove(folder / "x" / "up")
    os.symlink("itself.parquet", folder / "itself.parquet")
    for path in (folder, folder / "**/*.parquet", folder / "itself.parquet"):
        with pytest.raises(tq.StorageError, match="Too many levels of symbolic links"):
            rows_of(path)


def test_pipes_and_devices_are_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.parquet")
    for path, kind in (
        (tmp_path / "pipe.parquet", "parquet"),
        ("/dev/zero", "csv"),
        ("/dev/zero", "parquet"),
    ):
        with pytest.raises(tq.DataError, match="no regular file"):
            rows_of(path, kind)
    # Among others, it is left out.
    pq.write_table(TABLE, tmp_path / "a.parquet")
    assert len(rows_of(tmp_path)) == 10


# ------------------------------------------------------------------------------------------------
# Text.

GIB = 1 << 30


@functools.cache
def packed(ending):
    """1 GiB of zeros in members of 16 MiB, which each format compresses to a thousandth or less."""
    zeros = bytes(1 << 24)
    pack = {
        "bz2": bz2.compress,
        "gz": gzip.compress,
        "xz": lzma.compress,
        "zst": lambda data: pa.compress(data, codec="zstd", asbytes=True),
    }
    return pack[ending](zeros) * (GIB >> 24)


READ = """
    import resource, sys
    import tensorquery as tq
    path, kind, bound = sys.argv[1], sys.argv[2], int(sys.argv[3])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    session = tq.Session()
    try:
        getattr(session, "register_" + kind)("t", path)
    except tq.DataError as error:
        assert len(str(error)) < 2000, len(str(error))
        print(error)
    else:
        print("rows", session.table("t").count())
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
    assert grown < bound, f"{grown} MiB"
"""


def in_child(path, kind, megabytes):
    """The output of a process that reads a file within so much memory, and 24 GiB of addresses."""
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(READ), str(path), kind, str(megabytes)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (24 << 30, 24 << 30)),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert found.returncode == 0, found.stderr[-2000:]
    return found.stdout


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csv", "json"])
@pytest.mark.parametrize("ending", ["gz", "zst", "bz2", "xz"])
def test_a_small_file_that_becomes_one_endless_line(tmp_path, ending, kind):
    path = tmp_path / f"bomb.{kind}.{ending}"
    path.write_bytes(packed(ending))
    assert path.stat().st_size < 2 << 20
    assert "longer than 64 MiB" in in_child(path, kind, 400)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csv", "json"])
def test_an_endless_line_that_is_not_compressed(tmp_path, kind):
    path = tmp_path / f"line.{kind}"
    with open(path, "wb") as file:
        file.truncate(GIB)
    assert "longer than 64 MiB" in in_child(path, kind, 400)


@pytest.mark.slow
def test_many_short_lines_take_no_memory(tmp_path):
    path = tmp_path / "rows.csv.gz"
    path.write_bytes(gzip.compress(b"n\n") + gzip.compress(b"1\n" * (1 << 22)) * 8)
    assert f"rows {8 << 22}" in in_child(path, "csv", 400)


# ------------------------------------------------------------------------------------------------
# Types and footers.


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parquet", "orc", "avro", "arrow"])
def test_a_file_that_was_cut_short_is_damaged(tmp_path, kind):
    """Random bytes at the end of an ORC file are damage, not an unknown version."""
    rows = pa.table({"id": range(20_000), "x": [f"row {i}" for i in range(20_000)]})
    path = tmp_path / f"t.{kind}"
    match kind:
        case "parquet":
            pq.write_table(rows, path)
        case "orc":
            pa.orc.write_table(rows, path, compression="zstd", stripe_size=1)
        case "avro":
            fields = [{"name": "id", "type": "long"}, {"name": "x", "type": "string"}]
            schema = {"type": "record", "name": "r", "fields": fields}
            with open(path, "wb") as file:
                fastavro.writer(file, schema, rows.to_pylist(), codec="deflate")
        case "arrow":
            pa.feather.write_feather(rows, str(path))
    content = path.read_bytes()
    for part in range(1, 100):
        path.write_bytes(content[: len(content) * part // 100])
        with pytest.raises(tq.DataError, match=path.name):
            rows_of(path, kind)


@pytest.mark.parametrize("depth", [50, 65, 100, 1000])
def test_types_nested_hundreds_of_levels(tmp_path, depth):
    kind, value = pa.int32(), 1
    for _ in range(depth):
        kind, value = pa.list_(kind), [value]
    pq.write_table(pa.table({"id": [1], "x": pa.array([value], kind)}), tmp_path / "a.parquet")
    session = tq.Session()
    if depth > 50:
        # A list takes three levels of a schema; the Arrow schema beside it has a limit of its own.
        told = "DepthLimitReached" if depth < 66 else "more than 200 levels"
        with pytest.raises(tq.DataError, match=told):
            session.register_parquet("t", tmp_path / "a.parquet")
        return
    session.register_parquet("t", tmp_path / "a.parquet")
    assert session.sql("SELECT id FROM t").to_arrow()["id"].to_pylist() == [1]


@pytest.mark.parametrize("depth", [50, 128, 1000, 100_000])
@pytest.mark.parametrize("brackets", [("[", "]"), ('{"a":', "}")])
def test_json_nested_without_end(tmp_path, depth, brackets):
    text = '{"id": 1, "x": ' + brackets[0] * depth + "1" + brackets[1] * depth + "}\n"
    (tmp_path / "a.json").write_text(text)
    session = tq.Session()
    if depth > 50:
        with pytest.raises(tq.DataError, match="recursion limit"):
            session.register_json("t", tmp_path / "a.json")
        return
    session.register_json("t", tmp_path / "a.json")
    assert session.sql("SELECT id FROM t").count() == 1


@pytest.mark.slow
def test_a_hundred_thousand_columns(tmp_path):
    """Two of them are read in seconds. `SELECT *` of so many is slow: the engine's work grows with their number squared."""
    many = 100_000
    table = pa.table([pa.array([1, 2], pa.int32())] * many, names=[f"c{n}" for n in range(many)])
    pq.write_table(
        table,
        tmp_path / "a.parquet",
        compression="none",
        use_dictionary=False,
        write_statistics=False,
    )
    session = tq.Session()
    session.register_parquet("t", tmp_path / "a.parquet")
    loader, _ = tq.create_dataloader(
        "SELECT c5, c99999 FROM t WHERE c7 > 0", session=session, rank=0, world_size=1
    )
    assert [batch["c99999"].tolist() for batch in loader] == [[1, 2]]


def refusal_of(path):
    """The error for a file, or None if its rows are read; there are no more rows than a file may claim."""
    try:
        assert len(rows_of(path)) <= 1 << 20
    except tq.TensorQueryError as error:
        return str(error)
    return None


@pytest.mark.slow
def test_parquet_footers_that_lie(tmp_path):
    """Every byte of a footer, changed in several ways: an error, or rows, and never the end of the process."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": range(300), "s": ["x"] * 300}), path, row_group_size=100)
    data = path.read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    start, refused = len(data) - 8 - length, 0
    for place in range(start, len(data), 5):
        for change in (0xFF, 0x80):
            path.write_bytes(data[:place] + bytes([data[place] ^ change]) + data[place + 1 :])
            message = refusal_of(path)
            refused += message is not None
            assert message is None or len(message) < 6000
    assert refused > 20
    for claimed in (0, 1, 2**31 - 1, 2**32 - 1, len(data)):
        path.write_bytes(data[:-8] + claimed.to_bytes(4, "little") + b"PAR1")
        with pytest.raises(tq.DataError, match="not a readable Parquet file"):
            rows_of(path)


def zigzag(number):
    """An integer as Thrift's compact protocol writes it."""
    number, written = 2 * number, []
    while number >= 0x80:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*written, number])


@pytest.mark.parametrize("claimed", [1 << 30, 1 << 44, 1 << 60, 1 << 62])
@pytest.mark.parametrize("filters", [None, "id < 50"])
def test_parquet_chunks_that_end_behind_the_file(tmp_path, claimed, filters):
    """Allocating memory for such a chunk once ended the process, which no `except` can catch."""
    path = tmp_path / "a.parquet"
    table = pa.table({"id": range(10_000)})
    pq.write_table(table, path, compression="none", use_dictionary=False)
    size = pq.read_metadata(path).row_group(0).column(0).total_compressed_size
    data = path.read_bytes()
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    footer = data[start:-8].replace(zigzag(size), zigzag(claimed))
    assert footer != data[start:-8]
    path.write_bytes(data[:start] + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    loader, _ = tq.create_dataloader(path=path, filters=filters, rank=0, world_size=1)
    with pytest.raises(tq.DataError, match="cut short or damaged: it refers to byte"):
        list(loader)
