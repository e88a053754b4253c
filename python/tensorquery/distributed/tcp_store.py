"""A key-value store that rank 0 serves over TCP, with the methods of a `torch.distributed.Store`.

A message is one byte that says what is asked, the lengths of a key and a value, and both. Nothing is pickled. Each rank has one
connection, and its questions are answered at once: nobody waits in the server.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
import weakref
from collections.abc import Sequence

from tensorquery.errors import StorageError

__all__ = ["TcpStore", "serve"]

_HEAD = struct.Struct("!cIQ")
"""What is asked, or how the answer is meant; bytes of the key; bytes of the value."""

_HELLO = b"tensorquery 1"
_MOST_KEY, _MOST_VALUE = 1 << 16, 1 << 30
"""The most bytes of a key and of a value, before memory is taken."""

_ANSWER = 60.0
"""Seconds in which the server answers, and in which a value comes that must be there."""

_RETRY = 0.05

_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
"""Those that this process has open."""


class _LostError(OSError):
    """The other side closed the connection."""


def _send(connection: socket.socket, kind: bytes, key: bytes = b"", value: bytes = b"") -> None:
    connection.sendall(_HEAD.pack(kind, len(key), len(value)) + key + value)


def _receive(connection: socket.socket) -> tuple[bytes, bytes, bytes]:
    kind, key, value = _HEAD.unpack(_exactly(connection, _HEAD.size))
    if key > _MOST_KEY or value > _MOST_VALUE:
        raise _LostError(f"a message of {key} and {value} bytes is none of a rank")
    return kind, _exactly(connection, key), _exactly(connection, value)


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        # Memory grows with what comes, and not with what was announced.
        part = connection.recv(min(size - len(parts), 1 << 20))
        if not part:
            raise _LostError("the connection was closed")
        parts += part
    return bytes(parts)


class _Server:
    """The values, and a thread for each rank that asks for them.

    Args:
        listening: The socket that ranks connect to.
        world_size: Number of ranks.
    """

    def __init__(self, listening: socket.socket, world_size: int) -> None:
        self._listening = listening
        self._world_size = world_size
        self._values: dict[bytes, bytes] = {}
        self._counters: dict[bytes, int] = {}
        self._ranks: set[int] = set()
        self._lock = threading.Lock()
        _sockets.add(listening)
        threading.Thread(target=self._listen, name="tensorquery-store", daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        # This wakes the thread that waits for them; `close` alone does not.
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            _sockets.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        # One that goes away, or is none of the ranks, is left alone.
        with connection, contextlib.suppress(OSError, ValueError, struct.error):
            connection.settimeout(_ANSWER)
            refusal = self._refusal(*_receive(connection))
            if refusal is not None:
                _send(connection, b"E", value=refusal.encode())
                return
            _send(connection, b"V")
            connection.settimeout(None)
            while True:
                _send(connection, *self._answer(*_receive(connection)))

    def _refusal(self, kind: bytes, key: bytes, value: bytes) -> str | None:
        """Why whoever connects is not let in."""
        if kind != b"H" or key != _HELLO:
            raise _LostError("not a rank")
        rank, world_size = map(int, value.split())
        if world_size != self._world_size:
            return (
                f"rank 0 has world_size={self._world_size}, and rank {rank} world_size={world_size}"
            )
        with self._lock:
            if rank in self._ranks:
                return f"there is a rank {rank} already; another job may use this address"
            self._ranks.add(rank)
        return None

    def _answer(self, kind: bytes, key: bytes, value: bytes) -> tuple[bytes, bytes, bytes]:
        with self._lock:
            if kind == b"A":
                total = self._counters.get(key, 0) + int(value)
                if int(value):
                    self._counters[key] = total
                return b"V", b"", str(total).encode()
            if kind == b"S":
                self._values[key] = value
                return b"V", b"", b""
            found = self._values.get(key)
            if kind == b"C":
                return (b"N" if found is None else b"V"), b"", b""
            return (b"N", b"", b"") if found is None else (b"V", b"", found)


class TcpStore:
    """Keys and values of a server; made by `serve` on rank 0, and by connecting on the others.

    Args:
        address: Host and port of rank 0.
        rank: This rank.
        world_size: Number of ranks.
        timeout: Seconds to wait for rank 0.

    Raises:
        StorageError: Nobody answers there, or not the rank 0 of this job.
    """

    def __init__(
        self, address: tuple[str, int], rank: int, world_size: int, timeout: float
    ) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._server: _Server | None = None
        where, until = f"tcp://{address[0]}:{address[1]}", time.monotonic() + timeout
        while True:
            try:
                self._connection = socket.create_connection(address, timeout=_ANSWER)
                break
            except OSError as error:
                if time.monotonic() > until:
                    raise StorageError(
                        f"rank {rank} of {world_size} reached no rank 0 at {where} within {timeout:g} seconds ({error}); see "
                        "whether that runs, and give the address of its machine"
                    ) from error
                time.sleep(_RETRY)
        _sockets.add(self._connection)
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            kind, _, words = self._ask(b"H", _HELLO, f"{rank} {world_size}".encode())
        except OSError as error:
            raise StorageError(
                f"what answers at {where} is no rank 0 of this version ({error}); give the address and a free port of its machine"
            ) from error
        if kind == b"E":
            self.close()
            raise StorageError(f"{where} refuses this rank: {words.decode()}")

    def set(self, key: str, value: str | bytes) -> None:
        """Set the value of a key."""
        self._ask(b"S", key.encode(), value.encode() if isinstance(value, str) else value)

    def get(self, key: str) -> bytes:
        """The value of a key.

        Raises:
            OSError: It has none, or the server does not answer.
        """
        until = time.monotonic() + _ANSWER
        while time.monotonic() < until:
            kind, _, value = self._ask(b"G", key.encode())
            if kind == b"V":
                return value
            time.sleep(_RETRY)
        raise TimeoutError(f"the store has no value for {key!r} after {_ANSWER:g} seconds")

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys have values."""
        return all(self._ask(b"C", key.encode())[0] == b"V" for key in keys)

    def add(self, key: str, amount: int) -> int:
        """Add to a counter that begins at 0, and return its new value."""
        return int(self._ask(b"A", key.encode(), str(amount).encode())[2])

    def close(self) -> None:
        """Let go of the connection; rank 0 serves no more."""
        self._connection.close()
        if self._server is not None:
            self._server.close()

    def _ask(self, kind: bytes, key: bytes, value: bytes = b"") -> tuple[bytes, bytes, bytes]:
        if self._process != os.getpid():
            raise OSError(
                "the store was connected to before a fork, and belongs to the parent process"
            )
        with self._lock:
            try:
                _send(self._connection, kind, key, value)
                return _receive(self._connection)
            except BaseException:
                # What comes next would be the answer to this question.
                self._connection.close()
                raise


def serve(address: tuple[str, int], world_size: int, timeout: float) -> TcpStore:
    """Serve a store at an address of this machine, and connect to it as rank 0.

    Args:
        address: Host and port.
        world_size: Number of ranks.
        timeout: Seconds to wait.

    Raises:
        StorageError: The address is in use, or none of this machine.
    """
    try:
        family = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server(address, family=family, backlog=min(world_size, 1024))
    except OSError as error:
        raise StorageError(
            f"rank 0 cannot listen at tcp://{address[0]}:{address[1]} ({error}); give an address of the machine of rank 0 and a "
            "free port"
        ) from error
    server = _Server(listening, world_size)
    try:
        store = TcpStore(address, 0, world_size, timeout)
    except BaseException:
        server.close()
        raise
    store._server = server
    return store


def _close_in_child() -> None:
    """In a forked process: it must not keep a port and connections open, behind which nobody answers."""
    for each in list(_sockets):
        each.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
