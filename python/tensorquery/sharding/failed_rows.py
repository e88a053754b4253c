"""Rows that are left out because the user's transform fails on them: where they lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensorquery.sharding.bad_files import Quarantined
from tensorquery.sharding.trace import physical_of, ranges_of

if TYPE_CHECKING:
    from tensorquery import _core
    from tensorquery.sharding.delivered import Dealt, Share

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
    plan: _core.Plan, dealt: Dealt, share: Share, failed: Sequence[tuple[int, int, str]]
) -> list[FailedRow]:
    """Find the files and physical rows of rows that failed.

    Args:
        plan: The plan, with all its splits.
        dealt: Its rows, dealt again.
        share: The rank and the epoch.
        failed: The worker, the number of the row in its shard, and the error, of each.
    """
    positions = dealt.rows_of_shards(share, [(worker, row) for worker, row, _ in failed])
    physical = physical_of(plan, positions)
    found = [ranges_of(plan, [position], physical)[0] for position in positions]
    return [
        FailedRow(
            path=one.path,
            unit=f"row {one.physical_rows[0][0]}"
            + f" of the {one.counted_from}" * (one.counted_from != "file"),
            rows=1,
            error=error,
            split=one.split,
            row=one.start,
            epoch=share.epoch,
        )
        for one, (_, _, error) in zip(found, failed, strict=True)
    ]
