"""`create_dataloader`: from a query, path or table to a PyTorch DataLoader."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tensorquery._util.optional import needing_torch
from tensorquery._util.options import (
    MOST_PREFETCHED,
    check_callable,
    check_non_negative_int,
    check_positive_int,
    check_shards,
    reject_unknown,
)
from tensorquery.distributed.broadcast import channel_of
from tensorquery.distributed.topology import default_workers, detect, has_group
from tensorquery.errors import ConfigError
from tensorquery.loading.accelerate import check_accelerator, place_of
from tensorquery.loading.dataset import QueryDataset
from tensorquery.loading.jax_arrays import checked_sharding
from tensorquery.loading.make_loader import TORCH_KEYWORDS, check_torch, make_loader
from tensorquery.loading.options import LoaderOptions
from tensorquery.loading.packed import Packing, batching_of, packed_query
from tensorquery.loading.transform_threads import refuse_threads
from tensorquery.metrics.progress import check_progress, running, shows
from tensorquery.sharding.bad_files import check_on_error
from tensorquery.sharding.packing import Pack
from tensorquery.sharding.shards import DEFAULT_SPLIT_BYTES, SplitStrategy
from tensorquery.sharding.windows import Windows
from tensorquery.sql.credentials import CredentialProvider
from tensorquery.sql.file_tables import FileSource, PathOrPaths, table_format_of
from tensorquery.sql.iceberg import is_iceberg_name, register_from_config
from tensorquery.sql.mixture import Mixture
from tensorquery.sql.query import Query
from tensorquery.sql.session import Session

if TYPE_CHECKING:
    import torch

    from tensorquery.loading.dataloader import QueryDataLoader

__all__ = ["create_dataloader"]


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
    columns: Iterable[str] | None = None,
    filters: Any | None = None,
    batch_size: int = 1024,
    pack: Pack | None = None,
    batch_tokens: int | None = None,
    bucket_by: str | None = None,
    windows: Windows | None = None,
    num_workers: int | None = 0,
    shuffle: bool | str = False,
    shuffle_seed: int = 42,
    shuffle_buffer_size: int | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    process_group: Any | None = None,
    device_mesh: Any | None = None,
    accelerator: Any | None = None,
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
    nulls: Any = "error",
    stack: Mapping[str, Sequence[str]] | None = None,
    pad: Mapping[str, Any] | None = None,
    categories: Mapping[str, Sequence[Any]] | None = None,
    decimal: str = "float64",
    keyed: Mapping[str, Sequence[str] | Mapping[str, str]] | None = None,
    transform: Callable[[Any], Any] | None = None,
    transform_threads: int | None = None,
    on_transform_error: str = "raise",
    max_transform_errors: int | None = None,
    collate_fn: Callable[[Any], Any] | None = None,
    device: str | int | torch.device | None = None,
    sharding: Any | None = None,
    **dataloader_kwargs: Any,
) -> tuple[QueryDataLoader, QueryDataset]:
    """Make a DataLoader over this rank's share of a query.

    Exactly one of `query`, `path` and `table` says what to read.

    Args:
        query: SQL over the tables of `session` and path literals (``FROM 'data/*.parquet'``), or a
            `Query`, or a mixture of queries (see `mix`).
        path: A file, a directory (read recursively), a glob, or a list of these. ``~`` in front of this or another path or folder
            is the user's.
        format: The format of `path`: "parquet", "csv", "tsv", "json", "ndjson", "arrow", "orc", "avro" or "delta"; None goes by
            the file names, and reads a directory that has a ``_delta_log`` as a Delta table. "delta" also goes with
            `table`, which is then the directory of a Delta table.
        partitioning: For `path`: None reads ``key=value`` directories as columns where there are any,
            "hive" demands them, False turns them off.
        table: A table of `session`; or an Iceberg table: ``namespace.table`` of the catalog that `catalog_config` says (with
            the catalog's name in front or not), ``catalog.namespace.table`` of one that `session` knows, or the path of
            a metadata file.
        catalog_config: The Iceberg catalog of `table`: pyiceberg's properties (see `Session.register_iceberg`).
        snapshot_id: The Iceberg snapshot, or with ``format="delta"`` the version, to read; None pins the current one. A
            resumed run reads the one of its state.
        scan_filter: SQL or a pyiceberg expression by which data files of Iceberg and Delta are left out; without it `filters` decide.
            It does not filter rows.
        session: Where tables are registered; None makes a new one.
        storage_options: Options and credentials of the object store, for `path` and path literals (see `Session`).
        credential_provider: Called for credentials of `path` and path literals, also in worker processes (see `Session`).
        filesystem: A file system of fsspec whose paths `path` are (see `Session.register_parquet`).
        plan_cache: A folder or URL that keeps facts about files and splits for later runs and other
            ranks; see `Session`.
        local_cache: A folder where fetched ranges of remote files are kept, shared by the processes of a node; see
            `Session`, which takes it where there is one.
        local_cache_size: The size limit of the folder; None is "10GiB".
        columns: Output columns to keep, in this order (those of a set by name); None keeps all.
        filters: A SQL predicate, a list in pyarrow's convention (``[("x", ">", 1), …]``, or a list of
            such lists for OR), or a ``pyarrow.compute.Expression``; all three keep the same rows. SQL may call functions
            of the session and read its tables.
        batch_size: Rows per batch; only the last of a rank is short. Of worker processes the last of each may be, where shares
            are not counted: with ``remainder="uneven"``, and on one rank with a filter or over text (CSV, JSON).
        pack: Packs the sequences of list columns into rows of a fixed length: ``tq.Pack(columns=["tokens"], length=4096)``. A batch
            then has `batch_size` packs. Rows are written to local disk first; see ``docs/packing.md``.
        batch_tokens: The most tokens of a batch, which then has as many rows as that allows, and at most `batch_size`. A column
            of lists that `pad` fills counts with its padding. Rows are written to local disk first.
        bucket_by: With `batch_tokens`: a list column, or a column of lengths, that says each row's tokens, and by which rows
            of about equal length come together. None: the only list column, and rows keep their order.
        windows: Samples are windows over series: ``tq.Windows(by="sensor", order="t", size=96, stride=24, horizon=24)``. A batch
            then has `batch_size` windows; see ``docs/windows.md``.
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
            global one; or, without torch, a `tensorquery.ProcessGroup`.
        device_mesh: A one-dimensional `DeviceMesh` of the data-parallel ranks.
        accelerator: The `Accelerator` of Hugging Face Accelerate: its processes are the ranks, unless one of the options
            above says otherwise, and the loader comes prepared (``accelerator.prepare`` need not be called on it).
        split_bytes: Stored bytes of the projected columns that a split grows towards, as an int or a
            string such as "64MiB".
        split_rows: Rows that a split grows towards; takes precedence.
        split_strategy: "lpt" (default), "round_robin", or an object with
            ``generate(splits, num_shards, epoch)``.
        remainder: "even": all ranks take the same number of steps, and each row is delivered once (S =
            ceil(ceil(N/W)/B) steps for N rows, W ranks and batches of B; one rank whose workers' shares are not counted
            takes a step for each short batch); "drop": only full batches; "pad": last
            batches are filled with rows of the query's beginning; "uneven": each rank delivers the rows of its
            splits. The first three count the rows of a filtered query over several ranks, once.
        partitions: A fixed number of partitions, of which every step takes equal rows, so that the rows of a step
            over all ranks do not depend on the number of ranks; see `QueryDataset`.
        assignment: "static": splits are dealt to workers before the epoch. "dynamic": the workers of a rank take the
            next split when they finish one, for skewed work. Each row is still delivered once, before and after a
            resume, but order is not promised: batches come as they are ready (``in_order=False``, for which torch 2.6 is needed), and each worker
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
            All splits are executed once before the first epoch, to find the bad ones.
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
        show_progress: Show bars of tqdm: while files are listed, queries planned, and rows staged, counted or verified, and over the
            rows of each epoch, with rows per second, the part of the time that the training loop waits, and where rows are
            known without counting them the time that is left. True: of several ranks on a machine the first one shows them;
            "all": every rank does, below one another. Needs tqdm (``tensorquery[progress]``).
        output_format: "torch", "numpy", "jax", "kjt" (TorchRec), "arrow" or "dict". All but "torch" and "kjt" work where PyTorch is
            not installed.
        nulls: "error", "nan", "mask", a fill value, or a dict of these by column.
        stack: ``{"x": ["f0", "f1"]}`` packs columns into one contiguous (N, F) tensor.
        pad: Padding of variable lists by column: a value, or (value, length).
        categories: Stable codes for strings by column: the list of all values.
        decimal: "float64", or "int64" for unscaled integers.
        keyed: ``{"sparse": ["item", "tags"]}`` packs ids into one keyed jagged output; see `to_tensors`.
        transform: Called on each batch after conversion, in the worker.
        transform_threads: Threads that call `transform` on successive batches at once, with ``num_workers=0``; see `QueryDataset`.
        on_transform_error: "raise": an exception of `transform` ends the epoch. "skip": the rows on which `transform` fails are left
            out, batches are filled up with the rows that follow, and all ranks take the same steps; ``dataset.failed_rows`` has
            the file, row and error of each. `transform` must take any number of rows. Needs ``remainder="even"``.
        max_transform_errors: Rows of a rank (of a worker, where there are worker processes) that may fail in an epoch; one more
            is an error. None is 1,000.
        collate_fn: Called on each finished batch (after `transform`), in the worker.
        device: Where batches go, for example "cuda": each is copied there, from pinned memory and on a stream of its own,
            while the training step of the one before it runs: all tensors in mappings, lists and tuples. A state counts what
            the loop has received. None and "cpu" leave them where they are.
        sharding: With ``output_format="jax"``: a ``jax.sharding.NamedSharding`` that divides the rows of a step over the devices
            of a mesh, also of several processes; None is JAX's default device. See ``docs/without-torch.md``.
        **dataloader_kwargs: Keywords of torch's DataLoader: ``pin_memory``, ``persistent_workers``,
            ``prefetch_factor`` (blocks of small batches that a worker sends ahead, up to 2 MiB each; or single
            batches where there is a `transform`, a `collate_fn` or a ``timeout``), ``multiprocessing_context`` and so on.

    Returns:
        The loader (``state_dict`` and ``load_state_dict`` for checkpoints, ``statistics``), and its dataset (for
        ``set_epoch`` and ``metrics``). Where PyTorch is not installed, the loader is a `QueryLoader`, with the same methods.

    Raises:
        ConfigError: An option is unknown or malformed; names it, the allowed values, and the nearest name.
        TableNotFoundError: A table is unknown, or a path holds no file.
        QueryError: The SQL or a filter is malformed, or names an unknown column.
        NotShardableError: The query is not row-local above one scan, and ``stage="never"``; names the operator and a fix.
        UnsupportedTypeError: A column has no tensor form; names the column and its type.
        DataError: Two files disagree about a column; names both files.
        ImportError: An option needs a package that is not installed, such as PyTorch; names both and the command.
    """
    # Arguments and options share their names.
    given = dict(locals())
    check_progress(show_progress)
    # `inspect.signature` takes as long as planning a filter.
    own = {"query", *(create_dataloader.__kwdefaults__ or ())}
    reject_unknown(dataloader_kwargs, own | {*TORCH_KEYWORDS}, "create_dataloader")
    check_torch(output_format, num_workers, device, accelerator, dataloader_kwargs)
    target = None
    if device is not None:
        target = needing_torch("tensorquery.loading.devices", "checked_device")(
            device, output_format
        )
    placement = checked_sharding(sharding, output_format)
    if collate_fn is not None:
        check_callable("collate_fn", collate_fn)
    if num_workers is not None:
        num_workers = check_non_negative_int("num_workers", num_workers)
    if dataloader_kwargs.get("prefetch_factor") is not None:
        check_positive_int("prefetch_factor", dataloader_kwargs["prefetch_factor"], MOST_PREFETCHED)
    iceberg = {
        "catalog_config": catalog_config,
        "snapshot_id": snapshot_id,
        "scan_filter": scan_filter,
    }
    check_on_error(on_error)
    if accelerator is not None:
        check_accelerator(accelerator)
    if all(each is None for each in (rank, world_size, process_group, device_mesh)):
        if accelerator is not None:
            rank, world_size = place_of(accelerator)
        elif placement is not None and placement.place is not None:
            rank, world_size = placement.place
    options = LoaderOptions.of(given | {"rank": rank, "world_size": world_size})
    batching = batching_of(pack, batch_tokens, bucket_by)
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
    place = table if path is None and format == "delta" else path
    session = _session_of(query, place, session, access, caches)
    with (
        _listing(show_progress, rank, world_size, process_group, device_mesh),
        _once_per_job(session, rank, world_size, process_group, device_mesh),
    ):
        chosen = _choose(
            query,
            path,
            format,
            partitioning,
            table,
            session,
            access,
            iceberg,
            on_error,
            columns,
            filters,
        )
    packing: Packing | None = None
    if batching is not None:
        chosen, options, packing = packed_query(chosen, options, batching)
    dataset = QueryDataset._of(chosen, options)
    dataset.packing = packing
    if placement is not None:
        # A transform may fill lists to one length.
        jagged = dataset._plan.jagged if options.transform is None else []
        packs = packing is not None
        placement.check(dataset.topology, options.batch_size, options.remainder, jagged, packs)
    if num_workers is None:
        num_workers = default_workers(dataset.topology)
    check_shards(dataset.world_size, num_workers)
    options.deal.check_workers(num_workers)
    if num_workers:
        refuse_threads(options.threads, num_workers)
    loader = make_loader(dataset, collate_fn, num_workers, target, placement, dataloader_kwargs)
    if accelerator is not None:
        accelerator.prepare_data_loader(loader)
    return loader, dataset


def _listing(
    show_progress: bool | str,
    rank: int | None,
    world_size: int | None,
    process_group: Any | None,
    device_mesh: Any | None,
) -> contextlib.AbstractContextManager[None]:
    """A bar while files are listed, where one is wanted."""
    if not show_progress:
        return contextlib.nullcontext()
    topology = detect(rank, world_size, process_group, device_mesh)
    return running("listing files", shows(show_progress, topology))


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
    if session is not None or isinstance(query, Query | Mixture):
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
    """Let one rank of the loader's process group list for all what a session lists meanwhile."""
    is_alone = process_group is None and not has_group()
    if session is None or session._channel is not None or is_alone:
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
    columns: Iterable[str] | None,
    filters: Any | None,
) -> Query | Mixture:
    """The query that one of `query`, `path` and `table` names, narrowed."""
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
    if format == "delta" and query is None:
        assert session is not None
        if partitioning is not None:
            raise ConfigError(
                f"partitioning={partitioning!r} goes with files; a Delta table knows its own"
            )
        place = path if path is not None else table
        return _delta(place, session, access, iceberg, columns, filters)
    if path is None and format is not None:
        raise ConfigError(
            f"format={format!r} goes with path=; tables and path literals know theirs"
        )
    if path is None and partitioning is not None:
        raise ConfigError(f"partitioning={partitioning!r} goes with path=")
    if table is not None and not isinstance(table, str):
        raise ConfigError(
            f'table= is the name of a table, such as "events" or "catalog.namespace.table", got {type(table).__name__}; '
            "rows in memory go through session.register_table, a Query is passed as query=, files as path="
        )
    options = [name for name, value in iceberg.items() if value is not None]
    if options and table is None:
        raise ConfigError(
            f"{' and '.join(options)} {'goes' if len(options) == 1 else 'go'} with table=, an Iceberg table; in SQL write "
            "FROM lake.ns.t FOR VERSION AS OF 123"
            + ('; with path=, a Delta table, write format="delta", too' if path is not None else "")
        )
    if isinstance(query, Query | Mixture):
        return query.select(columns, filters)
    assert session is not None
    if query is not None:
        return session.sql(query, on_error=on_error).select(columns, filters)
    if table is not None:
        is_registered = any(known.name == table for known in session.tables)
        if options or (not is_registered and is_iceberg_name(session, table)):
            name = register_from_config(session, table, **iceberg)
            try:
                return session.table(name).select(columns, filters)
            finally:
                session.deregister(name)
        return session.table(table).select(columns, filters)
    assert path is not None
    # The name is part of the query, and so of its identity: the same in every process that reads this path.
    wanted = json.dumps([path, format, partitioning], default=str)
    name = f"path_{hashlib.sha256(wanted.encode()).hexdigest()[:12]}"
    source = FileSource(path, partitioning=partitioning, on_error=on_error, **access)
    session._register(name, source, table_format_of(format))
    try:
        return session.table(name)._select(columns, filters, on_error)
    finally:
        # The query holds the files; the name was only needed to write it.
        session.deregister(name)


def _delta(
    place: Any,
    session: Session,
    access: Mapping[str, Any],
    iceberg: Mapping[str, Any],
    columns: Iterable[str] | None,
    filters: Any | None,
) -> Query:
    """The query over the Delta table at a place, narrowed."""
    if iceberg["catalog_config"] is not None:
        raise ConfigError('catalog_config= goes with an Iceberg table, not with format="delta"')
    if not isinstance(place, (str, os.PathLike)):
        raise ConfigError(
            f'{place!r} must be the directory of one Delta table, with format="delta"'
        )
    name = f"delta_{hashlib.sha256(os.fsencode(place)).hexdigest()[:12]}"
    session.register_delta(
        name,
        place,
        version=iceberg["snapshot_id"],
        scan_filter=iceberg["scan_filter"],
        **access,
    )
    try:
        return session.table(name).select(columns, filters)
    finally:
        session.deregister(name)
