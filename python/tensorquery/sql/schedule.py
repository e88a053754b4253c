"""`Schedule`: weights of a mixture that change while a run goes on."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from numbers import Real
from typing import Any

from tensorquery._util.options import (
    MOST_EPOCHS,
    check_bool,
    check_choice,
    check_non_negative_int,
    check_positive_int,
)
from tensorquery.errors import ConfigError

__all__ = ["Schedule", "scaled", "shares"]

_SCALE = 2**32
"""The sum of weights as the core counts them; also the positions of a whole run, by fraction."""

_MOST_POINTS = 10_000


class Schedule:
    """Weights of a mixture that change by epoch, by step, or by the part of the run that was delivered.

    Plain values: it is part of a state's identity, and goes to worker processes. The weights of a batch follow from its
    place in the epoch, on any topology.

    Args:
        points: Pairs of a position and the weights from there, positions ascending from 0: ``[(0, [0.9, 0.1]), (1000,
            [0.5, 0.5])]``. Weights are numbers of at least 0, one for each query, of which only the ratio counts. A query
            of weight 0 gives rows only where no other one has any left.
        by: What positions count. "epoch": epochs. "step": batches of a rank from the beginning of each epoch, also over
            resumes. "fraction": the part of a run of `epochs` epochs, from 0 to 1, by rows of all queries.
        linear: Weights move in a straight line from one point to the next. False: they stay until the next point.
        epochs: Epochs of the run; only with ``by="fraction"``.

    Attributes:
        points: The points: position, and the shares of the queries, which sum to 1.
        by: "epoch", "step" or "fraction".
        linear: Whether weights move between points.
        epochs: Epochs of the run.

    Raises:
        ConfigError: A point is malformed, or positions do not ascend from 0; names it.

    Examples:
        >>> Schedule([(0, [3, 1]), (10, [1, 1])], by="epoch", linear=True).at(5)
        [0.625, 0.375]
    """

    def __init__(
        self,
        points: Iterable[tuple[float, Sequence[float]]],
        *,
        by: str,
        linear: bool = False,
        epochs: int = 1,
    ) -> None:
        check_choice("by", by, ("epoch", "step", "fraction"))
        check_positive_int("epochs", epochs, 2**31)
        if epochs != 1 and by != "fraction":
            raise ConfigError(
                f'epochs={epochs} says how long a run is of which by="fraction" counts parts; leave it out with by={by!r}'
            )
        self.by = by
        self.linear = check_bool("linear", linear)
        self.epochs = epochs
        try:
            pairs = [(at, list(weights)) for at, weights in points]
        except (TypeError, ValueError) as error:
            raise ConfigError(
                "a Schedule takes pairs of a position and weights, [(0, [0.9, 0.1]), (1000, [0.5, 0.5])]"
            ) from error
        if not 1 <= len(pairs) <= _MOST_POINTS:
            raise ConfigError(f"a Schedule has 1 to {_MOST_POINTS:,} points, got {len(pairs):,}")
        self.points = [(self._position(at), shares(weights, zeros=True)) for at, weights in pairs]
        for (before, some), (after, others) in itertools.pairwise(self.points):
            if self._count(before) >= self._count(after):
                raise ConfigError(
                    f"the positions of a Schedule must ascend; {before!r} is followed by {after!r}"
                )
            if len(some) != len(others):
                raise ConfigError(
                    f"the point at {before!r} has {len(some)} weights, and that at {after!r} has {len(others)}; give one "
                    "for each query"
                )
        if self.points[0][0] != 0:
            raise ConfigError(
                f"the first point of a Schedule must be at 0, got {self.points[0][0]!r}: it says the weights of the beginning"
            )

    def _position(self, at: Any) -> float:
        if self.by != "fraction":
            return check_non_negative_int(f"a position by={self.by!r}", at, MOST_EPOCHS)
        is_number = isinstance(at, Real) and not isinstance(at, bool)
        if not is_number or not 0 <= at <= 1:
            raise ConfigError(f'a position by="fraction" must be a number of 0 to 1, got {at!r}')
        return float(at)

    def _count(self, at: float) -> int:
        """A position as the core counts it."""
        return int(Fraction(at) * _SCALE) if self.by == "fraction" else int(at)

    def at(self, position: float) -> list[float]:
        """The shares of the queries at a position.

        Args:
            position: An epoch, a step, or a part of the run, as `by` says.

        Returns:
            One number for each query; they sum to 1.

        Raises:
            ConfigError: It is no position.
        """
        position = self._position(position)
        before = max(number for number, (at, _) in enumerate(self.points) if at <= position)
        start, some = self.points[before]
        if not self.linear or before + 1 == len(self.points):
            return list(some)
        end, others = self.points[before + 1]
        gone = (position - start) / (end - start)
        return [one * (1 - gone) + other * gone for one, other in zip(some, others, strict=True)]

    def to_dict(self) -> dict[str, Any]:
        """The values as plain data, ready for JSON.

        Returns:
            The attributes by name.
        """
        points = [[at, list(weights)] for at, weights in self.points]
        return {"points": points, "by": self.by, "linear": self.linear, "epochs": self.epochs}

    @classmethod
    def _of(cls, found: dict[str, Any]) -> Schedule:
        """Read what `to_dict` returned.

        Raises:
            ConfigError: It is damaged.
        """
        try:
            read = cls(
                found["points"], by=found["by"], linear=found["linear"], epochs=found["epochs"]
            )
        except (KeyError, TypeError) as error:
            raise ConfigError(f"this is no Schedule: {str(found)[:60]}") from error
        # Dividing by the sum once more may change a last digit.
        read.points = [(at, list(weights)) for at, weights in found["points"]]
        return read

    def _ramp(self) -> dict[str, Any]:
        """The values as the core reads them."""
        points = [[self._count(at), scaled(weights)] for at, weights in self.points]
        return {"by": self.by, "linear": self.linear, "epochs": self.epochs, "points": points}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((self.by, self.linear, self.epochs, len(self.points)))

    def __repr__(self) -> str:
        points = ", ".join(
            f"({at}, [{', '.join(f'{weight:.3g}' for weight in weights)}])"
            for at, weights in self.points
        )
        more = (", linear=True" if self.linear else "") + (
            f", epochs={self.epochs}" if self.epochs != 1 else ""
        )
        return f"Schedule([{points}], by={self.by!r}{more})"


def scaled(weights: Sequence[float]) -> list[int]:
    """Shares as the core counts them: whole numbers whose sum is about 2^32. None but 0 becomes 0."""
    return [max(1, round(weight * _SCALE)) if weight else 0 for weight in weights]


def shares(weights: Sequence[Any], *, zeros: bool = False) -> list[float]:
    """The weights divided by their sum.

    Args:
        weights: Numbers above 0.
        zeros: Whether some, but not all, may be 0.

    Raises:
        ConfigError: One is malformed; names it.
    """
    checked = [_checked(weight, zeros) for weight in weights]
    if not any(checked):
        raise ConfigError(
            f"the weights {checked} are all 0; give a number above 0 for one query at least"
        )
    # By a power of two first, which loses nothing: the sum of large ones is no float.
    _, exponent = math.frexp(max(checked))
    by_power = [math.ldexp(weight, -exponent) for weight in checked]
    total = math.fsum(by_power)
    return [weight / total for weight in by_power]


def _checked(weight: Any, zeros: bool) -> float:
    try:
        is_number = isinstance(weight, Real) and not isinstance(weight, bool)
        checked = float(weight) if is_number else math.nan
    except OverflowError as error:
        raise ConfigError(
            "a weight of mix is more than a float holds; only their ratio counts, so give smaller ones"
        ) from error
    if not math.isfinite(checked) or checked < 0 or not (checked or zeros):
        least = "of at least 0" if zeros else "above 0"
        raise ConfigError(f"weight {weight!r} must be a number {least}, for example 0.5")
    return checked
