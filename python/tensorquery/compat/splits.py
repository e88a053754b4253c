"""Files, splits and shards as torch-dataloader-utils names them: the arguments and results of its strategies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

__all__ = [
    "DataFileInfo",
    "FileSplit",
    "IcebergDataFileInfo",
    "RowRange",
    "Shard",
    "Split",
    "SplitStrategy",
]


@dataclass
class DataFileInfo:
    """A file, as a strategy sees it.

    Attributes:
        path: Its path or URL.
        file_size: Its size in bytes; None where it is not known.
        record_count: Its rows; None for plain files.
    """

    path: str
    file_size: int | None = None
    record_count: int | None = None


@dataclass
class IcebergDataFileInfo(DataFileInfo):
    """A data file of an Iceberg table.

    Attributes:
        path: Its path or URL.
        file_size: Its size in bytes.
        record_count: Its rows, without row groups that filters leave out.
        partition: The values of its identity partitions, as text; None without any.
        snapshot_id: The snapshot that is read.
    """

    partition: dict[str, str] | None = None
    snapshot_id: int | None = None


@dataclass
class RowRange:
    """Rows of a file, before any filter.

    Attributes:
        offset: The first row, counted from the start of the file.
        length: Number of rows.
    """

    offset: int
    length: int


@dataclass
class Split:
    """A file, or some rows of it, that one worker reads at a time.

    Attributes:
        file: The file.
        row_range: Its rows; None is all of them.
    """

    file: DataFileInfo
    row_range: RowRange | None = None


FileSplit = Split
"""The name of `Split` in the README of torch-dataloader-utils."""


@dataclass
class Shard:
    """The splits of one worker, in the order in which it reads them.

    Attributes:
        id: The worker's number. Only the shard's place in the list that a strategy returns counts.
        splits: The files, or parts of files.
        row_count: Rows, where a strategy says them; for its users alone.
        size_bytes: Bytes, where a strategy says them; for its users alone.
    """

    id: int
    splits: list[Split] = field(default_factory=list)
    row_count: int | None = None
    size_bytes: int | None = None


class SplitStrategy(Protocol):
    """A strategy that deals files to workers: any object with such a method.

    One without the parameters `num_ranks` and `rank` will do as well: it is then asked for the shards of the workers
    of all ranks together, so that no two ranks read the same file. Each rank asks by itself, so the answer over several ranks must
    follow from the arguments alone.
    """

    def generate(
        self,
        files: list[DataFileInfo],
        num_workers: int,
        epoch: int = 0,
        num_ranks: int = 1,
        rank: int = 0,
    ) -> list[Shard]:
        """Deal the files of one epoch.

        Args:
            files: All files.
            num_workers: Workers to deal to, at least 1.
            epoch: The epoch.
            num_ranks: Number of ranks.
            rank: The rank whose shards are asked for.

        Returns:
            At most `num_workers` shards. Those of all ranks hold every row of every file once.
        """
        ...
