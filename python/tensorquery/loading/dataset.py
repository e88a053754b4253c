"""The dataset: one rank's share of a query, iterated in this process or in DataLoader workers."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import get_worker_info

from tensorquery import _core
from tensorquery._util.logs import follow
from tensorquery._util.options import (
    MOST_BATCH_ROWS,
    check_callable,
    check_non_negative_int,
    check_positive_int,
    reject_unknown,
)
from tensorquery._util.shared_memory import shared
from tensorquery.distributed.broadcast import channel_of
from tensorquery.distributed.topology import Topology, check_still_alone, detect, threads_for
from tensorquery.errors import ConfigError
from tensorquery.loading.accelerate import refuse_foreign
from tensorquery.loading.devices import Copies
from tensorquery.loading.epoch_progress import Progress
from tensorquery.loading.iterator import (
    AheadIterator,
    LoopIterator,
    Reading,
    Refused,
    ShardIterator,
    WorkerIterator,
)
from tensorquery.loading.snapshot_pins import agreed
from tensorquery.loading.tensors import TENSOR_OPTIONS, tensor_options
from tensorquery.loading.tracing import TracedDataset
from tensorquery.loading.transform_threads import check_threads, refuse_threads
from tensorquery.loading.workers.batch_messages import Parcels, Sending, batches_per_parcel
from tensorquery.loading.workers.liveness import end_with_trainer, end_with_what_is_lost
from tensorquery.metrics.counters import Measures
from tensorquery.metrics.iteration import Watch
from tensorquery.metrics.loader_metrics import Metrics, measured
from tensorquery.metrics.progress import check_progress, shows
from tensorquery.sharding.bad_files import check_on_error
from tensorquery.sharding.deal import Deal, Sources
from tensorquery.sharding.shards import (
    DEFAULT_SPLIT_BYTES,
    SplitStrategy,
    check_strategy,
)
from tensorquery.sharding.trace import excluded_ranges
from tensorquery.sharding.weighted_sampling import weighing_of
from tensorquery.sql.iceberg import SnapshotChange
from tensorquery.sql.materialize import Staging
from tensorquery.sql.mixture import Mixture
from tensorquery.sql.query import Query

__all__ = ["QueryDataset"]


class QueryDataset(TracedDataset):
    """One rank's batches of a query; each row of the query goes to exactly one rank and worker.

    It yields finished batches, so a DataLoader around it takes ``batch_size=None``:
    ``DataLoader(dataset, batch_size=None, num_workers=4)``. `create_dataloader` does that and more. Where rows must be counted
    (a filtered query over several ranks), ask for ``dataset.num_rows`` before such a loader starts workers; with
    ``on_error="skip"`` look at ``dataset.quarantined``.

    Iterated in the training process, Rust threads decode ahead with the GIL released. Inside a DataLoader
    worker (under fork, spawn and forkserver alike) the dataset plans again from a recipe, without listing
    files, and reads its own shard.

    Args:
        query: The rows: a query, or a mixture of several (see `mix`).
        batch_size: Rows per batch; only this rank's last batch is short. Of worker processes the last of each may be, where
            shares are not counted: with ``remainder="uneven"``, and on one rank with a filter or over text (CSV, JSON).
        shuffle: Permute the splits by seed and epoch, read several of them in turn, and mix their rows in a
            window. "global": a uniform permutation of all rows, which are written to local disk first.
        shuffle_seed: The seed; two runs with the same seed give the same order.
        shuffle_buffer_size: Rows of the window, with or without `shuffle`; it is filled, permuted, and drained
            in turn. None: with `shuffle` 65,536 (up to 262,144 where there are few splits, fewer where 64 MiB
            hold fewer), else no window.
        remainder: What happens to rows that ranks and batches do not divide. "even": all ranks take
            S = ceil(ceil(N/W)/B) steps, and each row is delivered once (one rank whose workers' shares are not counted
            takes a step for each short batch); "drop": only full batches; "pad": the
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
            `tensorquery.distributed.topology.detect`).
        world_size: Number of ranks.
        process_group: A `torch.distributed` group whose ranks share the data, where that is not the
            global group (tensor or pipeline parallelism).
        device_mesh: A one-dimensional `DeviceMesh` of the data-parallel ranks.
        split_bytes: Stored bytes of the projected columns that a split grows towards.
        split_rows: Rows that a split grows towards; takes precedence.
        split_strategy: "lpt" (default), "round_robin", or an object with
            ``generate(splits, num_shards, epoch)``.
        sample_weight: An output column of weights, finite numbers of at least 0, by which the rows of an epoch are drawn,
            over all ranks together, as torch's ``WeightedRandomSampler`` does; a function of seed and epoch. The column
            stays in the batch. Rows are written to local disk first, as for ``shuffle="global"``; `shuffle` is then
            False or "global", which mean the same: draws come in random order.
        sample_replacement: Whether a row may be drawn again: each draw takes a row with the probability of its weight over
            the sum of all. False: one row after the other is drawn from those that are left; every process then holds
            8 bytes for each draw.
        num_samples: Rows of an epoch, of all ranks together; None: as many as the query has.
        exclude: Rows to leave out: ranges of `trace`, or (split, first row, one past the last) in output rows.
        on_error: "raise": data that cannot be read end the epoch with an error. "skip": bad files, row groups, stripes
            and byte ranges are left out, see `quarantined`. To know them before rows are dealt, all splits are executed
            once before the first epoch, shared by the ranks of a process group and kept on disk for later runs. Where
            reading fails for another reason than a file's content (storage, a changed file, the query itself, a null
            policy), and where a split fails later that was good then, it is an error all the same.
        stage: What happens to a query, or a part of one, that cannot run split by split (aggregates, windows, ORDER BY, LIMIT,
            FULL JOIN, …; `Query.explain` shows it). "auto": it runs once, its rows are kept in `stage_dir`, and those are
            sharded; "never": that is an error; "always": also where nothing asks for it, for a query that is costly to run in
            every epoch.
        stage_dir: A folder or an object-store URL where staged rows are kept, for all processes that can reach it, and for
            later runs: of several processes one builds a stage. None: a folder of this user's on this machine
            (``$TENSORQUERY_STAGES``, else in the temporary directory). Ranks on several machines need a place that all reach,
            or build a stage each. See `tensorquery.clear_stages`.
        stage_max_bytes: Bytes of all stages in `stage_dir`, as an int or a string such as "50GiB": when one is built, those used
            longest ago make way, but none that is in use. None is ``$TENSORQUERY_STAGES_MAX_BYTES``, else no bound.
        stage_from: Rows of this query that another engine has computed: a path or URL of files, or a `Query` over an Iceberg
            table. They must have the query's columns; that they are its rows is not checked.
        stage_engine: The URL of a cluster that computes what is staged, and writes it to `stage_dir`:
            ``"ballista://host:port"`` is a Ballista scheduler (docs/staging.md). None: this process computes it.
        stage_timeout: Seconds to wait for another process that builds; None is an hour.
        show_progress: Show bars of tqdm while files are listed and rows staged, counted or verified, and over the rows of each
            epoch that a loader of `create_dataloader` delivers. True: of several ranks on a machine the first one shows them;
            "all": every rank does, below one another. Needs tqdm (``tensorquery[progress]``).
        output_format: "torch", "numpy", "arrow" (`pyarrow.RecordBatch`) or "dict" (lists).
        transform: Called on each batch, in the worker; what it returns is yielded.
        transform_threads: So many threads call `transform` on successive batches at once, up to so many and two ahead of
            the training loop; batches come in the same order and with the same content. It pays where `transform`
            releases the GIL, as numpy and torch do. None: the training loop's thread calls it. Not with worker
            processes, which run side by side as they are.
        **tensor_kwargs: ``nulls``, ``stack``, ``pad``, ``categories`` and ``decimal``; see `to_tensors`.

    Raises:
        ConfigError: An option is malformed; names the value and what is allowed.
        NotShardableError: The query is not row-local above one scan, and ``stage="never"``; names the operator.
        UnsupportedTypeError: A column has no tensor form; names the column.
    """

    _measures: Measures | None = None
    """Where the workers of a loader write down what they count."""
    _reports_here = False
    """Whether iterators of the training process write it down, too."""
    _shows_rows = True
    """Whether a loader shows a bar over the rows of an epoch, where that is wanted."""
    _watch: Watch | None = None
    """What the loader that began last has noted of its iteration."""

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
        sample_weight: str | None = None,
        sample_replacement: bool = True,
        num_samples: int | None = None,
        exclude: Sequence[Any] | None = None,
        on_error: str = "raise",
        stage: str = "auto",
        stage_dir: str | os.PathLike[str] | None = None,
        stage_max_bytes: int | str | None = None,
        stage_from: str | os.PathLike[str] | Query | None = None,
        stage_engine: str | None = None,
        stage_timeout: float | None = None,
        show_progress: bool | str = False,
        output_format: str = "torch",
        transform: Callable[[Any], Any] | None = None,
        transform_threads: int | None = None,
        **tensor_kwargs: Any,
    ) -> None:
        if not isinstance(query, Query | Mixture):
            raise ConfigError(
                f"QueryDataset takes a Query, got {type(query).__name__}; make one with session.sql(…)"
            )
        # `inspect.signature` takes as long as planning a filter.
        allowed = {"query", *(QueryDataset.__init__.__kwdefaults__ or ()), *TENSOR_OPTIONS}
        reject_unknown(tensor_kwargs, allowed, "QueryDataset")
        batch_size = check_positive_int("batch_size", batch_size, MOST_BATCH_ROWS)
        if shuffle_buffer_size is not None:
            shuffle_buffer_size = check_positive_int("shuffle_buffer_size", shuffle_buffer_size)
        self._transform = None if transform is None else check_callable("transform", transform)
        self._transform_threads = check_threads(transform_threads, transform)
        self._output_format = output_format
        # What they are now: each process and epoch converts by them, whatever becomes of the user's lists.
        self._tensor_options = tensor_options(**tensor_kwargs)
        self._show_progress = check_progress(show_progress)
        self._process_group, self._device_mesh = process_group, device_mesh
        self._split_size = (split_bytes, split_rows)
        self.topology: Topology = detect(rank, world_size, process_group, device_mesh)
        self._staging = Staging.of(
            stage,
            stage_dir,
            stage_timeout,
            stage_from,
            stage_engine,
            shows(self._show_progress, self.topology),
            stage_max_bytes,
        )
        self._skips = check_on_error(on_error)
        query = agreed(query, self.topology, self._group())
        self._deal = Deal(
            batch_size=batch_size,
            seed=check_non_negative_int("shuffle_seed", shuffle_seed),
            shuffle=shuffle,
            buffer=shuffle_buffer_size,
            remainder=remainder,
            partitions=partitions,
            strategy=check_strategy(split_strategy),
            exclude=excluded_ranges(exclude),
            mixture=query._weights() if isinstance(query, Mixture) else Sources(),
            assignment=assignment,
            weighing=weighing_of(sample_weight, sample_replacement, num_samples),
        )
        self._open(query, channel_of(self.topology, self._group()))
        # Shared memory: `set_epoch` in the training process reaches workers that live on. The second number is
        # the epoch that a loader's workers deliver now, or -1: one that starts late must not take a later
        # `set_epoch` for its own. The third says whether they go on from the loaded state, the fourth which shard the
        # loader's first worker reads: torch asks that one first, wherever a resumed epoch stands. The fifth is the
        # counter from which the workers take splits (see `_core.Counter`), the sixth is `_generation`.
        self._epoch = shared(6 * 8).view(torch.int64)
        self._epoch.numpy()[:] = (0, -1, 1, 0, 0, 0)
        self._shares_in = os.getpid()
        self._process = os.getpid()
        self._counted: tuple[int, dict[str, float]] | None = None
        self._progress = Progress(0)
        self._ended: Progress | None = None
        # What was loaded into the loader, whose next iteration begins with it.
        self._awaited: dict[str, Any] | None = None
        self._newest: weakref.ref[ShardIterator] | None = None
        # The generator of a loader that hands out what its workers send.
        self._loop: weakref.ref[Any] | None = None
        self._loaded: dict[str, Any] | None = None
        self._workers = 0
        self._in_order = True
        self._sent = Sending()
        # The iteration for which a worker process was made: one that starts late must not take from a newer one.
        self._iteration: int | None = None

    def refresh(self) -> list[SnapshotChange]:
        """Move the pins of the query's Iceberg tables to what is current now, for the epochs to come.

        Call it between two epochs, on every rank: an epoch that is under way would be of two snapshots. States saved
        before go on with the snapshots that they name. Where it fails, the rank stays at the snapshots that it had: call it
        again, on every rank.

        Returns:
            What changed, by table; empty where nothing did.

        Raises:
            ConfigError: An epoch is under way, or the query is a mixture.
            QueryError: A column that the query names is gone.
            TableNotFoundError: A table was dropped.
            StorageError: A catalog does not answer.
        """
        if self._query is None:
            raise ConfigError(
                "this is a copy of a dataset, which does not refresh; call refresh() of the dataset itself, or make another one"
            )
        if not isinstance(self._query, Query):
            raise ConfigError("a mixture has no refresh(); refresh its queries, and mix them again")
        iterator = self._iterator()
        if self._loaded is not None or self._awaited is not None or self._is_under_way():
            raise ConfigError(
                "refresh() belongs between two epochs, and one is under way; finish it, or make a new loader"
            )
        if iterator is not None:
            iterator.close()
        query = Query(self._query.session, self._query._core, self._query._narrowed)
        changes = query.refresh()
        query = agreed(query, self.topology, self._group())
        if changes or query._pins() != self._query._pins():
            # Each rank by itself: for some of them nothing may have changed. Where it fails, a later call tries again.
            with self._kept():
                self._open(query)
            # What was begun or has ended is of other files.
            self._progress, self._ended = Progress(self.epoch, self._progress.workers), None
            self._changed()
        return changes

    @property
    def batch_size(self) -> int:
        """Rows per batch; it is chosen when the dataset is made."""
        return self._deal.batch_size

    @batch_size.setter
    def batch_size(self, batch_size: int) -> None:
        raise ConfigError(
            f"batch_size={self.batch_size} was chosen when the dataset was made; make another one with "
            f"batch_size={batch_size!r}"
        )

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
                self._widen()
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

    def metrics(self) -> Metrics:
        """What this rank has counted in the current or last iteration, together and by worker.

        Nothing is asked of other processes: it takes some microseconds, at any time. Workers write down what they count fifty
        times a second and with their last batch, so that at an epoch's end all of it is there. In a worker it is
        that worker's.

        Returns:
            A dict by field, with a dict of each worker in ``workers``. All are numbers that begin at 0 with each iteration:

            * ``rows``, ``batches``: received by the training loop (of a worker: sent); ``padded_rows``: repeated ones;
            * ``splits``: read to their end (one that is cut between shards counts in each); ``files``: read of;
            * ``split_share``: the mean part of a batch that comes from the split with most rows in its shuffle
              window (1 without windows), as `ShardPlan.quality` predicts it;
            * ``buffered_rows``: rows of finished batches that are ready now;
            * ``elapsed_seconds``: since the first batch was asked for; ``input_seconds``: of these the seconds that the
              training loop spent in getting batches, and ``wait_share`` their part (both only with a loader);
            * ``wait_seconds``: of these the seconds that it waited for rows (of a worker: that the worker waited);
            * ``decode_seconds``, ``convert_seconds``: spent reading and computing rows, and making tensors of them, in
              all threads together;
            * ``bytes_read``, ``requests``: of storage; ``cache_hits``, ``cache_bytes``: what came from the local cache
              instead (see `Session`); of all network requests of the process ``retries`` (those that failed, were throttled
              or broke off, and were sent again unless retries were used up), ``throttled`` among them, and
              ``request_wait_seconds`` that requests waited for their turn;
            * ``quarantined_splits``, ``quarantined_rows`` (as far as metadata says them): bad data that are left out,
              with ``on_error="skip"``; see `quarantined`.

            ``docs/metrics.md`` has more of each, and of ``to_prometheus()``.
        """
        return measured(
            self._watch,
            self._measures,
            self._own_counts,
            self._quarantine.metrics(),
            rank=self.rank,
            epoch=self._progress.epoch,
        )

    def _own_counts(self) -> tuple[int, dict[str, float]] | None:
        """Epoch and counts of this process' iterator, the current or the last one."""
        newest = self._iterator()
        if newest is not None:
            self._counted = (newest.progress.epoch, newest.metrics())
        return self._counted

    def __iter__(self) -> ShardIterator | Parcels | Refused:
        """Iterate over the batches of this process's shard."""
        refuse_foreign(self)
        if self._is_outdated():
            return Refused(
                "a state was loaded, or the dataset refreshed, and this worker process, which lives on, does not know of it; "
                "use the loader of create_dataloader, or make a new DataLoader"
            )
        info = get_worker_info()
        worker, workers = (0, 0) if info is None else (info.id, info.num_workers)
        if workers:
            end_with_trainer()
            end_with_what_is_lost()
        else:
            check_still_alone(self.topology)
            self._settle()
        return self._sender(worker, workers)

    def _sender(self, worker: int, workers: int) -> ShardIterator | Parcels:
        """The batches of a shard, as this process delivers them: a worker of our own loader sends parcels."""
        iterator = self._iterate(worker, workers)
        if not isinstance(iterator, WorkerIterator):
            return iterator
        return Parcels(iterator, self._sent.batches, iterator.sent)

    def _settle(self) -> None:
        """Have memory of its own to share with workers, where this is a copy, or a fork of the process that had it."""
        if self._shares_in == os.getpid():
            return
        told, self._epoch = self._epoch, shared(6 * 8).view(torch.int64)
        self._epoch.numpy()[:] = told.numpy()
        self._pin_epoch(None)
        if self._measures is not None:
            self._measures = Measures(self._measures.workers)
        self._shares_in = os.getpid()

    def _iterate(self, worker: int, workers: int, copies: Copies | None = None) -> ShardIterator:
        """Begin the iteration of a shard in this process.

        Args:
            worker: The number of this worker process; 0 in the training process.
            workers: How many there are; 0 in the training process.
            copies: Copies batches to a device.
        """
        in_loader = workers > 0 and self._starts_workers
        if self._epochs.is_dynamic(workers) and not in_loader:
            raise ConfigError(
                'assignment="dynamic" needs the loader of create_dataloader, which tells its workers when an epoch '
                'begins; use that, or assignment="static"'
            )
        if workers:
            refuse_threads(self._transform_threads, workers)
        follow()
        state, self._loaded = self._loaded, None
        if in_loader and not self._epoch[2]:
            state = None
        epoch = int(self._epoch[1]) if in_loader else self.epoch
        self._here()
        progress = self._begin(workers, epoch if state is None else state["epoch"], state)
        older = self._iterator()
        if older is not None:
            older.supersede()
        # A loader that reads through it says so afterwards.
        self._watch = None
        if in_loader:
            worker = (worker + int(self._epoch[3])) % workers
        iterator = self._iterator_over(progress, worker, in_loader, copies)
        self._newest = weakref.ref(iterator)
        return iterator

    def _iterator_over(
        self, progress: Progress, worker: int, in_loader: bool, copies: Copies | None
    ) -> ShardIterator:
        """The iterator over a shard that delivers as this process wants it."""
        counters = self._measures
        if (counters is not None and worker >= counters.workers) or (
            get_worker_info() is None and not self._reports_here
        ):
            counters = None
        iteration = 0.0 if counters is None else counters.joined()
        _, builder = self._here()
        takes = self._epochs.is_dynamic(progress.workers or 0)
        is_raw = in_loader and self._sent.raw
        reading = Reading(
            _as_it_is if is_raw else builder.build,
            self._transform,
            self._transform_threads,
            counters,
            self._taking() if takes else None,
            is_raw,
        )
        source = _Source(self)
        if in_loader:
            return WorkerIterator(source, progress, worker, reading, iteration)
        if copies is not None or self._transform_threads is not None:
            return AheadIterator(source, progress, worker, reading, iteration, copies=copies)
        return LoopIterator(source, progress, worker, reading, iteration)

    def _sending(self, collates: bool, expires: bool) -> Sending:
        """How workers send batches to a loader which `collates`, or which waits for a limited time only."""
        assert self._builder is not None
        is_raw = self._builder.converter is not None and self._transform is None and not collates
        # What the user's code does to a batch may take any time, and another worker waits for a split.
        alone = not is_raw or expires or self._deal.assignment == "dynamic"
        row_bytes = self._builder.row_bytes
        batch_bytes = self.batch_size * row_bytes
        return Sending(is_raw, 1 if alone else batches_per_parcel(batch_bytes, self._workers))

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

    def __repr__(self) -> str:
        assert self._plan is not None or self._planned_in is None
        listed = self._quarantine.listed
        left_out = f", quarantined={len(listed)}" if listed else ""
        return (
            f"QueryDataset(rank {self.rank} of {self.world_size}, batch_size={self.batch_size}, "
            f"remainder={self._deal.remainder!r}{left_out})"
        )


def _as_it_is(raw: Any) -> Any:
    return raw


class _Source:
    """The dataset, as its iterators know it; see `ShardSource`."""

    def __init__(self, dataset: QueryDataset) -> None:
        self._dataset = dataset

    def stream(
        self,
        progress: Progress,
        worker: int,
        *,
        taking: int | None,
        lends: bool = False,
        loose: bool = False,
    ) -> _core.BatchStream:
        """The batches of a shard, from where `progress` stands; reading starts now."""
        dataset = self._dataset
        plan, _ = dataset._here()
        workers = progress.workers or 0
        shards = dataset._epochs.shards(workers, progress.epoch, progress.parents)
        is_tensor = dataset._output_format in ("torch", "numpy")
        options = dataset._tensor_options if is_tensor else None
        threads = threads_for(dataset.topology, workers)
        if taking is not None:
            return plan.stream_taken(
                shards, dataset.rank, worker, dataset._counter, taking, threads, options, loose
            )
        return plan.stream(
            shards,
            dataset.rank,
            worker,
            progress.start[worker],
            threads,
            options,
            dataset._stage,
            lends=lends,
            loose=loose,
        )

    def finished(self, progress: Progress) -> None:
        """The epoch is over."""
        self._dataset._finished(progress)

    def counted(self, epoch: int, counts: dict[str, float]) -> None:
        """An iterator is closed, and has counted this."""
        self._dataset._counted = (epoch, counts)

    def follows(self, workers: int) -> bool:
        """Whether all cursors follow from the number of steps."""
        return self._dataset._follows(workers)

    def state_of_shard(self, progress: Progress, worker: int) -> dict[str, Any]:
        """How far it was consumed; see `QueryDataset.state_dict`."""
        dataset = self._dataset
        if dataset._is_in_worker():
            return dataset._state_of(progress, worker)
        return dataset.state_dict()

    def checked(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """A state that fits; raises `CheckpointMismatchError`."""
        return self._dataset._checked(state)

    def begin(self, workers: int, epoch: int, state: dict[str, Any] | None) -> Progress:
        """Start an epoch, from a state where there is one."""
        return self._dataset._begin(workers, epoch, state)
