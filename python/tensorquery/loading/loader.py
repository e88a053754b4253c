"""`QueryLoader`: delivers a dataset's batches from the threads of this process, without PyTorch."""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

from tensorquery.distributed.topology import check_still_alone, threads_for
from tensorquery.errors import ConfigError
from tensorquery.loading.accelerate import AcceleratePrepared, begin
from tensorquery.loading.ahead import Copies
from tensorquery.loading.alteration import Alteration, Request, key_columns
from tensorquery.loading.dataset import QueryDataset
from tensorquery.loading.epoch_progress import Progress
from tensorquery.loading.iterator import CLOSED_BY_NEWER, Made, ShardIterator
from tensorquery.loading.loader_iterator import LoaderIterator
from tensorquery.loading.pending import Pending, Standing
from tensorquery.metrics.epoch_report import Reporter
from tensorquery.metrics.iteration import Watch
from tensorquery.metrics.progress import EpochBar, shows
from tensorquery.metrics.time_series import LoaderStatistics
from tensorquery.sql.mixture import Mixture
from tensorquery.sql.query import Query
from tensorquery.sql.schedule import Schedule

__all__ = ["QueryLoader"]


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
    _delivered: weakref.ref[LoaderIterator] | None = None
    """The newest iterator."""
    _progress: Progress | None = None
    """How far it has come."""
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
        self._pending = Pending()
        self._sent = dataset._iterations.send_to(self._collate is not None, expires)
        self._reporter = Reporter(
            dataset.topology,
            dataset._plan.group,
            dataset._plan.constant["fingerprint"],
            threads_for(dataset.topology, workers),
        )

    def __iter__(self) -> LoaderIterator:
        """Iterate over one epoch, or the rest of the one that a loaded state belongs to."""
        delivered = LoaderIterator(self._begun())
        self._delivered = weakref.ref(delivered)
        if self.num_workers:
            self.dataset._state.loop = self._delivered
        if self._pending:
            delivered.check_before(self._apply_pending)
        return delivered

    def _begun(self) -> Generator[Made, None, None]:
        """Begin an epoch, or the rest of one; see `__iter__`."""
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
    ) -> Generator[Made, None, None]:
        self.dataset._state.loaded = state
        batches = self.dataset._iterate(0, 0, self._copies)
        # Within the iterator, so that a batch on which one of them fails does not count as received.
        self._finish(batches)
        progress = self._progress = batches.progress
        watch = self._watched(progress.epoch, 0)
        made = iter(batches.made, None)
        return self._deliver(made, batches, progress, watch, mine)

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
        self._pending.clear()
        if self._watch is not None:
            self._leave(self._watch, False)
        self._end_workers()

    def alter(
        self,
        query: Query | Mixture | None = None,
        *,
        weights: Sequence[float] | Mapping[str, float] | Schedule | None = None,
        add: Any = None,
        drop: str | int | Sequence[str | int] | None = None,
        filters: Any = None,
        refresh: bool = False,
        key: str | Sequence[str] | None = None,
        at_step: int | None = None,
    ) -> Alteration | None:
        """Change what is delivered from the next step on, in the middle of an epoch. What was delivered does not come again.

        Of the altered result each row that was not delivered in this epoch comes once; the following epochs deliver all of it.
        Rows are told apart by file and row, whatever columns, filters and snapshots they came through; a file counts as the
        same while path, size and time of the last write do. What cannot be told is refused, and then nothing has changed:
        files with delivered rows that were rewritten (compaction, UPDATE), changed queries of which parts run once (``stage=``)
        or that make several rows of one. States say which alteration there was when. A run that goes on from one needs no call,
        but the altered query; weights are taken from the state. All ranks call it at the same step.

        Args:
            query: The altered query or mixture, with the same columns. Of a mixture, a query that is the same, or has the same
                name, is the same source. None: the present one, with the changes below.
            weights: Other weights of the mixture: a list, numbers by name, or a `Schedule`.
            add: Queries to add, as `mix` takes them: pairs with a weight, where the present ones sum to 1; with `weights` the
                queries alone.
            drop: Names, or numbers, of queries to drop.
            filters: A condition that narrows all queries, as for `Query.select`; or conditions by name of the query.
            refresh: Move to the current snapshots and versions of Iceberg and Delta tables.
            key: Columns whose values tell rows of queries that change apart, instead of file and row: after compaction, for
                joins, and for parts that run once. All rows are read, before and after; no key may be null or there twice.
            at_step: Alter when each rank has received so many batches of the epoch, counted from its beginning, also over
                resumes; a loop that is under way does it in time. A state saved before does not know of it. None: now; batches
                that were read ahead and not received count as not delivered.

        Returns:
            Rows delivered, left and new, by query; None with a step to come. A loop that is under way goes on with the altered
            result, else the next one does.

        Raises:
            ConfigError: Rows cannot be told apart, ranks differ, equal steps are impossible, or an option does not go with it.
            QueryError: A filter is malformed, or columns differ.
            DataError: A file cannot be read.
        """
        request = Request(query, weights, add, drop, filters, refresh, key_columns(key))
        if at_step is None:
            return self._alter(request)
        state = self.dataset._state
        now = Standing.of(state, self._loaded)
        if not self._pending.put(at_step, request, now, now.end(state, self.num_workers)):
            return self._alter(request)
        running = self._running()
        if running is not None:
            running.check_before(self._apply_pending)
        return None

    def _alter(self, request: Request) -> Alteration:
        """Alter what is delivered from the next batch on."""
        report = self.dataset._alter(request, self.state_dict())
        state, running = self.dataset._state, self._running()
        # With its last batch an epoch is over: what comes is the next one, in another loop.
        is_over = self._progress is not None and self._progress.over
        self._loaded, state.loaded = state.loaded, None
        state.awaited = self._loaded
        if running is not None and is_over:
            running.close()
        elif running is not None:
            running.go_on(self._begun)
        self._newest = None
        self._end_workers()
        return report

    def _apply_pending(self) -> None:
        """Alter what is due before the next batch."""
        state = self.dataset._state
        while (request := self._pending.due(Standing.of(state, self._loaded))) is not None:
            self._alter(request)

    def _running(self) -> LoaderIterator | None:
        """The iterator that may be asked for a next batch."""
        delivered = None if self._delivered is None else self._delivered()
        newest = self._newest is not None and self._newest[0] == os.getpid()
        return delivered if delivered is not None and delivered.is_open and newest else None

    def _end_workers(self) -> None:
        """End workers that know nothing of changes since they started; here there are none."""
