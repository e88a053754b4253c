"""Processes whose partner is gone: a worker without its training process, a training process without a worker.

torch's workers look whether their parent has changed since they had their iterator. One whose training process is killed while
it plans has another parent by then, and waits for that one to end; and the parent of a worker of a fork server is the server, which
lives as long as a worker does. Without more, they outlive the training process, and so does the memory that they share.

torch's loader looks for workers that have died when it cannot get a message. The last message of one that is dying names a
connection that is closed already, a moment before the process counts as dead: torch then lets the connection's error through.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterator
from multiprocessing.connection import wait
from typing import Any, TypeVar

__all__ = ["end_with_trainer", "from_living"]

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


def from_living(found: Iterator[Found]) -> Iterator[Found]:
    """What torch's iterator over workers finds.

    Args:
        found: torch's iterator, with its worker processes.

    Raises:
        RuntimeError: A worker died, in the words of torch, also where it died between sending and being heard.
    """
    workers: list[Any] = getattr(found, "_workers", [])
    while True:
        try:
            one = next(found)
        except StopIteration:
            return
        except (ConnectionError, EOFError, FileNotFoundError) as error:
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
