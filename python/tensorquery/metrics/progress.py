"""Progress bars of a loader: counting, staging, planning, and the rows of an epoch.

``show_progress=True`` asks for bars of tqdm, which knows notebooks. Of several ranks on a machine the first one shows them, as
the users of launchers expect; ``show_progress="all"`` shows a bar of each, one below the other.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, TextIO

from tensorquery.distributed.topology import Topology
from tensorquery.errors import ConfigError

__all__ = ["EpochBar", "ProgressLine", "TaskBar", "check_progress", "make_bar", "running", "shows"]

_SHOW_AFTER = 0.5
"""Seconds of counting before a terminal shows it unasked, and of planning before a bar does."""

_TICK = 0.5


def check_progress(show_progress: Any) -> bool | str:
    """Return `show_progress` where it is True, False or "all", and tqdm is there where it is wanted.

    Raises:
        ConfigError: It is something else.
        ImportError: tqdm is not installed; says how to install it.
    """
    if not (isinstance(show_progress, bool) or show_progress == "all"):
        raise ConfigError(
            f"show_progress={show_progress!r} must be True (bars of the first rank of each machine), "
            '"all" (of every rank) or False'
        )
    if show_progress:
        _tqdm()
    chosen: bool | str = show_progress
    return chosen


def shows(show_progress: bool | str, topology: Topology) -> bool:
    """Whether this process shows bars."""
    return show_progress == "all" or (bool(show_progress) and not topology.local_rank)


def _tqdm() -> Any:
    """The class of bars; in a notebook, its own class."""
    try:
        return importlib.import_module("tqdm.auto").tqdm
    except ImportError as error:
        raise ImportError(
            "show_progress=True needs tqdm: pip install 'tensorquery[progress]'"
        ) from error


class _NoLock:
    """A lock that nobody waits for.

    An exception while tqdm draws, as of Ctrl-C, leaves tqdm's lock held for good: `refresh` releases it after the drawing, and in
    no `finally`. The next bar of another thread, or of a forked worker, would wait for ever. A bar of ours is drawn by one thread
    at a time, and needs no lock.
    """

    def acquire(self, *_: Any, **__: Any) -> bool:
        return True

    def release(self) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


def make_bar(**options: Any) -> Any:
    """A bar of tqdm with these options that takes no lock and starts no thread."""
    # Bars are told when to draw. tqdm's thread, which watches bars that are not, would be forked with workers.
    kind = type("Bar", (_tqdm(),), {"monitor_interval": 0, "_lock": _NoLock()})
    return kind(**{"mininterval": 0.1, "dynamic_ncols": True, "miniters": 0} | options)


class TaskBar:
    """A bar over the parts of a task.

    Args:
        what: The task, in words.
        total: Its parts; None where nobody knows them: then there is only text.
        unit: The name of a part, in the plural.
    """

    def __init__(self, what: str, total: int | None = None, unit: str = "splits") -> None:
        if total is None:
            self._bar = make_bar(desc=what, bar_format="{desc}{postfix} [{elapsed}]")
        else:
            self._bar = make_bar(desc=what, total=total, unit=f" {unit}")

    def show(self, done: int, note: str = "", what: str | None = None) -> None:
        """Say how far it is; most calls draw nothing.

        Args:
            done: Parts that are done.
            note: A note beside it.
            what: The task, where it has another name now.
        """
        if what is not None:
            self._bar.set_description_str(what, refresh=False)
        self._bar.set_postfix_str(note, refresh=False)
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """Draw it for the last time, and leave it."""
        self._bar.refresh()
        self._bar.close()


@contextlib.contextmanager
def running(what: str, shown: bool) -> Iterator[None]:
    """Say what runs, and for how long already, where it takes longer than half a second.

    Args:
        what: The task, in words.
        shown: Whether to say it at all.
    """
    if not shown:
        yield
        return
    bar = make_bar(desc=what, delay=_SHOW_AFTER, bar_format="{desc} [{elapsed}]")
    over = threading.Event()

    def tick() -> None:
        while not over.wait(_TICK):
            bar.update(0)

    ticking = threading.Thread(target=tick, name="tensorquery-progress", daemon=True)
    ticking.start()
    try:
        yield
    finally:
        over.set()
        ticking.join()
        bar.close()


class EpochBar:
    """The bar over a rank's rows of an epoch.

    Args:
        epoch: The epoch.
        topology: The place of this rank.
        total: Rows of the epoch; None where they are not known without counting.
        done: Rows that were received before this iteration, of an epoch that goes on.
        below: Whether the bars of the machine's ranks are shown one below the other.
    """

    def __init__(
        self, epoch: int, topology: Topology, total: int | None, done: int, below: bool
    ) -> None:
        rank = f", rank {topology.rank}" if topology.world_size > 1 else ""
        self._done = done
        self._bar = make_bar(
            desc=f"epoch {epoch}{rank}",
            total=total,
            initial=done,
            unit=" rows",
            unit_scale=True,
            # None leaves the line only where it is the first one: no other process writes there.
            leave=None,
            position=(topology.local_rank or 0) if below else None,
        )

    def show(self, rows: int, wait_share: float) -> None:
        """Say how far it is.

        Args:
            rows: Rows received in this iteration.
            wait_share: The part of the time that the training loop has waited.
        """
        self._bar.set_postfix_str(f"wait {wait_share:.0%}", refresh=False)
        self._bar.update(self._done + rows - self._bar.n)

    def close(self) -> None:
        """Draw it for the last time, and leave it."""
        self._bar.refresh()
        self._bar.close()


class ProgressLine:
    """A display of the splits of a task: a bar where one is asked for, else a line on a terminal; of one process a machine.

    Args:
        splits: Splits in all.
        topology: The place of this process.
        show: What the user said to ``show_progress``.
        what: The task, in words.
        stream: Where a line goes; None is stderr.
    """

    def __init__(
        self,
        splits: int,
        topology: Topology,
        *,
        show: bool | str,
        what: str = "counting rows",
        stream: TextIO | None = None,
    ) -> None:
        self._splits = splits
        self._what = what
        self._bar = TaskBar(what, splits) if shows(show, topology) else None
        self._stream = sys.stderr if stream is None else stream
        # Without a console (pythonw) there is no stderr.
        is_terminal = self._stream is not None and self._stream.isatty()
        self._on = is_terminal and self._bar is None and not topology.local_rank
        self._next = time.monotonic() + _SHOW_AFTER
        self._shown = False
        self._last: tuple[int, int] | None = None

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
        if self._shown and self._last is not None:
            self._write(*self._last, end="\n")

    def show(self, splits: int, rows: int) -> None:
        """Show that so many splits and rows are done; most calls show nothing."""
        self._last = (splits, rows)
        if self._bar is not None:
            self._bar.show(splits, f"{_short(rows)} rows")
        elif self._on and time.monotonic() >= self._next:
            self._write(splits, rows)
            self._next = time.monotonic() + 0.1
            self._shown = True

    def _write(self, splits: int, rows: int, end: str = "") -> None:
        line = f"{self._what}: {splits:,} of {self._splits:,} splits, {_short(rows)} rows"
        self._stream.write(f"\r{line}\x1b[K{end}")
        self._stream.flush()


def _short(rows: int) -> str:
    """A number in few characters.

    >>> _short(999), _short(12_100_000), _short(3_000_000_000)
    ('999', '12.1 M', '3.0 G')
    """
    for unit, name in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if rows >= unit:
            return f"{rows / unit:.1f} {name}"
    return str(rows)
