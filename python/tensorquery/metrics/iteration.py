"""One iteration of a loader as its training loop sees it: the time, what came, and how much of the time it waited."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from tensorquery.metrics.progress import EpochBar
from tensorquery.metrics.time_series import FIRST_INTERVAL, LoaderStatistics, Samples

__all__ = ["Watch"]

Found = TypeVar("Found")


class Watch:
    """A loader's notes of an iteration. It looks at the clock with every batch, and at all else ten times a second.

    Args:
        epoch: The epoch.
        workers: Worker processes.
        iteration: The number under which the workers write down what they count.

    Attributes:
        epoch: The same.
        workers: The same.
        iteration: The same.
        rows: Rows received, as far as the loader counts them: from workers.
        batches: Batches received.
        input_seconds: Seconds that the training loop spent in getting them.
        wait_seconds: Seconds of these that it waited for a worker.
        due: When it wants to look, by `time.perf_counter`.
        last: Whether the batch received last is the last one, as far as the loader knows: from workers.
        ended: Whether the iteration is over, to its end or not.
    """

    def __init__(self, epoch: int, workers: int, iteration: int) -> None:
        self.epoch = epoch
        self.workers = workers
        self.iteration = iteration
        self.rows = 0
        self.batches = 0
        self.input_seconds = 0.0
        self.wait_seconds = 0.0
        self.due = 0.0
        self.last = False
        self.ended = False
        self._began: float | None = None
        self._until: float | None = None
        self._bar: EpochBar | None = None
        self._samples = Samples()

    def begin(self, bar: EpochBar | None) -> float:
        """Begin, where the first batch is asked for; returns that time."""
        self._began = time.perf_counter()
        self._bar = bar
        self.due = self._began + FIRST_INTERVAL
        return self._began

    def times(self) -> dict[str, float]:
        """The fields of `Metrics` that only a loader knows."""
        elapsed = 0.0
        if self._began is not None:
            elapsed = (time.perf_counter() if self._until is None else self._until) - self._began
        share = min(1.0, self.input_seconds / elapsed) if elapsed > 0 else 0.0
        return {
            "elapsed_seconds": elapsed,
            "input_seconds": self.input_seconds,
            "wait_share": share,
        }

    def look(self, now: float, rows: float, buffered: float) -> None:
        """Take a sample and move the bar.

        Args:
            now: The time.
            rows: Rows received.
            buffered: Rows that are ready.
        """
        assert self._began is not None
        self.due = now + FIRST_INTERVAL
        if now - self._began >= self._samples.due:
            self._samples.add(now - self._began, rows, self.input_seconds, buffered)
        if self._bar is not None:
            self._bar.show(int(rows), self.times()["wait_share"])

    def end(self, rows: float) -> None:
        """The iteration is over; the bar closes. Nothing where it was over before.

        Args:
            rows: Rows received.
        """
        if self.ended:
            return
        self.ended = True
        if self._began is None:
            return
        now = self._until = time.perf_counter()
        self._samples.add(now - self._began, rows, self.input_seconds, 0.0)
        if self._bar is not None:
            self._bar.show(int(rows), self.times()["wait_share"])
            self._bar.close()
            self._bar = None

    def waiting(self, found: Iterator[Found]) -> Iterator[Found]:
        """Hand on the items of `found`; the time that each takes is time that the loop waited."""
        clock: Callable[[], float] = time.perf_counter
        while True:
            asked = clock()
            try:
                one = next(found)
            except StopIteration:
                return
            finally:
                self.wait_seconds += clock() - asked
            yield one

    def statistics(self) -> LoaderStatistics:
        """How it went on over time."""
        return self._samples.statistics(self.epoch)
