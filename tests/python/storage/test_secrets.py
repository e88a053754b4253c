"""Promise 9 (docs/promises.md): no key, token or password is in anything that is shown or kept: reprs, plans,
errors, logs, states, caches.

The program `secret_life` lives through a job in another process, with every log turned up; all its output and all
files that it leaves are searched. Pipes to worker processes may carry the options.
"""

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet
import pytest

from iceberg_servers import KEY, REGION, SECRET, fresh
from stores import ACCOUNT_KEY

# Characters that URLs write otherwise, as base64 has them.
PLANTED = "pl4nted+{}/s3cr3t="


def planted(name):
    return PLANTED.format(name)


def forms(secret):
    """The secret as it may be written in URLs, XML, JSON, Python and headers."""
    encoded = base64.b64encode(secret.encode()).decode().rstrip("=")
    return {secret, quote(secret), quote(secret, safe=""), repr(secret)[1:-1], json.dumps(secret)[1:-1], encoded}  # fmt: skip


def search(secrets, where, text):
    """Fail where one of the secrets is in `text`; say each place once, with what stands around it."""
    found = {}
    for name, secret in secrets.items():
        for form in forms(secret):
            at = text.find(form)
            if at >= 0:
                around = (
                    f"{text[max(0, at - 300) : at]}<<< {name} >>>{text[at + len(form) :][:100]}"
                )
                found.setdefault(name, around)
    told = "\n".join(f"{name}: ...{around}..." for name, around in found.items())
    assert not found, f"{len(found)} of {len(secrets)} secrets are in {where}:\n{told}"


def life(folder, secrets, asked, *, environment=None, answer=None):
    """Run the program; its whole output, which holds no secret, and neither does any file below `folder`.

    Args:
        folder: An empty folder, which is its home, its cache and its folder for temporary files.
        secrets: Name to value.
        asked: See `secret_life`.
        environment: More variables.
        answer: Called when the program has planned a table that is to fail later.
    """
    places = {name: str(folder / name) for name in ("HOME", "TMPDIR", "TENSORQUERY_CACHE", "TENSORQUERY_STAGES")}  # fmt: skip
    for place in places.values():
        Path(place).mkdir(parents=True)
    for name in ("HOME", "TENSORQUERY_CACHE"):
        places[f"XDG_{name}"] = places[name]
    everything = {
        "RUST_LOG": "trace",
        "RUST_BACKTRACE": "full",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, **places, **everything, "PYTHONPATH": path, **(environment or {})}
    with subprocess.Popen(
        [sys.executable, "-m", "secret_life", folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        cwd=folder,
    ) as program:
        program.stdin.write(json.dumps(asked) + "\n")
        program.stdin.flush()
        lines = []
        for line in program.stdout:
            lines.append(line)
            if line == "-- planned\n":
                answer()
                program.stdin.write("\n")
                program.stdin.flush()
        program.stdin.close()
    text = "".join(lines)
    assert text.endswith("-- END\n"), text[-3000:]
    search(secrets, "what is printed", text)
    files = [path for path in folder.rglob("*") if path.is_file()]
    for path in files:
        search(secrets, path.name, path.read_bytes().decode("latin-1"))
    return text, files


def table(store):
    """The URL of a small table."""
    files = [pa.table({"id": range(10 * n, 10 * n + 10), "s": ["x"] * 10}) for n in range(3)]
    prefix = fresh("secrets")
    for number, one in enumerate(files):
        sink = pa.BufferOutputStream()
        pa.parquet.write_table(one, sink)
        store.put(f"{prefix}/{number}.parquet", sink.getvalue().to_pybytes())
    return f"{store.root}/{prefix}/"


def test_the_search_finds_what_it_must():
    secret = planted("here")
    for form in forms(secret):
        with pytest.raises(AssertionError, match=r"1 of 1 secrets are in a text"):
            search({"here": secret}, "a text", f"before {form} after")
    search({"here": secret}, "a text", "nothing")


@pytest.mark.slow
def test_a_life_with_s3(minio, tmp_path):
    url = table(minio)
    text, files = life(tmp_path, {"secret": SECRET, "key": KEY}, {"cases": [[url, "parquet", minio.options, [None, "fork", "forkserver"]]]})  # fmt: skip
    # It did say something.
    assert url in text
    assert "DataSource" in text or "SplitScan" in text
    assert {".pt", ".pickle"} <= {path.suffix for path in files}
    assert any("TENSORQUERY_CACHE" in path.parts for path in files), files


@pytest.mark.slow
def test_a_life_with_s3_from_the_environment(minio, tmp_path):
    environment = {name.upper(): value for name, value in minio.options.items()}
    text, _ = life(
        tmp_path,
        {"secret": SECRET, "key": KEY},
        {"cases": [[table(minio), "parquet", {}, [None]]]},
        environment=environment,
    )
    assert "NO ERROR" not in text


@pytest.mark.slow
def test_a_life_with_google(gcs, tmp_path):
    account = json.loads(gcs.options["google_service_account_key"])
    account |= {"private_key": planted("private"), "private_key_id": planted("identity")}
    options = {**gcs.options, "google_service_account_key": json.dumps(account)}
    secrets = {name: account[name] for name in ("private_key", "private_key_id")}
    life(tmp_path, secrets, {"cases": [[table(gcs), "parquet", options, [None]]]})


@pytest.mark.slow
def test_a_life_with_azure(azure, tmp_path):
    url = table(azure)
    plain = {name: value for name, value in azure.options.items() if not name.endswith("_key")}
    signed = {**plain, "azure_storage_sas_token": azure.sas()}
    signature = signed["azure_storage_sas_token"].partition("sig=")[2]
    secrets = {"key": ACCOUNT_KEY, "signature": signature}
    wrong = {**plain, "sas_token": azure.sas().replace("sp=rl", "sp=r")}
    secrets["wrong signature"] = wrong["sas_token"].partition("sig=")[2]
    failures = [
        [url, "parquet", wrong, 0, False],
        ["az://nobucket/x/", "csv", signed, 0, False],
        [
            "az://nobucket/x/",
            "csv",
            {**signed, "azure_endpoint": "http://127.0.0.1:9", "max_retries": "1"},
            0,
            False,
        ],
    ]
    asked = {"cases": [[url, "parquet", one, [None]] for one in (azure.options, signed)], "failures": failures}  # fmt: skip
    text, _ = life(tmp_path, secrets, asked)
    assert "NO ERROR" not in text
    assert text.count("-- StorageError") == len(failures)


# ------------------------------------------------------------------------------------------------
# Errors.

S3_SECRETS = {
    "aws_access_key_id": "aws_secret_access_key",
    "access_key_id": "secret_access_key",
    "AWS_ACCESS_KEY_ID": "AWS_SECRET_ACCESS_KEY",
}
S3_TOKENS = ["aws_session_token", "aws_token", "session_token", "token", "AWS_SESSION_TOKEN"]


@pytest.mark.slow
def test_a_store_that_repeats_the_request_in_its_refusal(faults, tmp_path):
    """Keys, tokens and signatures by every name, from the options and from the environment."""
    faults.set(
        {"kind": "status", "status": 403, "code": "AccessDenied", "echo": True, "method": ".*"}
    )
    plain = {"aws_endpoint": faults.endpoint, "aws_region": REGION, "aws_allow_http": "true"}
    failures, secrets = [], {}
    for number, (key, secret) in enumerate(S3_SECRETS.items()):
        for token in S3_TOKENS:
            words = {name: planted(f"{name}{number}{token}") for name in ("key", "secret", "token")}
            own = {key: words["key"], secret: words["secret"], token: words["token"]}
            secrets |= {f"{name} {number} {token}": word for name, word in words.items()}
            failures.append(["s3://lake/x/", "csv", {**plain, **own}, 0, False])
    environment = {
        "AWS_ACCESS_KEY_ID": planted("a"),
        "AWS_SECRET_ACCESS_KEY": planted("b"),
        "AWS_SESSION_TOKEN": planted("c"),
    }
    secrets |= environment
    failures.append(["s3://lake/x/", "csv", plain, 0, False])
    text, _ = life(tmp_path, secrets, {"failures": failures}, environment=environment)
    assert text.count("-- StorageError") == len(failures)
    assert "AccessDenied" in text


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_refusal_in_the_middle_of_an_epoch(faults, tmp_path, workers):
    refusal = {"kind": "status", "status": 403, "code": "AccessDenied", "echo": True}
    asked = {"failures": [[table(faults.store), "parquet", faults.store.options, workers, True]]}
    secrets = {"key": KEY, "secret": SECRET}
    text, _ = life(tmp_path, secrets, asked, answer=lambda: faults.set(refusal))
    assert "-- StorageError" in text
    assert "AccessDenied" in text


@pytest.mark.slow
def test_malformed_options_and_addresses(minio, gcs, azure, tmp_path):
    secrets, failures = {}, []

    def secret(name):
        return secrets.setdefault(name, f"Pl4nted{name.title().replace(' ', '')}+s3cret")

    def failing(url, **options):
        # A server that is not there is not waited for.
        few = {} if url.startswith("https://me") else {"max_retries": "1"}
        failures.append([url, "csv", few | options, 0, False])

    s3 = {name: value for name, value in minio.options.items() if "key" not in name}
    keys = {name: secret(f"good {name}") for name in ("aws_access_key_id", "aws_secret_access_key")}
    failing("s3://lake/x/", **s3, aws_secret_acess_key=secret("misspelt"), **keys)
    failing(
        "s3://lake/x/", **s3, aws_secret_access_key=secret("one"), secret_access_key=secret("two")
    )
    failing("s3://lake/x/", **s3, aws_access_key_id=secret("no secret"))
    failing(
        "s3://lake/x/",
        **s3 | keys | {"aws_endpoint": f"http://me:{secret('endpoint')}@127.0.0.1:9"},
    )
    failing("s3://lake/x/", **s3 | keys | {"aws_endpoint": f"no url: {secret('no url')}"})
    failing("s3://lake/x/", **s3, **keys, proxy_url=f"http://me:{secret('proxy')}@127.0.0.1:9")
    failing("s3://lake/x/", **s3, **keys, proxy_url=f"::{secret('no proxy')}")
    failing("s3://lake/x/", **s3, **keys, aws_sse_customer_key_base64=secret("customer"))
    failing(f"s3://key:{secret('in the url')}@lake/x/", **minio.options)
    failing(f"https://me:{secret('https password')}@127.0.0.1:9/x.csv")
    failing(f"http://127.0.0.1:9/x.csv?X-Amz-Signature={secret('query')}")
    failing(f"az://lake/x.csv?sig={secret('sas in url')}", **azure.options)
    plain = {name: value for name, value in azure.options.items() if not name.endswith("_key")}
    failing("az://lake/x/", **plain, azure_storage_account_key=f"{secret('no base64')}!")
    failing("az://lake/x/", **plain, azure_storage_sas_token=f"no pairs {secret('sas')}")
    failing("az://lake/x/", **plain, azure_storage_token=secret("bearer"))
    failing("az://lake/x/", **plain, client_id="me", client_secret=secret("client"), tenant_id="t", azure_storage_authority_host="http://127.0.0.1:9")  # fmt: skip
    failing("gs://lake/x/", google_service_account_key=f'{{"private_key": "{secret("no json")}"')
    account = {
        "private_key": secret("no pem"),
        "private_key_id": secret("id"),
        "client_email": "me",
    }
    failing("gs://lake/x/", google_service_account_key=json.dumps(account))
    path = tmp_path / "elsewhere" / "account.json"
    path.parent.mkdir()
    path.write_text(json.dumps(account))
    failing("gs://lake/x/", google_service_account=str(path))
    failing("gs://lake/x/", google_application_credentials=str(path))
    text, _ = life(tmp_path / "life", secrets, {"failures": failures})
    assert "NO ERROR" not in text
    assert text.count("\n== ") + text.startswith("== ") == len(failures)
