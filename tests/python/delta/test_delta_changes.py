"""The change data feed gives the rows that commits inserted, deleted and updated, as Spark tells them: from files of changes, from
files that came and went, and from deletion vectors that grew and shrank. The second judge is deltalake."""

import json

import deltalake
import pyarrow as pa
import pytest

import delta_fixtures as fixtures
import support
import tensorquery as tq
from iceberg_fixtures import assert_same

# Versions of the table "feed" whose changes Spark recorded; after them the feed is off.
LAST = 8


def opened(name="feed"):
    session = tq.Session()
    session.register_delta("t", fixtures.open_fixture(name))
    return session


@pytest.fixture(scope="module")
def truth():
    """What Spark tells, in the order of columns in which changes come."""
    return fixtures.truth("feed", "changes")


def between(truth, start, stop):
    """The changes after version `start` up to `stop`."""
    session = tq.Session()
    session.register_table("truth", truth)
    return session.sql(
        f"SELECT * FROM truth WHERE _commit_version > {start} AND _commit_version <= {stop}"
    ).to_arrow()


@pytest.mark.slow
def test_changes_are_those_of_spark(truth):
    session = opened()
    kinds = set(truth["_change_type"].to_pylist())
    assert kinds == {"insert", "delete", "update_preimage", "update_postimage"}
    assert_same(session.incremental("t", 0, LAST, changes=True).to_arrow(), truth)
    for start, stop in [*((version, version + 1) for version in range(LAST)), (2, 5), (3, LAST)]:
        found = session.incremental("t", start, stop, changes=True)
        expected = between(truth, start, stop)
        assert found.count() == expected.num_rows, (start, stop)
        assert_same(found.to_arrow(), expected)


def test_predicates_and_small_splits_find_the_same_changes(truth):
    session, judge = opened(), tq.Session()
    judge.register_table("t", truth)
    feed = session.incremental("t", 0, LAST, changes=True)
    for where in (
        "_change_type = 'delete'",
        "_change_type <> 'insert' AND id % 2 = 0",
        "_commit_version IN (2, 7) AND p = 0",
        "_commit_timestamp > TIMESTAMP '1970-01-01' AND v = 'changed'",
        "p = 1 OR id < 7",
    ):
        query = feed.select(filters=where)
        expected = judge.sql(f"SELECT * FROM t WHERE {where}").to_arrow()
        assert expected.num_rows
        assert_same(query.to_arrow(), expected)
        shards = support.read_shards(query, 2, 2, batch_size=7, split_rows=5)
        assert_same(pa.Table.from_batches(support.flat(shards)), expected)


def test_a_run_over_changes_is_resumed():
    expected = sorted(opened().incremental("t", 1, LAST, changes=True).to_arrow()["id"].to_pylist())
    loader, _ = tq.create_dataloader(
        opened().incremental("t", 1, LAST, changes=True), batch_size=4, shuffle=True
    )
    steps = iter(loader)
    before = [row for _ in range(3) for row in next(steps)["id"].tolist()]
    state = json.loads(json.dumps(loader.state_dict()))
    del steps
    resumed, _ = tq.create_dataloader(
        opened().incremental("t", 1, LAST, changes=True), batch_size=4, shuffle=True
    )
    resumed.load_state_dict(state)
    after = [row for batch in resumed for row in batch["id"].tolist()]
    assert sorted(before + after) == expected
    rows, _ = tq.create_dataloader(opened().incremental("t", 1, LAST), batch_size=4, shuffle=True)
    with pytest.raises(tq.TensorQueryError):
        rows.load_state_dict(state)
        list(rows)


def test_the_second_judge_agrees():
    """deltalake has other times: those in commits."""
    names = ["id", "v", "_change_type", "_commit_version"]
    table = deltalake.DeltaTable(fixtures.open_fixture("changes"))
    found = opened("changes").incremental("t", 0, changes=True).to_arrow()
    expected = pa.table(table.load_cdf(starting_version=1)).select(names)
    assert_same(found.select(names), expected.cast(found.select(names).schema))
    times = {row["_commit_version"]: row["_commit_timestamp"] for row in found.to_pylist()}
    recorded = fixtures.times("changes")
    for version, time in times.items():
        assert round(time.timestamp() * 1000) == recorded[version]


def test_what_has_no_changes_is_told_by_name(tmp_path):
    session = opened()
    with pytest.raises(
        tq.ConfigError, match=f"kept no changes at version {LAST + 1}.*enableChange"
    ):
        session.incremental("t", 0, changes=True)
    with pytest.raises(tq.ConfigError, match=r"kept no changes at version 1"):
        opened("dml").incremental("t", 0, 2, changes=True)
    with pytest.raises(tq.ConfigError, match="not before version"):
        session.incremental("t", 5, 2, changes=True)
    with pytest.raises(tq.ConfigError, match="changes='yes'"):
        session.incremental("t", 0, changes="yes")
    place = str(tmp_path / "t")
    deltalake.write_deltalake(
        place,
        pa.table({"_change_type": [1]}),
        configuration={"delta.enableChangeDataFeed": "false"},
    )
    log = tmp_path / "t" / "_delta_log" / f"{0:020}.json"
    log.write_text(log.read_text().replace('Feed":"false"', 'Feed":"true"'))
    with pytest.raises(tq.ConfigError, match=r'a column "_change_type".*of their own'):
        session.register_delta("own", place)
        session.incremental("own", 0, changes=True)
