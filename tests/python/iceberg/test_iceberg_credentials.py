"""Promise: the demands of a REST catalog are met, and the keys that it vends are renewed before they end.

The catalog is Iceberg's own, the store is moto; in front of both stand gates that know which keys are valid.
"""

import time

import numpy as np
import pyarrow as pa
import pytest

import tensorquery as tq
from effort import METHODS
from iceberg_lakes import assert_private, ids, rows, sample
from iceberg_servers import KEY, fresh, make_table

FILES = 24
TABLE = sample(FILES * 10)


@pytest.fixture(scope="module")
def name(rest):
    """A table of many small files."""
    name = f"{fresh()}.t"
    make_table(rest.writer(), name, TABLE, files=FILES)
    return name


def query_of(realm, name, columns="*", **properties):
    """A query over a table of a catalog at the address of `realm`.

    With so little memory nothing is fetched ahead because of the network, and so long before its keys end.
    """
    session = tq.Session(memory_limit="8KiB")
    session.register_iceberg("lake", {"type": "rest", "uri": realm.uri, **properties})
    return session.sql(f"SELECT {columns} FROM lake.{name}")


def requests_of(rest, name, since=0):
    """The store's requests for the files of a table, after the first `since` requests."""
    folder = "/" + name.replace(".", "/") + "/"
    return [request for request in rest.cloud.requests()[since:] if folder in request["path"]]


# ------------------------------------------------------------------------------------------------
# Demands of a catalog.


@pytest.mark.parametrize(
    ("demands", "properties"),
    [
        ({"client": "me:s3cret"}, {"credential": "me:s3cret"}),
        ({"client": "me:s3cret"}, {"credential": "me:s3cret", "scope": "PRINCIPAL_ROLE:ALL"}),
        ({"token": "t0ken"}, {"token": "t0ken"}),
        ({"token": "t0ken"}, {"header.Authorization": "Bearer t0ken"}),
        ({"headers": {"X-Team": "crimson"}}, {"header.X-Team": "crimson"}),
        ({"prefix": "accounts/7"}, {}),
        ({"warehouse": "my house"}, {"warehouse": "my house"}),
        (
            {
                "client": "me:s3cret",
                "headers": {"X-Team": "crimson"},
                "prefix": "p",
                "warehouse": "w",
            },
            {"credential": "me:s3cret", "header.X-Team": "crimson", "warehouse": "w"},
        ),
    ],
    ids=["client", "scope", "token", "header", "team", "prefix", "warehouse", "all"],
)
def test_what_the_catalog_demands(rest, name, demands, properties):
    realm = rest.realm(**demands)
    got = query_of(realm, name, **properties, **rest.cloud.properties()).to_arrow()
    assert rows(got) == TABLE.to_pylist()
    # Without it, the catalog refuses: the demand was real.
    if properties:
        with pytest.raises((tq.StorageError, tq.ConfigError)) as caught:
            query_of(realm, name, **rest.cloud.properties())
        assert_private(caught.value)


def test_defaults_and_overrides_of_the_catalog(rest, name):
    store = rest.cloud.properties()
    realm = rest.realm(
        defaults={"s3.region": "us-east-1", "s3.access-key-id": "AKIAOTHER"},
        overrides={"s3.endpoint": store["s3.endpoint"]},
    )
    mine = {key: store[key] for key in ("s3.access-key-id", "s3.secret-access-key")}
    # The catalog's defaults are weaker than what the user says, its overrides are stronger.
    got = query_of(realm, name, **mine, **{"s3.endpoint": "http://127.0.0.1:9"}).to_arrow()
    assert got.num_rows == TABLE.num_rows


def test_a_token_is_renewed(rest, name):
    realm = rest.realm(client="me:s3cret", token_seconds=2)
    session = tq.Session()
    session.register_iceberg(
        "lake",
        {
            "type": "rest",
            "uri": realm.uri,
            "credential": "me:s3cret",
            **rest.cloud.properties(),
        },
    )
    for pause in (2.1, 0):
        assert session.sql(f"SELECT id FROM lake.{name}").count() == TABLE.num_rows
        time.sleep(pause)
    grants = [request for request in realm.requests() if request["path"].endswith("oauth/tokens")]
    assert len(grants) >= 2


# ------------------------------------------------------------------------------------------------
# Vended keys.


@pytest.mark.parametrize("endpoint", [None, "listed", "told"])
@pytest.mark.parametrize("place", ["config", "storage-credentials"])
def test_vended_keys_are_used(rest, name, place, endpoint):
    realm = rest.realm(vend=place, credentials_endpoint=endpoint)
    since = len(rest.cloud.requests())
    got = query_of(realm, name).to_arrow()
    assert rows(got) == TABLE.to_pylist()
    assert realm.loads() == 1
    # The catalog reads its metadata files by its own key.
    requests = [
        request
        for request in requests_of(rest, name, since)
        if not request["path"].endswith(".metadata.json")
    ]
    assert requests
    assert KEY not in {request["key"] for request in requests}
    assert {request["status"] for request in requests} <= {200, 206}


def test_no_keys_are_vended_unless_asked_for(rest, name):
    """The header that asks for them can be changed."""
    realm = rest.realm(vend="config")
    query = query_of(
        realm,
        name,
        **{"header.X-Iceberg-Access-Delegation": "remote-signing"},
        **rest.cloud.properties(),
    )
    assert query.to_arrow().num_rows == TABLE.num_rows
    assert "vended-credentials" not in {request["delegation"] for request in realm.requests()}


def slowly(loader, seconds):
    """Column `id` of all batches; as many as the table has rows are taken over `seconds`."""
    taken = []
    for batch in loader:
        taken.append(batch)
        time.sleep(seconds / TABLE.num_rows)
    return ids(taken)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("place", "endpoint"),
    [("config", None), ("storage-credentials", None), ("storage-credentials", "listed")],
)
def test_keys_that_expire_in_the_middle_of_an_epoch(rest, name, place, endpoint, workers):
    # Renewed a quarter of their life before their end, which is longer than any request is under way.
    realm = rest.realm(vend=place, vend_seconds=3, credentials_endpoint=endpoint)
    loader, dataset = tq.create_dataloader(
        query_of(realm, name, "id, v"), batch_size=1, num_workers=workers
    )
    since = len(rest.cloud.requests())
    for epoch in range(2):
        dataset.set_epoch(epoch)
        assert slowly(loader, 4) == list(range(TABLE.num_rows))
    requests = requests_of(rest, name, since)
    assert len({request["key"] for request in requests}) >= 3
    # Renewed before they end, at least twice: where a machine stands still, one request may come too late.
    refused = [request for request in requests if request["status"] not in (200, 206)]
    assert len(refused) <= 1
    if endpoint:
        assert realm.loads() == 1
        asked = [
            request for request in realm.requests() if request["path"].endswith("/credentials")
        ]
        assert asked


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_workers_started_in_any_way_ask_for_keys(rest, name, method):
    realm = rest.realm(client="me:s3cret", vend="storage-credentials", vend_seconds=3)
    query = query_of(realm, name, "id", credential="me:s3cret")
    loader, _ = tq.create_dataloader(
        query, batch_size=10, num_workers=1, multiprocessing_context=method
    )
    # The keys that the plan was made with have ended before a worker reads.
    time.sleep(3.2)
    assert ids(loader) == list(range(TABLE.num_rows))


def test_a_catalog_that_lists_an_endpoint_for_keys_and_has_none(rest, name):
    # Longer than the query takes on a busy machine: new keys are fetched once.
    realm = rest.realm(vend="config", vend_seconds=4, credentials_endpoint="refused")
    query = query_of(realm, name, "id")
    time.sleep(4.1)
    assert query.to_arrow().num_rows == TABLE.num_rows
    assert realm.loads() == 2


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_keys_that_end_before_they_should(rest, name, workers):
    realm = rest.realm(vend="config")
    loader, _ = tq.create_dataloader(query_of(realm, name, "id"), batch_size=1, num_workers=workers)
    taken = []
    for number, batch in enumerate(loader):
        taken.append(batch)
        if number == 1:
            rest.cloud.revoke()
        time.sleep(0.005)
    assert ids(taken) == list(range(TABLE.num_rows))


@pytest.mark.usefixtures("two_cpus")
def test_keys_that_cannot_be_renewed(rest):
    """The table is dropped while it is read: an error that says so, not a hang or a lost row."""
    name = f"{fresh()}.t"
    writer = rest.writer()
    # So many rows that they are not all read ahead while the keys hold.
    make_table(writer, name, pa.table({"id": np.arange(320_000)}), files=80)
    realm = rest.realm(vend="config", vend_seconds=3)
    loader, _ = tq.create_dataloader(query_of(realm, name, "id"), batch_size=500)
    batches = iter(loader)
    next(batches)
    writer.drop_table(name)
    with pytest.raises(tq.StorageError) as caught:
        # Eight seconds for all of it; the last keys end after three.
        slowly(batches, 3)
    assert name in str(caught.value)
    assert_private(caught.value)


def test_vended_keys_are_private(rest, name):
    realm = rest.realm(vend="storage-credentials")
    query = query_of(realm, name, "id")
    loader, dataset = tq.create_dataloader(query, batch_size=10)
    batches = iter(loader)
    next(batches)
    texts = [
        repr(query.session),
        query.explain(),
        repr(query.plan_shards(world_size=1, batch_size=10)),
        repr(loader.state_dict()),
        repr(dataset),
    ]
    for text in texts:
        assert "ASIA" not in text
    list(batches)
