"""One attempt at an epoch: ranks as processes, the faults that strike them, and how each of them ended."""

import contextlib
import os
import signal
import time
from dataclasses import dataclass, field

from . import faults, journal, rank
from .schedule import STANDS, STORMS

LIMIT_SECONDS = 240
"""After which an attempt hangs. The slowest take ten seconds on an idle machine, and a minute on a very busy one."""

GRACE_SECONDS = 1.0
"""How long the other ranks have to notice that one is gone, before they are ended, as a launcher does."""

STOPPED_SECONDS = 1.5
"""Between two looks at the ranks: after more, somebody has stopped this machine, and not the harness."""


@dataclass
class Struck:
    """A fault that was made.

    Attributes:
        kind: Its kind.
        landed: Whether it struck in the middle of the epoch.
        rows: Rows of the epoch that were delivered then.
        what: What it struck.
        met: Whether a process of the job has met it: rows that were read ahead outlive a file, and memory that is not
            asked for is not missed.
    """

    kind: str
    landed: bool
    rows: int
    what: dict
    met: bool = False


@dataclass
class Outcome:
    """How an attempt ended.

    Attributes:
        told: The journal of each rank.
        ends: How each rank ended: "finished", "error", "killed by signal 9", "ended", where the harness did it after
            another rank had ended badly, or "hangs".
        struck: The faults that were made.
        disturbed: Whether the machine stood still meanwhile.
        seconds: How long it took.
    """

    told: list[journal.Told]
    ends: list[str] = field(default_factory=list)
    struck: list[Struck] = field(default_factory=list)
    disturbed: bool = False
    seconds: float = 0.0

    @property
    def finished(self):
        """Whether all ranks came to the epoch's end."""
        return all(end == "finished" for end in self.ends)


class Patience:
    """The time that an attempt takes, without the time in which the harness itself stood still."""

    def __init__(self):
        self._looked = time.monotonic()
        self.spent = 0.0
        self.disturbed = False

    def look(self, allowed=0.0):
        """Note that time has passed; `allowed` of it was slept on purpose."""
        now = time.monotonic()
        passed, self._looked = now - self._looked, now
        if passed > STOPPED_SECONDS + allowed:
            self.disturbed = True
            return
        self.spent += passed


def run(task, attempt, scene, rows_before, rows_wanted):
    """Start the ranks, make the faults, and wait until all have ended.

    Args:
        task: What the ranks do.
        attempt: The faults.
        scene: What they strike.
        rows_before: Rows of the epoch that are delivered before.
        rows_wanted: Rows of the whole epoch.

    Returns:
        The outcome.
    """
    world_size = task.topology.world_size
    gates = rank.Gates(world_size)
    scene.hungry = gates.hungry
    scene.pids = {number: _start(task, number, gates, scene.clock) for number in range(world_size)}
    ranks = _Ranks(scene.pids)
    struck, patience = [], Patience()
    waiting = [fault for fault in attempt.faults if fault.at > 0]
    opening = [fault for fault in attempt.faults if "opening" in fault.details]
    ends_badly = None
    while ranks.alive:
        ranks.look()
        patience.look()
        if len(struck) < len(waiting) and gates.have_arrived(len(struck)):
            fault = waiting[len(struck)]
            struck.append(_strike(task, fault, scene, gates, len(struck), rows_before, rows_wanted))
            patience.look(_slept(fault))
        if opening and patience.spent >= opening[0].details["opening"]:
            fault = opening.pop()
            struck.append(_strike(task, fault, scene, gates, 0, rows_before, rows_wanted))
        if ranks.failed and ends_badly is None:
            ends_badly = patience.spent
        if ends_badly is not None and patience.spent - ends_badly > GRACE_SECONDS:
            ranks.end("ended")
        if patience.spent > LIMIT_SECONDS:
            ranks.end("hangs")
        time.sleep(0.002)
    # Workers of ranks that were killed, and whatever else they left.
    ranks.sweep()
    told = [journal.read(task.journal(number)) for number in range(world_size)]
    ends = [ranks.ended[number] for number in range(world_size)]
    for number, end in enumerate(ends):
        if end.startswith("status") and told[number].outcome is not None:
            ends[number] = told[number].outcome["kind"]
    return Outcome(told, ends, struck, patience.disturbed, patience.spent)


def _slept(fault):
    """Seconds that making a fault takes."""
    if fault.kind in STORMS:
        return fault.details["after"] + fault.details["seconds"]
    return fault.details["seconds"] if fault.kind in STANDS else 0.1


def _start(task, number, gates, clock):
    pid = os.fork()
    if pid == 0:
        try:
            clock.of(number)
            rank.run(task, number, gates)
        finally:
            os._exit(2)
    return pid


def _strike(task, fault, scene, gates, number, rows_before, rows_wanted):
    rows, opened = rows_before + _rows(task), []

    def go_on():
        opened.append(True)
        gates.open(number)

    scene.rows = lambda: rows_before + _rows(task)
    try:
        what, landed = faults.strike(scene, fault, go_on), True
    except faults.NothingToStrikeError:
        what, landed = {}, False
    if not opened:
        go_on()
    if fault.kind in STORMS:
        rows = what.pop("rows", rows)
    elif fault.details.get("after"):
        # The ranks went on meanwhile.
        rows = rows_before + _rows(task)
    return Struck(fault.kind, landed and 0 < rows < rows_wanted, rows, what)


def _rows(task):
    return sum(journal.read(task.journal(n)).rows() for n in range(task.topology.world_size))


class _Ranks:
    """The processes of the ranks, and how they end."""

    def __init__(self, pids):
        self._pids = dict(pids)
        self.alive = dict(pids)
        self.ended = {}

    @property
    def failed(self):
        """Whether one has ended otherwise than at the epoch's end."""
        return any(end != "status 0" for end in self.ended.values())

    def look(self):
        """Notice which have ended."""
        for number, pid in list(self.alive.items()):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                del self.alive[number]
                code = os.waitstatus_to_exitcode(status)
                told = f"killed by signal {-code}" if code < 0 else f"status {code}"
                self.ended.setdefault(number, told)

    def end(self, why):
        """End those that are left, and note why."""
        for number in self.alive:
            self.ended.setdefault(number, why)
        self._kill()

    def sweep(self):
        """End everything that the ranks have started; they have ended themselves."""
        self._kill()
        with contextlib.suppress(ChildProcessError):
            while True:
                # Orphans come to this process.
                os.waitpid(-1, 0)

    def _kill(self):
        for pid in self._pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
