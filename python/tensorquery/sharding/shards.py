"""Splits, and the strategies that deal them to shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from tensorquery._util.options import check_positive_int, parse_bytes
from tensorquery.errors import ConfigError

if TYPE_CHECKING:
    from tensorquery import _core

__all__ = [
    "RowRange",
    "Split",
    "SplitStrategy",
    "plan_splits",
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
        partition_values: Values of the file's hive or identity partitions, as text; None stands for null.
        snapshot_id: The Iceberg snapshot; None for plain files.
        bytes: Stored bytes of the projected columns: the weight that is balanced.
        unit: The part of the file, for example "row groups 0 to 3".
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
