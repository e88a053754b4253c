"""A key-value store in files of a folder that all ranks reach, with the methods of a `torch.distributed.Store`.

A counter is a folder that holds one empty file, named by its value. To add is to rename that file: of several processes that do so
at once one finds it, and the others look again. So no lock is left behind by who dies, and nothing grows with the number of calls.
Values are written aside and renamed into place. It needs a file system whose `rename` is atomic, as NFS, Lustre, GPFS and local
disks have it, and mounted object stores do not.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import random
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tensorquery.errors import StorageError

__all__ = ["FileStore", "meet"]

_ANSWER = 30.0
"""Seconds in which a file that must be there has to be seen: file systems of networks may take some."""

_SHORT, _LONG = 0.002, 0.1
"""Seconds between two looks: the first and the longest."""

_JOB = "tensorquery-job-"

# Not the program's own, whose numbers must not depend on this.
_chance = random.Random()


class FileStore:
    """Keys and values as files.

    Args:
        folder: Of this store alone; it exists.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def set(self, key: str, value: str | bytes) -> None:
        """Set the value of a key."""
        content = value.encode() if isinstance(value, str) else value
        _write(self._place(key), content)

    def get(self, key: str) -> bytes:
        """The value of a key.

        Raises:
            OSError: It has none.
        """
        for _ in _looks(_ANSWER):
            with contextlib.suppress(FileNotFoundError):
                return self._place(key).read_bytes()
        raise TimeoutError(f"{self.folder} has no value for {key!r} after {_ANSWER:g} seconds")

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys have values."""
        return all(self._place(key).exists() for key in keys)

    def add(self, key: str, amount: int) -> int:
        """Add to a counter that begins at 0, and return its new value, which no other call with an amount gets.

        Raises:
            OSError: The folder is gone, or its file system does not rename.
        """
        place = self._place(key, ".counter")
        for _ in _looks(_ANSWER):
            names = self._names(place)
            if names is None:
                if amount == 0:
                    return 0
                if self._created(place, amount):
                    return amount
            elif names:
                value = max(map(int, names))
                if amount == 0:
                    return value
                with contextlib.suppress(FileNotFoundError):
                    (place / str(value)).rename(place / str(value + amount))
                    return value + amount
        raise TimeoutError(f"a counter in {self.folder} did not change within {_ANSWER:g} seconds")

    def close(self, world_size: int) -> None:
        """Leave it: the last of so many ranks removes the folder."""
        with contextlib.suppress(OSError):
            if self.add("left", 1) == world_size:
                shutil.rmtree(self.folder)

    def _place(self, key: str, ending: str = "") -> Path:
        return self.folder / (hashlib.sha256(key.encode()).hexdigest() + ending)

    def _names(self, place: Path) -> list[str] | None:
        """The names in a counter's folder, none for a moment while it is renamed; None where there is no such counter."""
        try:
            return _names_in(place)
        except FileNotFoundError:
            if not self.folder.exists():
                raise
            return None

    def _created(self, place: Path, value: int) -> bool:
        """Make a counter of this value; False where another process has made it."""
        aside = Path(tempfile.mkdtemp(dir=self.folder))
        (aside / str(value)).touch()
        try:
            aside.rename(place)
        except OSError as error:
            shutil.rmtree(aside)
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            return False
        return True


def _names_in(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def _write(place: Path, content: bytes) -> None:
    """Write a file that others see as a whole or not at all."""
    aside = place.with_name(f"{place.name}.{secrets.token_hex(8)}")
    aside.write_bytes(content)
    aside.replace(place)


def _looks(seconds: float) -> Iterator[None]:
    """Look again and again, until so many seconds are over; others who look at the same time do so at other times."""
    pause, until = _SHORT, time.monotonic() + seconds
    while True:
        yield
        if time.monotonic() > until:
            return
        time.sleep(pause * _chance.uniform(0.5, 1.0))
        pause = min(pause * 1.5, _LONG)


def meet(folder: Path, rank: int, world_size: int, timeout: float) -> FileStore:
    """Meet the other ranks of this run in a folder, where earlier runs may have left files.

    Rank 0 makes a folder with a name of its own in it. The others leave their own random names there, and in the folders of earlier
    runs, too; they go on with the one in which rank 0 has written their names down. That no earlier run can have done.

    Args:
        folder: Of this job alone.
        rank: This rank.
        world_size: Number of ranks.
        timeout: Seconds to wait.

    Returns:
        The store of this run.

    Raises:
        StorageError: Ranks did not come, or the folder cannot be used; names them.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if rank == 0:
            return _lead(folder, world_size, timeout)
        return _follow(folder, rank, world_size, timeout)
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(
            f"rank {rank} cannot meet the other ranks in {str(folder)!r}: {error}; name a folder that all ranks can write to"
        ) from error


def _lead(folder: Path, world_size: int, timeout: float) -> FileStore:
    """Make a folder for this run, and go when all have come."""
    job = Path(tempfile.mkdtemp(prefix=_JOB, dir=folder))
    # Others of the user's group write there, as far as the user lets them.
    job.chmod(folder.stat().st_mode & 0o777)
    _write(job / "ranks", str(world_size).encode())
    came: dict[int, str] = {}
    for _ in _looks(timeout):
        for name in _names_in(job):
            kind, _, own = name.partition("-")
            if kind == "rank":
                rank, _, who = own.partition("-")
                came.setdefault(int(rank), who)
        if len(came) == world_size - 1:
            _write(job / "go", json.dumps(came).encode())
            return FileStore(job)
    shutil.rmtree(job)
    missing = sorted({*range(1, world_size)} - {*came})
    raise StorageError(
        f"of {world_size} ranks, {missing} did not come to {str(folder)!r} within {timeout:g} seconds; see whether they run, and "
        "whether they name the same folder and the same world_size"
    )


def _follow(folder: Path, rank: int, world_size: int, timeout: float) -> FileStore:
    """Come to every run of this size, and go on with the one that names this process."""
    mine = secrets.token_hex(8)
    known: dict[str, Path] = {}
    for _ in _looks(timeout):
        for name in _names_in(folder):
            job = folder / name
            if not name.startswith(_JOB) or name in known:
                continue
            # A run that ends meanwhile removes its folder.
            with contextlib.suppress(FileNotFoundError):
                if (job / "ranks").read_text() == str(world_size):
                    (job / f"rank-{rank}-{mine}").touch()
                    known[name] = job
        for job in known.values():
            with contextlib.suppress(FileNotFoundError):
                if json.loads((job / "go").read_text()).get(str(rank)) == mine:
                    return FileStore(job)
    raise StorageError(
        f"rank {rank} of {world_size} met no rank 0 in {str(folder)!r} within {timeout:g} seconds; see whether that runs, and "
        "whether it names the same folder and the same world_size"
    )
