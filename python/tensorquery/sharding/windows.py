"""Windows over series: the options, and the series of a plan's rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from tensorquery import _core
from tensorquery._util.digests import digest
from tensorquery._util.options import (
    check_choice,
    check_non_negative_int,
    check_positive_int,
    nearest_name,
)
from tensorquery.errors import ConfigError, DataError
from tensorquery.sharding.row_counts import keep, kept

if TYPE_CHECKING:
    from tensorquery.distributed.broadcast import Channel, Received

__all__ = ["SeriesRows", "Windows", "check_short", "find_series", "spec_of", "wanted_columns"]

SHORT = ("drop", "error")

MOST_ROWS = 2**31 - 1
"""The most rows of the inputs, and of the targets of a sample."""


@dataclass(frozen=True, kw_only=True)
class Windows:
    """Sliding windows over series as samples: ``create_dataloader(…, windows=Windows(…))``.

    Rows with the same values of `by` are a series, in ascending `order`. Window k of a series begins at its row
    ``k * stride``: `size` rows are inputs, and the `horizon` rows behind them are targets. Windows that would reach beyond
    the end of their series are left out, and no window has rows of two series.

    Args:
        by: The columns whose values tell series apart: a name or a list of names. None: all rows are one series.
        order: The column that ascends within each series. Equal values in one series, and NULL here or in `by`, are a
            `DataError`. Gaps are not looked at: a window is consecutive rows, not an interval.
        size: Rows of the inputs.
        stride: Rows from the first row of a window to that of the next one.
        horizon: Rows of the targets.
        columns: The columns of the inputs: a name or a list. None: all columns of the query but `by` and `order`.
        target: The columns of the targets: a name or a list. None: the inputs' columns, where there is a horizon.
        short: What happens to a series of fewer than ``size + horizon`` rows. "drop": it has no window, and is counted in
            ``dataset.windowing.short``; "error": a `DataError` says how many there are.

    Raises:
        ConfigError: An option is malformed; names the value and the allowed ones.
    """

    by: str | Sequence[str] | None = None
    order: str
    size: int
    stride: int = 1
    horizon: int = 0
    columns: str | Sequence[str] | None = None
    target: str | Sequence[str] | None = None
    short: str = "drop"

    def __post_init__(self) -> None:
        """Check all of it, and copy what the user may change later."""
        by = () if self.by is None else _names("by", self.by)
        if not (isinstance(self.order, str) and self.order):
            raise ConfigError(f"order={self.order!r} must be the name of a column")
        if self.order in by:
            raise ConfigError(
                f"order={self.order!r} is also in by={list(by)}, where it cannot ascend"
            )
        object.__setattr__(self, "by", by)
        object.__setattr__(self, "size", check_positive_int("size", self.size, MOST_ROWS))
        object.__setattr__(self, "stride", check_positive_int("stride", self.stride))
        object.__setattr__(
            self, "horizon", check_non_negative_int("horizon", self.horizon, MOST_ROWS)
        )
        check_choice("short", self.short, SHORT)
        for option in ("columns", "target"):
            given = getattr(self, option)
            if given is None:
                continue
            names = _names(option, given)
            object.__setattr__(self, option, names)
            wrong = [name for name in names if option == "columns" and name in (*by, self.order)]
            if wrong:
                raise ConfigError(
                    f"columns={list(names)} has {wrong[0]!r}, whose value in the first row of each window is in the batch "
                    "already; for its values in all rows give it a second name in SQL (AS)"
                )
        if self.target is not None and not self.horizon:
            raise ConfigError(
                f"target={list(self.target)} needs horizon=, the rows behind the inputs that are targets"
            )

    @property
    def series(self) -> list[str]:
        """The columns of `by`."""
        return [] if self.by is None else list(self.by)

    @property
    def identity(self) -> list[Any]:
        """All of it, as plain data."""
        return [
            self.series, self.order, self.size, self.stride, self.horizon, self.columns, self.target, self.short,
        ]  # fmt: skip


def inputs_of(windows: Windows, columns: Sequence[str]) -> list[str]:
    """The columns of the inputs, of a query with these columns."""
    if windows.columns is not None:
        return list(windows.columns)
    return [name for name in columns if name not in (*windows.series, windows.order)]


def targets_of(windows: Windows, columns: Sequence[str]) -> list[str]:
    """The columns of the targets, of a query with these columns."""
    if not windows.horizon:
        return []
    return inputs_of(windows, columns) if windows.target is None else list(windows.target)


def wanted_columns(windows: Windows, columns: Sequence[str]) -> list[str]:
    """Those of a query's columns that samples have.

    Raises:
        ConfigError: A column is unknown, or two outputs would have one name.
    """
    series = [*windows.series, windows.order]
    inputs, targets = inputs_of(windows, columns), targets_of(windows, columns)
    for name in (*series, *inputs, *targets):
        if name not in columns:
            near = nearest_name(name, columns)
            hint = f"; did you mean {near!r}?" if near else f"; it has {', '.join(columns)}"
            raise ConfigError(f"windows: the query has no column {name!r}{hint}")
    if not inputs:
        raise ConfigError(
            f"windows: the query has no column beside {', '.join(series)}; select what the samples are made of"
        )
    outputs = [*series, *inputs, *map(target_name, targets)]
    twice = [name for name in outputs if outputs.count(name) > 1]
    if twice:
        raise ConfigError(
            f"windows: two outputs would be named {twice[0]!r}; rename a column in SQL (AS)"
        )
    return [name for name in columns if name in {*series, *inputs, *targets}]


def spec_of(windows: Windows, columns: Sequence[str]) -> str:
    """The windows of a query with these columns, for the core."""
    return json.dumps(
        {
            "size": windows.size,
            "horizon": windows.horizon,
            "stride": windows.stride,
            "first": [*windows.series, windows.order],
            "inputs": inputs_of(windows, columns),
            "targets": [[name, target_name(name)] for name in targets_of(windows, columns)],
        }
    )


def target_name(column: str) -> str:
    """The output of a column's targets."""
    return f"{column}_target"


def _names(option: str, given: Any) -> tuple[str, ...]:
    """A name or several, each once."""
    if isinstance(given, str):
        names: tuple[Any, ...] = (given,)
    elif isinstance(given, bytes | set | frozenset | Mapping) or not isinstance(given, Iterable):
        raise ConfigError(f"{option}={given!r} must be the name of a column, or a list of names")
    else:
        names = tuple(given)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(
            f"{option}={given!r} must name at least one column, by strings that are not empty"
        )
    if len(set(names)) < len(names):
        raise ConfigError(f"{option}={list(names)} names a column twice")
    return names


class SeriesRows(NamedTuple):
    """The rows of a plan as series."""

    counts: list[int]
    """Rows by split."""
    lengths: list[int]
    """Rows by series, in the order of the rows."""
    unsorted: str | None = None
    """The first row that is not in its place, in words; then there are no rows here."""


def find_series(
    plan: _core.Plan, windows: Windows, channel: Channel | None, threads: int
) -> SeriesRows:
    """Find the series of a plan's rows, and prove that each lies in one piece and in order.

    Reads the columns `by` and `order` of all rows once, on one rank for all of a channel. What it found is kept on disk, as
    counts are.

    Args:
        plan: The query by splits, all of them.
        windows: The options.
        channel: The ranks; None: this process looks by itself.
        threads: Splits that decode at the same time.

    Raises:
        DataError: A row has NULL in one of the columns, or the order of its predecessor; names file and row.
        ConfigError: A column has a type without an order.
    """

    def find() -> SeriesRows:
        known = digest([windows.series, windows.order])
        name = f"{plan.fingerprint}-series-{known}"
        splits = plan.num_splits
        cached = kept(name, plan.fingerprint, lambda rows: _is_series(rows, splits))
        if cached is not None:
            return SeriesRows(*cached)
        found = SeriesRows(*_core.Windows.series(plan, windows.series, windows.order, threads))
        if found.unsorted is None:
            keep(name, plan.fingerprint, [found.counts, found.lengths])
        return found

    if channel is None:
        return find()

    def pack(found: SeriesRows) -> dict[str, bytes]:
        return {"series": json.dumps(found).encode()}

    def take(got: Received) -> SeriesRows:
        return SeriesRows(*json.loads(got["series"]))

    what = ["series of a query", plan.fingerprint, windows.series, windows.order]
    return channel.once(what, find, pack, take)


def _is_series(found: Any, splits: int) -> bool:
    """Whether kept data are the rows of so many splits, as series."""
    if not (isinstance(found, list) and len(found) == 2):
        return False
    counts, lengths = found
    are_counts = all(
        isinstance(numbers, list) and all(type(rows) is int and rows >= 0 for rows in numbers)
        for numbers in found
    )
    return are_counts and len(counts) == splits and sum(counts) == sum(lengths)


def check_short(windows: Windows, lengths: Sequence[int]) -> None:
    """Refuse series that are too short for a window, where that is asked for.

    Raises:
        DataError: There are some; says how many, and the shortest.
    """
    span = windows.size + windows.horizon
    short = [rows for rows in lengths if rows < span]
    if short and windows.short == "error":
        raise DataError(
            f"{len(short)} of {len(lengths)} series have fewer than the {span} rows of a window (size={windows.size} and "
            f"horizon={windows.horizon}), the shortest {min(short)}; leave them out in SQL, use smaller windows, or "
            'short="drop"'
        )
