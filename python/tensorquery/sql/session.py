"""Sessions: registered tables, and the queries over them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorquery import _core
from tensorquery._util.logs import follow
from tensorquery._util.options import (
    check_bool,
    check_text,
    expanded_path,
    parse_bytes,
)
from tensorquery.display.html import box, failure
from tensorquery.display.session import session_html
from tensorquery.distributed.broadcast import Channel, channel_of
from tensorquery.distributed.topology import detect
from tensorquery.errors import ConfigError, QueryError, TensorQueryError
from tensorquery.sharding.bad_files import check_on_error
from tensorquery.sql.credentials import CredentialProvider, Credentials
from tensorquery.sql.file_tables import check_name
from tensorquery.sql.iceberg import check_snapshot
from tensorquery.sql.memory_tables import tabular
from tensorquery.sql.query import Query, QuerySource
from tensorquery.sql.registry import columns_of
from tensorquery.sql.storage import (
    plain_options,
)

__all__ = ["Session"]

DEFAULT_CACHE_SIZE = "10GiB"


class Session(QuerySource):
    """Registered tables, over a DataFusion session.

    Files are listed and pinned (path, size, entity tag) when they are registered: a file that changes
    later is an error that names it, never mixed data. Register the table again to pin the new files.

    Args:
        memory_limit: Bytes that joins and sorts may hold: an int or a string such as "2GiB". None sets
            no limit.
        storage_options: Options of object stores, for path literals and for tables that are registered without their own:
            the names of object_store, delta-rs and polars (``aws_access_key_id``, ``aws_endpoint``, in any case) and of fsspec
            (``key``, ``endpoint_url``, ``client_kwargs``). A key that is a prefix of URLs holds a dict of options for what lies
            below it, ``{"s3://bucket-a/": {"key": …}, "s3://bucket-b/": {"anon": True}}``, which are added to the plain ones;
            the longest prefix counts. See ``docs/storage.md``.
        credential_provider: A callable that returns credentials as a dict of such options, with ``expires_at`` (seconds since 1970, or
            a datetime with a time zone). It takes no argument or the URL of the store, and is called again before they end,
            also in worker processes, to which it is pickled.
        process_group: A `torch.distributed` group whose ranks register the same tables, in the same order: one of them
            (rank 0, unless it comes late) lists and reads footers, and the others receive files, pins and schemas.
            Options and credentials are not sent. Without it every rank lists by itself, and loaders compare what
            the ranks found.
        plan_cache: A folder, or a URL below which objects are written: facts about files and splits are
            kept there, by a digest of the pinned files and the options, so that a later run, or another rank, of the
            same files reads no footer. It holds no credentials and no rows. `storage_options` and
            `credential_provider` apply to a URL.
        local_cache: A folder on a local disk where ranges of remote files are kept once they were fetched, so that
            the next epoch, worker, rank or run on this node reads them from there. Any number of processes
            may share it, also those of other sessions. A file that changed is never read from it: entries
            belong to an entity tag. A folder that cannot be written costs one warning and no row. It holds
            the data of the tables in plain, readable for this user alone. None keeps nothing.
        local_cache_size: What the folder may hold, by all processes together: bytes, or a string such as "10GiB".
            The least recently used entries go first. Give all processes the same size.

    Raises:
        ConfigError: `memory_limit`, `local_cache_size`, `plan_cache` or an option is malformed, or `local_cache` is no
            folder.

    Examples:
        >>> import pyarrow as pa
        >>> session = Session()
        >>> session.register_table("points", pa.table({"x": [1, 2, 3]}))
        >>> session.sql("SELECT x * 2 AS y FROM points WHERE x > 1").to_arrow().to_pydict()
        {'y': [4, 6]}
    """

    def __init__(
        self,
        *,
        memory_limit: int | str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        credential_provider: CredentialProvider | None = None,
        process_group: Any | None = None,
        plan_cache: str | os.PathLike[str] | None = None,
        local_cache: str | os.PathLike[str] | None = None,
        local_cache_size: int | str = DEFAULT_CACHE_SIZE,
    ) -> None:
        limit = None if memory_limit is None else parse_bytes(memory_limit, "memory_limit")
        self._storage_options = plain_options(storage_options)
        self._credentials = (
            None if credential_provider is None else Credentials(credential_provider)
        )
        cache_size = parse_bytes(local_cache_size, "local_cache_size")
        cache = None if local_cache is None else (_cache_folder(local_cache), cache_size)
        place = None if plan_cache is None else _cache_place(plan_cache)
        follow()
        self._core = _core.Session(
            limit, json.dumps(self._storage_options), cache, self._credentials, place
        )
        self._channel: Channel | None = None
        if process_group is not None:
            self._channel = channel_of(detect(process_group=process_group), process_group)
        self._warn_of_caches()

    def register_table(self, name: str, data: Any) -> None:
        """Register an Arrow table held in memory.

        Args:
            name: The table's name in SQL; an earlier table of that name is replaced.
            data: Anything with ``__arrow_c_stream__`` or ``__arrow_c_array__``: pyarrow, polars, pandas
                3 and DuckDB objects; a `datasets.Dataset` of Hugging Face; or a `Query`, which runs now. It is read once,
                here.

        Raises:
            ConfigError: `data` is none of these.
            DataError: `data` is a `Query`, and a file cannot be read.
        """
        name = check_name(name)
        if isinstance(data, Query):
            data = data._core.collect()
        else:
            data = tabular(data)
        try:
            self._core.register_arrow(name, data)
        except (ValueError, TypeError) as error:
            if isinstance(error, TensorQueryError):
                raise
            raise ConfigError(f"register_table {_refused(data, error)}") from error

    def sql(self, query: str, *, on_error: str = "raise") -> Query:
        """Make a lazy query.

        Args:
            query: One SELECT statement. Tables are those of this session; a path in single quotes is a
                table too: ``FROM 'data/**/*.parquet'``.
            on_error: "skip" leaves out files of path literals that cannot be read, as in `register_parquet`.

        Returns:
            The query; nothing is read but file listings and footers of path literals.

        Raises:
            QueryError: The SQL does not parse, is not one read-only statement, or names an unknown
                column.
            TableNotFoundError: It names an unknown table or a path without files.
            ConfigError: `query` is no string, or `on_error` is unknown.
        """
        if not isinstance(query, str):
            if hasattr(query, "__arrow_c_stream__"):
                hint = 'register the table first: session.register_table("t", …)'
            else:
                hint = 'for example session.sql("SELECT * FROM t")'
            raise ConfigError(f"a query is a SQL string, got {type(query).__name__}; {hint}")
        check_text("the query", query)
        try:
            found = Query(self, self._query(query, self._channel, check_on_error(on_error)))
        except QueryError as error:
            if len(query.split()) != 1:
                raise
            raise QueryError(
                f"{error}; {query!r} alone is no statement: a table is read by table=… or "
                f"session.table(…), files by path=… or FROM 'path'"
            ) from None
        self._warn_of_caches()
        if on_error == "skip":
            self._warn_of_skipped(found.quarantined)
        return found

    def table(self, name: str) -> Query:
        """All rows and columns of a table.

        Args:
            name: A registered table's exact name.

        Returns:
            A lazy query.

        Raises:
            TableNotFoundError: There is no such table.
        """
        return self.sql(f"SELECT * FROM {_core.quote_identifier(check_name(name))}")

    def incremental(
        self,
        table: str,
        from_snapshot: int,
        to_snapshot: int | None = None,
        *,
        changes: bool = False,
    ) -> Query:
        """The rows that were appended to an Iceberg or Delta table after one snapshot or version, up to another.

        Rows that overwrites, updates, merges that change rows, and compactions wrote are not among them, and deletes are not
        applied.

        Args:
            table: ``catalog.namespace.table`` of a registered catalog, a table registered with `register_iceberg_table` or
                `register_delta`, or the path of an Iceberg table's metadata file or directory.
            from_snapshot: Rows appended after it; an ancestor of `to_snapshot`.
            to_snapshot: Rows appended up to and including it; None: up to the current one.
            changes: Read the change data feed of a Delta table instead: inserted, deleted and updated rows, with the
                columns ``_change_type`` ("insert", "delete", "update_preimage", "update_postimage"), ``_commit_version``
                and ``_commit_timestamp``.

        Returns:
            A lazy query over all columns.

        Raises:
            ConfigError: A snapshot does not exist, has expired, or is no ancestor of the other; or the table kept no changes
                at one of the versions (names it).
            TableNotFoundError: There is no such table.
        """
        check_snapshot("from_snapshot", from_snapshot)
        if to_snapshot is not None:
            check_snapshot("to_snapshot", to_snapshot)
        check_bool("changes", changes)
        kind = "changed" if changes else "appended"
        name = f"{table} {kind} after {from_snapshot}"
        if to_snapshot is not None:
            name += f" up to {to_snapshot}"
        at = {kind: {"from": from_snapshot, "to": to_snapshot}}
        origin = self._origin(table, {})
        self._core.register_iceberg_table(name, json.dumps(origin), json.dumps(at), None)
        query = self.table(name)
        # The query holds the files; the name was only needed to write it.
        self.deregister(name)
        return query

    def __repr__(self) -> str:
        lines = [
            f"  {table.name}: {table.kind}"
            + ("" if table.files is None else f", {table.files} files")
            + ("" if table.rows is None else f", {table.rows:,} rows")
            + (f", {len(table.quarantined)} quarantined" if table.quarantined else "")
            for table in self.tables
        ]
        return "\n".join(["Session:", *lines]) if lines else "Session: no tables"

    def _repr_html_(self) -> str:
        try:
            tables, catalogs = self.tables, self.catalogs
        except Exception as error:
            # A picture that raises would hide its subject.
            return box("Session", failure(error))
        return session_html(tables, catalogs, lambda name: columns_of(self, name))

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError(
            "a Session cannot be pickled; pass the dataset or loader made from it, which carries what "
            "worker processes need"
        )


def _refused(data: Any, error: Exception) -> str:
    """Why `data` is no table, though it speaks Arrow."""
    told = "; ".join(map(str, error.args))
    # pandas calls pyarrow when its rows are asked for, so that this one is imported then.
    arrow = sys.modules.get("pyarrow")
    if arrow is not None and isinstance(error, (arrow.ArrowInvalid, arrow.ArrowTypeError)):
        return (
            f"got {type(data).__name__} with a column whose values have no one type ({told}); cast it, for example "
            f'data["x"] = data["x"].astype("string")'
        )
    return (
        f"needs rows with named columns, got {type(data).__name__} ({told}); give the column a name, for example "
        'pyarrow.table({"x": ...})'
    )


def _cache_place(place: str | os.PathLike[str]) -> str:
    """A folder or URL as a directory, which need not exist yet."""
    if not isinstance(place, (str, os.PathLike)) or not os.fspath(place):
        raise ConfigError(
            f'plan_cache={place!r} must be a folder or a URL, for example "s3://bucket/plans/"'
        )
    text = expanded_path(place)
    if "://" not in text:
        # Made here, so that a place that cannot be written is known before anything is read.
        try:
            Path(text).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"plan_cache={text!r} cannot be made: {error}") from error
    return text.rstrip("/") + "/"


def _cache_folder(path: Any) -> str:
    """The folder's absolute path: a worker process may stand somewhere else."""
    if not isinstance(path, (str, os.PathLike)) or os.fspath(path) in ("", b""):
        raise ConfigError(
            f"local_cache={path!r} must be a folder on a local disk, for example "
            f'local_cache="/tmp/ranges"'
        )
    folder = expanded_path(path)
    return folder if "://" in folder else str(Path(folder).absolute())
