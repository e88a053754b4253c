"""The tables and functions that are registered in a session."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tensorquery import _core
from tensorquery._util.callers import stack_level_outside
from tensorquery._util.options import check_text
from tensorquery.distributed.broadcast import Channel
from tensorquery.sharding.bad_files import Quarantined, of_files, warn_of
from tensorquery.sql.delta import DeltaTables
from tensorquery.sql.file_tables import FileTables, check_name
from tensorquery.sql.functions import Function, FunctionInfo
from tensorquery.sql.iceberg import IcebergTables

__all__ = ["Registry", "TableInfo", "columns_of"]


class TableInfo(NamedTuple):
    """A registered table."""

    name: str
    """The name in SQL."""
    kind: str
    """``parquet``, ``csv``, ``json``, ``arrow``, ``orc``, ``avro``, ``iceberg``, ``delta``, ``memory`` or ``view``."""
    files: int | None
    """Number of files, for tables over files."""
    bytes: int | None
    """Bytes stored (files) or held (memory)."""
    rows: int | None
    """Exact rows where known without reading."""
    quarantined: tuple[Quarantined, ...] = ()
    """Files that it was registered without (``on_error="skip"``)."""


class Registry(FileTables, IcebergTables, DeltaTables):
    """The part of a `Session` that registers tables, views and functions."""

    def register_view(self, name: str, sql: str) -> None:
        """Register a query under a name.

        Args:
            name: The view's name in SQL; an earlier table of that name is replaced.
            sql: One SELECT statement over tables of this session.

        Raises:
            QueryError: `sql` is not one valid SELECT statement.
            TableNotFoundError: It names an unknown table.
            ConfigError: `sql` is not valid UTF-8.
        """
        name, core = check_name(name), self._core
        check_text("the query", sql)
        definition = core.parse(sql)

        def register() -> None:
            core.register_view(name, definition)

        if self._channel is None or not definition.paths:
            register()
        else:
            self._channel.once(
                ["files of a view", name, sql],
                register,
                lambda _: dict(core.view_memos(name)),
                lambda got: core.register_view(
                    name, definition, [(path, got[path]) for path in got.names]
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
            >>> import tensorquery as tq
            >>> session = tq.Session()
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

    def _query(self, sql: str, channel: Channel | None, skip_bad: bool) -> _core.Query:
        """A query whose path literals the first rank of a channel lists for all."""
        core, definition = self._core, self._core.parse(sql)
        return _listed_once(
            channel,
            ["files of a query", sql, skip_bad],
            definition,
            lambda paths: core.query(definition, skip_bad, paths),
        )

    def _narrow(
        self,
        query: _core.Query,
        names: Sequence[str] | None,
        predicate: str | None,
        skip_bad: bool = False,
    ) -> _core.Query:
        """`query`, narrowed; path literals in the predicate are listed like those in a query."""
        core = self._core
        definition = query.narrowed(core, names, predicate)
        return _listed_once(
            self._channel,
            ["files of a filter", query.sql, predicate],
            definition,
            lambda paths: query.select(core, definition, skip_bad, paths),
        )

    def _warn_of_skipped(self, files: Sequence[Quarantined]) -> None:
        """Warn about files that a query was made without; tables have warned about theirs."""
        told = {file.path for table in self.tables for file in table.quarantined}
        warn_of([file for file in files if file.path not in told], "the query")

    def _warn_of_caches(self) -> None:
        """Warn about trouble with the plan cache and the local cache: the work was done without them."""
        trouble = self._core.cache_trouble()
        for message in [*self._core.take_warnings(), *([] if trouble is None else [trouble])]:
            warnings.warn(message, UserWarning, stacklevel=stack_level_outside())

    def _is_iceberg_table(self, name: str) -> bool:
        """Whether an Iceberg or Delta table of that name is registered."""
        return any(
            known.name == name and known.kind in ("iceberg", "delta") for known in self.tables
        )


def _listed_once(
    channel: Channel | None,
    what: list[Any],
    definition: _core.Definition,
    bind: Callable[[list[tuple[str, bytes]]], _core.Query],
) -> _core.Query:
    """The query that `bind` makes of a definition, whose path literals the first rank of a channel lists for all."""
    if channel is None or not definition.paths:
        return bind([])
    return channel.once(
        what,
        lambda: bind([]),
        lambda found: dict(found.path_memos()),
        lambda got: bind([(path, got[path]) for path in got.names]),
    )


def columns_of(registry: Registry, name: str) -> list[tuple[str, str, bool]]:
    """Name, type and nullability of a table's columns; nothing is read.

    Args:
        registry: The session.
        name: A registered table's exact name.

    Returns:
        A tuple for each column.

    Raises:
        QueryError: A view names a column that is gone.
        TableNotFoundError: There is no such table.
    """
    core = registry._core
    return core.query(core.parse(f"SELECT * FROM {_core.quote_identifier(name)}")).columns()
