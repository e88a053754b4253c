"""Tables that pyiceberg writes, and what it reads in them: what the tests of both directions share."""

import datetime
import uuid
from decimal import Decimal
from itertools import pairwise

import numpy as np
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

import support
import tensorquery as tq
from iceberg_fixtures import assert_same

EPOCH = datetime.datetime(1970, 1, 1)
WORDS = [
    "", "plain", "it's", 'double " quote', "back\\slash", "100%", "under_score", "größe", "日本", "😀", "new\nline",
    "NULL", "x" * 16 + "tail", "x" * 16 + "tale", "😀" * 20,
]  # fmt: skip

FIELDS = {
    "id": LongType(),
    "flag": BooleanType(),
    "i": IntegerType(),
    "l": LongType(),
    "f": FloatType(),
    "d": DoubleType(),
    "d9": DecimalType(9, 2),
    "d18": DecimalType(18, 4),
    "d38": DecimalType(38, 10),
    "day": DateType(),
    "clock": TimeType(),
    "moment": TimestampType(),
    "instant": TimestamptzType(),
    "s": StringType(),
    "raw": BinaryType(),
    "fx": FixedType(4),
    "u": UUIDType(),
}
NESTED = [
    NestedField(30, "tags", ListType(31, StringType(), element_required=False), required=False),
    NestedField(
        32,
        "pair",
        StructType(
            NestedField(33, "x", IntegerType(), required=False),
            NestedField(34, "y", StringType(), required=False),
        ),
        required=False,
    ),
]
SCHEMA = Schema(
    *(
        NestedField(i + 1, name, kind, required=False)
        for i, (name, kind) in enumerate(FIELDS.items())
    ),
    *NESTED,
)


def value(name, n):
    """The n-th value of a column: ascending over n, with negative ones and such that repeat."""
    if name in ("id", "l"):
        return n if name == "id" else (n - 90) * 10**10
    return {
        "flag": lambda: n % 3 == 0,
        "i": lambda: (n - 90) // 2 * 1000,
        "f": lambda: float(np.float32((n - 90) / 8)),
        "d": lambda: (n - 90) / 3,
        "d9": lambda: Decimal(n * 7 - 600).scaleb(-2),
        "d18": lambda: Decimal((n - 90) * 123456789).scaleb(-4),
        "d38": lambda: Decimal((n - 90) * 10**25).scaleb(-10),
        "day": lambda: datetime.date(1969, 11, 1) + datetime.timedelta(n // 2),
        "clock": lambda: (EPOCH + datetime.timedelta(seconds=n * 400, microseconds=n)).time(),
        "moment": lambda: EPOCH + datetime.timedelta(hours=n - 90, microseconds=n - 90),
        "instant": lambda: (
            datetime.datetime(2024, 2, 28, tzinfo=datetime.UTC) + datetime.timedelta(minutes=n * 20)
        ),
        "s": lambda: WORDS[n // 3 % len(WORDS)],
        "raw": lambda: bytes([n // 2, 255 - n % 2]),
        "fx": lambda: bytes([0, n, 255, n % 5]),
        "u": lambda: uuid.UUID(int=n * 2**100 + n).bytes,
    }[name]()


def rows(start, stop, schema=SCHEMA):
    """Rows `start` to `stop` as an Arrow table; every column but id has nulls."""
    columns = {
        name: [
            None if name != "id" and (n + i) % 9 == 8 else value(name, n)
            for n in range(start, stop)
        ]
        for i, name in enumerate(FIELDS)
    }
    columns["tags"] = [None if n % 7 == 6 else [*WORDS[: n % 3], None] for n in range(start, stop)]
    columns["pair"] = [
        None if n % 5 == 4 else {"x": n, "y": WORDS[n % 4]} for n in range(start, stop)
    ]
    wanted = schema.as_arrow()
    arrays = [
        pa.array(columns[field.name], pa.binary(16)).view(pa.binary(16)).cast(pa.binary(16))
        if field.name == "u"
        else pa.array(columns[field.name], field.type)
        for field in wanted
    ]
    arrays = [
        pa.ExtensionArray.from_storage(pa.uuid(), array) if field.name == "u" else array
        for field, array in zip(wanted, arrays, strict=True)
    ]
    return pa.table(arrays, names=wanted.names)


PARTITIONED = {
    "nothing": [],
    "flag": [("flag", IdentityTransform())],
    "words": [("s", IdentityTransform())],
    "decimal": [("d9", TruncateTransform(100))],
    "bytes": [("raw", IdentityTransform())],
    "prefix": [("s", TruncateTransform(3))],
    "numbers": [("i", TruncateTransform(7000)), ("l", BucketTransform(3))],
    "buckets": [("s", BucketTransform(4))],
    "uuid bucket": [("u", BucketTransform(3)), ("fx", BucketTransform(2))],
    "month": [("day", MonthTransform())],
    "day": [("moment", DayTransform())],
    "hour": [("instant", HourTransform())],
    "year": [("moment", YearTransform()), ("day", YearTransform())],
    "date": [("day", IdentityTransform())],
}


def make_lake(folder):
    """A SQL catalog over SQLite in a folder, with namespace ns; `given` are its properties."""
    properties = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
    catalog = SqlCatalog("lake", **properties)
    catalog.create_namespace("ns")
    catalog.given = properties
    return catalog


def typed_tables(lake):
    """A table of 180 rows in three commits per way of partitioning."""
    made = {}
    for number, (label, listed) in enumerate(PARTITIONED.items()):
        fields = [
            PartitionField(SCHEMA.find_field(name).field_id, 1000 + i, transform, f"p{i}")
            for i, (name, transform) in enumerate(listed)
        ]
        properties = {
            "write.parquet.row-group-limit": "16",
            "write.parquet.page-row-limit": "5",
        }
        table = lake.create_table(
            f"ns.typed{number}",
            SCHEMA,
            partition_spec=PartitionSpec(*fields),
            properties=properties,
        )
        for start, stop in pairwise([0, 60, 100, 180]):
            table.append(rows(start, stop))
        made[label] = table
    return made


SIMPLE = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "k", IntegerType(), required=False),
    NestedField(3, "s", StringType(), required=False),
)


def simple(start, stop, **columns):
    data = {
        "id": pa.array(range(start, stop), pa.int64()),
        "k": pa.array([n % 5 for n in range(start, stop)], pa.int32()),
        "s": pa.array([f"s{n % 3}" for n in range(start, stop)]),
    }
    return pa.table({**data, **columns})


def read(table, sql="SELECT * FROM t", **options):
    """Read a pyiceberg table through the session, by its metadata file."""
    session = tq.Session()
    session.register_iceberg_table("t", table.metadata_location, **options)
    return session.sql(sql).to_arrow()


def plain(table):
    """pyiceberg's answer with uuids as the 16 bytes that they are."""
    for i, field in enumerate(table.schema):
        if field.type == pa.uuid():
            chunks = [chunk.storage for chunk in table.column(i).chunks]
            table = table.set_column(i, field.name, pa.chunked_array(chunks, pa.binary(16)))
    return table


def assert_read_alike(table):
    """Whole, and through shards."""
    expected = plain(table.scan().to_arrow())
    assert_same(plain(read(table)), expected)
    session = tq.Session()
    session.register_iceberg_table("t", table.metadata_location)
    shards = support.read_shards(session.sql("SELECT * FROM t"), 3, split_rows=10, batch_size=16)
    batches = support.flat(shards)
    assert sum(batch.num_rows for batch in batches) == expected.num_rows
    if batches:
        assert_same(plain(pa.Table.from_batches(batches)), expected)
