"""Batches that are copied to a device one ahead of the loop, which works on the one before meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

__all__ = ["Copies", "one_ahead"]

T = TypeVar("T")

Copies = Callable[[Any], Callable[[], Any]]
"""Begins to copy a batch; returns what waits for the copy and gives it."""


def one_ahead(items: Iterator[T], begin: Callable[[T], Callable[[], T]]) -> Iterator[T]:
    """The results of `begin` for each item; begun before the item before it is handed out.

    The first comes as soon as it is there, before anything is read ahead. An error while reading ahead is raised in the failed batch's place.

    Args:
        items: Read one ahead of the consumer.
        begin: Starts work on an item, and returns what waits for it.
    """
    current = _begun(items, begin)
    if current is not None:
        yield current()
        current = _begun(items, begin)
    while current is not None:
        following, failure = None, None
        try:
            following = _begun(items, begin)
        except Exception as error:
            failure = error
        yield current()
        if failure is not None:
            raise failure
        current = following


def _begun(items: Iterator[T], begin: Callable[[T], Callable[[], T]]) -> Callable[[], T] | None:
    for item in items:
        return begin(item)
    return None
