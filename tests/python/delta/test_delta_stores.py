"""Delta tables in an object store are found and read as on disk, by the options and credentials that files take, and without
a request more than the log, the deletion vectors and the data need."""

from pathlib import Path

import pytest

import delta_fixtures as fixtures
import support
import tensorquery as tq
from iceberg_fixtures import assert_same
from storage_servers import s3_store


@pytest.fixture(scope="module")
def store():
    with s3_store() as store:
        for name in ("dml", "v2_parquet"):
            place = Path(fixtures.open_fixture(name))
            files = [
                path for path in place.rglob("*") if path.is_file() and "truth" not in path.parts
            ]
            store.put(
                "lake", {f"{name}/{path.relative_to(place)}": path.read_bytes() for path in files}
            )
        yield store


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dml", "v2_parquet"])
def test_a_table_is_read_by_each_way_to_name_it(store, name):
    place, expected = f"s3://lake/{name}", fixtures.truth(name)
    session = tq.Session()
    session.register_delta("t", place, storage_options=store.options())
    query = session.sql("SELECT * FROM t")
    assert_same(query.to_arrow(), expected)
    ids = sorted(expected["id"].to_pylist())
    shards = support.read_shards(query, 2, 2, batch_size=16, split_rows=30)
    assert sorted(row for batch in support.flat(shards) for row in batch["id"].to_pylist()) == ids
    by_path = tq.Session(storage_options=store.options()).sql(f"SELECT * FROM '{place}/'")
    assert_same(by_path.to_arrow(), expected)
    loader, _ = tq.create_dataloader(
        table=place, format="delta", storage_options=store.options(), columns=["id"]
    )
    assert sorted(row for batch in loader for row in batch["id"].tolist()) == ids


def test_credentials_come_from_a_provider(store):
    keys = {"key": store.key, "secret": store.secret}
    session = tq.Session()
    session.register_delta(
        "t",
        "s3://lake/dml",
        storage_options=store.place(),
        credential_provider=lambda url: keys,
    )
    assert session.sql("SELECT * FROM t").count() == fixtures.truth("dml").num_rows


def test_a_version_costs_its_log_and_nothing_else(store):
    before = len(store.guard.seen())
    session = tq.Session()
    session.register_delta("t", "s3://lake/dml", version=7, storage_options=store.options())
    # A listing, a checkpoint and two commits; a checkpoint is read in a few requests.
    assert len(store.guard.seen()) - before <= 8
