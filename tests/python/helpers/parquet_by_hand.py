"""Parquet files that other writers make, made of those of pyarrow: the same pages under another schema."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from parquet_footers import LIST, SCHEMA, STRUCT, TEXT, ParquetFile, Struct

# Fields of a `SchemaElement`, and what stands in them.
TYPE, LENGTH, REPETITION, NAME, CHILDREN, CONVERTED, LOGICAL = 1, 2, 3, 4, 5, 6, 10
REQUIRED, OPTIONAL, REPEATED = 0, 1, 2
INTERVAL, LIST_KIND, MAP_KIND = 21, 3, 1
VARIANT, GEOMETRY, LATER = 16, 17, 31
NUMBER = 5


def element(name: str, repetition: int, children: int = 0, **more: Any) -> Struct:
    """A group, or a copy of `like` with another name and repetition."""
    fields: Struct = dict(more.get("like", {}))
    fields[NAME] = (TEXT, name.encode())
    fields[REPETITION] = (NUMBER, repetition)
    if children:
        fields[CHILDREN] = (NUMBER, children)
    if "converted" in more:
        fields[CONVERTED] = (NUMBER, more["converted"])
    return fields


def elements(path: Path) -> tuple[ParquetFile, list[Struct]]:
    """A file, and the elements of its schema, which may be changed before it is written."""
    file = ParquetFile(path)
    return file, file.footer[SCHEMA][1][1]


def with_schema(path: Path, made: list[Struct]) -> None:
    """Give a file another schema of the same columns: below the root, in its order."""
    file, found = elements(path)
    leaves = [number for number, fields in enumerate(made) if CHILDREN not in fields]
    paths: list[list[bytes]] = []

    def walk(at: int, above: list[bytes]) -> int:
        here = [*above, made[at][NAME][1]]
        if at in leaves:
            paths.append(here)
            return at + 1
        behind = at + 1
        for _ in range(made[at][CHILDREN][1]):
            behind = walk(behind, here)
        return behind

    at = roots = 0
    while at < len(made):
        at, roots = walk(at, []), roots + 1
    root = {**found[0], CHILDREN: (NUMBER, roots)}
    file.footer[SCHEMA] = (LIST, (STRUCT, [root, *made]))
    for number in range(len(file.footer[4][1][1])):
        for column, path_of in enumerate(paths):
            file.metadata(column, number)[3] = (LIST, (TEXT, path_of))
    file.write()


def annotate(
    path: Path, column: str, *, converted: int | None = None, logical: int | None = None
) -> None:
    """Give the element of this name another type in place of its own."""
    file, found = elements(path)
    fields = next(fields for fields in found if fields[NAME][1] == column.encode())
    fields.pop(CONVERTED, None)
    fields.pop(LOGICAL, None)
    if converted is not None:
        fields[CONVERTED] = (NUMBER, converted)
    if logical is not None:
        fields[LOGICAL] = (STRUCT, {logical: (STRUCT, {})})
    file.write()


def written(path: Path, table: pa.Table, **options: Any) -> Path:
    """A file without pyarrow's note of the types that it had."""
    pq.write_table(table, path, store_schema=False, **options)
    return path
