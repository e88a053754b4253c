"""How well a plan shuffles, predicted without reading a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensorquery import _core

__all__ = [
    "ShuffleQuality",
    "predict",
]

_MOST_SPLITS = 4096
"""Splits of a shard that are simulated; those after them are taken to be like these."""

_REACH = 0.9
"""The part of a shard's rows that must be in reach of a window; a little less than all, since the last splits
of an epoch are fewer than those before."""


@dataclass(frozen=True)
class ShuffleQuality:
    """A prediction of how well a plan shuffles.

    Attributes:
        split_share: The expected part of a batch that comes from one split: of each shuffle window the part of
            the split that has most rows in it, as a mean over the rows of rank 0's first shard (LPT makes the
            shards alike). A batch is a uniform sample of its window, so it has that part of the split too; with
            `partitions`, of equal samples of a window of each of the rank's partitions. 1 without a window;
            with ``shuffle="global"`` the largest split's part of all rows. ``dataset.metrics()["split_share"]``
            is the same, measured. Rows are those before filters where the output rows are not known, and guessed
            from bytes where a format does not say them.
        window_rows: Rows of a shuffle window; None without one.
        open_splits: Splits that a rank reads at a time, over all of its workers or partitions.
        open_windows: Windows that a rank drains at a time: one per worker, or per partition (P/W with P partitions
            over W ranks); 0 without a window. As many again are being filled.
        sorted_by: Columns by which statistics show the data to be sorted; empty where nothing is known.
        warning: Advice if the data is sorted and a window does not reach far enough; else None.
    """

    split_share: float
    window_rows: int | None
    open_splits: int
    open_windows: int
    sorted_by: tuple[str, ...]
    warning: str | None

    def __str__(self) -> str:
        text = f"shuffle: {self.split_share:.1%} of a batch expected from one split"
        if self.window_rows is None:
            return text
        windows = "a window" if self.open_windows == 1 else f"{self.open_windows:,} windows"
        splits = "split" if self.open_splits == 1 else "splits"
        return (
            f"{text}; each rank mixes {windows} of {self.window_rows:,} rows from {self.open_splits:,} open "
            f"{splits}"
        )


def predict(
    plan: _core.Plan,
    counts: Sequence[int] | None,
    *,
    shuffle: bool | str,
    mixing: dict[str, Any],
    lists: Sequence[Sequence[int]],
    lanes: int,
    workers: int,
) -> ShuffleQuality:
    """Predict how well rows are mixed.

    Args:
        plan: The plan.
        counts: Output rows by split, where known.
        shuffle: As the user gave it.
        mixing: Open splits (``width``) and rows of a ``window``, of one worker or partition.
        lists: Splits by shard, or by partition.
        lanes: Partitions that a rank reads; 1 without partitions.
        workers: Shards of a rank, at least 1.

    Returns:
        The prediction: a function of the arguments, in time that does not grow with the number of rows.
    """
    width, window = int(mixing["width"]), mixing["window"]
    if shuffle == "global":
        rows = _rows_of(plan, counts, range(plan.num_splits))
        share = max(rows, default=0) / max(1, sum(rows))
        return ShuffleQuality(share, None, 0, 0, (), None)
    own = max(lists[: max(1, workers * lanes)], key=len, default=())
    rows = _rows_of(plan, counts, own)
    share = 1.0 if window is None else _window_share(rows, width, window) / lanes
    sorted_by = tuple(f"{name} (descending)" if down else name for name, down in plan.sorted_by())
    warning = None
    if sorted_by:
        warning = _warning(sorted_by, rows, len(own), width, window)
    together = workers * lanes
    return ShuffleQuality(
        split_share=share,
        window_rows=window,
        open_splits=together * min(width, max(1, len(own))),
        open_windows=0 if window is None else together,
        sorted_by=sorted_by,
        warning=warning,
    )


def _rows_of(plan: _core.Plan, counts: Sequence[int] | None, ids: Sequence[int]) -> list[int]:
    """Rows of the first splits: output rows, rows before filters, or a guess."""
    ids = list(ids[:_MOST_SPLITS])
    if counts is not None:
        return [counts[id] for id in ids]
    per_row = plan.row_bytes()
    return [
        max(1, size // per_row) if rows is None else rows
        for _, _, _, rows, _, size, _, _, _ in plan.splits(ids)
    ]


def _window_share(rows: Sequence[int], width: int, window: int) -> float:
    """The mean part of a window that comes from the split with most rows in it.

    Plays the interleaving with chunks of no size: `width` splits are open, each gives as many rows as the others,
    and the next takes the place of one that ends.
    """
    waiting = iter(count for count in rows if count > 0)
    open_rows: list[float] = []  # left, by open split
    taken: list[float] = []  # of them in this window
    total = most = best = 0.0  # best: rows in this window of a split that ended in it
    left = float(window)
    while True:
        while len(open_rows) < width and (count := next(waiting, None)) is not None:
            open_rows.append(float(count))
            taken.append(0.0)
        if not open_rows:
            most += max([best, *taken])
            break
        step = min(min(open_rows), left / len(open_rows))
        open_rows = [count - step for count in open_rows]
        taken = [count + step for count in taken]
        total += step * len(open_rows)
        left -= step * len(open_rows)
        if left < 0.5:
            most += max([best, *taken])
            best, left, taken = 0.0, float(window), [0.0] * len(open_rows)
        kept = [index for index, count in enumerate(open_rows) if count > 1e-6]
        if len(kept) < len(open_rows):
            ended = set(range(len(open_rows))) - set(kept)
            best = max(best, *(taken[index] for index in ended))
            open_rows = [open_rows[index] for index in kept]
            taken = [taken[index] for index in kept]
    return most / total if total else 1.0


def _warning(
    sorted_by: Sequence[str],
    rows: Sequence[int],
    splits: int,
    width: int,
    window: int | None,
) -> str | None:
    """A warning where a window reaches only a part of sorted rows.

    A window is mixed from as many rows as it holds, or as the open splits hold where that is more: these are in
    reach. Sorted rows are spread evenly over the windows of an epoch only if (nearly) all rows of the shard are in
    reach; with half of them, the distribution of a column already differs from window to window by far more
    than sampling explains (`tests/python/sharding/test_shuffle_quality.py`).
    """
    mean = sum(rows) / max(1, len(rows))
    total = mean * splits
    reach = max(window or 1, width * mean)
    if reach >= _REACH * total:
        return None
    names = ", ".join(sorted_by)
    mixer = "split order alone" if window is None else f"a shuffle window of {window:,} rows"
    return (
        f"the data is sorted by {names}, and {mixer} with {width:,} open splits reaches {reach / total:.0%} of the "
        f"{total:,.0f} rows of a shard, so that batches differ from one part of an epoch to the next. "
        'Use shuffle="global", a larger shuffle_buffer_size, or files that are not sorted'
    )
