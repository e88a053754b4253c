"""The dataset: one rank's share of a query, iterated in this process or in DataLoader workers."""

from __future__ import annotations

import json
import logging
import os
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from tensorquery import _core
from tensorquery._accelerate import refuse_foreign
from tensorquery.checkpoint import (
    FORMAT,
    VERSION,
    check_same,
    check_state,
    check_sum,
    check_sum_base,
    digest,
    file_digests,
    run_of,
)
from tensorquery.counts import split_counts
from tensorquery.distributed import Topology, detect, threads_for
from tensorquery.dynamic import Ledger
from tensorquery.epochs import Deal, Epochs, Sources
from tensorquery.errors import CheckpointMismatchError, ConfigError
from tensorquery.iceberg import SnapshotChange
from tensorquery.iterator import Progress, ShardIterator
from tensorquery.mixture import Mixture
from tensorquery.options import (
    check_bool,
    check_callable,
    check_non_negative_int,
    check_positive_int,
)
from tensorquery.pins import agreed
from tensorquery.quality import stack_level_outside
from tensorquery.query import Query
from tensorquery.shards import (
    DEFAULT_SPLIT_BYTES,
    ShardPlan,
    SplitStrategy,
    assign,
    check_strategy,
    plan_splits,
)
from tensorquery.stages import open_stage
from tensorquery.tensors import BatchBuilder, tensor_options
from tensorquery.trace import Place, Trace, excluded_ranges, trace_batch

__all__ = ["QueryDataset"]


_LOG = logging.getLogger("tensorquery")

_RUN_OF_STATE = ("epoch", "layout", "step", "cursors", "turns", "parents")


class QueryDataset(IterableDataset[Any]):
    """One rank's batches of a query; each row of the query goes to exactly one rank and worker.

    It yields finished batches, so a DataLoader around it takes ``batch_size=None``:
    ``DataLoader(dataset, batch_size=None, num_workers=4)``. `create_dataloader` does that and more. Where equal steps
    need counts (a filtered query over several ranks), call ``len(dataset)`` before such a loader starts workers.

    Iterated in the training process, Rust threads decode ahead with the GIL released. Inside a DataLoader
    worker (under fork, spawn and forkserver alike) the dataset plans again from a recipe, without listing
    files, and reads its own shard.

    Args:
        query: The rows: a query, or a mixture of several (see `mix`).
        batch_size: Rows per batch; only this rank's last batch is short.
        shuffle: Permute the splits by seed and epoch, read several of them in turn, and mix their rows in a
            window. "global": a uniform permutation of all rows, which are written to local disk first.
        shuffle_seed: The seed; two runs with the same seed give the same order.
        shuffle_buffer_size: Rows of the window, with or without `shuffle`; it is filled, permuted, and drained
            in turn. None: with `shuffle` 65,536 (up to 262,144 where there are few splits, fewer where 64 MiB
            hold fewer), else no window.
        remainder: What happens to rows that ranks and batches do not divide. "even": all ranks take
            S = ceil(ceil(N/W)/B) steps, and each row is delivered once; "drop": only full batches; "pad": the
            last batch is filled with rows of the query's beginning; "uneven": each rank delivers the rows of its
            splits.
        partitions: A fixed number of partitions, of which every step takes equal rows: the rows of a step over
            all ranks then do not depend on the number of ranks. A multiple of the world size that divides
            ``batch_size * world_size``; needs ``num_workers=0``.
        assignment: "static": splits are dealt to workers before the epoch. "dynamic": the workers of a rank take the
            next split when they finish one, for skewed work. Each row is still delivered once, before and after a
            resume, but the order of batches and rows is not promised, and each worker ends with a short batch. Needs
            the loader of `create_dataloader`; with several ranks ``remainder="uneven"``. Without worker processes
            there is nobody to share with: the same as "static".
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
        exclude: Rows to leave out: ranges of `trace`, or (split, first row, one past the last) in output rows.
        show_progress: Show a line on stderr while rows are counted, also where that is no terminal.
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
        query: Query | Mixture,
        *,
        batch_size: int = 1024,
        shuffle: bool | str = False,
        shuffle_seed: int = 42,
        shuffle_buffer_size: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        process_group: Any | None = None,
        device_mesh: Any | None = None,
        split_bytes: int | str = DEFAULT_SPLIT_BYTES,
        split_rows: int | None = None,
        split_strategy: SplitStrategy | str | None = None,
        remainder: str = "even",
        partitions: int | None = None,
        assignment: str = "static",
        exclude: Sequence[Any] | None = None,
        show_progress: bool = False,
        output_format: str = "torch",
        transform: Callable[[Any], Any] | None = None,
        **tensor_kwargs: Any,
    ) -> None:
        if not isinstance(query, Query | Mixture):
            raise ConfigError(
                f"QueryDataset takes a Query, got {type(query).__name__}; make one with session.sql(…)"
            )
        self.batch_size = check_positive_int("batch_size", batch_size)
        if shuffle_buffer_size is not None:
            shuffle_buffer_size = check_positive_int("shuffle_buffer_size", shuffle_buffer_size)
        self._transform = None if transform is None else check_callable("transform", transform)
        self._output_format = output_format
        self._tensor_kwargs = tensor_kwargs
        self._show_progress = check_bool("show_progress", show_progress)
        self._process_group, self._device_mesh = process_group, device_mesh
        self._split_size = (split_bytes, split_rows)
        self.topology: Topology = detect(rank, world_size, process_group, device_mesh)
        if isinstance(query, Query):
            query = agreed(query, self.topology, self._group())
        plan = plan_splits(query._core, *self._split_size)
        self._deal = Deal(
            batch_size=self.batch_size,
            seed=check_non_negative_int("shuffle_seed", shuffle_seed),
            shuffle=shuffle,
            buffer=shuffle_buffer_size,
            remainder=remainder,
            partitions=partitions,
            strategy=check_strategy(split_strategy),
            exclude=excluded_ranges(exclude),
            mixture=query._sources(plan) if isinstance(query, Mixture) else Sources(),
            assignment=assignment,
        )
        self._open(query, plan)
        # Shared memory: `set_epoch` in the training process reaches workers that live on. The second number is
        # the epoch that a loader's workers deliver now, or -1: one that starts late must not take a later
        # `set_epoch` for its own. The third says whether they go on from the loaded state, the fourth which shard the
        # loader's first worker reads: torch asks that one first, wherever a resumed epoch stands. The fifth is the
        # counter from which the workers take splits (see `_core.Counter`).
        self._epoch = torch.tensor([0, -1, 1, 0, 0], dtype=torch.int64)
        self._epoch.share_memory_()  # type: ignore[no-untyped-call]
        self._process = os.getpid()
        self._metrics: dict[str, float] = {}
        self._progress = Progress(0)
        self._ended: Progress | None = None
        # What was loaded into the loader, whose next iteration begins with it.
        self._awaited: dict[str, Any] | None = None
        self._newest: weakref.ref[ShardIterator] | None = None
        self._loaded: dict[str, Any] | None = None
        self._workers = 0
        self._in_order = True
        # The iteration for which a worker process was made: one that starts late must not take from a newer one.
        self._iteration: int | None = None

    def _open(self, query: Query | Mixture, plan: _core.Plan) -> None:
        """Take over a query's plan, before the first epoch or between two."""
        # A query of its own: the user may refresh theirs, which is not to move what is planned here.
        own = (
            Query(query.session, query._core, query._narrowed)
            if isinstance(query, Query)
            else query
        )
        self._query: Query | Mixture | None = own
        self._plan: _core.Plan | None = plan
        self._recipe: tuple[str, list[bytes]] | None = None
        self._stage: _core.Stage | None = None
        self._stage_path: str | None = None
        self._builder: BatchBuilder | None = self._make_builder(plan)
        known = None if self._deal.is_global else plan.known_counts()
        self._epochs = Epochs(plan, self._deal, self.topology, self._count_rows, known)
        self._constant = self._describe(query, plan)
        if known is not None:
            # Whether equal steps are possible is known now, and not only when training begins.
            self._epochs.shards(0, 0)
        self._log_files(plan)
        self._warn_of_order()

    def refresh(self) -> list[SnapshotChange]:
        """Move the pins of the query's Iceberg tables to what is current now, for the epochs to come.

        Call it between two epochs, on every rank: an epoch that is under way would be of two snapshots. States saved
        before go on with the snapshots that they name.

        Returns:
            What changed, by table; empty where nothing did.

        Raises:
            ConfigError: An epoch is under way, or the query is a mixture.
            QueryError: A column that the query names is gone.
            TableNotFoundError: A table was dropped.
            StorageError: A catalog does not answer.
        """
        if not isinstance(self._query, Query):
            raise ConfigError("a mixture has no refresh(); refresh its queries, and mix them again")
        iterator = self._iterator()
        if self._loaded is not None or self._awaited is not None or self._progress.step:
            raise ConfigError(
                "refresh() belongs between two epochs, and one is under way; finish it, or make a new loader"
            )
        if iterator is not None:
            iterator.close()
        query = Query(self._query.session, self._query._core, self._query._narrowed)
        changes = query.refresh()
        query = agreed(query, self.topology, self._group())
        if changes or query._pins() != self._query._pins():
            self._open(query, plan_splits(query._core, *self._split_size))
        return changes

    def _follow_snapshots(self, state: Mapping[str, Any]) -> None:
        """Pin the snapshots that a state names, where the query's Iceberg tables have moved on since."""
        wanted = state["parts"].get("snapshot")
        ours = self._constant["parts"].get("snapshot")
        if (
            not wanted
            or wanted == ours
            or self._is_in_worker()
            or not isinstance(self._query, Query)
        ):
            return
        if set(wanted) != set(ours or {}):
            return
        query = self._query._at(wanted)
        self._open(query, plan_splits(query._core, *self._split_size))

    def _log_files(self, plan: _core.Plan) -> None:
        if self._constant["parts"].get("snapshot"):
            files, pruned, _, _ = plan.pruning()
            _LOG.info("%d data files before pruning, %d after", files, files - pruned)

    @property
    def rank(self) -> int:
        """This rank."""
        return self.topology.rank

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.topology.world_size

    @property
    def remainder(self) -> str:
        """What happens to rows that ranks and batches do not divide."""
        return self._deal.remainder

    @property
    def num_rows(self) -> int:
        """Rows that this rank delivers in an epoch, repeated ones included; counted where nobody knows them.

        Raises:
            DataError: A file cannot be read.
        """
        return sum(rows for _, rows in self._sizes())

    def __len__(self) -> int:
        """Batches that this rank delivers in an epoch; the same before and after a resume.

        Raises:
            TypeError: With ``remainder="uneven"``, where ranks differ.
        """
        if self._epochs.is_dynamic(self._workers):
            raise TypeError(
                'with assignment="dynamic" the number of batches depends on which worker takes which split, and is '
                'not known before; use assignment="static", or dataset.num_rows for the rows of this rank'
            )
        if self._deal.remainder == "uneven":
            raise TypeError(
                'with remainder="uneven" each rank has its own number of batches, which is not known before '
                'it is read; use remainder="even", or dataset.num_rows for the rows of this rank'
            )
        return sum(batches for batches, _ in self._sizes())

    def _sizes(self) -> list[tuple[int, int]]:
        """Batches and rows of each worker of this rank."""
        self._epochs.prepare(self._workers)
        for counted in (False, True):
            if counted:
                self._epochs.count()
            shards = self._epochs.shards(self._workers, self.epoch)
            workers = self._epochs.shards_per_rank(self._workers)
            sizes = [shards.size(self.rank, worker) for worker in range(workers)]
            known = [
                (batches, rows)
                for batches, rows in sizes
                if batches is not None and rows is not None
            ]
            if len(known) == len(sizes):
                return known
        raise AssertionError("counted rows have a number")

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration delivers."""
        return int(self._epoch[0])

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration, and so its order. Storage is not asked again.

        After `load_state_dict` the next iteration continues the epoch of the state, whatever is set here.

        Args:
            epoch: From 0. Persistent workers follow it too.

        Raises:
            ConfigError: It is not a whole number of at least 0.
        """
        refuse_foreign(self)
        self._epoch[0] = check_non_negative_int("epoch", epoch)

    def state_dict(self) -> dict[str, Any]:
        """Which rows of the epoch were consumed, as plain data.

        In the training process: the batches that this dataset's iterator has handed out. In a DataLoader worker:
        those that this worker has yielded. A loader of `create_dataloader` counts what the training loop has
        received: use its ``state_dict``.

        Returns:
            A state for `load_state_dict`, ready for JSON. After an epoch's last batch it begins the next epoch.
        """
        if self._loaded is not None:
            return dict(self._loaded)
        newest = self._iterator()
        if newest is None and self._progress.epoch != self.epoch:
            return self._state_of(Progress(self.epoch))
        return self._state_of(self._progress)

    def _state_of(self, progress: Progress, worker: int | None = None) -> dict[str, Any]:
        workers = self._workers if progress.workers is None else progress.workers
        if self._epochs.is_dynamic(workers) and self._is_in_worker():
            raise ConfigError(
                'with assignment="dynamic" a worker knows only what it took itself; save loader.state_dict() in the '
                "training process"
            )
        # The layout is kept for the next state, and this one is the caller's to change.
        layout = self._epochs.layout(workers)
        cursors, known = {}, progress.cursors
        if known is None and not self._follows(workers):
            # A rank that has not begun: other ranks may have, and their states are merged.
            shards = max(1, workers) + self._epochs.is_dynamic(workers)
            known = [[] for _ in range(shards)]
        if progress.ledger is not None:
            known = [*progress.ledger.cursors()]
        if known is not None:
            cursors[str(self.rank)] = [
                json.loads(cursor) if isinstance(cursor, str) else cursor for cursor in known
            ]
        state = {
            **self._constant,
            "epoch": progress.epoch,
            "layout": {**layout, "mixing": dict(layout["mixing"])},
            "step": progress.step,
            "cursors": cursors,
            "turns": {str(self.rank): progress.turn} if cursors else {},
            "parents": list(progress.parents),
        }
        ended = self._ended
        if (
            cursors
            and not progress.step
            and ended is not None
            and ended.epoch + 1 == progress.epoch
        ):
            # Other ranks may still be in that epoch, and their states are merged with this one.
            state["ended"] = {
                key: value for key, value in self._state_of(ended).items() if key in _RUN_OF_STATE
            }
        if progress.base is None:
            progress.base = check_sum_base(state["layout"], state["parents"])
        state["check"] = check_sum(state, progress.base)
        return state if worker is None else {**state, "worker": worker}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was saved: the next iteration delivers exactly the rest of its epoch.

        On the same topology the batches are bit-identical; with another number of ranks or workers or another
        batch size, the rows not consumed yet are divided anew. With equal steps the state of any one rank
        will do; otherwise give `merge_state_dicts` of all of them.

        Args:
            state: What ``state_dict()`` or `merge_state_dicts` returned.

        Raises:
            CheckpointMismatchError: It is of another query, seed or file list; names what differs.
        """
        checked = self._checked(state)
        self._loaded = checked
        # The epoch is shared: a worker's state must not change it for the others.
        if not self._is_in_worker():
            self._epoch[0] = checked["epoch"]

    def _checked(self, state: Mapping[str, Any]) -> dict[str, Any]:
        checked = check_state(state)
        self._follow_snapshots(checked)
        check_same(checked, self._constant, self._file_names)
        info, worker = get_worker_info(), checked.get("worker")
        if worker is not None:
            here = (
                "the training process"
                if info is None
                else f"worker {info.id} of {info.num_workers}"
            )
            if info is None or (info.id, info.num_workers) != (
                worker,
                checked["layout"]["num_workers"],
            ):
                raise CheckpointMismatchError(
                    f"this is the state of worker {worker} of {checked['layout']['num_workers']}, loaded in {here};"
                    " resume with the same num_workers, or save loader.state_dict() of create_dataloader's loader"
                )
        return checked

    def shard_plan(self, num_workers: int = 0) -> ShardPlan:
        """How the splits are dealt to all ranks and workers.

        Args:
            num_workers: Worker processes per rank.

        Returns:
            The plan of the current epoch; with ``assignment="dynamic"`` that of the ranks, whose workers share it.

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
            0 if self._deal.assignment == "dynamic" else num_workers,
            self._deal.strategy,
            epoch=self.epoch,
            batch_size=self.batch_size,
            epochs=self._epochs,
        )

    def trace(
        self, rank: int | None = None, step: int | None = None, *, epoch: int | None = None
    ) -> Trace:
        """Find the rows of a batch: their splits, files, row groups and physical rows.

        Batches before it are not simulated, and other ranks take no part. Rows are counted where that was not done
        yet, and the splits of the batch are read again.

        Steps count from 0, in the order in which this rank receives its batches: after n batches of an epoch the
        last one is step n - 1. A run that was resumed on the same topology goes on counting, and may trace the steps
        before the resume too; on another topology step 0 is the first batch after the resume.

        Args:
            rank: The rank that delivers it, any of the topology; None: this one.
            step: Which of its batches; None: the last one received.
            epoch: The epoch; None: that of the last batch received, or, before any, the one that is delivered next.

        Returns:
            The trace; its ``ranges`` go into ``exclude=`` of a later run.

        Raises:
            ConfigError: There is no such rank or step, or nothing was received yet; names the bounds.
            DataError: A file cannot be read, or has other rows than were counted.
        """
        if self._plan is None or self._process != os.getpid():
            raise ConfigError(
                "trace() is for the training process; a worker knows only the batches it has yielded"
            )
        rank = self.rank if rank is None else check_non_negative_int("rank", rank)
        if rank >= self.world_size:
            raise ConfigError(
                f"rank {rank} must be in 0..{self.world_size} (world_size is {self.world_size})"
            )
        run = self._traced(None if epoch is None else check_non_negative_int("epoch", epoch))
        if step is None and not run.step:
            raise ConfigError(
                f"no batch of epoch {run.epoch} was received yet, so there is no last one to trace; say which: "
                "trace(step=0)"
            )
        step = run.step - 1 if step is None else check_non_negative_int("step", step)
        workers = self._workers if run.workers is None else run.workers
        if self._epochs.is_dynamic(workers):
            raise ConfigError(
                'with assignment="dynamic" which worker takes which split follows from their speed, so a step may be '
                'any batch; trace a loader with assignment="static"'
            )
        if workers > 1 and not self._in_order:
            raise ConfigError(
                f"with in_order=False the {workers} workers deliver in the order of their speed, so a step may be any "
                "batch; trace a loader with in_order=True"
            )
        return trace_batch(
            self._plan,
            self._epochs,
            Place(run.epoch, rank, step, workers, run.parents),
            permuted=self._deal.is_global,
            count=self._count_splits,
        )

    def _traced(self, epoch: int | None) -> Progress:
        """The run of an epoch that is traced; None: the run in which a batch was received last."""
        runs = [self._progress] if self._ended is None else [self._progress, self._ended]
        state = self._loaded if self._awaited is None else self._awaited
        if state is not None:
            # Not begun yet: what it goes on from was received by the process that saved it.
            loaded = Progress(state["epoch"], self._workers)
            self._restore(loaded, state, self._workers)
            runs = [loaded]
        if epoch is None:
            received = next((run for run in runs if run.step), None)
            if received is not None:
                return received
            epoch = self.epoch
        return next((run for run in runs if run.epoch == epoch), Progress(epoch))

    def metrics(self) -> dict[str, float]:
        """Counts of the current or last epoch in this process.

        Returns:
            ``rows``, ``batches`` and ``splits`` delivered (a split that is cut between shards counts in each);
            ``padded_rows`` repeated; ``split_share``, the mean part of a batch that comes from the split with most
            rows in its shuffle window (1 without windows), as `ShardPlan.quality` predicts it; ``wait_seconds``
            that the consumer waited; ``convert_seconds`` spent making tensors; ``bytes_read`` and ``requests`` of storage.
        """
        newest = self._iterator()
        if newest is not None:
            self._metrics = newest.metrics()
        return dict(self._metrics)

    def _is_in_worker(self) -> bool:
        return get_worker_info() is not None

    def _iterator(self) -> ShardIterator | None:
        """The newest iterator in this process, if it is not closed."""
        newest = None if self._newest is None else self._newest()
        return None if newest is None or newest.closed else newest

    def __iter__(self) -> ShardIterator:
        """Iterate over the batches of this process's shard."""
        refuse_foreign(self)
        info = get_worker_info()
        worker, workers = (0, 0) if info is None else (info.id, info.num_workers)
        return self._iterate(worker, workers)

    def _iterate(self, worker: int, workers: int) -> ShardIterator:
        in_loader = workers > 0 and int(self._epoch[1]) >= 0
        if self._epochs.is_dynamic(workers) and not in_loader:
            raise ConfigError(
                'assignment="dynamic" needs the loader of create_dataloader, which tells its workers when an epoch '
                'begins; use that, or assignment="static"'
            )
        state, self._loaded = self._loaded, None
        if in_loader and not self._epoch[2]:
            state = None
        epoch = int(self._epoch[1]) if in_loader else self.epoch
        self._here()
        progress = self._begin(workers, epoch if state is None else state["epoch"], state)
        older = self._iterator()
        if older is not None:
            older.supersede()
        if in_loader:
            worker = (worker + int(self._epoch[3])) % workers
        iterator = ShardIterator(self, progress, worker, in_loader)
        self._newest = weakref.ref(iterator)
        return iterator

    def _begin(self, workers: int, epoch: int, state: dict[str, Any] | None) -> Progress:
        """Start an epoch, from a state where there is one."""
        shards = max(1, workers)
        progress = Progress(epoch, workers, start=[[] for _ in range(shards)])
        if self._is_in_worker() or not self._follows(workers):
            progress.cursors = [[] for _ in range(shards)]
        if state is not None:
            self._restore(progress, state, workers)
        self._epochs.prepare(workers, progress.parents)
        if self._epochs.is_dynamic(workers) and not self._is_in_worker():
            dealt = self._epochs.shards(workers, epoch, progress.parents)
            progress.ledger = Ledger(workers, dealt.num_pieces(self.rank))
        self._progress, self._awaited = progress, None
        return progress

    def _follows(self, workers: int) -> bool:
        """Whether all cursors follow from the number of steps."""
        layout = self._epochs.layout(workers)
        return bool(layout["counted"]) and (self._in_order or workers <= 1)

    def _restore(self, progress: Progress, state: dict[str, Any], workers: int) -> None:
        run, parents = run_of(state), tuple(state["parents"])
        if not run["step"]:
            progress.parents = parents
            return
        self._epochs.prepare(workers, [*parents, run])
        if run["layout"] != self._epochs.layout(workers) or self._epochs.is_dynamic(workers):
            if state.get("worker") is not None:
                raise CheckpointMismatchError(
                    "the state of a DataLoader worker goes on with the same batch size, number of ranks and "
                    "options of order; the state of create_dataloader's loader goes on with others too"
                )
            progress.parents = (*parents, run)
            return
        progress.parents = parents
        shards = self._epochs.shards(workers, progress.epoch, parents)
        text = json.dumps(run)
        progress.start = [
            shards.cursor_of(text, self.rank, worker) for worker in range(max(1, workers))
        ]
        progress.step = sum(cursor[0] for cursor in progress.start if cursor)
        turn = state["turns"].get(str(self.rank), progress.step)
        progress.turn = turn % max(1, workers)
        if progress.cursors is not None:
            progress.cursors = list(progress.start)

    def _steps(self, progress: Progress) -> int | None:
        """The step with which this rank's epoch ends, where that is known before."""
        workers = progress.workers or 0
        if self._epochs.is_dynamic(workers):
            return None
        shards = self._epochs.shards(workers, progress.epoch, progress.parents)
        total = 0
        for worker in range(max(1, workers)):
            batches, _ = shards.size(self.rank, worker)
            if batches is None or not shards.is_fixed(self.rank, worker):
                return None
            total += batches
        return total

    def _finished(self, progress: Progress) -> None:
        """After the last batch: the next iteration delivers the next epoch, unless one was set."""
        if self.epoch == progress.epoch:
            self._epoch[0] = progress.epoch + 1
        self._ended = progress
        if self._progress is progress:
            self._progress = Progress(progress.epoch + 1, progress.workers)

    def _warn_of_order(self) -> None:
        """Say once where the data is sorted and the shuffle window too small for it."""
        assert self._plan is not None
        if not self._deal.shuffle and self._deal.buffer is None:
            return
        lists = assign(self._plan, self.world_size, 0, "lpt", 0)
        quality = self._epochs.quality(0, lists)
        if quality is not None and quality.warning is not None:
            warnings.warn(quality.warning, UserWarning, stacklevel=stack_level_outside())

    def _count_rows(self) -> list[int]:
        plan = self._plan
        assert plan is not None
        if self._is_in_worker():
            raise ConfigError(
                "the rows of this query must be counted or staged before worker processes start: call len(dataset) in "
                "the training process first, or use tensorquery.create_dataloader"
            )
        if self._deal.is_global:
            threads, show = threads_for(self.topology, 0), self._show_progress
            self._stage = open_stage(plan, threads=threads, show_progress=show)
            self._stage_path = self._stage.path
            return [self._stage.num_rows]
        return self._count_splits()

    def _count_splits(self) -> list[int]:
        plan = self._plan
        assert plan is not None
        counts = split_counts(
            plan,
            topology=self.topology,
            process_group=self._group(),
            show_progress=self._show_progress,
            threads=threads_for(self.topology, 0),
        )
        return counts.rows

    def _group(self) -> Any | None:
        """The process group whose ranks share the data, where it is not the global one."""
        if self._process_group is None and self._device_mesh is not None:
            return self._device_mesh.get_group()
        return self._process_group

    def _describe(self, query: Query | Mixture, plan: _core.Plan) -> dict[str, Any]:
        """What every state of this run begins with."""
        deal, files = self._deal, plan.files()
        self._file_names = [path for path, _ in files]
        strategy = deal.strategy if isinstance(deal.strategy, str) else type(deal.strategy).__name__
        parts = {
            **query._parts(),
            "splits": digest(plan.options()),
            "strategy": strategy,
            # Encoded, so that a default is the same whether it was given or not.
            "tensors": digest([self._output_format, tensor_options(**self._tensor_kwargs)]),
            "exclude": digest(deal.exclude),
            "files": file_digests(files),
        }
        return {
            "format": FORMAT,
            "version": VERSION,
            "fingerprint": plan.fingerprint,
            "parts": parts,
            "seed": deal.seed,
        }

    def _make_builder(self, plan: _core.Plan) -> BatchBuilder:
        return BatchBuilder(plan, output_format=self._output_format, **self._tensor_kwargs)

    def _here(self) -> tuple[_core.Plan, BatchBuilder]:
        """Plan and builder of this process; a worker plans once, from the recipe."""
        if self._process != os.getpid() and self._planned_in != os.getpid():
            self._plan = _core.Plan.from_recipe(*self._make_recipe())
            self._builder = self._make_builder(self._plan)
            self._epochs.moved_to(self._plan, self._count_rows)
            if self._stage_path is not None:
                self._stage = _core.Stage.open(self._stage_path, self._plan.fingerprint)
            self._planned_in = os.getpid()
            self._newest = None
        assert self._plan is not None
        assert self._builder is not None
        return self._plan, self._builder

    _planned_in: int | None = None
    """The worker process in which this copy was planned again."""

    def _make_recipe(self) -> tuple[str, list[bytes]]:
        if self._recipe is None:
            assert self._plan is not None
            self._recipe = self._plan.recipe(list(range(self._plan.num_splits)))
        return self._recipe

    def _pin_epoch(self, epoch: int | None, resumed: bool = True, turn: int = 0) -> None:
        """What workers deliver from now on, whatever `set_epoch` says; None: what it says."""
        self._epoch[2] = int(resumed)
        self._epoch[3] = turn
        self._epoch[1] = -1 if epoch is None else epoch

    @property
    def _counter(self) -> _core.Counter:
        """From which the workers of this rank take splits."""
        return _core.Counter(self._epoch, 4)

    def _take_anew(self) -> None:
        """Before the workers of an iteration start or go on: they take all splits again, older ones none."""
        self._iteration = self._counter.begin()

    def _taking(self) -> int:
        """The iteration in which this worker process takes splits: the first time that for which it was made.

        A worker that lives on hears of the next iteration from torch, which waits until all have heard of it.
        """
        iteration, self._iteration = self._iteration, None
        return self._counter.iteration if iteration is None else iteration

    def __getstate__(self) -> dict[str, Any]:
        refuse_foreign(self)
        # A worker must not count, so what it needs is counted before it starts.
        self._epochs.prepare(self._workers)
        state = dict(self.__dict__)
        state["_recipe"] = self._make_recipe()
        state["_epochs"] = self._epochs.for_worker()
        state.update(_plan=None, _builder=None, _newest=None, _process=-1, _planned_in=None)
        state.update(_process_group=None, _device_mesh=None, _stage=None, _query=None)
        return state

    def __repr__(self) -> str:
        assert self._plan is not None or self._planned_in is None
        return (
            f"QueryDataset(rank {self.rank} of {self.world_size}, batch_size={self.batch_size}, "
            f"remainder={self._deal.remainder!r})"
        )
