"""Changes without a new snapshot, or between two manifests: names, types of partitions, and casts over bounds."""

import datetime as dt
import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg import manifest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import IntegerType, LongType, NestedField

import tensorquery as tq


@pytest.fixture
def catalog(tmp_path):
    made = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=str(tmp_path))
    made.create_namespace("ns")
    return made


def query_of(tmp_path, sql):
    session = tq.Session()
    session.register_iceberg("lake", {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"})
    return session.sql(sql)


def swapped(catalog):
    """A table whose columns a and b have changed their names with each other, without a new snapshot."""
    for old, new in (("a", "spare"), ("b", "a"), ("spare", "b")):
        with catalog.load_table("ns.t").update_schema() as update:
            update.rename_column(old, new)
    with catalog.load_table("ns.t").update_schema() as update:
        update.move_first("a")


def pair(a, b):
    return pa.table({"a": pa.array(a, pa.int64()), "b": pa.array(b, pa.int64())})


def test_exchanged_columns_are_another_training_set(tmp_path, catalog):
    rows = pair([1, 2, 3], [10, 20, 30])
    catalog.create_table("ns.t", rows.schema).append(rows)
    before = query_of(tmp_path, "SELECT a, b FROM lake.ns.t")
    then = before.plan_shards(world_size=1).fingerprint
    swapped(catalog)
    after = query_of(tmp_path, "SELECT a, b FROM lake.ns.t")
    assert after.to_arrow().to_pydict() == {"a": [10, 20, 30], "b": [1, 2, 3]}
    assert after.plan_shards(world_size=1).fingerprint != then
    assert before.to_arrow().to_pydict() == {"a": [1, 2, 3], "b": [10, 20, 30]}
    assert len(before.refresh()) == 1
    assert before.to_arrow().to_pydict() == {"a": [10, 20, 30], "b": [1, 2, 3]}


@pytest.mark.parametrize("swap_first", [True, False])
def test_a_resumed_run_keeps_its_schema(tmp_path, catalog, swap_first):
    """The run's schema, neither the snapshot's nor the current one."""
    rows = pair([1, 2, 3], [10, 20, 30])
    catalog.create_table("ns.t", rows.schema).append(rows)
    if swap_first:
        swapped(catalog)
    sql = "SELECT a, b FROM lake.ns.t"
    loader, _ = tq.create_dataloader(query_of(tmp_path, sql), batch_size=1)
    batches = iter(loader)
    first = next(batches)
    state = json.loads(json.dumps(loader.state_dict()))
    if not swap_first:
        swapped(catalog)
    catalog.load_table("ns.t").append(pair([4], [40]))
    resumed, _ = tq.create_dataloader(query_of(tmp_path, sql), batch_size=1)
    resumed.load_state_dict(state)
    got = [(batch["a"].item(), batch["b"].item()) for batch in (first, *resumed)]
    whole = [(10, 1), (20, 2), (30, 3)] if swap_first else [(1, 10), (2, 20), (3, 30)]
    assert got == whole


@pytest.mark.parametrize(
    "predicate", ["CAST(ts AS TIME) = TIME '12:00:00'", "CAST(x AS BOOLEAN) = false"]
)
def test_casts_that_lose_the_order_prune_nothing(tmp_path, catalog, predicate):
    moments = [dt.datetime(2024, 1, day, hour) for day, hour in ((1, 23), (2, 12), (2, 13))]
    rows = pa.table(
        {"ts": pa.array(moments, pa.timestamp("us")), "x": pa.array([-1, 0, 1], pa.int32())}
    )
    catalog.create_table("ns.t", rows.schema).append(rows)
    query = query_of(tmp_path, f"SELECT x FROM lake.ns.t WHERE {predicate}")
    assert query.to_arrow()["x"].to_pylist() == [0]
    loader, _ = tq.create_dataloader(query)
    assert [value for batch in loader for value in batch["x"].tolist()] == [0]


class DeleteManifest(manifest.ManifestWriterV2):
    def content(self):
        return manifest.ManifestContent.DELETES

    @property
    def _meta(self):
        return {**super()._meta, "content": "deletes"}


def test_deletes_reach_partitions_of_a_widened_column(tmp_path, catalog):
    """The data manifest has the partition value as int, the delete manifest as long."""
    schema = Schema(
        NestedField(1, "p", IntegerType(), required=False),
        NestedField(2, "v", LongType(), required=False),
    )
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "p"))
    table = catalog.create_table("ns.t", schema, partition_spec=spec)
    table.append(pa.table({"p": pa.array([5] * 3, pa.int32()), "v": [1, 2, 3]}))
    with table.update_schema() as update:
        update.update_column("p", LongType())
    table.refresh()
    table.append(pa.table({"p": [6], "v": [9]}))
    table.refresh()
    keys = str(tmp_path / "keys.parquet")
    field = pa.field("v", pa.int64(), metadata={"PARQUET:field_id": "2"})
    pq.write_table(pa.table({"v": [2]}, schema=pa.schema([field])), keys)
    deletes = manifest.DataFile.from_args(
        _table_format_version=2,
        content=manifest.DataFileContent.EQUALITY_DELETES,
        file_path=keys,
        file_format=manifest.FileFormat.PARQUET,
        partition=Record(5),
        record_count=1,
        file_size_in_bytes=os.path.getsize(keys),
        equality_ids=[2],
        spec_id=0,
    )
    last, io = table.current_snapshot(), table.io
    snapshot, sequence = last.snapshot_id + 1, last.sequence_number + 1
    out = io.new_output(str(tmp_path / "deletes.avro"))
    with DeleteManifest(table.spec(), table.schema(), out, snapshot, "null") as writer:
        status = manifest.ManifestEntryStatus.ADDED
        writer.add_entry(
            manifest.ManifestEntry.from_args(status=status, snapshot_id=snapshot, data_file=deletes)
        )
    listed_deletes = writer.to_manifest_file()
    listed = str(tmp_path / "list.avro")
    with manifest.write_manifest_list(
        2, io.new_output(listed), snapshot, last.snapshot_id, sequence, "null"
    ) as writer:
        writer.add_manifests([*last.manifests(io), listed_deletes])
    metadata = json.loads(io.new_input(table.metadata_location).open().read())
    entry = {
        **metadata["snapshots"][-1],
        "snapshot-id": snapshot,
        "parent-snapshot-id": last.snapshot_id,
        "sequence-number": sequence,
        "manifest-list": listed,
        "summary": {"operation": "delete"},
    }
    metadata["snapshots"].append(entry)
    metadata["last-sequence-number"] = sequence
    metadata["current-snapshot-id"] = snapshot
    metadata["refs"] = {"main": {"snapshot-id": snapshot, "type": "branch"}}
    path = tmp_path / "v9.metadata.json"
    path.write_text(json.dumps(metadata))
    session = tq.Session()
    session.register_iceberg_table("t", path)
    assert sorted(session.sql("SELECT v FROM t").to_arrow()["v"].to_pylist()) == [1, 3, 9]


def renamed(table):
    with table.update_schema() as update:
        update.rename_column("b", "c")
    with table.update_schema() as update:
        update.add_column("b", LongType())


def exchanged(table):
    for old, new in (("a", "spare"), ("b", "a"), ("spare", "b")):
        with table.update_schema() as update:
            update.rename_column(old, new)


def dropped(table):
    with table.update_schema() as update:
        update.delete_column("b")
    with table.update_schema() as update:
        update.add_column("b", LongType())


def partly_unmapped(table):
    mapping = json.loads(table.properties["schema.name-mapping.default"])
    mapping = json.dumps([field for field in mapping if field["names"] != ["b"]])
    with table.transaction() as transaction:
        transaction.set_properties({"schema.name-mapping.default": mapping})


@pytest.mark.parametrize("change", [renamed, exchanged, dropped, partly_unmapped])
def test_filters_of_files_without_ids_agree_with_the_rows_that_are_shown(tmp_path, catalog, change):
    """Metrics carry the columns' former ids; such files are read by the names in the present mapping."""
    path = tmp_path / "f.parquet"
    pq.write_table(pair([1, 2], [10, 20]), path)
    table = catalog.create_table("ns.t", pair([], []).schema)
    table.add_files([str(path)])
    change(table)
    shown = query_of(tmp_path, "SELECT * FROM lake.ns.t").to_arrow()
    assert shown.num_rows == 2
    for name in shown.column_names:
        values = shown[name].to_pylist()
        for where, count in {
            f"{name} IS NULL": values.count(None),
            f"{name} IS NOT NULL": 2 - values.count(None),
            f"{name} < 5": sum(value is not None and value < 5 for value in values),
            f"{name} >= 5": sum(value is not None and value >= 5 for value in values),
        }.items():
            query = query_of(tmp_path, f"SELECT 1 AS one FROM lake.ns.t WHERE {where}")
            assert query.count() == query.to_arrow().num_rows == count, (where, shown.to_pylist())
