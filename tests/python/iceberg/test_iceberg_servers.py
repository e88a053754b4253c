"""The servers of the Iceberg tests do what the tests rely on; pyiceberg is the witness."""

import time

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import ForbiddenError, OAuthError, UnauthorizedError

from iceberg_servers import KEY, fresh, make_s3tables_table, make_table
from servers.s3_guard import Vault

TABLE = pa.table(
    {"id": pa.array(range(30), pa.int64()), "s": pa.array([f"größe {i}" for i in range(30)])}
)


def read(catalog, name):
    return catalog.load_table(name).scan().to_arrow().sort_by("id")


def test_rest_serves_nested_namespaces_and_counts_loads(rest):
    first, second = fresh(), fresh()
    make_table(rest.writer(), f"{first}.t", TABLE)
    make_table(rest.writer(), f"{first}.{second}.t", TABLE, files=3)
    realm = rest.realm()
    reader = load_catalog("reader", type="rest", uri=realm.uri, **rest.cloud.properties())
    assert reader.list_tables(first) == [(first, "t")]
    assert realm.loads() == 0
    assert read(reader, f"{first}.t").equals(TABLE)
    assert read(reader, f"{first}.{second}.t").equals(TABLE)
    assert realm.loads() == 2


def test_rest_demands_a_client_headers_a_prefix_and_a_warehouse(rest):
    name = f"{fresh()}.t"
    make_table(rest.writer(), name, TABLE)
    realm = rest.realm(
        client="me:s3cret", headers={"X-Team": "crimson"}, prefix="p/q", warehouse="house"
    )
    good = {
        "type": "rest",
        "uri": realm.uri,
        "credential": "me:s3cret",
        "oauth2-server-uri": f"{realm.uri}/v1/oauth/tokens",
        "header.X-Team": "crimson",
        "warehouse": "house",
        **rest.cloud.properties(),
    }
    assert read(load_catalog("reader", **good), name).equals(TABLE)
    paths = {request["path"] for request in realm.requests()} - {"v1/config", "v1/oauth/tokens"}
    assert paths
    assert all(path.startswith("v1/p/q/") for path in paths)
    for wrong, error in (
        ({"credential": "me:other"}, OAuthError),
        ({"header.X-Team": "blue"}, ForbiddenError),
    ):
        with pytest.raises(error):
            load_catalog("reader", **{**good, **wrong}).list_namespaces()
    with pytest.raises(UnauthorizedError):
        load_catalog(
            "reader", **{k: v for k, v in good.items() if k != "credential"}
        ).list_namespaces()


def test_tokens_expire(rest):
    realm = rest.realm(client="me:s3cret", token_seconds=1)
    reader = load_catalog(
        "reader",
        type="rest",
        uri=realm.uri,
        credential="me:s3cret",
        **{"oauth2-server-uri": f"{realm.uri}/v1/oauth/tokens"},
    )
    reader.list_namespaces()
    time.sleep(1.1)
    reader.list_namespaces()
    assert 401 in [request["status"] for request in realm.requests()]


@pytest.mark.parametrize("place", ["config", "storage-credentials"])
def test_vended_keys_open_the_store_until_they_end(rest, place):
    name = f"{fresh()}.t"
    make_table(rest.writer(), name, TABLE)
    realm = rest.realm(vend=place)
    reader = load_catalog("reader", type="rest", uri=realm.uri)
    table = reader.load_table(name)
    assert table.scan().to_arrow().sort_by("id").equals(TABLE)
    rest.cloud.revoke()
    with pytest.raises(OSError, match="ACCESS_DENIED"):
        table.scan().to_arrow()
    mine = [
        request for request in rest.cloud.requests() if name.replace(".", "/") in request["path"]
    ]
    assert {request["status"] for request in mine if request["key"] != KEY} >= {200, 403}
    assert read(reader, name).equals(TABLE)


@pytest.mark.parametrize(("seconds", "refused"), [(60, None), (0, "ExpiredToken")])
def test_vended_keys_end_by_the_clock(seconds, refused):
    vault = Vault(KEY, "of the test")
    keys = vault.vend(seconds)
    given = {"HTTP_X_AMZ_SECURITY_TOKEN": keys["s3.session-token"]}
    refusal = vault.refusal(keys["s3.access-key-id"], "glue", given)
    assert (refusal and refusal[0]) == refused


def test_the_store_serves_ranges(cloud):
    client = cloud.client("s3")
    # A name that a signature must encode.
    place = {"Bucket": "lake", "Key": "digits of größe 1+1=2/~ (a)"}
    client.put_object(**place, Body=b"0123456789")
    answer = client.get_object(**place, Range="bytes=2-4")
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 206
    assert answer["ContentRange"] == "bytes 2-4/10"
    assert answer["Body"].read() == b"234"


def test_unknown_keys_are_refused(cloud):
    import botocore.exceptions

    with pytest.raises(botocore.exceptions.ClientError, match="InvalidAccessKeyId"):
        _client(cloud, "s3").list_buckets()
    with pytest.raises(botocore.exceptions.ClientError, match="SignatureDoesNotMatch"):
        _client(cloud, "s3", KEY).list_buckets()
    with pytest.raises(botocore.exceptions.ClientError, match="UnrecognizedClient"):
        _client(cloud, "glue").get_databases()


def _client(cloud, service, key="AKIAOTHER"):
    import boto3

    return boto3.client(
        service,
        endpoint_url=cloud.store,
        region_name="us-east-1",
        aws_access_key_id=key,
        aws_secret_access_key="x",
    )


def test_glue(cloud):
    name = f"{fresh()}.t"
    properties = {
        "glue.endpoint": cloud.store,
        "glue.region": "us-east-1",
        "glue.access-key-id": KEY,
        "glue.secret-access-key": cloud.properties()["s3.secret-access-key"],
    }
    catalog = load_catalog(
        "g", type="glue", warehouse="s3://lake/glue", **properties, **cloud.properties()
    )
    make_table(catalog, name, TABLE, files=2)
    assert read(catalog, name).equals(TABLE)


def test_s3tables(cloud):
    bucket, metadata = make_s3tables_table(cloud, "ns.t", TABLE)
    client = cloud.client("s3tables")
    place = {"tableBucketARN": bucket, "namespace": "ns", "name": "t"}
    found = client.get_table(**place)
    assert found["metadataLocation"] == metadata
    assert metadata.startswith(found["warehouseLocation"])


def test_hive(hive):
    name = f"{fresh()}.t"
    catalog = load_catalog("h", type="hive", uri=hive.uri, warehouse=hive.warehouse)
    make_table(catalog, name, TABLE, files=2)
    assert read(catalog, name).equals(TABLE)


def test_postgres(postgres, tmp_path):
    uri = postgres.database()
    catalog = load_catalog("p", type="sql", uri=uri, warehouse=f"file://{tmp_path}")
    make_table(catalog, "a.b.t", TABLE, files=2)
    assert read(catalog, "a.b.t").equals(TABLE)
