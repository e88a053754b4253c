"""Iceberg tables with deletes, written by pyiceberg; the manifest of the deletes too, which it reads but does not write itself."""

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent
from pyiceberg.manifest import ManifestWriterV2 as Writer
from pyiceberg.table.update.snapshot import Operation, _FastAppendFiles
from pyiceberg.typedef import Record

import support

_POSITIONS = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {"PARQUET:field_id": "2147483546"}),
        pa.field("pos", pa.int64(), False, {"PARQUET:field_id": "2147483545"}),
    ]
)


class _Deletes(Writer):
    def content(self):
        return ManifestContent.DELETES

    @property
    def _meta(self):
        return {**super()._meta, "content": "deletes"}


class _DeleteFiles(_FastAppendFiles):
    """A snapshot that adds files of deletes."""

    def new_manifest_writer(self, spec):
        return _Deletes(
            spec, self.schema(), self.new_manifest_output(), self._snapshot_id, self._compression
        )


def write(folder, table, *, files, row_group, is_deleted):
    """Write a table with some rows deleted by position.

    Args:
        folder: Where; its metadata are below ``metadata``.
        table: All rows, those that are deleted as well.
        files: Data files, of equally many rows.
        row_group: Rows of a row group.
        is_deleted: By row.
    """
    folder.mkdir(parents=True)
    catalog = SqlCatalog("faults", uri="sqlite://", warehouse=f"file://{folder.parent}")
    catalog.create_namespace("n")
    properties = {"format-version": "2"}
    written = catalog.create_table(
        "n.t", table.schema, location=f"file://{folder}", properties=properties
    )
    support.write_parquet(folder / "data", table, files=files, row_group=row_group)
    paths = [f"file://{path}" for path in sorted((folder / "data").iterdir())]
    written.add_files(paths)
    found = []
    row = 0
    for path, part in zip(paths, support.cut(table, files), strict=True):
        places = is_deleted[row : row + part.num_rows].nonzero()[0]
        found.append(pa.table([[path] * len(places), places], schema=_POSITIONS))
        row += part.num_rows
    with written.transaction() as change:
        snapshot = _DeleteFiles(operation=Operation.DELETE, transaction=change, io=written.io)
        with snapshot as added:
            for number, positions in enumerate(found):
                path = folder / "data" / f"deletes-{number}.parquet"
                pq.write_table(positions, path)
                added.append_data_file(
                    DataFile.from_args(
                        content=DataFileContent.POSITION_DELETES,
                        file_path=f"file://{path}",
                        file_format=FileFormat.PARQUET,
                        partition=Record(),
                        record_count=positions.num_rows,
                        file_size_in_bytes=path.stat().st_size,
                    )
                )
