"""The three strategies of torch-dataloader-utils."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath
from typing import TypeVar

from tensorquery._util.options import check_non_negative_int, check_positive_int, parse_bytes
from tensorquery.compat.splits import DataFileInfo, RowRange, Shard, Split
from tensorquery.errors import ConfigError
from tensorquery.sharding.shards import DEFAULT_SPLIT_BYTES
from tensorquery.sql.session import Session

__all__ = ["RoundRobinSplitStrategy", "SizeBalancedSplitStrategy", "TargetSizeSplitStrategy"]

_T = TypeVar("_T")


class RoundRobinSplitStrategy:
    """Deals whole files in turn: for files of one size.

    Args:
        shuffle: Whether files are permuted in each epoch.
        seed: The seed of that permutation; the epoch is added to it.

    Examples:
        >>> files = [DataFileInfo(f"{name}.parquet") for name in "abc"]
        >>> [[split.file.path for split in shard.splits] for shard in RoundRobinSplitStrategy().generate(files, 2)]
        [['a.parquet', 'c.parquet'], ['b.parquet']]
    """

    def __init__(self, shuffle: bool = False, seed: int = 42) -> None:
        self.shuffle = shuffle
        self.seed = seed

    def generate(
        self,
        files: list[DataFileInfo],
        num_workers: int,
        epoch: int = 0,
        num_ranks: int = 1,
        rank: int = 0,
    ) -> list[Shard]:
        """Deal files to the workers of a rank.

        Args:
            files: All files.
            num_workers: Workers of the rank.
            epoch: The epoch.
            num_ranks: Number of ranks, each of which gets every `num_ranks`-th file.
            rank: The rank.

        Returns:
            A shard per worker.

        Raises:
            ConfigError: A number is out of range.
        """
        check_place(num_workers, num_ranks, rank)
        mine = permuted(files, self.shuffle, self.seed + epoch)[rank::num_ranks]
        return [
            Shard(worker, [Split(file) for file in mine[worker::num_workers]])
            for worker in range(num_workers)
        ]


class SizeBalancedSplitStrategy:
    """Deals whole files, the largest first, each to the worker that has least: by rows where all say them, else by bytes.

    Args:
        shuffle: Whether files of the same size are permuted in each epoch.
        seed: The seed of that permutation; the epoch is added to it.
    """

    def __init__(self, shuffle: bool = False, seed: int = 42) -> None:
        self.shuffle = shuffle
        self.seed = seed

    def generate(
        self,
        files: list[DataFileInfo],
        num_workers: int,
        epoch: int = 0,
        num_ranks: int = 1,
        rank: int = 0,
    ) -> list[Shard]:
        """Deal files to the workers of a rank.

        Args:
            files: All files.
            num_workers: Workers of the rank.
            epoch: The epoch.
            num_ranks: Number of ranks; files are balanced over the workers of all of them.
            rank: The rank.

        Returns:
            A shard per worker.

        Raises:
            ConfigError: A number is out of range.
        """
        check_place(num_workers, num_ranks, rank)
        counted = all(file.record_count is not None for file in files)

        def weight(split: Split) -> int:
            known = split.file.record_count if counted else split.file.file_size
            # Files of unknown size are dealt in turn.
            return 1 if known is None else known

        splits = [Split(file) for file in permuted(files, self.shuffle, self.seed + epoch)]
        splits.sort(key=weight, reverse=True)
        shards = to_the_least_loaded(splits, num_workers * num_ranks, weight)
        mine = shards[rank * num_workers : (rank + 1) * num_workers]
        return [Shard(worker, shard) for worker, shard in enumerate(mine)]


class TargetSizeSplitStrategy:
    """Cuts files into row groups or stripes of about one size, and deals these; the default strategy.

    As ``split_strategy=`` it is not called: its sizes, `shuffle` and `seed` become those of the dataset, which cuts
    and deals by itself.

    Args:
        target_bytes: Stored bytes that a part grows towards, as an int or a string such as "128MiB".
        target_rows: Rows that a part grows towards; takes precedence.
        shuffle: Whether parts are permuted in each epoch.
        seed: The seed of that permutation.

    Raises:
        ConfigError: A size is malformed.
    """

    def __init__(
        self,
        target_bytes: int | str = DEFAULT_SPLIT_BYTES,
        target_rows: int | None = None,
        shuffle: bool = False,
        seed: int = 42,
    ) -> None:
        self.target_bytes = parse_bytes(target_bytes, "target_bytes")
        if target_rows is not None:
            target_rows = check_positive_int("target_rows", target_rows)
        self.target_rows = target_rows
        self.shuffle = shuffle
        self.seed = seed

    def generate(
        self,
        files: list[DataFileInfo],
        num_workers: int,
        epoch: int = 0,
        num_ranks: int = 1,
        rank: int = 0,
    ) -> list[Shard]:
        """Cut files and deal the parts to the workers of a rank.

        Args:
            files: All files. Footers are read for names that end in ``.parquet`` or ``.orc``; other files stay whole.
            num_workers: Workers of the rank.
            epoch: The epoch.
            num_ranks: Number of ranks, each of which gets every `num_ranks`-th part.
            rank: The rank.

        Returns:
            A shard per worker.

        Raises:
            ConfigError: A number is out of range.
            DataError: A footer is damaged.
            TableNotFoundError: A file is gone.
        """
        check_place(num_workers, num_ranks, rank)
        parts = [part for file in files for part in self._parts(file)]
        if self.shuffle:
            parts = permuted(parts, True, self.seed + epoch)
        else:
            parts.sort(key=_rows_or_bytes, reverse=True)
        shards = to_the_least_loaded(parts[rank::num_ranks], num_workers, _rows_or_bytes)
        return [Shard(worker, shard) for worker, shard in enumerate(shards)]

    def _parts(self, file: DataFileInfo) -> list[Split]:
        ending = PurePosixPath(file.path).suffix.lower()
        if ending not in (".parquet", ".orc"):
            return [Split(file)]
        session = Session()
        if ending == ".orc":
            session.register_orc("file", file.path)
        else:
            session.register_parquet("file", file.path)
        plan = session.table("file").plan_shards(
            split_bytes=self.target_bytes, split_rows=self.target_rows
        )
        ranges = [part.row_range for part in plan.splits()]
        return [Split(file, RowRange(*rows)) if rows else Split(file) for rows in ranges] or [
            Split(file)
        ]


def _rows_or_bytes(part: Split) -> int:
    if part.row_range is not None:
        return part.row_range.length
    return part.file.record_count or part.file.file_size or 1


def permuted(things: Sequence[_T], shuffle: bool, seed: int) -> list[_T]:
    """The things, in another order where that is wanted."""
    found = list(things)
    if shuffle:
        random.Random(seed).shuffle(found)
    return found


def to_the_least_loaded(
    splits: Sequence[Split], num_shards: int, weight: Callable[[Split], int]
) -> list[list[Split]]:
    """One after the other to the shard that has least; of several such shards to the first."""
    shards: list[list[Split]] = [[] for _ in range(num_shards)]
    loads = [(0, number) for number in range(num_shards)]
    for split in splits:
        load, number = loads[0]
        shards[number].append(split)
        heapq.heapreplace(loads, (load + weight(split), number))
    return shards


def check_place(num_workers: int, num_ranks: int, rank: int) -> None:
    """Refuse an impossible rank or number of ranks.

    Args:
        num_workers: Workers per rank.
        num_ranks: Number of ranks.
        rank: The rank.

    Raises:
        ConfigError: A number is out of range.
    """
    check_positive_int("num_workers", num_workers)
    check_positive_int("num_ranks", num_ranks)
    if check_non_negative_int("rank", rank) >= num_ranks:
        raise ConfigError(f"rank={rank} must be in 0..{num_ranks} (num_ranks={num_ranks})")
