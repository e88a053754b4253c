"""Small stores inside of the test process: S3 whose keys end, and a server that shows what it was asked.

Each is stopped at the end of its `with` block; a forked worker inherits no thread of it.
"""

import contextlib
import json
import threading
from dataclasses import dataclass, field
from email.utils import formatdate
from hashlib import md5
from http.server import BaseHTTPRequestHandler
from urllib.parse import unquote

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import make_server

from servers.s3_guard import Guard, Vault
from serving import serving

KEY, SECRET = "AKIASTORAGE", "s3cret+of/storage"
REGION = "us-east-1"


class _Quiet(MotoRequestHandler):
    def log_request(self, *_):
        pass


def parquet_bytes(table):
    """A Parquet file of a table."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes()


@dataclass
class Store:
    """moto's S3 behind a gate that knows its keys."""

    uri: str
    vault: Vault
    guard: Guard
    key: str
    secret: str

    def options(self, **more):
        """The options that s3fs would get."""
        found = {"key": self.key, "secret": self.secret, "endpoint_url": self.uri}
        return {**found, "client_kwargs": {"region_name": REGION}, **more}

    def place(self):
        """The options without keys."""
        return {"endpoint_url": self.uri, "client_kwargs": {"region_name": REGION}}

    def put(self, bucket, files):
        """Write tables (or bytes) by key into a bucket, which is made where it is missing."""
        client = boto3.client(
            "s3",
            endpoint_url=self.uri,
            region_name=REGION,
            aws_access_key_id=self.key,
            aws_secret_access_key=self.secret,
        )
        client.create_bucket(Bucket=bucket)
        for key, data in files.items():
            body = data if isinstance(data, bytes) else parquet_bytes(data)
            client.put_object(Bucket=bucket, Key=key, Body=body)

    def vended(self, seconds):
        """A new key in the names of s3fs, and when it ends."""
        made = self.vault.vend(seconds)
        return {
            "key": made["s3.access-key-id"],
            "secret": made["s3.secret-access-key"],
            "token": made["s3.session-token"],
        }, int(made["s3.session-token-expires-at-ms"]) / 1000

    def used_keys(self):
        """The keys of the answered requests, in order of their first use."""
        return list(
            dict.fromkeys(seen["key"] for seen in self.guard.seen() if seen["status"] < 300)
        )


@contextlib.contextmanager
def s3_store(key=KEY, secret=SECRET):
    """A `Store` of its own."""
    vault = Vault(key, secret)
    guard = Guard(DomainDispatcherApplication(create_backend_app), vault)
    server = make_server("127.0.0.1", 0, guard, threaded=True, request_handler=_Quiet)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield Store(f"http://127.0.0.1:{server.server_port}", vault, guard, key, secret)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@dataclass
class Web:
    """A server of a few files, and what it was asked."""

    uri: str = ""
    files: dict = field(default_factory=dict)
    # Path and query to a function of the handler that answers instead.
    special: dict = field(default_factory=dict)
    # A function of the handler that may answer in its place: true where it has.
    odd: object = None
    # Headers without which every request is refused.
    needed: dict = field(default_factory=dict)
    # Method, path with its query, and headers (names in small letters) of each request.
    seen: list = field(default_factory=list)


@contextlib.contextmanager
def web_server():
    """A `Web` that answers GET, HEAD, PUT and POST by the path without its query."""
    web = Web()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            path = unquote(self.path.partition("?")[0])
            headers = {name.lower(): value for name, value in self.headers.items()}
            web.seen.append((self.command, self.path, headers))
            self.rfile.read(int(headers.get("content-length", 0)))
            if web.odd is not None and web.odd(self):
                return None
            if path in web.special:
                return self.reply(200, web.special[path](self))
            if any(self.headers.get(name) != value for name, value in web.needed.items()):
                return self.reply(401, b"who are you?")
            data = web.files.get(path)
            if data is None:
                return self.reply(404, b"")
            status, extra, body = 200, {}, data
            if ranged := self.headers.get("Range"):
                start, _, end = ranged.removeprefix("bytes=").partition("-")
                start = int(start) if start else len(data) - int(end)
                end = int(end) + 1 if end and start is not None and ranged[6] != "-" else len(data)
                end = min(end, len(data))
                status, body = 206, data[start:end]
                extra["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
            extra |= {
                "ETag": f'"{md5(data).hexdigest()}"',
                "Last-Modified": formatdate(0, usegmt=True),
            }
            return self.reply(status, body, extra)

        do_HEAD = do_PUT = do_POST = do_GET

        def reply(self, status, body, extra=None):
            body = json.dumps(body).encode() if isinstance(body, dict) else body
            self.send_response(status)
            for name, value in (extra or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *_):
            pass

    with serving(Handler) as web.uri:
        yield web


def clean_environment(monkeypatch, home):
    """No credentials but those of the test: none in the environment, and an empty home."""
    import os

    for name in list(os.environ):
        if name.startswith(("AWS_", "GOOGLE_", "AZURE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
