"""Shared memory that the workers of a loader fill again and again.

A fresh page of shared memory is a page fault in both processes, several times as long as it takes to copy a batch into
it. So each worker keeps a few segments. One is lent to the loader with every message; once the last tensor over it is
gone, the byte that stands for it in memory that both sides see says so (`_core.Lease`), and the worker fills it anew.
Where all are still lent, since the training loop keeps its batches, a message gets memory of its own.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any, ClassVar

import torch

from tensorquery import _core
from tensorquery._util.shared_memory import shared

__all__ = ["MessageHeader", "SegmentPool", "Segments"]

SEGMENTS = 8
"""Segments of one worker, as many as are lent at one time: batches that wait for the loader or that the loop holds."""

SMALLEST = 1 << 20
LARGEST = 1 << 24
"""Bytes of a segment; larger messages get memory of their own."""

_FREE, _LENT, _ABANDONED = range(3)

_numbers = itertools.count()


class MessageHeader:
    """The loader, as the workers of one iteration know it: where their messages go, and the states of the segments."""

    def __init__(self, pool: int, states: torch.Tensor) -> None:
        self.pool = pool
        self.states = states


class SegmentPool:
    """The loader's side: segments lent by its workers.

    Args:
        workers: How many there are.
    """

    _known: ClassVar[weakref.WeakValueDictionary[int, SegmentPool]] = weakref.WeakValueDictionary()

    def __init__(self, workers: int) -> None:
        self._number = next(_numbers)
        self._states = shared(workers * SEGMENTS).zero_().reshape(workers, SEGMENTS)
        # Buffers over each worker's states, and over its segments.
        self._state_rows = [row.numpy() for row in self._states]
        self._segments: dict[tuple[int, int], Any] = {}
        SegmentPool._known[self._number] = self

    def header(self) -> MessageHeader:
        """The header that workers get before they start."""
        return MessageHeader(self._number, self._states)

    def close(self) -> None:
        """Stop waiting: later messages are dropped."""
        self._known.pop(self._number, None)

    @classmethod
    def received(
        cls, pool: int, sender: int, segment: int, memory: torch.Tensor | None, size: int
    ) -> _core.Lease | None:
        """The first `size` bytes of a segment, until nobody holds them; None where nobody waits for them any more.

        Args:
            pool: The number of the loader's pool.
            sender: The worker process whose segment it is, by its number among them.
            segment: Its number.
            memory: The segment, where it comes for the first time.
            size: The bytes in use.
        """
        self = cls._known.get(pool)
        if self is None:
            return None
        if memory is not None:
            self._segments[sender, segment] = memory.numpy()
        buffer = self._segments[sender, segment]
        return _core.Lease(buffer, size, self._state_rows[sender], segment)


class Segments:
    """A worker's side: its segments.

    Args:
        states: uint8 of shape (SEGMENTS,), shared with the loader: 0 for free, 1 for lent, 2 for abandoned.
    """

    def __init__(self, states: torch.Tensor) -> None:
        self._states = states.numpy()
        self._memory: dict[int, torch.Tensor] = {}

    def lend(self, size: int) -> tuple[int, torch.Tensor, bool] | None:
        """A segment of at least `size` bytes that counts as lent now: its number, its memory, and whether that is new.

        None where all are lent, or `size` is too large.
        """
        if size > LARGEST:
            return None
        for number, state in enumerate(self._states.tolist()):
            if state == _LENT:
                continue
            memory = self._memory.get(number)
            is_new = memory is None or state == _ABANDONED or memory.nbytes < size
            if is_new:
                memory = shared(max(SMALLEST, 1 << (size - 1).bit_length()))
                self._memory[number] = memory
            assert memory is not None
            # The bytes are written after the state was read: no processor moves a store before the load that it hangs on.
            self._states[number] = _LENT
            return number, memory, is_new
        return None
