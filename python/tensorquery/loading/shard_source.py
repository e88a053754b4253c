"""A dataset, as its iterators know it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tensorquery import _core
from tensorquery.distributed.topology import threads_for
from tensorquery.loading.epoch_progress import Progress
from tensorquery.loading.epoch_state import EpochState

__all__ = ["DatasetSource"]


class DatasetSource:
    """Opens the shards of a dataset, and follows how far they are read; see `ShardSource`.

    Args:
        state: How far the dataset has come.
        counted: Gets the epoch and the counts of an iterator that is closed.
        consumed: The ``state_dict()`` of the dataset.
    """

    def __init__(
        self,
        state: EpochState,
        counted: Callable[[int, dict[str, float]], None],
        consumed: Callable[[], dict[str, Any]],
    ) -> None:
        self._state = state
        self.counted = counted
        self._consumed = consumed

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
        threads = threads_for(plan.topology, workers)
        if taking is not None:
            counter = state.slots.counter
            return core.stream_taken(shards, rank, worker, counter, taking, threads, options, loose)
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
        )

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
