"""Splits, the strategies that deal them to shards, and the plan one can look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from tensorquery.errors import ConfigError
from tensorquery.options import check_positive_int, parse_bytes

if TYPE_CHECKING:
    from tensorquery import _core
    from tensorquery.epochs import Epochs
    from tensorquery.quality import ShuffleQuality

__all__ = [
    "RankSteps",
    "RowRange",
    "Shard",
    "ShardPlan",
    "Split",
    "SplitStrategy",
    "plan_splits",
    "spell_steps",
]

DEFAULT_SPLIT_BYTES = "128MiB"


class RowRange(NamedTuple):
    """Physical rows of one file, before any filter."""

    offset: int
    """First row, counted from the start of the file."""
    length: int
    """Number of rows."""


@dataclass(frozen=True)
class Split:
    """The smallest piece of scan work: row groups (or stripes, record batches, blocks), a byte range, or a whole file.

    Attributes:
        id: Position in the plan.
        path: The file, as the user would write it.
        file_size: The file's size in bytes.
        row_count: Rows before any filter, without deleted ones, exact; None where the format does not say.
        row_range: Where these rows lie in the file, deleted ones among them; None where the format does not say.
        partition_values: Hive values of the file, or those of identity partitions, as text; None stands for null.
        snapshot_id: The Iceberg snapshot; None for plain files.
        bytes: Stored bytes of the projected columns: the weight that is balanced.
        unit: What is read, for example "row groups 0 to 3".
    """

    id: int
    path: str
    file_size: int
    row_count: int | None
    row_range: RowRange | None
    partition_values: dict[str, str | None]
    snapshot_id: int | None
    bytes: int
    unit: str


@runtime_checkable
class SplitStrategy(Protocol):
    """Deals splits to shards; any object with this method will do."""

    def generate(self, splits: Sequence[Split], num_shards: int, epoch: int) -> list[list[Split]]:
        """Deal every split to one shard.

        Args:
            splits: All splits of the plan, in plan order.
            num_shards: World size times workers (at least 1 per rank); shard
                ``rank * workers + worker`` is read by that worker, in the order returned.
            epoch: The epoch it is asked for.

        Returns:
            `num_shards` lists that together hold every split once.
        """
        ...


@dataclass(frozen=True)
class Shard:
    """What one (rank, worker) reads.

    Attributes:
        rank: The rank.
        worker: The worker on that rank.
        splits: Number of splits.
        rows: Rows before any filter; None where a format does not say.
        bytes: Stored bytes of the projected columns.
        batches_at_most: Upper bound of batches, where rows and a batch size are known.
    """

    rank: int
    worker: int
    splits: int
    rows: int | None
    bytes: int
    batches_at_most: int | None


@dataclass(frozen=True)
class RankSteps:
    """What one rank delivers in an epoch.

    Attributes:
        rank: The rank.
        rows: Rows, exact; with ``remainder="pad"`` the repeated ones count.
        steps: Batches.
    """

    rank: int
    rows: int
    steps: int


class ShardPlan:
    """How splits are dealt to ranks and workers. Made by `Query.plan_shards`; printing shows a table.

    Attributes:
        world_size: Number of ranks.
        num_workers: Worker processes per rank.
        shards: What each (rank, worker) reads, by whole splits.
        ranks: Exact rows and steps of each rank, where the batch size is given and metadata says the output rows;
            else empty. Splits are cut at row offsets to fit, so these are not the sums of `shards`.
        quality: What is predicted of shuffling; None where nothing is shuffled.
        imbalance: Heaviest over mean weight of the shards; 1 is even.
        rank_imbalance: The same of the ranks.
        files: Files of the tables that are read.
        files_pruned: Of those, the files of which nothing is read.
        row_groups: Row groups (or stripes, record batches, blocks) of the files listed.
        row_groups_pruned: Of those, pruned.
        quarantined: Bad files, row groups, stripes and byte ranges that are left out (``on_error="skip"``).

    Two plans are equal when they deal the same splits of the same query in the same way.
    """

    def __init__(
        self,
        plan: _core.Plan,
        world_size: int,
        num_workers: int,
        strategy: SplitStrategy | str | None = None,
        *,
        epoch: int = 0,
        batch_size: int | None = None,
        epochs: Epochs | None = None,
        quarantined: int = 0,
    ) -> None:
        self._core = plan
        self.quarantined = quarantined
        self._lists = assign(plan, world_size, num_workers, strategy, epoch)
        self.world_size = world_size
        self.num_workers = num_workers
        rows, self.imbalance, self.rank_imbalance = plan.summarize(
            self._lists, world_size, num_workers
        )
        self.shards = [
            Shard(
                rank,
                worker,
                splits,
                row_count,
                size,
                None if batch_size is None or row_count is None else -(-row_count // batch_size),
            )
            for rank, worker, splits, row_count, size in rows
        ]
        self.files, self.files_pruned, self.row_groups, self.row_groups_pruned = plan.pruning()
        self.quality: ShuffleQuality | None = None
        self.ranks: list[RankSteps] = []
        if epochs is not None:
            self.quality = epochs.quality(num_workers, self._lists)
            if batch_size is not None:
                self.ranks = _rank_steps(epochs, world_size, num_workers, epoch)

    @property
    def fingerprint(self) -> str:
        """Identifies the query's rows and their splits."""
        return self._core.fingerprint

    @property
    def num_splits(self) -> int:
        """Number of splits over all shards."""
        return self._core.num_splits

    def splits(self, rank: int | None = None, worker: int = 0) -> list[Split]:
        """The splits of one shard in reading order, or of the whole plan.

        Args:
            rank: The rank; None gives all splits, in plan order.
            worker: The worker on that rank.

        Returns:
            The splits.

        Raises:
            ConfigError: There is no such shard.
        """
        if rank is None:
            return split_objects(self._core, list(range(self._core.num_splits)))
        workers = max(1, self.num_workers)
        if not 0 <= rank < self.world_size or not 0 <= worker < workers:
            raise ConfigError(
                f"rank={rank}, worker={worker} must be in 0..{self.world_size} and 0..{workers}"
            )
        return split_objects(self._core, self._lists[rank * workers + worker])

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain data, ready for JSON.

        Returns:
            The attributes by name, with a dict for each shard and rank.
        """
        return {
            "fingerprint": self.fingerprint,
            "world_size": self.world_size,
            "num_workers": self.num_workers,
            "num_splits": self.num_splits,
            "imbalance": self.imbalance,
            "rank_imbalance": self.rank_imbalance,
            "files": self.files,
            "files_pruned": self.files_pruned,
            "row_groups": self.row_groups,
            "row_groups_pruned": self.row_groups_pruned,
            "quarantined": self.quarantined,
            "quality": None if self.quality is None else asdict(self.quality),
            "ranks": [asdict(rank) for rank in self.ranks],
            "shards": [asdict(shard) for shard in self.shards],
        }

    def to_table(self) -> Any:
        """The shards as a table.

        Returns:
            A `pyarrow.Table` with a row per shard.

        Raises:
            ImportError: pyarrow is not installed.
        """
        try:
            import pyarrow
        except ImportError as error:
            raise ImportError("this needs pyarrow: pip install pyarrow") from error
        return pyarrow.Table.from_pylist([asdict(shard) for shard in self.shards])

    def plot(self, axes: Any | None = None) -> Any:
        """Draw what each shard reads, and the mean, by matplotlib.

        Args:
            axes: Axes of matplotlib to draw into; None makes a figure without background, for light and dark pages.

        Returns:
            The axes; ``axes.figure.savefig(…)`` keeps the picture.

        Raises:
            ImportError: matplotlib is not installed.
        """
        # matplotlib's half, which few plans need.
        from tensorquery.display.plot import draw_plan

        return draw_plan(self, axes)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ShardPlan):
            return NotImplemented
        return (
            self.fingerprint == other.fingerprint
            and self.world_size == other.world_size
            and self.num_workers == other.num_workers
            and self._lists == other._lists
        )

    def __hash__(self) -> int:
        return hash((self.fingerprint, self.world_size, self.num_workers))

    def _repr_html_(self) -> str:
        # It imports this module.
        from tensorquery.display import plan_html

        return plan_html(self)

    def __repr__(self) -> str:
        head = (
            f"ShardPlan: {self.num_splits} splits, {self.world_size} ranks × "
            f"{max(1, self.num_workers)} workers, imbalance {self.imbalance:.3f} over shards, "
            f"{self.rank_imbalance:.3f} over ranks (max over mean)\n"
            f"pruned: {self.files_pruned} of {self.files} files, {self.row_groups_pruned} of "
            f"{self.row_groups} row groups of the files listed"
        )
        notes = []
        if self.quarantined:
            notes.append(f"left out: {self.quarantined} bad parts; see dataset.quarantined")
        if self.quality is not None:
            notes.append(str(self.quality))
            if self.quality.warning is not None:
                notes.append(f"warning: {self.quality.warning}")
        if self.ranks:
            notes.append(spell_steps(self.ranks))
        bounded = any(shard.batches_at_most is not None for shard in self.shards)
        titles = ["rank", "worker", "splits", "rows before filters", "bytes"]
        lines = [titles + ["batches at most"] * bounded]
        for shard in self.shards[:_SHOWN]:
            line = [
                str(shard.rank),
                str(shard.worker),
                f"{shard.splits:,}",
                "?" if shard.rows is None else f"{shard.rows:,}",
                f"{shard.bytes:,}",
            ]
            if bounded:
                batches = shard.batches_at_most
                line.append("?" if batches is None else f"{batches:,}")
            lines.append(line)
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        table = [
            "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
            for line in lines
        ]
        if len(self.shards) > _SHOWN:
            table.append(f"… and {len(self.shards) - _SHOWN:,} more shards")
        return "\n".join([head, *notes, *table])


_SHOWN = 32


def _rank_steps(epochs: Epochs, world_size: int, num_workers: int, epoch: int) -> list[RankSteps]:
    """Rows and steps of every rank; nothing where they are not known without counting."""
    if epochs.counts is None:
        return []
    shards = epochs.all_shards(num_workers, epoch)
    found = []
    for rank in range(world_size):
        sizes = [shards.size(rank, worker) for worker in range(max(1, num_workers))]
        steps, rows = [size[0] for size in sizes], [size[1] for size in sizes]
        if None in steps or None in rows:
            return []
        found.append(RankSteps(rank, sum(filter(None, rows)), sum(filter(None, steps))))
    return found


def spell_steps(ranks: Sequence[RankSteps]) -> str:
    """Rows and steps in words."""

    def between(numbers: list[int], what: str) -> str:
        least, most = min(numbers), max(numbers)
        return f"{least:,} {what}" if least == most else f"{least:,} to {most:,} {what}"

    rows = between([rank.rows for rank in ranks], "rows")
    steps = between([rank.steps for rank in ranks], "steps")
    return f"every rank delivers {rows} in {steps}"


def plan_splits(
    query: _core.Query,
    split_bytes: int | str,
    split_rows: int | None,
    *,
    tolerant: bool = False,
) -> _core.Plan:
    """Plan a query's splits; sizes other than the default are taken as given.

    With `tolerant`, a file whose footer is damaged is a split that verification finds bad.
    """
    return query.plan(*split_size(split_bytes, split_rows), tolerant)


def split_size(split_bytes: int | str, split_rows: int | None) -> tuple[int, int | None, bool]:
    """How large splits become: bytes, rows, and whether the user chose one of them."""
    size = parse_bytes(split_bytes)
    if split_rows is not None:
        split_rows = check_positive_int("split_rows", split_rows)
    explicit = split_rows is not None or size != parse_bytes(DEFAULT_SPLIT_BYTES)
    return size, split_rows, explicit


def check_strategy(strategy: SplitStrategy | str | None) -> SplitStrategy | str:
    """Return a usable strategy, or raise `ConfigError`."""
    if strategy is None:
        return "lpt"
    if isinstance(strategy, str) and strategy in ("lpt", "round_robin"):
        return strategy
    if not isinstance(strategy, str) and callable(getattr(strategy, "generate", None)):
        return strategy
    raise ConfigError(
        f'split_strategy={strategy!r} must be "lpt", "round_robin" or an object with '
        f"generate(splits, num_shards, epoch)"
    )


def assign(
    plan: _core.Plan,
    world_size: int,
    num_workers: int,
    strategy: SplitStrategy | str | None,
    epoch: int,
) -> list[list[int]]:
    """Split ids by shard, ``rank * workers + worker``; a custom strategy's answer is checked."""
    strategy = check_strategy(strategy)
    if isinstance(strategy, str):
        return plan.assign(world_size, num_workers, strategy)
    num_shards = world_size * max(1, num_workers)
    splits = split_objects(plan, list(range(plan.num_splits)))
    answer = strategy.generate(splits, num_shards, epoch)
    name = type(strategy).__name__
    try:
        lists = [[split.id for split in shard] for shard in answer]
    except (TypeError, AttributeError) as error:
        raise ConfigError(
            f"{name}.generate must return {num_shards} lists of Split, got {type(answer).__name__}: "
            f"{error}"
        ) from error
    if not all(
        0 <= split.id < len(splits) and split == splits[split.id]
        for shard in answer
        for split in shard
    ):
        raise ConfigError(f"{name}.generate returned a Split that is none of the plan's")
    plan.check_cover(lists, world_size, num_workers)
    return lists


def split_objects(plan: _core.Plan, ids: list[int]) -> list[Split]:
    """The splits with these ids."""
    return [
        Split(
            id=id,
            path=path,
            file_size=file_size,
            row_count=rows,
            row_range=None if rng is None else RowRange(rng[0], rng[1] - rng[0]),
            partition_values=dict(values),
            snapshot_id=snapshot,
            bytes=size,
            unit=unit,
        )
        for id, path, file_size, rows, rng, size, unit, values, snapshot in plan.splits(ids)
    ]
