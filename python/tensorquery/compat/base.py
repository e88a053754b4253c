"""The base of both datasets: options, epochs, metrics and states as torch-dataloader-utils has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

try:
    import torch
except ModuleNotFoundError as _error:
    raise ImportError(
        "tensorquery.compat makes the DataLoaders of torch-dataloader-utils, and needs PyTorch: pip install torch",
        name="torch",
    ) from _error

from tensorquery._util.options import check_choice, check_non_negative_int
from tensorquery.compat.batches import OUTPUT_FORMATS, CompatOutput, Output
from tensorquery.compat.iterations import CompatIterations
from tensorquery.compat.metrics import WorkerMetrics, summary_of
from tensorquery.compat.order import order_options
from tensorquery.compat.splits import DataFileInfo
from tensorquery.compat.strategies import check_place
from tensorquery.distributed.topology import default_workers, has_group
from tensorquery.errors import CheckpointMismatchError, ConfigError
from tensorquery.loading.dataloader import QueryDataLoader
from tensorquery.loading.dataset import QueryDataset
from tensorquery.loading.options import LoaderOptions
from tensorquery.loading.tensors import TensorOutput
from tensorquery.metrics.counters import SharedCounters
from tensorquery.sql.query import Query

__all__ = ["CompatDataset", "check_output"]


def check_output(output_format: str, filters: Any, collate_fn: Any, show_progress: bool) -> None:
    """Refuse, before anything is read, what the other library refuses then.

    Args:
        output_format: "torch", "numpy", "arrow" or "dict".
        filters: None or a `pyarrow.compute.Expression`.
        collate_fn: The user's function, or None.
        show_progress: Whether bars are wanted.

    Raises:
        ConfigError: The format is unknown, or "arrow" or "dict" without `collate_fn`.
        TypeError: `filters` is something else.
        ImportError: Bars are wanted, and tqdm is not installed.
    """
    import pyarrow.compute as pc

    check_choice("output_format", output_format, OUTPUT_FORMATS)
    if filters is not None and not isinstance(filters, pc.Expression):
        raise TypeError(
            f"filters={filters!r} must be a pyarrow.compute.Expression, got {type(filters).__name__}; SQL and lists go to "
            "filters= of tensorquery.create_dataloader"
        )
    if output_format in ("arrow", "dict") and collate_fn is None:
        raise ConfigError(
            f"output_format={output_format!r} needs a collate_fn, since torch has no default for it; pass one (lambda "
            'batch: batch leaves batches as they are), or use output_format="torch"'
        )
    if show_progress:
        try:
            import tqdm  # noqa: F401
        except ImportError as error:
            raise ImportError("show_progress=True needs tqdm: pip install tqdm") from error


class CompatDataset(QueryDataset):
    """One rank's batches of a query, with the methods of torch-dataloader-utils; see its subclasses."""

    # The workers show its bars.
    _shows_rows = False

    def __init__(
        self,
        query: Query,
        files: Callable[[], tuple[Sequence[DataFileInfo], dict[str, str]]],
        *,
        batch_size: int,
        shuffle: bool,
        shuffle_seed: int,
        split_bytes: int | str | None,
        split_rows: int | None,
        split_strategy: Any | None,
        num_workers: int,
        output_format: str,
        num_ranks: int,
        rank: int,
        show_progress: bool,
        progress_interval_sec: float,
        shuffle_buffer_size: int | None,
    ) -> None:
        check_non_negative_int("num_workers", num_workers)
        check_group(num_ranks, rank)
        self._output = Output.of(query.schema, output_format)
        self._bars = float(progress_interval_sec) if show_progress else None
        order = order_options(
            split_strategy,
            files,
            num_ranks,
            shuffle=shuffle,
            shuffle_seed=shuffle_seed,
            shuffle_buffer_size=shuffle_buffer_size or None,
            split_bytes=split_bytes,
            split_rows=split_rows,
        )
        super().__init__(
            query,
            batch_size=batch_size,
            rank=rank,
            world_size=num_ranks,
            show_progress=show_progress,
            **order,
            **self._output.options,
        )

    @classmethod
    def _load(
        cls, num_workers: int | None, collate_fn: Callable[[Any], Any] | None, **options: Any
    ) -> tuple[QueryDataLoader, Any]:
        """A dataset and the loader around it."""
        make: Any = cls
        dataset = make(num_workers=num_workers or 0, collate_fn=collate_fn, **options)
        if num_workers is None:
            num_workers = default_workers(dataset.topology)
        return make._loader(dataset, num_workers, collate_fn), dataset

    def _loader(self, num_workers: int, collate_fn: Callable[[Any], Any] | None) -> QueryDataLoader:
        loader = QueryDataLoader(self, collate_fn, num_workers=num_workers)
        if not isinstance(self._plan.deal.strategy, str):
            # Errors in a strategy's answer are raised now, and workers are given the answer.
            self._plan.epochs.shards(num_workers, 0)
        return loader

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration, and so its order; forgets the metrics of the one before.

        After `load_state_dict` the next iteration continues the epoch of the state and ignores a value set here.

        Args:
            epoch: From 0.

        Raises:
            ConfigError: It is not a whole number of at least 0.
        """
        super().set_epoch(epoch)
        self.reset_metrics()
        self._measures.mark = False

    def get_metrics(self) -> list[WorkerMetrics]:
        """Metrics of each worker of this rank in the last epoch, once; logs a summary at INFO.

        Returns:
            Metrics by worker; empty before the first epoch, and where they were asked for already.
        """
        summary = summary_of(self._measures)
        self.reset_metrics()
        if summary.workers:
            summary.log()
        return summary.workers

    def reset_metrics(self) -> None:
        """Forget what workers have read."""
        self._measures.forget()

    def state_dict(self) -> dict[str, Any]:
        """Which batches of the epoch the training loop has received, as plain data.

        Returns:
            A state for `load_state_dict`, ready for JSON; its ``epoch`` is the one to go on with.

        Raises:
            ConfigError: The workers of a DataLoader of your own have read: what the loop has received of that, nobody
                knows here.
        """
        if self._measures.mark and not self._plan.is_in_worker:
            raise ConfigError(
                "the batches came through the workers of a DataLoader of your own, which does not say how many of them "
                f"were received; use the loader of {type(self).__name__}.create_dataloader, or torchdata's "
                "StatefulDataLoader and its state_dict()"
            )
        return super().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was saved: the next iteration delivers exactly the rest of its epoch.

        Args:
            state: What `state_dict` returned, with any number of ranks and workers.

        Raises:
            CheckpointMismatchError: It is of other files, columns, filters or another seed, or a state of
                torch-dataloader-utils; names what differs.
        """
        if isinstance(state, Mapping) and "completed_shards" in state:
            raise CheckpointMismatchError(
                "this state was saved by torch-dataloader-utils, which knows only the shards that workers had read to the "
                f"end, and not the batches that were received; begin the epoch anew: dataset.set_epoch({state.get('epoch', 0)!r})"
            )
        super().load_state_dict(state)
        if not self._plan.is_in_worker:
            self.reset_metrics()
            self._measures.mark = False

    def _iterations_of(self, options: LoaderOptions) -> CompatIterations:
        return CompatIterations(self._state, self._bars)

    @property
    def _measures(self) -> SharedCounters:
        """Where workers write down what they read."""
        measures = self._iterations.measures
        assert measures is not None
        return measures

    def _output_of(self, options: LoaderOptions) -> TensorOutput:
        return CompatOutput(options.output.format, options.output.options, self._output)


def check_group(num_ranks: int, rank: int) -> None:
    """Refuse a place that is no place, or another one than torch.distributed says.

    Args:
        num_ranks: Number of ranks.
        rank: This rank.

    Raises:
        ConfigError: They are out of range, or contradict the process group.
    """
    check_place(1, num_ranks, rank)
    if not has_group():
        return
    group = torch.distributed
    actual = (group.get_rank(), group.get_world_size())
    if actual != (rank, num_ranks):
        raise ConfigError(
            f"num_ranks={num_ranks}, rank={rank} contradict torch.distributed, where this process is rank {actual[0]} of "
            f"{actual[1]}: pass num_ranks=torch.distributed.get_world_size(), rank=torch.distributed.get_rank(). Where only "
            "some ranks share the data, use process_group= of tensorquery.create_dataloader"
        )
