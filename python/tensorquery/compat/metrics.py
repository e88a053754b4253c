"""Metrics per worker, with the field names of torch-dataloader-utils."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from tensorquery.errors import ConfigError
from tensorquery.iterator import Progress, ShardIterator

if TYPE_CHECKING:
    from tensorquery import _core
    from tensorquery.compat.base import CompatDataset

__all__ = ["EpochSummary", "MeasuredIterator", "Measures", "WorkerMetrics"]

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
        files_read: Files of its share, the whole of them or a part; also where an iteration was broken off.
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


_COLUMNS = ("known", "epoch", "rows", "batches", "bytes_read", "files", "elapsed")


class Measures:
    """The workers' counts in shared memory, a row per worker: what they say is there before their last batch is."""

    def __init__(self) -> None:
        # The last row is for what holds for all of them.
        self._rows = torch.zeros((MOST_WORKERS + 1, len(_COLUMNS)), dtype=torch.float64)
        self._rows.share_memory_()  # type: ignore[no-untyped-call]

    def record(self, worker: int, epoch: int, counts: dict[str, float]) -> None:
        """Write down what a worker has read so far.

        Args:
            worker: The worker.
            epoch: The epoch.
            counts: The core's metrics, and those of `MeasuredIterator`.
        """
        found = [1.0, epoch, *(counts[name] for name in _COLUMNS[2:])]
        self._rows[worker] = torch.tensor(found, dtype=torch.float64)

    def summary(self) -> EpochSummary:
        """What all workers have written down."""
        known = torch.nonzero(self._rows[:MOST_WORKERS, 0]).flatten().tolist()
        workers = []
        epoch = 0
        for worker in known:
            _, epoch, rows, batches, size, files, elapsed = self._rows[worker].tolist()
            workers.append(
                WorkerMetrics(worker, int(rows), int(batches), int(size), int(files), elapsed)
            )
        return EpochSummary(int(epoch), workers)

    def clear(self) -> None:
        """Forget all of it."""
        self._rows[:MOST_WORKERS] = 0

    @property
    def is_foreign(self) -> bool:
        """Whether the workers of a DataLoader of the user's have read, of which the training process knows nothing."""
        return bool(self._rows[MOST_WORKERS, 0])

    @is_foreign.setter
    def is_foreign(self, value: bool) -> None:
        self._rows[MOST_WORKERS, 0] = float(value)


class MeasuredIterator(ShardIterator):
    """The batches of one shard, which says how many it has delivered, and shows a bar where that is wanted."""

    _dataset: CompatDataset

    def __init__(
        self, dataset: CompatDataset, progress: Progress, worker: int, in_loader: bool
    ) -> None:
        if worker >= MOST_WORKERS:
            raise ConfigError(f"num_workers is more than {MOST_WORKERS}, of which metrics are kept")
        super().__init__(dataset, progress, worker, in_loader)
        self._began: float | None = None
        self._bar: Any | None = None

    def __next__(self) -> Any:
        if self._began is None:
            self._began = time.perf_counter()
            self._bar = self._dataset._progress_bar(self._worker, self._shards())
        batch = super().__next__()
        if self._bar is not None:
            self._bar.update(int(self.metrics()["rows"]) - self._bar.n)
        # The loader may have heard enough with the last batch, and ask for the counts at once.
        if self.last:
            self._record()
        return batch

    def close(self) -> None:
        """Stop reading; nothing where it is closed already."""
        # Not what was said with the last batch: somebody may have asked for it already.
        if not self.closed and not self.last and self._stream is not None:
            self._record()
        super().close()
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _shards(self) -> _core.Shards:
        progress = self._progress
        return self._dataset._epochs.shards(progress.workers or 0, progress.epoch, progress.parents)

    def _record(self) -> None:
        counts = self.metrics()
        counts["elapsed"] = 0.0 if self._began is None else time.perf_counter() - self._began
        plan, _ = self._dataset._here()
        if self._dataset._deal.is_global:
            # A permutation of all rows is read of a stage, which is made of all files.
            ids = list(range(plan.num_splits))
        else:
            pieces = self._shards().pieces(self._dataset.rank, self._worker)
            ids = sorted({id for id, _, _ in pieces})
        files = {path for _, path, *_ in plan.splits(ids)}
        counts["files"] = len(files)
        self._dataset._measures.record(self._worker, self._progress.epoch, counts)
