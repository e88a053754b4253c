"""Sessions: registered tables, and the queries over them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple, TypeAlias

from tensorquery import _core
from tensorquery.errors import ConfigError, QueryError, TensorQueryError
from tensorquery.iceberg import IcebergTables
from tensorquery.options import check_bool, check_choice, check_positive_int, parse_bytes
from tensorquery.query import Query

__all__ = ["PathOrPaths", "Session", "TableInfo"]

PathOrPaths: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A file, a directory (read recursively), a glob, or a list of these."""

_COMPRESSIONS = ("none", "gzip", "bz2", "xz", "zstd")


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


class Session(IcebergTables):
    """Registered tables, over a DataFusion session.

    Files are listed and pinned (path, size, entity tag) when they are registered: a file that changes
    later is an error that names it, never mixed data. Register the table again to pin the new files.

    Args:
        memory_limit: Bytes that joins and sorts may hold: an int or a string such as "2GiB". None sets
            no limit.
        storage_options: Object-store options for tables that are registered without their own.

    Raises:
        ConfigError: `memory_limit` is malformed.

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
    ) -> None:
        limit = None if memory_limit is None else parse_bytes(memory_limit, "memory_limit")
        self._storage_options = _string_options(storage_options)
        self._core = _core.Session(limit, self._storage_options)

    def register_parquet(
        self,
        name: str,
        path: PathOrPaths,
        *,
        schema: Any | None = None,
        partitioning: str | bool | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Register Parquet files as a table.

        Args:
            name: The table's name in SQL; an earlier table of that name is replaced.
            path: A file, a directory, a glob, or a list of these, on disk or in an object store. Names
                that start with ``_`` or ``.`` are ignored inside directories.
            schema: Anything with ``__arrow_c_schema__``; None infers it over all files.
            partitioning: None reads ``key=value`` directories as columns where there are any, "hive"
                demands them, False turns them off.
            storage_options: Options and credentials of the object store.

        Raises:
            TableNotFoundError: The path holds no file.
            DataError: Two files disagree about a column, or a file is damaged; names the files.
            ConfigError: An option is unknown.
        """
        self._register(
            name, path, {"kind": "parquet"}, schema, partitioning, storage_options, infer_rows=None
        )

    def register_csv(
        self,
        name: str,
        path: PathOrPaths,
        *,
        header: bool = True,
        delimiter: str = ",",
        quote: str = '"',
        escape: str | None = None,
        comment: str | None = None,
        compression: str | None = None,
        schema: Any | None = None,
        infer_rows: int = 1000,
        partitioning: str | bool | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        r"""Register delimited text files as a table.

        Args:
            name: The table's name in SQL; an earlier table of that name is replaced.
            path: As in `register_parquet`.
            header: Whether each file's first line names the columns; otherwise they are ``column_1``, ….
            delimiter: One ASCII character, for example "\t".
            quote: One ASCII character around fields that hold delimiters or newlines.
            escape: One ASCII character before a quote inside quotes; None: quotes are doubled.
            comment: Lines that start with this character are ignored.
            compression: "gzip", "bz2", "xz", "zstd" or "none"; None goes by the file names.
            schema: Anything with ``__arrow_c_schema__``; None infers it over all files.
            infer_rows: Records of each file from which types are inferred.
            partitioning: As in `register_parquet`.
            storage_options: As in `register_parquet`.

        An empty field is null, quoted or not. Whole numbers in one file and others in the next make a
        column of floats, as they do within one file.

        Raises:
            TableNotFoundError: The path holds no file.
            DataError: Two files disagree about their columns; names the files.
            ConfigError: An option is unknown or malformed.
        """
        table_format = {
            "kind": "csv",
            "header": check_bool("header", header),
            "delimiter": _byte("delimiter", delimiter),
            "quote": _byte("quote", quote),
            "escape": None if escape is None else _byte("escape", escape),
            "comment": None if comment is None else _byte("comment", comment),
            "compression": _compression(compression),
        }
        self._register(
            name, path, table_format, schema, partitioning, storage_options, infer_rows=infer_rows
        )

    def register_json(
        self,
        name: str,
        path: PathOrPaths,
        *,
        array: bool | None = None,
        compression: str | None = None,
        schema: Any | None = None,
        infer_rows: int = 1000,
        partitioning: str | bool | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Register JSON files as a table.

        Args:
            name: The table's name in SQL; an earlier table of that name is replaced.
            path: As in `register_parquet`.
            array: True: each file is one array of objects. False: one object per line. None looks at the
                files.
            compression: As in `register_csv`.
            schema: Anything with ``__arrow_c_schema__``; None infers it over all files.
            infer_rows: Records of each file from which types are inferred.
            partitioning: As in `register_parquet`.
            storage_options: As in `register_parquet`.

        Raises:
            TableNotFoundError: The path holds no file.
            DataError: Two files disagree about a column; names the files.
            ConfigError: An option is unknown or malformed.
        """
        table_format = {
            "kind": "json",
            "array": None if array is None else check_bool("array", array),
            "compression": _compression(compression),
        }
        self._register(
            name, path, table_format, schema, partitioning, storage_options, infer_rows=infer_rows
        )

    def register_arrow(
        self,
        name: str,
        path: PathOrPaths,
        *,
        schema: Any | None = None,
        partitioning: str | bool | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Register Arrow IPC files (Feather v2) or Arrow IPC streams as a table.

        A stream is read from its beginning, so each is one split and is held in memory while it is read.

        Args:
            name: The table's name in SQL; an earlier table of that name is replaced.
            path: As in `register_parquet`.
            schema: Anything with ``__arrow_c_schema__``; None infers it over all files.
            partitioning: As in `register_parquet`.
            storage_options: As in `register_parquet`.

        Raises:
            TableNotFoundError: The path holds no file.
            DataError: Two files disagree about their columns; names the files.
        """
        self._register(
            name, path, {"kind": "arrow"}, schema, partitioning, storage_options, infer_rows=None
        )

    def register_orc(
        self,
        name: str,
        path: PathOrPaths,
        *,
        schema: Any | None = None,
        partitioning: str | bool | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Register ORC files as a table.

        Stripes are the splits, pruned by their statistics of integers, dates and strings. Timestamps are read in
        nanoseconds, which hold the years 1677 to 2262; declare ``timestamp[us]`` in `schema` for others. A timestamp
        without a time zone is what the writer's clock said, one with local time zone is in UTC.

        Args:
            name: The table's name in SQL; an earlier table of that name is replaced.
            path: As in `register_parquet`.
            schema: Anything with ``__arrow_c_schema__``; None infers it over all files.
            partitioning: As in `register_parquet`.
            storage_options: As in `register_parquet`.

        Raises:
            TableNotFoundError: The path holds no file.
            DataError: A file is damaged, or two files disagree about a column; names the files.
            UnsupportedTypeError: A file is encrypted, or of a version of ORC other than 0.11 and 0.12.
        """
        self._register(
            name, path, {"kind": "orc"}, schema, partitioning, storage_options, infer_rows=None
        )

    def register_table(self, name: str, data: Any) -> None:
        """Register an Arrow table held in memory.

        Args:
            name: The table's name in SQL; an earlier table of that name is replaced.
            data: Anything with ``__arrow_c_stream__`` or ``__arrow_c_array__``: pyarrow, polars, pandas
                3 and DuckDB objects, or a `Query`, which runs now. It is read once, here.

        Raises:
            ConfigError: `data` does not speak the Arrow PyCapsule interface.
            DataError: `data` is a `Query`, and a file cannot be read.
        """
        name = _name(name)
        if isinstance(data, Query):
            data = data._core.collect()
        if not (hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__")):
            raise ConfigError(
                f"register_table needs an Arrow table (an object with __arrow_c_stream__), got "
                f"{type(data).__name__}; convert it, for example pyarrow.table({{...}})"
            )
        try:
            self._core.register_arrow(name, data)
        except (ValueError, TypeError) as error:
            if isinstance(error, TensorQueryError):
                raise
            raise ConfigError(
                f"register_table needs rows with named columns, got {type(data).__name__} ({error}); "
                f'give the column a name, for example pyarrow.table({{"x": ...}})'
            ) from error

    def register_view(self, name: str, sql: str) -> None:
        """Register a query under a name.

        Args:
            name: The view's name in SQL; an earlier table of that name is replaced.
            sql: One SELECT statement over tables of this session.

        Raises:
            QueryError: `sql` is not one valid SELECT statement.
            TableNotFoundError: It names an unknown table.
        """
        self._core.register_view(_name(name), sql)

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
        return [TableInfo(*row) for row in self._core.tables()]

    def sql(self, query: str) -> Query:
        """Make a lazy query.

        Args:
            query: One SELECT statement. Tables are those of this session; a path in single quotes is a
                table too: ``FROM 'data/**/*.parquet'``.

        Returns:
            The query; nothing is read but file listings and footers of path literals.

        Raises:
            QueryError: The SQL does not parse, is not one read-only statement, or names an unknown
                column.
            TableNotFoundError: It names an unknown table or a path without files.
        """
        if not isinstance(query, str):
            if hasattr(query, "__arrow_c_stream__"):
                hint = 'register the table first: session.register_table("t", …)'
            else:
                hint = 'for example session.sql("SELECT * FROM t")'
            raise ConfigError(f"a query is a SQL string, got {type(query).__name__}; {hint}")
        try:
            return Query(self, self._core.query(query))
        except QueryError as error:
            if len(query.split()) != 1:
                raise
            raise QueryError(
                f"{error}; {query!r} alone is no statement: a table is read by table=… or "
                f"session.table(…), files by path=… or FROM 'path'"
            ) from None

    def table(self, name: str) -> Query:
        """All rows and columns of a table.

        Args:
            name: A registered table's exact name.

        Returns:
            A lazy query.

        Raises:
            TableNotFoundError: There is no such table.
        """
        return self.sql(f"SELECT * FROM {_core.quote_identifier(_name(name))}")

    def _register(
        self,
        name: str,
        path: PathOrPaths,
        table_format: dict[str, Any] | None,
        schema: Any | None,
        partitioning: str | bool | None,
        storage_options: Mapping[str, Any] | None,
        *,
        infer_rows: int | None,
    ) -> None:
        if infer_rows is not None:
            infer_rows = check_positive_int("infer_rows", infer_rows)
        paths = path_list(path)
        if storage_options is None:
            remote = any("://" in path and not path.startswith("file:") for path in paths)
            own_options = self._storage_options if remote else {}
        else:
            own_options = _string_options(storage_options)
        options = {
            "format": table_format,
            "partitioning": _partitioning(partitioning),
            "infer_rows": infer_rows,
            "storage_options": own_options,
        }
        if schema is not None and not hasattr(schema, "__arrow_c_schema__"):
            raise ConfigError(
                f"schema={schema!r} must be an Arrow schema (an object with __arrow_c_schema__), for "
                f'example pyarrow.schema([("x", pyarrow.int64())])'
            )
        self._core.register_files(_name(name), paths, json.dumps(options), schema)

    def __repr__(self) -> str:
        lines = [
            f"  {table.name}: {table.kind}"
            + ("" if table.files is None else f", {table.files} files")
            + ("" if table.rows is None else f", {table.rows:,} rows")
            for table in self.tables
        ]
        return "\n".join(["Session:", *lines]) if lines else "Session: no tables"

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError(
            "a Session cannot be pickled; pass the dataset or loader made from it, which carries what "
            "worker processes need"
        )


def path_list(path: PathOrPaths) -> list[str]:
    """The paths as strings, in the order given; raises `ConfigError` for anything else."""
    if isinstance(path, (str, os.PathLike)):
        paths: list[Any] = [path]
    elif isinstance(path, Sequence) and not isinstance(path, (bytes, bytearray)):
        paths = list(path)
    else:
        paths = [None]
    for item in paths:
        if not isinstance(item, (str, PurePath, os.PathLike)) or os.fspath(item) in ("", b""):
            raise ConfigError(
                f"path={path!r} must be a path, a glob, or a list of them, for example "
                f'"data/*.parquet"'
            )
    if not paths:
        raise ConfigError("path=[] is empty; name at least one file, directory or glob")
    return [os.fsdecode(item) for item in paths]


def table_format_of(name: str | None) -> dict[str, Any] | None:
    """The format options for ``format=``; None goes by the file names."""
    if name is None:
        return None
    csv = {
        "kind": "csv",
        "header": True,
        "quote": ord('"'),
        "escape": None,
        "comment": None,
        "compression": None,
    }
    check_choice("format", name, ("parquet", "csv", "tsv", "json", "ndjson", "arrow", "orc"))
    formats: dict[str, dict[str, Any]] = {
        "parquet": {"kind": "parquet"},
        "csv": {**csv, "delimiter": ord(",")},
        "tsv": {**csv, "delimiter": ord("\t")},
        "json": {"kind": "json", "array": None, "compression": None},
        "ndjson": {"kind": "json", "array": False, "compression": None},
        "arrow": {"kind": "arrow"},
        "orc": {"kind": "orc"},
    }
    return formats[name]


def _name(name: str) -> str:
    if not isinstance(name, str) or not name.strip():
        raise ConfigError(f"a table name must be a non-empty string, got {name!r}")
    return name


def _byte(option: str, value: str) -> int:
    if not isinstance(value, str) or len(value) != 1 or not value.isascii():
        raise ConfigError(
            f"{option}={value!r} must be one ASCII character, for example {option}=','"
        )
    return ord(value)


def _compression(value: str | None) -> str | None:
    return None if value is None else check_choice("compression", value, _COMPRESSIONS)


def _partitioning(value: str | bool | None) -> str:
    if value is None:
        return "detect"
    if value is False:
        return "off"
    if value == "hive":
        return "hive"
    raise ConfigError(
        f'partitioning={value!r} must be None (detect), "hive" (demand) or False (turn off)'
    )


def _string_options(options: Mapping[str, Any] | None) -> dict[str, str]:
    """Options as the object stores take them; a bool becomes "true" or "false"."""
    found: dict[str, str] = {}
    for key, value in (options or {}).items():
        if not isinstance(key, str) or not isinstance(value, (str, int, float, bool)):
            raise ConfigError(
                f"storage_options[{key!r}] must be a string, number or bool, got "
                f"{type(value).__name__}"
            )
        found[key] = str(value).lower() if isinstance(value, bool) else str(value)
    return found
