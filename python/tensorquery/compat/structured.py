"""`StructuredDataset`: files, as torch-dataloader-utils reads them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tensorquery._util.options import expanded_path
from tensorquery.compat.base import CompatDataset, check_group, check_output
from tensorquery.compat.discovery import (
    MissingFilesError,
    as_it_is,
    files_of,
    for_stores,
    open_path,
)
from tensorquery.compat.splits import DataFileInfo, SplitStrategy
from tensorquery.errors import ConfigError, TableNotFoundError
from tensorquery.loading.create import _once_per_job
from tensorquery.loading.dataloader import QueryDataLoader
from tensorquery.sql.file_tables import FileSource, PathOrPaths, table_format_of
from tensorquery.sql.filters.filter_forms import column_list
from tensorquery.sql.query import Query
from tensorquery.sql.session import Session

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

__all__ = ["StructuredDataset"]

# JSON files hold an object per line, whichever of the two names they go by.
_FORMATS = {"parquet": "parquet", "orc": "orc", "csv": "csv", "json": "ndjson", "jsonl": "ndjson"}


class StructuredDataset(CompatDataset):
    """One rank's batches of Parquet, ORC, CSV or JSON files.

    `create_dataloader` makes one with its loader. By itself it goes into ``DataLoader(dataset, batch_size=None,
    num_workers=N)``, whose metrics come out of `get_metrics`, but whose state nobody knows.

    Args:
        files: The files, as `discover_files` lists them; or give `path`.
        format: "parquet", "orc", "csv", "json" or "jsonl" (JSON has an object per line).
        batch_size: Rows per batch; only the last of a rank is short.
        columns: Columns to keep; None keeps all. Those of ``partitioning="hive"`` come with them.
        filters: A `pyarrow.compute.Expression`: the rows to keep; files and row groups that have none are not read.
        shuffle: Permute the parts of files in each epoch.
        shuffle_seed: The seed of all shuffling.
        split_bytes: Stored bytes that a part grows towards, as an int or a string such as "64MiB"; None is 128 MiB.
        split_rows: Rows that a part grows towards; takes precedence.
        split_strategy: Deals files to workers: an object with a three- or five-argument ``generate`` (see
            `SplitStrategy`). None: parts of files, by weight.
        num_workers: How many workers are planned; the number in the DataLoader counts.
        output_format: "torch", "numpy", "arrow" or "dict".
        storage_options: Options and credentials of the object store, with the names of fsspec or object_store.
        collate_fn: Required for "arrow" and "dict"; the DataLoader calls it.
        partitioning: "hive" reads ``key=value`` directories as columns; None does not.
        num_ranks: Number of ranks.
        rank: This rank.
        show_progress: Show a bar of tqdm per worker.
        progress_interval_sec: Seconds between two updates of a bar.
        shuffle_buffer_size: Rows per worker that are mixed; None or 0 mixes none.
        path: A file, a directory or a glob, instead of `files`.

    Raises:
        ConfigError: An option is malformed (also a `ValueError`); names the value and the allowed ones.
        TypeError: `filters` is no expression of pyarrow.
        MissingFilesError: There is no such file (also a `FileNotFoundError`).
        DataError: A file is damaged, or two disagree about a column.
        ImportError: Bars are wanted, and tqdm is not installed.
    """

    def __init__(
        self,
        files: Sequence[DataFileInfo] | None = None,
        format: str | None = None,
        batch_size: int = 1024,
        columns: Sequence[str] | None = None,
        filters: pc.Expression | None = None,
        shuffle: bool = False,
        shuffle_seed: int = 42,
        split_bytes: int | str | None = None,
        split_rows: int | None = None,
        split_strategy: SplitStrategy | Any | None = None,
        num_workers: int = 1,
        output_format: str = "torch",
        storage_options: Mapping[str, Any] | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        partitioning: str | None = None,
        num_ranks: int = 1,
        rank: int = 0,
        show_progress: bool = False,
        progress_interval_sec: float = 120.0,
        shuffle_buffer_size: int | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        if format not in _FORMATS:
            raise ConfigError(
                f"format={format!r} must be one of {', '.join(map(repr, _FORMATS))}; tensorquery.create_dataloader reads Arrow "
                "and Avro files, too"
            )
        if partitioning not in (None, "hive"):
            raise ConfigError(
                f'partitioning={partitioning!r} must be None or "hive" (directories called key=value)'
            )
        check_output(output_format, filters, collate_fn, show_progress)
        check_group(num_ranks, rank)
        if (files is None) == (path is None):
            raise ConfigError(
                "give either files (a list of DataFileInfo) or path, and not both: "
                'StructuredDataset(path="…", format="parquet")'
            )
        is_hive = partitioning == "hive"
        if files is not None and not files:
            raise MissingFilesError("files=[] names no file; give at least one")
        session = Session()
        where: str | list[str]
        if files is None:
            assert path is not None
            where = expanded_path(path)
        else:
            where = [as_it_is(file.path) for file in files]
        storage_options = for_stores(storage_options, where)
        with _once_per_job(session, rank, num_ranks, None, None):
            table = _open(session, where, format, is_hive, storage_options)
        found = files_of(table)
        # Given files are listed in their order, under paths of another spelling.
        given = found if files is None else list(files)
        paths = [file.path for file in found]
        if is_hive and columns is not None:
            names = (column_list(columns) if columns else None) or []
            columns = [*names, *(name for name in _keys(table) if name not in names)]
        super().__init__(
            table.select(columns, filters),
            lambda: (given, {file.path: path for file, path in zip(given, paths, strict=True)}),
            batch_size=batch_size,
            shuffle=shuffle,
            shuffle_seed=shuffle_seed,
            split_bytes=split_bytes,
            split_rows=split_rows,
            split_strategy=split_strategy,
            num_workers=num_workers,
            output_format=output_format,
            num_ranks=num_ranks,
            rank=rank,
            show_progress=show_progress,
            progress_interval_sec=progress_interval_sec,
            shuffle_buffer_size=shuffle_buffer_size,
        )

    @classmethod
    def create_dataloader(
        cls,
        path: str | os.PathLike[str],
        format: str,
        batch_size: int = 1024,
        columns: Sequence[str] | None = None,
        filters: pc.Expression | None = None,
        shuffle: bool = False,
        shuffle_seed: int = 42,
        split_bytes: int | str | None = None,
        split_rows: int | None = None,
        split_strategy: SplitStrategy | Any | None = None,
        num_workers: int | None = None,
        output_format: str = "torch",
        storage_options: Mapping[str, Any] | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        partitioning: str | None = None,
        num_ranks: int = 1,
        rank: int = 0,
        show_progress: bool = False,
        progress_interval_sec: float = 120.0,
        shuffle_buffer_size: int | None = None,
    ) -> tuple[QueryDataLoader, StructuredDataset]:
        """Make a DataLoader over files.

        Args:
            path: A file, a directory or a glob, on disk or in an object store. Of a directory its own files; with
                ``partitioning="hive"`` also the files of the directories below.
            format: "parquet", "orc", "csv", "json" or "jsonl" (JSON has an object per line).
            batch_size: Rows per batch; only the last of a rank is short.
            columns: Columns to keep; None keeps all. Those of ``partitioning="hive"`` come with them.
            filters: A `pyarrow.compute.Expression`: the rows to keep; files and row groups that have none are not read.
            shuffle: Permute the parts of files in each epoch.
            shuffle_seed: The seed of all shuffling.
            split_bytes: Stored bytes that a part grows towards, as an int or a string such as "64MiB"; None is 128 MiB.
            split_rows: Rows that a part grows towards; takes precedence.
            split_strategy: Deals files to workers: an object with a three- or five-argument ``generate`` (see
                `SplitStrategy`). None: parts of files, by weight.
            num_workers: 0 decodes in Rust threads of this process; N starts N worker processes; None is
                max(1, cpus - 1).
            output_format: "torch", "numpy", "arrow" or "dict".
            storage_options: Options and credentials of the object store, with the names of fsspec or object_store.
            collate_fn: Called on each batch, in the worker; required for "arrow" and "dict".
            partitioning: "hive" reads ``key=value`` directories as columns; None does not.
            num_ranks: Number of ranks.
            rank: This rank.
            show_progress: Show a bar of tqdm per worker.
            progress_interval_sec: Seconds between two updates of a bar.
            shuffle_buffer_size: Rows per worker that are mixed; None or 0 mixes none.

        Returns:
            The loader, and its dataset for `set_epoch`, `get_metrics`, `state_dict` and `load_state_dict`.

        Raises:
            ConfigError: An option is malformed (also a `ValueError`); names the value and the allowed ones.
            TypeError: `filters` is no expression of pyarrow.
            MissingFilesError: There is no such path, or no file in it (also a `FileNotFoundError`).
            DataError: A file is damaged, or two disagree about a column.
            ImportError: Bars are wanted, and tqdm is not installed.
        """
        return cls._load(
            num_workers,
            collate_fn,
            path=path,
            format=format,
            batch_size=batch_size,
            columns=columns,
            filters=filters,
            shuffle=shuffle,
            shuffle_seed=shuffle_seed,
            split_bytes=split_bytes,
            split_rows=split_rows,
            split_strategy=split_strategy,
            output_format=output_format,
            storage_options=storage_options,
            partitioning=partitioning,
            num_ranks=num_ranks,
            rank=rank,
            show_progress=show_progress,
            progress_interval_sec=progress_interval_sec,
            shuffle_buffer_size=shuffle_buffer_size,
        )


def _open(
    session: Session,
    where: str | list[str],
    format: str,
    is_hive: bool,
    storage_options: Mapping[str, Any] | None,
) -> Query:
    """The table of these files."""
    infer_rows = None if format in ("parquet", "orc") else 1000

    def register(path: PathOrPaths, schema: pa.Schema | None = None) -> Query:
        source = FileSource(path, schema, None if is_hive else False, storage_options)
        session._register("files", source, table_format_of(_FORMATS[format]), infer_rows=infer_rows)
        return session.table("files")

    if isinstance(where, str):
        table = open_path(register, where, recursive=is_hive)
    else:
        try:
            table = register(where)
        except TableNotFoundError as error:
            raise MissingFilesError(str(error)) from error
    if not is_hive or format not in ("parquet", "orc"):
        return table
    # Directory values are always text there, whatever they look like.
    keys = _keys(table)
    if all(table.schema.field(key).type == "string" for key in keys):
        return table
    return register(where, _with_texts(table.schema, keys))


def _with_texts(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """A schema in which some columns are text."""
    import pyarrow as pa

    fields = [field.with_type(pa.string()) if field.name in names else field for field in schema]
    return pa.schema(fields)


def _keys(table: Query) -> list[str]:
    """The columns of a table that are in its paths."""
    first, *_ = files_of(table)
    *folders, _ = first.path.split("/")
    found = {name.partition("=")[0] for name in folders if "=" in name}
    return [name for name in table.column_names if name in found]
