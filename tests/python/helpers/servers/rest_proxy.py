"""A proxy in front of Iceberg's REST test fixture, with the features of real catalogs that the fixture lacks.

Each *realm* is a catalog of its own address over the same tables, with its own demands: OAuth2 tokens that
expire, headers, a prefix, a warehouse, vended credentials. It notes its requests.
"""

import contextlib
import http.client
import json
import re
import secrets
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

_TABLE = re.compile(r"namespaces/[^/]+/tables/[^/]+")
_CREDENTIALS = re.compile(r"(namespaces/[^/]+/tables/[^/]+)/credentials")
_HOP = {"host", "connection", "authorization", "accept-encoding", "content-length"}


@dataclass
class Realm:
    """The demands and additions of one address."""

    # "id:secret" of an OAuth2 client, and the seconds that its tokens live.
    client: str | None = None
    token_seconds: float = 3600
    # A bearer token that is accepted as it is.
    token: str | None = None
    # Headers that every request must have.
    headers: dict = field(default_factory=dict)
    # Path segments between /v1/ and the resource, told by /v1/config.
    prefix: str = ""
    # The warehouse that /v1/config must be asked for.
    warehouse: str | None = None
    # Where vended credentials go: "config" or "storage-credentials". None: none are vended.
    vend: str | None = None
    vend_seconds: float = 3600
    # How a client learns of GET …/tables/{t}/credentials: "listed" among the endpoints of /v1/config, or
    # "told" by the configuration of each table. None: it does not exist. "refused": listed, but not there.
    credentials_endpoint: str | None = None
    # More properties in the answer to /v1/config.
    defaults: dict = field(default_factory=dict)
    overrides: dict = field(default_factory=dict)

    tokens: dict = field(default_factory=dict, init=False)
    seen: list = field(default_factory=list, init=False)


class RestProxy:
    """The server of all realms, on a free port of 127.0.0.1.

    `/control/…` is for the tests: POST realms, upstream and revoke; GET requests/{realm} and store.
    """

    def __init__(self, vault, guard, store):
        self.vault = vault
        self.guard = guard
        # Properties with which a client finds the store; no keys.
        self.store = store
        self.upstream = None
        self.realms = {}
        self.lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"proxy": self})
        self.server = _Server(("127.0.0.1", 0), handler)
        self.uri = f"http://127.0.0.1:{self.server.server_address[1]}"

    def control(self, method, words, body):
        """Answer a request of the tests; None for an unknown path."""
        with self.lock:
            match (method, *words):
                case ("POST", "upstream"):
                    self.upstream = urlsplit(body["uri"]).netloc
                    return {}
                case ("POST", "realms"):
                    name = f"r{len(self.realms)}"
                    self.realms[name] = Realm(**body)
                    return {"name": name, "uri": f"{self.uri}/{name}"}
                case ("POST", "revoke"):
                    self.vault.revoke()
                    return {}
                case ("GET", "requests", name):
                    return self.realms[name].seen
                case ("GET", "store"):
                    return self.guard.seen()
        return None


class _Server(ThreadingHTTPServer):
    # Several processes ask at once.
    request_queue_size = 128


class _Refused(Exception):
    def __init__(self, status, body):
        self.status = status
        self.body = body


def _refused(status, kind, message):
    return _Refused(status, {"error": {"message": message, "type": kind, "code": status}})


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy = None

    def answer(self):
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        address = urlsplit(self.path)
        _, first, *words = address.path.split("/")
        if first == "control":
            body = self.proxy.control(self.command, words, json.loads(data or b"{}"))
            self.reply(404 if body is None else 200, body)
            return
        realm = self.proxy.realms.get(first)
        if realm is None:
            self.reply(404, None)
            return
        try:
            status, body = self.serve(realm, "/".join(words), address.query, data)
        except _Refused as refusal:
            status, body = refusal.status, refusal.body
        path = "/".join(words)
        note = {
            "method": self.command,
            "path": path,
            "query": address.query,
            "delegation": self.headers.get("X-Iceberg-Access-Delegation"),
            "load": self.command == "GET" and re.search(rf"{_TABLE.pattern}$", path) is not None,
            "status": status,
        }
        with self.proxy.lock:
            realm.seen.append(note)
        self.reply(status, body)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = answer

    def serve(self, realm, path, query, data):
        for name, value in realm.headers.items():
            if self.headers.get(name) != value:
                raise _refused(403, "ForbiddenException", f"Header {name} is missing or wrong")
        if path == "v1/oauth/tokens":
            return 200, _grant(realm, data)
        self.authorize(realm)
        if path == "v1/config":
            return 200, self.config(realm, query)
        head = f"v1/{realm.prefix}/" if realm.prefix else "v1/"
        if not path.startswith(head):
            raise _refused(404, "NotFoundException", f"No such prefix: {path}")
        resource = path.removeprefix(head)
        wanted = "vended-credentials" in self.headers.get("X-Iceberg-Access-Delegation", "")
        asked = _CREDENTIALS.fullmatch(resource)
        if asked and realm.credentials_endpoint == "refused":
            raise _refused(406, "UnsupportedOperationException", "No credentials here")
        if asked and realm.credentials_endpoint:
            status, body = self.forward("GET", asked[1], "", b"")
            return (status, body if status != 200 else {"storage-credentials": [self.vend(realm)]})
        status, body = self.forward(self.command, resource, query, data)
        if status == 200 and wanted and realm.vend and "metadata" in (body or {}):
            body["config"] = {**(body.get("config") or {}), **self.proxy.store}
            if realm.credentials_endpoint == "told":
                body["config"]["client.refresh-credentials-endpoint"] = f"{path}/credentials"
            entry = self.vend(realm)
            if realm.vend == "config":
                body["config"] |= entry["config"]
            else:
                body["storage-credentials"] = [entry]
        return status, body

    def vend(self, realm):
        return {"prefix": "s3://", "config": self.proxy.vault.vend(realm.vend_seconds)}

    def authorize(self, realm):
        if realm.client is None and realm.token is None:
            return
        kind, _, token = self.headers.get("Authorization", "").partition(" ")
        with self.proxy.lock:
            expires = realm.tokens.get(token)
        if realm.token is not None and token == realm.token:
            expires = float("inf")
        if kind.lower() != "bearer" or expires is None:
            raise _refused(401, "NotAuthorizedException", "No valid bearer token")
        if time.time() >= expires:
            raise _refused(401, "NotAuthorizedException", "The bearer token has expired")

    def config(self, realm, query):
        asked = parse_qs(query).get("warehouse", [None])[0]
        if realm.warehouse is not None and asked != realm.warehouse:
            raise _refused(404, "NoSuchWarehouseException", f"No warehouse named {asked}")
        status, body = self.forward("GET", None, "", b"")
        if status != 200:
            raise _Refused(status, body)
        body["defaults"] = {**body["defaults"], **realm.defaults}
        body["overrides"] = {**body["overrides"], **realm.overrides}
        if realm.prefix:
            body["overrides"]["prefix"] = realm.prefix
        if realm.credentials_endpoint in ("listed", "refused"):
            body["endpoints"].append(
                "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}/credentials"
            )
        return body

    def forward(self, method, resource, query, data):
        """The fixture's answer; `resource` None is its configuration."""
        path = "/v1/config" if resource is None else f"/v1/{resource}"
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
        with contextlib.closing(http.client.HTTPConnection(self.proxy.upstream)) as connection:
            connection.request(method, f"{path}?{query}" if query else path, data, headers)
            answer = connection.getresponse()
            text = answer.read()
        return answer.status, json.loads(text) if text else None

    def reply(self, status, body):
        data = b"" if body is None or self.command == "HEAD" else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        if status != 204:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


def _grant(realm, data):
    """A token for the client that the form names; see RFC 6749, 4.4."""
    form = {name: values[0] for name, values in parse_qs(data.decode()).items()}
    if form.get("grant_type") != "client_credentials":
        raise _Refused(400, {"error": "unsupported_grant_type"})
    if f"{form.get('client_id', '')}:{form.get('client_secret', '')}" != realm.client:
        raise _Refused(
            401, {"error": "invalid_client", "error_description": "Unknown client or wrong secret"}
        )
    token = secrets.token_urlsafe(24)
    realm.tokens[token] = time.time() + realm.token_seconds
    return {
        "access_token": token,
        "token_type": "bearer",
        "expires_in": int(realm.token_seconds),
        "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
    }
