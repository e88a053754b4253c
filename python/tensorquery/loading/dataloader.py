"""`QueryDataLoader`: delivers a dataset's batches, from this process or from workers."""

from __future__ import annotations

import json
import os
import sys
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader

from tensorquery.distributed.topology import check_still_alone, threads_for
from tensorquery.errors import ConfigError, DataError
from tensorquery.loading.accelerate import AcceleratePrepared, begin
from tensorquery.loading.alteration import Alteration, Request, key_columns
from tensorquery.loading.dataset import QueryDataset
from tensorquery.loading.devices import copies_to, one_ahead
from tensorquery.loading.epoch_progress import Progress
from tensorquery.loading.iterator import (
    CLOSED_BY_NEWER,
    Change,
    Made,
    ShardIterator,
    noted_failures,
)
from tensorquery.loading.loader_iterator import LoaderIterator
from tensorquery.loading.pending import Pending, Standing
from tensorquery.loading.workers.batch_messages import (
    BatchMessage,
    BatchPacker,
    TaggedBatch,
    as_they_come,
    in_turns,
)
from tensorquery.loading.workers.liveness import asking_at_once, from_living
from tensorquery.loading.workers.shared_memory import SegmentPool
from tensorquery.metrics.counters import SharedCounters
from tensorquery.metrics.epoch_report import Reporter
from tensorquery.metrics.iteration import Watch
from tensorquery.metrics.progress import EpochBar, shows
from tensorquery.metrics.time_series import LoaderStatistics
from tensorquery.sql.mixture import Mixture
from tensorquery.sql.query import Query
from tensorquery.sql.schedule import Schedule

__all__ = ["LoaderIterator", "QueryDataLoader"]


class QueryDataLoader(AcceleratePrepared, DataLoader[Any]):
    """The DataLoader that `create_dataloader` makes.

    With ``num_workers=0`` it hands out the dataset's batches directly; decoding goes on in Rust threads.
    An exhausted loader that is iterated again starts the next epoch; after a ``break``, ``iter()`` starts
    the same epoch anew, unless a state was loaded. A newer ``iter()`` closes the one before.
    """

    dataset: QueryDataset
    _loaded: dict[str, Any] | None = None
    _newest: tuple[int, object] | None = None
    """The process that iterates, and what stands for its newest iterator."""
    _pool: SegmentPool | None = None
    _told: int | None = None
    """The generation of the dataset when the workers started."""
    _watch: Watch | None = None
    _delivered: weakref.ref[LoaderIterator] | None = None
    """The newest iterator."""
    _progress: Progress | None = None
    """How far it has come."""

    def __init__(
        self,
        dataset: QueryDataset,
        collate_fn: Callable[[Any], Any] | None,
        device: torch.device | None = None,
        **kwargs: Any,
    ):
        self._collate = collate_fn
        self._copies = None if device is None else copies_to(device)
        super().__init__(dataset, batch_size=None, collate_fn=BatchPacker(collate_fn), **kwargs)
        dataset._state.workers = self.num_workers
        dataset._state.in_order = getattr(self, "in_order", True)
        self._pending = Pending()
        iterations = dataset._iterations
        self._sent = iterations.send_to(collate_fn is not None, self.timeout > 0)
        known = iterations.measures
        if self.num_workers and (known is None or known.workers < self.num_workers):
            # Workers get it when they start.
            iterations.measures = SharedCounters(self.num_workers)
        self._reporter = Reporter(
            dataset.topology,
            dataset._plan.group,
            dataset._plan.constant["fingerprint"],
            threads_for(dataset.topology, self.num_workers),
        )
        _loaders.add(self)

    @property
    def multiprocessing_context(self) -> Any:
        """How worker processes are started, as it was given."""
        given = super().multiprocessing_context
        return asking_at_once(given) if self.dataset._state.starts_workers else given

    @multiprocessing_context.setter
    def multiprocessing_context(self, given: Any) -> None:
        DataLoader.multiprocessing_context.fset(self, given)  # type: ignore[attr-defined]

    def __iter__(self) -> LoaderIterator:  # type: ignore[override]
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
        check_still_alone(self.dataset.topology)
        iterations = self.dataset._iterations
        iterations.settle()
        state, self._loaded = self._loaded, None
        if state is None:
            state, self.dataset._state.loaded = self.dataset._state.loaded, None
        mine = self._newest = os.getpid(), object()
        if self.num_workers == 0:
            self.dataset._state.loaded = state
            batches = self.dataset._iterate(0, 0, self._copies)
            # Within the iterator, so that a batch on which one of them fails does not count as received.
            pin = self._pinner()
            if pin is not None and self._sent.raw:
                batches.pin_blocks()
            else:
                batches.then(self._collate, pin)
            progress = self._progress = batches.progress
            watch = self._watched(progress.epoch, 0)
            made = iter(batches.made, None)
            return self._deliver(made, batches, progress, watch, mine)
        # Not part of the generator, which starts with its first batch: the state is right from now on.
        self.dataset._state.here()
        epoch = self.dataset.epoch if state is None else state["epoch"]
        progress = self._progress = self.dataset._state.begin(self.num_workers, epoch, state)
        assert iterations.measures is not None
        watch = self._watched(epoch, iterations.measures.begin())
        found = self._from_workers(progress, state, mine, watch)
        return self._deliver(found, watch, progress, watch, mine)

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
            batches = super().__iter__()
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


def _nothing() -> None:
    pass
