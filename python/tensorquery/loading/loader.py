"""`QueryLoader`: delivers a dataset's batches from the threads of this process, without PyTorch."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from inspect import GEN_CLOSED, getgeneratorstate
from typing import Any

from tensorquery import _core
from tensorquery.distributed.topology import check_still_alone, threads_for
from tensorquery.errors import ConfigError
from tensorquery.loading.accelerate import AcceleratePrepared, begin
from tensorquery.loading.ahead import Copies
from tensorquery.loading.dataset import QueryDataset
from tensorquery.loading.epoch_progress import Progress
from tensorquery.loading.iterator import CLOSED_BY_NEWER, Made, ShardIterator
from tensorquery.metrics.epoch_report import Reporter
from tensorquery.metrics.iteration import Watch
from tensorquery.metrics.progress import EpochBar, shows
from tensorquery.metrics.time_series import LoaderStatistics

__all__ = ["LoaderIterator", "QueryLoader"]


class QueryLoader(AcceleratePrepared):
    """The loader that `create_dataloader` makes where PyTorch is not installed; where it is, a `QueryDataLoader`, which is one.

    It hands out the dataset's batches directly; decoding goes on in Rust threads.
    An exhausted loader that is iterated again starts the next epoch; after a ``break``, ``iter()`` starts
    the same epoch anew, unless a state was loaded. A newer ``iter()`` closes the one before.

    Attributes:
        dataset: The dataset.
        num_workers: Worker processes: none.
    """

    dataset: QueryDataset
    num_workers = 0
    _loaded: dict[str, Any] | None = None
    _newest: tuple[int, object] | None = None
    """The process that iterates, and what stands for its newest iterator."""
    _watch: Watch | None = None
    _collate: Callable[[Any], Any] | None = None
    _copies: Copies | None = None

    def __init__(
        self,
        dataset: QueryDataset,
        collate_fn: Callable[[Any], Any] | None = None,
        copies: Copies | None = None,
    ) -> None:
        self.dataset = dataset
        self._collate, self._copies = collate_fn, copies
        self._take_charge()

    def _take_charge(self, *, in_order: bool = True, expires: bool = False) -> None:
        """Tell the dataset how it is read from now on."""
        dataset, workers = self.dataset, self.num_workers
        dataset._state.workers = workers
        dataset._state.in_order = in_order
        self._sent = dataset._iterations.send_to(self._collate is not None, expires)
        self._reporter = Reporter(
            dataset.topology,
            dataset._plan.group,
            dataset._plan.constant["fingerprint"],
            threads_for(dataset.topology, workers),
        )

    def __iter__(self) -> LoaderIterator:
        """Iterate over one epoch, or the rest of the one that a loaded state belongs to."""
        return self._from_threads(*self._begin())

    def _begin(self) -> tuple[dict[str, Any] | None, tuple[int, object]]:
        """Begin an iteration: the state that it goes on from, and what stands for it."""
        check_still_alone(self.dataset.topology)
        self.dataset._iterations.settle()
        state, self._loaded = self._loaded, None
        if state is None:
            state, self.dataset._state.loaded = self.dataset._state.loaded, None
        mine = self._newest = os.getpid(), object()
        return state, mine

    def _from_threads(
        self, state: dict[str, Any] | None, mine: tuple[int, object]
    ) -> LoaderIterator:
        self.dataset._state.loaded = state
        batches = self.dataset._iterate(0, 0, self._copies)
        # Within the iterator, so that a batch on which one of them fails does not count as received.
        self._finish(batches)
        progress = batches.progress
        watch = self._watched(progress.epoch, 0)
        made = iter(batches.made, None)
        return LoaderIterator(self._deliver(made, batches, progress, watch, mine))

    def _finish(self, batches: ShardIterator) -> None:
        """Have batches finished as the training loop wants them."""
        batches.then(self._collate)

    def _deliver(
        self,
        batches: Iterator[Made],
        teller: ShardIterator | Watch,
        progress: Progress,
        watch: Watch,
        mine: tuple[int, object],
    ) -> Generator[Made, None, None]:
        """Batches with the facts about each that Accelerate needs; `watch` sees how long they take, and `teller` knows whether the last was received."""
        self._check_newest(mine)
        turn = begin(self)
        clock, is_ending = time.perf_counter, sys.is_finalizing
        complete = False
        try:
            asked = watch.begin(self._bar_over(progress))
            for made in batches:
                now = clock()
                watch.input_seconds += now - asked
                watch.batches += 1
                if now >= watch.due:
                    self._look(watch, now)
                if turn is not None:
                    batch, last, *others = made
                    made = turn.deliver(batch, last), last, *others
                yield made
                self._check_newest(mine)
                asked = clock()
            watch.input_seconds += clock() - asked
            self._check_newest(mine)
            # Also where it has no batch at all.
            complete = True
        finally:
            # At interpreter exit the modules that these need may be gone, and nobody is left to tell.
            if not is_ending():
                if turn is not None:
                    turn.end()
                self._leave(watch, complete or teller.last)

    def _check_newest(self, mine: tuple[int, object]) -> None:
        """Refuse to go on with an iterator that another one, or a state, has taken the place of, or of another process."""
        if mine[0] != os.getpid():
            raise ConfigError(
                "this iterator was made before a fork and belongs to the parent process; iterate over the loader again"
            )
        if self._newest is None:
            raise ConfigError(
                "this iterator was closed, because a state was loaded; iterate over the loader again to go on from it"
            )
        if self._newest is not mine:
            raise ConfigError(CLOSED_BY_NEWER)

    def _watched(self, epoch: int, iteration: int) -> Watch:
        """Begin to take notes of this iteration; the one before is over."""
        if self._watch is not None:
            self._leave(self._watch, False)
        self._watch = self.dataset._iterations.watch = Watch(epoch, self.num_workers, iteration)
        return self._watch

    def _look(self, watch: Watch, now: float) -> None:
        newest = None if self.num_workers else self.dataset._state.iterator()
        if newest is not None:
            watch.look(now, *newest.counted())
            return
        counts = self.dataset.metrics()
        watch.look(now, counts["rows"], counts["buffered_rows"])

    def _leave(self, watch: Watch, complete: bool) -> None:
        """An iteration is over, and was `complete` or not."""
        if watch.ended:
            return
        if self.dataset._iterations.watch is not watch:
            # Somebody reads the dataset without the loader, and counts that now.
            watch.end(watch.rows)
            return
        watch.end(self.dataset.metrics()["rows"])
        if complete:
            self._reporter.epoch_ended(self.dataset.metrics(), watch.epoch, watch.workers)

    def _bar_over(self, progress: Progress) -> EpochBar | None:
        """A bar over the rows of an epoch, where one is wanted. Rows are not counted for it."""
        dataset = self.dataset
        show = dataset._show_progress
        if not (dataset._shows_rows and shows(show, dataset.topology)):
            return None
        workers = progress.workers or 0
        shards = dataset._plan.epochs.shards(workers, progress.epoch, progress.left)
        total: int | None = 0
        for worker in range(dataset._plan.epochs.shards_per_rank(workers)):
            _, rows = shards.size(dataset.rank, worker)
            total = None if total is None or rows is None else total + rows
        done = progress.step * dataset.batch_size
        if total is not None:
            done = min(done, total)
        return EpochBar(progress.epoch, dataset.topology, total, done, below=show == "all")

    @property
    def statistics(self) -> LoaderStatistics:
        """Throughput, wait share and buffer fill of the current or last iteration over time; ``plot()`` draws them."""
        return LoaderStatistics.none() if self._watch is None else self._watch.statistics()

    def __len__(self) -> int:
        """Batches of this rank in an epoch; rows are counted where nobody knows them yet.

        Raises:
            TypeError: With ``remainder="uneven"``, where ranks differ, and with ``assignment="dynamic"``.
        """
        return len(self.dataset)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration, as `QueryDataset.set_epoch` does.

        Args:
            epoch: From 0.

        Raises:
            ConfigError: It is not a whole number of at least 0.
        """
        self.dataset.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Which batches the training loop has received, as plain data; batches read ahead do not count.

        It takes microseconds: call it at every step if you like. With equal steps the states of all ranks are
        the same. After an epoch's last batch the state begins the next epoch.

        Returns:
            A state for `load_state_dict`, ready for JSON.
        """
        if self._loaded is not None:
            return dict(self._loaded)
        return self.dataset.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was saved: the next iteration delivers exactly the rest of its epoch.

        On the same topology the batches are bit-identical; with another number of ranks or workers or another
        batch size, the rows not consumed yet are divided anew. With equal steps the state of any one rank
        will do; otherwise give `merge_state_dicts` of all of them.

        Args:
            state: What ``state_dict()`` or `merge_state_dicts` returned.

        Raises:
            CheckpointMismatchError: It is of another query, seed or file list; names what differs.
        """
        self._loaded = self.dataset._state.awaited = self.dataset._state.checked(state)
        self.dataset._state.slots.epoch = self._loaded["epoch"]
        # An iterator that is under way must not go on.
        self._newest = None
        if self._watch is not None:
            self._leave(self._watch, False)
        self._end_workers()

    def _end_workers(self) -> None:
        """End workers that know nothing of changes since they started; here there are none."""


class LoaderIterator(_core.Delivery):
    """The batches of a loader in one epoch. Made by ``iter(loader)``.

    A batch counts in the moment in which it is returned: an exception that a signal's handler raises before leaves a state
    without it. It also ends the iterator.

    Args:
        batches: Makes them.
    """

    def __init__(self, batches: Generator[Made, None, None]) -> None:
        self._batches = batches
        self.made = batches.__next__

    def failed(self, error: BaseException) -> None:
        """Nothing is left to do after an error."""

    @property
    def is_open(self) -> bool:
        """Whether there may be a next batch."""
        return getgeneratorstate(self._batches) != GEN_CLOSED

    def close(self) -> None:
        """Stop reading; nothing where it is closed already."""
        self._batches.close()
