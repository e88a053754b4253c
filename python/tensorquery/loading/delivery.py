"""The three ways in which batches of a shard are delivered.

To the loop that asks for them (`LoopIterator`), to such a loop from batches that are made ahead of it (`AheadIterator`),
and to a loader, from one of its workers (`WorkerIterator`).
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tensorquery._util.callers import called
from tensorquery.loading.ahead import Copies, one_ahead
from tensorquery.loading.iterator import Change, Made, ShardIterator
from tensorquery.loading.refill import failures_before
from tensorquery.loading.transform_threads import Transformed, TransformThreads
from tensorquery.loading.workers.batch_runs import TaggedBatch
from tensorquery.sharding.dynamic_assignment import message_of

if TYPE_CHECKING:
    from tensorquery import _core

__all__ = ["AheadIterator", "LoopIterator", "WorkerIterator"]


class _Received(ShardIterator):
    """Batches that are received in groups, and built when they are asked for."""

    def __init__(self, *arguments: Any, **others: Any) -> None:
        super().__init__(*arguments, **others)
        # Received and not handed out: batches finished together, and the built ones among them.
        self._raw: deque[Any] = deque()
        self._ready: deque[Any] = deque()

    def _receive(self, stream: _core.BatchStream) -> bool:
        """Wait for the next batch, and build it with all batches finished with it; False at the end.

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

    def made(self) -> Made:
        """Make the next batch, without counting it."""
        if self.closed:
            self._refuse()
        stream = self._stream or self._start()
        if not self._ready and not self._receive(stream):
            self._end()
            raise StopIteration
        batch = self._ready.popleft()
        for call in self._calls:
            batch = called(call, batch)
        rows, last, cursor = stream.upcoming(self._progress.cursors is not None)
        return self._counted(batch, rows, last, cursor, stream=stream)


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

    def made(self) -> Made:
        """Never called: `__next__` is its own here, since a worker counts what it sends, and not what the loop gets."""
        raise NotImplementedError

    def __next__(self) -> TaggedBatch:
        """The next batch, or a report, as a message of this worker."""
        if self.closed:
            self._refuse()
        stream, takes = self._stream or self._start(), self._reading.taking is not None
        try:
            if not self._ready and not self._receive(stream):
                # That it has come to its end a worker says once; in most cases with its last batch.
                if takes and not self._reported:
                    self._reported = True
                    return TaggedBatch(None, self._worker, True, json.dumps(stream.taken()), True)
                if not self.last:
                    self.last = True
                    self._measure(True)
                    return TaggedBatch(None, self._worker, True, "[]", True)
                self._end()
                raise StopIteration
            batch = self._ready.popleft()
            last = stream.advance()
            for call in self._calls:
                batch = called(call, batch)
        except BaseException as error:
            self.failed(error)
            raise
        self._progress.step += 1
        self.last = last
        if last or self._measures is not None:
            self._measure(last)
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
            self._observer.delivered(self.counted()[0])
        failed = failures_before(stream)
        return TaggedBatch(batch, self._worker, last, cursor, rows=rows, failed=failed)

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
        # The delivered part of the batches made ahead.
        self._handed_rows = self._handed_batches = 0

    def made(self) -> Made:
        """Make the next batch, without counting it."""
        if self.closed:
            self._refuse()
        stream = self._stream or self._start()
        assert self._ahead is not None
        self._warn_of_cache(stream)
        found = next(self._ahead, None)
        if found is None:
            self._end()
            raise StopIteration
        handed: tuple[Change, ...] = (
            (self, "_handed_rows", self._handed_rows + found.rows),
            (self, "_handed_batches", self._handed_batches + 1),
        )
        return self._counted(
            found.batch, found.rows, found.last, found.cursor, others=handed, failed=found.failed
        )

    def _start(self) -> _core.BatchStream:
        stream, reading = super()._start(), self._reading
        if reading.threads is not None and reading.transform is not None:
            self._threads = TransformThreads(
                stream, self._build, reading.transform, reading.threads
            )
            self._threads.start()
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
        """Counts so far, of delivered batches only."""
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
            batch = build(raw)
            yield Transformed(
                batch, stream.cursor(), stream.last, stream.rows, failures_before(stream)
            )

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
