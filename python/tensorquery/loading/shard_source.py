"""A dataset, as its iterators know it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from tensorquery import _core
from tensorquery.distributed.topology import threads_for
from tensorquery.loading.epoch_progress import Progress
from tensorquery.loading.epoch_state import EpochState
from tensorquery.loading.refill import RefilledStream, ShardTerms, Skipping

__all__ = ["DatasetSource"]


class DatasetSource:
    """Opens the shards of a dataset, and follows how far they are read; see `ShardSource`.

    Args:
        state: How far the dataset has come.
        counted: Gets the epoch and the counts of an iterator that is closed.
        consumed: The ``state_dict()`` of the dataset.
        skipping: How rows are left out on which the transform fails; None where that is an error.
    """

    def __init__(
        self,
        state: EpochState,
        counted: Callable[[int, dict[str, float]], None],
        consumed: Callable[[], dict[str, Any]],
        skipping: Skipping | None = None,
    ) -> None:
        self._state = state
        self.counted = counted
        self._consumed = consumed
        self._skipping = skipping

    def stream(
        self,
        progress: Progress,
        worker: int,
        *,
        taking: int | None,
        lends: bool = False,
        loose: bool = False,
    ) -> _core.BatchStream:
        """The batches of a shard, from where `progress` stands; reading starts now."""
        state, plan = self._state, self._state.plan
        core, _ = state.here()
        workers, rank = progress.workers or 0, plan.topology.rank
        shards = plan.epochs.shards(workers, progress.epoch, progress.left)
        options = plan.output.core_options
        windows = None if plan.windows is None else plan.windows.opened
        threads = threads_for(plan.topology, workers)
        if taking is not None:
            counter = state.slots.counter
            return core.stream_taken(
                shards, rank, worker, counter, taking, threads, options, loose, windows
            )
        if self._skipping is not None:
            # It has the methods that iterators call.
            return cast(
                "_core.BatchStream", self._refilled(self._skipping, progress, worker, shards)
            )
        return core.stream(
            shards,
            rank,
            worker,
            progress.start[worker],
            threads,
            options,
            plan.stage,
            lends=lends,
            loose=loose,
            windows=windows,
        )

    def _refilled(
        self, skipping: Skipping, progress: Progress, worker: int, shards: _core.Shards
    ) -> RefilledStream:
        """The transformed batches of a shard, without the rows on which the transform fails."""
        plan, workers = self._state.plan, progress.workers or 0
        core, builder = self._state.here()
        rank, start = plan.topology.rank, progress.start[worker]
        stream = core.stream(
            shards,
            rank,
            worker,
            start,
            threads_for(plan.topology, workers),
            None,
            plan.stage,
            lends=True,
            refills=True,
        )
        steps, _ = shards.size(rank, worker)
        rows = shards.rows(rank, worker)
        assert steps is not None, "rows are counted"
        assert rows is not None, "rows are counted"
        # A cursor begins with the batches, and that of its one lane with the rows.
        steps_done, rows_done = (*start[:2], 0)[:2] if start else (0, 0)
        terms = ShardTerms(
            name=f"worker {worker} of rank {rank}" if workers else f"rank {rank}",
            batch_size=plan.deal.batch_size,
            steps=steps,
            rows=rows,
            steps_done=steps_done,
            rows_done=rows_done,
            cursor_after=partial(shards.cursor_after, rank, worker),
            may_end=plan.topology.world_size == 1,
        )
        return RefilledStream(stream, builder, skipping, terms)

    def finished(self, progress: Progress) -> None:
        """The epoch is over."""
        self._state.finished(progress)

    def follows(self, workers: int) -> bool:
        """Whether all cursors follow from the number of steps."""
        return self._state.follows(workers)

    def state_of_shard(self, progress: Progress, worker: int) -> dict[str, Any]:
        """How far it was consumed; see `QueryDataset.state_dict`."""
        if self._state.plan.is_in_worker:
            return self._state.of(progress, worker)
        return self._consumed()

    def checked(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """A state that fits; raises `CheckpointMismatchError`."""
        return self._state.checked(state)

    def begin(self, workers: int, epoch: int, state: dict[str, Any] | None) -> Progress:
        """Start an epoch, from a state where there is one."""
        return self._state.begin(workers, epoch, state)
