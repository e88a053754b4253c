"""`QueryDataLoader`: delivers a dataset's batches, from this process or from workers."""

from __future__ import annotations

import json
import os
import sys
import weakref
from collections.abc import Callable, Generator, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from tensorquery.errors import DataError
from tensorquery.loading.ahead import Copies, one_ahead
from tensorquery.loading.dataset import QueryDataset
from tensorquery.loading.epoch_progress import Progress
from tensorquery.loading.iterator import Change, Made, ShardIterator, noted_failures
from tensorquery.loading.loader import QueryLoader
from tensorquery.loading.workers.batch_messages import (
    BatchMessage,
    BatchPacker,
    as_they_come,
    in_turns,
)
from tensorquery.loading.workers.batch_runs import TaggedBatch
from tensorquery.loading.workers.liveness import asking_at_once, from_living
from tensorquery.loading.workers.shared_memory import SegmentPool
from tensorquery.metrics.counters import SharedCounters
from tensorquery.metrics.iteration import Watch

__all__ = ["QueryDataLoader"]


class QueryDataLoader(QueryLoader, DataLoader[Any]):  # type: ignore[misc]
    """The DataLoader that `create_dataloader` makes.

    With ``num_workers=0`` it hands out the dataset's batches directly; decoding goes on in Rust threads.
    An exhausted loader that is iterated again starts the next epoch; after a ``break``, ``iter()`` starts
    the same epoch anew, unless a state was loaded. A newer ``iter()`` closes the one before.
    """

    dataset: QueryDataset
    num_workers: int
    _pool: SegmentPool | None = None
    _told: int | None = None
    """The generation of the dataset when the workers started."""

    def __init__(
        self,
        dataset: QueryDataset,
        collate_fn: Callable[[Any], Any] | None,
        copies: Copies | None = None,
        **kwargs: Any,
    ):
        self._collate, self._copies = collate_fn, copies
        DataLoader.__init__(
            self, dataset, batch_size=None, collate_fn=BatchPacker(collate_fn), **kwargs
        )
        self._take_charge(in_order=getattr(self, "in_order", True), expires=self.timeout > 0)
        iterations = dataset._iterations
        known = iterations.measures
        if self.num_workers and (known is None or known.workers < self.num_workers):
            # Workers get it when they start.
            iterations.measures = SharedCounters(self.num_workers)
        _loaders.add(self)

    @property
    def multiprocessing_context(self) -> Any:
        """How worker processes are started, as it was given."""
        given = super().multiprocessing_context
        return asking_at_once(given) if self.dataset._state.starts_workers else given

    @multiprocessing_context.setter
    def multiprocessing_context(self, given: Any) -> None:
        DataLoader.multiprocessing_context.fset(self, given)  # type: ignore[attr-defined]

    def _begun(self) -> Generator[Made, None, None]:
        """Begin an epoch, or the rest of one; see `__iter__`."""
        state, mine = self._begin()
        if self.num_workers == 0:
            return self._from_threads(state, mine)
        # Not part of the generator, which starts with its first batch: the state is right from now on.
        self.dataset._state.here()
        epoch = self.dataset.epoch if state is None else state["epoch"]
        progress = self._progress = self.dataset._state.begin(self.num_workers, epoch, state)
        measures = self.dataset._iterations.measures
        assert measures is not None
        watch = self._watched(epoch, measures.begin())
        found = self._from_workers(progress, state, mine, watch)
        return self._deliver(found, watch, progress, watch, mine)

    def _finish(self, batches: ShardIterator) -> None:
        """Have batches finished as the training loop wants them, in pinned memory where that is asked for."""
        pin = self._pinner()
        if pin is not None and self._sent.raw:
            batches.pin_blocks(_pinned)
        else:
            batches.then(self._collate, pin)

    def _pinner(self) -> Callable[[Any], Any] | None:
        # Older versions of torch know of CUDA alone.
        if not (self.pin_memory and getattr(torch, "accelerator", torch.cuda).is_available()):
            return None
        return torch.utils.data._utils.pin_memory.pin_memory

    def _from_workers(
        self,
        progress: Progress,
        state: dict[str, Any] | None,
        mine: tuple[int, object],
        watch: Watch,
    ) -> Iterator[Made]:
        dataset, is_ending = self.dataset, sys.is_finalizing
        # A rank's number of batches is fixed where rows are counted; else only the next one shows the end.
        steps = dataset._state.steps(progress)
        dataset._state.slots.deliver(progress.epoch, resumed=state is not None, first=progress.turn)
        if progress.ledger is not None:
            dataset._state.take_anew()
        # They have only the share that was dealt here, and find no other.
        dataset._state.loaded = (
            None if state is None else dataset._state.for_workers(state, progress)
        )
        dataset._state.starts_workers = True
        pool = self._addressed()
        try:
            batches = DataLoader.__iter__(self)
        finally:
            dataset._state.loaded, dataset._state.starts_workers = None, False
        _under_way.add(batches)
        try:
            waiting: TaggedBatch | None = None
            reports: list[TaggedBatch] = []
            taken = 0
            for tagged in self._unpacked(watch.waiting(from_living(batches)), progress.turn):
                if self._newest is not mine:
                    break
                if tagged.is_report:
                    reports.append(tagged)
                    continue
                if steps is not None:
                    yield self._received(tagged, progress, watch, progress.step + 1 == steps)
                elif waiting is not None:
                    yield self._received(waiting, progress, watch, False)
                # Later counts belong to the next batch.
                taken += self._heard(reports, progress)
                waiting = tagged
            if progress.ledger is not None and self._newest is mine:
                progress.ledger.check(taken + sum(len(json.loads(each.cursor)) for each in reports))
            if steps is None and waiting is not None and self._newest is mine:
                yield self._received(waiting, progress, watch, True)
        except GeneratorExit:
            raise
        except BaseException:
            # Where one that lives on is dead, every further epoch would fail; and a signal may have left half a message.
            self._end_workers()
            raise
        finally:
            # At interpreter exit the modules that this needs may be gone, and the workers are ended without it.
            if not is_ending():
                # After an error torch's iterator is part of a reference cycle (its traceback): its workers would
                # live on until the garbage collector runs, which then waits five seconds for each.
                if not self.persistent_workers:
                    getattr(batches, "_shutdown_workers", _nothing)()
                    pool.close()
                # An older iterator may be closed while a newer one still starts its workers.
                if self._newest is mine and mine[0] == os.getpid():
                    dataset._state.slots.deliver(None)
        if self._newest is not mine:
            return
        if steps is not None and progress.step != steps:
            raise DataError(
                f"the workers delivered {progress.step} of {steps} batches of this epoch; resume from the last state, and "
                "please report it"
            )
        dataset._state.finished(progress)

    def _addressed(self) -> SegmentPool:
        """Where the workers that start now, or live on, send their messages; to be held as long as they are received."""
        if self._told != self.dataset._state.generation:
            self._end_workers()
            self._told = self.dataset._state.generation
        if self._pool is None or self.__dict__.get("_iterator") is None:
            self._pool = SegmentPool(self.num_workers)
            assert isinstance(self.collate_fn, BatchPacker)
            self.collate_fn.header = self._pool.header()
        return self._pool

    def _unpacked(self, messages: Iterator[BatchMessage], turn: int) -> Iterator[TaggedBatch]:
        """Batches from the messages of the workers, as the training loop sees them."""
        build = self.dataset._state.here()[1].build if self._sent.raw else None
        if self.dataset._state.in_order:
            batches = in_turns(messages, turn, self.num_workers, build)
        else:
            batches = as_they_come(messages, self.num_workers, build)
        return batches if self._copies is None else one_ahead(batches, self._copied)

    def _copied(self, tagged: TaggedBatch) -> Callable[[], TaggedBatch]:
        if tagged.is_report or self._copies is None:
            return lambda: tagged
        arrived = self._copies(tagged.batch)
        return lambda: tagged._replace(batch=arrived())

    def _received(self, tagged: TaggedBatch, progress: Progress, watch: Watch, last: bool) -> Made:
        """A batch, and what changes when the training loop has it."""
        changes: tuple[Change, ...] = (
            (progress, "step", progress.step + 1),
            (watch, "rows", watch.rows + tagged.rows),
            (watch, "last", last),
            (progress, "over", last),
        )
        if tagged.failed:
            changes += (noted_failures(progress, tagged.worker, tagged.failed),)
        if progress.ledger is not None:
            standing = progress.ledger.after(tagged.worker, tagged.cursor)
            changes += ((progress.ledger, "standing", standing),)
        else:
            changes += ((progress, "turn", (tagged.worker + 1) % self.num_workers),)
            if progress.cursors is not None:
                changes += ((progress.cursors, tagged.worker, tagged.cursor),)
        return tagged.batch, last, changes, None

    def _heard(self, reports: list[TaggedBatch], progress: Progress) -> int:
        """Workers have ended, which took so many pieces."""
        pieces = 0
        for report in reports:
            taken = json.loads(report.cursor)
            pieces += len(taken)
            if progress.ledger is not None:
                progress.ledger.ended(report.worker, taken)
        reports.clear()
        return pieces

    def _end_workers(self) -> None:
        """End the persistent workers, which know nothing of changes since they started."""
        iterator = self.__dict__.get("_iterator")
        if iterator is not None:
            getattr(iterator, "_shutdown_workers", _nothing)()
            self._iterator = None


_loaders: weakref.WeakSet[QueryDataLoader] = weakref.WeakSet()
_under_way: weakref.WeakSet[Any] = weakref.WeakSet()
"""torch's iterators over workers."""


def _leave_workers_to_parent() -> None:
    """In a forked process: whoever lets go of one of torch's iterators ends its workers."""
    for iterator in _under_way:
        iterator._shutdown = True
    for loader in _loaders:
        loader._iterator = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_workers_to_parent)


def _pinned(block: Any) -> torch.Tensor:
    return torch.frombuffer(block, dtype=torch.uint8).pin_memory()


def _nothing() -> None:
    pass
