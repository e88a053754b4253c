"""The options that decide which rows which shard delivers, in which order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tensorquery._util.digests import digest
from tensorquery._util.options import MOST_PADDED, MOST_SHARDS, check_choice, check_positive_int
from tensorquery.errors import ConfigError
from tensorquery.sharding.shards import SplitStrategy
from tensorquery.sharding.weighted_sampling import Weighing

__all__ = ["ASSIGNMENTS", "REMAINDERS", "Deal", "Sources"]


REMAINDERS = ("even", "drop", "pad", "uneven")


ASSIGNMENTS = ("static", "dynamic")


@dataclass(frozen=True)
class Sources:
    """Which splits belong to which source of a mixture, and how sources share batches.

    Attributes:
        sources: By split, its source.
        weights: By source, its weight at the start.
        stop_first: Whether an epoch ends with the first source that runs out.
        ramp: How weights change, as the core reads it; None where they stay.
    """

    sources: list[int] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)
    stop_first: bool = False
    ramp: dict[str, Any] | None = None


@dataclass(frozen=True)
class Deal:
    """The options that decide which rows which shard delivers, in which order.

    Attributes:
        batch_size: Rows per batch.
        seed: The seed of all shuffling.
        shuffle: Whether splits are permuted; "global" permutes all rows.
        buffer: Rows of the shuffle window; None is the default, or none without `shuffle`.
        remainder: "even", "drop", "pad" or "uneven".
        partitions: A fixed number of partitions, or None.
        strategy: How splits are dealt.
        exclude: Output rows of splits to leave out: (split, first, one past the last).
        mixture: The sources of a mixture.
        assignment: "static", or "dynamic": workers of a rank take splits as they come.
        weighing: How rows are drawn by weight, or None.
        refills: Whether rows on which a transform fails are left out, and batches filled up with the rows that follow.
    """

    batch_size: int
    seed: int
    shuffle: bool | str
    buffer: int | None
    remainder: str
    partitions: int | None
    strategy: SplitStrategy | str
    exclude: tuple[tuple[int, int, int], ...] = ()
    mixture: Sources = Sources()
    assignment: str = "static"
    weighing: Weighing | None = None
    refills: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if self.weighing is not None and self.shuffle not in (False, "global"):
            raise ConfigError(
                f"shuffle={self.shuffle!r} does not go with sample_weight={self.weighing.column!r}: draws come in random "
                "order anyway; leave it out"
            )
        if self.is_global:
            self._check_global()
        elif not isinstance(self.shuffle, bool):
            raise ConfigError(f'shuffle={self.shuffle!r} must be True, False or "global"')
        check_choice("remainder", self.remainder, REMAINDERS)
        check_choice("assignment", self.assignment, ASSIGNMENTS)
        if self.assignment == "dynamic":
            self._check_dynamic()
        if self.mixture.weights and self.remainder == "uneven":
            raise ConfigError(
                'a mixture shares every batch of every rank, so remainder="uneven" does not go with it; use "even", '
                '"drop" or "pad"'
            )
        if self.remainder == "pad" and self.batch_size > MOST_PADDED:
            raise ConfigError(
                f'batch_size={self.batch_size} with remainder="pad" must be at most {MOST_PADDED}: every batch has that many '
                'rows, however few the query has; use a smaller one, or remainder="even"'
            )
        if self.partitions is None:
            return
        check_positive_int("partitions", self.partitions, MOST_SHARDS)
        if self.remainder == "uneven":
            raise ConfigError(
                f'partitions={self.partitions} takes equal rows from each of them, so remainder="uneven" '
                'does not go with it; use "even", "drop" or "pad"'
            )
        if self.strategy != "lpt":
            raise ConfigError(
                f"partitions={self.partitions} are dealt by weight; split_strategy does not go with it"
            )
        if self.mixture.weights:
            raise ConfigError("partitions= does not go with a mixture")

    @property
    def is_global(self) -> bool:
        """Whether an epoch is an order of single rows, all of them or those drawn."""
        return self.shuffle == "global" or self.weighing is not None

    def options(self, world_size: int) -> dict[str, Any]:
        """The options on which all ranks must agree, by name."""
        return {
            "world_size": world_size,
            "batch_size": self.batch_size,
            "shuffle": self.shuffle,
            "shuffle_seed": self.seed,
            "shuffle_buffer_size": self.buffer,
            "remainder": self.remainder,
            "partitions": self.partitions,
            "split_strategy": self.strategy if isinstance(self.strategy, str) else "custom",
            "assignment": self.assignment,
            "sample_weight": None if self.weighing is None else self.weighing.column,
            "sample_replacement": self.weighing is None or self.weighing.replacement,
            "num_samples": None if self.weighing is None else self.weighing.num_samples,
            "exclude": digest(self.exclude),
            "weights of the mixture": [self.mixture.weights, self.mixture.ramp],
            "on_transform_error": "skip" if self.refills else "raise",
        }

    def check_workers(self, workers: int) -> None:
        """Check that these options go with `workers` worker processes per rank.

        Raises:
            ConfigError: They do not.
        """
        if self.partitions is not None and workers > 0:
            raise ConfigError(
                f"partitions={self.partitions} needs num_workers=0, got {workers}: the threads of the "
                "training process read all of a rank's partitions"
            )

    def _check_global(self) -> None:
        """Refuse options about splits: a permutation of all rows has none."""
        wrong = {
            "shuffle_buffer_size": self.buffer is not None,
            "split_strategy": self.strategy != "lpt",
            "exclude": bool(self.exclude),
            "a mixture": bool(self.mixture.weights),
        }
        given = ", ".join(name for name, is_given in wrong.items() if is_given)
        if given and self.weighing is not None:
            raise ConfigError(
                f"{given} does not go with sample_weight={self.weighing.column!r}, by which single rows of all are drawn; "
                "leave it out"
            )
        if given:
            raise ConfigError(
                f'{given} does not go with shuffle="global", which permutes all rows; leave it out, or use '
                "shuffle=True"
            )

    def _check_dynamic(self) -> None:
        """Refuse options about the rows of single workers."""
        reasons = {
            f"partitions={self.partitions}": (
                self.partitions is not None,
                "which fixes the rows of every step",
            ),
            "a mixture": (bool(self.mixture.weights), "which fixes the shares of every batch"),
            'shuffle="global"': (self.shuffle == "global", "which permutes rows and not splits"),
            "sample_weight": (self.weighing is not None, "which draws rows and not splits"),
            f"split_strategy={type(self.strategy).__name__}": (
                not isinstance(self.strategy, str),
                "which deals splits to workers",
            ),
            f'remainder="{self.remainder}"': (
                self.remainder in ("drop", "pad"),
                "since every worker ends with a short batch of its own",
            ),
        }
        for name, (is_given, reason) in reasons.items():
            if is_given:
                raise ConfigError(
                    f'{name}, {reason}, does not go with assignment="dynamic"; leave it out, or use '
                    'assignment="static"'
                )
