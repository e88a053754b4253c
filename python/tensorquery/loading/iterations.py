"""Iterations over the shards of a dataset: begun in this process, and counted."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any

from tensorquery._util.logs import follow
from tensorquery._util.optional import worker_info
from tensorquery.errors import ConfigError
from tensorquery.loading.ahead import Copies
from tensorquery.loading.delivery import AheadIterator, LoopIterator, WorkerIterator
from tensorquery.loading.epoch_progress import Progress
from tensorquery.loading.epoch_state import EpochState
from tensorquery.loading.iterator import Reading, ShardIterator
from tensorquery.loading.jax_arrays import Placement
from tensorquery.loading.refill import Skipping
from tensorquery.loading.shard_source import DatasetSource
from tensorquery.loading.transform_threads import refuse_threads
from tensorquery.loading.workers.batch_runs import BatchRuns, Sending, batches_per_message
from tensorquery.metrics.counters import SharedCounters
from tensorquery.metrics.iteration import Watch
from tensorquery.metrics.loader_metrics import Metrics, measured

__all__ = ["Iterations"]


class Iterations:
    """Begins iterations over a dataset's shards, and knows what the last one counted.

    Args:
        state: How far the dataset has come.
        transform: Called on each batch.
        threads: How many threads call it; None: the one that asks for batches.
        skipping: How rows are left out on which it fails; None where that is an error.

    Attributes:
        measures: Where the workers of a loader write down what they count.
        watch: The notes of the loader that began last, on its iteration.
        sent: How workers of our own loader send batches.
    """

    reports_here = False
    """Whether iterators of the training process write down what they count, too."""

    def __init__(
        self,
        state: EpochState,
        transform: Callable[[Any], Any] | None,
        threads: int | None,
        skipping: Skipping | None = None,
    ) -> None:
        self.measures: SharedCounters | None = None
        self.watch: Watch | None = None
        self.sent = Sending()
        self._state = state
        self._transform = transform
        self._threads = threads
        self._skipping = skipping
        self._counted: tuple[int, dict[str, float]] | None = None

    def over(self, state: EpochState) -> Iterations:
        """A copy over a copy of the dataset's state."""
        copied = copy.copy(self)
        copied._state, copied.watch = state, None
        return copied

    def settle(self) -> None:
        """Have memory of its own to share with workers, where this is a copy, or a fork of the process that had it."""
        if self._state.settle() and self.measures is not None:
            self.measures = SharedCounters(self.measures.workers)

    def deliver(
        self, worker: int, workers: int, consumed: Callable[[], dict[str, Any]]
    ) -> ShardIterator | BatchRuns:
        """The batches of a shard, as this process delivers them: a worker of our own loader sends messages."""
        iterator = self.begin(worker, workers, consumed)
        if not isinstance(iterator, WorkerIterator):
            return iterator
        return BatchRuns(iterator, self.sent.batches, iterator.sent)

    def begin(
        self,
        worker: int,
        workers: int,
        consumed: Callable[[], dict[str, Any]],
        copies: Copies | None = None,
    ) -> ShardIterator:
        """Begin the iteration of a shard in this process.

        Args:
            worker: The number of this worker process; 0 in the training process.
            workers: How many there are; 0 in the training process.
            consumed: The ``state_dict()`` of the dataset.
            copies: Copies batches to a device; None: where the output format says so, to the default one.

        Raises:
            ConfigError: A worker of another loader is asked for what only the training process makes.
        """
        state = self._state
        in_loader = workers > 0 and state.starts_workers
        if state.plan.epochs.is_dynamic(workers) and not in_loader:
            raise ConfigError(
                'assignment="dynamic" needs the loader of create_dataloader, which tells its workers when an epoch '
                'begins; use that, or assignment="static"'
            )
        if workers:
            refuse_threads(self._threads, workers)
        if state.plan.output.format == "jax":
            if workers and not in_loader:
                raise ConfigError(
                    'output_format="jax" puts arrays on devices in the training process; in workers of a DataLoader of your '
                    'own use output_format="numpy", or use the loader of create_dataloader'
                )
            if not workers and copies is None:
                copies = Placement()
        follow()
        loaded, state.loaded = state.loaded, None
        slots = state.slots
        if in_loader and not slots.is_resumed:
            loaded = None
        epoch = slots.delivered if in_loader else slots.epoch
        state.here()
        progress = state.begin(workers, epoch if loaded is None else loaded["epoch"], loaded)
        older = state.iterator()
        if older is not None:
            older.supersede()
        # A loader that reads through it says so afterwards.
        self.watch = None
        if in_loader:
            worker = (worker + slots.first) % workers
        source = DatasetSource(state, self._note_counts, consumed, self._skipping)
        iterator = self._iterator_over(source, progress, worker, in_loader, copies)
        state.newest = weakref.ref(iterator)
        return iterator

    def _iterator_over(
        self,
        source: DatasetSource,
        progress: Progress,
        worker: int,
        in_loader: bool,
        copies: Copies | None,
    ) -> ShardIterator:
        """The iterator over a shard that delivers as this process wants it."""
        counters = self.measures
        if (counters is not None and worker >= counters.workers) or (
            worker_info() is None and not self.reports_here
        ):
            counters = None
        iteration = 0.0 if counters is None else counters.joined()
        _, builder = self._state.here()
        takes = self._state.plan.epochs.is_dynamic(progress.workers or 0)
        is_raw = in_loader and self.sent.raw
        threads = self._threads
        if (
            threads is None
            and not progress.workers
            and getattr(self._transform, "runs_ahead", False)
        ):
            # More of them would wait for one another: such a batch is made by many short calls.
            threads = 1
        # What leaves rows out builds and transforms batches itself.
        skips = self._skipping is not None
        reading = Reading(
            _as_it_is if is_raw or skips else builder.build,
            None if skips else self._transform,
            threads,
            counters,
            self._state.taking() if takes else None,
            is_raw,
        )
        if in_loader:
            return WorkerIterator(source, progress, worker, reading, iteration)
        if copies is not None or threads is not None or skips:
            return AheadIterator(source, progress, worker, reading, iteration, copies=copies)
        return LoopIterator(source, progress, worker, reading, iteration)

    def send_to(self, collates: bool, expires: bool) -> Sending:
        """Choose how workers send batches to a loader which `collates`, or which waits for a limited time only."""
        plan = self._state.plan
        assert plan.builder is not None
        is_raw = plan.builder.converter is not None and self._transform is None and not collates
        # The user's code may take any time for a batch, while another worker waits for a split.
        alone = not is_raw or expires or plan.deal.assignment == "dynamic"
        batch_bytes = plan.deal.batch_size * plan.builder.row_bytes
        most = 1 if alone else batches_per_message(batch_bytes, self._state.workers)
        self.sent = Sending(is_raw, most)
        return self.sent

    def metrics(self, rank: int) -> Metrics:
        """Counts of the current or last iteration; see `QueryDataset.metrics`."""
        return measured(
            self.watch,
            self.measures,
            self._own_counts,
            self._state.plan.quarantine.metrics(),
            rank=rank,
            epoch=self._state.progress.epoch,
        )

    def _own_counts(self) -> tuple[int, dict[str, float]] | None:
        """Epoch and counts of this process' iterator, the current or the last one."""
        newest = self._state.iterator()
        if newest is not None:
            self._counted = (newest.progress.epoch, newest.metrics())
        return self._counted

    def _note_counts(self, epoch: int, counts: dict[str, float]) -> None:
        """An iterator is closed, and has counted this."""
        self._counted = (epoch, counts)


def _as_it_is(raw: Any) -> Any:
    return raw
