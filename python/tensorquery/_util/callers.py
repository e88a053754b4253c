"""Calls from outside into this package, and its calls of functions of the user's."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

__all__ = ["called", "stack_level_outside"]


def stack_level_outside() -> int:
    """The `stacklevel` of a warning that names the caller of this package."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith("tensorquery."):
        level, frame = level + 1, frame.f_back
    return level - 1


def called(function: Callable[[Any], Any], batch: Any) -> Any:
    """Call a function of the user's on a batch.

    Raises:
        RuntimeError: It raised StopIteration, which would end the epoch without a word, as Python says of generators.
    """
    try:
        return function(batch)
    except StopIteration as error:
        raise RuntimeError("transform or collate_fn raised StopIteration") from error
