"""Batches of a worker process in runs, each of which crosses to its loader as one message.

How many batches a run holds follows from the options and the run's number alone, never from time or data, so that the messages
of all workers hold equally many and batches come in the turns of the workers as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

__all__ = [
    "MESSAGE_BYTES",
    "BatchRun",
    "BatchRuns",
    "Sending",
    "TaggedBatch",
    "batches_per_message",
]

MESSAGE_BYTES = 2 << 20
"""Bytes of a message with more than one batch: large enough that sending it costs little by the batch."""

SHARED_BYTES = 40 << 20
"""Bytes that all workers together may share, as long as batches are smaller than messages: containers have 64 MiB."""

_LENT_AT_ONCE = 5
"""Messages of one worker: two that torch fetches ahead, one on its way, one that is read and one that is filled."""

MOST_BATCHES = 256


class TaggedBatch(NamedTuple):
    """A batch on its way from a worker to its loader."""

    batch: Any
    worker: int
    last: bool
    """Whether it is the last of its worker."""
    cursor: str
    """How far the worker's shard is consumed by it; empty where that follows from the step."""
    is_report: bool = False
    """Whether it is no batch: the worker has ended, and `cursor` is the list of the pieces that it took."""
    rows: int = 0
    """Rows of the batch before any transform."""
    failed: tuple[tuple[int, str], ...] = ()
    """Rows of its shard left out since the batch before, and the errors of the transform."""


class Sending(NamedTuple):
    """How the workers of a loader send batches; the same for all of them."""

    raw: bool = False
    """Whether a batch crosses as the core delivers it, and the loader builds it."""
    batches: int = 1
    """Batches in one message, but for the first ones."""


def batches_per_message(batch_bytes: int, workers: int) -> int:
    """Batches of about so many bytes that go into one message, at least one; the more workers, the fewer."""
    message_bytes = min(MESSAGE_BYTES, SHARED_BYTES // (_LENT_AT_ONCE * max(1, workers)))
    return max(1, min(MOST_BATCHES, message_bytes // max(1, batch_bytes)))


class BatchRun(NamedTuple):
    """Batches of one worker that cross together."""

    batches: list[TaggedBatch]
    is_torn: bool = False
    """True if the next batch failed: its error follows the run."""


class BatchRuns:
    """The batches of a worker in runs of growing length: 1, 2, 4 and so on, that the first comes at once.

    An error after the first batch of a run is raised when the next run is asked for, as if the batches had been
    asked for one by one.

    Args:
        batches: The batches.
        most: Batches of the longest run.
        ready: Called with each run that is ready.
    """

    def __init__(
        self, batches: Iterator[Any], most: int, ready: Callable[[], None] | None = None
    ) -> None:
        self._batches = batches
        self._most = most
        self._ready = ready
        self._sent = 0
        self._failure: Exception | None = None

    def __iter__(self) -> BatchRuns:
        return self

    def __next__(self) -> BatchRun:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        wanted = min(1 << self._sent, self._most)
        self._sent = min(self._sent + 1, MOST_BATCHES.bit_length())
        batches: list[TaggedBatch] = []
        try:
            while len(batches) < wanted:
                batches.append(next(self._batches))
        except Exception as error:
            # The end of the iteration is one of them.
            if not batches:
                raise
            self._failure = error
        if self._ready is not None:
            self._ready()
        is_torn = self._failure is not None and not isinstance(self._failure, StopIteration)
        return BatchRun(batches, is_torn)
