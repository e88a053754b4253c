"""Storms of signals: many of them, at random instants, to ranks that train and to their workers.

What a rank does about one is what training programs do: it notes that it shall stop, raises an exception (each time, or once),
or has no handler. Where one raises, the rank notes what its loop has received, and its state, before it ends.
"""

import contextlib
import itertools
import os
import random
import signal
import time

from . import sandbox
from .schedule import STORM_INT


def strike(scene, fault, go_on):
    """Let the ranks go on, and send signals for a while."""
    details = fault.details
    number = signal.SIGINT if fault.kind == STORM_INT else signal.SIGTERM
    chance = random.Random(details["pick"])
    go_on()
    time.sleep(details["after"])
    rows, sent = scene.rows(), 0
    end = time.monotonic() + details["seconds"]
    while time.monotonic() < end:
        victims = list(scene.pids.values())
        if details["of_workers"]:
            victims += [pid for rank in victims for pid in sandbox.children_of(rank)]
        for pid in victims:
            # A rank that has ended is not yet waited for, so that its number is nobody else's.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
                sent += 1
        time.sleep(chance.expovariate(1 / details["pause"]))
    return {"sent": sent, "manner": details["manner"], "rows": rows}


def prepare(fault):
    """Of a rank: handle the signals of a storm in the manner that the fault says."""
    number = signal.SIGINT if fault.kind == STORM_INT else signal.SIGTERM
    match fault.details["manner"]:
        case "kills":
            signal.signal(number, signal.SIG_DFL)
        case "notes":
            heard = itertools.count()
            signal.signal(number, lambda *_: next(heard))
        case manner:
            signal.signal(number, _Raises(once=manner == "raises once"))


class _Raises:
    """A handler that raises, as Python's own for SIGINT does."""

    def __init__(self, once):
        self._once = once

    def __call__(self, number, frame):
        if self._once:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)


def calm():
    """Of a rank: hear no more of them."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
