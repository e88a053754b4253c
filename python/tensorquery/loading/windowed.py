"""Loaders whose samples are windows over series: dealt, shuffled and resumed as rows are.

One pass over two columns finds the series (`find_series`). From their lengths each process knows which windows begin in which
split, so that a window is a row of its split: all that deals, shuffles, counts and resumes rows does so with windows. The core
reads the rows of a run of windows once, and copies each into the windows that have it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorquery import _core
from tensorquery.errors import ConfigError, DataError
from tensorquery.sharding.shards import DEFAULT_SPLIT_BYTES
from tensorquery.sharding.windows import (
    SeriesRows,
    Windows,
    check_short,
    find_series,
    spec_of,
    wanted_columns,
)
from tensorquery.sql.query import Query

if TYPE_CHECKING:
    from tensorquery.distributed.broadcast import Channel
    from tensorquery.loading.options import LoaderOptions
    from tensorquery.loading.shared_plan import FoundPlan
    from tensorquery.sharding.deal import Deal

__all__ = ["SeriesWindows", "Windowing", "check_windows", "find_windows"]

_SPANS = 16
"""A split has the rows of so many windows side by side at least, unless the user chooses."""
_WINDOW_BYTES = 64 << 20
_LEAST_ROWS = 1 << 12
_MOST_ROWS = 1 << 16


@dataclass(frozen=True)
class Windowing:
    """What windows there are: ``dataset.windowing``.

    Attributes:
        rows: Rows of the query.
        series: Series.
        short: Series with fewer rows than a window has; they are in no sample.
        windows: Windows of an epoch, of all ranks together.
        unused: Rows that are in no window: of short series, at the end of others, and between windows where the stride is
            larger than a window.
    """

    rows: int
    series: int
    short: int
    windows: int
    unused: int


class SeriesWindows:
    """The windows over a plan's rows.

    Args:
        plan: The plan, with all its splits.
        windows: The options.
        columns: The columns of the query.
        series: Its rows as series.
    """

    def __init__(
        self, plan: _core.Plan, windows: Windows, columns: list[str], series: SeriesRows
    ) -> None:
        self.windows = windows
        self._spec = spec_of(windows, columns)
        self._series = series
        self.core: _core.Windows | None = None
        self.open(plan)

    def open(self, plan: _core.Plan) -> None:
        """Go on with the plan of this process."""
        self.core = _core.Windows(plan, self._spec, self._series.counts, self._series.lengths)

    @property
    def opened(self) -> _core.Windows:
        """What makes windows."""
        assert self.core is not None, "a copy makes no windows before it is moved"
        return self.core

    @property
    def counts(self) -> list[int]:
        """Windows by split, each in the split of its first row."""
        return self.opened.counts()

    def dealt(self, deal: Deal) -> Deal:
        """How they are dealt: by default a shuffle window holds as many as fit 64 MiB."""
        if deal.shuffle is not True or deal.buffer is not None:
            return deal
        fitting = _WINDOW_BYTES // self.opened.window_bytes
        return replace(deal, buffer=max(_LEAST_ROWS, min(_MOST_ROWS, fitting)))

    @property
    def report(self) -> Windowing:
        """How many there are, and what is in none."""
        lengths = np.array(self._series.lengths, dtype=np.int64)
        span, stride = self.windows.size + self.windows.horizon, self.windows.stride
        counts = np.where(lengths < span, 0, (lengths - span) // stride + 1)
        covered = np.where(counts > 0, (counts - 1) * min(stride, span) + span, 0)
        rows = int(lengths.sum())
        return Windowing(
            rows,
            len(lengths),
            int(np.count_nonzero(lengths < span)),
            int(counts.sum()),
            rows - int(covered.sum()),
        )

    def rows_of(self, positions: list[tuple[int, int]]) -> list[tuple[int, list[tuple[int, int]]]]:
        """Of windows, each a split and its number there: the number of the first row among all rows, and all rows by split."""
        span = self.windows.size + self.windows.horizon
        firsts = self.opened.first_rows(positions)
        rows = self.opened.places([row for first in firsts for row in range(first, first + span)])
        return [
            (first, rows[place * span : (place + 1) * span]) for place, first in enumerate(firsts)
        ]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "core": None}


def check_windows(query: Any, options: LoaderOptions, windows: Windows) -> None:
    """Refuse options that have no meaning for windows.

    Raises:
        ConfigError: One was given; names it and what to do.
    """
    if not isinstance(query, Query):
        raise ConfigError(
            "windows= takes one query and no mixture; write the mixture as SQL (UNION ALL) with a column of its sources in by="
        )
    wrong = {
        f"sample_weight={options.sample_weight!r}": (
            options.sample_weight is not None,
            "draws single rows; leave series out in SQL instead",
        ),
        'shuffle="global"': (
            options.shuffle == "global",
            "permutes single rows on disk; use shuffle=True, with a larger shuffle_buffer_size to mix more windows",
        ),
        "exclude=": (bool(options.exclude), "names single rows; leave them out by filters="),
        f"on_error={options.on_error!r}": (
            options.skips,
            "would leave gaps that look like neighbours; leave the bad file out by its path",
        ),
        f"on_transform_error={options.on_transform_error!r}": (
            options.on_transform_error != "raise",
            "lists the failed rows; let transform catch the error",
        ),
        "keyed=": (bool(options.keyed), "makes ids of single rows"),
    }
    for option, (is_given, reason) in wrong.items():
        if is_given:
            raise ConfigError(f"{option} does not go with windows=: it {reason}")


def find_windows(
    query: Query,
    options: LoaderOptions,
    windows: Windows,
    stage_out: Callable[[Query], Query],
    plan: Callable[[Query, int | None], FoundPlan],
    channel: Channel | None,
    threads: int,
) -> tuple[Query, FoundPlan, SeriesWindows]:
    """Plan windows over a query's rows: as they lie where they are sorted, else over a sorted stage of them.

    Args:
        query: The query.
        options: The options of the loader.
        windows: The options of windows.
        stage_out: Makes a query that reads this one's stages.
        plan: Plans a staged query in splits of so many rows, or as it chooses.
        channel: The ranks that find things out together.
        threads: Splits that decode at the same time.

    Returns:
        The staged query, its plan, and the windows.

    Raises:
        ConfigError: A column is unknown, or of a type that has no order.
        DataError: NULL or equal values where there may be none; or rows are not sorted, and may not be staged.
    """
    names = query.column_names
    wanted = wanted_columns(windows, names)
    if len(wanted) < len(names):
        query, names = query.select(wanted), wanted
    by_order = [*windows.series, windows.order]
    span = windows.size + windows.horizon

    def planned(staged: Query) -> FoundPlan:
        found = plan(staged, options.split_rows)
        rows, splits = found.plan.known_rows(), found.plan.num_splits
        is_chosen = options.split_rows is not None or options.split_bytes != DEFAULT_SPLIT_BYTES
        if is_chosen or rows is None or splits < 2 or rows >= splits * _SPANS * span:
            return found
        # Each split also reads the rows of windows that reach into the next one.
        return plan(staged, _SPANS * span)

    staged = stage_out(query._sorted(by_order) if options.stage == "always" else query)
    found = planned(staged)
    series = find_series(found.plan, windows, channel, threads)
    if series.unsorted is not None:
        fix = f"sort the rows by {', '.join(by_order)}"
        if options.stage == "never":
            raise DataError(
                f'windows: {series.unsorted}; {fix} when they are written, or leave out stage="never", so that they are sorted '
                "into a stage"
            )
        if options.stage_from is not None:
            raise DataError(f"windows: {series.unsorted}; {fix} in the data of stage_from=")
        staged = stage_out(query._sorted(by_order))
        found = planned(staged)
        series = find_series(found.plan, windows, channel, threads)
        if series.unsorted is not None:
            raise DataError(
                f"windows: {series.unsorted} in the sorted stage; please report it with the query"
            )
    check_short(windows, series.lengths)
    return staged, found, SeriesWindows(found.plan, windows, names, series)
