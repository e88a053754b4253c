"""Sizes of Parquet files, from their footers: the bytes that every reader must read."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import data
import pyarrow.parquet as pq


def warm_file() -> str:
    """A small file, loaded before bytes are counted: what is imported with the first loader is none of them."""
    return str(min(data.many(1_000).glob("*.parquet")))


def files_of(path: Path) -> list[Path]:
    """A file itself, or the files of a folder."""
    return sorted(path.glob("*.parquet")) if path.is_dir() else [path]


def file_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in files_of(path))


def footer_bytes(path: Path) -> int:
    """Bytes of the footers, the length and the magic number behind each included; page indexes are not in it."""
    total = 0
    for file in files_of(path):
        with file.open("rb") as opened:
            opened.seek(-8, 2)
            total += struct.unpack("<I", opened.read(4))[0] + 8
    return total


def chunk_bytes(path: Path, columns: Collection[str]) -> int:
    """Compressed bytes of some columns."""
    return sum(
        chunk.total_compressed_size
        for group in _row_groups(path)
        for chunk in _chunks(group)
        if chunk.path_in_schema in columns
    )


def touched_bytes(path: Path, column: str, low: int, high: int) -> int:
    """Compressed bytes of the row groups whose statistics do not rule the range out."""
    total = 0
    for group in _row_groups(path):
        [bounds] = [chunk.statistics for chunk in _chunks(group) if chunk.path_in_schema == column]
        if bounds.min <= high and bounds.max >= low:
            total += sum(chunk.total_compressed_size for chunk in _chunks(group))
    return total


def _row_groups(path: Path) -> Iterator[Any]:
    for file in files_of(path):
        metadata = pq.read_metadata(file)
        yield from (metadata.row_group(number) for number in range(metadata.num_row_groups))


def _chunks(group: Any) -> Iterator[Any]:
    return (group.column(number) for number in range(group.num_columns))
