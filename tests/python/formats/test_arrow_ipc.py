"""Arrow IPC: record batches are splits, local files are mapped and not copied, and no damaged file crashes the
process."""

import os
import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import support
import tensorquery as tq
from rows import multiset, sharded

KINDS = [name for name in support.COLUMNS if name != "u64"]


pytestmark = pytest.mark.usefixtures("folder")


def write(table, path="t.arrow", *, rows=100, compression=None, stream=False, deltas=False):
    """Write with record batches of `rows` rows."""
    options = pa.ipc.IpcWriteOptions(compression=compression, emit_dictionary_deltas=deltas)
    new = pa.ipc.new_stream if stream else pa.ipc.new_file
    with new(path, table.schema, options=options) as writer:
        for batch in table.to_batches(max_chunksize=rows):
            writer.write_batch(batch)


def ids(rows):
    return pa.table({"id": np.arange(rows), "s": [f"row {n}" for n in range(rows)]})


@pytest.mark.slow
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("stream", [False, True], ids=["file", "stream"])
@pytest.mark.parametrize("mapped", [True, False], ids=["mapped", "read"])
def test_every_type_is_read_as_pyarrow_reads_it(session, compression, stream, mapped):
    table = support.random_table(np.random.default_rng(1), 500, KINDS)
    table = table.append_column("view", table["s"].cast(pa.string_view()))
    table = table.append_column("nothing", pa.nulls(500))
    write(table, compression=compression, stream=stream)
    session.register_arrow("t", "t.arrow", memory_map=mapped)
    query = session.table("t")
    assert multiset(query.to_arrow().to_pylist()) == multiset(table.to_pylist())
    assert query.to_arrow()["id"].to_pylist() == list(range(500))
    assert query.schema.field("code").type == table.schema.field("code").type
    found = sharded(table="t", session=session, split_rows=1, world_size=3, batch_size=33)
    assert multiset(found) == multiset(table.to_pylist())
    for name in ("code", "view", "struct", "s"):
        query = session.sql(f'SELECT "{name}", id FROM t WHERE id % 7 = 3')
        assert query.to_arrow().to_pylist() == table.select([name, "id"]).to_pylist()[3::7]
    assert session.sql("SELECT count(*) AS n FROM t").to_arrow()["n"].to_pylist() == [500]


@pytest.mark.parametrize("kind", ["file", "stream", "memory"])
def test_fields_of_a_null_struct_are_null(session, kind):
    """The values under a null are undefined in Arrow."""
    fields = [pa.array([1, 7, 3]), pa.array(["x", "left over", None])]
    struct = pa.StructArray.from_arrays(fields, ["a", "b"], mask=pa.array([False, True, False]))
    inside = pa.StructArray.from_arrays([struct], ["of"], mask=pa.array([True, False, False]))
    listed = pa.ListArray.from_arrays([0, 1, 2, 3], struct)
    table = pa.table({"id": range(3), "st": struct, "deep": inside, "l": listed})
    if kind == "memory":
        session.register_table("t", table)
    else:
        write(
            table, path := f"t.{'arrows' if kind == 'stream' else 'arrow'}", stream=kind == "stream"
        )
        session.register_arrow("t", path)
    rows = session.sql(
        "SELECT st['a'] AS a, st['b'] AS b, deep['of']['a'] AS c, l[1]['a'] AS d FROM t"
    )
    assert rows.to_arrow().to_pydict() == {
        "a": [1, None, 3],
        "b": ["x", None, None],
        "c": [None, None, 3],
        "d": [1, None, 3],
    }
    assert session.sql("SELECT id FROM t WHERE st['b'] IS NOT NULL").count() == 1
    assert session.sql("SELECT * FROM t").to_arrow().to_pylist() == table.to_pylist()


@pytest.mark.parametrize("stream", [False, True], ids=["file", "stream"])
@pytest.mark.parametrize("mapped", [True, False], ids=["mapped", "read"])
def test_metadata_of_version_4(session, stream, mapped):
    codes = pa.array(["x", "y", None]).dictionary_encode()
    table = pa.table({"n": [1, 2, 3], "code": codes, "s": ["p", "q", "r"]})
    options = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4)
    new = pa.ipc.new_stream if stream else pa.ipc.new_file
    with new("t.arrow", table.schema, options=options) as writer:
        writer.write_table(table)
    session.register_arrow("t", "t.arrow", memory_map=mapped)
    assert session.table("t").to_arrow().to_pylist() == table.to_pylist()
    assert session.sql("SELECT s FROM t").to_arrow()["s"].to_pylist() == ["p", "q", "r"]


def test_record_batches_are_splits_and_each_knows_its_rows(session):
    write(ids(1000), rows=64)
    session.register_arrow("t", "t.arrow")
    plan = session.table("t").plan_shards(world_size=2, split_rows=1)
    assert [split.unit for split in plan.splits()[:2]] == ["record batch 0", "record batch 1"]
    assert [split.row_count for split in plan.splits()] == [64] * 15 + [40]
    few = session.table("t").plan_shards(world_size=2, split_rows=300).splits()
    assert few[0].unit == "record batches 0 to 3"
    write(ids(1000), "s.arrows", stream=True)
    session.register_arrow("s", "s.arrows")
    assert [split.unit for split in session.table("s").plan_shards(world_size=1).splits()] == [
        "whole file"
    ]


def test_narrow_projections_weigh_less(session):
    write(ids(1000))
    session.register_arrow("t", "t.arrow")
    weight = {
        columns: sum(
            split.bytes
            for split in session.sql(f"SELECT {columns} FROM t").plan_shards(world_size=1).splits()
        )
        for columns in ("id", "s", "id, s")
    }
    assert 0 < weight["id"] < weight["s"] < weight["id, s"] <= os.path.getsize("t.arrow")


def places_in_memory(path):
    """Where a file is mapped in this process, as ranges of addresses."""
    with open("/proc/self/maps") as maps:
        lines = [line.split() for line in maps if line.rstrip().endswith(os.path.abspath(path))]
    return [tuple(int(end, 16) for end in line[0].split("-")) for line in lines]


def test_local_files_are_mapped_and_not_copied(session):
    table = pa.table({"id": np.arange(100_000), "v": np.random.default_rng(2).random(100_000)})
    write(table, rows=50_000)
    session.register_arrow("t", "t.arrow")
    before = pa.total_allocated_bytes()
    batches = session.table("t").to_arrow().to_batches()
    buffers = [column.buffers()[1] for batch in batches for column in batch.columns]
    places = places_in_memory("t.arrow")
    assert len(buffers) >= 4
    assert places
    for buffer in buffers:
        assert any(start <= buffer.address < end for start, end in places)
    assert pa.total_allocated_bytes() - before < 1 << 20
    session.register_arrow("t", "t.arrow", memory_map=False)
    batch = session.table("t").to_arrow().to_batches()[0]
    address = batch.column(0).buffers()[1].address
    assert not any(start <= address < end for start, end in places_in_memory("t.arrow"))


def test_a_replaced_file_leaves_the_mapped_rows_alone(session):
    write(ids(1000))
    session.register_arrow("t", "t.arrow")
    rows = session.table("t").to_arrow()
    write(ids(5), "new.arrow")
    os.replace("new.arrow", "t.arrow")
    assert rows.to_pylist() == ids(1000).to_pylist()
    with pytest.raises(tq.DataError, match=r"t\.arrow changed"):
        session.table("t").to_arrow()


@pytest.mark.parametrize("mapped", [True, False])
def test_a_file_written_to_in_place_is_an_error(session, mapped):
    """Its size is unchanged; the time of its last write is not."""
    write(ids(1000))
    session.register_arrow("t", "t.arrow", memory_map=mapped)
    loader, _ = tq.create_dataloader(
        table="t", session=session, batch_size=10, output_format="arrow", split_rows=1
    )
    batches = iter(loader)
    next(batches)
    with open("t.arrow", "r+b") as file:
        file.seek(200)
        file.write(b"\x01")
    os.utime("t.arrow", ns=(1, 1))
    with pytest.raises(tq.DataError, match=r"t\.arrow changed"):
        list(batches)
        list(loader)


@pytest.mark.parametrize("mapped", [True, False])
def test_dictionaries_with_deltas(session, mapped):
    first = pa.array(["a", "b", "a"]).dictionary_encode()
    words = pa.array(["a", "b", "c", None, "d"])
    second = pa.DictionaryArray.from_arrays(pa.array([2, 0, 4, None], pa.int32()), words)
    schema = pa.schema([("w", first.type), ("n", pa.int64())])
    batches = [
        pa.record_batch([first, pa.array([1, 2, 3])], schema),
        pa.record_batch([second, pa.array([4, 5, 6, 7])], schema),
    ]
    expected = ["a", "b", "a", "c", "a", "d", None]
    for path, new in (("t.arrow", pa.ipc.new_file), ("s.arrows", pa.ipc.new_stream)):
        options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
        with new(path, schema, options=options) as writer:
            for batch in batches:
                writer.write_batch(batch)
        session.register_arrow("t", path, memory_map=mapped)
        assert session.table("t").to_arrow()["w"].to_pylist() == expected
        found = sharded("SELECT w FROM t", session=session, split_rows=1)
        assert multiset(found) == multiset([{"w": word} for word in expected])
        assert session.sql("SELECT n FROM t").to_arrow()["n"].to_pylist() == list(range(1, 8))


def test_a_stream_may_replace_its_dictionaries(session):
    schema = pa.schema([("w", pa.dictionary(pa.int8(), pa.string()))])
    words = [["x", "y"], ["z", "x"], ["w"]]
    with pa.ipc.new_stream("t.arrows", schema) as writer:
        for values in words:
            array = pa.array(values).dictionary_encode().cast(schema.field(0).type)
            writer.write_batch(pa.record_batch([array], schema))
    session.register_arrow("t", "t.arrows")
    assert session.table("t").to_arrow()["w"].to_pylist() == ["x", "y", "z", "x", "w"]


def test_columns_are_found_by_name_and_widened(session):
    one = pa.table(
        {"n": pa.array([1], pa.int32()), "s": ["x"], "c": pa.array(["p"]).dictionary_encode()}
    )
    two = pa.table({"s": ["y"], "c": ["q"], "n": pa.array([2**40], pa.int64()), "more": [1.5]})
    write(one, "a.arrow")
    write(two, "b.arrow")
    session.register_arrow("t", ["a.arrow", "b.arrow"])
    assert session.table("t").to_arrow().to_pylist() == [
        {"n": 1, "s": "x", "c": "p", "more": None},
        {"n": 2**40, "s": "y", "c": "q", "more": 1.5},
    ]
    write(pa.table({"n": ["word"]}), "c.arrow")
    with pytest.raises(
        tq.DataError, match=r'column "n" is Int32 in .*a\.arrow and Utf8 in .*c\.arrow'
    ):
        session.register_arrow("t", ["a.arrow", "c.arrow"])


@pytest.mark.slow
def test_of_a_remote_file_only_the_wanted_columns_are_fetched(session, folder):
    (folder / "files").mkdir()
    rng = np.random.default_rng(0)
    table = pa.table({f"c{n}": rng.random(100_000) for n in range(20)})
    write(table, "files/t.arrow", rows=50_000)
    size = os.path.getsize("files/t.arrow")
    with support.serve(folder / "files", folder / "log") as url:
        session.register_arrow("t", f"{url}/t.arrow")
        traffic = support.Traffic(folder / "log")
        found = session.sql("SELECT c0, c1 FROM t").to_arrow()
        assert found.to_pydict() == table.select(["c0", "c1"]).to_pydict()
        assert sum(stop - start for _, start, stop in traffic.take()) < size // 4
        assert session.table("t").to_arrow().to_pydict() == table.to_pydict()


def test_files_without_rows_batches_and_columns(session):
    write(ids(0), "a.arrow")
    with pa.ipc.new_file("b.arrow", ids(0).schema) as writer:
        writer.write_batch(pa.record_batch(ids(0).to_pydict(), schema=ids(0).schema))
    with pa.ipc.new_stream("c.arrow", ids(0).schema):
        pass
    for name in ("a", "b", "c"):
        session.register_arrow("t", f"{name}.arrow")
        assert session.table("t").column_names == ["id", "s"]
        assert session.table("t").count() == 0
        assert session.table("t").to_arrow().num_rows == 0


# --- what is refused ---


def test_feather_1_is_refused_by_name(session):
    with open("t.feather", "wb") as file:
        file.write(b"FEA1" + bytes(100) + b"FEA1")
    with pytest.raises(tq.UnsupportedTypeError, match=r"Feather file of version 1.*t\.feather"):
        session.register_arrow("t", "t.feather")


def failure(session, content, table, mapped=True):
    """The error of a file, or None where its rows are of the right number."""
    with open("bad.arrow", "wb") as file:
        file.write(content)
    try:
        session.register_arrow("t", "bad.arrow", memory_map=mapped)
        session.table("t").plan_shards(world_size=1, split_rows=1)
        found = session.table("t").to_arrow()
    except (tq.DataError, tq.UnsupportedTypeError) as error:
        message = str(error)
    else:
        found.validate()
        # Offsets, keys and text are right; what is only out of its type's range is read as it is.
        for column in found.columns[:9]:
            column.validate(full=True)
        assert found.num_columns == table.num_columns
        return None
    assert "bad.arrow" in message
    return message


@pytest.mark.parametrize(
    "content", [b"", b"x", b"ARROW1\0\0", b"ARROW1" * 50, b"PAR1" * 50, bytes(500)]
)
def test_a_file_that_is_none_is_named(session, content):
    assert "Arrow IPC" in failure(session, content, ids(1))


@pytest.mark.slow
def test_a_cut_file_is_an_error_wherever_it_is_cut(session):
    table = ids(200)
    write(table)
    with open("t.arrow", "rb") as file:
        content = file.read()
    for length in [*range(0, len(content), 97), len(content) - 1]:
        assert failure(session, content[:length], table), length
    write(table, stream=True)
    with open("t.arrow", "rb") as file:
        content = file.read()
    cut = [failure(session, content[:length], table) for length in range(0, len(content) - 8, 97)]
    assert sum(error is None for error in cut) < 3


@pytest.mark.slow
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("stream", [False, True], ids=["file", "stream"])
def test_damaged_bytes_are_an_error_and_never_a_crash(session, compression, stream):
    table = support.random_table(np.random.default_rng(1), 200, KINDS)
    write(table, compression=compression, stream=stream)
    with open("t.arrow", "rb") as file:
        content = file.read()
    rng = np.random.default_rng(3)
    errors = 0
    for number in range(60):
        bad = bytearray(content)
        # Half of the places lie in the metadata, where all structure is.
        at = int(rng.integers(0, len(bad) - 8))
        if number % 2:
            at = (
                int(rng.integers(0, 2000))
                if number % 4 == 1
                else len(bad) - 9 - int(rng.integers(0, 2000))
            )
        bad[at : at + 8] = struct.pack("<q", int(rng.integers(-(2**62), 2**62)))
        errors += failure(session, bytes(bad), table, mapped=bool(number % 3)) is not None
    assert errors > 10


def test_trace_finds_record_batches_and_rows(session):
    write(ids(1000), rows=100)
    sql = "SELECT id FROM 't.arrow' WHERE id >= 250 AND id % 2 = 0"
    loader, dataset = tq.create_dataloader(sql, session=session, batch_size=50, split_rows=1)
    first = support.ids_of([next(iter(loader))])[0]
    found = dataset.trace(0, 0).ranges
    assert first == list(range(250, 350, 2))
    assert [one.row_groups for one in found] == [(2,), (3,)]
    runs = [run for one in found for run in one.physical_rows]
    assert [row for start, end in runs for row in range(start, end)] == first


def test_a_column_with_an_impossible_name_is_refused(session):
    """The C interface ends names at NUL; Arrow's own library aborts on such names."""
    write(pa.table({"a\0b": [1]}))
    pq.write_table(pa.table({"fine": [1], "a\0b": [1]}), "t.parquet")
    with pytest.raises(tq.DataError, match=r"impossible name.*t\.arrow"):
        session.register_arrow("t", "t.arrow")
    with pytest.raises(tq.DataError, match=r"impossible name.*t\.parquet"):
        session.register_parquet("t", "t.parquet")


@pytest.mark.slow
def test_worker_processes_and_equal_steps(session):
    write(ids(1001), rows=30)
    session.register_arrow("t", "t.arrow")
    found, steps = [], set()
    for rank in range(2):
        loader, _ = tq.create_dataloader(
            "SELECT id FROM t",
            session=session,
            rank=rank,
            world_size=2,
            batch_size=50,
            num_workers=2,
            multiprocessing_context="forkserver",
        )
        batches = [batch["id"].tolist() for batch in loader]
        steps.add(len(batches))
        found += support.flat(batches)
    assert sorted(found) == list(range(1001))
    assert len(steps) == 1
