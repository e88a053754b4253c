"""Objects of the user's that threads of the compiled half call, and that travel to worker processes."""

from __future__ import annotations

import atexit
import functools
import importlib
import os
import pickle
import threading
from typing import Any, cast

from tensorquery.errors import ConfigError, StorageError

__all__ = ["calls", "dumps"]

_PATIENCE = 10.0
"""Seconds that the end of the interpreter waits for calls that are under way."""


def dumps(thing: Any, what: str) -> bytes:
    """A pickle for a worker process: by cloudpickle where it is installed.

    Args:
        thing: The object to send.
        what: Its name in an error.

    Raises:
        ConfigError: It cannot be pickled.
    """
    try:
        pickler: Any = importlib.import_module("cloudpickle")
    except ImportError:
        pickler = pickle
    try:
        return cast(bytes, pickler.dumps(thing))
    except Exception as error:
        hint = (
            "" if pickler is not pickle else "; define it in a module, or pip install cloudpickle"
        )
        raise ConfigError(
            f"{what} cannot be sent to worker processes, because it cannot be pickled "
            f'({type(error).__name__}: {error}){hint}; multiprocessing_context="fork" and num_workers=0 need no pickle'
        ) from error


# A thread that comes back into Python after the interpreter's end would end the process badly.


class _Calls:
    """Counts the calls that threads of the compiled half are in."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._running = 0
        self._closed = False

    def __enter__(self) -> None:
        with self._changed:
            if self._closed:
                raise StorageError("the Python interpreter is ending")
            self._running += 1

    def __exit__(self, *error: object) -> None:
        with self._changed:
            self._running -= 1
            self._changed.notify_all()

    def close(self) -> None:
        """Refuse new calls, and wait for those under way."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: self._running == 0, _PATIENCE)


calls = _Calls()
atexit.register(calls.close)
os.register_at_fork(after_in_child=functools.partial(_Calls._reset, calls))
