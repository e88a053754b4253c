"""Sessions: registered tables, and the queries over them."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tensorquery import _core
from tensorquery.credentials import CredentialProvider, Credentials
from tensorquery.display import session_html
from tensorquery.distributed import detect
from tensorquery.errors import ConfigError, QueryError, TensorQueryError
from tensorquery.files import FileTables, check_name
from tensorquery.filters import advised, narrowing
from tensorquery.functions import Function, FunctionInfo
from tensorquery.iceberg import IcebergTables
from tensorquery.logs import follow
from tensorquery.options import (
    check_text,
    expanded_path,
    parse_bytes,
)
from tensorquery.quality import stack_level_outside
from tensorquery.quarantine import Quarantined, check_on_error, of_files, warn_of
from tensorquery.query import Query
from tensorquery.sharing import Channel, channel_of
from tensorquery.storage import (
    plain_options,
)
from tensorquery.tabular import tabular

__all__ = ["Session", "TableInfo"]

DEFAULT_CACHE_SIZE = "10GiB"


class TableInfo(NamedTuple):
    """A registered table."""

    name: str
    """The name in SQL."""
    kind: str
    """``parquet``, ``csv``, ``json``, ``arrow``, ``orc``, ``iceberg``, ``memory`` or ``view``."""
    files: int | None
    """Number of files, for tables over files."""
    bytes: int | None
    """Bytes stored (files) or held (memory)."""
    rows: int | None
    """Exact rows where known without reading."""
    quarantined: tuple[Quarantined, ...] = ()
    """Files that it was registered without (``on_error="skip"``)."""


class Session(FileTables, IcebergTables):
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
        plan_cache: A folder, or a URL below which objects are written: what was found out about files and splits is
            kept there, by a digest of the pinned files and the options, so that a later run, or another rank, of the
            same files reads no footer. It holds no credentials and no rows. `storage_options` and
            `credential_provider` apply to a URL.
        local_cache: A folder on a local disk where ranges of remote files are kept once they were fetched, so that
            the next epoch, worker, rank or run on this node reads them from there. Any number of processes
            may share it, also those of other sessions. A file that changed is never read from it: entries
            belong to an entity tag. A folder that cannot be written costs one warning and no row. It holds
            the data of the tables in plain, readable for this user alone. None keeps nothing.
        local_cache_size: What the folder may hold, by all processes together: bytes, or a string such as "10GiB".
            What was used longest ago goes first. Give all processes the same size.

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

    def register_view(self, name: str, sql: str) -> None:
        """Register a query under a name.

        Args:
            name: The view's name in SQL; an earlier table of that name is replaced.
            sql: One SELECT statement over tables of this session.

        Raises:
            QueryError: `sql` is not one valid SELECT statement.
            TableNotFoundError: It names an unknown table.
            ConfigError: `sql` holds what is not UTF-8.
        """
        name, core = check_name(name), self._core
        check_text("the query", sql)

        def register() -> None:
            core.register_view(name, sql)

        if self._channel is None or not core.path_literals(sql):
            register()
        else:
            self._channel.once(
                ["files of a view", name, sql],
                register,
                lambda _: dict(core.view_memos(name)),
                lambda got: core.register_view(
                    name, sql, [(path, got[path]) for path in got.names]
                ),
            )
        self._warn_of_caches()

    def register_udf(
        self,
        name: str,
        fn: Callable[..., Any],
        input_types: Sequence[Any],
        return_type: Any,
        volatility: str = "immutable",
    ) -> None:
        """Register a Python function for SQL: ``SELECT name(x) FROM t``.

        `fn` is called for a batch of rows at a time, with an array for each argument (a ``pyarrow.Array`` where pyarrow is
        installed, else an object with ``__arrow_c_array__``) and returns an array of as many values in the rows' order:
        anything with ``__arrow_c_array__`` or ``__arrow_c_stream__``, or a one-dimensional numpy array. Arrays may hold
        nulls; a constant argument is an array, too, of the same value in each row. How many rows a batch has, on
        which thread and in which order batches come is not defined: `fn` may run on several threads, in worker
        processes (to which it is pickled, by cloudpickle where it is not importable), and on rows that
        other parts of a query drop. See ``docs/functions.md``.

        Args:
            name: The name in SQL, in lower case or quoted there. A function of yours of that name is replaced for queries to
                come; those made before, and views, keep theirs.
            fn: The function, or another callable.
            input_types: A type for each argument: a pyarrow type (anything with ``__arrow_c_schema__``) or a name ("int64",
                "float32", "utf8", "list<float32>", "timestamp[us]"). Arguments are cast to them, where that loses
                nothing or an overflow is an error.
            return_type: The exact type that `fn` returns.
            volatility: "immutable": equal arguments give equal values. "volatile": they need not, as with ``random()``; a
                loader stages the query, so that `fn` is called once. "stable": the same within a
                query, and maybe another for the next one; it is staged, too, anew for each query.

        Raises:
            ConfigError: A type or `volatility` is unknown, `fn` cannot be called, or `name` is a built-in function.

        A query that calls it raises `DataError` where `fn` fails (its own exception is the ``__cause__``, with
        its traceback) or returns another number or type of values, and `QueryError` where arguments do not fit.

        Examples:
            >>> import pyarrow as pa, pyarrow.compute as pc
            >>> session = Session()
            >>> session.register_table("points", pa.table({"x": [1, 2, 3]}))
            >>> session.register_udf("twice", lambda x: pc.multiply(x, 2), ["int64"], "int64")
            >>> session.sql("SELECT twice(x) AS y FROM points").to_arrow().to_pydict()
            {'y': [2, 4, 6]}
        """
        self._core.register_function(Function(name, fn, input_types, return_type, volatility))

    def deregister_udf(self, name: str) -> None:
        """Remove a function; queries and views made before keep it.

        Args:
            name: The function's name.

        Raises:
            ConfigError: There is no such function; names the nearest one.
        """
        self._core.deregister_function(name)

    @property
    def functions(self) -> list[FunctionInfo]:
        """The registered Python functions, by name."""
        return [
            FunctionInfo(name, tuple(inputs), output, volatility)
            for name, inputs, output, volatility in self._core.functions()
        ]

    def deregister(self, name: str) -> None:
        """Remove a table.

        Args:
            name: The table's name.

        Raises:
            TableNotFoundError: There is no such table.
        """
        self._core.deregister(name)

    @property
    def tables(self) -> list[TableInfo]:
        """The registered tables, by name."""
        return [
            TableInfo(*row[:5], tuple(of_files(row[5])) if row[5] else ())
            for row in self._core.tables()
        ]

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
            told = {file.path for table in self.tables for file in table.quarantined}
            warn_of([file for file in found.quarantined if file.path not in told], "the query")
        return found

    def _query(self, sql: str, channel: Channel | None, skip_bad: bool) -> _core.Query:
        """A query whose path literals the first rank of a channel lists for all."""
        core = self._core
        if channel is None or not core.path_literals(sql):
            return core.query(sql, skip_bad)
        return channel.once(
            ["files of a query", sql, skip_bad],
            lambda: core.query(sql, skip_bad),
            lambda found: dict(found.path_memos()),
            lambda got: core.query(sql, skip_bad, [(path, got[path]) for path in got.names]),
        )

    def _narrow(
        self, query: _core.Query, names: Sequence[str] | None, predicate: str | None
    ) -> _core.Query:
        """`query`, narrowed; path literals of the predicate are listed as those of a query are."""
        core, channel = self._core, self._channel
        if (
            channel is None
            or predicate is None
            or not core.path_literals(_core.narrow("SELECT 1", None, predicate))
        ):
            return query.select(core, names, predicate)
        return channel.once(
            ["files of a filter", query.sql, predicate],
            lambda: query.select(core, names, predicate),
            lambda found: dict(found.path_memos()),
            lambda got: query.select(
                core, names, predicate, [(path, got[path]) for path in got.names]
            ),
        )

    def _warn_of_caches(self) -> None:
        """Say what went wrong with the plan cache and the local cache: the work was done without them."""
        trouble = self._core.cache_trouble()
        for message in [*self._core.take_warnings(), *([] if trouble is None else [trouble])]:
            warnings.warn(message, UserWarning, stacklevel=stack_level_outside())

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

    def _select(
        self, name: str, columns: Iterable[str] | None, filters: Any | None, on_error: str = "raise"
    ) -> Query:
        """`table` and then `Query.select`, planned only once, and with filters that know this session's names."""
        if columns is None and filters is None:
            return self.table(name)
        whole = f"SELECT * FROM {_core.quote_identifier(check_name(name))}"
        names, predicate = narrowing(columns, filters, self._core.table_schema(name))
        with advised(filters):
            narrowed = self.sql(_core.narrow(whole, names, predicate), on_error=on_error)
        return Query(self, narrowed._core, (whole, repr(names), repr(predicate)))

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
        return session_html(self)

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
    """A folder or URL as a directory: what is below it need not exist."""
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
