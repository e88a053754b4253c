"""Tables that pyiceberg writes are read as pyiceberg's own scan reads them: whole, after every kind of commit, and
under predicates on every type, whatever the table is partitioned by."""

import datetime
import uuid
from decimal import Decimal
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg import expressions as ex
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


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """A SQL catalog over SQLite, with namespace ns."""
    folder = tmp_path_factory.mktemp("lake")
    properties = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
    catalog = SqlCatalog("lake", **properties)
    catalog.create_namespace("ns")
    catalog.given = properties
    return catalog


def read(table, sql="SELECT * FROM t", **options):
    """What we read in a pyiceberg table, by its metadata file."""
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


# ------------------------------------------------------------------------------------------------
# Predicates.

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


@pytest.fixture(scope="module")
def tables(lake):
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


@pytest.mark.parametrize("partitioned", PARTITIONED)
def test_whole_tables(tables, partitioned):
    assert_read_alike(tables[partitioned])


def literal(name, given):
    """SQL text of a value of a column."""
    if name in ("d9", "d18", "d38"):
        kind = FIELDS[name]
        return f"CAST('{given}' AS DECIMAL({kind.precision}, {kind.scale}))"
    if isinstance(given, bytes):
        return f"X'{given.hex()}'"
    if isinstance(given, str):
        return "'" + given.replace("'", "''") + "'"
    if isinstance(given, datetime.datetime):
        return f"TIMESTAMP '{given.isoformat()}'"
    if isinstance(given, datetime.date):
        return f"DATE '{given.isoformat()}'"
    if isinstance(given, datetime.time):
        return f"arrow_cast('{given.isoformat()}', 'Time64(Microsecond)')"
    return {True: "TRUE", False: "FALSE"}[given] if isinstance(given, bool) else repr(given)


def iceberg_value(given):
    """What pyiceberg takes as a literal."""
    return given.isoformat() if isinstance(given, datetime.datetime | datetime.time) else given


COMPARED = [name for name in FIELDS if name not in ("u", "fx")]
ORDERED = {
    "=": ex.EqualTo,
    "<>": ex.NotEqualTo,
    "<": ex.LessThan,
    "<=": ex.LessThanOrEqual,
    ">": ex.GreaterThan,
    ">=": ex.GreaterThanOrEqual,
}


@st.composite
def comparisons(draw):
    """(pyiceberg expression, SQL) that select the same rows.

    pyiceberg keeps nulls under "not in" and "not starts with", unlike SQL: those say "and not null" in both.
    """
    name = draw(st.sampled_from(COMPARED))
    kinds = [
        *ORDERED,
        "IN",
        "NOT IN",
        "NULL",
        "NOT NULL",
        *(["LIKE", "NOT LIKE"] if name == "s" else []),
    ]
    kind = draw(st.sampled_from(kinds))
    if kind == "NULL":
        return ex.IsNull(name), f"{name} IS NULL"
    if kind == "NOT NULL":
        return ex.NotNull(name), f"{name} IS NOT NULL"
    # Values of the table, and such that lie between them or outside.
    numbers = st.integers(-20, 200) if name in ("id", "i", "l", "f", "d", "d9", "d18", "d38") else st.integers(0, 179)  # fmt: skip
    one = numbers.map(lambda n: value(name, n))
    if kind in ORDERED:
        given = draw(one)
        return ORDERED[kind](name, iceberg_value(given)), f"{name} {kind} {literal(name, given)}"
    if kind.endswith("LIKE"):
        start = draw(one)[: draw(st.integers(1, 17))] or "x"
        escaped = start.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        sql = f"s {kind} {literal('s', escaped + '%')}"
        if kind == "LIKE":
            return ex.StartsWith("s", start), sql
        return ex.And(ex.NotStartsWith("s", start), ex.NotNull("s")), f"{sql} AND s IS NOT NULL"
    # A set of one value is made an equality by pyiceberg.
    several = draw(st.lists(one, min_size=2, max_size=4, unique=True))
    listed = ", ".join(literal(name, given) for given in several)
    values = [iceberg_value(given) for given in several]
    if kind == "IN":
        return ex.In(name, values), f"{name} IN ({listed})"
    return (
        ex.And(ex.NotIn(name, values), ex.NotNull(name)),
        f"{name} NOT IN ({listed}) AND {name} IS NOT NULL",
    )


predicates = st.recursive(
    comparisons(),
    lambda inner: st.tuples(inner, st.sampled_from([(ex.And, "AND"), (ex.Or, "OR")]), inner).map(
        lambda parts: (
            parts[1][0](parts[0][0], parts[2][0]),
            f"({parts[0][1]}) {parts[1][1]} ({parts[2][1]})",
        )
    ),
    max_leaves=3,
)


@settings(max_examples=300)
@given(predicate=predicates, partitioned=st.sampled_from(list(PARTITIONED)))
def test_predicates(tables, predicate, partitioned):
    """Against pyiceberg's scan of the same rows without partitions: with them it fails on null partitions."""
    expression, sql = predicate
    expected = tables["nothing"].scan(row_filter=expression, selected_fields=("id",)).to_arrow()
    assert_same(read(tables[partitioned], f"SELECT id FROM t WHERE {sql}"), expected)


@pytest.mark.parametrize("name", COMPARED)
def test_an_equality_with_each_value(tables, name):
    """Every value of a column, so that no file is pruned that holds it."""
    partitioned = {field for listed in PARTITIONED.values() for field, _ in listed}
    labels = ["nothing"] + [
        label for label, listed in PARTITIONED.items() if name in {field for field, _ in listed}
    ]
    assert len(labels) > 1 or name not in partitioned
    for label in labels:
        session = tq.Session()
        session.register_iceberg_table("t", tables[label].metadata_location)
        everything = tables[label].scan(selected_fields=("id", name)).to_arrow().to_pylist()
        for one in {row[name] for row in everything[::4]} - {None}:
            found = session.sql(f"SELECT id FROM t WHERE {name} = {literal(name, one)}")
            expected = sorted(row["id"] for row in everything if row[name] == one)
            assert sorted(found.to_arrow()["id"].to_pylist()) == expected


# ------------------------------------------------------------------------------------------------
# Commits of every kind.

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


@pytest.mark.parametrize("by", ["nothing", "identity"])
def test_a_history_of_commits(lake, by):
    spec = PartitionSpec(
        *([PartitionField(2, 1000, IdentityTransform(), "k")] if by == "identity" else [])
    )
    table = lake.create_table(f"ns.history_{by}", SIMPLE, partition_spec=spec)
    assert read(table).num_rows == 0
    table.append(simple(0, 50))
    assert_read_alike(table)
    table.delete("k == 3 and id > 20")
    assert_read_alike(table)
    table.overwrite(simple(50, 80), overwrite_filter="id < 10")
    assert_read_alike(table)
    table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "kept").commit()
    table.upsert(simple(70, 100, s=pa.array(["up"] * 30)), join_cols=["id"])
    assert_read_alike(table)
    if by == "identity":
        table.dynamic_partition_overwrite(simple(200, 203))
        assert_read_alike(table)
    for snapshot in table.snapshots():
        at = snapshot.snapshot_id
        assert_same(read(table, snapshot_id=at), table.scan(snapshot_id=at).to_arrow())
    tagged = table.scan().use_ref("kept").to_arrow()
    assert_same(read(table, ref="kept"), tagged)
    assert_same(read(table, "SELECT * FROM t VERSION AS OF 'kept'"), tagged)


def test_schema_changes(lake):
    table = lake.create_table("ns.evolving", SIMPLE)
    table.append(simple(0, 20))
    with table.update_schema() as change:
        change.update_column("k", LongType())
        change.rename_column("k", "key")
        change.move_first("s")
    assert_read_alike(table)
    with table.update_schema() as change:
        change.add_column("k", StringType())
    assert_read_alike(table)
    table.append(
        pa.table({
            "s": ["new"] * 5,
            "id": pa.array(range(20, 25), pa.int64()),
            "key": pa.array([2**40] * 5, pa.int64()),
            "k": ["text"] * 5,
        })
    )  # fmt: skip
    with table.update_schema() as change:
        change.delete_column("s")
        change.add_column("pair", StructType(NestedField(90, "x", IntegerType(), required=False)))
    assert_read_alike(table)
    with table.update_schema() as change:
        change.add_column("s", IntegerType())
        change.add_column(("pair", "y"), StringType())
    assert_read_alike(table)
    assert read(table, "SELECT id FROM t WHERE s IS NULL").num_rows == 25
    assert read(table, "SELECT id FROM t WHERE key > 1000").num_rows == 5


def test_partitioning_changes(lake):
    table = lake.create_table("ns.repartitioned", SIMPLE)
    table.append(simple(0, 20))
    with table.update_spec() as change:
        change.add_field("k", IdentityTransform(), "by_k")
    table.append(simple(20, 40))
    with table.update_spec() as change:
        change.remove_field("by_k")
        change.add_field("s", TruncateTransform(1), "by_s")
    table.append(simple(40, 60))
    assert_read_alike(table)
    for k in range(6):
        expected = table.scan(row_filter=ex.EqualTo("k", k)).to_arrow()
        assert_same(read(table, f"SELECT * FROM t WHERE k = {k}"), expected)


def test_added_files_are_mapped_by_name(lake, tmp_path):
    table = lake.create_table("ns.added", SIMPLE)
    # The columns in another order, one missing, one that the table does not know.
    pq.write_table(simple(0, 20).select(["s", "id"]), tmp_path / "a.parquet")
    pq.write_table(simple(20, 30), tmp_path / "b.parquet", row_group_size=3)
    table.add_files([str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet")])
    assert_read_alike(table)
    with table.update_schema() as change:
        change.rename_column("s", "text")
    assert_read_alike(table)
    assert read(table, "SELECT id FROM t WHERE text = 's1'").num_rows == 10


# ------------------------------------------------------------------------------------------------
# The catalog, and pinned snapshots.


def test_a_table_of_the_catalog(lake, tables):
    session = tq.Session()
    session.register_iceberg("lake", {"type": "sql", **lake.given})
    expected = tables["nothing"].scan(selected_fields=("id", "s")).to_arrow()
    assert_same(session.sql("SELECT id, s FROM lake.ns.typed0").to_arrow(), expected)


def test_commits_change_nothing_that_is_planned(lake):
    """An append and a delete between planning and reading, and between two epochs."""
    table = lake.create_table("ns.pinned", SIMPLE)
    table.append(simple(0, 40))
    session = tq.Session()
    session.register_iceberg("lake", {"type": "sql", **lake.given})
    query = session.sql("SELECT id FROM lake.ns.pinned")
    loader, dataset = tq.create_dataloader(query, batch_size=7, output_format="dict", split_rows=10)

    def epoch():
        return sorted(one for batch in loader for one in batch["id"])

    table.append(simple(40, 60))
    table.delete("id < 5")
    assert epoch() == list(range(40))
    table.append(simple(60, 70))
    table.delete("id >= 20")
    dataset.set_epoch(1)
    assert epoch() == list(range(40))
    # A new query sees the table as it is now.
    assert sorted(
        session.sql("SELECT id FROM lake.ns.pinned").to_arrow()["id"].to_pylist()
    ) == list(range(5, 20))
