"""Object stores of the tests: real servers on 127.0.0.1, as fixtures, and the proxy that makes faults.

`make test-servers` builds MinIO (S3) and fake-gcs-server (Google) and fetches Azurite (Azure); a server is started by
the first test that asks for it and stopped at the end. moto, the other S3 server, is the fixture `cloud` of
`iceberg_servers`.
"""

import abc
import base64
import contextlib
import hashlib
import hmac
import http.client
import json
import os
import socket
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from urllib.parse import quote, urlencode, urlsplit

import pytest

from iceberg_servers import KEY, REGION, SECRET
from servers.process import free_port, running, until

_HERE = Path(__file__).parent
_SERVERS = _HERE.parents[2] / ".cache" / "servers"

ACCOUNT, ACCOUNT_KEY = "tqtests", base64.b64encode(b"an account key of the tests" * 2).decode()


class Store(abc.ABC):
    """A bucket of one server: what to give to a session, and how a test writes into it.

    Attributes:
        root: "s3://bucket" and the like, without a slash at the end.
        options: The `storage_options` with which it opens.
    """

    root: str
    options: dict

    @abc.abstractmethod
    def put(self, key, data):
        """Write one object."""

    def upload(self, folder, prefix):
        """Write the files below `folder` as objects below `prefix`; the URL of that prefix."""
        files = [path for path in sorted(Path(folder).rglob("*")) if path.is_file()]
        pairs = [(f"{prefix}/{path.relative_to(folder).as_posix()}", path) for path in files]
        self.put_all((key, path.read_bytes()) for key, path in pairs)
        return f"{self.root}/{prefix}/"

    def put_all(self, objects):
        """Write (key, bytes) pairs, several at a time."""
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda pair: self.put(*pair), objects))


@dataclass(frozen=True)
class S3(Store):
    """A bucket of an S3 server."""

    endpoint: str
    bucket: str = "lake"
    key: str = KEY
    secret: str = SECRET

    @property
    def root(self):
        return f"s3://{self.bucket}"

    @property
    def options(self):
        return {
            "aws_endpoint": self.endpoint,
            "aws_access_key_id": self.key,
            "aws_secret_access_key": self.secret,
            "aws_region": REGION,
            "aws_allow_http": "true",
        }

    def client(self):
        """A boto3 client."""
        import boto3
        from botocore.config import Config

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id=self.key,
            aws_secret_access_key=self.secret,
            config=Config(max_pool_connections=16),
        )

    def put(self, key, data):
        self.client().put_object(Bucket=self.bucket, Key=key, Body=data)

    def put_all(self, objects):
        client = self.client()
        with ThreadPoolExecutor(16) as pool:
            list(
                pool.map(
                    lambda pair: client.put_object(Bucket=self.bucket, Key=pair[0], Body=pair[1]),
                    objects,
                )
            )

    def open_to_all(self, bucket):
        """Create `bucket`, whose objects anybody may read and list."""
        client = self.client()
        client.create_bucket(Bucket=bucket)
        actions = {"s3:GetObject": "/*", "s3:ListBucket": ""}
        statements = [
            {
                "Effect": "Allow",
                "Principal": {"AWS": ["*"]},
                "Action": [action],
                "Resource": [f"arn:aws:s3:::{bucket}{below}"],
            }
            for action, below in actions.items()
        ]
        policy = {"Version": "2012-10-17", "Statement": statements}
        client.put_bucket_policy(Bucket=bucket, Policy=json.dumps(policy))
        return S3(self.endpoint, bucket, self.key, self.secret)


@dataclass(frozen=True)
class Gcs(Store):
    """A bucket of fake-gcs-server, which takes any credentials."""

    endpoint: str
    bucket: str = "lake"

    @property
    def root(self):
        return f"gs://{self.bucket}"

    @property
    def options(self):
        account = {"gcs_base_url": self.endpoint, "disable_oauth": True}
        account |= {"client_email": "", "private_key": "", "private_key_id": ""}
        return {"google_service_account_key": json.dumps(account), "allow_http": "true"}

    def put(self, key, data):
        words = urlencode({"uploadType": "media", "name": key})
        _ask(self.endpoint, "POST", f"/upload/storage/v1/b/{self.bucket}/o?{words}", data)


@dataclass(frozen=True)
class Azure(Store):
    """A container of Azurite."""

    # With the account's name as its path.
    endpoint: str
    bucket: str = "lake"

    @property
    def root(self):
        return f"az://{self.bucket}"

    @property
    def options(self):
        return {
            "azure_endpoint": self.endpoint,
            "azure_storage_account_name": ACCOUNT,
            "azure_storage_account_key": ACCOUNT_KEY,
            "azure_allow_http": "true",
        }

    def put(self, key, data):
        self.ask("PUT", f"{self.bucket}/{quote(key)}", data, {"x-ms-blob-type": "BlockBlob"})

    def ask(self, method, path, data=b"", headers=None, query=None):
        """A request signed with the account's key; see "Authorize with Shared Key" of Azure's manual."""
        own = {
            "x-ms-date": formatdate(usegmt=True),
            "x-ms-version": "2021-12-02",
            **(headers or {}),
        }
        canonical = "".join(f"{name}:{own[name]}\n" for name in sorted(own))
        words = "".join(f"\n{name}:{value}" for name, value in sorted((query or {}).items()))
        base = urlsplit(self.endpoint).path
        length = str(len(data)) if data else ""
        text = f"{method}\n\n\n{length}\n\n\n\n\n\n\n\n\n{canonical}/{ACCOUNT}{base}/{path}{words}"
        mac = hmac.digest(base64.b64decode(ACCOUNT_KEY), text.encode(), hashlib.sha256)
        own["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(mac).decode()}"
        address = f"{base}/{path}" + (f"?{urlencode(query)}" if query else "")
        return _ask(self.endpoint, method, address, data, own)

    def sas(self, *, seconds=3600):
        """A token for the container's account that only reads and lists."""
        ends = formatdate_iso(seconds)
        fields = [ACCOUNT, "rl", "b", "sco", "", ends, "", "https,http", "2021-12-02", "", ""]
        mac = hmac.digest(base64.b64decode(ACCOUNT_KEY), "\n".join(fields).encode(), hashlib.sha256)
        words = {"sv": "2021-12-02", "ss": "b", "srt": "sco", "sp": "rl", "se": ends}
        return urlencode({**words, "spr": "https,http", "sig": base64.b64encode(mac).decode()})


def formatdate_iso(seconds):
    """The time in `seconds` as a SAS says it."""
    import datetime

    end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)
    return end.strftime("%Y-%m-%dT%H:%M:%SZ")


def _ask(endpoint, method, address, data=b"", headers=None):
    """The body of the answer; each thread keeps its connection."""
    host = urlsplit(endpoint).netloc
    kept = _connections.__dict__
    while True:
        fresh = host not in kept
        connection = kept.setdefault(host, http.client.HTTPConnection(host))
        try:
            connection.request(method, address, data, {"Content-Type": "", **(headers or {})})
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException):
            kept.pop(host).close()
            if fresh:
                raise
            # The server may have closed a connection that was idle.
            continue
        if answer.status >= 300:
            raise RuntimeError(f"{method} {address}: {answer.status} {text[:500]!r}")
        return text


_connections = threading.local()


@contextlib.contextmanager
def _served(name, program, words, port, **environment):
    """Run a server of `make test-servers` until the block ends; it has a folder of its own, "{folder}" in `words`."""
    if not (_SERVERS / name / "complete").exists():
        raise RuntimeError(f"{_SERVERS / name} is not complete; run `make test-servers`")
    folder = Path(tempfile.mkdtemp(prefix=f"tensorquery-{name}-"))
    (folder / "data").mkdir()
    command = [sys.executable, "-m", "servers.process", folder, "{}", *program]
    command += [str(word).format(folder=folder / "data") for word in words]
    environment = {**os.environ, **environment}
    # The wrapper removes the folder.
    with running(command, folder / "log", cwd=_HERE, env=environment):
        try:
            until(lambda: socket.create_connection(("127.0.0.1", port), 5).close(), OSError)
        except OSError as error:
            end = (folder / "log").read_text()[-3000:]
            raise RuntimeError(f"{name} does not listen; the end of its log:\n{end}") from error
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def serve_minio():
    """MinIO, with a bucket "lake", until the block ends."""
    port = free_port()
    words = ["server", "--quiet", "--address", f"127.0.0.1:{port}", "{folder}"]
    environment = {"MINIO_ROOT_USER": KEY, "MINIO_ROOT_PASSWORD": SECRET, "MINIO_BROWSER": "off"}
    program = [_SERVERS / "minio" / "minio"]
    with _served("minio", program, words, port, MINIO_UPDATE="off", **environment) as endpoint:
        store = S3(endpoint)
        from botocore.exceptions import ClientError

        # It listens before it is ready.
        until(lambda: store.client().create_bucket(Bucket=store.bucket), ClientError)
        yield store


@pytest.fixture(scope="session")
def minio():
    """MinIO, with a bucket "lake"."""
    with serve_minio() as store:
        yield store


@pytest.fixture(scope="session")
def moto(cloud):
    """moto behind the gate of `servers.s3_guard`, which verifies signatures."""
    return S3(cloud.store)


@pytest.fixture(scope="session")
def gcs():
    """fake-gcs-server, with a bucket "lake"."""
    port = free_port()
    words = ["-scheme", "http", "-host", "127.0.0.1", "-port", port, "-backend", "memory"]
    words += ["-public-host", f"127.0.0.1:{port}", "-log-level", "error"]
    program = [_SERVERS / "fake-gcs" / "fake-gcs-server"]
    with _served("fake-gcs", program, words, port) as endpoint:
        store = Gcs(endpoint)
        _ask(endpoint, "POST", "/storage/v1/b", json.dumps({"name": store.bucket}).encode())
        yield store


@pytest.fixture(scope="session")
def azure():
    """Azurite, with a container "lake"."""
    port = free_port()
    program = ["node", _SERVERS / "azurite/node_modules/azurite/dist/src/blob/main.js"]
    words = ["--blobHost", "127.0.0.1", "--blobPort", port, "--location", "{folder}", "--silent"]
    words += ["--disableTelemetry", "--skipApiVersionCheck"]
    environment = {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{ACCOUNT_KEY}"}
    with _served("azurite", program, words, port, **environment) as endpoint:
        store = Azure(f"{endpoint}/{ACCOUNT}")
        store.ask("PUT", store.bucket, query={"restype": "container"})
        yield store


# ------------------------------------------------------------------------------------------------
# Faults.


@dataclass
class Faults:
    """The fault proxy in front of a store; see `servers.faults` for the rules."""

    store: S3
    endpoint: str
    port: int
    seconds: float = field(default=120)

    def set(self, *rules, seed=0):
        """From now on these faults; notes and figures begin anew."""
        self.control(do="rules", rules=rules, seed=seed)

    def log(self):
        """Each request: method, target, range, if_match, fault, status and bytes sent."""
        return self.control(do="log")

    def figures(self):
        """Requests, the most of them at once, bytes sent and the hits of each kind of rule."""
        return self.control(do="figures")

    def release(self):
        """Answer what is held."""
        self.control(do="release")

    def control(self, **asked):
        """Ask the proxy.

        Raises:
            ValueError: It refuses a rule.
        """
        with socket.create_connection(("127.0.0.1", self.port), self.seconds) as connection:
            connection.sendall(json.dumps(asked).encode() + b"\n")
            with connection.makefile() as file:
                answer = json.loads(file.readline())
        if isinstance(answer, dict) and "error" in answer:
            raise ValueError(answer["error"])
        return answer


# Options of a loader that retries often, and quickly, so that the tests are quick.
PATIENT = {
    "max_retries": "12",
    "retry_timeout": "60s",
    "init_backoff": "5ms",
    "max_backoff": "50ms",
    # Longer than any answer takes that no fault keeps back, also on a slow machine that is busy.
    "timeout": "1500ms",
    "connect_timeout": "5s",
}
# And one that gives up soon.
HASTY = {**PATIENT, "max_retries": "3", "retry_timeout": "3s"}


@contextlib.contextmanager
def fault_proxy(store, log):
    """The proxy in front of the S3 server of `store`; `log` is a file for what it prints."""
    command = [sys.executable, "-m", "servers.fault_proxy", urlsplit(store.endpoint).netloc]
    with running(command, log, cwd=_HERE) as line:
        ports = json.loads(line)
        endpoint = f"http://127.0.0.1:{ports['port']}"
        yield Faults(
            S3(endpoint, store.bucket, store.key, store.secret), endpoint, ports["control"]
        )


@pytest.fixture(scope="session")
def _faults(minio, tmp_path_factory):
    with fault_proxy(minio, tmp_path_factory.mktemp("faults") / "log") as found:
        yield found


@pytest.fixture
def faults(_faults):
    """The proxy in front of MinIO, which makes no faults until a test sets some."""
    _faults.set()
    yield _faults
    _faults.set()
