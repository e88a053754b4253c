"""How a loader's throughput, wait and buffer went on over the time of an epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorquery.display.statistics import draw_statistics, statistics_html

__all__ = ["LoaderStatistics", "Samples"]

FIRST_INTERVAL = 0.1
"""Seconds between two samples, at first."""

MOST_SAMPLES = 512


class Samples:
    """Samples of growing counts, a bounded number of them: where they are too many, every other one goes.

    The growth of a count between two kept samples is still their difference, so that only detail is lost.
    """

    def __init__(self) -> None:
        self._kept: list[tuple[float, float, float, float]] = [(0.0, 0.0, 0.0, 0.0)]
        self._interval = FIRST_INTERVAL
        self.due = self._interval
        """Seconds since the beginning at which the next sample is due."""

    def add(self, seconds: float, rows: float, waited: float, buffered: float) -> None:
        """Add a sample.

        Args:
            seconds: Since the beginning.
            rows: Rows received so far.
            waited: Seconds waited for input so far.
            buffered: Rows that are ready now.
        """
        if len(self._kept) >= MOST_SAMPLES:
            # The first stays: later counts start from it.
            self._kept = self._kept[::2]
            self._interval *= 2
        self._kept.append((seconds, rows, waited, buffered))
        self.due = seconds + self._interval

    def statistics(self, epoch: int) -> LoaderStatistics:
        """The samples as arrays."""
        seconds, rows, waited, buffered = np.array(self._kept, dtype=np.float64).T
        spans = np.maximum(np.diff(seconds), 1e-9)
        return LoaderStatistics(
            epoch=epoch,
            seconds=seconds[1:],
            rows=rows[1:],
            rows_per_second=np.diff(rows) / spans,
            wait_share=np.clip(np.diff(waited) / spans, 0.0, 1.0),
            buffered_rows=buffered[1:],
        )


@dataclass(frozen=True, eq=False)
class LoaderStatistics:
    """How an epoch went on over time, in samples: 0.1 seconds apart at first, and never more than 512.

    A loader's ``statistics`` belong to the iteration that was begun last. All arrays are float64 of shape (S,), for S
    samples; S is 0 before the first one.

    Attributes:
        epoch: The epoch; None before the first iteration.
        seconds: When each sample was taken, in seconds since the first batch was asked for.
        rows: Rows that the training loop had received by then.
        rows_per_second: Rows received per second since the sample before.
        wait_share: The part of the time since the sample before that the training loop spent getting batches, from 0 to 1.
        buffered_rows: Rows of finished batches that were ready then and not yet received.
    """

    epoch: int | None
    seconds: NDArray[np.float64]
    rows: NDArray[np.float64]
    rows_per_second: NDArray[np.float64]
    wait_share: NDArray[np.float64]
    buffered_rows: NDArray[np.float64]

    @classmethod
    def none(cls) -> LoaderStatistics:
        """Those of a loader that has not begun.

        Returns:
            Statistics without a sample.
        """
        return cls(None, *(np.empty(0) for _ in range(5)))

    def __len__(self) -> int:
        """Samples."""
        return len(self.seconds)

    def plot(self, axes: Any | None = None) -> Any:
        """Draw throughput, wait share and buffer fill over time; needs matplotlib (``tensorquery[plot]``).

        Args:
            axes: Three ``matplotlib.axes.Axes``, one below the other; None makes a figure.

        Returns:
            The three axes, for labels and titles of your own.

        Raises:
            ImportError: matplotlib is not installed.
            ConfigError: `axes` are not three.
        """
        return draw_statistics(self, axes)

    def _repr_html_(self) -> str:
        return statistics_html(self)

    def __repr__(self) -> str:
        if not len(self):
            return "LoaderStatistics(no samples yet)"
        rate = self.rows[-1] / max(self.seconds[-1], 1e-9)
        return (
            f"LoaderStatistics(epoch {self.epoch}, {len(self)} samples in {self.seconds[-1]:.1f} s, "
            f"{rate:,.0f} rows/s)"
        )
