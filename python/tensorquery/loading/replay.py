"""Plans the query of receipts again, and goes through the rows that they say were delivered."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tensorquery import _core
from tensorquery._util.arrow_c import import_pyarrow
from tensorquery._util.digests import digest
from tensorquery.distributed.topology import Topology, threads_for
from tensorquery.errors import CheckpointMismatchError, ConfigError
from tensorquery.loading.dataset import QueryDataset
from tensorquery.loading.deliveries import state_of_plan
from tensorquery.loading.options import LoaderOptions
from tensorquery.loading.plan import DatasetPlan
from tensorquery.sharding.checkpoint import check_same
from tensorquery.sharding.deal import Deal
from tensorquery.sharding.delivered import Batch, Dealt, Share
from tensorquery.sharding.epochs import Epochs
from tensorquery.sharding.left import Left
from tensorquery.sharding.receipt import Span, check_receipt, run_digest, spans_of
from tensorquery.sharding.row_counts import split_counts
from tensorquery.sharding.trace import TraceRange, physical_of, ranges_of
from tensorquery.sql.mixture import Mixture
from tensorquery.sql.query import Query

__all__ = ["Delivery", "Planned", "Replay", "checked_receipts"]

_ALONE = Topology(0, 1)

_CHUNK = 1 << 20
"""Rows whose places are looked up at a time."""


class Delivery(NamedTuple):
    """Steps of one run in one epoch that a receipt has.

    Attributes:
        receipt: The number of the receipt in the list given.
        record: The number of the record.
        run: A digest of the run, equal on all ranks.
        share: The rank and the epoch.
        first: The first step.
        last: One past the last step.
    """

    receipt: int
    record: int
    run: str
    share: Share
    first: int
    last: int


class Planned:
    """The query of a receipt, planned again.

    Args:
        entry: The plan as the receipt has it.
        query: The query.
        options: Options that a receipt does not have: where stages lie, a strategy of the user's.

    Attributes:
        plan: The plan.
        core: Its splits.
        query: The query, at the snapshots and the moment of the receipt.
        counts: Output rows of every split.
        starts: By split, how many output rows the splits before it have.

    Raises:
        CheckpointMismatchError: It is another query, or a file has changed; names what differs.
    """

    def __init__(
        self, entry: Mapping[str, Any], query: Query | Mixture, options: LoaderOptions
    ) -> None:
        self._entry = entry
        size, rows, _ = entry["splits"]
        sample = entry["parts"].get("sample")
        column, replacement, draws = sample if sample else (None, True, None)
        named = entry["parts"].get("strategy")
        options = replace(
            options,
            batch_size=1,
            split_strategy=named if named in ("lpt", "round_robin") else options.split_strategy,
            nulls="error",
            stack=None,
            pad=None,
            categories=None,
            decimal="float64",
            transform=None,
            shuffle=entry["shuffle"],
            shuffle_seed=entry["seed"],
            shuffle_buffer_size=entry["buffer"],
            split_bytes=size,
            split_rows=rows,
            exclude=entry["exclude"],
            sample_weight=column,
            sample_replacement=replacement,
            num_samples=draws,
            on_error=entry.get("on_error", "raise"),
            output_format="arrow",
        )
        deal = options.deal
        if isinstance(query, Mixture):
            deal = replace(deal, mixture=query._weights())
        self.plan = DatasetPlan(query, deal, options, _ALONE, options.output, None)
        self._check_same()
        assert self.plan.core is not None
        self.core: _core.Plan = self.plan.core
        assert self.plan.query is not None
        self.query = self.plan.query
        # Epochs of single rows are dealt from the stage that counting makes, where they are drawn by weight.
        self._drawn = self.plan.deal.weighing is not None
        if self._drawn:
            self.plan.epochs.count()
        self.counts = np.array(self.plan.count_splits(), dtype=np.int64)
        self.starts = np.concatenate([[0], np.cumsum(self.counts)]).astype(np.int64)
        self._dealt: dict[str, Dealt] = {}

    def _check_same(self) -> None:
        theirs, plan = state_of_plan(dict(self._entry)), self.plan
        plan.follow_pins(theirs)
        plan.follow_quarantine(theirs)
        assert plan.epochs is not None
        ours = plan.constant
        # How batches came out does not change which rows they had.
        shown = {"tensors": theirs["parts"].get("tensors")}
        try:
            check_same(theirs, {**ours, "parts": {**ours["parts"], **shown}}, plan.file_names())
        except CheckpointMismatchError as error:
            told = str(error).partition("what differs: ")[2].partition(". Resume with")[0]
            raise CheckpointMismatchError(
                f"the receipts belong to another query: what differs: {told or error}. Give the query that was trained on, "
                "over the same files; or a dataset made with the same split_strategy, stage_dir or stage_from"
            ) from error

    @property
    def rows(self) -> int:
        """Rows of the result."""
        return int(self.starts[-1])

    def dealt(self, run: Mapping[str, Any]) -> Dealt:
        """The rows of a run, dealt again.

        Raises:
            CheckpointMismatchError: The run's layout cannot be made again.
        """
        layout = run["layout"]
        key = digest(layout)
        if key not in self._dealt:
            whole = self.plan.deal
            deal = replace(
                whole,
                batch_size=layout["batch_size"],
                remainder=layout["remainder"],
                partitions=layout["partitions"],
                strategy=whole.strategy if layout["strategy"] is None else layout["strategy"],
            )
            total = [self.plan.stage.num_positions] if self.plan.stage else [self.rows]
            counts = self.counts.tolist()
            known = None if deal.is_global else self.core.known_counts()
            epochs = Epochs(
                self.core,
                deal,
                Topology(0, layout["world_size"]),
                (lambda: total) if deal.is_global else (lambda: counts),
                known,
            )
            if epochs.layout(layout["num_workers"]) != layout:
                raise CheckpointMismatchError(
                    f"the layout of a run in the receipts cannot be made again with this query: it had {layout}, and now has "
                    f"{epochs.layout(layout['num_workers'])}; read them with the version of tensorquery that wrote them"
                )
            self._dealt[key] = Dealt(
                self.core,
                epochs,
                permuted=deal.is_global,
                drawn_from=(lambda: self.plan.stage) if self._drawn else None,
                count=lambda: counts,
            )
        return self._dealt[key]

    def plain(self, options: LoaderOptions) -> LoaderOptions:
        """Options of a dataset with the same splits, whose rows come in order and in one process."""
        size, rows, _ = self._entry["splits"]
        return replace(
            options, shuffle=False, shuffle_buffer_size=None, split_bytes=size, split_rows=rows, split_strategy=None,
            sample_weight=None, sample_replacement=True, num_samples=None, stage=self._entry["stage"],
            on_error=self._entry.get("on_error", "raise"),
        )  # fmt: skip

    def numbers(self, batch: Batch) -> npt.NDArray[np.int64]:
        """The rows of a batch as numbers of rows of the result."""
        return self.starts[batch.splits] + batch.rows

    def places(self, numbers: npt.NDArray[np.int64]) -> tuple[list[int], list[int]]:
        """Splits and output rows by numbers of rows of the result."""
        splits = np.searchsorted(self.starts, numbers, side="right") - 1
        return splits.tolist(), (numbers - self.starts[splits]).tolist()

    def ranges(self, rows: npt.NDArray[np.bool_]) -> tuple[tuple[int, int, int], ...]:
        """Rows of the result, where True, as ranges of output rows of splits: those that ``exclude=`` takes."""
        edges = np.flatnonzero(np.diff(np.concatenate([[0], rows.astype(np.int8), [0]])))
        found = []
        for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            while start < end:
                split = int(np.searchsorted(self.starts, start, side="right")) - 1
                first, stop = int(self.starts[split]), min(end, int(self.starts[split + 1]))
                found.append((split, start - first, stop - first))
                start = stop
        return tuple(found)

    def traced(self, ranges: Iterable[tuple[int, int, int]]) -> Iterator[TraceRange]:
        """The physical rows behind ranges of output rows; their splits are read again."""
        for split, of_split in itertools.groupby(ranges, key=lambda each: each[0]):
            rows = itertools.chain.from_iterable(range(start, end) for _, start, end in of_split)
            # A split is read once for each chunk.
            while chunk := [(split, row) for row in itertools.islice(rows, _CHUNK)]:
                yield from ranges_of(self.core, chunk, physical_of(self.core, chunk))

    @property
    def is_staged(self) -> bool:
        """Whether a part of the query runs once, and its rows are read instead."""
        return bool(self.plan.stages)

    @property
    def is_damaged(self) -> bool:
        """Whether bad parts of files are left out."""
        return bool(self.plan.quarantine.listed)

    def batches(self, rows: int) -> Iterator[Any]:
        """All rows of the result in their order, as batches of Arrow with all columns."""
        plain = Deal(rows, 0, False, None, "uneven", None, "lpt")
        counts = self.counts.tolist()
        epochs = Epochs(self.core, plain, _ALONE, lambda: counts, self.core.known_counts())
        threads = threads_for(_ALONE, 0)
        stream = self.core.stream(epochs.shards(0, 0), 0, 0, [], threads, None)
        try:
            while (found := stream.next()) is not None:
                yield import_pyarrow().record_batch(found)
        finally:
            stream.close()

    def planned(self, core: _core.Query) -> tuple[_core.Plan, list[int]]:
        """Another query over the same files, with splits as large, and their output rows."""
        size, rows, explicit = self._entry["splits"]
        plan = core.plan(size, rows, explicit)
        counts = split_counts(plan, topology=_ALONE, threads=threads_for(_ALONE, 0))
        return plan, counts.rows


class Replay:
    """The receipts of some runs, with their query planned again.

    Args:
        receipts: Of all ranks.
        query: The query, or a dataset of it.

    Attributes:
        receipts: The receipts, checked; those that another one continues are left out.
        numbers: By receipt, its number in the list that was given.
        session: The query's session.
        options: Options of the dataset that was given; else the defaults.
    """

    def __init__(
        self, receipts: Iterable[Mapping[str, Any]], query: Query | Mixture | QueryDataset
    ) -> None:
        self.numbers, self.receipts = checked_receipts(receipts)
        options = LoaderOptions(rank=0, world_size=1)
        if isinstance(query, QueryDataset):
            query, options = query._plan.query_and_options()
        elif not isinstance(query, Query | Mixture):
            raise ConfigError(
                f"query is {type(query).__name__}, and must be the Query that was trained on (session.sql(…), tq.mix(…)), or "
                "a QueryDataset of it"
            )
        self._query, self.options = query, options
        self.session = query.session
        self._planned: dict[str, Planned] = {}
        # Who gives another query hears of it at once.
        for receipt in self.receipts:
            for entry in receipt["plans"]:
                self.planned(entry)

    def planned(self, entry: Mapping[str, Any]) -> Planned:
        """A plan of a receipt, planned again."""
        key = digest(entry)
        if key not in self._planned:
            staged = replace(self.options, stage=entry["stage"])
            self._planned[key] = Planned(entry, self._query, staged)
        return self._planned[key]

    def runs(self) -> Iterator[tuple[Delivery, Planned, Dealt]]:
        """All that was delivered: receipt by receipt, in the order of their records."""
        for index, receipt in enumerate(self.receipts):
            for record in receipt["records"]:
                for span in spans_of(record):
                    yield from self._of_span(index, record["number"], span)

    def _of_span(
        self, index: int, record: int, span: Span
    ) -> Iterator[tuple[Delivery, Planned, Dealt]]:
        receipt = self.receipts[index]
        run = receipt["runs"][span.run]
        planned = self.planned(receipt["plans"][run["plan"]])
        dealt, key, left = planned.dealt(run), run_digest(receipt, span.run), Left.read(run["left"])
        for epoch in range(span.epoch, span.epoch + span.epochs):
            share = Share(epoch, receipt["rank"], run["layout"]["num_workers"], left)
            yield Delivery(index, record, key, share, span.first, span.last), planned, dealt


def checked_receipts(receipts: Iterable[Any]) -> tuple[list[int], list[dict[str, Any]]]:
    """Check receipts one by one and together.

    Returns:
        Their numbers in the list, and the receipts: without those that a longer one of the same rank continues.

    Raises:
        ConfigError: It is no list.
        CheckpointMismatchError: One is damaged, or one that others need is missing; names it.
    """
    if isinstance(receipts, str | bytes | Mapping) or not isinstance(receipts, Iterable):
        raise ConfigError(
            f"receipts is {type(receipts).__name__}, and must be a list: the last receipt of each rank of each run"
        )
    found: dict[str, tuple[int, dict[str, Any]]] = {}
    checked = []
    for number, receipt in enumerate(receipts):
        try:
            checked.append((number, check_receipt(receipt)))
        except CheckpointMismatchError as error:
            raise CheckpointMismatchError(f"receipt {number} of the list: {error}") from error
    if not checked:
        raise ConfigError("the list of receipts is empty; give the last receipt of each rank")
    # The longest first: its digests are those of the earlier ones.
    for number, receipt in sorted(checked, key=lambda each: -len(each[1]["records"])):
        if receipt["records"][-1]["chain"] not in found:
            for record in receipt["records"]:
                found.setdefault(record["chain"], (number, receipt))
    kept = dict(sorted(found.values(), key=lambda each: each[0]))
    for number, receipt in kept.items():
        for head in receipt["after"]:
            if head not in found:
                raise CheckpointMismatchError(
                    f"receipt {number} of the list, of rank {receipt['rank']}, goes on after a receipt that is not in it: the "
                    f"one whose last digest is {head[:16]}…; give the receipts of the runs before, too"
                )
    _check_ranks(kept.values())
    return list(kept), list(kept.values())


def _check_ranks(receipts: Iterable[Mapping[str, Any]]) -> None:
    """Check that all ranks of each run are there."""
    ranks = {receipt["rank"] for receipt in receipts}
    for receipt in receipts:
        for run in receipt["runs"]:
            world = run["layout"]["world_size"]
            absent = (rank for rank in range(world) if rank not in ranks)
            missing = list(itertools.islice(absent, 9))
            if missing:
                shown = ", ".join(map(str, missing[:8])) + (", …" if len(missing) > 8 else "")
                raise CheckpointMismatchError(
                    f"the receipts of ranks {shown} are missing, and there are {world} ranks; give those of all ranks, also of "
                    "one that had no rows"
                )
