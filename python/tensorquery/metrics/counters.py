"""Counters of iterators, in memory that the training process shares with its workers.

A worker writes its row now and then, and with its last batch before it sends that: who has received an epoch
finds the counts of all of it. Nobody waits for anybody, and no message is sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorquery._util.shared_memory import SharedNumbers

__all__ = ["CORE_COUNTS", "SharedCounters"]

CORE_COUNTS = (
    "rows", "batches", "padded_rows", "splits", "files", "split_share", "buffered_rows", "elapsed_seconds", "wait_seconds",
    "decode_seconds", "convert_seconds", "bytes_read", "requests", "retries", "throttled", "request_wait_seconds", "cache_hits",
    "cache_bytes",
)  # fmt: skip
"""The counts of every process that reads; see `Metrics` for units."""

_HEAD = ("iteration", "ended", "epoch", "sent_rows")
_ITERATION, _ENDED, _EPOCH, _SENT = range(len(_HEAD))
_COLUMNS = len(_HEAD) + len(CORE_COUNTS)


class SharedCounters:
    """A row of counts for each worker.

    Args:
        workers: How many there may be.

    Attributes:
        workers: The same.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        # The last row holds values for all of them: the iteration that was begun last, and a mark.
        self._numbers = SharedNumbers((workers + 1) * _COLUMNS, "float64")
        # The iteration for which a worker process was made: one that starts late must not write into a newer one.
        self._made_for: float | None = None

    def begin(self) -> int:
        """Begin an iteration in the training process, and return its number."""
        table = self._rows()
        table[-1, _ITERATION] += 1
        self._made_for = float(table[-1, _ITERATION])
        return int(self._made_for)

    def joined(self) -> float:
        """Set the iteration for which this process writes from now on; the first one is given when it is made."""
        made_for, self._made_for = self._made_for, None
        return float(self._rows()[-1, _ITERATION]) if made_for is None else made_for

    def record(
        self,
        worker: int,
        iteration: float,
        epoch: int,
        counts: Mapping[str, float],
        *,
        ended: bool,
    ) -> None:
        """Write down what a worker has counted so far.

        Args:
            worker: The worker.
            iteration: What `joined` said.
            epoch: The epoch.
            counts: At least the counts of `CORE_COUNTS`.
            ended: Whether it has delivered its last batch, or was closed.
        """
        row = self._rows()[worker]
        sent = row[_SENT] if row[_ITERATION] == iteration else 0.0
        row[:] = [iteration, ended, epoch, sent, *(counts[name] for name in CORE_COUNTS)]

    def sent(self, worker: int, rows: int) -> None:
        """A worker has so many rows ready for its loader since it began."""
        self._rows()[worker, _SENT] = rows

    def of(self, iteration: int, workers: int) -> list[dict[str, float]]:
        """The counts of each of so many workers in an iteration; zeros where it has written nothing yet."""
        found = []
        for row in self._rows()[:workers].tolist():
            counts = dict.fromkeys(CORE_COUNTS, 0.0)
            if row[_ITERATION] == iteration:
                counts = dict(zip(CORE_COUNTS, row[len(_HEAD) :], strict=True))
                # The newer one of two numbers that are the same in the end.
                counts["rows"] = max(counts["rows"], row[_SENT])
            found.append(counts)
        return found

    def ended(self) -> dict[int, tuple[int, dict[str, float]]]:
        """Epoch and counts of each worker that has ended since `forget`."""
        return {
            worker: (int(row[_EPOCH]), dict(zip(CORE_COUNTS, row[len(_HEAD) :], strict=True)))
            for worker, row in enumerate(self._rows()[:-1].tolist())
            if row[_ENDED]
        }

    def forget(self) -> None:
        """Forget who has ended."""
        self._rows()[:-1, _ENDED] = 0.0

    @property
    def mark(self) -> bool:
        """A mark that any process may set, and all see."""
        return bool(self._rows()[-1, _ENDED])

    @mark.setter
    def mark(self, value: bool) -> None:
        self._rows()[-1, _ENDED] = float(value)

    def _rows(self) -> Any:
        return self._numbers.array.reshape(self.workers + 1, _COLUMNS)
