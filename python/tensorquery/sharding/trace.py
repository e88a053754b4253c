"""Which rows a batch was made of: for hunting a loss spike, and for leaving those rows out of a later run."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from tensorquery.errors import ConfigError
from tensorquery.sharding.delivered import Dealt, Share

if TYPE_CHECKING:
    from tensorquery import _core

__all__ = ["Trace", "TraceRange", "excluded_ranges", "trace_batch"]

RowsOf = Callable[[list[tuple[int, int]]], list[tuple[int, list[tuple[int, int]]]]]
"""Of windows (split, and number there): the number of the first row among all, and split and output row of each row."""

_SHOWN_RANGES = 20
_SHOWN_ROWS = 4


class TraceRange(NamedTuple):
    """Consecutive output rows of one split, all of them in one batch, and the physical rows behind them.

    It goes into ``exclude=`` as it is; its first three items are the ones used there.
    """

    split: int
    """The split's id, as in `ShardPlan.splits`."""
    start: int
    """First output row, counted from the start of the split, after filters and joins."""
    end: int
    """One past the last output row."""
    path: str
    """The file, as the user would write it; "memory" for a table in memory."""
    row_groups: tuple[int, ...]
    """The row groups (or stripes, record batches, blocks) in which the physical rows lie, ascending; empty for text."""
    physical_rows: tuple[tuple[int, int], ...]
    """First and one past the last of each run of physical rows, ascending and counted from 0."""
    counted_from: str
    """The unit from whose start physical rows are counted: "file"; "table" for one in memory; "split" for a part of a text
    file before which nobody counted the rows. Header lines are no rows."""
    repeated: bool
    """Whether these rows were repeated to fill the batch (``remainder="pad"``)."""
    snapshot_id: int | None = None
    """The Iceberg snapshot; None for plain files."""


@dataclass(frozen=True, repr=False)
class Trace:
    """The rows of one batch, as returned by `QueryDataset.trace`. Printing shows a table.

    Attributes:
        epoch: The epoch.
        rank: The rank that delivers the batch.
        step: The number of the batch on its rank, from 0.
        worker: The worker that delivers it; 0 without worker processes.
        rows: Rows of the batch.
        ranges: Its rows by split, ascending, repeated ones last: ``exclude=trace.ranges`` leaves them out. With ``windows=``
            all rows of the batch's windows; what follows is of the first row of each.
        positions: For each row, in the order of the batch, its split and its output row there.
        physical_rows: For each row, in the order of the batch, the physical row behind it, counted as the range's
            ``counted_from`` says; several rows have the same one where a join or ``unnest`` repeats it.
        row_numbers: For each row, in the order of the batch, its number among the rows of the query, from 0: the index that
            `QueryRows` takes.
    """

    epoch: int
    rank: int
    step: int
    worker: int
    rows: int
    ranges: tuple[TraceRange, ...]
    positions: tuple[tuple[int, int], ...]
    physical_rows: tuple[int, ...]
    row_numbers: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The trace as plain data, ready for JSON.

        Returns:
            The attributes by name; each range is a dict.
        """
        return {
            "epoch": self.epoch,
            "rank": self.rank,
            "step": self.step,
            "worker": self.worker,
            "rows": self.rows,
            "ranges": [
                {
                    **one._asdict(),
                    "row_groups": list(one.row_groups),
                    "physical_rows": [list(run) for run in one.physical_rows],
                }
                for one in self.ranges
            ],
            "positions": [list(position) for position in self.positions],
            "physical_rows": list(self.physical_rows),
            "row_numbers": list(self.row_numbers),
        }

    def __repr__(self) -> str:
        title = (
            f"Trace of step {self.step} of rank {self.rank} in epoch {self.epoch} (worker {self.worker}): "
            f"{self.rows} rows in {len(self.ranges)} ranges"
        )
        table = [("split", "rows", "row groups", "physical rows", "of", "path")]
        for one in self.ranges[:_SHOWN_RANGES]:
            rows = f"{one.start}..{one.end}" + (" (repeated)" if one.repeated else "")
            runs = [f"{start}..{end}" for start, end in one.physical_rows]
            table.append(
                (
                    str(one.split),
                    rows,
                    _some([str(group) for group in one.row_groups]) or "-",
                    _some(runs),
                    one.counted_from,
                    one.path,
                )
            )
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in table
        ]
        more = len(self.ranges) - _SHOWN_RANGES
        return "\n".join([title, *lines, *([f"and {more} more ranges"] if more > 0 else [])])


def _some(texts: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    more = len(texts) - _SHOWN_ROWS
    return ", ".join(texts[:_SHOWN_ROWS]) + (f" and {more} more" if more > 0 else "")


def trace_batch(
    plan: _core.Plan,
    dealt: Dealt,
    share: Share,
    step: int,
    rows_of: RowsOf | None = None,
) -> Trace:
    """Find the rows of a batch without delivering it.

    Args:
        plan: The plan, with all its splits.
        dealt: Its rows, dealt again.
        share: The rank and the epoch.
        step: Which of its batches.
        rows_of: The rows of windows, where these are dealt; None: what is dealt are rows.

    Raises:
        ConfigError: There is no such step; names how many there are.
        DataError: A file cannot be read, or has other rows than were counted.
    """
    [batch] = dealt.batches(share, step, step + 1)
    samples = list(zip(batch.splits.tolist(), batch.rows.tolist(), strict=True))
    if rows_of is None:
        starts = [0, *itertools.accumulate(dealt.counts)]
        found = [(starts[split] + row, [(split, row)]) for split, row in samples]
    else:
        found = rows_of(samples)
    positions = [rows[0] for _, rows in found]
    fresh = [row for _, rows in found[: batch.fresh] for row in rows]
    repeated = [row for _, rows in found[batch.fresh :] for row in rows]
    physical = physical_of(plan, [*fresh, *repeated])
    return Trace(
        epoch=share.epoch,
        rank=share.rank,
        step=step,
        worker=batch.worker,
        rows=len(positions),
        ranges=(
            *ranges_of(plan, fresh, physical, repeated=False),
            *ranges_of(plan, repeated, physical, repeated=True),
        ),
        positions=tuple(positions),
        physical_rows=tuple(physical[position] for position in positions),
        row_numbers=tuple(number for number, _ in found),
    )


def physical_of(
    plan: _core.Plan, positions: Iterable[tuple[int, int]]
) -> dict[tuple[int, int], int]:
    """The physical row behind each row; splits are read one after the other."""
    by_split: dict[int, list[int]] = {}
    for split, row in sorted(set(positions)):
        by_split.setdefault(split, []).append(row)
    found = plan.physical_rows(list(by_split.items()))
    return {
        (split, row): physical
        for (split, rows), numbers in zip(by_split.items(), found, strict=True)
        for row, physical in zip(rows, numbers, strict=True)
    }


def ranges_of(
    plan: _core.Plan,
    positions: Iterable[tuple[int, int]],
    physical: dict[tuple[int, int], int],
    *,
    repeated: bool = False,
) -> list[TraceRange]:
    """Rows of splits as ranges, with the physical rows behind them."""
    ranges = []
    by_split = itertools.groupby(sorted(set(positions)), key=lambda position: position[0])
    for split, rows in by_split:
        described = plan.splits([split])[0]
        path, snapshot = described[1], described[8]
        ends = [end for _, end in plan.file_row_groups(split)]
        counted_from = plan.numbering(split)
        for start, end in _runs(row for _, row in rows):
            behind = sorted({physical[split, row] for row in range(start, end)})
            groups = sorted({bisect_right(ends, row) for row in behind}) if ends else []
            ranges.append(
                TraceRange(
                    split,
                    start,
                    end,
                    path,
                    tuple(groups),
                    _runs(behind),
                    counted_from,
                    repeated,
                    snapshot,
                )
            )
    return ranges


def _runs(numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Ascending numbers as runs: first, one past the last."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number:
            runs[-1] = (runs[-1][0], number + 1)
        else:
            runs.append((number, number + 1))
    return tuple(runs)


def excluded_ranges(exclude: Iterable[Any] | None) -> tuple[tuple[int, int, int], ...]:
    """Ranges of output rows by split, from traces or plain triples.

    Raises:
        ConfigError: One of them is no range.
    """
    if exclude is None:
        return ()
    if isinstance(exclude, Trace):
        exclude = exclude.ranges
    if isinstance(exclude, (str, bytes)) or not isinstance(exclude, Iterable):
        raise ConfigError(
            f"exclude={exclude!r} must be a list of ranges of trace(), or of (split, first row, one past the last)"
        )
    ranges = []
    for given in exclude:
        try:
            triple = tuple(given)[:3]
            split, start, end = (int(number) for number in triple)
            exact = (split, start, end) == triple
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"exclude has {given!r}; expected ranges of trace(), or (split, first row, one past the last)"
            ) from error
        if not exact or not 0 <= start <= end or split < 0:
            raise ConfigError(
                f"exclude has {given!r}; expected whole numbers: a split of at least 0, and 0 <= first row <= one "
                "past the last"
            )
        ranges.append((split, start, end))
    return tuple(ranges)
