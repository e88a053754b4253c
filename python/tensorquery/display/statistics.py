"""How an epoch of a loader went on: as lines in a notebook, and by matplotlib."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from tensorquery.display.html import Raw, box, failure, line, text_of
from tensorquery.display.plot import import_pyplot, styled, without_ground
from tensorquery.errors import ConfigError

__all__ = ["Series", "draw_statistics", "statistics_html"]

_WIDTH, _HEIGHT, _LEFT = 640, 60, 90


class Series(Protocol):
    """Samples of an epoch: arrays of the same length, as `LoaderStatistics` has them."""

    @property
    def epoch(self) -> int | None:
        """The epoch; None before the first iteration."""
        ...

    @property
    def seconds(self) -> Any:
        """When each sample was taken, in seconds since the beginning."""
        ...

    @property
    def rows(self) -> Any:
        """Rows received until then."""
        ...

    @property
    def rows_per_second(self) -> Any:
        """Rows per second since the sample before."""
        ...

    @property
    def wait_share(self) -> Any:
        """Share of that time in which the training loop waited, 0 to 1."""
        ...

    @property
    def buffered_rows(self) -> Any:
        """Rows that were ready."""
        ...

    def __len__(self) -> int: ...


def _curves(found: Series) -> list[tuple[str, Any, float | None]]:
    """The curves that are drawn: a title, the values, and the most that there can be."""
    return [
        ("rows/s", found.rows_per_second, None),
        ("wait share", found.wait_share, 1.0),
        ("rows ready", found.buffered_rows, None),
    ]


def draw_statistics(found: Series, axes: Any | None) -> Any:
    """The body of `LoaderStatistics.plot`."""
    pyplot = import_pyplot()
    if axes is None:
        figure, axes = pyplot.subplots(3, 1, figsize=(8.0, 5.0), sharex=True, layout="constrained")
        without_ground(figure)
        for each in axes:
            styled(each)
    panels = list(np.ravel(axes))
    if len(panels) != 3:
        raise ConfigError(
            f"plot() draws on three axes, one below the other, and got {len(panels)}: matplotlib.pyplot.subplots(3, 1)"
        )
    for panel, (title, values, most) in zip(panels, _curves(found), strict=True):
        panel.plot(found.seconds, values, color="#4c8fce", linewidth=1.5)
        panel.fill_between(found.seconds, values, color="#4c8fce", alpha=0.25, linewidth=0)
        panel.set_ylabel(title)
        panel.set_ylim(0, most if most is not None else None)
    panels[-1].set_xlabel("seconds")
    panels[0].set_title(_said(found))
    return axes


def statistics_html(found: Series) -> str:
    """The statistics in a box.

    Args:
        found: Any.

    Returns:
        HTML.
    """
    try:
        if not len(found):
            return box("LoaderStatistics", line("no samples yet"))
        curves = [
            _curve(title, found.seconds, values, most) for title, values, most in _curves(found)
        ]
        return box("LoaderStatistics", line(_said(found)), *curves)
    except Exception as error:
        return box("LoaderStatistics", failure(error))


def _said(found: Series) -> str:
    if not len(found):
        return "no samples yet"
    seconds, rows = float(found.seconds[-1]), float(found.rows[-1])
    spans = np.diff(found.seconds, prepend=0.0)
    waited = float((found.wait_share * spans).sum()) / max(seconds, 1e-9)
    return f"epoch {found.epoch}: {rows:,.0f} rows in {seconds:.1f} s, {rows / max(seconds, 1e-9):,.0f} rows/s, wait share {waited:.0%}"


def _curve(title: str, seconds: Any, values: Any, most: float | None) -> Raw:
    """A line over time, in the colour of the page's text."""
    top = most or float(max(values)) or 1.0
    end = float(seconds[-1]) or 1.0
    width = _WIDTH - _LEFT
    points = [
        (_LEFT + width * float(second) / end, 6 + _HEIGHT * (1 - float(value) / top))
        for second, value in zip(seconds, values, strict=True)
    ]
    # Each value is of the time since the sample before.
    points = [(float(_LEFT), points[0][1]), *points]
    drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    base = 6 + _HEIGHT
    label = f"{top:,.0%}" if most is not None else f"{top:,.0f}"
    return Raw(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT + 12}" role="img" '
        f'aria-label="{text_of(title)} over time" style="max-width:{_WIDTH}px;width:100%;color:inherit" font-size="11" '
        f'font-family="inherit">'
        f'<polygon points="{_LEFT},{base} {drawn} {points[-1][0]:.1f},{base}" fill="currentColor" fill-opacity=".15"/>'
        f'<polyline points="{drawn}" fill="none" stroke="currentColor" stroke-opacity=".8"/>'
        f'<text x="{_LEFT - 6}" y="14" text-anchor="end" fill="currentColor">{label}</text>'
        f'<text x="{_LEFT - 6}" y="30" text-anchor="end" fill="currentColor" fill-opacity=".75">{text_of(title)}</text>'
        f'<text x="{_LEFT - 6}" y="{base}" text-anchor="end" fill="currentColor" fill-opacity=".75">0</text></svg>'
    )
