"""Rows that are left out of an epoch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tensorquery.errors import ConfigError

__all__ = ["check_excluded"]


def check_excluded(
    ranges: Iterable[tuple[int, int, int]], splits: int, counts: Sequence[int] | None
) -> None:
    """Check that ranges lie in their splits, as far as these are counted.

    Args:
        ranges: The rows left out.
        splits: Number of splits.
        counts: Output rows of every split, where known.

    Raises:
        ConfigError: One does not; names it and what its split has.
    """
    for split, start, end in ranges:
        if split >= splits:
            raise ConfigError(
                f"exclude has split {split}, which must be in 0..{splits}; ranges belong to a query, its files and "
                "the sizes of its splits: trace with the same ones"
            )
        if counts is not None and end > counts[split]:
            raise ConfigError(
                f"exclude has rows {start}..{end} of split {split}, which has {counts[split]} output rows; ranges "
                "belong to a query, its files and the sizes of its splits: trace with the same ones"
            )
