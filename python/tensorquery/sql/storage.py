"""Where files lie: options of object stores, and file systems of fsspec.

The compiled half calls `Files` from threads of its own, with the names and the types that its
``src/python/filesystem.rs`` expects.
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from typing import Any, TypeAlias, cast

from tensorquery._util.pickling import calls, dumps
from tensorquery.errors import ConfigError, StorageError

__all__ = [
    "Files",
    "knows_scheme",
    "open_filesystem",
    "open_urls",
    "plain_options",
    "takes_credentials",
]

_FileRow: TypeAlias = tuple[str, int, str | None, int | None]
"""Path, size in bytes, etag, milliseconds since 1970-01-01 UTC of the last write."""

# Names that stores have for a file's content, and others that together tell versions of a file apart.
_ETAGS = ("ETag", "etag", "e_tag", "checksum", "md5Hash", "md5", "blob_id", "xet_hash", "sha256")
_TRACES = (
    "mtime",
    "modified",
    "LastModified",
    "last_modified",
    "updated",
    "created",
    "ino",
    "CRC",
    "generation",
)
_TIMES = ("mtime", "LastModified", "last_modified", "modified", "updated", "created")


def plain_options(
    options: Mapping[str, Any] | None, name: str = "storage_options"
) -> dict[str, Any]:
    """Options as plain data: strings, numbers, bools and dicts of them.

    Args:
        options: Options by name, and dicts of options by prefix of URLs.
        name: The name of the options in an error.

    Raises:
        ConfigError: A key is no string, or a value is of another type; never shows a value.

    >>> plain_options({"key": "k", "client_kwargs": {"region_name": "eu-west-1"}})
    {'key': 'k', 'client_kwargs': {'region_name': 'eu-west-1'}}
    """
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise ConfigError(f"{name} must be a dict of options, got {type(options).__name__}")
    found: dict[str, Any] = {}
    for key, value in options.items():
        here = f"{name}[{key!r}]"
        if not isinstance(key, str):
            raise ConfigError(f"{here} must have a string as its key, got {type(key).__name__}")
        if isinstance(value, Mapping):
            found[key] = plain_options(value, here)
        elif isinstance(value, (str, int, float, bool)):
            found[key] = value
        elif isinstance(value, os.PathLike):
            found[key] = os.fsdecode(value)
        else:
            raise ConfigError(
                f"{here} must be a string, number, bool or dict of them, got {type(value).__name__}; objects "
                f"that give credentials go into credential_provider=, or into a filesystem="
            )
    return found


_CLOUD = re.compile(r"(s3a?|gc?s|az|azure|abfss?)://", re.IGNORECASE)


def takes_credentials(path: str) -> bool:
    """Whether a path lies in a store that a `CredentialProvider` can give credentials for.

    >>> takes_credentials("s3://bucket/a"), takes_credentials("https://host/a")
    (True, False)
    """
    return _CLOUD.match(path) is not None


class Files:
    """A file system of fsspec below a root, as the compiled half calls it.

    Args:
        filesystem: Any `fsspec.AbstractFileSystem`.
        root: The prefix of a shown path, before the slash: ``memory:/``, ``https://host``.
        lead: The prefix of a path in requests to the file system: ``/``, ``https://host/``, or nothing.
    """

    def __init__(self, filesystem: Any, root: str, lead: str) -> None:
        # Which process it is of, and the file system: one value, since threads replace it without a lock, which
        # might be held while the process forks.
        self._opened = (os.getpid(), filesystem)
        self._lead = lead
        # fsspec opens files of pyarrow as streams where they are read from their beginning, and then seeks in them.
        self._options = {"seekable": True} if _is_of_pyarrow(filesystem) else {}
        self.root = root

    def info(self, path: str) -> _FileRow | None:
        """The current state of a file: path, size, etag, time of the last write; None if there is no file."""
        with calls:
            filesystem, full = self._here(), self._lead + path
            filesystem.invalidate_cache(full)
            try:
                found = filesystem.info(full)
            except (FileNotFoundError, NotADirectoryError):
                return None
        return None if found.get("type") == "directory" else self._row(path, found)

    def list(self, directory: str, recursive: bool) -> tuple[list[_FileRow], list[str]]:
        """Files and directories of a directory, or all files below it; nothing where there is none."""
        with calls:
            filesystem, full = self._here(), self._lead + directory
            filesystem.invalidate_cache(full)
            try:
                if recursive:
                    entries: Iterable[Any] = filesystem.find(full, detail=True).values()
                else:
                    entries = filesystem.ls(full, detail=True)
            except (FileNotFoundError, NotADirectoryError):
                return [], []
            entries = [(self._inner(filesystem, entry["name"]), entry) for entry in entries]
        folders = [path for path, entry in entries if entry.get("type") == "directory"]
        files = [(path, entry) for path, entry in entries if entry.get("type") != "directory"]
        return [self._listed(path, entry) for path, entry in files], folders

    def read(self, path: str, start: int, end: int) -> bytes:
        """Bytes `start` to `end` of a file."""
        with calls:
            found = self._here().cat_file(self._lead + path, start=start, end=end, **self._options)
        return found if isinstance(found, bytes) else bytes(found)

    def _inner(self, filesystem: Any, name: str) -> str:
        name = filesystem._strip_protocol(name)
        if not name.startswith(self._lead):
            raise StorageError(
                f"the file system lists {name!r}, which does not lie in {self.root}/"
            )
        inner: str = name[len(self._lead) :].strip("/")
        return inner

    def _row(self, path: str, entry: Mapping[str, Any]) -> _FileRow:
        size = entry.get("size")
        if size is None:
            raise StorageError(f"the file system does not tell the size of {self.root}/{path}")
        modified = next((entry[name] for name in _TIMES if entry.get(name) is not None), None)
        return path, int(size), _etag(entry), _time(modified)

    def _listed(self, path: str, entry: Mapping[str, Any]) -> _FileRow:
        """Drops the etag where a listing may tell less than `info`, so that each file is looked at."""
        if entry.get("size") is None or not any(entry.get(name) for name in _ETAGS):
            return path, 0, None, None
        return self._row(path, entry)

    def _here(self) -> Any:
        """The file system of this process: those with event loops do not survive a fork."""
        process, filesystem = self._opened
        if process != os.getpid():
            filesystem = _reopened(filesystem)
            self._opened = (os.getpid(), filesystem)
        return filesystem

    def __reduce__(self) -> tuple[Any, ...]:
        pickled = dumps(self._opened[1], f"the file system of {self.root}/")
        return _restore_files, (pickled, self.root, self._lead)

    def __repr__(self) -> str:
        return f"Files({self.root})"


def _is_of_pyarrow(filesystem: Any) -> bool:
    if type(filesystem).__module__ == "fsspec.implementations.dirfs":
        filesystem = filesystem.fs
    kinds = type(filesystem).__mro__
    return any(kind.__module__ == "fsspec.implementations.arrow" for kind in kinds)


def _reopened(filesystem: Any) -> Any:
    try:
        return pickle.loads(dumps(filesystem, "the file system"))
    except ConfigError:
        if getattr(filesystem, "async_impl", False):
            raise
        # A file system without an event loop is as good as a new one.
        return filesystem


def _restore_files(pickled: bytes, root: str, lead: str) -> Files:
    return Files(pickle.loads(pickled), root, lead)


def _etag(entry: Mapping[str, Any]) -> str | None:
    for name in _ETAGS:
        if entry.get(name):
            return str(entry[name])
    traces = [(name, str(entry[name])) for name in _TRACES if entry.get(name) is not None]
    if not traces:
        return None
    return f'W/"{sha256(repr(traces).encode()).hexdigest()[:32]}"'


def _time(value: Any) -> int | None:
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if isinstance(value, datetime):
        return int(value.timestamp() * 1000)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return int(value * 1000)
    return None


def open_filesystem(filesystem: Any, paths: Sequence[str]) -> tuple[Files, list[str]]:
    """A user's file system, and its own names of paths.

    Args:
        filesystem: Any `fsspec.AbstractFileSystem`.
        paths: Paths of it, with its protocol or without.

    Returns:
        The file system, and the paths below its root.

    Raises:
        ConfigError: It is no file system of fsspec, an asynchronous one, or has paths with two roots.
    """
    needed = ("info", "ls", "find", "cat_file", "invalidate_cache", "_strip_protocol")
    missing = [name for name in needed if not callable(getattr(filesystem, name, None))]
    if missing:
        raise ConfigError(
            f"filesystem must be a file system of fsspec, got {type(filesystem).__name__}, which has no {missing[0]}; wrap one "
            f"of pyarrow by fsspec.implementations.arrow.ArrowFSWrapper"
        )
    if getattr(filesystem, "asynchronous", False):
        raise ConfigError(
            "filesystem was made with asynchronous=True, and is called from threads; make it without"
        )
    return _below_root(filesystem, [(path, filesystem._strip_protocol(path)) for path in paths])


def _below_root(filesystem: Any, paths: Sequence[tuple[str, str]]) -> tuple[Files, list[str]]:
    protocols = filesystem.protocol
    protocol = protocols if isinstance(protocols, str) else protocols[0]
    # The compiled half takes `file:` for its own local files.
    protocol = "local" if protocol == "file" else protocol
    roots: list[tuple[str, str]] = []
    inner: list[str] = []
    for given, path in paths:
        if "://" in path:
            scheme, _, rest = path.partition("://")
            host = rest.partition("/")[0]
            root, lead = f"{scheme}://{host}", f"{scheme}://{host}/"
        elif path.startswith("/"):
            root, lead = f"{protocol}:/", "/"
        else:
            root, lead = f"{protocol}:/", ""
        roots.append((root, lead))
        end = "/" if given.endswith("/") else ""
        inner.append(path[len(lead) :].strip("/") + end)
    if len(set(roots)) > 1:
        raise ConfigError(
            f"the paths of one table must lie in one store, but {paths[0][0]!r} and another one lie in "
            f"{' and '.join(sorted({root for root, _ in roots}))}"
        )
    return Files(filesystem, *roots[0]), inner


def knows_scheme(scheme: str) -> bool:
    """Whether fsspec has a file system for a scheme, installed or not; without fsspec, perhaps."""
    try:
        fsspec = importlib.import_module("fsspec")
    except ImportError:
        return True
    return scheme.lower() in fsspec.available_protocols()


def open_urls(urls: Sequence[str], options: str) -> tuple[Files, list[str]]:
    """The file system that fsspec has for some URLs.

    Args:
        urls: URLs of one table.
        options: Options of the file system, as JSON.

    Returns:
        The file system, and the paths below its root.

    Raises:
        ImportError: fsspec or the implementation's own package is not installed; says how to install it.
        ConfigError: The URLs are of two file systems, or an option is none of theirs.
    """
    scheme = urls[0].partition("://")[0]
    try:
        core = importlib.import_module("fsspec.core")
    except ImportError as error:
        raise ImportError(
            f"{scheme}:// is read by a file system of fsspec, which is not installed; pip install fsspec"
        ) from error
    for protocol in {part.partition("://")[0] for url in urls for part in url.split("::")}:
        _check_installed(protocol)
    given = json.loads(options)
    opened = []
    for url in urls:
        try:
            opened.append((url, *core.url_to_fs(url, **given)))
        except TypeError as error:
            names = ", ".join(sorted(given)) or "none"
            raise ConfigError(
                f"the file system of {scheme}:// refuses these storage_options ({names}): {error}"
            ) from error
    filesystem = opened[0][1]
    other = next((url for url, found, _ in opened if found is not filesystem), None)
    if other is not None:
        raise ConfigError(
            f"the paths of one table must lie in one store, but {urls[0]!r} and {other!r} do not; register two "
            f"tables and join them by UNION ALL"
        )
    return _below_root(filesystem, [(url, path) for url, _, path in opened])


def _check_installed(protocol: str) -> None:
    """Raise `ImportError` with the command to install what a protocol needs."""
    fsspec = importlib.import_module("fsspec")
    if protocol not in fsspec.available_protocols():
        return
    try:
        fsspec.get_filesystem_class(protocol)
    except ImportError as error:
        known = importlib.import_module("fsspec.registry").known_implementations
        package = _package_of(known.get(protocol, {}), error)
        raise ImportError(
            f"{protocol}:// is read by a file system of fsspec that needs a package of its own ({error}); "
            f"pip install {package}"
        ) from error


def _package_of(entry: Mapping[str, str], error: ImportError) -> str:
    module = entry.get("class", "").partition(".")[0]
    if module and module != "fsspec":
        return module.replace("_", "-")
    # "… requires "paramiko" to be installed", "Install s3fs to access S3".
    text = entry.get("err", str(error))
    found = re.search(r'["\'`]([A-Za-z0-9_.-]+)["\'`]|[Ii]nstall ([a-z0-9_.-]+)', text)
    if found:
        return cast(str, found.group(1) or found.group(2))
    return (error.name or "fsspec").partition(".")[0]
