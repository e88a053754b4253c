"""Rows that are left out because the user's transform fails on them: where they lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensorquery.sharding.bad_files import Quarantined
from tensorquery.sharding.trace import Place, rows_of_shards

if TYPE_CHECKING:
    from tensorquery import _core
    from tensorquery.sharding.epochs import Epochs

__all__ = ["FailedRow", "find_failed"]


@dataclass(frozen=True)
class FailedRow(Quarantined):
    """A row that is left out because the transform fails on it: `Quarantined`, with its place in the query.

    ``exclude=[row.place for row in dataset.failed_rows]`` leaves these rows out of a later run from the beginning.

    Attributes:
        path: The file, as the user would write it; "memory" for a table in memory.
        unit: The physical row, for example "row 17" of the file, "row 17 of the table" or "row 17 of the split".
        rows: 1.
        error: The exception of the transform: its type and text.
        split: The split's id, as in `ShardPlan.splits`.
        row: The output row, counted from the start of the split, after filters and joins.
        epoch: The epoch in which it failed.
    """

    split: int = 0
    row: int = 0
    epoch: int = 0

    @property
    def place(self) -> tuple[int, int, int]:
        """Split, row, and one past the row: an item of ``exclude=``."""
        return self.split, self.row, self.row + 1


def find_failed(
    plan: _core.Plan,
    epochs: Epochs,
    place: Place,
    failed: Sequence[tuple[int, int, str]],
    *,
    permuted: bool,
    drawn_from: Callable[[], _core.Stage | None] | None,
    count: Callable[[], Sequence[int]],
) -> list[FailedRow]:
    """Find the files and physical rows of rows that failed.

    Args:
        plan: The plan, with all its splits.
        epochs: Deals its rows.
        place: The epoch, rank and workers; its step says nothing.
        failed: The worker, the number of the row in its shard, and the error, of each.
        permuted: Whether the epoch is an order of single rows.
        drawn_from: Where rows are drawn by weight: gives the stage once rows are counted.
        count: Counts the output rows of every split, where that was not done before.
    """
    rows = [(worker, row) for worker, row, _ in failed]
    found = rows_of_shards(
        plan, epochs, place, rows, permuted=permuted, drawn_from=drawn_from, count=count
    )
    return [
        FailedRow(
            path=one.path,
            unit=f"row {one.physical_rows[0][0]}"
            + f" of the {one.counted_from}" * (one.counted_from != "file"),
            rows=1,
            error=error,
            split=one.split,
            row=one.start,
            epoch=place.epoch,
        )
        for one, (_, _, error) in zip(found, failed, strict=True)
    ]
