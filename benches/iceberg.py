"""Measures Iceberg tables against their plain files and against other readers: ``make bench-iceberg``.

A table without deletes, one with position deletes and one with deletion vectors, and the planning of 10,000 files.
What is compared takes turns in one process; ratios are taken round by round, and the figures are medians with their
spread, (max - min) / median. Ends with the targets met and missed, and a status other than zero when one is missed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compare.machine import load, machine
from compare.report import Row, end_with
from data import make
from epochs import spread
from lake import DELETED, PLANNED_DAY, PLANNED_DAYS, PLANNED_FILES, PLANNED_ROWS, catalog_properties
from lake import make as make_lake

DATA = Path(".bench")
BATCH_SIZES = (1024, 8192)
TABLES = {
    "plain": "no deletes",
    "positions": "5% position deletes",
    "vectors": "5% deletion vectors",
}
WANTED = {"plain": 0.95, "positions": 0.85, "vectors": 0.85}
"""Live rows per second, relative to the rows per second of the plain files."""

PLANNING_SECONDS = 2.0
PLANNED_DAY_START = PLANNED_ROWS * (PLANNED_DAY + 1) * PLANNED_FILES // PLANNED_DAYS
PREDICATES = {
    "no filter": (None, PLANNED_FILES),
    "one partition of 100": (f"day = {PLANNED_DAY}", PLANNED_FILES // PLANNED_DAYS),
    "a range of ids": (f"id BETWEEN {PLANNED_DAY_START - 5} AND {PLANNED_DAY_START + 5}", 2),
}
"""Filters of the planned table, and the files that they leave, each a split of its own."""

Batches = Iterator[dict[str, Any]]


# --------------------------------------------------------------------------------------------------------
# The readers: each opens its table anew and returns batches of tensors


def plain_files(data: Path, batch_size: int) -> Batches:
    """tensorquery over the data files of the table, as Parquet files and nothing more."""
    import tensorquery as tq

    # The folder of a table would be refused.
    files = [str(path) for path in sorted(data.rglob("*.parquet"))]
    loader, _ = tq.create_dataloader(path=files, batch_size=batch_size)
    return iter(loader)


def tensorquery(lake: Path, table: str, batch_size: int) -> Batches:
    """tensorquery over the table, through its catalog."""
    import tensorquery as tq

    loader, _ = tq.create_dataloader(
        table=f"ns.{table}", catalog_config=catalog_properties(lake), batch_size=batch_size
    )
    return iter(loader)


def torch_dataloader_utils(lake: Path, table: str, batch_size: int) -> Batches:
    """Open the table with torch-dataloader-utils, in the training process as well."""
    from torch_dataloader_utils import IcebergDataset

    loader, _ = IcebergDataset.create_dataloader(
        table=f"ns.{table}",
        catalog_config={"name": "lake", **catalog_properties(lake)},
        batch_size=batch_size,
        num_workers=0,
    )
    return iter(loader)


def pyiceberg(lake: Path, table: str, batch_size: int) -> Batches:
    """pyiceberg's scan, each column copied into a tensor; batches as they come, whatever `batch_size`."""
    import torch
    from pyiceberg.catalog import load_catalog

    del batch_size
    catalog = load_catalog("lake", **catalog_properties(lake))
    for batch in catalog.load_table(f"ns.{table}").scan().to_arrow_batch_reader():
        # A copy, as a training loop needs memory that it may write to.
        yield {
            name: torch.tensor(column.to_numpy(zero_copy_only=False))
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        }


PEERS = {"torch-dataloader-utils": torch_dataloader_utils, "pyiceberg": pyiceberg}


@dataclass
class Times:
    """Seconds by the clock and of CPU, all threads of the process, by round."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def row(self, what: str, rows: int | None = None) -> None:
        """Print a row of the table of figures."""
        median = statistics.median(self.wall)
        speed = f"{rows / median / 1e6:.2f}" if rows else ""
        cpu = statistics.median(self.cpu)
        print(
            f"| {what} | {speed} | {median:.3f} | {spread(self.wall):.0%} | {cpu:.3f} |", flush=True
        )


def in_turn(rounds: int, works: dict[str, Callable[[], None]]) -> dict[str, Times]:
    """Times of each work; a round before those that count warms caches."""
    times = {name: Times() for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            wall, cpu = time.perf_counter(), time.process_time()
            work()
            if number:
                times[name].wall.append(time.perf_counter() - wall)
                times[name].cpu.append(time.process_time() - cpu)
    return times


# --------------------------------------------------------------------------------------------------------
# The measured readers


def truth(batches: Batches) -> tuple[int, int]:
    """Rows, and the sum of a column, by which readers are compared."""
    rows, total = 0, 0
    for batch in batches:
        rows += len(batch["l_orderkey"])
        total += int(batch["l_orderkey"].sum())
    return rows, total


def read(batches: Batches, rows: int) -> None:
    """Take every batch; there must be `rows`."""
    seen = sum(len(batch["l_orderkey"]) for batch in batches)
    if seen != rows:
        raise SystemExit(f"{seen} rows were read where {rows} are")


def relative(ours: Times, theirs: Times, part: float = 1.0) -> float:
    """Ratio of the speeds, round by round, since a slow machine slows both; `part` of their rows are ours."""
    pairs = zip(ours.wall, theirs.wall, strict=True)
    return statistics.median(part * b / a for a, b in pairs)


def check(lake: Path, readers: dict[str, Any]) -> dict[str, int]:
    """Live rows by table; every reader must deliver these rows, by their sum, which the making of the tables wrote."""
    known = json.loads((lake / "truth.json").read_text())
    for table in TABLES:
        for name, reader in readers.items():
            got = truth(reader(lake, table, 8192))
            if got != tuple(known[table]):
                raise SystemExit(f"{name} reads {got} in ns.{table}, where {known[table]} are")
    return {table: known[table][0] for table in TABLES}


def loading(rounds: int, lake: Path, data: Path) -> list[Row]:
    """The tables relative to their plain files."""
    found: list[Row] = []
    rows = check(lake, {"tensorquery": tensorquery})
    for batch_size in BATCH_SIZES:
        works: dict[str, Callable[[], None]] = {
            "files": lambda size=batch_size: read(plain_files(data, size), rows["plain"])  # type: ignore[misc]
        }
        for table in TABLES:
            works[table] = lambda table=table, size=batch_size: read(  # type: ignore[misc]
                tensorquery(lake, table, size), rows[table]
            )
        taken = in_turn(rounds, works)
        taken["files"].row(f"tensorquery, plain files, batch {batch_size}", rows["plain"])
        for table, words in TABLES.items():
            taken[table].row(f"tensorquery, {words}, batch {batch_size}", rows[table])
            speed = relative(taken[table], taken["files"], rows[table] / rows["plain"])
            what = f"{words} / plain files, live rows per second, batch {batch_size}"
            found.append((what, speed, f">= {WANTED[table]}", speed >= WANTED[table]))
    return found


def readers(rounds: int, lake: Path, data: Path) -> list[Row]:
    """tensorquery relative to the other readers, on each table."""
    del data
    found: list[Row] = []
    rows = check(lake, PEERS)
    for table, words in TABLES.items():
        for batch_size in BATCH_SIZES:
            works: dict[str, Callable[[], None]] = {}
            for name, reader in {"tensorquery": tensorquery, **PEERS}.items():
                works[name] = lambda reader=reader, table=table, size=batch_size: read(  # type: ignore[misc]
                    reader(lake, table, size), rows[table]
                )
            # The others take seconds with deletes.
            taken = in_turn(max(1, rounds // 3), works)
            for name in PEERS:
                taken[name].row(f"{name}, {words}, batch {batch_size}", rows[table])
                factor = relative(taken["tensorquery"], taken[name])
                found.append(
                    (f"{words}, batch {batch_size}, × {name}", factor, ">= 1", factor >= 1)
                )
    return found


def planning(rounds: int, lake: Path, data: Path) -> list[Row]:
    """A table of 10,000 files: from a session of its own, the catalog included, to the splits of the shards."""
    from pyiceberg.catalog import load_catalog
    from pyiceberg.expressions import AlwaysTrue

    import tensorquery as tq

    del data

    def plan(name: str) -> None:
        predicate, files = PREDICATES[name]
        where = f" WHERE {predicate}" if predicate else ""
        session = tq.Session()
        session.register_iceberg("lake", catalog_properties(lake))
        plan = session.sql(f"SELECT * FROM lake.ns.planned{where}").plan_shards(world_size=2)
        if plan.num_splits != files:
            raise SystemExit(f"{plan.num_splits} splits under {name!r}, not {files}")

    def scan(name: str) -> None:
        predicate, files = PREDICATES[name]
        predicate = predicate and predicate.replace("BETWEEN", ">=").replace("AND", "AND id <=")
        catalog = load_catalog("lake", **catalog_properties(lake))
        scan = catalog.load_table("ns.planned").scan(row_filter=predicate or AlwaysTrue())
        found = len(list(scan.plan_files()))
        if found != files:
            raise SystemExit(f"pyiceberg plans {found} files under {name!r}, not {files}")

    found: list[Row] = []
    for name in PREDICATES:
        works: dict[str, Callable[[], None]] = {
            "tensorquery": lambda name=name: plan(name),  # type: ignore[misc]
            "pyiceberg": lambda name=name: scan(name),  # type: ignore[misc]
        }
        taken = in_turn(rounds, works)
        for reader, times in taken.items():
            times.row(f"planning {PLANNED_FILES:,} files, {name}, {reader}")
        median = statistics.median(taken["tensorquery"].wall)
        met = median < PLANNING_SECONDS
        what = f"seconds to plan {PLANNED_FILES:,} files, {name}"
        found.append((what, median, f"< {PLANNING_SECONDS:g}", met))
    return found


PARTS = {"loading": loading, "readers": readers, "planning": planning}


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="counted rounds (default 7)")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS))
    options = parser.parse_args()
    lake = DATA / "lake"
    data = make_lake(make(DATA), lake)
    print(f"{machine()}; {load()} before\n")
    print("| work | million rows/s | seconds | spread | CPU seconds |\n|---|---:|---:|---:|---:|")
    found = [row for part in options.only for row in PARTS[part](options.rounds, lake, data)]
    print(f"\n{load()} after; {DELETED:.0%} of the rows deleted, at random positions")
    end_with(found)


if __name__ == "__main__":
    main()
