"""Measures Delta tables against their plain files and against deltalake: ``make bench-delta``.

The log is written here by hand over the files of lineitem: one table without deletes, one with deletion vectors of 5% of
the rows. And the planning of 10,000 files in 1,000 commits, whose files need not exist, with and without a checkpoint.
What is compared takes turns in one process; ratios are taken round by round. Ends with the targets met and missed, and
a status other than zero when one is missed.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
from compare.machine import load, machine
from compare.report import Row, end_with
from data import make
from iceberg import in_turn, read, relative

DATA = Path(".bench")
BATCH_SIZES = (1024, 8192)
DELETED = 0.05
WANTED = {"plain": 0.95, "vectors": 0.85}
"""Live rows per second, relative to the rows per second of the plain files."""

COMMITS, FILES_PER_COMMIT, PARTITIONS = 1_000, 10, 100
PLANNED_FILES = COMMITS * FILES_PER_COMMIT
PLANNING_SECONDS = 1.0
"""With a checkpoint."""

TYPES = {
    "int64": "long",
    "int32": "integer",
    "double": "double",
    "float": "float",
    "string": "string",
}


def vector(rows: list[int]) -> bytes:
    """A deletion vector as a file has it: length, magic, 64-bit Roaring of arrays, checksum."""
    containers: dict[int, list[int]] = {}
    for row in rows:
        containers.setdefault(row >> 16, []).append(row & 0xFFFF)
    body = struct.pack("<IQI", 1681511377, 1, 0) + struct.pack("<II", 12346, len(containers))
    arrays, offset = b"", 8 + 8 * len(containers)
    offsets = b""
    for key, values in containers.items():
        body += struct.pack("<HH", key, len(values) - 1)
        offsets += struct.pack("<I", offset)
        array = struct.pack(f"<{len(values)}H", *values)
        arrays, offset = arrays + array, offset + len(array)
    body += offsets + arrays
    return struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))


def write_log(place: Path, commits: list[list[dict]], schema: dict, partitions: list[str]) -> None:
    """A log of these commits; the first one has the schema."""
    log = place / "_delta_log"
    log.mkdir(parents=True)
    features = ["deletionVectors"]
    head = [
        {
            "protocol": {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": features,
                "writerFeatures": features,
            }
        },
        {
            "metaData": {
                "id": "5fba94ed-9794-4965-ba6e-6ee3c0d22af9",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps(schema),
                "partitionColumns": partitions,
                "configuration": {},
            }
        },
    ]
    for version, actions in enumerate(commits):
        lines = [json.dumps(action) for action in (head if version == 0 else []) + actions]
        (log / f"{version:020}.json").write_text("\n".join(lines) + "\n")


def loaded(files: Path, place: Path, share: float) -> int:
    """A table over the Parquet files below `files`, without a share of their rows; returns the rows that are left."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    generator, adds, rows = random.Random(7), [], 0
    for number, file in enumerate(sorted(files.rglob("*.parquet"))):
        (place / file.name).symlink_to(file.resolve())
        count = pq.ParquetFile(file).metadata.num_rows
        add = {
            "path": file.name,
            "partitionValues": {},
            "size": file.stat().st_size,
            "modificationTime": 0,
            "dataChange": True,
            "stats": json.dumps({"numRecords": count}),
        }
        if share:
            gone = sorted(generator.sample(range(count), int(count * share)))
            frame = vector(gone)
            (place / f"vector-{number}.bin").write_bytes(b"\x01" + frame)
            add["deletionVector"] = {
                "storageType": "p",
                "pathOrInlineDv": f"file://{place.resolve()}/vector-{number}.bin",
                "offset": 1,
                "sizeInBytes": len(frame) - 8,
                "cardinality": len(gone),
            }
            count -= len(gone)
        rows += count
        adds.append({"add": add})
    fields = [
        {"name": field.name, "type": TYPES[str(field.type)], "nullable": True, "metadata": {}}
        for field in pq.read_schema(next(files.rglob("*.parquet")))
    ]
    write_log(place, [adds], {"type": "struct", "fields": fields}, [])
    return rows


def planned(place: Path) -> None:
    """A table of 10,000 files in 1,000 commits and 100 partitions, none of which exists."""
    shutil.rmtree(place, ignore_errors=True)
    commits = []
    for commit in range(COMMITS):
        actions = []
        for number in range(FILES_PER_COMMIT):
            file = commit * FILES_PER_COMMIT + number
            day = file % PARTITIONS
            least = {
                "minValues": {"id": file * 100},
                "maxValues": {"id": file * 100 + 99},
                "nullCount": {"id": 0},
            }
            actions.append(
                {
                    "add": {
                        "path": f"day={day}/part-{file:05}.parquet",
                        "partitionValues": {"day": str(day)},
                        "size": 100_000,
                        "modificationTime": 0,
                        "dataChange": True,
                        "stats": json.dumps({"numRecords": 100, **least}),
                    }
                }
            )
        commits.append(actions)
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in (("id", "long"), ("day", "integer"))
    ]
    write_log(place, commits, {"type": "struct", "fields": fields}, ["day"])


def loading(rounds: int) -> list[Row]:
    """The tables relative to their plain files."""
    import tensorquery as tq

    files = make(DATA)
    paths = [str(path) for path in sorted(files.rglob("*.parquet"))]
    places = {"plain": DATA / "delta" / "plain", "vectors": DATA / "delta" / "vectors"}
    rows = {
        name: loaded(files, place, DELETED if name == "vectors" else 0)
        for name, place in places.items()
    }
    found: list[Row] = []
    for size in BATCH_SIZES:
        works: dict[str, Callable[[], None]] = {
            "files": lambda size=size: read(  # type: ignore[misc]
                iter(tq.create_dataloader(path=paths, batch_size=size)[0]), rows["plain"]
            )
        }
        for name, place in places.items():
            works[name] = lambda name=name, place=place, size=size: read(  # type: ignore[misc]
                iter(tq.create_dataloader(path=str(place), batch_size=size)[0]), rows[name]
            )
        taken = in_turn(rounds, works)
        for name in works:
            taken[name].row(f"{name}, batch {size}", rows.get(name, rows["plain"]))
        for name in places:
            speed = relative(taken[name], taken["files"], rows[name] / rows["plain"])
            what = f"{name} / plain files, live rows per second, batch {size}"
            found.append((what, speed, f">= {WANTED[name]}", speed >= WANTED[name]))
    return found


def planning(rounds: int) -> list[Row]:
    """10,000 files in 1,000 commits: from a session of its own to the pinned version."""
    import deltalake

    import tensorquery as tq

    place = DATA / "delta" / "planned"
    found: list[Row] = []

    def register() -> None:
        session = tq.Session()
        session.register_delta("t", place)
        if session.tables[0].files != PLANNED_FILES:
            raise SystemExit(f"{session.tables[0].files} files, not {PLANNED_FILES}")

    def list_files() -> None:
        # With their partition values and statistics, by which files are pruned and rows are counted.
        if deltalake.DeltaTable(place).get_add_actions(flatten=True).num_rows != PLANNED_FILES:
            raise SystemExit("deltalake lists other files")

    planned(place)
    for log in ("without a checkpoint", "with a checkpoint"):
        if log == "with a checkpoint":
            deltalake.DeltaTable(place).create_checkpoint()
        works: dict[str, Callable[[], None]] = {
            "tensorquery": register,
            "deltalake": list_files,
        }
        taken = in_turn(rounds, works)
        for name, times in taken.items():
            times.row(f"the files of {COMMITS:,} commits {log}, {name}")
        factor = relative(taken["tensorquery"], taken["deltalake"])
        found.append((f"{PLANNED_FILES:,} files {log}, × deltalake", factor, ">= 1", factor >= 1))
        if log == "with a checkpoint":
            seconds = statistics.median(taken["tensorquery"].wall)
            what = f"seconds to list {PLANNED_FILES:,} files {log}"
            found.append((what, seconds, f"< {PLANNING_SECONDS:g}", seconds < PLANNING_SECONDS))
    return found


PARTS = {"loading": loading, "planning": planning}


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="counted rounds (default 7)")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS))
    options = parser.parse_args()
    print(f"{machine()}; {load()} before\n")
    print("| work | million rows/s | seconds | spread | CPU seconds |\n|---|---:|---:|---:|---:|")
    found = [row for part in options.only for row in PARTS[part](options.rounds)]
    print(f"\n{load()} after; {DELETED:.0%} of the rows deleted, at random positions")
    end_with(found)


if __name__ == "__main__":
    main()
