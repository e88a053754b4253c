"""Which files a path names."""

from __future__ import annotations

import glob
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tensorquery._util.callers import stack_level_outside
from tensorquery._util.options import expanded_path
from tensorquery.compat.splits import DataFileInfo
from tensorquery.errors import TableNotFoundError
from tensorquery.sql.file_tables import FileSource
from tensorquery.sql.query import Query
from tensorquery.sql.session import Session

__all__ = [
    "MissingFilesError",
    "as_it_is",
    "discover_files",
    "files_of",
    "for_stores",
    "open_path",
]


class MissingFilesError(TableNotFoundError, FileNotFoundError):
    """There is no such path, or no file in it; also a `FileNotFoundError`."""


def discover_files(
    path: str,
    storage_options: Mapping[str, Any] | None = None,
    extensions: Sequence[str] | None = None,
) -> list[DataFileInfo]:
    """List the files at a path, for the constructor of `StructuredDataset`; their footers are read, too.

    Args:
        path: A file, a directory or a glob, on disk or in an object store. Of a directory its own files; names that start
            with ``_`` or ``.`` are left out.
        storage_options: Options and credentials of the object store.
        extensions: Endings of names to keep, such as ``[".parquet"]``; None keeps all. Files of one ending have one format, which
            it says; others in the directory may be anything.

    Returns:
        The files, sorted by path, with their sizes.

    Raises:
        MissingFilesError: There is no such path, or no file in it.
        DataError: A file is damaged, or two disagree about a column.
        StorageError: The store does not answer, or refuses.
    """
    session, path = Session(), expanded_path(path)

    def register(found: str) -> Query:
        source = FileSource(found, partitioning=False, storage_options=storage_options)
        session._register("files", source, None, infer_rows=1)
        return session.table("files")

    if extensions is None:
        return files_of(open_path(register, path, recursive=False))
    files: dict[str, DataFileInfo] = {}
    missing = None
    for ending in extensions:
        try:
            table = open_path(register, path, recursive=False, ending=ending)
        except MissingFilesError as error:
            missing = error
        else:
            files.update({file.path: file for file in files_of(table)})
    local = local_path(path)
    if missing is not None and not files and not (local is not None and Path(local).exists()):
        raise missing
    kept = tuple(extensions)
    return [files[name] for name in sorted(files) if name.endswith(kept)]


def open_path(
    register: Callable[[str], Query], path: str, *, recursive: bool, ending: str = ""
) -> Query:
    """Register what a path names.

    Args:
        register: Makes a table of a path or pattern.
        path: A file, a directory or a glob.
        recursive: Whether the files of directories below are meant, too.
        ending: The suffix of the wanted files in a directory, or among the matches of a pattern that ends with ``*``.

    Returns:
        The table.

    Raises:
        MissingFilesError: There is no such path, or no file in it.
    """
    try:
        if recursive or any(wildcard in path for wildcard in "*?"):
            return register(_with_ending(path, ending))
        local = local_path(path)
        if local is not None:
            is_folder = Path(local).is_dir()
            return register(f"{as_it_is(path)}/*{ending}" if is_folder else as_it_is(path))
        try:
            return register(f"{path.rstrip('/')}/*{ending}")
        except TableNotFoundError:
            # An object, or a prefix of prefixes.
            table = register(path)
    except TableNotFoundError as error:
        raise MissingFilesError(f"{error}. {_ADVICE}") from error
    [first, *_] = files_of(table)
    if path_depth(first.path) > path_depth(path):
        raise MissingFilesError(
            f"{path} holds no file itself, only others with files such as {first.path}. {_ADVICE}"
        )
    return table


def _with_ending(pattern: str, ending: str) -> str:
    """A pattern of the names that match this one and have an ending, where it may be anything."""
    if not ending or not pattern.endswith("*"):
        return pattern
    return f"{pattern}/*{ending}" if pattern.endswith("**") else pattern + ending


_ADVICE = 'Directories called key=value are read with partitioning="hive", others below a path with a pattern, path="…/**"'


def files_of(table: Query) -> list[DataFileInfo]:
    """The files of a table, in the order of their listing, with their sizes.

    Args:
        table: A table of files.

    Returns:
        The files, with the paths that the table's splits have.
    """
    # The identity of a pinned file begins with its size.
    return [
        DataFileInfo(path, int(identity.partition(" ")[0]))
        for path, identity in table._core.files()
    ]


def as_it_is(path: str) -> str:
    """A path that is no pattern, for any characters in it.

    Args:
        path: A path or URL.

    Returns:
        What names it alone.
    """
    local = local_path(path)
    return path if local is None else glob.escape(local)


def local_path(path: str) -> str | None:
    """The path of a file on disk.

    Args:
        path: A path or URL.

    Returns:
        The path, without ``file://``; None for one in a store.
    """
    if path.startswith("file:"):
        return unquote(urlsplit(path).path)
    return None if "://" in path else path


def for_stores(
    options: Mapping[str, Any] | None, where: str | list[str]
) -> Mapping[str, Any] | None:
    """Options of an object store; none for a local path, for which the other library takes them, too.

    Args:
        options: The user's.
        where: A path, or paths of one store.

    Returns:
        The options that count; a warning names the others.
    """
    path = where if isinstance(where, str) else where[0]
    if not options or local_path(path) is None:
        return options
    warnings.warn(
        f"storage_options ({', '.join(options)}) have no effect on the local path {path}",
        UserWarning,
        stacklevel=stack_level_outside(),
    )
    return None


def path_depth(path: str) -> int:
    """How many names a path has, without the scheme of a URL.

    Args:
        path: A path or URL.

    Returns:
        Their number.

    >>> path_depth("s3://bucket/day/part.parquet"), path_depth("/data/day/")
    (3, 2)
    """
    scheme, found, rest = path.partition("://")
    names = rest if found else os.fspath(Path(scheme).absolute())
    return sum(map(bool, names.split("/")))
