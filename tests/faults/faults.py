"""How each kind of fault is made, and how it is repaired."""

import contextlib
import os
import resource
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from . import damage, sandbox, storms
from .damage import NothingToStrikeError
from .schedule import FILES, SKEW, STANDS, STORE, STORMS, Fault


@dataclass
class Scene:
    """The targets that faults may strike.

    Attributes:
        pids: The ranks of the attempt that runs, by rank.
        table: The folder of the table, a copy of the schedule's own; None where it is shared.
        other: The folder of its replacement.
        proxy: The proxy in front of the store, or None.
        pace: The rules of the proxy without a fault.
        disk: The small disk, or None.
        clock: The clocks of the ranks.
        stages: The folder of the stages of the attempt that runs.
        leases: Whether stages are kept below a URL, where a lease says who builds.
        cache: The folder of the cache of the store, or None.
        counts: The folder of row counts.
        rows: Counts the rows that are delivered at this moment.
        hungry: Where ranks and workers look who has no more memory.
        repairs: What undoes the faults that stay, newest last.
        broken: Words of which a clear error about those has one.
        noticed: By kind, whether a process of the job has noticed the damage.
    """

    clock: sandbox.Clock
    pids: dict[int, int] = field(default_factory=dict)
    table: Path | None = None
    other: Path | None = None
    proxy: object | None = None
    pace: list[dict] = field(default_factory=list)
    disk: sandbox.Disk | None = None
    stages: Path | None = None
    leases: bool = False
    cache: Path | None = None
    counts: Path | None = None
    rows: Callable[[], int] | None = None
    hungry: object | None = None
    repairs: list[Callable[[], None]] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    noticed: dict[str, Callable[[], bool]] = field(default_factory=dict)

    def repair(self):
        """Repair the faults that stay."""
        while self.repairs:
            self.repairs.pop()()
        self.broken.clear()

    def one(self, items, fault):
        """The item that the fault picks."""
        if not items:
            raise NothingToStrikeError
        return items[int(fault.details["pick"] * len(items))]


def strike(scene: Scene, fault: Fault, go_on: Callable[[], None]) -> dict:
    """Make a fault.

    Args:
        scene: What there is.
        fault: The fault.
        go_on: Lets the ranks go on, which wait until then: called before this returns, once.

    Returns:
        What was struck, for the report.

    Raises:
        NothingToStrikeError: It is not there.
    """
    if "killed" in fault.kind:
        return _kill(scene, fault, go_on)
    if fault.kind in STANDS:
        return _stop(scene, fault, go_on)
    if fault.kind in STORMS:
        return storms.strike(scene, fault, go_on)
    if fault.kind in FILES:
        found = _FILES[fault.kind](scene, fault)
    elif fault.kind in STORE:
        found = _store(scene, fault)
    else:
        found = _OTHERS[fault.kind](scene, fault)
    go_on()
    return found


def _worker(scene, fault):
    return scene.one([pid for rank in scene.pids.values() for pid in sandbox.children_of(rank)], fault)  # fmt: skip


def _kill(scene, fault, go_on):
    if fault.details["after"]:
        go_on()
        time.sleep(fault.details["after"])
    match fault.kind:
        case "a worker is killed":
            victims = [_worker(scene, fault)]
        case "a rank is killed":
            victims = [scene.one(list(scene.pids.values()), fault)]
        case _:
            ranks = list(scene.pids.values())
            victims = ranks + [pid for rank in ranks for pid in sandbox.children_of(rank)]
    for pid in victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if not fault.details["after"]:
        go_on()
    return {"killed": len(victims)}


def _stop(scene, fault, go_on):
    workers = fault.kind == "a worker stands still"
    victim = _worker(scene, fault) if workers else scene.one(list(scene.pids.values()), fault)
    os.kill(victim, signal.SIGSTOP)
    go_on()
    time.sleep(fault.details["seconds"])
    os.kill(victim, signal.SIGCONT)
    return {"seconds": fault.details["seconds"]}


# ------------------------------------------------------------------------------------------------
# Files of the table. A repair puts the same inode back: a file's identity is part of its version.


def _chosen(scene, fault):
    path = scene.one(sorted(scene.table.iterdir()), fault)
    scene.broken += [path.name, "list of files"]
    return path


def _replaced(scene, fault):
    path = _chosen(scene, fault)
    kept = scene.table.parent / f"kept {path.name}"
    path.rename(kept)
    shutil.copy(scene.other / path.name, path)
    scene.repairs.append(lambda: kept.replace(path))
    return {"file": path.name}


def _deleted(scene, fault):
    path = _chosen(scene, fault)
    kept = scene.table.parent / f"kept {path.name}"
    path.rename(kept)
    scene.repairs.append(lambda: kept.replace(path))
    return {"file": path.name}


def _truncated(scene, fault):
    path = _chosen(scene, fault)
    data, times = path.read_bytes(), path.stat()
    os.truncate(path, int(len(data) * fault.details["part"]))

    def repair():
        # In the same inode, which is part of its identity.
        path.write_bytes(data)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    scene.repairs.append(repair)
    return {"file": path.name, "of": len(data), "left": path.stat().st_size}


_FILES = {
    "a file is replaced": _replaced,
    "a file is deleted": _deleted,
    "a file is truncated": _truncated,
}

# ------------------------------------------------------------------------------------------------
# Storage, disks, memory, the clock.


def _store(scene, fault):
    scene.proxy.set(*scene.pace, fault.details["rule"], seed=int(fault.details["pick"] * 1e6))
    scene.repairs.append(lambda: scene.proxy.set(*scene.pace))
    if fault.stays:
        scene.broken += ["503", "500", "retries", "timeout", "body", "ended", "reset", "timed out"]
    return {"rule": fault.details["rule"]["kind"], "stays": fault.stays}


def _full_cache(scene, fault):
    scene.disk.fill(int(fault.details["pick"] * (1 << 13)))
    return {"free": scene.disk.free}


def _full_stage(scene, fault):
    scene.disk.fill(fault.details["room"])
    scene.repairs.append(scene.disk.make_room)
    scene.broken += ["no room", "No space left"]
    return {"free": scene.disk.free}


def _no_memory(scene, fault):
    ranks = list(scene.pids.values())
    if fault.details["of_worker"]:
        ranks = [pid for rank in ranks for pid in sandbox.children_of(rank)] or ranks
    victim = scene.one(ranks, fault)
    try:
        _, hard = resource.prlimit(victim, resource.RLIMIT_DATA)
        limit = sandbox.data_bytes(victim) + fault.details["room"]
        resource.prlimit(victim, resource.RLIMIT_DATA, (limit, hard))
    except ProcessLookupError as error:
        raise NothingToStrikeError from error
    scene.hungry[0] = victim
    return {"limit": limit, "room": fault.details["room"]}


def _jump(scene, fault):
    scene.clock.jump(fault.details["seconds"])
    scene.repairs.append(lambda: scene.clock.jump(0))
    return {"seconds": fault.details["seconds"]}


def _differ(scene, fault):
    seconds = fault.details["small" if scene.leases else "seconds"]
    scene.clock.differ(seconds)
    scene.repairs.append(lambda: scene.clock.jump(0))
    return {"seconds": seconds, "lease": scene.leases}


_OTHERS = {
    **damage.STRIKES,
    SKEW: _differ,
    "the cache's disk is full": _full_cache,
    "the stage's disk is full": _full_stage,
    "out of memory": _no_memory,
    "the clock jumps": _jump,
}
