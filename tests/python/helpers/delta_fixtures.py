"""The Delta tables of tests/fixtures/delta and what Spark reads in them.

`open_fixture(name)` unpacks a table and returns its directory; `truth(name, version)` returns the rows. Shallow clones
name files by absolute paths, so that the tables are unpacked at the one place where they were made.
"""

import fcntl
import functools
import hashlib
import json
import os
import tarfile
from pathlib import Path

import pyarrow.parquet as pq

FOLDER = Path(__file__).parents[2] / "fixtures" / "delta"
ROOT = Path("/tmp/tensorquery-delta-fixtures")
INDEX = json.loads((FOLDER / "index.json").read_text())

# Predicates whose answers are compared, over the newest version.
FILTERS = {
    "dml": ["id % 7 = 3", "region IS NULL", "region = 'a b/ü%2='", "x > 1000", "label = 'updated'", "n IS NULL",
            "id BETWEEN 290 AND 320 AND region = 'north'", "label > 'a label of more than thirty-two characters 7'"],
    "mapped_name": ["renamed < 0", "b IS NULL", "part = 'p 1'", "s['z'] = 3", "a IS NOT NULL", '"odd, name" > 25'],
    "mapped_id": ["renamed > 50", "b > 150", "part = 'p 1' AND b IS NULL"],
    "types": ["f > 9.85", "isnan(d)", "d = 'Infinity'", "d > 13", "f = 0", "b < -45", "day < '1969-12-05'", "e >= 32.99",
              "t >= '1970-01-01 00:00:00'", "t < '1000-01-01'", "n > '9999-01-01'", "c > 12000000000000000000", "x IS NULL",
              "x > 'üüüüüüüüüüüüüüüüüüüüüüüüüüüüüüzzZ'", "id = 1001"],
    "widened": ["a > 290000000000", "f > 2.85", "f > 2.9", "c = 8", "c > 7.24", "i = 16.5", "j > 28.99", "b >= 3200000",
                "day >= '1970-01-28'", "p > 1", "day > '1970-01-27 23:00:00'"],
    "partitions": ["b = 127", "s IS NULL", "i < 0", "l > 5", "f = 1.5", "f = 0", "isnan(d)", "d < 0", "c = 12.345",
                   "day < '1970-01-01'", "t < '1970-01-01'", "n > '9000-01-01'", "x = 'a b/ü%=:?'", "o", "NOT o", "x IS NULL"],
    "clustered": ["n < 10", "id >= 150", "n IS NULL AND id < 40"],
    "computed": ["key < 500", "day >= '1970-01-02' AND day < '1970-01-04'", "twice > 2000", "key = 480", "day IS NULL"],
    "z_ordered": ["n < 10", "n IS NULL", "id BETWEEN 70 AND 90", "n > 90 AND id > 100", "x > 30"],
    "stats_as_columns": ["id >= 100", "region = 'north'"],
}  # fmt: skip


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


def digest(table):
    """The SHA-256 of the rows of an Arrow table, in any order, as Python shows them."""
    rows = sorted(repr(sorted(row.items())) for row in table.to_pylist())
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()


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
