"""Metrics per worker, with the field names of torch-dataloader-utils."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tensorquery.loading.epoch_progress import Progress
from tensorquery.metrics.counters import SharedCounters

__all__ = ["EpochSummary", "RowBar", "WorkerMetrics", "summary_of"]

_LOG = logging.getLogger("tensorquery.compat")
MOST_WORKERS = 1024


@dataclass
class WorkerMetrics:
    """Metrics of one worker in an epoch.

    Attributes:
        worker_id: The worker's number; 0 is the training process where there are no workers.
        rows_read: Rows delivered, after filters.
        batches_read: Batches delivered.
        bytes_read: Bytes read of storage, measured.
        files_read: Files that it has read at least in part.
        elapsed_sec: Seconds from the first batch that was asked for to the last one delivered.
    """

    worker_id: int
    rows_read: int = 0
    batches_read: int = 0
    bytes_read: int = 0
    files_read: int = 0
    elapsed_sec: float = 0.0


@dataclass
class EpochSummary:
    """The metrics of all workers of an epoch.

    Attributes:
        epoch: The epoch.
        workers: Their metrics.
    """

    epoch: int
    workers: list[WorkerMetrics] = field(default_factory=list)

    @property
    def total_rows(self) -> int:
        """Rows of all workers."""
        return sum(worker.rows_read for worker in self.workers)

    @property
    def total_bytes(self) -> int:
        """Bytes of all workers."""
        return sum(worker.bytes_read for worker in self.workers)

    @property
    def total_batches(self) -> int:
        """Batches of all workers."""
        return sum(worker.batches_read for worker in self.workers)

    @property
    def elapsed_sec(self) -> float:
        """Seconds of the slowest worker."""
        return max((worker.elapsed_sec for worker in self.workers), default=0.0)

    @property
    def rows_per_sec(self) -> float:
        """Rows of all workers per second of the slowest one."""
        return self.total_rows / self.elapsed_sec if self.elapsed_sec > 0 else 0.0

    def log(self) -> None:
        """Log it at INFO, with ``event="epoch_done"`` and the numbers as extra fields."""
        numbers = {
            "epoch": self.epoch,
            "workers": len(self.workers),
            "total_rows": self.total_rows,
            "total_bytes": self.total_bytes,
            "elapsed_sec": self.elapsed_sec,
            "rows_per_sec": self.rows_per_sec,
        }
        _LOG.info(
            "epoch %(epoch)d: %(workers)d worker(s), %(total_rows)d rows, %(total_bytes)d bytes read, "
            "%(elapsed_sec).1f s, %(rows_per_sec).0f rows/s",
            numbers,
            extra={"event": "epoch_done", **numbers},
        )


def summary_of(measures: SharedCounters) -> EpochSummary:
    """The counts of workers that have ended."""
    workers, last = [], 0
    for worker, (epoch, counts) in measures.ended().items():
        last = epoch
        workers.append(
            WorkerMetrics(
                worker,
                rows_read=int(counts["rows"]),
                batches_read=int(counts["batches"]),
                bytes_read=int(counts["bytes_read"]),
                files_read=int(counts["files"]),
                elapsed_sec=counts["elapsed_seconds"],
            )
        )
    return EpochSummary(last, workers)


class RowBar:
    """A bar over the rows of a shard while it is read.

    Args:
        make: Makes it when reading starts; None where none is wanted.
    """

    def __init__(self, make: Callable[[Progress], Any | None]) -> None:
        self._make = make
        self._bar: Any | None = None

    def begin(self, progress: Progress) -> None:
        """Reading starts."""
        self._bar = self._make(progress)

    def delivered(self, rows: int) -> None:
        """A batch is handed out next, and with it so many rows in all."""
        if self._bar is not None:
            self._bar.update(rows - self._bar.n)

    def close(self) -> None:
        """The iterator is closed."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
