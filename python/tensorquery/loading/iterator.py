"""An iterator over one shard's batches, and how far it has come; `delivery` has one for each way of delivering them."""

from __future__ import annotations

import logging
import os
import sys
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, TypeAlias

from tensorquery import _core
from tensorquery._util.callers import stack_level_outside
from tensorquery._util.optional import worker_info
from tensorquery.errors import CheckpointMismatchError, ConfigError
from tensorquery.loading.epoch_progress import Progress
from tensorquery.loading.workers.liveness import check_sendable
from tensorquery.metrics.counters import CORE_COUNTS, SharedCounters

_LOG = logging.getLogger("tensorquery")

__all__ = [
    "CLOSED_BY_NEWER",
    "Change",
    "Made",
    "Observer",
    "Reading",
    "Refused",
    "ShardIterator",
    "ShardSource",
    "noted_failures",
]

CLOSED_BY_NEWER = (
    "this iterator was closed, because a newer one was started; keep using the newer one, and make a second loader for a "
    "loop inside a loop"
)


Change: TypeAlias = tuple[Any, Any, Any]
"""An object, an attribute and its new value; or a list, an index and the new item."""

Made: TypeAlias = tuple[Any, bool, tuple[Change, ...], _core.BatchStream | None]
"""A batch that does not count yet; whether it is the last; what changes when the loop has it; the stream that then hands it out."""


def noted_failures(progress: Progress, worker: int, failed: tuple[tuple[int, str], ...]) -> Change:
    """The change by which a progress knows of rows that were left out; warns of the first of an epoch, and logs all."""
    for row, error in failed:
        _LOG.info(
            "transform failed on row %d of shard %d, which is left out: %s", row, worker, error
        )
    if not progress.failed:
        warnings.warn(
            f"transform failed on a row ({failed[0][1]}), which is left out; dataset.failed_rows names it and all that follow",
            UserWarning,
            stacklevel=stack_level_outside(),
        )
    return progress, "failed", (*progress.failed, *((worker, *one) for one in failed))


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

    def delivered(self, rows: int) -> None:
        """A batch is handed out next, and with it so many rows in all."""
        ...

    def close(self) -> None:
        """The iterator is closed; may come more than once."""
        ...


@dataclass(frozen=True)
class Reading:
    """How the batches of a shard are made.

    Attributes:
        build: Makes a batch from the core's output.
        transform: Called on each batch; None for nothing.
        threads: So many threads call it; None: whoever asks for the batch does.
        counters: The counters to update; None for none.
        taking: With dynamic assignment, the iteration in which splits are taken.
        raw: Whether batches cross to the loader as the core delivers them.
    """

    build: Callable[[Any], Any]
    transform: Callable[[Any], Any] | None = None
    threads: int | None = None
    counters: SharedCounters | None = None
    taking: int | None = None
    raw: bool = False


class ShardIterator(_core.Delivery, ABC):
    """The batches of one shard, with a state of its own. Made by ``iter(dataset)``.

    Reading starts with the first batch that is asked for. A batch counts in the moment in which it is returned: an exception
    that a signal's handler raises before leaves a state without it. It also ends the iterator.

    Args:
        source: The dataset.
        progress: Where it starts; counted on with each batch.
        worker: The number of the shard on its rank.
        reading: How batches are made.
        iteration: The loader's iteration to which the counts belong.
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

    @abstractmethod
    def made(self) -> Made:
        """Make the next batch, without counting it.

        Raises:
            StopIteration: There is none.
        """

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

    def pin_blocks(self, pin: Callable[[Any], Any]) -> None:
        """Put every batch into pinned memory, all its numbers together.

        Args:
            pin: Copies a block of bytes there.
        """
        build = self._build
        self._pins = True

        def pinned(raw: Any) -> Any:
            rows, block, *others = raw
            return build((rows, pin(block) if len(block) else block, *others))

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

    def failed(self, error: BaseException) -> None:
        """Close it after an error, which a worker has to send, or after the last batch."""
        self.close()
        if worker_info() is not None:
            check_sendable(error)

    def _counted(
        self,
        batch: Any,
        rows: int,
        last: bool,
        cursor: list[int] | None,
        *,
        stream: _core.BatchStream | None = None,
        others: tuple[Change, ...] = (),
        failed: tuple[tuple[int, str], ...] = (),
    ) -> Made:
        """A batch, and what changes when the loop has it.

        Args:
            batch: The batch.
            rows: Its rows.
            last: Whether it is the shard's last.
            cursor: How far the shard is consumed with it, where that is kept.
            stream: The stream that hands it out, unless it has done so.
            others: Other changes.
            failed: Rows left out since the batch before, and the errors of the transform.
        """
        progress = self._progress
        changes: tuple[Change, ...] = ((progress, "step", progress.step + 1), *others)
        if progress.cursors is not None:
            changes += ((progress.cursors, self._worker, cursor),)
        if failed:
            changes += (noted_failures(progress, self._worker, failed),)
        if last:
            # In a worker the epoch is not over: others may still have batches.
            changes += ((self, "last", True), (progress, "over", not progress.workers))
        if last or self._measures is not None:
            self._measure(last, rows)
        if self._observer is not None:
            self._observer.delivered(self.counted()[0] + rows)
        return batch, last, changes, stream

    @staticmethod
    def _warn_of_cache(stream: _core.BatchStream) -> None:
        trouble = stream.cache_trouble()
        if trouble is not None:
            warnings.warn(trouble, UserWarning, stacklevel=stack_level_outside())

    def _measure(self, last: bool, rows: int = 0) -> None:
        """Write the counts down now and then, and with the last batch before it is handed out.

        Args:
            last: Whether it is the last batch.
            rows: Rows of the batch that is handed out next, where it does not count yet.
        """
        now = time.perf_counter()
        if last:
            self._until = now
        if self._measures is not None and (last or now >= self._due):
            self._report(ended=last, rows=rows)
            self._due = now + _REPORT_SECONDS

    def _report(self, *, ended: bool, rows: int = 0) -> None:
        assert self._measures is not None
        epoch, counts = self._progress.epoch, self.metrics()
        if rows:
            counts["rows"] += rows
            counts["batches"] += 1
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
                # Not the counts of the last batch: somebody may have asked for them already.
                if self._measures is not None and not (was_closed or self.last):
                    self._report(ended=True)
                self._source.counted(self._progress.epoch, self.metrics())
                self._stream.close()
        if self._observer is not None:
            self._observer.close()

    @abstractmethod
    def _let_go(self) -> None:
        """Drop batches that were received and not handed out."""

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        # At interpreter exit the modules needed for this may be gone; Rust's side ends by itself.
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
