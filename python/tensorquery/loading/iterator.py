"""The iterators over one shard's batches, and how far each has come.

There is one for each way in which batches are delivered: to the loop that asks for them (`LoopIterator`), to such a
loop from batches that are made ahead of it (`AheadIterator`), and to a loader, from one of its workers (`WorkerIterator`).
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import torch
from torch.utils.data import get_worker_info

from tensorquery._util.callers import called, stack_level_outside
from tensorquery.errors import CheckpointMismatchError, ConfigError
from tensorquery.loading.devices import Copies, one_ahead
from tensorquery.loading.epoch_progress import Progress
from tensorquery.loading.transform_threads import Transformed, TransformThreads
from tensorquery.loading.workers.batch_messages import Tagged
from tensorquery.loading.workers.liveness import check_sendable
from tensorquery.metrics.counters import CORE_COUNTS, Measures
from tensorquery.sharding.dynamic_assignment import message_of

if TYPE_CHECKING:
    from tensorquery import _core

__all__ = [
    "CLOSED_BY_NEWER",
    "AheadIterator",
    "LoopIterator",
    "Observer",
    "Reading",
    "Refused",
    "ShardIterator",
    "ShardSource",
    "WorkerIterator",
]

CLOSED_BY_NEWER = (
    "this iterator was closed, because a newer one was started; keep using the newer one, and make a second loader for a "
    "loop inside a loop"
)


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


class ShardSource(Protocol):
    """The dataset, as its iterators know it."""

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
        ...

    def finished(self, progress: Progress) -> None:
        """The epoch is over."""
        ...

    def counted(self, epoch: int, counts: dict[str, float]) -> None:
        """An iterator is closed, and has counted this."""
        ...

    def follows(self, workers: int) -> bool:
        """Whether all cursors follow from the number of steps."""
        ...

    def state_of_shard(self, progress: Progress, worker: int) -> dict[str, Any]:
        """How far it was consumed; see `QueryDataset.state_dict`."""
        ...

    def checked(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """A state that fits; raises `CheckpointMismatchError`."""
        ...

    def begin(self, workers: int, epoch: int, state: dict[str, Any] | None) -> Progress:
        """Start an epoch, from a state where there is one."""
        ...


class Observer(Protocol):
    """Sees how an iterator goes on."""

    def begin(self, progress: Progress) -> None:
        """Reading starts."""
        ...

    def delivered(self, iterator: ShardIterator) -> None:
        """A batch was handed out."""
        ...

    def close(self) -> None:
        """The iterator is closed; may come more than once."""
        ...


@dataclass(frozen=True)
class Reading:
    """How the batches of a shard are made.

    Attributes:
        build: Makes a batch of what the core delivers.
        transform: Called on each batch; None for nothing.
        threads: So many threads call it; None: whoever asks for the batch does.
        counters: Where what is counted is written down; None for nowhere.
        taking: With dynamic assignment, the iteration in which splits are taken.
        raw: Whether batches cross to the loader as the core delivers them.
    """

    build: Callable[[Any], Any]
    transform: Callable[[Any], Any] | None = None
    threads: int | None = None
    counters: Measures | None = None
    taking: int | None = None
    raw: bool = False


class ShardIterator(ABC):
    """The batches of one shard, with a state of its own. Made by ``iter(dataset)``.

    Reading starts with the first batch that is asked for.

    Args:
        source: The dataset.
        progress: Where it starts; counted on with each batch.
        worker: The number of the shard on its rank.
        reading: How batches are made.
        iteration: The iteration of the loader to which what is counted belongs.
    """

    in_loader = False
    """Whether this process is a worker of a loader of `create_dataloader`."""

    def __init__(
        self,
        source: ShardSource,
        progress: Progress,
        worker: int,
        reading: Reading,
        iteration: float = 0.0,
    ) -> None:
        self._source = source
        self._progress = progress
        self._worker = worker
        self._reading = reading
        self._stream: _core.BatchStream | None = None
        self._process = os.getpid()
        self._superseded = False
        self.closed = False
        """Whether it has ended, failed, or was closed."""
        self.last = False
        """Whether the batch delivered last is the last of the shard."""
        self._began = self._until = 0.0
        self._measures = reading.counters
        self._iteration = iteration
        self._due = 0.0
        self._observer: Observer | None = None
        self._build = reading.build
        self._pins = False
        self._calls = [] if reading.transform is None else [reading.transform]

    def __iter__(self) -> ShardIterator:
        return self

    @abstractmethod
    def __next__(self) -> Any:
        """The next batch."""

    @property
    def progress(self) -> Progress:
        """How far it has come."""
        return self._progress

    def observed_by(self, observer: Observer) -> None:
        """Tell `observer` how it goes on."""
        self._observer = observer

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

    def _refuse(self) -> NoReturn:
        """It is closed: raise why there is no batch."""
        if self._superseded:
            raise ConfigError(CLOSED_BY_NEWER)
        raise StopIteration

    def _start(self) -> _core.BatchStream:
        if self._observer is not None:
            self._observer.begin(self._progress)
        self._began = time.perf_counter()
        # A batch that is pinned is one block, which is copied as a whole.
        self._stream = self._source.stream(
            self._progress,
            self._worker,
            taking=self._reading.taking,
            lends=not self._pins,
            # Each batch is copied into a message.
            loose=self._reading.raw,
        )
        return self._stream

    def _failed(self, error: BaseException) -> None:
        """Close it after an error, which a worker has to send."""
        self.close()
        if get_worker_info() is not None:
            check_sendable(error)

    def _stepped(self, last: bool) -> None:
        """A batch is handed out now."""
        self._progress.step += 1
        self.last = last
        if last or self._measures is not None:
            self._measure()

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

    def _end(self) -> None:
        # In a worker the epoch is not over: others may still have batches.
        if self._progress.workers == 0:
            self._source.finished(self._progress)

    def supersede(self) -> None:
        """Close it because a newer one was started."""
        self._superseded = True
        self.close()

    def close(self) -> None:
        """Stop reading; nothing where it is closed already."""
        was_closed, self.closed = self.closed, True
        if self._is_here():
            self._let_go()
            if self._stream is not None:
                self._until = self._until or time.perf_counter()
                # Not what was said with the last batch: somebody may have asked for it already.
                if self._measures is not None and not (was_closed or self.last):
                    self._report(ended=True)
                self._source.counted(self._progress.epoch, self.metrics())
                self._stream.close()
        if self._observer is not None:
            self._observer.close()

    @abstractmethod
    def _let_go(self) -> None:
        """Drop what was received and not handed out."""

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
        return self._stream.counted()

    def metrics(self) -> dict[str, float]:
        """Counts so far; see `QueryDataset.metrics`."""
        counts = dict.fromkeys(CORE_COUNTS, 0.0)
        if self._stream is not None and self._is_here():
            counts.update(self._stream.metrics())
            counts["elapsed_seconds"] = (self._until or time.perf_counter()) - self._began
        return counts

    def state_dict(self) -> dict[str, Any]:
        """How far it was consumed; see `QueryDataset.state_dict`."""
        return self._source.state_of_shard(self._progress, self._worker)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, before the first batch.

        Raises:
            CheckpointMismatchError: The state is of another run, or batches were delivered already.
        """
        checked = self._source.checked(state)
        if self._stream is not None:
            raise CheckpointMismatchError(
                "this iterator has begun; load the state before its first batch"
            )
        workers = self._progress.workers or 0
        self._progress = self._source.begin(workers, checked["epoch"], checked)


class _Received(ShardIterator):
    """Batches that are received in groups, and built when they are asked for."""

    def __init__(self, *arguments: Any, **others: Any) -> None:
        super().__init__(*arguments, **others)
        # Received and not handed out: finished together, and those of them that are built.
        self._raw: deque[Any] = deque()
        self._ready: deque[Any] = deque()

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

    def _let_go(self) -> None:
        self._raw.clear()
        self._ready.clear()


class LoopIterator(_Received):
    """Batches for the loop that asks for them."""

    def __next__(self) -> Any:
        if self.closed:
            self._refuse()
        stream = self._stream or self._start()
        try:
            if not self._ready and not self._receive(stream):
                self._end()
                raise StopIteration
            batch = self._ready.popleft()
            last = stream.advance()
            for call in self._calls:
                batch = called(call, batch)
        except BaseException as error:
            self._failed(error)
            raise
        self._stepped(last)
        progress = self._progress
        if progress.cursors is not None:
            progress.cursors[self._worker] = stream.cursor()
        if last:
            self._end()
        if self._observer is not None:
            self._observer.delivered(self)
        return batch


class WorkerIterator(_Received):
    """Batches of a worker for its loader, with what that has to know of each.

    Attributes:
        rows: Rows delivered so far.
    """

    in_loader = True

    def __init__(self, *arguments: Any, **others: Any) -> None:
        super().__init__(*arguments, **others)
        self.rows = 0
        self._reported = False

    def __next__(self) -> Tagged:
        if self.closed:
            self._refuse()
        stream, takes = self._stream or self._start(), self._reading.taking is not None
        try:
            if not self._ready and not self._receive(stream):
                # That it has come to its end a worker says once; in most cases with its last batch.
                if takes and not self._reported:
                    self._reported = True
                    return Tagged(None, self._worker, True, json.dumps(stream.taken()), True)
                if not self.last:
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
            self._failed(error)
            raise
        self._stepped(last)
        rows = stream.rows
        self.rows += rows
        if takes:
            cursor = message_of(stream.consumed(), stream.cursor())
        else:
            progress = self._progress
            if progress.cursors is not None:
                progress.cursors[self._worker] = stream.cursor()
            follows = self._source.follows(progress.workers or 0)
            cursor = "" if follows else json.dumps(stream.cursor())
        if self._observer is not None:
            self._observer.delivered(self)
        return Tagged(batch, self._worker, last, cursor, rows=rows)

    def sent(self) -> None:
        """Say that all rows so far are on their way to the loader."""
        if self._measures is not None:
            self._measures.sent(self._worker, self.rows)


class AheadIterator(ShardIterator):
    """Batches for the loop that asks for them, made ahead of it: transformed by threads, or copied to a device.

    Args:
        copies: Copies each batch to a device, after all other calls; one is on its way while the one before is in use.
    """

    def __init__(self, *arguments: Any, copies: Copies | None = None, **others: Any) -> None:
        super().__init__(*arguments, **others)
        self._copies = copies
        if self._reading.threads is not None:
            # Threads call the transform.
            self._calls = []
        self._threads: TransformThreads | None = None
        self._ahead: Iterator[Transformed] | None = None
        # Of what is made ahead the part that was handed out.
        self._handed_rows = self._handed_batches = 0

    def __next__(self) -> Any:
        if self.closed:
            self._refuse()
        stream = self._stream or self._start()
        assert self._ahead is not None
        try:
            self._warn_of_cache(stream)
            found = next(self._ahead, None)
            if found is None:
                self._end()
                raise StopIteration
            # Only now it counts.
            self._handed_rows += found.rows
            self._handed_batches += 1
            self._stepped(found.last)
            progress = self._progress
            if progress.cursors is not None:
                progress.cursors[self._worker] = found.cursor
            if found.last:
                self._end()
        except BaseException as error:
            self._failed(error)
            raise
        if self._observer is not None:
            self._observer.delivered(self)
        return found.batch

    def _start(self) -> _core.BatchStream:
        stream, reading = super()._start(), self._reading
        if reading.threads is not None and reading.transform is not None:
            self._threads = TransformThreads(
                stream, self._build, reading.transform, reading.threads
            )
        self._ahead = _made_ahead(stream, self._threads, self._build, self._calls, self._copies)
        return stream

    def _let_go(self) -> None:
        if self._threads is not None:
            self._threads.close()

    def counted(self) -> tuple[int, int]:
        """Rows handed out, and rows of finished batches that are ready, made ahead or not."""
        rows, ready = super().counted()
        return (self._handed_rows, ready + rows - self._handed_rows) if rows or ready else (0, 0)

    def metrics(self) -> dict[str, float]:
        """Counts so far: of batches those that were handed out."""
        counts = super().metrics()
        if self._stream is not None and self._is_here():
            counts["buffered_rows"] += counts["rows"] - self._handed_rows
            counts.update(rows=self._handed_rows, batches=self._handed_batches)
        return counts


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
