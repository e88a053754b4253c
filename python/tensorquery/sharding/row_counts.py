"""Exact output rows per split: from metadata, from a cache on disk, or counted, together with other ranks.

Nothing here is needed to deliver rows; equal steps over several ranks and ``len()`` are what ask.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import stat
import tempfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

from tensorquery._util.options import expanded_path
from tensorquery.distributed.rendezvous import Board, StoreLostError, share
from tensorquery.distributed.topology import Topology, group_store
from tensorquery.metrics.progress import ProgressLine

if TYPE_CHECKING:
    from tensorquery import _core

__all__ = [
    "Shared",
    "SplitCounts",
    "cache_folder",
    "keep",
    "kept",
    "portion_of",
    "split_counts",
    "together",
]

_log = logging.getLogger("tensorquery")

_CACHE_VERSION = 1
_CACHE_FILES = 256
_NAMES = re.compile(r"[0-9]+-[0-9a-f]{64}(-verified|-series-[0-9a-f]{16})?")
"""Files that the cache keeps: the ones used last."""

_CHUNKS_PER_RANK = 16
"""Portions in which ranks share splits: enough that a fast rank takes more of them."""

_warned_of_cache = False


@dataclass(frozen=True)
class SplitCounts:
    """Output rows of every split, and where the numbers come from.

    Attributes:
        rows: Output rows by split id, exact.
        source: "metadata" (no row had to be looked at), "cache" (counted by an earlier run) or
            "counted".
        read: Splits that this process executed.
        from_statistics: Splits that this process counted without reading them, since statistics prove
            that every row is kept.
        received: Splits that other ranks counted.
    """

    rows: list[int]
    source: Literal["metadata", "cache", "counted"]
    read: int = 0
    from_statistics: int = 0
    received: int = 0


def split_counts(
    plan: _core.Plan,
    *,
    topology: Topology,
    process_group: Any | None = None,
    show_progress: bool | str = False,
    threads: int,
    timeout: float = 30.0,
) -> SplitCounts:
    """Find the exact output rows of every split.

    Ranks of one process group share the counting through the group's store. No rank waits for another
    to come, so a call on one rank alone is safe. Without a process group every rank counts by itself.

    Args:
        plan: The query by splits, with all of its splits.
        topology: The place of this process.
        process_group: The data-parallel `torch.distributed` group; None: the global one, where it is as large as the
            topology says.
        show_progress: Show a bar while counting; see `progress.shows`.
        threads: Splits that decode at the same time in this process.
        timeout: Seconds without a sign of life of any other rank, after which this one counts what
            they had taken.

    Returns:
        The counts.

    Raises:
        DataError: A file is damaged; names it. Other ranks are not held up.
        StorageError: A file cannot be read, or has changed.
    """
    known = plan.known_counts()
    if known is not None:
        return SplitCounts(known, "metadata")
    fingerprint, splits = plan.fingerprint, plan.num_splits
    store = group_store(topology, process_group)
    portion = splits if store is None else portion_of(splits, topology)
    board = None
    if store is not None:
        board = Board(store, f"counts/{fingerprint}", -(-splits // portion))
    cached = kept(fingerprint, fingerprint, lambda rows: _are_counts(rows, splits))
    if cached is not None:
        if board is not None:
            _publish(board, cached, portion)
        return SplitCounts(cached, "cache")

    with ProgressLine(splits, topology, show=show_progress) as progress:
        counting = _Counting(plan, threads, progress)
        if board is None:
            rows = counting.count(range(splits))
        else:
            rows = together(counting, board, splits, portion, threads, timeout)
    keep(fingerprint, fingerprint, rows)
    return SplitCounts(rows, "counted", counting.read, counting.from_statistics, counting.received)


class Shared(ABC):
    """Finds something out of every split in this process, while other ranks do other splits."""

    def __init__(self, progress: ProgressLine) -> None:
        self.board: Board | None = None
        self._progress = progress
        self._splits = 0
        self._rows = 0

    @abstractmethod
    def count(self, ids: Sequence[int]) -> list[Any]:
        """A result, ready for JSON, for each of these splits."""

    @abstractmethod
    def accept(self, result: Any, length: int) -> bool:
        """Take another rank's results of so many splits; False where they cannot be that."""

    def done(self, splits: int, rows: int) -> None:
        """So many more splits are done."""
        self._splits += splits
        self._rows += rows
        self._progress.show(self._splits, self._rows)

    def reporter(self) -> Callable[[int, int], None]:
        """A function to call with the splits and rows that this call of `count` has done so far."""
        before, rows_before = self._splits, self._rows

        def report(splits: int, rows: int) -> None:
            self._progress.show(before + splits, rows_before + rows)
            if self.board is not None:
                # Life is a courtesy to others; a lost store is found out where results are published.
                with contextlib.suppress(StoreLostError):
                    self.board.beat_at_times()

        return report


class _Counting(Shared):
    """Counts splits in this process; plans once, and only if a split is left to count."""

    def __init__(self, plan: _core.Plan, threads: int, progress: ProgressLine) -> None:
        super().__init__(progress)
        self._plan = plan
        self._threads = threads
        self._counter: _core.SplitCounter | None = None
        self.read = 0
        self.from_statistics = 0
        self.received = 0

    def accept(self, result: Any, length: int) -> bool:
        if not _are_counts(result, length):
            return False
        self.received += length
        self.done(length, sum(result))
        return True

    def count(self, ids: Sequence[int]) -> list[int]:
        if self._counter is None:
            self._counter = self._plan.counter()
        found = self._counter.count(ids, self._threads, self.reporter())
        self.read += sum(read for _, read in found)
        self.from_statistics += sum(not read for _, read in found)
        self.done(len(found), sum(rows for rows, _ in found))
        return [rows for rows, _ in found]


def portion_of(splits: int, topology: Topology) -> int:
    """Splits of one portion that ranks share."""
    return -(-splits // (_CHUNKS_PER_RANK * topology.world_size))


def together(
    counting: Shared,
    board: Board,
    splits: int,
    portion: int,
    threads: int,
    timeout: float = 30.0,
) -> list[Any]:
    """The results of all splits, in portions of so many; other ranks find some of them."""

    def ids(chunk: int) -> range:
        return range(chunk * portion, min((chunk + 1) * portion, splits))

    def work(chunks: list[int]) -> list[list[Any]]:
        rows = iter(counting.count([id for chunk in chunks for id in ids(chunk)]))
        return [[next(rows) for _ in ids(chunk)] for chunk in chunks]

    def accept(chunk: int, result: Any) -> bool:
        return counting.accept(result, len(ids(chunk)))

    counting.board = board
    # As many splits at once as keep the threads busy, but never most of a rank's share.
    wanted = -(-2 * threads // portion)
    take = max(1, min(wanted, _CHUNKS_PER_RANK // 4))
    results = share(board, work, accept, take=take, timeout=timeout)
    return [found for result in results for found in result]


def _publish(board: Board, rows: list[int], portion: int) -> None:
    """Give what this rank's disk knows to ranks whose disk does not."""
    try:
        for chunk in range(board.chunks):
            board.put(chunk, rows[chunk * portion : (chunk + 1) * portion])
        board.beat()
    except StoreLostError as error:
        _log.warning("the process group's store does not answer (%s)", error)


def _are_counts(rows: Any, length: int) -> TypeGuard[list[int]]:
    return (
        isinstance(rows, list)
        and len(rows) == length
        and all(type(count) is int and count >= 0 for count in rows)
    )


# ------------------------------------------------------------------------------------------------
# The cache: one small file per fingerprint.


def cache_folder() -> Path:
    """Where counts are kept between runs.

    Returns:
        ``counts`` below ``$TENSORQUERY_CACHE``, else below ``tensorquery`` in ``$XDG_CACHE_HOME`` or
        ``~/.cache``.

    Raises:
        RuntimeError: No variable is set, and the user has no home.
    """
    if own := os.environ.get("TENSORQUERY_CACHE"):
        return Path(expanded_path(own)) / "counts"
    # Relative paths in XDG variables are to be ignored, says their specification.
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (shared if shared.is_absolute() else Path.home() / ".cache") / "tensorquery" / "counts"


def kept(name: str, fingerprint: str, is_whole: Callable[[Any], bool]) -> list[Any] | None:
    """The data that an earlier run kept under a name; None if there is none, or if it is damaged."""
    try:
        path = cache_folder() / f"{name}.json"
        body = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, RuntimeError) as error:
        _warn_of_cache(error)
        return None
    except ValueError:
        body = None
    rows = _checked(body, fingerprint, is_whole)
    if rows is None:
        _log.info("%s is damaged or of another version; its splits are counted again", path)
        return None
    with contextlib.suppress(OSError):
        # The cache drops the files that were not used for the longest time.
        os.utime(path)
    return rows


def _checked(body: Any, fingerprint: str, is_whole: Callable[[Any], bool]) -> list[Any] | None:
    """The counts in a cache file, where it is whole and about this plan."""
    if not isinstance(body, dict) or body.get("version") != _CACHE_VERSION:
        return None
    rows = body.get("rows")
    if not is_whole(rows) or body.get("fingerprint") != fingerprint:
        return None
    assert isinstance(rows, list)
    return rows if body.get("checksum") == _checksum(rows) else None


def keep(name: str, fingerprint: str, rows: list[Any]) -> None:
    """Keep the findings about every split of a plan for later runs."""
    body = {
        "version": _CACHE_VERSION,
        "fingerprint": fingerprint,
        "rows": rows,
        "checksum": _checksum(rows),
    }
    try:
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=".", suffix=".tmp")
        try:
            with os.fdopen(descriptor, "w") as file:
                json.dump(body, file)
            Path(temporary).replace(folder / f"{name}.json")
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        _drop_old(folder)
    except (OSError, RuntimeError) as error:
        _warn_of_cache(error)


def _drop_old(folder: Path) -> None:
    """Keep the files used last; other processes may do the same at this moment.

    Only what `keep` has written goes: regular files of its names that say a fingerprint and a checksum.
    """
    used: list[tuple[float, Path]] = []
    for path in folder.glob("*.json"):
        with contextlib.suppress(FileNotFoundError):
            found = path.lstat()
            if stat.S_ISREG(found.st_mode) and _NAMES.fullmatch(path.stem):
                used.append((found.st_mtime, path))
    for _, path in sorted(used, reverse=True)[_CACHE_FILES:]:
        with contextlib.suppress(FileNotFoundError, ValueError):
            body = json.loads(path.read_bytes())
            if isinstance(body, dict) and body.keys() >= {"version", "fingerprint", "checksum"}:
                path.unlink(missing_ok=True)


def _checksum(rows: list[Any]) -> int:
    return zlib.crc32(json.dumps(rows).encode())


def _warn_of_cache(error: Exception) -> None:
    """Say once that counts are not kept; the run does not need them to be."""
    global _warned_of_cache
    level = logging.DEBUG if _warned_of_cache else logging.WARNING
    _warned_of_cache = True
    _log.log(
        level,
        "row counts cannot be kept on disk, so that the next run counts again: %s; set "
        "TENSORQUERY_CACHE to a folder that can be written",
        error,
    )
