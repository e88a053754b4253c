"""`bisect`: the rows to blame for a loss spike, and a predicate that tells them from the other rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorquery._util.arrow_c import import_pyarrow
from tensorquery._util.options import (
    check_callable,
    check_non_negative_int,
    check_positive_int,
    nearest_name,
)
from tensorquery.errors import ConfigError, QueryError
from tensorquery.loading.dataset import QueryDataset
from tensorquery.loading.options import LoaderOptions
from tensorquery.loading.replay import Planned, Replay
from tensorquery.loading.tensors import TENSOR_OPTIONS
from tensorquery.sharding.delta_debugging import minimize
from tensorquery.sharding.trace import TraceRange
from tensorquery.sql.filters.filter_forms import column_list
from tensorquery.sql.mixture import Mixture
from tensorquery.sql.query import Query
from tensorquery.sql.telling_apart import check_comparable, tell_apart

__all__ = ["Culprits", "bisect"]

_SHOWN = 10
_READ_ROWS = 1 << 14
"""Rows that are read together for the predicate."""


@dataclass(frozen=True, repr=False)
class Culprits:
    """The rows that `bisect` found. Printing shows them.

    Attributes:
        ranges: The rows, with files and physical rows: ``exclude=culprits.ranges`` leaves them out.
        rows: How many rows.
        candidates: Rows that were delivered in the steps, each counted once.
        predicate: SQL over the chosen columns that is true of all these rows; None where no columns were chosen, or no term
            tells them from other candidates.
        others: Other candidates of which the predicate is true, too; 0 where it says exactly these rows.
        calls: How often the test was called.
        is_minimal: Whether the test is False as soon as any one of the rows is left out; not known where `max_calls` was
            reached.
    """

    ranges: tuple[TraceRange, ...]
    rows: int
    candidates: int
    predicate: str | None
    others: int
    calls: int
    is_minimal: bool

    def __repr__(self) -> str:
        lines = [
            f"Culprits: {self.rows:,} of {self.candidates:,} rows, after {self.calls:,} calls of the test"
            + ("" if self.is_minimal else "; there may be a smaller set, since calls ran out")
        ]
        if self.predicate is not None:
            others = f", and of {self.others:,} other rows" if self.others else ", and of no other"
            lines.append(f"true of all of them{others}: {self.predicate}")
        for one in self.ranges[:_SHOWN]:
            runs = ", ".join(f"{start}..{end}" for start, end in one.physical_rows)
            lines.append(f"split {one.split}, rows {one.start}..{one.end}: {one.path}, rows {runs}")
        if len(self.ranges) > _SHOWN:
            lines.append(f"and {len(self.ranges) - _SHOWN} more ranges")
        return "\n".join(lines)


def bisect(
    receipts: Iterable[Mapping[str, Any]],
    query: Query | Mixture | QueryDataset,
    first: int,
    last: int,
    test: Callable[[QueryDataset], bool],
    *,
    epoch: int | None = None,
    columns: Iterable[str] | None = None,
    max_calls: int = 1000,
) -> Culprits:
    """Find the smallest set of rows that makes a loss spike, and a SQL predicate that tells them from the others.

    The candidates are the rows that any rank received in the steps `first` to `last`. Part after part of them is replayed,
    with all other rows left out by ``exclude=``, and given to `test`: halves, then quarters and so on, and what is left
    without each of them (delta debugging: ddmin of Zeller and Hildebrandt, 2002). One bad row among n is found with some
    2·log2(n) calls, k of them with some k times as many, never more than `max_calls`. The calls are the same each time.

    Args:
        receipts: The last receipt of each rank.
        query: The query that was trained on, over the same files; or a `QueryDataset` of it, whose tensor options and
            ``transform`` the replays have.
        first: The first step whose rows may be to blame.
        last: The last one: the step in which the loss spiked.
        test: Called with a `QueryDataset` of some candidates, in the order of files and with the run's rows per batch. It
            returns True if they still make the spike: load the checkpoint before it, train on the dataset or compute its
            loss. It must answer the same for the same rows, and False for none.
        epoch: The epoch of the steps; None: the last one in the receipts.
        columns: Output columns in which a predicate is looked for: numbers, texts, booleans, dates, timestamps. Its terms are
            values, lists, bounds and ranges, joined by AND. None: no predicate is looked for.
        max_calls: Calls of `test`, at most.

    Returns:
        The rows, the predicate, and how they were found.

    Raises:
        ConfigError: `test` is False for all candidates together; the steps were not delivered, or in two runs that count anew;
            an argument is malformed.
        QueryError: A column is unknown.
        CheckpointMismatchError: A receipt was changed, or one is missing, or they are of another query; names what and where.
        DataError: A file cannot be read.
    """
    first, last = check_non_negative_int("first", first), check_non_negative_int("last", last)
    if last < first:
        raise ConfigError(
            f"last={last} must be at least first={first}: both are steps of one epoch"
        )
    check_callable("test", test)
    max_calls = check_positive_int("max_calls", max_calls)
    if epoch is not None:
        epoch = check_non_negative_int("epoch", epoch)
    names = column_list(columns) or []
    replay = Replay(receipts, query)
    planned, items, batch_size = _candidates(replay, first, last, epoch)
    _check_columns(planned, names)

    def blames(some: npt.NDArray[np.int64]) -> bool:
        answer = test(_dataset(replay, planned, some, batch_size=batch_size))
        if not isinstance(answer, bool | np.bool_):
            raise ConfigError(
                f"test returned {type(answer).__name__} {str(answer)[:40]!r}; it must return True if the rows make the spike, "
                "else False"
            )
        return bool(answer)

    found = minimize(items, blames, max_calls)
    if not len(found.items):
        raise ConfigError(
            f"test is False for all {len(items)} rows of the steps {first} to {last} together, so that no part of them is to "
            "blame; give more steps, or a test that is True for these"
        )
    told = None
    if names:
        table = _table(replay, planned, items).select(names)
        told = tell_apart(table, np.isin(items, found.items).tolist())
    return Culprits(
        ranges=tuple(planned.traced(planned.ranges(_mask(planned, found.items)))),
        rows=len(found.items),
        candidates=len(items),
        predicate=None if told is None else told.predicate,
        others=0 if told is None else told.others,
        calls=found.calls,
        is_minimal=found.is_minimal,
    )


def _candidates(
    replay: Replay, first: int, last: int, epoch: int | None
) -> tuple[Planned, npt.NDArray[np.int64], int]:
    """The rows of some steps on all ranks, as ascending numbers of rows of the result; and the rows per batch."""
    every = list(replay.runs())
    if epoch is None:
        epoch = max((delivery.share.epoch for delivery, _, _ in every), default=0)
    numbers, runs, found, reached = [], {}, None, 0
    for delivery, planned, dealt in every:
        start, stop = max(first, delivery.first), min(last + 1, delivery.last)
        if delivery.share.epoch != epoch or start >= stop:
            continue
        runs[delivery.run] = dealt.batch_size
        found, reached = planned, max(reached, stop)
        for batch in dealt.batches(delivery.share, start, stop):
            numbers.append(planned.numbers(batch))
    if found is None:
        raise ConfigError(
            f"the receipts have no step {first} to {last} of epoch {epoch}; steps count from 0, and anew in a run that goes "
            "on with another topology"
        )
    if reached <= last:
        raise ConfigError(
            f"the receipts have no step {last} of epoch {epoch}: the last is {reached - 1}; take a receipt behind the step"
        )
    if len(runs) > 1:
        raise ConfigError(
            f"epoch {epoch} was delivered in {len(runs)} runs that have steps {first} to {last}; give the receipts of the one "
            "that is meant, and of those before it where it goes on after them with other steps"
        )
    [batch_size] = runs.values()
    return found, np.unique(np.concatenate(numbers)), batch_size


def _mask(planned: Planned, items: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    mask = np.zeros(planned.rows, dtype=bool)
    mask[items] = True
    return mask


def _check_columns(planned: Planned, names: Sequence[str]) -> None:
    """Check that a predicate may be over these columns, before hours of tests."""
    if not names:
        return
    schema = import_pyarrow().schema(planned.core)
    for name in names:
        if name not in schema.names:
            near = nearest_name(name, schema.names)
            hint = f"; did you mean {near!r}?" if near else ""
            raise QueryError(
                f"columns= has {name!r}, and the query's columns are {', '.join(schema.names)}{hint}"
            )
    check_comparable(schema, names)


def _dataset(
    replay: Replay, planned: Planned, items: npt.NDArray[np.int64], **options: Any
) -> QueryDataset:
    """A dataset of some rows, in the order of the result."""
    query = planned.query
    if isinstance(query, Mixture):
        # Its rows without its weights.
        query = Query(query.session, query._core)
    exclude = planned.ranges(~_mask(planned, items))
    return QueryDataset._of(
        query, replace(planned.plain(replay.options), exclude=exclude, **options)
    )


def _table(replay: Replay, planned: Planned, items: npt.NDArray[np.int64]) -> Any:
    """The rows as a table of Arrow."""
    plain = {name: getattr(LoaderOptions, name) for name in TENSOR_OPTIONS}
    plain |= {"output_format": "arrow", "transform": None}
    batches = _dataset(replay, planned, items, batch_size=_READ_ROWS, **plain)
    return import_pyarrow().Table.from_batches(list(batches))
