"""The batches of a loader, which may go on with an altered query."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator
from inspect import GEN_CLOSED, getgeneratorstate

from tensorquery import _core
from tensorquery.loading.iterator import Made

__all__ = ["LoaderIterator"]


class LoaderIterator(_core.Delivery):
    """The batches of a loader in one epoch. Made by ``iter(loader)``.

    A batch counts in the moment in which it is returned: an exception that a signal's handler raises before leaves a state
    without it. It also ends the iterator.

    Args:
        batches: Makes them.
    """

    def __init__(self, batches: Generator[Made, None, None]) -> None:
        self._batches = batches
        self._begin: Callable[[], Generator[Made, None, None]] | None = None
        self._check: Callable[[], None] | None = None
        # In the place of the method, which is for alterations.
        self.made = batches.__next__

    def _made(self) -> Made:
        """Make the next batch, of an iteration that may begin with it."""
        if self._check is not None:
            self._check()
        if self._begin is not None:
            self._batches, self._begin = self._begin(), None
        if self._check is None:
            self.made = self._batches.__next__
        return next(self._batches)

    def check_before(self, check: Callable[[], None]) -> None:
        """Call this before each batch is made; it may call `go_on`."""
        self._check = check
        self.made = _weakly(self)

    def go_on(self, begin: Callable[[], Generator[Made, None, None]]) -> None:
        """Go on with another iteration, which begins when its first batch is asked for."""
        self._batches.close()
        self._begin = begin
        self.made = _weakly(self)

    def failed(self, error: BaseException) -> None:
        """Nothing is left to do after an error."""

    @property
    def is_open(self) -> bool:
        """Whether there may be a next batch."""
        return self._begin is not None or getgeneratorstate(self._batches) != GEN_CLOSED

    def close(self) -> None:
        """Stop reading; nothing where it is closed already."""
        self._begin = None
        self._batches.close()


def _weakly(iterator: LoaderIterator) -> Callable[[], Made]:
    """Its method, without holding the iterator: one that nobody holds any more is closed at once."""
    found = weakref.ref(iterator)

    def made() -> Made:
        alive = found()
        assert alive is not None
        return alive._made()

    return made
