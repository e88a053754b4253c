"""After every kind of commit a table is read as pyiceberg reads it."""

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg import expressions as ex
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import (
    BucketTransform,
    IdentityTransform,
    TruncateTransform,
)
from pyiceberg.types import (
    IntegerType,
    LongType,
    NestedField,
    StringType,
    StructType,
)

import tensorquery as tq
from iceberg_fixtures import assert_same
from pyiceberg_tables import SIMPLE, assert_read_alike, make_lake, read, simple


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    return make_lake(tmp_path_factory.mktemp("lake"))


@pytest.mark.slow
@pytest.mark.parametrize("by", ["nothing", "identity"])
def test_a_history_of_commits(lake, by):
    spec = PartitionSpec(
        *([PartitionField(2, 1000, IdentityTransform(), "k")] if by == "identity" else [])
    )
    table = lake.create_table(f"ns.history_{by}", SIMPLE, partition_spec=spec)
    assert read(table).num_rows == 0
    table.append(simple(0, 50))
    assert_read_alike(table)
    table.delete("k == 3 and id > 20")
    assert_read_alike(table)
    table.overwrite(simple(50, 80), overwrite_filter="id < 10")
    assert_read_alike(table)
    table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "kept").commit()
    table.upsert(simple(70, 100, s=pa.array(["up"] * 30)), join_cols=["id"])
    assert_read_alike(table)
    if by == "identity":
        table.dynamic_partition_overwrite(simple(200, 203))
        assert_read_alike(table)
    for snapshot in table.snapshots():
        at = snapshot.snapshot_id
        assert_same(read(table, snapshot_id=at), table.scan(snapshot_id=at).to_arrow())
    tagged = table.scan().use_ref("kept").to_arrow()
    assert_same(read(table, ref="kept"), tagged)
    assert_same(read(table, "SELECT * FROM t VERSION AS OF 'kept'"), tagged)


@pytest.mark.slow
def test_schema_changes(lake):
    table = lake.create_table("ns.evolving", SIMPLE)
    table.append(simple(0, 20))
    with table.update_schema() as change:
        change.update_column("k", LongType())
        change.rename_column("k", "key")
        change.move_first("s")
    assert_read_alike(table)
    with table.update_schema() as change:
        change.add_column("k", StringType())
    assert_read_alike(table)
    table.append(
        pa.table({
            "s": ["new"] * 5,
            "id": pa.array(range(20, 25), pa.int64()),
            "key": pa.array([2**40] * 5, pa.int64()),
            "k": ["text"] * 5,
        })
    )  # fmt: skip
    with table.update_schema() as change:
        change.delete_column("s")
        change.add_column("pair", StructType(NestedField(90, "x", IntegerType(), required=False)))
    assert_read_alike(table)
    with table.update_schema() as change:
        change.add_column("s", IntegerType())
        change.add_column(("pair", "y"), StringType())
    assert_read_alike(table)
    assert read(table, "SELECT id FROM t WHERE s IS NULL").num_rows == 25
    assert read(table, "SELECT id FROM t WHERE key > 1000").num_rows == 5


@pytest.mark.slow
def test_partitioning_changes(lake):
    table = lake.create_table("ns.repartitioned", SIMPLE)
    table.append(simple(0, 20))
    with table.update_spec() as change:
        change.add_field("k", IdentityTransform(), "by_k")
    table.append(simple(20, 40))
    with table.update_spec() as change:
        change.remove_field("by_k")
        change.add_field("s", TruncateTransform(1), "by_s")
    table.append(simple(40, 60))
    assert_read_alike(table)
    for k in range(6):
        expected = table.scan(row_filter=ex.EqualTo("k", k)).to_arrow()
        assert_same(read(table, f"SELECT * FROM t WHERE k = {k}"), expected)


def test_added_files_are_mapped_by_name(lake, tmp_path):
    table = lake.create_table("ns.added", SIMPLE)
    # The columns in another order, one missing, one that the table does not know.
    pq.write_table(simple(0, 20).select(["s", "id"]), tmp_path / "a.parquet")
    pq.write_table(simple(20, 30), tmp_path / "b.parquet", row_group_size=3)
    table.add_files([str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet")])
    assert_read_alike(table)
    with table.update_schema() as change:
        change.rename_column("s", "text")
    assert_read_alike(table)
    assert read(table, "SELECT id FROM t WHERE text = 's1'").num_rows == 10


# ------------------------------------------------------------------------------------------------
# Metadata tables.


def test_metadata_tables(lake):
    table = lake.create_table("ns.looked_at", SIMPLE)
    table.append(simple(0, 40))
    table.append(simple(40, 60))
    table.delete("id < 5")
    session = tq.Session()
    session.register_iceberg("lake", {"type": "sql", **lake.given})

    def rows_of(kind, columns):
        found = session.sql(f'SELECT {columns} FROM lake.ns."looked_at${kind}"').to_arrow()
        return sorted(tuple(row.values()) for row in found.to_pylist())

    snapshots = table.inspect.snapshots().to_pylist()
    assert rows_of("snapshots", "snapshot_id, operation") == sorted(
        (row["snapshot_id"], row["operation"]) for row in snapshots
    )
    assert len(snapshots) == 3
    files = table.inspect.data_files().to_pylist()
    assert rows_of("files", "file_path, record_count, file_size_in_bytes") == sorted(
        (row["file_path"], row["record_count"], row["file_size_in_bytes"]) for row in files
    )
    history = table.inspect.history().to_pylist()
    assert rows_of("history", "snapshot_id, is_current_ancestor") == sorted(
        (row["snapshot_id"], row["is_current_ancestor"]) for row in history
    )
    assert rows_of("refs", "name, type") == [("main", "BRANCH")]


def test_metadata_tables_after_changes_of_the_schema(lake):
    """A partition column becomes wider, leaves the partition spec, and is dropped."""
    spec = PartitionSpec(
        PartitionField(2, 1000, IdentityTransform(), "k"),
        PartitionField(3, 1001, BucketTransform(4), "bucket"),
    )
    table = lake.create_table("ns.changed", SIMPLE, partition_spec=spec)
    table.append(simple(0, 10))
    session = tq.Session()
    session.register_iceberg("lake", {"type": "sql", **lake.given})

    def partitions():
        found = session.sql('SELECT * FROM lake.ns."changed$partitions"').to_arrow().to_pylist()
        files = session.sql('SELECT * FROM lake.ns."changed$files"').to_arrow().to_pylist()
        assert {row["partition"] for row in found} == {row["partition"] for row in files}
        return {row["partition"]: row["record_count"] for row in found}

    before = partitions()
    assert sum(before.values()) == 10
    assert all(re.fullmatch(r"k=[0-4]/bucket=[0-3]", partition) for partition in before)
    with table.update_schema() as change:
        change.update_column("k", LongType())
    assert partitions() == before
    with table.update_spec() as change:
        change.remove_field("k")
        change.remove_field("bucket")
    with table.update_schema() as change:
        change.delete_column("k")
    assert partitions() == before


@pytest.mark.parametrize("kind", ["data file", "manifest", "manifest list"])
def test_a_vanished_file_is_named(lake, kind):
    table = lake.create_table(f"ns.vanished_{kind.replace(' ', '_')}", SIMPLE)
    table.append(simple(0, 40))
    snapshot = table.current_snapshot()
    gone = {
        "data file": table.inspect.data_files()["file_path"][0].as_py(),
        "manifest": snapshot.manifests(table.io)[0].manifest_path,
        "manifest list": snapshot.manifest_list,
    }[kind]
    path = Path(gone.removeprefix("file://"))
    path.unlink()
    with pytest.raises(tq.TensorQueryError, match=re.escape(path.name)):
        read(table)
