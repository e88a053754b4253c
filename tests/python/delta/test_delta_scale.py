"""Promise 1 (docs/promises.md) over a table of 10,000 files in 1,000 commits, which Spark wrote and deleted from: the rows that
Spark reads at versions before, at and after the checkpoints, from the log with its checkpoints and without them."""

import os
import shutil
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import delta_fixtures as fixtures
import support
import tensorquery as tq
from effort import LONG
from iceberg_fixtures import assert_same

# A loader of all files is not made in less.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """The table's directory; the tests may take files of its log away."""
    folder = tmp_path_factory.mktemp("many")
    with tarfile.open(fixtures.FOLDER / "many.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    yield folder / "many"
    shutil.rmtree(folder)


def versions(many):
    return sorted(int(path.stem) for path in (many / "truth").iterdir())


def opened(many, version):
    session = tq.Session()
    session.register_delta("t", many, version=version)
    return session.sql("SELECT * FROM t")


def truth(many, version):
    return pq.read_table(many / "truth" / f"{version}.parquet")


def compare(many, version):
    query, expected = opened(many, version), truth(many, version)
    assert_same(query.to_arrow(), expected)
    assert query.count() == expected.num_rows


def test_each_version_has_the_rows_that_spark_reads(many):
    log = os.listdir(many / "_delta_log")
    assert sum(name.endswith(".json") for name in log) == 1000
    assert sum(".checkpoint." in name for name in log) >= 2
    assert len(versions(many)) == 5
    # Before, at and after the checkpoints.
    for version in versions(many) if LONG else versions(many)[::2]:
        compare(many, version)


def test_the_newest_version_over_three_ranks(many):
    version = versions(many)[-1]
    query, expected = opened(many, version), truth(many, version)
    assert expected.num_rows > 25_000
    shards = support.read_shards(query, 3, 0, batch_size=256)
    assert_same(pa.Table.from_batches(support.flat(shards)), expected)


def test_predicates_over_all_files(many):
    session = tq.Session()
    session.register_delta("t", many)
    session.register_table("truth", truth(many, versions(many)[-1]))
    for predicate in ("id BETWEEN 12340 AND 12399", "x = 7", "id % 997 = 5", "x IS NULL"):
        found = session.sql(f"SELECT * FROM t WHERE {predicate}")
        expected = session.sql(f"SELECT * FROM truth WHERE {predicate}").to_arrow()
        assert_same(found.to_arrow(), expected)


def test_the_log_without_its_checkpoints(many):
    for path in (many / "_delta_log").iterdir():
        if "checkpoint" in path.name:
            path.unlink()
    for version in versions(many)[-2 if LONG else -1 :]:
        compare(many, version)
