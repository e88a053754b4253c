"""Processes whose partner is gone, or says nothing: a worker without its training process, a training process without a worker.

torch's workers look whether their parent has changed since they had their iterator. One whose training process is killed while
it plans has another parent by then, and waits for that one to end; and the parent of a worker of a fork server is the server, which
lives as long as a worker does. Without more, they outlive the training process, and so does the memory that they share.

torch's loader looks for workers that have died when it cannot get a message. The last message of one that is dying names a
connection that is closed already, a moment before the process counts as dead: torch then lets the connection's error through.

What cannot be pickled or sent the queue of a worker drops, and the worker goes on: where it was an error, as if it had come to its
end. And the thread that sends may itself fail, for want of memory: then nothing is sent any more, and nobody hears of it. So it is with what
the training process asks of its workers, which it would wait for forever.
"""

from __future__ import annotations

import copy
import ctypes
import multiprocessing
import os
import pickle
import threading
import traceback
from collections.abc import Iterator
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from multiprocessing.queues import Queue
from multiprocessing.reduction import ForkingPickler
from multiprocessing.util import is_exiting
from queue import Full
from typing import Any, NoReturn, TypeVar

__all__ = [
    "asking_at_once",
    "check_sendable",
    "end_with_trainer",
    "end_with_what_is_lost",
    "from_living",
]

Found = TypeVar("Found")

_DYING_SECONDS = 2.0
"""How long a process may take from closing its connections to its end: a killed one gives its memory back in between."""

_LOOK_SECONDS = 2.0
"""How often a worker looks whether its training process is still there. The end of a pipe says so at once, unless another process
that was forked since holds it, too."""

_watched: set[int] = set()


def end_with_trainer() -> None:
    """End this worker process when the process that started it has ended.

    By a thread: a signal that Linux sends at a parent's end comes when the thread has ended that forked.
    """
    trainer = multiprocessing.parent_process()
    if trainer is None or os.getpid() in _watched:
        return
    _watched.add(os.getpid())
    parent = os.getppid()

    def watch() -> None:
        while trainer.is_alive() and os.getppid() == parent and _exists(trainer.pid):
            trainer.join(_LOOK_SECONDS)
        # Nobody is left who could read what an exit would say, or wait for it.
        os._exit(1)

    threading.Thread(target=watch, name="tensorquery-trainer", daemon=True).start()


def _exists(process: int | None) -> bool:
    if process is None or os.name != "posix":
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def check_sendable(error: BaseException) -> None:
    """Let an error of the user's code in a worker pass where it can be sent.

    Raises:
        RuntimeError: Its class was made at run time, or in a function, so that no other process knows it; in its words.
    """
    try:
        pickle.dumps(type(error))
    except MemoryError:
        # That says nothing of the class, and the error, or the end of the iteration, is not another one for it.
        return
    except Exception:
        raise RuntimeError(f"{type(error).__qualname__}: {error}") from error


_drop = Queue._on_queue_feeder_error  # type: ignore[attr-defined]
_feed = Queue._feed  # type: ignore[attr-defined]


def end_with_what_is_lost() -> None:
    """End this worker process when a batch or an error cannot be sent, for want of memory for example: that its loader notices."""
    Queue._on_queue_feeder_error = staticmethod(_not_sent)  # type: ignore[attr-defined]
    Queue._feed = staticmethod(_fed)  # type: ignore[attr-defined]


class _Unchanged:
    """A semaphore that nobody releases."""

    def release(self) -> None:
        """Do nothing."""


def _fed(*arguments: Any) -> None:
    """Run the thread of a queue until the queue is closed.

    On any failure, `multiprocessing` takes back the count of the item in the queue's semaphore. Where that was sent, and only the wait for
    the next one failed, who receives it would take back as much once more, and fail in place of this process.
    """
    *others, failed, semaphore = arguments

    def lost(error: BaseException, item: Any) -> None:
        failed(error, item)
        # The process goes on, without the item.
        semaphore.release()

    try:
        _feed(*others, lost, _Unchanged())
    except BaseException as error:
        _end(error)


def _not_sent(error: BaseException, item: Any) -> None:
    """Handle an object that a queue cannot send: by itself it would print the error and go on.

    torch sends each message with its batch's number. Other queues work as usual, unless it was pickled already: of a message
    that broke off, its receiver waits for the rest, and takes what comes next for it.
    """
    if isinstance(item, bytes | bytearray | memoryview) or (
        isinstance(item, tuple) and len(item) > 1 and type(item[0]) is int
    ):
        _end(error)
    _drop(error, item)


def _end(error: BaseException) -> NoReturn:
    try:
        traceback.print_exception(error)
    finally:
        os._exit(1)


def asking_at_once(context: BaseContext | None) -> BaseContext:
    """A context whose queues send the training process's items at once, and whose events need no lock.

    So it hears of failures to send, and no lock is kept by a worker that was killed, or by a signal's exception.

    Args:
        context: The one that it stands for; None is the default.
    """
    real = multiprocessing.get_context() if context is None else context
    asking = copy.copy(real)
    asking.Queue = partial(_Questions, ctx=real)  # type: ignore[method-assign]
    asking.Event = partial(_Flag, ctx=real)  # type: ignore[assignment,method-assign]
    return asking


class _Flag:
    """An event that the training process sets, and for which nobody waits.

    The lock of `multiprocessing.Event` stays taken by a worker that is killed while it looks, and by a signal's exception between
    taking the lock and the block behind it: then torch would wait for ever when it ends its workers.
    """

    def __init__(self, *, ctx: BaseContext) -> None:
        self._is_set = ctx.RawValue(ctypes.c_bool, False)

    def is_set(self) -> bool:
        """Whether it was set."""
        return bool(self._is_set.value)

    def set(self) -> None:
        """Set it."""
        self._is_set.value = True


class _Questions(Queue):  # type: ignore[type-arg]
    """A queue without a thread that sends, in the process that made it: a pipe holds thousands of such lines. Others have it."""

    _asker: int | None = None
    _closed: bool
    _sem: Any
    _writer: Any

    def __init__(self, maxsize: int = 0, *, ctx: BaseContext) -> None:
        super().__init__(maxsize, ctx=ctx)
        self._asker = os.getpid()
        # Only threads of this process ask. The lock of `multiprocessing` is entered by Python code: an exception of a signal's
        # handler, after it is taken and before the block begins, would keep it for ever.
        self._asking = threading.Lock()

    def put(self, obj: Any, block: bool = True, timeout: float | None = None) -> None:
        """Send it."""
        # A pair that begins with None wakes the thread that pins memory, by way of the queue of all workers: one that was
        # killed may have kept the lock of that.
        if os.getpid() != self._asker or (isinstance(obj, tuple) and obj[0] is None):
            super().put(obj, block, timeout)
            return
        written = ForkingPickler.dumps(obj)
        if self._closed:
            raise ValueError(f"Queue {self!r} is closed")
        if not self._sem.acquire(block, timeout):
            raise Full
        with self._asking:
            self._writer.send_bytes(written)


def from_living(found: Iterator[Found]) -> Iterator[Found]:
    """Hand on what torch's iterator over workers finds.

    Args:
        found: torch's iterator, with its worker processes.

    Raises:
        RuntimeError: A worker died, in the words of torch, also where it died between sending and being heard.
        SystemExit: The program ends, which ends its workers, and a daemon thread reads on: it ends without a word.
    """
    workers: list[Any] = getattr(found, "_workers", [])
    while True:
        try:
            one = next(found)
        except StopIteration:
            return
        except (RuntimeError, ConnectionError, EOFError, FileNotFoundError) as error:
            if is_exiting() and threading.current_thread().daemon:
                raise SystemExit from None
            if isinstance(error, RuntimeError):
                raise
            # One that has nothing more to send has ended well, and says nothing about the error.
            ending = [each for each in workers if each.is_alive()]
            gone = wait([each.sentinel for each in ending], timeout=_DYING_SECONDS)
            for each in ending:
                if each.sentinel in gone:
                    # Its connections are closed; in a moment it is known how it ended.
                    each.join(_DYING_SECONDS)
            died = [str(each.pid) for each in workers if each.exitcode not in (None, 0)]
            if not died:
                raise
            raise RuntimeError(
                f"DataLoader worker (pid(s) {', '.join(died)}) exited unexpectedly"
            ) from error
        yield one
