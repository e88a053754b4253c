"""Once per job: one rank finds facts about files, and the other ranks receive them.

Rank 0 lists, reads footers and plans, and puts what it found into the process group's store; the others wait for it. Where it
does not come soon, because it does something else first, the next rank to come does it. The data sent are pinned files, schemas
and splits: no options of a store and no credentials, which every rank has of its own. A rank that fails tells the others what
happened, and one that gives no sign of life any more ends their waiting.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from tensorquery import errors
from tensorquery._util.digests import digest
from tensorquery.distributed.topology import Topology, group_store
from tensorquery.errors import ConfigError, StorageError, TensorQueryError

__all__ = ["Channel", "Received", "channel_of"]

_log = logging.getLogger("tensorquery")

Found = TypeVar("Found")

PATIENCE = 60.0
"""Seconds without a sign of life of the rank that works after which the others give up."""

GRACE = 5.0
"""Seconds for which the others leave the work to rank 0."""

_SLOWEST = 600.0
"""Seconds that ranks may lie apart when they agree: a rank may be saving a checkpoint."""

_BEAT = 1.0
"""Seconds between two signs of life of the rank that works."""

_SHORT, _LONG = 0.005, 0.25
"""Seconds between two looks at the store: the first and the longest."""

_PIECE = 8 << 20
"""Bytes under one key of the store."""


class Received:
    """The results of the rank that worked, by name, in the store; read when they are asked for.

    Args:
        get: Reads a key of the store.
        sizes: By name, the number of pieces.
    """

    def __init__(self, get: Callable[[str], bytes], sizes: Mapping[str, int]) -> None:
        self._get = get
        self._sizes = sizes

    @property
    def names(self) -> list[str]:
        """The names of the results."""
        return list(self._sizes)

    def __getitem__(self, name: str) -> bytes:
        """Read one of them.

        Raises:
            StorageError: The store does not answer.
        """
        pieces = (self._get(f"part/{name}/{piece}") for piece in range(self._sizes[name]))
        return b"".join(pieces)


class Channel:
    """The ranks of a process group, one of which works for all.

    Args:
        store: A `torch.distributed.Store`.
        topology: The place of this process.
    """

    def __init__(self, store: Any, topology: Topology) -> None:
        self._store = store
        self.rank = topology.rank

    def once(
        self,
        what: list[Any],
        find: Callable[[], Found],
        pack: Callable[[Found], Mapping[str, bytes]],
        take: Callable[[Received], Found],
    ) -> Found:
        """Find something out on one rank, and hand it to the others.

        Args:
            what: The question, as plain data without secrets, equal on all ranks. A rank that asks for something
                else finds that out by itself.
            find: Called on the rank that works.
            pack: Makes bytes of the results, by name.
            take: Called on the other ranks, with what that one has packed.

        Returns:
            What `find` or `take` returned.

        Raises:
            StorageError: The rank that works gives no sign of life any more, or the store does not answer.
            Exception: What `find` raises, on all ranks; on the others with its message.
        """
        task = _Task(self._store, f"tensorquery/once/{digest(what)}/", str(what[0]))
        task.begin(self.rank)
        if not task.claim(0.0 if self.rank == 0 else GRACE):
            return take(task.wait())
        with task.alive():
            try:
                found = find()
                task.publish(pack(found))
            except BaseException as error:
                task.fail(error)
                raise
        return found

    def agree(self, kind: str, mine: Mapping[str, Any], world_size: int) -> None:
        """Check that all ranks of the group say the same; each calls it.

        Args:
            kind: What they agree on, in words.
            mine: What this rank says, plain data.
            world_size: Number of ranks.

        Raises:
            ConfigError: A rank says something else; on all ranks, with what differs.
            StorageError: A rank does not come within ten minutes, or the store does not answer.
        """
        task = _Task(self._store, f"tensorquery/agree/{digest(kind)}/", kind)
        task.begin(self.rank)
        task.say(self.rank, mine)
        # Rank 0 answers for all, so that the store is asked once for each rank.
        if self.rank:
            verdict = task.heard("verdict", "rank 0")
        else:
            others = (
                (rank, task.heard(f"said/{rank}", f"rank {rank}")) for rank in range(1, world_size)
            )
            verdict = next((told for other in others if (told := _differing(mine, *other))), "")
            task.say("verdict", verdict)
        if verdict:
            raise ConfigError(f"all ranks must agree on {kind}; {verdict}")


def _differing(mine: Mapping[str, Any], rank: int, theirs: Mapping[str, Any]) -> str:
    """What another rank says otherwise than rank 0, in words."""
    ours = json.loads(json.dumps(mine))
    wrong = [
        f"{name} ({str(value)[:200]} on rank 0, {str(theirs.get(name))[:200]} on rank {rank})"
        for name, value in ours.items()
        if theirs.get(name) != value
    ]
    return f"what differs: {', '.join(wrong)}" if wrong else ""


def channel_of(topology: Topology, process_group: Any | None) -> Channel | None:
    """The channel among the ranks of a group; None where they share none: then each finds out everything itself.

    Args:
        topology: The place of this process.
        process_group: The data-parallel group; None: the global one.
    """
    store = group_store(topology, process_group)
    return None if store is None else Channel(store, topology)


class _Task:
    """One thing that is found out, in the store."""

    def __init__(self, store: Any, prefix: str, kind: str) -> None:
        self._store = store
        self._prefix = prefix
        self._kind = kind

    def _ask(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self._store, method)(*arguments)
        # torch raises RuntimeError and its subclasses, OSError and ValueError, by kind of store.
        except Exception as error:
            raise StorageError(
                f"the process group's store does not answer (store.{method}: {error}); the rank that serves it may have "
                "ended: see its own error"
            ) from error

    def begin(self, rank: int) -> None:
        """Number this task: the ranks of a group find out the same things in the same order."""
        # Counted in the store, which holds the keys of one group and ends with it.
        turn = self._ask("add", f"{self._prefix}turn/{rank}", 1)
        self._prefix = f"{self._prefix}{turn}/"

    def say(self, name: int | str, what: Any) -> None:
        """Leave something for the other ranks."""
        key = f"said/{name}" if isinstance(name, int) else name
        self._ask("set", f"{self._prefix}{key}", json.dumps(what))

    def heard(self, key: str, who: str) -> Any:
        """What another rank has left, as soon as it is there."""
        pause, until = _SHORT, time.monotonic() + _SLOWEST
        while not self._ask("check", [f"{self._prefix}{key}"]):
            if time.monotonic() > until:
                raise StorageError(
                    f"{who} did not call for {self._kind} within {_SLOWEST:g} seconds of this rank; all ranks must call it at "
                    "the same step"
                )
            time.sleep(pause)
            pause = min(pause * 1.5, _LONG)
        return json.loads(self._ask("get", f"{self._prefix}{key}"))

    def claim(self, grace: float) -> bool:
        """Whether this rank is the one that works: nobody else was for so many seconds."""
        pause, until = _SHORT, time.monotonic() + grace
        while time.monotonic() < until:
            if self._ask("add", f"{self._prefix}claimed", 0) > 0:
                return False
            time.sleep(pause)
            pause = min(pause * 1.5, _LONG)
        return bool(self._ask("add", f"{self._prefix}claimed", 1) == 1)

    def publish(self, parts: Mapping[str, bytes]) -> None:
        """Hand over the results."""
        sizes = {}
        for name, content in parts.items():
            pieces = [content[at : at + _PIECE] for at in range(0, max(1, len(content)), _PIECE)]
            for number, piece in enumerate(pieces):
                # A store does not take an empty value.
                self._ask("set", f"{self._prefix}part/{name}/{number}", piece + b"\n")
            sizes[name] = len(pieces)
        self._ask("set", f"{self._prefix}answer", json.dumps({"sizes": sizes}))

    def fail(self, error: BaseException) -> None:
        """Hand over an error, on the way out with it."""
        answer = json.dumps({"error": [type(error).__name__, str(error)]})
        with contextlib.suppress(StorageError):
            self._ask("set", f"{self._prefix}answer", answer)

    @contextlib.contextmanager
    def alive(self) -> Iterator[None]:
        """Give signs of life meanwhile, from a thread: finding out is one long call."""
        done = threading.Event()

        def beat() -> None:
            while not done.is_set():
                with contextlib.suppress(StorageError):
                    self._ask("add", f"{self._prefix}beat", 1)
                done.wait(_BEAT)

        thread = threading.Thread(target=beat, name="tensorquery-beat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def wait(self) -> Received:
        """The results of the other rank, as soon as they are there."""
        beats, pause, until = -1, _SHORT, time.monotonic() + PATIENCE
        while not self._ask("check", [f"{self._prefix}answer"]):
            if (now := self._ask("add", f"{self._prefix}beat", 0)) != beats:
                beats, until = now, time.monotonic() + PATIENCE
            elif time.monotonic() > until:
                raise StorageError(
                    f"another rank was finding out the {self._kind} for all ranks, and gave no sign of life for "
                    f"{PATIENCE:g} seconds; it may have ended: see its own error"
                )
            time.sleep(pause)
            pause = min(pause * 1.5, _LONG)
        answer = json.loads(self._ask("get", f"{self._prefix}answer"))
        if "error" in answer:
            kind, message = answer["error"]
            known = getattr(errors, kind, None)
            if not (isinstance(known, type) and issubclass(known, TensorQueryError)):
                known, message = TensorQueryError, f"{kind}: {message}"
            raise known(f"the rank that finds out the {self._kind} for all ranks failed: {message}")
        return Received(self._piece, answer["sizes"])

    def _piece(self, key: str) -> bytes:
        return bytes(self._ask("get", f"{self._prefix}{key}"))[:-1]
