"""Promise 8 (docs/promises.md): Glue and S3 Tables are asked as AWS documents it. Signatures are botocore's, listings are read to
their last page, what passes is waited for, and what AWS says is repeated."""

import json
import re
from urllib.parse import unquote, urlsplit

import pytest

import tensorquery as tq
from origins import origin

BUCKET = "arn:aws:s3tables:eu-west-1:123456789012:bucket/lake"
KEYS = {
    "access-key-id": "AKIDEXAMPLE",
    "secret-access-key": "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
}


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))


def properties(kind, uri, **more):
    where = {"glue": {"glue.region": "eu-west-1"}, "s3tables": {"s3tables.warehouse": BUCKET}}[kind]
    keys = {f"{kind}.{name}": value for name, value in KEYS.items()}
    return {"type": kind, f"{kind}.endpoint": uri, **where, **keys, **more}


def refused(given, table, error=tq.TableNotFoundError):
    session = tq.Session()
    session.register_iceberg("lake", given)
    with pytest.raises(error) as caught:
        session.sql(f"SELECT * FROM lake.{table}")
    assert KEYS["secret-access-key"] not in str(caught.value)
    return str(caught.value)


def said(value):
    return 200, {}, json.dumps(value).encode()


def fault(kind, message, status=400, **headers):
    body = (
        {"message": message} if headers else {"__type": f"com.amazonaws#{kind}", "Message": message}
    )
    return status, headers, json.dumps(body).encode()


def glue(path, text):
    """Two pages of databases, and two of tables, one of which is Hive's."""
    operation = re.search(r"(?i)x-amz-target: AWSGlue\.(\w+)", text)[1]
    body = json.loads(text.split("\n\n", 1)[1])
    token = body.get("NextToken")
    if operation == "GetDatabases":
        page = {"DatabaseList": [{"Name": "first" if token is None else "second"}]}
        return said(page if token else {**page, "NextToken": "more"})
    if body.get("DatabaseName") != "first":
        return fault("EntityNotFoundException", "Database not found.")
    if operation == "GetTable":
        return fault("EntityNotFoundException", "Table not found.")
    kinds = ["ICEBERG", "iceberg"] if token else ["ICEBERG", None]
    tables = [
        {
            "Name": f"t{number}{'b' if token else 'a'}",
            "Parameters": {"table_type": kind} if kind else {},
        }
        for number, kind in enumerate(kinds)
    ]
    return said({"TableList": tables, **({} if token else {"NextToken": "more"})})


def s3tables(path, text):
    url = urlsplit(path)
    token = "continuationToken=more" in url.query
    if url.path == "/get-table":
        return fault(
            "", "The table does not exist.", 404, **{"x-amzn-errortype": "NotFoundException:"}
        )
    assert unquote(url.path).endswith(BUCKET)
    if url.path.startswith("/namespaces/"):
        page = {"namespaces": [{"namespace": ["second" if token else "first"]}]}
    elif "namespace=first" not in url.query:
        return fault("", "No such namespace.", 404, **{"x-amzn-errortype": "NotFoundException:"})
    else:
        page = {"tables": [{"name": "t0b"}, {"name": "t1b"}] if token else [{"name": "t0a"}]}
    return said(page if token else {**page, "continuationToken": "more"})


SERVICES = {"glue": glue, "s3tables": s3tables}


@pytest.mark.parametrize("kind", SERVICES)
def test_unknown_names_are_told_with_those_of_all_pages(kind):
    with origin(SERVICES[kind]) as server:
        message = refused(properties(kind, server.uri), "first.t")
        assert {"t0a", "t0b", "t1b"} <= set(re.findall(r"\bt\d[ab]\b", message))
        # Hive's table is none.
        assert "t1a" not in message
        message = refused(properties(kind, server.uri), "third.t")
        assert "first" in message
        assert "second" in message


def signature_of(text, uri, service):
    """The signature that a request has, and the one that botocore gives it."""
    from botocore.auth import SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    head, _, body = text.partition("\n\n")
    first, *lines = head.split("\n")
    method, path = first.split(" ")
    headers = {
        name.lower(): value for name, value in (line.split(": ", 1) for line in lines if line)
    }
    scope, signed, signature = re.fullmatch(
        r"AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/(\S+), SignedHeaders=(\S+), Signature=(\w+)",
        headers["authorization"],
    ).groups()
    assert scope.split("/")[1:] == ["eu-west-1", service, "aws4_request"]
    assert {"host", "x-amz-date"} <= set(signed.split(";"))
    request = AWSRequest(
        method, uri + path, {name: headers[name] for name in signed.split(";")}, body
    )
    # Query parameters are signed as they are sent.
    request.params = {}
    request.context["timestamp"] = headers["x-amz-date"]
    auth = SigV4Auth(Credentials(*KEYS.values()), service, "eu-west-1")
    return signature, auth.signature(
        auth.string_to_sign(request, auth.canonical_request(request)), request
    )


@pytest.mark.parametrize("kind", SERVICES)
def test_signatures_are_those_of_botocore(kind):
    with origin(SERVICES[kind]) as server:
        refused(properties(kind, server.uri), "first.t")
        refused(properties(kind, server.uri), "third.t")
        assert len(server.texts) > 4
        for text in server.texts:
            ours, theirs = signature_of(text, server.uri, kind)
            assert ours == theirs


@pytest.mark.slow
def test_what_passes_is_waited_for():
    calls = []

    def answer(path, text):
        calls.append(text)
        if len(calls) == 1:
            return fault("ThrottlingException", "Rate exceeded")
        if len(calls) == 2:
            return 503, {}, b"busy"
        return glue(path, text)

    with origin(answer) as server:
        assert "first" in refused(properties("glue", server.uri), "third.t")
    assert len(calls) > 3


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        ("glue", fault("AccessDeniedException", "User is not authorized to glue:GetTable.")),
        (
            "s3tables",
            fault(
                "", "User is not authorized.", 403, **{"x-amzn-errortype": "AccessDeniedException"}
            ),
        ),
    ],
)
def test_what_aws_says_is_repeated(kind, answer):
    with origin(lambda *_: answer) as server:
        message = refused(properties(kind, server.uri), "first.t", tq.StorageError)
        assert "AccessDeniedException: User is not authorized" in message
        assert server.uri in message
        assert len(server.texts) == 1


@pytest.mark.slow
def test_a_listing_has_a_bound():
    """In a million names there is no name that somebody looks for."""
    names = (
        b'{"DatabaseList": [' + b'{"Name": "x"},' * 1_000_000 + b'{"Name": "y"}], "NextToken": "z"}'
    )

    def answer(path, text):
        if "AWSGlue.GetTable\n" in text:
            return fault("EntityNotFoundException", "Table not found.")
        if "AWSGlue.GetDatabases\n" in text:
            return 200, {}, names
        return fault("EntityNotFoundException", "Database not found.")

    with origin(answer) as server:
        refused(properties("glue", server.uri), "first.t", tq.TensorQueryError)
        assert sum("AWSGlue.GetDatabases" in text for text in server.texts) == 1


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"glue.secret-access-key": ""}, "glue.secret-access-key is missing"),
        ({"glue.region": ""}, "glue.region"),
        ({"glue.endpoint": "not a url"}, "not a url"),
        ({"glue.endpoint": "http://me:s3cret@"}, "AWS Glue"),
    ],
)
def test_wrong_properties_are_named(more, match):
    message = refused({**properties("glue", "http://127.0.0.1:9"), **more}, "a.b", tq.ConfigError)
    assert match in message
    assert "s3cret" not in message
