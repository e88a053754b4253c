"""A Unity Catalog of the tests: the questions of its published REST API that a reader asks, on a port of 127.0.0.1.

API: https://docs.unitycatalog.io/swagger-docs/. Listings have pages of two names, errors are those of the open-source server.
"""

import contextlib
import json
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, unquote, urlsplit

from serving import serving

API = "/api/2.1/unity-catalog"
PAGE = 2


@dataclass
class Unity:
    """What the catalog holds, and what it was asked."""

    uri: str = ""
    token: str = "dapi0123456789abcdef"
    # By full name: fields of TableInfo.
    tables: dict = field(default_factory=dict)
    # A function from a table's id to its temporary credentials.
    vend: object = None
    # Where every question is sent instead.
    elsewhere: str | None = None
    # Method, path, query, body and authorization of each request.
    seen: list = field(default_factory=list)

    def add(self, name, location, **more):
        """A Delta table; `more` are other fields of it."""
        self.tables[name] = {
            "name": name.split(".")[-1],
            "table_type": "EXTERNAL",
            "data_source_format": "DELTA",
            "storage_location": location,
            "table_id": f"id of {name}",
            **more,
        }

    def properties(self, **more):
        """The properties of a client."""
        return {"uri": self.uri, "token": self.token, **more}

    def asked(self, end):
        """The requests whose path ends so."""
        return [request for request in self.seen if request["path"].endswith(end)]

    def answer(self, method, path, query, body):
        """Status and body of an answer."""
        match (method, *path.removeprefix(API).strip("/").split("/")):
            case ("GET", "schemas"):
                catalog = query["catalog_name"]
                names = {name.split(".")[1] for name in self.tables if name.startswith(catalog)}
                return (200, page("schemas", names, query)) if names else missing("CATALOG")
            case ("GET", "tables"):
                start = f"{query['catalog_name']}.{query['schema_name']}."
                names = {name.split(".")[2] for name in self.tables if name.startswith(start)}
                return (200, page("tables", names, query)) if names else missing("SCHEMA")
            case ("GET", "tables", name):
                table = self.tables.get(name)
                return (200, table) if table else missing("TABLE")
            case ("POST", "temporary-table-credentials"):
                known = {table["table_id"] for table in self.tables.values()}
                if body["table_id"] not in known:
                    return missing("TABLE")
                if body["operation"] != "READ":
                    return 403, error("PERMISSION_DENIED", "reading alone is permitted")
                return 200, self.vend(body["table_id"])
        return missing("ENDPOINT")


def aws(keys, ends):
    """Temporary credentials: keys in the names of s3fs, and when they end in seconds since 1970."""
    return {
        "aws_temp_credentials": {
            "access_key_id": keys["key"],
            "secret_access_key": keys["secret"],
            "session_token": keys["token"],
        },
        "expiration_time": int(ends * 1000),
    }


def error(code, message):
    """The body of an error."""
    return {"error_code": code, "message": message, "details": []}


def missing(what):
    """The answer where there is none."""
    return 404, error(f"{what}_NOT_FOUND", f"{what.lower()} not found")


def page(key, names, query):
    """One page of a listing."""
    start = int(query.get("page_token", 0))
    found = sorted(names)
    body = {key: [{"name": name} for name in found[start : start + PAGE]]}
    return body | ({"next_page_token": str(start + PAGE)} if start + PAGE < len(found) else {})


@contextlib.contextmanager
def unity_server():
    """A `Unity` without tables."""
    unity = Unity()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            url = urlsplit(self.path)
            path = unquote(url.path)
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            who = self.headers.get("Authorization")
            unity.seen.append({"method": self.command, "path": path, "who": who})
            if unity.elsewhere:
                return self.reply(307, {}, Location=unity.elsewhere + self.path)
            if who != f"Bearer {unity.token}":
                # Some gateways repeat what they refuse.
                return self.reply(401, error("UNAUTHENTICATED", f"no user has {who}"))
            return self.reply(*unity.answer(self.command, path, query, json.loads(data or b"{}")))

        do_POST = do_GET

        def reply(self, status, body, **headers):
            data = json.dumps(body).encode()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    with serving(Handler) as unity.uri:
        yield unity
