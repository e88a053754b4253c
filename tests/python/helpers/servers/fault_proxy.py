"""An HTTP/1.1 proxy that makes faults, between a client and a store; see `servers.faults` for which.

Usage: python -m servers.fault_proxy STORE. STORE is "host:port". Requests go on as they came, Host header included, so that
their signatures stay valid. Prints one line of JSON: the port of the proxy and the port of its control, which
takes a line of JSON per connection and answers with one: {"do": "rules", "rules": [...], "seed": 0}, {"do": "log"},
{"do": "figures"}, {"do": "release"}. It ends with its standard input.
"""

import asyncio
import json
import socket
import struct
import sys
import time

from servers.faults import Plan, Request
from servers.process import end_with_input

_LIMIT = 1 << 20
_PIECE = 1 << 18
_STATUS = {403: "Forbidden", 429: "Too Many Requests", 503: "Service Unavailable"}


class Gone(Exception):
    """The client closed its connection, or the fault did."""


class Proxy:
    """The proxy's state: the rules, what was asked, and how many requests are being answered."""

    def __init__(self, host, port):
        self.upstream = host, port
        self.restart([], 0)

    def restart(self, rules, seed):
        """Other rules, and the notes and figures from the start."""
        self.plan = Plan(rules, seed)
        self.notes = []
        self.now = self.most = self.sent = 0
        # When the link is free again, by time.monotonic().
        self.free_at = 0.0
        self.released = asyncio.Event()

    def figures(self):
        """Requests, the most of them at once, bytes of bodies sent, and the hits of each kind of rule."""
        return {
            "requests": len(self.notes),
            "most_at_once": self.most,
            "bytes": self.sent,
            "hits": self.plan.hits(),
        }

    async def control(self, reader, writer):
        """Answer one line of a test."""
        asked = json.loads(await reader.readline())
        answer = {}
        try:
            match asked.pop("do"):
                case "rules":
                    self.restart(asked["rules"], asked.get("seed", 0))
                case "log":
                    answer = self.notes
                case "figures":
                    answer = self.figures()
                case "release":
                    self.released.set()
        except (KeyError, TypeError, ValueError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        writer.write(json.dumps(answer).encode() + b"\n")
        await writer.drain()
        writer.close()

    async def serve(self, reader, writer):
        """Answer the requests of one connection."""
        line = _Line(self, reader, writer)
        try:
            while await line.answer():
                pass
        except (Gone, ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            line.close()


class _Line:
    """A connection of a client and the connection to the store that serves it."""

    def __init__(self, proxy, reader, writer):
        self.proxy = proxy
        self.reader, self.writer = reader, writer
        self.store = None
        self.delays = []
        self.note = {}

    def close(self):
        self.drop_store()
        self.writer.close()

    def drop_store(self):
        """Take no more of the store's answer."""
        if self.store is not None:
            self.store[1].close()
            self.store = None

    async def answer(self):
        """Answer one request; False at the end of the connection."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return False
        request = _request(head)
        proxy = self.proxy
        fault, self.delays = proxy.plan.for_request(request)
        self.note = {
            "method": request.method,
            "target": request.target,
            "range": request.range,
            "if_match": request.headers.get("if-match"),
            "fault": fault and fault.kind,
            "status": None,
            "sent": 0,
        }
        proxy.notes.append(self.note)
        proxy.now += 1
        proxy.most = max(proxy.most, proxy.now)
        try:
            return await self.exchange(request, fault)
        finally:
            proxy.now -= 1

    async def exchange(self, request, fault):
        data = await self.take_body(request)
        for delay in self.delays:
            if delay.kind == "latency":
                await asyncio.sleep(delay.seconds)
        match fault and (fault.kind, fault.when):
            case ("status", _):
                await self.refuse(request, fault)
                return True
            case ("silent", _):
                await self.sleep(None)
            case ("reset", "before"):
                self.reset()
            case ("stall", "headers"):
                await self.sleep(fault.seconds)
                fault = None
            case ("hold", _):
                await self.proxy.released.wait()
                fault = None
        answer = await self.ask(request, data)
        return await self.relay(request, answer, fault)

    async def take_body(self, request):
        """The body of a request."""
        length = int(request.headers.get("content-length", 0))
        if not length:
            return b""
        if request.headers.get("expect", "").lower() == "100-continue":
            self.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return await self.reader.readexactly(length)

    async def ask(self, request, data):
        """The head of the store's answer; asked again where the store had closed an idle connection."""
        head = request.head
        if "expect" in request.headers:
            head = _without(head, b"expect")
        if request.headers.get("if-match") == _CHANGED:
            head = _without(head, b"if-match")
        while True:
            fresh = self.store is None
            if fresh:
                self.store = await asyncio.open_connection(*self.proxy.upstream, limit=_LIMIT)
            reader, writer = self.store
            try:
                writer.write(head + data)
                return _Answer(await reader.readuntil(b"\r\n\r\n"), request.method)
            except (ConnectionError, asyncio.IncompleteReadError):
                self.drop_store()
                if fresh:
                    raise

    async def relay(self, request, answer, fault):
        """Send the store's answer on, with `fault`."""
        kind, length = fault and fault.kind, answer.length
        self.note["status"] = answer.status
        if kind == "changed":
            demanded = request.headers.get("if-match")
            if demanded not in (None, _CHANGED):
                self.drop_store()
                await self.error(412, "PreconditionFailed", {"ETag": _CHANGED})
                return True
            answer.replace("ETag", _CHANGED)
        elif kind == "length" and length is not None:
            answer.replace("Content-Length", str(max(0, length + fault.delta)))
        elif kind == "range" and answer.status == 206:
            answer.replace("Content-Range", answer.moved_range(fault.delta))
        if kind == "reset" and fault.when == "headers":
            self.writer.write(answer.head[: len(answer.head) // 2])
            await self.writer.drain()
            self.reset()
        self.writer.write(answer.head)
        if kind in ("cut", "reset", "stall") and length:
            await self.copy(int(length * fault.part))
            length -= int(length * fault.part)
            await self.writer.drain()
            if kind == "stall":
                await self.sleep(fault.seconds)
            elif kind == "reset":
                self.reset()
            else:
                raise Gone
        elif kind in ("cut", "reset"):
            # There is no body to break.
            self.reset()
        if answer.chunked:
            await self.copy_chunks()
        elif length is None:
            await self.copy(None)
            raise Gone
        else:
            await self.copy(length)
        await self.writer.drain()
        if kind == "length":
            raise Gone
        if answer.closes:
            self.drop_store()
        return True

    async def copy(self, length):
        """Send `length` bytes of the store's body on; None: all until its connection ends."""
        reader = self.store[0]
        while length is None or length > 0:
            piece = await reader.read(_PIECE if length is None else min(length, _PIECE))
            if not piece:
                if length is None:
                    return
                raise Gone
            await self.send(piece)
            if length is not None:
                length -= len(piece)

    async def copy_chunks(self):
        """Send a chunked body on."""
        reader = self.store[0]
        while True:
            size = await reader.readuntil(b"\r\n")
            piece = await reader.readexactly(int(size.split(b";")[0], 16) + 2)
            await self.send(size + piece)
            if len(piece) == 2:
                return

    async def send(self, piece):
        proxy = self.proxy
        for delay in self.delays:
            if delay.kind == "link":
                proxy.free_at = max(proxy.free_at, time.monotonic()) + len(piece) / delay.rate
                await asyncio.sleep(proxy.free_at - time.monotonic())
        self.writer.write(piece)
        proxy.sent += len(piece)
        self.note["sent"] += len(piece)
        await self.writer.drain()

    async def refuse(self, request, rule):
        """Answer with an error of the proxy's own."""
        self.note["status"] = rule.status
        more = {} if rule.retry_after is None else {"Retry-After": f"{rule.retry_after:g}"}
        told = ""
        if rule.echo:
            told = "; ".join(f"{name}: {value}" for name, value in request.headers.items())
        await self.error(rule.status, rule.code, more, told)

    async def error(self, status, code, headers, told=""):
        text = f"{code} of the fault proxy {told}".replace("&", "&amp;").replace("<", "&lt;")
        body = f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>{text}</Message></Error>'
        data = b"" if self.note["method"] == "HEAD" else body.encode()
        lines = {
            "Content-Type": "application/xml",
            "Content-Length": str(len(data)),
            **headers,
        }
        head = f"HTTP/1.1 {status} {_STATUS.get(status, 'Refused')}\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self.writer.write(head.encode() + b"\r\n" + data)
        await self.writer.drain()

    async def sleep(self, seconds):
        """Wait `seconds`, None: for ever; ends with the client's connection."""
        try:
            if not await asyncio.wait_for(self.reader.read(1), seconds):
                raise Gone
        except TimeoutError:
            return
        raise RuntimeError("the client sends a second request before the first is answered")

    def reset(self):
        """End the client's connection by RST."""
        raw = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()
        raise Gone


_CHANGED = '"0123456789abcdef0123456789abcdef"'


class _Answer:
    """The head of the store's answer."""

    def __init__(self, head, method):
        self.head = head
        lines = head.decode("latin-1").split("\r\n")
        self.status = int(lines[0].split(" ", 2)[1])
        self.headers = _headers(lines[1:])
        self.chunked = self.headers.get("transfer-encoding", "").lower() == "chunked"
        self.closes = self.headers.get("connection", "").lower() == "close"
        # Bytes of the body; None: told by chunks or by the end of the connection.
        self.length = None
        if method == "HEAD" or self.status in (204, 304):
            self.length, self.chunked = 0, False
        elif "content-length" in self.headers:
            self.length = int(self.headers["content-length"])

    def replace(self, name, value):
        """Say `value` in the header `name`, or with None leave it out."""
        head = _without(self.head, name.lower().encode())
        if value is not None:
            head = head[:-2] + f"{name}: {value}\r\n\r\n".encode()
        self.head = head

    def moved_range(self, delta):
        """The Content-Range moved by `delta` bytes; None for 0."""
        span, _, total = self.headers["content-range"].removeprefix("bytes ").partition("/")
        start, _, stop = span.partition("-")
        return f"bytes {int(start) + delta}-{int(stop) + delta}/{total}" if delta else None


def _request(head):
    lines = head.decode("latin-1").split("\r\n")
    method, target, _ = lines[0].split(" ", 2)
    return Request(method, target, _headers(lines[1:]), head)


def _headers(lines):
    pairs = (line.partition(":")[::2] for line in lines if line)
    return {name.lower(): value.strip() for name, value in pairs}


def _without(head, name):
    """`head` without the header `name`, given in lower case."""
    lines = head.split(b"\r\n")
    return b"\r\n".join(line for line in lines if not line.lower().startswith(name + b":"))


async def main(store):
    """Serve until standard input ends."""
    host, _, port = store.rpartition(":")
    proxy = Proxy(host, int(port))
    control = await asyncio.start_server(proxy.control, "127.0.0.1", 0)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=_LIMIT, backlog=1024)
    ports = {
        "port": server.sockets[0].getsockname()[1],
        "control": control.sockets[0].getsockname()[1],
    }
    print(json.dumps(ports), flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    end_with_input()
    asyncio.run(main(sys.argv[1]))
