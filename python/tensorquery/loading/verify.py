"""`verify`: whether receipts have each row of a query once per epoch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tensorquery.errors import ConfigError
from tensorquery.loading.dataset import QueryDataset
from tensorquery.loading.replay import Delivery, Planned, Replay
from tensorquery.sharding.delivered import Dealt, Share
from tensorquery.sharding.trace import TraceRange
from tensorquery.sql.mixture import Mixture
from tensorquery.sql.query import Query

__all__ = ["EpochVerification", "Verification", "verify"]


@dataclass(frozen=True, repr=False)
class EpochVerification:
    """What receipts say of one epoch. Printing shows the counts.

    Attributes:
        epoch: The epoch.
        rows: Rows of the query's result, without those of ``exclude=``.
        delivered: Rows that were delivered at least once.
        missing: Rows that were not delivered.
        doubled: Deliveries beyond the first of a row.
        left_out: Rows that ``remainder="drop"``, or a mixture that ends with its first query, leaves out of a complete epoch;
            they are not missing.
        padded: Rows that ``remainder="pad"`` repeated to fill batches; they are not doubled.
        complete: Whether a run came to the epoch's end on all of its ranks.
        missing_ranges: The missing rows as (split, first output row, one past the last), as ``exclude=`` takes them.
        doubled_ranges: The doubled rows in the same form.
    """

    epoch: int
    rows: int
    delivered: int
    missing: int
    doubled: int
    left_out: int
    padded: int
    complete: bool
    missing_ranges: tuple[tuple[int, int, int], ...]
    doubled_ranges: tuple[tuple[int, int, int], ...]
    _planned: Planned = field(compare=False)

    @property
    def is_exact(self) -> bool:
        """Whether each row was delivered once."""
        return not self.missing and not self.doubled

    def places(self, which: str) -> Iterator[TraceRange]:
        """Files and physical rows behind the missing or the doubled rows; splits are read again for them.

        Args:
            which: "missing" or "doubled".

        Returns:
            An iterator over ranges like those of a `Trace`.

        Raises:
            ConfigError: It is neither.
            DataError: A file cannot be read.
        """
        if which not in ("missing", "doubled"):
            raise ConfigError(f'places({which!r}) must be of "missing" or "doubled" rows')
        ranges = self.missing_ranges if which == "missing" else self.doubled_ranges
        return self._planned.traced(ranges)

    def to_dict(self) -> dict[str, Any]:
        """The attributes as plain data, ready for JSON.

        Returns:
            The attributes by name; ranges are lists.
        """
        names = ("epoch", "rows", "delivered", "missing", "doubled", "left_out", "padded", "complete")  # fmt: skip
        found: dict[str, Any] = {name: getattr(self, name) for name in names}
        for name in ("missing_ranges", "doubled_ranges"):
            found[name] = [list(each) for each in getattr(self, name)]
        return found

    def __repr__(self) -> str:
        parts = [f"{self.delivered:,} of {self.rows:,} rows"]
        for name in ("missing", "doubled", "left_out", "padded"):
            if getattr(self, name):
                parts.append(f"{getattr(self, name):,} {name.replace('_', ' ')}")
        end = "" if self.complete else "; not complete"
        return f"epoch {self.epoch}: {', '.join(parts)}{end}"


@dataclass(frozen=True, repr=False)
class Verification:
    """What `verify` found. Printing shows a line for each epoch.

    Attributes:
        epochs: The epochs of which a row was delivered, ascending.
    """

    epochs: tuple[EpochVerification, ...]

    @property
    def is_exact(self) -> bool:
        """Whether each row was delivered once in every epoch; False where an epoch was left before its end."""
        return all(epoch.is_exact for epoch in self.epochs)

    def to_dict(self) -> dict[str, Any]:
        """The attributes as plain data, ready for JSON.

        Returns:
            The attributes by name; ranges are lists.
        """
        return {"epochs": [epoch.to_dict() for epoch in self.epochs]}

    def __repr__(self) -> str:
        title = "each row once" if self.is_exact else "not each row once"
        return "\n".join([f"Verification: {title}", *map(repr, self.epochs)])


def verify(
    receipts: Iterable[Mapping[str, Any]], query: Query | Mixture | QueryDataset
) -> Verification:
    """Check that each row of a query was delivered once per epoch, by the receipts of all ranks.

    The query is planned again and its rows are dealt again. Files are read only where rows of a filtered query have to be
    counted, and that was not done on this machine before.

    Args:
        receipts: The last receipt of each rank, of all runs of the training. Earlier ones of the same rank do no harm.
        query: The query that was trained on, over the same files: a `Query`, a `Mixture`, or a `QueryDataset` of it. A dataset
            says what receipts do not have: ``stage_dir``, ``stage_from`` and a ``split_strategy`` of one's own.

    Returns:
        Counts by epoch, and the ranges of missing and doubled rows. Where a run goes on from an earlier checkpoint than its
        receipt's last one, rows in between are doubled: give the receipts that were saved with the checkpoint.

    Raises:
        CheckpointMismatchError: A receipt was changed, or one is missing, or they are of another query; names what and where.
        ConfigError: Rows were drawn by weight, so that none needs to come once; or receipts are of several seeds or
            snapshots in one epoch.
        DataError: A file cannot be read.
    """
    replay = Replay(receipts, query)
    # One epoch after the other, so that each is dealt once and counted in the same memory.
    epochs: dict[int, list[tuple[Delivery, Planned, Dealt]]] = {}
    for delivery, planned, dealt in replay.runs():
        if planned.plan.deal.weighing is not None:
            raise ConfigError(
                f"the receipts are of sample_weight={planned.plan.deal.weighing.column!r}, which draws rows by weight, so that "
                "none needs to be delivered once; seen() says which rows were"
            )
        of_epoch = epochs.setdefault(delivery.share.epoch, [])
        if of_epoch and of_epoch[0][1] is not planned:
            raise ConfigError(
                f"epoch {delivery.share.epoch} was delivered with two plans (another seed, shuffle, exclude, split size or "
                "snapshot); give the receipts of one training at a time"
            )
        of_epoch.append((delivery, planned, dealt))
    return Verification(tuple(_verified(epoch, runs) for epoch, runs in sorted(epochs.items())))


def _verified(epoch: int, runs: Sequence[tuple[Delivery, Planned, Dealt]]) -> EpochVerification:
    """What the runs of one epoch delivered."""
    counts = _Counts(runs[0][1])
    for delivery, _, dealt in runs:
        counts.add(delivery, dealt)
    return counts.found(epoch)


class _Counts:
    """Counts how often each row of an epoch was delivered."""

    def __init__(self, planned: Planned) -> None:
        self.planned = planned
        self._times = np.zeros(planned.rows, dtype=np.int32)
        self._padded = 0
        self._dealt: dict[str, tuple[Dealt, Share, int]] = {}
        self._received: dict[tuple[str, int], int] = {}
        self._leaves_out = False

    def add(self, delivery: Delivery, dealt: Dealt) -> None:
        """Count the rows of some steps."""
        share = delivery.share
        for batch in dealt.batches(share, delivery.first, delivery.last):
            numbers = self.planned.numbers(batch)
            np.add.at(self._times, numbers[: batch.fresh], 1)
            self._padded += len(numbers) - batch.fresh
        self._dealt[delivery.run] = (dealt, share, dealt.world_size)
        rank = (delivery.run, share.rank)
        self._received[rank] = max(self._received.get(rank, 0), delivery.last)
        self._leaves_out |= dealt.remainder == "drop" or self.planned.plan.deal.mixture.stop_first

    def _is_complete(self) -> bool:
        """Whether a run came to its end on all ranks."""
        for run, (dealt, share, world) in self._dealt.items():
            steps = (dealt.steps(share._replace(rank=rank)) for rank in range(world))
            if all(self._received.get((run, rank), 0) == end for rank, end in enumerate(steps)):
                return True
        return False

    def found(self, epoch: int) -> EpochVerification:
        """What the counts say."""
        wanted = np.ones(len(self._times), dtype=bool)
        for split, start, end in self.planned.plan.deal.exclude:
            at = self.planned.starts[split]
            wanted[at + start : at + end] = False
        complete = self._is_complete()
        absent = wanted & (self._times == 0)
        left_out = int(absent.sum()) if complete and self._leaves_out else 0
        if left_out:
            absent[:] = False
        extra = np.maximum(self._times - wanted, 0)
        return EpochVerification(
            epoch=epoch,
            rows=int(wanted.sum()),
            delivered=int((self._times > 0).sum()),
            missing=int(absent.sum()),
            doubled=int(extra.sum()),
            left_out=left_out,
            padded=self._padded,
            complete=complete,
            missing_ranges=self.planned.ranges(absent),
            doubled_ranges=self.planned.ranges(extra > 0),
            _planned=self.planned,
        )
