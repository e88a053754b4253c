"""Promise: users say where data lies, and who reads it, with the option names that they already type, and nobody
sees a secret."""

import json
import stat
import sys

import pyarrow as pa
import pytest

import tensorquery as tq
from origins import origin
from storage_servers import (
    KEY,
    REGION,
    SECRET,
    clean_environment,
    parquet_bytes,
    s3_store,
    web_server,
)

FIRST = pa.table({"id": list(range(40)), "of": ["a"] * 40})
SECOND = pa.table({"id": list(range(40, 60)), "of": ["b"] * 20})


@pytest.fixture(scope="module")
def store():
    with s3_store() as store:
        store.put("names", {"t/a.parquet": FIRST})
        yield store


@pytest.fixture(scope="module")
def other():
    with s3_store("AKIAOTHER", "another/s3cret") as store:
        store.put("other", {"t/b.parquet": SECOND})
        store.put("names", {"t/deep/b.parquet": SECOND})
        yield store


@pytest.fixture(autouse=True)
def nobody(monkeypatch, tmp_path):
    clean_environment(monkeypatch, tmp_path)


def ids(path, options, **more):
    session = tq.Session(storage_options=options, **more)
    return sorted(session.sql(f"SELECT id FROM '{path}'").to_arrow()["id"].to_pylist())


def loaded(query_or_path, workers=0, context=None, **options):
    more = {"multiprocessing_context": context} if context else {}
    loader, _ = tq.create_dataloader(
        query_or_path, batch_size=7, num_workers=workers, rank=0, world_size=1, **options, **more
    )
    return sorted(int(i) for batch in loader for i in batch["id"])


# ------------------------------------------------------------------------------------------------
# Names.


def vocabularies(uri):
    key, secret = KEY, SECRET
    return {
        "object_store": {
            "aws_access_key_id": key,
            "aws_secret_access_key": secret,
            "aws_endpoint": uri,
            "aws_region": REGION,
            "aws_allow_http": True,
        },
        "short": {
            "access_key_id": key,
            "secret_access_key": secret,
            "endpoint": uri,
            "region": REGION,
        },
        "capitals": {
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_ENDPOINT_URL": uri + "/",
            "AWS_REGION": REGION,
            "AWS_ALLOW_HTTP": "true",
        },
        "s3fs": {
            "key": key,
            "secret": secret,
            "endpoint_url": uri,
            "use_ssl": False,
            "anon": False,
            "client_kwargs": {"region_name": REGION, "verify": False},
            "config_kwargs": {"connect_timeout": 5, "s3": {"addressing_style": "path"}},
        },
        "client_kwargs": {
            "client_kwargs": {
                "aws_access_key_id": key,
                "aws_secret_access_key": secret,
                "endpoint_url": uri,
                "region_name": REGION,
            }
        },
    }


@pytest.mark.parametrize("name", vocabularies(""))
def test_s3_in_every_vocabulary(store, name):
    assert ids("s3://names/t/*.parquet", vocabularies(store.uri)[name]) == FIRST["id"].to_pylist()


@pytest.mark.parametrize(
    ("more", "parts"),
    [
        ({"secrt": "hunter22"}, ['did you mean "secret"?']),
        ({"AWS_REGOIN": "x"}, ['did you mean "aws_region"?']),
        ({"endpoint_ulr": "x"}, ['did you mean "endpoint_url"?']),
        ({"client_kwargs": {"regoin_name": "x"}}, ["client_kwargs.region_name"]),
        ({"aws_access_key_id": "x"}, ["two names of one", '"key"', '"aws_access_key_id"']),
        ({"default_block_size": 5}, ["tunes a library of fsspec", "filesystem="]),
        ({"config_kwargs": {"signature_version": "s3"}}, ["version 4"]),
        ({"client_kwargs": {"verify": "/x.pem"}}, ["SSL_CERT_FILE"]),
        ({"profile": "dev"}, ["keys and the profile", '"dev"']),
        ({"token": None}, ["storage_options['token']", "NoneType"]),
        ({"token": object()}, ["storage_options['token']", "credential_provider="]),
        ({"s3://names": "x"}, ["s3://names", "a dict"]),
        ({"s3://me:hunter22@names": {}}, ["must not hold credentials"]),
    ],
)
def test_what_is_no_option(store, more, parts):
    with pytest.raises(tq.ConfigError) as caught:
        ids("s3://names/t/*.parquet", {**store.options(), **more})
    text = str(caught.value)
    assert all(part in text for part in parts), text
    assert not any(secret in text for secret in (SECRET, "hunter22"))


def test_an_account_that_nobody_names_is_asked_for():
    with pytest.raises(tq.ConfigError, match="pass account_name"):
        tq.create_dataloader(path="az://box/a.parquet", storage_options={"account_key": "aGVsbG8="})


def test_anonymous_requests_are_not_signed(store):
    with pytest.raises(tq.StorageError) as caught:
        ids("s3://names/t/a.parquet", {**store.place(), "anon": True})
    assert "403" in str(caught.value) or "Denied" in str(caught.value)
    assert store.guard.seen()[-1]["key"] is None


def test_refused_keys_are_not_shown(store):
    wrong = {"key": "AKIAWRONGWRONG", "secret": "wr0ngsecret", "token": "wr0ngt0ken"}
    with pytest.raises(tq.StorageError) as caught:
        ids("s3://names/t/a.parquet", {**store.place(), **wrong})
    assert not any(value in str(caught.value) for value in wrong.values())


@pytest.mark.slow
def test_google_in_the_names_of_gcsfs(tmp_path):
    with web_server() as web:
        web.files["/bucket/t/a.parquet"] = parquet_bytes(FIRST)
        expected = FIRST["id"].to_pylist()
        anonymous = {"token": "anon", "endpoint_url": web.uri, "project": "p"}
        assert ids("gs://bucket/t/a.parquet", anonymous) == expected
        assert not any("authorization" in headers for _, _, headers in web.seen)
        web.needed["Authorization"] = "Bearer ya29.s3cret"
        for token in ({"token": "ya29.s3cret"}, {"access_token": "ya29.s3cret"}):
            assert ids("gs://bucket/t/a.parquet", {**token, "endpoint_url": web.uri}) == expected
        with pytest.raises(tq.ConfigError, match="the path of a file of credentials") as caught:
            ids("gs://bucket/t/a.parquet", {"token": "/no/such/hunter22.json"})
        assert "hunter22" not in str(caught.value)


@pytest.mark.slow
def test_azure_in_the_names_of_adlfs():
    with web_server() as web:
        web.files["/dev/box/t/a.parquet"] = parquet_bytes(FIRST)
        account = "AccountName=dev;" + f"BlobEndpoint={web.uri}/dev;"
        for options in (
            {"connection_string": f"{account}AccountKey=a2V5a2V5;"},
            {"connection_string": f"{account}SharedAccessSignature=sv=1&sig=s3cret;"},
            {
                "account_name": "dev",
                "sas_token": "sv=1&sig=s3cret",
                "account_host": f"{web.uri}/dev",
            },
            {"account_name": "dev", "anon": True, "endpoint": f"{web.uri}/dev"},
        ):
            web.seen.clear()
            assert ids("az://box/t/a.parquet", options) == FIRST["id"].to_pylist()
            _, path, headers = web.seen[-1]
            signed = "sig=s3cret" in path or "authorization" in headers
            assert signed != ("anon" in options)


@pytest.mark.slow
def test_headers_of_http_servers():
    with web_server() as web:
        web.files["/a.parquet"] = parquet_bytes(FIRST)
        web.needed["X-Team"] = "crimson-s3cret"
        url = f"{web.uri}/a.parquet"
        for options in (
            {"headers": {"X-Team": "crimson-s3cret"}},
            {"client_kwargs": {"headers": {"x-team": "crimson-s3cret"}}},
        ):
            assert ids(url, options) == FIRST["id"].to_pylist()
        with pytest.raises(tq.StorageError):
            ids(url, {})
        with pytest.raises(tq.ConfigError, match="client_kwargs.auth"):
            ids(url, {"client_kwargs": {"auth": "x"}})


# ------------------------------------------------------------------------------------------------
# Scopes.


@pytest.mark.slow
def test_two_accounts_serve_one_query(store, other):
    options = {
        "s3://names/": store.options(),
        "s3://other": other.options(),
        "gs://elsewhere/": {"token": "anon"},
    }
    sql = (
        "SELECT id FROM 's3://names/t/a.parquet' UNION ALL SELECT id FROM 's3://other/t/*.parquet'"
    )
    expected = list(range(60))
    query = tq.Session(storage_options=options).sql(sql)
    assert sorted(query.to_arrow()["id"].to_pylist()) == expected
    for workers, context in ((0, None), (2, "fork"), (2, "forkserver")):
        assert loaded(query, workers, context) == expected
    assert loaded(sql, storage_options=options) == expected
    text = repr(query.session) + query.explain() + repr(query)
    assert SECRET not in text
    assert other.secret not in text


@pytest.mark.slow
def test_the_longest_prefix_reads_its_part(store, other):
    # One bucket name on two servers: keys below t/deep/ are read from the other one.
    options = {**store.options(), "s3://names/t/deep/": other.options()}
    assert ids("s3://names/t/deep/b.parquet", options) == SECOND["id"].to_pylist()
    assert ids("s3://names/t/a.parquet", options) == FIRST["id"].to_pylist()
    both = ["s3://names/t/a.parquet", "s3://names/t/deep/b.parquet"]
    for workers in (0, 2):
        assert loaded(None, workers, path=both, storage_options=options) == list(range(60))
    # A name is no prefix of a longer one.
    options = {**store.options(), "s3://names/t/de": {"endpoint_url": "http://127.0.0.1:9"}}
    assert ids("s3://names/t/deep/b.parquet", options) == SECOND["id"].to_pylist()


def test_a_tables_own_options_replace_the_sessions(store, other):
    session = tq.Session(storage_options=other.options())
    session.register_parquet("t", "s3://names/t/a.parquet", storage_options=store.options())
    assert session.table("t").count() == 40
    session.register_parquet("u", "s3://other/t/")
    assert session.table("u").count() == 20


# ------------------------------------------------------------------------------------------------
# Profiles, and what machines know of themselves.


def write_profiles(tmp_path, monkeypatch, config, credentials=""):
    folder = tmp_path / "aws"
    folder.mkdir(exist_ok=True)
    (folder / "config").write_text(config)
    (folder / "credentials").write_text(credentials)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(folder / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(folder / "credentials"))


def keys_of(store):
    return f"aws_access_key_id = {store.key}\naws_secret_access_key = {store.secret}\n"


def test_profiles_give_keys_region_and_endpoint(store, tmp_path, monkeypatch):
    config = f"[profile dev]\nregion = {REGION}\nendpoint_url = {store.uri}\n"
    write_profiles(tmp_path, monkeypatch, config, f"[dev]\n{keys_of(store)}")
    path = "s3://names/t/a.parquet"
    assert ids(path, {"profile": "dev"}) == FIRST["id"].to_pylist()
    with pytest.raises(tq.ConfigError, match='did you mean "dev"'):
        ids(path, {"profile": "dve"})
    monkeypatch.setenv("AWS_PROFILE", "dev")
    assert ids(path, {}) == FIRST["id"].to_pylist()
    assert ids(path, store.options()) == FIRST["id"].to_pylist()
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(tq.ConfigError, match="nobody"):
        ids(path, {})
    # Who has keys needs no profile.
    assert ids(path, store.options()) == FIRST["id"].to_pylist()


def test_the_home_folder_holds_the_default_profile(store, tmp_path):
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(f"[default]\n{keys_of(store)}")
    (tmp_path / ".aws" / "config").write_text(
        f"[default]\nregion={REGION}\nservices = here\n[services here]\ns3 =\n  endpoint_url = {store.uri}\n"
    )
    assert ids("s3://names/t/a.parquet", {}) == FIRST["id"].to_pylist()


def test_keys_of_the_environment_come_before_a_profile(store, other, tmp_path, monkeypatch):
    write_profiles(tmp_path, monkeypatch, f"[profile dev]\nregion={REGION}\n{keys_of(other)}")
    monkeypatch.setenv("AWS_PROFILE", "dev")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", store.key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", store.secret)
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.uri)
    assert ids("s3://names/t/a.parquet", {}) == FIRST["id"].to_pylist()


@pytest.mark.slow
@pytest.mark.parametrize("context", [None, "fork", "spawn"])
def test_a_process_gives_keys_in_every_process(store, tmp_path, monkeypatch, context):
    keys, _ = store.vended(3600)
    answer = {
        "Version": 1,
        "AccessKeyId": keys["key"],
        "SecretAccessKey": keys["secret"],
        "SessionToken": keys["token"],
        "Expiration": "2099-01-01T00:00:00Z",
    }
    script = tmp_path / "keys.py"
    script.write_text(f"#!{sys.executable}\nprint({json.dumps(answer)!r})\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    config = (
        f"[profile p]\nregion={REGION}\nendpoint_url={store.uri}\ncredential_process={script}\n"
    )
    write_profiles(tmp_path, monkeypatch, config)
    path = "s3://names/t/*.parquet"
    got = loaded(None, 2 if context else 0, context, path=path, storage_options={"profile": "p"})
    assert got == FIRST["id"].to_pylist()
    assert keys["key"] in store.used_keys()


def test_a_profile_assumes_a_role(store, tmp_path, monkeypatch):
    """AWS's library asks the token service through our HTTP client."""
    keys, _ = store.vended(3600)
    answer = f"""
        <AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>
        <AccessKeyId>{keys["key"]}</AccessKeyId><SecretAccessKey>{keys["secret"]}</SecretAccessKey>
        <SessionToken>{keys["token"]}</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration>
        </Credentials></AssumeRoleResult></AssumeRoleResponse>"""
    config = (
        f"[profile base]\nregion={REGION}\n{keys_of(store)}\n[profile p]\nregion={REGION}\n"
        f"endpoint_url={store.uri}\nrole_arn=arn:aws:iam::123456789012:role/trainer\nsource_profile=base\n"
    )
    write_profiles(tmp_path, monkeypatch, config)
    with origin(lambda *_: (200, {"content-type": "text/xml"}, answer.encode())) as service:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", service.uri)
        options = {"profile": "p"}
        assert ids("s3://names/t/a.parquet", options) == FIRST["id"].to_pylist()
        assert service.has_seen("Action=AssumeRole")
        assert service.has_seen(f"/{REGION}/sts/aws4_request")
        assert not service.has_seen(store.secret)
    assert keys["key"] in store.used_keys()


def test_a_role_that_is_refused_is_told(store, tmp_path, monkeypatch):
    config = (
        f"[profile base]\nregion={REGION}\n{keys_of(store)}\n[profile p]\nregion={REGION}\n"
        f"endpoint_url={store.uri}\nrole_arn=arn:aws:iam::123456789012:role/trainer\nsource_profile=base\n"
    )
    write_profiles(tmp_path, monkeypatch, config)
    refusal = "<ErrorResponse><Error><Code>AccessDenied</Code><Message>not you</Message></Error></ErrorResponse>"
    with origin(lambda *_: (403, {"content-type": "text/xml"}, refusal.encode())) as service:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", service.uri)
        with pytest.raises(
            tq.StorageError, match=r'profile "p" gives no keys.*AccessDenied'
        ) as error:
            ids("s3://names/t/a.parquet", {"profile": "p"})
        assert store.secret not in str(error.value)


def test_a_process_that_fails_is_told(tmp_path, monkeypatch):
    write_profiles(tmp_path, monkeypatch, "[profile p]\ncredential_process=/no/such/program\n")
    with pytest.raises(tq.StorageError, match='profile "p" gives no keys'):
        ids("s3://names/t/a.parquet", {"profile": "p", "endpoint_url": "http://127.0.0.1:9"})


@pytest.mark.slow
def test_roles_of_the_instance_and_of_a_container(store, tmp_path, monkeypatch):
    keys, _ = store.vended(3600)
    answer = {
        "Code": "Success",
        "Type": "AWS-HMAC",
        "AccessKeyId": keys["key"],
        "SecretAccessKey": keys["secret"],
        "Token": keys["token"],
        "LastUpdated": "2026-01-01T00:00:00Z",
        "Expiration": "2099-01-01T00:00:00Z",
    }
    roles = "/latest/meta-data/iam/security-credentials/"
    with web_server() as web:
        web.special = {
            "/latest/api/token": lambda _: b"session",
            roles: lambda _: b"trainer",
            f"{roles}trainer": lambda _: answer,
            "/container": lambda _: answer,
        }
        options = {**store.place(), "metadata_endpoint": web.uri}
        assert ids("s3://names/t/a.parquet", options) == FIRST["id"].to_pylist()
        token = tmp_path / "token"
        token.write_text("pod")
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{web.uri}/container")
        monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(token))
        assert ids("s3://names/t/a.parquet", store.place()) == FIRST["id"].to_pylist()
        assert web.seen[-1][2].get("authorization") == "pod"
    assert keys["key"] in store.used_keys()
