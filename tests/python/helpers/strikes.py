"""Signals whose handler raises, at random instants of a training loop."""

import itertools
import random
import signal
from collections import Counter
from operator import itemgetter

import numpy as np

BATCH = 10


class Strike(BaseException):
    """Raised by the handler; no `except Exception` catches it."""


def struck(within, work):
    """Call `work`, and raise `Strike` once in it, after so many seconds; returns whether it came."""
    heard = []

    def strike(*_):
        heard.append(True)
        raise Strike

    before = signal.signal(signal.SIGALRM, strike)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, within)
            work()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except BaseException:
        # Locks of the standard library raise another error where a signal interrupts them.
        if not heard:
            raise
    finally:
        signal.signal(signal.SIGALRM, before)
    return bool(heard)


def rows_of(batch):
    """The values of `x` in what a loop received."""
    return np.asarray(batch).reshape(-1).tolist()


def struck_epochs(make, strikes, longest, column=itemgetter("x"), starts=True):
    """Strike loops over whole epochs, and resume each from the state that it left.

    Args:
        make: Makes what is iterated over, and what has `state_dict` and `load_state_dict`; called for each epoch.
        strikes: How many loops to strike.
        longest: Seconds in which the signal comes.
        column: Takes the rows out of a batch; compiled code, in which no signal is heard.
        starts: Whether to strike every second loop before its first batch, too.

    Returns:
        How many loops were struck, and rows that came twice, or never, over all epochs.
    """
    chance = random.Random(len(str(strikes)))
    came = wrong = 0
    while came < strikes:
        loader, keeper = make()
        received, ended = [], []
        for attempt in itertools.count():
            state = keeper.state_dict()
            if state.get("epoch", 0):
                # The signal came after the last batch, and before the end.
                break
            if attempt:
                keeper.load_state_dict(state)
            batches = []

            def loop(received=received, batches=batches, ended=ended):
                batches = batches.pop() if batches else iter(loader)  # noqa: B023
                # In compiled code: what `extend` has got it keeps.
                received.extend(map(column, batches))
                ended.append(True)

            if not (starts and attempt % 2):
                batches.append(iter(loader))
                received.extend(map(column, itertools.islice(batches[0], 1)))
            if came < strikes:
                came += struck(chance.uniform(1e-5, longest), loop)
            else:
                # What is left, in one go: where batches come slowly, each strike leaves nearly all of the epoch.
                loop()
            if ended:
                break
        rows = Counter(itertools.chain.from_iterable(map(rows_of, received)))
        wrong += sum(rows[row] != 1 for row in range(max(rows) + 1))
    return came, wrong
