"""Promise 8 (docs/promises.md): without credentials for S3 an error says soon how to give them or to do without; the role of a
machine still counts."""

import json
import socket

import pyarrow as pa
import pytest

import tensorquery as tq
from origins import origin
from storage_servers import clean_environment, parquet_bytes

pytestmark = pytest.mark.servers

BODY = parquet_bytes(pa.table({"id": [1, 2, 3]}))
ROLE = "/latest/meta-data/iam/security-credentials/"
KEYS = {
    "AccessKeyId": "AKID-ROLE",
    "SecretAccessKey": "s3cret",
    "Token": "t0ken",
    "Expiration": "2999-01-01T00:00:00Z",
}
WAYS = ["no credentials for s3://b", "AWS_ACCESS_KEY_ID", '"profile"', '"skip_signature": "true"']


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    clean_environment(monkeypatch, tmp_path)


def machine(path, _):
    """A metadata service that knows a role."""
    answers = {
        "/latest/api/token": b"session",
        ROLE: b"role",
        f"{ROLE}role": json.dumps(KEYS).encode(),
    }
    return (200, {}, answers[path]) if path in answers else (404, {}, b"")


def bucket(path, text):
    """A bucket of one file, for whoever signs."""
    if "AKID-ROLE" not in text:
        return 403, {}, b"<Error><Code>AccessDenied</Code></Error>"
    if path != "/b/x.parquet":
        return 404, {}, b""
    extra = {"ETag": '"x"', "Last-Modified": "Thu, 01 Jan 1970 00:00:00 GMT"}
    if "range: bytes=" not in text:
        return 200, extra, BODY
    start, end = text.partition("range: bytes=")[2].split("\n")[0].split("-")
    start = int(start) if start else len(BODY) - int(end)
    end = min(int(end) + 1, len(BODY)) if end and "bytes=-" not in text else len(BODY)
    extra["Content-Range"] = f"bytes {start}-{end - 1}/{len(BODY)}"
    return 206, extra, BODY[start:end]


def read(**options):
    session = tq.Session(storage_options={"region": "us-east-1", **options})
    session.register_parquet("t", "s3://b/x.parquet")
    return session.sql("SELECT id FROM t").to_arrow()["id"].to_pylist()


def error_of(**options):
    with pytest.raises(tq.StorageError) as caught:
        read(**options)
    told = str(caught.value)
    assert all(way in told for way in WAYS), told
    return told


def closed():
    """An address at which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def test_the_role_of_a_machine_counts():
    with origin(machine) as role, origin(bucket) as store:
        assert read(endpoint_url=store.uri, aws_metadata_endpoint=role.uri) == [1, 2, 3]
        assert len(role.texts) == 3


def test_a_machine_without_a_role_is_told():
    with origin(lambda *_: (404, {}, b"no role here")) as none, origin(bucket) as store:
        assert "404" in error_of(endpoint_url=store.uri, aws_metadata_endpoint=none.uri)
        assert not store.texts
    assert "refused" in error_of(aws_metadata_endpoint=closed())


def test_a_machine_that_does_not_answer_is_asked_for_a_short_time():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        told = error_of(aws_metadata_endpoint=uri, timeout="0.2")
    assert "no byte came within 200ms" in told


def test_a_machine_need_not_be_asked(monkeypatch):
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with origin(machine) as role:
        told = error_of(aws_metadata_endpoint=role.uri)
        assert not role.texts
    assert "AWS_EC2_METADATA_DISABLED" in told


def test_a_public_bucket_needs_nobody():
    with origin(machine) as role, origin(bucket) as store:
        with pytest.raises(tq.StorageError, match="403 Forbidden"):
            read(endpoint_url=store.uri, aws_metadata_endpoint=role.uri, skip_signature="true")
        assert not role.texts


def test_a_catalog_that_wants_signatures_says_so(monkeypatch):
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    session = tq.Session()
    signed = {"rest.sigv4-enabled": "true", "rest.signing-region": "us-east-1"}
    session.register_iceberg("lake", {"type": "rest", "uri": closed(), **signed})
    with pytest.raises(tq.StorageError, match="no credentials for rest.sigv4-enabled"):
        session.sql("SELECT * FROM lake.ns.t")
