"""Delta tables in a session: by their directory, at a version or a time."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tensorquery._util.options import check_text, expanded_path
from tensorquery.errors import ConfigError
from tensorquery.sql.credentials import CredentialProvider, Credentials
from tensorquery.sql.file_tables import check_name
from tensorquery.sql.filters.pyiceberg_expression import to_scan_filter
from tensorquery.sql.iceberg import (
    catalog_name,
    catalog_place,
    name_parts,
    string_properties,
    time_travel,
)
from tensorquery.sql.storage import open_filesystem, plain_options, takes_credentials

if TYPE_CHECKING:
    from tensorquery import _core

__all__ = ["DeltaTables", "check_version"]


class DeltaTables:
    """The part of a `Session` that knows Delta tables."""

    _core: _core.Session
    _storage_options: dict[str, Any]
    _credentials: Credentials | None

    def register_unity(
        self,
        name: str,
        properties: Mapping[str, Any],
        *,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Register a Unity Catalog: its Delta tables are then ``name.schema.table`` in SQL.

        Nothing is asked of the catalog before a query names a table. Versions are pinned and named as with `register_delta`.
        The catalog gives credentials for the files of each table, which are renewed before they end, and when a store says
        that they have ended; worker processes ask for their own. `list_iceberg` lists schemas and tables. A name that is
        registered already is replaced.

        Args:
            name: The catalog's name in SQL: one word.
            properties: ``uri`` (the server's address) and ``token``; or ``credential`` ("id:secret" of an OAuth2 client)
                with ``oauth2-server-uri`` and ``scope``; ``catalog``: the catalog's name on the server, where it is
                another one than `name`; ``header.*``. They are in docs/delta.md.
            storage_options: Options of the object stores of the tables (``region``, ``endpoint_url``, …). Credentials among
                them are used instead of those that the catalog gives.

        Raises:
            ConfigError: A property is missing, unknown or malformed.

        Examples:
            >>> from tensorquery import Session
            >>> session = Session()
            >>> session.register_unity("main", {"uri": "https://unity.example.com", "token": "…"})
            >>> session.catalogs
            ['main']
        """
        found = string_properties(properties)
        kind = found.setdefault("type", "unity")
        if kind != "unity":
            raise ConfigError(
                f"type={kind!r} is no Unity Catalog; register it with session.register_iceberg"
            )
        options = json.dumps(plain_options(storage_options))
        self._core.register_catalog(catalog_name(name), found, options)

    def register_delta(
        self,
        name: str,
        location: str | os.PathLike[str],
        *,
        version: int | None = None,
        timestamp: datetime | str | None = None,
        scan_filter: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        credential_provider: CredentialProvider | None = None,
        filesystem: Any | None = None,
    ) -> None:
        """Register one Delta table, at one point of its history.

        The version is pinned: all workers and epochs, and runs that resume from a state, read it. Other versions are
        ``FROM name FOR VERSION AS OF 12`` and ``FOR TIMESTAMP AS OF '2026-01-31 12:00:00'`` (UTC). What is read and
        what is not stands in docs/delta.md.

        Args:
            name: The table's name in SQL; an earlier table of that name is replaced.
            location: The table's directory, on disk or in an object store; or ``catalog.schema.table`` of a Unity Catalog that
                `register_unity` registered.
            version: Read this version; None reads the newest.
            timestamp: Read the version that was current then; a time without an offset is UTC.
            scan_filter: SQL: files that cannot hold a row of it are left out, and no other filter leaves files out. It does
                not filter rows.
            storage_options: Options and credentials of the object store, instead of the session's (see `Session`).
            credential_provider: Called for credentials, instead of the session's (see `Session`).
            filesystem: A file system of fsspec whose path `location` is (see `Session.register_parquet`).

        Raises:
            TableNotFoundError: There is no Delta table.
            ConfigError: There is no such version (names those that there are), both `version` and `timestamp` are given, or
                an option is unknown.
            UnsupportedTypeError: The table uses a feature of Delta, or a type, that is not read; names it.
            DataError: The log is damaged, or not complete.
        """
        if version is not None and timestamp is not None:
            raise ConfigError("give one of version and timestamp")
        if version is not None:
            check_version("version", version)
        try:
            at = time_travel(version, None, timestamp)
        except ConfigError as error:
            raise ConfigError(str(error).replace("as_of=", "timestamp=", 1)) from None
        if not isinstance(location, (str, os.PathLike)) or not os.fspath(location):
            raise ConfigError(f"location={location!r} must be the directory of a Delta table")
        place = check_text("location", os.fsdecode(location))
        own = (storage_options, credential_provider, filesystem)
        parts = name_parts(place) if "/" not in place else []
        if len(parts) > 2 and parts[0] in self._core.catalogs() and own == (None, None, None):
            origin = {"Catalog": catalog_place(parts)}
            predicate = to_scan_filter(scan_filter)
            self._core.register_iceberg_table(
                check_name(name), json.dumps(origin), json.dumps(at), predicate
            )
            return
        credentials = None if credential_provider is None else Credentials(credential_provider)
        own_options, files = plain_options(storage_options), None
        if filesystem is not None:
            if storage_options is not None or credential_provider is not None:
                raise ConfigError(
                    "a file system has its own options and credentials; pass them where it is made, not beside "
                    "filesystem="
                )
            files, (place,) = open_filesystem(filesystem, [place])
        else:
            place = expanded_path(place)
            is_remote = "://" in place and not place.startswith("file:")
            if is_remote and storage_options is None and credentials is None:
                own_options = self._storage_options
                credentials = self._credentials if takes_credentials(place) else None
        self._core.register_delta(
            check_name(name),
            place,
            json.dumps(at),
            json.dumps(own_options),
            credentials,
            files,
            to_scan_filter(scan_filter),
        )


def check_version(name: str, value: object) -> None:
    """A version is a whole number from 0 on.

    Raises:
        ConfigError: It is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise ConfigError(
            f"{name}={value!r} must be a whole number from 0 on: a version of a Delta table"
        )
