"""The iterator over one shard's batches, and how far it has come."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import get_worker_info

from tensorquery._util.callers import called, stack_level_outside
from tensorquery.distributed.topology import threads_for
from tensorquery.errors import CheckpointMismatchError, ConfigError
from tensorquery.loading.devices import Copies, one_ahead
from tensorquery.loading.transform_threads import Transformed, TransformThreads
from tensorquery.loading.workers.batch_messages import Tagged
from tensorquery.loading.workers.liveness import check_sendable
from tensorquery.metrics.counters import CORE_COUNTS
from tensorquery.sharding.dynamic_assignment import Ledger, message_of

if TYPE_CHECKING:
    from tensorquery import _core
    from tensorquery.loading.dataset import QueryDataset

__all__ = [
    "CLOSED_BY_NEWER",
    "Progress",
    "Refused",
    "ShardIterator",
]

CLOSED_BY_NEWER = (
    "this iterator was closed, because a newer one was started; keep using the newer one, and make a second loader for a "
    "loop inside a loop"
)


@dataclass
class Progress:
    """How far this rank has come in the epoch that it delivers.

    Attributes:
        epoch: The epoch.
        workers: Worker processes per rank; None before an iteration has begun.
        parents: The runs of the same epoch before this one.
        step: Batches consumed of this rank.
        start: By worker, the cursor from which its shard is read; an empty one is the shard's start.
        cursors: By worker, how far its shard is consumed, as a list or as JSON; only kept where that does not
            follow from the step.
        turn: The worker whose batch comes next.
        ledger: What the workers have consumed, where they take splits as they come.
        base: The part of a state's checksum that stays the same.
        begun: Whether it is of an iteration; where not, the next one may still be of any epoch.
        left: Whether another epoch was chosen since its iteration was left.
    """

    epoch: int
    workers: int | None = None
    parents: tuple[dict[str, Any], ...] = ()
    step: int = 0
    start: list[list[int]] = field(default_factory=list)
    cursors: list[list[int] | str] | None = None
    turn: int = 0
    ledger: Ledger | None = None
    base: int | None = None
    begun: bool = False
    left: bool = False


class Refused:
    """The iterator of a worker that must not deliver: from one that lives on torch takes no error before a batch is due.

    Args:
        reason: Why.
    """

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __iter__(self) -> Refused:
        return self

    def __next__(self) -> Any:
        raise ConfigError(self._reason)


_REPORT_SECONDS = 0.02
"""How often a worker writes down what it has counted."""


def _as_it_is(raw: Any) -> Any:
    return raw


class ShardIterator:
    """The batches of one shard, with a state of its own. Made by ``iter(dataset)``.

    Reading starts with the first batch that is asked for.
    """

    def __init__(
        self, dataset: QueryDataset, progress: Progress, worker: int, in_loader: bool
    ) -> None:
        self._dataset = dataset
        self._progress = progress
        self._worker = worker  # the number of the shard on its rank
        self.in_loader = in_loader
        """Whether this process is a worker of a loader of `create_dataloader`."""
        self._stream: _core.BatchStream | None = None
        self._process = os.getpid()
        self._superseded = False
        self._reported = False
        self.closed = False
        """Whether it has ended, failed, or was closed."""
        self.last = False
        """Whether the batch delivered last is the last of the shard."""
        self.rows = 0
        """Rows delivered to a loader of `create_dataloader`, in its workers."""
        self._began = self._until = 0.0
        measures = dataset._measures
        if (measures is not None and worker >= measures.workers) or (
            get_worker_info() is None and not dataset._reports_here
        ):
            measures = None
        self._measures = measures
        self._iteration = 0.0 if measures is None else measures.joined()
        self._due = 0.0
        _, builder = dataset._here()
        takes = dataset._epochs.is_dynamic(progress.workers or 0)
        self._taking = dataset._taking() if takes else None
        self._build = _as_it_is if in_loader and dataset._sent.raw else builder.build
        # By several threads, or as the first of the calls on each batch.
        self._in_threads = None if dataset._transform_threads is None else dataset._transform
        self._threads: TransformThreads | None = None
        self._pins = False
        self._copies: Copies | None = None
        self._ahead: Iterator[Transformed] | None = None
        # Of what is made ahead the part that was handed out.
        self._handed_rows = self._handed_batches = 0
        calls = (None if self._in_threads is not None else dataset._transform,)
        self._calls = [call for call in calls if call is not None]
        # Received and not handed out: finished together, and those of them that are built.
        self._raw: deque[Any] = deque()
        self._ready: deque[Any] = deque()

    def __iter__(self) -> ShardIterator:
        return self

    @property
    def progress(self) -> Progress:
        """How far it has come."""
        return self._progress

    def then(self, *calls: Callable[[Any], Any] | None) -> None:
        """Call these on every batch, after the transform and before it counts as delivered."""
        self._calls.extend(call for call in calls if call is not None)

    def pin_blocks(self) -> None:
        """Put every batch into pinned memory, all its numbers together."""
        build = self._build
        self._pins = True

        def pinned(raw: Any) -> Any:
            rows, block, *others = raw
            memory = (
                torch.frombuffer(block, dtype=torch.uint8).pin_memory() if len(block) else block
            )
            return build((rows, memory, *others))

        self._build = pinned

    def onto(self, copies: Copies | None) -> None:
        """Copy every batch to a device, after the other calls; one is on its way while the one before is in use."""
        self._copies = copies

    def __next__(self) -> Any:
        if self.closed:
            if self._superseded:
                raise ConfigError(CLOSED_BY_NEWER)
            raise StopIteration
        stream = self._stream or self._start()
        try:
            if self._ahead is not None:
                self._warn_of_cache(stream)
                return self._found_ahead(self._ahead)
            if not self._ready and not self._receive(stream):
                # That it has come to its end a worker says once; in most cases with its last batch.
                if self._taking is not None and not self._reported:
                    self._reported = True
                    return Tagged(None, self._worker, True, json.dumps(stream.taken()), True)
                if self.in_loader and not self.last:
                    self.last = True
                    self._measure()
                    return Tagged(None, self._worker, True, "[]", True)
                self._end()
                raise StopIteration
            batch = self._ready.popleft()
            last = stream.advance()
            for call in self._calls:
                batch = called(call, batch)
        except BaseException as error:
            self.close()
            if get_worker_info() is not None:
                check_sendable(error)
            raise
        progress = self._progress
        progress.step += 1
        self.last = last
        if last or self._measures is not None:
            self._measure()
        rows = 0
        if self.in_loader:
            rows = stream.rows
            self.rows += rows
        if self._taking is not None:
            message = message_of(stream.consumed(), stream.cursor())
            return Tagged(batch, self._worker, self.last, message, rows=rows)
        if progress.cursors is not None:
            progress.cursors[self._worker] = stream.cursor()
        if self.in_loader:
            follows = self._dataset._follows(progress.workers or 0)
            cursor = "" if follows else json.dumps(stream.cursor())
            return Tagged(batch, self._worker, self.last, cursor, rows=rows)
        if self.last:
            self._end()
        return batch

    def _receive(self, stream: _core.BatchStream) -> bool:
        """Wait for the next batch, and build it with those that were finished with it; False at the end.

        A training step has taken this code and its data out of the processor's caches: one batch that finds them again
        leaves them to the others.
        """
        self._warn_of_cache(stream)
        if not self._raw:
            group = stream.next_group()
            if group is None:
                return False
            self._raw.extend(group)
        while self._raw:
            try:
                self._ready.append(self._build(self._raw[0]))
            except Exception:
                # It is raised in the place of its batch.
                if not self._ready:
                    raise
                break
            self._raw.popleft()
        return True

    def _found_ahead(self, ahead: Iterator[Transformed]) -> Any:
        """The next batch, made ahead of its turn; only now it counts."""
        found = next(ahead, None)
        if found is None:
            self._end()
            raise StopIteration
        progress = self._progress
        progress.step += 1
        self._handed_rows += found.rows
        self._handed_batches += 1
        self.last = found.last
        if self.last or self._measures is not None:
            self._measure()
        if progress.cursors is not None:
            progress.cursors[self._worker] = found.cursor
        if self.last:
            self._end()
        return found.batch

    @staticmethod
    def _warn_of_cache(stream: _core.BatchStream) -> None:
        trouble = stream.cache_trouble()
        if trouble is not None:
            warnings.warn(trouble, UserWarning, stacklevel=stack_level_outside())

    def _measure(self) -> None:
        """Write down what was counted, now and then, and with the last batch before it is handed out."""
        now = time.perf_counter()
        if self.last:
            self._until = now
        if self._measures is not None and (self.last or now >= self._due):
            self._report(ended=self.last)
            self._due = now + _REPORT_SECONDS

    def _report(self, *, ended: bool) -> None:
        assert self._measures is not None
        epoch, counts = self._progress.epoch, self.metrics()
        self._measures.record(self._worker, self._iteration, epoch, counts, ended=ended)

    def sent(self) -> None:
        """Say that all rows so far are on their way to the loader."""
        if self._measures is not None:
            self._measures.sent(self._worker, self.rows)

    def _start(self) -> _core.BatchStream:
        self._began = time.perf_counter()
        dataset, progress = self._dataset, self._progress
        plan, _ = dataset._here()
        workers = progress.workers or 0
        shards = dataset._epochs.shards(workers, progress.epoch, progress.parents)
        options = None
        if dataset._output_format in ("torch", "numpy"):
            options = dataset._tensor_options
        threads = threads_for(dataset.topology, workers)
        loose = self.in_loader and dataset._sent.raw  # each batch is copied into a parcel
        if self._taking is not None:
            self._stream = plan.stream_taken(
                shards,
                dataset.rank,
                self._worker,
                dataset._counter,
                self._taking,
                threads,
                options,
                loose,
            )
            return self._stream
        self._stream = plan.stream(
            shards,
            dataset.rank,
            self._worker,
            progress.start[self._worker],
            threads,
            options,
            dataset._stage,
            # A batch that is pinned is one block, which is copied as a whole.
            lends=not self._pins,
            loose=loose,
        )
        if self._in_threads is not None:
            self._threads = TransformThreads(
                self._stream, self._build, self._in_threads, dataset._transform_threads or 1
            )
        if self._threads is not None or self._copies is not None:
            self._ahead = _made_ahead(
                self._stream, self._threads, self._build, self._calls, self._copies
            )
        return self._stream

    def _end(self) -> None:
        # In a worker the epoch is not over: others may still have batches.
        if self._progress.workers == 0:
            self._dataset._finished(self._progress)

    def supersede(self) -> None:
        """Close it because a newer one was started."""
        self._superseded = True
        self.close()

    def close(self) -> None:
        """Stop reading; nothing where it is closed already."""
        was_closed, self.closed = self.closed, True
        if not self._is_here():
            return
        self._raw.clear()
        self._ready.clear()
        if self._threads is not None:
            self._threads.close()
        if self._stream is None:
            return
        self._until = self._until or time.perf_counter()
        # Not what was said with the last batch: somebody may have asked for it already.
        if self._measures is not None and not (was_closed or self.last):
            self._report(ended=True)
        self._dataset._counted = (self._progress.epoch, self.metrics())
        self._stream.close()

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        # An interpreter that ends has taken apart what is needed for it; what Rust holds ends by itself.
        if is_ending():
            return
        # Not where __init__ failed.
        if getattr(self, "_stream", None) is not None and not self.closed:
            self.close()

    def _is_here(self) -> bool:
        """Whether this process reads. One that was forked has the stream without its threads, and locks that nobody will open."""
        return self._process == os.getpid()

    def counted(self) -> tuple[int, int]:
        """Rows handed out, and rows of finished batches that are ready."""
        if self._stream is None or not self._is_here():
            return (0, 0)
        rows, ready = self._stream.counted()
        if self._ahead is None:
            return rows, ready
        return self._handed_rows, ready + rows - self._handed_rows

    def metrics(self) -> dict[str, float]:
        """Counts so far; see `QueryDataset.metrics`."""
        counts = dict.fromkeys(CORE_COUNTS, 0.0)
        if self._stream is not None and self._is_here():
            counts.update(self._stream.metrics())
            if self._ahead is not None:
                counts["buffered_rows"] += counts["rows"] - self._handed_rows
                counts.update(rows=self._handed_rows, batches=self._handed_batches)
            counts["elapsed_seconds"] = (self._until or time.perf_counter()) - self._began
        return counts

    def state_dict(self) -> dict[str, Any]:
        """How far it was consumed; see `QueryDataset.state_dict`."""
        dataset = self._dataset
        if dataset._is_in_worker():
            return dataset._state_of(self._progress, self._worker)
        return dataset.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, before the first batch.

        Raises:
            CheckpointMismatchError: The state is of another run, or batches were delivered already.
        """
        dataset = self._dataset
        checked = dataset._checked(state)
        if self._stream is not None:
            raise CheckpointMismatchError(
                "this iterator has begun; load the state before its first batch"
            )
        workers = self._progress.workers or 0
        self._progress = dataset._begin(workers, checked["epoch"], checked)


def _made_ahead(
    stream: _core.BatchStream,
    threads: TransformThreads | None,
    build: Callable[[Any], Any],
    calls: list[Callable[[Any], Any]],
    copies: Copies | None,
) -> Iterator[Transformed]:
    """Batches, and where the shard stands after each, however far ahead of the training loop they are made."""

    def finished() -> Iterator[Transformed]:
        if threads is not None:
            yield from iter(threads.next, None)
            return
        for raw in iter(stream.next, None):
            yield Transformed(build(raw), stream.cursor(), stream.last, stream.rows)

    def made() -> Iterator[Transformed]:
        for found in finished():
            batch = found.batch
            for call in calls:
                batch = called(call, batch)
            yield replace(found, batch=batch)

    if copies is None:
        return made()

    def copied(found: Transformed) -> Callable[[], Transformed]:
        arrived = copies(found.batch)
        return lambda: replace(found, batch=arrived())

    return one_ahead(made(), copied)
