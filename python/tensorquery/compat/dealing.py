"""A strategy of torch-dataloader-utils as one of tensorquery: from its files and row ranges to planned splits."""

from __future__ import annotations

import inspect
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from tensorquery.compat.splits import DataFileInfo, Shard
from tensorquery.compat.splits import Split as FilePart
from tensorquery.errors import ConfigError
from tensorquery.sharding.shards import Split

__all__ = ["FileStrategy", "takes_ranks"]

_END = 2**63


def takes_ranks(strategy: Any) -> bool:
    """Whether a strategy's `generate` has five arguments: it then deals to one rank at a time.

    Args:
        strategy: Any object with `generate`.

    Returns:
        Whether one of the parameters is called ``num_ranks``.
    """
    return "num_ranks" in inspect.signature(strategy.generate).parameters


class FileStrategy:
    """Asks a strategy that deals files, and deals planned splits as it says.

    A planned split is a row group or stripe here. One that several ranges of the answer touch is read once, with the
    first of them.

    Args:
        strategy: Any object with a three- or five-argument `generate`.
        files: The files that it has to deal.
        paths: The paths of these files in the plan, by their own.
        num_ranks: Number of ranks.

    Raises:
        ConfigError: `strategy` has no method `generate`.
    """

    def __init__(
        self,
        strategy: Any,
        files: Sequence[DataFileInfo],
        paths: dict[str, str],
        num_ranks: int,
    ) -> None:
        if not callable(getattr(strategy, "generate", None)):
            raise ConfigError(
                f"split_strategy={strategy!r} must be None or an object with generate(files, num_workers, epoch) or "
                "generate(files, num_workers, epoch, num_ranks, rank)"
            )
        self.strategy = strategy
        self._files = list(files)
        self._paths = paths
        self._num_ranks = num_ranks
        # Workers are given what the training process has asked: a strategy need not answer the same twice.
        self._answers: dict[tuple[int, int], list[list[int]]] = {}

    def generate(self, splits: Sequence[Split], num_shards: int, epoch: int) -> list[list[Split]]:
        """Deal planned splits; see `tensorquery.SplitStrategy`.

        Args:
            splits: All splits of the plan.
            num_shards: Ranks times workers.
            epoch: The epoch.

        Returns:
            `num_shards` lists that together hold every split once.

        Raises:
            ConfigError: The strategy's answer leaves out rows or deals them twice; names the file.
        """
        key = (num_shards, epoch)
        if key not in self._answers:
            shards = self._ask(num_shards, epoch)
            # One epoch is read, and a state may need the one before.
            self._answers = dict([*self._answers.items(), (key, self._match(splits, shards))][-2:])
        return [[splits[id] for id in shard] for shard in self._answers[key]]

    @property
    def _name(self) -> str:
        return f"{type(self.strategy).__name__}.generate"

    def _ask(self, num_shards: int, epoch: int) -> list[Shard]:
        """The shards of all workers of all ranks."""
        workers = num_shards // self._num_ranks
        if not takes_ranks(self.strategy):
            return self._asked(num_shards, epoch, {})
        return [
            shard
            for rank in range(self._num_ranks)
            for shard in self._asked(workers, epoch, {"num_ranks": self._num_ranks, "rank": rank})
        ]

    def _asked(self, workers: int, epoch: int, place: dict[str, int]) -> list[Shard]:
        answer = self.strategy.generate(
            list(self._files), num_workers=workers, epoch=epoch, **place
        )
        if not isinstance(answer, list | tuple) or not all(
            isinstance(getattr(shard, "splits", None), list | tuple) for shard in answer
        ):
            raise ConfigError(
                f"{self._name} must return a list of Shard, got {answer!r:.200}; write "
                "Shard(id=0, splits=[Split(file=…)])"
            )
        if len(answer) > workers:
            raise ConfigError(
                f"{self._name} returned {len(answer)} shards for {workers} workers; nobody would read "
                "the shards beyond these, so return as many as num_workers says"
            )
        return [*answer, *(Shard(number) for number in range(len(answer), workers))]

    def _match(self, splits: Sequence[Split], shards: Sequence[Shard]) -> list[list[int]]:
        """The ids of planned splits by shard."""
        self._check_rows(shards)
        left: dict[str, dict[int, Split]] = defaultdict(dict)
        for split in splits:
            left[split.path][split.id] = split
        dealt = [
            [id for part in shard.splits for id in self._take(left[self._path_of(part)], part)]
            for shard in shards
        ]
        for path, missed in left.items():
            if missed:
                first = next(iter(missed.values()))
                raise ConfigError(
                    f"{self._name} left out {first.unit} of {path}; every file is read once in an epoch, so give each to a "
                    "shard, and leave out rows by path= or filters="
                )
        return dealt

    def _path_of(self, part: FilePart) -> str:
        given = getattr(getattr(part, "file", None), "path", None)
        if given not in self._paths:
            raise ConfigError(
                f"{self._name} returned a Split of {given!r}, which is none of the {len(self._paths)} files that it was "
                "given"
            )
        return self._paths[given]

    def _check_rows(self, shards: Sequence[Shard]) -> None:
        """Refuse rows that are dealt twice."""
        seen: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for shard in shards:
            for part in shard.splits:
                rows, path = part.row_range, self._path_of(part)
                first, last = (
                    (0, _END) if rows is None else (rows.offset, rows.offset + rows.length)
                )
                if first < 0 or last <= first:
                    raise ConfigError(
                        f"{self._name} returned {rows!r} of {path}, which holds no row"
                    )
                at = bisect_left(seen[path], (first, last))
                beside = [*seen[path][max(0, at - 1) : at + 1]]
                if any(start < last and first < stop for start, stop in beside):
                    raise ConfigError(
                        f"{self._name} deals rows of {path} twice ({rows or 'the whole file'} and others); every row is "
                        "read once in an epoch. To draw rows more often, use sample_weight= of tensorquery.create_dataloader"
                    )
                seen[path].insert(at, (first, last))

    def _take(self, left: dict[int, Split], part: FilePart) -> list[int]:
        """The splits of a file that a part of the answer holds, without splits that somebody has already."""
        if part.row_range is None:
            taken = list(left)
        else:
            first = part.row_range.offset
            last = first + part.row_range.length
            taken = []
            for id, split in left.items():
                if split.row_range is None:
                    raise ConfigError(
                        f"{self._name} returned {part.row_range!r} of {split.path}, whose format does not say where its rows "
                        "lie; deal it whole: Split(file, row_range=None)"
                    )
                start, rows = split.row_range
                if start < last and first < start + rows:
                    taken.append(id)
        for id in taken:
            del left[id]
        return taken
