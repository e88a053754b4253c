"""`create_dataloader`: from a query, path or table to a PyTorch DataLoader."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader

from tensorquery._accelerate import AcceleratePrepared, begin
from tensorquery.credentials import CredentialProvider
from tensorquery.dataset import QueryDataset
from tensorquery.devices import checked_device, copies_to, one_ahead
from tensorquery.distributed import default_workers, detect, has_group
from tensorquery.errors import ConfigError
from tensorquery.iceberg import is_iceberg_name, register_from_config
from tensorquery.iterator import Progress, Tagged
from tensorquery.mixture import Mixture
from tensorquery.options import check_callable, check_non_negative_int, reject_unknown
from tensorquery.parcels import Packer, Parcel, in_turns
from tensorquery.quarantine import check_on_error
from tensorquery.query import Query
from tensorquery.segments import Inbox
from tensorquery.session import PathOrPaths, Session, table_format_of
from tensorquery.shards import DEFAULT_SPLIT_BYTES, SplitStrategy
from tensorquery.sharing import channel_of
from tensorquery.threads import refuse_threads

__all__ = ["QueryDataLoader", "create_dataloader"]

TORCH_KEYWORDS = (
    "pin_memory",
    "pin_memory_device",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "in_order",
)
"""Keywords of torch's DataLoader that `create_dataloader` passes on."""

_OWN_KEYWORDS = (
    "query", "path", "format", "partitioning", "table", "catalog_config", "snapshot_id", "scan_filter", "session", "storage_options", "credential_provider", "filesystem", "plan_cache", "local_cache", "local_cache_size", "columns",
    "filters", "batch_size", "num_workers", "shuffle", "shuffle_seed", "shuffle_buffer_size", "rank",
    "world_size", "process_group", "device_mesh", "split_bytes", "split_rows", "split_strategy",
    "remainder", "partitions", "assignment", "sample_weight", "sample_replacement", "num_samples", "exclude", "on_error", "stage", "stage_dir", "stage_max_bytes", "stage_from", "stage_engine", "stage_timeout", "show_progress", "output_format", "nulls", "stack", "pad", "categories", "decimal", "transform", "transform_threads", "collate_fn", "device",
)  # fmt: skip


class QueryDataLoader(AcceleratePrepared, DataLoader[Any]):
    """The DataLoader that `create_dataloader` makes.

    With ``num_workers=0`` it hands out the dataset's batches directly; decoding goes on in Rust threads.
    An exhausted loader that is iterated again starts the next epoch; after a ``break``, ``iter()`` starts
    the same epoch anew, unless a state was loaded. A newer ``iter()`` closes the one before.
    """

    dataset: QueryDataset
    _loaded: dict[str, Any] | None = None
    _newest: object | None = None
    _inbox: Inbox | None = None

    def __init__(
        self,
        dataset: QueryDataset,
        collate_fn: Callable[[Any], Any] | None,
        device: torch.device | None = None,
        **kwargs: Any,
    ):
        self._collate = collate_fn
        self._copies = None if device is None else copies_to(device)
        super().__init__(dataset, batch_size=None, collate_fn=Packer(collate_fn), **kwargs)
        dataset._workers = self.num_workers
        dataset._in_order = getattr(self, "in_order", True)
        self._sent = dataset._sent = dataset._sending(collate_fn is not None, self.timeout > 0)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Iterate over one epoch, or the rest of the one that a loaded state belongs to."""
        state, self._loaded = self._loaded, None
        if state is None:
            state, self.dataset._loaded = self.dataset._loaded, None
        mine = self._newest = object()
        if self.num_workers == 0:
            self.dataset._loaded = state
            batches = self.dataset._iterate(0, 0)
            # Within the iterator, so that a batch on which one of them fails does not count as received.
            pin = self._pinner()
            if pin is not None and self._sent.raw:
                batches.pin_blocks()
            else:
                batches.then(self._collate, pin)
            batches.onto(self._copies)
            return self._deliver(((batch, batches.last) for batch in batches), mine)
        # Not part of the generator, which starts with its first batch: the state is right from now on.
        epoch = self.dataset.epoch if state is None else state["epoch"]
        progress = self.dataset._begin(self.num_workers, epoch, state)
        return self._deliver(self._from_workers(progress, state, mine), mine)

    def _deliver(self, batches: Iterator[tuple[Any, bool]], mine: object) -> Iterator[Any]:
        """Batches with what Accelerate wants to know of each, and whether it is the epoch's last."""
        turn = begin(self)
        try:
            for batch, last in batches:
                yield batch if turn is None else turn.deliver(batch, last)
                if self._newest is not mine:
                    raise ConfigError(
                        "this iterator was closed, because a newer one was started; keep using the newer one"
                    )
        finally:
            if turn is not None:
                turn.end()

    def _pinner(self) -> Callable[[Any], Any] | None:
        # Older versions of torch know of CUDA alone.
        if not (self.pin_memory and getattr(torch, "accelerator", torch.cuda).is_available()):
            return None
        return torch.utils.data._utils.pin_memory.pin_memory

    def _from_workers(
        self, progress: Progress, state: dict[str, Any] | None, mine: object
    ) -> Iterator[tuple[Any, bool]]:
        dataset = self.dataset
        # A rank's number of batches is fixed where rows are counted; else only the next one shows the end.
        steps = dataset._steps(progress)
        dataset._pin_epoch(progress.epoch, resumed=state is not None, turn=progress.turn)
        if progress.ledger is not None:
            dataset._take_anew()
        dataset._loaded = state
        inbox = self._addressed()
        batches = super().__iter__()
        dataset._loaded = None
        try:
            waiting: Tagged | None = None
            reports: list[Tagged] = []
            taken = 0
            for tagged in self._unpacked(batches, progress.turn):
                if self._newest is not mine:
                    break
                if tagged.is_report:
                    reports.append(tagged)
                    continue
                if steps is not None:
                    yield self._received(tagged, progress, progress.step + 1 == steps)
                elif waiting is not None:
                    yield self._received(waiting, progress, False)
                # What came after that batch counts from the next one on.
                taken += self._heard(reports, progress)
                waiting = tagged
            if progress.ledger is not None and self._newest is mine:
                progress.ledger.check(taken + sum(len(json.loads(each.cursor)) for each in reports))
            if steps is None and waiting is not None and self._newest is mine:
                yield self._received(waiting, progress, True)
        finally:
            # After an error torch's iterator is part of a reference cycle (its traceback): its workers would
            # live on until the garbage collector runs, which then waits five seconds for each.
            if not self.persistent_workers:
                getattr(batches, "_shutdown_workers", _nothing)()
                inbox.close()
            # An older iterator may be closed while a newer one still starts its workers.
            if self._newest is mine:
                dataset._pin_epoch(None)
        if self._newest is mine:
            dataset._finished(progress)

    def _addressed(self) -> Inbox:
        """Where the workers that start now, or live on, send their parcels; to be held as long as they are received."""
        if self._inbox is None or self.__dict__.get("_iterator") is None:
            self._inbox = Inbox(self.num_workers)
            assert isinstance(self.collate_fn, Packer)
            self.collate_fn.letterhead = self._inbox.letterhead()
        return self._inbox

    def _unpacked(self, parcels: Iterator[Parcel], turn: int) -> Iterator[Tagged]:
        """Batches from the parcels of the workers, as the training loop sees them."""
        build = self.dataset._here()[1].build if self._sent.raw else None
        if self.dataset._in_order:
            batches = in_turns(parcels, turn, self.num_workers, build)
        else:
            batches = (tagged for parcel in parcels for tagged in parcel.opened(build))
        return batches if self._copies is None else one_ahead(batches, self._copied)

    def _copied(self, tagged: Tagged) -> Callable[[], Tagged]:
        if tagged.is_report or self._copies is None:
            return lambda: tagged
        arrived = self._copies(tagged.batch)
        return lambda: tagged._replace(batch=arrived())

    def _received(self, tagged: Tagged, progress: Progress, last: bool) -> tuple[Any, bool]:
        """What the training loop gets now, and so has consumed."""
        progress.step += 1
        if progress.ledger is not None:
            progress.ledger.received(tagged.worker, tagged.cursor)
        else:
            progress.turn = (tagged.worker + 1) % self.num_workers
        if progress.ledger is None and progress.cursors is not None:
            progress.cursors[tagged.worker] = tagged.cursor
        if last:
            self.dataset._finished(progress)
        return tagged.batch, last

    def _heard(self, reports: list[Tagged], progress: Progress) -> int:
        """Workers have ended, which took so many pieces."""
        pieces = 0
        for report in reports:
            taken = json.loads(report.cursor)
            pieces += len(taken)
            if progress.ledger is not None:
                progress.ledger.ended(report.worker, taken)
        reports.clear()
        return pieces

    def __len__(self) -> int:
        """Batches of this rank in an epoch; rows are counted where nobody knows them yet.

        Raises:
            TypeError: With ``remainder="uneven"``, where ranks differ, and with ``assignment="dynamic"``.
        """
        return len(self.dataset)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration, as `QueryDataset.set_epoch` does.

        Args:
            epoch: From 0.

        Raises:
            ConfigError: It is not a whole number of at least 0.
        """
        self.dataset.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Which batches the training loop has received, as plain data; never those that were read ahead.

        It takes microseconds: call it at every step if you like. With equal steps the states of all ranks are
        the same. After an epoch's last batch the state begins the next epoch.

        Returns:
            A state for `load_state_dict`, ready for JSON.
        """
        if self._loaded is not None:
            return dict(self._loaded)
        return self.dataset.state_dict()

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
        self._loaded = self.dataset._awaited = self.dataset._checked(state)
        self.dataset._epoch[0] = self._loaded["epoch"]
        # An iterator that is under way must not go on, and workers that live on do not know of the state.
        self._newest = None
        iterator = self.__dict__.get("_iterator")
        if iterator is not None:
            getattr(iterator, "_shutdown_workers", _nothing)()
            self._iterator = None


def create_dataloader(
    query: str | Query | Mixture | None = None,
    *,
    path: PathOrPaths | None = None,
    format: str | None = None,
    partitioning: str | bool | None = None,
    table: str | None = None,
    catalog_config: Mapping[str, Any] | None = None,
    snapshot_id: int | None = None,
    scan_filter: Any | None = None,
    session: Session | None = None,
    storage_options: Mapping[str, Any] | None = None,
    credential_provider: CredentialProvider | None = None,
    filesystem: Any | None = None,
    plan_cache: str | os.PathLike[str] | None = None,
    local_cache: str | os.PathLike[str] | None = None,
    local_cache_size: int | str | None = None,
    columns: Sequence[str] | None = None,
    filters: Any | None = None,
    batch_size: int = 1024,
    num_workers: int | None = 0,
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
    show_progress: bool = False,
    output_format: str = "torch",
    nulls: Any = "error",
    stack: Mapping[str, Sequence[str]] | None = None,
    pad: Mapping[str, Any] | None = None,
    categories: Mapping[str, Sequence[Any]] | None = None,
    decimal: str = "float64",
    transform: Callable[[Any], Any] | None = None,
    transform_threads: int | None = None,
    collate_fn: Callable[[Any], Any] | None = None,
    device: str | int | torch.device | None = None,
    **dataloader_kwargs: Any,
) -> tuple[QueryDataLoader, QueryDataset]:
    """Make a DataLoader over this rank's share of a query.

    Exactly one of `query`, `path` and `table` says what to read.

    Args:
        query: SQL over the tables of `session` and path literals (``FROM 'data/*.parquet'``), or a
            `Query`, or a mixture of queries (see `mix`).
        path: A file, a directory (read recursively), a glob, or a list of these.
        format: The format of `path`: "parquet", "csv", "tsv", "json", "ndjson", "arrow", "orc" or "avro"; None goes by
            the file names.
        partitioning: For `path`: None reads ``key=value`` directories as columns where there are any,
            "hive" demands them, False turns them off.
        table: A table of `session`; or an Iceberg table: ``namespace.table`` of the catalog that `catalog_config` says (with
            the catalog's name in front or not), ``catalog.namespace.table`` of one that `session` knows, or the path of
            a metadata file.
        catalog_config: The Iceberg catalog of `table`: pyiceberg's properties (see `Session.register_iceberg`).
        snapshot_id: The Iceberg snapshot to read; None pins the current one. A resumed run reads the one of its state.
        scan_filter: SQL or a pyiceberg expression by which Iceberg data files are left out; without it `filters` decide.
            It does not filter rows.
        session: Where tables are registered; None makes a new one.
        storage_options: Options and credentials of the object store, for `path` and path literals (see `Session`).
        credential_provider: Called for credentials of `path` and path literals, also in worker processes (see `Session`).
        filesystem: A file system of fsspec whose paths `path` are (see `Session.register_parquet`).
        plan_cache: A folder or URL where what was found out about files and splits is kept for later runs and other
            ranks; see `Session`.
        local_cache: A folder where fetched ranges of remote files are kept, shared by the processes of a node; see
            `Session`, which takes it where there is one.
        local_cache_size: What the folder may hold; None is "10GiB".
        columns: Output columns to keep, in this order; None keeps all.
        filters: A SQL predicate, a list in pyarrow's convention (``[("x", ">", 1), …]``, or a list of
            such lists for OR), or a ``pyarrow.compute.Expression``; all three keep the same rows.
        batch_size: Rows per batch; only the last of a rank is short.
        num_workers: 0 decodes in Rust threads of this process; N starts N worker processes, for heavy
            Python transforms; None is max(1, cpus - 1).
        shuffle: Permute the splits by seed and epoch, read several of them in turn, and mix their rows in a
            window. "global": a uniform permutation of all rows, which are written to local disk first.
        shuffle_seed: The seed of all shuffling.
        shuffle_buffer_size: Rows of the window, with or without `shuffle`. None: with `shuffle` 65,536 (up to
            262,144 where there are few splits, fewer where 64 MiB hold fewer), else no window.
        rank: This rank; with `world_size`, or both None to detect them.
        world_size: Number of ranks.
        process_group: The `torch.distributed` group of the data-parallel ranks, where that is not the
            global one.
        device_mesh: A one-dimensional `DeviceMesh` of the data-parallel ranks.
        split_bytes: Stored bytes of the projected columns that a split grows towards, as an int or a
            string such as "64MiB".
        split_rows: Rows that a split grows towards; takes precedence.
        split_strategy: "lpt" (default), "round_robin", or an object with
            ``generate(splits, num_shards, epoch)``.
        remainder: "even": all ranks take the same number of steps, and each row is delivered once (S =
            ceil(ceil(N/W)/B) steps for N rows, W ranks and batches of B); "drop": only full batches; "pad": last
            batches are filled with rows of the query's beginning; "uneven": each rank delivers the rows of its
            splits. The first three count the rows of a filtered query over several ranks, once.
        partitions: A fixed number of partitions, of which every step takes equal rows, so that the rows of a step
            over all ranks do not depend on the number of ranks; see `QueryDataset`.
        assignment: "static": splits are dealt to workers before the epoch. "dynamic": the workers of a rank take the
            next split when they finish one, for skewed work. Each row is still delivered once, before and after a
            resume, but order is not promised: batches come as they are ready (``in_order=False``), and each worker
            ends with a short one. What a worker has in its shuffle window no other can take, so the default window
            is smaller, and a large `shuffle_buffer_size` leaves less to balance. With several ranks it needs ``remainder="uneven"``; with ``num_workers=0`` there
            is nobody to share with, and it is the same as "static".
        sample_weight: An output column of weights, by which the rows of an epoch are drawn, over all ranks together; rows
            are written to local disk first. See `QueryDataset`.
        sample_replacement: Whether a row may be drawn again; False draws each row once at most.
        num_samples: Rows of an epoch, of all ranks together; None: as many as the query has.
        exclude: Rows to leave out: ranges of ``dataset.trace``, or (split, first row, one past the last).
        on_error: "raise": data that cannot be read are an error. "skip": bad files of `path` and path literals, and bad
            row groups, stripes and byte ranges of any table are left out: see ``dataset.quarantined`` and `QueryDataset`.
            All splits are executed once before the first epoch, to know what is bad.
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
        show_progress: Show a line on stderr while rows are staged, counted or verified, also where that is no terminal.
        output_format: "torch", "numpy", "arrow" or "dict".
        nulls: "error", "nan", "mask", a fill value, or a dict of these by column.
        stack: ``{"x": ["f0", "f1"]}`` packs columns into one contiguous (N, F) tensor.
        pad: Padding of variable lists by column: a value, or (value, length).
        categories: Stable codes for strings by column: the list of all values.
        decimal: "float64", or "int64" for unscaled integers.
        transform: Called on each batch after conversion, in the worker.
        transform_threads: Threads that call `transform` on successive batches at once, with ``num_workers=0``; see `QueryDataset`.
        collate_fn: Called on each finished batch (after `transform`), in the worker.
        device: Where batches go, for example "cuda": each is copied there, from pinned memory and on a stream of its own,
            while the training step of the one before it runs. A state counts what the loop has received. None and
            "cpu" leave them where they are.
        **dataloader_kwargs: Keywords of torch's DataLoader: ``pin_memory``, ``persistent_workers``,
            ``prefetch_factor`` (blocks of small batches that a worker sends ahead, up to 1 MiB each; or single
            batches where there is a `transform`, a `collate_fn` or a ``timeout``), ``multiprocessing_context`` and so on.

    Returns:
        The loader (``state_dict`` and ``load_state_dict`` for checkpoints), and its dataset (for ``set_epoch`` and
        ``metrics``).

    Raises:
        ConfigError: An option is unknown or malformed; names it, what is allowed, and the nearest name.
        TableNotFoundError: A table is unknown, or a path holds no file.
        QueryError: The SQL or a filter is malformed, or names an unknown column.
        NotShardableError: The query is not row-local above one scan, and ``stage="never"``; names the operator and a fix.
        UnsupportedTypeError: A column has no tensor form; names the column and its type.
        DataError: Two files disagree about a column; names both files.
    """
    target = checked_device(device, output_format)
    reject_unknown(dataloader_kwargs, {*_OWN_KEYWORDS, *TORCH_KEYWORDS}, "create_dataloader")
    if collate_fn is not None:
        check_callable("collate_fn", collate_fn)
    if num_workers is not None:
        num_workers = check_non_negative_int("num_workers", num_workers)
    iceberg = {
        "catalog_config": catalog_config,
        "snapshot_id": snapshot_id,
        "scan_filter": scan_filter,
    }
    check_on_error(on_error)
    access = {
        "storage_options": storage_options,
        "credential_provider": credential_provider,
        "filesystem": filesystem,
    }
    caches = {
        "plan_cache": plan_cache,
        "local_cache": local_cache,
        "local_cache_size": local_cache_size,
    }
    session = _session_of(query, path, session, access, caches)
    with _once_per_job(session, rank, world_size, process_group, device_mesh):
        chosen = _choose(
            query, path, format, partitioning, table, session, access, iceberg, on_error
        )
    dataset = QueryDataset(
        chosen.select(columns, filters),
        batch_size=batch_size,
        shuffle=shuffle,
        shuffle_seed=shuffle_seed,
        shuffle_buffer_size=shuffle_buffer_size,
        rank=rank,
        world_size=world_size,
        process_group=process_group,
        device_mesh=device_mesh,
        split_bytes=split_bytes,
        split_rows=split_rows,
        split_strategy=split_strategy,
        remainder=remainder,
        partitions=partitions,
        assignment=assignment,
        sample_weight=sample_weight,
        sample_replacement=sample_replacement,
        num_samples=num_samples,
        exclude=exclude,
        on_error=on_error,
        stage=stage,
        stage_dir=stage_dir,
        stage_max_bytes=stage_max_bytes,
        stage_from=stage_from,
        stage_engine=stage_engine,
        stage_timeout=stage_timeout,
        show_progress=show_progress,
        output_format=output_format,
        transform=transform,
        transform_threads=transform_threads,
        nulls=nulls,
        stack=stack,
        pad=pad,
        categories=categories,
        decimal=decimal,
    )
    if num_workers is None:
        num_workers = default_workers(dataset.topology)
    dataset._deal.check_workers(num_workers)
    if num_workers:
        refuse_threads(dataset._transform_threads, num_workers)
    is_dynamic = dataset._deal.assignment == "dynamic" and num_workers > 0
    if is_dynamic and dataloader_kwargs.setdefault("in_order", False):
        raise ConfigError(
            'in_order=True makes every worker wait for the slowest one, which assignment="dynamic" is there to '
            'avoid; leave in_order out, or use assignment="static"'
        )
    if target is not None and target.type == "cuda":
        # Only a copy from pinned memory goes on beside the training step.
        dataloader_kwargs.setdefault("pin_memory", True)
    try:
        loader = QueryDataLoader(
            dataset, collate_fn, target, num_workers=num_workers, **dataloader_kwargs
        )
    except (ValueError, TypeError) as error:
        raise ConfigError(f"torch's DataLoader refuses these options: {error}") from error
    return loader, dataset


def _session_of(
    query: str | Query | Mixture | None,
    path: PathOrPaths | None,
    session: Session | None,
    access: Mapping[str, Any],
    caches: Mapping[str, Any],
) -> Session | None:
    """The session that is given, or one of this loader's own; None where a query has its own."""
    if session is not None and not isinstance(session, Session):
        raise ConfigError(f"session={session!r} must be a tensorquery.Session")
    caches = {name: value for name, value in caches.items() if value is not None}
    if access["filesystem"] is not None and path is None:
        raise ConfigError("filesystem goes with path=, or with a table of the session")
    given = " and ".join(name for name, value in access.items() if value is not None)
    if isinstance(query, Query | Mixture):
        if session is not None and session is not query.session:
            raise ConfigError(
                "the query belongs to another session than session=; pass one of them"
            )
        if given:
            raise ConfigError(f"{given} go with the session of a Query, or with path=")
        session = query.session
    if session is not None:
        if caches:
            raise ConfigError(
                f"{' and '.join(caches)} {'goes' if len(caches) == 1 else 'go'} with the session: write "
                f"tq.Session({', '.join(f'{name}={value!r}' for name, value in caches.items())})"
            )
        if given and path is None:
            raise ConfigError(f"{given} go with the tables of the session, or with path=")
        return None if isinstance(query, Query | Mixture) else session
    if "local_cache_size" in caches and "local_cache" not in caches:
        raise ConfigError(
            f"local_cache_size={caches['local_cache_size']!r} goes with local_cache=, a folder"
        )
    if path is not None and "plan_cache" not in caches:
        return Session(**caches)
    # Of a path, the table gets the options of its store; the plan cache needs them all the same.
    own = {name: value for name, value in access.items() if name != "filesystem"}
    return Session(**own, **caches)


@contextlib.contextmanager
def _once_per_job(
    session: Session | None,
    rank: int | None,
    world_size: int | None,
    process_group: Any | None,
    device_mesh: Any | None,
) -> Iterator[None]:
    """What a session lists meanwhile, one rank of the loader's process group lists for all."""
    if session is None or session._channel is not None or not has_group():
        yield
        return
    if process_group is None and device_mesh is not None:
        group = device_mesh.get_group()
    else:
        group = process_group
    session._channel = channel_of(detect(rank, world_size, process_group, device_mesh), group)
    try:
        yield
    finally:
        session._channel = None


def _choose(
    query: str | Query | Mixture | None,
    path: PathOrPaths | None,
    format: str | None,
    partitioning: str | bool | None,
    table: str | None,
    session: Session | None,
    access: Mapping[str, Any],
    iceberg: Mapping[str, Any],
    on_error: str,
) -> Query | Mixture:
    """The query that one of `query`, `path` and `table` names."""
    given = [
        name
        for name, value in (("query", query), ("path", path), ("table", table))
        if value is not None
    ]
    if len(given) != 1:
        raise ConfigError(
            f"exactly one of query, path and table says what to read, but {' and '.join(given) or 'none'} "
            f"{'were' if len(given) > 1 else 'was'} given"
        )
    if path is None and format is not None:
        raise ConfigError(
            f"format={format!r} goes with path=; tables and path literals know theirs"
        )
    if path is None and partitioning is not None:
        raise ConfigError(f"partitioning={partitioning!r} goes with path=")
    options = [name for name, value in iceberg.items() if value is not None]
    if options and table is None:
        raise ConfigError(
            f"{' and '.join(options)} {'goes' if len(options) == 1 else 'go'} with table=, an Iceberg table; in SQL write "
            "FROM lake.ns.t FOR VERSION AS OF 123"
        )
    if isinstance(query, Query | Mixture):
        return query
    assert session is not None
    if query is not None:
        return session.sql(query, on_error=on_error)
    if table is not None:
        is_registered = any(known.name == table for known in session.tables)
        if options or (not is_registered and is_iceberg_name(session, table)):
            name = register_from_config(session, table, **iceberg)
            chosen = session.table(name)
            session.deregister(name)
            return chosen
        return session.table(table)
    assert path is not None
    # The name is part of the query, and so of its identity: the same in every process that reads this path.
    wanted = json.dumps([path, format, partitioning], default=str)
    name = f"path_{hashlib.sha256(wanted.encode()).hexdigest()[:12]}"
    session._register(
        name,
        path,
        table_format_of(format),
        None,
        partitioning,
        access["storage_options"],
        infer_rows=None,
        credential_provider=access["credential_provider"],
        filesystem=access["filesystem"],
        on_error=on_error,
    )
    chosen = session.table(name)
    # The query holds the files; the name was only needed to write it.
    session.deregister(name)
    return chosen


def _nothing() -> None:
    pass
