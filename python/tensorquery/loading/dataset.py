"""The dataset: one rank's share of a query, iterated in this process or in DataLoader workers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tensorquery._util.optional import has_torch, worker_info
from tensorquery._util.options import MOST_EPOCHS, check_non_negative_int, reject_unknown
from tensorquery.distributed.broadcast import channel_of
from tensorquery.distributed.topology import Topology, check_still_alone, detect
from tensorquery.errors import ConfigError
from tensorquery.loading.accelerate import refuse_foreign
from tensorquery.loading.ahead import Copies
from tensorquery.loading.alter import alter
from tensorquery.loading.alteration import Alteration, Request, key_columns
from tensorquery.loading.epoch_progress import Progress
from tensorquery.loading.epoch_state import EpochState
from tensorquery.loading.iterations import Iterations
from tensorquery.loading.iterator import Refused, ShardIterator
from tensorquery.loading.options import LoaderOptions
from tensorquery.loading.packed import Packing
from tensorquery.loading.plan import DatasetPlan
from tensorquery.loading.refill import check_refilled
from tensorquery.loading.snapshot_pins import agreed
from tensorquery.loading.tensors import TENSOR_OPTIONS, TensorOutput
from tensorquery.loading.tracer import Tracer
from tensorquery.loading.windowed import Windowing
from tensorquery.loading.workers.batch_runs import BatchRuns
from tensorquery.loading.workers.liveness import end_with_trainer, end_with_what_is_lost
from tensorquery.metrics.loader_metrics import Metrics
from tensorquery.sharding.bad_files import Quarantined
from tensorquery.sharding.failed_rows import FailedRow
from tensorquery.sharding.shard_plan import ShardPlan
from tensorquery.sharding.shards import DEFAULT_SPLIT_BYTES, SplitStrategy
from tensorquery.sharding.trace import Trace
from tensorquery.sharding.windows import Windows
from tensorquery.sql.iceberg import SnapshotChange
from tensorquery.sql.mixture import Mixture
from tensorquery.sql.query import Query
from tensorquery.sql.schedule import Schedule
from tensorquery.sql.stages import StagedRows

if TYPE_CHECKING or has_torch():
    from torch.utils.data import IterableDataset
else:
    # Nothing of torch's class is used here; a DataLoader wants it.
    IterableDataset = Iterable

__all__ = ["QueryDataset"]


class QueryDataset(IterableDataset[Any]):
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
            global group (tensor or pipeline parallelism); or, without torch, a `tensorquery.ProcessGroup`.
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
        stage_engine: The URL of a cluster that computes staged parts, and writes them to `stage_dir`:
            ``"ballista://host:port"`` is a Ballista scheduler (docs/staging.md). None: this process computes it.
        stage_timeout: Seconds to wait for another process that builds; None is an hour.
        show_progress: Show bars of tqdm while files are listed and rows staged, counted or verified, and over the rows of each
            epoch that a loader of `create_dataloader` delivers. True: of several ranks on a machine the first one shows them;
            "all": every rank does, below one another. Needs tqdm (``tensorquery[progress]``).
        output_format: "torch", "numpy", "jax", "kjt" (TorchRec), "arrow" (`pyarrow.RecordBatch`) or "dict" (lists).
        transform: Called on each batch, in the worker; its result is yielded.
        transform_threads: So many threads call `transform` on successive batches at once, up to so many and two ahead of
            the training loop; batches come in the same order and with the same content. It pays where `transform`
            releases the GIL, as numpy and torch do. None: the training loop's thread calls it. Not with worker
            processes, which run side by side as they are.
        on_transform_error: "raise": an exception of `transform` ends the epoch. "skip": the rows on which it fails are left out
            and listed in `failed_rows`, and batches are filled up with the rows that follow. See `create_dataloader`.
        max_transform_errors: Rows of a rank (of a worker, where there are worker processes) that may fail in an epoch; one more
            is an error. None is 1,000.
        windows: Samples are windows over series, see `Windows`: where this says rows, it then means windows.
        **tensor_kwargs: ``nulls``, ``stack``, ``pad``, ``categories``, ``decimal`` and ``keyed``; see `to_tensors`.

    Raises:
        ConfigError: An option is malformed; names the value and the allowed ones.
        NotShardableError: The query is not row-local above one scan, and ``stage="never"``; names the operator.
        UnsupportedTypeError: A column has no tensor form; names the column.
    """

    _shows_rows = True
    """Whether a loader shows a bar over the rows of an epoch, where that is wanted."""

    packing: Packing | None = None
    """What was packed, where `create_dataloader` was given ``pack=`` or ``batch_tokens=``."""

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
        on_transform_error: str = "raise",
        max_transform_errors: int | None = None,
        windows: Windows | None = None,
        **tensor_kwargs: Any,
    ) -> None:
        if not isinstance(query, Query | Mixture):
            raise ConfigError(
                f"QueryDataset takes a Query, got {type(query).__name__}; make one with session.sql(…)"
            )
        # `inspect.signature` takes as long as planning a filter.
        allowed = {"query", *(QueryDataset.__init__.__kwdefaults__ or ()), *TENSOR_OPTIONS}
        reject_unknown(tensor_kwargs, allowed, "QueryDataset")
        # Arguments and options share their names.
        self._prepare(query, LoaderOptions.of(locals() | tensor_kwargs))

    @classmethod
    def _of(cls, query: Query | Mixture, options: LoaderOptions) -> QueryDataset:
        """A dataset by options that were checked already."""
        dataset = cls.__new__(cls)
        IterableDataset.__init__(dataset)
        dataset._prepare(query, options)
        return dataset

    def _prepare(self, query: Query | Mixture, options: LoaderOptions) -> None:
        """Agree with the other ranks on the data to read, and plan it."""
        self.topology: Topology = detect(
            options.rank, options.world_size, options.process_group, options.device_mesh
        )
        self._show_progress = options.show_progress
        query = agreed(query, self.topology, options.group)
        deal = options.deal
        if isinstance(query, Mixture):
            deal = replace(deal, mixture=query._weights())
        if deal.refills:
            check_refilled(deal, options.threads)
        channel = channel_of(self.topology, options.group)
        self._plan = DatasetPlan(
            query, deal, options, self.topology, self._output_of(options), channel
        )
        self._state = EpochState(self._plan)
        self._tracer = Tracer(self._state)
        self._iterations = self._iterations_of(options)

    def _iterations_of(self, options: LoaderOptions) -> Iterations:
        """What begins iterations over its shards."""
        return Iterations(self._state, options.transform, options.threads, options.skipping)

    def _output_of(self, options: LoaderOptions) -> TensorOutput:
        """How batches come out."""
        return options.output

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
        """The policy for rows that ranks and batches do not divide."""
        return self._plan.deal.remainder

    @property
    def stages(self) -> list[StagedRows]:
        """The stages that the query reads; empty if it runs split by split without stages, and in a worker."""
        return self._plan.stages

    @property
    def quarantined(self) -> list[Quarantined]:
        """The bad files, row groups, stripes and byte ranges that are left out; with ``on_error="skip"`` verifies.

        Files that a table was registered without (``register_parquet(…, on_error="skip")``) are among them.

        Raises:
            DataError: Every split is bad; a file changed since it was pinned; the query fails on good data.
            StorageError: A file cannot be reached.
        """
        return self._plan.quarantined if self.packing is None else self.packing.rows.quarantined

    @property
    def windowing(self) -> Windowing | None:
        """How many windows there are with ``windows=``, and which rows are in none; None without it."""
        return None if self._plan.windows is None else self._plan.windows.report

    @property
    def failed_rows(self) -> list[FailedRow]:
        """The rows that this rank left out with ``on_transform_error="skip"``, in the epoch that is delivered and the one before.

        Those of received batches, each once, in the order of the epoch's shards. Their files and physical rows are looked up
        when this is asked for: rows are counted, and the splits of the rows are read again.

        Raises:
            ConfigError: Asked for in a worker, or of a copy of the dataset.
            DataError: A file cannot be read.
        """
        return self._tracer.failed_rows()

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration delivers."""
        return self._state.slots.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration, and so its order. Storage is not asked again.

        After `load_state_dict` the next iteration continues the epoch of the state and ignores a value set here. While an epoch
        is iterated over, this is for the one after it, and `state_dict` goes on saying how far that one was received. The
        number of the epoch that is being iterated over changes nothing: to repeat it, set it after its last batch.

        Args:
            epoch: From 0. Persistent workers follow it too.

        Raises:
            ConfigError: It is not a whole number of 0 to 2^62.
        """
        refuse_foreign(self)
        self._state.choose(check_non_negative_int("epoch", epoch, MOST_EPOCHS))

    def state_dict(self) -> dict[str, Any]:
        """Which rows of the epoch were consumed, as plain data.

        In the training process: the batches that this dataset's iterator has handed out. In a DataLoader worker:
        the ones that this worker has yielded. A loader of `create_dataloader` counts what the training loop has
        received: use its ``state_dict``.

        Returns:
            A state for `load_state_dict`, ready for JSON. After an epoch's last batch it begins the next epoch, or the one
            that was set; what is set while an epoch is iterated over does not change the state of that one.
        """
        return self._state.current()

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
        self._state.load(state)

    def shard_plan(self, num_workers: int = 0) -> ShardPlan:
        """How the splits are dealt to all ranks and workers.

        Args:
            num_workers: Worker processes per rank.

        Returns:
            The plan of the current epoch; with ``assignment="dynamic"`` that of the ranks, whose workers share it.

        Raises:
            ConfigError: Called inside a worker, which knows only its own share.
        """
        return self._tracer.shard_plan(num_workers)

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
            epoch: The epoch; None: the epoch of the last batch received, or, before any, the one that is delivered next.

        Returns:
            The trace; its ``ranges`` go into ``exclude=`` of a later run.

        Raises:
            ConfigError: There is no such rank or step, or nothing was received yet; names the bounds.
            DataError: A file cannot be read, or has other rows than were counted.
        """
        return self._tracer.trace(rank, step, epoch)

    def receipt(
        self, name: str | None = None, *, after: Iterable[Mapping[str, Any]] | None = None
    ) -> dict[str, Any]:
        """What this rank has delivered, as plain data to keep with a checkpoint.

        Each call adds a record, chained to the one before by SHA-256: the steps received since then, with plan, snapshots,
        files, seed and topology, from which the rows follow. Iterations that were left early are in it. Batches count as
        for ``loader.state_dict()``: when the training loop has received them.

        Keep the last receipt of each rank; it has all records of its process. `tensorquery.seen` and
        `tensorquery.verify` take the receipts of all ranks.

        Args:
            name: A name of the checkpoint, for what `tensorquery.seen` says; up to 200 letters.
            after: For a run that goes on from a checkpoint: the receipts of all ranks that were saved with it. The chain
                then begins with their last digests. The same in each call.

        Returns:
            The receipt, ready for JSON.

        Raises:
            ConfigError: The order of batches follows from the speed of workers (``assignment="dynamic"``,
                ``in_order=False``), this is a worker's or another copy of the dataset, or it delivers packs.
            CheckpointMismatchError: One of `after` is damaged.
        """
        if self.packing is not None:
            raise ConfigError(
                "receipts name rows of the query, and packs hold rows and pieces of them; keep document_rows of the batches"
            )
        if self._plan.windows is not None:
            raise ConfigError(
                "receipts name rows that are delivered once, and a row is in many windows; keep the batches' columns of by= and "
                "order=, or ask trace() for the rows of a batch"
            )
        state = self._state
        # An epoch may be over with its last batch.
        _ = state.progress
        return state.deliveries.receipt(self._plan, in_order=state.in_order, name=name, after=after)

    def refresh(self) -> list[SnapshotChange]:
        """Move the pins of the query's Iceberg tables to the current snapshots, for the epochs to come.

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
        plan, state = self._plan, self._state
        if self.packing is not None:
            raise ConfigError(
                "packs and batches by tokens are planned once, so that refresh() does not go with them; make a new loader"
            )
        if plan.query is None:
            raise ConfigError(
                "this is a copy of a dataset, which does not refresh; call refresh() of the dataset itself, or make another one"
            )
        if not isinstance(plan.query, Query):
            raise ConfigError(
                "a mixture has no refresh(); call alter(refresh=True), or refresh its queries and mix them again"
            )
        iterator = state.iterator()
        if state.loaded is not None or state.awaited is not None or state.is_under_way():
            raise ConfigError(
                "refresh() belongs between two epochs, and one is under way; finish it, or call alter(refresh=True) of the loader"
            )
        if iterator is not None:
            iterator.close()
        query = Query(plan.query.session, plan.query._core, plan.query._narrowed)
        changes = query.refresh()
        query = agreed(query, self.topology, plan.group)
        if changes or query._pins() != plan.query._pins():
            # Each rank by itself: for some of them nothing may have changed. Where it fails, a later call tries again.
            with plan.kept():
                plan.open(query)
            # Epochs begun or ended before belong to other files.
            state.progress, state.ended = Progress(self.epoch, state.progress.workers), None
            state.changed()
        return changes

    def alter(
        self,
        query: Query | Mixture | None = None,
        *,
        weights: Sequence[float] | Mapping[str, float] | Schedule | None = None,
        add: Any = None,
        drop: str | int | Sequence[str | int] | None = None,
        filters: Any = None,
        refresh: bool = False,
        key: str | Sequence[str] | None = None,
    ) -> Alteration:
        """Request what is delivered from the next step on, in the middle of an epoch. What was delivered does not come again.

        Of the altered result each row that was not delivered in this epoch comes once; the following epochs deliver all of it.
        Rows are told apart by file and row, whatever columns, filters and snapshots they came through; a file counts as the
        same while path, size and time of the last write do. What cannot be told is refused, and then nothing has changed:
        files with delivered rows that were rewritten (compaction, UPDATE), changed queries of which parts run once (``stage=``)
        or that make several rows of one. States say which alteration there was when. A run that goes on from one needs no call,
        but the altered query; weights are taken from the state. All ranks call it at the same step.

        Args:
            query: The altered query or mixture, with the same columns. Of a mixture, a query that is the same, or has the same
                name, is the same source. None: the present one, with the changes below.
            weights: Other weights of the mixture: a list, numbers by name, or a `Schedule`.
            add: Queries to add, as `mix` takes them: pairs with a weight, where the present ones sum to 1; with `weights` the
                queries alone.
            drop: Names, or numbers, of queries to drop.
            filters: A condition that narrows all queries, as for `Query.select`; or conditions by name of the query.
            refresh: Move to the current snapshots and versions of Iceberg and Delta tables.
            key: Columns whose values tell rows of queries that change apart, instead of file and row: after compaction, for
                joins, and for parts that run once. All rows are read, before and after; no key may be null or there twice.

        Returns:
            Rows delivered, left and new, by query. An iteration over this dataset that is under way ends: iterate again for the
            rest. The loader of `create_dataloader` goes on by itself: use its ``alter``.

        Raises:
            ConfigError: Rows cannot be told apart, ranks differ, equal steps are impossible, or an option does not go with it.
            QueryError: A filter is malformed, or columns differ.
            DataError: A file cannot be read.
        """
        request = Request(query, weights, add, drop, filters, refresh, key_columns(key))
        loop = None if self._state.loop is None else self._state.loop()
        if loop is not None and loop.is_open:
            raise ConfigError(
                "a loader delivers this dataset's batches, and its loop would not hear of the change; call alter() of the loader"
            )
        return self._alter(request, self.state_dict())

    def _alter(self, request: Request, current: Mapping[str, Any]) -> Alteration:
        """Alter what is delivered after the state `current`; the next iteration begins with the rest."""
        refuse_foreign(self)
        if self.packing is not None:
            raise ConfigError(
                "packs and batches by tokens are planned once, so that alter() does not go with them; make a new loader"
            )
        state = self._state
        report, begin = alter(state, request, current)
        newest = state.iterator()
        if newest is not None:
            newest.supersede()
        state.loaded, state.slots.epoch = begin, begin["epoch"]
        return report

    @property
    def batch_size(self) -> int:
        """Rows per batch; it is chosen when the dataset is made."""
        return self._plan.deal.batch_size

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
        return sum(rows for _, rows in self._state.sizes(self.rank))

    def __len__(self) -> int:
        """Batches that this rank delivers in an epoch; the same before and after a resume.

        Raises:
            TypeError: With ``remainder="uneven"``, where ranks differ.
        """
        if self._plan.epochs.is_dynamic(self._state.workers):
            raise TypeError(
                'with assignment="dynamic" the number of batches depends on which worker takes which split, and is '
                'not known before; use assignment="static", or dataset.num_rows for the rows of this rank'
            )
        if self._plan.deal.remainder == "uneven":
            raise TypeError(
                'with remainder="uneven" each rank has its own number of batches, which is not known before '
                'it is read; use remainder="even", or dataset.num_rows for the rows of this rank'
            )
        return sum(batches for batches, _ in self._state.sizes(self.rank))

    def metrics(self) -> Metrics:
        """Counts of this rank in the current or last iteration, together and by worker.

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
            * ``bytes_read``, ``requests``: of storage; ``cache_hits``, ``cache_bytes``: reads from the local cache
              instead (see `Session`); of all network requests of the process ``retries`` (those that failed, were throttled
              or broke off, and were sent again unless retries were used up), ``throttled`` among them, and
              ``request_wait_seconds`` that requests waited for their turn;
            * ``quarantined_splits``, ``quarantined_rows`` (as far as metadata says them): bad data that are left out,
              with ``on_error="skip"``; see `quarantined`.

            ``docs/metrics.md`` has more of each, and of ``to_prometheus()``.
        """
        return self._iterations.metrics(self.rank)

    def __iter__(self) -> ShardIterator | BatchRuns | Refused:
        """Iterate over the batches of this process's shard."""
        refuse_foreign(self)
        if self._state.is_outdated:
            return Refused(
                "a state was loaded, or the dataset refreshed, and this worker process, which lives on, does not know of it; "
                "use the loader of create_dataloader, or make a new DataLoader"
            )
        info = worker_info()
        worker, workers = (0, 0) if info is None else (info.id, info.num_workers)
        if workers:
            end_with_trainer()
            end_with_what_is_lost()
        else:
            check_still_alone(self.topology)
            self._iterations.settle()
        return self._sender(worker, workers)

    def _sender(self, worker: int, workers: int) -> ShardIterator | BatchRuns:
        """The batches of a shard, as this process delivers them."""
        return self._iterations.deliver(worker, workers, self.state_dict)

    def _iterate(self, worker: int, workers: int, copies: Copies | None = None) -> ShardIterator:
        """Begin the iteration of a shard in this process; see `Iterations.begin`."""
        return self._iterations.begin(worker, workers, self.state_dict, copies)

    def __getstate__(self) -> dict[str, Any]:
        refuse_foreign(self)
        state = self._state.sent()
        return {
            **self.__dict__,
            "_state": state,
            "_plan": state.plan,
            "_tracer": Tracer(state),
            "_iterations": self._iterations.over(state),
        }

    def __repr__(self) -> str:
        listed = self._plan.quarantine.listed
        left_out = f", quarantined={len(listed)}" if listed else ""
        return (
            f"QueryDataset(rank {self.rank} of {self.world_size}, batch_size={self.batch_size}, "
            f"remainder={self._plan.deal.remainder!r}{left_out})"
        )
