"""Promise: a table of an Iceberg catalog is what pyiceberg reads, whatever the catalog; listing loads none."""

import logging

import pyarrow as pa
import pytest

import tensorquery as tq
from iceberg_lakes import (
    KINDS,
    NESTED_KINDS,
    assert_private,
    ids,
    lake_of,
    rows,
    sample,
)
from iceberg_servers import fresh, make_table


@pytest.fixture
def lake(request):
    """The catalog of type `request.param`."""
    return lake_of(request.param, request)


def select(properties, name, what="*"):
    """The rows of table `name` of a catalog with these properties."""
    session = tq.Session()
    session.register_iceberg("lake", properties)
    return session.sql(f"SELECT {what} FROM lake.{name}").to_arrow()


@pytest.mark.slow
@pytest.mark.parametrize("lake", KINDS, indirect=True)
def test_a_table_is_read_as_pyiceberg_reads_it(lake):
    name = f"{fresh()}.t"
    lake.make(name, sample(), files=3)
    expected = lake.read(name)
    assert expected.num_rows == 60
    got = select(lake.properties, name)
    assert got.column_names == expected.column_names
    assert rows(got) == expected.to_pylist()


@pytest.mark.slow
@pytest.mark.parametrize("lake", KINDS, indirect=True)
def test_a_loader_over_a_catalog_delivers_every_row_once(lake):
    name = f"{fresh()}.t"
    lake.make(name, sample(), files=3)
    delivered = []
    for rank in range(2):
        loader, _ = tq.create_dataloader(
            table=name,
            catalog_config=lake.properties,
            columns=["id", "v"],
            batch_size=7,
            rank=rank,
            world_size=2,
        )
        delivered += list(loader)
    assert ids(delivered) == list(range(60))


@pytest.mark.slow
@pytest.mark.parametrize("lake", NESTED_KINDS, indirect=True)
def test_nested_namespaces(lake):
    outer, inner = fresh(), fresh()
    lake.make(f"{outer}.t", sample(10))
    lake.make(f"{outer}.{inner}.t", sample(20))
    lake.make(f"{outer}.{inner}.deep.t", sample(30))
    for name, count in (
        (f"{outer}.t", 10),
        (f"{outer}.{inner}.t", 20),
        (f"{outer}.{inner}.deep.t", 30),
    ):
        assert rows(select(lake.properties, name)) == lake.read(name).to_pylist()
        assert select(lake.properties, name, "count(*) AS n")["n"].to_pylist() == [count]


@pytest.mark.parametrize("lake", ["rest", "sqlite"], indirect=True)
def test_names_that_need_quotes(lake):
    namespace = fresh("Na me")
    lake.make(f"{namespace}.Ta-ble", sample(10))
    got = select(lake.properties, f'"{namespace}"."Ta-ble"')
    assert rows(got) == lake.read(f"{namespace}.Ta-ble").to_pylist()


@pytest.mark.servers
def test_tables_of_two_catalogs_and_a_file_are_joined(request, tmp_path):
    first, second = lake_of("rest", request), lake_of("sqlite", request)
    name = f"{fresh()}.t"
    first.make(name, sample())
    second.make(name, sample(20, start=50))
    pa.parquet.write_table(pa.table({"id": range(52, 58)}), tmp_path / "few.parquet")
    session = tq.Session()
    session.register_iceberg("one", first.properties)
    session.register_iceberg("two", second.properties)
    session.register_parquet("few", str(tmp_path / "few.parquet"))
    got = session.sql(
        f"SELECT a.id, b.s FROM one.{name} a JOIN two.{name} b ON a.id = b.id "
        "JOIN few ON few.id = a.id"
    ).to_arrow()
    assert sorted(got["id"].to_pylist()) == list(range(52, 58))


@pytest.mark.slow
def test_listing_loads_no_table_and_a_query_loads_one(rest):
    namespace, inner = fresh(), fresh()
    for name in (f"{namespace}.a", f"{namespace}.b", f"{namespace}.{inner}.c"):
        make_table(rest.writer(), name, sample(30), files=3)
    realm = rest.realm()
    session = tq.Session()
    session.register_iceberg("lake", {"type": "rest", "uri": realm.uri, **rest.cloud.properties()})
    assert session.catalogs == ["lake"]
    assert f"lake.{namespace}." in session.list_iceberg("lake")
    assert session.list_iceberg(f"lake.{namespace}") == [
        f"lake.{namespace}.{inner}.",
        f"lake.{namespace}.a",
        f"lake.{namespace}.b",
    ]
    assert session.list_iceberg(f"lake.{namespace}.{inner}") == [f"lake.{namespace}.{inner}.c"]
    assert realm.loads() == 0
    query = session.sql(f"SELECT id FROM lake.{namespace}.b")
    assert realm.loads() == 1
    assert realm.requests()[-1]["path"].endswith("tables/b")
    # Nothing after planning asks the catalog again: neither shards nor epochs nor workers.
    query.plan_shards(world_size=2, batch_size=8)
    assert query.count() == 30
    loader, dataset = tq.create_dataloader(query, batch_size=8, num_workers=2)
    for epoch in range(2):
        dataset.set_epoch(epoch)
        assert ids(loader) == list(range(30))
    assert realm.loads() == 1


def test_jdbc_is_another_name_of_sql(request):
    lake = lake_of("sqlite", request)
    name = f"{fresh()}.t"
    lake.make(name, sample(10))
    got = select({**lake.properties, "type": "jdbc"}, name)
    assert rows(got) == lake.read(name).to_pylist()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rest", "sqlite", "postgres", "hive"])
def test_the_uri_tells_the_type(kind, request):
    lake = lake_of(kind, request)
    name = f"{fresh()}.t"
    lake.make(name, sample(10))
    properties = {key: value for key, value in lake.properties.items() if key != "type"}
    assert rows(select(properties, name)) == lake.read(name).to_pylist()


def test_one_database_with_two_catalogs(tmp_path):
    from pyiceberg.catalog import load_catalog

    properties = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"file://{tmp_path}",
    }
    for number, name in enumerate(["red", "blue"]):
        writer = load_catalog(name, **properties)
        make_table(writer, f"ns{number}.t", sample(10 + number))
    got = select({**properties, "catalog_name": "blue"}, "ns1.t", "count(*) AS n")
    assert got["n"].to_pylist() == [11]
    with pytest.raises(tq.TableNotFoundError):
        select({**properties, "catalog_name": "blue"}, "ns0.t")
    with pytest.raises(tq.ConfigError, match=r"blue.*red"):
        select(properties, "ns0.t")


def test_a_metadata_file_is_a_table(request):
    lake = lake_of("sqlite", request)
    made = lake.make(f"{fresh()}.t", sample(), files=2)
    session = tq.Session()
    session.register_iceberg_table("t", made.metadata_location)
    assert rows(session.table("t").to_arrow()) == lake.read(".".join(made.name())).to_pylist()
    loader, _ = tq.create_dataloader(table=made.metadata_location, columns=["id"], batch_size=9)
    assert ids(loader) == list(range(60))


def test_a_metadata_file_in_a_store(rest):
    made = make_table(rest.writer(), f"{fresh()}.t", sample(), files=2)
    session = tq.Session()
    session.register_iceberg_table("t", made.metadata_location, properties=rest.cloud.properties())
    assert rows(session.table("t").to_arrow()) == sample().to_pylist()


def test_the_short_form_takes_the_names_of_the_catalog_or_of_the_session(request):
    lake = lake_of("sqlite", request)
    outer, inner = fresh(), fresh()
    lake.make(f"{outer}.t", sample(10))
    lake.make(f"{outer}.{inner}.t", sample(20))
    for name, count in (
        (f"{outer}.t", 10),
        (f"lake.{outer}.t", 10),
        (f"{outer}.{inner}.t", 20),
        (f"lake.{outer}.{inner}.t", 20),
    ):
        loader, _ = tq.create_dataloader(
            table=name, catalog_config=lake.properties, columns=["id"], batch_size=8
        )
        assert ids(loader) == list(range(count)), name


def test_the_short_form_with_a_snapshot_filters_and_a_scan_filter(request, caplog):
    lake = lake_of("sqlite", request)
    name = f"{fresh()}.t"
    made = lake.make(name, sample(), files=6)
    third = made.history()[2].snapshot_id
    options = {"table": name, "catalog_config": lake.properties, "batch_size": 8}
    loader, _ = tq.create_dataloader(snapshot_id=third, columns=["id"], **options)
    assert ids(loader) == list(range(30))
    loader, _ = tq.create_dataloader(filters="id >= 45 AND flag", columns=["id"], **options)
    expected = [row["id"] for row in sample().to_pylist() if row["id"] >= 45 and row["flag"]]
    assert ids(loader) == expected
    # A scan filter prunes files of ten rows each, and no rows.
    with caplog.at_level(logging.INFO):
        loader, _ = tq.create_dataloader(scan_filter="id >= 45", columns=["id"], **options)
        assert ids(loader) == list(range(40, 60))
    assert any("6" in message and "2" in message for message in caplog.messages)


# ------------------------------------------------------------------------------------------------
# Errors.


def failing(properties, error, match, name="ns.t"):
    """Registering or reading fails with `error`, and says no secret."""
    with pytest.raises(error, match=match) as caught:
        select(properties, name)
    assert_private(caught.value, repr(caught.value), caught.value.__cause__)
    return str(caught.value)


CLOSED = "127.0.0.1:9"
"""An address at which nobody listens."""


@pytest.mark.parametrize(
    ("properties", "match"),
    [
        ({"type": "nessie", "uri": "http://x"}, r"nessie.*rest"),
        ({"uri": "ftp://x"}, r"ftp"),
        ({"type": "rest"}, r"uri"),
        ({"type": "sql"}, r"uri"),
        ({"type": "sql", "uri": "mysql://root:wr0ng@x/y"}, r"mysql.*sqlite"),
        ({"type": "s3tables", "warehouse": "bucket"}, r"ARN"),
        ({"type": "sql", "uri": "sqlite:///x.db", "warehose": "x"}, r"warehose.*warehouse"),
        ({"type": "glue", "glue.acces-key-id": "wr0ng"}, r"glue.acces-key-id.*glue.access-key-id"),
        ({"type": "rest", "uri": "http://x", "s3.acess-key-id": "wr0ng"}, r"s3.acess-key-id"),
        ({"type": "rest", "uri": "http://x", "credental": "me:wr0ng"}, r"credental.*credential"),
        ({"type": "rest", "uri": 5}, r"uri"),
    ],
)
def test_wrong_properties(properties, match):
    failing(properties, tq.ConfigError, match)


@pytest.mark.slow
@pytest.mark.parametrize(
    "properties",
    [
        {"type": "rest", "uri": f"http://{CLOSED}", "credential": "me:s3cret"},
        {"type": "hive", "uri": f"thrift://{CLOSED}"},
        {"type": "sql", "uri": f"postgresql://me:s3cret@{CLOSED}/x"},
        {
            "type": "glue",
            "glue.endpoint": f"http://{CLOSED}",
            "glue.region": "us-east-1",
            "glue.access-key-id": "me",
            "glue.secret-access-key": "s3cret",
        },
    ],
    ids=lambda properties: properties["type"],
)
def test_a_server_that_is_not_there(properties):
    failing(properties, tq.StorageError, r"127\.0\.0\.1")


def test_a_database_that_is_not_there(tmp_path):
    path = tmp_path / "none.db"
    failing({"type": "sql", "uri": f"sqlite:///{path}"}, tq.StorageError, "none.db")
    assert not path.exists()


def test_wrong_keys(rest, postgres, cloud, request):
    realm = rest.realm(client="me:s3cret")
    failing(
        {"type": "rest", "uri": realm.uri, "credential": "me:wr0ng"},
        (tq.ConfigError, tq.StorageError),
        r"invalid_client|401|Unknown client",
    )
    failing(
        {"type": "rest", "uri": realm.uri, "token": "wr0ng"},
        (tq.ConfigError, tq.StorageError),
        r"bearer token",
    )
    uri = postgres.database().replace("pass%2Fword", "wr0ng")
    failing({"type": "sql", "uri": uri}, tq.StorageError, r"password authentication")
    glue = lake_of("glue", request).properties
    wrong = {**glue, "glue.access-key-id": "AKIAOTHER", "glue.secret-access-key": "wr0ng"}
    failing(wrong, tq.StorageError, r"(?i)token|credential|glue")
    # The catalog is open, the store is not.
    lake = lake_of("rest", request)
    name = f"{fresh()}.t"
    lake.make(name, sample(10))
    for wrong in (
        {"s3.access-key-id": "AKIAOTHER", "s3.secret-access-key": "wr0ng"},
        {"s3.secret-access-key": "wr0ng"},
    ):
        match = r"(?i)403|forbidden|denied|InvalidAccessKeyId|SignatureDoesNotMatch"
        failing({**lake.properties, **wrong}, tq.StorageError, match, name)


@pytest.mark.slow
@pytest.mark.parametrize("lake", KINDS, indirect=True)
def test_unknown_names(lake):
    namespace = fresh("known")
    lake.make(f"{namespace}.table_a", sample(5))
    failing(lake.properties, tq.TableNotFoundError, "table_a", f"{namespace}.table_b")
    failing(lake.properties, tq.TableNotFoundError, "nowhere", "nowhere.table_a")


def test_unknown_names_of_the_short_form(request):
    lake = lake_of("sqlite", request)
    lake.make("ns.table_a", sample(5))
    for name in ("ns.table_b", "lake.ns.table_b", "nowhere.table_a"):
        with pytest.raises(tq.TableNotFoundError):
            tq.create_dataloader(table=name, catalog_config=lake.properties)
    with pytest.raises(tq.ConfigError, match="catalog_config"):
        tq.create_dataloader(table="ns.table_a", catalog_config="sqlite:///x.db")
    with pytest.raises(tq.ConfigError, match="table"):
        tq.create_dataloader("SELECT 1", catalog_config=lake.properties)


def test_secrets_are_nowhere(rest, request):
    realm = rest.realm(client="me:s3cret")
    name = f"{fresh()}.t"
    lake = lake_of("rest", request)
    lake.make(name, sample(20), files=2)
    session = tq.Session()
    session.register_iceberg(
        "lake", {**lake.properties, "uri": realm.uri, "credential": "me:s3cret"}
    )
    query = session.sql(f"SELECT id FROM lake.{name}")
    plan = query.plan_shards(world_size=1, batch_size=4)
    loader, dataset = tq.create_dataloader(query, batch_size=4)
    next(iter(loader))
    assert_private(
        repr(session),
        repr(session.tables),
        repr(query),
        query.explain(),
        repr(plan),
        repr(loader.state_dict()),
        repr(dataset),
    )
