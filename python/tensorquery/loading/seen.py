"""`seen`: which rows that match a predicate were delivered, at which steps, and which checkpoints that touches."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tensorquery import _core
from tensorquery._util.arrow_c import import_pyarrow
from tensorquery.errors import ConfigError
from tensorquery.loading.dataset import QueryDataset
from tensorquery.loading.replay import Planned, Replay
from tensorquery.sharding.receipt import run_digest, spans_of
from tensorquery.sharding.trace import physical_of
from tensorquery.sql.mixture import Mixture
from tensorquery.sql.query import Query
from tensorquery.sql.session import Session

__all__ = ["Seen", "SeenRow", "TouchedCheckpoint", "seen"]

_READ_ROWS = 1 << 16
"""Rows that are looked at together."""

_Rows = npt.NDArray[np.int64]
_Key = tuple[str, str | None]
"""A file, and a part of it where rows are counted from the start of that part."""


class SeenRow(NamedTuple):
    """One delivery of a row that matches."""

    path: str
    """The file, as the user would write it; "memory" for a table in memory."""
    row: int
    """The physical row, counted from 0 as `counted_from` says."""
    counted_from: str
    """The unit from whose start the row is counted: "file", "table" or "split", as in `TraceRange`."""
    split: int
    """The split's id."""
    output_row: int
    """The output row of the split; ``exclude=[(split, output_row, output_row + 1)]`` leaves it out."""
    epoch: int
    """The epoch."""
    rank: int
    """The rank that received it."""
    step: int
    """The number of the batch on its rank, as in `Trace`."""
    receipt: int
    """The number of the receipt in the list given."""
    record: int
    """The number of its record: the first checkpoint of that rank behind the delivery."""
    name: str | None
    """The name of that checkpoint."""
    repeated: bool
    """Whether the row was repeated to fill the batch (``remainder="pad"``)."""


class TouchedCheckpoint(NamedTuple):
    """A checkpoint saved after a matching row was delivered."""

    receipt: int
    """The number of the receipt in the list given."""
    rank: int
    """Its rank."""
    record: int
    """The number of the record."""
    name: str | None
    """The name that ``receipt(name)`` gave it."""


class Seen:
    """The places at which rows that match were delivered. Made by `seen`; each iteration goes through the receipts.

    Attributes:
        matching: Rows of the query's result that match, delivered or not.
    """

    def __init__(self, replay: Replay, predicate: Any, table: Query | None) -> None:
        self._replay = replay
        self._predicate = predicate
        self._table = table
        self._found: dict[int, _Found] = {}
        for receipt in replay.receipts:
            for entry in receipt["plans"]:
                self._of(replay.planned(entry))

    def _of(self, planned: Planned) -> _Found:
        key = id(planned)
        if key not in self._found:
            self._found[key] = _matching(planned, self._predicate, self._table)
        return self._found[key]

    @property
    def matching(self) -> int:
        """Rows of the query's result that match, delivered or not; of several plans the most."""
        return max((len(found.numbers) for found in self._found.values()), default=0)

    def __iter__(self) -> Iterator[SeenRow]:
        for delivery, planned, dealt in self._replay.runs():
            found = self._of(planned)
            if not len(found.numbers):
                continue
            receipt = self._replay.receipts[delivery.receipt]
            for batch in dealt.batches(delivery.share, delivery.first, delivery.last):
                numbers = planned.numbers(batch)
                at = np.minimum(np.searchsorted(found.numbers, numbers), len(found.numbers) - 1)
                for position in np.flatnonzero(found.numbers[at] == numbers).tolist():
                    split = int(batch.splits[position])
                    yield SeenRow(
                        path=found.path_of(split),
                        row=int(found.physical[at[position]]),
                        counted_from=planned.core.numbering(split),
                        split=split,
                        output_row=int(batch.rows[position]),
                        epoch=delivery.share.epoch,
                        rank=delivery.share.rank,
                        step=batch.step,
                        receipt=self._replay.numbers[delivery.receipt],
                        record=delivery.record,
                        name=receipt["records"][delivery.record]["name"],
                        repeated=position >= batch.fresh,
                    )

    @property
    def checkpoints(self) -> list[TouchedCheckpoint]:
        """The checkpoints that a matching row has touched: saved after its delivery, on any rank, or in a run that goes on.

        Ranks train one model. So a row that one rank received at a step touches the checkpoints of all ranks that were saved
        after that step.
        """
        first = _touched(self._replay, self)
        found = []
        for index, receipt in enumerate(self._replay.receipts):
            start = first.get(index, len(receipt["records"]))
            number, rank = self._replay.numbers[index], receipt["rank"]
            found += [
                TouchedCheckpoint(number, rank, record["number"], record["name"])
                for record in receipt["records"][start:]
            ]
        return found

    def __repr__(self) -> str:
        return f"Seen({self.matching:,} rows match; iterate for those that were delivered)"


def seen(
    receipts: Iterable[Mapping[str, Any]],
    predicate: Any,
    query: Query | Mixture | QueryDataset,
    *,
    table: str | Query | None = None,
) -> Seen:
    """Find the rows that match a predicate and were delivered: files and row numbers, epochs, steps, ranks, checkpoints.

    The query is planned again and its rows are dealt again. Of the files only the columns are read that the predicate names,
    and those by which the query filters or joins. Where a part of the query runs once (``stage=``), or bad parts of files were
    left out, all columns of the result are read.

    A row is a row of the query's driving file. Where a join or ``unnest`` makes several rows of it, all of them count as
    soon as one matches.

    Args:
        receipts: The last receipt of each rank, of all runs. Earlier ones of the same rank do no harm.
        predicate: SQL over the output columns of the query, or another form of ``filters=``: ``"user_id = 42"``.
        query: The query that was trained on, over the same files: a `Query`, a `Mixture`, or a `QueryDataset` of it. A dataset
            says what receipts do not have: ``stage_dir``, ``stage_from`` and a ``split_strategy`` of one's own.
        table: The predicate is over the columns of this table and not of the query's output: a table of the query's session by
            name, or a `Query` over the same files, as for a column that the training set leaves out.

    Returns:
        An iterable of `SeenRow`; its ``checkpoints`` are the checkpoints saved after one of them.

    Raises:
        CheckpointMismatchError: A receipt was changed, or one is missing, or they are of another query; names what and where.
        ConfigError: `table` has none of the query's files, or other versions of them.
        QueryError: The predicate is malformed, or names an unknown column.
        DataError: A file cannot be read.
    """
    replay = Replay(receipts, query)
    if predicate is None:
        raise ConfigError(
            'predicate is None; write what to look for: seen(receipts, "user_id = 42", query)'
        )
    if isinstance(table, str):
        table = replay.session.table(table)
    elif table is not None and not isinstance(table, Query):
        raise ConfigError(
            f"table={type(table).__name__} must be the name of a table, or a Query over the same files"
        )
    return Seen(replay, predicate, table)


class _Found(NamedTuple):
    """The rows of a result that match."""

    numbers: _Rows
    """Their numbers in the result, ascending."""
    physical: _Rows
    """The physical row behind each."""
    planned: Planned

    def path_of(self, split: int) -> str:
        """The file of a split."""
        return str(self.planned.core.splits([split])[0][1])


def _matching(planned: Planned, predicate: Any, table: Query | None) -> _Found:
    """Find the rows of a result whose file rows match."""
    if table is None and (planned.is_staged or planned.is_damaged):
        return _matching_read(planned, predicate)
    if planned.is_staged:
        raise ConfigError(
            "the query has a part that runs once, and its rows are not those of a file, so that table= says nothing of them; "
            "leave table= out, and look for columns of the query's output"
        )
    source = planned.query if table is None else _at_pins(table, planned)
    core = source.select(filters=predicate)._core.expressions("TRUE AS one")
    plan, counts = planned.planned(core)
    if table is not None:
        _check_files(planned.core, plan)
    wanted: dict[_Key, set[int]] = {}
    for split, rows in _physical(
        plan, [split for split, rows in enumerate(counts) if rows], counts
    ):
        wanted.setdefault(_key(plan, split), set()).update(rows)
    # The query without its columns: so its rows are numbered without reading them.
    if planned.is_damaged:
        bare, bare_counts = planned.core, planned.counts.tolist()
    else:
        bare, bare_counts = planned.planned(planned.query._core.expressions("TRUE AS one"))
    starts = _aligned(bare, bare_counts, planned)
    splits = [
        split for split, rows in enumerate(bare_counts) if rows and _key(bare, split) in wanted
    ]
    numbers: list[int] = []
    physical: list[int] = []
    for split, rows in _physical(bare, splits, bare_counts):
        of_file = wanted[_key(bare, split)]
        hits = [at for at, row in enumerate(rows) if row in of_file]
        numbers += [starts[split] + at for at in hits]
        physical += [rows[at] for at in hits]
    order = np.argsort(np.array(numbers, dtype=np.int64), kind="stable")
    return _Found(
        np.array(numbers, dtype=np.int64)[order], np.array(physical, dtype=np.int64)[order], planned
    )


def _matching_read(planned: Planned, predicate: Any) -> _Found:
    """Find the rows that match by reading the result, where it is of stages, or without bad parts of files."""
    pyarrow = import_pyarrow()
    # Columns may have any name, so the number has one that none has.
    number = "n" * (1 + max(len(name) for name, _, _ in planned.query._core.columns()))
    found: list[int] = []
    start = 0
    for batch in planned.batches(_READ_ROWS):
        rows = pyarrow.table(batch)
        numbers = pyarrow.array(range(start, start + len(rows)), pyarrow.int64())
        session = Session()
        session.register_table("rows", rows.append_column(number, numbers))
        kept = session.table("rows").select([number], predicate)
        found += kept.to_arrow()[number].to_pylist()
        start += len(rows)
    numbers = np.array(sorted(found), dtype=np.int64)
    splits, rows = planned.places(numbers)
    behind = physical_of(planned.core, zip(splits, rows, strict=True))
    physical = [behind[place] for place in zip(splits, rows, strict=True)]
    return _Found(numbers, np.array(physical, dtype=np.int64), planned)


def _physical(
    plan: _core.Plan, splits: Iterable[int], counts: list[int]
) -> Iterator[tuple[int, list[int]]]:
    """The physical rows behind all output rows of some splits, one split after the other."""
    for split in splits:
        [rows] = plan.physical_rows([(split, range(counts[split]))])
        yield split, rows


def _key(plan: _core.Plan, split: int) -> _Key:
    described = plan.splits([split])[0]
    return described[1], described[6] if plan.numbering(split) == "split" else None


def _at_pins(table: Query, planned: Planned) -> Query:
    """The table at the snapshots that were trained on."""
    pins, own = planned.query._pins(), table._pins()
    then = {name: pins.get(name, pin) for name, pin in own.items()}
    return table if then == own else table._at(then)


def _check_files(ours: _core.Plan, theirs: _core.Plan) -> None:
    """Check that a table has files of the query, in the same versions."""
    known = dict(ours.files())
    shared = [(path, identity) for path, identity in theirs.files() if path in known]
    if not shared and theirs.files():
        raise ConfigError(
            f"table= has none of the query's files: its first is {theirs.files()[0][0]}; give the table that the query "
            "reads its rows from"
        )
    for path, identity in shared:
        if known[path] != identity:
            raise ConfigError(
                f"table= and the query have different versions of {path}; register both anew from the same files"
            )


def _aligned(bare: _core.Plan, counts: list[int], planned: Planned) -> list[int]:
    """By split of a plan with the same rows and other splits, the number of its first row in the result."""

    def runs(plan: _core.Plan, rows: list[int]) -> list[tuple[tuple[int, str], int, int]]:
        """Scan and file of neighbouring splits; the first one, and their rows."""
        scans = plan.scans()
        keys = [(scans[split], plan.splits([split])[0][1]) for split in range(plan.num_splits)]
        found = []
        for key, group in itertools.groupby(range(len(keys)), key=keys.__getitem__):
            members = list(group)
            total = sum(rows[member] for member in members)
            if total:
                found.append((key, members[0], total))
        return found

    ours = runs(planned.core, planned.counts.tolist())
    theirs = runs(bare, counts)
    if [(key, rows) for key, _, rows in ours] != [(key, rows) for key, _, rows in theirs]:
        raise ConfigError(
            "the query without its columns has other rows than with them; please report it with the query"
        )
    # Rows are in the order of files and of their rows, whatever the splits are.
    return [0, *itertools.accumulate(counts)]


def _touched(replay: Replay, rows: Iterable[SeenRow]) -> dict[int, int]:
    """By receipt, the first record that a row has touched."""
    index_of = {number: index for index, number in enumerate(replay.numbers)}
    first: dict[int, int] = {}

    def touch(index: int, record: int) -> None:
        first[index] = min(record, first.get(index, record))

    earliest: dict[str, tuple[int, int]] = {}
    for row in rows:
        index = index_of[row.receipt]
        touch(index, row.record)
        receipt = replay.receipts[index]
        for span in spans_of(receipt["records"][row.record]):
            is_there = span.epoch <= row.epoch < span.epoch + span.epochs
            if is_there and span.first <= row.step < span.last:
                run = run_digest(receipt, span.run)
                earliest[run] = min(earliest.get(run, (row.epoch, row.step)), (row.epoch, row.step))
    for index, receipt in enumerate(replay.receipts):
        # Ranks of one run train one model.
        moments = {
            digest: earliest[digest]
            for digest in (run_digest(receipt, run) for run in range(len(receipt["runs"])))
            if digest in earliest
        }
        for record in receipt["records"] if moments else ():
            for span in spans_of(record):
                last = span.epoch + span.epochs - 1
                own = moments.get(run_digest(receipt, span.run))
                if last > min(moments.values())[0] or (own and (last, span.last - 1) >= own):
                    touch(index, record["number"])
    # Runs that go on from a touched checkpoint, and runs that go on from those.
    heads = {
        record["chain"]: (index, record["number"])
        for index, receipt in enumerate(replay.receipts)
        for record in receipt["records"]
    }
    changed = True
    while changed:
        changed = False
        for index, receipt in enumerate(replay.receipts):
            for head in receipt["after"]:
                before, record = heads[head]
                if first.get(before, record + 1) <= record and first.get(index) != 0:
                    touch(index, 0)
                    changed = True
    return first
