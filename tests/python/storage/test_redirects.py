"""Promise 9 (docs/promises.md): credentials, headers, cookies and bodies stay with the server that the user named, whatever it
redirects to, and no request has a Referer; where the address or the body holds them, a redirect to another server is an error."""

import json

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

import tensorquery as tq
from iceberg_by_hand import TableByHand, column, rows_of
from origins import origin, redirecting
from storage_servers import clean_environment, parquet_bytes, web_server

pytestmark = pytest.mark.servers

FAST = {"max_retries": "0", "retry_timeout": "2", "timeout": "5"}
S3 = {**FAST, "key": "AKID-PLANTED", "secret": "PLANTED-S3", "region": "us-east-1"}
AZURE = {**FAST, "account_name": "acc", "allow_http": "true"}
KEY = "UExBTlRFRC1BWlVSRQ=="
ROWS = pa.table({"id": [1, 2, 3]})
SCHEMA = Schema(NestedField(1, "id", LongType(), required=False))
KEYS = {"access-key-id": "AKID-PLANTED", "secret-access-key": "PLANTED-KEY"}
SIGNED = {"rest.sigv4-enabled": "true", "rest.signing-region": "us-east-1"}


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    clean_environment(monkeypatch, tmp_path)


def files(path, **options):
    """Registers a file of a store; `HERE` in an option is the server."""

    def call(uri):
        placed = {
            name: value.replace("HERE", uri) if isinstance(value, str) else value
            for name, value in options.items()
        }
        tq.Session().register_parquet("t", path.replace("HERE", uri), storage_options=placed)

    return call


def catalog(**properties):
    """Counts the rows of a catalog's table; `HERE` in a property is the server."""

    def call(uri):
        session = tq.Session()
        placed = {name: value.replace("HERE", uri) for name, value in properties.items()}
        session.register_iceberg("lake", placed)
        session.sql("SELECT * FROM lake.ns.t").count()

    return call


# Calls, and the texts that the first server gets and no other one.
CALLS = {
    "s3 keys": (files("s3://b/x.parquet", endpoint_url="HERE", **S3), ["AKID-PLANTED"]),
    "s3 session token": (
        files("s3://b/x.parquet", endpoint_url="HERE", token="PLANTED-SESSION", **S3),
        ["PLANTED-SESSION", "AKID-PLANTED"],
    ),
    "s3 listing": (
        files("s3://b/t/", endpoint_url="HERE", token="PLANTED-SESSION", **S3),
        ["PLANTED-SESSION", "AKID-PLANTED"],
    ),
    "azure key": (
        files("az://c/x.parquet", account_key=KEY, azure_endpoint="HERE", **AZURE),
        ["SharedKey acc:"],
    ),
    "azure sas": (
        files("az://c/x.parquet", sas_token="sv=1&sig=PLANTED", azure_endpoint="HERE", **AZURE),
        ["sig=PLANTED"],
    ),
    "azure bearer": (
        files("az://c/x.parquet", azure_storage_token="PLANTED", azure_endpoint="HERE", **AZURE),
        ["Bearer PLANTED"],
    ),
    "azure client": (
        files(
            "az://c/x.parquet",
            tenant_id="tenant",
            client_id="me",
            client_secret="PLANTED",
            azure_storage_authority_host="HERE",
            azure_endpoint="HERE",
            **AZURE,
        ),
        ["client_secret=PLANTED"],
    ),
    "gcs bearer": (
        files(
            "gs://b/x.parquet",
            access_token="PLANTED",
            endpoint_url="HERE",
            allow_http="true",
            **FAST,
        ),
        ["Bearer PLANTED"],
    ),
    "http": (
        files(
            "HERE/x.parquet",
            headers={
                "Authorization": "Basic PLANTED",
                "X-Api-Key": "PLANTED",
                "Cookie": "a=PLANTED",
            },
            **FAST,
        ),
        ["Basic PLANTED", "x-api-key: PLANTED", "a=PLANTED"],
    ),
    "rest token": (catalog(uri="HERE", token="PLANTED"), ["Bearer PLANTED"]),
    "rest header": (catalog(uri="HERE", **{"header.X-Team": "PLANTED"}), ["PLANTED"]),
    "rest client": (catalog(uri="HERE", credential="me:PLANTED"), ["client_secret=PLANTED"]),
    "rest signed": (
        catalog(
            uri="HERE",
            **SIGNED,
            **{f"rest.{name}": value for name, value in KEYS.items()},
            **{"rest.session-token": "PLANTED-SESSION"},
        ),
        ["PLANTED-SESSION", "AKID-PLANTED"],
    ),
    "glue": (
        catalog(
            type="glue",
            **{f"glue.{name}": value for name, value in KEYS.items()},
            **{
                "glue.endpoint": "HERE",
                "glue.region": "us-east-1",
                "glue.session-token": "PLANTED-SESSION",
            },
        ),
        ["PLANTED-SESSION", "AKID-PLANTED"],
    ),
    "s3tables": (
        catalog(
            type="s3tables",
            **{f"s3tables.{name}": value for name, value in KEYS.items()},
            **{
                "s3tables.endpoint": "HERE",
                "s3tables.warehouse": "arn:aws:s3tables:us-east-1:123456789012:bucket/b",
                "s3tables.session-token": "PLANTED-SESSION",
            },
        ),
        ["PLANTED-SESSION", "AKID-PLANTED"],
    ),
}


def error_of(call, uri):
    with pytest.raises(tq.TensorQueryError) as caught:
        call(uri)
    return str(caught.value)


@pytest.mark.parametrize("status", [302, 307])
@pytest.mark.parametrize("kind", CALLS)
def test_a_second_server_learns_nothing(kind, status):
    call, secrets = CALLS[kind]
    with redirecting(status) as (first, other, _):
        told = error_of(call, first.uri)
    assert all(first.has_seen(secret) for secret in secrets), first.texts
    for secret in [*secrets, "PLANTED", "AKID", "Referer", first.uri.removeprefix("http://")]:
        assert not other.has_seen(secret), other.texts
    assert "PLANTED" not in told


@pytest.mark.parametrize("kind", ["azure sas", "azure client", "rest client"])
@pytest.mark.parametrize("status", [301, 303, 307, 308])
def test_credentials_in_an_address_or_a_body_are_not_redirected(kind, status):
    call, _ = CALLS[kind]
    with redirecting(status) as (first, other, _):
        told = error_of(call, first.uri)
    assert f"{first.uri} redirects to {other.uri}" in told
    assert not other.texts
    assert len(first.texts) == 1


def test_credentials_of_the_environment_stay(monkeypatch, tmp_path):
    token = tmp_path / "token"
    token.write_text("PLANTED")
    call = files("s3://b/x.parquet", endpoint_url="HERE", region="us-east-1", **FAST)
    with redirecting(307) as (first, other, _):
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", first.uri + "/keys")
        monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(token))
        error_of(call, first.uri)
    assert first.has_seen("PLANTED")
    assert not other.has_seen("PLANTED")


@pytest.fixture
def lake(tmp_path):
    """The metadata of a table whose files are in a bucket."""
    table = TableByHand(tmp_path / "t", SCHEMA)
    table.commit(table.file(rows_of((column("id", pa.int64(), 1), [1, 2, 3]))))
    metadata = json.dumps(table.metadata()).replace(f"file://{tmp_path}", "s3://bucket")
    return json.loads(metadata.replace(str(tmp_path), "s3://bucket"))


def test_vended_keys_stay_with_the_store(lake):
    before = {"/v1/config": '{"defaults": {}, "overrides": {}}'}
    with redirecting(307, before=before) as (first, other, answers):
        keys = {f"s3.{name}": value for name, value in KEYS.items()}
        config = {
            **keys,
            "s3.session-token": "PLANTED-SESSION",
            "s3.endpoint": first.uri,
            "s3.region": "us-east-1",
        }
        answers["/v1/namespaces/ns/tables/t"] = json.dumps({"metadata": lake, "config": config})
        told = error_of(catalog(uri="HERE", token="PLANTED"), first.uri)
    assert first.has_seen("PLANTED-SESSION")
    assert not other.has_seen("PLANTED")
    assert "PLANTED" not in told


# ------------------------------------------------------------------------------------------------
# Redirects that still work.


def test_a_redirect_gives_the_rows_of_another_server():
    """The way of data hubs: a server that knows who asks redirects to one that does not."""
    with web_server() as hub, web_server() as store:
        store.files["/x.parquet"] = parquet_bytes(ROWS)
        hub.needed = {"Authorization": "Bearer PLANTED"}
        hub.files["/x.parquet"] = b""

        def redirect(handler):
            if handler.headers.get("Authorization") != "Bearer PLANTED":
                return False
            handler.reply(302, b"", {"Location": f"{store.uri}/x.parquet?X-Amz-Signature=theirs"})
            return True

        hub.odd = redirect
        session = tq.Session()
        headers = {"Authorization": "Bearer PLANTED", "X-Own": "PLANTED"}
        session.register_parquet("t", f"{hub.uri}/x.parquet", storage_options={"headers": headers})
        assert session.sql("SELECT id FROM t").to_arrow()["id"].to_pylist() == [1, 2, 3]
        assert store.seen
        for _, _, seen in store.seen:
            assert not {"authorization", "x-own", "referer"} & set(seen)


def test_within_a_server_headers_go_along():
    with web_server() as web:
        web.files["/new/x.parquet"] = parquet_bytes(ROWS)

        def redirect(handler):
            if handler.path.startswith("/new/"):
                return False
            handler.reply(308, b"", {"Location": "/new/x.parquet"})
            return True

        web.odd, web.needed = redirect, {"X-Api-Key": "PLANTED"}
        session = tq.Session()
        options = {"headers": {"X-Api-Key": "PLANTED"}}
        session.register_parquet("t", f"{web.uri}/x.parquet", storage_options=options)
        assert session.sql("SELECT id FROM t").to_arrow()["id"].to_pylist() == [1, 2, 3]


def test_a_server_that_wants_to_know_who_asks_is_named():
    with web_server() as web, origin(lambda *_: (403, {}, b"who?")) as other:
        web.odd = lambda handler: handler.reply(302, b"", {"Location": other.uri}) or True
        call = files("HERE/x.parquet", headers={"X-Api-Key": "PLANTED"}, **FAST)
        told = error_of(call, web.uri)
    assert f"{web.uri} redirects to {other.uri}, which answered 403" in told
    assert "give its address" in told


@pytest.mark.parametrize("location", [False, True])
def test_the_region_of_a_bucket_is_told(location):
    with origin(lambda *_: (403, {}, b"")) as other:
        region = {"x-amz-bucket-region": "eu-central-1"}
        away = {"Location": f"{other.uri}/b/x.parquet"} if location else {}
        with origin(lambda *_: (301, {**region, **away}, b"")) as s3:
            told = error_of(CALLS["s3 keys"][0], s3.uri)
    assert 'the region "eu-central-1": pass it as the storage option "region"' in told


def test_redirects_end():
    with origin(lambda path, _: (302, {"Location": path}, b"")) as web:
        told = error_of(files("HERE/x.parquet", **FAST), web.uri)
        assert f"{web.uri} redirects more than 10 times" in told
        assert len(web.texts) == 11


# ------------------------------------------------------------------------------------------------
# Properties that a catalog's answer may not change.

AWAY = {
    "the server of tokens": ({"credential": "me:PLANTED"}, "oauth2-server-uri", "/tokens"),
    "the catalog": ({"token": "PLANTED"}, "uri", ""),
    "the catalog of headers": ({"header.X-Team": "PLANTED"}, "uri", ""),
    "the catalog of a client": ({"credential": "me:PLANTED"}, "uri", ""),
}


@pytest.mark.parametrize(
    ("moved", "part"),
    # The user's uri goes before a default.
    [*((moved, "overrides") for moved in AWAY), ("the server of tokens", "defaults")],
)
def test_a_catalog_does_not_move_who_gets_secrets(moved, part):
    given, name, path = AWAY[moved]
    tokens = json.dumps({"access_token": "t0ken"})
    with redirecting(before={"/v1/oauth/tokens": tokens}) as (first, other, answers):
        answers["/v1/config"] = json.dumps({part: {name: other.uri + path}})
        call = catalog(uri="HERE", **given)
        told = error_of(call, first.uri)
        assert f'moves "{name}" from {first.uri} to {other.uri}' in told
        assert '"trusted-origins"' in told
        assert "PLANTED" not in told
        assert first.has_seen("PLANTED")
        assert not other.texts
        error_of(catalog(uri="HERE", **given, **{"trusted-origins": other.uri}), first.uri)
        assert other.texts


def test_new_credentials_come_from_the_catalog(lake):
    with redirecting(before={"/v1/config": "{}"}) as (first, other, answers):
        config = {"client.refresh-credentials-endpoint": f"{other.uri}/credentials"}
        answers["/v1/namespaces/ns/tables/t"] = json.dumps({"metadata": lake, "config": config})
        told = error_of(catalog(uri="HERE", token="PLANTED"), first.uri)
        assert f"to {other.uri}, which would get" in told
        assert not other.texts


FILES = {
    "a token for files": ({"gcs.oauth2.token": "PLANTED"}, {"gcs.service.host": "OTHER"}),
    "a token of Azure": (
        {"adls.token": "PLANTED", "adls.account-name": "acc"},
        {"adls.connection-string": "AccountName=acc;BlobEndpoint=OTHER/acc"},
    ),
    "an account of Azure": ({"adls.token": "PLANTED"}, {"adls.account-host": "acc.evil.test"}),
    "a proxy": ({"s3.session-token": "PLANTED"}, {"s3.proxy-uri": "OTHER"}),
}


@pytest.mark.parametrize("part", ["overrides", "config", "storage-credentials"])
@pytest.mark.parametrize("kind", FILES)
def test_a_catalog_names_no_server_for_tokens_of_the_user(lake, kind, part):
    given, said = FILES[kind]
    with redirecting() as (first, other, answers):
        said = {name: value.replace("OTHER", other.uri) for name, value in said.items()}
        answers["/v1/config"] = json.dumps({"overrides": said if part == "overrides" else {}})
        answer = {"metadata": lake}
        if part != "overrides":
            prefixed = [{"prefix": "s3://bucket", "config": said}]
            answer[part] = said if part == "config" else prefixed
        answers["/v1/namespaces/ns/tables/t"] = json.dumps(answer)
        told = error_of(catalog(uri="HERE", **given), first.uri)
        assert f'the catalog\'s answer sets "{next(iter(said))}" to a server at' in told
        assert "PLANTED" not in told
        assert not other.texts


def test_a_catalog_names_no_local_file_of_credentials(lake, tmp_path):
    (tmp_path / "secret").write_text("PLANTED")
    with redirecting(before={"/v1/config": "{}"}) as (first, other, answers):
        said = {
            "aws_container_credentials_full_uri": other.uri,
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(tmp_path / "secret"),
            "aws_metadata_endpoint": other.uri,
            "s3.endpoint": first.uri,
            "s3.region": "us-east-1",
        }
        answers["/v1/namespaces/ns/tables/t"] = json.dumps({"metadata": lake, "config": said})
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
            told = error_of(catalog(uri="HERE"), first.uri)
        assert "no credentials for s3://bucket" in told
        assert not other.texts


def test_trusted_origins_are_addresses():
    told = error_of(catalog(uri="http://127.0.0.1:1", **{"trusted-origins": "example.com"}), "")
    assert '"trusted-origins"' in told
    assert "https://auth.example.com" in told
