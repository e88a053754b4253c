"""Files in a session: one table per format, its options, and the files pinned at registration."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from tensorquery._util.options import (
    check_bool,
    check_choice,
    check_positive_int,
    check_text,
    expanded_path,
)
from tensorquery.errors import ConfigError
from tensorquery.sharding.bad_files import check_on_error, of_files, warn_of
from tensorquery.sql.credentials import CredentialProvider, Credentials
from tensorquery.sql.storage import open_filesystem, plain_options, takes_credentials

if TYPE_CHECKING:
    from tensorquery import _core
    from tensorquery.distributed.broadcast import Channel

__all__ = ["FileSource", "FileTables", "PathOrPaths", "check_name", "path_list", "table_format_of"]

PathOrPaths: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A file, a directory (read recursively), a glob, or a list of these."""

_COMPRESSIONS = ("none", "gzip", "bz2", "xz", "zstd")


class FileSource(NamedTuple):
    """Files, and how they are reached and understood, as the user has said it."""

    path: PathOrPaths
    schema: Any | None = None
    partitioning: str | bool | None = None
    storage_options: Mapping[str, Any] | None = None
    credential_provider: CredentialProvider | None = None
    filesystem: Any | None = None
    on_error: str = "raise"


class FileTables(ABC):
    """The part of a `Session` that knows files."""

    _core: _core.Session
    _channel: Channel | None
    _storage_options: dict[str, Any]
    _credentials: Credentials | None

    @abstractmethod
    def _warn_of_caches(self) -> None:
        """Say what went wrong with the caches."""

    def _is_of_files(self, name: str) -> bool:
        return all(row[1] != "delta" for row in self._core.tables() if row[0] == name)

    def register_parquet(
        self,
        name: str,
        path: PathOrPaths,
        *,
        schema: Any | None = None,
        partitioning: str | bool | None = None,
        storage_options: Mapping[str, Any] | None = None,
        credential_provider: CredentialProvider | None = None,
        filesystem: Any | None = None,
        on_error: str = "raise",
    ) -> None:
        """Register Parquet files as a table.

        Timestamps that are stored in twelve bytes (``INT96``, of Spark, Hive and Impala) are read in nanoseconds, which hold the years
        1677 to 2262: others are a `DataError`. Declare ``timestamp[us]`` in `schema` to read them.

        Args:
            name: The table's name in SQL; an earlier table of that name is replaced.
            path: A file, a directory, a glob, or a list of these, on disk (``~`` in front is the user's folder) or in an
                object store. Names that start with ``_`` or ``.`` are ignored inside directories.
            schema: Anything with ``__arrow_c_schema__``; None infers it over all files.
            partitioning: None reads ``key=value`` directories as columns where there are any, "hive"
                demands them, False turns them off.
            storage_options: Options and credentials of the object store, instead of the session's (see `Session`).
            credential_provider: Called for credentials, instead of the session's (see `Session`).
            filesystem: A file system of fsspec whose paths these are. Slower than the stores that are read without one: each read
                is a call into Python, followed by another that looks whether the file has changed.
            on_error: "raise": a file that cannot be read is an error. "skip": files whose content cannot be understood,
                or contradicts most other files, are left out, listed in `Session.tables` and warned about. Damaged
                parts within a file are left out by ``on_error=`` of `create_dataloader`.

        Raises:
            TableNotFoundError: The path holds no file.
            DataError: Two files disagree about a column, or a file is damaged; names the files.
            ConfigError: An option is unknown.
        """
        source = FileSource(
            path, schema, partitioning, storage_options, credential_provider, filesystem, on_error
        )
        self._register(name, source, {"kind": "parquet"})

    def register_csv(
        self,
        name: str,
        path: PathOrPaths,
        *,
        header: bool = True,
        delimiter: str | None = None,
        quote: str = '"',
        escape: str | None = None,
        comment: str | None = None,
        compression: str | None = None,
        schema: Any | None = None,
        infer_rows: int = 1000,
        partitioning: str | bool | None = None,
        storage_options: Mapping[str, Any] | None = None,
        credential_provider: CredentialProvider | None = None,
        filesystem: Any | None = None,
        on_error: str = "raise",
    ) -> None:
        r"""Register delimited text files as a table.

        Args:
            name: The table's name in SQL; an earlier table of that name is replaced.
            path: As in `register_parquet`.
            header: Whether each file's first line names the columns; otherwise they are ``column_1``, ….
            delimiter: One ASCII character, for example "\t". None goes by the file names: tabs in ``.tsv``, commas in all
                others. A file that has one column with commas, and several with tabs, semicolons or bars, is then a
                `DataError`.
            quote: One ASCII character around fields that hold delimiters or newlines.
            escape: One ASCII character before a quote inside quotes; None: quotes are doubled.
            comment: Lines that start with this character are ignored.
            compression: "gzip", "bz2", "xz", "zstd" or "none"; None goes by the file names.
            schema: Anything with ``__arrow_c_schema__``; None infers it over all files.
            infer_rows: Records of each file from which types are inferred. A later value that is not
                exactly one of its column's type is an error when it is read.
            partitioning: As in `register_parquet`.
            storage_options: As in `register_parquet`.
            credential_provider: As in `register_parquet`.
            filesystem: As in `register_parquet`.
            on_error: As in `register_parquet`.

        An empty field is null, quoted or not. Whole numbers in one file and others in the next make a
        column of floats, dates and times one of times, as they do within one file. Times are in
        microseconds, or in nanoseconds where those that are looked at have them. Decimals of a
        declared schema are rounded.

        Raises:
            TableNotFoundError: The path holds no file.
            DataError: Two files disagree about their columns; names the files.
            UnsupportedTypeError: A declared type is not read from CSV; names the column.
            ConfigError: An option is unknown or malformed.
        """
        table_format = {
            "kind": "csv",
            "header": check_bool("header", header),
            "delimiter": None if delimiter is None else _byte("delimiter", delimiter),
            "quote": _byte("quote", quote),
            "escape": None if escape is None else _byte("escape", escape),
            "comment": None if comment is None else _byte("comment", comment),
            "compression": _compression(compression),
        }
        source = FileSource(
            path, schema, partitioning, storage_options, credential_provider, filesystem, on_error
        )
        self._register(name, source, table_format, infer_rows=infer_rows)

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
        credential_provider: CredentialProvider | None = None,
        filesystem: Any | None = None,
        on_error: str = "raise",
    ) -> None:
        """Register JSON files as a table.

        Args:
            name: The table's name in SQL; an earlier table of that name is replaced.
            path: As in `register_parquet`.
            array: True: each file is one array of objects. False: one object per line. None looks at the
                files.
            compression: As in `register_csv`.
            schema: Anything with ``__arrow_c_schema__``; None infers it over all files.
            infer_rows: Records of each file from which columns and types are inferred. A later value
                that is not exactly one of its column's type is an error when it is read. Keys that
                none of these records has, inside of objects too, are left out without a word.
            partitioning: As in `register_parquet`.
            storage_options: As in `register_parquet`.
            credential_provider: As in `register_parquet`.
            filesystem: As in `register_parquet`.
            on_error: As in `register_parquet`.

        A column of text takes numbers and booleans as they are written. Decimals of a declared
        schema are rounded.

        Raises:
            TableNotFoundError: The path holds no file.
            DataError: Two files disagree about a column; names the files.
            UnsupportedTypeError: A declared type is not read from JSON; names the column.
            ConfigError: An option is unknown or malformed.
        """
        table_format = {
            "kind": "json",
            "array": None if array is None else check_bool("array", array),
            "compression": _compression(compression),
        }
        source = FileSource(
            path, schema, partitioning, storage_options, credential_provider, filesystem, on_error
        )
        self._register(name, source, table_format, infer_rows=infer_rows)

    def register_arrow(
        self,
        name: str,
        path: PathOrPaths,
        *,
        schema: Any | None = None,
        partitioning: str | bool | None = None,
        storage_options: Mapping[str, Any] | None = None,
        credential_provider: CredentialProvider | None = None,
        filesystem: Any | None = None,
        memory_map: bool = True,
        on_error: str = "raise",
    ) -> None:
        """Register Arrow IPC files (Feather v2) or Arrow IPC streams as a table.

        Record batches are the splits of files. A stream is read from its beginning, so each is one split. Columns are
        found by name, and widened where files differ and nothing is lost.

        Args:
            name: The table's name in SQL; an earlier table of that name is replaced.
            path: As in `register_parquet`.
            schema: Anything with ``__arrow_c_schema__``; None infers it over all files.
            partitioning: As in `register_parquet`.
            storage_options: As in `register_parquet`.
            credential_provider: As in `register_parquet`.
            filesystem: As in `register_parquet`.
            memory_map: Map local files into memory instead of reading them, so that uncompressed columns are
                not copied. Files on network and FUSE file systems are read in any case. A mapped file must not be written
                to in place while a job runs: a change is an error at the next record batch, but rows already
                handed on may change, and cutting the file short kills the process (SIGBUS). Replacing it by renaming
                another file over it is safe. False reads files, for those that others write to in place.
            on_error: As in `register_parquet`.

        Raises:
            TableNotFoundError: The path holds no file.
            DataError: A file is damaged, or two files disagree about a column; names the files.
            UnsupportedTypeError: A file is of Feather's first version, or big-endian.
            ConfigError: `memory_map` is no bool, or another option is malformed.
        """
        table_format = {"kind": "arrow", "unmapped": not check_bool("memory_map", memory_map)}
        source = FileSource(
            path, schema, partitioning, storage_options, credential_provider, filesystem, on_error
        )
        self._register(name, source, table_format)

    def register_avro(
        self,
        name: str,
        path: PathOrPaths,
        *,
        schema: Any | None = None,
        partitioning: str | bool | None = None,
        storage_options: Mapping[str, Any] | None = None,
        credential_provider: CredentialProvider | None = None,
        filesystem: Any | None = None,
        on_error: str = "raise",
    ) -> None:
        """Register Avro object container files as a table.

        Blocks are the splits, found by walking each file once from block to block: where blocks are larger than 256 KiB
        their rows are passed over, otherwise the whole file is read. Columns are the fields of the top-level
        record. Enums become dictionaries, maps and nested records Arrow's own, a union with null a nullable column; a union of
        several other types is an Arrow union, which has no tensor. Timestamps and dates are those of their logical
        types, UUIDs the text or bytes that they are.

        Args:
            name: The table's name in SQL; an earlier table of that name is replaced.
            path: As in `register_parquet`.
            schema: Anything with ``__arrow_c_schema__``; None infers it over all files.
            partitioning: As in `register_parquet`.
            storage_options: As in `register_parquet`.
            credential_provider: As in `register_parquet`.
            filesystem: As in `register_parquet`.
            on_error: As in `register_parquet`.

        Raises:
            TableNotFoundError: The path holds no file.
            DataError: A file is damaged, is compressed by another codec than null, deflate, snappy, zstandard, bzip2 and
                xz, or two files disagree about a column; names the files.
            UnsupportedTypeError: A type refers to itself; names the column.
        """
        source = FileSource(
            path, schema, partitioning, storage_options, credential_provider, filesystem, on_error
        )
        self._register(name, source, {"kind": "avro"})

    def register_orc(
        self,
        name: str,
        path: PathOrPaths,
        *,
        schema: Any | None = None,
        partitioning: str | bool | None = None,
        storage_options: Mapping[str, Any] | None = None,
        credential_provider: CredentialProvider | None = None,
        filesystem: Any | None = None,
        on_error: str = "raise",
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
            credential_provider: As in `register_parquet`.
            filesystem: As in `register_parquet`.
            on_error: As in `register_parquet`.

        Raises:
            TableNotFoundError: The path holds no file.
            DataError: A file is damaged, or two files disagree about a column; names the files.
            UnsupportedTypeError: A file is encrypted, or of a version of ORC other than 0.11 and 0.12.
        """
        source = FileSource(
            path, schema, partitioning, storage_options, credential_provider, filesystem, on_error
        )
        self._register(name, source, {"kind": "orc"})

    def _register(
        self,
        name: str,
        source: FileSource,
        table_format: dict[str, Any] | None,
        *,
        infer_rows: int | None = None,
    ) -> None:
        if infer_rows is not None:
            infer_rows = check_positive_int("infer_rows", infer_rows)
        paths = path_list(source.path)
        files, schema = None, source.schema
        provider, storage_options = source.credential_provider, source.storage_options
        credentials = None if provider is None else Credentials(provider)
        own_options = plain_options(storage_options)
        if source.filesystem is not None:
            if storage_options is not None or provider is not None:
                raise ConfigError(
                    "a file system has its own options and credentials; pass them where it is made, not beside "
                    "filesystem="
                )
            files, paths = open_filesystem(source.filesystem, paths)
        else:
            paths = [expanded_path(each) for each in paths]
            is_remote = any("://" in each and not each.startswith("file:") for each in paths)
            if is_remote and storage_options is None and credentials is None:
                own_options = self._storage_options
                credentials = self._credentials if takes_credentials(paths[0]) else None
        options = {
            "format": table_format,
            "partitioning": _partitioning(source.partitioning),
            "infer_rows": infer_rows,
            "storage_options": own_options,
            "skip_bad": check_on_error(source.on_error),
        }
        if schema is not None and not hasattr(schema, "__arrow_c_schema__"):
            raise ConfigError(
                f"schema={schema!r} must be an Arrow schema (an object with __arrow_c_schema__), for "
                f'example pyarrow.schema([("x", pyarrow.int64())])'
            )
        name, core = check_name(name), self._core

        def register(memo: bytes | None = None) -> None:
            core.register_files(name, paths, json.dumps(options), schema, credentials, files, memo)

        if self._channel is None:
            register()
        else:
            # Without the options of the store, which are each rank's own.
            described = {key: value for key, value in options.items() if key != "storage_options"}
            self._channel.once(
                [
                    "files of a table",
                    name,
                    None if files is None else files.root,
                    paths,
                    described,
                    None if schema is None else str(schema),
                ],
                register,
                # Of a Delta table every rank reads the log; they agree on its version when they plan.
                lambda _: {"table": core.table_memo(name)} if self._is_of_files(name) else {},
                lambda got: register(got["table"] if "table" in got.names else None),
            )
        self._warn_of_caches()
        left_out = next((row[5] for row in core.tables() if row[0] == name), [])
        warn_of(of_files(left_out), f"table {name}")


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
    return [check_text("path", os.fsdecode(item)) for item in paths]


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
    check_choice(
        "format", name, ("parquet", "csv", "tsv", "json", "ndjson", "arrow", "orc", "avro")
    )
    formats: dict[str, dict[str, Any]] = {
        "parquet": {"kind": "parquet"},
        "csv": {**csv, "delimiter": None},
        "tsv": {**csv, "delimiter": ord("\t")},
        "json": {"kind": "json", "array": None, "compression": None},
        "ndjson": {"kind": "json", "array": False, "compression": None},
        "arrow": {"kind": "arrow"},
        "orc": {"kind": "orc"},
        "avro": {"kind": "avro"},
    }
    return formats[name]


def check_name(name: str) -> str:
    """A table's name; raises `ConfigError` for what can be none."""
    if not isinstance(name, str) or not name.strip():
        raise ConfigError(f"a table name must be a non-empty string, got {name!r}")
    return check_text("a table name", name)


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
