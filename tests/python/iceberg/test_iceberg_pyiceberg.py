"""Tables that pyiceberg writes are read as pyiceberg's own scan reads them: whole, through shards, and
under predicates on every type, whatever the table is partitioned by."""

import datetime
import decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg import expressions as ex
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

import tensorquery as tq
from effort import cases
from iceberg_fixtures import assert_same
from pyiceberg_tables import (
    FIELDS,
    PARTITIONED,
    assert_read_alike,
    make_lake,
    read,
    typed_tables,
    value,
)
from tensorquery.sql.filters.pyiceberg_expression import to_scan_filter


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    return typed_tables(make_lake(tmp_path_factory.mktemp("lake")))


@pytest.mark.slow
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
    """A value as pyiceberg takes it for a literal."""
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


@pytest.mark.slow
@settings(max_examples=cases(34))
@given(predicate=predicates, partitioned=st.sampled_from(list(PARTITIONED)))
def test_predicates(tables, predicate, partitioned):
    """Against pyiceberg's scan of the same rows without partitions: with them it fails on null partitions."""
    expression, sql = predicate
    expected = tables["nothing"].scan(row_filter=expression, selected_fields=("id",)).to_arrow()
    assert_same(read(tables[partitioned], f"SELECT id FROM t WHERE {sql}"), expected)


@pytest.mark.slow
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
# Files.


def planned(table, scan_filter):
    """The names of the data files that are read, by our plan and by pyiceberg's."""
    session = tq.Session()
    session.register_iceberg_table("t", table.metadata_location, scan_filter=scan_filter)
    plan = session.sql("SELECT * FROM t").plan_shards(world_size=1)
    ours = {split.path.rsplit("/", 1)[-1] for split in plan.splits()}
    theirs = {
        task.file.file_path.rsplit("/", 1)[-1] for task in table.scan(scan_filter).plan_files()
    }
    return ours, theirs


@pytest.mark.parametrize("partitioned", PARTITIONED)
@pytest.mark.parametrize(
    "expression",
    [
        ex.LessThan("id", 30),
        ex.EqualTo("i", -45000),
        ex.In("l", [-90 * 10**10, 10 * 10**10]),
        ex.EqualTo("s", "plain"),
        ex.GreaterThanOrEqual("day", "1970-01-01"),
        ex.And(ex.LessThan("moment", "1970-01-01T00:00:00"), ex.NotNull("s")),
        ex.Or(ex.EqualTo("id", 7), ex.EqualTo("id", 170)),
        ex.Not(ex.LessThan("id", 100)),
        ex.Or(ex.NotNaN("f"), ex.IsNaN("f")),
        ex.LessThan("clock", datetime.time(1)),
    ],
    ids=str,
)
def test_a_scan_filter_leaves_out_files_as_pyiceberg_does(tables, partitioned, expression):
    """And only files: their other rows are read."""
    ours, theirs = planned(tables[partitioned], expression)
    assert ours == theirs


def test_a_decimal_with_an_exponent_has_all_its_digits():
    given = ex.EqualTo("d", decimal.Decimal("1E+3"))
    assert to_scan_filter(given) == "\"d\" = CAST('1000' AS DECIMAL(4, 0))"


# ------------------------------------------------------------------------------------------------
# Identifier fields are a set, which has another order each time that a table is loaded.


def keyed(metadata):
    session = tq.Session()
    session.register_iceberg_table("t", metadata)
    return session.sql("SELECT c1 FROM t")


@pytest.mark.slow
def test_several_identifier_fields_give_one_fingerprint_and_each_row_once(tmp_path):
    fields = [NestedField(i, f"c{i}", LongType(), required=True) for i in range(1, 8)]
    schema = Schema(*fields, identifier_field_ids=[1, 2, 3, 4, 5, 6])
    columns = pa.schema([pa.field(field.name, pa.int64(), nullable=False) for field in fields])
    lake = make_lake(tmp_path)
    table = lake.create_table("ns.keyed", schema=schema)
    for start in range(0, 60, 20):
        rows = {name: list(range(start, start + 20)) for name in columns.names}
        table.append(pa.table(rows, schema=columns))
    metadata = table.metadata_location
    assert len({keyed(metadata).plan_shards().fingerprint for _ in range(8)}) == 1
    options = {"shuffle": "global", "world_size": 3, "batch_size": 5}
    found, states = [], []
    for rank in range(3):
        loader, _ = tq.create_dataloader(keyed(metadata), rank=rank, **options)
        batches = iter(loader)
        found += [value for _ in range(2) for value in next(batches)["c1"].tolist()]
        states.append(loader.state_dict())
    # A resumed run loads the table anew.
    for rank in range(3):
        loader, _ = tq.create_dataloader(keyed(metadata), rank=rank, **options)
        loader.load_state_dict(states[rank])
        found += [value for batch in loader for value in batch["c1"].tolist()]
    assert sorted(found) == list(range(60))
