"""Avro: rows and types are those of fastavro, on every shard; unreadable files are refused by name, and nothing
crashes."""

import datetime as dt
import decimal
import io
import json
import os
import uuid

import fastavro
import numpy as np
import pyarrow as pa
import pytest

import avro_files
import stopping
import support
import tensorquery as tq
from rows import sharded

CODECS = ["null", "deflate", "snappy", "zstandard", "bzip2", "xz"]

IDS = {"type": "record", "name": "Row", "fields": [{"name": "id", "type": "long"}]}


pytestmark = pytest.mark.usefixtures("folder")


def record(*fields, name="Row"):
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": name, "type": kind} for name, kind in fields],
    }


def logical(kind, of, **more):
    return {"type": of, "logicalType": kind, **more}


POINT = record(("x", "int"), ("label", ["null", "string"]), name="Point")
COLOR = {"type": "enum", "name": "Color", "symbols": ["red", "green", "blue"]}
HASH = {"type": "fixed", "name": "Hash", "size": 4}
PRICE = {"type": "fixed", "name": "Price", "size": 9, "logicalType": "decimal", "precision": 20}

TYPES = {
    "flag": ("boolean", [True, False, True]),
    "i": ("int", [-(2**31), 0, 2**31 - 1]),
    "n": ("long", [-(2**63), 0, 2**63 - 1]),
    "f": ("float", [-1.5, 0.0, float("inf")]),
    "d": ("double", [1e300, -0.0, 0.1]),
    "raw": ("bytes", [b"", b"\x00\xff", b"x" * 300]),
    "s": ("string", ["", "größe", "line\nbreak" * 50]),
    "color": (COLOR, ["red", "blue", "green"]),
    "hash": (HASH, [b"abcd", b"\x00" * 4, b"\xff" * 4]),
    "day": (logical("date", "int"), [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(9999, 1, 1)]),
    "ms": (logical("time-millis", "int"), [dt.time(0), dt.time(23, 59, 59, 999000), dt.time(1, 2)]),
    "us": (logical("time-micros", "long"), [dt.time(0), dt.time(23, 59, 59, 999999), dt.time(1)]),
    "at": (
        logical("timestamp-micros", "long"),
        [dt.datetime(y, 2, 3, 4, 5, 6, 7, tzinfo=dt.UTC) for y in (1700, 1969, 2262)],
    ),
    "at_ms": (
        logical("timestamp-millis", "long"),
        [dt.datetime(y, 2, 3, 4, 5, 6, 7000, tzinfo=dt.UTC) for y in (1700, 1969, 2262)],
    ),
    "local": (
        logical("local-timestamp-micros", "long"),
        [dt.datetime(y, 2, 3, 4, 5, 6, 7) for y in (1700, 1969, 2262)],
    ),
    "price": (
        logical("decimal", "bytes", precision=9, scale=2),
        [decimal.Decimal("-1234567.89"), decimal.Decimal("0.00"), decimal.Decimal("9.99")],
    ),
    "fixed_price": (PRICE, [decimal.Decimal(v) for v in (-(10**19), 0, 10**19)]),
    "uuid": (logical("uuid", "string"), [str(uuid.UUID(int=v)) for v in (0, 1, 2**127)]),
    "list": ({"type": "array", "items": "int"}, [[], [1, -2, 3], list(range(100))]),
    "deep": (
        {"type": "array", "items": {"type": "array", "items": ["null", "string"]}},
        [[], [["a", None], []], [[None]]],
    ),
    "map": ({"type": "map", "values": "long"}, [{}, {"k": 1, "l": -2}, {"größe": 3}]),
    "point": (POINT, [{"x": 1, "label": None}, {"x": -1, "label": "p"}, {"x": 0, "label": ""}]),
    "points": ({"type": "array", "items": POINT}, [[], [{"x": 1, "label": "q"}], []]),
}
"""By column: type and three values."""


def plain(value):
    """A value as pyarrow has it."""
    match value:
        case uuid.UUID():
            return str(value)
        case dict():
            return {key: plain(item) for key, item in value.items()}
        case list():
            return [plain(item) for item in value]
        case _:
            return value


def judged(path, maps=("map", "or_map")):
    """The rows that fastavro reads, as pyarrow would have them."""
    with open(path, "rb") as file:
        rows = [plain(row) for row in fastavro.reader(file)]
    for row in rows:
        for name in maps:
            if row.get(name) is not None:
                row[name] = list(row[name].items())
    return rows


def defined_once(kind, known):
    """A type whose named parts are defined in one place, and named in the others."""
    match kind:
        case {"name": name} if name in known:
            return name
        case {"name": name}:
            known.add(name)
            return kind
        case {"items": items}:
            return {**kind, "items": defined_once(items, known)}
        case _:
            return kind


def all_types(rows, seed=0):
    """A schema of every type, each also in a union with null on either side, and rows of it."""
    rng = np.random.default_rng(seed)
    known = set()
    fields = [("id", "long")]
    fields += [(name, defined_once(kind, known)) for name, (kind, _) in TYPES.items()]
    for number, (name, (kind, _)) in enumerate(TYPES.items()):
        again = defined_once(kind, known)
        fields.append((f"or_{name}", ["null", again] if number % 2 else [again, "null"]))
    schema = record(*fields)
    made = []
    for number in range(rows):
        row = {"id": number}
        for name, (_, values) in TYPES.items():
            row[name] = values[rng.integers(3)]
            row[f"or_{name}"] = None if rng.random() < 0.3 else values[rng.integers(3)]
        made.append(row)
    return schema, made


def ids(rows):
    return [{"id": number} for number in range(rows)]


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS)
def test_every_type_is_read_as_fastavro_reads_it(session, codec):
    schema, rows = all_types(300)
    buffer = io.BytesIO()
    fastavro.writer(buffer, schema, rows, sync_interval=5000)
    with open("plain.avro", "wb") as file:
        file.write(buffer.getvalue())
    avro_files.write("t.avro", schema, rows, codec, block_bytes=5000)
    expected = judged("plain.avro")
    session.register_avro("t", "t.avro")
    query = session.table("t")
    assert query.to_arrow().to_pylist() == expected
    assert query.count() == 300
    found = sharded(table="t", session=session, split_rows=20, batch_size=7, world_size=3)
    assert sorted(found, key=lambda row: row["id"]) == expected


def test_each_column_alone_and_pairs_out_of_order(session):
    schema, rows = all_types(60)
    avro_files.write("t.avro", schema, rows)
    expected = judged("t.avro")
    session.register_avro("t", "t.avro")
    names = [field["name"] for field in schema["fields"]]
    for name, other in zip(names, names[7:] + names[:7], strict=True):
        found = session.sql(f'SELECT "{other}", "{name}" FROM t').to_arrow().to_pylist()
        assert found == [{other: row[other], name: row[name]} for row in expected]


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz"])
def test_files_compressed_by_fastavro(session, codec):
    with open("t.avro", "wb") as file:
        fastavro.writer(file, IDS, ids(5000), codec=codec, sync_interval=500)
    assert session.sql("SELECT * FROM 't.avro'").to_arrow().to_pylist() == ids(5000)


def test_types_are_arrows(session):
    schema, rows = all_types(3)
    avro_files.write("t.avro", schema, rows)
    session.register_avro("t", "t.avro")
    found = session.table("t").schema
    assert found.field("at").type == pa.timestamp("us", tz="UTC")
    assert found.field("local").type == pa.timestamp("us")
    assert found.field("day").type == pa.date32()
    assert found.field("price").type == pa.decimal128(9, 2)
    assert found.field("uuid").type == pa.string()
    assert found.field("color").type == pa.dictionary(pa.int32(), pa.string())
    assert not found.field("i").nullable
    assert found.field("or_i").nullable


def test_blocks_are_splits_and_each_knows_its_rows(session):
    avro_files.write("t.avro", IDS, ids(1000), block_bytes=100)
    with open("t.avro", "rb") as file:
        _, _, blocks = avro_files.blocks(file.read())
    session.register_avro("t", "t.avro")
    splits = session.table("t").plan_shards(world_size=1, split_rows=1).splits()
    assert [split.row_count for split in splits] == [rows for rows, _ in blocks]
    assert sum(split.row_count for split in splits) == 1000
    merged = session.table("t").plan_shards(world_size=1, split_rows=250).splits()
    assert len(merged) < len(blocks)
    assert all(split.row_count <= 250 for split in merged)


@pytest.mark.slow
def test_only_the_heads_of_large_blocks_are_read_for_planning(session, folder):
    """Blocks of a megabyte are passed over: a plan of 20 MB reads little of them."""
    (folder / "files").mkdir()
    schema = record(("id", "long"), ("raw", "bytes"))
    rows = [{"id": number, "raw": os.urandom(500_000)} for number in range(40)]
    avro_files.write("files/t.avro", schema, rows, block_bytes=900_000)
    with support.serve(folder / "files", folder / "log") as url:
        session.register_avro("t", f"{url}/t.avro")
        traffic = support.Traffic(folder / "log")
        traffic.take()
        plan = session.table("t").plan_shards(world_size=1, split_rows=1)
        assert sum(split.row_count for split in plan.splits()) == 40
        read = sum(stop - start for _, start, stop in traffic.take())
        assert read < 300_000
        found = sharded("SELECT id FROM t", session=session)
        assert sorted(row["id"] for row in found) == list(range(40))


@pytest.mark.parametrize("shuffle", [{}, {"shuffle": True, "shuffle_buffer_size": 300}])
def test_stopped_and_resumed_every_row_comes_once(session, shuffle):
    avro_files.write("t.avro", IDS, ids(2000), "deflate", block_bytes=200)
    session.register_avro("t", "t.avro")
    query = session.table("t")
    options = {"batch_size": 64, "split_rows": 100, **shuffle}
    loader = stopping.loader_of(query, **options)
    before, state = stopping.take(loader, 11)
    after = stopping.ids(stopping.resumed(query, state, **options))
    assert sorted(support.flat(before + after)) == list(range(2000))


@pytest.mark.slow
def test_worker_processes_and_equal_steps(session):
    avro_files.write("t.avro", IDS, ids(1001), block_bytes=100)
    session.register_avro("t", "t.avro")
    found, steps = [], set()
    for rank in range(2):
        loader, _ = tq.create_dataloader(
            table="t", session=session, rank=rank, world_size=2, batch_size=50, num_workers=2
        )
        batches = [batch["id"].tolist() for batch in loader]
        steps.add(len(batches))
        found += support.flat(batches)
    assert sorted(found) == list(range(1001))
    assert len(steps) == 1


def test_columns_are_found_by_name_and_widened(session):
    avro_files.write(
        "a.avro", record(("n", "int"), ("s", ["null", "string"])), [{"n": 1, "s": "x"}]
    )
    avro_files.write(
        "b.avro", record(("s", ["null", "string"]), ("n", "long")), [{"s": None, "n": 2**40}]
    )
    session.register_avro("t", ["a.avro", "b.avro"])
    assert session.table("t").schema.field("n").type == pa.int64()
    expected = [{"n": 1, "s": "x"}, {"n": 2**40, "s": None}]
    assert session.table("t").to_arrow().to_pylist() == expected


def test_counting_and_filters(session):
    avro_files.write("t.avro", IDS, ids(777), "snappy", block_bytes=100)
    session.register_avro("t", "t.avro")
    assert session.sql("SELECT count(*) AS n FROM t").to_arrow().to_pylist() == [{"n": 777}]
    assert session.sql("SELECT 1 AS one FROM t").count() == 777
    assert session.sql("SELECT id FROM t WHERE id % 100 = 7").to_arrow()["id"].to_pylist() == [
        7 + 100 * hundred for hundred in range(8)
    ]


def test_names_are_resolved_in_their_namespaces(session):
    inner = {
        "type": "record",
        "name": "Inner",
        "namespace": "other",
        "fields": [{"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["p", "q"]}}],
    }
    schema = {
        "type": "record",
        "name": "Row",
        "namespace": "own",
        "fields": [
            {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["a", "b"]}},
            {"name": "inner", "type": inner},
            {"name": "own_e", "type": "E"},
            {"name": "other_e", "type": "other.E"},
            {"name": "again", "type": ["null", "other.Inner"]},
        ],
    }
    rows = [
        {"e": "a", "inner": {"e": "q"}, "own_e": "b", "other_e": "p", "again": {"e": "p"}},
        {"e": "b", "inner": {"e": "p"}, "own_e": "a", "other_e": "q", "again": None},
    ]
    avro_files.write("t.avro", schema, rows)
    session.register_avro("t", "t.avro")
    assert session.table("t").to_arrow().to_pylist() == rows
    for name in rows[0]:
        found = session.sql(f"SELECT {name} FROM t").to_arrow().to_pylist()
        assert found == [{name: row[name]} for row in rows]


def test_lists_in_several_groups_with_their_bytes(session):
    """Groups may state their size in bytes; fastavro never writes that."""
    schema, sync, _ = avro_files.blocks(
        _bytes_of(record(("list", {"type": "array", "items": "int"})), [])
    )
    number = avro_files.number
    row = (
        number(2)
        + number(1)
        + number(2)
        + number(-2)
        + number(3)
        + number(-3)
        + number(70)
        + number(0)
    )
    row = row[:-1] + number(0)
    with open("t.avro", "wb") as file:
        file.write(avro_files.joined(schema, sync, [(2, row * 2)]))
    session.register_avro("t", "t.avro")
    assert session.table("t").to_arrow().to_pylist() == [{"list": [1, 2, -3, 70]}] * 2
    wrong = number(-2) + number(4) + number(-3) + number(70) + number(0)
    with open("t.avro", "wb") as file:
        file.write(avro_files.joined(schema, sync, [(1, wrong)]))
    session.register_avro("t", "t.avro")
    with pytest.raises(tq.DataError, match=r"take other bytes.*t\.avro|t\.avro.*take other bytes"):
        session.table("t").to_arrow()


def _bytes_of(schema, rows):
    buffer = io.BytesIO()
    fastavro.writer(buffer, schema, rows)
    return buffer.getvalue()


def test_a_file_without_rows_has_columns(session):
    avro_files.write("t.avro", IDS, [])
    session.register_avro("t", "t.avro")
    assert session.table("t").column_names == ["id"]
    assert session.table("t").count() == 0
    assert sharded(table="t", session=session) == []


# --- what is refused ---


def test_a_type_that_refers_to_itself_is_refused_with_its_column(session):
    tree = record(("value", "int"), ("next", ["null", "Tree"]), name="Tree")
    avro_files.write("t.avro", record(("id", "long"), ("tree", tree)), [])
    with pytest.raises(tq.UnsupportedTypeError, match=r'column "tree".*t\.avro'):
        session.register_avro("t", "t.avro")


@pytest.mark.parametrize(
    "kind",
    [
        {"type": "record", "name": "Empty", "fields": []},
        {"type": "fixed", "name": "None", "size": 0},
        ["null", {"type": "fixed", "name": "None", "size": 0}],
        {"type": "map", "values": {"type": "record", "name": "Empty", "fields": []}},
    ],
    ids=["record", "fixed", "nullable", "in a map"],
)
def test_types_that_take_no_bytes_are_refused_with_their_column(session, kind):
    avro_files.write("t.avro", record(("id", "long"), ("a", kind)), [])
    with pytest.raises(tq.UnsupportedTypeError, match=r'column "a" holds .*t\.avro'):
        session.register_avro("t", "t.avro")


def test_a_union_of_one_type_is_that_type(session):
    item = {"type": "record", "name": "Item", "fields": [{"name": "x", "type": ["string"]}]}
    fields = [("a", ["int"]), ("b", {"type": "array", "items": ["long"]}), ("c", [item])]
    rows = [{"a": n, "b": [n, -n], "c": {"x": f"row {n}"}, "d": None} for n in range(300)]
    avro_files.write("t.avro", record(*fields, ("d", ["null"])), rows)
    session.register_avro("t", "t.avro")
    assert session.table("t").to_arrow().to_pylist() == rows
    loader, _ = tq.create_dataloader("SELECT a FROM t", session=session, batch_size=300)
    assert next(iter(loader))["a"].tolist() == list(range(300))


def test_a_union_of_several_types_has_no_tensor_and_its_neighbours_are_read(session):
    schema = record(("id", "long"), ("u", ["null", "int", "string"]))
    rows = [{"id": 1, "u": 5}, {"id": 2, "u": "x"}, {"id": 3, "u": None}]
    avro_files.write("t.avro", schema, rows)
    session.register_avro("t", "t.avro")
    assert session.sql("SELECT id FROM t").to_arrow().to_pylist() == [{"id": n} for n in (1, 2, 3)]
    assert session.table("t").to_arrow().to_pylist() == rows
    with pytest.raises(tq.UnsupportedTypeError, match='"u"'):
        tq.create_dataloader(table="t", session=session)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a readable Avro file: it is empty"),
        (b"x", "does not begin as one"),
        (b"PAR1" * 100, "does not begin as one"),
        (b"Obj\x01", "ends within its header"),
        (avro_files.header(b"no json", b"null", bytes(16)), "schema is no JSON"),
        (avro_files.header(b'"long"', b"null", bytes(16)), "are no records"),
        (avro_files.header(json.dumps(IDS).encode(), b"lzo", bytes(16)), 'compressed by "lzo"'),
        (
            avro_files.header(json.dumps(record(("a", "Missing"))).encode(), b"null", bytes(16)),
            'column "a".*"Missing" is not defined',
        ),
    ],
)
def test_a_file_that_is_no_avro_file_is_named(session, content, message):
    with open("bad.avro", "wb") as file:
        file.write(content)
    with pytest.raises(tq.DataError, match=rf"(?s){message}.*bad\.avro"):
        session.register_avro("t", "bad.avro")


def damaged(session, content, rows=None):
    """The error of a file, or None where all `rows` are there."""
    with open("bad.avro", "wb") as file:
        file.write(content)
    try:
        session.register_avro("t", "bad.avro")
        session.table("t").plan_shards(world_size=2, split_rows=1)
        found = session.table("t").to_arrow().num_rows
    except (tq.DataError, tq.UnsupportedTypeError) as error:
        message = str(error)
    else:
        assert rows is None or found == rows
        return None
    assert "bad.avro" in message
    return message


@pytest.mark.slow
def test_a_cut_file_is_an_error_wherever_it_is_cut(session):
    data = _bytes_of(IDS, ids(300))
    schema, sync, _ = avro_files.blocks(data)
    whole = avro_files.joined(
        schema, sync, [(100, avro_files.blocks(_bytes_of(IDS, ids(100)))[2][0][1])] * 3
    )
    start = len(avro_files.header(schema, b"null", sync))
    block = (len(whole) - start) // 3
    for length in {*range(0, len(whole), 13), len(whole) - 1, start + 1, start + block - 1}:
        if (length - start) % block:
            assert damaged(session, whole[:length]), length
    # At the end of a block nothing tells that there was more.
    assert damaged(session, whole[: start + block], rows=100) is None


def test_wrong_markers_counts_and_sizes_are_errors(session):
    schema, sync, [(rows, block)] = avro_files.blocks(_bytes_of(IDS, ids(100)))
    head = avro_files.header(schema, b"null", sync)
    number = avro_files.number

    def one(count, size, data, marker):
        return head + number(count) + number(size) + data + marker

    assert damaged(session, one(rows, len(block), block, sync), rows=100) is None
    assert "marker" in damaged(session, one(rows, len(block), block, bytes(16)))
    assert "left behind the 99 rows" in damaged(session, one(99, len(block), block, sync))
    assert "ends within a row" in damaged(session, one(101, len(block), block, sync))
    assert "cut short" in damaged(session, one(rows, 1 << 40, block, sync))
    assert "bytes" in damaged(session, one(rows, -5, block, sync))
    assert "rows" in damaged(session, one(-1, len(block), block, sync))
    assert "rows" in damaged(session, one(1 << 50, len(block), block, sync))
    assert "marker" in damaged(session, one(rows, len(block) - 3, block, sync))
    assert "cut short" in damaged(session, head + number(rows) + b"\xff" * 9)


@pytest.mark.slow
def test_a_block_that_becomes_huge_is_refused(session):
    schema, sync, _ = avro_files.blocks(_bytes_of(record(("raw", "bytes")), []))
    size = 80 << 20
    for codec in ("deflate", "bzip2", "xz", "zstandard"):
        block = avro_files.packed(avro_files.number(size) + bytes(size), codec)
        assert len(block) < 1 << 20
        error = damaged(session, avro_files.joined(schema, sync, [(1, block)], codec.encode()))
        assert "becomes more than" in error
    claimed = b"\xff\xff\xff\xff\x0f" + b"\x00" * 40
    error = damaged(session, avro_files.joined(schema, sync, [(1, claimed)], b"snappy"))
    assert "becomes more than" in error


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS)
def test_damaged_bytes_are_an_error_and_never_a_crash(session, codec):
    schema, rows = all_types(60)
    avro_files.write("t.avro", schema, rows, codec, block_bytes=4000)
    with open("t.avro", "rb") as file:
        content = file.read()
    rng = np.random.default_rng(7)
    errors = 0
    for _ in range(50):
        bad = bytearray(content)
        at = int(rng.integers(0, len(bad) - 4))
        bad[at : at + 4] = rng.bytes(4)
        errors += damaged(session, bytes(bad)) is not None
    assert errors > 20


def test_trace_finds_blocks_and_rows(session):
    avro_files.write("t.avro", IDS, ids(1000), block_bytes=100)
    with open("t.avro", "rb") as file:
        _, _, blocks = avro_files.blocks(file.read())
    loader, dataset = tq.create_dataloader(
        "SELECT id FROM 't.avro' WHERE id % 2 = 0", session=session, batch_size=50, split_rows=1
    )
    first = support.ids_of([next(iter(loader))])[0]
    found = dataset.trace(0, 0).ranges
    assert first == list(range(0, 100, 2))
    assert [one.row_groups for one in found] == [(number,) for number in range(len(found))]
    assert [one.physical_rows[0][0] for one in found] == [
        sum(rows for rows, _ in blocks[:number]) + sum(rows for rows, _ in blocks[:number]) % 2
        for number in range(len(found))
    ]
