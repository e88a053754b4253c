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


def compare(many, version):
    session = tq.Session()
    session.register_delta("t", many, version=version)
    query = session.sql("SELECT * FROM t")
    expected = pq.read_table(many / "truth" / f"{version}.parquet")
    assert_same(query.to_arrow(), expected)
    assert query.count() == expected.num_rows
    return query, expected


def test_each_version_has_the_rows_that_spark_reads(many):
    log = os.listdir(many / "_delta_log")
    assert sum(name.endswith(".json") for name in log) == 1000
    assert sum(".checkpoint." in name for name in log) >= 2
    assert len(versions(many)) == 5
    for version in versions(many):
        compare(many, version)


def test_the_newest_version_over_three_ranks(many):
    query, expected = compare(many, versions(many)[-1])
    assert expected.num_rows > 25_000
    shards = support.read_shards(query, 3, 0, batch_size=256)
    assert_same(pa.Table.from_batches(support.flat(shards)), expected)


def test_predicates_over_all_files(many):
    session = tq.Session()
    session.register_delta("t", many)
    session.register_table("truth", pq.read_table(many / "truth" / f"{versions(many)[-1]}.parquet"))
    for predicate in ("id BETWEEN 12340 AND 12399", "x = 7", "id % 997 = 5", "x IS NULL"):
        found = session.sql(f"SELECT * FROM t WHERE {predicate}")
        expected = session.sql(f"SELECT * FROM truth WHERE {predicate}").to_arrow()
        assert_same(found.to_arrow(), expected)


def test_the_log_without_its_checkpoints(many):
    for path in (many / "_delta_log").iterdir():
        if "checkpoint" in path.name:
            path.unlink()
    for version in versions(many)[-2:]:
        compare(many, version)
