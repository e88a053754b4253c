"""Iterations as torch-dataloader-utils counts and shows them: also those of a DataLoader of the user's own."""

from __future__ import annotations

from typing import Any

from tensorquery._util.optional import worker_info
from tensorquery.compat.metrics import MOST_WORKERS, RowBar
from tensorquery.errors import ConfigError
from tensorquery.loading.ahead import Copies
from tensorquery.loading.epoch_progress import Progress
from tensorquery.loading.epoch_state import EpochState
from tensorquery.loading.iterations import Iterations
from tensorquery.loading.iterator import ShardIterator
from tensorquery.loading.shard_source import DatasetSource
from tensorquery.metrics.counters import SharedCounters
from tensorquery.metrics.progress import make_bar

__all__ = ["CompatIterations"]


class CompatIterations(Iterations):
    """Iterations with a bar over the rows of each shard.

    Args:
        state: How far the dataset has come.
        bars: Seconds between two updates of a bar; None shows none.
    """

    reports_here = True

    def __init__(self, state: EpochState, bars: float | None) -> None:
        super().__init__(state, None, None)
        self.measures = SharedCounters(MOST_WORKERS)
        self._bars = bars

    def _iterator_over(
        self,
        source: DatasetSource,
        progress: Progress,
        worker: int,
        in_loader: bool,
        copies: Copies | None,
    ) -> ShardIterator:
        if worker >= MOST_WORKERS:
            raise ConfigError(f"num_workers is more than {MOST_WORKERS}, the limit of the metrics")
        iterator = super()._iterator_over(source, progress, worker, in_loader, copies)
        if self._bars is not None:
            iterator.observed_by(RowBar(lambda begun: self._progress_bar(worker, begun)))
        if worker_info() is not None and not iterator.in_loader:
            assert self.measures is not None
            self.measures.mark = True
        return iterator

    def _progress_bar(self, worker: int, progress: Progress) -> Any | None:
        """A bar over the rows of a shard, where one is wanted."""
        if self._bars is None:
            return None
        plan = self._state.plan
        rank = plan.topology.rank
        shards = plan.epochs.shards(progress.workers or 0, progress.epoch, progress.left)
        _, rows = shards.size(rank, worker)
        return make_bar(
            total=rows,
            desc=f"rank {rank}, worker {worker}",
            position=worker,
            leave=False,
            mininterval=self._bars,
            dynamic_ncols=False,
            unit="rows",
        )
