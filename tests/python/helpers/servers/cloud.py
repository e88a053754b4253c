"""One process of servers: moto behind its gate (S3, Glue, S3 Tables), and the proxy of REST catalogs.

Usage: python -m servers.cloud KEY SECRET. Prints one line of JSON: the addresses "store" and "proxy".
"""

import json
import sys
import threading

from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from moto.s3tables.models import Table
from werkzeug.serving import make_server

from servers.process import end_with_input
from servers.rest_proxy import RestProxy
from servers.s3_guard import Guard, Vault

# The name of a service, as text; moto says False, which AWS's SDK for Rust refuses to read.
Table.managed_by_service = property(lambda table: "", lambda table, value: None)


class _Quiet(MotoRequestHandler):
    def log_request(self, *_):
        pass


def main(key, secret):
    """Serve until standard input ends; `key` and `secret` never expire."""
    vault = Vault(key, secret)
    guard = Guard(DomainDispatcherApplication(create_backend_app), vault)
    store = make_server("127.0.0.1", 0, guard, threaded=True, request_handler=_Quiet)
    uri = f"http://127.0.0.1:{store.server_port}"
    found = {"s3.endpoint": uri, "s3.path-style-access": "true", "client.region": "us-east-1"}
    proxy = RestProxy(vault, guard, found)
    threading.Thread(target=store.serve_forever, daemon=True).start()
    end_with_input()
    print(json.dumps({"store": uri, "proxy": proxy.uri}), flush=True)
    proxy.server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
