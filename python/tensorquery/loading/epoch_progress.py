"""How far a rank has come in an epoch."""

from __future__ import annotations

from dataclasses import dataclass, field

from tensorquery.sharding.dynamic_assignment import Ledger
from tensorquery.sharding.left import Left

__all__ = ["Progress"]


@dataclass
class Progress:
    """How far this rank has come in the epoch that it delivers.

    Attributes:
        epoch: The epoch.
        workers: Worker processes per rank; None before an iteration has begun.
        left: What was left of the epoch when this run began; None: all of it.
        step: Batches consumed of this rank.
        start: By worker, the cursor from which its shard is read; an empty one is the shard's start.
        cursors: By worker, how far its shard is consumed, as a list or as JSON; only kept where that does not
            follow from the step.
        turn: The worker whose batch comes next.
        ledger: What the workers have consumed, where they take splits as they come.
        base: The part of a state's checksum that stays the same.
        begun: Whether it is of an iteration; where not, the next one may still be of any epoch.
        abandoned: Whether another epoch was chosen since its iteration was left.
        over: Whether the last batch was received.
        failed: Rows of received batches, or before them, that are left out because the transform fails: the worker, the number
            in its shard, and the error.
    """

    epoch: int
    workers: int | None = None
    left: Left | None = None
    step: int = 0
    start: list[list[int]] = field(default_factory=list)
    cursors: list[list[int] | str] | None = None
    turn: int = 0
    ledger: Ledger | None = None
    base: int | None = None
    begun: bool = False
    abandoned: bool = False
    over: bool = False
    failed: tuple[tuple[int, int, str], ...] = ()
