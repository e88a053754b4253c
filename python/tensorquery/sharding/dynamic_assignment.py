"""Dynamic assignment: how far the workers of one rank have consumed the splits that they took."""

from __future__ import annotations

import json
from bisect import bisect_right
from typing import NamedTuple

from tensorquery.errors import DataError

__all__ = ["Ledger"]


class Standing(NamedTuple):
    """Consumed pieces as runs, and what each worker holds. None of the lists ever changes."""

    starts: list[int]
    ends: list[int]
    holdings: list[str]
    """By worker, JSON of the pieces in progress."""

    def with_pieces(self, pieces: list[int], worker: int, holding: str) -> Standing:
        """Return a copy in which these pieces are consumed, and `worker` holds others."""
        starts, ends, holdings = list(self.starts), list(self.ends), list(self.holdings)
        for piece in pieces:
            _add(starts, ends, piece)
        holdings[worker] = holding
        return Standing(starts, ends, holdings)


def _add(starts: list[int], ends: list[int], piece: int) -> None:
    """Add a piece to runs of pieces, where it is not in them."""
    at = bisect_right(starts, piece)
    if at and piece < ends[at - 1]:
        return
    joins_before = at > 0 and ends[at - 1] == piece
    joins_after = at < len(starts) and starts[at] == piece + 1
    if joins_before and joins_after:
        ends[at - 1] = ends.pop(at)
        del starts[at]
    elif joins_before:
        ends[at - 1] = piece + 1
    elif joins_after:
        starts[at] = piece
    else:
        starts.insert(at, piece)
        ends.insert(at, piece + 1)


class Ledger:
    """The pieces of a rank that its workers have consumed, by what the training loop has received.

    It takes as much memory as there are pieces in progress, however many there are in all: consumed ones are kept
    as runs of neighbours. Between them lie pieces that some worker has taken and not finished.

    Args:
        workers: Worker processes of the rank.
        pieces: Pieces of the rank, which have the numbers 0 to ``pieces - 1``.

    Attributes:
        standing: The pieces. It is replaced as a whole, so that an exception of a signal leaves the old or the new one.
    """

    def __init__(self, workers: int, pieces: int) -> None:
        self._pieces = pieces
        self.standing = Standing([], [], ["[]"] * workers)

    def received(self, worker: int, message: str) -> None:
        """A batch has arrived; see `after`."""
        self.standing = self.after(worker, message)

    def after(self, worker: int, message: str) -> Standing:
        """Return the standing with one more batch, which becomes `standing` when the training loop has it.

        Args:
            worker: Whose batch it is.
            message: JSON of the pieces that the worker has finished since the batch before, and of those that it holds.
        """
        consumed, holding = message.split(_BETWEEN)
        # It is only read where somebody asks for a state.
        return self.standing.with_pieces(json.loads(consumed), worker, holding)

    def ended(self, worker: int, taken: list[int]) -> None:
        """A worker has no more batches: all pieces that it took are consumed, and rests of windows that it was dealt."""
        self.standing = self.standing.with_pieces(taken, worker, "[0]")

    def check(self, taken: int) -> None:
        """Check at the epoch's end that no piece is missing.

        Args:
            taken: Pieces that all workers together have taken to the end.

        Raises:
            DataError: Some were not delivered; the epoch must not count as complete.
        """
        if taken != self._pieces:
            raise DataError(
                f"the workers delivered {taken} of {self._pieces} pieces of this epoch; resume from the last state, "
                "and please report it"
            )

    def cursors(self) -> list[list[int]]:
        """The cursors of this rank for a state.

        Returns:
            Runs of consumed pieces, as pairs of first and one past the last; then by worker what it holds.
        """
        starts, ends, holdings = self.standing
        runs = [bound for run in zip(starts, ends, strict=True) for bound in run]
        return [runs, *map(json.loads, holdings)]


_BETWEEN = ";"


def message_of(consumed: list[int], holding: list[int]) -> str:
    """The message of a worker with a batch; see `Ledger.received`."""
    return f"{json.dumps(consumed)}{_BETWEEN}{json.dumps(holding)}"
