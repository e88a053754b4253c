"""Tables that Spark and Delta wrote are read row for row as Spark reads them, at every recorded version, whole, through
small splits and with predicates. How the tables are made: tests/fixtures/delta/make_fixtures.py."""

from datetime import UTC, datetime

import pytest

import delta_fixtures as fixtures
import support
import tensorquery as tq
from iceberg_fixtures import assert_same

REFUSED = {"variant"}
TABLES = [name for name in fixtures.INDEX if name not in REFUSED]
VERSIONS = [(name, version) for name in TABLES for version in fixtures.versions(name)]


def opened(name, **options):
    """A session with the fixture `name` as table t."""
    session = tq.Session()
    session.register_delta("t", fixtures.open_fixture(name), **options)
    return session


def test_the_index_is_not_empty():
    assert len(TABLES) >= 14
    assert len(VERSIONS) >= 50
    assert not set(fixtures.FILTERS) - set(TABLES)


@pytest.mark.parametrize("name", TABLES)
def test_every_version_has_the_rows_that_spark_reads(name):
    session = opened(name)
    for version in fixtures.versions(name):
        query = session.sql(f"SELECT * FROM t FOR VERSION AS OF {version}")
        expected = fixtures.truth(name, version)
        assert_same(query.to_arrow(), expected)
        assert query.count() == expected.num_rows, version
        count = session.sql(f"SELECT count(*) AS n FROM t FOR VERSION AS OF {version}")
        assert count.to_arrow()["n"].to_pylist() == [expected.num_rows], version


@pytest.mark.parametrize("name", TABLES)
def test_small_splits_of_two_ranks_and_two_workers(name):
    """Every deletion vector finds its rows wherever a file is cut."""
    query, expected = opened(name).sql("SELECT * FROM t"), fixtures.truth(name)
    shards = support.read_shards(query, 2, 2, batch_size=16, split_rows=17)
    batches = support.flat(shards)
    import pyarrow as pa

    assert_same(pa.Table.from_batches(batches), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", fixtures.FILTERS)
def test_predicates_lose_and_add_no_row(name):
    """Files, row groups and pages are left out by partition values and statistics; the judge filters Spark's rows."""
    session = opened(name)
    session.register_table("truth", fixtures.truth(name))
    for predicate in fixtures.FILTERS[name]:
        for where in (predicate, f"NOT ({predicate})"):
            found = session.sql(f"SELECT * FROM t WHERE {where}")
            expected = session.sql(f"SELECT * FROM truth WHERE {where}").to_arrow()
            assert_same(found.to_arrow(), expected)
            assert found.count() == expected.num_rows, where


def test_an_uneven_predicate_prunes_files_by_the_log():
    session = opened("clustered")
    pruned = session.sql("SELECT id FROM t FOR VERSION AS OF 2 WHERE id >= 150").explain()
    assert "files=1" in pruned.split("By splits")[0]
    partition = opened("dml").sql("SELECT id FROM t FOR VERSION AS OF 1 WHERE region = 'north'")
    assert "files=1" in partition.explain().split("By splits")[0]


@pytest.mark.parametrize("name", ["dml", "in_commit"])
def test_a_time_finds_the_version_that_was_current_then(name):
    session, times = opened(name), fixtures.times(name)
    assert len(times) >= 5
    for version, time in times.items():
        if times.get(version + 1) == time:
            continue
        text = datetime.fromtimestamp(time / 1000, UTC).isoformat(timespec="milliseconds")
        query = session.sql(f"SELECT * FROM t FOR TIMESTAMP AS OF '{text}'")
        assert_same(query.to_arrow(), fixtures.truth(name, version))
    early = datetime.fromtimestamp(times[0] / 1000 - 10, UTC).isoformat()
    with pytest.raises(tq.ConfigError, match="its history starts at"):
        session.sql(f"SELECT * FROM t FOR TIMESTAMP AS OF '{early}'")


def test_the_fixtures_have_every_kind_of_checkpoint():
    kinds = {
        name: fixtures.INDEX[name]["checkpoint"]
        for name in fixtures.INDEX
        if "checkpoint" in fixtures.INDEX[name]
    }
    assert any(len(file.split(".")) == 5 for file in kinds["parts"])
    assert any(file.endswith(".json") for file in kinds["v2_json"])
    assert any(
        len(file.split(".")) == 4 and file.endswith(".parquet") for file in kinds["v2_parquet"]
    )
    assert kinds["stats_as_columns"]


def test_an_old_version_whose_log_is_gone_is_told():
    with pytest.raises(tq.ConfigError, match="has no version 1; it has versions 3 to 4; the log"):
        opened("stats_as_columns", version=1)


def test_appended_rows_are_those_of_appends():
    session = opened("changes")
    ids = [row["id"] for row in session.incremental("t", 0).to_arrow().to_pylist()]
    assert sorted(ids) == [*range(33)]
    late = session.incremental("t", 1, 4).to_arrow()
    assert sorted(late["id"].to_pylist()) == [*range(20, 30)]
    with pytest.raises(tq.ConfigError, match="not before version"):
        session.incremental("t", 5, 2)


def test_a_feature_that_is_not_read_is_refused_by_name():
    with pytest.raises(tq.UnsupportedTypeError, match="variant"):
        opened("variant")
