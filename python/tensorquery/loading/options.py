"""The options of a loader, checked once."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from tensorquery._util.options import (
    MOST_BATCH_ROWS,
    check_callable,
    check_non_negative_int,
    check_positive_int,
)
from tensorquery.errors import ConfigError
from tensorquery.loading.keyed import check_keyed
from tensorquery.loading.refill import Skipping, check_refilled, check_skipping
from tensorquery.loading.tensors import TensorOutput, tensor_options
from tensorquery.loading.transform_threads import check_threads
from tensorquery.metrics.progress import check_progress
from tensorquery.sharding.bad_files import check_on_error
from tensorquery.sharding.deal import Deal
from tensorquery.sharding.shards import DEFAULT_SPLIT_BYTES, SplitStrategy, check_strategy
from tensorquery.sharding.trace import excluded_ranges
from tensorquery.sharding.weighted_sampling import weighing_of
from tensorquery.sharding.windows import Windows
from tensorquery.sql.materialize import Staging
from tensorquery.sql.query import Query

__all__ = ["LoaderOptions"]


@dataclass(frozen=True)
class LoaderOptions:
    """The options that `create_dataloader` and `QueryDataset` share, with the same names and defaults.

    `create_dataloader` documents each. Where one is malformed, making this object raises `ConfigError`.
    """

    batch_size: int = 1024
    shuffle: bool | str = False
    shuffle_seed: int = 42
    shuffle_buffer_size: int | None = None
    rank: int | None = None
    world_size: int | None = None
    process_group: Any | None = None
    device_mesh: Any | None = None
    split_bytes: int | str = DEFAULT_SPLIT_BYTES
    split_rows: int | None = None
    split_strategy: SplitStrategy | str | None = None
    remainder: str = "even"
    partitions: int | None = None
    assignment: str = "static"
    sample_weight: str | None = None
    sample_replacement: bool = True
    num_samples: int | None = None
    exclude: Sequence[Any] | None = None
    on_error: str = "raise"
    stage: str = "auto"
    stage_dir: str | os.PathLike[str] | None = None
    stage_max_bytes: int | str | None = None
    stage_from: str | os.PathLike[str] | Query | None = None
    stage_engine: str | None = None
    stage_timeout: float | None = None
    show_progress: bool | str = False
    output_format: str = "torch"
    nulls: Any = "error"
    stack: Mapping[str, Sequence[str]] | None = None
    pad: Mapping[str, Any] | None = None
    categories: Mapping[str, Sequence[Any]] | None = None
    decimal: str = "float64"
    keyed: Mapping[str, Sequence[str] | Mapping[str, str]] | None = None
    transform: Callable[[Any], Any] | None = None
    transform_threads: int | None = None
    on_transform_error: str = "raise"
    max_transform_errors: int | None = None
    windows: Windows | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> LoaderOptions:
        """The options among the arguments of a function; other names are left out.

        Args:
            given: Values by name.

        Raises:
            ConfigError: One of them is malformed.
        """
        return cls(**{name: given[name] for name in OPTION_NAMES if name in given})

    def __post_init__(self) -> None:
        """Check all of them, and copy their values: the user may change a list later."""
        check_positive_int("batch_size", self.batch_size, MOST_BATCH_ROWS)
        if self.shuffle_buffer_size is not None:
            check_positive_int("shuffle_buffer_size", self.shuffle_buffer_size)
        if self.windows is not None and not isinstance(self.windows, Windows):
            raise ConfigError(
                f'windows={self.windows!r} must be a tensorquery.Windows, such as tq.Windows(by="sensor", order="t", size=96)'
            )
        if self.transform is not None:
            check_callable("transform", self.transform)
        check_progress(self.show_progress)
        for meaning in ("threads", "output", "staging", "skips", "skipping", "deal"):
            getattr(self, meaning)
        if self.skipping is not None:
            check_refilled(self.deal, self.threads)

    @cached_property
    def threads(self) -> int | None:
        """How many threads transform batches."""
        return check_threads(self.transform_threads, self.transform)

    @cached_property
    def output(self) -> TensorOutput:
        """How batches come out."""
        options = tensor_options(
            nulls=self.nulls,
            stack=self.stack,
            pad=self.pad,
            categories=self.categories,
            decimal=self.decimal,
        )
        return TensorOutput(self.output_format, options, keyed=check_keyed(self.keyed))

    @cached_property
    def staging(self) -> Staging:
        """How the query is staged; without a bar."""
        return Staging.of(
            self.stage,
            self.stage_dir,
            self.stage_timeout,
            self.stage_from,
            self.stage_engine,
            False,
            self.stage_max_bytes,
        )

    @cached_property
    def skips(self) -> bool:
        """Whether bad data are left out."""
        return check_on_error(self.on_error)

    @cached_property
    def skipping(self) -> Skipping | None:
        """How rows are left out on which the transform fails; None where that is an error."""
        return check_skipping(self.on_transform_error, self.max_transform_errors, self.transform)

    @cached_property
    def deal(self) -> Deal:
        """How rows are dealt, where they are of one query."""
        buffer = self.shuffle_buffer_size
        if buffer is not None:
            buffer = check_positive_int("shuffle_buffer_size", buffer)
        return Deal(
            batch_size=check_positive_int("batch_size", self.batch_size, MOST_BATCH_ROWS),
            seed=check_non_negative_int("shuffle_seed", self.shuffle_seed),
            shuffle=self.shuffle,
            buffer=buffer,
            remainder=self.remainder,
            partitions=self.partitions,
            strategy=check_strategy(self.split_strategy),
            exclude=excluded_ranges(self.exclude),
            assignment=self.assignment,
            weighing=weighing_of(self.sample_weight, self.sample_replacement, self.num_samples),
            refills=self.skipping is not None,
        )

    @property
    def group(self) -> Any | None:
        """The process group whose ranks share the data, where it is not the global one."""
        if self.process_group is None and self.device_mesh is not None:
            return self.device_mesh.get_group()
        return self.process_group


OPTION_NAMES = tuple(field.name for field in fields(LoaderOptions))
