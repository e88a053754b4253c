"""The plan of shards that a user can look at: the load of each rank and worker."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tensorquery import _core
from tensorquery.display.plan import plan_html, spell_steps
from tensorquery.display.plot import draw_plan
from tensorquery.errors import ConfigError
from tensorquery.sharding.epochs import Epochs
from tensorquery.sharding.shards import Split, SplitStrategy, assign, split_objects
from tensorquery.sharding.shuffle_quality import ShuffleQuality

__all__ = ["RankSteps", "Shard", "ShardPlan"]


@dataclass(frozen=True)
class Shard:
    """The load of one (rank, worker).

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
    """The rows and steps of one rank in an epoch.

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
        quality: The predicted quality of shuffling; None if nothing is shuffled.
        imbalance: Heaviest over mean weight of the shards; 1 is even.
        rank_imbalance: The same of the ranks.
        files: Files of the tables that are read.
        files_pruned: The number of these files that are not read at all.
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
