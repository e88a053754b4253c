"""Transforms of successive batches side by side, in threads of the training process."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias

from tensorquery._util.callers import called
from tensorquery._util.options import check_positive_int
from tensorquery.errors import ConfigError

if TYPE_CHECKING:
    from tensorquery import _core

__all__ = ["TransformThreads", "Transformed", "check_threads", "refuse_threads"]

_PREFETCH = 2
"""Finished batches that may wait, besides the ones in progress."""


@dataclass(frozen=True)
class Transformed:
    """A batch, and where the shard stands when the training loop has received it."""

    batch: Any
    cursor: list[int]
    last: bool
    rows: int
    """Rows of the batch before any transform."""
    failed: tuple[tuple[int, str], ...] = ()
    """Rows left out since the batch before: the number in the shard, and the error."""


def check_threads(threads: Any, transform: object) -> int | None:
    """Return `threads` where it is None, or at least 1 and there is a transform to run; else raise `ConfigError`."""
    if threads is None:
        return None
    count = check_positive_int("transform_threads", threads)
    if transform is None:
        raise ConfigError(
            f"transform_threads={count} has nothing to run; give transform= too, or leave it out"
        )
    return count


def refuse_threads(threads: int | None, workers: int) -> None:
    """Raise `ConfigError` where there are worker processes, too."""
    if threads is not None:
        raise ConfigError(
            f"transform_threads={threads} goes with num_workers=0: {workers} worker "
            f"process{'es' if workers > 1 else ''} already run transform in parallel; leave one of the two out"
        )


_Place: TypeAlias = "SimpleQueue[tuple[Transformed | None, BaseException | None]]"
"""Where a batch comes, or the end, or an error."""


class TransformThreads:
    """Reads batches of a stream in order, calls `transform` on several at once, and hands them out in order.

    At most ``threads + 2`` batches are read and not handed out. An exception, of reading or of `transform`, is raised in
    the place of its batch.

    Threads of the standard library's executor are joined when the interpreter ends, and a signal whose exception interrupts
    one of its locks would make that wait last forever. So these are daemon threads, behind queues that no signal can break.

    Args:
        stream: Where raw batches come from.
        build: Makes a batch of a raw one; called by one thread at a time.
        transform: Called by several threads at a time.
        threads: How many.
    """

    def __init__(
        self,
        stream: _core.BatchStream,
        build: Callable[[Any], Any],
        transform: Callable[[Any], Any],
        threads: int,
    ) -> None:
        self._stream, self._build, self._transform = stream, build, transform
        self._ahead = threads + _PREFETCH
        self._process = os.getpid()
        # None ends a thread.
        self._tasks: SimpleQueue[bool | None] = SimpleQueue()
        self._reading = threading.Lock()
        self._ended = False
        self._closed = False
        # Places of batches in order: all that were not handed out, and of these the ones that nobody reads yet.
        self._places: deque[_Place] = deque()
        self._unread: deque[_Place] = deque()
        self._threads = [
            threading.Thread(target=self._run, name=f"tensorquery-transform_{number}", daemon=True)
            for number in range(threads)
        ]

    def start(self) -> None:
        """Begin. Where a signal interrupts this, `close` ends what was begun."""
        for thread in self._threads:
            thread.start()

    def next(self) -> Transformed | None:
        """The next batch; None at the end."""
        while len(self._places) < self._ahead and not self._ended:
            place: _Place = SimpleQueue()
            self._places.append(place)
            self._unread.append(place)
            self._tasks.put(True)
        if not self._places:
            return None
        made, error = self._places.popleft().get()
        if error is not None:
            raise error
        return made

    def _run(self) -> None:
        while self._tasks.get() is not None:
            self._work()

    def _work(self) -> None:
        with self._reading:
            # Threads come here in any order; the first place belongs to the batch that is read next.
            place = self._unread.popleft()
            try:
                raw = None if self._ended or self._closed else self._stream.next()
                if raw is None:
                    self._ended = True
                    place.put((None, None))
                    return
                batch, stream = self._build(raw), self._stream
                made = Transformed(batch, stream.cursor(), stream.last, stream.rows)
                self._ended = made.last
            except BaseException as error:
                self._ended = True
                place.put((None, error))
                return
        if self._closed:
            place.put((None, None))
            return
        try:
            place.put((replace(made, batch=called(self._transform, batch)), None))
        except BaseException as error:
            place.put((None, error))

    def close(self) -> None:
        """Begin no further batch. Threads finish the batches in progress, and then end."""
        self._closed = True
        # Inherited by a fork, it has no threads here, and a lock of the queue may be held forever.
        if self._process == os.getpid():
            for _ in self._threads:
                self._tasks.put(None)
