"""Delta debugging: the smallest part of a list that still makes a test true.

The algorithm is ddmin of A. Zeller and R. Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", IEEE
Transactions on Software Engineering 28 (2), 2002.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Minimized", "minimize"]

Items = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Minimized:
    """The outcome of `minimize`.

    Attributes:
        items: Items of which the test is true; none where it is false of all of them.
        calls: How often the test was called.
        is_minimal: Whether the test is false once any one of the items is left out. It is not known where calls ran out.
    """

    items: Items
    calls: int
    is_minimal: bool


class _NoCallsLeftError(Exception):
    """The test may not be called again."""


def minimize(items: Items, test: Callable[[Items], bool], most_calls: int) -> Minimized:
    """Find few items of which a test is true, by halves, quarters and so on, and what is left without them.

    The same items and answers lead to the same calls, in the same order. No set of items is asked about twice.

    Args:
        items: The items, in an order in which neighbours belong together.
        test: Returns True for items that still show what is looked for. It is taken to be False of none.
        most_calls: Calls of the test, at most. n items need some 2·log2(n) where one is to blame, and at worst n² + 3n.

    >>> found = minimize(np.arange(100), lambda some: bool({17, 60} <= {*some.tolist()}), 1000)
    >>> found.items.tolist(), found.is_minimal
    ([17, 60], True)
    """
    answers: dict[bytes, bool] = {}

    def ask(some: Items) -> bool:
        key = some.tobytes()
        if key not in answers:
            if len(answers) >= most_calls:
                raise _NoCallsLeftError
            answers[key] = test(some)
        return answers[key]

    if not ask(items):
        return Minimized(items[:0], len(answers), True)
    parts = 2
    try:
        while len(items) > 1:
            parts = min(parts, len(items))
            pieces = np.array_split(items, parts)
            alone = next((piece for piece in pieces if ask(piece)), None)
            if alone is not None:
                items, parts = alone, 2
                continue
            without = (
                np.concatenate([*pieces[:at], *pieces[at + 1 :]]) for at in range(len(pieces))
            )
            rest = next((piece for piece in without if ask(piece)), None)
            if rest is not None:
                items, parts = rest, max(parts - 1, 2)
            elif parts == len(items):
                break
            else:
                parts *= 2
    except _NoCallsLeftError:
        return Minimized(items, len(answers), False)
    return Minimized(items, len(answers), True)
