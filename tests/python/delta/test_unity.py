"""Delta tables of a Unity Catalog: names, versions, and the credentials that it gives, which are renewed before they end and when
a store refuses them. The catalog is a small server of the tests; the store is moto behind a gate that knows which keys are valid."""

import json
import pickle
import time
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

import tensorquery as tq
from storage_servers import s3_store, web_server
from unity_server import aws, unity_server

FILES, ROWS = 12, 120


def rows(start, stop):
    return pa.table({"id": range(start, stop), "part": [row % FILES for row in range(start, stop)]})


@pytest.fixture
def unity():
    with unity_server() as unity:
        yield unity


@pytest.fixture
def local(unity, tmp_path):
    """A table of two versions on local disk, 40 rows."""
    place = tmp_path / "an event"
    for start in (0, 20):
        deltalake.write_deltalake(str(place), rows(start, start + 20), mode="append")
    unity.add("main.shop.events", place.as_uri())
    for name in ("a", "b"):
        unity.add(f"main.shop.{name}", place.as_uri())
    unity.add("main.other.t", place.as_uri())
    return place


def session_of(unity, name="main", **more):
    session = tq.Session(memory_limit="8KiB")
    session.register_unity(name, unity.properties(), **more)
    return session


def ids_of(batches):
    return sorted(row for batch in batches for row in batch["id"].tolist())


@pytest.mark.slow
def test_tables_are_named_listed_and_travelled_in_as_in_other_catalogs(unity, local):
    session = session_of(unity)
    assert session.catalogs == ["main"]
    assert session.list_iceberg("main") == ["main.other.", "main.shop."]
    assert session.list_iceberg("main.shop") == ["main.shop.a", "main.shop.b", "main.shop.events"]
    assert session.sql("SELECT * FROM main.shop.events").count() == 40
    past = session.sql("SELECT * FROM main.shop.events FOR VERSION AS OF 0")
    assert sorted(past.to_arrow()["id"].to_pylist()) == list(range(20))
    history = session.sql('SELECT version FROM main.shop."events$history"').to_arrow()
    assert history["version"].to_pylist() == [0, 1]
    assert session.sql('SELECT * FROM main.shop."events$files" FOR VERSION AS OF 0').count() == 1
    late = session.incremental("main.shop.events", 0).to_arrow()
    assert sorted(late["id"].to_pylist()) == list(range(20, 40))
    session.register_delta("old", "main.shop.events", version=0)
    assert session.sql("SELECT * FROM old").count() == 20
    assert session.sql('SELECT version FROM "old$history"').count() == 2
    named = tq.Session()
    named.register_unity("house", unity.properties(catalog="main"))
    loader, _ = tq.create_dataloader(table="house.shop.events", session=named, batch_size=7)
    assert ids_of(loader) == list(range(40))


def test_a_state_names_the_version_and_a_refresh_moves_on(unity, local):
    options = {"batch_size": 4, "shuffle": True}
    query = "SELECT id FROM main.shop.events"
    loader, _ = tq.create_dataloader(query, session=session_of(unity), **options)
    steps = iter(loader)
    before = ids_of(next(steps) for _ in range(3))
    state = json.loads(json.dumps(loader.state_dict()))
    del steps
    deltalake.write_deltalake(str(local), rows(40, 50), mode="append")
    resumed, dataset = tq.create_dataloader(query, session=session_of(unity), **options)
    resumed.load_state_dict(state)
    assert sorted(before + ids_of(resumed)) == list(range(40))
    (change,) = dataset.refresh()
    assert (change.table, change.before, change.after) == ("main.shop.events", 1, 2)
    assert ids_of(resumed) == list(range(50))


@pytest.mark.slow
def test_what_is_not_read_is_refused_by_name(unity, local):
    unity.add("main.shop.parquet", "s3://lake/t", data_source_format="PARQUET")
    unity.add("main.shop.view", None, table_type="VIEW", data_source_format=None)
    unity.add("main.shop.dbfs", "dbfs:/user/t")
    unity.add("main.shop.web", "https://example.com/t")
    session = session_of(unity)
    for table, told in {
        "shop.parquet": ["format PARQUET", "s3://lake/t", "register_parquet"],
        "shop.view": ["is a view"],
        "shop.dbfs": ["dbfs:/user/t", "S3, Google Cloud Storage, Azure"],
        "shop.web": ["https://example.com/t", "S3, Google Cloud Storage, Azure"],
        "shop.event": ["unknown table shop.event", '"events"'],
        "shops.events": ["unknown namespace shops", '"shop"'],
        "a.b.events": ["unknown"],
    }.items():
        with pytest.raises(tq.TensorQueryError) as caught:
            session.sql(f"SELECT * FROM main.{table}")
        for part in [*told, "main"]:
            assert part in str(caught.value), table
    with pytest.raises(tq.TableNotFoundError, match='no catalog "mian".*property "catalog"'):
        other = tq.Session()
        other.register_unity("mian", unity.properties())
        other.list_iceberg("mian")
    for properties, told in [
        ({}, "uri"),
        ({"uri": "unity.example.com"}, "http://"),
        ({"uri": unity.uri, "tokn": "x"}, '"token"'),
        ({"uri": unity.uri, "s3.region": "x"}, "storage_options"),
        ({"uri": unity.uri, "type": "rest"}, "register_iceberg"),
    ]:
        with pytest.raises(tq.ConfigError, match=told):
            session.register_unity("other", properties)
            session.sql("SELECT * FROM other.shop.events")


def test_the_token_stays_with_its_origin_and_out_of_errors(unity, local):
    wrong = tq.Session()
    wrong.register_unity("main", unity.properties(token="dapi-wrong-one"))
    with pytest.raises(tq.StorageError, match="401.*token") as caught:
        wrong.sql("SELECT * FROM main.shop.events")
    assert "dapi-wrong-one" not in str(caught.value)
    with web_server() as other:
        unity.elsewhere = other.uri
        with pytest.raises(tq.TensorQueryError):
            session_of(unity).sql("SELECT * FROM main.shop.events")
        assert other.seen
        for _, _, headers in other.seen:
            assert unity.token not in str(headers)


# ------------------------------------------------------------------------------------------------
# Credentials.


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A table of many small files in S3."""
    place = tmp_path_factory.mktemp("unity") / "t"
    deltalake.write_deltalake(str(place), rows(0, ROWS), partition_by=["part"])
    files = [path for path in Path(place).rglob("*") if path.is_file()]
    with s3_store() as store:
        store.put("lake", {f"t/{path.relative_to(place)}": path.read_bytes() for path in files})
        yield store


@pytest.fixture
def vending(unity, store):
    """The catalog, which gives keys for the table for as many seconds as `unity.seconds`."""
    unity.seconds = 3600
    unity.add("main.shop.t", "s3://lake/t")
    unity.vend = lambda _: aws(*store.vended(unity.seconds))
    return unity


def keys_since(store, since):
    return {seen["key"] for seen in store.guard.seen()[since:]}


@pytest.mark.slow
def test_given_keys_are_used_and_stay_private(vending, store):
    since = len(store.guard.seen())
    session = session_of(vending, storage_options=store.place())
    query = session.sql("SELECT id FROM main.shop.t")
    loader, dataset = tq.create_dataloader(query, batch_size=10)
    steps = iter(loader)
    found = ids_of([next(steps)])
    texts = [
        repr(session),
        query.explain(),
        repr(query.plan_shards(world_size=1, batch_size=10)),
        repr(loader.state_dict()),
        repr(dataset),
    ]
    assert sorted(found + ids_of(steps)) == list(range(ROWS))
    assert store.key not in keys_since(store, since)
    for text in texts:
        assert "ASIA" not in text
        assert vending.token not in text
    # A worker asks for keys of its own.
    asked = len(vending.asked("temporary-table-credentials"))
    sent = pickle.loads(pickle.dumps(tq.QueryDataset(query, batch_size=10, output_format="arrow")))
    found = [row for batch in sent._iterate(0, 1) for row in batch["id"].to_pylist()]
    assert sorted(found) == list(range(ROWS))
    assert len(vending.asked("temporary-table-credentials")) > asked


def test_the_users_own_credentials_come_first(vending, store):
    session = session_of(vending, storage_options=store.options())
    since = len(store.guard.seen())
    assert session.sql("SELECT id FROM main.shop.t").to_arrow().num_rows == ROWS
    assert keys_since(store, since) == {store.key}
    assert not vending.asked("temporary-table-credentials")


def test_a_catalog_that_gives_no_keys(vending, store):
    vending.vend = lambda _: {"gcp_oauth_token": {"oauth_token": "ya29.secret"}}
    session = session_of(vending, storage_options=store.place())
    with pytest.raises(tq.StorageError, match=r"aws_temp_credentials.*storage_options") as caught:
        session.sql("SELECT id FROM main.shop.t")
    assert "ya29" not in str(caught.value)
    assert "shop.t" in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_keys_that_end_in_the_middle_of_an_epoch(vending, store, workers):
    session = session_of(vending, storage_options=store.place())
    loader, _ = tq.create_dataloader(
        "SELECT id FROM main.shop.t", session=session, batch_size=1, num_workers=workers
    )
    since = len(store.guard.seen())
    taken = []
    for number, batch in enumerate(loader):
        taken.append(batch)
        if number == 1:
            store.vault.revoke()
        time.sleep(0.005)
    assert ids_of(taken) == list(range(ROWS))
    refused = [seen for seen in store.guard.seen()[since:] if seen["status"] == 403]
    assert refused


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_keys_are_renewed_before_they_end(vending, store, workers):
    vending.seconds = 3
    session = session_of(vending, storage_options=store.place())
    loader, dataset = tq.create_dataloader(
        "SELECT id FROM main.shop.t", session=session, batch_size=1, num_workers=workers
    )
    since = len(store.guard.seen())
    for epoch in range(2):
        dataset.set_epoch(epoch)
        taken = []
        for batch in loader:
            taken.append(batch)
            time.sleep(4 / ROWS)
        assert ids_of(taken) == list(range(ROWS))
    seen = store.guard.seen()[since:]
    assert len({request["key"] for request in seen}) >= 2
    # Renewed before they end: where a machine stands still, one request may come too late.
    assert len([request for request in seen if request["status"] == 403]) <= 1


@pytest.mark.slow
def test_a_table_that_is_dropped_while_it_is_read(vending, store):
    session = session_of(vending, storage_options=store.place())
    query = session.sql("SELECT id FROM main.shop.t")
    steps = iter(tq.create_dataloader(query, batch_size=1)[0])
    next(steps)
    del vending.tables["main.shop.t"]
    store.vault.revoke()
    with pytest.raises(tq.StorageError, match=r"shop\.t is no longer in the catalog"):
        for _ in steps:
            time.sleep(0.005)
