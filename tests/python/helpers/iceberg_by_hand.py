"""Iceberg tables written by hand, file by file: what other writers leave and pyiceberg does not write."""

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq
from pyiceberg import manifest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.typedef import Record

import tensorquery as tq

DATA = manifest.DataFileContent.DATA
EQUALITY = manifest.DataFileContent.EQUALITY_DELETES
START = 1_700_000_000_000
"""The time of the first commit, in milliseconds; each one comes a second after the one before."""


class _Manifest(manifest.ManifestWriterV2):
    """A manifest of data files or of deletes, with another schema in its header than the one that it is written by."""

    def __init__(self, *given, deletes, embedded):
        super().__init__(*given)
        self.deletes, self.embedded = deletes, embedded

    def content(self):
        kinds = manifest.ManifestContent
        return kinds.DELETES if self.deletes else kinds.DATA

    @property
    def _meta(self):
        given = super()._meta
        given["content"] = "deletes" if self.deletes else "data"
        if self.embedded is not None:
            given["schema"] = self.embedded.model_dump_json()
        return given


class TableByHand:
    """A table in a folder.

    `schemas` and `specs` (the last of each is the current one), `properties` and `refs` may be changed between commits.
    """

    def __init__(self, folder, schema, spec=None, version=2):
        self.folder, self.version = Path(folder), version
        (self.folder / "metadata").mkdir(parents=True)
        self.schemas, self.specs = [schema], [spec or PartitionSpec()]
        self.properties, self.refs = {}, {}
        self.manifests, self.snapshots, self.written = [], [], 0
        self.io = PyArrowFileIO()

    def path(self, ending):
        self.written += 1
        return str(self.folder / f"{self.written:05d}.{ending}")

    def file(self, rows, kind="parquet", content=DATA, partition=(), **more):
        """A file of the rows of an Arrow table, or the file that is there at a path, as its manifest entry has it."""
        path = rows
        if isinstance(rows, pa.Table):
            path = self.path(kind)
            {"parquet": pq.write_table, "orc": pa.orc.write_table}[kind](rows, path)
        return manifest.DataFile.from_args(
            _table_format_version=2,
            content=content,
            file_path=path,
            file_format=manifest.FileFormat(kind.upper()),
            partition=Record(*partition),
            spec_id=len(self.specs) - 1,
            **{
                "record_count": rows.num_rows if isinstance(rows, pa.Table) else 1,
                "file_size_in_bytes": os.path.getsize(path),
                **more,
            },
        )

    def commit(self, *files, embedded=None):
        """A snapshot that adds these files, data or deletes."""
        sequence = len(self.snapshots) + 1
        snapshot = 100 + sequence
        for deletes in (False, True):
            added = [file for file in files if (file.content != DATA) == deletes]
            if not added:
                continue
            out = self.io.new_output(self.path("avro"))
            given = (self.specs[-1], self.schemas[-1], out, snapshot, "null")
            with _Manifest(*given, deletes=deletes, embedded=embedded) as writer:
                for file in added:
                    writer.add_entry(
                        manifest.ManifestEntry.from_args(
                            status=manifest.ManifestEntryStatus.ADDED,
                            snapshot_id=snapshot,
                            data_file=file,
                        )
                    )
            listed = writer.to_manifest_file()
            listed.sequence_number = listed.min_sequence_number = sequence
            self.manifests.append(listed)
        listed = self.path("avro")
        parent = self.snapshots[-1]["snapshot-id"] if self.snapshots else None
        out = self.io.new_output(listed)
        with manifest.write_manifest_list(2, out, snapshot, parent, sequence, "null") as writer:
            writer.add_manifests(self.manifests)
        entry = {
            "snapshot-id": snapshot,
            "sequence-number": sequence,
            "timestamp-ms": START + (sequence - 1) * 1000,
            "manifest-list": listed,
            "summary": {"operation": "append"},
            "schema-id": len(self.schemas) - 1,
        }
        if self.version == 3:
            entry |= {"first-row-id": 0, "added-rows": 0}
        if parent is not None:
            entry["parent-snapshot-id"] = parent
        self.snapshots.append(entry)
        return snapshot

    def metadata(self):
        """The table's metadata as an object."""
        schemas = [
            {**json.loads(schema.model_dump_json()), "schema-id": number}
            for number, schema in enumerate(self.schemas)
        ]
        specs = [
            {"spec-id": number, "fields": [json.loads(f.model_dump_json()) for f in spec.fields]}
            for number, spec in enumerate(self.specs)
        ]
        last = self.snapshots[-1]["snapshot-id"]
        moments = [{key: s[key] for key in ("snapshot-id", "timestamp-ms")} for s in self.snapshots]
        made = {
            "format-version": self.version,
            "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1",
            "location": str(self.folder),
            "last-sequence-number": len(self.snapshots),
            "last-updated-ms": self.snapshots[-1]["timestamp-ms"],
            "last-column-id": 1000,
            "current-schema-id": len(schemas) - 1,
            "schemas": schemas,
            "default-spec-id": len(specs) - 1,
            "partition-specs": specs,
            "last-partition-id": 2000,
            "default-sort-order-id": 0,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "properties": self.properties,
            "current-snapshot-id": last,
            "snapshots": self.snapshots,
            "snapshot-log": moments,
            "refs": {**self.refs, "main": {"snapshot-id": last, "type": "branch"}},
        }
        return {**made, "next-row-id": 0} if self.version == 3 else made

    def write(self, metadata=None):
        """The path of a new metadata file: of `metadata`, or of the table as it is."""
        path = (
            self.folder / "metadata" / f"{len(self.snapshots)}-{self.path('metadata.json')[-19:]}"
        )
        path.write_text(json.dumps(metadata or self.metadata()))
        return str(path)

    def read(self, sql="SELECT * FROM t", metadata=None):
        """The rows of a query over the table, which it names t."""
        session = tq.Session()
        session.register_iceberg_table("t", self.write(metadata))
        return session.sql(sql).to_arrow().to_pylist()


def column(name, kind, field_id):
    """An Arrow field with the id that a data file stores."""
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(field_id)})


def rows_of(*columns):
    """An Arrow table of (field, values)."""
    arrays = [pa.array(values, field.type) for field, values in columns]
    return pa.Table.from_arrays(arrays, schema=pa.schema([field for field, _ in columns]))
