"""Which rows a batch was made of: for hunting a loss spike, and for leaving those rows out of a later run."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from tensorquery._util.arrow_c import import_pyarrow
from tensorquery.errors import ConfigError, DataError

if TYPE_CHECKING:
    from tensorquery import _core
    from tensorquery.sharding.epochs import Epochs
    from tensorquery.sharding.left import Left

__all__ = ["Place", "Trace", "TraceRange", "excluded_ranges", "rows_of_shards", "trace_batch"]

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
        ranges: Its rows by split, ascending, repeated ones last: ``exclude=trace.ranges`` leaves them out.
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


class Place(NamedTuple):
    """Which batch is meant."""

    epoch: int
    rank: int
    step: int
    workers: int
    """Worker processes per rank."""
    left: Left | None
    """What was left of the epoch when its run began; None: all."""


def trace_batch(
    plan: _core.Plan,
    epochs: Epochs,
    place: Place,
    *,
    permuted: bool,
    drawn_from: Callable[[], _core.Stage | None] | None = None,
    count: Callable[[], Sequence[int]],
) -> Trace:
    """Find the rows of a batch without delivering it.

    Args:
        plan: The plan, with all its splits.
        epochs: Deals its rows.
        place: Which batch.
        permuted: Whether the epoch is an order of single rows.
        drawn_from: Where rows are drawn by weight: gives the stage once rows are counted.
        count: Counts the output rows of every split, where that was not done before.

    Raises:
        ConfigError: There is no such step; names how many there are.
        DataError: A file cannot be read, or has other rows than were counted.
    """
    # A step is found by rows, so they are counted, also where delivering them needs no count.
    dealt, layout = epochs.count(), epochs.layout(place.workers)
    shards = epochs.all_shards(place.workers, place.epoch, place.left)
    worker, batch = _turn(shards, place)
    counts, lengths = _lengths(dealt, layout, count, permuted)
    # The cursor of a step follows from the counts: nothing before it is simulated.
    cursor = shards.cursor_at(place.rank, worker, batch)
    stream = plan.positions(shards, place.rank, worker, cursor, lengths)
    found = stream.next()
    stream.close()
    if found is None:
        raise DataError(
            f"rank {place.rank} ended before step {place.step}; please report it with the query"
        )
    columns = import_pyarrow().record_batch(found)
    positions = list(zip(columns.column(0).to_pylist(), columns.column(1).to_pylist(), strict=True))
    if permuted:
        stage = None if drawn_from is None else drawn_from()
        staged = sum(dealt) if stage is None else stage.num_rows
        positions = _unpermuted(shards, positions, staged, counts, stage)
    own, fresh = shards.rows(place.rank, worker), len(positions)
    if layout["remainder"] == "pad" and own is not None:
        # Repeated rows come last.
        fresh = min(fresh, max(0, own - batch * layout["batch_size"]))
    physical = _physical(plan, positions)
    starts = [0, *itertools.accumulate(counts)]
    return Trace(
        epoch=place.epoch,
        rank=place.rank,
        step=place.step,
        worker=worker,
        rows=len(positions),
        ranges=(
            *_ranges(plan, positions[:fresh], physical, repeated=False),
            *_ranges(plan, positions[fresh:], physical, repeated=True),
        ),
        positions=tuple(positions),
        physical_rows=tuple(physical[position] for position in positions),
        row_numbers=tuple(starts[split] + row for split, row in positions),
    )


def rows_of_shards(
    plan: _core.Plan,
    epochs: Epochs,
    place: Place,
    rows: Sequence[tuple[int, int]],
    *,
    permuted: bool,
    drawn_from: Callable[[], _core.Stage | None] | None,
    count: Callable[[], Sequence[int]],
) -> list[TraceRange]:
    """Find single rows by worker and number in its shard, one range for each; the other arguments are those of `trace_batch`.

    Shards must have one lane, as those that are refilled have.
    """
    dealt, layout = epochs.count(), epochs.layout(place.workers)
    shards = epochs.all_shards(place.workers, place.epoch, place.left)
    counts, lengths = _lengths(dealt, layout, count, permuted)
    positions = []
    for worker, row in rows:
        cursor = shards.cursor_after(place.rank, worker, 0, row)
        stream = plan.positions(shards, place.rank, worker, cursor, lengths, refills=True)
        found = stream.next()
        stream.close()
        assert found is not None, "the row was read before"
        columns = import_pyarrow().record_batch(found)
        positions.append((columns.column(0)[0].as_py(), columns.column(1)[0].as_py()))
    if permuted:
        stage = None if drawn_from is None else drawn_from()
        staged = sum(dealt) if stage is None else stage.num_rows
        positions = _unpermuted(shards, positions, staged, counts, stage)
    physical = _physical(plan, positions)
    return [_ranges(plan, [position], physical, repeated=False)[0] for position in positions]


def _lengths(
    dealt: Sequence[int],
    layout: Mapping[str, Any],
    count: Callable[[], Sequence[int]],
    permuted: bool,
) -> tuple[list[int], list[int]]:
    """Output rows by split, and rows by split or by run of an order of single rows."""
    if not permuted:
        return list(dealt), list(dealt)
    run, total = layout["permuted"], sum(dealt)
    return list(count()), [min(run, total - start) for start in range(0, total, run)]


def _turn(shards: _core.Shards, place: Place) -> tuple[int, int]:
    """Which worker delivers a step, and as which of its batches."""
    sizes = [shards.size(place.rank, worker)[0] or 0 for worker in range(max(1, place.workers))]
    total = sum(sizes)
    if not 0 <= place.step < total:
        bounds = f"in 0..{total}" if total else "a step, and there is none"
        raise ConfigError(
            f"step {place.step} must be {bounds}: rank {place.rank} delivers {total} batches in epoch "
            f"{place.epoch}{' after the resume' if place.left is not None else ''}"
        )

    # Workers take turns, and who has nothing left is passed over: as many whole rounds as fit before the step.
    def before(rounds: int) -> int:
        return sum(min(size, rounds) for size in sizes)

    rounds = bisect_right(range(max(sizes) + 1), place.step, key=before) - 1
    left = [worker for worker, size in enumerate(sizes) if size > rounds]
    return left[place.step - before(rounds)], rounds


def _unpermuted(
    shards: _core.Shards,
    positions: Sequence[tuple[int, int]],
    rows: int,
    counts: Sequence[int],
    stage: _core.Stage | None,
) -> list[tuple[int, int]]:
    """From positions in an order of single rows to rows of splits."""
    starts = [0, *itertools.accumulate(counts)]
    if starts[-1] != rows:
        raise DataError(
            f"the splits have {starts[-1]} rows, and {rows} were staged; delete the stage, and it is made again"
        )
    found = []
    for row in shards.permuted(positions, rows, stage):
        split = bisect_right(starts, row) - 1
        found.append((split, row - starts[split]))
    return found


def _physical(plan: _core.Plan, positions: Iterable[tuple[int, int]]) -> dict[tuple[int, int], int]:
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


def _ranges(
    plan: _core.Plan,
    positions: Iterable[tuple[int, int]],
    physical: dict[tuple[int, int], int],
    *,
    repeated: bool,
) -> list[TraceRange]:
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
