"""Metrics per worker, with the field names of torch-dataloader-utils."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tensorquery.errors import ConfigError
from tensorquery.loading.iterator import Progress, ShardIterator
from tensorquery.metrics.counters import Measures

if TYPE_CHECKING:
    from tensorquery import _core
    from tensorquery.compat.base import CompatDataset

__all__ = ["EpochSummary", "MeasuredIterator", "WorkerMetrics", "summary_of"]

_LOG = logging.getLogger("tensorquery.compat")
MOST_WORKERS = 1024


@dataclass
class WorkerMetrics:
    """What one worker has read in an epoch.

    Attributes:
        worker_id: The worker's number; 0 is the training process where there are no workers.
        rows_read: Rows delivered, after filters.
        batches_read: Batches delivered.
        bytes_read: Bytes read of storage, measured.
        files_read: Files of which it has read something.
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


def summary_of(measures: Measures) -> EpochSummary:
    """What the workers have written down that have ended."""
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


class MeasuredIterator(ShardIterator):
    """The batches of one shard, with a bar where that is wanted."""

    _dataset: CompatDataset

    def __init__(
        self, dataset: CompatDataset, progress: Progress, worker: int, in_loader: bool
    ) -> None:
        if worker >= MOST_WORKERS:
            raise ConfigError(f"num_workers is more than {MOST_WORKERS}, of which metrics are kept")
        super().__init__(dataset, progress, worker, in_loader)
        self._bar: Any | None = None

    def __next__(self) -> Any:
        if self._stream is None and not self.closed:
            self._bar = self._dataset._progress_bar(self._worker, self._shards())
        batch = super().__next__()
        if self._bar is not None:
            self._bar.update(int(self.metrics()["rows"]) - self._bar.n)
        return batch

    def close(self) -> None:
        """Stop reading; nothing where it is closed already."""
        super().close()
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _shards(self) -> _core.Shards:
        progress = self._progress
        return self._dataset._epochs.shards(progress.workers or 0, progress.epoch, progress.parents)
