"""The files as Lance tables: converted once, before anything is measured."""

from __future__ import annotations

from pathlib import Path

from compare.request import Request
from compare.warm import read_data

TABLES = Path(".bench") / "lance"


def table_name(request: Request) -> str:
    """The table of a folder of Parquet files."""
    return Path(request.path).name.replace(".", "-")


def convert(request: Request) -> Path:
    """Write the table unless it is there; the path of its data."""
    import lancedb
    import pyarrow.dataset as ds

    connection = lancedb.connect(TABLES)
    name = table_name(request)
    place = TABLES / f"{name}.lance"
    done = TABLES / f"{name}.done"
    if not done.exists():
        rows = ds.dataset(request.path, format="parquet")
        connection.create_table(
            name, rows.scanner().to_reader(), schema=rows.schema, mode="overwrite"
        )
        done.touch()
    read_data(place)
    return place
