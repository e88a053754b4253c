"""Tables as other writers may leave them are read as the specification says, or refused by name."""

import datetime as dt
import json
import math
import struct
import uuid

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    DoubleType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    UUIDType,
)

import tensorquery as tq
from iceberg_by_hand import EQUALITY, START, TableByHand, column, rows_of

ID = NestedField(1, "id", LongType(), required=False)
STORED_ID = column("id", pa.int64(), 1)


def optional(field_id, name, kind):
    return NestedField(field_id, name, kind, required=False)


# ------------------------------------------------------------------------------------------------
# Files without field ids.


@pytest.mark.parametrize("kind", ["parquet", "orc"])
def test_nested_fields_without_ids_are_found_by_the_mapping(tmp_path, kind):
    """Renamed, exchanged, in structs, lists and maps; what the mapping does not name is NULL."""
    pair = StructType(optional(3, "b", IntegerType()), optional(4, "a", IntegerType()))
    inner = StructType(optional(7, "new", IntegerType()))
    schema = Schema(
        ID,
        optional(2, "s", pair),
        optional(5, "l", ListType(6, inner, element_required=False)),
        optional(
            8,
            "m",
            MapType(9, StringType(), 10, StructType(optional(11, "new", IntegerType())), False),
        ),
        optional(12, "u", StructType(optional(13, "x", IntegerType()))),
    )

    def named(field_id, *names, fields=()):
        return {"field-id": field_id, "names": list(names), "fields": list(fields)}

    mapping = [
        named(1, "id"),
        named(2, "s", fields=[named(3, "a"), named(4, "b")]),
        named(5, "l", fields=[named(6, "element", fields=[named(7, "new", "old")])]),
        named(
            8,
            "m",
            fields=[named(9, "key"), named(10, "value", fields=[named(11, "new", "old")])],
        ),
        named(12, "u"),
    ]
    number = pa.int32()
    old = pa.struct([("old", number)])
    data = pa.table({
        "id": pa.array([1, 2]),
        "s": pa.array([{"a": 10, "b": 20}, None], pa.struct([("a", number), ("b", number)])),
        "l": pa.array([[{"old": 1}, None], []], pa.list_(old)),
        "m": pa.array([[("k", {"old": 7})], None], pa.map_(pa.string(), old)),
        "u": pa.array([{"x": 5}, None], pa.struct([("x", number)])),
    })  # fmt: skip
    table = TableByHand(tmp_path / "t", schema)
    table.properties["schema.name-mapping.default"] = json.dumps(mapping)
    table.commit(table.file(data, kind))
    assert table.read() == [
        {
            "id": 1,
            "s": {"b": 10, "a": 20},
            "l": [{"new": 1}, None],
            "m": [("k", {"new": 7})],
            "u": {"x": None},
        },
        {"id": 2, "s": None, "l": [], "m": None, "u": None},
    ]


# ------------------------------------------------------------------------------------------------
# Defaults.


def with_default(tmp_path, kind, default):
    """A table of ids, and its metadata with a column c that came later."""
    table = TableByHand(tmp_path / "t", Schema(ID), version=3)
    table.commit(table.file(rows_of((STORED_ID, [1, 2]))))
    metadata = table.metadata()
    field = {"id": 2, "name": "c", "required": False, "type": kind, "initial-default": default}
    metadata["schemas"][0]["fields"].append(field)
    return table, metadata


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "default", "value"),
    [
        ("timestamp_ns", "2017-11-16T22:31:08.123456789", 1_510_871_468_123_456_789),
        ("timestamp_ns", "1969-12-31T23:59:59.999999999", -1),
        ("timestamptz_ns", "1969-12-31T23:59:59+00:00", -1_000_000_000),
    ],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_defaults_of_nanoseconds(tmp_path, kind, default, value, workers):
    table, metadata = with_default(tmp_path, kind, default)
    session = tq.Session()
    session.register_iceberg_table("t", table.write(metadata))
    assert session.sql("SELECT id FROM t WHERE c IS NULL").count() == 0
    query = session.sql("SELECT id, CAST(c AS BIGINT) AS c FROM t")
    loader, _ = tq.create_dataloader(query, num_workers=workers)
    assert [number for batch in loader for number in batch["c"].tolist()] == [value] * 2


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        ("long", 3.0),
        ("int", "x"),
        ("int", 2**40),
        ("fixed[3]", "00"),
        ("date", "foo"),
        ("timestamp", "2017-11-16T22:31"),
        ("timestamptz", "2017-11-16T22:31:08.123456Z"),
        ("timestamptz", "2017-11-16T22:31:08.123+02:00"),
    ],
)
def test_a_default_that_is_none_is_refused(tmp_path, kind, default):
    """Its values were silently NULL."""
    table, metadata = with_default(tmp_path, kind, default)
    with pytest.raises(tq.DataError, match=r"the default of column \"c\"") as caught:
        table.read(metadata=metadata)
    assert kind in str(caught.value)


# ------------------------------------------------------------------------------------------------
# Equality deletes.


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
@pytest.mark.parametrize("deleted", [1, -1])
def test_every_nan_is_deleted_by_any(tmp_path, kind, deleted):
    """Whatever its bits are."""
    iceberg = FloatType() if kind == pa.float32() else DoubleType()
    table = TableByHand(tmp_path / "t", Schema(ID, optional(2, "x", iceberg)))
    odd = struct.unpack("<d", struct.pack("<Q", 0x7FF8_0000_0000_0001 | 1 << 60))[0]
    x = column("x", kind, 2)
    values = [math.nan, -math.nan, odd, 1.0, None]
    table.commit(table.file(rows_of((STORED_ID, range(5)), (x, values))))
    keys = rows_of((x, [math.copysign(math.nan, deleted)]))
    table.commit(table.file(keys, content=EQUALITY, equality_ids=[2]))
    assert [row["id"] for row in table.read()] == [3, 4]


# ------------------------------------------------------------------------------------------------
# Uuids in Avro: sixteen bytes.


def test_partitions_by_uuid(tmp_path):
    schema = Schema(ID, optional(2, "k", UUIDType()))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "k"))
    table = TableByHand(tmp_path / "t", schema, spec)
    keys = [uuid.UUID(int=2**127 + n).bytes for n in range(3)]
    files = [table.file(rows_of((STORED_ID, [n])), partition=(key,)) for n, key in enumerate(keys)]
    table.commit(*files, table.file(rows_of((STORED_ID, [3])), partition=(None,)))
    rows = {row["id"]: row["k"] for row in table.read()}
    assert rows == {**dict(enumerate(keys)), 3: None}
    where = f"SELECT id FROM t WHERE k = X'{keys[1].hex()}'"
    assert table.read(where) == [{"id": 1}]
    # Deletes reach the partition that they are of, and no other.
    gone = rows_of((STORED_ID, [0, 1, 2]))
    table.commit(table.file(gone, content=EQUALITY, equality_ids=[1], partition=(keys[2],)))
    assert sorted(row["id"] for row in table.read()) == [0, 1, 3]


def test_avro_deletes_by_uuid(tmp_path):
    table = TableByHand(tmp_path / "t", Schema(ID, optional(2, "k", UUIDType())))
    keys = [uuid.UUID(int=n).bytes for n in (5, 6)]
    k = column("k", pa.binary(16), 2)
    table.commit(table.file(rows_of((STORED_ID, [1, 2, 3]), (k, [*keys, None]))))
    stored = {"type": "fixed", "size": 16, "name": "u", "logicalType": "uuid"}
    field = {"name": "k", "type": ["null", stored], "default": None, "field-id": 2}
    path = table.path("avro")
    with open(path, "wb") as out:
        record = {"type": "record", "name": "r", "fields": [field]}
        fastavro.writer(out, record, [{"k": keys[0]}])
    table.commit(table.file(path, "avro", content=EQUALITY, equality_ids=[2]))
    assert [row["id"] for row in table.read()] == [2, 3]


# ------------------------------------------------------------------------------------------------
# Dropped columns, history, sizes, units.


@pytest.mark.slow
def test_a_manifest_without_the_column_of_its_partition(tmp_path):
    """The table had dropped the column when the manifest was written again."""
    text = optional(2, "p", StringType())
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "p"))
    table = TableByHand(tmp_path / "t", Schema(ID, text), spec)
    files = [
        table.file(rows_of((STORED_ID, [n])), partition=(part,)) for n, part in enumerate("abc")
    ]
    table.commit(*files, embedded=Schema(ID))
    assert table.read("SELECT id FROM t WHERE p = 'b'") == [{"id": 1}]
    gone = rows_of((STORED_ID, [0, 1, 2]))
    deletes = table.file(gone, content=EQUALITY, equality_ids=[1], partition=("c",))
    table.commit(deletes, embedded=Schema(ID))
    table.schemas.append(Schema(ID))
    table.specs.append(PartitionSpec(spec_id=1))
    assert sorted(row["id"] for row in table.read()) == [0, 1]


def history(tmp_path):
    """A table of two commits."""
    table = TableByHand(tmp_path / "t", Schema(ID))
    for n in (1, 2):
        table.commit(table.file(rows_of((STORED_ID, [n]))))
    return table


@pytest.mark.parametrize("name", ["20240101", "007"])
def test_a_tag_may_be_named_by_a_number(tmp_path, name):
    table = history(tmp_path)
    table.refs[name] = {"snapshot-id": 101, "type": "tag"}
    assert table.read(f"SELECT * FROM t FOR VERSION AS OF '{name}'") == [{"id": 1}]
    # A snapshot comes first.
    table.refs["102"] = {"snapshot-id": 101, "type": "tag"}
    assert len(table.read("SELECT * FROM t FOR VERSION AS OF '102'")) == 2
    with pytest.raises(tq.ConfigError, match="has no snapshot 20240102"):
        table.read("SELECT * FROM t FOR VERSION AS OF '20240102'")


@pytest.mark.parametrize("log", [True, False])
def test_times_without_a_log(tmp_path, log):
    """A table need not have one; then the snapshots' own times say what was current."""
    table = history(tmp_path)
    metadata = table.metadata()
    if not log:
        del metadata["snapshot-log"]

    def ids_at(millis):
        time = dt.datetime.fromtimestamp(millis / 1000, dt.UTC).isoformat()
        rows = table.read(f"SELECT * FROM t FOR TIMESTAMP AS OF '{time}'", metadata)
        return sorted(row["id"] for row in rows)

    assert (ids_at(START), ids_at(START + 999)) == ([1], [1])
    assert ids_at(START + 1000) == ids_at(START + 10**9) == [1, 2]
    with pytest.raises(tq.ConfigError, match="its history starts at 2023-11-14T22:13:20"):
        ids_at(START - 1)


@pytest.mark.parametrize("name", [b'"r508"', b'"r2"'], ids=["a list", "a manifest"])
def test_a_type_with_a_name_that_is_none_is_said(tmp_path, name):
    """The decoder of Avro panics on it."""
    table = history(tmp_path)
    damaged = [path for path in tmp_path.rglob("*.avro") if name in path.read_bytes()]
    assert damaged
    for path in damaged:
        path.write_bytes(path.read_bytes().replace(name, b'"["'.ljust(len(name))))
    with pytest.raises(tq.DataError, match=r"\d\.avro cannot be decoded.*name"):
        table.read()


@pytest.mark.parametrize("size", [100, 100_000])
def test_a_wrong_size_in_the_manifest_is_said(tmp_path, size):
    table = TableByHand(tmp_path / "t", Schema(ID))
    table.commit(table.file(rows_of((STORED_ID, [1])), file_size_in_bytes=size))
    with pytest.raises(
        tq.DataError, match=rf"is not as the metadata of t at snapshot .* \(size {size} -> "
    ) as caught:
        table.read()
    assert "or the metadata is wrong" in str(caught.value)


def test_orc_columns_of_two_units(tmp_path):
    """A column of nanoseconds does not limit the years of one of microseconds."""
    kinds = optional(2, "far", TimestampType()), optional(3, "fine", TimestampNanoType())
    table = TableByHand(tmp_path / "t", Schema(*kinds), version=3)
    table.properties["schema.name-mapping.default"] = json.dumps(
        [{"field-id": 2, "names": ["far"]}, {"field-id": 3, "names": ["fine"]}]
    )
    moments = [dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31), None]
    data = {
        "far": pa.array(moments, pa.timestamp("us")),
        "fine": pa.array([-1, 1, None], pa.timestamp("ns")),
    }
    table.commit(table.file(pa.table(data), "orc"))
    assert table.read("SELECT far, CAST(fine AS BIGINT) AS fine FROM t") == [
        {"far": moments[0], "fine": -1},
        {"far": moments[1], "fine": 1},
        {"far": None, "fine": None},
    ]
    # Keys keep their nanoseconds.
    keys = pa.table({"fine": pa.array([1], pa.timestamp("ns"))})
    table.commit(table.file(keys, "orc", content=EQUALITY, equality_ids=[3]))
    assert [row["far"] for row in table.read()] == [moments[0], None]


def test_old_times_of_files_of_spark(tmp_path):
    """Times of twelve bytes, without ids, in years beyond the range of nanoseconds: Iceberg's are microseconds."""
    times = [dt.datetime(9999, 12, 31), dt.datetime(2020, 1, 2, 3, 4, 5, 6), None]
    data = pa.table({"id": range(3), "old": pa.array(times, pa.timestamp("us"))})
    table = TableByHand(tmp_path / "t", Schema(ID, optional(2, "at", TimestampType())))
    names = [{"field-id": 1, "names": ["id"]}, {"field-id": 2, "names": ["at", "old"]}]
    table.properties["schema.name-mapping.default"] = json.dumps(names)
    path = table.path("parquet")
    pq.write_table(data, path, use_deprecated_int96_timestamps=True, store_schema=False)
    table.commit(table.file(path, record_count=3))
    assert [row["at"] for row in table.read()] == times
    assert table.read("SELECT id FROM t WHERE at > '2000-01-01' AND id > 0") == [{"id": 1}]


def test_snapshots_without_a_manifest_list_are_refused(tmp_path):
    table = TableByHand(tmp_path / "t", Schema(ID))
    table.commit(table.file(rows_of((STORED_ID, [1]))))
    metadata = table.metadata()
    metadata |= {"format-version": 1, "schema": metadata["schemas"][0], "partition-spec": []}
    snapshot = metadata["snapshots"][0]
    del snapshot["manifest-list"], snapshot["sequence-number"]
    snapshot["manifests"] = [table.manifests[0].manifest_path]
    with pytest.raises(tq.DataError, match="snapshot 101 names its manifests in the metadata"):
        table.read(metadata=metadata)
