"""The rows of batches, found by dealing again: nothing is read and nothing before them is simulated."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from tensorquery._util.arrow_c import import_pyarrow
from tensorquery.errors import ConfigError, DataError

if TYPE_CHECKING:
    from tensorquery import _core
    from tensorquery.sharding.epochs import Epochs
    from tensorquery.sharding.left import Left

__all__ = ["Batch", "Dealt", "Share"]


class Share(NamedTuple):
    """Which rank of which run is meant, in one epoch."""

    epoch: int
    rank: int
    workers: int
    """Worker processes per rank."""
    left: Left | None
    """What was left of the epoch when its run began; None: all."""


class Batch(NamedTuple):
    """The rows of one batch, in its order."""

    step: int
    worker: int
    splits: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    """Output rows, each of its split."""
    fresh: int
    """So many of the first rows are no repeated ones (``remainder="pad"``)."""


class Dealt:
    """Deals the rows of a plan again, and says which of them are in a batch.

    Rows are counted where that was not done before, also where delivering them needs no count.

    Args:
        plan: The plan, with all its splits.
        epochs: Deals its rows.
        permuted: Whether an epoch is an order of single rows.
        drawn_from: Where rows are drawn by weight: gives the stage once rows are counted.
        count: Counts the output rows of every split.
    """

    def __init__(
        self,
        plan: _core.Plan,
        epochs: Epochs,
        *,
        permuted: bool,
        drawn_from: Callable[[], _core.Stage | None] | None = None,
        count: Callable[[], Sequence[int]],
    ) -> None:
        self._plan = plan
        self._epochs = epochs
        self._permuted = permuted
        self._drawn_from = drawn_from
        self._dealt = epochs.count()
        self.counts = list(count() if permuted else self._dealt)
        """Output rows of every split."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return int(self._epochs.layout(0)["world_size"])

    @property
    def remainder(self) -> str:
        """The policy for rows that ranks and batches do not divide."""
        return str(self._epochs.layout(0)["remainder"])

    @property
    def batch_size(self) -> int:
        """Rows per batch."""
        return int(self._epochs.layout(0)["batch_size"])

    def steps(self, share: Share) -> int:
        """Batches of a rank in the epoch, or in what is left of it."""
        return sum(self._sizes(self._shards(share), share))

    def batches(self, share: Share, first: int, last: int) -> Iterator[Batch]:
        """The batches of some steps, in their order.

        Raises:
            ConfigError: There is no such step; names how many there are.
        """
        shards = self._shards(share)
        sizes = self._sizes(shards, share)
        total = sum(sizes)
        if not 0 <= first < last <= total:
            wrong = first if not 0 <= first < total else max(last - 1, total)
            bounds = f"in 0..{total}" if total else "a step, and there is none"
            raise ConfigError(
                f"step {wrong} must be {bounds}: rank {share.rank} delivers {total} batches in epoch "
                f"{share.epoch}{' after the resume' if share.left is not None else ''}"
            )
        streams: dict[int, _core.BatchStream] = {}
        try:
            for step, (worker, batch) in enumerate(_turns(sizes, first, last), first):
                if worker not in streams:
                    # The cursor of a step follows from the counts.
                    cursor = shards.cursor_at(share.rank, worker, batch)
                    streams[worker] = self._plan.positions(
                        shards, share.rank, worker, cursor, self._lengths(share)
                    )
                found = streams[worker].next()
                if found is None:
                    raise DataError(
                        f"rank {share.rank} ended before step {step}; please report it with the query"
                    )
                columns = import_pyarrow().record_batch(found)
                splits, rows = (
                    column.to_numpy(zero_copy_only=False).astype(np.int64) for column in columns
                )
                if self._permuted:
                    splits, rows = self._unpermuted(shards, splits, rows)
                own, fresh = shards.rows(share.rank, worker), len(rows)
                layout = self._epochs.layout(share.workers)
                if layout["remainder"] == "pad" and own is not None:
                    # Repeated rows come last.
                    fresh = min(fresh, max(0, own - batch * layout["batch_size"]))
                yield Batch(step, worker, splits, rows, fresh)
        finally:
            for stream in streams.values():
                stream.close()

    def rows_of_shards(
        self, share: Share, rows: Sequence[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        """Split and output row of single rows, by worker and number in its shard; shards have one lane, as refilled ones have."""
        shards, positions = self._shards(share), []
        for worker, row in rows:
            cursor = shards.cursor_after(share.rank, worker, 0, row)
            stream = self._plan.positions(
                shards, share.rank, worker, cursor, self._lengths(share), refills=True
            )
            found = stream.next()
            stream.close()
            assert found is not None, "the row was read before"
            columns = import_pyarrow().record_batch(found)
            splits, numbers = (
                column.slice(0, 1).to_numpy(zero_copy_only=False).astype(np.int64)
                for column in columns
            )
            if self._permuted:
                splits, numbers = self._unpermuted(shards, splits, numbers)
            positions.append((int(splits[0]), int(numbers[0])))
        return positions

    def _shards(self, share: Share) -> _core.Shards:
        return self._epochs.all_shards(share.workers, share.epoch, share.left)

    @staticmethod
    def _sizes(shards: _core.Shards, share: Share) -> list[int]:
        """Batches of each worker."""
        return [shards.size(share.rank, worker)[0] or 0 for worker in range(max(1, share.workers))]

    def _lengths(self, share: Share) -> list[int]:
        """Rows of the pieces that shards consist of."""
        if not self._permuted:
            return self.counts
        run, total = self._epochs.layout(share.workers)["permuted"], sum(self._dealt)
        return [min(run, total - start) for start in range(0, total, run)]

    def _unpermuted(
        self, shards: _core.Shards, runs: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """From positions in an order of single rows to rows of splits."""
        stage = None if self._drawn_from is None else self._drawn_from()
        staged = sum(self._dealt) if stage is None else stage.num_rows
        starts = np.array([0, *itertools.accumulate(self.counts)], dtype=np.int64)
        if starts[-1] != staged:
            raise DataError(
                f"the splits have {starts[-1]} rows, and {staged} were staged; delete the stage, and it is made again"
            )
        positions = list(zip(runs.tolist(), rows.tolist(), strict=True))
        numbers = np.array(shards.permuted(positions, staged, stage), dtype=np.int64)
        splits = np.searchsorted(starts, numbers, side="right") - 1
        return splits, numbers - starts[splits]


def _turns(sizes: Sequence[int], first: int, last: int) -> Iterator[tuple[int, int]]:
    """Worker and number of its batch for each step: workers take turns, and who has nothing left is passed over.

    >>> list(_turns([3, 1], 0, 4))
    [(0, 0), (1, 0), (0, 1), (0, 2)]
    >>> list(_turns([3, 1], 2, 3))
    [(0, 1)]
    """

    # As many whole rounds as fit before the first step.
    def before(rounds: int) -> int:
        return sum(min(size, rounds) for size in sizes)

    rounds = bisect_right(range(max(sizes) + 1), first, key=before) - 1
    skipped = first - before(rounds)
    turns = (
        (worker, batch)
        for batch in range(rounds, max(sizes))
        for worker, size in enumerate(sizes)
        if batch < size
    )
    return itertools.islice(turns, skipped, skipped + last - first)
