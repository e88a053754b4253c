"""Makes the tables of ``benches/iceberg.py``, once: rows with and without deletes, and 10,000 files to plan.

pyiceberg writes the rows. It writes neither delete files nor format version 3, so the snapshots that have them are
composed here of its lower parts (the Avro files of manifests and of the manifest list) as the specification says.
"""

from __future__ import annotations

import json
import shutil
import struct
import time
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestListWriterV2,
    ManifestWriterV2,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType, IntegerType, LongType, NestedField, StringType

DELETED = 0.05
"""The part of the rows that are deleted, at random positions."""

PLANNED_FILES = 10_000
PLANNED_MANIFESTS = 20
PLANNED_DAYS = 100
PLANNED_ROWS = 1_000
"""Rows of each file of the table that is planned only."""

PLANNED_DAY = 42
"""The day whose files are there, with those of the day after: where a filter is, planning reads footers."""

PATH_ID, POSITION_ID = 2147483546, 2147483545
"""Field ids of a position delete file, reserved by the specification."""


def catalog_properties(folder: Path) -> dict[str, str]:
    """A SQL catalog over SQLite in `folder`, as pyiceberg and tensorquery take it."""
    return {
        "type": "sql",
        "uri": f"sqlite:///{folder.resolve()}/catalog.db",
        "warehouse": f"file://{folder.resolve()}",
    }


def make(lineitem: Path, folder: Path) -> Path:
    """Write the tables ``ns.plain``, ``ns.positions``, ``ns.vectors`` and ``ns.planned`` below `folder`, once.

    `ns.plain` has the rows of `lineitem`, a file each, zstd, in row groups of 131,072 rows. `ns.positions` and
    `ns.vectors` are the same data files with 5% of the rows deleted, by a position delete file per data file
    (format version 2) and by deletion vectors (format version 3). Returns the folder of the data files.
    """
    data = folder / "ns" / "plain" / "data"
    if (folder / "complete").exists():
        return data
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    catalog = SqlCatalog("lake", **catalog_properties(folder))
    catalog.create_namespace("ns")
    parts = sorted(lineitem.glob("*.parquet"))
    plain = catalog.create_table(
        "ns.plain",
        pq.read_schema(parts[0]),
        location=f"file://{folder.resolve()}/ns/plain",
        properties={"write.parquet.row-group-limit": str(1 << 17), "format-version": "2"},
    )
    for part in parts:
        plain.append(pq.read_table(part))
    gone = _deleted_positions(plain)
    for name, version, write in (("positions", 2, _position_files), ("vectors", 3, _vectors)):
        target = folder / "ns" / name
        entries = write(target, gone)
        _register(catalog, plain, f"ns.{name}", target, entries, version)
    (folder / "truth.json").write_text(json.dumps(_truth(gone)))
    _make_planned(catalog, folder / "ns" / "planned")
    (folder / "complete").touch()
    return data


def _deleted_positions(table: Table) -> dict[str, np.ndarray]:
    """Ascending positions, by the data file's path; the same in every run."""
    random = np.random.default_rng(4)
    gone = {}
    for task in sorted(table.scan().plan_files(), key=lambda task: task.file.file_path):
        rows = task.file.record_count
        chosen = random.choice(rows, int(rows * DELETED), replace=False)
        gone[task.file.file_path] = np.sort(chosen)
    return gone


def _truth(gone: dict[str, np.ndarray]) -> dict[str, list[int]]:
    """Live rows and the sum of their l_orderkey, by table, from the files and positions themselves."""
    rows = total = live_rows = live_total = 0
    for path, positions in gone.items():
        keys = pq.read_table(path.removeprefix("file://"), columns=["l_orderkey"])[
            "l_orderkey"
        ].to_numpy()
        rows, total = rows + len(keys), total + int(keys.sum())
        live = np.delete(keys, positions)
        live_rows, live_total = live_rows + len(live), live_total + int(live.sum())
    live_both = [live_rows, live_total]
    return {"plain": [rows, total], "positions": live_both, "vectors": live_both}


# --------------------------------------------------------------------------------------------------------
# Deletes


def _position_files(folder: Path, gone: dict[str, np.ndarray]) -> list[DataFile]:
    """A Parquet file of (file_path, pos) per data file, as engines write them since Iceberg 1.7."""
    (folder / "data").mkdir(parents=True)
    schema = pa.schema(
        [
            pa.field("file_path", pa.string(), False, {"PARQUET:field_id": str(PATH_ID)}),
            pa.field("pos", pa.int64(), False, {"PARQUET:field_id": str(POSITION_ID)}),
        ]
    )
    files = []
    for number, (path, positions) in enumerate(gone.items()):
        target = folder / "data" / f"{number:05}-deletes.parquet"
        paths = pa.array([path] * len(positions))
        pq.write_table(pa.table([paths, positions], schema=schema), target, compression="zstd")
        files.append(
            _content_file(
                2,
                content=DataFileContent.POSITION_DELETES,
                file_path=f"file://{target.resolve()}",
                file_format=FileFormat.PARQUET,
                partition=Record(),
                record_count=len(positions),
                file_size_in_bytes=target.stat().st_size,
                # Equal bounds of the path say that the deletes are of one data file.
                lower_bounds={PATH_ID: path.encode()},
                upper_bounds={PATH_ID: path.encode()},
            )
        )
    return files


def _vectors(folder: Path, gone: dict[str, np.ndarray]) -> list[DataFile]:
    """One Puffin file with a deletion vector per data file."""
    (folder / "data").mkdir(parents=True)
    target = folder / "data" / "00000-deletes.puffin"
    content = bytearray(b"PFA1")
    blobs, files = [], []
    for path, positions in gone.items():
        vector = _vector(positions)
        blobs.append(
            {
                "type": "deletion-vector-v1",
                "fields": [2147483645],
                "snapshot-id": -1,
                "sequence-number": -1,
                "offset": len(content),
                "length": len(vector),
                "properties": {"referenced-data-file": path, "cardinality": str(len(positions))},
            }
        )
        files.append(
            {
                "content": DataFileContent.POSITION_DELETES,
                "file_path": f"file://{target.resolve()}",
                "file_format": FileFormat.PUFFIN,
                "partition": Record(),
                "record_count": len(positions),
                "referenced_data_file": path,
                "content_offset": len(content),
                "content_size_in_bytes": len(vector),
            }
        )
        content += vector
    footer = json.dumps({"blobs": blobs, "properties": {}}).encode()
    content += b"PFA1" + footer + struct.pack("<iI", len(footer), 0) + b"PFA1"
    target.write_bytes(content)
    return [_content_file(3, file_size_in_bytes=len(content), **file) for file in files]


def _vector(positions: np.ndarray) -> bytes:
    """A blob of type deletion-vector-v1: length, magic number, a 64-bit roaring bitmap, and the sum of both."""
    from pyroaring import BitMap

    bitmap = struct.pack("<QI", 1, 0) + BitMap(positions.astype(np.uint32)).serialize()
    body = b"\xd1\xd3\x39\x64" + bitmap
    return struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))


# --------------------------------------------------------------------------------------------------------
# Snapshots of given files


def _content_file(version: int, **fields: Any) -> DataFile:
    return DataFile.from_args(_table_format_version=version, **fields)


class _ManifestWriter(ManifestWriterV2):
    """pyiceberg's writer, for manifests of deletes and of format version 3 too."""

    def __init__(self, *given: Any, version: int, deletes: bool) -> None:
        super().__init__(*given)
        self._version, self._deletes = version, deletes

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES if self._deletes else ManifestContent.DATA

    @property
    def version(self) -> int:
        return self._version

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes" if self._deletes else "data"}

    def new_writer(self) -> AvroOutputFile[ManifestEntry]:
        schema = self._with_partition(self._version)
        return AvroOutputFile(
            output_file=self._output_file,
            file_schema=schema,
            record_schema=schema,
            schema_name="manifest_entry",
            metadata=self._meta,
        )


def _manifest(
    table: Table, path: Path, snapshot: int, files: list[DataFile], version: int, deletes: bool
) -> ManifestFile:
    """Write a manifest that adds `files`; returns its row of the manifest list."""
    output = PyArrowFileIO().new_output(f"file://{path.resolve()}")
    given = (table.spec(), table.schema(), output, snapshot, "deflate")
    with _ManifestWriter(*given, version=version, deletes=deletes) as writer:
        for file in files:
            writer.add(ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, data_file=file))
    return writer.to_manifest_file()


def _commit(
    table: Table, folder: Path, snapshot: int, manifests: list[ManifestFile], version: int
) -> str:
    """Write the manifest list and the metadata file of a table with one snapshot more; returns the latter's path."""
    sequence = table.metadata.last_sequence_number + 1
    parent = table.metadata.current_snapshot_id
    listed = folder / "metadata" / f"snap-{snapshot}.avro"
    output = PyArrowFileIO().new_output(f"file://{listed.resolve()}")
    with ManifestListWriterV2(output, snapshot, parent, sequence, "deflate") as writer:
        writer.add_manifests(manifests)
    now = int(time.time() * 1000)
    metadata = json.loads(table.metadata.model_dump_json())
    added = {
        "snapshot-id": snapshot,
        "sequence-number": sequence,
        "timestamp-ms": now,
        "manifest-list": f"file://{listed.resolve()}",
        "summary": {"operation": "delete" if parent else "append"},
        "schema-id": table.metadata.current_schema_id,
    }
    if parent is not None:
        added["parent-snapshot-id"] = parent
    if version == 3:
        # No row is added, and those from before the upgrade are left without ids, which nothing here reads.
        metadata["next-row-id"] = added["first-row-id"] = 0
        added["added-rows"] = 0
    metadata |= {
        "format-version": version,
        "table-uuid": str(uuid.uuid4()),
        "location": f"file://{folder.resolve()}",
        "last-sequence-number": sequence,
        "last-updated-ms": now,
        "current-snapshot-id": snapshot,
        "snapshots": [*metadata.get("snapshots", []), added],
        "snapshot-log": [
            *metadata.get("snapshot-log", []),
            {"snapshot-id": snapshot, "timestamp-ms": now},
        ],
        "refs": {"main": {"snapshot-id": snapshot, "type": "branch"}},
    }
    target = folder / "metadata" / "00001-made.metadata.json"
    target.write_text(json.dumps(metadata))
    return f"file://{target.resolve()}"


def _register(
    catalog: SqlCatalog,
    plain: Table,
    name: str,
    folder: Path,
    deletes: list[DataFile],
    version: int,
) -> None:
    """A table of the same data files with these deletes in a last snapshot."""
    (folder / "metadata").mkdir()
    snapshot = plain.metadata.new_snapshot_id()
    added = _manifest(plain, folder / "metadata" / "deletes.avro", snapshot, deletes, version, True)
    current = plain.current_snapshot()
    assert current is not None
    manifests = [added, *current.manifests(plain.io)]
    catalog.register_table(name, _commit(plain, folder, snapshot, manifests, version))


# --------------------------------------------------------------------------------------------------------
# A table that is planned only


def _make_planned(catalog: SqlCatalog, folder: Path) -> None:
    """10,000 files, most of them absent, in 20 manifests, partitioned by day, with bounds of ten columns."""
    schema = Schema(
        NestedField(1, "day", IntegerType(), required=False),
        NestedField(2, "id", LongType(), required=False),
        NestedField(3, "name", StringType(), required=False),
        *(NestedField(i, f"x{i}", DoubleType(), required=False) for i in range(4, 11)),
    )
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "day"))
    location = f"file://{folder.resolve()}"
    table = catalog.create_table("ns.empty", schema, location=location, partition_spec=spec)
    (folder / "metadata").mkdir(exist_ok=True)
    snapshot = table.metadata.new_snapshot_id()
    files = list(_planned_files(schema, folder.resolve()))
    each = PLANNED_FILES // PLANNED_MANIFESTS
    manifests = [
        _manifest(
            table,
            folder / "metadata" / f"m{number:02}.avro",
            snapshot,
            files[number * each : (number + 1) * each],
            2,
            False,
        )
        for number in range(PLANNED_MANIFESTS)
    ]
    catalog.register_table("ns.planned", _commit(table, folder, snapshot, manifests, 2))


def _planned_files(schema: Schema, folder: Path) -> Iterator[DataFile]:
    """Ids and names ascend from file to file, so that a range of them lies in few files; the rest is spread."""
    random = np.random.default_rng(4)
    kinds = {field.field_id: field.field_type for field in schema.fields}
    for number in range(PLANNED_FILES):
        day = number * PLANNED_DAYS // PLANNED_FILES
        start = number * PLANNED_ROWS
        bounds: dict[int, tuple[Any, Any]] = {
            1: (day, day),
            2: (start, start + PLANNED_ROWS - 1),
            3: (f"name{start:012}", f"name{start + PLANNED_ROWS - 1:012}"),
        }
        for column in range(4, 11):
            low, high = np.sort(random.normal(size=2))
            bounds[column] = (float(low), float(high))
        path = folder / "data" / f"day={day}" / f"{number:05}-{uuid.UUID(int=number)}.parquet"
        size = 50_000
        if PLANNED_DAY <= day <= PLANNED_DAY + 1:
            path.parent.mkdir(parents=True, exist_ok=True)
            size = _planned_file(schema, path, bounds)
        yield _content_file(
            2,
            content=DataFileContent.DATA,
            file_path=f"file://{path}",
            file_format=FileFormat.PARQUET,
            partition=Record(day),
            record_count=PLANNED_ROWS,
            file_size_in_bytes=size,
            column_sizes=dict.fromkeys(kinds, size // len(kinds)),
            value_counts=dict.fromkeys(kinds, PLANNED_ROWS),
            null_value_counts=dict.fromkeys(kinds, 0),
            nan_value_counts=dict.fromkeys(range(4, 11), 0),
            lower_bounds={i: to_bytes(kinds[i], low) for i, (low, _) in bounds.items()},
            upper_bounds={i: to_bytes(kinds[i], high) for i, (_, high) in bounds.items()},
            split_offsets=[4],
        )


def _planned_file(schema: Schema, path: Path, bounds: dict[int, tuple[Any, Any]]) -> int:
    """Write a file within these bounds; returns its size in bytes."""
    start = bounds[2][0]
    columns = {
        1: np.full(PLANNED_ROWS, bounds[1][0], np.int32),
        2: np.arange(start, start + PLANNED_ROWS),
        3: [f"name{n:012}" for n in range(start, start + PLANNED_ROWS)],
        **{i: np.linspace(*bounds[i], PLANNED_ROWS) for i in range(4, 11)},
    }
    rows = pa.table(list(columns.values()), schema=schema.as_arrow())
    pq.write_table(rows, path, compression="zstd", write_page_index=True)
    return path.stat().st_size
