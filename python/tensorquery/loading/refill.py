"""Batches without the rows on which a transform fails, filled up with the rows that follow.

The rows of a shard come as Arrow data and are tried in their order. A batch on which the transform fails is halved until
single rows fail; these are left out, and the batch is filled up and tried again. So a batch has fewer than ``batch_size`` rows
only where the rows of the shard run out.

A shard takes as many steps as were dealt to it, however many rows fail: other ranks count on them. So near the end, where the
failures that are still allowed could cost a step, batches are made ahead, and the last rows are divided evenly over the steps
that are left. The sizes follow from the rows that fail and from the number of steps, never from how far somebody looked ahead,
so that a resumed run goes on with the same batches.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from tensorquery import _core
from tensorquery._util.callers import called
from tensorquery._util.options import check_choice, check_non_negative_int
from tensorquery.errors import ConfigError, DataError

if TYPE_CHECKING:
    from tensorquery.loading.tensors import BatchBuilder
    from tensorquery.sharding.deal import Deal

__all__ = [
    "Failure",
    "RefilledStream",
    "ShardTerms",
    "Skipping",
    "check_refilled",
    "check_skipping",
    "failures_before",
]

MOST_FAILURES = 1000
"""Rows of a shard that may fail in an epoch where nobody says how many."""

_MOST_LETTERS = 500
"""Letters of an error that are kept."""


class Failure(NamedTuple):
    """A row that is left out because the transform fails on it."""

    row: int
    """Its number in the shard, in the order of delivery."""
    error: str
    """The exception: its type and text."""


@dataclass(frozen=True)
class Skipping:
    """How rows are left out on which a transform fails.

    Attributes:
        transform: The transform.
        most: Rows of a shard that may fail in an epoch.
    """

    transform: Callable[[Any], Any]
    most: int


@dataclass(frozen=True)
class ShardTerms:
    """What is known of a shard before it is read.

    Attributes:
        name: The shard in words, for errors.
        batch_size: Rows of a full batch.
        steps: Batches of the shard in the epoch.
        rows: Rows of the shard in the epoch.
        steps_done: Batches before the first that is read.
        rows_done: Rows before the first that is read.
        cursor_after: The cursor after so many batches that consumed so many rows.
        may_end: Whether it may end before its last step, since no other rank counts on that.
    """

    name: str
    batch_size: int
    steps: int
    rows: int
    steps_done: int
    rows_done: int
    cursor_after: Callable[[int, int], list[int]]
    may_end: bool


class _Piece(NamedTuple):
    """Consecutive rows of a shard in one Arrow batch."""

    batch: Any
    start: int
    """The first of them in the batch."""
    rows: int
    first: int
    """The number of the first in the shard."""


_Span = list[_Piece]
"""Rows in the order of the shard; left-out ones may lie between pieces."""


def _rows_in(span: _Span) -> int:
    return sum(piece.rows for piece in span)


def _cut(span: _Span, rows: int) -> tuple[_Span, _Span]:
    """The first `rows` rows, and the others."""
    head: _Span = []
    for at, piece in enumerate(span):
        if piece.rows > rows:
            rest = piece._replace(
                start=piece.start + rows, rows=piece.rows - rows, first=piece.first + rows
            )
            if rows:
                head.append(piece._replace(rows=rows))
            return head, [rest, *span[at + 1 :]]
        head.append(piece)
        rows -= piece.rows
    return head, []


def _numbers(span: _Span) -> list[tuple[int, int]]:
    """Which rows these are."""
    return [(piece.first, piece.rows) for piece in span]


def _sizes(rows: int, steps: int, batch_size: int) -> Iterator[int]:
    """The sizes of the last `steps` batches, which have `rows` rows: full ones as long as a row is left for each step after.

    What is left then is divided evenly. The sizes that follow a batch are the sizes of the rows that follow it.

    >>> list(_sizes(25, 3, 10)), list(_sizes(20, 3, 10)), list(_sizes(11, 4, 10))
    ([10, 10, 5], [10, 5, 5], [3, 3, 3, 2])
    """
    for step in range(steps, 0, -1):
        size = batch_size if rows - batch_size >= step - 1 else -(-rows // step)
        rows -= size
        yield size


class _Made(NamedTuple):
    """A batch whose rows were tried."""

    span: _Span
    result: tuple[Any] | None
    """What the transform made of it; None where it must be called again, on these rows alone."""


class RefilledStream:
    """The transformed batches of a shard, without the rows on which the transform fails. Stands for a `_core.BatchStream`.

    Args:
        stream: The rows of the shard as Arrow data.
        builder: Makes batches of them.
        skipping: The transform, and how many rows may fail.
        terms: The shard.

    Attributes:
        rows: Rows of the batch handed out last.
        last: Whether it is the shard's last.
        failed: The rows that were left out since the batch before it.
    """

    def __init__(
        self,
        stream: _core.BatchStream,
        builder: BatchBuilder,
        skipping: Skipping,
        terms: ShardTerms,
    ) -> None:
        self._stream = stream
        self._builder = builder
        self._skipping = skipping
        self._terms = terms
        self._untried: _Span = []
        # Rows of the shard that were received, and those that were taken to be tried.
        self._received = self._taken = terms.rows_done
        self._steps, self._end = terms.steps_done, terms.steps
        self._consumed = terms.rows_done
        self._planned: deque[_Made] = deque()
        self._shared_out = False
        self._waiting: deque[Any] = deque()
        self._noted: list[Failure] = []
        self._failures, self._last_error = 0, "no error"
        self._handed_rows = self._handed_batches = 0
        self.rows = 0
        self.last = False
        self.failed: tuple[Failure, ...] = ()

    # What iterators ask of a stream.

    def next(self) -> Any | None:
        """Wait for the next batch; None at the end. It counts as handed out."""
        made = self._next()
        if made is None:
            return None
        self._hand_out(made)
        assert made.result is not None
        return made.result[0]

    def next_group(self) -> list[Any] | None:
        """The next batch alone; None at the end. It counts as handed out with a call of `advance`."""
        made = self._next()
        if made is None:
            return None
        assert made.result is not None
        self._waiting.append(made)
        return [made.result[0]]

    def advance(self) -> bool:
        """Say that the batch of `next_group` is handed out, and return whether it is the shard's last."""
        self._hand_out(self._waiting.popleft())
        return self.last

    def cursor(self) -> list[int]:
        """How far the shard is consumed with the batch handed out last."""
        return self._terms.cursor_after(self._steps, self._consumed)

    def cache_trouble(self) -> str | None:
        """The reason why the local cache was not used, told once."""
        return self._stream.cache_trouble()

    def counted(self) -> tuple[int, int]:
        """Rows handed out, and rows that are ready."""
        rows, ready = self._stream.counted()
        return self._handed_rows, max(0, ready + rows - self._handed_rows - self._failures)

    def metrics(self) -> dict[str, float]:
        """Counts so far."""
        counts = self._stream.metrics()
        rows, ready = self.counted()
        counts.update(rows=rows, batches=self._handed_batches, buffered_rows=ready)
        return counts

    def close(self) -> None:
        """Stop reading."""
        self._untried.clear()
        self._planned.clear()
        self._waiting.clear()
        self._stream.close()

    # Planning.

    @property
    def _left(self) -> int:
        """Rows of the shard that were not taken to be tried."""
        return self._terms.rows - self._taken

    def _next(self) -> _Made | None:
        """The next batch, transformed."""
        steps = self._end - self._steps - len(self._waiting)
        if steps <= 0:
            return None
        while self._left and not self._suffices(steps):
            self._planned.append(self._make())
        if not self._left and not self._shared_out:
            self._share_out(steps)
        if not self._planned:
            return None
        made = self._planned.popleft()
        if made.result is None:
            made = made._replace(result=self._transformed(made.span))
        return made

    def _suffices(self, steps: int) -> bool:
        """Whether a batch is planned, and each of the `steps` after it has a row even if all rows fail that still may."""
        if not self._planned:
            return False
        sure = max(0, self._left - (self._skipping.most - self._failures))
        planned = sum(_rows_in(made.span) for made in self._planned)
        return planned + sure >= self._terms.batch_size + steps - 1

    def _share_out(self, steps: int) -> None:
        """All rows were tried: divide the planned ones over the steps that are left."""
        span = [piece for made in self._planned for piece in made.span]
        rows = _rows_in(span)
        if rows < steps and self._terms.may_end:
            self._end -= steps - rows
            steps = rows
        elif rows < steps:
            raise DataError(
                f"{self._terms.name} has {rows} row{'s' * (rows != 1)} left for {steps} steps, since transform failed on too many "
                f"others (the last time with {self._last_error}), and cannot take the steps that other ranks take. Leave these "
                "rows out by a filter or exclude= (dataset.failed_rows names those before them), or use a larger batch_size"
            )
        planned = []
        for size in _sizes(rows, steps, self._terms.batch_size):
            part, span = _cut(span, size)
            # What was made of just these rows stays as it is.
            same = (made for made in self._planned if _numbers(made.span) == _numbers(part))
            planned.append(next(same, _Made(part, None)))
        self._planned, self._shared_out = deque(planned), True

    # Trying rows.

    def _make(self) -> _Made:
        """A full batch of rows that the transform takes, or all that are left of them."""
        good: _Span = []
        while True:
            fresh = self._take(self._terms.batch_size - _rows_in(good))
            if not fresh:
                return _Made(good, self._transformed(good) if good else None)
            span = [*good, *fresh]
            result, error = self._tried(span)
            if error is None:
                return _Made(span, result)
            if good:
                _, error_of_fresh = self._tried(fresh)
                if error_of_fresh is None:
                    raise self._depends(error) from error
                error = error_of_fresh
            left = self._sifted(fresh, error)
            if _rows_in(left) == _rows_in(fresh):
                raise self._depends(error) from error
            good += left

    def _take(self, rows: int) -> _Span:
        """The next rows to be tried; fewer only at the shard's end."""
        while _rows_in(self._untried) < rows:
            batch = self._stream.next()
            if batch is None:
                if self._received != self._terms.rows:
                    raise DataError(
                        f"{self._terms.name} has {self._received} rows, where {self._terms.rows} were counted; the data changed "
                        "under the job, or please report it"
                    )
                break
            self._untried.append(_Piece(batch, 0, self._stream.rows, self._received))
            self._received += self._stream.rows
        span, self._untried = _cut(self._untried, rows)
        self._taken += _rows_in(span)
        return span

    def _tried(self, span: _Span) -> tuple[tuple[Any] | None, Exception | None]:
        """What the transform makes of these rows, or the exception that it raises."""
        pieces = [_core.slice_rows(piece.batch, piece.start, piece.rows) for piece in span]
        # Made anew each time: the transform may change it.
        batch = self._builder.build(self._builder.gather(pieces))
        try:
            return (called(self._skipping.transform, batch),), None
        except Exception as error:
            if _is_of_machine(error):
                raise
            return None, error

    def _transformed(self, span: _Span) -> tuple[Any]:
        """What the transform makes of rows that it has taken in other batches."""
        result, error = self._tried(span)
        if error is not None:
            raise self._depends(error) from error
        assert result is not None
        return result

    def _sifted(self, span: _Span, error: Exception) -> _Span:
        """The rows without those on which the transform fails; it fails on all of them together with `error`."""
        rows = _rows_in(span)
        if rows == 1:
            self._note(span[0].first, error)
            return []
        good: _Span = []
        for half in _cut(span, rows // 2):
            _, failed = self._tried(half)
            good += half if failed is None else self._sifted(half, failed)
        return good

    def _note(self, row: int, error: Exception) -> None:
        """Leave a row out."""
        text = f"{type(error).__name__}: {error}"
        if len(text) > _MOST_LETTERS:
            text = text[:_MOST_LETTERS] + "…"
        self._noted.append(Failure(row, text))
        self._last_error = text
        self._failures += 1
        if self._failures > self._skipping.most:
            raise DataError(
                f"transform failed on {self._failures} rows of {self._terms.name}, and max_transform_errors="
                f"{self._skipping.most} allows no more; the last of them with {text}. Repair the transform or the data, or "
                "raise the limit"
            ) from error

    def _depends(self, error: Exception) -> DataError:
        return DataError(
            f"transform fails on rows of {self._terms.name} together, and on none of them alone ({type(error).__name__}: "
            f'{error}): which row is to blame cannot be told. With on_transform_error="skip" a transform must take any '
            "number of rows, and must not fail for how rows go together"
        )

    def _hand_out(self, made: _Made) -> None:
        """Count a batch as consumed, with the failures before its last row."""
        self.rows = _rows_in(made.span)
        self._steps += 1
        self.last = self._steps == self._end
        final = made.span[-1]
        self._consumed = self._terms.rows if self.last else final.first + final.rows
        self.failed = tuple(one for one in self._noted if one.row < self._consumed)
        self._noted = [one for one in self._noted if one.row >= self._consumed]
        self._handed_rows += self.rows
        self._handed_batches += 1


def _is_of_machine(error: Exception) -> bool:
    """Whether an exception says that memory is short, and nothing of a row."""
    if isinstance(error, MemoryError):
        return True
    torch = sys.modules.get("torch")
    kind = getattr(torch, "OutOfMemoryError", None) or getattr(
        getattr(torch, "cuda", None), "OutOfMemoryError", None
    )
    return isinstance(kind, type) and isinstance(error, kind)


def failures_before(stream: object) -> tuple[Failure, ...]:
    """The rows that were left out just before the batch that a stream handed out last."""
    return stream.failed if isinstance(stream, RefilledStream) else ()


def check_skipping(
    on_transform_error: str,
    max_transform_errors: int | None,
    transform: Callable[[Any], Any] | None,
) -> Skipping | None:
    """Check the options by which rows are left out on which a transform fails; None where none is.

    Raises:
        ConfigError: One of them is malformed, or there is nothing that it could mean.
    """
    skips = check_choice("on_transform_error", on_transform_error, ("raise", "skip")) == "skip"
    if max_transform_errors is not None:
        max_transform_errors = check_non_negative_int("max_transform_errors", max_transform_errors)
    if not skips:
        if max_transform_errors is not None:
            raise ConfigError(
                f'max_transform_errors={max_transform_errors} limits the rows that on_transform_error="skip" leaves out; give '
                "that too, or leave it out"
            )
        return None
    if transform is None:
        raise ConfigError(
            'on_transform_error="skip" leaves out rows on which transform= fails, and there is none; give one, or leave it out'
        )
    return Skipping(
        transform, MOST_FAILURES if max_transform_errors is None else max_transform_errors
    )


def check_refilled(deal: Deal, threads: int | None) -> None:
    """Check that batches can be filled up with the rows that follow, where transforms fail.

    Raises:
        ConfigError: An option fixes the rows of a batch in another way; names it, and the reason.
    """
    reasons = {
        "batch_size=1": (
            deal.batch_size == 1,
            "a failing row would cost a step, on which the other ranks count; use batch_size=2 or more",
        ),
        f'remainder="{deal.remainder}"': (
            deal.remainder != "even",
            'it promises other rows than those that follow; use remainder="even"',
        ),
        f"partitions={deal.partitions}": (
            deal.partitions is not None,
            "every step takes equal rows of each partition; leave it out",
        ),
        "a mixture": (
            bool(deal.mixture.weights),
            "every batch takes fixed shares of its sources; load them one by one, or make the transform not fail",
        ),
        'assignment="dynamic"': (
            deal.assignment == "dynamic",
            'no worker knows its steps before; use assignment="static"',
        ),
        f"transform_threads={threads}": (
            threads is not None,
            "a batch begins where the one before ends, which its transform decides; use num_workers= for transforms side "
            "by side",
        ),
    }
    for name, (is_given, reason) in reasons.items():
        if is_given:
            raise ConfigError(f'on_transform_error="skip" does not go with {name}: {reason}')
