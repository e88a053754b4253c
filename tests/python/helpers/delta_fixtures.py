"""The Delta tables of tests/fixtures/delta and what Spark reads in them.

`open_fixture(name)` unpacks a table and returns its directory; `truth(name, version)` returns the rows. Shallow clones
name files by absolute paths, so that the tables are unpacked at the one place where they were made.
"""

import fcntl
import functools
import json
import os
import tarfile
from pathlib import Path

import pyarrow.parquet as pq

FOLDER = Path(__file__).parents[2] / "fixtures" / "delta"
ROOT = Path("/tmp/tensorquery-delta-fixtures")
INDEX = json.loads((FOLDER / "index.json").read_text())


def versions(name):
    """The recorded versions of a table, oldest first."""
    return INDEX[name]["versions"]


def times(name):
    """Milliseconds since 1970-01-01 UTC of the commits that Spark knows, by version."""
    return {int(version): time for version, time in INDEX[name]["times"].items()}


def open_fixture(name):
    """The directory of table `name`, unpacked where its paths point to."""
    _unpack()
    return str(ROOT / name)


def truth(name, version=None):
    """The rows that Spark reads in table `name`, as an Arrow table; of the newest recorded version by default."""
    _unpack()
    version = versions(name)[-1] if version is None else version
    return pq.read_table(ROOT / name / "truth" / f"{version}.parquet")


@functools.cache
def _unpack():
    """Unpack all archives, once a process, and write only what is not there with the same bytes.

    Commits keep the times of their last write: they are the times of a table's history.
    """
    ROOT.mkdir(exist_ok=True)
    with (ROOT / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name in INDEX:
            with tarfile.open(FOLDER / f"{name}.tar.gz") as archive:
                for entry in archive:
                    path, content = ROOT / entry.name, archive.extractfile(entry).read()
                    if not path.is_file() or path.read_bytes() != content:
                        path.parent.mkdir(parents=True, exist_ok=True)
                        whole = path.with_name(f".{path.name}.new")
                        whole.write_bytes(content)
                        whole.rename(path)
                    if path.parent.name == "_delta_log":
                        time = _time_of(name, path, entry)
                        os.utime(path, ns=(time, time))


def _time_of(name, path, entry):
    """Nanoseconds since 1970 of a file of a log: a commit's time to the millisecond, which archives do not hold."""
    digits = path.name.split(".")[0]
    millis = INDEX[name]["times"].get(str(int(digits))) if digits.isdigit() else None
    return round(entry.mtime * 1000) * 1_000_000 if millis is None else millis * 1_000_000
