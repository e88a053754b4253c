"""A server of this process that ends with its `with` block; a forked worker inherits no thread of it."""

import contextlib
import threading
from http.server import ThreadingHTTPServer


@contextlib.contextmanager
def serving(handler):
    """The address of a server on a free port of 127.0.0.1 that answers by this kind of handler."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        # It ends soon after it is told to.
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
