"""Iceberg in a session: catalogs, single tables, and what a refresh changes."""

from __future__ import annotations

import csv
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from tensorquery._util.options import expanded_path
from tensorquery.errors import ConfigError, TableNotFoundError
from tensorquery.sql.filters.pyiceberg_expression import to_scan_filter

if TYPE_CHECKING:
    from tensorquery import _core

__all__ = [
    "IcebergTables",
    "SnapshotChange",
    "catalog_name",
    "catalog_place",
    "is_iceberg_name",
    "name_parts",
    "register_from_config",
    "time_travel",
]


class SnapshotChange(NamedTuple):
    """A change that `Query.refresh` made to one Iceberg table."""

    table: str
    """The table's name in the query."""
    before: int | None
    """The snapshot that was pinned; None where the table had none."""
    after: int | None
    """The snapshot that is pinned now."""
    files_added: int
    """Data files that came."""
    files_removed: int
    """Data files that went, by a delete, an overwrite or a compaction."""
    deletes_added: int
    """Delete files that came."""
    deletes_removed: int
    """Delete files that went."""


class IcebergTables(ABC):
    """The part of a `Session` that knows Iceberg."""

    _core: _core.Session

    def register_iceberg(self, name: str, properties: Mapping[str, Any]) -> None:
        """Register an Iceberg catalog: its tables are then ``name.namespace.table`` in SQL.

        Nothing is asked of the catalog before a query names a table; nested namespaces are written out
        (``name.a.b.table``). The table's snapshot at that moment is pinned: all workers and epochs, and runs that
        resume from a state, read it. The past is ``FROM lake.ns.t FOR VERSION AS OF 123``, ``VERSION AS OF 'tag'`` or
        ``TIMESTAMP AS OF '2026-01-31 12:00:00'`` (UTC), and ``lake.ns."t$snapshots"`` (also ``$history``, ``$refs``,
        ``$files``, ``$data_files``, ``$delete_files``, ``$manifests``, ``$partitions``) tells what there is. A name
        that is registered already is replaced.

        Args:
            name: The catalog's name in SQL: one word.
            properties: pyiceberg's properties, ``type`` first: "rest", "sql" (or "jdbc"), "glue", "hive", "s3tables" or
                "in-memory"; and ``uri``, ``warehouse``, ``credential``, ``token``, ``s3.endpoint`` and so on. All of
                them are in docs/catalogs.md.

        Raises:
            ConfigError: The type is unknown, or a property is missing, unknown or malformed.

        Examples:
            >>> from tensorquery import Session
            >>> session = Session()
            >>> session.register_iceberg("lake", {"type": "in-memory"})
            >>> session.catalogs
            ['lake']
        """
        self._core.register_catalog(catalog_name(name), string_properties(properties))

    def register_iceberg_table(
        self,
        name: str,
        table: str | os.PathLike[str],
        *,
        snapshot_id: int | None = None,
        ref: str | None = None,
        as_of: datetime | str | None = None,
        scan_filter: Any | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        """Register one Iceberg table under a name of its own, at one point of its history.

        Args:
            name: The table's name in SQL.
            table: ``catalog.namespace.table`` of a registered catalog (what has a dot in its name in double quotes:
                ``lake.ns."a.b"``), or the path of a metadata file (``….metadata.json``) or of a table's directory, on disk or in an object store. A name that is
                registered already is replaced.
            snapshot_id: Read this snapshot.
            ref: Read the snapshot that this branch or tag names.
            as_of: Read the snapshot that was current then; a time without an offset is UTC.
            scan_filter: A pyiceberg expression, or SQL: files that cannot hold a row of it are left out, and no
                other filter leaves files out. It does not filter rows.
            properties: For a path: options of its object store, as pyiceberg names them (``s3.region``, …).

        Raises:
            ConfigError: There is no such snapshot, branch or tag (names the existing ones), or more than one of
                `snapshot_id`, `ref` and `as_of` is given.
            TableNotFoundError: There is no such table.
            DataError: The metadata is damaged, or needs an unsupported feature; names it.
        """
        at = time_travel(snapshot_id, ref, as_of)
        if not isinstance(table, (str, os.PathLike)):
            raise ConfigError(f"table={table!r} must be a table's name or path")
        origin = self._origin(os.fspath(table), string_properties(properties or {}))
        self._core.register_iceberg_table(
            name, json.dumps(origin), json.dumps(at), to_scan_filter(scan_filter)
        )

    @property
    def catalogs(self) -> list[str]:
        """The names of the registered catalogs: Iceberg's, and Unity Catalogs."""
        return self._core.catalogs()

    def list_iceberg(self, name: str) -> list[str]:
        """List what a catalog or a namespace holds; loads no table.

        Args:
            name: A catalog (also a Unity Catalog), or a namespace in one: ``lake`` or ``lake.ns``.

        Returns:
            Full names: namespaces first, each with a dot behind it, then tables. A name that contains a dot is in
            double quotes.

        Raises:
            TableNotFoundError: There is no such catalog or namespace.
            StorageError: The catalog does not answer.
        """
        catalog, *parent = name_parts(name)
        namespaces, tables = self._core.list_catalog(catalog, parent)
        found = [_dotted([catalog, *names]) + "." for names in namespaces]
        return found + [_dotted([catalog, *parent, table]) for table in tables]

    @abstractmethod
    def _is_iceberg_table(self, name: str) -> bool:
        """Whether an Iceberg table of that name is registered."""

    def _origin(self, table: str, properties: dict[str, str]) -> dict[str, Any]:
        """Where a table is, as the core wants it."""
        parts = name_parts(table)
        if len(parts) > 2 and parts[0] in self.catalogs and not properties:
            return {"Catalog": catalog_place(parts)}
        if self._is_iceberg_table(table):
            return {"Registered": {"name": table}}
        if is_iceberg_path(table):
            return {"Path": {"location": expanded_path(table), "properties": properties}}
        known = ", ".join(self.catalogs) or "none"
        raise ConfigError(
            f"{table!r} is neither catalog.namespace.table of a registered catalog (registered: {known}) nor the path "
            "of a metadata file or a table's directory"
        )


def register_from_config(
    session: IcebergTables,
    table: str,
    catalog_config: Mapping[str, Any] | None,
    *,
    snapshot_id: int | None = None,
    scan_filter: Any | None = None,
) -> str:
    """Register the Iceberg table that `create_dataloader` names, and return the name it got.

    Args:
        session: Where to register.
        table: With a config ``namespace.table`` or ``catalog.namespace.table``; without one, a registered catalog's
            table or a metadata file.
        catalog_config: The catalog's properties, as pyiceberg takes them; ``name`` names it.
        snapshot_id: The snapshot to read.
        scan_filter: See `IcebergTables.register_iceberg_table`.

    Raises:
        ConfigError: The config is malformed.
        TableNotFoundError: There is no such table.
    """
    if catalog_config is None:
        session.register_iceberg_table(
            table, table, snapshot_id=snapshot_id, scan_filter=scan_filter
        )
        return table
    if not isinstance(catalog_config, Mapping):
        raise ConfigError(
            f"catalog_config={catalog_config!r} must be a dict of pyiceberg's properties, for example "
            '{"type": "rest", "uri": "…"}'
        )
    config = dict(catalog_config)
    parts = name_parts(table)
    named = config.pop("name", None)
    if len(parts) < 2:
        raise ConfigError(
            f"table={table!r} lacks its namespace: write namespace.table, or catalog.namespace.table"
        )
    catalog = catalog_name(str(named or parts[0].replace(".", "_")))
    session.register_iceberg(catalog, config)
    candidates = [parts]
    if len(parts) > 2:
        # `lake.ns.t` with the catalog in front, or a nested namespace: the one that there is.
        candidates = [parts[1:]] if parts[0] == named else [parts[1:], parts]
    at = json.dumps(time_travel(snapshot_id, None, None))
    predicate = to_scan_filter(scan_filter)
    missing: TableNotFoundError | None = None
    for candidate in candidates:
        origin = json.dumps({"Catalog": catalog_place([catalog, *candidate])})
        try:
            session._core.register_iceberg_table(table, origin, at, predicate)
            return table
        except TableNotFoundError as error:
            missing = missing or error
    assert missing is not None
    raise missing


def name_parts(name: str) -> list[str]:
    """The parts of a dotted name; a part that contains a dot is in double quotes.

    >>> name_parts('lake.ns."a.b"')
    ['lake', 'ns', 'a.b']
    """
    return next(csv.reader([name], delimiter=".")) if '"' in name else name.split(".")


def _dotted(parts: Sequence[str]) -> str:
    """Join the parts of a name, so that `name_parts` takes them apart again."""
    quoted = ('"' + part.replace('"', '""') + '"' for part in parts)
    return ".".join(
        found if "." in part or '"' in part else part
        for part, found in zip(parts, quoted, strict=True)
    )


def is_iceberg_path(table: str) -> bool:
    """Whether a table is named by a path: of a metadata file, a directory or an object store.

    >>> is_iceberg_path("s3://bucket/t/metadata/00001-a.metadata.json"), is_iceberg_path("lake.ns.t")
    (True, False)
    """
    return "/" in table or table.endswith((".metadata.json", ".metadata.json.gz"))


def is_iceberg_name(session: IcebergTables, table: str) -> bool:
    """Whether a table that nobody registered names an Iceberg table: in a registered catalog, or by a path."""
    first, *rest = name_parts(table)
    return (len(rest) > 1 and first in session.catalogs) or is_iceberg_path(table)


def time_travel(
    snapshot_id: int | None, ref: str | None, as_of: datetime | str | None
) -> dict[str, Any] | str:
    """A point in a table's history, as the core reads it.

    Args:
        snapshot_id: A snapshot.
        ref: A branch or tag.
        as_of: A time; without an offset it is UTC.

    Raises:
        ConfigError: More than one is given, or one is malformed.

    >>> time_travel(None, None, "1970-01-02")
    {'time': 86400000}
    """
    given = [value for value in (snapshot_id, ref, as_of) if value is not None]
    if len(given) > 1:
        raise ConfigError("give one of snapshot_id, ref and as_of")
    if snapshot_id is not None:
        check_snapshot("snapshot_id", snapshot_id)
        return {"snapshot": snapshot_id}
    if ref is not None:
        if not isinstance(ref, str):
            raise ConfigError(
                f"ref={ref!r} must be the name of a branch or tag; a snapshot goes with snapshot_id="
            )
        return {"reference": ref}
    if as_of is None:
        return "current"
    try:
        time = datetime.fromisoformat(as_of) if isinstance(as_of, str) else as_of
    except ValueError:
        time = None
    if not isinstance(time, datetime):
        raise ConfigError(
            f'as_of={as_of!r} must be a datetime, or a string such as "2026-01-31 12:00:00"'
        )
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return {"time": int(time.timestamp() * 1000)}


def check_snapshot(name: str, value: object) -> None:
    """A snapshot id is a whole number of 64 bits.

    Raises:
        ConfigError: It is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63:
        raise ConfigError(f"{name}={value!r} must be a whole number: the id of a snapshot")


def string_properties(properties: Mapping[str, Any]) -> dict[str, str]:
    """Properties as text; a bool becomes "true" or "false". Errors never show a value.

    Raises:
        ConfigError: They are no mapping, or a value is neither string, number nor bool.
    """
    if not isinstance(properties, Mapping):
        raise ConfigError(f"properties must be a dict of strings, got {type(properties).__name__}")
    found: dict[str, str] = {}
    for key, value in properties.items():
        if not isinstance(key, str) or not isinstance(value, (str, int, float, bool)):
            raise ConfigError(
                f"the property {key!r} must be a string, number or bool, got {type(value).__name__}"
            )
        found[key] = str(value).lower() if isinstance(value, bool) else str(value)
    return found


def catalog_place(parts: Sequence[str]) -> dict[str, Any]:
    """A table of a catalog, as the core wants it."""
    return {"catalog": parts[0], "namespace": list(parts[1:-1]), "table": parts[-1]}


def catalog_name(name: str) -> str:
    """Check the name of a catalog.

    Raises:
        ConfigError: It is not one word without a dot.
    """
    if not isinstance(name, str) or not name.strip() or "." in name:
        raise ConfigError(f"a catalog's name must be one word without a dot, got {name!r}")
    return name
