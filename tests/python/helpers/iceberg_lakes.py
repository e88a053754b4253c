"""A catalog of each type with a table in it, written by pyiceberg, which also says what is right."""

from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from iceberg_servers import KEY, REGION, SECRET, fresh, make_s3tables_table, make_table

KINDS = ["rest", "sqlite", "postgres", "glue", "s3tables", "hive"]
SERVED = {*KINDS} - {"sqlite"}
"""Catalogs that need a server."""
NESTED_KINDS = ["rest", "sqlite", "postgres"]
"""Glue, S3 Tables and Hive know namespaces of one level only."""

SECRETS = [SECRET, "s3cret", "pass/word", "pass%2Fword", "wr0ng"]
"""Texts that no message may repeat."""


@dataclass
class Lake:
    """A catalog that we read, and how pyiceberg writes and reads it."""

    # For `Session.register_iceberg` and `catalog_config`.
    properties: dict
    # A pyiceberg catalog; None for S3 Tables, which pyiceberg does not know.
    writer: Any = None
    # The server behind it, where a test asks it something.
    server: Any = None
    # The metadata of S3 Tables' tables, by name.
    metadata: dict = field(default_factory=dict)

    def make(self, name, table, **options):
        """Make a table; see `iceberg_servers.make_table`."""
        if self.writer is not None:
            return make_table(self.writer, name, table, **options)
        bucket, location = make_s3tables_table(self.server, name, table, **options)
        self.properties["warehouse"] = bucket
        self.metadata[name] = location
        return None

    def read(self, name):
        """The rows of a table as pyiceberg reads them, ordered by `id`."""
        return self.table(name).scan().to_arrow().sort_by("id")

    def table(self, name):
        """The pyiceberg table."""
        from pyiceberg.table import StaticTable

        if self.writer is not None:
            return self.writer.load_table(name)
        return StaticTable.from_metadata(self.metadata[name], self.server.properties())


def lake_of(kind, request):
    """A catalog of type `kind`; `request` is pytest's."""
    return _MAKERS[kind](request)


def _load(name="lake", **properties):
    from pyiceberg.catalog import load_catalog

    return load_catalog(name, **properties)


def _rest(request):
    rest = request.getfixturevalue("rest")
    properties = {"type": "rest", "uri": rest.realm().uri, **rest.cloud.properties()}
    return Lake(properties, rest.writer(), rest)


def _sqlite(request):
    folder = request.getfixturevalue("tmp_path_factory").mktemp("sqlite")
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"file://{folder}",
    }
    return Lake(properties, _load(**properties))


def _postgres(request):
    folder = request.getfixturevalue("tmp_path_factory").mktemp("postgres")
    uri = request.getfixturevalue("postgres").database()
    properties = {"type": "sql", "uri": uri, "warehouse": f"file://{folder}"}
    return Lake(properties, _load(**properties))


def _glue(request):
    cloud = request.getfixturevalue("cloud")
    properties = {
        "type": "glue",
        "glue.endpoint": cloud.store,
        "glue.region": REGION,
        "glue.access-key-id": KEY,
        "glue.secret-access-key": SECRET,
        "warehouse": f"s3://lake/{fresh('glue')}",
        **cloud.properties(),
    }
    return Lake(properties, _load(**properties), cloud)


def _s3tables(request):
    cloud = request.getfixturevalue("cloud")
    properties = {
        "type": "s3tables",
        "s3tables.endpoint": cloud.store,
        "s3tables.access-key-id": KEY,
        "s3tables.secret-access-key": SECRET,
        **cloud.properties(),
    }
    return Lake(properties, None, cloud)


def _hive(request):
    hive = request.getfixturevalue("hive")
    properties = {"type": "hive", "uri": hive.uri, "warehouse": hive.warehouse}
    return Lake(properties, _load(**properties))


_MAKERS = {
    "rest": _rest,
    "sqlite": _sqlite,
    "postgres": _postgres,
    "glue": _glue,
    "s3tables": _s3tables,
    "hive": _hive,
}


def sample(rows=60, start=0):
    """A table of the types that every catalog can describe, with nulls; `id` starts at `start`."""
    ids = range(start, start + rows)
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "s": pa.array([None if i % 7 == 3 else f"größe '{i}'" for i in ids]),
            "price": pa.array([Decimal(i).scaleb(-2) for i in ids], pa.decimal128(9, 2)),
            "day": pa.array([date(2026, 1, 1) + timedelta(i) for i in ids]),
            "moment": pa.array(
                [moment + timedelta(seconds=i) for i in ids], pa.timestamp("us", tz="UTC")
            ),
            "flag": pa.array([None if i % 5 == 1 else i % 2 == 0 for i in ids]),
            "v": pa.array([i / 8 for i in ids], pa.float64()),
        }
    )


def rows(table):
    """The rows of an Arrow table as Python objects, ordered by `id`."""
    return table.sort_by("id").to_pylist()


def ids(batches):
    """Column `id` of all batches of a loader, ordered."""
    return sorted(number for batch in batches for number in batch["id"].tolist())


def assert_private(*texts):
    """None of the texts repeats a secret."""
    for text in texts:
        for secret in SECRETS:
            assert secret not in str(text)
