"""`create_dataloader`: from a query, path or table to a PyTorch DataLoader."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch.utils.data import DataLoader

from tensorquery.dataset import QueryDataset
from tensorquery.distributed import default_workers
from tensorquery.errors import ConfigError
from tensorquery.options import check_callable, check_non_negative_int, reject_unknown
from tensorquery.query import Query
from tensorquery.session import PathOrPaths, Session, table_format_of
from tensorquery.shards import DEFAULT_SPLIT_BYTES, SplitStrategy

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
    "query", "path", "format", "partitioning", "table", "session", "storage_options", "columns",
    "filters", "batch_size", "num_workers", "shuffle", "shuffle_seed", "shuffle_buffer_size", "rank",
    "world_size", "process_group", "device_mesh", "split_bytes", "split_rows", "split_strategy",
    "output_format", "nulls", "stack", "pad", "categories", "decimal", "transform", "collate_fn",
)  # fmt: skip

_path_numbers = itertools.count()


class QueryDataLoader(DataLoader[Any]):
    """The DataLoader that `create_dataloader` makes.

    With ``num_workers=0`` it hands out the dataset's batches directly; decoding goes on in Rust threads.
    An exhausted loader that is iterated again starts the next epoch; after a ``break``, ``iter()`` starts
    the same epoch anew.
    """

    dataset: QueryDataset
    _newest: object | None = None

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Iterate over one epoch."""
        if self.num_workers == 0 and not self.pin_memory:
            return self._in_process()
        return self._through_torch(self.dataset.epoch)

    def _in_process(self) -> Iterator[Any]:
        batches = iter(self.dataset)
        collate = self.collate_fn
        return batches if collate is _identity else map(collate, batches)

    def _through_torch(self, epoch: int) -> Iterator[Any]:
        self.dataset._pin_epoch(epoch)
        mine = self._newest = object()
        batches = super().__iter__()
        try:
            yield from batches
        finally:
            # After an error torch's iterator is part of a reference cycle (its traceback): its workers would
            # live on until the garbage collector runs, which then waits five seconds for each.
            if not self.persistent_workers:
                getattr(batches, "_shutdown_workers", _nothing)()
            # An older iterator may be closed while a newer one still starts its workers.
            if self._newest is mine:
                self.dataset._pin_epoch(None)
        if self.num_workers > 0:
            self.dataset._finished(epoch)

    def __len__(self) -> int:
        raise TypeError(
            "the number of batches is not known before reading; use query.count() for the rows of the "
            "whole query"
        )


def create_dataloader(
    query: str | Query | None = None,
    *,
    path: PathOrPaths | None = None,
    format: str | None = None,
    partitioning: str | bool | None = None,
    table: str | None = None,
    session: Session | None = None,
    storage_options: Mapping[str, Any] | None = None,
    columns: Sequence[str] | None = None,
    filters: Any | None = None,
    batch_size: int = 1024,
    num_workers: int | None = 0,
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
    nulls: Any = "error",
    stack: Mapping[str, Sequence[str]] | None = None,
    pad: Mapping[str, Any] | None = None,
    categories: Mapping[str, Sequence[Any]] | None = None,
    decimal: str = "float64",
    transform: Callable[[Any], Any] | None = None,
    collate_fn: Callable[[Any], Any] | None = None,
    **dataloader_kwargs: Any,
) -> tuple[QueryDataLoader, QueryDataset]:
    """Make a DataLoader over this rank's share of a query.

    Exactly one of `query`, `path` and `table` says what to read.

    Args:
        query: SQL over the tables of `session` and path literals (``FROM 'data/*.parquet'``), or a
            `Query`.
        path: A file, a directory (read recursively), a glob, or a list of these.
        format: The format of `path`: "parquet", "csv", "tsv", "json", "ndjson" or "arrow"; None goes by
            the file names.
        partitioning: For `path`: None reads ``key=value`` directories as columns where there are any,
            "hive" demands them, False turns them off.
        table: A table of `session`.
        session: Where tables are registered; None makes a new one.
        storage_options: Options and credentials of the object store, for `path` and path literals.
        columns: Output columns to keep, in this order; None keeps all.
        filters: A SQL predicate, a list in pyarrow's convention (``[("x", ">", 1), …]``, or a list of
            such lists for OR), or a ``pyarrow.compute.Expression``; all three keep the same rows.
        batch_size: Rows per batch; only the last of a shard is short.
        num_workers: 0 decodes in Rust threads of this process; N starts N worker processes, for heavy
            Python transforms; None is max(1, cpus - 1).
        shuffle: Permute the order of the splits by seed and epoch.
        shuffle_seed: The seed of all shuffling.
        shuffle_buffer_size: Rows mixed across splits, with or without `shuffle`.
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
        output_format: "torch", "numpy", "arrow" or "dict".
        nulls: "error", "nan", "mask", a fill value, or a dict of these by column.
        stack: ``{"x": ["f0", "f1"]}`` packs columns into one contiguous (N, F) tensor.
        pad: Padding of variable lists by column: a value, or (value, length).
        categories: Stable codes for strings by column: the list of all values.
        decimal: "float64", or "int64" for unscaled integers.
        transform: Called on each batch after conversion, in the worker.
        collate_fn: Called on each finished batch (after `transform`), in the worker.
        **dataloader_kwargs: Keywords of torch's DataLoader: ``pin_memory``, ``persistent_workers``,
            ``prefetch_factor``, ``multiprocessing_context`` and so on.

    Returns:
        The loader, and its dataset (for ``set_epoch`` and ``metrics``).

    Raises:
        ConfigError: An option is unknown or malformed; names it, what is allowed, and the nearest name.
        TableNotFoundError: A table is unknown, or a path holds no file.
        QueryError: The SQL or a filter is malformed, or names an unknown column.
        NotShardableError: The query is not row-local above one scan; names the operator and a fix.
        UnsupportedTypeError: A column has no tensor form; names the column and its type.
        DataError: Two files disagree about a column; names both files.
    """
    reject_unknown(dataloader_kwargs, {*_OWN_KEYWORDS, *TORCH_KEYWORDS}, "create_dataloader")
    if collate_fn is not None:
        check_callable("collate_fn", collate_fn)
    if num_workers is not None:
        num_workers = check_non_negative_int("num_workers", num_workers)
    chosen = _choose(query, path, format, partitioning, table, session, storage_options)
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
        output_format=output_format,
        transform=transform,
        nulls=nulls,
        stack=stack,
        pad=pad,
        categories=categories,
        decimal=decimal,
    )
    if num_workers is None:
        num_workers = default_workers(dataset.topology)
    try:
        loader = QueryDataLoader(
            dataset,
            batch_size=None,
            num_workers=num_workers,
            collate_fn=_identity if collate_fn is None else collate_fn,
            **dataloader_kwargs,
        )
    except (ValueError, TypeError) as error:
        raise ConfigError(f"torch's DataLoader refuses these options: {error}") from error
    return loader, dataset


def _choose(
    query: str | Query | None,
    path: PathOrPaths | None,
    format: str | None,
    partitioning: str | bool | None,
    table: str | None,
    session: Session | None,
    storage_options: Mapping[str, Any] | None,
) -> Query:
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
    if session is not None and not isinstance(session, Session):
        raise ConfigError(f"session={session!r} must be a tensorquery.Session")
    if isinstance(query, Query):
        if session is not None and session is not query.session:
            raise ConfigError(
                "the query belongs to another session than session=; pass one of them"
            )
        if storage_options is not None:
            raise ConfigError("storage_options go with the session of a Query, or with path=")
        return query
    if session is None:
        session = Session(storage_options=storage_options if path is None else None)
    elif storage_options is not None and path is None:
        raise ConfigError("storage_options go with the tables of the session, or with path=")
    if query is not None:
        return session.sql(query)
    if table is not None:
        return session.table(table)
    assert path is not None
    name = f"path_{next(_path_numbers)}"
    session._register(
        name, path, table_format_of(format), None, partitioning, storage_options, infer_rows=None
    )
    chosen = session.table(name)
    # The query holds the files; the name was only needed to write it.
    session.deregister(name)
    return chosen


def _identity(batch: Any) -> Any:
    return batch


def _nothing() -> None:
    pass
