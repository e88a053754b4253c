"""A limit of time for what a notebook asks without being told to: a picture must not hold a cell."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType

__all__ = ["Limit"]


_SOON = 0.0001
"""Seconds."""


class _TimeIsUp(BaseException):
    """No `Exception`, so that no other code takes it for an error of its own."""


class Limit:
    """Ends the body of ``with Limit(seconds):`` when the time is up, and goes on after it.

    The compiled half looks for signals while it computes, and drops what it computes when one raises. So this works by
    the alarm signal: in the main thread, on systems that have it, and where nobody else uses it.
    Elsewhere nothing is ended, and `works` says so: then only quick work may run inside.

    Attributes:
        works: Whether the time is limited.
        passed: Whether the time was up.

    >>> with Limit(10) as limit:
    ...     found = 1
    >>> limit.passed
    False
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.works = False
        self.passed = False

    def __enter__(self) -> Limit:
        self.works = (
            hasattr(signal, "setitimer")
            and threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGALRM) in (signal.SIG_DFL, signal.SIG_IGN)
            and signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
        )
        if self.works:
            self._before = signal.signal(signal.SIGALRM, self._end)
            signal.setitimer(signal.ITIMER_REAL, self._seconds)
        return self

    def _end(self, number: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code is Limit.__exit__.__code__:
            # It came when all was done.
            return
        if frame is not None and frame.f_code is Limit.__enter__.__code__:
            # Nothing catches it yet.
            signal.setitimer(signal.ITIMER_REAL, _SOON)
            return
        self.passed = True
        raise _TimeIsUp

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if self.works:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._before)
        return isinstance(error, _TimeIsUp)
