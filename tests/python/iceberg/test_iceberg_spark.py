"""Tables that Spark and Iceberg's Java API wrote are read row for row as Spark reads them, at every recorded
version, whole and through shards. How the tables are made: tests/fixtures/iceberg/make_fixtures.py."""

import re
from datetime import UTC, datetime

import pytest

import iceberg_fixtures as fixtures
import support
import tensorquery as tq

# Avro data files, and types that are not supported: see the refusals below.
REFUSED = {"avro_v2", "variant_v3", "unknown_v3"}
TABLES = [name for name in fixtures.names() if name not in REFUSED and fixtures.versions(name)]
VERSIONS = [
    (name, label)
    for name in TABLES
    for label, version in fixtures.versions(name).items()
    if "ref" not in version
]
REFS = [
    (name, label)
    for name in TABLES
    for label, version in fixtures.versions(name).items()
    if "ref" in version
]


def opened(name, **options):
    """A session with the fixture `name` as table t."""
    session = tq.Session()
    session.register_iceberg_table("t", fixtures.open_fixture(name), **options)
    return session


def test_the_index_is_not_empty():
    assert len(TABLES) >= 20
    assert len(REFS) >= 4
    assert len(VERSIONS) >= 60


# ------------------------------------------------------------------------------------------------
# Rows.


@pytest.mark.parametrize("name", TABLES)
def test_the_newest_snapshot(name):
    found = opened(name).sql("SELECT * FROM t").to_arrow()
    fixtures.assert_same(found, fixtures.truth(name))


@pytest.mark.parametrize(("name", "label"), VERSIONS)
def test_a_snapshot_by_id(name, label):
    """With the schema of that snapshot, as Spark has it."""
    version = fixtures.versions(name)[label]
    session = opened(name, snapshot_id=version["snapshot_id"])
    fixtures.assert_same(session.sql("SELECT * FROM t").to_arrow(), fixtures.truth(name, label))


@pytest.mark.parametrize(("name", "label"), VERSIONS)
def test_a_snapshot_by_id_in_sql(name, label):
    version = fixtures.versions(name)[label]
    query = opened(name).sql(f"SELECT * FROM t FOR VERSION AS OF {version['snapshot_id']}")
    fixtures.assert_same(query.to_arrow(), fixtures.truth(name, label))


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize(("world_size", "workers"), [(1, 0), (3, 0), (2, 2)])
def test_shards_of_small_splits(name, world_size, workers):
    """Splits of a few row groups: every delete finds its rows wherever a file is cut."""
    query = opened(name).sql("SELECT * FROM t")
    expected = fixtures.truth(name)
    options = {"batch_size": 16, "split_rows": max(17, expected.num_rows // 70)}
    shards = support.read_shards(query, world_size, workers, **options)
    batches = support.flat(shards)
    assert sum(batch.num_rows for batch in batches) == expected.num_rows
    fixtures.assert_same(_table(batches, expected), expected)


@pytest.mark.parametrize("name", TABLES)
def test_the_rows_are_counted(name):
    """From metadata where there are no deletes, and else by reading: the number is exact."""
    session, rows = opened(name), fixtures.truth(name).num_rows
    assert session.sql("SELECT * FROM t").count() == rows
    assert session.sql("SELECT count(*) AS n FROM t").to_arrow()["n"].to_pylist() == [rows]


@pytest.mark.parametrize("name", TABLES)
def test_single_columns(name):
    """Only one column is read, so that the columns of equality deletes and filters are not among them."""
    session, expected = opened(name), fixtures.truth(name)
    for column in expected.schema.names:
        quoted = '"' + column.replace('"', '""') + '"'
        found = session.sql(f"SELECT {quoted} FROM t").to_arrow()
        fixtures.assert_same(found, expected.select([column]))


def test_a_table_without_snapshots_has_columns_and_no_rows():
    query = opened("empty").sql("SELECT * FROM t")
    assert query.to_arrow().num_rows == 0
    assert query.to_arrow().schema.names == ["id", "region", "x", "label", "n"]
    assert support.read_shards(query, 2) == [[], []]


def test_the_short_form_reads_a_metadata_file():
    loader, _ = tq.create_dataloader(
        table=fixtures.open_fixture("mor_v2"), output_format="arrow", batch_size=100
    )
    expected = fixtures.truth("mor_v2")
    fixtures.assert_same(_table(loader, expected), expected)


def _table(batches, expected):
    """Batches as one table; nothing but the expected columns where there are none."""
    import pyarrow as pa

    batches = list(batches)
    return pa.Table.from_batches(batches) if batches else expected.slice(0, 0)


# ------------------------------------------------------------------------------------------------
# Time travel.


@pytest.mark.parametrize(("name", "label"), REFS)
def test_tags_and_branches(name, label):
    """A tag with the schema of its time, a branch with today's, as Spark reads them."""
    expected = fixtures.truth(name, label)
    by_option = opened(name, ref=label).sql("SELECT * FROM t")
    fixtures.assert_same(by_option.to_arrow(), expected)
    in_sql = opened(name).sql(f"SELECT * FROM t VERSION AS OF '{label}'")
    fixtures.assert_same(in_sql.to_arrow(), expected)


AS_OF = [
    (name, at, snapshot)
    for name in ("mor_v2", "rolled_back")
    for at, snapshot in fixtures.INDEX[name]["as_of"]
]


@pytest.mark.parametrize(("name", "at", "snapshot"), AS_OF)
def test_a_moment(name, at, snapshot):
    """The snapshot that was current then, also one that was rolled back later."""
    moment = datetime.fromtimestamp(at // 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    moment += f".{at % 1000:03}"
    labels = [
        label
        for label, version in fixtures.versions(name).items()
        if version["snapshot_id"] == snapshot
    ]
    if labels:
        expected = fixtures.truth(name, labels[0])
    else:
        expected = opened(name, snapshot_id=snapshot).sql("SELECT * FROM t").to_arrow()
    in_sql = opened(name).sql(f"SELECT * FROM t FOR TIMESTAMP AS OF '{moment}'")
    fixtures.assert_same(in_sql.to_arrow(), expected)
    by_option = opened(name, as_of=moment).sql("SELECT * FROM t")
    fixtures.assert_same(by_option.to_arrow(), expected)


def test_moments_are_told_apart():
    """Else the test above compares nothing."""
    assert len({snapshot for _, _, snapshot in AS_OF}) >= 9


def test_before_the_first_snapshot():
    with pytest.raises(tq.TensorQueryError, match="2001"):
        opened("mor_v2").sql("SELECT * FROM t FOR TIMESTAMP AS OF '2001-01-01 00:00:00'").to_arrow()


def test_an_expired_snapshot_is_named():
    expired = fixtures.INDEX["expired"]["expired"]
    with pytest.raises(tq.TensorQueryError, match=str(expired)):
        opened("expired").sql(f"SELECT * FROM t FOR VERSION AS OF {expired}").to_arrow()
    with pytest.raises(tq.TensorQueryError, match=str(expired)):
        opened("expired", snapshot_id=expired).sql("SELECT * FROM t").to_arrow()


def test_an_unknown_tag_is_named():
    with pytest.raises(tq.TensorQueryError, match="nightly"):
        opened("mor_v2").sql("SELECT * FROM t VERSION AS OF 'nightly'").to_arrow()


def test_two_versions_in_one_query():
    first = fixtures.versions("changes")["s2"]["snapshot_id"]
    found = opened("changes").sql(
        f"SELECT a.id FROM t FOR VERSION AS OF {first} a LEFT ANTI JOIN t b ON a.id = b.id"
    )
    old, now = (set(fixtures.truth("changes", label)["id"].to_pylist()) for label in ("s2", "now"))
    assert sorted(found.to_arrow()["id"].to_pylist()) == sorted(old - now)
    assert old - now


# ------------------------------------------------------------------------------------------------
# Incremental reads.


@pytest.mark.parametrize("label", fixtures.INDEX["changes"]["incremental"])
def test_appended_rows(label):
    """Appends only: a compaction adds nothing, nor does an overwrite; deletes of the same time are left out."""
    wanted = fixtures.INDEX["changes"]["incremental"][label]
    query = tq.Session().incremental(fixtures.open_fixture("changes"), wanted["from"], wanted["to"])
    fixtures.assert_same(query.to_arrow(), fixtures.truth("changes", label))


def test_a_snapshot_that_is_no_ancestor_is_named():
    abandoned = fixtures.versions("rolled_back")["abandoned"]["snapshot_id"]
    now = fixtures.versions("rolled_back")["now"]["snapshot_id"]
    with pytest.raises(tq.TensorQueryError, match=str(abandoned)):
        tq.Session().incremental(fixtures.open_fixture("rolled_back"), abandoned, now).to_arrow()
    with pytest.raises(tq.ConfigError, match="is an Iceberg table, which has no change data feed"):
        tq.Session().incremental(fixtures.open_fixture("rolled_back"), now, changes=True)


# ------------------------------------------------------------------------------------------------
# Refusals.


def test_avro_data_files_are_refused_by_name():
    with pytest.raises(tq.DataError, match=r"\.avro is in the format avro.*table: t"):
        opened("avro_v2").sql("SELECT * FROM t").to_arrow()


@pytest.mark.parametrize("column", ["_row_id", "_last_updated_sequence_number"])
def test_row_lineage_is_refused_by_name(column):
    with pytest.raises(tq.QueryError, match=f"metadata column {column} is not supported"):
        opened("dv_v3").sql(f"SELECT id, {column} FROM t")


@pytest.mark.parametrize(("name", "column"), [("variant", "v"), ("unknown", "nothing")])
def test_types_of_format_3_are_refused_by_name(name, column):
    with pytest.raises(tq.TensorQueryError) as error:
        opened(f"{name}_v3").sql("SELECT * FROM t").to_arrow()
    message = str(error.value).replace(fixtures.open_fixture(f"{name}_v3"), "")
    assert f'"{column}"' in message
    assert re.search(rf"type \W?{name}", message)
