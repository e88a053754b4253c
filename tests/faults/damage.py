"""Faults of what is kept on local disk for later: stages and caches whose bits flip, folders that turn read-only or vanish."""

import contextlib
import os
import shutil
import time
from pathlib import Path

from . import sandbox
from .schedule import FLIPPED_CACHE, FLIPPED_STAGE, READ_ONLY_STAGE, VANISHED_STAGE


class NothingToStrikeError(Exception):
    """The target of the fault is gone: a worker that has ended."""


def flip(path, place, bit):
    """Turn a bit of a file over, and leave size and times of its content as they were.

    Args:
        path: The file.
        place: Which byte, as a part of its length.
        bit: Which bit of that.

    Returns:
        The offset of the byte.
    """
    found = path.stat()
    at = int(place * found.st_size)
    with open(path, "r+b", buffering=0) as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ (1 << bit)]))
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    return at


def _files(folder):
    """The files below a folder that have content."""
    found = []
    for path in sorted(Path(folder).rglob("*")):
        # A rank may remove one at any time.
        with contextlib.suppress(FileNotFoundError):
            if path.is_file() and path.stat().st_size:
                found.append(path)
    return found


def _manifest(path):
    """The manifest of the stage that a file belongs to; None where it has none."""
    beside = (folder / "manifest.json" for folder in (path.parent, path.parent.parent))
    return next((one for one in beside if one.exists()), None)


def _flipped_stage(scene, fault):
    """In a file at rest. While ranks read, a damaged copy takes its place: what they have mapped stays as it is."""
    # Remains of a builder that was killed have no manifest, and are never read.
    rows = [path for path in _files(scene.stages) if path.suffix == ".arrow" and _manifest(path)]
    others = [path for path in _files(scene.stages) if path.name == "manifest.json"]
    path = scene.one(rows if fault.details["pick"] < 0.9 or not others else others, fault)
    if fault.at > 0:
        whole = path.with_name("whole")
        path.rename(whole)
        shutil.copy2(whole, path)
        whole.unlink()
    flip(path, fault.details["place"], fault.details["bit"])
    manifest = _manifest(path)
    damaged = path.stat().st_ino, manifest.read_bytes()
    # Rows for access at random are compared when they are opened, by an age of one hour or by their time.
    rots = fault.details["rots"] and path.name.startswith("part-")
    if rots:
        # No time says so. The clock of files has steps.
        time.sleep(0.02)
        (path.parent.parent / "verified").write_bytes(b"")

    def noticed():
        """Whether it was built anew, or a reader has said that it must be."""
        try:
            found = path.stat().st_ino, manifest.read_bytes()
        except FileNotFoundError:
            return True
        return found != damaged or path.with_name("suspect").exists()

    def repair():
        if not noticed():
            # The damage was never met: what rots is not seen before.
            flip(path, fault.details["place"], fault.details["bit"])

    scene.noticed[FLIPPED_STAGE] = noticed
    scene.repairs.append(repair)
    scene.broken += ["stage", path.name]
    return {"file": path.name, "rots": rots}


def _read_only(scene, fault):
    """The folder of the stage; one that has it is read all the same."""
    scene.stages.mkdir(exist_ok=True)
    if not _files(scene.stages):
        scene.broken.append(str(scene.stages))
    sandbox.make_read_only(scene.stages)
    scene.repairs.append(lambda folder=scene.stages: sandbox.unmount(folder))
    return {"files": len(_files(scene.stages))}


def _vanished(scene, fault):
    folder, leaves = scene.stages, fault.details["leaves"]
    if not folder.exists():
        raise NothingToStrikeError
    gone = folder.with_name("gone")
    folder.rename(gone)
    if leaves == "a file":
        folder.touch()
    elif leaves == "a read-only folder":
        folder.mkdir()
        sandbox.make_read_only(folder)

    def noticed():
        return leaves != "nothing" or folder.exists()

    def repair():
        if leaves == "a read-only folder":
            sandbox.unmount(folder)
        if leaves == "a file":
            folder.unlink()
        # What was built meanwhile goes: the disk of old is there again.
        shutil.rmtree(folder, ignore_errors=True)
        gone.rename(folder)

    scene.noticed[VANISHED_STAGE] = noticed
    scene.repairs.append(repair)
    scene.broken += ["stage", "part-", str(folder)]
    return {"leaves": leaves}


def _flipped_cache(scene, fault):
    """In many entries at once, and in what is kept of row counts: neither may be taken for whole."""
    entries = [path for path in _files(scene.cache / "ranges-1") if path.parent.name != "tmp" and "-" in path.name]  # fmt: skip
    if not entries:
        raise NothingToStrikeError
    struck = {}
    first = int(fault.details["pick"] * len(entries))
    for path in (entries[first:] + entries[:first])[
        : 1 + int(fault.details["share"] * len(entries))
    ]:
        with contextlib.suppress(FileNotFoundError):
            flip(path, fault.details["pick"], 3)
            struck[path] = path.stat().st_ino
    for path in _files(scene.counts):
        flip(path, fault.details["pick"], 0)

    def noticed():
        return any(not path.exists() or path.stat().st_ino != was for path, was in struck.items())

    scene.noticed[FLIPPED_CACHE] = noticed
    return {"entries": len(struck), "of": len(entries)}


STRIKES = {
    FLIPPED_STAGE: _flipped_stage,
    READ_ONLY_STAGE: _read_only,
    VANISHED_STAGE: _vanished,
    FLIPPED_CACHE: _flipped_cache,
}
"""How each kind is made: called with the scene and the fault, and returns what was struck."""
