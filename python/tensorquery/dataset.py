"""The dataset: one rank's share of a query, iterated in this process or in DataLoader workers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from tensorquery import _core
from tensorquery.distributed import Topology, detect, threads_for
from tensorquery.errors import ConfigError
from tensorquery.options import (
    check_bool,
    check_callable,
    check_non_negative_int,
    check_positive_int,
)
from tensorquery.query import Query
from tensorquery.shards import (
    DEFAULT_SPLIT_BYTES,
    ShardPlan,
    SplitStrategy,
    assign,
    check_strategy,
    plan_splits,
)
from tensorquery.tensors import BatchBuilder, tensor_options

__all__ = ["QueryDataset"]


class QueryDataset(IterableDataset[Any]):
    """One rank's batches of a query; each row of the query goes to exactly one rank and worker.

    It yields finished batches, so a DataLoader around it takes ``batch_size=None``:
    ``DataLoader(dataset, batch_size=None, num_workers=4)``. `create_dataloader` does that and more.

    Iterated in the training process, Rust threads decode ahead with the GIL released. Inside a DataLoader
    worker (under fork, spawn and forkserver alike) the dataset plans again from a recipe, without listing
    files, and reads its own shard.

    Args:
        query: The rows.
        batch_size: Rows per batch; only a shard's last batch is short.
        shuffle: Permute the order of the splits by seed and epoch.
        shuffle_seed: The seed; two runs with the same seed give the same order.
        shuffle_buffer_size: Rows mixed across splits, with or without `shuffle`; None keeps rows in
            file order within their split. The buffer is filled, permuted, and drained in turn.
        rank: This rank; together with `world_size`, or both None to detect them (see
            `tensorquery.distributed.detect`).
        world_size: Number of ranks.
        process_group: A `torch.distributed` group whose ranks share the data, where that is not the
            global group (tensor or pipeline parallelism).
        device_mesh: A one-dimensional `DeviceMesh` of the data-parallel ranks.
        split_bytes: Stored bytes of the projected columns that a split grows towards.
        split_rows: Rows that a split grows towards; takes precedence.
        split_strategy: "lpt" (default), "round_robin", or an object with
            ``generate(splits, num_shards, epoch)``.
        output_format: "torch", "numpy", "arrow" (`pyarrow.RecordBatch`) or "dict" (lists).
        transform: Called on each batch, in the worker; what it returns is yielded.
        **tensor_kwargs: ``nulls``, ``stack``, ``pad``, ``categories`` and ``decimal``; see `to_tensors`.

    Raises:
        ConfigError: An option is malformed; names the value and what is allowed.
        NotShardableError: The query is not row-local above one scan; names the operator.
        UnsupportedTypeError: A column has no tensor form; names the column.
    """

    def __init__(
        self,
        query: Query,
        *,
        batch_size: int = 1024,
        shuffle: bool = False,
        shuffle_seed: int = 42,
        shuffle_buffer_size: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        process_group: Any | None = None,
        device_mesh: Any | None = None,
        split_bytes: int | str = DEFAULT_SPLIT_BYTES,
        split_rows: int | None = None,
        split_strategy: SplitStrategy | str | None = None,
        output_format: str = "torch",
        transform: Callable[[Any], Any] | None = None,
        **tensor_kwargs: Any,
    ) -> None:
        if not isinstance(query, Query):
            raise ConfigError(
                f"QueryDataset takes a Query, got {type(query).__name__}; make one with session.sql(…)"
            )
        self.batch_size = check_positive_int("batch_size", batch_size)
        self._shuffle = check_bool("shuffle", shuffle)
        self._seed = check_non_negative_int("shuffle_seed", shuffle_seed)
        if shuffle_buffer_size is not None:
            shuffle_buffer_size = check_positive_int("shuffle_buffer_size", shuffle_buffer_size)
        self._buffer = shuffle_buffer_size
        self._transform = None if transform is None else check_callable("transform", transform)
        self._strategy = check_strategy(split_strategy)
        self._output_format = output_format
        self._tensor_kwargs = tensor_kwargs
        self.topology: Topology = detect(rank, world_size, process_group, device_mesh)
        self._plan: _core.Plan | None = plan_splits(query._core, split_bytes, split_rows)
        self._builder: BatchBuilder | None = self._make_builder(self._plan)
        self._all_splits = not isinstance(self._strategy, str)
        self._own = self._own_splits(self._plan)
        # Shared memory: `set_epoch` in the training process reaches workers that live on. The second
        # number is the epoch that a loader's workers deliver now, or -1: one that starts late must not
        # take a later `set_epoch` for its own.
        self._epoch = torch.tensor([0, -1], dtype=torch.int64)
        self._epoch.share_memory_()  # type: ignore[no-untyped-call]
        self._process = os.getpid()
        self._recipe: tuple[str, list[bytes]] | None = None
        self._live: _core.BatchStream | None = None
        self._metrics: dict[str, float] = {}

    @property
    def rank(self) -> int:
        """This rank."""
        return self.topology.rank

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.topology.world_size

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration delivers."""
        return int(self._epoch[0])

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration, and so its order.

        Args:
            epoch: From 0. Persistent workers follow it too.

        Raises:
            ConfigError: It is not a whole number of at least 0.
        """
        self._epoch[0] = check_non_negative_int("epoch", epoch)

    def shard_plan(self, num_workers: int = 0) -> ShardPlan:
        """How the splits are dealt to all ranks and workers.

        Args:
            num_workers: Worker processes per rank.

        Returns:
            The plan of the current epoch.

        Raises:
            ConfigError: Called inside a worker, which knows only its own share.
        """
        if self._plan is None or self._process != os.getpid():
            raise ConfigError(
                "shard_plan() is for the training process; a worker knows only its share"
            )
        return ShardPlan(
            self._plan,
            self.world_size,
            num_workers,
            self._strategy,
            epoch=self.epoch,
            batch_size=self.batch_size,
        )

    def metrics(self) -> dict[str, float]:
        """Counts of the current or last epoch in this process.

        Returns:
            ``rows``, ``batches`` and ``splits`` delivered; ``wait_seconds`` that the consumer waited;
            ``convert_seconds`` spent making tensors; ``bytes_read`` and ``requests`` of storage.
        """
        if self._live is not None:
            self._metrics = self._live.metrics()
        return dict(self._metrics)

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the batches of this process's shard."""
        info = get_worker_info()
        worker, workers = (0, 0) if info is None else (info.id, info.num_workers)
        return self._iterate(worker, workers)

    def _iterate(self, worker: int, workers: int) -> Iterator[Any]:
        # Not part of the generator, which starts with its first batch.
        pinned = int(self._epoch[1]) if workers > 0 else -1
        return self._batches(worker, workers, self.epoch if pinned < 0 else pinned)

    def _batches(self, worker: int, workers: int, epoch: int) -> Iterator[Any]:
        plan, builder = self._here()
        stream = self._start(plan, worker, workers, epoch)
        if self._live is not None:
            self._live.close()
        self._live = stream
        build, transform = builder.build, self._transform
        try:
            while (raw := stream.next()) is not None:
                batch = build(raw)
                yield batch if transform is None else transform(batch)
            if workers == 0:
                self._finished(epoch)
        finally:
            self._metrics = stream.metrics()
            stream.close()
            if self._live is stream:
                self._live = None

    def _start(self, plan: _core.Plan, worker: int, workers: int, epoch: int) -> _core.BatchStream:
        ids = self._shard(plan, worker, workers, epoch)
        shard = (self.rank << 32) | worker
        if self._shuffle:
            ids = plan.order(ids, self._seed, epoch, shard)
        options = None
        if self._output_format in ("torch", "numpy"):
            options = tensor_options(**self._tensor_kwargs)
        return plan.stream(
            ids,
            self.batch_size,
            self._buffer,
            (self._seed, epoch, shard),
            threads_for(self.topology, workers),
            options,
        )

    def _shard(self, plan: _core.Plan, worker: int, workers: int, epoch: int) -> list[int]:
        """The split ids that this worker reads, as `plan` numbers them."""
        if not isinstance(self._strategy, str):
            lists = assign(plan, self.world_size, workers, self._strategy, epoch)
            return lists[self.rank * max(1, workers) + worker]
        if self._process != os.getpid():
            # The recipe holds this rank's splits alone, and a rank's share of LPT is dealt to its
            # workers by the same rule, whichever process does it.
            return plan.assign(1, workers, self._strategy)[worker]
        if workers == 0:
            return self._own
        return plan.assign(self.world_size, workers, self._strategy)[self.rank * workers + worker]

    def _own_splits(self, plan: _core.Plan) -> list[int]:
        """This rank's splits; all of them for a custom strategy, which deals every epoch anew."""
        if not isinstance(self._strategy, str):
            assign(plan, self.world_size, 0, self._strategy, 0)
            return list(range(plan.num_splits))
        return plan.assign(self.world_size, 0, self._strategy)[self.rank]

    def _make_builder(self, plan: _core.Plan) -> BatchBuilder:
        return BatchBuilder(plan, output_format=self._output_format, **self._tensor_kwargs)

    def _here(self) -> tuple[_core.Plan, BatchBuilder]:
        """Plan and builder of this process; a worker plans once, from the recipe."""
        if self._process != os.getpid() and self._planned_in != os.getpid():
            self._plan = _core.Plan.from_recipe(*self._make_recipe())
            self._builder = self._make_builder(self._plan)
            self._planned_in = os.getpid()
            self._live = None
        assert self._plan is not None
        assert self._builder is not None
        return self._plan, self._builder

    _planned_in: int | None = None
    """The worker process in which this copy was planned again."""

    def _make_recipe(self) -> tuple[str, list[bytes]]:
        if self._recipe is None:
            assert self._plan is not None
            self._recipe = self._plan.recipe(sorted(self._own))
        return self._recipe

    def _pin_epoch(self, epoch: int | None) -> None:
        """What workers deliver from now on, whatever `set_epoch` says; None: what it says."""
        self._epoch[1] = -1 if epoch is None else epoch

    def _finished(self, epoch: int) -> None:
        """After the last batch: the next iteration delivers the next epoch, unless one was set."""
        if self.epoch == epoch:
            self._epoch[0] = epoch + 1

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        state["_recipe"] = self._make_recipe()
        state.update(_plan=None, _builder=None, _live=None, _process=-1, _planned_in=None)
        return state

    def __repr__(self) -> str:
        return (
            f"QueryDataset(rank {self.rank} of {self.world_size}, batch_size={self.batch_size}, "
            f"{len(self._own)} splits)"
        )
