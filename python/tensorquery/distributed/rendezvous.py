"""Work shared among processes through a key-value store, without a collective.

Any number of processes may come, at any time: one alone does all of the work, several share it, and
what a process took and did not finish, because it failed or died, the others do. A chunk may then be
done twice; its result is the same.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

__all__ = ["Board", "StoreLostError", "share"]

_log = logging.getLogger("tensorquery")

_SHORT, _LONG = 0.005, 0.25
"""Seconds between two looks at the board: the first and the longest."""

_BEAT_SECONDS = 1.0
"""Seconds between two signs of life of a process that works on one chunk for long."""

_ROUNDS = 3
"""Times that others may announce a chunk that does not come, before this process does it unasked."""


class StoreLostError(Exception):
    """The store does not answer, as when the process that serves it has ended."""


class Board:
    """Numbered chunks of one task, and their results, in a store that all processes reach.

    Args:
        store: A `torch.distributed.Store`, or anything with its ``add``, ``set``, ``get`` and ``check``.
        name: The task's name; processes that use one name must mean the same chunks.
        chunks: Number of chunks.
    """

    def __init__(self, store: Any, name: str, chunks: int) -> None:
        self.chunks = chunks
        self._store = store
        self._prefix = f"tensorquery/{name}/{chunks}/"
        self._last_beat = 0.0

    def _ask(self, method: str, *args: Any) -> Any:
        try:
            return getattr(self._store, method)(*args)
        # torch raises RuntimeError and its subclasses, OSError and ValueError, by kind of store.
        except Exception as error:
            raise StoreLostError(f"store.{method}: {error}") from error

    def _add(self, key: str, amount: int) -> int:
        value = self._ask("add", self._prefix + key, amount)
        if not isinstance(value, int) or value < amount:
            raise StoreLostError(f"store.add gave {value!r} after adding {amount}")
        return value

    def claim(self, chunks: int) -> range:
        """Take the next chunks that nobody took; empty where none is left."""
        end = self._add("claimed", chunks)
        return range(min(end - chunks, self.chunks), min(end, self.chunks))

    def announce(self, chunk: int, occasion: str) -> bool:
        """Whether this process is the first to say that it will do a chunk again."""
        return self._add(f"again/{chunk}/{occasion}", 1) == 1

    def release(self, chunks: Sequence[int]) -> None:
        """Say that this process took these chunks and failed."""
        for chunk in chunks:
            self._add(f"failed/{chunk}", 1)
        self._add("failures", 1)
        self.beat()

    def failures(self, chunk: int | None = None) -> int:
        """How often a chunk, or any, was released."""
        return self._add("failures" if chunk is None else f"failed/{chunk}", 0)

    def put(self, chunk: int | str, result: Any) -> None:
        """Publish the result of a chunk, or under another key."""
        self._ask("set", f"{self._prefix}result/{chunk}", json.dumps(result))

    def get(self, chunk: int | str) -> Any | None:
        """The result of a chunk; None where there is none yet, or it is damaged."""
        key = f"{self._prefix}result/{chunk}"
        if not self._ask("check", [key]):
            return None
        try:
            return json.loads(self._ask("get", key))
        except ValueError:
            return None

    def beat(self) -> None:
        """Give a sign of life."""
        self._last_beat = time.monotonic()
        self._add("beat", 1)

    def beat_at_times(self) -> None:
        """Give a sign of life where the last one is some time ago; for calls in a loop."""
        if time.monotonic() - self._last_beat > _BEAT_SECONDS:
            self.beat()

    def beats(self) -> int:
        """Signs of life of all processes: where it stands still, nothing is new."""
        return self._add("beat", 0)


def share(
    board: Board,
    work: Callable[[list[int]], list[Any]],
    accept: Callable[[int, Any], bool],
    *,
    take: int = 1,
    timeout: float = 30.0,
) -> list[Any]:
    """Do chunks together with whoever else does them, and return all results.

    Args:
        board: The chunks.
        work: Does some chunks and returns a result (ready for JSON) for each.
        accept: Takes the result of a chunk from another process, once; False where it cannot be one.
        take: Chunks to take at once.
        timeout: Seconds without a sign of life of any other process after which this one does what
            they took.

    Returns:
        A result per chunk.

    Raises:
        Exception: The error of `work`; its chunks are released to the others first.
    """
    results: dict[int, Any] = {}

    def do(chunks: list[int]) -> None:
        try:
            found = work(chunks)
        except BaseException:
            _quietly(board.release, chunks)
            raise
        # All are kept before the first is published: the store may be lost meanwhile.
        results.update(zip(chunks, found, strict=True))
        for chunk in chunks:
            board.put(chunk, results[chunk])
        board.beat()

    try:
        _look(board, range(board.chunks), results, accept)
        while len(results) < board.chunks and (taken := board.claim(take)):
            if todo := [chunk for chunk in taken if chunk not in results]:
                do(todo)
        _await_others(board, results, accept, do, take, timeout)
    except StoreLostError as error:
        _log.warning(
            "the process group's store does not answer (%s); this rank does the rest alone", error
        )
        if missing := [chunk for chunk in range(board.chunks) if chunk not in results]:
            found = work(missing)
            results.update(zip(missing, found, strict=True))
    return [results[chunk] for chunk in range(board.chunks)]


def _await_others(
    board: Board,
    results: dict[int, Any],
    accept: Callable[[int, Any], bool],
    do: Callable[[list[int]], None],
    take: int,
    timeout: float,
) -> None:
    """Collect what others took; do what they released, or took and show no sign of life for."""

    def redo(todo: Iterable[tuple[int, str | None]]) -> None:
        """Do chunks that nobody else announces for the same occasion; None: without asking."""
        batch: list[int] = []
        for chunk, occasion in todo:
            _look(board, [chunk], results, accept)
            if chunk not in results and (occasion is None or board.announce(chunk, occasion)):
                batch.append(chunk)
            if len(batch) == take:
                do(batch)
                batch = []
        if batch:
            do(batch)

    seen, failures, rounds = -1, 0, 0
    acted: dict[int, int] = {}
    pause, deadline = _SHORT, time.monotonic() + timeout
    while missing := [chunk for chunk in range(board.chunks) if chunk not in results]:
        beats = board.beats()
        if beats != seen:
            seen = beats
            pause, deadline = _SHORT, time.monotonic() + timeout
            _look(board, missing, results, accept)
            if (now := board.failures()) != failures:
                failures = now
                times = {chunk: board.failures(chunk) for chunk in missing}
                released = {chunk: n for chunk, n in times.items() if n > acted.get(chunk, 0)}
                acted.update(released)
                redo((chunk, f"failure {n}") for chunk, n in released.items())
        elif time.monotonic() > deadline:
            rounds += 1
            _log.warning(
                "%d of %d chunks of work that other ranks took did not come, and none of them gave a "
                "sign of life for %g s; this rank does them itself",
                len(missing),
                board.chunks,
                timeout,
            )
            occasion = None if rounds > _ROUNDS else f"round {rounds}"
            redo((chunk, occasion) for chunk in missing)
            deadline = time.monotonic() + timeout
        else:
            time.sleep(pause)
            pause = min(pause * 1.5, _LONG)


def _look(
    board: Board,
    chunks: Sequence[int],
    results: dict[int, Any],
    accept: Callable[[int, Any], bool],
) -> None:
    for chunk in chunks:
        result = board.get(chunk)
        if result is not None and accept(chunk, result):
            results[chunk] = result


def _quietly(release: Callable[[list[int]], None], chunks: list[int]) -> None:
    """Release chunks on the way out with another error, which must not be covered up."""
    try:
        release(chunks)
    except StoreLostError as error:
        _log.warning("the process group's store does not answer (%s)", error)
