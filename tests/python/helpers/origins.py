"""Two servers of this process at two ports, which are two origins: the first one redirects, the second one is not to learn a secret."""

import contextlib
from http.server import BaseHTTPRequestHandler

from serving import serving


class Origin:
    """A server, and the whole text of each request that it got."""

    def __init__(self, uri):
        self.uri = uri
        self.texts = []

    def has_seen(self, text):
        """Whether any request had this text in its address, its headers or its body."""
        return any(text in seen for seen in self.texts)


@contextlib.contextmanager
def origin(answer):
    """An `Origin` that answers by `answer(path, text)`: a status, headers and a body."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = "".join(f"{name}: {value}\n" for name, value in self.headers.items())
            text = f"{self.command} {self.path}\n{headers}\n{body.decode('latin1')}"
            here.texts.append(text)
            status, extra, body = answer(self.path, text)
            self.send_response(status)
            for name, value in extra.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_PUT = do_POST = do_GET

        def log_message(self, *_):
            pass

    with serving(Handler) as uri:
        here = Origin(uri)
        yield here


@contextlib.contextmanager
def redirecting(status=302, *, before=()):
    """An origin that redirects every path, but those that `before` answers (path to a JSON text), and the one it redirects to."""
    answers = dict(before)
    with origin(lambda *_: (404, {}, b"")) as other:

        def answer(path, _):
            known = answers.get(path.partition("?")[0])
            if known is not None:
                return 200, {"Content-Type": "application/json"}, known.encode()
            return status, {"Location": other.uri + path}, b""

        with origin(answer) as first:
            yield first, other, answers
